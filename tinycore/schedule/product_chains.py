"""Product chains: two matrix products and the row reductions between them fused to one kernel.

Floor 3. The scores of attention are a product; weights computed from them and their row reductions
are an operand of the next product. In separate kernels the scores pass through memory several
times; in one kernel a matrix unit keeps them in registers (`lower/strategies/matrix_chain.py`).

The test is algebraic, not by name: every reduction over the columns of the first product is its
maximum, or a sum proportional to exp(-maximum), so that one pass does all of them. As in
`row_inlining.py`, LOADs are replaced by the values that another kernel stores.
See docs/decisions/0063-chains-of-products.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tinycore.config import settings
from tinycore.dtype import DType, dtypes
from tinycore.errors import DeviceError
from tinycore.render.base import Limits
from tinycore.schedule.access import Launch
from tinycore.schedule.limits import limits_of
from tinycore.uop.affine import coefficient
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.proportional import is_proportional
from tinycore.uop.rewrite import rewrite
from tinycore.uop.shape import is_group
from tinycore.uop.symbolic import simplify

MOST_CHAINED: Final = 12
LEAST_ROWS: Final = 2
"""Rows that share what a tile reads of keys and values, at least."""
MOST_REGISTERS: Final = 255
"""Registers of a thread where a device states none."""

LEAST_SIDE: Final = 64
"""Rows and columns from which on a processor's unit computes a product by tiles."""
LEAST_LENGTH: Final = 256
"""Length of its sums from which on such a product is not joined with what is around it."""


def first_unit(launch: Launch, limits: Limits) -> MatrixUnit | None:
    """The unit on which the product of a kernel can be the first of a chain; None without one."""
    if not launch.is_plain or len(launch.loops) < 2:
        return None
    sums = [n for n in launch.nodes if n.op is Op.REDUCE]
    if not sums or len(launch.by_op[Op.STORE]) != 1:
        return None
    units = units_of(limits)
    return next((unit for unit in units if all(factors_of(n, unit) for n in sums)), None)


def units_of(limits: Limits) -> Iterator[MatrixUnit]:
    """The units whose accumulators can be an operand, in rows that lanes reduce."""
    for unit in limits.matrix if limits.grid is not None else ():
        is_whole = unit.is_of(limits.subgroup) and unit.out in limits.shuffles
        is_exact = settings.ALLOW_TF32 or not unit.rounds
        if is_whole and is_exact and unit.chained is not None:
            yield unit.chained


def is_long_product(launch: Launch, limits: Limits) -> bool:
    """True if a processor computes a kernel by whole tiles of a unit, faster than strips of rows.

    A short sum leaves more time in what is around it, where rows stay in a near cache.
    """
    units = [u for u in limits.matrix if u.threads == 1] if limits.grid is None else []
    found = launch.nodes if units and len(launch.loops) > 1 else []
    sums = [n for n in found if n.op is Op.REDUCE]
    if not sums or not all(r.is_fixed for n in sums for r in (*launch.loops, *n.src[1:])):
        return False
    rows, columns = math.prod(r.extent for r in launch.loops[:-1]), launch.loops[-1].extent
    return min(rows, columns) >= LEAST_SIDE and any(
        all(factors_of(n, unit) and n.src[1].extent >= LEAST_LENGTH for n in sums) for unit in units
    )


class Sizes(NamedTuple):
    """The sizes of products: rows x steps by steps x between, and those by between x columns."""

    others: int
    """Number of independent products (batch and heads)."""
    rows: int
    between: int
    steps: tuple[int, ...]
    """Lengths of the sums of each first product."""
    columns: tuple[int, ...]
    """Widths of each second product."""


