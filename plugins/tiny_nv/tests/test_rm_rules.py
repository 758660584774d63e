"""Rules of the stand-in, each broken by a program: those of a machine's files, of the resource
manager, of unified memory, and of what channels execute. rm_checks.py lists all of them.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
from collections.abc import Callable
from typing import Final

import pytest
from rm_calls import (
    CONTEXT_BYTES,
    ENTRIES,
    PAGE,
    UVM_SPACE,
    Channels,
    Launch,
    Opened,
    Raw,
    acquire,
    methods,
    release,
)
from rm_standin import Machine, Mistake, Status
from rm_standin.cards import GA102, H200
from rm_standin.layouts import Record
from test_rm_channels import STACK, STORE

COMPUTE, COPIES = 0, 1
ARGUMENT, HANDLE, STATE = (
    Status.INVALID_ARGUMENT,
    Status.INVALID_OBJECT_HANDLE,
    Status.INVALID_STATE,
)
ADDRESS, DEVICE = Status.INVALID_ADDRESS, Status.INVALID_DEVICE


@pytest.fixture
def card() -> Opened:
    """A card with an address space."""
    return Opened.of(Machine((H200,)))


@pytest.fixture
def pair() -> tuple[Opened, Opened]:
    """Two cards of one client, in one address space."""
    machine = Machine((H200, H200))
    one = Opened.of(machine)
    other = Opened(one.raw, machine.gpus[1], one.root, uvm_file=one.uvm_file)
    other.open_device()
    other.open_space()
    return one, other


@pytest.fixture
def one() -> Channels:
    """Channels of a Hopper, with their classes bound."""
    made = Channels(Opened.of(Machine((H200,))))
    made.bind()
    return made


def launched(channels: Channels, source: str = STORE) -> Launch:
    """A launch that stores a number."""
    target = channels.opened.buffer(PAGE)
    return Launch(channels, source, struct.pack("<QQ", target.address, 1))


# --- the machine's files


def request(raw: Raw, number: int, memory: bytes, *, magic: int = 0x46, file: int = 0) -> int:
    """A request about bytes of any number: the errno."""
    place = ctypes.create_string_buffer(memory, max(len(memory), 1))
    raw.kept.append(place)
    code = 3 << 30 | len(memory) << 16 | magic << 8 | number
    return raw.machine.ioctl(file or raw.control_file, code, ctypes.addressof(place))


def test_requests_are_of_the_drivers_kind() -> None:
    raw = Raw(Machine((H200, H200)))
    one_card = raw.machine.layouts["card_info"].size
    assert request(raw, 0x2B, bytes(32), magic=0x47) == errno.ENOTTY
    assert request(raw, 0xC8, b"") == errno.EINVAL
    assert request(raw, 0xC8, bytes(one_card)) == errno.ENOMEM
    assert request(raw, 0xC8, bytes(2 * one_card)) == 0


def test_cards_are_attached_by_their_numbers() -> None:
    raw = Raw(Machine((H200,)))
    known = raw.machine.gpus[0].gpu_id
    assert request(raw, 0xD4, b"") == errno.EINVAL
    assert request(raw, 0xD4, bytes(6)) == errno.EINVAL
    assert request(raw, 0xD4, struct.pack("<I", known + 5)) == errno.EINVAL
    assert request(raw, 0xD4, struct.pack("<I", known)) == 0


def test_large_requests_have_limits() -> None:
    raw = Raw(Machine((H200,)))
    assert request(raw, 0xD3, bytes(24)) == errno.EINVAL
    assert raw.escape(0xD3, raw.record("xfer", nr=0x2B, size=1 << 15)) == errno.EINVAL
    assert raw.escape(0xD3, raw.record("xfer", nr=0xD3, size=16)) == errno.EINVAL


def test_files_of_cards_are_registered_with_the_drivers() -> None:
    raw = Raw(Machine((H200,)))
    file = raw.machine.open("/dev/nvidia0")
    for wrong in (12345, file):
        assert raw.escape(0xC9, raw.record("register_fd", ctl_fd=wrong), file) == errno.EINVAL


def test_an_event_is_of_the_file_that_asks(card: Opened) -> None:
    event = card.raw.record("alloc_os_event", hClient=card.root, fd=card.raw.control_file)
    assert card.raw.escape(0xCE, event, card.file) == errno.EINVAL


def test_files_that_are_not_open_are_not_polled() -> None:
    with pytest.raises(Mistake, match="and has no event"):
        Machine((H200,)).poll(12345, 1)


def test_mappings_of_files(card: Opened) -> None:
    machine = card.raw.machine
    with pytest.raises(OSError, match="nothing to map"):
        machine.map(0, PAGE, 3, mmap.MAP_SHARED, 12345, 0)
    handle = card.memory(PAGE, video=False)["hObjectNew"]
    file = machine.open("/dev/nvidiactl")
    card.raw.escape(0x4E, card.map_record(handle, PAGE, file))
    with pytest.raises(OSError, match="bytes of a mapping of"):
        machine.map(0, 2 * PAGE, 3, mmap.MAP_SHARED, file, 0)


# --- the resource manager


def made(card: Opened, parent: int, number: int, layout: str = "", **fields: int) -> int:
    """RM_ALLOC: the status."""
    params = card.raw.record(layout, **fields) if layout else None
    status: int = card.raw.alloc(card.root, parent, number, params)["status"]
    return status


def named(card: Opened, **fields: int) -> int:
    """RM_ALLOC of a subdevice with a handle, parent or root of one's choice: the status."""
    chosen = {"hRoot": card.root, "hObjectParent": card.device, "hClass": 0x2080} | fields
    record = card.raw.record("alloc", **chosen)
    assert card.raw.escape(0x2B, record) == 0
    return record["status"]


