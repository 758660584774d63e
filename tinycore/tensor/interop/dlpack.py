"""DLPack: import and export of memory between array libraries of one process.

Floor 5. Structures, type codes and the rules of ownership are those of DLPack 1.1 (dlpack.h) and of
the data interchange section of the Python array API standard. A capsule named `dltensor_versioned`
(1.x) or `dltensor` (before) holds a managed tensor; who consumes it renames the capsule and calls
the deleter once when it is done.

Exporting builds on the capsules that NumPy makes: their destructors are C code, which may run while
an exception is on its way, in any thread and when the interpreter ends. Only the type is written
over, as NumPy lacks some of ours.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from tinycore._deferred import numpy
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import SharingError
from tinycore.tensor.runtime import HostArray
from tinycore.uop.shape import Shape

if TYPE_CHECKING:
    from tinycore.device.protocols import SupportsExchange

HOST_DEVICE: Final = (1, 0)
"""The DLDevice of memory that the processor addresses: kDLCPU."""
CARD_KIND: Final = 2
"""The DLDeviceType of kDLCUDA, whose memory `__cuda_array_interface__` describes as well."""
CARD_INTERFACE: Final = "__cuda_array_interface__"
HANDLE_KINDS: Final = frozenset({4, 7, 8, 15})
"""DLDeviceTypes whose `data` is the handle of a buffer object and no address: a tensor that begins
inside of the buffer says so in `byte_offset` alone."""
DLPACK_AXES: Final = 64
"""The greatest number of axes of NumPy and torch, which other libraries keep to."""
ADDRESSABLE_BYTES: Final = 1 << 57
"""Bytes that a process can address at most: x86-64 has 57 bits, ARM 52 below a byte of tags."""
VERSION: Final = (1, 1)
"""The DLPack version spoken here: the first with codes for fp8."""
READ_ONLY, IS_COPIED = 1, 2
"""Bits of the flags of a versioned managed tensor."""

TYPE_CODES: Final = {"int": 0, "uint": 1, "float": 2, "bool": 6}
"""DLDataTypeCode by kind."""
OWN_CODES: Final = {
    dtypes.bfloat16: 4, dtypes.fp8e4m3: 10, dtypes.fp8e4m3fnuz: 11, dtypes.fp8e5m2: 12,
    dtypes.fp8e5m2fnuz: 13,
}  # fmt: skip
"""DLDataTypeCode of floats that have one of their own; see CODE_NAMES."""
DLPACK_CODES: Final = {
    dtype: (OWN_CODES.get(dtype, TYPE_CODES[dtype.kind]), dtype.bits) for dtype in dtypes.all
}
DLPACK_DTYPES: Final = {code: dtype for dtype, code in DLPACK_CODES.items()}
CODE_NAMES: Final = {
    0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool",
    7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn",
    11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu",
    15: "float6_e2m3fn", 16: "float6_e3m2fn", 17: "float4_e2m1fn",
}  # fmt: skip

Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Version(Structure):
    """DLPackVersion."""

    _fields_ = (("major", c_uint32), ("minor", c_uint32))


class DataType(Structure):
    """DLDataType."""

    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class Described(Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(Structure):
    """DLManagedTensor, of versions before 1.0."""

    _fields_ = (("tensor", Described), ("context", ctypes.c_void_p), ("deleter", Deleter))


class ManagedVersioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Described),
    )


CAPSULE_TYPES: Final[dict[bytes, type[Managed | ManagedVersioned]]] = {
    b"dltensor_versioned": ManagedVersioned,
    b"dltensor": Managed,
}
"""Types of the content of a capsule, by its name."""
USED_NAMES: Final = {name: ctypes.create_string_buffer(b"used_" + name) for name in CAPSULE_TYPES}
for used in USED_NAMES.values():  # a capsule may outlive this module, and only borrows its name
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))

# Functions of their own: `ctypes.pythonapi` shares its own among all users, with their types.
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
rename_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


# --- out


class Origin(NamedTuple):
    """Place of memory that is not the host's: its DLDevice, and the pointer to the allocation."""

    device: tuple[int, int]
    pointer: int


def capsule_of(
    array: HostArray, dtype: DType, versioned: bool, copied: bool, origin: Origin | None = None
) -> object:
    """A capsule over the memory of an array of `dtype`; it keeps the array alive.

    The array may lie in memory of a device, at addresses that are never read here.
    """
    bits = array.view(f"u{array.itemsize}")
    capsule = bits.__dlpack__(max_version=VERSION) if versioned else bits.__dlpack__()
    name, managed = contents(capsule)
    code, width = DLPACK_CODES[dtype]
    tensor: Described = managed.tensor
    tensor.dtype = DataType(code, width, 1)
    if origin is not None:
        tensor.device_type, tensor.device_id = origin.device
        tensor.byte_offset = array.ctypes.data - origin.pointer if array.size else 0
        tensor.data = origin.pointer if array.size else None
    if name == b"dltensor_versioned":
        managed.version = Version(*VERSION)
        managed.flags = IS_COPIED if copied else 0
    return capsule


