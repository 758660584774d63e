"""Guards: checks that the environment of a captured function is unchanged.

Floor 5. A guard is a list of boxes. Each box is found among the values of an earlier one, reads its
own values (`readers.py`), and compares them by their roles.

At the first replay the same reads are written down as Python, without a loop, calls of readers and
tuples between them, and compiled: that takes a third of the time. This code compares identities,
which decides most replays. It answers False where a value is another object than at the capture;
`Guard.holds` knows if that one means the same. See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from tinycore.tensor.guards.keys import (
    ATOM,
    CONTENT,
    FORM,
    MISSING,
    OBJECT,
    Absence,
    Role,
    Values,
    alike,
    constant_key,
    is_plain,
)
from tinycore.tensor.tensor import Tensor

CHANGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of reads that were possible at the capture."""


BOX: Final = "\0"
"""The variable of a container in the text that reads it, which no `repr` contains."""
OTHERS: Final = "absence of other names"
"""Label of the last value of a Table."""
NOTHING_NAMED: Final[Mapping[str, Any]] = types.MappingProxyType({})

Place: TypeAlias = tuple[int, int]
"""The number of a box, and the place of a value in it."""


class Table(NamedTuple):
    """Names of a dict of attributes or globals: those that are read, and those that must be absent.

    Its values end with one that is True while no other name is there.
    """

    names: tuple[str, ...]
    present: int
    """Count of the names that are there; the others follow them."""
    others: frozenset[str]
    size: int | None = None
    """Number of entries, where any other name matters."""
    prefix: str = "."
    """Beginning of the labels."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the values."""
        return (*[self.prefix + name for name in self.names], OTHERS)

    @property
    def values(self) -> list[str]:
        """The expressions that read the dict BOX_table, with the names BOX_others."""
        name = f"{BOX}_table"
        found = [f"{name}[{key!r}]" for key in self.names[: self.present]]
        found += [f"{name}.get({key!r}, missing)" for key in self.names[self.present :]]
        last = f"{name}.keys().isdisjoint({BOX}_others)"
        if self.size is not None:
            last = f"len({name}) == {self.size}"
        return [*found, last]


class Reader(NamedTuple):
    """Access to a container: its values and their labels."""

    read: Callable[[Any], Values]
    labels: tuple[str, ...]
    source: Sequence[str] = ()
    """The same reads as Python, where they give the same objects each time: statements, then an
    expression for each label.
    """
    scope: Mapping[str, Any] = NOTHING_NAMED
    """The objects that the source names."""
    is_class: bool = False
    """True if the class of an object is read, through that."""

    def text(self, box: str) -> tuple[list[str], list[str], dict[str, Any]]:
        """Statements, expressions, and what they name, for the container in a variable."""
        source, scope = self.source, {**self.scope, f"{BOX}_read": self.read}
        if not source:
            source = items(f"{BOX}_read({BOX})", len(self.labels))
        lines = "\n".join(source).replace(BOX, box).split("\n")
        count = len(lines) - len(self.labels)
        return lines[:count], lines[count:], {k.replace(BOX, box): v for k, v in scope.items()}


def items(expression: str, count: int) -> list[str]:
    """The source that reads the items of an iterable."""
    names = [f"{BOX}_{place}" for place in range(count)]
    return [f"[{', '.join(names)}] = {expression}", *names]


def patient_reader(
    source: Sequence[str],
    labels: Sequence[str],
    table: Table | None,
    scope: Mapping[str, Any] = NOTHING_NAMED,
    is_class: bool = False,
) -> Reader:
    """The reader by a source, and by a Table after it. It reads names that are gone, too."""
    if table is not None:
        source, labels = [*source, *table.values], (*labels, *table.labels)
        scope = {**scope, f"{BOX}_others": table.others}
    made = Reader(tuple, tuple(labels), source, scope, is_class)
    before, values, named = made.text("box")
    if table is not None:
        before.append("box_table = Patient(box_table)")
    named |= {"missing": MISSING, "Patient": Patient}
    lines = ["def read(box):", *before, f"return ({', '.join([*values, ''])})"]
    exec(code_of("\n ".join(lines)), named)
    return made._replace(read=named["read"])


class Patient(dict[str, Any]):
    """A dict in which names that are gone have a value, too."""

    def __missing__(self, name: str) -> Absence:
        return MISSING


@lru_cache(maxsize=4096)
def code_of(text: str) -> types.CodeType:
    """Compiled text; objects of a class share theirs."""
    return compile(text, "reader", "exec")


def compiled_guard(boxes: Sequence[Box]) -> Callable[[Any], bool]:
    """A function of the values of box 0, true if all values below mean the same as they did.

    Most are the same objects.
    """
    scope: dict[str, Any] = {"changed": CHANGED, "missing": MISSING, "fits": fits}
    lines = ["def holds(roots):", "    try:"]
    lines += [f"        {line}" for line in statements(boxes, scope)]
    lines += ["    except changed:", "        return False"]
    exec(compile("\n".join(lines), "guard", "exec"), scope)
    found: Callable[[Any], bool] = scope["holds"]
    return found


