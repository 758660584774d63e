"""Readers of containers for guards: their values and labels.

Floor 5. `reader_of` chooses by the class of a value: built-in containers are read whole, functions
by their code, defaults and closure, and objects, classes and modules by the names that code uses.
"""

from __future__ import annotations

import contextvars
import functools
import io
import os
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tinycore._deferred import NumpyArray
from tinycore.tensor.guards.guard import (
    BOX,
    CELL,
    Reader,
    Table,
    items,
    patient_reader,
)
from tinycore.tensor.guards.keys import ATOMS, MISSING, Values, buffer_content, is_plain
from tinycore.tensor.guards.names import LAYERS, Names

MOST_ITEMS: Final = 1024
"""Items of a container up to which each is compared; of longer ones the length is."""
MOST_COMPARED_BYTES: Final = 1 << 12
"""Bytes of an array up to which they are compared."""


def global_reader(table: Table) -> Reader:
    """Return the reader of a function's globals."""
    return patient_reader([f"{BOX}_table = {BOX}.__globals__"], (), table)


def function_reader(function: types.FunctionType, names: Names) -> Reader:
    """Return the reader of a function's code, defaults, closure and attributes.

    Another function in its place is read likewise: if it has the same code, it has as many cells.
    """
    table = names.table(vars(function), ("__wrapped__",))
    cells = function.__closure__ or ()
    unpack, *held = items(f"{BOX}.__closure__", len(cells))
    source = [unpack] if cells else []
    source += [f"{BOX}_table = {BOX}.__dict__"]
    source += [f"{BOX}.{name}" for name in ("__code__", "__defaults__", "__kwdefaults__")]
    for name, cell in zip(held, cells, strict=True):
        source.append(f"contents({name})" if contents(cell) is cell else f"{name}.cell_contents")
    labels = "code", "default", "default", *[CELL + name for name in function.__code__.co_freevars]
    return patient_reader(source, labels, table, {"contents": contents})


def contents(cell: types.CellType) -> Any:
    """The content of a closure cell; the cell itself while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def attribute_reader(value: Any, names: Names) -> Reader | None:
    """Return the reader of an object's attributes; None for one that can have none.

    Read are those that code names; of a layer of tinycore, all.
    """
    kind = type(value)
    is_layer = kind.__module__.startswith(LAYERS)
    if not (is_layer or isinstance(value, NAMESPACES) or names.opens(kind.__module__)):
        return None
    slots = {n: read for n, read in slots_of(value, names).items() if is_layer or names.has(n)}
    own = getattr(value, "__dict__", None)
    if own is None and not slots:
        return None
    later = [name for name in sorted(names.stored) if name not in slots]
    table = None if own is None else names.table(own, later, is_layer)
    source = [] if table is None else [f"{BOX}_table = {BOX}.__dict__"]
    reads = {f"{BOX}_slot{number}": read for number, read in enumerate(slots.values())}
    source += [f"{name}({BOX})" for name in reads]
    return patient_reader(source, [f".{name}" for name in slots], table, reads)


def slots_of(value: Any, names: Names) -> dict[str, Callable[[Any], Any]]:
    """The slots of an object by the names that code uses, which mangles private ones, and how they
    are read.

    Not remembered: that would keep the class, and with its methods all that is around them.
    """
    found: dict[str, Callable[[Any], Any]] = {}
    for base in type(value).__mro__:
        is_read = names.opens(base.__module__) or base.__module__.startswith(LAYERS)
        for name, slot in vars(base).items() if is_read else ():
            if isinstance(slot, types.MemberDescriptorType):
                is_set = slot_content(slot, value) is not MISSING
                read = slot.__get__ if is_set else functools.partial(slot_content, slot)
                found.setdefault(name, read)
    return found


def slot_content(slot: Any, box: Any) -> Any:
    """Return the content of a slot; MISSING while it is empty."""
    try:
        return slot.__get__(box)
    except AttributeError:
        return MISSING


def module_reader(module: Any, names: Names) -> Reader:
    """Return the reader of a module's attributes that code names."""
    return patient_reader([f"{BOX}_table = {BOX}.__dict__"], (), names.table(vars(module)))


