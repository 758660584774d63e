"""Interoperability with arrays of other libraries: shared if possible, else copied.

Floor 5. A realized tensor on a device whose memory the host can address shares that memory, and
keeps it alive as long as someone uses it. Any other tensor is computed for the exchange, into
separate memory, and keeps its graph. Kernels that are launched later may write to shared memory,
and a write to a shared array is a write to the tensor.
"""

from __future__ import annotations

import copy as copying
import io
import math
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from tinycore._deferred import DeferredModule, deferred, numpy
from tinycore.dtype import DType, DTypeLike, ImageDType, to_numpy_dtype
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    FileFormatError,
    SharingError,
)
from tinycore.tensor import graph
from tinycore.tensor.core import canonical, one_device
from tinycore.tensor.graph import Pair
from tinycore.tensor.interop.layout import VIEWS, memory_below, show_memory
from tinycore.tensor.methods import pixels
from tinycore.tensor.methods.creation import float_or, sizes_from
from tinycore.tensor.methods.data import LEAST_UNPACKED, UNPACKED_EACH, file_bytes
from tinycore.tensor.methods.inplace import InPlace
from tinycore.tensor.runtime import HostArray, runtime
from tinycore.tensor.storage.held_values import mark_escaped
from tinycore.uop.bindings import known
from tinycore.uop.host_bytes import SMALL_FLOATS
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike

if TYPE_CHECKING:
    from tinycore.tensor.interop import dlpack
else:
    dlpack = DeferredModule("tinycore.tensor.interop.dlpack")  # ctypes, for those who exchange


gzip_file: Final = deferred("gzip:GzipFile")
fetch: Final = deferred("tinycore.helpers:fetch")


NO_STREAM: Final = -1
"""Stream of DLPack by which a consumer says that it orders its work by itself."""


