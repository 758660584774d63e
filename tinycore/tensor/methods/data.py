"""Conversion of the data argument of `Tensor(...)` to a node.

Floor 5. Host data is copied into a buffer on the target device at once; a Python number becomes a
constant, which takes no memory.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from tinycore._deferred import NumpyArray, NumpyScalar, numpy
from tinycore.dtype import DType, Scalar, dtypes, from_numpy_dtype, to_dtype, to_numpy_dtype
from tinycore.errors import DTypeError, FileFormatError, OutOfMemory, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import number_dtype
from tinycore.tensor.runtime import HostArray, runtime
from tinycore.uop.host_bytes import encode
from tinycore.uop.node import UOp, as_scalar
from tinycore.uop.shape import DeviceLike, Shape
from tinycore.uop.size import Size, integer_of


@runtime_checkable
class SupportsArray(Protocol):
    """Anything that gives itself as a NumPy array, such as a torch tensor on the CPU."""

    def __array__(self) -> HostArray: ...


Nested: TypeAlias = "Scalar | range | list[Any] | tuple[Any, ...]"
Data: TypeAlias = (
    "Nested | bytes | bytearray | memoryview | os.PathLike[str] | UOp | Size | SupportsArray | None"
)


def node_from_data(data: Data, device: DeviceLike, dtype: DType | None) -> UOp:
    """The node that holds `data`.

    Raises ShapeError for ragged lists, DTypeError for strange items.
    """
    if isinstance(data, NumpyScalar):
        data = as_python(data, dtype := dtype or from_numpy_dtype(data.dtype))
    if isinstance(data, range):
        data = list(data)
    if data is None:
        return graph.scalar(dtype or dtypes.default_float, 0, device)
    if isinstance(data, (bool, int, float)):
        return graph.scalar(number_dtype("Tensor", data, dtype), data, device)
    if isinstance(data, Size):
        return graph.bound(data, dtype or integer_of(data), device)
    if isinstance(data, (list, tuple)):
        shape = nested_shape(data)
        if holds_arrays(data):
            return from_array(stacked(data), device, dtype)
        return from_flat(list(leaves(data)), shape, dtype, device)
    if isinstance(data, os.PathLike):
        return from_bytes(file_bytes(data), device, dtype)
    if isinstance(data, memoryview) and data.format not in BYTE_FORMATS:
        return from_array(numbers_of(data), device, dtype)
    if isinstance(data, (bytes, bytearray, memoryview)):
        flat = bytes(data) if isinstance(data, memoryview) and not data.c_contiguous else data
        return from_bytes(numpy.frombuffer(flat, numpy.uint8), device, dtype)
    if isinstance(data, SupportsArray):
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(data, torch.Tensor):
            return from_torch(data, device, dtype)
        return from_array(numpy.asarray(data), device, dtype)
    raise DTypeError(
        f"Tensor: cannot hold an object of type {type(data).__name__}. "
        "Give a number, a nested list of numbers, bytes, a path, a NumPy array or a Tensor."
    )


def file_bytes(path: str | os.PathLike[str]) -> HostArray:
    """The bytes of a regular file.

    Raises FileFormatError for a pipe or a device node, which have no length, OutOfMemory for a file
    larger than the memory of this machine, and OSError for a folder, or where it cannot be read.
    """
    with open(os.open(path, TO_READ), "rb", buffering=0) as file:
        status, place = os.fstat(file.fileno()), os.fspath(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place)
        if not stat.S_ISREG(status.st_mode):
            raise FileFormatError(f"Tensor: {place} is no regular file: it has no length")
        if status.st_size > host_memory():
            raise OutOfMemory(
                f"Tensor: {place} has {status.st_size} bytes, and this machine {host_memory()} of "
                "memory. Read it in parts, such as those of numpy.memmap"
            )
        return numpy.fromfile(file, numpy.uint8)


LEAST_UNPACKED: Final = 1 << 26
"""Bytes that any gzip file may unpack to."""
UNPACKED_EACH: Final = 32
"""Bytes that it may unpack to for each of its own, beside those."""
TO_READ: Final = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer is refused, not waited for
    | getattr(os, "O_CLOEXEC", 0)
)


def host_memory() -> float:
    """Bytes of memory of this machine; infinity where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


BYTE_FORMATS: Final = frozenset({"B", "c"})
"""Formats of a memoryview that are bytes, which a dtype reinterprets; others are numbers."""


def numbers_of(view: memoryview) -> HostArray:
    """The numbers of a memoryview, in its shape. Raises DTypeError for a format without a dtype."""
    try:
        array = numpy.asarray(view)
        from_numpy_dtype(array.dtype)
    except (ValueError, NotImplementedError, DTypeError) as error:
        raise DTypeError(
            f"Tensor: a memoryview of format {view.format!r} holds no numbers of a dtype. "
            "Give its bytes, view.cast('B'), and their dtype."
        ) from error
    return array.astype(array.dtype.newbyteorder("="))


