"""Files of `torch.save`, read without executing anything in them.

Floor 6. Imports `dtype`, `errors` and NumPy.
Since torch 1.6 a file is a ZIP archive: a pickle that describes the object, and one record for each
storage. Before, the pickles stood one after another, and the storages behind them. A pickle is a
program that may call anything by name. Here it may call what `CALLS` lists, each of which only
notes its arguments; any other name is refused. Arrays are made afterwards, and every length that
the file states is compared with what is there.
"""

from __future__ import annotations

import errno
import io
import math
import os
import pickle
import pickletools
import reprlib
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy

from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import FileFormatError

__all__ = ["SavedTensor", "like", "read_archive", "read_object"]

Array = numpy.ndarray[Any, numpy.dtype[Any]]

MAGIC: Final = 0x1950A86A20F9469CFC6C
"""The first object of a file that is no archive."""
NOTES: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
"""Opcodes of pickles that give an object a number, by which later ones refer to it."""
MAX_DEPTH: Final = 64
"""Greatest depth of nested containers."""
shown: Final = reprlib.repr

TORCH_DTYPES: Final[dict[str, DType]] = {
    "bool": dtypes.bool,
    "uint8": dtypes.uint8,
    "int8": dtypes.int8,
    "uint16": dtypes.uint16,
    "int16": dtypes.int16,
    "uint32": dtypes.uint32,
    "int32": dtypes.int32,
    "uint64": dtypes.uint64,
    "int64": dtypes.int64,
    "float8_e4m3fn": dtypes.fp8e4m3,
    "float8_e5m2": dtypes.fp8e5m2,
    "float8_e4m3fnuz": dtypes.fp8e4m3fnuz,
    "float8_e5m2fnuz": dtypes.fp8e5m2fnuz,
    "float16": dtypes.float16,
    "bfloat16": dtypes.bfloat16,
    "float32": dtypes.float32,
    "float64": dtypes.float64,
}
"""torch's names of element types."""

STORAGES: Final[dict[str, DType]] = {
    "BoolStorage": dtypes.bool,
    "ByteStorage": dtypes.uint8,
    "CharStorage": dtypes.int8,
    "ShortStorage": dtypes.int16,
    "IntStorage": dtypes.int32,
    "LongStorage": dtypes.int64,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "FloatStorage": dtypes.float32,
    "DoubleStorage": dtypes.float64,
    "UntypedStorage": dtypes.uint8,
}
"""torch's classes of storages, by the type of their elements."""


@dataclass(frozen=True)
class Storage:
    """A run of elements in a file."""

    key: str
    dtype: DType
    count: int


@dataclass(frozen=True)
class Element:
    """A type of elements, as a pickle names it."""

    dtype: DType


@dataclass(frozen=True)
class View:
    """A tensor as a pickle describes it: a view of a storage."""

    storage: Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class SavedTensor:
    """An array of a file: elements as they are stored, `expanded` to the shape of the tensor.

    bfloat16 and fp8 appear as the unsigned integers that they are stored as.
    """

    array: Array
    dtype: DType
    shape: tuple[int, ...]


def view(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *rest: Any
) -> View:
    """`torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`."""
    return View(storage, storage.dtype, offset, tuple(shape), tuple(strides))


def typed_view(
    storage: Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    hooks: Any,
    element: Element,
    *rest: Any,
) -> View:
    """`torch._utils._rebuild_tensor_v3`, whose storage holds bytes."""
    return View(storage, element.dtype, offset, tuple(shape), tuple(strides))


def itself(found: Any, *rest: Any) -> Any:
    """`torch._utils._rebuild_parameter`: the tensor of a parameter."""
    return found


def as_tuple(*items: Any) -> tuple[Any, ...]:
    """`torch.Size`."""
    return tuple(*items)


def as_text(*parts: Any) -> str:
    """`torch.device`."""
    return ":".join(map(str, parts))


CALLS: Final[dict[tuple[str, str], Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): view,
    ("torch._utils", "_rebuild_tensor_v2"): view,
    ("torch._utils", "_rebuild_tensor_v3"): typed_view,
    ("torch._utils", "_rebuild_parameter"): itself,
    ("torch._utils", "_rebuild_parameter_with_state"): itself,
    ("torch", "Size"): as_tuple,
    ("torch", "device"): as_text,
    **{("torch", name): Element(dtype) for name, dtype in TORCH_DTYPES.items()},
    **{("torch", name): Element(dtype) for name, dtype in STORAGES.items()},
    ("torch.storage", "UntypedStorage"): Element(dtypes.uint8),
}
"""Every callable that a file may name. Each only records its arguments."""


