"""Requests that NVIDIA's driver answers with a status, which its stand-in answers with the same."""

from __future__ import annotations

from typing import Final

import pytest
from rm_calls import PAGE, Opened
from rm_standin import Machine, Status
from rm_standin.cards import H200

Fields = dict[str, int]
ARGUMENT, UNSUPPORTED, STATE = Status.INVALID_ARGUMENT, Status.NOT_SUPPORTED, Status.INVALID_STATE
HANDLE: Final = Status.INVALID_OBJECT_HANDLE
SUBDEVICE, DEVICE, ROOT = "subdevice", "device", "root"
HOPPER_USERMODE, AMPERE_USERMODE, EVENT = 0xC661, 0xC561, 0x79


@pytest.fixture
def card() -> Opened:
    """A card with an address space."""
    return Opened.of(Machine((H200,)))


CONTROLS: Final[tuple[tuple[str, int, str, Fields, Status], ...]] = (
    (SUBDEVICE, 0x20800301, "set_notification", {"event": 35, "action": 7}, ARGUMENT),
    (SUBDEVICE, 0x2080014A, "gid_info", {"flags": 1}, ARGUMENT),
    (SUBDEVICE, 0x2080014A, "gid_info", {"flags": 2, "index": 1}, UNSUPPORTED),
    (SUBDEVICE, 0x20800110, "name_string", {"flags": 1}, UNSUPPORTED),
    (SUBDEVICE, 0x2080200A, "boost", {"flags": 0x80}, ARGUMENT),
    (SUBDEVICE, 0x2080130E, "flush_cache", {}, ARGUMENT),
    (SUBDEVICE, 0x20801303, "fb_info", {"listSize": 9999}, ARGUMENT),
    (DEVICE, 0x800201, "class_list", {"count": 1, "list": 8}, ARGUMENT),
    (DEVICE, 0x2080014A, "gid_info", {"flags": 2}, UNSUPPORTED),
    (ROOT, 0x205, "id_info", {"gpuId": 5}, ARGUMENT),
    (ROOT, 0x101, "build_version", {"size": 1}, ARGUMENT),
)


@pytest.mark.parametrize("case", CONTROLS, ids=lambda case: f"{case[2]} {case[3]}")
def test_controls(card: Opened, case: tuple[str, int, str, Fields, Status]) -> None:
    thing, command, layout, fields, status = case
    record = card.raw.record(layout, **fields)
    assert card.raw.control(card.root, getattr(card, thing), command, record) == status


def test_a_notification_is_armed_once(card: Opened) -> None:
    found = [
        card.raw.control(
            card.root,
            card.subdevice,
            0x20800301,
            card.raw.record("set_notification", event=35, action=action),
        )
        for action in (2, 2, 0, 2)
    ]
    assert found == [Status.OK, STATE, Status.OK, Status.OK]


OBJECTS: Final[tuple[tuple[str, int, str, Fields, Status], ...]] = (
    (ROOT, 0x80, "device", {"vaMode": 3}, ARGUMENT),
    (ROOT, 0x80, "device", {"hClientShare": 5}, ARGUMENT),
    (ROOT, 0x80, "device", {"deviceId": 9}, Status.INVALID_DEVICE),
    (DEVICE, 0x2080, "subdevice", {"subDeviceId": 1}, ARGUMENT),
    (DEVICE, 0x1234, "subdevice", {}, Status.INVALID_CLASS),
    (SUBDEVICE, HOPPER_USERMODE, "usermode", {"bPriv": 1}, Status.INSUFFICIENT_PERMISSIONS),
    (SUBDEVICE, AMPERE_USERMODE, "usermode", {}, Status.INVALID_PARAM_STRUCT),
    (DEVICE, 0x90F1, "vaspace", {"index": 1}, ARGUMENT),
    (DEVICE, 0x90F1, "vaspace", {"vaBase": 1 << 57, "vaSize": PAGE}, ARGUMENT),
    (DEVICE, 0x90F1, "vaspace", {"flags": 1 << 3}, ARGUMENT),
    (DEVICE, 0xA06C, "group", {"engineType": 2}, ARGUMENT),
    (SUBDEVICE, EVENT, "event", {"hParentClient": 5}, HANDLE),
    (DEVICE, EVENT, "event", {}, HANDLE),
)


