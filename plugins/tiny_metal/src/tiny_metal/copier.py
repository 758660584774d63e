"""Copies within a GPU and from another one: blits, ordered between GPUs by shared events.

Two GPUs of a Mac address no memory of each other. Both have buffers over the same pages of the
host: one copies to them and signals its event, the other waits for that value and copies from them.
The pages are in two halves, so that one GPU fills one while the other empties the other. The host
waits for nothing.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tiny_metal._lib import NIL, Object, Pool, ffi
from tiny_metal.memory import PIECE_BYTES, MetalMemory
from tinycore.errors import DeviceError, OutOfMemory

if TYPE_CHECKING:
    from tiny_metal.device import MetalDevice

__all__ = ["Awaited", "LocalCopier", "PeerCopier"]

_SHARED: Final = 0
"""MTLResourceStorageModeShared."""
_PAGE_BYTES: Final = 16384
"""Page size of Apple silicon, a multiple of that of other Macs."""


class Awaited(NamedTuple):
    """A command buffer of another GPU that one waits for."""

    device: MetalDevice
    number: int
    """Its place among all that the GPU was given, from 1 on."""
    is_input: bool
    """True if its results are used, so that without them there are none."""


class LocalCopier:
    """Copies within a GPU."""

    def __init__(self, device: MetalDevice, size: int) -> None:
        self.device = device
        self.size = size

    def __call__(
        self, buffers: Sequence[MetalMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Copy. With `wait`, wait for the end and return the seconds the GPU took."""
        target, source = buffers
        encode = blit(self.device, source, target, self.size)
        return self.device.submit(encode, f"a copy of {self.size:,} bytes", wait)


class Half:
    """Pages of the host as a buffer of either GPU, and the events by which these take turns.

    A turn is a number: one GPU fills the pages when the other has emptied them in the turn before.
    An event so has no other signal before the one that somebody waits for, and the host can signal
    in place of a command buffer that failed.
    """

    def __init__(self, source: MetalDevice, target: MetalDevice, size: int) -> None:
        self._pages = mmap.mmap(-1, -(-size // _PAGE_BYTES) * _PAGE_BYTES)
        self.written = self._buffer(source)
        self.read = self._buffer(target)
        self.is_filled = self._event(source)
        self.is_empty = self._event(target)
        self.turn = 0
        self.emptied = 0
        """The number of the command buffer of the target that emptied the pages last."""

    def _buffer(self, device: MetalDevice) -> MetalMemory:
        """The pages as memory of a GPU. Raises OutOfMemory."""
        address = ffi.from_buffer(self._pages)
        selector = "newBufferWithBytesNoCopy:length:options:deallocator:"
        with Pool(device.metal):
            made = device.send(device.handle, selector, address, len(self._pages), _SHARED, NIL)
        if made == NIL:
            raise OutOfMemory(
                f"{device.info.name} takes no {len(self._pages):,} bytes of the host for a copy"
            )
        weakref.finalize(self, _release, device, made, self._pages).atexit = False
        return MetalMemory(made, 0, None)

    def _event(self, device: MetalDevice) -> Object:
        """An MTLSharedEvent. Raises DeviceError."""
        made = device.send(device.handle, "newSharedEvent")
        if made == NIL:
            raise DeviceError(f"{device.info.name} gives no shared event")
        device.keep(self, made)
        return made


def _release(device: MetalDevice, buffer: Object, pages: mmap.mmap) -> None:
    """Release a buffer, whose pages live until then."""
    device.release(buffer)


class PeerCopier:
    """Copies from another GPU."""

    def __init__(self, device: MetalDevice, size: int, source: MetalDevice) -> None:
        self.device = device
        self.source = source
        self.size = size
        self._halves: dict[int, Half] = {}

    def __call__(
        self, buffers: Sequence[MetalMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Copy. With `wait`, wait for the end and return the seconds both GPUs took."""
        target, source = buffers
        seconds = 0.0
        with self.device.lock:
            try:
                for number, start in enumerate(range(0, self.size, PIECE_BYTES)):
                    half = self._half(number % 2)
                    size = min(PIECE_BYTES, self.size - start)
                    seconds += self._fill(half, part(source, start), size, wait) or 0.0
                    seconds += self._empty(half, part(target, start), size, wait) or 0.0
            except BaseException:
                self._halves.clear()  # a turn that was begun may never be passed on
                raise
        return seconds if wait else None

    def _half(self, which: int) -> Half:
        """Pages of the host, made at their first use. Raises OutOfMemory."""
        if which not in self._halves:
            size = min(self.size, PIECE_BYTES)
            self._halves[which] = Half(self.source, self.device, size)
        return self._halves[which]

    def _fill(self, half: Half, memory: MetalMemory, size: int, wait: bool) -> float | None:
        """Copy from the source to the pages, once they are empty."""
        source, turn = self.source, half.turn
        half.turn += 1
        signal = (half.is_filled, half.turn)
        encode = blit(source, memory, half.written, size)
        return source.submit(
            ordered(source, (half.is_empty, turn) if turn else None, encode, signal),
            *(self._what(size), wait),
            kept=half,
            after=Awaited(self.device, half.emptied, is_input=False) if turn else None,
            signal=signal,
        )

    def _empty(self, half: Half, memory: MetalMemory, size: int, wait: bool) -> float | None:
        """Copy from the pages once they are filled."""
        device = self.device
        signal = (half.is_empty, half.turn)
        encode = blit(device, half.read, memory, size)
        half.emptied = device.submitted + 1
        return device.submit(
            ordered(device, (half.is_filled, half.turn), encode, signal),
            *(self._what(size), wait),
            kept=half,
            after=Awaited(self.source, self.source.submitted, is_input=True),
            signal=signal,
        )

    def _what(self, size: int) -> str:
        names = f"{self.source.info.name} to {self.device.info.name}"
        return f"a copy of {size:,} bytes from {names}"


def part(memory: MetalMemory, start: int) -> MetalMemory:
    """The memory from a byte on."""
    return MetalMemory(memory.buffer, memory.start + start, None)


def blit(
    device: MetalDevice, source: MetalMemory, target: MetalMemory, size: int
) -> Callable[[Any], None]:
    """An encoder of a copy."""

    def encode(commands: Any) -> None:
        selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
        place = (source.buffer, source.start, target.buffer, target.start, size)
        with device.encoder(commands, "blitCommandEncoder") as encoder:
            device.send(encoder, selector, *place)

    return encode


def ordered(
    device: MetalDevice,
    after: tuple[Object, int] | None,
    encode: Callable[[Any], None],
    signal: tuple[Object, int],
) -> Callable[[Any], None]:
    """An encoder that waits for the value of an event before, and signals one behind."""

    def around(commands: Any) -> None:
        if after is not None:
            device.send(commands, "encodeWaitForEvent:value:", *after)
        encode(commands)
        device.send(commands, "encodeSignalEvent:value:", *signal)

    return around
