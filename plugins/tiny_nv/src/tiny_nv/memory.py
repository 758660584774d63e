"""Memory of a card, and copies to and from the host.

A handle is an address: programs take it as it is, a view is another address. Copies go through
pinned memory, piece by piece, so that threads of the host fill or empty some pieces while the card
moves another, and a write returns before the card has it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tiny_nv._lib import ffi
from tinycore.errors import DeviceError
from tinycore.plugin import COPY_THREADS, HostCopy, copied, host_copy, lock

if TYPE_CHECKING:
    from tiny_nv.device import CudaDevice

__all__ = ["CudaAllocator", "Staging"]

PIECE_BYTES: Final = 4 << 20
"""Bytes of a piece: to hand one to a thread takes 0.1 ms on the host of an H200, where pieces of 1,
2 and 8 MiB reached 9, 18 and 30 GB/s."""
PIECES: Final = 8
AHEAD: Final = 3
"""Pieces that the card fills while threads empty those before."""
_PORTABLE: Final = 1
_DEVICE_ORDINAL: Final = 9


class Piece:
    """Pinned memory, and the event after which it may be used again."""

    def __init__(self, device: CudaDevice) -> None:
        self.address: Any = device.got("void **", "cuMemHostAlloc", PIECE_BYTES, _PORTABLE)
        self.view = memoryview(ffi.buffer(self.address, PIECE_BYTES)).cast("B")
        self.event = device.new_event(timed=False)
        self.copied: HostCopy = copied
        """Waits for the host's copy from or to it."""

    def wait(self, device: CudaDevice) -> None:
        """Wait until the card has done with it."""
        device.call("cuEventSynchronize", self.event)


class Staging:
    """Pieces of pinned memory, used in turn. Made at the first copy."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._pieces: list[Piece] = []
        self._next = 0

    def take(self) -> Piece:
        """The piece that was not used for longest, once it is free."""
        if len(self._pieces) < PIECES:
            self._pieces.append(Piece(self._device))
            return self._pieces[-1]
        piece = self._pieces[self._next]
        self._next = (self._next + 1) % PIECES
        piece.copied()
        piece.wait(self._device)
        return piece

    def wait_for_copies(self) -> None:
        """Wait until the host has copied what was begun: its memory is the caller's."""
        for piece in self._pieces:
            piece.copied()
            piece.copied = copied

    def close(self) -> None:
        """Give the memory back; the card has been waited for."""
        for piece in self._pieces:
            self._device.quietly("cuMemFreeHost", piece.address)
            self._device.quietly("cuEventDestroy_v2", piece.event)
        self._pieces.clear()


class CudaAllocator:
    """The memory of one card."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._staging = Staging(device)
        self._lock = lock()

    def alloc(self, size: int) -> int:
        """The address of `size` bytes, not cleared. Raises OutOfMemory."""
        return int(self._device.got("CUdeviceptr *", "cuMemAlloc_v2", size, what=f"{size:,} bytes"))

    def free(self, handle: int) -> None:
        """Release memory."""
        self._device.quietly("cuMemFree_v2", handle)

    def close(self) -> None:
        """Release what copies went through; the card has been waited for."""
        self._staging.close()

    def write(self, dst: int, src: memoryview) -> None:
        """Copy host bytes to `dst`, in order with launches."""
        filling: deque[tuple[Piece, int, int]] = deque()
        with self._lock:
            try:
                for start in range(0, src.nbytes, PIECE_BYTES):
                    size = min(PIECE_BYTES, src.nbytes - start)
                    piece = self._staging.take()
                    piece.copied = host_copy(piece.view, src[start : start + size])
                    filling.append((piece, start, size))
                    if len(filling) == COPY_THREADS:
                        self._send(dst, *filling.popleft())
                while filling:
                    self._send(dst, *filling.popleft())
            except BaseException:
                self._staging.wait_for_copies()
                raise

    def _send(self, dst: int, piece: Piece, start: int, size: int) -> None:
        """Let the card copy a piece when the host has filled it."""
        device = self._device
        piece.copied()
        place = (dst + start, piece.address, size, device.stream)
        device.call("cuMemcpyHtoDAsync_v2", *place)
        device.call("cuEventRecord", piece.event, device.stream)

    def read(self, dst: memoryview, src: int) -> None:
        """Fill host bytes from `src`, after all launches before."""
        device = self._device
        waiting: deque[tuple[Piece, memoryview]] = deque()
        with self._lock:
            try:
                for start in range(0, dst.nbytes, PIECE_BYTES):
                    target = dst[start : start + PIECE_BYTES]
                    if len(waiting) == AHEAD:
                        self._empty(*waiting.popleft())
                    piece = self._staging.take()
                    place = (piece.address, src + start, target.nbytes, device.stream)
                    device.call("cuMemcpyDtoHAsync_v2", *place)
                    device.call("cuEventRecord", piece.event, device.stream)
                    waiting.append((piece, target))
                while waiting:
                    self._empty(*waiting.popleft())
            finally:
                self._staging.wait_for_copies()
        device.forget_launches()

    def _empty(self, piece: Piece, target: memoryview) -> None:
        """Let the host copy a piece when the card has filled it."""
        piece.wait(self._device)
        piece.copied = host_copy(target, piece.view[: target.nbytes])

    def offset(self, handle: int, size: int, start: int) -> int:
        """The address `start` bytes on."""
        return handle + start

    def wrap(self, pointer: int, size: int) -> int:
        """Memory that somebody else owns. Raises DeviceError for no memory of this card."""
        try:
            ordinal = self._device.got("int *", "cuPointerGetAttribute", _DEVICE_ORDINAL, pointer)
        except DeviceError as error:
            raise DeviceError(
                f"{pointer:#x} is no address of CUDA's memory. Memory of the host gets here by "
                f"Tensor(array). ({error})"
            ) from error
        if ordinal != self._device.info.number:
            raise DeviceError(
                f"{pointer:#x} is memory of card {ordinal}, not of {self._device.info.number}: "
                f"name the device CUDA:{ordinal}"
            )
        return pointer

    def copy_from(self, dst: int, src: int, size: int, source: Any) -> None:
        """Copy from the memory of another card."""
        device = self._device
        device.meet(source)
        source.meet(device)
        place = (dst, device.context, src, source.context, size, device.stream)
        device.call("cuMemcpyPeerAsync", *place)
        device.synchronize()
