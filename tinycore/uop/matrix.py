"""`MatrixUnit`: a matrix instruction (tensor core, WMMA) as data, declared in `Limits.matrix`.

Floor 1. A `MatrixUnit` multiplies an m x k by a k x n matrix and adds an m x n one, for a subgroup
of `threads` lanes that hold these matrices together (PTX: mma, AMD: WMMA and MFMA, Metal:
simdgroup_matrix); with one thread it is an instruction on vectors, such as a dot product. A lane
map says, for each bit of the lane's number and then of the element's number in the lane, least bit
first, which axis it counts along and in steps of how many: "k2 k4 m1 m2 m4 | k1 m8 k8". Lanes that
differ in a bit that is "-" hold the same. See docs/decisions/0053-matrix-units.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from tinycore.dtype import DType
from tinycore.errors import ArgumentError
from tinycore.uop.instruction import Effect

if TYPE_CHECKING:
    from tinycore.uop.node import UOp

Number = TypeVar("Number", bound=Any)
"""Type of positions: int, an array or an index expression."""

BANKS_BYTES: Final = 128
"""Bytes of a line of shared memory, which swizzled rows keep together."""
BLOCKS_OF_CHAINS: Final = (64, 32, 16)
"""Columns of a first product that are operands of a second one at a time, the best first."""
COLUMNS_OF_WASTE: Final = 8
"""Columns for each one beyond the end in the last block, from which on large blocks are better."""
REGISTERS_OF_CHAINS: Final = 28
"""Registers of a lane for addresses, fragments of other operands and folds of rows, of which there
are more where sums are longer, up to one of 156: by what nvrtc's code takes for those of 64,
128, 192 and 256."""
MOST_FRAGMENTS: Final = 156
"""Steps of a sum from which on lanes hold no more of its fragments at once."""
REGISTERS_OF_SEVERAL: Final = 16
"""More of them for each tile of rows but the first, whose masks and folds are under way together:
nvrtc's code of two tiles by 64 keys spills 36 registers for 64 features."""
DESCRIBED_REGISTERS: Final = 20
"""The same where a unit reads the other operands by itself."""
WORD_BYTES: Final = 4
LEAST_TILES: Final = 4
"""Tiles along a side from which on packing for an instruction of a single thread pays."""
BIT: Final = re.compile(r"([mnk])(\d+)|-")


class Bit(NamedTuple):
    """The weight of one bit of a number: a power of two of steps along an axis."""

    axis: str
    power: int


class SumsAsOperand(NamedTuple):
    """The making of a product's operand of the sums that lanes hold of another one."""

    places: tuple[int, ...]
    """For each element of the operand its place in what its lane has of sums."""
    masks: tuple[int, ...]
    """Bits of a lane's number: lanes that differ in one also have what the other one has, after
    all they had, those without the bit first."""


class Run(NamedTuple):
    """Neighboring bits that count along one axis: `value // start % size * power`."""

    axis: str
    start: int
    size: int
    power: int


@dataclass(frozen=True)
class LaneMap:
    """Element of a matrix that each lane holds in each of its places; None is a bit of neither."""

    lanes: tuple[Bit | None, ...]
    elements: tuple[Bit | None, ...]

    def place(self, axis: str, lane: Number, element: Number) -> Number | int:
        """Position of a lane's element along an axis."""
        parts = ((self.lanes, lane), (self.elements, element))
        terms = [
            value // run.start % run.size * run.power
            for bits, value in parts
            for run in runs_of(bits)
            if run.axis == axis
        ]
        return sum(terms[1:], terms[0]) if terms else 0

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """For each element of a lane, in which of the lane's rows (places along m) it is."""
        places = [self.place("m", 0, element) for element in range(1 << len(self.elements))]
        order = sorted(set(places))
        return tuple([order.index(place) for place in places])

    @cached_property
    def neighbors(self) -> tuple[str, int]:
        """Axis along which elements of a lane are adjacent from the first on, and their number."""
        first = next(iter(runs_of(self.elements)), None)
        if first is None or first.start != 1 or first.power != 1:
            return "k", 1
        return first.axis, first.size


