"""`MatrixUnit`: a matrix instruction (tensor core, WMMA) as data, declared in `Limits.matrix`.

Floor 1. A `MatrixUnit` multiplies an m x k by a k x n matrix and adds an m x n one, for a subgroup
of `threads` lanes that hold these matrices together (PTX: mma, AMD: WMMA and MFMA, Metal:
simdgroup_matrix); with one thread it is an instruction on vectors, such as a dot product. A lane
map says, for each bit of the lane's number and then of the element's number in the lane, least bit
first, which axis it counts along and in steps of how many: "k2 k4 m1 m2 m4 | k1 m8 k8". Lanes that
differ in a bit that is "-" hold the same. See docs/decisions/0053-matrix-units.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from tinycore.dtype import DType
from tinycore.errors import ArgumentError

__all__ = ["Fragment", "LaneMap", "MatrixUnit", "lane_map"]

Number = TypeVar("Number", bound=Any)
"""What places are computed in: int, an array or an index expression."""

BIT: Final = re.compile(r"([mnk])(\d+)|-")


class Bit(NamedTuple):
    """What one bit of a number stands for: so many steps along an axis."""

    axis: str
    power: int


class Run(NamedTuple):
    """Neighboring bits that count along one axis: `value // start % size * power`."""

    axis: str
    start: int
    size: int
    power: int


@dataclass(frozen=True)
class LaneMap:
    """Which element of a matrix each lane holds in each of its places; None is a bit of neither."""

    lanes: tuple[Bit | None, ...]
    elements: tuple[Bit | None, ...]

    def place(self, axis: str, lane: Number, element: Number) -> Number | int:
        """Where along an axis the element of a lane is."""
        parts = ((self.lanes, lane), (self.elements, element))
        terms = [
            value // run.start % run.size * run.power
            for bits, value in parts
            for run in runs_of(bits)
            if run.axis == axis
        ]
        return sum(terms[1:], terms[0]) if terms else 0

    @cached_property
    def neighbors(self) -> tuple[str, int]:
        """The axis along which elements of a lane lie side by side from the first on, how many."""
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
    """The map that a text says. Raises ArgumentError."""
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
    """One operand of a matrix unit: its axes, its type, and where its elements are."""

    axes: str
    dtype: DType
    map: LaneMap

    @property
    def count(self) -> int:
        """The elements of a lane."""
        return 1 << len(self.map.elements)

    @property
    def vector(self) -> DType:
        """The type of what a lane holds."""
        return self.dtype.vec(self.count) if self.count > 1 else self.dtype


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
    """Whether it rounds operands to fewer bits than their type has, as ALLOW_TF32=1 permits."""

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

    def problem_of(self, name: str) -> str | None:
        """What is wrong with a map."""
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

    def fields(self) -> tuple[Any, ...]:
        """Its fields in order, for its text."""
        return tuple(getattr(self, field.name) for field in fields(self))
