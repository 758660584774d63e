"""The Sizes in a graph: what they hold, and the same graph with others in their place.

Floor 1. Schedules and programs are made for graphs whose Sizes are free; the numbers come with each
launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tinycore.errors import ShapeError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Size, Variable

__all__ = ["holding", "known", "numbers_of", "sizes_below", "sizes_in", "with_sizes"]

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
    """An argument with its Sizes exchanged."""
    if isinstance(argument, Size):
        return new(argument)
    if not isinstance(argument, tuple):
        return argument
    items: list[Any] = [item if type(item) is int else exchanged(item, new) for item in argument]
    return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)


def with_sizes(roots: Iterable[UOp], new: Callable[[Size], int | Size]) -> dict[UOp, UOp]:
    """Every node below some roots with the Sizes in its graph exchanged."""
    done: dict[UOp, UOp] = {}
    for node in UOp.sink(*roots).toposort()[:-1]:
        argument = exchanged(node.arg, new) if node.op in SIZED else node.arg
        sources = tuple([done[s] for s in node.src])
        done[node] = UOp(node.op, node.dtype, sources, argument)
    return done


def numbers_of(sizes: Iterable[Size]) -> dict[str, int]:
    """The numbers that variables hold. Raises ShapeError where two Sizes contradict."""
    held: dict[str, int] = {}
    bounds: dict[str, Variable] = {}
    for size in dict.fromkeys(sizes):
        for name, value in size.values:
            if held.setdefault(name, value) != value:
                raise ShapeError(
                    f"{name} is bound to {held[name]} and to {value} in what is to be computed at "
                    "once; realize() what belongs to the first number before binding the second"
                )
        for name, variable in size.variables.items():
            if bounds.setdefault(name, variable) != variable:
                raise ShapeError(f"{bounds[name]!r} and {variable!r} are two variables of one name")
    return held


def holding(node: UOp, numbers: Mapping[str, int]) -> UOp:
    """A graph whose variables hold these numbers."""
    if not sizes_below([node]):
        return node
    return with_sizes([node], lambda size: size.holding(numbers))[node]


def known(node: UOp) -> UOp:
    """A graph with the numbers that its Sizes have now in their place."""
    return with_sizes([node], Size.known)[node] if sizes_below([node]) else node
