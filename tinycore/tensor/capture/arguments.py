"""Arguments of a captured function: tensors, numbers of Variables, and Python values.

Floor 5. Arguments are flattened into leaves. Tensors are realized, and memory that they share is
recorded. Everything else that affects the function becomes part of a key, and each key has its own
capture: Python values, the nesting of containers, settings, and the function's environment, as far
as it can be inspected (closure, globals, attributes of objects).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from tinycore._deferred import NumpyArray
from tinycore.config import in_force, reader_of
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.errors import JitError
from tinycore.schedule.device_memory import buffers_of
from tinycore.tensor.aliases import buffers_below, is_realized
from tinycore.tensor.graph import is_constant, without_own
from tinycore.tensor.guards.guard import ATOMS, Fact, Same, constant_key, fact_of, shortened
from tinycore.tensor.runtime import runtime
from tinycore.tensor.tensor import Tensor
from tinycore.uop.bindings import Naming, exchanging, sizes_below
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import GIVEN_MARK, Size, Variable

GUARDED: Final = ("TRAINING", "DEFAULT_FLOAT", "DEFAULT_INT")
"""Settings that decide what a function launches."""
guarded_values: Final = reader_of(GUARDED)
pattern_settings: Final = itemgetter(*GUARDED, "DEV")

Leaf = tuple[str, Any]


# --- containers


def is_record(value: Any) -> bool:
    """True if a value is a dataclass instance that is walked into."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Variable))


def container_items(value: Any) -> list[tuple[str, Any]] | None:
    """Items of a container, each with the text of its access; None for other values."""
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", item) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if is_record(value):
        fields = dataclasses.fields(value)
        return [(f".{f.name}", getattr(value, f.name)) for f in fields if hasattr(value, f.name)]
    return None


def attributes_beside(value: Any) -> list[tuple[str, Any]]:
    """The attributes of a container that are no items of it."""
    own = getattr(value, "__dict__", None) or {}
    known = {field.name for field in dataclasses.fields(value)} if is_record(value) else ()
    return [(name, item) for name, item in own.items() if name not in known]


def leaves(value: Any, path: str) -> Iterator[Leaf]:
    """All leaves of nested containers with their paths; for containers, their classes."""
    inner = container_items(value)
    if inner is None:
        yield path, value
        return
    yield path, type(value)
    for step, item in inner:
        yield from leaves(item, path + step)


def rebuilt(value: Any, kind: type, new: Callable[[Any], Any]) -> Any:
    """The same nested containers with every instance of a class replaced."""
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
        for step, item in container_items(value) or ():
            object.__setattr__(record, step.removeprefix("."), rebuilt(item, kind, new))
        return record
    return value


# --- tensors


def form_of(node: UOp, numbers: Mapping[UOp, int] | None = None) -> UOp:
    """The view by which a realized node shows its buffers, whichever these are: over stand-ins with
    their numbers, or those of their order in it.
    """
    base, below = base_of(node), buffers_below(node)
    numbers = numbers or {b: i for i, b in enumerate(below)}
    stands = {b: stand_in(b, numbers[b]) for b in below}
    if base.op is Op.BUFFER:
        whole = stands[base]
        return whole if node is base else UOp(Op.RESHAPE, node.dtype, (whole,), node.shape)
    return exchanging(without_own(node).substitute(stands), Size.free)


def stand_in(buffer: UOp, number: int) -> UOp:
    """A placeholder BUFFER for any other of its kind; `unique` makes a distinct one."""
    return buffer.with_src((buffer.src[0], UOp(Op.UNIQUE, dtypes.void, (), -1 - number)))


def number_of(stand: UOp) -> int:
    """The number of a placeholder."""
    number: int = stand.src[1].arg
    return -1 - number


