"""Readers of containers for guards: their values and labels.

Floor 5. `content_readers` and `object_readers` choose by the class of a value: built-in containers
are read whole, functions by their code, defaults and closure, and objects, classes and modules by
the names that code uses.
"""

from __future__ import annotations

import contextvars
import functools
import io
import os
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, methodcaller
from typing import Any, Final

from tinycore._deferred import NumpyArray
from tinycore.tensor.guards.guard import BOX, CELL, Reader, attributes, items_of
from tinycore.tensor.guards.keys import ATOMS, MISSING, Values, buffer_content, is_plain
from tinycore.tensor.guards.names import LAYERS, STORED, Names

MOST_ITEMS: Final = 1024
"""Items of a container up to which each is compared; of longer ones the length is."""
MOST_COMPARED_BYTES: Final = 1 << 12
"""Bytes of an array up to which they are compared."""
CODE: Final = attributes("__code__ __defaults__ __kwdefaults__", "code", "default", "default")


# --- what is read by the names that code uses


def object_readers(value: Any, names: Names) -> list[Reader]:
    """The readers of a function, a module, a class, or of the attributes of another object; none
    for one that is not looked into.
    """
    if isinstance(value, types.FunctionType):
        return function_readers(value, names)
    if isinstance(value, types.ModuleType):
        return [names.table(vars(value), names.wanted)] if names.opens(value.__name__) else []
    if isinstance(value, type):
        return class_readers(value, names) if names.opens(value.__module__) else []
    own = getattr(value, "__dict__", None)
    if found := attribute_readers(value, own, names):
        return found
    # of functools.lru_cache, for example
    return [attributes("__wrapped__", ".__wrapped__")] if "__wrapped__" in (own or ()) else []


def function_readers(function: types.FunctionType, names: Names) -> list[Reader]:
    """The readers of a function's code and defaults, closure and attributes.

    Another function in its place is read likewise: if it has the same code, it has as many cells.
    """
    found = [CODE]
    if cells := function.__closure__:
        labels = tuple([CELL + name for name in function.__code__.co_freevars])
        lines: list[str] = []
        if all(value is not MISSING for value in map(CONTENTS, cells)):
            first, *held = items_of(f"{BOX}.__closure__", len(labels))
            lines = [first, *[f"{name}.cell_contents" for name in held]]
        found.append(Reader(labels, read_cells, lines))
    return [*found, names.table(vars(function), names.wanted, ("__wrapped__",))]


def read_cells(function: Any) -> Iterable[Any]:
    """The content of the cells of a closure."""
    return map(CONTENTS, function.__closure__)


def attempted(read: Callable[[Any], Any], box: Any) -> Any:
    """The value read of a box; MISSING where there is nothing."""
    try:
        return read(box)
    except (AttributeError, LookupError, ValueError):
        return MISSING


CONTENTS: Final = functools.partial(attempted, attrgetter("cell_contents"))
"""The content of a cell of a closure."""


def attribute_readers(value: Any, own: Mapping[str, Any] | None, names: Names) -> list[Reader]:
    """The readers of an object's slots and dict of attributes; none where it can have none.

    Read are those that code names, which mangles private ones; of a layer of tinycore, all.
    """
    kind = type(value)
    is_layer = kind.__module__.startswith(LAYERS)
    if not (is_layer or isinstance(value, NAMESPACES) or names.opens(kind.__module__)):
        return []
    # Not remembered: that would keep the class, and with its methods all that is around them.
    slots = {
        name: slot
        for base in reversed(kind.__mro__)
        if names.opens(base.__module__) or base.__module__.startswith(LAYERS)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType) and (is_layer or names.has(name))
    }
    found = []
    if slots:
        read = functools.partial(read_slots, tuple(slots.values()))
        found.append(Reader(tuple([f".{name}" for name in slots]), read))
    if own is not None:
        later = sorted(names.known[STORED].difference(slots))
        found.append(names.table(own, None if is_layer else names.wanted, later))
    return found


def read_slots(slots: Iterable[types.MemberDescriptorType], box: Any) -> list[Any]:
    """The content of slots."""
    return [attempted(slot.__get__, box) for slot in slots]


def class_readers(kind: Any, names: Names) -> list[Reader]:
    """The readers of a class: its bases, attributes that code names, special methods."""
    wanted = names.wanted
    if wanted is not None:
        is_made = names.has(kind.__name__) or names.makes(kind.__name__)
        wanted = wanted | SPECIAL if is_made else (wanted | SPECIAL) - MAKING
    bases = Reader(("base",) * len(kind.__bases__), attrgetter("__bases__"))
    return [bases, names.table(vars(kind), wanted)]


