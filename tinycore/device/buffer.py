"""`Buffer`: a typed span of device memory, allocated at first use and freed when dropped.

Floor 1. Imports `dtype`, `errors`, `registry`. All that is asked of a device about memory is
checked here, so allocators need not. NumPy is imported only where arrays are asked for.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import cache
from math import gcd
from operator import index
from typing import TYPE_CHECKING, Any, Final

from tinycore._locks import recursive_lock
from tinycore.device.pool import Kind, LRUAllocator
from tinycore.device.protocols import ALIGNMENT_BYTES, Handle, SupportsExternalImages
from tinycore.device.registry import Device, OpenDevice, at_close
from tinycore.dtype import DType, ImageDType, PointerDType, from_numpy_dtype, to_numpy_dtype
from tinycore.errors import ArgumentError, DeviceError, DTypeError, UnsupportedError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, numpy.dtype[Any]]

_allocating: Final = recursive_lock()
"""Held while a buffer gets its memory, which is rare; so two threads never allocate it twice."""


class Buffer:
    """`size` elements of `dtype` on a device.

    A buffer with a `base` is a view: it shares the base's memory from byte `offset` on. One with an
    `image` has its elements in the pixels of that image, on a device with the capability `image`.
    Raises ArgumentError when the size is negative or the view does not fit.
    """

    __slots__ = (
        "__weakref__",
        "_handle",
        "_owner",
        "base",
        "device",
        "dtype",
        "image",
        "lease",
        "offset",
        "origin",
        "size",
    )

    def __init__(
        self,
        device: str,
        size: int,
        dtype: DType,
        *,
        base: Buffer | None = None,
        offset_bytes: int = 0,
        image: ImageDType | None = None,
    ) -> None:
        if dtype.itemsize == 0 or dtype.count != 1 or isinstance(dtype, PointerDType):
            raise DTypeError(f"a buffer holds elements of a scalar dtype, not {dtype!r}")
        size = index(size)  # a Size is refused here, before anything counts its bytes
        if size < 0:
            raise ArgumentError(f"a buffer cannot have {size} elements")
        self._handle: Handle = None
        self.lease: Lease | None = None
        """Frees the memory, at the latest when the buffer dies; None for views."""
        self._owner: object = None
        self.origin = 0
        """Address of memory that is owned by others."""
        self.device = Device.canonicalize(device)
        self.size = size
        self.dtype = dtype
        self.base = base
        self.image = image
        if image is not None and (image.base is not dtype or image.size != size):
            raise ArgumentError(f"{size} elements of {dtype!r} are not those of {image!r}")
        self.offset = offset_bytes
        """In bytes, from the start of the base."""
        if base is not None:
            self._verify_view(base)

    @classmethod
    def like(cls, other: Buffer) -> Buffer:
        """A buffer of the same kind as another, in new memory."""
        made = object.__new__(cls)
        made.device, made.size, made.dtype = other.device, other.size, other.dtype
        made._handle = made.lease = made._owner = made.base = None
        made.image, made.offset, made.origin = other.image, 0, 0
        return made

    @classmethod
    def allocated_like(cls, other: Buffer) -> Buffer:
        """A buffer of the same kind as another, in memory of its own. Raises OutOfMemory.

        `ensure_allocated` without what a buffer that nobody else has seen does not need.
        """
        made = cls.like(other)
        if other.image is not None:
            return made.ensure_allocated()
        if size_bytes := other.size * other.dtype.itemsize:
            Lease.begin(made, Device[other.device].allocator, size_bytes)
        return made

    def _verify_view(self, base: Buffer) -> None:
        if base.image is not None:
            self._be_whole(base)
        if base.base is not None:  # a view of a view is one of the same base
            self.base = base.base
            self.offset += base.offset
        if self.offset < base.offset or self.offset + self.nbytes > base.offset + base.nbytes:
            raise ArgumentError(
                f"{self.size} elements of {self.dtype!r} from byte {self.offset - base.offset} on "
                f"do not lie inside the {base.nbytes} bytes of {base!r}"
            )
        if self.offset % self.dtype.itemsize:
            raise ArgumentError(f"byte {self.offset} is no place for an element of {self.dtype!r}")

    def _be_whole(self, base: Buffer) -> None:
        """Be the image that the base is."""
        if self.offset or self.size != base.size or self.dtype is not base.dtype:
            raise UnsupportedError(
                f"no part of {base.image!r} is a buffer of its own: an image has no address. Read "
                "what you need of it: (tensor + 0).realize() is in plain memory"
            )
        self.image = base.image

    def __repr__(self) -> str:
        place = f", from byte {self.offset} of a base" if self.base is not None else ""
        place += f" as {self.image!r}" if self.image is not None else ""
        return f"<Buffer {self.device} {self.size} x {self.dtype!r}{place}>"

    def __reduce__(self) -> tuple[object, ...]:
        if self.base is not None:
            return Buffer.view, (self.base, self.size, self.dtype, self.offset)
        content = self.tobytes() if self.is_allocated else None
        return restored, (self.device, self.size, self.dtype, self.image, content)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def alignment(self) -> int:
        """The known alignment of the first byte's address, at most ALIGNMENT_BYTES."""
        base = self if self.base is None else self.base
        return gcd(ALIGNMENT_BYTES, base.origin + self.offset)

    # --- memory

    @property
    def is_allocated(self) -> bool:
        """True if memory was allocated; an empty buffer needs none."""
        return self._handle is not None or self.size == 0 or self.is_lost

    @property
    def is_lost(self) -> bool:
        """True if the memory went with a device that was closed."""
        if self.base is not None:
            return self.base.is_lost
        return self._handle is None and (self.lease is not None or bool(self.origin))

    @property
    def handle(self) -> Handle:
        """The handle that the device's programs take; allocates memory at first use."""
        if self._handle is None:
            self.ensure_allocated()
        return self._handle

    def ensure_allocated(self) -> Buffer:
        """Give the buffer memory if it has none yet.

        Raises OutOfMemory, and DeviceError if its device was closed after it had memory.
        """
        if self._handle is not None or self.size == 0:
            return self
        with _allocating:
            if self._handle is None:
                if self.is_lost:
                    raise DeviceError(
                        f"the memory of {self!r} was lost when {self.device} was closed. Compute "
                        "it again; copy to the host what you need before Device.close()"
                    )
                if self.base is not None and self.image is not None:
                    self._handle = self.base.handle
                elif self.base is not None:
                    allocator = Device[self.device].allocator
                    self._handle = allocator.offset(self.base.handle, self.nbytes, self.offset)
                else:
                    device = Device[self.device]
                    if self.image is not None:
                        device.ability("image")
                    kind = self.image or self.size * self.dtype.itemsize
                    Lease.begin(self, device.allocator, kind)
        return self

    def deallocate(self) -> None:
        """Free the memory now; its content is lost, and views of it are invalid."""
        lease, self.lease, self._handle = self.lease, None, None
        if lease is not None:
            lease.end()

    def view(self, size: int, dtype: DType | None = None, offset_bytes: int = 0) -> Buffer:
        """`size` elements from a byte of this buffer on, sharing its memory and holding it."""
        return Buffer(self.device, size, dtype or self.dtype, base=self, offset_bytes=offset_bytes)

    @staticmethod
    def external(
        device: str,
        pointer: int,
        size: int,
        dtype: DType,
        owner: object = None,
        image: ImageDType | None = None,
        start: int = 0,
    ) -> Buffer:
        """Memory owned by others, at an address of the device; `owner` is kept alive.

        Where the pointer names a buffer object, it begins at byte `start` of that. With `image` it
        is one of the device. Raises UnsupportedError on devices without the
        capability `external_pointer`, and on those that take no images of others.
        """
        if pointer <= 0:
            raise ArgumentError(f"{pointer:#x} is no address of device memory")
        buffer = Buffer(device, size, dtype, image=image)
        allocator = Device[device].ability("external_pointer")
        if image is None:
            handle = allocator.wrap(pointer, start + buffer.nbytes)
            if start:
                handle = Device[device].allocator.offset(handle, buffer.nbytes, start)
            buffer._handle = handle
        elif isinstance(allocator, SupportsExternalImages):
            sizes = (image.height, image.width, image.itemsize)
            buffer._handle = allocator.wrap_image(pointer, *sizes)
        else:
            raise UnsupportedError(
                f"device {buffer.device} uses no image that it did not allocate, such as {image!r} "
                "at an address"
            )
        buffer._owner = owner
        buffer.origin = pointer + start
        return buffer

    # --- copies

    def copyin(self, source: memoryview | bytes | bytearray) -> Buffer:
        """Fill the buffer from host bytes of exactly its size."""
        view = self._checked(source)
        if self.size:
            Device[self.device].allocator.write(self.handle, view)
        return self

    def copyout(self, target: memoryview | bytearray) -> memoryview:
        """Fill host bytes of exactly its size from the buffer, and return them."""
        view = self._checked(target)
        if view.readonly:
            raise ArgumentError(f"cannot copy {self!r} to read-only memory")
        if self.size:
            Device[self.device].allocator.read(view, self.handle)
        return view

    def _checked(self, data: memoryview | bytes | bytearray) -> memoryview:
        view = memoryview(data)
        if view.nbytes != self.nbytes:
            raise ArgumentError(f"{self!r} has {self.nbytes} bytes, the host memory {view.nbytes}")
        if not view.c_contiguous:
            raise ArgumentError(f"the host memory for {self!r} is not contiguous")
        return view.cast("B") if view.nbytes else memoryview(bytearray())

    def copy_from(self, source: Buffer) -> Buffer:
        """Fill the buffer from one of the same size, which may be on another device."""
        if source.nbytes != self.nbytes:
            raise ArgumentError(f"cannot copy {source!r} of {source.nbytes} bytes to {self!r}")
        if not self.size:
            return self
        here, there = Device[self.device], Device[source.device]
        if self.image is not None or source.image is not None:
            self.copyin(source.copyout(bytearray(self.nbytes)))
        elif here.waits_for(there):
            here.copier(self.nbytes, there)((self.handle, source.handle), ())
        elif self._copied_from_peer(source):
            return self
        elif there.has("host_memory"):
            here.allocator.write(self.handle, source._mapped())
        elif here.has("host_memory"):
            there.allocator.read(self._mapped(), source.handle)
        else:
            self.copyin(source.copyout(bytearray(self.nbytes)))
        return self

    def _copied_from_peer(self, source: Buffer) -> bool:
        """Copy between devices of one backend; False if these two cannot without the host."""
        here, there = Device[self.device], Device[source.device]
        if here.backend is not there.backend or not here.has("peer_copy"):
            return False
        there.synchronize()
        peer = here.ability("peer_copy")
        try:
            peer.copy_from(self.handle, source.handle, self.nbytes, there.runtime)
        except UnsupportedError:
            return False
        return True

    def _mapped(self) -> memoryview:
        """The memory itself; the caller keeps the buffer alive while it uses it."""
        device = Device[self.device]
        allocator = device.ability("host_memory")
        device.synchronize()
        view: memoryview = allocator.map(self.handle, self.nbytes)
        return view

    @property
    def is_mapped(self) -> bool:
        """True if the host addresses the memory itself."""
        return self.image is None and Device[self.device].has("host_memory")

    def as_memoryview(self) -> memoryview:
        """The memory itself, without a copy, as bytes; it keeps the buffer alive.

        A kernel launched later may change what it shows. Raises UnsupportedError for an image, and
        on devices without the capability `host_memory`: use `copyout` there.
        """
        if self.size == 0:
            return memoryview(bytearray())
        if self.image is not None:
            raise UnsupportedError(f"{self.image!r} has no address; copy it: buffer.numpy()")
        return _held(self._mapped(), self)

    def tobytes(self) -> bytes:
        """A copy of the content."""
        return bytes(self.copyout(bytearray(self.nbytes)))

    # --- arrays

    @staticmethod
    def from_cpu(device: str, array: Array, dtype: DType | None = None) -> Buffer:
        """A new buffer with the elements of an array in row-major order.

        `dtype` says what integers of the array stand for where NumPy lacks the type: bfloat16, fp8.
        """
        import numpy  # noqa: PLC0415

        native = numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))
        kind = dtype or from_numpy_dtype(native.dtype)
        if to_numpy_dtype(kind) != native.dtype:
            raise DTypeError(f"an array of {native.dtype} cannot stand for {kind!r}")
        return Buffer(device, native.size, kind).copyin(native.reshape(-1).data)

    def to_cpu(self) -> Array:
        """The elements as a flat array, which shares the memory where the device maps it.

        bfloat16 and fp8 appear as the integers they are stored in.
        """
        if not self.is_mapped:
            return self.numpy()
        import numpy  # noqa: PLC0415

        view = self.as_memoryview()
        return numpy.frombuffer(view, numpy.uint8).view(to_numpy_dtype(self.dtype))

    def lend(self) -> tuple[Array, int]:
        """The elements as a flat array at the address by which other libraries know them, which it
        keeps, and the pointer to the allocation. The host may not be able to read it.

        Raises UnsupportedError without the capability `exchange`.
        """
        import ctypes  # noqa: PLC0415

        import numpy  # noqa: PLC0415

        device = Device[self.device]
        if "exchange" not in device.capabilities:
            raise UnsupportedError(f"device {self.device} has no capability 'exchange'")
        runtime: Any = device.runtime
        pointer, start = runtime.address(self.ensure_allocated()._handle)
        block = (ctypes.c_uint8 * self.nbytes).from_address(pointer + start)
        vars(block)["owner"] = self
        return numpy.frombuffer(memoryview(block), to_numpy_dtype(self.dtype)), pointer

    def numpy(self) -> Array:
        """A copy of the elements as a flat array."""
        import numpy  # noqa: PLC0415

        array = numpy.empty(self.size, to_numpy_dtype(self.dtype))
        self.copyout(array.data)
        return array

    fromCPU = from_cpu  # noqa: N815  the older names, see docs/spec-map.md
    toCPU = to_cpu  # noqa: N815


