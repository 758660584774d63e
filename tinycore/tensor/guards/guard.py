"""Guards: a table of what a captured function found around it, compared before each replay.

Floor 5. A row of the table is a box: a container among the values of an earlier row, the text that
reads its values (`readers.py`), and what is expected of each (`Role`). At the first replay the text
of all rows is joined and compiled: without a loop and calls between them, that takes a quarter of
the time. Identities decide most replays; only a value that is another object is asked what it
means. See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from operator import ne
from typing import Any, Final, NamedTuple

from tinycore.tensor.guards import keys
from tinycore.tensor.guards.keys import Role, Values, alike, has_form, is_a, never, reference_to

CHANGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of reads that were possible at the capture."""
BOX: Final = "\0"
"""The variable of a container in the text that reads it, which no `repr` contains."""
OTHERS: Final = "absence of other names"
"""Label of the last value of a table of names."""
GLOBAL, CELL = "global ", "closure variable "
"""Beginnings of labels of globals, and of the content of cells."""
ITS_CLASS: Final = -1
"""The place of the class of a container."""


class Reader(NamedTuple):
    """The way to read a container: labels of its values, and Python that reads them."""

    labels: tuple[str, ...] = ()
    lines: Sequence[str] = ()
    """Statements, then an expression for each label; BOX stands for the container."""
    scope: Mapping[str, Any] = types.MappingProxyType({})
    """The objects that the lines name."""

    def text(self, box: str) -> tuple[list[str], list[str], dict[str, Any]]:
        """Statements, expressions, and what they name, for the container in a variable."""
        lines = [line.replace(BOX, box) for line in self.lines]
        count = len(lines) - len(self.labels)
        scope = {name.replace(BOX, box): value for name, value in self.scope.items()}
        return lines[:count], lines[count:], scope

    def read(self, box: Any) -> Values:
        """The values. Raises one of CHANGED where there are others than the labels say."""
        lines, values, scope = self.text("box")
        return reading(tuple(lines), tuple(values), tuple(scope))(box, *scope.values())


@functools.lru_cache(maxsize=4096)
def reading(
    lines: tuple[str, ...], values: tuple[str, ...], names: tuple[str, ...]
) -> Callable[..., Values]:
    """The function of a container, and of what the lines name: its values."""
    scope: dict[str, Any] = {"missing": keys.MISSING}
    head = f"def read({', '.join(['box', *names])}):"
    exec("\n ".join([head, *lines, f"return ({','.join(values)}{',' * bool(values)})"]), scope)
    found: Callable[..., Values] = scope["read"]
    return found


def items_of(expression: str, *labels: str) -> Reader:
    """The reader of the items of an iterable, an expression of the container."""
    names = [f"{BOX}_{place}" for place in range(len(labels))]
    return Reader(labels, [f"[{', '.join(names)}] = {expression}", *names])


def attributes(names: str, *labels: str) -> Reader:
    """The reader of some attributes."""
    return Reader(labels, [f"{BOX}.{name}" for name in names.split()])


class Box(NamedTuple):
    """A container: where it is found, its reader, and its values at the capture."""

    parent: int
    """The number of a box, from 1, or 0 for the roots."""
    place: int
    """Its place among the values of that, or ITS_CLASS."""
    kind: type
    reader: Reader
    ids: Sequence[int]
    roles: Sequence[Role]
    path: str

    def where(self, place: int) -> str:
        """A value's place in words."""
        return join_path(self.path, self.reader.labels[place])


def join_path(path: str, label: str) -> str:
    """A place in a place, in words."""
    if label in ("", ".__wrapped__"):
        return path
    if label[:1] in ".[":
        return path + label if path else f"the function{label}"
    return f"{label} of {path}" if path else label


