"""A function called once with arguments that have no values, for the graph of what it returns."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, Final
from unittest.mock import patch

import numpy

from tinycore import Context, Tensor, Variable
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from tinycore.plugin import recursive_lock
from tinycore.uop.movement import below_movement
from tinycore.uop.node import UOp, device_node, unique
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size, is_size

__all__ = ["Argument", "DynamicAxes", "Trace", "traced"]

DynamicAxes = Mapping[str, Mapping[int, str | Variable] | Sequence[int]]
"""Axes of varying length by the name of an argument: each with its name, or with a Variable."""
MOST: Final = 1 << 16
"""Greatest length of an axis that is given by a name alone."""
MARK: Final = "input"
MEMORY: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.CONST, Op.OWN})
"""Ops of values that `realize` leaves as they are."""


@dataclass
class Argument:
    """An input of the model: a tensor, or the number of a Variable."""

    name: str
    dtype: DType
    shape: Shape
    node: UOp | None = None
    """The placeholder of the tensor; None for a number."""


@dataclass
class Trace:
    """Inputs and outputs of one call of the function."""

    arguments: list[Argument] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    """The place of a variable by its name: an axis of an argument, or the whole argument."""


def traced(
    function: Callable[..., Any],
    arguments: Any,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    dynamic_axes: DynamicAxes,
    state: Mapping[str, Tensor],
) -> Trace:
    """Call a function with placeholders in place of the tensors in its arguments.

    Raises ArgumentError where it asks for a number of theirs, or changes a tensor of its state.
    """
    positional, named = split(arguments)
    placeholders = Placeholders(function, input_names, dynamic_axes)
    given = [
        placeholders.of(each, placeholders.parameter(place))
        for place, each in enumerate(positional)
    ]
    options = {name: placeholders.of(each, name) for name, each in named.items()}
    placeholders.check()
    if state:
        Tensor.realize(*state.values())
    before = {name: tensor.uop for name, tensor in state.items()}
    with Context(JIT=0, TRAINING=0):
        for _ in range(2):  # a first call may make weights
            drawn = Tensor.get_rng_state()
            with postponing({argument.node for argument in placeholders.found}):
                result = called(function, given, options)
            if (Tensor.get_rng_state().numpy() == drawn.numpy()).all():
                break
        else:
            raise UnsupportedError(
                "the function draws random numbers in each call, and the exported one would have "
                "the same in each run. Draw them outside, and pass them as an argument."
            )
    changed = [name for name, tensor in state.items() if tensor.uop is not before[name]]
    if changed:
        for name in changed:
            state[name]._take_over(Tensor(before[name]), True)
        raise ArgumentError(
            f"the function writes to {', '.join(changed[:5])}, and an exported model has no state. "
            "Pass these tensors as arguments, and return what becomes of them."
        )
    return Trace(placeholders.found, outputs_of(result, output_names), placeholders.sizes)


def split(arguments: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional arguments and those with names."""
    if isinstance(arguments, Mapping):
        return (), arguments
    if isinstance(arguments, Tensor | numpy.ndarray):
        return (arguments,), {}
    if isinstance(arguments, Sequence) and not isinstance(arguments, str):
        return arguments, {}
    raise ArgumentTypeError(
        "export: the arguments are a tensor, several of them in order, or a mapping from names to "
        f"them; got {type(arguments).__name__}"
    )


