"""Product chains: two matrix products and the row reductions between them fused to one kernel.

Floor 3. The scores of attention are a product; weights computed from them and their row reductions
are an operand of the next product. In separate kernels the scores pass through memory several
times; in one kernel a matrix unit keeps them in registers (`lower/strategies/matrix_chain.py`).

The test is algebraic, not by name (`render/chains.py`): every reduction over the columns of the
first product is its maximum, or a sum proportional to exp(-maximum), so that one pass does all of
them. Values that members store for each other are computed in registers instead (`inlining.py`).
See docs/decisions/0063-chains-of-products.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tinycore.dtype import DType, dtypes
from tinycore.render.base import Limits
from tinycore.render.chains import (
    MOST_COLUMN_PARTS,
    Products,
    Sizes,
    factors_of,
    products_of,
    refusal_by_unit,
    units_of,
)
from tinycore.schedule.access import Launch, written_by
from tinycore.schedule.candidates import Group, Memory, Refusal
from tinycore.schedule.inlining import Inlined
from tinycore.schedule.limits import device_limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.proportional import MOST_KEPT, with_divisors_last
from tinycore.uop.shape import DeviceLike, is_group

LEAST_LENGTH: Final = 256
"""Length of sums, and columns, from which on a product by tiles of a processor's matrix unit is not
fused with its neighbors."""


def first_unit(launch: Launch, limits: Limits) -> MatrixUnit | None:
    """The unit on which the product of a kernel can be the first of a chain; None without one."""
    units = [*units_of(limits)]
    if not units or not is_nest_of(launch, limits) or len(launch.loops) < 2:
        return None
    sums = launch.folds
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
    sums = launch.folds if units and len(launch.loops) > 1 else []
    if not sums or not all(r.is_fixed for n in sums for r in (*launch.loops, *n.src[1:])):
        return False
    rows, columns = iterations_of(launch.loops[:-1]), launch.loops[-1].extent
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

    `sizes` are the fields of `Sizes`. After a refusal `attention.py` divides attention into pieces.
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


class ProductChain(Group):
    """A chain under construction: kernels from a first product to a second, over common loops."""

    kind = "chain of products"
    are_neighbors = False
    most = 12

    def __init__(self, first: Launch, limits: Limits, memory: Memory, unit: MatrixUnit) -> None:
        super().__init__(first, limits, memory)
        self.unit = unit
        self.rows, self.between = iterations_of(first.loops[:-1]), iterations_of(first.loops[-1:])

    def is_nest(self, launch: Launch) -> bool:
        """True for loops of which lengths may be set at launch."""
        return is_nest_of(launch, self.limits)

    def refusal(self, launch: Launch) -> Refusal | None:
        """Why a kernel folds other columns than members store; None if it does not."""
        written = written_by(self.members)
        read = [i.src[1].ranges for i, place in launch.accesses.items() if place in written]
        summed = frozenset().union(*read).difference(launch.loops)
        return Refusal.ROWS if any(iterations_of([r]) != self.between for r in summed) else None

    def fused(self) -> Launch | str:
        """One kernel of all members that stores what others read, and what the last member writes;
        as text, why they form no chain."""
        wide = [m for m in self.members if iterations_of(m.loops) > self.rows]
        if not any(m.folds for m in wide[1:]):
            return ""
        kept, root = self.memory.kept(self.members) | self.members[-1].written, wide[-1]
        found: Launch | str = Refusal.ROWS.value
        values: Inlined | None = Inlined(self.memory, self.members, root, is_one_pass=True)
        while values is not None and isinstance(found, str):
            if (stores := values.stores(kept)) is not None:
                found = self.chained(
                    values.launch(UOp.group(*stores.values()).end(*values.loops), stores)
                )
            values = values.with_digits_apart()
        return found

    def chained(self, whole: Launch) -> Launch | str:
        """A kernel of all members as a unit computes it; as text, why none does."""
        end = with_divisors_last(whole.end)
        found = products_of(UOp.sink(end), end.src[1:], self.unit)
        if isinstance(found, str):
            return found
        whole = Launch(UOp.sink(once_for_rows(end, found)), whole.places)
        kinds = self.unit.a, self.unit.out
        alike = [u for u in units_of(self.limits) if (u.a, u.out) == kinds]
        return refusal_by_units(self.limits, alike, found.sizes) or whole


def once_for_rows(end: UOp, found: Products) -> UOp:
    """A nest whose innermost loops are rows and columns, where what is no column is stored once."""
    body, *loops = end.src
    stores = []
    for store in body.src if body.op is Op.GROUP else (body,):
        index = store.src[0]
        if found.n not in index.ranges:
            index = index.with_src((*index.src[:2], found.n.eq(0)))
        stores.append(store.with_src((index, *store.src[1:])))
    others = [loop for loop in loops if loop not in (found.m, found.n)]
    return UOp.group(*stores).end(*others, found.m, found.n)
