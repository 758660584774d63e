"""Guards: a table of what a captured function found around it, compared before each replay.

Floor 5. A row of the table is a box: a container among the values of an earlier row, the text that
reads its values (`readers.py`), and what is expected of each (`Role`). At the first replay the text
of all rows is joined and compiled: without a loop and calls between them, that takes a quarter of
the time. Identities decide most replays; only a value that is another object is asked what it
means. Values that are compared are hashable parts of a key, as those among the arguments of a call
are (`arguments.py`). See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from math import inf
from operator import ne
from typing import Any, Final, NamedTuple

from tinycore._deferred import NumpyArray, NumpyScalar
from tinycore.dtype import DType
from tinycore.errors import JitError
from tinycore.tensor.tensor import Tensor
from tinycore.uop.size import Size, Variable

# --- values


Values = tuple[Any, ...]


class Absence(enum.Enum):
    """The value of a name that is not there, which None would be told from by nothing."""

    MISSING = "absent"

    def __repr__(self) -> str:
        return self.value


MISSING: Final = Absence.MISSING


class Role(NamedTuple):
    """The condition on a value that is another object than at the capture."""

    fits: Callable[[Any, Any], bool]
    """A function of `of` and a value: `alike`, `never`, `is_a` or `has_form`."""
    of: Any = None


def never(_: Any, value: Any) -> bool:
    """False: no other object will do."""
    return False


def is_a(kind: Any, value: Any) -> bool:
    """True for a container of a class, whichever: its values are compared in a box of its own."""
    return type(value) is kind


def has_form(form: Any, value: Any) -> bool:
    """True for any tensor of a form: the function puts it there."""
    return bool(form_of_value(value) == form)


def form_of_value(value: Any) -> Any:
    """The form of a tensor; of others what they are."""
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.dtype, value.device
    return constant_key(value)


def reference_to(value: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    """A reference to an object that does not keep it alive, if there can be one."""
    try:
        return weakref.ref(value, gone)
    except TypeError:  # some objects take no weak references
        return lambda: value


class Same:
    """An object's identity as part of a key, which does not keep it alive."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any) -> None:
        self.number, self.reference = id(value), reference_to(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self.number != other.number:
            return False
        mine = self.reference()
        return mine is not None and mine is other.reference()

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        found = self.reference()
        return "an object that is gone" if found is None else f"the object {shortened(found)}"

    def __reduce__(self) -> tuple[object, ...]:
        raise JitError(
            f"{self!r} is part of what was captured, and no other process has it; pass tensors and "
            "plain values to a function whose captures are pickled"
        )


ATOMS: Final = frozenset((types.NoneType, bool, int, str, bytes, DType, Variable))
"""Classes whose instances are plain, looked up where looking has to be quick."""
PLAIN_TYPES: Final = (*ATOMS, float, complex, enum.Enum, NumpyScalar, Size, types.CodeType)
"""Types whose values are equal by content; floats by their bits, complex numbers by their text."""
METHOD_TYPES: Final[set[type]] = {types.MethodType}
"""Classes of methods, which are known by their object and their function."""


def constant_key(value: Any) -> Hashable:
    """A Python value as part of a key."""
    kind = type(value)
    if kind in ATOMS or isinstance(value, type):
        return kind, value
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, complex.__repr__(value)
    if isinstance(value, NumpyScalar):
        return value.dtype.str, value.tobytes()
    if isinstance(value, str):  # of a class of the caller, whose `==` may say anything
        return kind, str.__str__(value)
    if isinstance(value, int):
        return kind, int.__int__(value)
    if isinstance(value, PLAIN_TYPES):
        return Size if isinstance(value, Size) else kind, value
    if kind in METHOD_TYPES and hasattr(value, "__self__"):  # each lookup makes another
        return constant_key(value.__self__), constant_key(value.__func__)
    return Same(value) if (found := memory_of(value, inf)) is None else (kind, found)


MOST_COMPARED_BYTES: Final = 1 << 12
"""Bytes of an array around a function up to which they are compared."""


def memory_of(value: Any, most: float = MOST_COMPARED_BYTES) -> tuple[bool, str, Any] | None:
    """Return facts of an array or another buffer: True if it is so large that only its form is
    compared, though it may be written to; its form; and the bytes that are compared. None for
    values that are no memory.
    """
    if isinstance(value, NumpyArray):
        is_large = value.nbytes > most
        content = None if is_large else value.tobytes()
        return is_large and bool(value.flags.writeable), f"{value.dtype} {value.shape}", content
    try:
        with memoryview(value) as found:
            is_large = found.nbytes > most
            content = None if is_large else found.tobytes()
            return is_large and not found.readonly, f"{found.format} {found.shape}", content
    except (TypeError, ValueError, BufferError):  # no buffer, or one that cannot be read
        return None


def alike(one: Any, other: Any) -> bool:
    """True if two plain values are of one class and equal, floats bit by bit."""
    is_same = type(one) is type(other) and is_plain(one)
    return is_same and bool(constant_key(one) == constant_key(other))


def is_plain(value: Any) -> bool:
    """True if a value is guarded by equality."""
    return isinstance(value, PLAIN_TYPES)


Fact = tuple[Hashable, str]
"""A key that is compared with those of other calls, and its text."""


def fact_of(value: Any) -> Fact:
    """A value that is expected of a call."""
    is_told = is_plain(value) or isinstance(value, type)
    return (constant_key(value), shortened(value)) if is_told else fact_of_object(id(value))


def fact_of_object(number: int) -> Fact:
    """An object, of which the identity is expected."""
    return number, f"object {number}"


def shortened(value: Any) -> str:
    """A value on one line of some length."""
    try:
        text = repr(value)
    except Exception:  # of a class of the caller, or a number of thousands of digits
        text = object.__repr__(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the table

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
    scope: dict[str, Any] = {"missing": MISSING}
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

    def __init__(self, boxes: Sequence[Box], referred: Iterable[Any]) -> None:
        self.boxes = boxes
        self.gone: list[Any] = []
        """References to objects that must be found again and are gone."""
        self.referred = [reference_to(value, self.gone.append) for value in referred]

    @cached_property
    def compiled(self) -> Callable[[Values], bool]:
        """The function that compares, compiled at the first call."""
        scope: dict[str, Any] = {
            "changed": CHANGED,
            "missing": MISSING,
            "fit": fit,
            "compress": compress,
            "ne": ne,
        }
        exec("\n".join(statements(self.boxes, scope)), scope)
        found: Callable[[Values], bool] = scope["holds"]
        return found

    def holds(self, roots: Values) -> bool:
        """True if nothing has changed."""
        return not self.gone and self.compiled(roots)

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
            return roots[place]
        box = self.boxes[parent - 1]
        found = self.value_at(roots, box.parent, box.place)
        return type(found) if place == ITS_CLASS else box.reader.read(found)[place]

    def facts(self) -> dict[str, Fact]:
        """The expected plain values and objects, by their places in words."""
        return {
            box.where(place): fact_of_object(own) if role.fits is never else fact_of(role.of)
            for box in self.boxes
            for place, (role, own) in enumerate(zip(box.roles, box.ids, strict=True))
            if role.fits is never or (role.fits is alike and type(role.of) is not types.CodeType)
        }
