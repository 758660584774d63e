"""Export to ONNX: a function of tensors, or a layer, as a file that other runtimes run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tiny_onnx.export.graph import WEIGHTS, GraphWriter
from tiny_onnx.export.save import MOST_INSIDE, save, stored
from tiny_onnx.export.trace import DynamicAxes, Trace, traced
from tiny_onnx.export.views import View, whole
from tiny_onnx.export.writer import NAMED, Writer, number_of
from tinycore import Tensor
from tinycore.errors import ArgumentError, UnsupportedError
from tinycore.nn.state import get_state_dict
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.shape import Shape
from tinycore.uop.size import is_size, noting

__all__ = ["export"]


def export(
    function: Callable[..., Any],
    arguments: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: DynamicAxes | None = None,
    state: object = None,
    external_data: bool | None = None,
) -> onnx.ModelProto:
    """Write a function of tensors, such as a layer or a `TinyJit`, as a model of the ONNX standard.

    The function is called once, with the shapes and dtypes of the example `arguments` (a tensor,
    several in order, or a mapping from names) and outside of training. Tensors in containers are
    inputs, too, and a bound Variable is an int64 input; other values are constants. Inputs have the
    names of the parameters, and weights those of `get_state_dict(state)`, where the state is the
    function itself unless it is given.

    `dynamic_axes={"x": {0: "n"}}` lets the length of an axis vary, up to 65,536, or within the
    bounds of a Variable in place of the name. An export that would be right for the length of the
    example alone is refused.

    Weights of more than 1 GiB lie in a file beside the model, as with `external_data=True`. Files
    appear whole or not at all. Returns the model, without weights that lie in another file.

    Raises UnsupportedError naming an operation that ONNX cannot express, such as random numbers;
    ArgumentError for a function that reads numbers of its arguments or writes to its state.

    >>> from tiny_onnx import OnnxRunner, export
    >>> double = export(lambda x: x * 2, Tensor([1.0, 2.0]))
    >>> OnnxRunner(double)(x=[3.0, 4.0])["output"].tolist()
    [6.0, 8.0]
    """
    owner = getattr(function, "__self__", function) if state is None else state
    named = get_state_dict(owner)
    with noting() as conditions:
        trace = traced(function, arguments, input_names, output_names, dynamic_axes or {}, named)
        made = Export(trace, named)
        model = made.model()
    if conditions:
        first = next(iter(conditions))
        numbers = {name: value for side in (first.left, first.right) if is_size(side)
                   for name, value in side.values}  # fmt: skip
        raise UnsupportedError(
            f"the graph is another one for other lengths: it was made where {first.told(numbers)}. "
            "Leave the axis out of dynamic_axes, or give it a Variable with closer bounds."
        )
    size = sum(tensor.nbytes() for tensor in made.weights.values())
    is_outside = size > MOST_INSIDE if external_data is None else external_data
    if is_outside and path is None:
        raise ArgumentError(f"weights of {size:,} bytes lie in a file of their own: give a path")
    save(model, made.weights, None if path is None else Path(path), is_outside)
    return model


class Export:
    """The model of a trace; its weights are known by name, and not read yet."""

    def __init__(self, trace: Trace, state: Mapping[str, Tensor]) -> None:
        self.trace = trace
        self.writer = Writer()
        self.weights: dict[str, Tensor] = {}
        self.names: dict[UOp, str] = {}
        entries = [*state.items()][::-1]  # the first of several names of a tensor
        self.state = {tensor.uop: (name, tensor) for name, tensor in entries}
        self.memory = {base_of(tensor.uop): (name, tensor) for name, tensor in entries}

    def model(self) -> onnx.ModelProto:
        """The model without its weights."""
        trace, writer = self.trace, self.writer
        taken = [*[a.name for a in trace.arguments], *trace.outputs]
        if len({*taken}) != len(taken):
            raise ArgumentError(f"inputs and outputs have one name: {', '.join(taken)}")
        writer.taken.update(taken)
        for variable, (argument, axis) in trace.sizes.items():
            writer.dimensions[variable] = partial(self.length, argument, axis)
        graph = GraphWriter(writer, self.given(), self.weight)
        roots = [tensor.uop for tensor in trace.outputs.values()]
        graph.write(roots)
        for name, root in zip(trace.outputs, roots, strict=True):
            writer.nodes.append(helper.make_node("Identity", [graph.full(root)], [name], name))
        nodes = writer.used(list(trace.outputs))
        read = {name for node in nodes for name in node.input}
        self.weights = {name: x for name, x in self.weights.items() if name in read}
        inputs = [self.described(a.name, a.dtype, a.shape) for a in trace.arguments]
        outputs = [self.described(name, x.dtype, x.shape) for name, x in trace.outputs.items()]
        numbers = {element.array: dtype for dtype, element in NAMED.items()}
        constants = [
            stored(name, array, numbers[array.dtype]) for name, array in writer.constants.items()
        ]
        body = helper.make_graph(nodes, "tinycore", inputs, outputs, constants)
        versions = [helper.make_opsetid("", writer.version)]
        return helper.make_model(
            body,
            opset_imports=versions,
            ir_version=helper.find_min_ir_version_for(versions),
            producer_name="tinycore",
        )

    def length(self, argument: str, axis: int | None) -> str:
        """The number of a variable."""
        if axis is None:
            return argument
        shape = self.writer.add("Shape", argument)
        return self.writer.add("Gather", shape, self.writer.constant(axis), axis=0)

    def given(self) -> dict[UOp, View]:
        """The views of the arguments."""
        return {
            argument.node: whole(argument.name, argument.dtype, argument.shape)
            for argument in self.trace.arguments
            if argument.node is not None
        }

    def weight(self, node: UOp) -> View | None:
        """The view of memory: a tensor of the state by its name, or a constant."""
        if node in self.state:
            return self.view_of(*self.state[node], node.shape)
        if node.op not in WEIGHTS:
            return None
        if node in self.memory:
            return self.view_of(*self.memory[node], node.shape)
        return self.view_of("weight", Tensor(node), node.shape)

    def view_of(self, name: str, tensor: Tensor, shape: Shape) -> View:
        """The view of a weight in some shape."""
        key = base_of(tensor.uop)
        if key not in self.names:
            self.names[key] = self.writer.name(name)
            self.weights[self.names[key]] = tensor
        name = self.names[key]
        held = self.weights[name].shape
        return whole(self.writer.reshaped(name, held, shape), tensor.dtype, shape)

    def described(self, name: str, dtype: Any, shape: Shape) -> onnx.ValueInfoProto:
        """An input or output, whose free sides have the names of their variables."""
        sides = [str(side.free()) if is_size(side) else side for side in shape]
        return helper.make_tensor_value_info(name, number_of(dtype), sides)
