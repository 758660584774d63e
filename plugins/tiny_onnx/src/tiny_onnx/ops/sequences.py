"""Sequences and optionals, which are lists of Python and None."""

from __future__ import annotations

import numpy

from tiny_onnx.call import Call
from tiny_onnx.ops.layout import pieces, shape_of
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, Value, as_tensor
from tinycore import Tensor


def sequence(call: Call, index: int = 0) -> list[Data]:
    """An input that is a sequence."""
    found = call.data(index)
    if not isinstance(found, list):
        raise ValueError("a sequence was expected")
    return found


@operator("SequenceConstruct")
def construct(call: Call) -> Data:
    """A sequence of the inputs."""
    return [each.data for each in call.inputs]


@operator("SequenceEmpty")
def empty(call: Call) -> Data:
    """A sequence of nothing."""
    return []


@operator("SequenceLength")
def length(call: Call) -> Data:
    """The number of values in a sequence."""
    return numpy.array(len(sequence(call)), numpy.int64)


@operator("SequenceAt")
def at(call: Call) -> Data:
    """One value of a sequence."""
    return sequence(call)[int(call.number(1))]


@operator("SequenceErase")
def erase(call: Call) -> Data:
    """A sequence without one of its values, the last unless it is named."""
    result = list(sequence(call))
    del result[int(call.number(1, -1))]
    return result


@operator("SequenceInsert")
def insert(call: Call) -> Data:
    """A sequence with one more value, at the end unless a place is named."""
    result = list(sequence(call))
    place = int(call.number(2, len(result)))
    if not -len(result) <= place <= len(result):
        raise ValueError(f"there is no place {place} in a sequence of {len(result)}")
    result.insert(place, call.data(1))
    return result


@operator("ConcatFromSequence")
def concat_from_sequence(call: Call) -> Data:
    """The tensors of a sequence joined along an axis, or along a new one."""
    tensors = [as_tensor(each, call.run.device) for each in sequence(call)]
    axis = int(call.get("axis"))
    if call.get("new_axis", 0):
        return Tensor.stack(*tensors, dim=axis)
    return tensors[0].cat(*tensors[1:], dim=axis % tensors[0].ndim)


@operator("SplitToSequence")
def split_to_sequence(call: Call) -> Data:
    """Pieces of an axis: of one length, of several, or single slices."""
    x = call.tensor(0)
    axis = call.axis("axis", x.ndim, 0)
    side = int(x.shape[axis])
    call.run.spend(side)
    if not call.has(1):
        parts = pieces(x, [1] * side, axis)
        return list(parts if call.get("keepdims", 1) else [each.squeeze(axis) for each in parts])
    lengths = call.ints(1)
    if not shape_of(call.data(1)):
        step = lengths[0]
        lengths = [min(step, side - begin) for begin in range(0, side, step)]
    return list(pieces(x, lengths, axis))


@operator("SequenceMap")
def sequence_map(call: Call) -> tuple[Data, ...]:
    """A graph applied to the values of sequences in order."""
    body = call.get("body")
    count = len(sequence(call))
    results: list[list[Data]] = [[] for _ in body.outputs]
    for index in range(count):
        given = [
            Value(each.data[index] if isinstance(each.data, list) else each.data, each.sources)
            for each in call.inputs
        ]
        for every, each in zip(results, call.run.graph(body, call.scope, given), strict=True):
            every.append(each.data)
    return tuple(results)


@operator("Optional")
def optional(call: Call) -> Data:
    """An optional that holds the input, or nothing."""
    return call.data(0)


@operator("OptionalGetElement")
def get_element(call: Call) -> Data:
    """Content of an optional."""
    if call.data(0) is None:
        raise ValueError("an empty optional has no element")
    return call.data(0)


@operator("OptionalHasElement")
def has_element(call: Call) -> Data:
    """True if an optional holds something."""
    return numpy.array(call.data(0) is not None)
