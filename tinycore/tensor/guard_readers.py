"""Readers of containers for guards: their values, labels, and restoration.

Floor 5. `reader_of` chooses by the class of a value: built-in containers are read whole, functions
by their code, defaults and closure, and objects, classes and modules by the names that code uses.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import types
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, cast

from tinycore._deferred import NumpyArray
from tinycore.tensor.guard import (
    Source,
    attributes_source,
    class_source,
    dict_source,
    entries_source,
    function_source,
    items_source,
)
from tinycore.tensor.guard_keys import ATOMS, Values, is_plain
from tinycore.tensor.names import LAYERS, Names
from tinycore.tensor.tensor import Tensor

MOST_ITEMS: Final = 1024
"""Items of a container up to which each is compared; of longer ones the length is."""
MOST_COMPARED_BYTES: Final = 1 << 12
"""Bytes of an array up to which they are compared."""


class Reader(NamedTuple):
    """Access to a container: its values, their labels, and how one is replaced.

    It is quick to read where both functions are Python's own.
    """

    read: Callable[[Any], Values]
    labels: tuple[str, ...]
    store: Callable[[Any, int, Any], None] | None = None
    scope: Callable[[Any], Any] | None = None
    """Maps a container to the one that is read instead, such as a function to its globals."""
    source: Source | None = None
    """The same reads as text, where they give the same objects each time."""


def read_nothing(_: Any) -> Values:
    """Return no values."""
    return ()


def picked(names: tuple[str, ...], present: Mapping[str, Any]) -> Callable[[Any], Values]:
    """A function that reads some names of a dict; None for missing ones."""
    if len(names) > 1 and all(name in present for name in names):
        return itemgetter(*names)
    if len(names) == 1:
        name = names[0]
        return lambda table: (table.get(name),)

    def read(table: Any) -> Values:
        return tuple([table.get(name) for name in names])

    return read


def global_reader(function: Any, names: tuple[str, ...]) -> Reader:
    """Return the reader of a function's globals."""

    def store(box: Any, place: int, value: Any) -> None:
        box.__globals__[names[place]] = value

    labels = tuple([f"global {name}" for name in names])
    table: dict[str, Any] = function.__globals__
    source = entries_source("__globals__", names, table)
    return Reader(picked(names, table), labels, store, attrgetter("__globals__"), source)


OF_FUNCTION: Final = attrgetter("__code__", "__defaults__", "__kwdefaults__")
CONTENT_OF_CELL: Final = attrgetter("cell_contents")


def contents(cell: types.CellType) -> Any:
    """Return the content of a closure cell; the cell itself while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def read_closure(function: Any) -> Values:
    """Return a function's code, defaults and closure contents."""
    try:
        return *OF_FUNCTION(function), *map(CONTENT_OF_CELL, function.__closure__ or ())
    except ValueError:
        return *OF_FUNCTION(function), *map(contents, function.__closure__)


def function_reader(function: types.FunctionType, names: Names) -> Reader:
    """Return the reader of a function's code, defaults, closure and attributes.

    Another function in its place is read likewise: if it has the same code, it has as many cells.
    """
    guarded = tuple([n for n in vars(function) if n == "__wrapped__" or names.has(n)])
    cells = [f"closure variable {name}" for name in function.__code__.co_freevars]
    labels = ("code", "default", "default", *cells, *(f".{name}" for name in guarded))
    plain = read_closure if cells else OF_FUNCTION

    def read(f: Any) -> Values:
        return *plain(f), *map(vars(f).get, guarded)

    def store(f: Any, place: int, value: Any) -> None:
        if 3 <= place < 3 + len(cells):
            f.__closure__[place - 3].cell_contents = value
        else:
            setattr(f, labels[place][1:], value)

    source = function_source(len(cells), guarded)
    return Reader(read if guarded else plain, labels, store, None, source)


def attribute_reader(value: Any, names: Names) -> Reader:
    """Return the reader of an object's attributes that code names; of a layer of tinycore, all."""
    own = getattr(value, "__dict__", None)
    kind = type(value)
    is_layer = kind.__module__.startswith(LAYERS)
    slots = tuple([n for n in slots_of(cast(Any, kind)) if is_layer or names.has(n)])
    guarded: tuple[str, ...] = ()
    if own is not None:
        guarded = tuple([n for n in own if is_layer or names.has(n)])
        if not is_layer:
            later = dict.fromkeys((*sorted(names.stored), *shared_data(kind, names)))
            guarded += tuple([n for n in later if n not in own and n not in slots])
    labels = tuple([f".{name}" for name in (*guarded, *slots)])

    def store(box: Any, place: int, new: Any) -> None:
        setattr(box, labels[place][1:], new)

    if not (guarded or slots):
        return EMPTY_READER
    source = attributes_source(guarded, own or {}, slots)
    if not slots:
        return Reader(picked(guarded, own or {}), labels, store, vars, source)

    def read(box: Any) -> Values:
        found = tuple([getattr(box, name, None) for name in slots])
        return (*map(vars(box).get, guarded), *found) if guarded else found

    return Reader(read, labels, store, None, source)


def shared_data(kind: type, names: Names) -> list[str]:
    """Return the names of class data that code names and that objects may override."""
    return [
        name
        for base in kind.__mro__
        if names.opens(base.__module__)
        for name, value in vars(base).items()
        if names.has(name) and not hasattr(type(value), "__get__")
    ]


def slots_of(kind: Any) -> tuple[str, ...]:
    """The names in the slots of a class and its bases.

    Not remembered: that would keep the class, and with its methods all that is around them.
    """
    found: dict[str, None] = {}
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    return tuple([name for name in found if name not in ("__dict__", "__weakref__")])


