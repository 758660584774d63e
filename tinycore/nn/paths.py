"""Paths to the tensors of a model: a walk through containers and the attributes of objects.

Floor 6. Imports the names of this package's modules and the errors.
A first pass visits every object once and keeps the edges; from the tensors back, it is known which
objects lead to one. Paths are made through those alone: an object beside the weights, such as a
logger, may have more paths through it than anyone can follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MemberDescriptorType, ModuleType
from typing import Any, Final, TypeVar

from tinycore.errors import ArgumentError
from tinycore.tensor.guards.names import LAYERS

__all__ = ["tensors_by_path"]

T = TypeVar("T")
Edges = dict[int, list[tuple[object, object]]]
"""Pairs of name and value inside of each object that was visited, by its id."""

OWN_MODULES: Final = LAYERS.partition(".")[0] + "."
LEAVES: Final = frozenset({str, bytes, int, float, bool, complex, type(None), ModuleType})
"""Types of what is not entered; through a module everything is reached."""
SETS: Final = (set, frozenset)


def tensors_by_path(root: object, prefix: str, kind: type[T]) -> dict[str, T]:
    """Instances of `kind` below `root` by path. Raises as `get_state_dict` does."""
    edges = edges_below(root, kind)
    leading = leading_to(kind, edges)
    found: dict[str, T] = {}
    for name, tensor in paths_to(root, prefix, kind, edges, leading, frozenset()):
        if found.setdefault(name, tensor) is not tensor:
            raise ArgumentError(
                f"get_state_dict: two tensors have the path {name!r}. Rename a key or an attribute."
            )
    return found


def edges_below(root: object, kind: type) -> Edges:
    """The edges of all objects below `root`, each entered once. They keep the objects alive."""
    edges: Edges = {}
    queue = [root]
    while queue:
        here = queue.pop()
        if isinstance(here, kind) or type(here) in LEAVES or id(here) in edges:
            continue
        edges[id(here)] = list(parts_inside(here))
        queue.extend(child for _, child in edges[id(here)])
    return edges


def leading_to(kind: type, edges: Edges) -> set[int]:
    """Ids of the objects from which an instance of `kind` is reached."""
    parents: dict[int, list[int]] = {}
    found: list[int] = []
    for parent, pairs in edges.items():
        for _, child in pairs:
            parents.setdefault(id(child), []).append(parent)
            if isinstance(child, kind):
                found.append(id(child))
    leading: set[int] = set()
    while found:
        new = set(parents.get(found.pop(), ())) - leading
        leading |= new
        found.extend(new)
    return leading


def paths_to(
    here: object,
    prefix: str,
    kind: type[T],
    edges: Edges,
    leading: set[int],
    around: frozenset[int],
) -> Iterator[tuple[str, T]]:
    """Pairs of path and instance below `here`; `around` holds the ids of the objects around it."""
    if isinstance(here, kind):
        yield prefix.removesuffix("."), here
        return
    if id(here) in around or id(here) not in leading:
        return
    if isinstance(here, SETS):
        raise ArgumentError(
            f"get_state_dict: the set {prefix.removesuffix('.')!r} has no order, so that the "
            "tensors in it have no names. Use a list or a dict."
        )
    for name, child in edges[id(here)]:
        inside = around | {id(here)}
        yield from paths_to(child, f"{prefix}{name}.", kind, edges, leading, inside)


def parts_inside(here: object) -> Iterator[tuple[object, object]]:
    """Pairs of name and value in an object: its items, then its attributes."""
    if isinstance(here, tuple) and hasattr(here, "_fields"):  # a named tuple
        yield from zip(here._fields, here, strict=True)
    elif isinstance(here, (list, tuple, deque, *SETS)):
        yield from enumerate(here)
    elif isinstance(here, Mapping):
        yield from here.items()
        if not isinstance(here, dict):  # its items are what its attributes hold
            return
    left_out = getattr(type(here), "__not_state__", ())
    for name, value in attributes_of(here):
        if name not in left_out:
            yield name, value


def attributes_of(here: object) -> Iterator[tuple[str, object]]:
    """Pairs of name and value of an object's attributes, in its dict and in its slots.

    Slots of this package are those of layers alone: nodes and devices have no state. They are read
    past `__getattr__` and properties of the same name.
    """
    yield from dict(getattr(here, "__dict__", {})).items()
    for base in type(here).__mro__:
        module = base.__module__
        if "__slots__" not in vars(base) or module.startswith(OWN_MODULES) > module.startswith(
            LAYERS
        ):
            continue
        for name, slot in slots_in(base):
            try:
                yield name, slot.__get__(here)
            except AttributeError:  # nothing is there yet
                continue


def slots_in(kind: type) -> list[tuple[str, Any]]:
    """Pairs of name and descriptor of a class's own slots, in the order in which it names them."""
    stated = vars(kind)["__slots__"]
    names = [stated] if isinstance(stated, str) else list(stated)
    found = {n: d for n, d in vars(kind).items() if isinstance(d, MemberDescriptorType)}
    order = {f"_{kind.__name__.lstrip('_')}{name}": place for place, name in enumerate(names)}
    order |= {name: place for place, name in enumerate(names)}
    return sorted(found.items(), key=lambda pair: order.get(pair[0], len(names)))
