"""Files of `torch.save`, read without executing anything in them.

Floor 6. Imports `dtype`, `errors` and NumPy.
Since torch 1.6 a file is a ZIP archive: a pickle that describes the object, and one record for each
storage. Before, the pickles stood one after another, and the storages behind them. The pickles are
run by `PickleMachine`, which calls what CALLS lists and nothing else: tensors, numbers and
containers are read, and any other object is an `Opaque`. Every length that the file states is
compared with what is there.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy

from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import FileFormatError
from tinycore.nn.files.pickled import COMMON_CALLS, Call, Opaque, PickleMachine
from tinycore.nn.files.source import Budget, Source, Stream, reading, shown, verify_shape

__all__ = ["SavedTensor", "read_archive"]

Array = numpy.ndarray[Any, numpy.dtype[Any]]

MAGIC: Final = 0x1950A86A20F9469CFC6C
"""The first object of a file that is no archive."""
CACHE_BYTES: Final = 1 << 26
"""Storages that are kept for the next tensors; beyond, the last one is."""

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
    "torch.BoolStorage": dtypes.bool,
    "torch.ByteStorage": dtypes.uint8,
    "torch.CharStorage": dtypes.int8,
    "torch.ShortStorage": dtypes.int16,
    "torch.IntStorage": dtypes.int32,
    "torch.LongStorage": dtypes.int64,
    "torch.HalfStorage": dtypes.float16,
    "torch.BFloat16Storage": dtypes.bfloat16,
    "torch.FloatStorage": dtypes.float32,
    "torch.DoubleStorage": dtypes.float64,
    "torch.UntypedStorage": dtypes.uint8,
    "torch.storage.UntypedStorage": dtypes.uint8,
}
"""torch's classes of storages, by the type of their elements."""
PLAIN_TENSORS: Final = frozenset(
    {"torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"}
)
"""Classes whose tensors mean what their elements are."""
NATIVE_FLOATS: Final = (dtypes.float16, dtypes.float32, dtypes.float64)
"""Elements of the imaginary parts of complex tensors, which may be stored with the other sign."""
OTHER_SIZES: Final = {
    "torch.ComplexFloatStorage": 8,
    "torch.ComplexDoubleStorage": 16,
    "torch.QInt8Storage": 1,
    "torch.QUInt8Storage": 1,
    "torch.QInt32Storage": 4,
}
"""Bytes of elements for which there is no dtype here."""
MOST_DEVICE_LETTERS: Final = 32


@dataclass(frozen=True, eq=False)
class SavedTensor:
    """An array of a file: elements as they are stored, to be expanded to the shape of the tensor.

    bfloat16 and fp8 appear as the unsigned integers that they are stored as.
    """

    array: Array
    dtype: DType
    shape: tuple[int, ...]


class Storage(Opaque):
    """A run of elements in a file; its dtype is None where there is none here."""

    __slots__ = ("count", "dtype", "itemsize", "key")

    def __init__(self, key: str, kind: str, count: int) -> None:
        super().__init__(f"{kind} of {count} elements")
        self.key, self.dtype, self.count = key, STORAGES.get(kind), count
        self.itemsize = self.dtype.itemsize if self.dtype else OTHER_SIZES.get(kind, 0)


Order = Literal["little", "big"]
ORDERS: Final[dict[bytes, Order]] = {b"little": "little", b"big": "big"}
"""The orders of bytes, as archives name them."""
Make = Callable[[SavedTensor], Any]
"""Makes what the caller wants of a tensor."""
Read = Callable[[str], bytes]
"""The content of a storage."""