def runs_of(bits: Iterable[Bit | None]) -> Iterator[Run]:
    """Bits as runs along one axis each, each bit standing for twice as much as the one before."""
    run: Run | None = None
    for place, bit in enumerate(bits):
        if run is not None and bit == (run.axis, run.power * run.size):
            run = run._replace(size=2 * run.size)
            continue
        if run is not None:
            yield run
        run = None if bit is None else Run(bit.axis, 1 << place, 2, bit.power)
    if run is not None:
        yield run


@lru_cache(maxsize=256)
def lane_map(text: str) -> LaneMap:
    """The map that a text describes. Raises ArgumentError."""
    lanes, bar, elements = text.partition("|")
    if not bar:
        raise ArgumentError(
            f"the lane map {text!r} has no '|' between the bits of lanes and those of elements"
        )
    return LaneMap(*(tuple(map(bit_of, part.split())) for part in (lanes, elements)))


def bit_of(word: str) -> Bit | None:
    """One bit of a lane map. Raises ArgumentError."""
    found = BIT.fullmatch(word)
    if found is None:
        raise ArgumentError(
            f"{word!r} is no bit of a lane map; a bit is an axis and a number of steps, as in m8, "
            "or - where lanes hold the same"
        )
    return None if word == "-" else Bit(found[1], int(found[2]))


@dataclass(frozen=True)
class Fragment:
    """One operand of a matrix unit: its axes, its type, and its lane map."""

    axes: str
    dtype: DType
    map: LaneMap

    @property
    def count(self) -> int:
        """The number of elements of a lane."""
        return 1 << len(self.map.elements)

    @property
    def vector(self) -> DType:
        """The vector type of a lane's elements."""
        return self.dtype.vec(self.count) if self.count > 1 else self.dtype


@dataclass(frozen=True)
class OperandLoad(Effect):
    """An instruction of a plugin by which a subgroup gets an operand from shared memory.

    Its node's result is what each lane holds of the operand. Plans know what is here; subclasses
    bring the rest.
    """

    name: str
    row_bytes: int = 16
    """Bytes of a row of the operand that lie together in memory, at most."""
    turned_bytes: int = 0
    """The size of elements whose rows may lie across k; 0 if none."""
    operands: str = "ab"
    """Operands that it is for; lanes load elements of the other."""

    is_described: ClassVar[bool] = False
    """True if the unit itself reads the operand, in whole rows whose pieces of 16 bytes are
    exchanged as a Stage with a swizzle of all of them does it; a lane then holds no elements, but
    where the operand begins (PTX: wgmma)."""
    behind: ClassVar[int] = 0
    """Steps of a loop whose products may be under way while a step begins (see BARRIER)."""

    def operand(self, value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp) -> UOp | None:
        """The node of a value in loops over a tile, for a lane; None if it lies otherwise."""
        raise NotImplementedError(f"{type(self).__name__}, a load of operands, lacks operand()")


def as_operand(bit: Bit | None) -> Bit | None:
    """The bit of an operand's map whose steps are columns of sums."""
    return bit._replace(axis="k") if bit is not None and bit.axis == "n" else bit


def powers(first: int, end: int) -> Iterator[int]:
    """The powers of two from one on, below another."""
    while first < end:
        yield first
        first *= 2


def bits_below(size: int) -> int:
    """The bits of numbers below a power of two."""
    return size.bit_length() - 1