class Description(pickle.Unpickler):
    """Reads a pickle that may name nothing but CALLS."""

    def find_class(self, module: str, name: str) -> Any:
        """The class that a name stands for. Raises FileFormatError for any that is not in CALLS."""
        if (module, name) not in CALLS:
            raise FileFormatError(
                f"the file holds an object of {module}.{name}, which is not loaded, as that could "
                "run any code. Save tensors, numbers and containers of them: "
                "torch.save(model.state_dict(), path)"
            )
        return CALLS[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        """The storage that a pickle refers to. Raises FileFormatError for anything else."""
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            raise FileFormatError(f"the file refers to {shown(pid)}, which is no storage")
        _, element, key, _, count, *window = pid
        if window not in ([], [None]) or not isinstance(element, Element):
            raise FileFormatError(f"the file refers to a storage in another way: {shown(pid)}")
        if not isinstance(count, int) or count < 0:
            raise FileFormatError(f"storage {shown(key)} has {shown(count)} elements")
        return Storage(str(key), element.dtype, count)


def next_description(file: IO[bytes]) -> Any:
    """The object that the next pickle of a file describes.

    Raises FileFormatError where it numbers objects beyond those it may hold: for a number, an
    unpickler takes memory for all below it.
    """
    start = file.tell()
    for code, number, place in pickletools.genops(file):
        if code.name in NOTES and place is not None and int(number or 0) > place - start:
            raise FileFormatError(f"the file numbers an object {number} after {place} bytes")
    file.seek(start)
    return Description(file).load()


def read_archive(path: str | os.PathLike[str]) -> Any:
    """The object in a file of `torch.save`, with a SavedTensor in the place of every tensor.

    Raises FileFormatError where the file breaks the format or holds anything but tensors, numbers,
    text and containers of them, and OSError when it cannot be read.
    """
    with Path(path).open("rb") as file:
        return read_object(file, str(path))


def read_object(file: io.BufferedReader, place: str) -> Any:
    """The object in the content of such a file; errors name `place`. Raises as `read_archive`."""
    try:
        if zipfile.is_zipfile(file):
            return from_zip(file)
        file.seek(0)
        return from_stream(file)
    except FileFormatError as error:
        raise FileFormatError(f"{place}: {error}") from error
    except (
        *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, EOFError),
        *(KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError),
        *(ImportError, RuntimeError, MemoryError, UnicodeError, OSError),
    ) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a place before 0
            raise
        raise FileFormatError(f"{place}: no file of torch.save: {shown(error)}") from error


def from_zip(file: io.BufferedReader) -> Any:
    """The object in an archive."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        roots = [n.removesuffix("data.pkl") for n in names if n.endswith("/data.pkl")]
        if len(roots) != 1:
            raise FileFormatError(f"the archive has {len(roots)} records data.pkl, not one")
        root = roots[0]

        def record(name: str) -> bytes:
            facts = archive.getinfo(root + name)
            if facts.compress_type != zipfile.ZIP_STORED:
                raise FileFormatError(f"record {shown(name)} is compressed, which torch never does")
            return archive.read(facts)

        order = record("byteorder").strip() if f"{root}byteorder" in names else b"little"
        if order not in (b"little", b"big"):
            raise FileFormatError(f"the order of bytes is {shown(order)}")
        found = next_description(io.BytesIO(record("data.pkl")))
        return Arrays(lambda key: record(f"data/{key}"), order.decode()).inside(found)


def from_stream(file: io.BufferedReader) -> Any:
    """The object in a file from before archives: pickles, and storages behind them."""
    if next_description(file) != MAGIC:
        raise FileFormatError("it does not begin as one")
    _protocol, system, found, keys = [next_description(file) for _ in range(4)]
    little = not isinstance(system, dict) or system.get("little_endian", True)
    start, records = file.tell(), {}
    size = file.seek(0, os.SEEK_END)
    stated = {s.key: s for s in storages_in(found, set())}
    for key in keys:
        storage = stated.get(str(key))
        file.seek(start)
        (count,) = struct.unpack("<q", file.read(8))
        if storage is None or count != storage.count:
            raise FileFormatError(f"storage {shown(key)} has {count} elements in one place only")
        length = count * storage.dtype.itemsize
        if start + 8 + length > size:
            raise FileFormatError(f"storage {shown(key)} goes beyond the end of the file")
        records[storage.key] = file.read(length)
        start += 8 + length
    return Arrays(records.__getitem__, "little" if little else "big").inside(found)


def storages_in(found: Any, seen: set[int], depth: int = 0) -> list[Storage]:
    """The storages below an object, but for what was seen. Raises FileFormatError when endless."""
    if isinstance(found, View):
        return [found.storage]
    parts = [] if id(found) in seen else children(found, depth)
    below = [s for child in parts for s in storages_in(child, seen, depth + 1)]
    seen.add(id(found))  # afterwards: one that contains itself is endless
    return below


def children(found: Any, depth: int) -> list[Any]:
    """Items of a container. Raises FileFormatError below MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise FileFormatError(f"containers are nested more than {MAX_DEPTH} deep")
    if isinstance(found, dict):
        return list(found.values())
    return list(found) if isinstance(found, (list, tuple)) else []


