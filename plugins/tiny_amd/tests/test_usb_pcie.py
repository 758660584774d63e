"""PCIe behind a USB bridge: enumeration of ports and card, and memory through its BARs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from usb_standin import Mistake, UsbMachine
from usb_standin.fabric import BarShape, Function
from usb_standin.library import Fault
from usb_standin.machine import bridge

from tiny_amd.am.bus import DOORBELL_BAR, MEMORY_BAR, REGISTER_BAR
from tiny_amd.usb.bridge import SLOT_BYTES, Bridge
from tiny_amd.usb.bus import BarView, UsbBus
from tiny_amd.usb.pcie import AssignedBar, EnumeratedCard, enumerate_card
from tiny_amd.usb.transfers import TransferError, UsbHandle
from tiny_hcq import use_system
from tinycore.errors import DeviceUnavailable, OutOfMemory

GIB = 1 << 30


@pytest.fixture
def machine() -> Iterator[UsbMachine]:
    """A machine with one bridge, and a card of 24 GiB behind it."""
    made = UsbMachine(bridge())
    with use_system(made):
        yield made


def found(machine: UsbMachine, *, resize: bool = True) -> tuple[Bridge, EnumeratedCard]:
    """The bridge and its card."""
    chip = Bridge(UsbHandle())
    return chip, enumerate_card(chip, resize=resize)


def test_a_card_behind_four_ports(machine: UsbMachine) -> None:
    _, card = found(machine)
    assert str(card) == "card 1002:744c on bus 4"
    assert (card.lanes, card.generation) == (2, 3)
    assert card.bars == {
        0: AssignedBar(32 * GIB, 32 * GIB, is_wide=True, is_prefetchable=True),
        2: AssignedBar(64 * GIB, 2 << 20, is_wide=True, is_prefetchable=True),
        5: AssignedBar(0x1010_0000, 1 << 20, is_wide=False, is_prefetchable=False),
    }


def test_memory_stays_in_a_small_window_where_that_is_asked(machine: UsbMachine) -> None:
    _, card = found(machine, resize=False)
    assert card.bars[0] == AssignedBar(32 * GIB, 256 << 20, is_wide=True, is_prefetchable=True)


def test_buses_of_ports(machine: UsbMachine) -> None:
    found(machine)
    ports = machine.firmware.fabric.ports
    assert [port.get(0x18, 3) for port in ports] == [0x040100, 0x040201, 0x040302, 0x040403]


def test_everything_decodes_and_may_be_master_at_the_end(machine: UsbMachine) -> None:
    found(machine)
    fabric = machine.firmware.fabric
    assert all(each.decodes and each.is_master for each in (*fabric.ports, fabric.card[0]))
    assert not fabric.card[1].decodes
    fabric.write_host(0x200000, b"from the card")
    assert bytes(machine.firmware.sram[:13]) == b"from the card"


def test_a_second_enumeration_finds_the_same(machine: UsbMachine) -> None:
    chip, card = found(machine)
    assert enumerate_card(chip) == card


@pytest.mark.parametrize(
    "shapes",
    [
        {0: BarShape(28, wide=True, prefetchable=True), 5: BarShape(19)},
        {0: BarShape(30), 2: BarShape(21), 5: BarShape(20)},
        {0: BarShape(36, wide=True, prefetchable=True), 5: BarShape(20)},
        {0: BarShape(29, wide=True, prefetchable=True, resizable=(28, 29, 30))},
        {
            1: BarShape(16),
            2: BarShape(12, wide=True),
            4: BarShape(33, wide=True, prefetchable=True),
        },
        {0: BarShape(20, wide=True, prefetchable=True, resizable=(20, 22, 41)), 2: BarShape(24)},
    ],
)
def test_other_shapes_of_cards(machine: UsbMachine, shapes: dict[int, BarShape]) -> None:
    fabric = machine.firmware.fabric
    fabric.card = [Function(0x1002, 0x7480, 0x038000, bars=shapes)]
    chip, card = found(machine)
    assert {number: bar.size for number, bar in card.bars.items()} == {
        number: 1 << shape.bits for number, shape in shapes.items()
    }
    for number, bar in card.bars.items():
        content = bytes([number]) * 8
        chip.memory_write(bar.address + bar.size - 8, content)
        assert fabric.memory.read(number, bar.size - 8, 8) == content


def test_a_card_without_a_switch_of_its_own(machine: UsbMachine) -> None:
    fabric = machine.firmware.fabric
    fabric.ports = fabric.ports[:2]
    assert found(machine)[1].bus == 2


def test_a_card_that_takes_its_time_after_a_reset() -> None:
    machine = UsbMachine(bridge(retries=5))
    with use_system(machine):
        assert found(machine)[1].device == 0x744C


def no_card(machine: UsbMachine) -> None:
    machine.firmware.fabric.card = []


def another_vendor(machine: UsbMachine) -> None:
    machine.firmware.fabric.card = [Function(0x10DE, 0x2684, 0x030000)]


def no_display(machine: UsbMachine) -> None:
    machine.firmware.fabric.card = [Function(0x1002, 0x744C, 0x040300)]


def too_large(machine: UsbMachine) -> None:
    bars = {0: BarShape(31), 1: BarShape(31)}
    machine.firmware.fabric.card = [Function(0x1002, 0x744C, 0x030000, bars=bars)]


def too_deep(machine: UsbMachine) -> None:
    fabric = machine.firmware.fabric
    fabric.ports = [Function(0x1B21, 0x2463, 0x060400, header=1) for _ in range(9)]


def older_firmware(machine: UsbMachine) -> None:
    machine.firmware.big_endian = True


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_card, "no card answers on bus 4"),
        (another_vendor, "is 10de:2684 of class 0x03, which is no card of AMD"),
        (no_display, "of class 0x04"),
        (too_large, "need .* bytes of 32 bits"),
        (too_deep, "more than 8 ports"),
        (older_firmware, "another order of bytes"),
    ],
)
def test_a_card_that_cannot_be_used(
    machine: UsbMachine, change: Callable[[UsbMachine], None], why: str
) -> None:
    change(machine)
    with pytest.raises(DeviceUnavailable, match=why):
        found(machine)


@pytest.mark.parametrize("super_speed", [True, False])
def test_memory_of_any_length_at_any_address(super_speed: bool) -> None:
    machine = UsbMachine(bridge(super_speed=super_speed))
    with use_system(machine):
        chip, card = found(machine)
        base, draw = card.bars[0].address, random.Random(7)
        shadow = bytearray(80_000)
        for _ in range(40):
            start = draw.randrange(len(shadow))
            content = draw.randbytes(min(draw.choice((1, 2, 3, 4, 7, 600)), len(shadow) - start))
            chip.memory_write(base + start, content)
            shadow[start : start + len(content)] = content
        chip.memory_write(base, bytes(shadow[:70_001]))
        assert chip.memory_read(base, len(shadow)) == shadow
        assert chip.memory_read(base + 3, 5) == shadow[3:8]
        assert chip.memory_read(base, 0) == b""


def test_the_last_packet_of_a_stream_is_not_lost_to_the_next_request(machine: UsbMachine) -> None:
    chip, card = found(machine)
    chip.memory_write(card.bars[0].address, bytes(range(1, 41)))
    assert chip.memory_read(card.bars[0].address + 36, 4) == bytes(range(37, 41))


def test_a_stream_that_was_interrupted_does_not_stay(machine: UsbMachine) -> None:
    chip, card = found(machine)
    base = card.bars[0].address
    machine.library.faults.append(Fault(machine.library.transfers + 2, "stall"))
    with pytest.raises(TransferError, match="0 of 4,096 bytes through pipe 0x02"):
        chip.memory_write(base, bytes(4096))
    chip.memory_write(base, b"new words")
    assert chip.memory_read(base, 9) == b"new words"


# --- the bus that AM's driver uses


def bus_of(machine: UsbMachine) -> UsbBus:
    """The way to the card of a machine."""
    return UsbBus(*found(machine))


def test_registers_memory_and_doorbells(machine: UsbMachine) -> None:
    bus = bus_of(machine)
    assert bus.name == "card 1002:744c on bus 4 behind USB bridge 2-1.4 (add1:0001)"
    assert (bus.device_id, bus.bar_bytes) == (0x744C, {0: 32 * GIB, 2: 2 << 20, 5: 1 << 20})
    bus.write32(REGISTER_BAR, 0x58, 0x12345678)
    bus.write64(DOORBELL_BAR, 0x800, 0x1_0000_0002)
    bus.write_block(MEMORY_BAR, 31 * GIB, bytes(range(200)))
    memory = machine.firmware.fabric.memory
    assert memory.read(5, 0x58, 4) == b"\x78\x56\x34\x12"
    assert memory.read(2, 0x800, 8) == (0x1_0000_0002).to_bytes(8, "little")
    assert memory.read(0, 31 * GIB, 200) == bytes(range(200))
    assert bus.read32(REGISTER_BAR, 0x58) == 0x12345678
    assert bus.read_block(MEMORY_BAR, 31 * GIB + 4, 96) == bytes(range(4, 100))
    assert (bus.read_config(0, 2), bus.read_config(4, 2)) == (0x1002, 6)
    bus.write_config(4, 2, 2)
    assert not machine.firmware.fabric.card[0].is_master
    bus.close()
    assert not machine.library.open_things


def test_a_number_that_grows_while_it_is_read(
    machine: UsbMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = bus_of(machine)
    memory = machine.firmware.fabric.memory
    numbers = iter([0xFFFF_FFFF, 0x1_0000_0000, 0x1_0000_0000, 0x1_0000_0001, 0x1_0000_0001])
    read = memory.read

    def grows(bar: int, offset: int, size: int) -> bytes:
        memory.write(0, 64, next(numbers).to_bytes(8, "little"))
        return read(bar, offset, size)

    monkeypatch.setattr(memory, "read", grows)
    assert BarView(bus, MEMORY_BAR, 0).word(64) == 0x1_0000_0001


def test_a_view_of_memory_is_written_and_read(machine: UsbMachine) -> None:
    view = BarView(bus_of(machine), MEMORY_BAR, 4096)
    view[3:10] = b"letters"
    assert view[0:12] == b"\0\0\0letters\0\0"
    view.set_word(16, 0x1122334455667788)
    assert view.word(16) == 0x1122334455667788
    assert view[16:20] == b"\x88\x77\x66\x55"


def test_memory_of_the_system_is_sram(machine: UsbMachine) -> None:
    bus = bus_of(machine)
    machine.firmware.sram[:] = b"\xee" * len(machine.firmware.sram)
    one, two = bus.allocate(100), bus.allocate(40_000)
    assert (one.address, one.size, two.size) == (0, SLOT_BYTES, 3 * SLOT_BYTES)
    assert one.pages == (0x200000, 0x201000, 0x202000, 0x203000)
    assert two.pages[0] == 0x204000
    assert two.host[0 : two.size] == bytes(two.size)
    draw, shadow = random.Random(3), bytearray(two.size)
    for _ in range(12):
        begin = draw.randrange(two.size)
        content = draw.randbytes(draw.randrange(1, two.size - begin + 1))
        two.host[begin : begin + len(content)] = content
        shadow[begin : begin + len(content)] = content
        assert machine.firmware.sram[0x4000:0x10000] == shadow
        at = draw.randrange(two.size - 700)
        assert bytes(two.host[at : at + 700]) == shadow[at : at + 700]
    assert not isinstance(two.host, memoryview)
    two.host.set_word(8, 0x1122334455667788)
    assert two.host.word(8) == 0x1122334455667788
    machine.firmware.fabric.write_host(two.pages[11], b"of the card")
    assert two.host[0xB000:0xB00B] == b"of the card"
    assert one.host[0 : one.size] == bytes(one.size)


def test_sram_is_given_out_and_back(machine: UsbMachine) -> None:
    bus = bus_of(machine)
    all_of_it = bus.allocate(31 * SLOT_BYTES)
    with pytest.raises(OutOfMemory, match="no 16,384 bytes of SRAM in a row are left, of 0"):
        bus.allocate(1)
    bus.free(all_of_it)
    parts = [bus.allocate(10 * SLOT_BYTES) for _ in range(3)]
    bus.free(parts[1])
    with pytest.raises(OutOfMemory, match="in a row are left, of 180,224"):
        bus.allocate(11 * SLOT_BYTES)
    assert bus.allocate(10 * SLOT_BYTES).pages == parts[1].pages


def test_the_stand_in_knows_what_a_card_must_not_do(machine: UsbMachine) -> None:
    chip, card = found(machine)
    fabric = machine.firmware.fabric
    with pytest.raises(Mistake, match="reaches nothing"):
        chip.memory_write(card.bars[5].address - 4, bytes(4))
    with pytest.raises(Mistake, match="none is there"):
        fabric.read_host(0x900000, 4)
    with pytest.raises(Mistake, match="is in a window"):
        fabric.read_host(card.bars[5].address, 4)
    chip.config_write(2, 0, 4, 2, 2)
    with pytest.raises(Mistake, match="no bus master"):
        fabric.read_host(0x200000, 4)
    with pytest.raises(Mistake, match="resized while the card decodes"):
        chip.config_write(4, 0, 0x208, 28 - 20 << 8)