class Arguments:
    """The arguments of one call: tensors realized, the rest as plain values.

    `key` is all that captured launches depend on, besides the content of buffers and the numbers.
    """

    naming: Naming | None = None
    """The names under which the function sees the bound variables, if there are any."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.given = args, kwargs
        self.tensors: list[Tensor] = []
        self.objects: list[Any] = []
        """Objects compared by identity; their content is guarded like a function's environment."""
        key: list[Any] = []
        for value in args:
            if type(value) is Tensor:
                key.append(Tensor)
                self.tensors.append(value)
            else:
                self.note(value, key)
        key.append(None)
        if kwargs:
            self.note(kwargs, key)
        nodes = self.shown(key)
        number = dict.fromkeys(nodes)
        self.nodes: list[UOp] = [*number]
        self.buffers: tuple[Buffer, ...] = buffers_of(self.nodes)
        key += guarded_values()
        key.append(runtime().default_device())
        key.append(None if len(number) == len(nodes) else first_occurrences(nodes))
        self.key = tuple(key)

    @classmethod
    def matched(cls, args: tuple[Any, ...], nodes: list[UOp], key: tuple[Any, ...]) -> Arguments:
        """The arguments of a call that is known to have this key."""
        made = object.__new__(cls)
        made.given, made.key, made.nodes = (args, {}), key, nodes
        made.tensors, made.objects, made.buffers = [*args], [], buffers_of(nodes)
        return made

    def note(self, value: Any, key: list[Any]) -> None:
        """Add an argument to a key: for containers their classes and the paths to their parts."""
        kind = type(value)
        key.append(kind)
        if kind is Tensor:
            self.tensors.append(value)
        elif kind in ATOMS:
            key.append(value)
        elif kind is tuple or kind is list:
            key.append(len(value))
            for item in value:
                self.note(item, key)
        elif kind is dict and all(type(name) is str for name in value):
            key.append(tuple(value))
            for item in value.values():
                self.note(item, key)
        else:
            self.note_rare(value, key)

    def note_rare(self, value: Any, key: list[Any]) -> None:
        """The rest of `note`, for values that are met less often."""
        inner = container_items(value)
        if isinstance(value, Tensor) or inner is not None:
            for name, item in attributes_beside(value):
                key += name, self.constant(item)
        if isinstance(value, Tensor):
            self.tensors.append(value)
        elif inner is not None:
            key.append(tuple([step for step, _ in inner]))
            for _, item in inner:
                self.note(item, key)
        elif isinstance(value, NumpyArray):
            paths = [p for p, v in self.leaves if isinstance(v, NumpyArray)]
            raise JitError(
                f"{', '.join(paths)} is a NumPy array, which a replay would not see. "
                "Pass Tensor(array)."
            )
        elif isinstance(value, Size):
            key.append(self.names.free(value))
        else:
            key.append(self.constant(value))

    def constant(self, value: Any) -> Hashable:
        """A value as part of a key. What it has beside that is guarded."""
        part = constant_key(value)
        if type(part) is Same or type(value) not in (*ATOMS, float):
            self.objects.append(value)
        return part

    def shown(self, key: list[Any]) -> list[UOp]:
        """The BUFFERs of all tensors, with repetitions, after how they are shown joined a key."""
        nodes: list[UOp] = []
        waiting = True
        if gradients := [g for t in self.tensors if (g := t.grad) is not None]:
            key.append(tuple([t._grad is not None for t in self.tensors]))
            self.tensors += gradients  # which the function may read
        for tensor in self.tensors:
            if tensor._requires_grad is not None:
                key.append(tensor._requires_grad)
            base = node = tensor.uop
            while base.op is Op.RESHAPE:
                base = base.src[0]
            if base.op is not Op.BUFFER and waiting:
                self.realize()
                waiting = False
                node = tensor.uop
                base = base_of(node)
            if base.op is Op.BUFFER:
                key += base.src[0], base.dtype, base.arg, node.shape
                nodes.append(base)
            else:
                key.append(form_of(self.named(node)))
                nodes += buffers_below(node)
        return nodes

    def realize(self) -> None:
        """Compute unrealized tensors, and give memory to constants."""
        for tensor in self.tensors:
            if is_constant(tensor.uop):
                tensor.replace(tensor.clone())  # other calls may give another number
        if waiting := [t for t in self.tensors if not is_realized(t.uop)]:
            Tensor._realize_for_call(waiting)

    @property
    def leaves(self) -> list[Leaf]:
        """All leaves of the arguments, with their paths."""
        args, kwargs = self.given
        return [*leaves(args, "argument "), *leaves(kwargs, "argument ")]

    @property
    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors, with their paths."""
        found = [(path, value) for path, value in self.leaves if isinstance(value, Tensor)]
        return found + [(f"{path}.grad", t.grad) for path, t in found if t.grad is not None]

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers that Variables hold, by the names under which the function finds them."""
        return {} if self.naming is None else self.naming.numbers

    @property
    def names(self) -> Naming:
        """Names for bound variables."""
        if self.naming is None:
            self.naming = Naming(GIVEN_MARK)
        return self.naming

    def named(self, node: UOp) -> UOp:
        """A graph over the names under which the function finds bound variables."""
        return exchanging(node, self.names.held) if sizes_below([node]) else node

    @property
    def facts(self) -> dict[str, Fact]:
        """Values that the key depends on, by their places."""
        free = Naming(keeps_given=False).free

        def told(value: Any) -> Fact:
            if not isinstance(value, Tensor):
                return fact_of(value)
            node = exchanging(value.uop, free)
            text = f"a tensor of shape {node.shape}, {node.dtype!r}, on {node.device}"
            return text, text

        names = [f"setting {name}" for name in GUARDED]
        names += "the default device", "which arguments share memory"
        settings = [(part, shortened(part)) for part in self.key[-len(names) :]]
        facts = {path: told(v) for path, v in self.leaves if not isinstance(v, Size)}
        return facts | dict(zip(names, settings, strict=True))


