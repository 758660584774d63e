"""Bindings of symbolic sizes: the Sizes in a graph, their numbers, and their replacement.

Floor 1. Schedules and programs are made for graphs whose Sizes are free; the numbers come with each
launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import APART, GIVEN_MARK, HOLDS, Size, variables_in

SIZED: Final = frozenset(
    {Op.RESHAPE, Op.EXPAND, Op.PAD, Op.SHRINK, Op.SKEW, Op.UNSKEW, Op.ARANGE, Op.BIND}
)
"""Ops whose argument may hold a Size."""


def sizes_in(argument: Any) -> Iterator[Size]:
    """The Sizes inside the argument of a node."""
    if isinstance(argument, Size):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            if type(item) is not int:
                yield from sizes_in(item)


def sizes_below(roots: Iterable[UOp]) -> list[Size]:
    """The Sizes in the graph below some roots."""
    nodes = UOp.sink(*roots).toposort()
    return [size for n in nodes if n.op in SIZED for size in sizes_in(n.arg)]


def exchanged(argument: Any, new: Callable[[Size], int | Size]) -> Any:
    """An argument with its Sizes replaced."""
    if isinstance(argument, Size):
        return new(argument)
    if not isinstance(argument, tuple):
        return argument
    items: list[Any] = [item if type(item) is int else exchanged(item, new) for item in argument]
    return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)


def with_sizes(roots: Iterable[UOp], new: Callable[[Size], int | Size]) -> dict[UOp, UOp]:
    """Every node below some roots, with the Sizes in its graph replaced."""
    done: dict[UOp, UOp] = {}
    for node in UOp.sink(*roots).toposort()[:-1]:
        argument = exchanged(node.arg, new) if node.op in SIZED else node.arg
        sources = tuple([done[s] for s in node.src])
        done[node] = UOp(node.op, node.dtype, sources, argument)
    return done


class Naming:
    """Canonical names for bound variables, independent of their numbers, in the order they are met.

    Graphs that differ in numbers only are equal under such names. Each binding has its own: two of
    one Variable are two variables.
    """

    def __init__(self, mark: str = APART, keeps_given: bool = True) -> None:
        self.mark, self.keeps_given = mark, keeps_given
        self.nodes: dict[UOp, UOp] = {}
        """Variables under the names they have, and under new ones."""
        self.numbers: dict[str, int] = {}
        """Their numbers, by the new names."""
        self.freed: dict[Size, Size] = {}
        """Sizes that were met, and what `free` made of them: a shape is that of many nodes."""

    def note(self, size: Size) -> None:
        """Name the variables of a Size. Raises ArgumentError for one that holds no number."""
        if all(node in self.nodes for node in variables_in(size.expression)):
            return
        held = dict(size.values)
        for node in variables_in(size.expression):
            if node in self.nodes:
                continue
            if (name := node.arg[0]) not in held:
                size.known()  # raises
            new = self.name_for(name)
            self.nodes[node] = UOp.variable(new, *node.arg[1:])
            self.numbers[new] = held[name]

    def name_for(self, name: str) -> str:
        """A new name; a variable that a captured function was given keeps its name."""
        base, holds, _ = name.partition(HOLDS)
        if not holds and self.keeps_given:
            return name
        base = base.partition(GIVEN_MARK)[0]
        number, new = 0, f"{base}{GIVEN_MARK}0" if self.mark == GIVEN_MARK else base
        while new in self.numbers:
            number += 1
            new = f"{base}{self.mark}{number}"
        return new

    def free(self, size: Size) -> Size:
        """A Size over the new names, unbound."""
        if (found := self.freed.get(size)) is None:
            self.note(size)
            found = self.freed[size] = size.over(self.nodes, {}).free()
        return found

    def held(self, size: Size) -> Size:
        """A Size over the new names, bound to the same numbers."""
        self.note(size)
        return size.over(self.nodes, self.numbers)

    def back(self, size: Size) -> Size:
        """A Size over the old names, bound to the numbers of these."""
        old = {new: node for node, new in self.nodes.items()}
        return size.over(old, {node.arg[0]: self.numbers[new.arg[0]] for new, node in old.items()})


def exchanging(node: UOp, new: Callable[[Size], int | Size]) -> UOp:
    """A graph with its Sizes replaced."""
    return with_sizes([node], new)[node] if sizes_below([node]) else node


def known(node: UOp) -> UOp:
    """A graph with its Sizes replaced by their present numbers."""
    return exchanging(node, Size.known)
