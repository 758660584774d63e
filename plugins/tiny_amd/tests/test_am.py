"""The interface PCI: bring-up, memory, queues and faults of a card whose registers are played."""

from __future__ import annotations

import errno
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

pytest.importorskip("llvmlite")

from am_faults import FAULTS, SOURCES
from code_object import compile_kernel
from driver_memory import content, written
from kfd_standin import Mistake
from kfd_standin.gpu import MemoryFault
from pci_standin.card import PciGpu
from pci_standin.machine import ADDRESS, PciMachine
from simulated_am import opened
from test_driver import ADD, INFO, SPILLS

from tiny_amd import BACKEND
from tiny_amd.am import bring_up, engines, hubs, interface, psp, smu
from tiny_amd.device import AmdDevice
from tiny_hcq import use_system
from tinycore import Context
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory, UnsupportedError
from tinycore.plugin import ProgramInfo

TAKE = [f"drivers/amdgpu/unbind {ADDRESS}", f"devices/{ADDRESS}/enable 1"]
GIVE_BACK = [f"drivers/amdgpu/bind {ADDRESS}"]
BYTES = 256
Make = Callable[..., AmdDevice]


@pytest.fixture
def machine() -> PciMachine:
    """A machine with a card that amdgpu has, and has not started."""
    return PciMachine()


@pytest.fixture
def make() -> Iterator[Make]:
    """Opens cards, and closes them in the end."""
    made: list[AmdDevice] = []

    def found(machine: PciMachine, index: int = 0) -> AmdDevice:
        made.append(opened(machine, index))
        return made[-1]

    yield found
    with Context(WAIT_TIMEOUT_MS=2000):
        for one in made:
            one.close()