def test_handles_and_roots(card: Opened) -> None:
    assert named(card, hObjectNew=card.space) == HANDLE
    assert named(card, hClass=0x41, hObjectParent=0) == ARGUMENT
    assert named(card, hClass=0x41, hRoot=0) == ARGUMENT
    assert made(card, card.device, 0x71) == Status.INVALID_CLASS


PARENTS: Final[tuple[tuple[str, int, str], ...]] = (
    ("device", 0x80, "device"),
    ("subdevice", 0x2080, "subdevice"),
    ("device", 0xC661, "usermode"),
    ("subdevice", 0x70, "virtual"),
    ("subdevice", 0x40, "memory"),
    ("subdevice", 0xA06C, "group"),
    ("device", 0x9067, "context_share"),
    ("subdevice", 0x83DE, "debugger"),
)


@pytest.mark.parametrize(("parent", "number", "layout"), PARENTS)
def test_parents(card: Opened, parent: str, number: int, layout: str) -> None:
    assert made(card, getattr(card, parent), number, layout) == HANDLE


def test_objects_of_a_lost_card(card: Opened) -> None:
    handle = card.memory(PAGE)["hObjectNew"]
    card.gpu.is_lost = True
    assert made(card, card.root, 0x80, "device", hClientShare=card.root) == Status.GPU_IS_LOST
    assert card.registered(0x10000, PAGE)["status"] == Status.GPU_IS_LOST
    mapping = card.map_record(handle, PAGE, card.file)
    assert card.raw.escape(0x4E, mapping) == 0
    assert mapping["status"] == Status.GPU_IS_LOST
    assert card.raw.uvm(card.uvm_file, 0x25, card.named("uvm_register_gpu")) == Status.GPU_IS_LOST


def test_address_spaces_begin_at_a_page(card: Opened) -> None:
    assert made(card, card.device, 0x90F1, "vaspace", vaBase=0x1001, vaSize=PAGE) == ARGUMENT


def test_alignments_are_powers_of_two(card: Opened) -> None:
    fields = {"size": PAGE, "alignment": 3 * PAGE, "attr": 3 << 27 | 1 << 23}
    assert made(card, card.device, 0x40, "memory", flags=0x100, **fields) == ARGUMENT


