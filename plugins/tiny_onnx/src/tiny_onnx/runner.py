"""A model that can be called: weights on the device, captures for each shape of its inputs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy
import onnx

from tiny_onnx.element_types import ELEMENTS, HELD_WIDER, Element, element_of
from tiny_onnx.model import Graph, Node, read
from tiny_onnx.run import Part, Run, Scope
from tiny_onnx.values import Data, Value, as_array, as_tensor
from tinycore import Device, Tensor, TinyJit
from tinycore.dtype import DType
from tinycore.errors import ArgumentError, DTypeError, JitError, ShapeError, TinycoreError
from tinycore.plugin import lock
from tinycore.uop.movement import below_movement
from tinycore.uop.node import UOp

__all__ = ["Description", "OnnxRunner"]

MOST_CAPTURES: Final = 16
"""Combinations of shapes that a model keeps captures of; the one not used for longest goes."""
MOST_IN_A_KEY: Final = 64
"""Elements of an input up to which its contents may choose between captures, as a flag does."""
SMALL: Final = 1024
"""Elements up to which weights stay on the host, where shapes and axes are read."""
Key: TypeAlias = tuple[tuple[str, Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Description:
    """Shape and dtype of an input or output; a free side has its name, or None."""

    shape: tuple[int | str | None, ...] | None
    element: Element | None
    is_optional: bool = False
    is_sequence: bool = False

    @property
    def dtype(self) -> DType | None:
        """The dtype of its tensors; None for strings and other values."""
        return self.element.tensor if self.element is not None else None

    def __str__(self) -> str:
        sides = "any shape"
        if self.shape is not None:
            sides = "x".join("?" if side is None else str(side) for side in self.shape) or "scalar"
        name = self.element.name if self.element is not None else "value"
        return f"{'sequence of ' if self.is_sequence else ''}{name} {sides}"


def described(proto: onnx.TypeProto | None) -> Description:
    """The description in a type of the model."""
    if proto is None:
        return Description(None, None)
    kind = proto.WhichOneof("value")
    if kind == "optional_type":
        inner = described(proto.optional_type.elem_type)
        return Description(inner.shape, inner.element, True, inner.is_sequence)
    if kind == "sequence_type":
        inner = described(proto.sequence_type.elem_type)
        return Description(None, inner.element, is_sequence=True)
    if kind != "tensor_type":
        return Description(None, None)
    tensor = proto.tensor_type
    element = ELEMENTS.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Description(None, element)
    sides = [side_of(each) for each in tensor.shape.dim]
    return Description(tuple(sides), element)


def side_of(dimension: Any) -> int | str | None:
    """A side of a shape: its length, its name, or None."""
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value) if dimension.dim_value >= 0 else None  # -1 of exporters
    return None if dimension.dim_param in ("", "?", "-1") else str(dimension.dim_param)


class OnnxRunner:
    """A model of the ONNX standard, called with its inputs by name.

    >>> from tiny_onnx import OnnxRunner                            # doctest: +SKIP
    >>> model = OnnxRunner("mobilenet.onnx")                        # doctest: +SKIP
    >>> model(input=Tensor.zeros(1, 3, 224, 224))["output"].shape   # doctest: +SKIP
    (1, 1000)

    The first call with a shape builds and computes the graph; from the third on, a capture is
    replayed. A model whose graph depends on the contents of its inputs, as by a loop until a
    condition, is built at each call; small inputs such as flags choose a capture of their own.

    Raises FileFormatError for a file that is no model, UnsupportedError (at the call) for an
    operator or element type that is not supported.
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes | onnx.ModelProto, device: str | None = None
    ) -> None:
        self.model = read(source)
        self.device = device
        graph = self.model.graph
        self.graph_inputs: dict[str, Description] = {
            name: described(graph.types.get(name))
            for name in graph.inputs
            if name not in graph.weights
        }
        self.graph_outputs: dict[str, Description] = {
            name: described(graph.types.get(name)) for name in graph.outputs
        }
        self.fixed: dict[str, Value] = {}
        self.defaults: dict[str, Value] = {}  # of inputs, so that nothing computed of them is kept
        self.folded: dict[Part, list[Value]] = {}
        self.nodes: list[Node] = graph.nodes
        self.by_content: set[str] = set()  # inputs that stay on the host
        self.is_captured = True
        self.captures: OrderedDict[Key, Steps] = OrderedDict()
        self.lock = lock()
        for name, array in graph.weights.items():
            data: Data = array if array.size <= SMALL else as_tensor(array, device)
            is_fixed = name not in graph.inputs
            (self.fixed if is_fixed else self.defaults)[name] = Value(data, is_fixed=is_fixed)
        graph.weights.clear()

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Data]:
        """Compute the outputs, by name, for inputs given by name.

        Inputs are tensors, arrays, numbers or lists; weights that the model lists among its inputs
        may be given, too. An output is a Tensor; strings and sequences are arrays and lists.
        Raises ArgumentError for a name that is missing or unknown, ShapeError and DTypeError for
        inputs that the model does not take.
        """
        given = self.converted_all({**(inputs or {}), **named})
        with self.lock:  # what one call learns is read by all others
            return self.computed(given)

    def computed(self, given: Mapping[str, Data]) -> dict[str, Data]:
        """The outputs, by name: of a capture, if there is one for such inputs."""
        key = self.key(given)
        steps = self.captures.get(key)
        if steps is None or not self.is_captured:
            self.check(given)
            return self.first(given, key)
        self.captures.move_to_end(key)
        try:
            return steps(given)
        except JitError:  # nothing to launch, as for a reshape alone, or nothing that can be kept
            self.is_captured = False
            return self.first(given, key)

    def converted_all(self, given: Mapping[str, Any]) -> dict[str, Data]:
        """Inputs as values, each as the model wants it."""
        return {
            name: each
            if type(each) is numpy.ndarray
            else self.converted(
                name,
                each,
                self.graph_inputs.get(name) or described(self.model.graph.types.get(name)),
            )
            for name, each in given.items()
        }

    def check(self, given: Mapping[str, Data]) -> None:
        """Compare names, shapes and dtypes with the model's: all that a key consists of."""
        graph = self.model.graph
        unknown = sorted(set(given) - set(graph.inputs))
        missing = [
            name for name, each in self.graph_inputs.items()
            if name not in given and not each.is_optional
        ]  # fmt: skip
        if unknown or missing:
            raise ArgumentError(
                f"the model takes {', '.join(self.graph_inputs) or 'no inputs'}; "
                + (f"missing: {', '.join(missing)}. " if missing else "")
                + (f"unknown: {', '.join(unknown)}." if unknown else "")
                + (
                    " Weights are constants before IR version 4: raise the model's `ir_version`."
                    if any(name in graph.types and name not in graph.outputs for name in unknown)
                    else ""
                )
            )
        sides: dict[str, tuple[int, str]] = {}
        for name, each in given.items():
            wanted = self.graph_inputs.get(name) or described(graph.types.get(name))
            compare(name, each, wanted, sides)

    def converted(self, name: str, given: Any, wanted: Description) -> Data:
        """One input as a value. NumPy arrays stay until they are known to be needed on the host."""
        if given is None or isinstance(given, numpy.ndarray):
            return given
        if isinstance(given, Tensor):
            return given if self.device is None else given.to(self.device)
        if wanted.is_sequence:
            return [self.converted(name, each, Description(None, wanted.element)) for each in given]
        dtype = wanted.element.array if wanted.element is not None else None
        try:
            array = numpy.asarray(given, dtype=dtype)
            if array.dtype.kind in "biu" and (array != numpy.asarray(given)).any():
                raise ValueError(f"{given!r} would be rounded")
            return array
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"input {name!r} is {wanted}: {error}") from error

    def stays(self, name: str, data: Data) -> bool:
        """True if an input is kept on the host, where its contents choose what is computed."""
        if name in self.by_content or data is None or isinstance(data, list):
            return True
        if not isinstance(data, numpy.ndarray):
            return False
        element = element_of(data)
        return element.tensor is None or element.name in HELD_WIDER

    def key(self, given: Mapping[str, Data]) -> Key:
        """Key of a capture: shapes and dtypes, and contents of inputs on the host."""
        parts: list[tuple[str, Any, Any]] = []
        for name, data in given.items():
            if data is None or isinstance(data, list):
                parts.append((name, type(data), None))  # None, or a sequence, which is no capture's
            elif self.stays(name, data):
                array = as_array(data)
                content = tuple(array.reshape(-1)) if array.dtype == object else array.tobytes()
                parts.append((name, array.shape, (array.dtype, content)))
            else:
                parts.append((name, data.shape, data.dtype))
        return tuple(parts)

    def values(self, given: Mapping[str, Data]) -> dict[str, Value]:
        """Inputs as values, on the host or on the device."""
        result = {}
        for name, data in given.items():
            if self.stays(name, data):
                held = as_array(data) if isinstance(data, Tensor) else data
                sources = frozenset([name]) if isinstance(held, list) else frozenset[str]()
                result[name] = Value(held, sources)
            else:
                tensor = as_tensor(data, self.device, is_input=True)
                result[name] = Value(tensor, frozenset([name]))
        for name, description in self.graph_inputs.items():
            if description.is_optional:
                result.setdefault(name, Value(None))
        return result

    def first(self, given: Mapping[str, Data], key: Key) -> dict[str, Data]:
        """A call that builds the graph, and learns what later calls may keep."""
        run = Run(self.model, self.device, self.folded)
        values = {**self.fixed, **self.defaults, **self.values(given)}
        scope = Scope(values, self.model.opsets, is_once=True)
        run.execute(self.nodes, scope)
        outputs = {name: scope[name].data for name in self.model.graph.outputs}
        self.keep(scope, run.folded)
        shared = self.shared(given.values())
        results = {name: apart(self.declared(name, each), shared) for name, each in outputs.items()}
        computed = [each for each in results.values() if isinstance(each, Tensor)]
        if computed:
            Tensor.realize(*computed)
        self.learn(run, given, key, outputs)
        return results

    def shared(self, inputs: Iterable[Data]) -> frozenset[UOp]:
        """Memory of inputs, and of what later calls read: no output may lie in it."""
        kept = [*self.fixed.values(), *self.defaults.values(), *chain(*self.folded.values())]
        found = [*inputs, *(each.data for each in kept)]
        return frozenset(below_movement(each.uop) for each in found if isinstance(each, Tensor))

    def keep(self, scope: Scope, folded: dict[Part, list[Value]]) -> None:
        """Keep what depends on no input, computed, in place of the nodes that computed it."""
        self.folded = folded
        nodes = [
            node
            for node in self.nodes
            if not all(scope[name].is_fixed for name in node.outputs if name)
        ]
        used = {name for node in nodes for name in names_read(node)} | set(self.graph_outputs)
        self.fixed = {
            name: value for name, value in scope.values.items() if value.is_fixed and name in used
        }
        self.nodes = nodes
        values = [*self.fixed.values(), *(each for kept in folded.values() for each in kept)]
        tensors = [each.data for each in values if isinstance(each.data, Tensor)]
        if tensors:
            Tensor.realize(*tensors)

    def learn(
        self, run: Run, given: Mapping[str, Data], key: Key, outputs: Mapping[str, Data]
    ) -> None:
        """Decide how calls like this one run from now on."""
        if run.read:
            small = all(size_of(given[name]) <= MOST_IN_A_KEY for name in run.read)
            self.by_content |= run.read
            self.is_captured = self.is_captured and small
            return
        if not self.is_captured or not all(isinstance(each, Tensor) for each in outputs.values()):
            return
        if any(isinstance(each, list) for each in given.values()):
            return
        self.captures[key] = Steps(self, given)
        if len(self.captures) > MOST_CAPTURES:
            self.captures.popitem(last=False)

    def declared(self, name: str, data: Data) -> Data:
        """An output of the type that the model states, where tinycore has it."""
        wanted = self.graph_outputs[name].dtype
        if isinstance(data, numpy.ndarray) and element_of(data).tensor is not None:
            data = as_tensor(data, self.device)
        if isinstance(data, Tensor) and wanted is not None and data.dtype != wanted:
            return data.cast(wanted)
        return data

    def to(self, device: str | None) -> OnnxRunner:
        """The same model on another device. Captures begin anew."""
        with self.lock:
            for value in (*self.fixed.values(), *self.defaults.values()):
                if isinstance(value.data, Tensor) and device is not None:
                    value.data = value.data.to(device)
            self.folded.clear()
            self.device = device
            self.captures.clear()
        return self

    def get_empty_input_data(self, device: str | None = None) -> dict[str, Tensor]:
        """Zeros for every input, with sides of length one where the model leaves them free."""
        return {
            name: Tensor.zeros(
                *[side if isinstance(side, int) else 1 for side in each.shape or ()],
                dtype=each.dtype,
                device=device or self.device,
            )
            for name, each in self.graph_inputs.items()
        }

    def __repr__(self) -> str:
        given = ", ".join(f"{name}: {each}" for name, each in self.graph_inputs.items())
        results = ", ".join(f"{name}: {each}" for name, each in self.graph_outputs.items())
        return f"OnnxRunner({given} -> {results})"