class Interop(InPlace):
    """Exchange of tensors with NumPy, torch, pickle and plain addresses."""

    __slots__ = ()

    # --- NumPy and Python's buffers

    def _host_view(self) -> HostArray | None:
        """The memory of this tensor as an array of `to_numpy_dtype`, without a copy.

        None for a tensor that has none yet, shows it other than in strides, or is on a device whose
        memory the host does not address.
        """
        return self._memory_view(runtime().shared)

    def _memory_view(self, flat_of: Callable[[UOp], HostArray | None]) -> HostArray | None:
        """The memory of this tensor as an array of a shape and strides, if `flat_of` has it."""
        if not self.numel():
            return numpy.empty(self.shape, to_numpy_dtype(self.dtype))
        memory = memory_below(self.uop)
        if memory is not None and memory.op is Op.ASSIGN:
            self.realize()
            memory = memory_below(self.uop)
        flat = None if memory is None else flat_of(memory)
        if memory is not None and flat is not None:
            mark_escaped(memory)
        return None if flat is None else show_memory(known(self.uop), flat, VIEWS)

    def data(self) -> memoryview:
        """The elements row by row as a memoryview in this tensor's shape.

        It shares the memory if its layout allows that, and is a copy otherwise. Raises DTypeError
        for bfloat16 and fp8, which Python's buffers do not have.

        >>> view = Tensor([[1, 2], [3, 4]]).data()
        >>> view.shape, view.tolist()
        ((2, 2), [[1, 2], [3, 4]])
        """
        if self.dtype in SMALL_FLOATS:
            raise DTypeError(f"data: Python's buffers have no {self.dtype!r}; cast to float first")
        view = self._host_view()
        return (view if view is not None and view.flags.c_contiguous else self._host_array()).data

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol (PEP 688, from Python 3.12 on): what `data` gives."""
        return self.data()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        """An array that shares the memory, or a copy; bfloat16 and fp8 become float32.

        As in NumPy 2, `copy` True always copies, and False raises SharingError, a ValueError, where
        a copy is needed.
        """
        view = None if copy or self.dtype in SMALL_FLOATS else self._host_view()
        if view is not None and dtype in (None, view.dtype):
            return view
        if copy is False:
            why = "of another dtype" if view is not None else "it shares no memory with the host"
            raise SharingError(f"__array__: a copy is needed, {why}, and copy=False forbids it")
        array = self.numpy() if view is None else view
        return array if dtype is None else array.astype(dtype, copy=view is not None)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3, over the memory of this tensor.

        `data` is a buffer, not an address, so that it stays alive whatever becomes of the tensor.
        There is no such attribute where nothing can be shared: see `__array__`.
        """
        view = None if self.dtype in SMALL_FLOATS else self._host_view()
        if view is None:
            raise AttributeError("__array_interface__: this tensor has no memory to share")
        whole = view
        while isinstance(whole.base, numpy.ndarray):
            whole = whole.base
        offset = view.ctypes.data - whole.ctypes.data
        return {**view.__array_interface__, "data": whole.data, "offset": offset}

    # --- DLPack

    def __dlpack_device__(self) -> Pair:
        """The DLDevice of the memory as others see it, as (type, number).

        The host, where DLPack's consumers have no use for a device's memory: they get what
        `__array__` gives, a copy where the host cannot address it.
        """
        return runtime().exchange_kind(self.device) or dlpack.HOST_DEVICE

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Pair | None = None,
        dl_device: Pair | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with this tensor's memory, or with a copy on the host.

        It is versioned (1.x) for a consumer that knows those. A copy is made when asked for, or
        when the tensor was not computed yet, shows its memory other than in strides, or is on a
        device that the host cannot address. Raises SharingError, a BufferError, when that was
        forbidden, and for another device than `__dlpack_device__` and the host.

        A device that exchanges its memory (the capability `exchange`) gives it as it is, and lets
        the consumer's `stream` wait for what computes it; -1 says that nobody need wait.
        """
        place = self.__dlpack_device__()
        target = place if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if target not in (place, dlpack.HOST_DEVICE):
            raise SharingError(f"__dlpack__: {self.device} cannot export to DLDevice {target}")
        if target == dlpack.HOST_DEVICE and stream is not None:
            raise SharingError(f"__dlpack__: the host has no streams, got stream={stream!r}")
        versioned = max_version is not None and max_version[0] >= dlpack.VERSION[0]
        if target != dlpack.HOST_DEVICE and (exchange := runtime().exchange(self.device)):
            capsule = self._device_capsule(target, versioned, copy)
            if stream != NO_STREAM:
                exchange.let_wait(None if stream is None else int(stream))
            return capsule
        view = None if copy else self._host_view()
        if view is None and (copy is False or target != dlpack.HOST_DEVICE):
            raise SharingError(
                f"__dlpack__: {self.dtype!r} of shape {self.shape} on {self.device} has no memory "
                "to share: realize() it first (contiguous() if it is a view), or let it be copied "
                "to the host with dl_device=(1, 0), or use .numpy()"
            )
        array = self._host_array() if view is None else view
        return dlpack.capsule_of(array, self.dtype, versioned, copied=view is None)

    def _device_capsule(self, place: Pair, versioned: bool, copy: bool | None) -> object:
        """A capsule with the memory of a device, this tensor's or that of a copy."""
        pointers: list[int] = []

        def lent(memory: UOp) -> HostArray:
            flat, pointer = runtime().lend(memory)
            pointers.append(pointer)
            return flat

        view = None if copy else self._memory_view(lent)
        copied = view is None
        if view is None:
            if copy is False:
                raise SharingError(
                    f"__dlpack__: {self.dtype!r} of shape {self.shape} on {self.device} has no "
                    "memory to share: realize() it first (contiguous() if it is a view)"
                )
            view = self.clone().realize()._memory_view(lent)
        assert view is not None
        origin = dlpack.Origin(place, pointers[0] if pointers else 0)
        return dlpack.capsule_of(view, self.dtype, versioned, copied, origin)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, over the memory of this tensor.

        Its `stream` is the one that computes the tensor. Who takes the address keeps the tensor,
        which must not be `replace`d meanwhile; DLPack has no such condition. There is no such
        attribute on memory of other kinds, nor before the tensor is realized.
        """
        kind = runtime().exchange_kind(self.device)
        exchange = runtime().exchange(self.device) if kind and kind[0] == dlpack.CARD_KIND else None
        if exchange is None or self.dtype in SMALL_FLOATS or not self.numel():
            raise AttributeError(f"{dlpack.CARD_INTERFACE}: this tensor has no memory to share")
        view = self._memory_view(lambda memory: runtime().lend(memory)[0])
        if view is None:
            raise AttributeError(
                f"{dlpack.CARD_INTERFACE}: realize() it first (contiguous() if it is a view)"
            )
        return {
            "shape": view.shape,
            "typestr": view.dtype.str,
            "data": (view.ctypes.data, False),
            "strides": None if view.flags.c_contiguous else view.strides,
            "stream": exchange.exchange_stream,
            "version": 3,
        }

    @classmethod
    def from_dlpack(
        cls, x: Any, *, device: DeviceLike | None = None, copy: bool | None = None
    ) -> Self:
        """A tensor over the memory of another library's array, which it keeps alive.

        Elements that fill memory without gaps, in any order of axes, are shared; others are copied,
        and so are read-only ones, those that do not lie at multiples of their size, and those that
        go to another `device`. `copy` True always copies; False raises SharingError, a BufferError,
        instead of copying. It is raised too for dtypes and devices that are not here. An array
        that has `__cuda_array_interface__` alone is taken by that, from the card that is the
        default one or `device`.

        >>> import numpy
        >>> array = numpy.array([1.0, 2.0, 3.0], numpy.float32)
        >>> x = Tensor.from_dlpack(array)
        >>> x.tolist()
        [1.0, 2.0, 3.0]
        """
        if isinstance(x, Interop):
            return cls._from_node(x.uop)._taken(device, copy)
        if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
            if hasattr(x, dlpack.CARD_INTERFACE):
                return cls._from_described(x, device, copy)
            raise ArgumentTypeError(
                f"from_dlpack: a {type(x).__name__} does not export DLPack; Tensor(...) copies "
                "numbers, lists and arrays"
            )
        kind, number = dlpack.device_kind(x)
        target = None if device is None else one_device("from_dlpack", device)
        here = target is not None and runtime().takes(target, kind, number)
        place = target if here else runtime().device_for(kind, number)
        if place is None:
            raise SharingError(
                f"from_dlpack: no device here works on memory of DLDevice ({kind}, {number}); move "
                "the array to the host first"
            )
        exchange = None if kind == dlpack.HOST_DEVICE[0] else runtime().exchange(place)
        found = dlpack.lent(x, (kind, number), copy, exchange)
        return cls._of_lent(found, (kind, number), place, target or place, copy)

    @classmethod
    def _from_described(cls, x: Any, device: DeviceLike | None, copy: bool | None) -> Self:
        """A tensor over memory described by the CUDA array interface, which names no card."""
        target = None if device is None else one_device("from_dlpack", device)
        kind = None if target is None else runtime().exchange_kind(target)
        if target is None or kind is None or kind[0] != dlpack.CARD_KIND:
            kind = dlpack.CARD_KIND, 0
            place = runtime().device_for(*kind)
        else:
            place = target
        if place is None:
            raise SharingError(
                f"from_dlpack: no device here works on memory of DLDevice {kind}, which a "
                f"{type(x).__name__} has; move the array to the host first"
            )
        found = dlpack.lent_by_interface(x, runtime().exchange(place))
        return cls._of_lent(found, kind, place, target or place, copy)

    @classmethod
    def _of_lent(
        cls, found: dlpack.Lent, kind: Pair, place: str, target: str, copy: bool | None
    ) -> Self:
        """A tensor on `target` of memory of a DLDevice that `place` works on."""
        if 0 in found.shape:
            return cls._from_node(graph.full(found.shape, found.dtype, 0, target))
        why = reason_to_copy(found, place, target)
        if why is not None and copy is False:
            raise SharingError(f"from_dlpack: {why}, so it has to be copied, but copy=False")
        if why is None and not copy:
            return cls._from_node(shared_node(found, place))
        if kind == dlpack.HOST_DEVICE:
            return cls._from_node(array_in_memory(found.array(), found.dtype, target))
        return cls._from_node(shared_node(found, place)).clone(target).realize()

    def _taken(self, device: DeviceLike | None, copy: bool | None) -> Self:
        """This tensor on a device, as `from_dlpack` takes one."""
        target = self.device if device is None else canonical(device)
        if copy is False and target != self.device:
            raise SharingError(f"from_dlpack: {self.device} to {target} is a copy, but copy=False")
        return self.clone(target) if copy else self.to(target)

    # --- addresses and files

    @classmethod
    def from_blob(
        cls,
        ptr: int,
        shape: int | Sequence[int],
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
        owner: object = None,
    ) -> Self:
        """A tensor over memory at an address of the device, row by row, without a copy.

        `owner` is kept alive as long as the tensor's memory is; without it, the owner of the memory
        must keep it longer than every tensor made from it. The default dtype is the default float;
        `dtypes.imagef((height, width))` is an image of the device, with the device's own row pitch.
        Raises ArgumentError for an address that is 0 or no multiple of the element's size,
        UnsupportedError on a device that cannot use memory it did not allocate.

        >>> import numpy
        >>> array = numpy.array([1.0, 2.0, 3.0], numpy.float32)
        >>> x = Tensor.from_blob(array.ctypes.data, (3,), dtype="float32", owner=array)
        >>> array[0] = 9.0
        >>> x.tolist()
        [9.0, 2.0, 3.0]
        """
        sizes, place = sizes_from("from_blob", (shape,)), one_device("from_blob", device)
        kind = dtype if isinstance(dtype, ImageDType) else float_or(dtype)
        if isinstance(kind, ImageDType):
            pixels.verify(sizes, kind, place)
        if 0 in sizes:
            return cls._from_node(graph.full(sizes, kind, 0, place))._marked(requires_grad)
        if ptr <= 0 or ptr % kind.itemsize:
            raise ArgumentError(
                f"from_blob: {ptr:#x} is no address of {kind!r}, which lie at multiples of "
                f"{kind.itemsize}"
            )
        node = runtime().wrap(ptr, math.prod(sizes), kind, place, owner)
        mark_escaped(node)
        return cls._from_node(graph.reshape(node, sizes))._marked(requires_grad)

    @classmethod
    def from_url(cls, url: str, gunzip: bool = False, device: DeviceLike | None = None) -> Self:
        """The bytes at a URL, uint8 of one axis; with `gunzip`, unpacked.

        A `file:` URL or a path is read where it lies; http and https are downloaded once into the
        cache folder, with a progress bar on a terminal. Raises OSError when that fails, and
        FileFormatError when `gunzip` meets something else, or more than it may unpack.

        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "two")
        ...     _ = file.write_bytes(bytes([1, 2]))
        ...     Tensor.from_url(file.as_uri()).tolist()
        [1, 2]
        """
        content = file_bytes(fetch(url))
        return cls(gunzipped(content, url) if gunzip else content, device=device)

    # --- copies in Python's sense

    def __copy__(self) -> Self:
        """Another tensor of the same memory."""
        result = type(self)(self, requires_grad=self.requires_grad)
        result._grad = self.grad
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A tensor of equal values and gradient in new memory, as a leaf."""
        constant = graph.is_constant(self.uop) or not self.numel()
        result = self._from_node(self.uop) if constant else self.detach().clone()
        memo[id(self)] = result
        result.requires_grad = self.requires_grad
        result._grad = copying.deepcopy(self.grad, memo)
        return result

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """For pickle: values, dtype, shape, device and `requires_grad`; no graph and no gradient.

        Where the device does not exist, loading uses the default one, with a warning.
        """
        facts = (self._host_array(), self.dtype, self.device, self.requires_grad)
        return unpickled, (type(self), *facts)