def test_memory_that_the_system_has_not(card: Opened) -> None:
    assert card.memory(1 << 62, video=False)["status"] == Status.NO_MEMORY


def test_pages_of_the_process_are_registered_for_their_card(pair: tuple[Opened, Opened]) -> None:
    one, other = pair
    page = one.raw.machine.map(0, PAGE, 3, 0x4022, -1, 0)
    assert one.registered(page, PAGE, hClass=0x99)["status"] == Status.INVALID_CLASS
    assert one.registered(page, PAGE, hObjectParent=other.device)["status"] == DEVICE
    assert one.registered(page, PAGE, hObjectNew=one.space)["status"] == HANDLE
    assert one.registered(0, PAGE)["status"] == ARGUMENT


def mapped(card: Opened, handle: int, **fields: int) -> int:
    """RM_MAP_MEMORY into a new file of the card: the status."""
    file = fields.pop("fd", 0) or card.raw.machine.open(card.raw.machine.device_path(card.gpu))
    record = card.map_record(handle, PAGE, file)
    for name, value in fields.items():
        record[name] = value
    assert card.raw.escape(0x4E, record) == 0
    return record["status"]


def test_mappings_for_the_host(pair: tuple[Opened, Opened]) -> None:
    one, other = pair
    handle = one.memory(2 * PAGE)["hObjectNew"]
    system = one.memory(PAGE, video=False)["hObjectNew"]
    page = one.raw.machine.map(0, PAGE, 3, 0x4022, -1, 0)
    assert mapped(one, one.space) == HANDLE
    assert mapped(one, handle, hDevice=one.space) == DEVICE
    assert mapped(one, handle, hDevice=other.device) == DEVICE
    assert mapped(one, handle, length=0) == ARGUMENT
    assert mapped(one, handle, offset=8) == ARGUMENT
    assert mapped(one, handle, fd=12345) == ARGUMENT
    assert mapped(one, system, fd=one.uvm_file) == ARGUMENT
    pinned = one.registered(page, PAGE)["hObjectNew"]
    assert mapped(one, pinned) == Status.NOT_SUPPORTED


def test_doorbells_that_are_not_mapped_through_bar1() -> None:
    card = Opened.of(Machine((H200,), bar1_doorbells=False))
    params = card.raw.record("usermode", bBar1Mapping=1)
    page = card.got(card.subdevice, 0xC661, params)
    assert mapped(card, page, length=1 << 16) == Status.NOT_SUPPORTED


def test_the_resource_managers_own_mappings(card: Opened) -> None:
    raw = card.raw
    small = raw.record("vaspace", vaBase=1 << 30, vaSize=16 * PAGE)
    space = card.got(card.device, 0x90F1, small)
    handle = card.memory(2 * PAGE)["hObjectNew"]
    fixed = {"flags": 1 << 15, "dmaOffset": 1 << 30}

    def status(number: int = 0x57, **fields: int) -> int:
        known = {"hClient": card.root, "hDevice": card.device, "hDma": space, "hMemory": handle}
        length = {"length": PAGE} if number == 0x57 else {}
        name = "map_dma" if number == 0x57 else "unmap_dma"
        record = raw.record(name, **(known | length | fields))
        assert raw.escape(number, record) == 0
        return record["status"]

    assert status(hDma=handle) == HANDLE
    assert status(offset=8) == ARGUMENT
    assert status(length=0) == ARGUMENT
    assert status(length=3 * PAGE) == ARGUMENT
    assert status(**(fixed | {"dmaOffset": (1 << 30) + 8})) == ADDRESS
    assert status(**(fixed | {"dmaOffset": PAGE})) == ADDRESS
    assert status(**(fixed | {"dmaOffset": (1 << 30) + 16 * PAGE})) == ADDRESS
    assert status(**fixed) == Status.OK
    assert status(0x58, hDma=handle, dmaOffset=1 << 30) == ADDRESS
    assert status(0x58, dmaOffset=(1 << 30) + PAGE) == ADDRESS
    assert status(0x58, dmaOffset=1 << 30) == Status.OK


