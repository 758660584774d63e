"""The environment of a captured function, recorded at the capture and guarded at each replay.

Floor 5. Reachable from a function are its closure, defaults and decorators, the globals and
attributes that its code names, their classes, containers and functions, and so on. Everything that
may affect its result is a list of boxes: each is found among the values of an earlier box and
records its own values. See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, cast

from tinycore._deferred import NumpyArray, NumpyScalar
from tinycore.tensor.guard_code import (
    Source,
    attributes_source,
    class_source,
    compiled_guard,
    dict_source,
    entries_source,
    function_source,
    items_source,
)
from tinycore.tensor.guard_keys import (
    ATOM,
    ATOMS,
    CONTENT,
    FORM,
    OBJECT,
    PLAIN_TYPES,
    Role,
    constant_key,
)
from tinycore.tensor.names import LAYERS, Names
from tinycore.tensor.tensor import Tensor
from tinycore.uop.size import Size

MOST_ITEMS: Final = 1024
"""Items of a container up to which each is compared; of longer ones the length is."""
MOST_COMPARED_BYTES: Final = 1 << 12
"""Bytes of an array up to which they are compared."""
MOST_BOXES: Final = 4096
"""Boxes that are looked into."""

Values = tuple[Any, ...]


class Box(NamedTuple):
    """A container: where it is found, how it is read, and what its values were."""

    parent: int
    place: int
    kind: type
    scope: Callable[[Any], Any] | None
    read: Callable[[Any], Values]
    ids: tuple[int, ...]
    roles: tuple[Role, ...]
    store: Callable[[Any, int, Any], None] | None
    path: str
    labels: tuple[str, ...]
    source: Source | None

    def values(self, container: Any) -> Values:
        """Read the current values of a container."""
        return self.read(container if self.scope is None else self.scope(container))

    def holds(self, values: Values) -> bool:
        """True if values have the same meaning as before; most are the same objects."""
        return len(values) == len(self.ids) and all(
            id(value) == number or meets(role, value)
            for value, number, role in zip(values, self.ids, self.roles, strict=True)
        )

    def where(self, place: int) -> str:
        """A value's place in words."""
        label = self.labels[place]
        return self.path if label in ("", ".__wrapped__") else join_path(self.path, label)


def meets(role: Role, value: Any) -> bool:
    """True if a value is what its role expects."""
    if role.means == ATOM:
        return alike(role.of, value)
    if role.means == CONTENT:
        return type(value) is role.of
    return role.means == FORM and form_of_value(value) == role.of


def alike(one: Any, other: Any) -> bool:
    """True if two plain values are of one class and equal, floats bit by bit."""
    if type(one) is not type(other) or not is_plain(one):
        return False
    if isinstance(one, types.CodeType):
        return bool(one == other)
    return bool(constant_key(one) == constant_key(other))


def is_plain(value: Any) -> bool:
    """True if a value is guarded by equality."""
    kind = type(value)
    if kind in ATOMS:
        return kind is not type
    if isinstance(value, type):
        return False
    return isinstance(value, (*PLAIN_TYPES, float, NumpyScalar, Size, types.CodeType))


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


# --- how containers are read


class Reader(NamedTuple):
    """Access to a container: its values, their labels, and how one is put in its place.

    It is quick to read where both functions are Python's own.
    """

    read: Callable[[Any], Values]
    labels: tuple[str, ...]
    store: Callable[[Any, int, Any], None] | None = None
    scope: Callable[[Any], Any] | None = None
    """Maps a container to what is read in its place, such as a function to its globals."""
    source: Source | None = None
    """The same reads as text, where they give the same objects each time."""


def read_whole(box: Any) -> Any:
    """Return the container itself."""
    return box


def read_nothing(_: Any) -> Values:
    """Return no values."""
    return ()


def picked(names: tuple[str, ...], present: Mapping[str, Any]) -> Callable[[Any], Values]:
    """A function that reads some names of a dict; None for what is not there."""
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
    if not guarded:
        return EMPTY_READER
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


def container_reader(value: Any) -> Reader | None:
    """Return the reader of a built-in container; None for anything else."""
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
    bytearray: Reader(
        lambda b: (bytes(b),) if len(b) <= MOST_COMPARED_BYTES else (len(b),), ("content",)
    ),
}
"""Objects of Python with others inside."""
NAMESPACES: Final = (types.SimpleNamespace,)
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


# --- the walk


def has_more(function: types.FunctionType) -> bool:
    """True if a function is more than its code and the globals that the code names."""
    return bool(
        function.__closure__ or function.__defaults__ or function.__kwdefaults__ or vars(function)
    )


