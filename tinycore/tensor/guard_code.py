"""Guard code: one Python function that compares the values of a guard by identity.

Floor 5. A guard is a list of boxes, which `Guard.find` reads one by one. At the first replay the
same reads are written down as Python, without a loop, calls of readers and tuples between them, and
compiled: that takes a third of the time. The code answers False where a value is another object
than at the capture; `Guard.find` knows if that one means the same.
See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tinycore.tensor.guard_keys import ATOM, CONTENT

if TYPE_CHECKING:
    from tinycore.tensor.guard import Box

CHANGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of reads that were possible at the capture."""


class Reads(NamedTuple):
    """Text of Python that reads a container: statements, then an expression for each value."""

    before: list[str]
    values: list[str]


Place: TypeAlias = tuple[int, int]
"""The number of a box, and the place of a value in it."""
Source: TypeAlias = "Callable[[str], Reads]"
"""Gives the text that reads a container, by the name of the variable that holds it."""


def items_source(count: int) -> Source:
    """The source of a list or tuple."""

    def source(box: str) -> Reads:
        values = item_names(box, count)
        return Reads([f"[{', '.join(values)}] = {box}"], values)

    return source


def dict_source(count: int) -> Source:
    """The source of a dict: its keys, then its values."""

    def source(box: str) -> Reads:
        values = item_names(box, 2 * count)
        return Reads([f"[{', '.join(values)}] = *{box}, *{box}.values()"], values)

    return source


def entries_source(scope: str, names: Sequence[str], present: Mapping[str, Any]) -> Source:
    """The source of some entries of a dict that is an attribute. Those not `present` are None."""
    found = entries(names, present)

    def source(box: str) -> Reads:
        return Reads([f"{box}_table = {box}.{scope}"], [f"{box}_table{entry}" for entry in found])

    return source


def attributes_source(
    names: Sequence[str], present: Mapping[str, Any], slots: Sequence[str]
) -> Source:
    """The source of attributes of an object: some in its dict, some in slots."""
    found = entries(names, present)

    def source(box: str) -> Reads:
        before = [f"{box}_table = {box}.__dict__"] if found else []
        values = [f"{box}_table{entry}" for entry in found]
        return Reads(before, values + [f"{box}.{name}" for name in slots])

    return source


def class_source(kind: type, names: Sequence[str], of_object: bool) -> Source:
    """The source of a class, or of the class of an object: its bases and some attributes."""
    found, bases = entries(names, vars(kind)), range(len(kind.__bases__))

    def source(box: str) -> Reads:
        before = [f"{box}_kind = type({box})" if of_object else f"{box}_kind = {box}"]
        before += [f"{box}_table = {box}_kind.__dict__"] if found else []
        values = [f"{box}_kind.__bases__[{place}]" for place in bases]
        return Reads(before, values + [f"{box}_table{entry}" for entry in found])

    return source


def function_source(cells: int, names: Sequence[str]) -> Source:
    """The source of a function: code, defaults, content of closure cells, some attributes."""

    def source(box: str) -> Reads:
        found = item_names(box, cells)
        before = [f"[{', '.join(found)}] = {box}.__closure__"] if cells else []
        values = [f"{box}.{name}" for name in ("__code__", "__defaults__", "__kwdefaults__")]
        values += [f"{cell}.cell_contents" for cell in found]
        return Reads(before, values + [f"{box}.__dict__.get({name!r})" for name in names])

    return source


def item_names(box: str, count: int) -> list[str]:
    """Variables for the items of a container."""
    return [f"{box}_{place}" for place in range(count)]


def entries(names: Sequence[str], present: Mapping[str, Any]) -> list[str]:
    """Reads of some entries, to be appended to a table, of which no reference is kept."""
    return [f"[{name!r}]" if name in present else f".get({name!r})" for name in names]


def compiled_guard(boxes: Sequence[Box]) -> Callable[[Any], bool]:
    """A function of the values of box 0, true if all values below are the objects they were."""
    scope: dict[str, Any] = {"changed": CHANGED}
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
            scope |= {f"values{number}": box.values, f"holds{number}": box.holds}
            yield f"read{number} = values{number}({name})"
            yield f"if not holds{number}(read{number}): return False"
            continue
        before, values = box.source(name)
        yield from before
        reads |= {(number, place): value for place, value in enumerate(values)}
        for place, (role, own) in enumerate(zip(box.roles, box.ids, strict=True)):
            if role.means == ATOM and id(role.of) == own:
                scope[f"atom{number}_{place}"] = role.of
                equal.append(f"{values[place]} is atom{number}_{place}")
            elif role.means != CONTENT or (number, place) not in inner:
                ids[number, place] = own
    if equal:
        yield f"if not ({' and '.join(equal)}): return False"
    scope["ids"] = [*ids.values()]
    yield f"return [*map(id, [{', '.join(map(reads.__getitem__, ids))}])] == ids"