def from_bytes(content: HostArray, device: DeviceLike, dtype: DType | None) -> UOp:
    """Bytes reinterpreted as elements of a dtype. Raises ShapeError if some are left over."""
    target = dtype or dtypes.uint8
    if content.size % target.itemsize:
        raise ShapeError(
            f"Tensor: {content.size} bytes hold no whole number of {target!r}, of "
            f"{target.itemsize} bytes each"
        )
    if content.size == 0:
        return graph.full((0,), target, 0, device)
    flat = content.view(to_numpy_dtype(target))
    return runtime().from_host(flat.copy(), target, device)


def from_torch(tensor: Any, device: DeviceLike, dtype: DType | None) -> UOp:
    """A tensor of torch, on whatever device and of any dtype: NumPy has no bfloat16 and no fp8."""
    found = to_dtype(str(tensor.dtype))
    flat = tensor.detach().contiguous().reshape(-1)
    content = flat.view(sys.modules["torch"].uint8).numpy(force=True)
    node = graph.reshape(from_bytes(content, device, found), tuple(tensor.shape))
    return node if dtype is None else node.cast(dtype)


def as_python(value: numpy.generic, dtype: DType) -> Scalar:
    """A NumPy scalar as the Python number a constant holds."""
    return as_scalar(value.item(), dtype)


def from_array(array: HostArray, device: DeviceLike, dtype: DType | None) -> UOp:
    """A NumPy array in a new buffer."""
    target = dtype or from_numpy_dtype(array.dtype)
    if array.size == 0:
        return graph.full(array.shape, target, 0, device)
    flat = encode(array, target).reshape(-1)
    return graph.reshape(runtime().from_host(flat, target, device), array.shape)


def from_flat(values: list[Scalar], shape: Shape, chosen: DType | None, device: DeviceLike) -> UOp:
    """Python numbers in row-major order in a new buffer.

    Integers wrap to a dtype that was chosen; the default one must hold them.
    """
    dtype = dtypes.from_py(values) if chosen is None else chosen
    array = numpy.array(values) if values else numpy.zeros(0)
    suspects = [] if array.dtype.kind in "bf" and not dtypes.is_int(dtype) else values
    if array.dtype.kind in "iu":
        suspects = [int(array.min()), int(array.max())]
    for value in suspects:
        number_dtype("Tensor", value, chosen)
    if array.dtype.kind not in "biuf" or (dtypes.is_int(dtype) and array.dtype.kind == "f"):
        array = numpy.array(
            [as_scalar(value, dtype) for value in values], numpy.dtype(host_kind(dtype))
        )
    return from_array(array.reshape(shape), device, dtype)


def holds_arrays(rows: object) -> bool:
    """True if the leaves of a nested list are NumPy arrays, the first at least, and numbers.

    The list must have a shape: one that holds itself has leaves without end.
    """
    found = leaves(rows)
    kinds = NumpyArray, bool, int, float
    return isinstance(next(found, None), NumpyArray) and all(isinstance(x, kinds) for x in found)


def stacked(rows: Nested) -> HostArray:
    """The arrays of a list as one, of the dtype that holds all. Raises ShapeError if ragged."""
    try:
        return numpy.array(rows)
    except ValueError as error:
        raise ShapeError(f"Tensor: a list of arrays of several shapes: {error}") from error


def host_kind(dtype: DType) -> str:
    """The widest NumPy type of the same kind."""
    return {"bool": "bool", "uint": "uint64", "float": "float64"}.get(dtype.kind, "int64")


DEEPEST: Final = 64
"""Greatest depth of nested lists; NumPy knows no more axes."""


def nested_shape(data: object, depth: int = 0) -> Shape:
    """The shape of a nested list. Raises ShapeError when it is ragged, or nested without end."""
    if not isinstance(data, (list, tuple)):
        return ()
    if depth == DEEPEST:
        raise ShapeError(
            f"Tensor: the list is nested more than {DEEPEST} deep; give a flat one and reshape it"
        )
    inner = [nested_shape(item, depth + 1) for item in data]
    for number, shape in enumerate(inner):
        if shape != inner[0]:
            raise ShapeError(
                f"Tensor: the nested list is ragged: item 0 has shape {inner[0]}, item {number} "
                f"has {shape}"
            )
    return (len(data), *(inner[0] if inner else ()))


def leaves(data: object) -> Iterator[Any]:
    """The numbers in a nested list, left to right."""
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from leaves(item)
    else:
        yield data.item() if isinstance(data, NumpyScalar) else data
