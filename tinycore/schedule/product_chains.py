"""Product chains: two matrix products and the row reductions between them fused to one kernel.

Floor 3. The scores of attention are a product; weights computed from them and their row reductions
are an operand of the next product. In separate kernels the scores pass through memory several
times; in one kernel a matrix unit keeps them in registers (`lower/strategies/matrix_chain.py`).

The test is algebraic, not by name (`render/chains.py`): every reduction over the columns of the
first product is its maximum, or a sum proportional to exp(-maximum), so that one pass does all of
them. As in `row_inlining.py`, LOADs are replaced by the values that another kernel stores.
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
from tinycore.schedule.limits import device_limits, loop_limits
from tinycore.uop.affine import coefficient, digit_size
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.proportional import with_divisors_last
from tinycore.uop.rewrite import rewrite
from tinycore.uop.shape import DeviceLike, is_group
from tinycore.uop.symbolic import simplify

MOST_CHAINED: Final = 12
"""Most kernels of a chain."""
LEAST_LENGTH: Final = 256
"""Length of sums, and columns, from which on a product by tiles of a processor's matrix unit is not
fused with its neighbors."""


def first_unit(launch: Launch, limits: Limits) -> MatrixUnit | None:
    """The unit on which the product of a kernel can be the first of a chain; None without one."""
    if not is_nest_of(launch, limits) or len(launch.loops) < 2:
        return None
    sums = [n for n in launch.nodes if n.op is Op.REDUCE]
    if not sums or len(launch.by_op[Op.STORE]) != 1:
        return None
    units = units_of(limits)
    return next((unit for unit in units if all(factors_of(n, unit) for n in sums)), None)


def is_nest_of(launch: Launch, limits: Limits) -> bool:
    """True if a kernel is one nest of loops, whose lengths are fixed or may be set at launch."""
    return launch.is_varying_nest if limits.grid_varies else launch.is_plain


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


def chained_types(device: DeviceLike) -> frozenset[DType]:
    """The operand types for which a device computes chains of products."""
    limits = device_limits(device)
    return frozenset() if limits is None else frozenset(unit.a for unit in units_of(limits))


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
) -> str | None:
    """Why a device does not fuse a chain of products; None if it does.

    `sizes` are the fields of `Sizes`. After a refusal the frontend divides attention into blocks.
    Few rows (`is_few`), as in decoding, require asynchronous copies: without them a subgroup waits
    for each block of keys and values, and separate products read memory faster. The columns of
    results are divided among at most `most_parts` groups.
    """
    if is_group(device):
        return "its tensors are on several devices"
    if (limits := device_limits(device)) is None:
        return "the device cannot be opened"
    if is_few and not limits.async_bytes:
        return "the device has no asynchronous copies"
    units = [unit for unit in units_of(limits) if unit.a is dtype]
    return refusal_by_units(limits, units, Sizes(*sizes), most_parts)


def refusal_by_units(
    limits: Limits, units: Sequence[MatrixUnit], sizes: Sizes, most_parts: int = MOST_COLUMN_PARTS
) -> str | None:
    """Why none of some units computes a chain of some sizes; None if one does."""
    found = {unit.name: refusal_by_unit(limits, unit, sizes, most_parts) for unit in units}
    if None in found.values():
        return None
    reasons = [f"{name}: {why}" for name, why in found.items()]
    return "; ".join(reasons) or "no matrix unit of the device has sums that are operands"


def skips_hidden(device: DeviceLike, dtype: DType, reread: int, columns: int) -> bool:
    """True if strips of causal attention skip hidden keys (`lower/tighten_strips.py`).

    `reread` is the size of keys and values in bytes. With a matrix unit there are no strips.
    """
    limits = loop_limits(device)
    if limits is None or any(unit.a is dtype for unit in limits.matrix):
        return False
    return columns % limits.vector_bytes == 0 and reread <= limits.cache_bytes


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
    return Launch(UOp.sink(UOp(Op.END, dtypes.void, (body, *loops))), launch.places)


def order_of(
    loops: Sequence[UOp], index: UOp, rows: Sequence[UOp], stored: UOp
) -> tuple[UOp, ...] | None:
    """The loops of a kernel in the order of a chain: rows first.

    A loop matches a row if it has the same length, and the same stride in `index` as the row in
    `stored`. None unless every row has a match, and at most one loop is left.
    """
    left = list(loops)
    found: list[UOp] = []
    for row in rows:
        step = row.src[0], coefficient(stored.src[1], row)
        same = (r for r in left if (r.src[0], coefficient(index.src[1], r)) == step)
        loop = next(same, None)
        if loop is None or step[1] is None:
            return None
        left.remove(loop)
        found.append(loop)
    return (*found, *left) if len(left) <= 1 else None


class ProductChain:
    """A chain under construction: kernels from a first product to a second, over common loops."""

    def __init__(self, first: Launch, device: str, limits: Limits, unit: MatrixUnit) -> None:
        self.device, self.limits, self.unit = device, limits, unit
        *self.rows, column = first.loops
        self.number = max(r.arg.number[0] for r in first.by_op[Op.RANGE])
        self.between = self.fresh(column, AxisKind.REDUCE)
        self.column: UOp | None = None
        """The loop over columns of the second product."""
        self.members: list[Launch] = []
        self.places: dict[int, tuple[UOp, UOp]] = {}
        """INDEX and value of each store of a member, by memory number."""
        self.pointers: dict[int, UOp] = {}
        """Pointers to all memory, each numbered as it is."""
        self.add(first)

    def fresh(self, loop: UOp, kind: AxisKind) -> UOp:
        """A new loop of the same length as another."""
        self.number += 1
        return UOp.range(loop.src[0], self.number, kind)

    def admit(self, launch: Launch) -> bool:
        """Add a kernel that reads what members store, at the same indices; False for others."""
        if len(self.members) >= MOST_CHAINED or not is_nest_of(launch, self.limits):
            return False
        if not launch.read & self.places.keys() or launch.written & self.pointers.keys():
            return False
        return any(map(self.add, self.in_order(launch)))

    def in_order(self, launch: Launch) -> Iterator[Launch]:
        """A kernel as it is, then with its loops reordered to the chain's rows, where they match.

        A kernel that stores attention with the features of all heads adjacent needs the latter.
        """
        depth = len(self.rows)
        lengths = [r.src[0] for r in self.rows]
        if [r.src[0] for r in launch.loops[:depth]] == lengths and len(launch.loops) <= depth + 1:
            yield launch
        apart = with_digits_apart(launch)
        for index, place in apart.accesses.items():
            if place in self.places and {*self.rows} <= self.places[place][0].ranges:
                if order := order_of(apart.loops, index, self.rows, self.places[place][0]):
                    end = apart.end.with_src((apart.end.src[0], *order))
                    yield Launch(UOp.sink(end), launch.places)
                return

    def add(self, launch: Launch) -> bool:
        """Add a member, with stores in the chain's loops; False if it reads at other indices."""
        for column in self.columns_for(launch):
            renamed = self.renamed(launch, column)
            done = self.in_terms_of(launch, renamed)
            if done is not None:
                break
        else:
            return False
        self.column = column if column not in (None, self.between) else self.column
        self.members.append(launch)
        for store in launch.by_op[Op.STORE]:
            index, value = (done[s] for s in store.src)
            self.places[launch.accesses[store.src[0]]] = (index, value)
        return True

    @property
    def scores(self) -> frozenset[int]:
        """Memory of members with an element per column of the first products."""
        found = self.places.items()
        return frozenset(p for p, (index, _) in found if self.between in index.ranges)

    def columns_for(self, launch: Launch) -> Iterator[UOp | None]:
        """Loops of the chain that the last loop of a kernel, after those over rows, may be."""
        loops = launch.loops[len(self.rows) :]
        if not loops:
            yield None
        for loop in loops:
            if loop.src[0] is self.between.src[0]:
                yield self.between
            if self.members and self.column is None:
                yield self.fresh(loop, AxisKind.LOOP)
            elif self.column is not None and self.column.src[0] is loop.src[0]:
                yield self.column

    def renamed(self, launch: Launch, column: UOp | None) -> dict[UOp, UOp]:
        """The loops of the chain in place of a kernel's, the last of which is `column`.

        In a kernel over the columns of the first product, reductions are other first products.
        """
        renamed = dict(zip(launch.loops, self.rows, strict=False))
        renamed |= {r: column for r in launch.loops[len(self.rows) :] if column is not None}
        for loop in launch.by_op[Op.RANGE]:
            if loop not in renamed:
                is_between = column is not self.between and loop.src[0] is self.between.src[0]
                renamed[loop] = self.between if is_between else self.fresh(loop, AxisKind.REDUCE)
        return renamed

    def in_terms_of(self, launch: Launch, renamed: dict[UOp, UOp]) -> dict[UOp, UOp] | None:
        """The nodes of a kernel, with LOADs of what members store replaced by the stored values.

        None if a LOAD has another index than the STORE.
        """
        done: dict[UOp, UOp] = dict(renamed)
        for node in launch.nodes:
            if node.op in (Op.RANGE, Op.END, Op.SINK):
                continue
            if node.op is Op.DEFINE_GLOBAL:
                place = launch.places[node.arg]
                done[node] = self.pointers.setdefault(place, node.replace(arg=place))
                if done[node].dtype is not node.dtype:
                    return None
            elif node.op is Op.LOAD and launch.accesses[node.src[0]] in self.places:
                index, value = self.places[launch.accesses[node.src[0]]]
                if done[node.src[0]].src[1:] != index.src[1:]:
                    return None
                done[node] = value
            else:
                done[node] = node.with_src(tuple([done[s] for s in node.src]))
                if node.op is Op.INDEX:
                    done[node] = rewrite(done[node], simplify, name="simplify a place")
        return done

    def refusal(self, kept: frozenset[int]) -> str | None:
        """Why the members form no chain, if memory in `kept` must be stored; None if they do."""
        kept |= self.members[-1].written
        if self.column is None:
            return "a second product is missing"
        if kept & self.scores:
            return "others read what has a number for each row and column"
        whole = self.fuse(kept)
        found = products_of(whole.ast, whole.loops, self.unit)
        if isinstance(found, str):
            return found
        kinds = self.unit.a, self.unit.out
        alike = [u for u in units_of(self.limits) if (u.a, u.out) == kinds]
        return refusal_by_units(self.limits, alike, found.sizes)

    def fuse(self, kept: frozenset[int]) -> Launch:
        """One kernel of all members that stores the memory `kept`, and that of the last member."""
        assert self.column is not None
        kept |= self.members[-1].written
        stored = [p for p in self.places if p in kept]
        nodes = UOp.sink(*(self.places[p][1] for p in stored)).toposort()
        read = sorted(int(n.arg) for n in nodes if n.op is Op.DEFINE_GLOBAL)
        slots = tuple(dict.fromkeys((*stored, *read)))
        stores = []
        for place in stored:
            index, value = self.places[place]
            if self.column not in index.ranges:  # once for each row
                index = index.with_src((*index.src[:2], self.column.eq(0)))
            stores.append(UOp(Op.STORE, dtypes.void, (index, value)))
        body = stores[0] if len(stores) == 1 else UOp(Op.GROUP, dtypes.void, tuple(stores))
        end = UOp(Op.END, dtypes.void, (body, *self.rows, self.column))
        numbered = {self.pointers[p]: self.pointers[p].replace(arg=n) for n, p in enumerate(slots)}
        return Launch(UOp.sink(with_divisors_last(end).substitute(numbered)), slots)