MAKING: Final = frozenset({"__init__", "__new__", "__post_init__"})
"""Methods that matter where code makes instances of a class."""
SPECIAL: Final = frozenset(
    name
    for kind in (object, int, float, complex, str, list, dict, set, types.GeneratorType)
    for name in dir(kind)
    if name[:2] == "__" and callable(getattr(kind, name))
) | {
    *(
        "__bool__ __call__ __delattr__ __delete__ __enter__ __exit__ __get__ __getattr__ "
        "__imatmul__ __matmul__ __missing__ __next__ __post_init__ __rmatmul__ __set__ __array__ "
        "__class_getitem__ __instancecheck__"
    ).split(),
} - {"__class__", "__init_subclass__", "__subclasshook__"}
"""Methods that Python calls without code that names them."""


# --- what is read whole


def read_set(box: Any) -> Values:
    """The items of a set; in order where they have one."""
    if all(type(item) in ATOMS for item in box):
        return tuple(sorted(box, key=repr))
    return tuple(box)


def read_array(box: Any) -> Values:
    """Return an array's shape and dtype, and its elements: if they are numbers, of few bytes."""
    dtype = box.dtype.str if box.dtype.names is None else str(box.dtype)
    if box.dtype.hasobject:
        return box.shape, dtype, box.tolist()
    return box.shape, dtype, box.tobytes() if box.nbytes <= MOST_COMPARED_BYTES else None


def buffer_size(value: Any) -> tuple[int, bool] | None:
    """Bytes of an array or of another buffer, and whether they may change; None for other values.

    An array of objects has no bytes: these are looked into.
    """
    if isinstance(value, NumpyArray):
        is_memory = not value.dtype.hasobject
        return (value.nbytes, bool(value.flags.writeable)) if is_memory else (0, False)
    try:
        with memoryview(value) as found:
            return found.nbytes, not found.readonly
    except (TypeError, ValueError, BufferError):
        return None


def is_unseen(value: Any) -> bool:
    """True for writable memory that is so large that only its size is compared."""
    size, may_change = buffer_size(value) or (0, False)
    return may_change and size > MOST_COMPARED_BYTES


def read_buffer(box: Any) -> Values:
    """Return the content of an object with the buffer protocol, or its size if that is large."""
    found = buffer_size(box)
    return (found if found and found[0] > MOST_COMPARED_BYTES else buffer_content(box),)


def buffer_readers(value: Any) -> list[Reader]:
    """The readers of an array, or of another object with the buffer protocol."""
    if isinstance(value, NumpyArray):
        return [Reader(("shape", "dtype", "content"), read_array)]
    return [] if buffer_size(value) is None else [Reader(("content",), read_buffer)]


def container_readers(value: Any) -> list[Reader]:
    """The readers of a built-in container; none for anything else."""
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        return []
    count = len(value)
    if count > MOST_ITEMS:
        return [Reader(("length",), lambda box: (len(box),))]
    if isinstance(value, dict):
        labels = tuple([f"[{key!r}]" if is_plain(key) else "[...]" for key in value])
        keys = Reader(("key",) * count, tuple, items_of(BOX, count))
        return [keys, Reader(labels, methodcaller("values"))]
    labels = tuple([f"[{place}]" for place in range(count)])
    if isinstance(value, (set, frozenset)):
        return [Reader(labels, read_set)]
    return [Reader(labels, tuple, items_of(BOX, count))]


def content_readers(value: Any) -> list[Reader]:
    """The readers of what a container holds, whichever object it is; none for anything else."""
    if (wrapper := WRAPPERS.get(type(value))) is not None:
        return [wrapper]
    return container_readers(value) or buffer_readers(value)


WRAPPERS: Final[dict[type, Reader]] = {
    types.MethodType: attributes("__func__ __self__", "", "self"),
    functools.partial: attributes("func args keywords", "function", "argument", "argument"),
    property: attributes("fget fset", "getter", "setter"),
    staticmethod: attributes("__func__", "function"),
    classmethod: attributes("__func__", "function"),
    functools.cached_property: attributes("func", "function"),
    type(os.environ): Reader(("",), lambda e: (vars(e).get("_data", len(e)),)),
    contextvars.ContextVar: Reader(
        ("value",), lambda v: (attempted(contextvars.ContextVar.get, v),)
    ),
    types.MappingProxyType: Reader(("",), lambda m: (dict(m),)),
    io.BytesIO: Reader(("content", "position"), lambda b: (b.getvalue(), b.tell())),
    io.StringIO: Reader(("content", "position"), lambda b: (b.getvalue(), b.tell())),
}
"""Objects of Python with others inside."""
NAMESPACES: Final = (types.SimpleNamespace, threading.local)
"""Classes of Python whose objects have attributes that users give them."""