class Steps:
    """The captured form of a model for one key."""

    def __init__(self, runner: OnnxRunner, given: Mapping[str, Data]) -> None:
        self.runner = runner
        self.names = [name for name, data in given.items() if not runner.stays(name, data)]
        kept = {n: apart(data, frozenset()) for n, data in given.items() if n not in self.names}
        self.others = runner.values(kept)
        """Inputs on the host, the same in all calls, as the key has their contents."""
        self.staged: dict[str, tuple[Tensor, numpy.ndarray | None]] = {}
        # weights of a model that is loaded do not change, and are all that it has around it
        self.call = TinyJit(self.graph, prune=True, guards=False)

    def __call__(self, given: Mapping[str, Data]) -> dict[str, Data]:
        results = self.call(*[self.taken(name, given[name]) for name in self.names])
        return dict(zip(self.runner.graph_outputs, results, strict=True))

    def taken(self, name: str, data: Data) -> Tensor:
        """An input on the device: an array in memory that all calls use, where the host sees it."""
        if not isinstance(data, numpy.ndarray):
            return as_tensor(data)
        tensor, memory = self.staged.get(name, (None, None))
        if tensor is None or memory is None:
            tensor = as_tensor(data, self.runner.device, is_input=True)
            self.staged[name] = tensor, array_over(tensor)
            return tensor
        Device[str(tensor.device)].synchronize()  # the call before may still read it
        memory[...] = data
        return tensor

    def graph(self, *tensors: Tensor) -> list[Tensor]:
        """All outputs as a function of the tensors among the inputs."""
        runner = self.runner
        run = Run(runner.model, runner.device, runner.folded)
        given = {name: Value(each) for name, each in zip(self.names, tensors, strict=True)}
        values = {**runner.fixed, **runner.defaults, **self.others, **given}
        scope = Scope(values, runner.model.opsets, is_once=True)
        run.execute(runner.nodes, scope)
        outputs = [
            as_tensor(runner.declared(name, scope[name].data)) for name in runner.graph_outputs
        ]
        shared = runner.shared(tensors)
        outputs = [each.clone() if below_movement(each.uop) in shared else each for each in outputs]
        Tensor.realize(*outputs)
        return outputs