def test_questions_are_about_what_there_is(card: Opened) -> None:
    raw = card.raw
    info = raw.record("gid_info", flags=2)
    assert raw.control(card.root, 0x12345, 0x2080014A, info) == HANDLE
    asked = raw.record("control", hClient=card.root, hObject=card.subdevice, cmd=0x2080014A)
    asked["paramsSize"] = info.kind.size
    assert raw.escape(0x2A, asked) == 0
    assert asked["status"] == ARGUMENT
    entry = (ctypes.c_uint32 * 2)(0x3B, 0)
    listed = raw.record("gr_info", listSize=1, list=ctypes.addressof(entry))
    assert raw.control(card.root, card.subdevice, 0x20801201, listed) == ARGUMENT


def test_an_event_names_its_subdevice_and_class(card: Opened) -> None:
    event = card.raw.record("alloc_os_event", hClient=card.root, fd=card.file)
    assert card.raw.escape(0xCE, event, card.file) == 0
    known = {"hParentClient": card.root, "hSrcResource": card.subdevice, "hClass": 0x79}

    def status(**fields: int) -> int:
        return made(card, card.subdevice, 0x79, "event", **(known | {"data": card.file} | fields))

    assert status(hSrcResource=card.device) == HANDLE
    assert status(hClass=0x5) == ARGUMENT
    assert status() == Status.OK


# --- groups and channels


def test_groups_of_channels(pair: tuple[Opened, Opened]) -> None:
    one, other = pair
    raw = one.raw
    group = one.got(one.device, 0xA06C, raw.record("group", hVASpace=one.space, engineType=1))
    assert made(one, group, 0x9067, "context_share", hVASpace=other.space, flags=1) == ARGUMENT
    schedule = raw.record("schedule", bEnable=1)
    assert raw.control(one.root, group, 0xA06C0101, schedule) == STATE


def test_channels_alone(card: Opened) -> None:
    raw = card.raw
    space = card.got(card.device, 0x90F1, raw.record("vaspace", vaBase=0x1000))
    ring = card.memory(PAGE)["hObjectNew"]
    page = raw.machine.map(0, PAGE, 3, 0x4022, -1, 0)
    pinned = card.registered(page, PAGE)["hObjectNew"]
    fields = {"gpFifoEntries": 16, "hVASpace": space, "hUserdMemory": ring, "engineType": 9}

    def status(**others: int) -> int:
        return made(card, card.device, 0xC86F, "channel", **(fields | others))

    assert status(engineType=5) == ARGUMENT
    assert status(hUserdMemory=pinned) == ARGUMENT
    channel = card.got(card.device, 0xC86F, raw.record("channel", **fields))
    assert made(card, channel, 0xCBC0) == Status.INVALID_CLASS
    copies = card.got(channel, 0xC8B5)
    debugged = {"hAppClient": card.root, "hClass3dObject": copies}
    assert made(card, card.device, 0x83DE, "debugger", **debugged) == ARGUMENT


def test_channels_of_a_group_are_scheduled_with_it(one: Channels) -> None:
    raw, root = one.opened.raw, one.opened.root
    schedule, bind = raw.record("schedule", bEnable=1), raw.record("bind", engineType=1)
    assert raw.control(root, one.handles[0], 0xA06F0103, schedule) == STATE
    assert raw.control(root, one.handles[0], 0xA06F0104, bind) == STATE


def test_errors_of_multiprocessors_there_are_not(one: Channels) -> None:
    raw, root = one.opened.raw, one.opened.root
    asked = raw.record("sm_errors", hTargetChannel=one.handles[0], numSMsToRead=8, startingSM=5)
    assert raw.control(root, one.debugger, 0x83DE030C, asked) == ARGUMENT


# --- unified memory


def test_uvm_is_initialized_once(card: Opened) -> None:
    again = card.raw.record("uvm_initialize")
    assert card.raw.uvm(card.uvm_file, 0x30000001, again) == Status.IN_USE
    for wrong in (12345, card.raw.control_file):
        asked = card.raw.record("uvm_mm_initialize", uvmFd=wrong)
        assert card.raw.uvm(card.uvm_file, 0x4B, asked) == ARGUMENT