class Placeholders:
    """The arguments of a call, with tensors that have no value in place of examples."""

    def __init__(
        self, function: Callable[..., Any], names: Sequence[str] | None, axes: DynamicAxes
    ) -> None:
        self.names = None if names is None else list(names)
        self.axes = axes
        self.found: list[Argument] = []
        self.sizes: dict[str, tuple[str, int | None]] = {}
        self.variables: dict[str, Any] = {}
        try:
            self.parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            self.parameters = []

    def parameter(self, place: int) -> str:
        """The name of a positional parameter."""
        if place < len(self.parameters):
            parameter = self.parameters[place]
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                return parameter.name
        return f"input_{place}"

    def of(self, example: Any, path: str) -> Any:
        """An argument like an example; containers are gone through."""
        if isinstance(example, numpy.ndarray):
            example = Tensor(example)
        if isinstance(example, Tensor):
            return self.tensor(example, path)
        if is_size(example):
            return self.number(example, path)
        if isinstance(example, tuple) and hasattr(example, "_fields"):
            parts = [
                self.of(x, f"{path}.{n}") for n, x in zip(example._fields, example, strict=True)
            ]
            return type(example)(*parts)
        if isinstance(example, list | tuple):
            return type(example)([self.of(x, f"{path}.{n}") for n, x in enumerate(example)])
        if isinstance(example, Mapping):
            return {key: self.of(x, f"{path}.{key}") for key, x in example.items()}
        if example is None or isinstance(example, bool | int | float | str):
            return example
        raise ArgumentTypeError(
            f"export: argument {path} is a {type(example).__name__}; tensors, numbers, text and "
            "containers of them can be given. A layer belongs to the function."
        )

    def name(self, path: str) -> str:
        """The name of the next input."""
        place = len(self.found)
        if self.names is None:
            return path
        if place >= len(self.names):
            raise ArgumentError(f"export: there are more tensors than the names {self.names}")
        return self.names[place]

    def check(self) -> None:
        """Raises ArgumentError for names that no tensor has."""
        names = [argument.name for argument in self.found]
        if self.names is not None and len(self.names) != len(names):
            raise ArgumentError(
                f"export: {len(names)} tensors have the names {self.names}: each input has to "
                "be a Tensor or a bound Variable, as {'x': Tensor(...)}"
            )
        if len({*names}) != len(names):
            raise ArgumentError(f"export: inputs have one name: {', '.join(names)}")
        if unknown := sorted(set(self.axes) - set(names)):
            raise ArgumentError(
                f"export: dynamic_axes names {', '.join(unknown)}; the inputs are "
                f"{', '.join(names)}. Outputs have the axes that follow."
            )

    def tensor(self, example: Tensor, path: str) -> Tensor:
        """A tensor without a value."""
        name = self.name(path)
        axes = self.axes.get(name, {})
        if not isinstance(axes, Mapping):
            axes = {axis: f"{name}_{axis}" for axis in axes}
        rank = len(example.shape)
        sides: dict[int, Any] = {}
        for axis, wanted in axes.items():
            if not -rank <= axis < rank:
                raise ArgumentError(f"export: {name} of shape {example.shape} has no axis {axis}")
            sides[axis % rank] = self.side(wanted, int(example.shape[axis]))
        most = tuple(
            [sides[a].greatest if a in sides else side for a, side in enumerate(example.shape)]
        )
        mark = UOp(Op.UNIQUE, dtypes.void, (), (MARK, name, most))
        memory = UOp(Op.BUFFER, example.dtype, (device_node(example.device), mark), math.prod(most))
        shown = [slice(0, sides.get(a)) for a in range(rank)]
        # waits for ever: what is memory already may be looked at by captures of other functions
        part = Tensor(memory).reshape(most)[tuple(shown)].uop
        made = Tensor(UOp(Op.CONTIGUOUS, part.dtype, (part,)))
        for axis, side in sides.items():
            self.sizes.setdefault(side.expression.arg[0], (name, axis))
        self.found.append(Argument(name, example.dtype, made.shape, made.uop))
        return made

    def side(self, wanted: str | Variable, length: int) -> Any:
        """The length of an axis that varies."""
        variable = Variable(wanted, 1, MOST) if isinstance(wanted, str) else wanted
        bound = self.variables.setdefault(variable.name, variable.bind(length))
        if bound.unbind() != (variable, length):
            raise ArgumentError(
                f"export: axes named {variable.name!r} have lengths {bound.known()} and {length}"
            )
        return bound

    def number(self, example: Size, path: str) -> Any:
        """The number that a Variable holds."""
        variable, held = example.unbind()
        bound = Variable(f"{path}", variable.least, variable.greatest).bind(held)
        argument = Argument(self.name(path), dtypes.int64, ())
        self.sizes[bound.expression.arg[0]] = (argument.name, None)
        self.found.append(argument)
        return bound


def called(function: Callable[..., Any], given: list[Any], options: dict[str, Any]) -> Any:
    """The result of the function."""
    try:
        return function(*given, **options)
    except ArgumentError as error:
        if "stands for an argument" not in str(error):
            raise
        raise ArgumentError(
            "the function asked for a number of an argument (as `item`, `numpy` and `if` on a "
            "tensor do), on which the exported graph cannot depend. Compute with tensors: `where` "
            "instead of `if`."
        ) from error


def outputs_of(result: Any, names: Sequence[str] | None) -> dict[str, Tensor]:
    """The tensors of a result by name. Raises ArgumentTypeError if it has others than tensors."""
    if isinstance(result, Tensor):
        found = {"output": result}
    else:
        found = {f"output_{path}" if path[:1].isdigit() else path: tensor
                 for path, tensor in leaves(result, "")}  # fmt: skip
    if not found:
        raise ArgumentError("the function returned no tensor")
    if names is not None and (len(names) != len(found) or len({*names}) != len(found)):
        raise ArgumentError(f"export: {len(found)} outputs have the names {list(names)}")
    return found if names is None else dict(zip(names, found.values(), strict=True))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors in a result, with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from leaves(each, f"{path}.{place}" if path else str(place))
    elif value is not None:
        raise ArgumentTypeError(
            f"the function returned a {type(value).__name__}; a model returns tensors, and "
            "containers of them"
        )


def leaf(node: UOp) -> UOp:
    """The same value, at which gradients end; no other node is this one."""
    return UOp(Op.OWN, node.dtype, (UOp(Op.DETACH, node.dtype, (node,)),), unique().arg)


exporting: Final = recursive_lock()
"""Held while a function is called for an export, one thread's at a time."""


@contextmanager
def postponing(arguments: Collection[UOp | None]) -> Iterator[None]:
    """Inside, `realize` of this thread computes nothing, as captured functions call it; but what it
    is called on becomes a leaf, at which gradients end.
    """
    with exporting:
        thread, real = get_ident(), Tensor.realize

        def realize(self: Tensor, *others: Tensor) -> Tensor:
            if get_ident() != thread:
                return real(self, *others)
            for tensor in (self, *others):
                node = below_movement(tensor.uop)
                if node not in arguments and node.op not in MEMORY:
                    tensor.replace(Tensor(leaf(tensor.uop)))
            return self

        with patch.object(Tensor, "realize", realize):
            yield
