"""Product chains: two matrix products and the row reductions between them fused to one kernel.

Floor 3. The scores of attention are a product; weights computed from them and their row reductions
are an operand of the next product. In separate kernels the scores pass through memory several
times; in one kernel a matrix unit keeps them in registers (`lower/strategies/matrix_chain.py`).

The test is algebraic, not by name (`render/chains.py`): every reduction over the columns of the
first product is its maximum, or a sum proportional to exp(-maximum), so that one pass does all of
them. LOADs give way to the values that another kernel stores (`inlining.py`).
See docs/decisions/0063-chains-of-products.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tinycore.dtype import DType, dtypes
from tinycore.render.base import Limits
from tinycore.render.chains import (
    MOST_COLUMN_PARTS,
    Sizes,
    factors_of,
    products_of,
    refusal_by_unit,
    units_of,
)
from tinycore.schedule.access import Launch
from tinycore.schedule.candidates import Memory, Refusal, Run
from tinycore.schedule.inlining import Inlining
from tinycore.schedule.items import Step
from tinycore.schedule.limits import device_limits
from tinycore.uop.affine import digit_size
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.proportional import MOST_KEPT, with_divisors_last
from tinycore.uop.rewrite import rewrite
from tinycore.uop.shape import DeviceLike, is_group
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

MOST_CHAINED: Final = 12
"""Most kernels of a chain."""
LEAST_LENGTH: Final = 256
"""Length of sums, and columns, from which on a product by tiles of a processor's matrix unit is not
fused with its neighbors."""


def first_unit(launch: Launch, limits: Limits) -> MatrixUnit | None:
    """The unit on which the product of a kernel can be the first of a chain; None without one."""
    units = [*units_of(limits)]
    if not units or not is_nest_of(launch, limits) or len(launch.loops) < 2:
        return None
    sums = [n for n in launch.nodes if n.op is Op.REDUCE]
    if not sums or len(launch.by_op[Op.STORE]) != 1:
        return None
    return next((unit for unit in units if all(factors_of(n, unit) for n in sums)), None)


def is_nest_of(launch: Launch, limits: Limits) -> bool:
    """True if a kernel is one nest of loops, whose lengths are fixed or may be set at launch."""
    return bool(launch.loops) and (launch.is_varying_row if limits.grid_varies else launch.is_row)


def is_long_product(launch: Launch, limits: Limits) -> bool:
    """True if whole tiles of a processor's matrix unit are faster than fusion by strips of rows.

    Of a short sum, or one for few columns, the operations around it take most time, and strips keep
    rows in a near cache.
    """
    units = [u for u in limits.matrix if u.threads == 1] if limits.grid is None else []
    found = launch.nodes if units and len(launch.loops) > 1 else []
    sums = [n for n in found if n.op is Op.REDUCE]
    if not sums or not all(r.is_fixed for n in sums for r in (*launch.loops, *n.src[1:])):
        return False
    rows, columns = math.prod(r.extent for r in launch.loops[:-1]), launch.loops[-1].extent
    return columns >= LEAST_LENGTH and any(
        unit.repays_packing(rows, columns)
        and all(factors_of(n, unit) and n.src[1].extent >= LEAST_LENGTH for n in sums)
        for unit in units
    )


def multiplies(device: DeviceLike, dtype: DType) -> bool:
    """True if a matrix unit of a device multiplies a type directly, or the device is unknown."""
    limits = device_limits(device)
    return limits is None or any(unit.a is dtype for unit in limits.matrix)


def refusal_of_chain(
    device: DeviceLike,
    dtype: DType,
    sizes: tuple[Any, ...],
    is_few: bool = False,
    most_parts: int = MOST_COLUMN_PARTS,
    is_masked: bool = False,
) -> str | None:
    """Why a device does not fuse a chain of products; None if it does.

    `sizes` are the fields of `Sizes`. After a refusal the frontend divides attention into blocks.
    Few rows (`is_few`), as in decoding, require asynchronous copies: without them a subgroup waits
    for each block of keys and values, and separate products read memory faster. The columns of
    results are divided among at most `most_parts` groups. If it `is_masked`, something in memory is
    read for each score, such as a mask, which strips of rows would read again for every head.
    """
    if is_group(device):
        return "its tensors are on several devices"
    if (limits := device_limits(device)) is None:
        return "the device cannot be opened"
    if limits.grid is None:
        if is_masked or is_few:
            return "strips would read a mask, or few rows"
        return refusal_by_strips(limits, dtype, Sizes(*sizes))
    if is_few and not limits.copies:
        return "the device has no asynchronous copies"
    units = [unit for unit in units_of(limits) if unit.a is dtype]
    return refusal_by_units(limits, units, Sizes(*sizes), most_parts)


def refusal_by_strips(limits: Limits, dtype: DType, sizes: Sizes) -> str | None:
    """Why strips of rows do not keep the scores of a chain in a near cache, or need not; None if
    they do, and leave out what a mask hides (`lower/tighten.py`)."""
    rows, between = sizes.rows, sizes.between
    if any(unit.a is dtype for unit in limits.matrix):
        return "the matrix unit computes products by whole tiles"
    if rows * between <= MOST_KEPT:
        return "its scores are so few that they are stored"
    if any(n % limits.vector_bytes for n in (rows, between)):
        return f"{rows} rows or {between} columns between are no whole strips"
    width = max(sum(sizes.steps), sizes.steps[0] + sizes.columns[0])
    reread = width * between * max(dtype.itemsize, dtypes.float32.itemsize)
    if reread > limits.cache_bytes:
        return f"{reread} bytes that every strip reads are more than {limits.cache_bytes}"
    return None


def refusal_by_units(
    limits: Limits, units: Sequence[MatrixUnit], sizes: Sizes, most_parts: int = MOST_COLUMN_PARTS
) -> str | None:
    """Why none of some units computes a chain of some sizes; None if one does."""
    found = {unit.name: refusal_by_unit(limits, unit, sizes, most_parts) for unit in units}
    if None in found.values():
        return None
    reasons = [f"{name}: {why}" for name, why in found.items()]
    return "; ".join(reasons) or "no matrix unit of the device has sums that are operands"


def with_digits_apart(launch: Launch) -> Launch:
    """A kernel whose loops are split where all addresses divide their counter by one size."""
    number = max(r.arg.number[0] for r in launch.by_op[Op.RANGE])
    taken: dict[UOp, UOp] = {}
    loops: list[UOp] = []
    for loop in launch.loops:
        if (size := digit_size(loop, launch.nodes)) is None:
            loops.append(loop)
            continue
        outer, inner = (
            UOp.range(extent, number + part, AxisKind.LOOP)
            for part, extent in enumerate((loop.extent // size, size), 1)
        )
        number += 2
        taken[loop] = outer * size + inner
        loops += (outer, inner)
    if not taken:
        return launch
    body = rewrite(launch.end.src[0].substitute(taken), simplify, name="simplify digits")
    return Launch(UOp.sink(body.end(*loops)), launch.places)


def keeps_loops_apart(launch: Launch, names: dict[UOp, UOp]) -> bool:
    """True if loops that vary together in a kernel have names of their own."""
    together = ([names[r] for r in n.ranges if r in names] for n in launch.nodes)
    return all(len(found) == len({*found}) for found in together)


class ProductChain(Inlining):
    """A chain under construction: kernels from a first product to a second, over common loops."""

    kind = "chain of products"

    def __init__(self, first: Launch, limits: Limits, memory: Memory, unit: MatrixUnit) -> None:
        super().__init__(first, limits, memory)
        self.unit = unit
        *self.rows, column = first.loops
        self.between = self.fresh(column, AxisKind.REDUCE)
        self.column: UOp | None = None
        """The loop over columns of the second product."""
        self.add(first, dict(zip(first.loops, (*self.rows, self.between), strict=True)))

    def admit(self, run: Run) -> Refusal | None:
        """Add a kernel that reads what members store, at the same indices; else say why not."""
        launch = run.launch
        if not is_nest_of(launch, self.limits):
            return Refusal.NEST
        if (refusal := self.refusal(launch, MOST_CHAINED)) is not None:
            return refusal
        number, apart = self.number, with_digits_apart(launch)
        if self.join(launch) or (apart is not launch and self.join(apart)):
            return None
        self.number = number
        return Refusal.ROWS

    def join(self, launch: Launch) -> bool:
        """Add a member, with stores in the chain's loops; False if it reads at other indices."""
        names = self.names_in(launch)
        left = [loop for loop in launch.loops if loop not in names]
        for column in self.columns_for(left) if names else ():
            named = names | dict.fromkeys(left, column)
            if keeps_loops_apart(launch, named) and self.add(launch, named):
                self.column = self.column if column is self.between else column
                self.members.append(launch)
                return True
        return False

    def names_in(self, launch: Launch) -> dict[UOp, UOp]:
        """The loops of the chain that are as long as those by which a kernel reads what members
        store, with the same strides, in whatever order; empty if there are none."""
        names: dict[UOp, UOp] = {}
        for access, place in launch.accesses.items():
            bases, _ = terms_of(self.stored[place][0].src[1]) if place in self.stored else ({}, 0)
            for base, step in terms_of(access.src[1])[0].items() if bases else ():
                for loop in base.ranges:
                    alike = [r for b, n in bases.items() if n == step for r in b.ranges]
                    alike = [r for r in alike if r.src[0] is loop.src[0]]
                    name = next((r for r in alike if base.substitute({loop: r}) in bases), None)
                    is_sum = loop not in launch.loops
                    if name is None or (is_sum and name is not self.between):
                        return {}
                    if names.setdefault(loop, name) is not name:
                        return {}
        return names

    @property
    def scores(self) -> frozenset[int]:
        """Memory of members with an element per column of the first products."""
        found = self.stored.items()
        return frozenset(p for p, (index, _) in found if self.between in index.ranges)

    def columns_for(self, left: Sequence[UOp]) -> Iterator[UOp]:
        """Loops of the chain that the last one of a kernel may be; any, if all others are rows."""
        if not left:
            yield self.between
        for loop in left if len(left) == 1 else ():
            if loop.src[0] is self.between.src[0]:
                yield self.between
            if self.column is None:
                yield self.fresh(loop, AxisKind.LOOP)
            elif self.column.src[0] is loop.src[0]:
                yield self.column

    def fused(self, steps: Sequence[Step]) -> Launch | str:
        """`fuse`, once there is a second product; as text, why some steps form no chain."""
        kept = self.memory.kept(steps)
        if self.column is None:
            return ""
        if (kept | self.members[-1].written) & self.scores:
            return "others read what has a number for each row and column"
        whole = self.fuse(kept)
        found = products_of(whole.ast, whole.loops, self.unit)
        if isinstance(found, str):
            return found
        kinds = self.unit.a, self.unit.out
        alike = [u for u in units_of(self.limits) if (u.a, u.out) == kinds]
        return refusal_by_units(self.limits, alike, found.sizes) or whole

    def fuse(self, kept: frozenset[int]) -> Launch:
        """One kernel of all members that stores the memory `kept`, and that of the last member."""
        assert self.column is not None
        kept |= self.members[-1].written
        stored = [p for p in self.stored if p in kept]
        stores = []
        for place in stored:
            index, value = self.stored[place]
            if self.column not in index.ranges:  # once for each row
                index = index.with_src((*index.src[:2], self.column.eq(0)))
            stores.append(index.store(value))
        end = UOp.group(*stores).end(*self.rows, self.column)
        return self.kernel(with_divisors_last(end), stored)
