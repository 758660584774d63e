"""Values that flow along the edges of a graph, and moves between host and device.

A value is a `Tensor`, a NumPy array on the host (constants, shapes, strings), a list of values (a
sequence), or None (an optional without content). Shapes and axes are computed on the host, as
kernels need them when they are built; everything else stays on the device.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy

from tiny_onnx.element_types import element_of
from tinycore import Tensor, dtypes
from tinycore.errors import UnsupportedError

__all__ = ["NOTHING", "Data", "Value", "as_array", "as_tensor", "describe"]

Data: TypeAlias = "Tensor | numpy.ndarray | list[Data] | None"
"""Content of a value."""


class Value:
    """The value of one edge of a graph.

    `sources` names the graph inputs whose contents it depends on. `is_fixed` holds for what
    depends on no input at all, not even on a shape or on a random number.
    """

    __slots__ = ("data", "is_fixed", "sources")

    def __init__(
        self, data: Data, sources: frozenset[str] = frozenset(), is_fixed: bool = False
    ) -> None:
        self.data = data
        self.sources = sources
        self.is_fixed = is_fixed


NOTHING: Final = Value(None, is_fixed=True)
"""An input that a node leaves out."""


def as_tensor(data: Data, device: str | None = None, *, is_input: bool = False) -> Tensor:
    """A value on the device.

    One number becomes a constant of the kernels that use it, unless it is an input, whose memory
    gets another one in the next call.
    """
    if isinstance(data, Tensor):
        return data
    if not isinstance(data, numpy.ndarray):
        raise UnsupportedError(f"a tensor was expected, not {describe(data)}.")
    element = element_of(data)
    if element.tensor is None:
        raise UnsupportedError("strings cannot be moved to a device.")
    if element.tensor in dtypes.fp8s:
        bits = Tensor(numpy.asarray(data, order="C").view(numpy.uint8), device=device)
        return bits.bitcast(element.tensor)
    if data.size == 1 and not is_input:
        return Tensor(data.item(), device, element.tensor).reshape(data.shape)
    held = numpy.dtype(HELD.get(element.tensor.name, element.array))
    return Tensor(numpy.asarray(data, dtype=held, order="C"), device=device)


def widened(tensor: Tensor) -> Tensor:
    """A tensor in float32 if squares of its numbers may exceed its dtype, as those of float16."""
    is_half = tensor.is_floating_point() and tensor.dtype.itemsize == 2
    return tensor.cast(dtypes.float32) if is_half else tensor


HELD: Final = {"int8": numpy.int8, "uint8": numpy.uint8, "float32": numpy.float32}
"""Arrays of the dtypes that also hold types which tinycore does not have."""


def as_array(data: Data) -> numpy.ndarray:
    """A value on the host. A tensor is computed and copied."""
    if isinstance(data, numpy.ndarray):
        return data
    if isinstance(data, Tensor):
        return data.numpy()
    raise UnsupportedError(f"a tensor was expected, not {describe(data)}.")


def describe(data: Data) -> str:
    """A value as error messages name it."""
    if isinstance(data, list):
        return f"a sequence of {len(data)} values"
    if data is None:
        return "an empty optional"
    return f"a tensor of shape {tuple(data.shape)}"