def test_address_spaces_of_uvm(pair: tuple[Opened, Opened]) -> None:
    one, other = pair
    raw, file = one.raw, one.uvm_file

    def registered(space: int, **fields: int) -> int:
        return raw.uvm(file, 0x19, one.named("uvm_register_vaspace", hVaSpace=space, **fields))

    assert raw.uvm(file, 0x26, one.named("uvm_unregister_gpu")) == Status.IN_USE
    assert raw.uvm(file, 0x1A, one.named("uvm_unregister_vaspace")) == Status.OK
    assert raw.uvm(file, 0x1A, one.named("uvm_unregister_vaspace")) == DEVICE
    assert registered(one.space, rmCtrlFd=12345) == ARGUMENT
    assert registered(other.space) == DEVICE
    own = one.got(one.device, 0x90F1, raw.record("vaspace", vaBase=0x1000))
    assert registered(own) == STATE
    second = raw.machine.open("/dev/nvidia-uvm")
    assert raw.uvm(second, 0x30000001, raw.record("uvm_initialize")) == 0
    assert raw.uvm(second, 0x25, one.named("uvm_register_gpu")) == 0
    request = one.named("uvm_register_vaspace", hVaSpace=one.space)
    assert raw.uvm(second, 0x19, request) == Status.OK
    assert registered(one.space) == STATE


def test_cards_without_an_address_space_are_not_mapped_to(card: Opened) -> None:
    raw, base = card.raw, 1 << 36
    handle = card.memory(PAGE)["hObjectNew"]
    assert raw.uvm(card.uvm_file, 0x1A, card.named("uvm_unregister_vaspace")) == 0
    assert raw.uvm(card.uvm_file, 0x49, raw.record("uvm_create_range", base=base, length=PAGE)) == 0
    assert raw.uvm(card.uvm_file, 0x21, card.map_request(handle, base, PAGE)) == DEVICE


def test_a_card_is_no_peer_of_its_own(card: Opened) -> None:
    twice = card.named("uvm_enable_peer")
    twice.bytes[16:32] = card.gpu.identity
    assert card.raw.uvm(card.uvm_file, 0x1D, twice) == Status.NOT_SUPPORTED


def test_contexts_of_channels(one: Channels) -> None:
    opened, raw = one.opened, one.opened.raw
    other = Channels(opened, starts=False)
    gone = opened.named("uvm_unregister_channel", hChannel=other.handles[0], hClient=opened.root)
    assert raw.uvm(opened.uvm_file, 0x1C, gone) == STATE
    taken = raw.record("uvm_free", base=0x70_0000_0000, length=CONTEXT_BYTES)
    assert raw.uvm(opened.uvm_file, 0x22, taken) == ADDRESS
    outside = opened.got(opened.device, 0x90F1, raw.record("vaspace", flags=UVM_SPACE))
    fields = {"gpFifoEntries": 16, "hVASpace": outside, "engineType": 1}
    params = raw.record("channel", hUserdMemory=one.rings[0].handle, **fields)
    channel = opened.got(opened.device, 0xC86F, params)
    assert one.register(channel, 0x78_0000_0000) == STATE


def test_mappings_of_uvm(card: Opened) -> None:
    raw, base = card.raw, 1 << 36
    handle = card.memory(4 * PAGE)["hObjectNew"]
    taken = raw.record("uvm_create_range", base=base, length=4 * PAGE)
    assert raw.uvm(card.uvm_file, 0x49, taken) == 0

    def status(size: int, form: int = 0, **fields: int) -> int:
        asked = card.map_request(handle, base, size, **fields)
        Record(raw.machine.layouts["uvm_map_attributes"], asked.address + 24)["formatType"] = form
        return raw.uvm(card.uvm_file, 0x21, asked)

    assert status(PAGE + 8) == ADDRESS
    assert status(PAGE, offset=8) == ADDRESS
    assert status(0) == ADDRESS
    assert status(PAGE, form=1) == ARGUMENT
    assert status(2 * PAGE) == Status.OK
    unmap = raw.record("uvm_unmap", base=base, length=PAGE)
    unmap.bytes[16:32] = card.gpu.identity
    assert raw.uvm(card.uvm_file, 0x42, unmap) == ADDRESS


