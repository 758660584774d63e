"""`TinyJit`: run a function twice, then only replay what it launched.

Floor 5. The first call runs the function as it is, the second notes every launch, later ones replay
them on their own inputs. What a replay could not do right is refused: other shapes or other Python
arguments than those captured, values read back in between, results that are no tensors.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar, cast

from tinycore._deferred import NumpyArray
from tinycore.config import settings
from tinycore.dtype import dtypes
from tinycore.engine.jit import CapturedStep, capture
from tinycore.engine.packing import packed
from tinycore.errors import JitError
from tinycore.schedule.order import buffer_of, buffers
from tinycore.tensor.graph import base_of, is_constant
from tinycore.tensor.tensor import Tensor
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op

GUARDED = ("TRAINING", "DEFAULT_FLOAT", "DEFAULT_INT")
"""Settings that decide what a function launches."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Leaf = tuple[str, Any]


def leaves(value: Any, path: str) -> Iterator[Leaf]:
    """Everything inside nested containers, with where it stands."""
    if isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    else:
        yield path, value


def rebuilt(value: Any, new: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of containers with every tensor replaced."""
    if isinstance(value, Tensor):
        return new(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(item, new) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(rebuilt(item, new) for item in value)
    if isinstance(value, dict):
        return {key: rebuilt(item, new) for key, item in value.items()}
    return value


def buffers_below(node: UOp) -> list[UOp]:
    """The BUFFER nodes that a realized node shows, in a fixed order."""
    base = base_of(node)
    return [base] if base.op is Op.BUFFER else [n for n in node.toposort() if n.op is Op.BUFFER]


def form_of(node: UOp) -> UOp:
    """How a realized node shows its buffers, whichever buffers they are."""
    base = base_of(node)
    if base.op is Op.BUFFER:
        whole = stand_in(base, 0)
        return whole if node is base else UOp(Op.RESHAPE, node.dtype, (whole,), node.shape)
    return node.substitute({b: stand_in(b, i) for i, b in enumerate(buffers_below(node))})


def stand_in(buffer: UOp, number: int) -> UOp:
    """A BUFFER that stands for any other of its kind; `unique` makes none like it."""
    return buffer.with_src((buffer.src[0], UOp(Op.UNIQUE, dtypes.void, (), -1 - number)))


class Arguments:
    """The arguments of one call, taken apart: tensors realized, the rest as plain values."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = [*leaves(args, "argument "), *leaves(kwargs, "argument ")]
        self.tensors = [(p, v) for p, v in found if isinstance(v, Tensor)]
        self.values = [(p, v) for p, v in found if not isinstance(v, Tensor)]
        self.values += [(f"setting {name}", getattr(settings, name)) for name in GUARDED]
        if arrays := [p for p, v in self.values if isinstance(v, NumpyArray)]:
            raise JitError(
                f"{', '.join(arrays)} is a NumPy array, which a replay would not see. "
                "Pass Tensor(array)."
            )
        for _, tensor in self.tensors:
            if base_of(tensor.uop).op is not Op.BUFFER and is_constant(tensor.uop):
                tensor.replace(tensor.clone())  # other calls may give another number
        if self.tensors:
            Tensor.realize(*(t for _, t in self.tensors))
        nodes = [b for _, t in self.tensors for b in buffers_below(t.uop)]
        number = {b: i for i, b in enumerate(dict.fromkeys(nodes))}
        self.buffers = tuple([buffer_of(b) for b in number])
        self.places = [number[b] for b in nodes]

    @cached_property
    def forms(self) -> list[tuple[str, UOp]]:
        """What the captured launches depend on besides the content of buffers."""
        return [(p, form_of(t.uop)) for p, t in self.tensors]


class TinyJit(Generic[Parameters, Result]):
    """A function that is captured at its second call and replayed from the third on.

    Use it as a decorator on functions and methods (each object then has captures of its own). The
    function must return tensors, or containers of them, or None, and do all its work in tensors.
    `JIT=0` turns it off. Raises JitError where a replay would not do what the function does.

    >>> from tinycore import TinyJit
    >>> double = TinyJit(lambda x: (x * 2).realize())
    >>> [double(Tensor([number])).item() for number in (1, 2, 3, 4)]
    [2, 4, 6, 8]
    """

    def __init__(self, fxn: Callable[Parameters, Result]) -> None:
        self.fxn = fxn
        self.calls = 0
        self.step: CapturedStep | None = None
        self.first: Arguments | None = None
        self.result: Any = None
        self.outputs: list[UOp] = []
        self.bound: weakref.WeakKeyDictionary[Any, TinyJit[..., Result]] = (
            weakref.WeakKeyDictionary()
        )
        functools.update_wrapper(self, fxn)

    def __get__(self, instance: Any, owner: type | None = None) -> TinyJit[..., Result]:
        if instance is None:
            return self
        if instance not in self.bound:
            method = self.fxn.__get__(instance, owner)
            self.bound[instance] = TinyJit(weak_method(method))
        return self.bound[instance]

    def reset(self) -> None:
        """Forget what was captured; the next two calls run the function again."""
        self.calls, self.step, self.first, self.result = 0, None, None, None

    @property
    def captured(self) -> CapturedStep | None:
        """What was captured, once it was."""
        return self.step

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Run the function, capture it, or replay it, whichever is due."""
        if not settings.JIT:
            return self.fxn(*args, **kwargs)
        given = Arguments(args, kwargs)
        self.calls += 1
        if self.calls == 1:
            result = self.fxn(*args, **kwargs)
            self.realize(result)
            return result
        if self.step is None:
            return self.capture(given, args, kwargs)
        self.verify(given)
        return self.replay(given)

    def realize(self, result: Any) -> list[Tensor]:
        """Compute a result; its tensors. Raises JitError for one that holds anything else."""
        tensors = []
        for path, value in leaves(result, "result"):
            if isinstance(value, Tensor):
                tensors.append(value)
            elif value is not None:
                raise JitError(
                    f"{self.name} returned {value!r} ({path}), which a replay would return "
                    "unchanged for ever. Return tensors only."
                )
        if tensors:
            Tensor.realize(*tensors)
        return tensors

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.fxn, "__qualname__", repr(self.fxn))

    def capture(self, given: Arguments, args: Any, kwargs: Any) -> Result:
        """Run the function and note its launches."""
        with capture() as recording:
            result = self.fxn(*args, **kwargs)
            tensors = self.realize(result)
        if not recording.items:
            raise JitError(
                f"{self.name} launched nothing, so there is nothing to replay. Remove TinyJit."
            )
        outputs = [b for t in tensors for b in buffers_below(t.uop)]
        self.step = CapturedStep(
            packed(recording, {*given.buffers, *map(buffer_of, outputs)}),
            recording.values,
            given.buffers,
            tuple(map(buffer_of, outputs)),
            frozenset(recording.made),
        )
        self.first, self.result = given, rebuilt(result, lambda t: Tensor.from_uop(t.uop))
        self.outputs = outputs
        return result

    def verify(self, given: Arguments) -> None:
        """Raise JitError unless only the content of tensors differs from the captured call."""
        first = cast(Arguments, self.first)
        for what, old, new in (
            ("tensor", first.forms, given.forms),
            ("value", first.values, given.values),
        ):
            if old == new:
                continue
            if [p for p, _ in old] != [p for p, _ in new]:
                raise JitError(
                    f"{self.name} was captured with {what}s at {places(old)}, "
                    f"now they are at {places(new)}. "
                    "Call it alike each time, or use one TinyJit for each way."
                )
            path, before, now = next(
                (p, a, b) for (p, a), (_, b) in zip(old, new, strict=True) if a != b
            )
            raise JitError(
                f"{self.name} was captured with {shown(before)} as {path}, now it is {shown(now)}. "
                "Use one TinyJit for each, or `reset()` it."
            )
        if first.places != given.places:
            raise JitError(
                f"{self.name} was captured with other tensors sharing memory than in this call. "
                "Pass copies (clone)."
            )

    def replay(self, given: Arguments) -> Result:
        """Run the captured launches on this call's inputs."""
        step = cast(CapturedStep, self.step)
        found = step.replay(given.buffers)
        exchange: dict[UOp, UOp] = {}
        for node, old, new in zip(self.outputs, step.outputs, found, strict=True):
            if new is not old:
                exchange[node] = node.with_src((node.src[0], unique()))
                buffers[exchange[node]] = new
        return cast(
            Result, rebuilt(self.result, lambda t: Tensor.from_uop(t.uop.substitute(exchange)))
        )


def places(found: list[tuple[str, Any]]) -> str:
    """Where arguments stand, as text."""
    return ", ".join(p.removeprefix("argument ") for p, _ in found) or "no place"


def shown(value: Any) -> str:
    """An argument as a message shows it."""
    if isinstance(value, UOp):
        return f"a tensor of shape {value.shape}, {value.dtype!r}, on {value.device}"
    return repr(value)


def weak_method(method: Callable[..., Result]) -> Callable[..., Result]:
    """A bound method that does not keep its object alive."""
    function, instance = method.__func__, method.__self__  # type: ignore[attr-defined]
    reference = weakref.ref(instance)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        return cast(Result, function(reference(), *args, **kwargs))

    return call