class TensorReader:
    """Makes the tensors of one load. A storage is read once for all tensors that follow in it."""

    def __init__(self, read: Read | None, order: Order, budget: Budget, make: Make) -> None:
        self.read, self.order, self.budget, self.make = read, order, budget, make
        self.kept: OrderedDict[str, bytes] = OrderedDict()
        self.held = 0
        self.stated: dict[str, Storage] = {}
        self.made: dict[tuple[object, ...], Any] = {}
        self.machine = PickleMachine(
            {**COMMON_CALLS, **CALLS, **self.calls()}, NAMED_DTYPES, self.storage, budget
        )

    def calls(self) -> dict[str, Call]:
        """Makers of tensors, by torch's names."""
        return {
            "torch._utils._rebuild_tensor": self.view,
            "torch._utils._rebuild_tensor_v2": self.view,
            "torch._utils._rebuild_tensor_v3": self.typed_view,
        }

    def storage(self, pid: Any) -> Opaque:
        """The storage that a pickle refers to, or the class, which files from before archives give
        with its source text. Raises FileFormatError for anything else.
        """
        if isinstance(pid, tuple) and pid[:1] == ("module",) and isinstance(pid[1], Opaque):
            return pid[1]
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            raise FileFormatError(f"the file refers to {shown(pid)}, which is no storage")
        _, kind, key, _, count, *window = pid
        if window not in ([], [None]) or not isinstance(kind, Opaque):
            raise FileFormatError(f"the file refers to a storage in another way: {shown(pid)}")
        if type(count) is not int or count < 0 or not isinstance(key, (str, int)):
            raise FileFormatError(f"storage {shown(key)} has {shown(count)} elements")
        found = Storage(str(key), kind.name, count)
        self.stated.setdefault(found.key, found)
        return found

    def view(
        self,
        m: PickleMachine,
        storage: Any,
        offset: Any,
        shape: Any,
        strides: Any,
        requires_grad: Any = False,
        hooks: Any = None,
        metadata: Any = None,
    ) -> Any:
        """`torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`."""
        dtype = storage.dtype if isinstance(storage, Storage) else None
        return self.tensor(storage, dtype, offset, shape, strides, metadata)

    def typed_view(
        self,
        m: PickleMachine,
        storage: Any,
        offset: Any,
        shape: Any,
        strides: Any,
        requires_grad: Any,
        hooks: Any,
        dtype: Any,
        metadata: Any = None,
    ) -> Any:
        """`torch._utils._rebuild_tensor_v3`, whose storage holds bytes."""
        known = dtype if isinstance(dtype, DType) else None
        return self.tensor(storage, known, offset, shape, strides, metadata)

    def tensor(
        self, storage: Any, dtype: DType | None, offset: Any, shape: Any, strides: Any, more: Any
    ) -> Any:
        """The tensor that was made of a description; an Opaque for one that has no equal here."""
        if not isinstance(storage, Storage):
            raise FileFormatError(f"a tensor lies in {shown(storage)}, which is no storage")
        for numbers in (shape, strides, (offset,)):
            if not isinstance(numbers, tuple) or any(type(n) is not int or n < 0 for n in numbers):
                raise FileFormatError(f"a tensor has offset, shape or strides {shown(numbers)}")
        is_negative = more == {"neg": True} and dtype in NATIVE_FLOATS
        if dtype is None or storage.dtype is None or not (is_negative or more in (None, {})):
            return Opaque(
                f"a tensor of {storage.name} and shape {shown(shape)}", (shape, strides, more)
            )
        key = storage.key, dtype, offset, shape, strides, is_negative
        if key not in self.made:
            self.made[key] = self.new(storage, dtype, offset, shape, strides, is_negative)
        return self.made[key]

    def new(
        self,
        storage: Storage,
        dtype: DType,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        is_negative: bool,
    ) -> Any:
        """A new tensor. Raises FileFormatError where it is not in its storage."""
        if len(shape) != len(strides):
            raise FileFormatError(f"a tensor has shape {shown(shape)}, strides {shown(strides)}")
        verify_shape(shape, dtype.itemsize, "a tensor")
        if self.read is None:
            return None
        elements = self.elements(storage, dtype)
        thin = tuple([1 if step == 0 else n for n, step in zip(shape, strides, strict=True)])
        last = offset + sum((n - 1) * step for n, step in zip(thin, strides, strict=True))
        count = math.prod(thin)
        if count and last >= elements.size:
            raise FileFormatError(
                f"a tensor of shape {shown(shape)} and strides {shown(strides)} from element "
                f"{offset} is beyond the {elements.size} elements of storage {shown(storage.key)}"
            )
        self.budget.spend("tensors", 1)
        self.budget.spend("bytes of tensors", count * elements.itemsize)
        if not count:
            return self.make(SavedTensor(numpy.empty(thin, elements.dtype), dtype, shape))
        apart = [step * elements.itemsize for step in strides]
        array = numpy.lib.stride_tricks.as_strided(elements[offset:], thin, apart)
        return self.make(SavedTensor(-array if is_negative else array, dtype, shape))

    def elements(self, storage: Storage, dtype: DType) -> Array:
        """A storage as elements of a dtype. Raises FileFormatError for another length."""
        content, size = self.content(storage.key), storage.count * storage.itemsize
        if len(content) != size or size % dtype.itemsize:
            raise FileFormatError(
                f"storage {shown(storage.key)} has {len(content)} bytes instead of {size}, of "
                f"{dtype!r}"
            )
        stored = to_numpy_dtype(dtype)
        found = numpy.frombuffer(content, stored.newbyteorder(self.order))
        return found.astype(stored, copy=False)

    def content(self, key: str) -> bytes:
        """The bytes of a storage, read or kept from the last tensors."""
        assert self.read is not None
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        content = self.kept[key] = self.read(key)
        self.budget.spend("bytes of tensors", len(content))
        self.held += len(content)
        while self.held > CACHE_BYTES and len(self.kept) > 1:
            self.held -= len(self.kept.popitem(last=False)[1])
        return content


