"""The start of a card's own processor, on a stand-in of its registers: order, values, faults."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy
import pytest
from gsp_standin.fsp import FspModel
from gsp_standin.gsp import Gsp
from gsp_standin.images import FMC, FORMS, FWSEC, IMAGE, firmware, fmc_file, rom
from gsp_standin.messages import Queues
from nv_pci_standin import ADDRESS, ROM_AT, Chip, PciMachine
from pci_faults import SEEDED
from rm_standin import Mistake
from simulated_pci import Simulated, opened

from tiny_hcq import bytes_at
from tiny_nv.nvk import classes as gsp_classes
from tiny_nv.nvk.device import NvDevice
from tiny_nv.pci import bring_up, falcon, fsp, gsp, messages
from tiny_nv.pci.layout import requested_memory
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory

KERNEL_FILES, BY_VFIO = ("nvidia", ""), ("vfio-pci", "DMA")
ARCHS: Final = {0x17: "sm_86", 0x18: "sm_90", 0x19: "sm_89", 0x1A: "sm_100", 0x1B: "sm_120"}
"""By the architecture's number."""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for what does not come."""
    monkeypatch.setattr(bring_up, "START_SECONDS", 0.01)
    for module in (falcon, fsp):
        monkeypatch.setattr(module, "_SECONDS", 0.01)
    monkeypatch.setattr(gsp, "_START_SECONDS", 0.05)
    monkeypatch.setattr(gsp, "_ANSWER_SECONDS", 0.05)


def machine_of(architecture: int = 0x17, driver: str = "nvidia", iommu: str = "") -> PciMachine:
    """A machine with one card that has a GSP."""
    return PciMachine(Chip(architecture, driver=driver, iommu=iommu))


def gsp_of(machine: PciMachine) -> Gsp:
    """The GSP of the one card."""
    found = machine.chips[0].gsp
    assert found is not None
    return found


def check_back(machine: PciMachine, driver: str) -> None:
    """Nothing is left of what was done to the card."""
    (chip,) = machine.chips
    assert chip.driver == driver
    assert not chip.mapped
    assert not chip.memory.is_master
    assert not chip.memory.pinned
    assert not machine.pinned
    assert not any(machine.files.values())


def refusal(machine: PciMachine, driver: str = "nvidia") -> str:
    """The error of an open, after which the card is back."""
    with pytest.raises(DeviceUnavailable) as found:
        opened(machine)
    check_back(machine, driver)
    return str(found.value)