@pytest.fixture
def device(machine: PciMachine, make: Make) -> AmdDevice:
    """The card of the machine, brought up."""
    return make(machine)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what does not come."""
    for module, name in (
        (psp, "BOOT_SECONDS"),
        (psp, "COMMAND_SECONDS"),
        (smu, "MESSAGE_SECONDS"),
        (hubs, "HUB_SECONDS"),
        (engines, "ENGINE_SECONDS"),
        (bring_up, "BACK_SECONDS"),
        (bring_up, "RESET_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.02)


def refusal(machine: PciMachine, index: int = 0) -> str:
    """The error of an open of which nothing is left."""
    before = list(machine.drivers)
    with pytest.raises(DeviceUnavailable) as found:
        opened(machine, index)
    assert machine.drivers == before
    assert not machine.open_windows
    assert not machine.places
    assert not any(gpu.is_bus_master for gpu in machine.gpus if not gpu.is_gone)
    return str(found.value)


# --- who gets which card


def test_it_is_never_chosen_by_itself(machine: PciMachine) -> None:
    assert BACKEND.interface_table["KFD"].automatic
    assert not BACKEND.interface_table["PCI"].automatic
    with use_system(machine):
        assert (interface.card_count(), interface.obstacle()) == (1, "")
    with use_system(PciMachine(0)):
        assert "no card of AMD" in interface.obstacle()


@pytest.mark.parametrize("named", ["", "1", "0000:02:00.0"])
def test_nothing_happens_before_the_card_is_named(
    machine: PciMachine, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("AMD_PCI_TAKE", named)
    with use_system(machine), pytest.raises(DeviceUnavailable) as found:
        AmdDevice(0, "PCI")

    said = str(found.value)
    assert "take it from its driver amdgpu" in said
    assert "give it back to amdgpu" in said
    assert "has run on no card yet" in said
    assert f"AMD_PCI_TAKE={ADDRESS}" in said
    assert not machine.written


def test_cards_there_are_not(machine: PciMachine) -> None:
    assert f"no PCI+AMD:1; there are: card {ADDRESS} (1002:744c)" in refusal(machine, 1)


def test_interfaces_there_are_not() -> None:
    with pytest.raises(DeviceUnavailable, match=r"no interface 'NVK'.*DEV=KFD\+AMD, DEV=PCI"):
        AmdDevice(0, "NVK")


# --- bring-up


def test_a_card_is_brought_up_and_given_back(machine: PciMachine, make: Make) -> None:
    device, gpu = make(machine), machine.gpus[0]
    assert str(device.card).startswith("gfx1100 (96 compute units")
    assert device.card.memory_bytes == gpu.vram_bytes
    assert gpu.security.loaded == [3, 5, 2, 1]
    assert gpu.security.firmware[0] == 18
    assert [number for number, _ in gpu.power.sent[:2]] == [2, 6]
    assert (25, 500 * 3 + 500 | 2 << 16) in gpu.power.sent, "the highest clock of the memory"
    assert set(gpu.rings) == {"compute", "copies"}
    assert machine.written == TAKE

    device.close()
    assert machine.written == TAKE + GIVE_BACK
    assert not gpu.rings
    assert not gpu.resets
    assert not machine.places


def test_a_card_that_another_driver_left_running_is_reset(machine: PciMachine, make: Make) -> None:
    machine.run_as_left_by_driver()
    device = make(machine)
    assert machine.gpus[0].resets == 1
    check_adding(device)


@pytest.mark.slow
def test_a_card_that_was_left_clean_starts_warm(make: Make) -> None:
    machine = PciMachine(driver="")
    make(machine).close()
    gpu = machine.gpus[0]
    assert not machine.enabled[0]
    before = list(gpu.security.firmware)
    device = make(machine)

    assert gpu.security.firmware == before
    assert not gpu.resets
    check_adding(device)
    trusted, size = gpu.security.trusted, 5 << 20
    kept = gpu.vram[trusted : trusted + size].copy()
    written(device, range(size // 4))
    assert (gpu.vram[trusted : trusted + size] == kept).all(), "it belongs to the firmware"
    driver: Any = device.driver
    buffers = [device.allocator.alloc(size) for size in [4096] * 8 + [1 << 20] * 8]
    places = [(driver._places[b.address], b.size) for b in buffers]
    end = trusted + driver.running._trusted
    assert driver.running._trusted >= 1 << 20
    assert [p for p, size in places if p < end and trusted < p + size] == []


def test_the_ring_of_the_security_processor_is_used_around_its_end(make: Make) -> None:
    machine = PciMachine(driver="")
    machine.gpus[0].security.first_word = (0x10000 - 2 * 64) // 4
    check_adding(make(machine))


def test_a_card_whose_driver_died_is_reset(make: Make) -> None:
    machine = PciMachine(driver="")
    make(machine).close()
    machine.gpus[0].banks.clear()
    machine.gpus[0].set("SCRATCH_6", 0)
    make(machine)
    assert machine.gpus[0].resets == 1


def test_a_bar_of_256_mib_is_enough(make: Make) -> None:
    check_adding(make(PciMachine(bar0_bytes=256 << 20)))


def test_a_bar_that_is_too_small() -> None:
    assert "BAR0 of card" in refusal(PciMachine(bar0_bytes=32 << 20))


def test_cores_that_are_not_driven(machine: PciMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring_up, "DRIVEN_CORES", {(12, 0, 1): "gfx1201"})
    said = refusal(machine)
    assert "version 11.0.0" in said
    assert "runs 12.0.1 (gfx1201) only" in said


def test_a_card_that_does_not_answer(machine: PciMachine) -> None:
    machine.gpus[0].is_gone = True
    assert "does not answer: it reads as ones" in refusal(machine)


def test_memory_that_is_not_set_up(machine: PciMachine) -> None:
    machine.gpus[0].set("MEMORY_SIZE", 0)
    assert "0 MiB of memory" in refusal(machine)


def test_firmware_that_is_missing_is_named(machine: PciMachine) -> None:
    gone = next(path for path in machine.files if "smu_13_0_0" in path)
    del machine.files[gone]
    said = refusal(machine)

    assert "smu_13_0_0" in said
    assert not machine.gpus[0].security.loaded


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("loader", "boot loader did not get ready within 0.02 s: MP0_SMN_C2PMSG_35 is 0x0"),
        ("ring", "made no ring"),
        ("fence", "did not answer about the table of contents"),
        ("autoload", "did not load its firmware within"),
    ],
)
def test_a_security_processor_that_hangs(
    machine: PciMachine, soon: None, step: str, said: str
) -> None:
    machine.gpus[0].security.hangs_at = step
    machine.gpus[0].security.reset()
    assert said in refusal(machine)


def test_firmware_that_is_refused(machine: PciMachine, soon: None) -> None:
    machine.gpus[0].security.refuses = 8
    assert "refuses" in (said := refusal(machine))
    assert "status 0xffff0007" in said
    assert machine.gpus[0].resets == 1, "the power controller runs, and can do it"


@pytest.mark.parametrize(("answer", "said"), [(0, "did not answer"), (0xFC, "it is busy")])
def test_a_power_controller_that_does_not_work(
    machine: PciMachine, soon: None, answer: int, said: str
) -> None:
    machine.gpus[0].power.answer = answer
    assert said in refusal(machine)


def test_a_hub_that_does_not_answer(machine: PciMachine, soon: None) -> None:
    machine.gpus[0].acknowledges = False
    assert "MMVM did not forget its translations" in refusal(machine)


@pytest.mark.parametrize("end", ["resource0", "resource5", "config"])
def test_files_that_the_kernel_refuses(machine: PciMachine, end: str) -> None:
    machine.refused[end] = errno.EPERM
    assert "cannot be mapped" in refusal(machine)


def test_a_driver_that_does_not_take_it_back(machine: PciMachine) -> None:
    device = opened(machine)
    machine.refused["amdgpu/bind"] = errno.EIO
    with pytest.warns(UserWarning, match=r"echo 0000:03:00.0 > .*amdgpu/bind"):
        device.close()


def test_queues_of_aql_need_a_driver(machine: PciMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMD_PCI_TAKE", ADDRESS)
    with use_system(machine), pytest.raises(UnsupportedError, match="DEV=KFD"):
        AmdDevice(0, "PCI", aql=True)
    assert machine.drivers == ["amdgpu"]
    assert not machine.places


# --- work


def check_adding(device: AmdDevice) -> None:
    """A kernel runs, through memory and queues."""
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    program([target, source], [5], wait=True)
    assert content(device, target).tolist() == list(range(5, 69))


def test_a_kernel_adds(device: AmdDevice) -> None:
    check_adding(device)


def test_a_kernel_spills(device: AmdDevice) -> None:
    info = ProgramInfo("spills", 2, (), grid=(1, 1, 1), block=(32, 1, 1), written=frozenset({0}))
    program = device.load(compile_kernel(SPILLS, device.arch), info)
    source, target = written(device, range(64)), device.allocator.alloc(128)
    program([target, source], [], wait=True)
    assert content(device, target).tolist() == [63 - lane + lane for lane in range(32)]


def test_rings_are_used_again(
    machine: PciMachine, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiny_amd.device.COMPUTE_RING_BYTES", 4096)
    monkeypatch.setattr("tiny_amd.device.COPY_RING_BYTES", 2048)
    device = make(machine)
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    a, b = written(device, range(64)), device.allocator.alloc(BYTES)
    for _ in range(40):
        program([b, a], [1])
        device.copier(BYTES, device)([a, b], ())
    assert content(device, a).tolist() == list(range(40, 104))
    rings = machine.gpus[0].rings.values()
    assert min(ring.read * ring.UNIT // ring.place.bytes for ring in rings) > 0


def test_large_memory_takes_huge_pages_and_small_memory_small_ones(
    device: AmdDevice, machine: PciMachine
) -> None:
    data = numpy.random.default_rng(0).integers(0, 1 << 30, (5 << 20) // 4, dtype=numpy.int32)
    large = written(device, data)
    small = written(device, range(1025))
    assert large.address % (2 << 20) == 0
    assert (content(device, large) == data).all()
    assert content(device, small).tolist() == list(range(1025))


@pytest.mark.parametrize("size", [4096, 5 << 20])
def test_memory_that_was_given_back_is_mapped_no_more(
    size: int, device: AmdDevice, machine: PciMachine
) -> None:
    buffer = device.allocator.alloc(size)
    assert machine.gpus[0].span(buffer.address, 4, "read").size == 4
    device.allocator.free(buffer)
    with pytest.raises(MemoryFault):
        machine.gpus[0].span(buffer.address, 4, "read")


def test_memory_is_used_up_and_comes_back(device: AmdDevice, machine: PciMachine) -> None:
    held = [device.allocator.alloc(100 << 20) for _ in range(8)]
    with pytest.raises(OutOfMemory, match="Free tensors first"):
        device.allocator.alloc(100 << 20)
    for buffer in held:
        device.allocator.free(buffer)
    device.allocator.free(device.allocator.alloc(800 << 20))


def test_memory_of_two_cards_goes_through_the_host(make: Make) -> None:
    machine = PciMachine(2)
    first, second = make(machine), make(machine, 1)
    assert not second.reaches(first)
    check_adding(first)
    check_adding(second)


# --- faults


def test_a_fault_names_address_and_kernel(machine: PciMachine, make: Make, soon: None) -> None:
    device = make(machine)
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.synchronize()
    device.allocator.free(target)
    program([target, source], [5])
    with pytest.raises(DeviceError, match="nothing is mapped there") as found:
        device.synchronize()

    assert f"{target.address & -4096:#x}" in str(found.value)
    assert "it is written to" in str(found.value)
    assert "kernel add" in str(found.value)
    device.close()
    assert machine.gpus[0].resets == 1
    assert machine.drivers == ["amdgpu"]
    check_adding(make(machine))


def test_a_card_that_is_gone(machine: PciMachine, soon: None) -> None:
    device = opened(machine)
    machine.gpus[0].is_gone = True
    with device.lock:
        moment = device.finish(device.compute_queue().timestamp(device.new_signal()))
    with pytest.raises(DeviceError, match="does not answer: it has lost power or its link"):
        device.wait_for(moment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        device.close()
    assert not machine.open_windows
    assert not machine.places


def test_a_queue_that_does_not_end_resets_the_card(machine: PciMachine, soon: None) -> None:
    device = opened(machine)
    machine.gpus[0].is_hung = True
    device.close()
    assert machine.gpus[0].resets == 1
    assert machine.written == TAKE + GIVE_BACK


# --- what the stand-in punishes


def loads_out_of_order(gpu: PciGpu) -> None:
    gpu.write32(0x16063, 0x20000)


def touches_a_core_without_power(gpu: PciGpu) -> None:
    gpu.read32(0xA900)


def touches_nothing(gpu: PciGpu) -> None:
    gpu.read32(0x1234)


def sends_before_firmware(gpu: PciGpu) -> None:
    gpu.write32(0x16282, 6)


def rings_nobody(gpu: PciGpu) -> None:
    gpu.ring_doorbell(5, 1)


def writes_to_firmware(gpu: PciGpu) -> None:
    gpu.write_memory(gpu.vram_bytes - 4096, bytes(4))


def makes_an_early_ring(gpu: PciGpu) -> None:
    gpu.write32(0x16080, 2 << 16)


def starts_mec_without_hubs(gpu: PciGpu) -> None:
    gpu.switch_on()
    gpu.write32(0xC904, 0xF << 26)


def opens_copies_of_a_halted_engine(gpu: PciGpu) -> None:
    gpu.switch_on()
    gpu.write32(0x12E0, 1)


def invalidates_without_semaphore(gpu: PciGpu) -> None:
    gpu.write32(0x1A774, 1 | 0x1F << 19)


@pytest.mark.parametrize(
    "action",
    [
        loads_out_of_order,
        touches_a_core_without_power,
        touches_nothing,
        sends_before_firmware,
        rings_nobody,
        writes_to_firmware,
        makes_an_early_ring,
        starts_mec_without_hubs,
        opens_copies_of_a_halted_engine,
        invalidates_without_semaphore,
    ],
)
def test_mistakes_are_found(machine: PciMachine, action: Callable[[PciGpu], None]) -> None:
    with pytest.raises(Mistake):
        action(machine.gpus[0])


def test_a_table_that_changes_in_secret_is_found(device: AmdDevice, machine: PciMachine) -> None:
    buffer = device.allocator.alloc(4096)
    driver: Any = device.driver
    driver.running.pages.unmap(buffer.address, 4096)
    driver.running.vram.flush()
    with pytest.raises(Mistake, match="mapped anew"):
        machine.gpus[0].span(buffer.address, 4, "read")
    driver.running.pages.map_vram(buffer.address, driver._places[buffer.address], 4096)


def test_each_seeded_fault_changes_one_text() -> None:
    """The table of `am_faults.py`, which is run by hand, does not rot."""
    found = [(SOURCES / name).read_text("utf-8").count(old) for name, old, _ in FAULTS]
    assert found == [1] * len(FAULTS)


def test_nothing_of_a_card_is_left_behind(machine: PciMachine) -> None:
    opened(machine).close()
    gc.collect()
    assert not machine.open_windows
    assert "AMD_PCI_TAKE" not in os.environ