class CallPattern:
    """The form of calls with one key whose arguments are all different whole buffers.

    A replayed function is mostly called as it was before, and to compare its arguments with those
    takes a fraction of the time of making their key: one expression. It keeps no tensor or memory
    alive.
    """

    def __init__(self, given: Arguments) -> None:
        """Raises AttributeError or IndexError for what is not a tensor, or shows no memory."""
        args, _ = given.given
        self.count = len(args)
        self.buffers = expression_of(args)
        self.key = given.key
        self.settings = pattern_settings(in_force())
        self.device = runtime().default_device()

    @staticmethod
    def of(given: Arguments) -> CallPattern | None:
        """The pattern of calls like one; None if that has other arguments as well."""
        args, kwargs = given.given
        try:
            found = CallPattern(given)
        except (AttributeError, IndexError):
            return None
        return found if not kwargs and found.buffers(*args) == given.nodes else None

    def match(self, args: tuple[Any, ...], values: Mapping[str, Any]) -> Arguments | None:
        """The arguments of another such call. None says nothing: their key has to be made."""
        if (
            len(args) != self.count
            or pattern_settings(values) != self.settings
            or (not values["DEV"] and runtime().default_device() != self.device)
        ):
            return None
        nodes = self.buffers(*args)
        if nodes is None or (len(nodes) > 1 and len({*nodes}) < len(nodes)):
            return None
        return Arguments.matched(args, nodes, self.key)


def expression_of(tensors: Sequence[Any]) -> Callable[..., list[UOp] | None]:
    """A function of as many arguments: their BUFFERs; None if one is shown otherwise, or of another
    kind, than those of some tensors.
    """
    scope: dict[str, Any] = {"Tensor": Tensor}
    terms = []
    for i, tensor in enumerate(tensors):
        node = base = tensor.uop
        below = f"node{i}"
        if node.op is not Op.BUFFER:
            base, below = node.src[0], f"{below}.src[0]"
        found = {"op": node.op, "argument": node.arg, "base": base.op} | {
            "device": base.src[0], "dtype": base.dtype, "size": base.arg,
        }  # fmt: skip
        scope |= {f"{name}{i}": value for name, value in found.items()}
        terms += [
            f"type(t{i}) is Tensor", f"t{i}._grad is None",
            f"t{i}._requires_grad is {tensor._requires_grad}",
            f"(node{i} := t{i}._view.value).op is op{i}", f"node{i}.arg == argument{i}",
            f"(b{i} := {below}).op is base{i}", f"b{i}.src[0] is device{i}",
            f"b{i}.dtype is dtype{i}", f"b{i}.arg == size{i}",
        ]  # fmt: skip
    given, shown = ([f"{x}{i}" for i in range(len(tensors))] for x in "tb")
    test, result = " and ".join(terms) or "True", ", ".join(shown)
    text = f"lambda {', '.join(given)}: [{result}] if {test} else None"
    made: Callable[..., list[UOp] | None] = eval(text, scope)
    return made


def first_occurrences(nodes: list[UOp]) -> tuple[int, ...]:
    """For each node, the index of its first occurrence among the distinct ones."""
    number = {b: i for i, b in enumerate(dict.fromkeys(nodes))}
    return tuple([number[b] for b in nodes])


def differences(before: dict[str, Fact], now: dict[str, Fact]) -> list[str]:
    """Differences between the facts of two calls, as text."""
    absent: Fact = None, "absent"
    pairs = [(path, now.get(path, absent), before.get(path, absent)) for path in before | now]
    return [f"{path} is {new[1]}, was {old[1]}" for path, new, old in pairs if new[0] != old[0]]