def like(container: Any, items: list[Any]) -> Any:
    """A dict with the keys of another, or a list or tuple, of other items."""
    if isinstance(container, dict):
        return dict(zip(container, items, strict=True))
    return items if isinstance(container, list) else tuple(items)


class Arrays:
    """Makes arrays of descriptions; a storage is read once, for all tensors that view it."""

    def __init__(self, read: Callable[[str], bytes], order: str) -> None:
        self.read, self.order = read, order
        self.known: dict[str, Array] = {}
        self.made: dict[int, Any] = {}
        """By the id of a container, that with arrays: small files may name one very often."""

    def inside(self, found: Any, depth: int = 0) -> Any:
        """An object with arrays in the place of descriptions. Raises FileFormatError."""
        if isinstance(found, View):
            return self.tensor(found)
        if isinstance(found, (dict, list, tuple)):
            if id(found) not in self.made:
                items = [self.inside(child, depth + 1) for child in children(found, depth)]
                self.made[id(found)] = like(found, items)
            return self.made[id(found)]
        if isinstance(found, Element):
            return found.dtype
        if isinstance(found, Storage):
            raise FileFormatError("it holds a storage beside tensors; save tensors")
        return found

    def tensor(self, described: View) -> SavedTensor:
        """The elements of one tensor. Raises FileFormatError where they are not in its storage."""
        storage, dtype, shape = described.storage, described.dtype, described.shape
        strides, offset = described.strides, described.offset
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise FileFormatError(
                f"a tensor has offset {shown(offset)}, shape {shown(shape)}, strides "
                f"{shown(strides)}"
            )
        elements = self.elements(storage, dtype)
        thin = tuple([1 if step == 0 else n for n, step in zip(shape, strides, strict=True)])
        last = offset + sum((n - 1) * step for n, step in zip(thin, strides, strict=True))
        count = math.prod(thin)
        if count and (last >= elements.size or count > elements.size):
            raise FileFormatError(
                f"a tensor of shape {shape} and strides {strides} from element {offset} is beyond "
                f"the {elements.size} elements of storage {shown(storage.key)}"
            )
        bytes_apart = [step * elements.itemsize for step in strides]
        begin = elements[offset:] if count else elements[:0]
        array = numpy.lib.stride_tricks.as_strided(begin, thin, bytes_apart, writeable=False)
        return SavedTensor(numpy.ascontiguousarray(array).reshape(thin), dtype, shape)

    def elements(self, storage: Storage, dtype: DType) -> Array:
        """A storage as elements of a dtype. Raises FileFormatError for another length."""
        size = storage.count * storage.dtype.itemsize
        if storage.key not in self.known:
            self.known[storage.key] = numpy.frombuffer(self.read(storage.key), numpy.uint8)
        content = self.known[storage.key]
        if content.size != size or size % dtype.itemsize:
            raise FileFormatError(
                f"storage {shown(storage.key)} has {content.size} bytes instead of {size}, of "
                f"{dtype!r}"
            )
        stored = to_numpy_dtype(dtype)
        found: Array = content.view(stored.newbyteorder("<" if self.order == "little" else ">"))
        return found.astype(stored, copy=False)
