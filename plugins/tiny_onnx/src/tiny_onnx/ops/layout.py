"""Operators that move elements: reshapes, slices, joins, pads."""

from __future__ import annotations

import numpy

from tiny_onnx.call import Call
from tiny_onnx.element_types import named
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, as_tensor
from tinycore import Tensor, dtypes

MOST_IN_A_RANGE = 2**28
"""Numbers of a `Range`, which is computed on the host, where its length must be known."""


def shape_of(data: Data) -> tuple[int, ...]:
    """The shape of a tensor, wherever it is."""
    if not isinstance(data, Tensor | numpy.ndarray):
        raise ValueError("a tensor was expected")
    return tuple(int(side) for side in data.shape)


@operator("Constant")
def constant(call: Call) -> Data:
    """The value of the one attribute that is given."""
    name, value = next(iter(call.attributes.items()))
    match name:
        case "value":
            return value  # type: ignore[no-any-return]
        case "value_string":
            return numpy.array(value, dtype=object)
        case "value_strings":
            return numpy.array(value, dtype=object)
        case "value_int" | "value_ints":
            return numpy.array(value, dtype=numpy.int64)
        case "value_float" | "value_floats":
            return numpy.array(value, dtype=numpy.float32)
    raise call.unsupported(f"constants by {name!r}.")


@operator("ConstantOfShape")
def constant_of_shape(call: Call) -> Data:
    """A tensor of one number."""
    value = call.get("value", numpy.zeros(1, numpy.float32))
    one = as_tensor(value.reshape(()), call.run.device)
    return one.expand(*call.ints(0))


@operator("Shape")
def shape(call: Call) -> Data:
    """The shape, or a range of it. It is known before anything is computed."""
    sides = shape_of(call.data(0))
    begin, end = call.get("start", 0), call.get("end", len(sides))
    return numpy.array(sides[slice(begin, end)], dtype=numpy.int64)


@operator("Size")
def size(call: Call) -> Data:
    """The number of elements."""
    return numpy.array(numpy.prod(shape_of(call.data(0)), dtype=numpy.int64))


@operator("Reshape")
def reshape(call: Call) -> Data:
    """The same elements in another shape: 0 keeps a side (unless `allowzero`), -1 is the rest."""
    x = call.tensor(0)
    sides = call.ints(1, "shape")
    if not call.get("allowzero", 0):
        sides = [x.shape[axis] if side == 0 else side for axis, side in enumerate(sides)]
    if -1 in sides and x.numel() == 0:
        known = numpy.prod([side for side in sides if side != -1])
        sides = [0 if side == -1 and known else side for side in sides]
    return x.reshape(*sides)


@operator("Flatten")
def flatten(call: Call) -> Data:
    """A matrix: the axes before `axis` are its rows."""
    x = call.tensor(0)
    axis = call.axis("axis", x.ndim, 1)
    rows = int(numpy.prod(x.shape[:axis]))
    return x.reshape(rows, int(numpy.prod(x.shape[axis:])))


@operator("Transpose")
def transpose(call: Call) -> Data:
    """Axes in another order, in reverse unless it is given."""
    x = call.tensor(0)
    return x.permute(*call.get("perm", list(reversed(range(x.ndim)))))


@operator("Squeeze")
def squeeze(call: Call) -> Data:
    """The axes given, or all, of length one removed."""
    x = call.tensor(0)
    axes = call.ints(1, "axes", [axis for axis, side in enumerate(x.shape) if side == 1])
    gone = {axis % x.ndim for axis in axes} if x.ndim else set()
    if any(x.shape[axis] != 1 for axis in gone):
        raise ValueError(f"axes {sorted(gone)} of shape {tuple(x.shape)} are not of length one")
    return x.reshape(*[side for axis, side in enumerate(x.shape) if axis not in gone])


@operator("Unsqueeze")
def unsqueeze(call: Call) -> Data:
    """Axes of length one put in, counted in the result."""
    x = call.tensor(0)
    axes = call.ints(1, "axes")
    rank = x.ndim + len(axes)
    new = {axis % rank for axis in axes}
    sides = iter(x.shape)
    return x.reshape(*[1 if axis in new else next(sides) for axis in range(rank)])


@operator("Concat")
def concat(call: Call) -> Data:
    """Tensors joined along an axis."""
    tensors = call.tensors()
    axis = call.axis("axis", tensors[0].ndim, 1)
    return tensors[0] if len(tensors) == 1 else tensors[0].cat(*tensors[1:], dim=axis)