def contents(capsule: object) -> tuple[bytes, Any]:
    """The name of an unconsumed capsule, and its managed tensor."""
    for name, kind in CAPSULE_TYPES.items():
        if capsule_is(capsule, name):
            return name, kind.from_address(capsule_pointer(capsule, name))
    raise SharingError(
        f"from_dlpack: {capsule!r} holds no DLPack tensor, or was consumed before: a capsule is "
        "taken once"
    )


# --- in


class Lease:
    """Memory of another library, which is released when it is no longer used here."""

    def __init__(self, managed: Any) -> None:
        self.address = ctypes.addressof(managed)
        self.deleter = managed.deleter if managed.deleter else None

    def __del__(self) -> None:
        deleter, self.deleter = self.deleter, None
        if deleter is not None:
            deleter(self.address)


class Lent(NamedTuple):
    """A tensor of another library. Strides count elements."""

    pointer: int
    shape: Shape
    strides: Shape
    dtype: DType
    read_only: bool
    lease: object
    start: int = 0
    """Bytes from the address of `pointer` to the first element, if it names a buffer object."""

    def order(self) -> tuple[int, ...] | None:
        """The axes from outermost to innermost when the elements fill memory without a gap.

        None when they do not.
        """
        straight = tuple(range(len(self.shape)))
        by_stride = tuple(sorted(straight, key=lambda axis: -self.strides[axis]))
        return next((order for order in (straight, by_stride) if self.fills(order)), None)

    def fills(self, order: tuple[int, ...]) -> bool:
        """True if the elements are one run of memory, read in this order of axes.

        An axis of one element may have any stride.
        """
        expected = 1
        for axis in reversed(order):
            if self.shape[axis] == 1:
                continue
            if self.strides[axis] != expected:
                return False
            expected *= self.shape[axis]
        return True

    def array(self) -> HostArray:
        """The elements in the bytes of `to_numpy_dtype`, in memory of this process."""
        size = self.dtype.itemsize
        reach = [s * (n - 1) * size for s, n in zip(self.strides, self.shape, strict=True)]
        low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
        block = memoryview((c_uint8 * (high - low + size)).from_address(self.pointer + low))
        strides = [stride * size for stride in self.strides]
        return numpy.ndarray(self.shape, to_numpy_dtype(self.dtype), block, -low, strides)


def device_kind(x: Any) -> tuple[int, int]:
    """The DLDevice of another library's tensor. Raises SharingError for anything else."""
    found = x.__dlpack_device__()
    try:
        kind, number = map(int, found)
    except (TypeError, ValueError) as error:
        raise SharingError(
            f"from_dlpack: a {type(x).__name__} says that its DLDevice is {found!r}, no two numbers"
        ) from error
    return kind, number


def lent(
    x: Any, kind: tuple[int, int], copy: bool | None, exchange: SupportsExchange | None = None
) -> Lent:
    """Take the memory of another library's tensor on a DLDevice, in order with its stream where the
    device exchanges so. Raises SharingError for what cannot be taken.
    """
    if exchange is None:
        capsule = requested(x, copy, {})
    else:
        stream = exchange.exchange_stream
        capsule = requested(x, copy, {"stream": stream})
        exchange.wait_for(stream)
    name, managed = contents(capsule)
    if name == b"dltensor_versioned" and managed.version.major != VERSION[0]:
        version = f"{managed.version.major}.{managed.version.minor}"
        raise SharingError(
            f"from_dlpack: {type(x).__name__} exports DLPack {version}, this is {VERSION[0]}.x"
        )
    tensor = managed.tensor
    dtype = dtype_of(tensor.dtype)
    shape, strides = verified_layout(tensor, dtype, kind, type(x).__name__)
    flags = managed.flags if name == b"dltensor_versioned" else 0
    rename_capsule(capsule, ctypes.addressof(USED_NAMES[name]))
    pointer, start = tensor.data or 0, int(tensor.byte_offset)
    if tensor.device_type not in HANDLE_KINDS:
        pointer, start = pointer + start, 0
    return Lent(pointer, shape, strides, dtype, bool(flags & READ_ONLY), Lease(managed), start)


def verified_layout(
    tensor: Described, dtype: DType, kind: tuple[int, int], producer: str
) -> tuple[Shape, Shape]:
    """The shape and the strides of a DLTensor. Raises SharingError where no memory can be such.

    What a producer got wrong is found here as far as the numbers show it; reading on would end the
    process.
    """
    if (tensor.device_type, tensor.device_id) != kind:
        there = tensor.device_type, tensor.device_id
        refuse_layout(producer, f"lies on DLDevice {there}, where __dlpack_device__ says {kind}")
    if not 0 <= tensor.ndim <= DLPACK_AXES:
        refuse_layout(producer, f"has {tensor.ndim} axes; 0 to {DLPACK_AXES} are taken")
    if tensor.ndim and not tensor.shape:
        refuse_layout(producer, f"has {tensor.ndim} axes and no shape")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if any(size < 0 for size in shape):
        refuse_layout(producer, f"has the shape {shape}")
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else rows(shape)
    verify_reach(shape, strides, dtype.itemsize, int(tensor.data or 0), producer)
    if tensor.byte_offset >= ADDRESSABLE_BYTES:
        refuse_layout(producer, f"begins {tensor.byte_offset} bytes after its address")
    return shape, strides