def itself(m: PickleMachine, found: Any, *rest: Any) -> Any:
    """`torch._utils._rebuild_parameter`: the tensor of a parameter."""
    return found


def with_attributes(m: PickleMachine, make: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """`torch._tensor._rebuild_from_type_v2`: a tensor that has attributes, which are left out.

    One of a class that may mean something else by its elements is an Opaque.
    """
    made = m.call(make, arguments)
    if isinstance(kind, Opaque) and kind.name in PLAIN_TENSORS:
        return made
    found = Opaque(kind.name if isinstance(kind, Opaque) else "a tensor", (made,))
    found.state = state
    return found


def as_tuple(m: PickleMachine, items: Any = ()) -> tuple[Any, ...]:
    """`torch.Size`."""
    m.budget.spend("copied items", len(items))
    return tuple(items)


def as_text(m: PickleMachine, kind: Any, number: Any = None) -> str:
    """`torch.device`."""
    if not isinstance(kind, str) or len(kind) > MOST_DEVICE_LETTERS:
        raise FileFormatError(f"a device is named {shown(kind)}")
    if number is None:
        return kind
    if type(number) is not int or not -1 <= number < 1 << 16:
        raise FileFormatError(f"a device has the number {shown(number)}")
    return f"{kind}:{number}"


NAMED_DTYPES: Final = {f"torch.{name}": dtype for name, dtype in TORCH_DTYPES.items()}
CALLS: Final[dict[str, Call]] = {
    "torch._utils._rebuild_parameter": itself,
    "torch._utils._rebuild_parameter_with_state": itself,
    "torch._tensor._rebuild_from_type_v2": with_attributes,
    "torch.Size": as_tuple,
    "torch.device": as_text,
}
"""Objects of torch that are read, beside tensors and COMMON_CALLS."""


def read_archive(source: Source, make: Make) -> Any:
    """The object in a file of `torch.save`, with what `make` makes in the place of every tensor.

    Raises FileFormatError where the file breaks the format, and OSError when it cannot be read.
    """
    with reading(source.place, "file of torch.save"):
        stream = source.stream()
        if zipfile.is_zipfile(stream):
            return from_zip(stream, make)
        return from_stream(source, make)


def from_zip(stream: Stream, make: Make) -> Any:
    """The object in an archive."""
    with zipfile.ZipFile(stream) as archive:
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

        stated = record("byteorder").strip() if f"{root}byteorder" in names else b"little"
        if stated not in ORDERS:
            raise FileFormatError(f"the order of bytes is {shown(stated)}")
        reader = TensorReader(
            lambda key: record(f"data/{key}"), ORDERS[stated], Budget(stream.size), make
        )
        return reader.machine.load(io.BytesIO(record("data.pkl")))


def from_stream(source: Source, make: Make) -> Any:
    """The object in a file from before archives: pickles, and storages behind them.

    The pickle of the object is run twice: where storages are is known after the first time.
    """
    stream = source.stream()
    survey = TensorReader(None, "little", Budget(source.size), make)
    if survey.machine.load(stream) != MAGIC:
        raise FileFormatError("it does not begin as one")
    _protocol, system = survey.machine.load(stream), survey.machine.load(stream)
    begin = stream.tell()
    survey.machine.load(stream)
    keys = survey.machine.load(stream)
    places = storage_places(source, stream.tell(), keys, survey.stated)
    little = not isinstance(system, dict) or system.get("little_endian", True)
    reader = TensorReader(
        lambda key: source.bytes(*places[key]),
        "little" if little else "big",
        Budget(source.size),
        make,
    )
    stream.seek(begin)
    return reader.machine.load(stream)


def storage_places(
    source: Source, start: int, keys: Any, stated: dict[str, Storage]
) -> dict[str, tuple[int, int]]:
    """Positions and lengths of the storages, which follow one another."""
    places = {}
    for key in keys:
        storage = stated.get(str(key))
        (count,) = struct.unpack("<q", source.bytes(start, 8))
        if storage is None or not storage.itemsize or count != storage.count:
            raise FileFormatError(f"storage {shown(key)} has {count} elements in one place only")
        length = count * storage.itemsize
        if start + 8 + length > source.size:
            raise FileFormatError(f"storage {shown(key)} goes beyond the end of the file")
        places[storage.key] = start + 8, length
        start += 8 + length
    return places