@operator("Split")
def split(call: Call) -> Data | tuple[Data, ...]:
    """Pieces along an axis: of given lengths, or as even as they can be."""
    x = call.tensor(0)
    axis = call.axis("axis", x.ndim, 0)
    count = call.get("num_outputs", len(call.node.outputs))
    length = int(x.shape[axis])
    step = -(-length // count)
    even = [max(0, min(step, length - begin * step)) for begin in range(count)]
    return tuple(pieces(x, call.ints(1, "split", even), axis))


def pieces(x: Tensor, lengths: list[int], axis: int) -> list[Tensor]:
    """Consecutive pieces of an axis."""
    result, begin = [], 0
    if sum(lengths) != x.shape[axis] or min(lengths, default=0) < 0:
        raise ValueError(f"pieces of {lengths} do not fill an axis of {x.shape[axis]}")
    for length in lengths:
        bounds = [(0, side) for side in x.shape]
        bounds[axis] = (begin, begin + length)
        result.append(x.shrink(tuple(bounds)))
        begin += length
    return result


@operator("Slice")
def slice_(call: Call) -> Data:
    """Ranges of axes. Bounds beyond the ends are moved to them, as NumPy does."""
    x = call.tensor(0)
    starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
    axes = call.ints(3, "axes", list(range(len(starts))))
    steps = call.ints(4, default=[1] * len(starts))
    where = [slice(None)] * x.ndim
    for begin, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last, stride = slice(begin, end, step).indices(int(x.shape[axis]))
        where[axis] = slice(first, None if last < 0 else last, stride)
    return x[tuple(where)]


@operator("Expand")
def expand(call: Call) -> Data:
    """Sides of length one repeated, by the rules of broadcasting for both shapes."""
    x = call.tensor(0)
    shape = numpy.broadcast_shapes(tuple(x.shape), tuple(call.ints(1)))
    return x.expand(*shape)


@operator("Tile")
def tile(call: Call) -> Data:
    """The input repeated along each axis."""
    x = call.tensor(0)
    if call.version < 6:
        repeats = [1] * x.ndim
        repeats[call.number(2)] = call.number(1)
        return x.repeat(*repeats)
    return x.repeat(*call.ints(1)) if x.ndim else x


@operator("Pad")
def pad(call: Call) -> Data:
    """Elements added at the ends of axes: a constant, or the tensor mirrored, repeated, wrapped."""
    x = call.tensor(0)
    amounts = call.ints(1, "pads" if "pads" in call.attributes else "paddings")
    axes = [axis % x.ndim for axis in call.ints(3, default=list(range(x.ndim)))]
    pairs = [(0, 0)] * x.ndim
    for index, axis in enumerate(axes):
        pairs[axis] = (amounts[index], amounts[index + len(axes)])
    mode = call.get("mode", "constant")
    if mode != "constant":
        return padded(x, pairs, {"edge": "replicate", "wrap": "circular"}.get(mode, mode))
    value = call.number(2, call.get("value", 0)) or 0
    return x.pad(tuple(pairs), value=value)


def padded(x: Tensor, pairs: list[tuple[int, int]], mode: str) -> Tensor:
    """Padding by elements of the tensor, axis by axis, by an index that says which."""
    for axis, (before, after) in enumerate(pairs):
        if (before, after) == (0, 0):
            continue
        length = int(x.shape[axis])
        places = numpy.arange(-before, length + after)
        if mode == "replicate":
            places = places.clip(0, length - 1)
        elif mode == "circular":
            kept = numpy.arange(max(0, -before), length + min(0, after))
            places = numpy.concatenate(
                [kept[numpy.arange(-max(0, before), 0) % len(kept)], kept,
                 kept[numpy.arange(max(0, after)) % len(kept)]]
            )  # fmt: skip
        else:
            period = max(1, 2 * (length - 1))
            places = numpy.abs((places + length - 1) % period - (length - 1))
        x = x.index_select(axis, Tensor(places.astype(numpy.int32), device=x.device))
    # stored, or a convolution would look up each element again in every window that has it
    return x.contiguous()


@operator("DepthToSpace")
def depth_to_space(call: Call) -> Data:
    """Blocks of channels laid out as squares of pixels."""
    x, size = call.tensor(0), call.get("blocksize")
    count, channels, height, width = (int(side) for side in x.shape)
    depth = channels // (size * size)
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape(count, size, size, depth, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(count, depth, size, size, height, width).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(count, depth, height * size, width * size)


@operator("SpaceToDepth")
def space_to_depth(call: Call) -> Data:
    """Squares of pixels laid out as channels."""
    x, size = call.tensor(0), call.get("blocksize")
    count, channels, height, width = (int(side) for side in x.shape)
    x = x.reshape(count, channels, height // size, size, width // size, size)
    if call.get("mode", "DCR") == "DCR":
        x = x.permute(0, 3, 5, 1, 2, 4)
    else:
        x = x.permute(0, 1, 3, 5, 2, 4)
    return x.reshape(count, channels * size * size, height // size, width // size)


@operator("EyeLike")
def eye_like(call: Call) -> Data:
    """Ones on a diagonal of a matrix of the input's shape."""
    rows, columns = shape_of(call.data(0))
    dtype = call.tensor(0).dtype
    if "dtype" in call.attributes:
        found = named(call.get("dtype"), str(call.node)).tensor
        dtype = dtype if found is None else found
    return Tensor(
        numpy.eye(rows, columns, call.get("k", 0), dtype=numpy.float32), device=call.run.device
    ).cast(dtype)


@operator("Trilu")
def trilu(call: Call) -> Data:
    """The part of matrices above, or below, a diagonal."""
    x, diagonal = call.tensor(0), int(call.number(1, 0))
    rows, columns = int(x.shape[-2]), int(x.shape[-1])
    places = numpy.arange(columns)[None] - numpy.arange(rows)[:, None]
    kept = places >= diagonal if call.get("upper", 1) else places <= diagonal
    return Tensor(kept, device=call.run.device).where(x, x.zeros_like())


@operator("Range")
def range_(call: Call) -> Data:
    """Numbers from a start, by a step, before an end."""
    start, end, step = call.array(0), call.array(1), call.array(2)
    count = max(0, int(numpy.ceil((end.item() - start.item()) / step.item())))
    if count > MOST_IN_A_RANGE:
        raise ValueError(f"a range of {count} numbers is more than {MOST_IN_A_RANGE}")
    numbers: numpy.ndarray = (numpy.arange(count) * step + start).astype(start.dtype)
    return numbers


@operator("CenterCropPad")
def center_crop_pad(call: Call) -> Data:
    """Axes brought to given lengths by cutting or adding zeros evenly at both ends."""
    x = call.tensor(0)
    axes = [axis % x.ndim for axis in call.get("axes", list(range(x.ndim)))]
    pairs = [(0, 0)] * x.ndim
    for axis, length in zip(axes, call.ints(1), strict=True):
        lacking = length - int(x.shape[axis])
        before = lacking // 2 if lacking >= 0 else -(-lacking // 2)
        pairs[axis] = (before, lacking - before)
    return x.pad(tuple(pairs))


@operator("ReverseSequence")
def reverse_sequence(call: Call) -> Data:
    """The first elements of each sequence of a batch in reverse order."""
    x, lengths = call.tensor(0), call.tensor(1).cast(dtypes.int32)
    time, batch = call.axis("time_axis", x.ndim, 0), call.axis("batch_axis", x.ndim, 1)
    steps = Tensor.arange(int(x.shape[time]), device=call.run.device)
    shape = [1] * x.ndim
    shape[time] = int(x.shape[time])
    steps = steps.reshape(*shape)
    shape = [1] * x.ndim
    shape[batch] = int(x.shape[batch])
    lengths = lengths.reshape(*shape)
    places = (steps < lengths).where(lengths - 1 - steps, steps)
    return x.gather(time, places.expand(*x.shape))


@operator("OneHot")
def one_hot(call: Call) -> Data:
    """A new axis with one value at the index and another elsewhere."""
    indices, values = call.tensor(0), call.tensor(2)
    depth = int(call.number(1))
    axis = call.axis("axis", indices.ndim + 1, -1)
    places = indices.cast(dtypes.int64)
    places = (places < 0).where(places + depth, places).unsqueeze(axis)
    shape = [1] * (indices.ndim + 1)
    shape[axis] = depth
    classes = Tensor.arange(depth, device=call.run.device).reshape(*shape)
    return (places == classes).where(values[1], values[0])