@pytest.mark.parametrize("case", OBJECTS, ids=lambda case: f"{case[1]:#x} {case[3]}")
def test_objects(card: Opened, case: tuple[str, int, str, Fields, Status]) -> None:
    parent, number, layout, fields, status = case
    record = card.raw.record(layout, **fields)
    made = card.raw.alloc(card.root, getattr(card, parent), number, record)
    assert made["status"] == status


def test_an_event_needs_a_file_that_has_one(card: Opened) -> None:
    fields = {"hParentClient": card.root, "hSrcResource": card.subdevice, "hClass": EVENT}
    record = card.raw.record("event", **fields, data=card.file)
    assert card.raw.alloc(card.root, card.subdevice, EVENT, record)["status"] == ARGUMENT

    event = card.raw.record("alloc_os_event", hClient=card.root, fd=card.file)
    statuses = []
    for number in (0xCF, 0xCE, 0xCE):
        assert card.raw.escape(number, event, card.file) == 0
        statuses.append(event["status"])
    assert statuses == [ARGUMENT, Status.OK, ARGUMENT]
    assert card.raw.alloc(card.root, card.subdevice, EVENT, record)["status"] == Status.OK


def test_a_context_share_of_no_kind(card: Opened) -> None:
    group = card.got(
        card.device, 0xA06C, card.raw.record("group", hVASpace=card.space, engineType=1)
    )
    record = card.raw.record("context_share", hVASpace=card.space, flags=3)
    assert card.raw.alloc(card.root, group, 0x9067, record)["status"] == ARGUMENT


@pytest.mark.parametrize(("base", "size"), [(1, PAGE), (PAGE, 1), (0, PAGE), (1 << 47, PAGE)])
def test_ranges_of_addresses(card: Opened, base: int, size: int) -> None:
    record = card.raw.record("uvm_create_range", base=base, length=size)
    assert card.raw.uvm(card.uvm_file, 0x49, record) == Status.INVALID_ADDRESS


def test_mappings(card: Opened) -> None:
    raw, base = card.raw, 1 << 36
    handle = card.memory(PAGE)["hObjectNew"]
    assert raw.uvm(card.uvm_file, 0x49, raw.record("uvm_create_range", base=base, length=PAGE)) == 0
    for wrong in ({"mappingType": 9}, {"cachingType": 9}):
        asked = card.map_request(handle, base, PAGE, **wrong)
        assert raw.uvm(card.uvm_file, 0x21, asked) == ARGUMENT
    unmap = raw.record("uvm_unmap", base=base, length=PAGE)
    unmap.bytes[16:32] = card.gpu.identity
    assert raw.uvm(card.uvm_file, 0x42, unmap) == Status.INVALID_ADDRESS
    free = raw.record("uvm_free", base=base + PAGE, length=PAGE)
    assert raw.uvm(card.uvm_file, 0x22, free) == Status.INVALID_ADDRESS
    free = raw.record("uvm_free", base=base, length=2 * PAGE)
    assert raw.uvm(card.uvm_file, 0x22, free) == Status.INVALID_ADDRESS


def test_requests_of_uvm_about_cards(card: Opened) -> None:
    raw = card.raw
    stranger = raw.record("uvm_register_gpu", rmCtrlFd=raw.control_file, hClient=card.root)
    assert raw.uvm(card.uvm_file, 0x25, stranger) == Status.INVALID_DEVICE
    without = card.named("uvm_register_vaspace", hVaSpace=card.space, rmCtrlFd=card.file)
    assert raw.uvm(card.uvm_file, 0x19, without) == ARGUMENT
    alone = raw.record("uvm_mm_initialize", uvmFd=card.uvm_file)
    assert raw.uvm(card.uvm_file, 0x4B, alone) == ARGUMENT
    other = raw.machine.open("/dev/nvidia-uvm")
    first = raw.record("uvm_mm_initialize", uvmFd=other)
    assert raw.uvm(card.uvm_file, 0x4B, first) == Status.ILLEGAL_ACTION
    peers = raw.record("uvm_disable_peer")
    peers.bytes[:16] = peers.bytes[16:32] = card.gpu.identity
    assert raw.uvm(card.uvm_file, 0x1E, peers) == Status.INVALID_DEVICE