def statements(boxes: Sequence[Box], scope: dict[str, Any]) -> Iterator[str]:
    """The statements of that function. What they name is put into its scope."""
    inner = {(box.parent, box.place) for box in boxes}
    reads: dict[Place, str] = {}
    rows: dict[str, list[tuple[Place, int, Role]]] = {"same": [], "other": []}
    for number, box in enumerate(boxes, 1):
        name, where = f"box{number}", (box.parent, box.place)
        yield f"{name} = {reads.get(where, f'roots[{box.place}]')}"
        yield f"if type({name}) is not kind{number}: return False"
        before, values, named = box.reader.text(name)
        scope |= {**named, f"kind{number}": box.kind}
        yield from before
        reads[where] = name
        for place, (value, role, own) in enumerate(zip(values, box.roles, box.ids, strict=True)):
            reads[number, place] = value
            if role.means == FORM:  # as the function puts others there
                rows["other"].append(((number, place), 0, role))
            # The content of a box inside of this one is compared by its own statements.
            elif role.means != CONTENT or (number, place) not in inner:
                rows["same" if box.reader.source else "other"].append(((number, place), own, role))
    for kind, found in rows.items():
        if found:
            places, ids, roles = map(list, zip(*found, strict=True))
            scope |= {f"{kind}_ids": ids, f"{kind}_roles": roles}
            yield f"{kind} = [{', '.join(map(reads.__getitem__, places))}]"
            yield f"if [*map(id, {kind})] != {kind}_ids and not all(map("
            yield f"    fits, {kind}_ids, {kind}_roles, {kind})): return False"
    yield "return True"


GLOBAL, CELL = "global ", "closure variable "
"""Beginnings of labels of globals, and of the content of cells."""
FIRST_CELL: Final = 3
"""Place of the first cell among the values of a function."""


class Box(NamedTuple):
    """A container: its path, its reader, and its values at the capture."""

    parent: int
    place: int
    kind: type
    reader: Reader
    ids: tuple[int, ...]
    roles: tuple[Role, ...]
    path: str

    def put(self, container: Any, place: int, value: Any) -> None:
        """Replace a value of a container by another one."""
        label = self.reader.labels[place]
        if label.startswith("."):
            setattr(type(container) if self.reader.is_class else container, label[1:], value)
        elif label.startswith(GLOBAL):
            container.__globals__[label.removeprefix(GLOBAL)] = value
        elif label.startswith(CELL):
            container.__closure__[place - FIRST_CELL].cell_contents = value
        elif isinstance(container, dict):
            container[[*container][place - len(container)]] = value
        else:
            container[place] = value

    def where(self, place: int) -> str:
        """A value's place in words."""
        label = self.reader.labels[place]
        return self.path if label in ("", ".__wrapped__") else join_path(self.path, label)


def fits(number: int, role: Role, value: Any) -> bool:
    """True if a value is an object by its id, or satisfies its role."""
    if id(value) == number:
        return True
    if role.means == ATOM:
        return alike(role.of, value)
    if role.means == CONTENT:
        return type(value) is role.of
    return role.means == FORM and form_of_value(value) == role.of


def form_of_value(value: Any) -> Any:
    """The form of a tensor, or of containers of tensors and plain values; None for others."""
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return type(value), tuple([form_of_value(item) for item in value])
    if isinstance(value, dict):
        return dict, tuple(value), tuple([form_of_value(item) for item in value.values()])
    return (constant_key(value),) if is_plain(value) else None


def join_path(path: str, label: str) -> str:
    """A place in a place, in words."""
    if label[:1] in ".[":
        return path + label if path else f"the function{label}"
    return f"{label} of {path}" if path else label


class Guard:
    """Check that a function's environment is as it was at the capture."""

    def __init__(self, boxes: tuple[Box, ...], referred: list[Any], more: Values) -> None:
        self.boxes, self.more = boxes, more
        self.is_possible = True
        """True if all objects that must be found again exist."""
        self.kept: list[Any] = []
        """References to these: weak where they can be."""
        mine = weakref.ref(self)

        def died(_: Any) -> None:
            if (guard := mine()) is not None:
                guard.is_possible = False

        for value in referred:
            try:
                self.kept.append(weakref.ref(value, died))
            except TypeError:
                self.kept.append(value)

    @cached_property
    def compiled(self) -> Callable[[Values], bool]:
        """The function that compares, compiled at the first call."""
        return compiled_guard(self.boxes)

    def holds(self, roots: Values) -> bool:
        """True if nothing has changed."""
        return self.is_possible and self.compiled((*roots, *self.more) if self.more else roots)

    def put(self, roots: Values, number: int, place: int, value: Any) -> None:
        """Replace a value of a box that is there."""
        box = self.boxes[number]
        box.put(self.value_at(roots, box.parent, box.place), place, value)

    def value_at(self, roots: Values, parent: int, place: int) -> Any:
        """A value of the roots (0), or of a box by its number."""
        if not parent:
            return (*roots, *self.more)[place]
        box = self.boxes[parent - 1]
        return box.reader.read(self.value_at(roots, box.parent, box.place))[place]

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Yield the expected plain values and objects, with descriptions of their places."""
        for box in self.boxes:
            for place, (role, number) in enumerate(zip(box.roles, box.ids, strict=True)):
                if role.means == ATOM:
                    is_code = isinstance(role.of, types.CodeType)
                    yield box.where(place), None if is_code else constant_key(role.of)
                elif role.means == OBJECT:
                    yield box.where(place), ("object", number)