def test_mappings_lie_within_the_address_space() -> None:
    card = Opened(Raw(machine := Machine((H200,))), machine.gpus[0])
    card.open_device()
    raw, begin, size = card.raw, 1 << 36, 16 * PAGE
    space = raw.record("vaspace", flags=UVM_SPACE, vaBase=begin, vaSize=size)
    card.space = card.got(card.device, 0x90F1, space)
    card.uvm_file = machine.open("/dev/nvidia-uvm")
    assert raw.uvm(card.uvm_file, 0x30000001, raw.record("uvm_initialize")) == 0
    assert raw.uvm(card.uvm_file, 0x25, card.named("uvm_register_gpu")) == 0
    register = card.named("uvm_register_vaspace", hVaSpace=card.space)
    assert raw.uvm(card.uvm_file, 0x19, register) == 0
    handle = card.memory(PAGE)["hObjectNew"]
    for base, status in ((begin - PAGE, ADDRESS), (begin + size, ADDRESS), (begin, Status.OK)):
        taken = raw.record("uvm_create_range", base=base, length=PAGE)
        assert raw.uvm(card.uvm_file, 0x49, taken) == 0
        assert raw.uvm(card.uvm_file, 0x21, card.map_request(handle, base, PAGE)) == status


# --- what channels execute


def test_rings_lie_somewhere(one: Channels) -> None:
    one.opened.raw.machine.resources.channels[COMPUTE].ring_address = 0
    with pytest.raises(Mistake, match="a ring at"):
        one.push(COMPUTE, methods(0, 0x8, 0))


def test_a_ring_takes_no_more_than_its_entries(one: Channels) -> None:
    signal = one.opened.buffer(PAGE)
    signal.bytes[:] = bytes(PAGE)
    one.push(COMPUTE, acquire(signal.address, 1))
    words = methods(0, 0x8, 0)
    address = one.write(words)
    entry = address | len(words) << 42
    for _ in range(ENTRIES - 4):
        one.entry(COMPUTE, entry)
    one.ring(one.tokens[COMPUTE])
    one.opened.raw.machine.pump()
    for _ in range(ENTRIES - 4):  # around, over entries that are all alike
        one.entry(COMPUTE, entry)
    one.ring(one.tokens[COMPUTE])
    with pytest.raises(Mistake, match="entries are left and"):
        one.opened.raw.machine.pump()


def test_bits_of_entries_that_must_be_0(one: Channels) -> None:
    one.entry(COMPUTE, 1 << 40 | 1 << 42)
    one.ring(one.tokens[COMPUTE])
    with pytest.raises(Mistake, match="must be 0"):
        one.opened.raw.machine.pump()


def test_a_channel_is_scheduled_before_it_is_rung() -> None:
    opened = Opened.of(Machine((H200,)))
    channels = Channels(opened, starts=False)
    token = opened.raw.record("token")
    assert opened.raw.control(opened.root, channels.handles[0], 0xC36F0108, token) == 0
    channels.ring(token["token"])
    with pytest.raises(Mistake, match="it is not scheduled"):
        opened.raw.machine.pump()


def test_an_interrupt_waits_for_kernels(one: Channels) -> None:
    with pytest.raises(Mistake, match="before the kernels before it have ended"):
        one.push(COMPUTE, launched(one).send(), methods(0, 0x20, 0))


def test_numbers_are_aligned(one: Channels) -> None:
    signal = one.opened.buffer(PAGE)
    with pytest.raises(Mistake, match="a number at"):
        one.push(COMPUTE, release(signal.address + 4, 1))


def halves_of(one: Channels) -> tuple[int, int]:
    """An address, its upper half first."""
    made = one.opened.buffer(PAGE)
    return made.address >> 32, made.address & 0xFFFFFFFF


