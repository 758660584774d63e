"""Memory of an Adreno, which is the host's: one address, seen by both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tiny_hcq import HCQAllocator, HCQBuffer
from tiny_qcom.kgsl import PAGE, Allocation, Kgsl, ffi
from tinycore.errors import DeviceError

__all__ = ["Pixels", "QcomAllocator"]

PITCH_PIXELS: Final = 64
"""Rows of an image start at multiples of so many pixels (CL_DEVICE_IMAGE_PITCH_ALIGNMENT)."""
CHANNELS: Final = 4
IMAGE_ALIGNMENT: Final = 64


@dataclass(frozen=True)
class Pixels:
    """Layout of an image: pixels of four floats of so many bytes each, in rows."""

    height: int
    width: int
    channel_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of the pixels of a row."""
        return self.width * CHANNELS * self.channel_bytes

    @property
    def pitch(self) -> int:
        """Bytes from the start of one row to that of the next."""
        return -(-self.width // PITCH_PIXELS) * PITCH_PIXELS * CHANNELS * self.channel_bytes


class QcomAllocator(HCQAllocator):
    """Memory of one device. The `meta` of a buffer is its `Allocation`, or its `Pixels`."""

    def __init__(self, kgsl: Kgsl) -> None:
        super().__init__()
        self.kgsl = kgsl
        self._imported: dict[tuple[int, int], int | None] = {}
        """Pages of this process by address and size, and where the device finds them."""

    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        """Memory that host and device see. Raises OutOfMemory."""
        made = self.kgsl.allocate(size)
        view = memoryview(made.mapping)[:size]
        return HCQBuffer(made.address, size, self.device, view=view, meta=made)

    def release(self, buffer: HCQBuffer) -> None:
        """Give an allocation back. Never raises."""
        made = buffer.meta[0] if isinstance(buffer.meta, tuple) else buffer.meta
        if isinstance(made, Allocation):
            self.kgsl.free(made)
        buffer.view = buffer.meta = None  # a launch that still names it fails in Python

    def wrap(self, pointer: int, size: int) -> HCQBuffer:
        """Memory that somebody else owns: of this process, or of KGSL.

        The raw pointer of a cl_mem of Qualcomm's OpenCL is memory of KGSL. Raises DeviceError
        where the driver takes neither.
        """
        first = pointer // PAGE * PAGE
        room = -(-(pointer + size) // PAGE) * PAGE - first
        with self.device.lock:
            if (first, room) not in self._imported:
                self._imported[first, room] = self._import(first, room)
            found = self._imported[first, room]
        address = pointer if found is None else found + pointer - first
        view = memoryview(ffi.buffer(ffi.cast("char *", pointer), size))
        return HCQBuffer(address, size, self.device, view=view, external=True)

    def _import(self, first: int, room: int) -> int | None:
        try:
            return self.kgsl.import_host(first, room)
        except DeviceError as error:
            raise DeviceError(
                f"{first:#x} to {first + room:#x} is neither memory of this process that the "
                f"device may use nor memory of KGSL: {error}"
            ) from error

    def close(self) -> None:
        """Give staging and imported pages back."""
        super().close()
        for address in filter(None, self._imported.values()):
            self.kgsl.forget_host(address)
        self._imported.clear()

    # --- images

    def image(self, height: int, width: int, channel_bytes: int) -> HCQBuffer:
        """Pixels of four floats, in rows by pitch. Raises OutOfMemory."""
        pixels = Pixels(height, width, channel_bytes)
        made = self.allocate(pixels.pitch * height, visible=True)
        made.meta = (made.meta, pixels)
        return made

    def wrap_image(self, pointer: int, height: int, width: int, channel_bytes: int) -> HCQBuffer:
        """Pixels that somebody else owns, as of a cl_mem of Qualcomm's OpenCL, rows by pitch.

        Raises DeviceError.
        """
        pixels = Pixels(height, width, channel_bytes)
        found = self.wrap(pointer, pixels.pitch * (height - 1) + pixels.row_bytes)
        if found.address % IMAGE_ALIGNMENT:
            raise DeviceError(
                f"an image at {pointer:#x} cannot be used: its first pixel must lie at a multiple "
                f"of {IMAGE_ALIGNMENT} bytes"
            )
        found.meta = (None, pixels)
        return found

    def write(self, dst: HCQBuffer, src: memoryview) -> None:
        """Copy host bytes to the start of a buffer, or to all pixels of an image."""
        pixels = pixels_of(dst)
        if pixels is None:
            super().write(dst, src)
            return
        with self.device.lock:
            self.device.ready()
            self.device.synchronize()
            for row in range(pixels.height):
                place, size = row * pixels.pitch, pixels.row_bytes
                self._view(dst)[place : place + size] = src[row * size : (row + 1) * size]

    def read(self, dst: memoryview, src: HCQBuffer) -> None:
        """Fill host bytes from the start of a buffer, or from all pixels of an image."""
        pixels = pixels_of(src)
        if pixels is None:
            super().read(dst, src)
            return
        with self.device.lock:
            self.device.ready()
            self.device.synchronize()
            for row in range(pixels.height):
                place, size = row * pixels.pitch, pixels.row_bytes
                dst[row * size : (row + 1) * size] = self._view(src)[place : place + size]

    @staticmethod
    def _view(buffer: HCQBuffer) -> memoryview:
        assert buffer.view is not None
        return buffer.view


def pixels_of(buffer: HCQBuffer) -> Pixels | None:
    """Layout of the image; None for plain memory."""
    meta: Any = buffer.meta
    return meta[1] if isinstance(meta, tuple) else None