@dataclass(frozen=True)
class MatrixUnit:
    """An instruction that computes `a @ b + c`; the sum is held as its result.

    Raises ArgumentError unless each map names every element of its matrix just once, but for lanes
    that hold the same.
    """

    name: str
    m: int
    n: int
    k: int
    a: DType
    b: DType
    out: DType
    threads: int
    a_map: str
    b_map: str
    out_map: str
    rounds: bool = False
    """True if it rounds operands to fewer bits than their type has, as ALLOW_TF32=1 permits."""
    load: OperandLoad | None = None
    """Instruction that loads operands from shared memory in place of lanes; where the unit itself
    reads them, they must be there."""
    is_turned: bool = False
    """True for `turned`, which plans have until fragments are written out."""

    def __post_init__(self) -> None:
        sizes: tuple[object, ...] = (self.m, self.n, self.k, self.threads)
        if not all(isinstance(x, int) and x > 0 and not x & (x - 1) for x in sizes):
            raise ArgumentError(f"{self.name}: sizes are powers of two, not {sizes}")
        kinds: tuple[object, ...] = (self.a, self.b, self.out)
        if not all(isinstance(d, DType) and d.count == 1 for d in kinds):
            raise ArgumentError(f"{self.name}: types of elements are scalar dtypes")
        for name in ("a", "b", "out"):
            if problem := self.problem_of(name):
                raise ArgumentError(
                    f"{self.name}: the map of {name}, {self.text_of(name)!r}, {problem}"
                )

    def text_of(self, name: str) -> str:
        """The map of `a`, `b` or `out` as it was given."""
        return str(getattr(self, f"{name}_map"))

    def size(self, axis: str) -> int:
        """The steps along m, n or k."""
        return int(getattr(self, axis))

    def fragment(self, name: str) -> Fragment:
        """The operand `a` or `b`, or the sum `out`."""
        axes = {"a": "mk", "b": "kn", "out": "mn"}[name]
        return Fragment(axes, getattr(self, name), lane_map(self.text_of(name)))

    @property
    def is_described(self) -> bool:
        """True if it reads operands in shared memory by itself."""
        return self.load is not None and self.load.is_described

    def load_of(self, name: str) -> OperandLoad | None:
        """The instruction that loads an operand; None where lanes load their elements."""
        return self.load if self.load and name in self.load.operands else None

    def is_of(self, subgroup: int) -> bool:
        """True if its lanes are a subgroup of that size, or several if it reads operands itself."""
        if self.is_described and subgroup > 1:
            return self.threads % subgroup == 0
        return self.threads == subgroup

    def runs_on(self, subgroup: int) -> bool:
        """True if threads of such a subgroup can issue it: each by itself, or all together."""
        return self.threads == 1 or self.is_of(subgroup)

    def repays_packing(self, rows: int, columns: int) -> bool:
        """True if a product has as many tiles as pay for packing its operands tile by tile."""
        return rows >= LEAST_TILES * self.m and columns >= LEAST_TILES * self.n

    @cached_property
    def turned(self) -> MatrixUnit:
        """The same instruction for transposed matrices: (a @ b).T == b.T @ a.T.

        Its operand `a` is what the instruction takes as `b`. Turned twice, it is the unit itself.
        """
        names = str.maketrans("mn", "nm")
        left, right, sums = (
            text.translate(names) for text in (self.b_map, self.a_map, self.out_map)
        )
        sizes = (self.n, self.m, self.k, self.b, self.a, self.out, self.threads)
        rest = (self.rounds, self.load, not self.is_turned)
        return MatrixUnit(self.name, *sizes, left, right, sums, *rest)

    @cached_property
    def chained(self) -> MatrixUnit | None:
        """The unit, or it turned, whose sums can be an operand of a next product; else None."""
        return next((unit for unit in (self, self.turned) if unit.sums_as_operand), None)

    @cached_property
    def sums_as_operand(self) -> SumsAsOperand | None:
        """The making of the operand `a` of tiles of sums, each as lanes hold it, side by side.

        None where lanes have their rows or columns otherwise, so that no exchange is enough.
        """
        if self.k % self.n or self.a is not self.b or min(self.m, self.n) == 1:
            return None
        sums, operand = self.fragment("out"), self.fragment("a").map
        if self.is_turned and (self.is_described or any(sums.map.rows)):
            return None
        held = {as_operand(bit): 1 << at for at, bit in enumerate(sums.map.elements)}
        count = sums.count
        for size in powers(self.n, self.k):
            held[Bit("k", size)] = count
            count *= 2
        masks: list[int] = []
        for at, (own, wanted) in enumerate(zip(sums.map.lanes, operand.lanes, strict=True)):
            if wanted is None:
                held[as_operand(own)] = count << len(masks)
                masks.append(1 << at)
            elif as_operand(own) != wanted:
                return None
        if {*operand.elements} != held.keys():
            return None
        weights = [held[bit] for bit in operand.elements]
        places = [
            sum(weight for at, weight in enumerate(weights) if element >> at & 1)
            for element in range(1 << len(weights))
        ]
        return SumsAsOperand(tuple(places), tuple(masks))

    def block_of_chain(
        self,
        columns: Sequence[int],
        steps: Sequence[int],
        between: int,
        registers: int,
        tiles: int = 1,
    ) -> int | None:
        """The columns of first products, a multiple of k, that a lane holds while it adds them to
        sums of the second ones; None if there are no such products, or no registers for them.
        Where no block divides `between`, the last one passes its end.

        `steps` are the lengths of sums of first products, `columns` the widths of second ones,
        `tiles` the tiles of rows that lanes hold.
        """
        if self.sums_as_operand is None or any(size % self.n for size in columns):
            return None
        if any(size % self.k for size in steps):
            return None
        fitting = [
            block
            for block in BLOCKS_OF_CHAINS
            if block % self.k == 0
            and block <= between
            and self.registers_of_chain(columns, steps, block, tiles) <= registers
        ]
        whole = [block for block in fitting if between % block == 0]
        if whole:
            return whole[0]
        few = [block for block in fitting if -between % block * COLUMNS_OF_WASTE <= between]
        return min(few[:1] or fitting, key=lambda block: -between % block, default=None)

    def registers_of_chain(
        self, columns: Sequence[int], steps: Sequence[int], block: int, tiles: int = 1
    ) -> int:
        """Registers of a lane, roughly, for products of such sizes in blocks of columns."""
        words, wide = self.a.itemsize / WORD_BYTES, self.out.itemsize / WORD_BYTES
        lanes = tiles * self.m / self.threads
        copies = self.fragment("a").count * self.threads // (self.m * self.k)
        kept = lanes * (sum(columns) * wide + sum(steps) * words * copies)
        own = block * lanes * len(steps) * wide
        others = tiles + len(columns) - 1
        made = block * lanes * len(columns) * words
        if self.is_described:  # all of what is made of a block is needed at once
            return math.ceil(kept + own + made + others * DESCRIBED_REGISTERS)
        # LLVM makes all weights of a block before the first product of them: for turned units.
        several = (tiles - 1) * REGISTERS_OF_SEVERAL + (made if self.is_turned else 0)
        held = self.fragment("b").count * words * (block // self.n) * (max(steps) // self.k)
        fragments = others * REGISTERS_OF_CHAINS + min(held, min(max(steps), MOST_FRAGMENTS) // 2)
        return math.ceil(kept + own + fragments + several)

    def problem_of(self, name: str) -> str | None:
        """The error in a map, as text; None if it is valid."""
        fragment = self.fragment(name)
        lanes, elements = fragment.map.lanes, fragment.map.elements
        if 1 << len(lanes) != self.threads:
            return f"has {len(lanes)} bits for {self.threads} lanes"
        if name == "out" and None in (*lanes, *elements):
            return "holds elements of the sum twice"
        bits = sorted(bit for bit in (*lanes, *elements) if bit is not None)
        wanted = sorted(
            Bit(axis, 1 << place)
            for axis in fragment.axes
            for place in range(self.size(axis).bit_length() - 1)
        )
        if bits == wanted:
            return None
        return f"names other bits than {' '.join(f'{axis}{power}' for axis, power in wanted)}"
