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
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from tinycore.tensor.guards.keys import (
    ATOM,
    CONTENT,
    FORM,
    MISSING,
    OBJECT,
    Role,
    Values,
    alike,
    constant_key,
    is_plain,
)
from tinycore.tensor.tensor import Tensor

CHANGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of reads that were possible at the capture."""


NOTHING_NAMED: Final[Mapping[str, Any]] = types.MappingProxyType({})


class Reads(NamedTuple):
    """Text of Python that reads a container: statements, then an expression for each value; and
    what they name.
    """

    before: list[str]
    values: list[str]
    scope: Mapping[str, Any] = NOTHING_NAMED


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

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the values, those of attributes."""
        return (*[f".{name}" for name in self.names], OTHERS)

    def source(self, box: str, table: str, is_patient: bool) -> Reads:
        """The text that reads the dict, without a reference to it after that."""
        name, others = f"{box}_table", f"{box}_others"
        present = 0 if is_patient else self.present
        found = [f"{name}[{key!r}]" for key in self.names[:present]]
        found += [f"{name}.get({key!r}, missing)" for key in self.names[present:]]
        last = f"{name}.keys().isdisjoint({others})"
        if self.size is not None:
            last = f"len({name}) == {self.size}"
        return Reads([f"{name} = {table}"], [*found, last], {others: self.others})


OTHERS: Final = "absence of other names"
"""Label of the last value of a Table."""


Place: TypeAlias = tuple[int, int]
"""The number of a box, and the place of a value in it."""
Source: TypeAlias = "Callable[[str, bool], Reads]"
"""Gives the text that reads a container, by the name of the variable that holds it. A patient one
reads what is gone, too.
"""


@lru_cache(maxsize=4096)
def code_of(text: str) -> types.CodeType:
    """Compiled text; objects of a class share theirs."""
    return compile(text, "reader", "exec")


def reading(source: Source) -> Callable[[Any], Values]:
    """A function that reads a container, patiently, by its source."""
    before, values, named = source("box", True)
    lines = ["def read(box):", *before, f"return ({''.join([f'{value}, ' for value in values])})"]
    scope: dict[str, Any] = {"missing": MISSING, **named}
    exec(code_of("\n ".join(lines)), scope)
    read: Callable[[Any], Values] = scope["read"]
    return read


def items_source(count: int) -> Source:
    """The source of a list or tuple."""

    def source(box: str, is_patient: bool) -> Reads:
        values = item_names(box, count)
        return Reads([f"[{', '.join(values)}] = {box}"], values)

    return source


def dict_source(count: int) -> Source:
    """The source of a dict: its keys, then its values."""

    def source(box: str, is_patient: bool) -> Reads:
        values = item_names(box, 2 * count)
        return Reads([f"[{', '.join(values)}] = *{box}, *{box}.values()"], values)

    return source


def table_source(table: Table, scope: str) -> Source:
    """The source of a dict that is an attribute."""
    return lambda box, is_patient: table.source(box, f"{box}.{scope}", is_patient)


def attributes_source(table: Table | None, slots: Mapping[str, Callable[[Any], Any]]) -> Source:
    """The source of attributes of an object: some in its dict, some in slots."""

    def source(box: str, is_patient: bool) -> Reads:
        found = Reads([], []) if table is None else table.source(box, f"{box}.__dict__", is_patient)
        reads = {f"{box}_slot{number}": read for number, read in enumerate(slots.values())}
        values = [f"{name}({box})" for name in reads]
        return Reads(found.before, found.values + values, {**found.scope, **reads})

    return source


def class_source(kind: type, table: Table, of_object: bool) -> Source:
    """The source of a class, or of the class of an object: its bases and some attributes."""
    count = len(kind.__bases__)

    def source(box: str, is_patient: bool) -> Reads:
        name, bases = f"{box}_kind", item_names(box, count)
        before = [f"{name} = type({box})" if of_object else f"{name} = {box}"]
        before += [f"[{', '.join(bases)}] = {name}.__bases__"]
        found = table.source(box, f"{name}.__dict__", is_patient)
        return Reads(before + found.before, bases + found.values, found.scope)

    return source


def function_source(cells: int, table: Table) -> Source:
    """The source of a function: code, defaults, content of closure cells, some attributes."""

    def source(box: str, is_patient: bool) -> Reads:
        names, found = item_names(box, cells), table.source(box, f"{box}.__dict__", is_patient)
        before = [f"[{', '.join(names)}] = {box}.__closure__"] if cells else []
        values = [f"{box}.{name}" for name in ("__code__", "__defaults__", "__kwdefaults__")]
        read = "contents({})" if is_patient else "{}.cell_contents"
        values += map(read.format, names)
        scope = {**found.scope, "contents": contents}
        return Reads(before + found.before, values + found.values, scope)

    return source