def module_reader(module: Any, names: Names) -> Reader:
    """Return the reader of a module's attributes that code names."""
    guarded = tuple([n for n in vars(module) if names.has(n) and not n.startswith("__")])

    def store(box: Any, place: int, value: Any) -> None:
        setattr(box, guarded[place], value)

    labels = tuple([f".{name}" for name in guarded])
    table = vars(module)
    source = entries_source("__dict__", guarded, table)
    return Reader(picked(guarded, table), labels, store, vars, source)


def class_reader(kind: Any, names: Names, of_object: bool = False) -> Reader:
    """Return the reader of a class: its bases, attributes that code names, special methods."""

    def is_read(name: str, value: Any) -> bool:
        if name in ("__init__", "__new__", "__post_init__"):
            return names.has(kind.__name__) or names.makes(kind.__name__)
        return names.has(name) or (name[:2] == "__" and isinstance(value, types.FunctionType))

    own = [name for name, value in vars(kind).items() if is_read(name, value)]
    below = [b for b in kind.__mro__[1:] if names.opens(b.__module__)]
    inherited = [name for base in below for name in vars(base) if names.has(name)]
    guarded = tuple(dict.fromkeys((*own, *inherited)))
    table, count = picked(guarded, vars(kind)), len(kind.__bases__)

    def store(box: Any, place: int, value: Any) -> None:
        setattr(type(box) if of_object else box, guarded[place - count], value)

    labels = (*["base"] * count, *(f".{name}" for name in guarded))
    scope = type if of_object else None
    source = class_source(kind, guarded, of_object)

    def read(box: Any) -> Values:
        return (*box.__bases__, *table(vars(box)))

    return Reader(read if guarded else attrgetter("__bases__"), labels, store, scope, source)


def stored_item(box: Any, place: int, value: Any) -> None:
    """Put an item into a list."""
    box[place] = value


def stored_entry(box: Any, place: int, value: Any) -> None:
    """Put an entry into a dict, whose keys come first among its values."""
    box[list(box)[place - len(box)]] = value


def read_dict(box: Any) -> Values:
    """The keys of a dict, then its values."""
    return (*box, *box.values())


def read_length(box: Any) -> Values:
    """Length of a container."""
    return (len(box),)


def read_set(box: Any) -> Values:
    """The items of a set; in order where they have one."""
    if all(type(item) in ATOMS for item in box):
        return tuple(sorted(box, key=repr))
    return tuple(box)


def read_array(box: Any) -> Values:
    """Return an array's shape and dtype, and its bytes if they are few."""
    return box.shape, box.dtype.str, box.tobytes() if box.nbytes <= MOST_COMPARED_BYTES else None


def read_variable(box: Any) -> Values:
    """The value of a context variable in this context; the class of the error if it has none."""
    try:
        return (box.get(),)
    except LookupError:
        return (LookupError,)


def container_reader(value: Any) -> Reader | None:
    """The reader of a built-in container; None for anything else."""
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        return None
    if len(value) > MOST_ITEMS:
        return Reader(read_length, ("length",))
    if isinstance(value, dict):
        keys = tuple([f"[{key!r}]" if is_plain(key) else "[...]" for key in value])
        labels = (*["key"] * len(keys), *keys)
        return Reader(read_dict, labels, stored_entry, None, dict_source(len(keys)))
    labels = tuple([f"[{place}]" for place in range(len(value))])
    if isinstance(value, (set, frozenset)):
        return Reader(read_set, labels)
    store = None if isinstance(value, tuple) else stored_item
    return Reader(tuple, labels, store, None, items_source(len(labels)))


EMPTY_READER: Final = Reader(read_nothing, ())
"""The reader of an object of which code names nothing."""

WRAPPERS: Final[dict[type, Reader]] = {
    types.MethodType: Reader(lambda m: (m.__func__, m.__self__), ("", "self")),
    functools.partial: Reader(
        lambda p: (p.func, p.args, p.keywords), ("function", "argument", "argument")
    ),
    property: Reader(lambda p: (p.fget, p.fset), ("getter", "setter")),
    staticmethod: Reader(lambda m: (m.__func__,), ("function",)),
    classmethod: Reader(lambda m: (m.__func__,), ("function",)),
    functools.cached_property: Reader(lambda p: (p.func,), ("function",)),
    type(os.environ): Reader(lambda e: (vars(e).get("_data", len(e)),), ("",)),
    contextvars.ContextVar: Reader(read_variable, ("value",)),
    bytearray: Reader(
        lambda b: (bytes(b),) if len(b) <= MOST_COMPARED_BYTES else (len(b),), ("content",)
    ),
}
"""Objects of Python with others inside."""
NAMESPACES: Final = (types.SimpleNamespace, threading.local)
"""Classes of Python whose objects have attributes that users give them."""


def reader_of(value: Any, names: Names) -> Reader | None:
    """The Reader of a value; None for one that is guarded by equality."""
    found = WRAPPERS.get(type(value)) or container_reader(value)
    if found is not None or isinstance(value, Tensor):
        return found
    if isinstance(value, types.FunctionType):
        return function_reader(value, names)
    if isinstance(value, NumpyArray):
        return Reader(read_array, ("shape", "dtype", "content"))
    if isinstance(value, types.ModuleType):
        return module_reader(value, names) if names.opens(value.__name__) else None
    if isinstance(value, type):
        return class_reader(value, names) if names.opens(value.__module__) else None
    module = type(value).__module__
    if isinstance(value, NAMESPACES) or names.opens(module) or module.startswith(LAYERS):
        return attribute_reader(value, names)
    if "__wrapped__" in getattr(value, "__dict__", ()):  # of functools.lru_cache, for example
        return Reader(lambda wrapper: (wrapper.__wrapped__,), (".__wrapped__",))
    return None
