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
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from tinycore._deferred import NumpyArray
from tinycore.tensor.guards.guard import (
    ATOMS,
    BOX,
    CELL,
    MISSING,
    Reader,
    Values,
    attributes,
    is_plain,
    items_of,
    memory_of,
)
from tinycore.tensor.guards.names import LAYERS, STORED, Names, home_of

MOST_ITEMS: Final = 1024
"""Items of a container up to which each is compared; of longer ones the length is."""
CODE: Final = attributes("__code__ __defaults__ __kwdefaults__", "code", "default", "default")


# --- what is read by the names that code uses


def object_readers(value: Any, names: Names) -> list[Reader]:
    """The readers of a function, a module, a class, or of the attributes of another object; none
    for one that is not looked into.
    """
    if isinstance(value, types.FunctionType):
        return function_readers(value, names)
    if isinstance(value, types.ModuleType):
        wanted = names.wanted and names.wanted | {"__getattr__"}
        return [names.table(vars(value), wanted)] if names.opens(value.__name__) else []
    if isinstance(value, type):
        return class_readers(value, names) if names.opens(home_of(value)) else []
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
        labels = [CELL + name for name in function.__code__.co_freevars]
        first, *held = items_of(f"{BOX}.__closure__", *labels).lines
        lines = [
            f"missing if {name} == {BOX}empty else {name}.cell_contents"
            if cell == EMPTY
            else f"{name}.cell_contents"
            for name, cell in zip(held, cells, strict=True)
        ]
        found.append(Reader(tuple(labels), [first, *lines], {f"{BOX}empty": EMPTY}))
    return [*found, names.table(vars(function), names.wanted, ("__wrapped__",))]


EMPTY: Final = types.CellType()
"""A cell of a closure without content."""


def attribute_readers(value: Any, own: Mapping[str, Any] | None, names: Names) -> list[Reader]:
    """The readers of an object's slots and dict of attributes; none where it can have none.

    Read are those that code names, which mangles private ones; of a layer of tinycore, all.
    """
    kind = type(value)
    is_layer = home_of(kind).startswith(LAYERS)
    if not (is_layer or isinstance(value, NAMESPACES) or names.opens(home_of(kind))):
        return []
    # Not remembered: that would keep the class, and with its methods all that is around them.
    slots = {
        name: slot
        for base in reversed(kind.__mro__)
        if names.opens(home_of(base)) or home_of(base).startswith(LAYERS)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType) and (is_layer or names.has(name))
    }
    found = []
    if slots:
        read = functools.partial(read_slots, tuple(slots.values()))
        found.append(returned_by(read, *[f".{name}" for name in slots]))
    if own is not None:
        later = sorted(names.known[STORED].difference(slots))
        found.append(names.table(own, None if is_layer else names.wanted, later))
    return found


def read_slots(slots: Iterable[types.MemberDescriptorType], box: Any) -> Iterator[Any]:
    """The content of slots; MISSING where there is none."""
    for slot in slots:
        try:
            yield slot.__get__(box)
        except AttributeError:
            yield MISSING


def class_readers(kind: Any, names: Names) -> list[Reader]:
    """The readers of a class: its bases, attributes that code names, special methods."""
    wanted = names.wanted
    if wanted is not None:
        is_made = names.has(kind.__name__) or names.makes(kind.__name__)
        wanted = wanted | SPECIAL if is_made else (wanted | SPECIAL) - MAKING
    bases = ["base"] * len(kind.__bases__)
    return [items_of(f"{BOX}.__bases__", *bases), names.table(vars(kind), wanted)]


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


def returned_by(read: Callable[[Any], Iterable[Any] | None], *labels: str) -> Reader:
    """The reader of what a function returns."""
    return items_of(f"{BOX}read({BOX})", *labels)._replace(scope={f"{BOX}read": read})


def read_variable(box: contextvars.ContextVar[Any]) -> Values:
    """The value of a context variable."""
    try:
        return (box.get(),)
    except LookupError:
        return (MISSING,)


def read_set(box: Any) -> Values:
    """The items of a set; in order where they have one."""
    if all(type(item) in ATOMS for item in box):
        return tuple(sorted(box, key=repr))
    return tuple(box)


def read_objects(box: Any) -> list[Any]:
    """The form and the items of an array of objects, or of records with some."""
    rows = box.ravel().tolist()
    form = f"{box.dtype} {box.shape}"
    return [form, *(chain.from_iterable(rows) if box.dtype.names else rows)]


def is_unseen(value: Any) -> bool:
    """True for writable memory that is so large that only its form is compared."""
    found = memory_of(value)
    return found is not None and found[0]


def container_readers(value: Any) -> list[Reader]:
    """The readers of a built-in container, or of an array of objects; none for anything else."""
    if isinstance(value, NumpyArray) and value.dtype.hasobject:
        return [returned_by(read_objects, "form", *["[...]"] * (len(read_objects(value)) - 1))]
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque, types.MappingProxyType)):
        return []
    count = len(value)
    if count > MOST_ITEMS:
        return [Reader(("length",), [f"len({BOX})"])]
    if isinstance(value, (dict, types.MappingProxyType)):
        labels = [f"[{key!r}]" if is_plain(key) else "[...]" for key in value]
        return [items_of(BOX, *["key"] * count), items_of(f"{BOX}.values()", *labels)]
    labels = [f"[{place}]" for place in range(count)]
    is_set = isinstance(value, (set, frozenset))
    return [returned_by(read_set, *labels) if is_set else items_of(BOX, *labels)]


def content_readers(value: Any) -> list[Reader]:
    """The readers of what a container holds, whichever object it is; none for anything else."""
    if (wrapper := WRAPPERS.get(type(value))) is not None:
        return [wrapper]
    if found := container_readers(value):
        return found
    return [] if memory_of(value) is None else [CONTENT]


WRAPPERS: Final[dict[type, Reader]] = {
    types.MethodType: attributes("__func__ __self__", "", "self"),
    functools.partial: attributes("func args keywords", "function", "argument", "argument"),
    property: attributes("fget fset", "getter", "setter"),
    staticmethod: attributes("__func__", "function"),
    classmethod: attributes("__func__", "function"),
    functools.cached_property: attributes("func", "function"),
    type(os.environ): Reader(("",), [f'vars({BOX}).get("_data", len({BOX}))']),
    contextvars.ContextVar: returned_by(read_variable, "value"),
    io.BytesIO: attributes("getvalue() tell()", "content", "position"),
    io.StringIO: attributes("getvalue() tell()", "content", "position"),
}
"""Objects of Python with others inside."""
CONTENT: Final = returned_by(memory_of, "", "form", "content")
NAMESPACES: Final = (types.SimpleNamespace, threading.local)
"""Classes of Python whose objects have attributes that users give them."""