@pytest.mark.parametrize(("driver", "iommu"), [KERNEL_FILES, BY_VFIO])
@pytest.mark.parametrize("architecture", [*ARCHS])
def test_a_card_is_started_and_given_back(architecture: int, driver: str, iommu: str) -> None:
    machine = machine_of(architecture, driver, iommu)
    (chip,) = machine.chips

    device = opened(machine)

    found = gsp_of(machine)
    if found.fsp is None:  # the sequence resumes by the booter
        assert found.gsp_of_booter.runs == found.booter.runs - 1 == 1
    else:
        assert found.fsp.messages == 1
    assert device.arch == ARCHS[architecture]
    assert chip.words[0x1400 // 4] == 0xFF50
    assert chip.memory.is_master
    device.close()
    assert found.told == []  # it was reset
    assert chip.resets == 1
    check_back(machine, driver)


def test_a_card_is_brought_up_once_for_all_its_users() -> None:
    machine = machine_of()
    first, second = opened(machine), opened(machine)
    assert first.card is second.card
    first.close()
    assert machine.chips[0].driver == ""
    second.close()
    check_back(machine, "nvidia")


def test_a_card_can_be_opened_again() -> None:
    machine = machine_of()
    for _ in range(2):
        opened(machine).close()
    assert machine.chips[0].resets == 2


def test_a_forked_child_does_not_take_the_card_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = machine_of()
    device = opened(machine)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(DeviceUnavailable, match="another process uses"):
            opened(machine)
    assert gsp_of(machine).queues is not None
    device.close()
    check_back(machine, "nvidia")


def test_an_interrupt_while_a_card_is_brought_up_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = machine_of()
    monkeypatch.setattr(gsp_of(machine), "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened(machine)
    check_back(machine, "nvidia")


def interrupted(function: int, content: bytes) -> None:
    """The user ends the program."""
    raise KeyboardInterrupt


def test_a_card_that_cannot_be_reset_addresses_memory_no_more() -> None:
    machine = machine_of()
    device = opened(machine)
    machine.refused["/reset"] = errno.ENOTTY
    device.close()
    check_back(machine, "nvidia")


# --- what the system refuses


@pytest.mark.parametrize(
    ("end", "number", "said"),
    [
        ("huge pages", errno.ENOMEM, "nr_hugepages"),
        ("/resource1", errno.EACCES, "resource1 cannot be opened"),
        ("gsp-570.144.bin", errno.EACCES, "cannot be read"),
        ("/pagemap", errno.EACCES, "CAP_SYS_ADMIN"),
    ],
)
def test_what_the_system_refuses(end: str, number: int, said: str) -> None:
    machine = machine_of()
    machine.refused[end] = number
    assert said in refusal(machine)


def test_physical_addresses_that_are_hidden() -> None:
    machine = machine_of()
    machine.pages_moved = True
    assert "CAP_SYS_ADMIN" in refusal(machine)


def test_an_iommu_that_translates_needs_vfio() -> None:
    said = refusal(machine_of(iommu="DMA-FQ"))
    assert "bind it to vfio-pci" in said


@pytest.mark.parametrize(
    ("end", "said"), [("/vfio/7", "through vfio"), ("vfio map", "ulimit -l"), ("mmap", "mapped")]
)
def test_what_vfio_refuses(end: str, said: str) -> None:
    machine = machine_of(0x17, *BY_VFIO)
    machine.refused[end] = errno.EACCES
    assert said in refusal(machine, "vfio-pci")


def test_a_group_of_vfio_with_a_function_of_others() -> None:
    machine = machine_of(0x17, *BY_VFIO)
    machine.group_status = 0
    assert "another function" in refusal(machine, "vfio-pci")


# --- firmware and video BIOS


@pytest.mark.slow
def test_firmware_that_is_compressed() -> None:
    opened(PciMachine(Chip(), compression=".xz")).close()
    assert "zstd -d /lib/firmware" in refusal(PciMachine(Chip(), compression=".zst"))


def changed(machine: PciMachine, offset: int, content: bytes) -> PciMachine:
    """A machine whose video BIOS has other bytes."""
    at = ROM_AT + offset
    machine.chips[0].bytes[at : at + len(content)] = numpy.frombuffer(content, numpy.uint8)
    return machine


@pytest.mark.parametrize(
    ("place", "content", "said"),
    [
        (b"\x55\xaa", b"\0\0", "begins with 0000"),
        (b"PCIR", b"XXXX", "no PCI data"),
        (b"BIT\0", b"BYT\0", "no BIOS information table"),
        (b"\x70\x02\x04\x00", b"\x71", "names no programs"),
        (b"\x85\x01", b"\x86", "no program FWSEC"),
        (b"DMAP", b"PAMD", "no DMAP"),
    ],
)
def test_a_video_bios_of_another_form(place: bytes, content: bytes, said: str) -> None:
    assert said in refusal(changed(machine_of(), rom().index(place), content))


def test_fwsec_that_was_changed_does_not_run() -> None:
    machine = changed(machine_of(), rom().index(FWSEC.code) + 600, b"\x55\xaa\x55\xaa")
    said = refusal(machine)
    assert "FWSEC" in said
    assert "protects 0x0" in said
    assert "not what was signed" in gsp_of(machine).gsp_of_booter.refused or machine.chips[0].resets


def test_signatures_that_are_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsp_standin.gsp.FUSE", 5)
    assert "the firmware is too old" in refusal(machine_of())


# --- steps that fail


def test_fwsec_that_tells_an_error() -> None:
    machine = machine_of()
    gsp_of(machine).fwsec_error = 0x2A
    assert "error 0x2a" in refusal(machine)


def test_a_falcon_that_does_not_halt(soon: None) -> None:
    machine = machine_of()
    gsp_of(machine).gsp_of_booter.never_halts = True
    assert "GSP does not halt" in refusal(machine)


def test_a_booter_that_ends_with_a_status() -> None:
    machine = machine_of()
    gsp_of(machine).booter_status = 0x17
    assert "status 0x17" in refusal(machine)


def test_firmware_that_is_not_the_signed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of()
    monkeypatch.setattr("gsp_standin.programs.IMAGE", IMAGE[:-1] + b"\0")
    assert "status 0x31" in refusal(machine)


def test_a_gsp_that_never_answers(soon: None) -> None:
    machine = machine_of()
    gsp_of(machine).is_silent = True
    assert "does not start" in refusal(machine)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([9], "operation 9"),
        ([0, 4], "operation 0"),
        ([2, 0x1404, 0xFF, 0x55, 1, 3], "waits for 0x55 in register 0x1404 (its error 3)"),
        ([4, 0x1404, 9], "saves register 0x1404 at 9"),
    ],
)
def test_sequences_that_fail(words: list[int], said: str) -> None:
    machine = machine_of()
    gsp_of(machine).sequence = words
    assert said in refusal(machine)


