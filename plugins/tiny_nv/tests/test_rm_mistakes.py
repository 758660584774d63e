"""Rules of the stand-in that no driver of ours breaks: a program that breaks each of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pytest
from rm_calls import PAGE, Channels, Launch, Opened, methods
from rm_standin import Machine, Mistake
from rm_standin.cards import H200
from rm_standin.qmd import RELEASE_FIELDS
from test_rm_channels import STACK, STORE

Words = list[int]
COMPUTE, COPIES = 0, 1
LOCAL_WINDOW: Final = (0x7293, 0)


@pytest.fixture
def one() -> Channels:
    """Channels of a Hopper, with their classes bound."""
    made = Channels(Opened.of(Machine((H200,))))
    made.bind()
    return made


def place(one: Channels) -> tuple[int, int]:
    """An address of zeros, its upper half first."""
    made = one.opened.buffer(PAGE)
    made.bytes[:] = bytes(PAGE)
    return made.address >> 32, made.address & 0xFFFFFFFF


def inline(one: Channels, *values: int) -> Words:
    """The facts of an inline copy: length, lines and the address."""
    return methods(1, 0x180, *values, *place(one))


def copy(one: Channels, launch: int, *, high: int = 0, components: int = 0) -> Words:
    """A copy of 16 bytes onto themselves."""
    upper, low = place(one)
    addresses = methods(4, 0x400, upper | high, low, upper, low)
    return [
        *addresses,
        *methods(4, 0x418, 16),
        *methods(4, 0x700, 1, 0, components),
        *methods(4, 0x300, launch),
    ]


PUSHED: Final[dict[str, tuple[int, Callable[[Channels], Words], str]]] = {
    "no method of copies": (COPIES, lambda _: methods(4, 0x500, 1), "copy class is sent"),
    "physical copies": (COPIES, lambda one: copy(one, 0x1182), "LAUNCH_DMA of"),
    "interrupts of copies": (COPIES, lambda one: copy(one, 0x1A2), "LAUNCH_DMA of"),
    "high copies": (COPIES, lambda one: copy(one, 0x182, high=1 << 26), "in the upper word"),
    "conditional interrupts": (COPIES, lambda one: copy(one, 0x19A), "a semaphore of kind 3"),
    "fills of three bytes": (
        COPIES,
        lambda one: copy(one, 0x582, components=2 << 16 | 4),
        "a fill with components",
    ),
    "inline pixels": (COMPUTE, lambda _: methods(1, 0x1B0, 0x40), "to blocks of pixels"),
    "inline nothing": (COMPUTE, lambda _: methods(1, 0x1B0, 0x41), "an inline copy without"),
    "inline lines": (
        COMPUTE,
        lambda one: inline(one, 4, 2) + methods(1, 0x1B0, 0x41),
        "an inline copy of",
    ),
    "inline data": (COMPUTE, lambda _: methods(1, 0x1B4, 7), "that was not launched"),
    "reports that wait": (COMPUTE, lambda _: methods(1, 0x168, 1), "a report of"),
    "no action": (
        COMPUTE,
        lambda one: methods(1, 0x2B4, 1 << 20) + methods(1, 0x2C0, 5),
        "SEND_SIGNALING_PCAS2_B of",
    ),
    "words out of order": (
        COMPUTE,
        lambda _: methods(1, 0x318, 1 << 30, 0) + methods(1, 0x324, 0),
        "word 1 of an inline descriptor after 0",
    ),
    "engines": (COMPUTE, lambda _: methods(1, 0x0, 1 << 21 | 0xCBC0), "SET_OBJECT of"),
    "semaphores of half a number": (
        COMPUTE,
        lambda one: methods(0, 0x5C, place(one)[1] | 4, place(one)[0], 0, 0, 3 | 1 << 24),
        "a semaphore of 8 bytes at",
    ),
}


@pytest.mark.parametrize("name", PUSHED)
def test_commands_that_break_a_rule(one: Channels, name: str) -> None:
    index, words, match = PUSHED[name]
    with pytest.raises(Mistake, match=match):
        one.push(index, words(one))


def follows(launch: Launch, action: int) -> None:
    """Have a launch follow itself."""
    launch.put("dependent_enable", 1)
    launch.put("dependent_action", action)
    launch.put("dependent_pointer", launch.descriptor.address >> 8)


def blind(launch: Launch) -> None:
    """A launch that another follows, whose writes that one may not see."""
    follows(launch, 1)
    launch.put("membar", 0)


def twice(launch: Launch) -> None:
    """A launch that two others follow."""
    for index in range(2):
        launch.put("dependent_enable", 1, index)
        launch.put("dependent_action", 1, index)
        launch.put("dependent_pointer", launch.descriptor.address >> 8, index)


def too_much_shared(launch: Launch) -> None:
    """More shared memory than a block can have, of as much as there is."""
    launch.put("shared", 228 << 10 | 128)
    for name in ("shared_min", "shared_target"):
        launch.put(name, 228 // 4 + 1)


def unseen(launch: Launch) -> None:
    """A semaphore that is written before what the kernel wrote is seen."""
    launch.put_release(launch.code.address + 4096, 1)
    first, count, _ = RELEASE_FIELDS[launch.version]["release_membar"]
    launch.put_bits(first, count, 0)
    launch.put("membar", 0)


def narrow(launch: Launch) -> None:
    """64 bits of a semaphore in one word."""
    launch.put_release(launch.code.address + 4096, 1, 1)


LAUNCHED: Final[dict[str, tuple[Callable[[Launch], None], str]]] = {
    "type": (lambda k: k.put("type", 1), "type 1"),
    "cluster": (lambda k: k.put("cluster_x", 2), "clusters of"),
    "unseen": (unseen, "a semaphore without a barrier"),
    "narrow": (narrow, "64 bits in a word"),
    "action": (lambda k: follows(k, 2), "action 2 on a dependent"),
    "blind": (blind, "may not see its writes"),
    "two": (twice, "launches two others"),
    "shared": (too_much_shared, "bytes of shared memory, of"),
    "uneven shared": (lambda k: k.put("shared", 1024 + 64), "bytes of shared memory, of"),
    "uneven bank": (lambda k: k.put("constants_size", 0x1FFF), "constant bank 0 of"),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_descriptors_that_break_a_rule(one: Channels, name: str) -> None:
    launch = Launch(one, STORE, struct.pack("<QQ", one.opened.buffer(PAGE).address, 1))
    change, match = LAUNCHED[name]
    change(launch)
    with pytest.raises(Mistake, match=match):
        one.push(COMPUTE, launch.send())


def test_a_launch_that_follows_itself(one: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rm_standin.launches.DEEPEST", 3)
    launch = Launch(one, STORE, struct.pack("<QQ", one.opened.buffer(PAGE).address, 1))
    follows(launch, 1)
    with pytest.raises(Mistake, match="without an end"):
        one.push(COMPUTE, launch.send())


def test_descriptors_lie_below_the_addresses_of_schedulers(one: Channels) -> None:
    opened, high = one.opened, 1 << 41
    handle = opened.memory(PAGE)["hObjectNew"]
    made = opened.raw.record("uvm_create_range", base=high, length=PAGE)
    assert opened.raw.uvm(opened.uvm_file, 0x49, made) == 0
    assert opened.raw.uvm(opened.uvm_file, 0x21, opened.map_request(handle, high, PAGE)) == 0
    address = methods(1, 0x318, 1 << 30 | high >> 40, high >> 8 & 0xFFFFFFFF)
    with pytest.raises(Mistake, match="an address below"):
        one.push(COMPUTE, address, methods(1, 0x320, *[0] * 96))


def test_a_descriptor_that_changes_must_be_invalidated(one: Channels) -> None:
    launch = Launch(one, STORE, struct.pack("<QQ", one.opened.buffer(PAGE).address, 1))
    one.push(COMPUTE, launch.send(2))
    launch.put("registers", 64)
    with pytest.raises(Mistake, match="has changed, and is not invalidated"):
        one.push(COMPUTE, launch.send(2))


def test_windows_lie_apart(one: Channels) -> None:
    launch = Launch(one, STORE, struct.pack("<QQ", one.opened.buffer(PAGE).address, 1))
    launch.bank.word(one.opened.gpu.facts.bank.shared_window, 0x7293 << 32, 8)
    one.push(COMPUTE, methods(1, 0x2A0, *LOCAL_WINDOW))
    with pytest.raises(Mistake, match="windows of shared and local memory overlap"):
        one.push(COMPUTE, launch.send())


def test_stacks_of_no_multiprocessors(one: Channels) -> None:
    upper, low = place(one)
    launch = Launch(one, STACK, struct.pack("<QQ", upper << 32 | low, 1))
    launch.put("local_high", 0x1000)
    settings = methods(1, 0x790, upper, low) + methods(1, 0x2E4, 0, 0x8000, 0)
    with pytest.raises(Mistake, match="for no multiprocessors"):
        one.push(COMPUTE, settings, launch.send())


def test_rings_lie_at_multiples_of_an_entry(one: Channels) -> None:
    one.opened.raw.machine.resources.channels[COMPUTE].ring_address += 4
    with pytest.raises(Mistake, match="a ring at"):
        one.push(COMPUTE, methods(0, 0x8, 0))


def test_the_old_call_is_for_pages_of_the_host(one: Channels) -> None:
    with pytest.raises(Mistake, match="class 0x3e is allocated by the old call"):
        one.opened.registered(0x10000, PAGE, hClass=0x3E)


def test_files_without_an_event_are_not_polled() -> None:
    machine = Machine((H200,))
    with pytest.raises(Mistake, match="and has no event"):
        machine.poll(machine.open("/dev/nvidia0"), 1)