class Seen(NamedTuple):
    """A box while it is made, with the container and its values."""

    box: Box
    container: Any
    values: Values


class Walk:
    """All boxes from some roots on."""

    def __init__(self, roots: Values, labels: tuple[str, ...], names: Names) -> None:
        self.roots, self.labels, self.names = roots, labels, names
        self.more: Values = ()
        """Other places where looking begins: modules that code imports, the environment."""
        self.free: Mapping[str, Role] = {}
        self.seen: list[Seen] = []
        self.met: set[int] = set()
        self.scopes: dict[int, tuple[int, int, Any]] = {}
        self.referred: list[Any] = []
        self.hidden: list[str] = []

    def go(self, free: Mapping[str, Role] | None = None) -> Walk:
        """Walk, again wherever code has been met that names more."""
        self.free = free or {}
        count = -1
        while count != len(self.names.codes):
            count = len(self.names.codes)
            self.seen, self.met, self.scopes = [], set(), {}
            self.referred, self.hidden = [], []
            queue: deque[tuple[int, int, Any, str, Reader]] = deque()
            self.more = self.names.imported()
            more = tuple([getattr(value, "__name__", "os.environ") for value in self.more])
            self.enter(0, (*self.roots, *self.more), (*self.labels, *more), "", queue)
            while queue and len(self.seen) < MOST_BOXES:
                self.look(*queue.popleft(), queue)
        return self

    def look(
        self, parent: int, place: int, value: Any, path: str, reader: Reader, queue: Any
    ) -> None:
        """Note a container, and what is in it for later."""
        values = reader.read(value if reader.scope is None else reader.scope(value))
        number = len(self.seen) + 1
        roles = self.enter(number, values, reader.labels, path, queue)
        box = Box(
            parent,
            place,
            type(value),
            reader.scope,
            reader.read,
            tuple(map(id, values)),
            roles,
            reader.store,
            path,
            reader.labels,
            reader.source,
        )
        self.seen.append(Seen(box, value, values))

    def enter(
        self, number: int, values: Values, labels: tuple[str, ...], path: str, queue: Any
    ) -> tuple[Role, ...]:
        """Return the roles of a box's values, and queue the containers among them."""
        roles = []
        for place, (value, label) in enumerate(zip(values, labels, strict=True)):
            where = path if label in ("", ".__wrapped__") else join_path(path, label)
            role, reader = self.role(value, where)
            roles.append(role)
            if reader is not None:
                queue.append((number, place, value, where, reader))
                self.enter_class(number, place, value, where, queue)
            if isinstance(value, types.FunctionType):
                self.follow(number, place, value, where, queue)
        return tuple(roles)

    def enter_class(self, number: int, place: int, value: Any, path: str, queue: Any) -> None:
        """Queue an object's class, once, to be read through that object."""
        kind = type(value)
        if not self.names.opens(kind.__module__) or id(kind) in self.met:
            return
        self.met.add(id(kind))
        reader = class_reader(kind, self.names, of_object=True)
        queue.append((number, place, value, f"class {kind.__name__}", reader))

    def role(self, value: Any, path: str) -> tuple[Role, Reader | None]:
        """Return the role of a value, and its reader if its content is guarded too."""
        if path in self.free:
            return self.free[path], None
        if is_plain(value):
            return Role(ATOM, value), None
        reader = reader_of(value, self.names)
        if reader is None:
            return self.object(value), None
        if (
            isinstance(value, NumpyArray)
            and value.nbytes > MOST_COMPARED_BYTES
            and value.flags.writeable
        ):
            self.hidden.append(path)
        if type(value) in WRAPPERS or container_reader(value) or isinstance(value, NumpyArray):
            return Role(CONTENT, type(value)), reader
        is_known = id(value) in self.met
        self.met.add(id(value))
        if isinstance(value, types.FunctionType) and path and not has_more(value):
            return self.object(value), None
        if isinstance(value, types.FunctionType) and not is_known:
            return Role(CONTENT, type(value)), reader
        if type(value).__weakrefoffset__ == 0:  # it must not be kept alive to be known again
            return Role(OBJECT if is_known else CONTENT, type(value)), None if is_known else reader
        return self.object(value), None if is_known else reader

    def object(self, value: Any) -> Role:
        """Return the role of a value that must be the same object."""
        self.referred.append(value)
        return Role(OBJECT)

    def follow(self, number: int, place: int, function: Any, path: str, queue: Any) -> None:
        """Queue the globals that a function's code names."""
        scope = function.__globals__
        if not self.names.opens(scope.get("__name__", "")):
            return
        self.names.add(function)
        if id(scope) not in self.scopes and (guarded := self.names.globals_of(scope)):
            self.scopes[id(scope)] = number, place, function
            root = self.roots and getattr(self.roots[0], "__globals__", None)
            home = "" if not path or root is scope else f"module {scope.get('__name__')}"
            queue.append((number, place, function, home, global_reader(function, guarded)))

    # --- what came of it

    def guard(self) -> Guard:
        """Return the guard that a replay checks."""
        return Guard(tuple([seen.box for seen in self.seen]), self.referred, self.more)

    def changes(self) -> list[Change]:
        """Return the values that changed in the containers that were read."""
        found: list[Change] = []
        for number, (box, container, values) in enumerate(self.seen):
            try:
                now = box.values(container)
            except Exception:
                now = ()
            if len(now) != len(values):
                found.append(Change(number, -1, box.path, values, now))
                continue
            for place, (one, other) in enumerate(zip(values, now, strict=True)):
                if one is not other and not alike(one, other) and not is_same_nest(one, other):
                    can = box.store is not None and box.labels[place] not in FIXED
                    found.append(Change(number, place, box.where(place), one, other, can))
        return found