def suits(unit: MatrixUnit, limits: Limits, sizes: Sizes) -> bool:
    """True if a chain of products fits the registers of a unit, and has rows for all units.

    Where keys and values are copied meanwhile, a tile may have few rows, as in decoding.
    """
    least = LEAST_ROWS if limits.async_bytes and not unit.is_described else unit.m
    tiles = max(sizes.rows // unit.m, 1)
    if sizes.rows < least or sizes.others * tiles < max(limits.units, 1):
        return False
    registers = limits.thread_registers or MOST_REGISTERS
    block = unit.block_of_chain(sizes.columns, sizes.steps, sizes.between, registers)
    return block is not None


def chains_products(
    device: str, dtype: DType, sizes: tuple[Any, ...], is_few: bool = False
) -> bool:
    """True if a device fuses two products with what is between them.

    `sizes` are the fields of `Sizes`. The frontend then does not divide attention into blocks.
    Rows that are `is_few` wait for keys and values, which asynchronous copies must bring: without
    these a subgroup waits for each block, and products apart read memory faster.
    """
    if is_group(device):
        return False
    try:
        limits = limits_of(device)
    except DeviceError:
        return False
    if is_few and not limits.async_bytes:
        return False
    units = (unit for unit in units_of(limits) if unit.a is dtype)
    return any(suits(unit, limits, Sizes(*sizes)) for unit in units)


def orders_of(factors: tuple[UOp, UOp] | None) -> tuple[tuple[UOp, UOp], ...]:
    """Both orders of two factors."""
    return () if factors is None else (factors, factors[::-1])


def factors_of(total: UOp, unit: MatrixUnit) -> tuple[UOp, UOp] | None:
    """The factors of a sum of products over one loop, in the types of a unit; else None."""
    value = total.src[0]
    if total.arg is not Op.ADD or value.op is not Op.MUL or len(total.src) != 2:
        return None
    a, b = (s.src[0] if s.op is Op.CAST else s for s in value.src)
    is_ours = a.dtype is unit.a and b.dtype is unit.b and value.dtype is unit.out
    return (a, b) if is_ours else None


def with_digits_apart(launch: Launch) -> Launch:
    """A kernel with two loops for each one that all addresses take apart by one size."""
    number = max(r.arg.number[0] for r in launch.by_op[Op.RANGE])
    taken: dict[UOp, UOp] = {}
    loops: list[UOp] = []
    for loop in launch.loops:
        digits = (
            n for n in launch.nodes if n.op in (Op.FLOORDIV, Op.FLOORMOD) and n.src[0] is loop
        )
        sizes = {n.src[1].arg if n.src[1].op is Op.CONST else 0 for n in digits}
        size = sizes.pop() if len(sizes) == 1 else 0
        if not 1 < size < loop.extent or loop.extent % size:
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
    """Loops of a kernel, first those by which it moves through `index` as rows do through `stored`.

    None if it has no such loops, or more than one beside them.
    """
    left = list(loops)
    found: list[UOp] = []
    for row in rows:
        step = row.extent, coefficient(stored.src[1], row)
        same = (r for r in left if (r.extent, coefficient(index.src[1], r)) == step)
        loop = next(same, None)
        if loop is None or step[1] is None:
            return None
        left.remove(loop)
        found.append(loop)
    return (*found, *left) if len(left) <= 1 else None


class ProductChain:
    """A chain under construction: kernels from a first product to a second, in common loops."""

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
        """A new loop of the same extent as another."""
        self.number += 1
        return UOp.range(loop.extent, self.number, kind)

    def admit(self, launch: Launch) -> bool:
        """Add a kernel that reads what members store, at the same indices; False for others."""
        if len(self.members) >= MOST_CHAINED or not launch.is_plain:
            return False
        if not launch.read & self.places.keys() or launch.written & self.pointers.keys():
            return False
        return any(map(self.add, self.in_order(launch)))

    def in_order(self, launch: Launch) -> Iterator[Launch]:
        """A kernel as it is, and with its loops in the order of the chain's rows, if it has these.

        Results of attention are stored with the features of all heads side by side.
        """
        depth = len(self.rows)
        extents = [r.extent for r in self.rows]
        if [r.extent for r in launch.loops[:depth]] == extents and len(launch.loops) <= depth + 1:
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
        """Memory of members that has an element per column of the first products."""
        found = self.places.items()
        return frozenset(p for p, (index, _) in found if self.between in index.ranges)

    def columns_for(self, launch: Launch) -> Iterator[UOp | None]:
        """Loops of the chain that the last loop of a kernel, after those over rows, may be."""
        loops = launch.loops[len(self.rows) :]
        if not loops:
            yield None
        for loop in loops:
            if loop.extent == self.between.extent:
                yield self.between
            if self.members and self.column is None:
                yield self.fresh(loop, AxisKind.LOOP)
            elif self.column is not None and self.column.extent == loop.extent:
                yield self.column

    def renamed(self, launch: Launch, column: UOp | None) -> dict[UOp, UOp]:
        """The loops of the chain in place of a kernel's, the last of which is `column`.

        In a kernel over the columns of the first product, reductions are other first products.
        """
        renamed = dict(zip(launch.loops, self.rows, strict=False))
        renamed |= {r: column for r in launch.loops[len(self.rows) :] if column is not None}
        for loop in launch.by_op[Op.RANGE]:
            if loop not in renamed:
                is_between = column is not self.between and loop.extent == self.between.extent
                renamed[loop] = self.between if is_between else self.fresh(loop, AxisKind.REDUCE)
        return renamed

    def in_terms_of(self, launch: Launch, renamed: dict[UOp, UOp]) -> dict[UOp, UOp] | None:
        """The nodes of a kernel with values of members in place of LOADs of these.

        None if a LOAD has another index than the store.
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

    def is_complete(self, kept: frozenset[int]) -> bool:
        """True if the members form a chain for the unit, and no scores are `kept` in memory."""
        kept |= self.members[-1].written
        if self.column is None or kept & self.scores:
            return False
        values = [self.places[p][1] for p in kept & self.places.keys()]
        folds = [n for n in UOp.sink(*values).toposort() if n.op is Op.REDUCE]
        firsts = [n for n in folds if self.between not in n.src[1:]]
        greatest = [n for n in folds if n.arg is Op.MAX]
        sums = [n for n in folds if n not in greatest and n not in firsts]
        if len(greatest) > 1 or any(n.src[1:] != (self.between,) for n in (*greatest, *sums)):
            return False
        if not all(n.arg is Op.ADD for n in sums):
            return False
        if greatest and not all(is_proportional(n.src[0], greatest[0]) for n in sums):
            return False
        seconds = [n for n in sums if self.column in n.ranges]
        return (bool(greatest) or sums == seconds) and self.are_products(firsts, seconds)

    def are_products(self, firsts: Sequence[UOp], seconds: Sequence[UOp]) -> bool:
        """True if the products fit the unit, and are enough to fill the device."""
        assert self.column is not None
        if not firsts or not seconds:
            return False
        rows = {self.row_of_first(n) for n in firsts} | {
            self.row_of_second(n, firsts) for n in seconds
        }
        row = rows.pop()
        if row is None or rows:
            return False
        others = math.prod(r.extent for r in self.rows) // row.extent
        steps = tuple(n.src[1].extent for n in firsts)
        columns = tuple(self.column.extent for _ in seconds)
        sizes = Sizes(others, row.extent, self.between.extent, steps, columns)
        alike = (u for u in units_of(self.limits) if (u.a, u.out) == (self.unit.a, self.unit.out))
        return any(suits(unit, self.limits, sizes) for unit in alike)

    def row_of_first(self, total: UOp) -> UOp | None:
        """The row loop of a first product: one operand varies with it, the other with `between`."""
        for a, b in orders_of(factors_of(total, self.unit)):
            if self.between in b.ranges and self.between not in a.ranges:
                return self.row_of(a, b)
        return None

    def row_of_second(self, total: UOp, firsts: Sequence[UOp]) -> UOp | None:
        """The row loop of a second product: only the operand from first products varies with it."""
        for a, b in orders_of(factors_of(total, self.unit)):
            below = a.toposort()
            if self.column in a.ranges or not any(n in below for n in firsts):
                continue
            if self.column in b.ranges and not any(n.op is Op.REDUCE for n in b.toposort()):
                return self.row_of(a, b)
        return None

    def row_of(self, a: UOp, b: UOp) -> UOp | None:
        """The longest loop over rows that `b` does not vary with, if `a` does; else None.

        There are several where all heads share keys.
        """
        rows = [r for r in self.rows[::-1] if r not in b.ranges]
        row = max(rows, key=lambda r: int(r.extent), default=None)
        return row if row is not None and row in a.ranges else None

    def fuse(self, kept: frozenset[int]) -> Launch:
        """The members as one kernel, which stores the memory `kept` and that of the last member."""
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
        return Launch(UOp.sink(end.substitute(numbered)), slots)
