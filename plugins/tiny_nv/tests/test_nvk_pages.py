"""Pages that NV shares with its cards: doorbells, and memory of the process that is copied."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy
import pytest
from driver_memory import content, written
from rm_standin import Machine, Status
from rm_standin.cards import GA102, GB202, H200, CardFacts
from rm_standin.objects import Memory, Usermode
from simulated_nv import opened
from test_nvk_driver import BYTES, load

from tiny_nv.nvk.card import Card
from tiny_nv.nvk.device import NvDevice
from tiny_nv.nvk.mapping import DmaMapping, UvmMapping
from tiny_nv.nvk.memory import STAGING_BYTES
from tinycore import Context
from tinycore.errors import DeviceError

CARDS = {"ampere": GA102, "hopper": H200, "blackwell": GB202}
MUCH = 2 * STAGING_BYTES + 12
"""Bytes from which on pages are pinned, and not whole pages."""
Make = Callable[[Machine], NvDevice]


@pytest.fixture
def make() -> Iterator[Make]:
    """Opens cards that are closed after the test."""
    with ExitStack() as undo, Context(WAIT_TIMEOUT_MS=500):

        def device(machine: Machine) -> NvDevice:
            made = opened(machine)
            undo.callback(made.close)
            return made

        yield device


@pytest.fixture(params=CARDS)
def facts(request: pytest.FixtureRequest) -> CardFacts:
    return CARDS[request.param]


# --- doorbells


def pages_of(machine: Machine) -> list[tuple[int, bool]]:
    """Pages of doorbells that clients have: their classes, and whether they are of BAR1."""
    clients = machine.resources.clients.values()
    found = [each for client in clients for each in client.objects.values()]
    return [(page.number, page.is_bar1) for page in found if isinstance(page, Usermode)]


def adds(device: NvDevice) -> bool:
    """True if a kernel computes what it should."""
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    load(device)([target, source], [5])
    return bool(content(device, target).tolist() == list(range(5, 69)))


def test_doorbells_are_the_newest_through_bar1_where_a_card_has_that(
    facts: CardFacts, make: Make
) -> None:
    machine = Machine((facts,))
    assert adds(make(machine))
    newest = max(facts.usermodes)
    assert pages_of(machine) == [(0xC461, False) if facts is GA102 else (newest, True)]


def test_a_driver_without_doorbells_through_bar1(make: Make) -> None:
    machine = Machine((H200,), bar1_doorbells=False)
    assert adds(make(machine))
    assert pages_of(machine) == [(0xC661, False)]


def test_a_driver_that_refuses_the_newest_page(make: Make) -> None:
    machine = Machine((GB202,))
    machine.failures["alloc 0xc761"] = Status.INVALID_CLASS
    assert adds(make(machine))
    assert pages_of(machine) == [(0xC661, True)]


def test_a_driver_that_refuses_all_pages_is_told_with_its_first_answer() -> None:
    machine = Machine((H200,))
    machine.failures["alloc 0xc661"] = Status.INSUFFICIENT_PERMISSIONS
    machine.failures["alloc 0xc561"] = machine.failures["alloc 0xc461"] = Status.INVALID_CLASS
    with pytest.raises(DeviceError, match=r"a page of doorbells.*INSUFFICIENT_PERMISSIONS"):
        opened(machine)
    assert pages_of(machine) == []


# --- who maps


@pytest.mark.parametrize("refused", ["uvm 0x25", "uvm 0x19"])
def test_a_card_that_unified_memory_cannot_manage_is_mapped_by_the_driver(
    make: Make, refused: str
) -> None:
    machine = Machine((H200,))
    machine.failures[refused] = Status.NOT_SUPPORTED
    device = make(machine)

    assert isinstance(device.card, Card)
    assert isinstance(device.card.driver.mapping, DmaMapping)
    assert adds(device)


def test_a_card_beside_managed_ones_has_to_be_managed_too(make: Make) -> None:
    machine = Machine((H200, H200))
    first = make(machine)
    machine.failures["uvm 0x25"] = Status.NOT_SUPPORTED
    with pytest.raises(DeviceError, match="NOT_SUPPORTED"):
        opened(machine, 1)

    assert isinstance(first.card, Card)
    assert isinstance(first.card.driver.mapping, UvmMapping)
    assert adds(first)


# --- pages of the process


def pinned(machine: Machine) -> int:
    """Number of times that pages of the process were given to the driver."""
    return machine.requested.count("alloc 0x71")


def test_much_memory_is_copied_without_staging(facts: CardFacts, make: Make) -> None:
    machine = Machine((facts,))
    device = make(machine)
    numbers = numpy.arange(MUCH + 5, dtype=numpy.uint32).view(numpy.uint8)[5 : 5 + MUCH]
    buffer = device.allocator.alloc(MUCH)
    before = device.group.copies.written
    device.allocator.write(buffer, numbers.data)
    found = numpy.frombuffer(mmap.mmap(-1, MUCH + 4096), numpy.uint8)
    device.allocator.read(found[3 : 3 + MUCH].data, buffer)

    assert numpy.array_equal(found[3 : 3 + MUCH], numbers)
    assert not found[:3].any()
    assert not found[3 + MUCH :].any()
    assert pinned(machine) == 2
    assert device.group.copies.written - before == 2, "it was cut into pieces"
    clients = machine.resources.clients.values()
    memories = [m for c in clients for m in c.objects.values() if isinstance(m, Memory)]
    assert not [m for m in memories if m.pages.host_address]


def test_pages_that_the_driver_does_not_take_are_staged(make: Make) -> None:
    machine = Machine((H200,))
    device = make(machine)
    machine.failures["alloc 0x71"] = Status.INVALID_ADDRESS
    numbers = numpy.arange(MUCH // 4, dtype=numpy.uint32)
    buffer = written(device, numbers)

    assert numpy.array_equal(content(device, buffer), numbers.view("i"))
    assert pinned(machine) == 2


def test_a_copy_that_fails_gives_its_pages_back(make: Make) -> None:
    machine = Machine((H200,))
    machine.tells_faults = True
    device = make(machine)
    buffer = device.allocator.alloc(MUCH)
    device.synchronize()
    device.card.free(buffer.meta)
    memory = mmap.mmap(-1, MUCH)
    with pytest.raises(DeviceError, match="Xid 31"):
        device.allocator.write(buffer, memoryview(memory))
    assert pinned(machine) == 1
    clients = machine.resources.clients.values()
    memories = [m for c in clients for m in c.objects.values() if isinstance(m, Memory)]
    assert not [m for m in memories if m.pages.host_address]