def test_an_address_space_that_is_refused() -> None:
    machine = machine_of()
    gsp_of(machine).refused["alloc 0x90f1"] = 0x40
    assert "an address space (class 0x90f1): INVALID_STATE" in refusal(machine)


def test_a_channel_that_is_refused_leaves_nothing() -> None:
    machine = machine_of()
    gsp_of(machine).refused["alloc 0xc56f"] = 0x1F
    with pytest.raises(DeviceError, match="a compute channel"):
        opened(machine)
    check_back(machine, "nvidia")


# --- the security processor

BY_FSP = pytest.mark.parametrize("architecture", [0x18, 0x1A, 0x1B])


def fsp_of(machine: PciMachine) -> FspModel:
    """The security processor of the one card."""
    found = gsp_of(machine).fsp
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_busy": True}, "takes no message"),
        ({"is_silent": True}, "security processor does not answer"),
        ({"status": 0x9E}, "refuses message 0x14: error 0x9e"),
        ({"kind": 0x13}, "about 0x13; it was asked for 0x14"),
        ({"head": (0x80000000, 0x1510DE7E)}, "answers 0x80000000"),
        ({"head": (0xC0000000, 0x1510DE7F)}, "0x1510de7f"),
    ],
)
def test_a_security_processor_that_does_not_do_it(
    change: dict[str, object], said: str, soon: None
) -> None:
    machine = machine_of(0x18)
    vars(fsp_of(machine)).update(change)
    assert said in refusal(machine)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"error": 0x2B}, "ended with error 0x2b"),
        ({"never_unlocks": True}, "its GSP is not unlocked"),
        ({"never_runs": True}, "(10de:2b85) does not run"),
    ],
)
def test_a_first_program_that_fails(change: dict[str, object], said: str, soon: None) -> None:
    machine = machine_of(0x1B)
    vars(gsp_of(machine).gsp_of_fsp).update(change)
    assert said in refusal(machine)


