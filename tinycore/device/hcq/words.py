"""Symbolic command words: `Symbol`, a number known at submission, and `Word`, a function of one.

Floor 1. Imports nothing. A queue that is submitted again and again is built once; where a command
needs the timeline's next value or the address of an input, it holds a word that each submission
fills in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

_WHOLE: Final = 64
_HALF: Final = 32


class Symbol:
    """A number given at each submission. `name` is for people: symbols are compared by identity.

    `symbol + 8` is a Word, and so is `symbol * 4`.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __add__(self, addend: int) -> Word:
        return Word(self, addend)

    def __sub__(self, subtrahend: int) -> Word:
        return Word(self, -subtrahend)

    def __mul__(self, factor: int) -> Word:
        return Word(self, scale=factor)


@dataclass(frozen=True, slots=True)
class Word:
    """A multiple of a symbol plus a constant, or some bits of that: `bits` from bit `shift` on."""

    symbol: Symbol
    addend: int = 0
    shift: int = 0
    bits: int = _WHOLE
    scale: int = 1
    """Factor of the symbol, such as the threads of a group where a command counts threads."""

    def __add__(self, addend: int) -> Word:
        return replace(self, addend=self.addend + addend)

    def __sub__(self, subtrahend: int) -> Word:
        return self + -subtrahend

    def __mul__(self, factor: int) -> Word:
        return replace(self, scale=self.scale * factor, addend=self.addend * factor)

    def value(self, number: int) -> int:
        """Value of the word if the symbol is `number`."""
        return ((number * self.scale + self.addend) >> self.shift) & self.mask

    @property
    def mask(self) -> int:
        """Mask of all of its bits."""
        return (1 << self.bits) - 1


Number: TypeAlias = int | Word
"""Operand of a command: a number, or a symbol whose number each submission gives."""


def halves(number: Number) -> tuple[Number, Number]:
    """The low and the high 32 bits of a number of 64, for queues of 32-bit words."""
    if isinstance(number, Word):
        return replace(number, bits=_HALF), replace(number, shift=_HALF, bits=_HALF)
    return number & (1 << _HALF) - 1, number >> _HALF
