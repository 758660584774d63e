"""Control flow: If, Loop, Scan. A condition on the device is computed and read on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from tiny_onnx.call import Call
from tiny_onnx.element_types import named
from tiny_onnx.model import Graph
from tiny_onnx.registry import operator
from tiny_onnx.values import Value, as_tensor
from tinycore import Tensor


def is_true(call: Call, value: Value) -> bool:
    """A condition. The run notes the inputs that it depends on."""
    if isinstance(value.data, Tensor):
        call.run.reads(value)
        return bool(value.data.numpy().reshape(()).item())
    assert isinstance(value.data, numpy.ndarray)
    return bool(value.data.reshape(-1)[0])


@operator("If")
def if_(call: Call) -> tuple[Value, ...]:
    """The outputs of one of two graphs."""
    name = "then_branch" if is_true(call, call.inputs[0]) else "else_branch"
    return tuple(call.run.branch(call.get(name), call.scope))


@operator("Loop")
def loop(call: Call) -> tuple[Value, ...]:
    """A graph repeated a number of times, or while a condition holds, with values it carries."""
    body: Graph = call.get("body")
    most = call.number(0) if call.has(0) else math.inf
    goes_on = is_true(call, call.inputs[1]) if call.has(1) else True
    carried = list(call.inputs[2:])
    collected: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    step = 0
    while goes_on and step < most:
        given = [Value(numpy.array(step, numpy.int64)), Value(numpy.array(goes_on)), *carried]
        results = call.run.graph(body, call.scope, given)
        goes_on = is_true(call, results[0])
        carried = results[1 : 1 + len(carried)]
        for every, each in zip(collected, results[1 + len(carried) :], strict=True):
            every.append(each)
        step += 1
    return (*carried, *scanned(call, collected, body.outputs[1 + len(carried) :]))


def stacked(call: Call, values: list[Value], axis: int, name: str = "") -> Value:
    """One tensor of the values of all steps, along a new axis. Of no steps it has the dtype and the
    sizes that the graph states for its output, 0 where it states none.
    """
    if not values:
        stated = call.get("body").types[name].tensor_type
        sizes = [0, *(each.dim_value for each in stated.shape.dim)]
        array = numpy.zeros(sizes, named(stated.elem_type, name).array)
        return Value(numpy.moveaxis(array, 0, axis))
    sources = frozenset[str]().union(*(each.sources for each in values))
    arrays = [each.data for each in values]
    if all(isinstance(each, numpy.ndarray) for each in arrays):
        return Value(numpy.stack(arrays, axis), sources)  # type: ignore[arg-type]
    tensors = [as_tensor(each, call.run.device) for each in arrays]
    return Value(Tensor.stack(*tensors, dim=axis), sources)


@operator("Scan", since=9)
def scan(call: Call) -> tuple[Value, ...]:
    """A graph applied to the slices of tensors in order, with states that it carries."""
    body: Graph = call.get("body")
    count = int(call.get("num_scan_inputs"))
    if not 0 < count <= len(call):
        raise ValueError(f"a scan over {count} of {len(call)} inputs")
    states, slices = list(call.inputs[: len(call) - count]), call.inputs[len(call) - count :]
    axes = call.get("scan_input_axes", [0] * count)
    backward = call.get("scan_input_directions", [0] * count)
    outputs = len(body.outputs) - len(states)
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    tensors = [as_tensor(each.data, call.run.device) for each in slices]
    length = int(tensors[0].shape[axes[0]])
    for step in range(length):
        given = []
        for tensor, value, axis, is_back in zip(tensors, slices, axes, backward, strict=True):
            place = length - 1 - step if is_back else step
            at = [slice(None)] * (axis % tensor.ndim)
            given.append(Value(tensor[(*at, place)], value.sources))
        results = call.run.graph(body, call.scope, [*states, *given])
        states = results[: len(states)]
        for every, each in zip(collected, results[len(states) :], strict=True):
            every.append(each)
    return (*states, *scanned(call, collected, body.outputs[len(states) :]))


def scanned(call: Call, collected: list[list[Value]], names: Sequence[str]) -> list[Value]:
    """The outputs of all steps along the axes, and in the directions, that a scan names."""
    count = len(collected)
    axes = call.get("scan_output_axes", [0] * count)
    backward = call.get("scan_output_directions", [0] * count)
    return [
        stacked(call, values[::-1] if is_back else values, axis, name)
        for values, axis, is_back, name in zip(collected, axes, backward, names, strict=True)
    ]


@operator("Scan", since=8)
def batched_scan(call: Call) -> tuple[Value, ...]:
    """Version 8 of `Scan`: its first input may hold lengths, and all have a batch in front."""
    if call.has(0):
        raise call.unsupported("scans of version 8 over sequences of different lengths.")
    values = [
        Value(as_tensor(each.data, call.run.device), each.sources) for each in call.inputs[1:]
    ]
    batch = int(values[0].data.shape[0])  # type: ignore[union-attr]
    every = []
    for index in range(batch):
        inputs = tuple(Value(each.data[index], each.sources) for each in values)  # type: ignore[index]
        attributes = {
            name.replace("directions", "scan_input_directions"): each
            for name, each in call.attributes.items()
        }
        every.append(scan(Call(call.run, call.scope, call.node, inputs, attributes, 9)))
    return tuple(stacked(call, list(each), 0) for each in zip(*every, strict=True))
