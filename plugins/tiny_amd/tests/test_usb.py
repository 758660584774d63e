"""The interface USB below PCIe: bridges found, opened, asked, and what happens when USB fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from usb_standin import Mistake, UsbMachine
from usb_standin.library import Fault, Libusb, UsbModel
from usb_standin.machine import bridge

from tiny_amd.usb import _cdef, library, sysfs
from tiny_amd.usb.bridge import (
    LINK_STATE,
    SLOT_BYTES,
    Bridge,
    CompletionError,
    CompletionStatus,
    Packet,
)
from tiny_amd.usb.transfers import TransferError, UsbHandle
from tiny_hcq import use_system
from tiny_testing.native import write_native
from tinycore.errors import ArgumentError, DeviceError, DeviceUnavailable


@pytest.fixture
def machine() -> Iterator[UsbMachine]:
    """A machine with one bridge."""
    made = UsbMachine(bridge())
    with use_system(made):
        yield made


def opened(machine: UsbMachine) -> Bridge:
    """The bridge of a machine, its link up."""
    found = Bridge(UsbHandle())
    found.bring_up_link()
    return found


# --- declarations and the library


def test_native_module_is_made_of_the_declarations(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"
    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)
    assert made.read_text("utf-8") == Path(_cdef.__file__).with_name("_native.py").read_text(
        "utf-8"
    )


def test_the_wheel_has_every_function_that_is_declared() -> None:
    pytest.importorskip("libusb_package")
    loaded = library.load()
    for name in dir(Libusb):
        if name.startswith("libusb_"):
            assert getattr(loaded, name)
    assert library.error_name(loaded, -7) == "LIBUSB_ERROR_TIMEOUT"
    assert library.ffi.sizeof("struct libusb_device_descriptor") == 18


def test_a_machine_without_a_bridge_is_told_by_the_real_library() -> None:
    pytest.importorskip("libusb_package")
    try:
        with pytest.raises(DeviceUnavailable, match=r"there is no bridge USB\+AMD:7"):
            UsbHandle(7)
    finally:
        library._loaded.clear()


def test_a_library_that_is_not_there_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LIBUSB_LIBRARY", "/nowhere/libusb.so")
    with pytest.raises(DeviceUnavailable, match=r"tiny-amd\[usb\].*Tried: /nowhere/libusb.so"):
        library.load()


# --- which bridges there are


def test_bridges_are_listed_and_counted_without_opening_them(machine: UsbMachine) -> None:
    assert [str(found) for found in sysfs.listed_bridges()] == [
        "bridge 2-1.4 (add1:0001 'custom v0.1')"
    ]
    assert (sysfs.bridge_count(), sysfs.bridge_obstacle()) == (1, "")
    assert not machine.library.open_things


def test_why_no_bridge_can_be_used() -> None:
    with use_system(UsbMachine()):
        assert "no ASM2464PD bridge with the custom firmware" in sysfs.bridge_obstacle()
    with use_system(UsbMachine(UsbModel(None, 0x174C, 0x2464))):
        assert "ASMedia's own firmware" in sysfs.bridge_obstacle()
    with use_system(UsbMachine(bridge(product="tiny usb"))):
        assert "another firmware" in sysfs.bridge_obstacle()
    with use_system(UsbMachine(UsbModel(bridge(), is_allowed=False))):
        assert 'ATTR{idVendor}=="add1"' in sysfs.bridge_obstacle()
        assert sysfs.bridge_count() == 0


# --- opening


def test_a_bridge_is_opened_and_given_back(machine: UsbMachine) -> None:
    usb = UsbHandle()
    assert str(usb) == "USB bridge 2-1.4 (add1:0001)"
    assert machine.library.devices[0].holder
    usb.close()
    assert not machine.library.open_things
    assert not machine.library.devices[0].holder


def test_bridges_are_numbered_by_their_ports() -> None:
    ports = ((3,), (1, 2), (2,))
    bridges = [UsbModel(bridge(), ports=each, address=9 + each[0]) for each in ports]
    with use_system(UsbMachine(*bridges)):
        places = []
        for index in range(3):
            usb = UsbHandle(index)
            places.append(usb.place)
            usb.close()
        assert places == ["2-1.2", "2-2", "2-3"]


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (UsbModel(bridge(), is_allowed=False), "uaccess.*into /etc/udev/rules.d"),
        (UsbModel(bridge(), holder="another"), "used by another process"),
        (UsbModel(bridge(product="AS2464 NVME")), "flash the custom one"),
        (UsbModel(None), "libusb_get_string_descriptor_ascii says LIBUSB_ERROR_PIPE"),
        (UsbModel(bridge(), 0x1234, 1), "there is no bridge USB.AMD:0 .*: none on USB"),
    ],
)
def test_a_bridge_that_cannot_be_opened(device: UsbModel, why: str) -> None:
    machine = UsbMachine(device)
    with use_system(machine), pytest.raises(DeviceUnavailable, match=why):
        UsbHandle()
    assert not machine.library.open_things


def test_a_device_that_is_not_configured_is_configured() -> None:
    device = UsbModel(bridge(), configuration=0)
    with use_system(UsbMachine(device)):
        UsbHandle()
    assert device.configuration == 1


def test_a_second_process_finds_the_bridge_taken(machine: UsbMachine) -> None:
    first = UsbHandle()
    with pytest.raises(DeviceUnavailable, match="used by another process"):
        UsbHandle()
    first.close()
    UsbHandle().close()


# --- the chip's own memory and the link


@pytest.mark.parametrize("super_speed", [True, False])
def test_memory_of_the_chip_is_read_in_parts_and_written_by_bytes(super_speed: bool) -> None:
    machine = UsbMachine(bridge(super_speed=super_speed))
    with use_system(machine):
        chip = opened(machine)
        content = bytes(range(256)) + b"end"
        chip.write_memory(0xA000, content)
        assert chip.read_memory(0xA000, len(content)) == content
        assert machine.firmware.requests[-2:] == [0xE4, 0xE4]


def test_the_link_is_trained_once() -> None:
    machine = UsbMachine(bridge(training=5))
    with use_system(machine):
        chip = opened(machine)
        assert machine.firmware.requests.count(0xF3) == 1
        chip.bring_up_link()
        assert machine.firmware.requests.count(0xF3) == 1
        assert chip.link_state() == 0x78


def test_a_bridge_without_a_card_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiny_amd.usb.bridge.LINK_SECONDS", 0.0)
    machine = UsbMachine(bridge(has_card=False))
    with use_system(machine), pytest.raises(DeviceUnavailable, match="does it have power"):
        opened(machine)


def test_a_bridge_that_comes_back_with_another_address_is_opened_anew() -> None:
    machine = UsbMachine(bridge(leaves=True))
    with use_system(machine):
        chip = opened(machine)
        assert chip.link_state() == 0x78
        chip.usb.close()
    assert [device.address for device in machine.library.devices] == [7, 8]
    assert not machine.library.open_things


def test_firmware_that_answers_no_request_is_another_one(machine: UsbMachine) -> None:
    chip = Bridge(UsbHandle())
    machine.library.faults.append(Fault(1, "stall"))
    with pytest.raises(DeviceUnavailable, match=r"does not answer.*refused it \(stall\)"):
        chip.bring_up_link()


# --- transfers that fail

CODES = {
    "unplug": (-4, "unplugged or lost its power.*LIBUSB_ERROR_NO_DEVICE"),
    "stall": (-9, "refused it .stall."),
    "timeout": (-7, "not done within 2,000 ms"),
    "io": (-1, "another cable or port"),
    "overflow": (-8, "more than was asked for"),
    "short": (0, "returned 4 of 8 bytes"),
}


@pytest.mark.parametrize("kind", CODES)
def test_a_control_transfer_that_fails(machine: UsbMachine, kind: str) -> None:
    chip = opened(machine)
    code, text = CODES[kind]
    machine.library.faults.append(Fault(machine.library.transfers + 1, kind))
    with pytest.raises(TransferError, match=text) as failed:
        chip.read_memory(LINK_STATE, 8)
    assert failed.value.code == code


def test_a_request_that_takes_less_than_it_was_given(machine: UsbMachine) -> None:
    chip = opened(machine)
    machine.library.faults.append(Fault(machine.library.transfers + 1, "short"))
    with pytest.raises(TransferError, match="took 6 of 12 bytes"):
        chip.config_read(0, 0, 0)


@pytest.mark.parametrize("kind", ["stall", "timeout", "io", "overflow", "short"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_bulk_transfer_that_fails_leaves_the_bridge_usable(
    machine: UsbMachine, kind: str, direction: str
) -> None:
    chip = opened(machine)
    machine.library.faults.append(Fault(machine.library.transfers + 2, kind))
    transfer: Callable[[], object] = partial(chip.sram_read, 0, 1024)
    if direction == "out":
        transfer = partial(chip.sram_write, 0, bytes(1024))
    with pytest.raises(TransferError):
        transfer()
    chip.sram_write(2, b"again")
    assert chip.sram_read(2, 5) == b"again"


def test_a_bridge_that_is_unplugged_is_lost_for_good(machine: UsbMachine) -> None:
    chip = opened(machine)
    machine.library.faults.append(Fault(machine.library.transfers + 2, "unplug"))
    with pytest.raises(TransferError, match=r"512 of 1,024 bytes through pipe 0x81.*unplugged"):
        chip.sram_read(0, 1024)
    made = machine.library.transfers
    with pytest.raises(TransferError, match="Plug it in again, and start this process anew"):
        chip.link_state()
    assert machine.library.transfers == made
    chip.usb.close()
    assert not machine.library.open_things
    with pytest.raises(TransferError):
        chip.link_state()


def test_a_handle_that_is_closed_makes_no_transfer(machine: UsbMachine) -> None:
    usb = UsbHandle()
    usb.close()
    with pytest.raises(TransferError, match="is closed"):
        usb.control_in(0xE4, LINK_STATE, 0, 1)
    usb.close()


# --- requests of PCIe


def test_the_first_port_is_that_of_the_bridge(machine: UsbMachine) -> None:
    chip = opened(machine)
    assert chip.config_read(0, 0, 0) == 0x24631B21
    assert chip.config_read(0, 0, 2, 2) == 0x2463
    assert chip.config_read(0, 0, 0xE, 1) == 1


def test_a_part_of_a_word_is_written_alone(machine: UsbMachine) -> None:
    chip = opened(machine)
    chip.config_write(0, 0, 0x18, 0x00040100)
    chip.config_write(0, 0, 0x1A, 9, 1)
    assert chip.config_read(0, 0, 0x18) == 0x00090100


def test_registers_that_are_none_are_refused(machine: UsbMachine) -> None:
    chip = opened(machine)
    for offset, size in ((3, 2), (0x1000, 4), (-4, 4)):
        with pytest.raises(ArgumentError, match="no register of a configuration"):
            chip.config_read(0, 0, offset, size)


@pytest.mark.parametrize(
    ("header", "error", "status"),
    [
        (0, 1, CompletionStatus.UNSUPPORTED),
        (0x20, 0, CompletionStatus.UNSUPPORTED),
        (0x80, 0, CompletionStatus.ABORT),
        (0, 0xFF, CompletionStatus.TIMEOUT),
        (0x60, 0, 3),
    ],
)
def test_a_completion_that_is_no_success(
    machine: UsbMachine, header: int, error: int, status: int
) -> None:
    chip = opened(machine)
    machine.firmware.statuses.append((header, error))
    with pytest.raises(CompletionError) as failed:
        chip.config_read(0, 0, 0)
    assert failed.value.status == status
    assert chip.config_read(0, 0, 0, 2) == 0x1B21


def test_a_card_that_says_later_is_asked_again(machine: UsbMachine) -> None:
    chip = opened(machine)
    machine.firmware.statuses += [(0x40, 0), (0x40, 0)]
    assert chip.config_read(0, 0, 0, 2) == 0x1B21


def test_a_card_that_says_later_for_ever_is_given_up(
    machine: UsbMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = opened(machine)
    monkeypatch.setattr("tiny_amd.usb.bridge.RETRY_SECONDS", 0.0)
    machine.firmware.statuses += [(0x40, 0)] * 9
    with pytest.raises(CompletionError, match="retry"):
        chip.config_read(0, 0, 0)


def test_a_link_that_goes_down_during_a_stream_is_told(machine: UsbMachine) -> None:
    chip = opened(machine)
    machine.firmware.state = 0x03
    with pytest.raises(DeviceError, match=r"link to the card is down \(state 0x03\)"):
        chip.memory_read(0x10000000, 4096)


# --- SRAM


@pytest.mark.parametrize("size", [1, 512, 513, 16384, 100_000, 31 << 14])
def test_sram_holds_what_was_written(machine: UsbMachine, size: int) -> None:
    chip = opened(machine)
    content = bytes(number * 7 & 0xFF for number in range(size))
    chip.sram_write(0, content)
    assert chip.sram_read(0, size) == content


def test_a_write_is_done_when_sram_has_it() -> None:
    machine = UsbMachine(bridge(lag=5))
    with use_system(machine):
        chip = opened(machine)
        for content in (b"later", b"again"):
            chip.sram_write(3, content)
            assert bytes(machine.firmware.sram[3 * SLOT_BYTES :][:5]) == content


def test_a_write_that_never_arrives_is_told() -> None:
    machine = UsbMachine(bridge(lag=10_000))
    with use_system(machine), pytest.raises(DeviceError, match="did not arrive in its SRAM"):
        opened(machine).sram_write(0, b"never")


def test_spans_outside_of_sram_are_refused(machine: UsbMachine) -> None:
    chip = opened(machine)
    for slot, size in ((-1, 1), (31, 1), (30, SLOT_BYTES + 1), (0, 0)):
        with pytest.raises(ArgumentError, match="not within SRAM"):
            chip.sram_read(slot, size)
    with pytest.raises(ArgumentError, match="not within SRAM"):
        chip.sram_write(30, bytes(SLOT_BYTES + 1))


# --- the stand-in itself


def test_the_stand_in_refuses_what_firmware_would_lose(machine: UsbMachine) -> None:
    usb = opened(machine).usb
    request = bytes(8) + b"\1\0\0\0"
    usb.control_out(0xF0, Packet.CONFIG_READ | 0xF << 8, 0, bytes(12))
    with pytest.raises(Mistake, match="whose completion was not taken"):
        usb.control_out(0xF0, Packet.CONFIG_READ | 0xF << 8, 0, bytes(12))
    usb.control_in(0xF0, 0, 0, 8)
    with pytest.raises(Mistake, match="no request is under way"):
        usb.control_in(0xF0, 0, 0, 8)
    usb.control_out(0xF0, Packet.MEMORY_WRITE | 0xF << 8, 1, request)
    with pytest.raises(Mistake, match="ends a stream"):
        usb.control_out(0xF0, Packet.MEMORY_WRITE | 0xF << 8, 1, request)
    with pytest.raises(Mistake, match="in the other or this way"):
        usb.bulk_in(4)
    with pytest.raises(Mistake, match="nothing was armed for"):
        usb.bulk_out(bytes(4))
    with pytest.raises(Mistake, match="2000 ms"):
        usb.control_out(0xF3, 1, 0, limit_ms=1000)
