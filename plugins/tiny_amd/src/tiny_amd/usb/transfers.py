"""An open bridge as USB sees it: control and bulk transfers, each with a time limit.

Every failure is an error that names the transfer, its status and what to do. A bulk transfer that
fails leaves both pipes cleared, which also ends the stream that the bridge was in.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final, NoReturn, Self

from tiny_amd.usb.library import UsbCode, error_name, ffi, libusb
from tiny_amd.usb.sysfs import FIRMWARE, IDS, permission_advice
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = ["TransferError", "UsbHandle"]

TO_BRIDGE: Final = 0x40
"""bmRequestType of a vendor request with data to the device (USB 3.2, table 9-3)."""
TO_HOST: Final = 0xC0
PIPE_OUT: Final = 0x02
PIPE_IN: Final = 0x81
INTERFACE: Final = 0
CONFIGURATION: Final = 1
CONTROL_MS: Final = 2_000
"""Time limit of control transfers; a PCIe request takes up to a second on a bridge that waits."""
BULK_MS: Final = 10_000
SUPER_SPEED: Final = 4
"""Least speed of USB 3 (libusb.h, enum libusb_speed)."""
_USB_DEPTH: Final = 7
"""Most hubs between a root hub and a device, and the device."""

_MEANINGS: Final = {
    UsbCode.NO_DEVICE: "the bridge was unplugged or lost its power",
    UsbCode.PIPE: "the bridge refused it (stall)",
    UsbCode.IO: "the transfer was damaged: try another cable or port",
    UsbCode.OVERFLOW: "the bridge sent more than was asked for",
}


class TransferError(DeviceError):
    """A transfer that did not do all it was to do."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """Status of libusb; SUCCESS for a transfer that ended early."""


class UsbHandle:
    """The bridge at an index, claimed by this process until `close`."""

    def __init__(self, index: int = 0) -> None:
        """Open and claim it. Raises DeviceUnavailable, with nothing left open."""
        self.library = libusb()
        self.index = index
        self.lost = ""
        """Reason why transfers are made no more; "" before."""
        with ExitStack() as undo:
            self._open(undo)
            self._opened = undo.pop_all()

    # --- opening

    def _open(self, undo: ExitStack) -> None:
        context = ffi.new("libusb_context **")
        self._must(self.library.libusb_init(context), "libusb_init")
        undo.callback(self.library.libusb_exit, context[0])
        device, self.ids = self._find(context[0], undo)
        self.place = self._place_of(device)
        self.is_super_speed = self.library.libusb_get_device_speed(device) >= SUPER_SPEED
        opened = ffi.new("libusb_device_handle **")
        status = self.library.libusb_open(device, opened)
        if status == UsbCode.ACCESS:
            raise DeviceUnavailable(
                f"{self} cannot be opened by this user. {permission_advice(*self.ids)}"
            )
        self._must(status, "libusb_open")
        self.handle = opened[0]
        undo.callback(self.library.libusb_close, self.handle)
        self._verify_firmware(device)
        self._claim(undo)

    def _find(self, context: Any, undo: ExitStack) -> tuple[Any, tuple[int, int]]:
        """The device at the index, and its ids."""
        devices = ffi.new("libusb_device ***")
        count = self.library.libusb_get_device_list(context, devices)
        self._must(count, "libusb_get_device_list")
        undo.callback(self.library.libusb_free_device_list, devices[0], 1)
        found = []
        for device in devices[0][0:count]:
            read = self.descriptor(device)
            ids = (read.idVendor, read.idProduct)
            if ids in IDS:
                found.append((self._order(device), device, ids))
        found.sort(key=lambda entry: entry[0])
        if self.index >= len(found):
            there = f"{len(found)} of them" if found else "none"
            wanted = " or ".join(f"{vendor:04x}:{product:04x}" for vendor, product in IDS)
            raise DeviceUnavailable(
                f"there is no bridge USB+AMD:{self.index} ({wanted}): {there} on USB. Plug it in, "
                "and give its card power"
            )
        return found[self.index][1:]

    def descriptor(self, device: Any) -> Any:
        """The device descriptor."""
        read = ffi.new("struct libusb_device_descriptor *")
        self._must(
            self.library.libusb_get_device_descriptor(device, read),
            "libusb_get_device_descriptor",
        )
        return read

    def _order(self, device: Any) -> tuple[int, ...]:
        """Bus and ports, which stay the same when a bridge is plugged in anew."""
        ports = ffi.new("uint8_t[]", _USB_DEPTH)
        count = self.library.libusb_get_port_numbers(device, ports, _USB_DEPTH)
        return (self.library.libusb_get_bus_number(device), *ports[0 : max(count, 0)])

    def _place_of(self, device: Any) -> str:
        bus, *ports = self._order(device)
        return f"{bus}-{'.'.join(map(str, ports))}"

    def _verify_firmware(self, device: Any) -> None:
        index = self.descriptor(device).iProduct
        text = ffi.new("unsigned char[]", 256)
        count = self.library.libusb_get_string_descriptor_ascii(self.handle, index, text, 256)
        self._must(count, "libusb_get_string_descriptor_ascii")
        found = bytes(text[0:count]).decode("ascii", "replace")
        if not found.startswith(FIRMWARE):
            raise DeviceUnavailable(
                f"{self} has the firmware {found!r}, not {' or '.join(FIRMWARE)}...: flash the "
                "custom one (github.com/tinygrad/asm2464pd-firmware)"
            )

    def _claim(self, undo: ExitStack) -> None:
        """Take the interface, and reset its pipes."""
        library, handle = self.library, self.handle
        library.libusb_set_auto_detach_kernel_driver(handle, 1)  # other systems have no such thing
        current = ffi.new("int *")
        self._must(library.libusb_get_configuration(handle, current), "libusb_get_configuration")
        if current[0] != CONFIGURATION:
            self._must(
                library.libusb_set_configuration(handle, CONFIGURATION), "libusb_set_configuration"
            )
        status = library.libusb_claim_interface(handle, INTERFACE)
        if status == UsbCode.BUSY:
            raise DeviceUnavailable(f"{self} is used by another process: end that first")
        self._must(status, "libusb_claim_interface")
        undo.callback(library.libusb_release_interface, handle, INTERFACE)
        # The pipes may be in the middle of what a process that died had begun.
        self._must(
            library.libusb_set_interface_alt_setting(handle, INTERFACE, 0),
            "libusb_set_interface_alt_setting",
        )

    def _must(self, status: int, call: str) -> None:
        """Raise DeviceUnavailable where a call of the opening failed."""
        if status < 0:
            name = error_name(self.library, status)
            raise DeviceUnavailable(f"USB+AMD:{self.index} cannot be opened: {call} says {name}")

    def __str__(self) -> str:
        return f"USB bridge {self.place} ({self.ids[0]:04x}:{self.ids[1]:04x})"

    # --- transfers

    def control_in(
        self, request: int, value: int, index: int, size: int, *, limit_ms: int = CONTROL_MS
    ) -> bytes:
        """The `size` bytes that a vendor request returns. Raises TransferError."""
        data = ffi.new("unsigned char[]", size)
        count = self._control(TO_HOST, request, value, index, data, size, limit_ms)
        if count != size:
            text = f"request {request:#04x} returned {count} of {size} bytes"
            raise TransferError(f"{self}: {text}", UsbCode.SUCCESS)
        return bytes(data)

    def control_out(
        self, request: int, value: int, index: int, content: bytes = b"", *, limit_ms: int = 0
    ) -> None:
        """Make a vendor request that takes data, or nothing. Raises TransferError."""
        data = ffi.from_buffer("unsigned char[]", content) if content else ffi.NULL
        count = self._control(
            TO_BRIDGE, request, value, index, data, len(content), limit_ms or CONTROL_MS
        )
        if count != len(content):
            text = f"request {request:#04x} took {count} of {len(content)} bytes"
            raise TransferError(f"{self}: {text}", UsbCode.SUCCESS)

    def _control(
        self, kind: int, request: int, value: int, index: int, data: Any, size: int, limit_ms: int
    ) -> int:
        self._verify_present()
        count = int(
            self.library.libusb_control_transfer(
                self.handle, kind, request, value, index, data, size, limit_ms
            )
        )
        if count < 0:
            self._fail(count, f"request {request:#04x} (value {value:#06x})", limit_ms)
        return count

    def bulk_in(self, size: int, *, limit_ms: int = BULK_MS) -> bytes:
        """The next `size` bytes of the pipe to the host. Raises TransferError."""
        data = ffi.new("unsigned char[]", size)
        self._bulk(PIPE_IN, data, size, limit_ms)
        return bytes(ffi.buffer(data))

    def bulk_out(self, content: bytes | memoryview, *, limit_ms: int = BULK_MS) -> None:
        """Send bytes through the pipe to the bridge. Raises TransferError."""
        data = ffi.from_buffer("unsigned char[]", content)
        self._bulk(PIPE_OUT, data, len(content), limit_ms)

    def _bulk(self, pipe: int, data: Any, size: int, limit_ms: int) -> None:
        self._verify_present()
        done = ffi.new("int *")
        status = self.library.libusb_bulk_transfer(self.handle, pipe, data, size, done, limit_ms)
        if status == UsbCode.SUCCESS and done[0] == size:
            return
        self.reset_pipes()
        what = f"{done[0]:,} of {size:,} bytes through pipe {pipe:#04x}"
        if status == UsbCode.SUCCESS:
            raise TransferError(f"{self}: a transfer ended early, after {what}", status)
        self._fail(status, what, limit_ms)

    def reset_pipes(self) -> None:
        """Clear a stall of both pipes, and what the bridge still has of a stream."""
        for pipe in (PIPE_OUT, PIPE_IN):
            self.library.libusb_clear_halt(self.handle, pipe)

    def _verify_present(self) -> None:
        if self.lost:
            raise TransferError(self.lost, UsbCode.NO_DEVICE)

    def _fail(self, status: int, what: str, limit_ms: int) -> NoReturn:
        """Raise the TransferError that a status stands for."""
        if status == UsbCode.TIMEOUT:
            meaning = f"not done within {limit_ms:,} ms"
        else:
            meaning = _MEANINGS.get(UsbCode(status), "") if status in set(UsbCode) else ""
        name = error_name(self.library, status)
        message = f"{self}: {what}: {meaning + ' ' if meaning else ''}({name})"
        if status == UsbCode.NO_DEVICE:
            self.lost = f"{message}. Plug it in again, and start this process anew"
            message = self.lost
        raise TransferError(message, status)

    # --- the end

    def close(self) -> None:
        """Give the interface back. Never raises."""
        self.lost = self.lost or f"{self} is closed"
        self._opened.close()

    def reopened(self) -> Self:
        """A new handle of the same bridge, which has come back at its port as another device."""
        self.close()
        return type(self)(self.index)