def statements(boxes: Sequence[Box], scope: dict[str, Any]) -> Iterator[str]:
    """A function of the values of box 0, true if all values below mean the same as they did. What
    it names is put into a scope."""
    inner = {(box.parent, box.place) for box in boxes}
    reads: dict[tuple[int, int], str] = {}
    compared: list[tuple[str, int, Role]] = []
    yield "def holds(roots):\n try:"
    before = None
    for number, (parent, place, kind, reader, ids, roles, _) in enumerate(boxes, 1):
        name, where = f"box{number}", (parent, place)
        yield f"  {name} = {reads.get(where, f'roots[{place}]')}"
        if where != before:  # else another reader looks into it
            yield f"  if type({name}) is not kind{number}: return False"
        reads[where], reads[number, ITS_CLASS], before = name, f"kind{number}", where
        lines, values, named = reader.text(name)
        yield from [f"  {line}" for line in lines]
        scope |= {**named, f"kind{number}": kind}
        for at, (value, own, role) in enumerate(zip(values, ids, roles, strict=True)):
            reads[number, at] = value
            if role.fits is not is_a or (number, at) not in inner:  # compared by its own statements
                compared.append((value, 0 if role.fits is has_form else own, role))
    found, scope["ids"], scope["roles"] = zip(*compared, strict=True) if compared else ((), (), ())
    yield f"  found = [{', '.join(found)}]"
    yield "  now = (*map(id, found),)"
    yield "  return now == ids or fit(compress(zip(roles, found), map(ne, now, ids)))"
    yield " except changed:\n  return False"


def fit(pairs: Iterable[tuple[Role, Any]]) -> bool:
    """True if values satisfy their roles."""
    return all(role.fits(role.of, value) for role, value in pairs)


class Guard:
    """Check that a function's environment is as it was at the capture."""

    def __init__(self, boxes: Sequence[Box], referred: list[Any], more: Values) -> None:
        self.boxes, self.more = boxes, more
        self.gone: list[Any] = []
        """References to objects that must be found again and are gone."""
        self.referred = [reference_to(value, self.gone.append) for value in referred]

    @cached_property
    def compiled(self) -> Callable[[Values], bool]:
        """The function that compares, compiled at the first call."""
        scope: dict[str, Any] = {
            "changed": CHANGED,
            "missing": keys.MISSING,
            "fit": fit,
            "compress": compress,
            "ne": ne,
        }
        exec("\n".join(statements(self.boxes, scope)), scope)
        found: Callable[[Values], bool] = scope["holds"]
        return found

    def holds(self, roots: Values) -> bool:
        """True if nothing has changed."""
        return not self.gone and self.compiled((*roots, *self.more) if self.more else roots)

    def put(self, roots: Values, number: int, place: int, value: Any) -> None:
        """Replace a value of a box that is there."""
        box = self.boxes[number]
        container, label = self.value_at(roots, box.parent, box.place), box.reader.labels[place]
        if label.startswith("."):
            setattr(container, label[1:], value)
        elif label.startswith(GLOBAL):
            container.__globals__[label.removeprefix(GLOBAL)] = value
        elif label.startswith(CELL):
            container.__closure__[place].cell_contents = value
        else:
            container[[*container][place] if isinstance(container, dict) else place] = value

    def value_at(self, roots: Values, parent: int, place: int) -> Any:
        """A value of the roots (0), or of a box by its number."""
        if not parent:
            return (*roots, *self.more)[place]
        box = self.boxes[parent - 1]
        found = self.value_at(roots, box.parent, box.place)
        return type(found) if place == ITS_CLASS else box.reader.read(found)[place]

    def facts(self) -> dict[str, keys.Fact]:
        """The expected plain values and objects, by their places in words."""
        return {
            box.where(place): keys.fact_of_object(own)
            if role.fits is never
            else keys.fact_of(role.of)
            for box in self.boxes
            for place, (role, own) in enumerate(zip(box.roles, box.ids, strict=True))
            if role.fits is never or (role.fits is alike and type(role.of) is not types.CodeType)
        }