def restored(
    device: str, size: int, dtype: DType, image: ImageDType | None, content: bytes | None
) -> Buffer:
    """A pickled buffer, on the device of the same name in this process."""
    made = Buffer(device, size, dtype, image=image)
    return made if content is None else made.copyin(content)


class Lease(weakref.ref[Buffer]):
    """The memory of a buffer, and the duty to give it back.

    It holds the handle, which so is never among the garbage of a reference cycle: the collector
    would end the handle too, while the pool hands it out again.
    """

    __slots__ = ("dtype", "handle", "kind", "pool")

    dtype: DType
    handle: Handle
    pool: LRUAllocator
    kind: Kind

    @staticmethod
    def begin(buffer: Buffer, pool: LRUAllocator, kind: Kind) -> None:
        """Give a buffer memory. Raises OutOfMemory."""
        buffer._handle = pool.alloc(kind)
        lease = buffer.lease = Lease(buffer, Lease.end)
        lease.handle, lease.pool, lease.kind, lease.dtype = buffer._handle, pool, kind, buffer.dtype
        leases[id(lease)] = lease

    def end(self) -> None:
        """Give the memory back, once."""
        # none, too, while Python exits and has taken this module apart
        if leases and leases.pop(id(self), None) is not None:
            self.pool.free(self.handle, self.kind)
            for note in at_end:
                note(self)


