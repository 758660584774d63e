"""libusb without USB: its functions, which take and fill cffi's pointers as the library does.

References, handles, claims and time limits are checked; faults are put into transfers by number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from tiny_amd.usb._native import ffi
from usb_standin.fabric import Mistake
from usb_standin.firmware import Firmware

Kind = TypeVar("Kind")

SUCCESS, IO, ACCESS, NO_DEVICE, NOT_FOUND, BUSY = 0, -1, -3, -4, -5, -6
TIMEOUT, OVERFLOW, PIPE, NOT_SUPPORTED = -7, -8, -9, -12
NAMES = {
    0: "SUCCESS",
    -1: "IO",
    -2: "INVALID_PARAM",
    -3: "ACCESS",
    -4: "NO_DEVICE",
    -5: "NOT_FOUND",
    -6: "BUSY",
    -7: "TIMEOUT",
    -8: "OVERFLOW",
    -9: "PIPE",
    -10: "INTERRUPTED",
    -11: "NO_MEM",
    -12: "NOT_SUPPORTED",
}


@dataclass
class UsbModel:
    """A device on USB."""

    firmware: Firmware | None
    vendor: int = 0xADD1
    product: int = 0x0001
    bus: int = 2
    ports: tuple[int, ...] = (1, 4)
    address: int = 7
    is_allowed: bool = True
    holder: str = ""
    """Process that has claimed it; "" for none."""
    configuration: int = 1
    is_present: bool = True
    halted: set[int] = field(default_factory=set)


@dataclass
class Fault:
    """Something that happens to one transfer."""

    at: int
    """Number of the transfer, from the beginning of the stand-in."""
    kind: str
    """unplug, stall, timeout, io, overflow or short."""


class Libusb:
    """The library: `devices` may be changed at any time."""

    def __init__(self, devices: list[UsbModel], process: str = "this one") -> None:
        self.devices = devices
        self.process = process
        self.faults: list[Fault] = []
        self.transfers = 0
        self.open_things: dict[int, Any] = {}
        """Contexts, lists and handles that are open, by address."""
        self.contexts: dict[int, int] = {}
        self._next = 0x1000
        self._names = {
            code: ffi.new("char[]", f"LIBUSB_ERROR_{n}".encode()) for code, n in NAMES.items()
        }

    def _make(self, kind: str, thing: Any, parent: Any = None) -> Any:
        """A pointer to something that is open, in the context of its parent."""
        self._next += 0x10
        self.open_things[self._next] = thing
        self.contexts[self._next] = self._context(parent) if parent is not None else self._next
        return ffi.cast(kind, self._next)

    def _context(self, pointer: Any) -> int:
        return self.contexts[int(ffi.cast("uintptr_t", pointer))]

    def _thing(self, pointer: Any, kind: type[Kind]) -> Kind:
        found = self.open_things.get(int(ffi.cast("uintptr_t", pointer)))
        if not isinstance(found, kind):
            raise Mistake(f"{pointer} is no {kind.__name__} that is open")
        return found

    def _end(self, pointer: Any, kind: type[Kind]) -> Kind:
        found = self._thing(pointer, kind)
        del self.open_things[int(ffi.cast("uintptr_t", pointer))]
        return found

    # --- contexts and devices

    def libusb_init(self, context: Any) -> int:
        context[0] = self._make("libusb_context *", {})
        return SUCCESS

    def libusb_exit(self, context: Any) -> None:
        self._end(context, dict)
        own = int(ffi.cast("uintptr_t", context))
        if left := [key for key in self.open_things if self.contexts[key] == own]:
            raise Mistake(f"libusb ends, and {len(left)} things of it are open")

    def libusb_error_name(self, code: int) -> Any:
        return self._names.get(code, self._names[IO])

    def libusb_get_device_list(self, context: Any, devices: Any) -> int:
        self._thing(context, dict)
        there = [device for device in self.devices if device.is_present]
        pointers = [self._make("libusb_device *", device, context) for device in there]
        made = ffi.new("libusb_device *[]", [*pointers, ffi.NULL])
        address = int(ffi.cast("uintptr_t", made))
        self.open_things[address] = (made, pointers)
        self.contexts[address] = self._context(context)
        devices[0] = made
        return len(there)

    def libusb_free_device_list(self, devices: Any, unref: int) -> None:
        if unref != 1:
            raise Mistake("devices of a list keep their references")
        _, pointers = self._end(devices, tuple)
        for pointer in pointers:
            self._end(pointer, UsbModel)

    def libusb_get_device_descriptor(self, device: Any, descriptor: Any) -> int:
        found = self._thing(device, UsbModel)
        descriptor.bLength, descriptor.bDescriptorType = 18, 1
        descriptor.idVendor, descriptor.idProduct = found.vendor, found.product
        descriptor.iManufacturer, descriptor.iProduct, descriptor.iSerialNumber = 1, 2, 3
        return SUCCESS

    def libusb_get_bus_number(self, device: Any) -> int:
        return self._thing(device, UsbModel).bus

    def libusb_get_device_address(self, device: Any) -> int:
        return self._thing(device, UsbModel).address

    def libusb_get_port_numbers(self, device: Any, ports: Any, length: int) -> int:
        found = self._thing(device, UsbModel).ports
        if len(found) > length:
            return OVERFLOW
        for place, port in enumerate(found):
            ports[place] = port
        return len(found)

    def libusb_get_device_speed(self, device: Any) -> int:
        firmware = self._thing(device, UsbModel).firmware
        return 4 if firmware is not None and firmware.super_speed else 3

    # --- handles

    def libusb_open(self, device: Any, handle: Any) -> int:
        found = self._thing(device, UsbModel)
        if not found.is_allowed:
            return ACCESS
        handle[0] = self._make("libusb_device_handle *", [found, False], device)
        return SUCCESS

    def libusb_close(self, handle: Any) -> None:
        _, claimed = self._end(handle, list)
        if claimed:
            raise Mistake("a handle is closed that has claimed its interface")

    def _device(self, handle: Any) -> UsbModel:
        device, _ = self._thing(handle, list)
        assert isinstance(device, UsbModel)
        return device

    def libusb_get_string_descriptor_ascii(
        self, handle: Any, index: int, data: Any, length: int
    ) -> int:
        device = self._device(handle)
        if index != 2 or device.firmware is None:
            return PIPE
        text = device.firmware.product.encode("ascii")[:length]
        ffi.memmove(data, text, len(text))
        return len(text)

    def libusb_get_configuration(self, handle: Any, configuration: Any) -> int:
        configuration[0] = self._device(handle).configuration
        return SUCCESS

    def libusb_set_configuration(self, handle: Any, configuration: int) -> int:
        self._device(handle).configuration = configuration
        return SUCCESS

    def libusb_set_auto_detach_kernel_driver(self, handle: Any, enable: int) -> int:
        self._device(handle)
        return NOT_SUPPORTED

    def libusb_claim_interface(self, handle: Any, number: int) -> int:
        opened = self._thing(handle, list)
        device = opened[0]
        if number:
            return NOT_FOUND
        if device.configuration != 1:
            raise Mistake("an interface is claimed of a device that is not configured")
        if device.holder:
            return BUSY
        device.holder = self.process
        opened[1] = True
        return SUCCESS

    def libusb_release_interface(self, handle: Any, number: int) -> int:
        opened = self._thing(handle, list)
        if not opened[1] or number:
            return NOT_FOUND
        opened[0].holder, opened[1] = "", False
        return SUCCESS

    def libusb_set_interface_alt_setting(self, handle: Any, number: int, setting: int) -> int:
        device = self._claimed(handle)
        if setting:
            raise Mistake("only setting 0 has the two pipes at 0x02 and 0x81")
        device.halted.clear()
        if device.firmware is not None:
            device.firmware.clear()
        return SUCCESS

    def libusb_clear_halt(self, handle: Any, endpoint: int) -> int:
        device = self._claimed(handle)
        device.halted.discard(endpoint)
        if device.firmware is not None:
            device.firmware.clear()
        return SUCCESS if device.is_present else NO_DEVICE

    def _claimed(self, handle: Any) -> UsbModel:
        _, claimed = self._thing(handle, list)
        if not claimed:
            raise Mistake("a device is used whose interface was not claimed")
        return self._device(handle)

    # --- transfers

    def _fault(self, device: UsbModel) -> str:
        """The fault of this transfer."""
        self.transfers += 1
        for fault in self.faults:
            if fault.at == self.transfers:
                if fault.kind == "unplug":
                    device.is_present = False
                return fault.kind
        return ""

    def libusb_control_transfer(
        self,
        handle: Any,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: Any,
        length: int,
        limit_ms: int,
    ) -> int:
        device = self._claimed(handle)
        if not 0 < limit_ms <= 20_000:
            raise Mistake(f"a control transfer has {limit_ms} ms")
        fault = self._fault(device)
        firmware = device.firmware
        if not device.is_present or firmware is None:
            return NO_DEVICE
        if fault in ("stall", "timeout", "io", "overflow"):
            return {"stall": PIPE, "timeout": TIMEOUT, "io": IO, "overflow": OVERFLOW}[fault]
        if kind == 0xC0:
            found = firmware.control_in(request, value, index, length)
            if isinstance(found, int):
                return found
            if fault == "short":
                found = found[: len(found) // 2]
            ffi.memmove(data, found, len(found))
            return len(found)
        if kind != 0x40:
            raise Mistake(f"a request of type {kind:#x} is none of a vendor")
        content = bytes(ffi.buffer(data, length)) if length else b""
        found = firmware.control_out(request, value, index, content, limit_ms)
        if request == 0xF3 and value & 1 and firmware.leaves:
            firmware.leaves = False
            self._leave(device)
            return NO_DEVICE
        return found // 2 if fault == "short" else found

    def _leave(self, device: UsbModel) -> None:
        """The device leaves USB, and comes back at the same port with another address."""
        device.is_present = False
        self.devices.append(
            UsbModel(
                device.firmware,
                device.vendor,
                device.product,
                device.bus,
                device.ports,
                device.address + 1,
            )
        )

    def libusb_bulk_transfer(
        self, handle: Any, endpoint: int, data: Any, length: int, done: Any, limit_ms: int
    ) -> int:
        device = self._claimed(handle)
        if not 0 < limit_ms <= 60_000:
            raise Mistake(f"a bulk transfer has {limit_ms} ms")
        if endpoint not in (0x02, 0x81):
            return NOT_FOUND
        fault = self._fault(device)
        done[0] = 0
        if not device.is_present or device.firmware is None:
            done[0] = length // 2
            return NO_DEVICE
        if endpoint in device.halted:
            return PIPE
        if fault == "stall":
            device.halted.add(endpoint)
            return PIPE
        if fault in ("timeout", "io", "overflow"):
            done[0] = length // 2
            return {"timeout": TIMEOUT, "io": IO, "overflow": OVERFLOW}[fault]
        if endpoint == 0x02:
            if fault == "short":
                done[0] = length // 2
                return SUCCESS
            done[0] = device.firmware.bulk_out(bytes(ffi.buffer(data, length)))
        else:
            found = device.firmware.bulk_in(length)
            found = found[: length // 2] if fault == "short" else found
            ffi.memmove(data, found, len(found))
            done[0] = len(found)
        return SUCCESS
