"""`HWQueue`: commands for one hardware queue, collected as words and submitted together.

A driver inherits from it and says how each command is encoded and how words reach the hardware.

**What a driver promises.** A queue executes its commands in order, also across submissions, each
each when the one before has ended; but programs may overlap earlier ones unless `memory_barrier` or
`signal` is between them. Queues run concurrently. `wait` holds the queue until a signal is at least
a value; `signal` sets a value when all earlier commands are done and visible to everyone;
`memory_barrier` makes visible here what others wrote before.

`dependencies` and `waits` find which launches of a graph wait for which others, by the memory that
they access. Launches are numbered in the order in which they were requested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Mapping,
    MutableSequence,
    Sequence,
)
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar

from tiny_hcq.words import Number, SignalPlace, Symbol, Word
from tinycore.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from tiny_hcq.program import HCQArgsState, HCQProgram

Places: TypeAlias = tuple[Symbol, list[int], list[tuple[int, int, int, int, int]]]
"""A symbol, the indices of words equal to it, and the index, scale, addend, shift and mask of words
computed from it."""
INTS: Final = frozenset({int})
_NOTHING: Final[Mapping[Symbol, int]] = MappingProxyType({})


class HWQueue(ABC):
    """Commands, in order. Every command returns the queue, so they chain.

    Built and submitted by one thread at a time. May be submitted again when its last submission is
    done; what changes from one to the next are its symbolic words.
    """

    FORMAT: ClassVar[Literal["I", "Q"]] = "Q"
    """The type of a word, as in `array`: Q for 64 bits, I for 32."""
    GRID_WORDS: ClassVar[bool] = False
    """True if `exec` takes Words in `grid`. If not, a graph is encoded anew where the number of
    groups changes."""

    def __init__(self) -> None:
        self.words: array[int] | memoryview = array(self.FORMAT)
        """The commands; after `bind`, where the hardware reads them."""
        self._places: dict[Symbol, list[tuple[int, Word]]] = {}
        self._given: dict[Symbol, int] = {}
        self._encoded: list[Places] = []
        """The places as numbers, made by the first submission."""

    def append(self, *numbers: Number) -> Self:
        """Add words to the end; for the commands of a driver."""
        words = self.words
        assert isinstance(words, array), "a bound queue takes no more commands"
        if INTS.issuperset(map(type, numbers)):
            words.extend(numbers)  # type: ignore[arg-type]
            return self
        for number in numbers:
            if isinstance(number, Word):
                self._encoded = []
                self._places.setdefault(number.symbol, []).append((len(words), number))
                words.append(0)
            else:
                words.append(number)
        return self

    # --- commands

    @abstractmethod
    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Wait until the signal is at least `value`."""

    @abstractmethod
    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set the signal to `value` when all earlier commands are done."""

    @abstractmethod
    def timestamp(self, signal: SignalPlace) -> Self:
        """Write the time to the signal when all earlier commands are done; its value may change."""

    def memory_barrier(self) -> Self:
        """Wait for all earlier programs, and make visible what they, other queues, devices and the
        host have written. By default nothing, which is right if programs never overlap.
        """
        return self

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        """Run a program on `grid` groups of `block` threads."""
        raise UnsupportedError(f"{type(self).__name__} runs no programs: use the compute queue")

    def copy(self, dst: Number, src: Number, size: int) -> Self:
        """Copy `size` bytes between addresses of any alignment; a driver splits large copies."""
        raise UnsupportedError(f"{type(self).__name__} copies no memory: use the copy queue")

    # --- submission

    def bind(self) -> Self:
        """Put the commands where the hardware reads them at each submission, if it can."""
        words = self.bind_words()
        if words is not None:
            self.words = words
        return self

    def submit(self, known: Mapping[Symbol, int] = _NOTHING) -> Self:
        """Hand the commands to the hardware, with numbers for their symbols.

        Raises ArgumentError when one is missing, DeviceError when the hardware does not take them.
        """
        words: MutableSequence[int] | memoryview = self.words
        given = self._given
        for symbol, whole, parts in self._encoded or self._encode_places():
            number = known.get(symbol)
            if number is None:
                raise ArgumentError(f"a queue is submitted without a number for {symbol}")
            if given.get(symbol) != number:
                given[symbol] = number
                for index in whole:
                    words[index] = number
                for index, scale, addend, shift, mask in parts:
                    words[index] = number * scale + addend >> shift & mask
        self.submit_words()
        return self

    def _encode_places(self) -> list[Places]:
        if not self._places:
            return self._encoded
        for symbol, places in self._places.items():
            whole = [index for index, word in places if word == Word(symbol)]
            parts = [
                (index, word.scale, word.addend, word.shift, word.mask)
                for index, word in places
                if word != Word(symbol)
            ]
            self._encoded.append((symbol, whole, parts))
        return self._encoded

    def bind_words(self) -> memoryview | None:
        """The commands in memory that the hardware reads at each submission; None without such."""
        return None

    @staticmethod
    def whole_commands(
        words: memoryview, most: int, length_of: Callable[[int], int]
    ) -> list[tuple[int, int]]:
        """Start and length of runs of whole commands, each as long as `most` words allow.

        For hardware that fetches commands from memory in parts. `length_of` gives the words of a
        command by its first one.
        """
        if len(words) <= most:
            return [(0, len(words))] if len(words) else []
        found, begin, at = [], 0, 0
        while at < len(words):
            length = length_of(words[at])
            if at + length - begin > most:
                found.append((begin, at - begin))
                begin = at
            at += length
        return [*found, (begin, at - begin)]

    @abstractmethod
    def submit_words(self) -> None:
        """Hand `words` to the hardware, which may still read them when this returns, until the
        last command is done; in that case `bind_words` or a copy must hold them.
        """


Lane = TypeVar("Lane", bound=Hashable)


class Access(NamedTuple):
    """Bytes of one allocation that a launch touches."""

    root: Hashable
    start: int
    size: int
    writes: bool


def dependencies(launches: Iterable[Sequence[Access]]) -> list[frozenset[int]]:
    """For each launch, the earlier launches that it depends on.

    It comes after the last writers of all it touches, and after the readers of what it writes.
    """
    found: list[frozenset[int]] = []
    live: dict[Hashable, list[tuple[int, Access]]] = defaultdict(list)
    for number, accesses in enumerate(launches):
        before: set[int] = set()
        for access in accesses:
            known = live[access.root]
            before.update(
                other
                for other, old in known
                if (old.writes or access.writes) and _overlap(old, access)
            )
        for access in accesses:
            known = live[access.root]
            if access.writes:  # whoever comes after this comes after what it hides
                known[:] = [one for one in known if not _covers(access, one[1])]
            known.append((number, access))
        found.append(frozenset(before - {number}))
    return found


def _overlap(a: Access, b: Access) -> bool:
    return a.start < b.start + b.size and b.start < a.start + a.size


def _covers(a: Access, b: Access) -> bool:
    return a.start <= b.start and b.start + b.size <= a.start + a.size


def pattern(launches: Iterable[Sequence[Access]]) -> tuple[tuple[int, int, int], ...]:
    """Overlap pattern of the launches' memory; equal patterns have equal dependencies."""
    names: dict[Hashable, int] = {}
    return tuple(
        (names.setdefault(access.root, len(names)), access.start, access.size)
        for accesses in launches
        for access in accesses
    )


def waits(lanes: Sequence[Lane], before: Sequence[Collection[int]]) -> list[dict[Lane, int]]:
    """For each launch the last launch to wait for in each other lane (a transitive reduction).

    A lane executes its launches in order. Waits that an earlier one implies, directly or by the
    waits of the launch that it is for, are left out.
    """
    seen: dict[Lane, dict[Lane, int]] = defaultdict(dict)
    when: list[dict[Lane, int]] = []
    result: list[dict[Lane, int]] = []
    for number, (lane, earlier) in enumerate(zip(lanes, before, strict=True)):
        known = seen[lane]
        needed: dict[Lane, int] = {}
        for other in sorted(earlier, reverse=True):
            there = lanes[other]
            if there == lane or known.get(there, -1) >= other:
                continue
            needed[there] = other
            for further, last in when[other].items():
                known[further] = max(last, known.get(further, -1))
        known[lane] = number
        when.append(dict(known))
        result.append(needed)
    return result
