"""What a captured function is given: tensors, numbers of Variables, and Python values.

Floor 5. Arguments are taken apart into leaves. Tensors are realized, and what they share with each
other is told. Everything else that decides what the function does becomes part of a key, and each
key has a capture of its own: Python values, how containers are nested, settings, and what the
function finds around it, as far as that can be seen (closure, globals, attributes of objects).
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any, Final

from tinycore._deferred import NumpyArray, NumpyScalar
from tinycore.config import settings
from tinycore.device.buffer import Buffer
from tinycore.dtype import DType, dtypes
from tinycore.errors import JitError
from tinycore.schedule.order import buffer_of
from tinycore.tensor.graph import base_of, is_constant
from tinycore.tensor.runtime import runtime
from tinycore.tensor.tensor import Tensor
from tinycore.uop.bindings import numbers_of, sizes_below, with_sizes
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op
from tinycore.uop.size import Size, Variable

GUARDED: Final = ("TRAINING", "DEFAULT_FLOAT", "DEFAULT_INT")
"""Settings that decide what a function launches."""

PLAIN: Final = (types.NoneType, bool, int, complex, str, bytes, DType, enum.Enum, type, Variable)
"""Values that are equal when they say the same; floats are told apart by their bits."""

SHOWN: Final = MOVEMENT | {Op.BUFFER, Op.MULTI, Op.DETACH, Op.DEVICE, Op.UNIQUE}
"""What a tensor that is memory, or parts of memory, consists of."""

Leaf = tuple[str, Any]


# --- containers


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass instance that is walked into."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Variable))


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, with what leads there; None for what is no container."""
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", item) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if is_record(value):
        fields = dataclasses.fields(value)
        return [(f".{f.name}", getattr(value, f.name)) for f in fields if hasattr(value, f.name)]
    return None


def leaves(value: Any, path: str) -> Iterator[Leaf]:
    """Everything inside nested containers with where it stands; of containers, their classes."""
    inner = parts_of(value)
    if inner is None:
        yield path, value
        return
    yield path, type(value)
    for step, item in inner:
        yield from leaves(item, path + step)


