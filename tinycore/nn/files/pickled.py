"""A pickle as data: a machine for its opcodes that can call nothing but what a table lists.

Floor 6. Imports `errors` and NumPy.
A pickle is a program for a stack machine (PEP 307, PEP 3154). A name in it becomes an `Opaque`, a
new one each time; a call of one makes another, unless the table knows the name. So a file changes
nothing but what was made for it. `pickletools` reads opcodes and their arguments. Opcodes that make
much of little (copies of containers, keys that collide) are paid from the budget of the load.
"""

from __future__ import annotations

import datetime
import pathlib
import pickletools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import IO, Any, Final

import numpy

from tinycore.errors import FileFormatError, UnknownNameError
from tinycore.nn.files.source import Budget, shown, verify_shape

__all__ = ["COMMON_CALLS", "Call", "Opaque", "PickleMachine"]


class Opaque:
    """An object of a file that is not loaded: its name there, and the data it was made of.

    `arguments` are those it was made with, `state` is what it was set to, usually a dict of its
    attributes; `items` and `entries` are what was appended and stored by key.
    """

    __slots__ = ("arguments", "entries", "items", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None
        self.items: list[Any] | tuple[()] = ()
        self.entries: list[tuple[Any, Any]] | tuple[()] = ()

    def __repr__(self) -> str:
        return f"<{self.name}, not loaded>"

    def __getattr__(self, name: str) -> Any:
        if name in Opaque.__slots__:  # not set yet, in a copy
            raise AttributeError(name)
        raise UnknownNameError(
            f"{self.name} is not loaded, as that could run any code, so it has no {name!r}. What "
            "the file says of it is in .arguments, .state, .items and .entries"
        )


class Unbuilt(Opaque):
    """An object whose state comes later, which makes it another object everywhere in the file."""

    __slots__ = ("build", "places")

    def __init__(self, name: str, arguments: tuple[Any, ...], build: Callable[[Any], Any]) -> None:
        super().__init__(name, arguments)
        self.build = build
        self.places: list[int] = []
        """Its numbers in the memo of the machine."""


Call = Callable[..., Any]
"""Makes an object: of the machine, and of the arguments in the file."""

LITERAL_OPCODES: Final = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 "
    "BYTEARRAY8".split()
)
"""Opcodes that push their argument."""
CONSTANT_OPCODES: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
OBJECT_BYTES: Final = {
    "EMPTY_SET": 216, "EMPTY_DICT": 64, "EMPTY_LIST": 56, "MARK": 56, "GLOBAL": 96,
    "STACK_GLOBAL": 96, "NEWOBJ": 96,
}  # fmt: skip
"""Memory of what opcodes of few bytes make; of others it is near to that in the file."""
OTHER_BYTES: Final = 16
RENAMED: Final = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules of Python 2, whose names the pickles of older protocols have."""
OLD_NUMPY: Final = "numpy.core."
LEAST_KEY, GREATEST_KEY = -(2**61) + 2, 2**61 - 2
"""Between these, integers hash to themselves; beyond, a file could make any number collide."""
MOST_ALIKE: Final = 64
"""Keys of one container that may have one hash."""
MOST_NESTED_KEYS: Final = 8
SPARSE_BYTES: Final = 128
"""Memory of an entry of the memo that is out of order."""
MOST_NUMBERED: Final = 1 << 32


class PickleMachine:
    """Reads a pickle. `calls` makes objects by name, `constants` are others that names stand for.

    `persistent` gives the object of a persistent id. Raises FileFormatError for what is refused,
    and what `reading` translates for malformed content.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        constants: Mapping[str, Any],
        persistent: Callable[[Any], Any],
        budget: Budget,
    ) -> None:
        self.calls, self.constants, self.persistent = calls, constants, persistent
        self.budget = budget
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: list[Any] = []
        self.sparse: dict[int, Any] = {}
        self.alike: dict[tuple[int, int], int] = {}

    def load(self, file: IO[bytes]) -> Any:
        """The object of the next pickle in a file, which then stands behind it."""
        self.stack, self.marked, self.memo, self.sparse = [], [], [], {}
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            self.budget.spend("bytes of objects", OBJECT_BYTES.get(name, OTHER_BYTES))
            if name in LITERAL_OPCODES:
                self.stack.append(argument)
            elif name in CONSTANT_OPCODES:
                self.stack.append(CONSTANT_OPCODES[name])
            else:
                OPCODES[name](self, argument)
        return self.stack.pop()

    def push(self, item: Any) -> None:
        """Put an item on the stack as it is now."""
        self.stack.append(item)

    def pop_marked(self) -> list[Any]:
        """The items above the last mark, taken off the stack."""
        items, self.stack = self.stack, self.marked.pop()
        return items

    def pop_tuple(self, count: int) -> None:
        """Make a tuple of the topmost items."""
        items = self.stack[-count:]
        if len(items) != count:
            raise FileFormatError("the pickle takes more from its stack than there is")
        self.stack[-count:] = [tuple(items)]

    # --- names and calls

    def push_name(self, module: object, name: object) -> None:
        """Push what a name stands for."""
        if not (isinstance(module, str) and isinstance(name, str)):
            raise FileFormatError(f"the pickle names {shown(module)}, {shown(name)}: no text")
        module = RENAMED.get(module, module)
        if module.startswith(OLD_NUMPY):
            module = f"numpy._core.{module.removeprefix(OLD_NUMPY)}"
        known = f"{module}.{name}"
        self.stack.append(self.constants[known] if known in self.constants else Opaque(known))

    def call(self, function: Any, arguments: Any) -> Any:
        """The object that a call makes."""
        if not isinstance(function, Opaque) or not isinstance(arguments, tuple):
            raise FileFormatError(f"the pickle calls {shown(function)} with {shown(arguments)}")
        made = self.calls.get(function.name)
        if made is None or function.arguments:
            return Opaque(function.name, arguments)
        return made(self, *arguments)

    def build(self, state: Any) -> None:
        """Set the state of the topmost object."""
        target = self.stack[-1]
        if isinstance(target, Unbuilt):
            self.stack[-1] = built = target.build(state)
            for place in target.places:
                self.memo[place] = built
        elif isinstance(target, Opaque):
            target.state = state
        elif isinstance(target, SimpleNamespace):
            self.fill_namespace(target, state)
        elif type(target) not in CONTAINERS:  # of which torch sets attributes, as `_metadata`
            raise FileFormatError(f"the pickle sets the state of {shown(target)}")

    def fill_namespace(self, target: SimpleNamespace, state: Any) -> None:
        """Set the attributes of a namespace. Raises FileFormatError for special names."""
        names = list(state) if isinstance(state, dict) else [None]
        if wrong := [n for n in names if not isinstance(n, str) or n.startswith("__")]:
            raise FileFormatError(f"a namespace has an attribute {shown(wrong[0])}")
        self.budget.spend("copied items", len(names))
        vars(target).update(state)

    # --- containers

    def append(self, items: Iterable[Any]) -> None:
        """Append to the topmost object."""
        target = self.stack[-1]
        if isinstance(target, Opaque):
            target.items = target.items or []
            target.items.extend(items)
        elif type(target) in (list, deque):
            target.extend(items)
        else:
            raise FileFormatError(f"the pickle appends to {shown(target)}")

    def store(self, pairs: list[Any]) -> None:
        """Store keys and values, in turn, in the topmost object."""
        target = self.stack[-1]
        if len(pairs) % 2:
            raise FileFormatError("the pickle stores a key without a value")
        both = zip(pairs[::2], pairs[1::2], strict=True)
        if isinstance(target, Opaque):
            target.entries = target.entries or []
            target.entries.extend(both)
        elif type(target) in MAPPINGS:
            self.fill(target, both)
        else:
            raise FileFormatError(f"the pickle stores in {shown(target)}")

    def fill(self, target: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
        """Store pairs in a dict, and return it. Raises FileFormatError for keys that collide."""
        for key, value in pairs:
            self.verify_key(target, key)
            target[key] = value
        return target

    def add(self, target: Any, items: Iterable[Any]) -> Any:
        """Add items to a set, and return it. Raises FileFormatError for items that collide."""
        if type(target) is not set:
            raise FileFormatError(f"the pickle adds to {shown(target)}")
        for item in items:
            self.verify_key(target, item)
            target.add(item)
        return target

    def verify_key(self, container: Any, key: Any) -> None:
        """Raises FileFormatError for a key that has no place in a dict, or too many like it."""
        if type(key) is str:
            return
        self.verify_hashable(key)
        if type(key) is int or key in container:
            return
        place = id(container), hash(key)
        self.alike[place] = self.alike.get(place, 0) + 1
        if self.alike[place] > MOST_ALIKE:
            raise FileFormatError(f"more than {MOST_ALIKE} keys of a container collide")

    def verify_hashable(self, key: Any, depth: int = 0) -> None:
        """Raises FileFormatError for what may not be a key, or is too much work to hash."""
        kind = type(key)
        if kind is int and not LEAST_KEY < key < GREATEST_KEY:
            raise FileFormatError(f"a key is {shown(key)}; integers up to 2**61 may be keys")
        if kind in (tuple, frozenset) and depth < MOST_NESTED_KEYS:
            self.budget.spend("copied items", len(key) + 1)
            for item in key:
                self.verify_hashable(item, depth + 1)
        elif kind not in KEYS and not isinstance(key, (Opaque, numpy.generic)):
            raise FileFormatError(f"a key of a container is a {kind.__name__}, {depth} deep")

    # --- memo

    def note(self, number: int) -> None:
        """Give the topmost object a number."""
        top = self.stack[-1]
        if number == len(self.memo):
            self.memo.append(top)
        elif 0 <= number < len(self.memo):
            self.memo[number] = top
        elif 0 <= number < MOST_NUMBERED:
            self.budget.spend("bytes of objects", SPARSE_BYTES)
            self.sparse[number] = top
        else:
            raise FileFormatError(f"the pickle numbers an object {shown(number)}")
        if isinstance(top, Unbuilt) and number < len(self.memo):
            top.places.append(number)

    def noted(self, number: int) -> Any:
        """The object of a number."""
        if 0 <= number < len(self.memo):
            return self.memo[number]
        return self.sparse[number]


def _global(m: PickleMachine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    m.push_name(module, name)


def _stack_global(m: PickleMachine, _: Any) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.push_name(module, name)


def _mark(m: PickleMachine, _: Any) -> None:
    m.marked.append(m.stack)
    m.stack = []


def _pop(m: PickleMachine, _: Any) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_marked()


def _reduce(m: PickleMachine, _: Any) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    m.push(m.call(function, arguments))


def _new_with_names(m: PickleMachine, _: Any) -> None:
    names, arguments, kind = m.stack.pop(), m.stack.pop(), m.stack.pop()
    if not isinstance(kind, Opaque):
        raise FileFormatError(f"the pickle makes an object of {shown(kind)}")
    m.push(Opaque(kind.name, (arguments, names)))


def _obj(m: PickleMachine, _: Any) -> None:
    kind, *arguments = m.pop_marked()
    m.push(m.call(kind, tuple(arguments)))


def _inst(m: PickleMachine, argument: str) -> None:
    arguments = tuple(m.pop_marked())
    _global(m, argument)
    m.push(m.call(m.stack.pop(), arguments))


def _dict(m: PickleMachine, _: Any) -> None:
    pairs = m.pop_marked()
    m.push({})
    m.store(pairs)


def _build(m: PickleMachine, _: Any) -> None:
    m.build(m.stack.pop())


def _set_item(m: PickleMachine, _: Any) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.store([key, value])


OPCODES: Final[dict[str, Callable[[PickleMachine, Any], None]]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "STOP": lambda m, _: None,
    "MARK": _mark,
    "POP": _pop,
    "POP_MARK": lambda m, _: (m.pop_marked(), None)[1],
    "DUP": lambda m, _: m.push(m.stack[-1]),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_SET": lambda m, _: m.push(set()),
    "LIST": lambda m, _: m.push(m.pop_marked()),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_marked())),
    "TUPLE1": lambda m, _: m.pop_tuple(1),
    "TUPLE2": lambda m, _: m.pop_tuple(2),
    "TUPLE3": lambda m, _: m.pop_tuple(3),
    "DICT": _dict,
    "FROZENSET": lambda m, _: m.push(frozenset(m.add(set(), m.pop_marked()))),
    "APPEND": lambda m, _: m.append([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append(m.pop_marked()),
    "SETITEM": _set_item,
    "SETITEMS": lambda m, _: m.store(m.pop_marked()),
    "ADDITEMS": lambda m, _: (m.add(m.stack[-1], m.pop_marked()), None)[1],
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_with_names,
    "OBJ": _obj,
    "INST": _inst,
    "BUILD": _build,
    "PUT": lambda m, number: m.note(number),
    "BINPUT": lambda m, number: m.note(number),
    "LONG_BINPUT": lambda m, number: m.note(number),
    "MEMOIZE": lambda m, _: m.note(len(m.memo)),
    "GET": lambda m, number: m.push(m.noted(number)),
    "BINGET": lambda m, number: m.push(m.noted(number)),
    "LONG_BINGET": lambda m, number: m.push(m.noted(number)),
    "BINPERSID": lambda m, _: m.push(m.persistent(m.stack.pop())),
}
"""The action of each opcode. Those that are absent name what lies outside of the file."""

CONTAINERS: Final = frozenset({dict, Counter, defaultdict, list, set, deque})
MAPPINGS: Final = frozenset({dict, Counter, defaultdict})
KEYS: Final = frozenset({str, bytes, int, float, complex, bool, type(None)})


# --- objects that are read, by the names that pickles have for them


def pay_for_copy(m: PickleMachine, *items: Any) -> None:
    """Pay for a copy of items."""
    m.budget.spend("copied items", sum(len(item) for item in items if hasattr(item, "__len__")))


def mapping(m: PickleMachine, items: Any = ()) -> dict[Any, Any]:
    """`collections.OrderedDict`, which is a dict."""
    pay_for_copy(m, items)
    pairs = items.items() if isinstance(items, dict) else [(key, value) for key, value in items]
    made: dict[Any, Any] = m.fill({}, pairs)
    return made


def counter(m: PickleMachine, items: Any = ()) -> Counter[Any]:
    """`collections.Counter`."""
    made: Counter[Any] = m.fill(Counter(), mapping(m, items).items())
    return made


def defaults(m: PickleMachine, factory: Any = None) -> Any:
    """`collections.defaultdict`, with the factory if it is one of the built-in types."""
    name = factory.name if isinstance(factory, Opaque) and not factory.arguments else None
    return defaultdict(FACTORIES.get(name or ""))


FACTORIES: Final[dict[str, Callable[[], Any]]] = {
    f"builtins.{kind.__name__}": kind for kind in (list, dict, set, int, float, str, bool, tuple)
}


def a_set(m: PickleMachine, items: Any = ()) -> set[Any]:
    """`set`."""
    pay_for_copy(m, items)
    made: set[Any] = m.add(set(), items)
    return made


def queue(m: PickleMachine, items: Any = (), length: int | None = None) -> deque[Any]:
    """`collections.deque`."""
    pay_for_copy(m, items)
    return deque(items, length)


def encoded(m: PickleMachine, text: str, encoding: str = "latin1") -> bytes:
    """`bytes`, as pickles of protocol 2 spell them."""
    if encoding not in ("latin1", "latin-1"):
        raise FileFormatError(f"bytes are spelled in {shown(encoding)}")
    m.budget.spend("bytes of objects", len(text))
    return text.encode("latin1")


def mutable_bytes(m: PickleMachine, content: str | bytes = b"", encoding: str = "") -> bytearray:
    """`bytearray`."""
    m.budget.spend("bytes of objects", len(content))
    return bytearray(encoded(m, content, encoding) if isinstance(content, str) else content)


def empty_bytes(m: PickleMachine) -> bytes:
    """`bytes()`."""
    return b""


def of_plain_types(kind: Callable[..., Any], accepts: tuple[type, ...], short: int = 64) -> Call:
    """A constructor of an immutable object, from a few arguments of plain types."""

    def make(m: PickleMachine, *arguments: Any) -> Any:
        for argument in arguments:
            is_long = isinstance(argument, (str, bytes)) and len(argument) > short
            if type(argument) not in accepts or is_long or len(arguments) > short:
                raise FileFormatError(f"{kind.__name__} is made of {shown(arguments)}")
            m.budget.spend("copied items", len(argument) if isinstance(argument, str) else 1)
        return kind(*arguments)

    return make


def namespace(m: PickleMachine) -> SimpleNamespace:
    """`argparse.Namespace` and `types.SimpleNamespace`."""
    return SimpleNamespace()


NUMBER_CODE: Final = re.compile(r"[biufc](1|2|4|8|16)")


def number_type(m: PickleMachine, code: Any, *rest: Any) -> Opaque:
    """`numpy.dtype` of numbers; its state has the order of bytes."""
    name = f"numpy.dtype of {shown(code)}"

    def build(state: Any) -> Any:
        if not isinstance(code, str) or not NUMBER_CODE.fullmatch(code):
            return Opaque(name, (code,))
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ("<", ">", "|", "="):
            raise FileFormatError(f"the order of bytes of a NumPy array is {shown(order)}")
        return numpy.dtype(code).newbyteorder(order)

    return Unbuilt(name, (code,), build)


def number(m: PickleMachine, dtype: Any, content: Any = b"") -> Any:
    """`numpy.float64` and its like."""
    if not isinstance(dtype, numpy.dtype) or not isinstance(content, bytes):
        return Opaque("a NumPy scalar", (dtype, content))
    if len(content) != dtype.itemsize:
        raise FileFormatError(f"a NumPy scalar of {dtype} has {len(content)} bytes")
    return numpy.frombuffer(content, dtype)[0]


def numpy_array(m: PickleMachine, kind: Any, *rest: Any) -> Opaque:
    """`numpy.ndarray`, whose state has the shape and the elements."""
    name = kind.name if isinstance(kind, Opaque) else "an array"

    def build(state: Any) -> Any:
        if name != "numpy.ndarray" or not isinstance(state, tuple) or len(state) != 5:
            made = Opaque(name, (kind, *rest))
            made.state = state
            return made
        _, shape, dtype, is_fortran, content = state
        if not isinstance(dtype, numpy.dtype) or not isinstance(content, bytes):
            return Opaque("a NumPy array of objects", (shape, dtype, content))
        return array_of(m, shape, dtype, bool(is_fortran), content)

    return Unbuilt(name, (kind, *rest), build)


def array_of(
    m: PickleMachine, shape: Any, dtype: numpy.dtype[Any], is_fortran: bool, content: bytes
) -> Any:
    """A NumPy array of its own memory. Raises FileFormatError for other than its bytes."""
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise FileFormatError(f"a NumPy array has the shape {shown(shape)}")
    verify_shape(shape, dtype.itemsize, "a NumPy array")
    flat = numpy.frombuffer(content, numpy.uint8)
    m.budget.spend("bytes of tensors", flat.size)
    return flat.copy().view(dtype).reshape(shape, order="F" if is_fortran else "C")


COMMON_CALLS: Final[dict[str, Call]] = {
    "collections.OrderedDict": mapping,
    "collections.Counter": counter,
    "collections.defaultdict": defaults,
    "collections.deque": queue,
    "builtins.set": a_set,
    "builtins.frozenset": lambda m, items=(): frozenset(a_set(m, items)),
    "builtins.bytes": empty_bytes,
    "builtins.bytearray": mutable_bytes,
    "builtins.complex": of_plain_types(complex, (int, float)),
    "builtins.slice": of_plain_types(slice, (int, type(None))),
    "builtins.range": of_plain_types(range, (int,)),
    "builtins.xrange": of_plain_types(range, (int,)),
    "_codecs.encode": encoded,
    "argparse.Namespace": namespace,
    "types.SimpleNamespace": namespace,
    "datetime.datetime": of_plain_types(datetime.datetime, (bytes, int)),
    "datetime.date": of_plain_types(datetime.date, (bytes, int)),
    "datetime.timedelta": of_plain_types(datetime.timedelta, (int,)),
    "pathlib.PosixPath": of_plain_types(pathlib.PurePosixPath, (str,), 4096),
    "pathlib.PurePosixPath": of_plain_types(pathlib.PurePosixPath, (str,), 4096),
    "pathlib.WindowsPath": of_plain_types(pathlib.PureWindowsPath, (str,), 4096),
    "pathlib.PureWindowsPath": of_plain_types(pathlib.PureWindowsPath, (str,), 4096),
    "numpy.dtype": number_type,
    "numpy._core.multiarray.scalar": number,
    "numpy._core.multiarray._reconstruct": numpy_array,
}
"""Objects of Python and NumPy that are data alone."""