def verify_reach(shape: Shape, strides: Shape, itemsize: int, pointer: int, producer: str) -> None:
    """Raises SharingError for elements at addresses that no process has."""
    if math.prod([size for size in shape if size]) * itemsize >= ADDRESSABLE_BYTES:
        refuse_layout(producer, f"has the shape {shape}, of more bytes than there are addresses")
    if 0 in shape:
        return
    reach = [step * (size - 1) * itemsize for step, size in zip(strides, shape, strict=True)]
    if sum(map(abs, reach)) >= ADDRESSABLE_BYTES:
        refuse_layout(producer, f"has strides {strides}, which lead beyond all addresses")
    if not pointer:
        refuse_layout(producer, f"has elements of shape {shape} at address {pointer:#x}")


def refuse_layout(producer: str, why: str) -> NoReturn:
    """Raises SharingError for a malformed tensor of a producer."""
    raise SharingError(f"from_dlpack: the tensor that a {producer} exports {why}")


def lent_by_interface(x: Any, exchange: SupportsExchange | None) -> Lent:
    """Import the memory that `__cuda_array_interface__` describes, after the work of its stream.

    The array is kept alive with it. Raises SharingError for what cannot be taken.
    """
    facts = getattr(x, CARD_INTERFACE)
    name = f"from_dlpack: the array interface of {type(x).__name__}"
    if not isinstance(facts, dict) or not facts.keys() >= {"typestr", "data", "shape"}:
        raise SharingError(f"{name} needs typestr, data and shape, and is {facts!r}")
    if facts.get("mask") is not None:
        raise SharingError(f"{name} has a mask, and a tensor has none; take its data alone")
    dtype = interface_dtypes().get(facts["typestr"])
    if dtype is None:
        raise SharingError(f"{name} has elements {facts['typestr']!r}, for which there is no dtype")
    pointer, read_only = facts["data"]
    shape, bytes_apart = tuple(facts["shape"]), facts.get("strides")
    strides = rows(shape)
    if bytes_apart is not None:
        if any(step % dtype.itemsize for step in bytes_apart):
            raise SharingError(f"{name} has strides {bytes_apart}, of no whole {dtype!r}")
        strides = tuple([step // dtype.itemsize for step in bytes_apart])
    if len(strides) != len(shape) or any(size < 0 for size in shape):
        raise SharingError(f"{name} has shape {shape} and strides {strides}")
    verify_reach(shape, strides, dtype.itemsize, int(pointer or 0), type(x).__name__)
    if exchange is not None and facts.get("stream") is not None:
        exchange.wait_for(int(facts["stream"]))
    return Lent(int(pointer or 0), shape, strides, dtype, bool(read_only), x)


def interface_dtypes() -> dict[str, DType]:
    """The dtypes of array interfaces, by their names there."""
    native = [dtype for dtype in dtypes.all if dtype not in OWN_CODES]
    return {to_numpy_dtype(dtype).str: dtype for dtype in native}


def requested(x: Any, copy: bool | None, order: dict[str, int | None]) -> object:
    """A capsule from a producer of any age, with `order` as its stream."""
    asked: dict[str, Any] = {"max_version": VERSION, **order}
    if copy is False:
        asked["copy"] = False
    try:
        return x.__dlpack__(**asked)
    except TypeError:  # from before DLPack 1.0: it takes no such argument
        pass
    try:
        return x.__dlpack__(**order)
    except TypeError as error:
        raise SharingError(
            f"from_dlpack: __dlpack__ of a {type(x).__name__} does not take what DLPack asks: "
            f"{error}"
        ) from error


def dtype_of(found: DataType) -> DType:
    """Our name of a DLDataType. Raises SharingError if there is none."""
    dtype = DLPACK_DTYPES.get((found.code, found.bits))
    if dtype is None or found.lanes != 1:
        kind = CODE_NAMES.get(found.code, f"type code {found.code}")
        lanes = f" in vectors of {found.lanes}" if found.lanes != 1 else ""
        raise SharingError(
            f"from_dlpack: no dtype for {kind} of {found.bits} bits{lanes}. "
            f"Known: {', '.join(d.name for d in dtypes.all)}; convert it there first."
        )
    return dtype


def rows(shape: Shape) -> Shape:
    """The strides of row-major elements."""
    strides, expected = [], 1
    for size in reversed(shape):
        strides.append(expected)
        expected *= size
    return tuple(reversed(strides))