def rebuilt(value: Any, kind: type, new: Callable[[Any], Any]) -> Any:
    """The same nest of containers with every instance of a class replaced."""
    if isinstance(value, kind):
        return new(value)
    if isinstance(value, tuple):
        items = [rebuilt(item, kind, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        result = copy.copy(value)
        result[:] = [rebuilt(item, kind, new) for item in value]
        return result
    if isinstance(value, dict):
        found = copy.copy(value)
        found.update({key: rebuilt(item, kind, new) for key, item in value.items()})
        return found
    if is_record(value):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                item = rebuilt(getattr(value, field.name), kind, new)
                object.__setattr__(record, field.name, item)
        return record
    return value


# --- keys


class Same:
    """An object itself, as part of a key, which does not keep it alive."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        try:
            bound = isinstance(value, types.MethodType)
            self.reference: Callable[[], Any] = (weakref.WeakMethod if bound else weakref.ref)(
                value
            )
        except TypeError:  # some objects take no weak references
            self.reference = lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self.number != other.number:
            return False
        mine, theirs = self.reference(), other.reference()
        if isinstance(mine, types.MethodType):
            return bool(mine == theirs)
        return mine is not None and mine is theirs

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


def constant(value: Any) -> Hashable:
    """A Python value as part of a key."""
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, NumpyScalar):
        return value.dtype.str, value.tobytes()
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, Size):
        return Size, value.free()
    return Same(value), attributes_of(value)


def attributes_of(value: Any) -> tuple[Hashable, ...]:
    """The plain values and the tensors that an object has as attributes; tensors as themselves."""
    if isinstance(value, (types.ModuleType, types.FunctionType, type, Tensor)):
        return ()
    found = getattr(value, "__dict__", None)
    if not isinstance(found, dict):
        return ()
    known = (*PLAIN, float, NumpyScalar)
    return tuple(
        [
            (name, constant(item) if isinstance(item, known) else Same(item))
            for name, item in list(found.items())
            if isinstance(item, (*known, Tensor))
        ]
    )


class Surroundings:
    """What a function finds in its closure, among the globals that it names, and in its object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        owner = getattr(function, "__self__", None)
        self.watch(getattr(function, "__func__", function), lambda: owner)

    def watch(self, function: Callable[..., Any], owner: Callable[[], Any]) -> None:
        """Look at this function, and at the object it is a method of (None for a function)."""
        code = getattr(function, "__code__", None)
        names = [] if code is None else names_in(code)
        self.scope: dict[str, Any] = getattr(function, "__globals__", {})
        self.names = [n for n in names if n in self.scope]
        cells = getattr(function, "__closure__", None) or ()
        self.cells = [] if code is None else list(zip(code.co_freevars, cells, strict=True))
        self.owner = owner

    def key(self) -> tuple[tuple[str, Hashable], ...]:
        """Everything found, by name."""
        found = [(f"closure variable {n}", v) for n, v in self.contents()]
        found += [(f"global {n}", self.scope.get(n)) for n in self.names]
        if (owner := self.owner()) is not None:
            found.append(("self", owner))
        return tuple([(path, constant(value)) for path, value in found if is_told(value)])

    def contents(self) -> Iterator[tuple[str, Any]]:
        """The variables of the closure that have a value."""
        for name, cell in self.cells:
            try:
                yield name, cell.cell_contents
            except ValueError:  # not assigned yet
                continue


def names_in(code: types.CodeType) -> list[str]:
    """The names that a function or one inside of it looks up."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return list(dict.fromkeys([*code.co_names, *(n for c in inner for n in names_in(c))]))


def is_told(value: Any) -> bool:
    """Whether a change of a value can be seen: not inside of containers, nor of code."""
    code = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    return not isinstance(value, (*code, list, dict, set, tuple, NumpyArray))


# --- tensors


def buffers_below(node: UOp) -> list[UOp]:
    """The BUFFER nodes that a realized node shows, in a fixed order."""
    base = base_of(node)
    return [base] if base.op is Op.BUFFER else [n for n in node.toposort() if n.op is Op.BUFFER]


def kind_of(node: UOp) -> Hashable:
    """`form_of` as part of a key, without making nodes where a whole buffer is shown."""
    base = base_of(node)
    if base.op is Op.BUFFER:
        return Whole, (base.src[0].arg, base.dtype, base.arg, node.shape)
    return form_of(node)


class Whole:
    """Marks a tensor that is a whole buffer, in a key: with its device, dtype, size and shape."""


def form_of(node: UOp) -> UOp:
    """How a realized node shows its buffers, whichever buffers and numbers these are."""
    base = base_of(node)
    if base.op is Op.BUFFER:
        whole = stand_in(base, 0)
        return whole if node is base else UOp(Op.RESHAPE, node.dtype, (whole,), node.shape)
    form = node.substitute({b: stand_in(b, i) for i, b in enumerate(buffers_below(node))})
    return with_sizes([form], Size.free)[form] if sizes_below([form]) else form


def stand_in(buffer: UOp, number: int) -> UOp:
    """A BUFFER that stands for any other of its kind; `unique` makes none like it."""
    return buffer.with_src((buffer.src[0], UOp(Op.UNIQUE, dtypes.void, (), -1 - number)))


def is_realized(node: UOp) -> bool:
    """Whether a node only shows memory in which nothing is left to be written."""
    if base_of(node).op is Op.BUFFER:
        return True
    nodes = node.toposort()
    return all(n.op in SHOWN for n in nodes) and any(n.op is Op.BUFFER for n in nodes)


class Arguments:
    """The arguments of one call, taken apart: tensors realized, the rest as plain values."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = [*leaves(args, "argument "), *leaves(kwargs, "argument ")]
        self.tensors = [(p, v) for p, v in found if isinstance(v, Tensor)]
        self.values = [(p, v) for p, v in found if not isinstance(v, Tensor)]
        if arrays := [p for p, v in self.values if isinstance(v, NumpyArray)]:
            raise JitError(
                f"{', '.join(arrays)} is a NumPy array, which a replay would not see. "
                "Pass Tensor(array)."
            )
        for _, tensor in self.tensors:
            if base_of(tensor.uop).op is not Op.BUFFER and is_constant(tensor.uop):
                tensor.replace(tensor.clone())  # other calls may give another number
        if waiting := [t for _, t in self.tensors if not is_realized(t.uop)]:
            Tensor.realize(*waiting)
        nodes = [b for _, t in self.tensors for b in buffers_below(t.uop)]
        number = {b: i for i, b in enumerate(dict.fromkeys(nodes))}
        self.nodes = tuple(number)
        self.buffers: tuple[Buffer, ...] = tuple(map(buffer_of, number))
        self.places = tuple([number[b] for b in nodes])

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers that Variables hold. Raises ShapeError where two arguments contradict."""
        given = [v for _, v in self.values if isinstance(v, Size)]
        views = [t.uop for _, t in self.tensors if base_of(t.uop).op is not Op.BUFFER]
        if views:
            given += sizes_below(views)
        return numbers_of(given) if given else {}

    @cached_property
    def key(self) -> tuple[tuple[str, Hashable], ...]:
        """All that captured launches depend on, besides the content of buffers and the numbers."""
        guarded = [(f"setting {name}", constant(getattr(settings, name))) for name in GUARDED]
        return (
            *[(p, kind_of(t.uop)) for p, t in self.tensors],
            *[(p, constant(v)) for p, v in self.values],
            *guarded,
            ("the default device", runtime().default_device()),
            ("which arguments share memory", self.places),
        )


def differences(one: Any, other: Any) -> list[str]:
    """What in two keys is not the same, as text."""
    before, now = dict(one), dict(other)
    paths = [p for p in {**before, **now} if before.get(p) != now.get(p)]
    return [f"{p} is {shown(now.get(p))}, was {shown(before.get(p))}" for p in paths]


def shown(value: Any) -> str:
    """A part of a key as a message shows it."""
    if isinstance(value, UOp):
        return f"a tensor of shape {value.shape}, {value.dtype!r}, on {value.device}"
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], (type, Same)):
        kind, found = value
        if kind is Whole:
            device, dtype, _, shape = found
            return f"a tensor of shape {shape}, {dtype!r}, on {device}"
        return repr(kind) if isinstance(kind, Same) else shortened(as_written(kind, found))
    return "absent" if value is None else shortened(value)


def as_written(kind: type, value: Any) -> Any:
    """The value behind a part of a key."""
    return float.fromhex(value) if kind is float else value


def shortened(value: Any) -> str:
    """A value on one line of some length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