def class_reader(kind: Any, names: Names, of_object: bool = False) -> Reader:
    """Return the reader of a class: its bases, attributes that code names, special methods."""
    own = vars(kind)

    def is_read(name: str) -> bool:
        if name in ("__init__", "__new__", "__post_init__"):
            return names.has(kind.__name__) or names.makes(kind.__name__)
        return names.has(name) or name in SPECIAL

    found = tuple(filter(is_read, own))
    others = names.interned((names.attributes | SPECIAL).difference(own))
    table = Table(found, len(found), others, len(own) if names.is_open else None)
    where = f"type({BOX})" if of_object else BOX
    unpack, *bases = items(f"{BOX}_kind.__bases__", len(kind.__bases__))
    source = [f"{BOX}_kind = {where}", unpack, f"{BOX}_table = {BOX}_kind.__dict__", *bases]
    return patient_reader(source, ["base"] * len(bases), table, is_class=of_object)


SPECIAL: Final = frozenset(
    name
    for kind in (object, int, float, complex, str, list, dict, set, types.GeneratorType)
    for name in dir(kind)
    if name[:2] == "__" and callable(getattr(kind, name))
) | {
    *("__bool__", "__call__", "__delattr__", "__delete__", "__enter__", "__exit__", "__get__"),
    *("__getattr__", "__imatmul__", "__matmul__", "__missing__", "__next__", "__post_init__"),
    *("__rmatmul__", "__set__", "__array__", "__class_getitem__", "__instancecheck__"),
} - {"__class__", "__init_subclass__", "__subclasshook__"}
"""Methods that Python calls without code that names them."""


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
    """Return an array's shape and dtype, and its elements: if they are numbers, of few bytes."""
    dtype = box.dtype.str if box.dtype.names is None else str(box.dtype)
    if box.dtype.hasobject:
        return box.shape, dtype, box.tolist()
    return box.shape, dtype, box.tobytes() if box.nbytes <= MOST_COMPARED_BYTES else None


def read_buffer(box: Any) -> Values:
    """Return the content of an object with the buffer protocol, or its size if that is large."""
    with memoryview(box) as found:
        size = found.nbytes
    return (buffer_content(box) if size <= MOST_COMPARED_BYTES else size,)


def is_unseen(value: Any) -> bool:
    """True for writable memory that is so large that only its size is compared."""
    if isinstance(value, NumpyArray):
        is_large = value.nbytes > MOST_COMPARED_BYTES and not value.dtype.hasobject
        return is_large and bool(value.flags.writeable)
    try:
        with memoryview(value) as found:
            return found.nbytes > MOST_COMPARED_BYTES and not found.readonly
    except (TypeError, ValueError, BufferError):
        return False


def buffer_reader(value: Any) -> Reader | None:
    """The reader of an array, or of another object with the buffer protocol."""
    if isinstance(value, NumpyArray):
        return Reader(read_array, ("shape", "dtype", "content"))
    try:
        memoryview(value).release()
    except (TypeError, ValueError, BufferError):
        return None
    return Reader(read_buffer, ("content",))


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
        return Reader(read_dict, labels, items(f"*{BOX}, *{BOX}.values()", 2 * len(keys)))
    labels = tuple([f"[{place}]" for place in range(len(value))])
    if isinstance(value, (set, frozenset)):
        return Reader(read_set, labels)
    return Reader(tuple, labels, items(BOX, len(labels)))


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
    types.MappingProxyType: Reader(lambda m: (dict(m),), ("",)),
    io.BytesIO: Reader(lambda b: (b.getvalue(), b.tell()), ("content", "position")),
    io.StringIO: Reader(lambda b: (b.getvalue(), b.tell()), ("content", "position")),
}
"""Objects of Python with others inside."""
NAMESPACES: Final = (types.SimpleNamespace, threading.local)
"""Classes of Python whose objects have attributes that users give them."""


def content_reader(value: Any) -> Reader | None:
    """The reader of what a container holds, whichever object it is; None for anything else."""
    return WRAPPERS.get(type(value)) or container_reader(value) or buffer_reader(value)


def object_reader(value: Any, names: Names) -> Reader | None:
    """The reader of a function, a module, a class, or of the attributes of another object; None for
    one that is not looked into.
    """
    if isinstance(value, types.FunctionType):
        return function_reader(value, names)
    if isinstance(value, types.ModuleType):
        return module_reader(value, names) if names.opens(value.__name__) else None
    if isinstance(value, type):
        return class_reader(value, names) if names.opens(value.__module__) else None
    if (found := attribute_reader(value, names)) is not None:
        return found
    if "__wrapped__" in getattr(value, "__dict__", ()):  # of functools.lru_cache, for example
        return Reader(lambda wrapper: (wrapper.__wrapped__,), (".__wrapped__",))
    return None