def copying(one: Channels, launch: int, *, length: int = 16, components: int = 0) -> list[int]:
    """A copy onto itself, or a fill."""
    place = halves_of(one)
    return [
        *methods(4, 0x400, *place, *place),
        *methods(4, 0x418, length, 0),
        *methods(4, 0x700, 1, 0, components),
        *methods(4, 0x300, launch),
    ]


PUSHED: Final[dict[str, tuple[int, Callable[[Channels], list[int]], str]]] = {
    "an engine": (COMPUTE, lambda _: methods(1, 0, 1 << 16 | 0xCBC0), "SET_OBJECT of"),
    "an empty inline copy": (
        COMPUTE,
        lambda one: methods(1, 0x180, 0, 1, *halves_of(one)) + methods(1, 0x1B0, 0x41),
        "an inline copy of",
    ),
    "bits of an action": (
        COMPUTE,
        lambda _: methods(1, 0x2B4, 1 << 20) + methods(1, 0x2C0, 3 | 1 << 4),
        "SEND_SIGNALING_PCAS2_B of",
    ),
    "reductions": (COPIES, lambda one: copying(one, 0x182 | 1 << 14), "LAUNCH_DMA of"),
    "half an address": (
        COPIES,
        lambda one: [
            *methods(4, 0x400, 0),
            *methods(4, 0x408, *halves_of(one)),
            *methods(4, 0x418, 4),
            *methods(4, 0x300, 0x182),
        ],
        "without the address of its source",
    ),
    "no payload": (
        COPIES,
        lambda one: methods(4, 0x240, *halves_of(one)) + methods(4, 0x300, 0x14),
        "a semaphore of kind 2",
    ),
    "no lines": (COPIES, lambda one: copying(one, 0x182 | 1 << 9), "a copy of 0 lines"),
    "no length": (COPIES, lambda one: copying(one, 0x182, length=0), "lines of 0 bytes"),
    "fills by memory": (
        COPIES,
        lambda one: copying(one, 0x582, components=0),
        "a fill with components",
    ),
    "fills of two components": (
        COPIES,
        lambda one: copying(one, 0x582, components=1 << 24 | 4),
        "a fill with components",
    ),
}


@pytest.mark.parametrize("name", PUSHED)
def test_commands(one: Channels, name: str) -> None:
    index, words, match = PUSHED[name]
    with pytest.raises(Mistake, match=match):
        one.push(index, words(one))


def parts_of_clusters(launch: Launch) -> None:
    """Three groups in clusters of two."""
    launch.fill((3, 1, 1), (1, 1, 1))
    launch.put("type", 3)
    launch.put("cluster_x", 2)


def too_many_registers(launch: Launch) -> None:
    """More registers than a multiprocessor has."""
    launch.fill((1, 1, 1), (1024, 1, 1))
    launch.put("registers", 255)


@pytest.mark.parametrize(
    ("change", "match"),
    [(parts_of_clusters, "parts of clusters"), (too_many_registers, "registers a warp")],
)
def test_descriptors(one: Channels, change: Callable[[Launch], None], match: str) -> None:
    launch = launched(one)
    change(launch)
    with pytest.raises(Mistake, match=match):
        one.push(COMPUTE, launch.send())


def test_constants_are_aligned() -> None:
    channels = Channels(Opened.of(Machine((GA102,))))
    channels.bind()
    launch = launched(channels)
    launch.put_pair("constants", launch.bank.address + 32)
    with pytest.raises(Mistake, match="constant bank 0 of"):
        channels.push(COMPUTE, launch.send())


def test_stacks_are_given_in_units(one: Channels) -> None:
    launch, facts = launched(one, STACK), one.opened.gpu.facts
    launch.put("local_high", 0x280)
    per_tpc = -(-0x280 * 32 * facts.warps * facts.sms // 0x8000) * 0x8000 + 0x100
    settings = methods(1, 0x790, *halves_of(one)) + methods(1, 0x2E4, 0, per_tpc, 0xFF)
    with pytest.raises(Mistake, match="per TPC"):
        one.push(COMPUTE, settings, launch.send())