def apart(data: Data, shared: frozenset[UOp]) -> Data:
    """An output in memory of its own, which a caller may write to."""
    if isinstance(data, list):
        return [apart(each, shared) for each in data]
    if isinstance(data, Tensor):
        return data.clone() if below_movement(data.uop) in shared else data
    return None if data is None else data.copy()


def array_over(tensor: Tensor) -> numpy.ndarray | None:
    """The memory of a tensor; None where the host cannot write to it, or NumPy lacks the dtype."""
    if tensor.numel() and Device[str(tensor.device)].has("host_memory"):
        with suppress(TinycoreError, BufferError, RuntimeError):
            memory = numpy.from_dlpack(tensor.realize())
            return memory if memory.flags.writeable else None
    return None


def compare(name: str, data: Data, wanted: Description, sides: dict[str, tuple[int, str]]) -> None:
    """Raise if an input is not what a model takes; `sides` are the lengths of names so far."""
    if not isinstance(data, Tensor | numpy.ndarray) or wanted.element is None:
        return
    dtype = data.dtype if isinstance(data, Tensor) else element_of(data).tensor
    if dtype != wanted.dtype:
        raise DTypeError(f"input {name!r} is {wanted.element.name}, not {data.dtype}.")
    if wanted.shape is None:
        return
    text = "x".join(str(side) for side in data.shape) or "scalar"
    if len(wanted.shape) != len(data.shape):
        raise ShapeError(f"input {name!r} is {wanted}, not of shape {text}.")
    for side, length in zip(wanted.shape, data.shape, strict=True):
        if isinstance(side, int) and side != length:
            raise ShapeError(f"input {name!r} is {wanted}, not of shape {text}.")
        if isinstance(side, str):
            known, other = sides.setdefault(side, (int(length), name))
            if known != length:
                raise ShapeError(
                    f"side {side!r} is {known} in input {other!r} and {length} in {name!r}."
                )


def size_of(data: Data) -> int:
    """The number of elements of an input."""
    if isinstance(data, list):
        return sum(size_of(each) for each in data)
    return 0 if data is None else int(numpy.prod(data.shape))


def names_read(node: Node) -> set[str]:
    """Names that a node reads, also within its graphs."""
    names = set(node.inputs)
    for each in node.attributes.values():
        graphs = each if isinstance(each, list) else [each]
        for graph in graphs:
            if isinstance(graph, Graph):
                names |= {name for inner in graph.nodes for name in names_read(inner)}
                names |= set(graph.outputs)
    return names
