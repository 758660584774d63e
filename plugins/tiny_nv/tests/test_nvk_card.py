"""Calls of NVIDIA's kernel driver: cards are opened on every branch, memory is had and given back,
and what the driver refuses is told.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import simulated_nv
from emulation.backing import Backing
from rm_standin import Machine
from rm_standin.cards import CARDS, GA102, H200, CardFacts
from rm_standin.layouts import layouts_of as layouts_of_standin

from tiny_hcq import bytes_at, use_system
from tiny_nv.nvk import probe
from tiny_nv.nvk.addresses import LOW, Addresses
from tiny_nv.nvk.card import Card, Driver, driver_of_process
from tiny_nv.nvk.channel import ChannelGroup
from tiny_nv.nvk.layouts import layouts_of
from tiny_nv.nvk.mapping import DmaMapping, UvmMapping
from tiny_nv.nvk.rm import Refused
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory, UnsupportedError

VERSIONS = ("570.144", "575.64.05", "580.159.03", "590.48.01", "610.43.03")
SAME = {
    "NVOS00": "free",
    "NVOS02": "alloc_memory",
    "NVOS21": "alloc",
    "NVOS33": "map_memory",
    "NVOS34": "unmap_memory",
    "NVOS46": "map_dma",
    "NVOS47": "unmap_dma",
    "NVOS54": "control",
    "va_space": "vaspace",
    "channel_group": "group",
}
"""The stand-in's names for structures that NVIDIA's headers number."""


@contextmanager
def opened(machine: Machine) -> Iterator[tuple[Driver, list[Card]]]:
    """All cards of a machine."""
    with use_system(machine):
        driver = driver_of_process()
        cards = [driver.open(info) for info in driver.infos()]
        yield driver, cards
        for card in cards:
            card.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_structures_are_those_that_the_stand_in_has(version: str) -> None:
    branch = int(version.split(".", maxsplit=1)[0])
    theirs = layouts_of_standin(branch)
    compared = 0

    for name, ours in layouts_of(branch).items():
        other = theirs.get(SAME.get(name, name))
        if other is None:
            continue
        compared += 1
        assert ours.size == other.size, name
        for field, place in ours.fields.items():
            if field in other.fields:
                assert place[0] == other.fields[field][0], f"{name}.{field}"
    assert compared >= 20


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("facts", CARDS.values(), ids=CARDS)
def test_cards_open_on_every_branch(version: str, facts: CardFacts) -> None:
    with opened(Machine((facts,), version=version)) as (driver, (card,)):
        group = ChannelGroup(card)

        assert isinstance(driver.mapping, UvmMapping)
        assert card.arch == f"sm_{facts.arch}"
        assert card.generation.compute == facts.compute
        assert card.generation.qmd == facts.qmd[0]
        assert card.copy_class == facts.copy
        assert card.channel_class == max(facts.channels)
        assert card.units.sms_per_tpc == facts.sms
        group.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("facts", [GA102, H200], ids=["Ampere", "Hopper"])
def test_without_unified_memory_the_resource_manager_maps(version: str, facts: CardFacts) -> None:
    machine = Machine((facts,), version=version)
    machine.missing.add("/dev/nvidia-uvm")
    with opened(machine) as (driver, (card,)):
        group = ChannelGroup(card)
        made = card.allocate(1 << 20)

        assert isinstance(driver.mapping, DmaMapping)
        card.free(made)
        group.close()


@pytest.mark.parametrize("facts", CARDS.values(), ids=CARDS)
def test_a_sandbox_lets_all_calls_through(facts: CardFacts) -> None:
    with opened(Machine((facts,), sandbox=True)) as (_, (card,)):
        group = ChannelGroup(card)
        card.free(card.allocate(1 << 20, is_system=True, is_visible=True))
        group.close()


def test_all_is_given_back() -> None:
    machine = Machine((H200, H200))
    with opened(machine) as (driver, cards):
        before = [gpu.used_bytes for gpu in machine.gpus]
        groups = [ChannelGroup(card) for card in cards]
        held = [cards[0].allocate(size) for size in (1, 5000, 3 << 20, 100 << 20)]
        held += [cards[1].allocate(4096, is_system=True, is_visible=True, is_shared=True)]
        for made in held:
            assert made.owner is not None
            made.owner.free(made)
        for group in groups:
            group.close()

        assert [gpu.used_bytes for gpu in machine.gpus] == before
        assert driver.shared == {}
        objects = sum(len(client.objects) for client in machine.resources.clients.values())
    left = sum(len(client.objects) for client in machine.resources.clients.values())
    assert left < objects
    assert left == 1  # the client itself
    assert [gpu.bar1_used for gpu in machine.gpus] == [0, 0]


def test_cards_are_counted_by_the_numbers_of_their_files() -> None:
    with use_system(Machine((H200, GA102, H200))):
        found = [info.node for info in driver_of_process().infos()]

    assert found == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]


def test_a_card_is_opened_once_for_all_its_users() -> None:
    machine = Machine((H200,))
    with opened(machine) as (driver, (card,)):
        again = driver.open(driver.infos()[0])

        assert again is card
        again.close()
        card.free(card.allocate(4096))


def test_memory_of_the_host_is_seen_by_cards_that_are_opened_later() -> None:
    machine = Machine((H200, H200))
    with use_system(machine):
        driver = driver_of_process()
        first, second = driver.infos()
        card = driver.open(first)
        made = card.allocate(8192, is_system=True, is_visible=True, is_shared=True)

        other = driver.open(second)

        assert made.mapped == [card, other]
        assert made.address + made.size <= LOW[1]
        card.free(made)
        other.close()
        card.close()


def test_host_and_card_see_the_same_bytes() -> None:
    machine = Machine((H200,))
    with opened(machine) as (_, (card,)):
        made = card.allocate(5000, is_visible=True)
        view = bytes_at(made.host, 5000)
        view[:5] = b"hello"

        assert bytes(bytes_at(made.host, 5)) == b"hello"
        assert made.address != made.host
        card.free(made)


def test_cards_address_each_other() -> None:
    with opened(Machine((H200, H200))) as (_, (first, second)):
        made = first.allocate(1 << 20)

        second.map_peer(made)
        second.map_peer(made)

        assert made.mapped == [first, second]
        second.unmap_peer(made)
        assert made.mapped == [first]
        first.free(made)


def test_cards_that_do_not_reach_each_other_say_so() -> None:
    with opened(Machine((H200, H200), peers=False)) as (_, (first, second)):
        made = first.allocate(1 << 20)

        with pytest.raises(UnsupportedError, match="cannot address each other's memory"):
            second.map_peer(made)
        first.free(made)


def test_no_memory_is_out_of_memory_and_leaves_nothing() -> None:
    machine = Machine((GA102,))
    with opened(machine) as (_, (card,)):
        before = machine.gpus[0].used_bytes
        with pytest.raises(OutOfMemory, match="Free tensors"):
            card.allocate(64 << 30)
        machine.failures["uvm 0x21"] = 0x51
        with pytest.raises(OutOfMemory):
            card.allocate(4096)
        machine.failures.clear()

        assert machine.gpus[0].used_bytes == before
        card.free(card.allocate(4096))


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ("alloc 0x80", 0x1B),
        ("alloc 0x2080", 0x22),
        ("control 0x800201", 0x56),
        ("alloc 0x90f1", 0x51),
        ("control 0x2080014a", 0x57),
        ("uvm 0x25", 0x0F),
        ("uvm 0x19", 0x1F),
        ("control 0x20801201", 0x24),
    ],
)
def test_a_refusal_while_a_card_opens_is_told_and_leaves_nothing(failure: str, status: int) -> None:
    machine = Machine((H200,))
    with use_system(machine):
        driver = driver_of_process()
        machine.failures[failure] = status
        with pytest.raises((DeviceError, OutOfMemory), match=f"({status:#x})"):
            driver.open(driver.infos()[0])
        machine.failures.clear()

        assert sum(len(c.objects) for c in machine.resources.clients.values()) == 1
        driver.open(driver.infos()[0]).close()


def test_a_boost_of_clocks_that_is_refused_does_no_harm() -> None:
    machine = Machine((H200,))
    machine.failures["control 0x2080200a"] = 0x1B
    with opened(machine) as (_, (card,)):
        assert card.arch == "sm_90"


def test_a_driver_that_is_not_known_is_refused() -> None:
    machine = Machine((H200,), version="999.10")
    with use_system(machine):
        with pytest.raises(DeviceUnavailable, match=r"999\.10.*570, 575, 580.*DEV=CUDA"):
            driver_of_process()
        assert "999.10" in probe.reason()
        assert probe.count() == 0
        assert machine.files == {}


def test_probing_opens_nothing() -> None:
    machine = Machine((H200, GA102))
    with use_system(machine):
        assert probe.reason() == ""
        assert probe.count() == 2
    assert machine.requested == []
    assert machine.files == {}


@pytest.mark.parametrize("path", ["/dev/nvidiactl", "/dev/nvidia0"])
def test_files_that_are_missing_are_named(path: str) -> None:
    machine = Machine((H200,))
    machine.missing.add(path)
    with use_system(machine):
        assert path in probe.reason()
        assert probe.count() == 0


def test_refusals_carry_the_status() -> None:
    machine = Machine((H200,))
    with opened(machine) as (_, (card,)):
        with pytest.raises(Refused, match="INVALID_CLASS") as caught:
            card.rm.alloc(card.device, 0x1234, what="nothing")
        assert caught.value.status == 0x22


def test_addresses_are_given_out_again() -> None:
    pool = Addresses((0x1000, 0x10000))
    first, second, third = (pool.take(0x1000, 0x1000) for _ in range(3))
    assert (first, second, third) == (0x1000, 0x2000, 0x3000)

    pool.give_back(second, 0x1000)
    pool.give_back(first, 0x1000)

    assert pool.take(0x2000, 0x1000) == first
    assert pool.take(0x1000, 0x8000) == 0x8000
    pool.give_back(third, 0x1000)
    assert pool.take(0x5000, 0x1000) == 0x3000
    with pytest.raises(OutOfMemory):
        pool.take(0x10000, 0x1000)


def test_a_machine_that_nobody_has_gives_its_memory_back() -> None:
    machine = Machine((H200,))
    device = simulated_nv.opened(machine)
    memory = device.allocator.alloc_visible(1 << 20)
    memory.view[:] = bytes(1 << 20)  # type: ignore[index]
    file, host = os.dup(machine.backing.file), memory.meta.host
    assert os.fstat(file).st_blocks
    assert is_mapped(host)

    del machine, device, memory  # nobody has closed it
    gc.collect()
    Backing.make_room()  # as the next machine does

    assert not os.fstat(file).st_blocks, "pages outlive their machine"
    assert not is_mapped(host)
    os.close(file)


def is_mapped(address: int) -> bool:
    """True if something of the process lies at an address."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    spans = [line.split()[0].split("-") for line in lines]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in spans)


def test_memory_of_any_sizes_is_used_again() -> None:
    backing = Machine(()).backing
    first, second = backing.take(3 << 20), backing.take(5 << 20)
    backing.give_back(first, 3 << 20)
    backing.give_back(second, 5 << 20)

    assert backing.take(8 << 20) == first
    assert backing.take(4096) == 8 << 20
