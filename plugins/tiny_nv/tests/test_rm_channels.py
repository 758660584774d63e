"""The stand-in of NVIDIA's driver: channels, pushbuffers, copies and launches, made by hand."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable

import pytest
from cubin import Code, assemble
from emulation.faults import RaceFault
from rm_calls import (
    ENTRIES,
    GP_GET,
    PAGE,
    USERD_OFFSET,
    Buffer,
    Channels,
    Launch,
    Opened,
    acquire,
    halves,
    methods,
    release,
)
from rm_standin import Machine, Mistake, Status
from rm_standin.cards import AD102, GA102, GB202, H200, CardFacts

CARDS = {"ampere": GA102, "ada": AD102, "hopper": H200, "blackwell": GB202}
VERSIONS = ("570.144", "580.159.03", "590.48.01", "610.43.03")
STORE = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 v)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<6>;
  ld.param.u64 %rd0, [p];
  ld.param.u64 %rd1, [v];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  mul.wide.u32 %rd2, %r3, 8;
  add.u64 %rd2, %rd0, %rd2;
  st.global.u64 [%rd2], %rd1;
  ret;
}
"""
STACK = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 v)
{
  .local .align 8 .b8 there[64];
  .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [p];
  ld.param.u64 %rd1, [v];
  st.local.u64 [there], %rd1;
  ld.local.u64 %rd1, [there];
  st.global.u64 [%rd0], %rd1;
  ret;
}
"""


@pytest.fixture(params=CARDS)
def channels(request: pytest.FixtureRequest) -> Channels:
    """Channels of a card of each architecture, with their classes bound."""
    return bound(CARDS[request.param])


@pytest.fixture
def one() -> Channels:
    """Channels of one card."""
    return bound(H200)


def bound(facts: CardFacts, version: str = "580.159.03") -> Channels:
    made = Channels(Opened.of(Machine((facts,), version=version)))
    made.bind()
    return made


def data(channels: Channels, size: int = PAGE) -> Buffer:
    """Memory of zeros."""
    made = channels.opened.buffer(size)
    made.bytes[:] = bytes(size)
    return made


def copy(source: int, target: int, size: int, *, kind: int = 2) -> list[int]:
    high_low = (source >> 32, source & 0xFFFFFFFF, target >> 32, target & 0xFFFFFFFF)
    return methods(4, 0x400, *high_low) + methods(4, 0x418, size) + methods(4, 0x300, 0x180 | kind)


def store(channels: Channels, target: int, value: int) -> Launch:
    return Launch(channels, STORE, struct.pack("<QQ", target, value))


# --- how channels are made


@pytest.mark.parametrize("version", VERSIONS)
def test_channels_of_each_branch_run(version: str) -> None:
    channels = bound(H200, version)
    signal = data(channels)
    channels.push(0, release(signal.address, 5))
    assert signal.word(0, width=8) == 5
    assert channels.rings[0].word(USERD_OFFSET + GP_GET) == 2
    assert not channels.error


def test_parameters_of_channels(one: Channels) -> None:
    opened, raw = one.opened, one.opened.raw
    one_more = Channels(opened, starts=False)
    ring = one_more.rings[0]

    def status(parent: int, **values: int) -> int:
        params = one_more.parameters(ring, **values)
        return raw.alloc(opened.root, parent, 0xC86F, params)["status"]

    group = one_more.group
    assert status(group, gpFifoEntries=100) == Status.INVALID_ARGUMENT
    assert status(group, gpFifoEntries=0) == Status.INVALID_ARGUMENT
    assert status(group, userdOffset=100) == Status.INVALID_ARGUMENT
    assert status(group, userdOffset=ring.size) == Status.INVALID_ARGUMENT
    assert status(group, hUserdMemory=opened.space) == Status.INVALID_OBJECT_HANDLE
    assert status(group, hUserdMemory=77) == Status.OBJECT_NOT_FOUND
    assert status(group, hObjectError=ring.handle) == Status.INVALID_ARGUMENT
    assert status(group, hVASpace=opened.space) == Status.INVALID_ARGUMENT
    assert status(group, hContextShare=one.share) == Status.INVALID_ARGUMENT
    assert status(opened.subdevice) == Status.INVALID_OBJECT_HANDLE
    assert status(one.group) == Status.INVALID_STATE


def test_the_order_of_making_a_channel() -> None:
    opened = Opened.of(Machine())
    channels = Channels(opened, starts=False)
    raw, handle = opened.raw, channels.handles[0]
    assert channels.schedule() == Status.INVALID_STATE
    base = 0x70_0000_0000
    assert channels.register(handle, base + 8) == Status.INVALID_ADDRESS
    assert channels.register(handle, channels.rings[0].address) == Status.INVALID_ADDRESS
    assert channels.register(handle, base, 1 << 20) == Status.NO_MEMORY
    assert channels.register(handle, base) == 0
    assert channels.register(handle, base + (1 << 30)) == Status.INVALID_STATE
    assert channels.register(channels.handles[1], base) == 0
    bare = raw.record("token")
    third = Channels(opened, starts=False)
    raw.free(opened.root, third.engines[0])
    assert raw.control(opened.root, third.handles[0], 0xC36F0108, bare) == Status.INVALID_STATE
    assert channels.schedule() == 0


def test_classes_belong_to_their_channels(one: Channels) -> None:
    raw, root = one.opened.raw, one.opened.root
    other = Channels(one.opened, starts=False)
    assert raw.alloc(root, other.group, 0xCBC0)["status"] == Status.INVALID_OBJECT_HANDLE
    assert raw.alloc(root, other.handles[0], 0xCBC0)["status"] == Status.INVALID_STATE
    assert raw.alloc(root, other.handles[0], 0xC7C0)["status"] == Status.INVALID_CLASS


def test_memory_of_a_channel_outlives_it(one: Channels) -> None:
    with pytest.raises(Mistake, match="and channel 1 has it"):
        one.opened.raw.free(one.opened.root, one.rings[0].handle)
    assert one.opened.raw.free(one.opened.root, one.group) == 0
    assert one.opened.raw.free(one.opened.root, one.rings[0].handle) == 0


def test_a_channel_of_its_own_is_bound_first() -> None:
    opened = Opened.of(Machine())
    raw, root = opened.raw, opened.root
    space = opened.got(opened.device, 0x90F1, raw.record("vaspace", vaBase=0x1000))
    ring = opened.memory(PAGE)["hObjectNew"]
    params = raw.record(
        "channel", gpFifoEntries=16, hVASpace=space, hUserdMemory=ring, engineType=9
    )
    handle = opened.got(opened.device, 0xC86F, params)
    schedule, bind = raw.record("schedule", bEnable=1), raw.record("bind", engineType=9)
    assert raw.control(root, handle, 0xA06F0103, schedule) == Status.INVALID_STATE
    assert raw.control(root, handle, 0xA06F0104, raw.record("bind", engineType=1)) != 0
    assert raw.control(root, handle, 0xA06F0104, bind) == 0
    assert raw.control(root, handle, 0xA06F0103, schedule) == 0


# --- rings and doorbells


def test_nothing_runs_without_a_doorbell(one: Channels) -> None:
    signal = data(one)
    one.push(0, release(signal.address, 5), runs=False)
    one.ring(0xFFFFFFFF)
    one.opened.raw.machine.pump()
    assert signal.word(0) == 0
    one.ring(one.tokens[0])
    one.opened.raw.machine.pump()
    assert signal.word(0) == 5


def test_a_token_is_a_channels(one: Channels) -> None:
    one.ring(0x123)
    with pytest.raises(Mistake, match="no channel's token"):
        one.opened.raw.machine.pump()


def test_a_ring_goes_around(one: Channels) -> None:
    signal = data(one)
    for value in range(1, 3 * ENTRIES):
        one.used = 0
        one.push(0, release(signal.address, value))
        assert signal.word(0) == value


def test_a_put_beyond_the_ring(one: Channels) -> None:
    one.rings[0].word(USERD_OFFSET + 0x8C, ENTRIES)
    one.ring(one.tokens[0])
    with pytest.raises(Mistake, match=f"GP_PUT is {ENTRIES}"):
        one.opened.raw.machine.pump()


def test_entries_that_are_overwritten_before_they_are_read(one: Channels) -> None:
    signal = data(one)
    one.push(0, acquire(signal.address, 1))
    for _ in range(ENTRIES - 2):
        one.push(0, acquire(signal.address, 1))
    one.rings[0].word(8 * 3, 0, 8)
    with pytest.raises(Mistake, match="before it is read"):
        one.push(0, release(signal.address, 1))


def test_a_pushbuffer_that_changes_while_it_waits(one: Channels) -> None:
    signal = data(one)
    one.push(0, acquire(signal.address, 1))
    before = one.used
    one.push(0, release(signal.address + 16, 2))
    one.commands.word(before + 12, 3)
    signal.word(0, 1)
    with pytest.raises(Mistake, match="changes while it waits"):
        one.opened.raw.machine.pump()


@pytest.mark.parametrize(
    ("entry", "match"),
    [(1, "operation 0|must be 0"), (2 << 32, "operation 2"), (1 | 1 << 42, "must be 0")],
)
def test_entries_of_a_wrong_form(one: Channels, entry: int, match: str) -> None:
    one.entry(0, entry)
    one.ring(one.tokens[0])
    if entry == 1:  # length 0 and operation 0: it does nothing
        one.opened.raw.machine.pump()
        return
    with pytest.raises(Mistake, match=match):
        one.opened.raw.machine.pump()


def test_a_long_address_needs_another_entry_which_ampere_lacks() -> None:
    for facts in (H200, GA102):
        channels = bound(facts)
        channels.entry(0, 4 << 32 | 1 << 8)
        channels.ring(channels.tokens[0])
        if facts is GA102:
            with pytest.raises(Mistake, match="operation 4"):
                channels.opened.raw.machine.pump()
        else:
            channels.opened.raw.machine.pump()


def test_a_pushbuffer_that_is_nowhere(one: Channels) -> None:
    one.entry(0, 0x6000 | 4 << 42)
    one.ring(one.tokens[0])
    one.opened.raw.machine.pump()
    assert one.error == 31


def test_a_pushbuffer_that_ends_within_methods(one: Channels) -> None:
    with pytest.raises(Mistake, match="ends within"):
        one.push(0, release(1 << 32, 1)[:-1])


def test_headers_and_methods_that_are_none(channels: Channels) -> None:
    channels.push(0, [0x12345678 & ~(7 << 29)])
    assert channels.error == 32
    other = Channels(channels.opened)
    other.push(0, methods(0, 0xF0, 1))
    assert other.error == 32
    third = Channels(channels.opened)
    third.push(0, methods(1, 0x2B4, 1))
    assert third.error == 69


def test_classes_on_subchannels(one: Channels) -> None:
    with pytest.raises(Mistake, match="not its own"):
        one.push(0, methods(2, 0, 0xCBC0))
    other = Channels(one.opened)
    other.push(0, methods(4, 0, 0xC8B5))
    assert other.error == 69  # not allocated on this channel


# --- semaphores


def test_semaphores_with_times(channels: Channels) -> None:
    signal = data(channels)
    channels.push(0, release(signal.address, 7, flags=1 << 20 | 1 << 24 | 1 << 25))
    channels.push(0, release(signal.address + 16, 8, flags=1 << 20 | 1 << 25))
    assert signal.word(0, width=8) == 7
    first, second = signal.word(8, width=8), signal.word(24, width=8)
    assert 0 < first < second
    assert first % 32 == second % 32 == 0


def test_a_channel_waits_for_another(one: Channels) -> None:
    signal = data(one)
    one.push(0, acquire(signal.address, 3), release(signal.address + 16, 1))
    assert signal.word(16) == 0
    assert any("channel 1 waits for 3" in text for text in one.opened.raw.machine.waiting())
    one.push(1, release(signal.address, 4))
    assert signal.word(16) == 1
    assert not one.opened.raw.machine.waiting()


def test_semaphores_compare_64_bits_around_the_end(one: Channels) -> None:
    signal = data(one)
    signal.word(0, 2**64 - 1, 8)
    one.push(0, acquire(signal.address, 5), release(signal.address + 16, 1))
    assert signal.word(16) == 0
    signal.word(0, 1 << 33, 8)
    one.opened.raw.machine.pump()
    assert signal.word(16) == 1


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (methods(0, 0x6C, 1), "a semaphore without"),
        (release(0x1001, 1), "a semaphore at"),
        (release(1 << 60, 1), "a semaphore at"),
        (methods(0, 0x5C, 0, 1, 1, 0, 7), "SEM_EXECUTE of"),
    ],
)
def test_semaphores_of_a_wrong_form(one: Channels, words: list[int], match: str) -> None:
    with pytest.raises(Mistake, match=match):
        one.push(0, words)


def test_semaphores_are_aligned_and_mapped(one: Channels) -> None:
    signal = data(one)
    with pytest.raises(Mistake, match="multiple of 16"):
        one.push(0, release(signal.address + 8, 1, flags=1 << 24 | 1 << 25))
    other = Channels(one.opened)
    other.push(0, release(0x4000, 1))
    assert other.error == 31
    fault = one.opened.raw.record("mmu_fault")
    root, debugger = one.opened.root, one.debugger
    assert one.opened.raw.control(root, debugger, 0x83DE0328, fault) == 0
    found = struct.unpack("<QII", fault.bytes[:16])
    assert (fault["count"], found) == (1, (0x4000, 2, 1))


def test_ampere_has_semaphores_of_40_bits() -> None:
    channels = bound(GA102)
    with pytest.raises(Mistake, match="a semaphore at"):
        channels.push(0, release(1 << 41, 1))


def test_a_group_stops_with_one_of_its_channels(one: Channels) -> None:
    signal = data(one)
    one.push(0, release(0x4000, 1))
    one.push(1, release(signal.address, 1))
    assert signal.word(0) == 0
    other = Channels(one.opened)
    other.push(1, release(signal.address, 2))
    assert signal.word(0) == 2


# --- copies


def test_copies(channels: Channels) -> None:
    source, target = data(channels, 4 * PAGE), data(channels, 4 * PAGE)
    source.bytes[:] = bytes(range(256)) * 64
    signal = data(channels)
    ended = (*reversed(halves(signal.address)), *halves(9))
    channels.push(
        1,
        copy(source.address + 3, target.address + 5, 5000),
        methods(4, 0x240, *ended),
        methods(4, 0x300, 0x14 | 1 << 27),
    )
    assert target.bytes[5:5005] == source.bytes[3:5003]
    assert target.bytes[5005] == 0
    assert signal.word(0, width=8) == 9
    assert signal.word(8, width=8)


def test_fills(one: Channels) -> None:
    target = data(one)
    place = (target.address >> 32, target.address & 0xFFFFFFFF)
    one.push(
        1,
        methods(4, 0x700, 0xABCD1234),
        methods(4, 0x708, 3 << 16 | 4),
        methods(4, 0x408, *place),
        methods(4, 0x418, 16),
        methods(4, 0x300, 0x180 | 2 | 1 << 10),
    )
    assert [target.word(4 * n) for n in (0, 15, 16)] == [0xABCD1234, 0xABCD1234, 0]


def test_pipelined_copies_have_no_order(one: Channels) -> None:
    a, b, c = (data(one) for _ in range(3))
    a.bytes[:4] = b"abcd"
    one.push(1, copy(a.address, b.address, 4, kind=1), copy(b.address, c.address, 4, kind=1))
    assert bytes(c.bytes[:4]) == bytes(4)
    one.push(1, copy(a.address, b.address, 4), copy(b.address, c.address, 4))
    assert bytes(c.bytes[:4]) == b"abcd"


def test_a_signal_that_does_not_wait_is_early(one: Channels) -> None:
    a, b, signal = (data(one) for _ in range(3))
    a.bytes[:4] = b"abcd"
    one.push(0, acquire(signal.address, 1), methods(0, 0x08, 0))
    one.push(1, copy(a.address, b.address, 4, kind=1), release(signal.address, 1, flags=1 << 24))
    assert bytes(b.bytes[:4]) == b"abcd"  # in the end


def test_copies_of_a_wrong_form(one: Channels) -> None:
    target = data(one)
    place = (target.address >> 32, target.address & 0xFFFFFFFF)
    with pytest.raises(Mistake, match="without the address of its source"):
        one.push(1, methods(4, 0x408, *place), methods(4, 0x418, 4), methods(4, 0x300, 0x182))
    bad = copy(target.address, target.address, 4)
    other = Channels(one.opened)
    other.bind()
    with pytest.raises(Mistake, match="blocks of pixels"):
        other.push(1, [*bad[:-1], 2])


def test_a_copy_beyond_the_end_of_memory(one: Channels) -> None:
    a, b = data(one), data(one)
    one.push(1, copy(a.address, b.address + PAGE - 8, 16))
    assert one.error == 31


def test_memory_that_may_only_be_read(one: Channels) -> None:
    opened = one.opened
    record = opened.memory(PAGE)
    base = 1 << 39
    created = opened.raw.record("uvm_create_range", base=base, length=PAGE)
    assert opened.raw.uvm(opened.uvm_file, 0x49, created) == 0
    request = opened.map_request(record["hObjectNew"], base, PAGE, mappingType=3)
    assert opened.raw.uvm(opened.uvm_file, 0x21, request) == 0
    one.push(1, copy(data(one).address, base, 16))
    assert one.error == 31


# --- launches


def test_a_kernel(channels: Channels) -> None:
    target, signal = data(channels), data(channels)
    launch = store(channels, target.address, 77)
    launch.fill((3, 1, 1), (4, 1, 1))
    launch.put_release(signal.address, 5)
    channels.push(0, launch.send())
    assert [target.word(8 * n) for n in (0, 11, 12)] == [77, 77, 0]
    assert signal.word(0, width=8) == 5
    assert signal.word(8, width=8)
    assert channels.opened.raw.machine.launched == ["k"]


def test_a_kernel_within_the_pushbuffer(channels: Channels) -> None:
    target = data(channels)
    launch = store(channels, target.address, 78)
    size = channels.opened.gpu.facts.qmd[1]
    words = list(memoryview(bytes(launch.descriptor.bytes[:size])).cast("I"))
    place = launch.descriptor.address
    launch.descriptor.bytes[:] = bytes(PAGE)
    flag = (1 << 30) if size == 384 else 0
    address = methods(1, 0x318, place >> 40 | flag, place >> 8 & 0xFFFFFFFF)
    channels.push(0, address, methods(1, 0x320, *words))
    assert target.word(0) == 78


def test_hopper_is_told_of_384_bytes(one: Channels) -> None:
    launch = store(one, data(one).address, 78)
    words = list(memoryview(bytes(launch.descriptor.bytes[:256])).cast("I"))
    address = methods(1, 0x318, 0, launch.descriptor.address >> 8)
    with pytest.raises(Mistake, match="this card has 96"):
        one.push(0, address, methods(1, 0x320, *words))


def test_one_launch_after_the_other(channels: Channels) -> None:
    target = data(channels)
    first, second = store(channels, target.address, 1), store(channels, target.address, 2)
    first.put("dependent_enable", 1)
    first.put("dependent_action", 1)
    first.put("dependent_pointer", second.descriptor.address >> 8)
    channels.push(0, first.send())
    assert target.word(0) == 2
    assert len(channels.opened.raw.machine.launched) == 2


def test_launches_have_no_order_of_their_own(one: Channels) -> None:
    target = data(one)
    first, second = store(one, target.address, 1), store(one, target.address, 2)
    one.push(0, first.send(), second.send())
    assert target.word(0) == 1
    one.push(0, first.send(), methods(1, 0x110, 0), second.send())
    assert target.word(0) == 2
    one.push(0, first.send(), methods(0, 0x78, 1), second.send())
    assert target.word(0) == 2


def test_a_release_waits_only_when_told(one: Channels) -> None:
    target, signal, seen = data(one), data(one), data(one)
    launch = store(one, target.address, 1)
    one.push(1, acquire(signal.address, 1), copy(target.address, seen.address, 8), runs=False)
    one.push(0, launch.send(), release(signal.address, 1, flags=1 << 24))
    assert (target.word(0), seen.word(0)) == (1, 0)
    target.word(0, 0)
    one.push(1, acquire(signal.address, 2), copy(target.address, seen.address, 8), runs=False)
    one.push(0, launch.send(), release(signal.address, 2))
    assert (target.word(0), seen.word(0)) == (1, 1)


def test_inline_data(one: Channels) -> None:
    target = data(one)
    place = (target.address >> 32, target.address & 0xFFFFFFFF)
    begin = methods(1, 0x180, 6, 1, *place) + methods(1, 0x1B0, 0x41)
    one.push(0, begin, methods(1, 0x1B4, 0x01020304, 0x0506, form=3))
    assert bytes(target.bytes[:8]) == bytes([4, 3, 2, 1, 6, 5, 0, 0])
    with pytest.raises(Mistake, match="within the data"):
        one.push(0, begin, methods(1, 0x1B4, 1, form=3), methods(1, 0x110, 0))


Change = Callable[[Launch], object]
BROKEN: dict[str, tuple[Change, str]] = {
    "version": (lambda k: k.put("major", 2), "version"),
    "calls": (lambda k: k.put("call_limit", 0), "limit of calls"),
    "grid": (lambda k: k.put("grid_y", 0), "a grid of"),
    "block": (lambda k: k.put("block_x", 2000), "blocks of"),
    "registers": (lambda k: k.put("registers", 1), "registers"),
    "no registers": (lambda k: k.put("registers", 0), "registers"),
    "shared": (lambda k: k.put("shared", 0), "bytes of shared memory"),
    "least": (lambda k: k.put("shared_min", 2), "shared memory is set to"),
    "target": (lambda k: k.put("shared_target", 63), "shared memory is set to"),
    "most": (lambda k: k.put("shared_max", 0), "shared memory is set to"),
    "order": (lambda k: k.put("shared_min", 17), "shared memory is at least"),
    "bank": (lambda k: k.put("constants_valid", 0), "without constant bank 0"),
    "bank bytes": (lambda k: k.put("constants_size", 4), "the kernel reads"),
    "data": (lambda k: k.put("invalidate_data", 0), "before caches forget"),
    "constants": (lambda k: k.put("constants_invalidate", 0), "constants of before"),
    "SASS": (lambda k: k.put("sass_version", 0x11), "SASS version"),
    "program": (lambda k: k.put_pair("program", k.code.address + 64), "no multiple of 128"),
    "program place": (lambda k: k.put_pair("program", k.code.address + 128), "no code"),
    "block word": (lambda k: word(k, "block", 9), "blockDim"),
    "grid word": (lambda k: word(k, "grid", 9), "gridDim"),
    "stack word": (lambda k: word(k, "stack", 0), "stack"),
    "window word": (lambda k: word(k, "shared_window", 8), "shared window"),
    "local word": (lambda k: word(k, "local_window", 1), "local window"),
    "own address": (lambda k: word(k, "own_address", 1), "own address"),
    "relocation": (lambda k: k.code.word(k.made.LOW_PLACE, 5) and None, "is relocated to"),
    "other arch": (lambda k: k.code.word(16, 75) and None, "code of sm_75"),
}


def word(launch: Launch, name: str, value: int) -> None:
    launch.bank.word(getattr(launch.channels.opened.gpu.facts.bank, name), value)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("card", ["ampere", "hopper", "blackwell"])
def test_launches_of_a_wrong_form(card: str, name: str) -> None:
    if (card, name) == ("ampere", "own address"):
        pytest.skip("code of Ampere does not ask for it")
    channels = bound(CARDS[card])
    launch = store(channels, data(channels).address, 1)
    change, match = BROKEN[name]
    change(launch)
    with pytest.raises(Mistake, match=match):
        channels.push(0, launch.send())


def test_releases_of_launches(one: Channels) -> None:
    signal = data(one)
    launch = store(one, signal.address, 1)
    launch.put_release(signal.address + 8, 1)
    with pytest.raises(Mistake, match="a semaphore at"):
        one.push(0, launch.send())


def test_a_descriptor_is_aligned_and_low(one: Channels) -> None:
    with pytest.raises(Mistake, match="compute class is sent"):
        one.push(0, methods(1, 0x2BC, 3))
    other = Channels(one.opened)
    other.bind()
    other.push(0, methods(1, 0x318, 1 << 30 | 0x1FF, 0), methods(1, 0x320, *[0] * 96))
    assert other.error == 31
    third = Channels(one.opened)
    third.bind()
    with pytest.raises(Mistake, match="without SEND_PCAS_A"):
        third.push(0, methods(1, 0x2C0, 3))


def test_a_launch_needs_windows() -> None:
    channels = Channels(Opened.of(Machine()))
    channels.push(0, methods(1, 0, 0xCBC0))
    launch = store(channels, data(channels).address, 1)
    with pytest.raises(Mistake, match="without shared window"):
        channels.push(0, launch.send())


def test_windows_lie_over_nothing(one: Channels) -> None:
    target = data(one)
    launch = store(one, target.address, 1)
    window = target.address & -(1 << 24)
    one.push(0, methods(1, 0x7B0, window >> 32, window & 0xFFFFFFFF))
    word(launch, "local_window", window & 0xFFFFFFFF)
    launch.bank.word(one.opened.gpu.facts.bank.local_window, window, 8)
    with pytest.raises(Mistake, match="lies over memory"):
        one.push(0, launch.send())


def test_code_that_changes(one: Channels) -> None:
    target = data(one)
    launch = store(one, target.address, 1)
    one.push(0, launch.send())
    changed = STORE.replace("add.u64", "sub.u64")
    launch.made = dataclasses.replace(launch.made, text=changed.encode())
    launch.place_code()
    with pytest.raises(Mistake, match="instruction caches are not told"):
        one.push(0, launch.send())


def test_code_that_changes_and_is_told(one: Channels) -> None:
    target = data(one)
    launch = store(one, target.address, 1)
    one.push(0, launch.send())
    changed = STORE.replace("add.u64", "sub.u64")
    launch.made = dataclasses.replace(launch.made, text=changed.encode())
    launch.place_code()
    launch.put("invalidate_code", 1)
    one.push(0, launch.send())
    assert not one.error


def test_code_is_followed_by_memory(one: Channels) -> None:
    launch = store(one, data(one).address, 1)
    space = one.opened.raw.machine.resources.client(one.opened.root).objects[one.opened.space]
    region = space.memory.region_at(launch.code.address)  # type: ignore[attr-defined]
    region.data = region.data[:1024]
    one.push(0, launch.send())
    assert one.error == 31


def test_local_memory(channels: Channels) -> None:
    target = data(channels)
    launch = Launch(channels, STACK, struct.pack("<QQ", target.address, 6))
    with pytest.raises(Mistake, match="bytes of a stack"):
        channels.push(0, launch.send())
    facts = channels.opened.gpu.facts
    other = Channels(channels.opened)
    other.bind()
    launch = Launch(other, STACK, struct.pack("<QQ", target.address, 6))
    per_thread = 0x280
    launch.put("local_high", per_thread >> (4 if launch.version == 5 else 0))
    per_tpc = -(-per_thread * 32 * facts.warps * facts.sms // 0x8000) * 0x8000
    memory = channels.opened.memory(per_tpc * facts.tpcs * facts.gpcs)
    size = -(-memory_size(memory) // PAGE) * PAGE
    address = channels.opened.map(memory["hObjectNew"], size)
    other.push(
        0,
        methods(1, 0x790, address >> 32, address & 0xFFFFFFFF),
        methods(1, 0x2E4, 0, per_tpc, 0xFF),
        launch.send(),
    )
    assert target.word(0) == 6
    with pytest.raises(Mistake, match="per TPC"):
        other.push(0, methods(1, 0x2E4, 0, per_tpc // 2 & -0x8000, 0xFF), launch.send())


def memory_size(record: object) -> int:
    """Bytes of an allocation, as RM_ALLOC returned them."""
    from rm_standin.layouts import Record, layouts_of  # noqa: PLC0415

    assert isinstance(record, Record)
    return Record(layouts_of(580)["memory"], record["pAllocParms"])["size"]


def test_a_kernel_that_stores_nowhere(channels: Channels) -> None:
    launch = store(channels, 0x7654_0000, 1)
    channels.push(0, launch.send())
    assert channels.error == 31
    fault = channels.opened.raw.record("mmu_fault")
    channels.opened.raw.control(channels.opened.root, channels.debugger, 0x83DE0328, fault)
    assert struct.unpack("<QII", fault.bytes[:16]) == (0x7654_0000, 2, 1)
    errors = channels.opened.raw.record(
        "sm_errors", hTargetChannel=channels.handles[0], numSMsToRead=8
    )
    root, raw = channels.opened.root, channels.opened.raw
    assert raw.control(root, channels.debugger, 0x83DE030C, errors) == 0
    assert errors["valid"] == 1


def test_a_misaligned_store_is_told_by_the_multiprocessors(one: Channels) -> None:
    one.opened.raw.machine.tells_faults = True
    one.push(0, store(one, data(one).address + 4, 1).send())
    assert one.error == 13
    raw = one.opened.raw
    errors = raw.record("sm_errors", hTargetChannel=one.handles[0], numSMsToRead=8)
    raw.control(one.opened.root, one.debugger, 0x83DE030C, errors)
    assert errors.bytes[12] == 0xF
    bad = raw.record("sm_errors", hTargetChannel=one.handles[0], numSMsToRead=101)
    assert raw.control(one.opened.root, one.debugger, 0x83DE030C, bad) == Status.INVALID_ARGUMENT


def test_races_of_kernels_are_raised(one: Channels) -> None:
    racy = STORE.replace("st.global.u64 [%rd2], %rd1;", "st.shared.u64 [there], %rd1;").replace(
        ".reg .b64", ".shared .align 8 .b8 there[8];\n  .reg .b64"
    )
    launch = Launch(one, racy, struct.pack("<QQ", 0, 0))
    launch.fill((1, 1, 1), (64, 1, 1))
    with pytest.raises(RaceFault):
        one.push(0, launch.send())


# --- what is injected


def test_a_stuck_channel(one: Channels) -> None:
    signal, machine = data(one), one.opened.raw.machine
    machine.stuck.add(1)
    one.push(0, release(signal.address, 1))
    assert signal.word(0) == 0
    assert machine.waiting() == ["channel 1 waits for its turn"]
    machine.stuck.clear()
    machine.pump()
    assert signal.word(0) == 1


def test_a_card_that_is_lost_runs_nothing(one: Channels) -> None:
    signal = data(one)
    one.opened.gpu.is_lost = True
    one.push(0, release(signal.address, 1))
    assert signal.word(0) == 0


# --- cubins


@pytest.mark.parametrize("arch", [80, 86, 90, 100, 120])
def test_cubins_are_whole(arch: int) -> None:
    made = assemble(STORE, arch)
    assert made[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", made, 18) == (190,)
    for name in (b".text.k", b".nv.info.k", b".nv.constant0.k", b".nv.info"):
        assert name + b"\0" in made
    start = made.index(b"PTX code")
    assert start % 8 == 0
    code = Code.read(made[start:])
    assert (code.name, code.arch, code.parameter_bytes) == ("k", arch, 16)
    assert code.text == STORE.encode()
