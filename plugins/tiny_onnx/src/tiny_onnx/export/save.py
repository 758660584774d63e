"""Writing a model: weights in its file or in one beside it, neither of which appears half."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy
import onnx
from onnx import TensorProto

from tiny_onnx.export.writer import NAMED, number_of
from tinycore import Tensor
from tinycore.dtype import DType, dtypes
from tinycore.nn.files.atomic import replacing_file

__all__ = ["MOST_INSIDE", "host_array", "save", "stored"]

MOST_INSIDE: Final = 1 << 30
"""Bytes of weights up to which they are part of the file: protobuf ends at 2 GiB."""
ALIGNMENT: Final = 4096
"""Weights in a file of their own begin at multiples of this, so that runtimes can map them."""


def host_array(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    """The elements of a tensor in their element type, which NumPy may know by `ml_dtypes` alone."""
    if tensor.dtype in (dtypes.bfloat16, *dtypes.fp8s):
        bits = dtypes.uint16 if tensor.dtype.itemsize == 2 else dtypes.uint8
        return tensor.bitcast(bits).numpy().view(NAMED[tensor.dtype].array)
    return tensor.numpy()


def described(name: str, dtype: DType, shape: tuple[int, ...]) -> TensorProto:
    """A weight without its elements."""
    return TensorProto(name=name, data_type=number_of(dtype), dims=shape)


def stored(name: str, array: numpy.ndarray[Any, Any], dtype: DType) -> TensorProto:
    """A weight with its elements, little end first."""
    proto = described(name, dtype, array.shape)
    proto.raw_data = little(array)
    return proto


def little(array: numpy.ndarray[Any, Any]) -> bytes:
    """The bytes of an array, little end first."""
    order = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    return numpy.ascontiguousarray(array, order).tobytes()


def save(
    model: onnx.ModelProto,
    weights: Mapping[str, Tensor],
    path: Path | None,
    is_outside: bool,
) -> None:
    """Add the weights to a model, and write it.

    A file of weights has a name of its own in each export, so that the model always finds the one
    it belongs to; that of the model which is replaced is deleted last.
    """
    if not is_outside:
        model.graph.initializer.extend(
            [stored(name, host_array(x), x.dtype) for name, x in weights.items()]
        )
    if path is None:
        return
    before = outside_files(path)
    if is_outside:
        place = path.with_name(f"{path.name}.{secrets.token_hex(4)}.data")
        with replacing_file(place) as file:
            for name, tensor in weights.items():
                model.graph.initializer.append(outside(file, place.name, name, tensor))
    try:
        with replacing_file(path) as file:
            file.write(model.SerializeToString())
    except BaseException:
        if is_outside:
            place.unlink(missing_ok=True)
        raise
    for old in before:
        old.unlink(missing_ok=True)


def outside(file: Any, place: str, name: str, tensor: Tensor) -> TensorProto:
    """A weight whose elements are written to another file."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    proto = described(name, tensor.dtype, tuple(tensor.shape))
    offset, content = file.tell(), little(host_array(tensor))
    file.write(content)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", place), ("offset", offset), ("length", len(content))):
        proto.external_data.add(key=key, value=str(value))
    return proto


def outside_files(path: Path) -> list[Path]:
    """Files of weights that an earlier export to this path wrote."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    folder = path.parent
    return [p for p in folder.iterdir() if pattern.fullmatch(p.name)] if folder.is_dir() else []