@BY_FSP
def test_a_first_program_that_is_not_the_signed_one(
    architecture: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(architecture)
    monkeypatch.setattr("gsp_standin.fsp.FMC", FMC[:-1] + b"\0")
    assert "error 0xa1" in refusal(machine)
    assert fsp_of(machine).complaint == "image" or machine.chips[0].resets


@pytest.mark.parametrize("place", [b"image", b"hash", b"publickey", b"signature"])
def test_a_file_without_a_part_of_the_first_program(
    place: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = firmware("gb20x")["fmc"].replace(
        b"\0" + place + b"\0", b"\0XXX".ljust(len(place) + 2, b"\0")
    )
    monkeypatch.setitem(firmware("gb20x"), "fmc", content)
    assert f"as its {place.decode()}" in refusal(machine_of(0x1B))


def test_a_key_of_another_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(firmware("gh100"), "fmc", firmware("gb20x")["fmc"])
    assert "97 bytes as its publickey, not 384 bytes" in refusal(machine_of(0x18))


def test_a_first_program_that_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(firmware("gh100"), "fmc", fmc_file(FORMS[0x18], damage=4))
    assert "the checksum of its image differs" in refusal(machine_of(0x18))


def test_firmware_signed_for_other_chips_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(firmware("gh100"), "gsp", firmware("gb20x")["gsp"])
    assert "no section .fwsignature_gh100; it has: " in refusal(machine_of(0x18))


def test_protected_memory_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of(0x1B)
    monkeypatch.setattr(fsp_of(machine), "protect", lambda low, high: None)
    assert "protects 0x0 to 0x0" in refusal(machine)


def test_a_card_that_does_not_tell_its_memory() -> None:
    for architecture in (0x17, 0x18):
        machine = machine_of(architecture)
        machine.chips[0].set(0x1183A4, 0xBADF5040)
        assert "does not tell how much memory it has" in refusal(machine)


def test_a_gsp_that_asks_to_be_started_again() -> None:
    machine = machine_of(0x18)
    gsp_of(machine).sequence = [8]
    assert "asks to be started again" in refusal(machine)


@BY_FSP
def test_a_heap_grows_with_the_memory(architecture: int) -> None:
    open_heap, pmu = (2 << 20, 0) if architecture == 0x18 else (0x220000, 0x1820000)
    found = [requested_memory(gib << 30, open_heap, pmu).heap_bytes >> 20 for gib in (8, 32, 141)]
    assert found == [133, 135, 146]


def test_no_memory_is_given_out_that_is_protected() -> None:
    for architecture in ARCHS:
        machine = machine_of(architecture)
        device = opened(machine)
        card = device.card
        assert isinstance(card, bring_up.OpenedCard)
        low, high = card.registers.protected_memory(card.processor.architecture)
        assert card.processor.way.first_protected < low < high <= machine.chips[0].memory.size
        device.close()


# --- a card that runs


@pytest.fixture(params=[0x17, 0x18], ids=["ampere", "hopper"])
def device(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    """A card that runs, closed in the end."""
    found = opened(machine_of(request.param))
    yield found
    found.close()


def gsp_behind(device: NvDevice) -> Gsp:
    """The GSP of an open card."""
    assert isinstance(device, Simulated)
    return gsp_of(device.machine)


def queues_of(device: NvDevice) -> Queues:
    """The GSP's side of the queues of an open card."""
    found = gsp_behind(device).queues
    assert found is not None
    return found


def test_memory_of_the_card_is_seen_through_bar1(device: NvDevice) -> None:
    card = device.card
    assert isinstance(card, bring_up.OpenedCard)
    memory = gsp_behind(device).memory
    made = [card.allocate(size, is_visible=True) for size in (4096, 3 << 20, 8192)]

    for number, each in enumerate(made, 1):
        bytes_at(each.host, each.size)[:4] = bytes([number] * 4)
        bytes_at(each.host, each.size)[-4:] = bytes([number] * 4)
    for number, each in enumerate(made, 1):
        first, last = memory.video(each.physical, 4), memory.video(each.physical + each.size - 4, 4)
        assert bytes_at(first, 4) == bytes_at(last, 4) == bytes([number] * 4)
    for each in made:
        card.free(each)
    assert not card.windows.tables.root.used - 1  # rings of channels are seen too


def test_memory_of_the_system_in_several_huge_pages(device: NvDevice) -> None:
    made = device.card.allocate((5 << 20) + 4096, is_system=True, is_visible=True)
    (space,) = gsp_behind(device).resources.roots
    region = space.memory.region_at(made.address)
    assert region is not None
    at = made.address - region.address
    assert region.data.nbytes == at + made.size

    bytes_at(made.host, made.size)[:: 1 << 20] = bytes([1, 2, 3, 4, 5, 6])

    assert region.data[at : at + made.size : 1 << 20].tolist() == [1, 2, 3, 4, 5, 6]
    device.card.free(made)
    assert space.memory.region_at(made.address) is None


def test_memory_that_is_used_up(device: NvDevice) -> None:
    with pytest.raises(OutOfMemory):
        device.card.allocate(8 << 30)
    with pytest.raises(OutOfMemory):
        device.card.allocate(512 << 20, is_visible=True)
    device.card.free(device.card.allocate(3 << 30))


def test_memory_that_is_freed_is_unpinned(device: NvDevice) -> None:
    pinned = gsp_behind(device).memory.pinned
    before = {*pinned}
    for size in (4096, 5 << 20, 2 << 20):
        device.card.free(device.card.allocate(size, is_system=True))
        assert {*pinned} == before


def test_large_messages_go_on_in_records(device: NvDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    card = device.card
    assert isinstance(card, bring_up.OpenedCard)
    found: list[int] = []

    def answer(function: int, content: bytes) -> bytes:
        found.append(len(content))
        return b"done"

    monkeypatch.setattr(gsp_behind(device), "answer", answer)

    size = messages.LARGEST_CONTENT + 5000
    assert card.processor.call(0x4C, bytes(size), "a large message") == b"done"
    assert found == [size]


def test_the_queues_wrap_around(device: NvDevice) -> None:
    for _ in range(2 * messages.ELEMENTS):
        device.card.rm.control(
            device.group.compute.handle,
            gsp_control(),
            device.card.rm.record("work_submit_token"),
        )


def test_a_message_of_several_elements_goes_over_the_end(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = device.card
    assert isinstance(card, bring_up.OpenedCard)
    found: list[bytes] = []

    def answer(function: int, content: bytes) -> bytes:
        found.append(content)
        return b""

    monkeypatch.setattr(gsp_behind(device), "answer", answer)

    sent = [bytes([number]) * (9 * 4096) for number in range(1, 9)]
    for content in sent:
        card.processor.call(0x4C, content, "a message")
    assert found == sent


def gsp_control() -> gsp_classes.Control:
    """A control that changes nothing."""
    return gsp_classes.Control.GET_WORK_SUBMIT_TOKEN


def test_a_message_that_is_damaged(device: NvDevice) -> None:
    queues_of(device).damage = 0x10
    with pytest.raises(DeviceError, match="its checksum differs"):
        test_the_queues_wrap_around(device)
    gsp_behind(device).chip.reset()


def test_a_gsp_that_stops_to_answer(device: NvDevice, soon: None) -> None:
    gsp_behind(device).is_silent = True
    with pytest.raises(DeviceError, match="does not answer within"):
        test_the_queues_wrap_around(device)


def test_errors_that_the_gsp_logs_are_told(device: NvDevice) -> None:
    text = struct.pack("<III", 31, 0, 1) + b"MMU fault of engine GRAPHICS\0"
    queues_of(device).send(0x1006, text)
    told = (1, 1, 0, 4, 31, 1, 0, 0, 0x7654_3210_0000, 2)
    queues_of(device).send(0x1004, struct.pack("<6IHHQI", *told) + bytes(8))
    said = "".join(device.fault() for _ in range(3))
    assert "Xid 31" in said
    assert "an access at 0x765432100000: nothing is mapped there" in said
    card = device.card
    assert isinstance(card, bring_up.OpenedCard)
    assert "MMU fault of engine GRAPHICS" in card.processor.state()


# --- what the stand-in punishes


def unpinned(machine: PciMachine) -> None:
    machine.chips[0].memory.is_master = True
    machine.chips[0].memory.read(0x1234000, 16)


def without_bus_mastering(machine: PciMachine) -> None:
    machine.chips[0].memory.read(0x1234000, 16)


def during_reset(machine: PciMachine) -> None:
    gsp_of(machine).write(0x1103C0, 1)
    gsp_of(machine).write(0x110040, 0)


def while_scrubbing(machine: PciMachine) -> None:
    for value in (1, 0):
        gsp_of(machine).write(0x1103C0, value)
    gsp_of(machine).write(0x110040, 0)


def dma_by_context(machine: PciMachine) -> None:
    gsp_of(machine).write(0x110118, 0x600)


def start_by_the_wrong_register(machine: PciMachine) -> None:
    gsp_of(machine).write(0x110100, 2)


def unknown_register(machine: PciMachine) -> None:
    file = machine.open(f"/sys/bus/pci/devices/{ADDRESS}/resource0")
    machine.chips[0].driver = ""
    machine.store_register(machine.map(0, 16 << 20, 3, 1, file, 0) + 0x88000, 1)


def table_that_is_cached(machine: PciMachine) -> None:
    memory = machine.chips[0].memory
    memory.is_master = True
    memory.pin(memory.video_at, 2 << 20, 0x40000000)
    memory.table(0x40000000, 2)[0] = 2 << 1 | 0x40001000 >> 12 << 8
    memory.walk(0x40000000)


def hopper_of(machine: PciMachine) -> FspModel:
    """The security processor of another card, with a message that can be read."""
    del machine
    return fsp_of(machine_of(0x18))


def message_of_no_kind(machine: PciMachine) -> None:
    found = hopper_of(machine)
    found.write(0x8F2AC0, 1 << 24)
    for _ in range(4):
        found.write(0x8F2AC4, 0)
    found.write(0x8F2C04, 12)
    found.write(0x8F2C00, 0)


def window_that_does_not_advance(machine: PciMachine) -> None:
    found = hopper_of(machine)
    found.write(0x8F2AC0, 0)
    found.write(0x8F2AC4, 0)


def message_longer_than_what_was_written(machine: PciMachine) -> None:
    found = hopper_of(machine)
    found.write(0x8F2AC0, 1 << 24)
    found.write(0x8F2AC4, 0)
    found.write(0x8F2C04, 12)
    found.write(0x8F2C00, 0)


def answer_that_there_is_not(machine: PciMachine) -> None:
    found = hopper_of(machine)
    found.write(0x8F2AC0, 1 << 25)
    found.read(0x8F2AC4)


def gsp_that_is_locked(machine: PciMachine) -> None:
    del machine
    gsp_of(machine_of(0x18)).write(0x110080, 1)


def page_of_privilege(machine: PciMachine) -> None:
    del machine
    memory = machine_of(0x18).chips[0].memory
    memory._page(1 | 2 << 3 | 6 << 8, 0, 4096)


@pytest.mark.parametrize(
    "action",
    [
        message_of_no_kind,
        window_that_does_not_advance,
        message_longer_than_what_was_written,
        answer_that_there_is_not,
        gsp_that_is_locked,
        page_of_privilege,
        unpinned,
        without_bus_mastering,
        during_reset,
        while_scrubbing,
        dma_by_context,
        start_by_the_wrong_register,
        unknown_register,
        table_that_is_cached,
    ],
)
def test_mistakes_are_found(action: Callable[[PciMachine], None]) -> None:
    with pytest.raises(Mistake):
        action(machine_of())


def test_each_seeded_fault_changes_one_text() -> None:
    for name, old, new in SEEDED.faults:
        text = (SEEDED.package / SEEDED.folder / name).read_text("utf-8")
        assert text.count(old) == 1, (name, old)
        assert old != new