at_end: Final[list[Callable[[Lease], None]]] = []
"""Called with each lease that has ended, as by profilers of memory; they never raise."""
leases: Final[dict[int, Lease]] = {}
"""The leases that have not ended; a weak reference alone would die before it could call back."""


def lose_memory(device: OpenDevice) -> None:
    """Take their handles from all buffers of a device that is closed: nothing is behind these now.

    Leases keep them, as arrays of the host may still show memory that the host itself allocated.
    """
    is_open = any(other.name == device.name for other in Device.opened())
    # Views are in no list, which would cost each one that is made; closing a device is rare.
    for found in gc.get_objects():
        if type(found) is Buffer and getattr(found, "_handle", None) is not None:
            lease = (found.base or found).lease
            is_ours = lease.pool is device.allocator if lease else not is_open
            if is_ours and found.device == device.name:
                found._handle = None


at_close.append(lose_memory)


@cache
def _holder() -> type[Any]:
    """An array type that can hold on to a buffer: plain arrays take no attributes."""
    import numpy  # noqa: PLC0415

    class HoldingArray(numpy.ndarray[Any, numpy.dtype[Any]]):
        owner: object

    return HoldingArray


def _held(view: memoryview, owner: object) -> memoryview:
    """The same bytes, in a memoryview that keeps `owner` alive."""
    import numpy  # noqa: PLC0415

    array: Array = numpy.frombuffer(view, numpy.uint8).view(_holder())
    array.owner = owner  # type: ignore[attr-defined]
    return array.data
