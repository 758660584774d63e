"""`Extent`: a launch dimension as a function of the variables of a launch.

Floor 1. Imports nothing. A kernel over `x[:, :n]` is launched with the groups that this `n` needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}
"""Functions that the code of an Extent may call."""
VALUE: Final = "#"
"""Prefix of a value in the code of an Extent: #0 is that of the first variable."""


@dataclass(frozen=True)
class Extent:
    """An integer expression over the values of a launch, in postfix order.

    `Extent(("#0", 63, "+", 64, "//"))` counts the groups of 64 threads for as many elements as the
    first variable says.
    """

    code: tuple[int | str, ...]

    def of(self, values: Sequence[int]) -> int:
        """The size for the values of a launch, in the order of `ProgramInfo.values`."""
        stack: list[int] = []
        for word in self.code:
            if isinstance(word, int):
                stack.append(word)
            elif word[0] == VALUE:
                stack.append(values[int(word[1:])])
            else:
                right = stack.pop()
                stack[-1] = OPERATORS[word](stack[-1], right)
        (size,) = stack
        return size