def gunzipped(content: HostArray, url: str) -> bytes:
    """The bytes of a gzip file. Raises FileFormatError for a damaged one, and for one that unpacks
    to much more than any real file does.
    """
    most = LEAST_UNPACKED + UNPACKED_EACH * len(content)
    try:
        found: bytes = gzip_file(fileobj=io.BytesIO(content.data)).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"from_url: {url} is no whole gzip file: {error}") from error
    if len(found) > most:
        raise FileFormatError(
            f"from_url: {url} of {len(content)} bytes unpacks to more than {most}; unpack it first"
        )
    return found


def reason_to_copy(found: dlpack.Lent, place: str, target: str) -> str | None:
    """Why a tensor on `target` cannot use memory lent at `place`, or None."""
    if place != target:
        return f"it is on {place}, not on {target}"
    if found.read_only:
        return "it is read-only, and a tensor may be assigned to"
    place_of_first = found.pointer + found.start
    if place_of_first % found.dtype.itemsize:
        return (
            f"{place_of_first:#x} is no multiple of the {found.dtype.itemsize} bytes of an element"
        )
    if found.order() is None:
        return f"strides {found.strides} of shape {found.shape} leave gaps or overlap"
    return None


def shared_node(found: dlpack.Lent, place: str) -> UOp:
    """A node over the memory that was lent. Raises SharingError when it has gaps."""
    order = found.order()
    if order is None:
        raise SharingError(
            f"from_dlpack: strides {found.strides} of shape {found.shape} leave gaps or overlap; "
            "make it contiguous there first"
        )
    size = math.prod(found.shape)
    flat = runtime().wrap(found.pointer, size, found.dtype, place, found.lease, found.start)
    mark_escaped(flat)
    outermost_first = graph.reshape(flat, tuple([found.shape[axis] for axis in order]))
    return graph.permute(outermost_first, [order.index(axis) for axis in range(len(order))])


def unpickled(
    cls: type[Interop],
    array: HostArray,
    dtype: DType,
    device: DeviceLike,
    requires_grad: bool | None,
) -> Interop:
    """A tensor from its pickled form."""
    try:
        node = array_in_memory(array, dtype, runtime().canonicalize(device))
    except DeviceError as error:
        default = runtime().default_device()
        warnings.warn(
            f"a tensor saved on {device} is on {default} now, as {device} is not here: {error}",
            stacklevel=2,
        )
        node = array_in_memory(array, dtype, default)
    result = cls._from_node(node)
    result.requires_grad = requires_grad
    return result


def array_in_memory(array: HostArray, dtype: DType, device: DeviceLike) -> UOp:
    """An array of the bytes of `dtype` in a new buffer."""
    if not array.size:
        return graph.full(array.shape, dtype, 0, device)
    flat = numpy.ascontiguousarray(array).reshape(-1)
    return graph.reshape(runtime().from_host(flat, dtype, device), array.shape)