def contents(cell: types.CellType) -> Any:
    """The content of a closure cell; the cell itself while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def item_names(box: str, count: int) -> list[str]:
    """Variables for the items of a container."""
    return [f"{box}_{place}" for place in range(count)]


def compiled_guard(boxes: Sequence[Box]) -> Callable[[Any], bool]:
    """A function of the values of box 0, true if all values below are the objects they were."""
    scope: dict[str, Any] = {"changed": CHANGED, "missing": MISSING, "meets": meets}
    lines = ["def is_same(roots):", "    try:"]
    lines += [f"        {line}" for line in statements(boxes, scope)]
    lines += ["    except changed:", "        return False"]
    exec(compile("\n".join(lines), "guard", "exec"), scope)
    found: Callable[[Any], bool] = scope["is_same"]
    return found


def statements(boxes: Sequence[Box], scope: dict[str, Any]) -> Iterator[str]:
    """The statements of that function. What they name is put into its scope."""
    inner = {(box.parent, box.place) for box in boxes}
    reads: dict[Place, str] = {}
    equal: list[str] = []
    ids: dict[Place, int] = {}
    for number, box in enumerate(boxes, 1):
        name, where = f"box{number}", (box.parent, box.place)
        parent = "roots" if box.parent == 0 else f"read{box.parent}"
        yield f"{name} = {reads.get(where, f'{parent}[{box.place}]')}"
        yield f"if type({name}) is not kind{number}: return False"
        reads[where], scope[f"kind{number}"] = name, box.kind
        if box.source is None:
            scope |= {f"values{number}": box.read, f"holds{number}": box.holds}
            yield f"read{number} = values{number}({name})"
            yield f"if not holds{number}(read{number}): return False"
            continue
        before, values, named = box.source(name, False)
        scope |= named
        yield from before
        reads |= {(number, place): value for place, value in enumerate(values)}
        for place, (role, own) in enumerate(zip(box.roles, box.ids, strict=True)):
            if box.labels[place] is OTHERS:
                equal.append(values[place])
            elif role.means == ATOM and id(role.of) == own:
                scope[f"atom{number}_{place}"] = role.of
                equal.append(f"{values[place]} is atom{number}_{place}")
            elif role.means == FORM:
                scope[f"role{number}_{place}"] = role
                equal.append(f"meets(role{number}_{place}, {values[place]})")
            # The content of a box inside of this one is compared by its own statements.
            elif role.means != CONTENT or (number, place) not in inner:
                ids[number, place] = own
    if equal:
        yield f"if not ({' and '.join(equal)}): return False"
    scope["ids"] = [*ids.values()]
    yield f"return [*map(id, [{', '.join(map(reads.__getitem__, ids))}])] == ids"


GLOBAL, CELL = "global ", "closure variable "
"""Beginnings of labels of globals, and of the content of cells."""
FIRST_CELL: Final = 3
"""Place of the first cell among the values of a function."""


class Box(NamedTuple):
    """A container: its path, its reader, and its values at the capture."""

    parent: int
    place: int
    kind: type
    read: Callable[[Any], Values]
    ids: tuple[int, ...]
    roles: tuple[Role, ...]
    path: str
    labels: tuple[str, ...]
    source: Source | None
    is_class: bool
    """True if it is the class of the container."""

    def holds(self, values: Values) -> bool:
        """True if values have the same meaning as before; most are the same objects."""
        return len(values) == len(self.ids) and all(
            id(value) == number or meets(role, value)
            for value, number, role in zip(values, self.ids, self.roles, strict=True)
        )

    def put(self, container: Any, place: int, value: Any) -> None:
        """Replace a value of a container by another one."""
        label = self.labels[place]
        if label.startswith("."):
            setattr(type(container) if self.is_class else container, label[1:], value)
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
        label = self.labels[place]
        return self.path if label in ("", ".__wrapped__") else join_path(self.path, label)


def meets(role: Role, value: Any) -> bool:
    """True if a value satisfies its role."""
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
        self.rows = [(box.parent, box.place, box.kind, box.read, [*box.ids], box) for box in boxes]
        """Fields of each box that `holds` reads, in one tuple."""
        self.is_possible = True
        """True if all objects that must be found again exist."""
        self.is_same: Callable[[Values], bool] | None = None
        """A quick `holds` from the first replay on. Its False decides nothing."""
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

    def holds(self, roots: Values) -> bool:
        """True if nothing has changed."""
        if not self.is_possible:
            return False
        if self.more:
            roots = (*roots, *self.more)
        if self.is_same is not None and self.is_same(roots):
            return True
        found = [roots]
        try:
            for parent, place, kind, read, ids, box in self.rows:
                container = found[parent][place]
                if type(container) is not kind:
                    return False
                values = read(container)
                if [*map(id, values)] != ids and not box.holds(values):
                    return False
                found.append(values)
        except CHANGED:
            return False
        if self.is_same is None:
            self.is_same = compiled_guard(self.boxes)
        return True

    def put(self, roots: Values, number: int, place: int, value: Any) -> None:
        """Replace a value of a box that is there."""
        box = self.boxes[number]
        box.put(self.value_at(roots, box.parent, box.place), place, value)

    def value_at(self, roots: Values, parent: int, place: int) -> Any:
        """A value of the roots (0), or of a box by its number."""
        if not parent:
            return (*roots, *self.more)[place]
        box = self.boxes[parent - 1]
        return box.read(self.value_at(roots, box.parent, box.place))[place]

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Yield the expected plain values and objects, with descriptions of their places."""
        for box in self.boxes:
            for place, (role, number) in enumerate(zip(box.roles, box.ids, strict=True)):
                if role.means == ATOM:
                    yield (
                        box.where(place),
                        constant_key(role.of) if is_comparable(role.of) else None,
                    )
                elif role.means == OBJECT:
                    yield box.where(place), ("object", number)


def is_comparable(value: Any) -> bool:
    """True if a plain value can be shown."""
    return not isinstance(value, types.CodeType)