class Change(NamedTuple):
    """A value that is another one now; place -1 for a container that has grown or shrunk."""

    box: int
    place: int
    path: str
    before: Any
    now: Any
    can_be_stored: bool = False
    """True if another value can be put there, too."""


FIXED: Final = frozenset({"code", "default", "key", "[...]", "base"})
"""Labels of values that are read of containers and cannot be stored there."""


def is_same_nest(one: Any, other: Any) -> bool:
    """True if containers hold the same objects and equal plain values."""
    if one is other or alike(one, other):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, types.MethodType):
        return bool(one == other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same_nest(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same_nest, one, other))
    return False


class Guard:
    """Check that a function's environment is as it was when it was captured."""

    def __init__(self, boxes: tuple[Box, ...], referred: list[Any], more: Values) -> None:
        self.boxes, self.more = boxes, more
        self.rows = [
            (box.parent, box.place, box.kind, box.scope, box.read, [*box.ids], box) for box in boxes
        ]
        """Fields of each box that `find` reads, in one tuple."""
        self.is_possible = True
        """True if all objects that must be found again are there."""
        self.is_same: Callable[[Values], bool] | None = None
        """A quick `find` from the first replay on (`guard_code.py`). Its False decides nothing."""
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
        """True if nothing has changed. For use where `is_same` says no, or is not there yet."""
        if self.find(roots) is None:
            return False
        if self.is_same is None:
            self.is_same = compiled_guard(self.boxes)
        return True

    def find(self, roots: Values) -> list[Values] | None:
        """The values of all boxes, those of the roots first; None where something has changed."""
        if not self.is_possible:
            return None
        found: list[Values] = [(*roots, *self.more) if self.more else roots]
        keep = found.append
        try:
            for parent, place, kind, scope, read, ids, box in self.rows:
                container = found[parent][place]
                if type(container) is not kind:
                    return None
                values = read(container if scope is None else scope(container))
                if [*map(id, values)] != ids and not box.holds(values):
                    return None
                keep(values)
        except (AttributeError, KeyError, IndexError, RuntimeError):
            return None
        return found

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


class Environment:
    """The environment of a function or method: the objects that its code can reach."""

    def __init__(
        self, function: Callable[..., Any], owner: Callable[[], Any] | None = None
    ) -> None:
        self.function, self.owner = function, owner
        self.fixed_roots = (function,) if owner is None else None
        """The roots of a function without an owner and without objects as arguments."""
        inner = unwrapped(function)
        self.names = Names(getattr(inner, "__module__", None) or "")

    def roots(self, objects: list[Any]) -> Values:
        """Return the roots of a walk: the function, its owner, and objects among the arguments."""
        if self.owner is None:
            return (self.function, *objects) if objects else (self.function,)
        return (self.function, self.owner(), *objects)

    def walk(self, objects: list[Any], free: Mapping[str, Role] | None = None) -> Walk:
        """Walk the environment as it is now."""
        first = "" if isinstance(self.function, CALLED) else "self"
        labels = [first] if self.owner is None else [first, "self"]
        labels += [f"argument object {number}" for number in range(len(objects))]
        return Walk(self.roots(objects), tuple(labels), self.names).go(free)


CALLED: Final = (types.FunctionType, types.MethodType, functools.partial)
"""Callables without attributes of their own that matter."""


def unwrapped(function: Any) -> Any:
    """The innermost function of decorators, partials, methods and objects that are called."""
    for _ in range(64):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif (inner := getattr(function, "__wrapped__", None)) is not None:
            function = inner
        else:
            break
    return function
