"""A card behind a USB bridge as a device: brought up, computing, copying, and what goes wrong."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

pytest.importorskip("llvmlite")

from pci_standin.tables import firmware_files
from simulated_usb import UsbCards, backend_of, opened
from trials import run_trial
from usb_standin.library import Fault

from tiny_amd import BACKEND
from tiny_amd.device import AmdDevice
from tiny_amd.usb.driver import UsbDriver
from tiny_hcq import Place, use_system
from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore import Tensor, TinyJit
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory, UnsupportedError
from tinycore.plugin import register, unregister

OTHERS = {"host_memory", "external_pointer", "varied", "image"}
SAMPLE = 4
LONG = {"test_freed_memory_comes_back", "test_blocks_do_not_overlap", "test_several_threads_copy"}
MEMORY = [
    trial
    for trial in trials(Level.MEMORY)
    if trial.case.level == Level.MEMORY and not trial.needs & OTHERS
]


@pytest.fixture(scope="module")
def machine() -> UsbCards:
    """A machine with two cards behind bridges, shared by tests that harm none."""
    return UsbCards(2)


@pytest.fixture(scope="module")
def subject(machine: UsbCards) -> Iterator[Subject]:
    """The device for trials of the suite."""
    register(backend_of(machine))
    found = Subject("AMD")
    with found.chosen():
        yield found
    unregister("AMD")


def is_slow(trial: Trial) -> bool:
    """True for trials that take a second, and for most of the others."""
    return trial.name in LONG or bool(zlib.crc32(trial.name.encode()) % SAMPLE)


@pytest.mark.parametrize(
    "trial",
    [pytest.param(t, marks=[pytest.mark.slow] if is_slow(t) else []) for t in MEMORY],
    ids=lambda trial: trial.name,
)
def test_memory(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


# --- choosing and opening


def test_it_is_chosen_by_name_alone() -> None:
    assert not BACKEND.interface_table["USB"].automatic
    assert list(BACKEND.interfaces) == ["KFD", "PCI", "USB"]


def test_a_card_is_brought_up_and_given_back() -> None:
    machine = UsbCards()
    device = opened(machine)
    assert device.arch == "gfx1100"
    assert device.card.units == 96
    assert machine.gpus[0].is_bus_master
    device.close()
    assert not machine.library.open_things
    assert not machine.devices[0].holder
    assert not machine.gpus[0].rings


def test_firmware_that_is_missing_gives_the_bridge_back() -> None:
    machine = UsbCards()
    machine.files = {}
    with pytest.raises(DeviceUnavailable, match=r"psp_13_0_0_sos\.bin"):
        opened(machine)
    assert not machine.library.open_things
    machine.files = firmware_files()


def test_a_bridge_without_a_card_is_given_back() -> None:
    machine = UsbCards()
    machine.bridges[0].fabric.card = []
    with pytest.raises(DeviceUnavailable, match="no card answers"):
        opened(machine)
    assert not machine.library.open_things


def test_a_card_that_another_process_has() -> None:
    machine = UsbCards()
    machine.devices[0].holder = "another"
    with pytest.raises(DeviceUnavailable, match="used by another process"):
        opened(machine)


@pytest.mark.parametrize("transfers", [60, 700], ids=["enumerated", "brought_up"])
def test_a_bridge_that_is_unplugged_while_the_card_starts(transfers: int) -> None:
    machine = UsbCards()
    machine.library.faults.append(Fault(transfers, "unplug"))
    with pytest.raises(DeviceUnavailable, match="unplugged or lost its power"):
        opened(machine)
    assert not machine.library.open_things


def test_queues_of_aql_are_refused() -> None:
    machine = UsbCards()
    with use_system(machine), pytest.raises(UnsupportedError, match="AQL"):
        AmdDevice(0, "USB", aql=True)
    assert not machine.library.open_things


# --- copies


@pytest.fixture
def device() -> Iterator[AmdDevice]:
    """A card of a machine of its own."""
    made = opened(UsbCards())
    yield made
    made.close()


def machine_of(device: AmdDevice) -> UsbCards:
    assert isinstance(device.driver, UsbDriver)
    assert isinstance(device.driver.machine, UsbCards)
    return device.driver.machine


def test_copies_go_through_sram(device: AmdDevice) -> None:
    machine = machine_of(device)
    content = numpy.random.default_rng(5).integers(0, 256, 700_001, dtype=numpy.uint8)
    memory = device.allocator.alloc(content.size)
    before = machine.library.transfers
    device.allocator.write(memory, content.data)
    found = numpy.zeros_like(content)
    device.allocator.read(found.data, memory)
    assert numpy.array_equal(found, content)
    # By words through BAR0 it would be more than 300,000.
    assert machine.library.transfers - before < 2_000
    device.allocator.free(memory)


def test_what_the_host_sees_is_what_the_card_sees(device: AmdDevice) -> None:
    memory = device.allocator.alloc_visible(4096, Place.COMMANDS)
    assert memory.view is None
    assert not memory.readable
    assert memory.window is not None
    gpu = machine_of(device).gpus[0]
    memory.window[3:9] = b"commands"[:6]
    assert not gpu.pending
    memory.window.set_word(16, 1 << 40 | 5)
    assert not gpu.pending
    region = gpu.walked.region_at(memory.address)
    assert region is not None
    at = memory.address - region.address
    assert region.data[at + 3 : at + 9].tobytes() == b"comman"
    assert memory.window.word(16) == 1 << 40 | 5
    device.allocator.free(memory)


def test_sram_is_two_staging_buffers_and_no_more(device: AmdDevice) -> None:
    buffers = [device.allocator.alloc_visible(245_760, Place.STAGING) for _ in range(2)]
    with pytest.raises(OutOfMemory, match="SRAM"):
        device.allocator.alloc_visible(245_760, Place.STAGING)
    device.allocator.free(buffers.pop())
    buffers.append(device.allocator.alloc_visible(245_760, Place.STAGING))
    for buffer in buffers:
        device.allocator.free(buffer)


def test_memory_beyond_bar0_is_not_given_to_the_host() -> None:
    machine = UsbCards()
    machine.bridges[0].fabric.card[0].bars[0].resizable = ()
    machine.bridges[0].fabric.reset()
    device = opened(machine)
    driver: Any = device.driver
    before = list(driver.running.vram._rest.free)
    with pytest.raises(OutOfMemory, match="in the 256 MiB that it reaches"):
        device.allocator.alloc_visible(300 << 20)
    assert driver.running.vram._rest.free == before, "it is given back"
    device.close()


def test_a_bridge_that_is_unplugged_in_the_middle_of_a_copy() -> None:
    machine = UsbCards()
    device = opened(machine)
    memory = device.allocator.alloc(1 << 20)
    machine.library.faults.append(Fault(machine.library.transfers + 20, "unplug"))
    with pytest.raises(DeviceError, match="unplugged or lost its power"):
        device.allocator.write(memory, memoryview(bytes(1 << 20)))
    device.close()
    assert not machine.library.open_things


def test_a_link_that_is_lost_is_told() -> None:
    machine = UsbCards()
    device = opened(machine)
    memory = device.allocator.alloc(1 << 20)
    machine.bridges[0].state = 0x03
    with pytest.raises(DeviceError, match=r"unsupported|link to the card is down"):
        device.allocator.write(memory, memoryview(bytes(1 << 20)))
    device.close()
    assert not machine.library.open_things


# --- kernels


def test_kernels_and_captured_steps_run(subject: Subject) -> None:
    given = numpy.random.default_rng(0).random((16, 16), dtype=numpy.float32)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x @ x).relu() + x.max()).realize()

    for number in range(4):
        found = step(Tensor(given + number, device="AMD").realize()).numpy()
        expected = (given + number) @ (given + number) + (given + number).max()
        numpy.testing.assert_allclose(found, expected, rtol=1e-5)
