"""The stand-in of NVIDIA's driver: that it answers, and that it refuses what breaks a rule.

Requests are made by hand (rm_calls.py): no part of the driver under test takes part.
"""

from __future__ import annotations

import ctypes
import errno
import mmap

import pytest
from rm_calls import FIRST_ADDRESS, HUGE, PAGE, VIDEO_ATTR, Opened, Raw
from rm_standin import Machine, Mistake, Status
from rm_standin.cards import A100, CARDS, GA102, GB202, H200
from rm_standin.layouts import Record, branch_of, layouts_of

VERSIONS = ("570.144", "580.159.03", "590.48.01", "610.43.03")


@pytest.fixture(params=VERSIONS)
def opened(request: pytest.FixtureRequest) -> Opened:
    """A card of each branch of the driver."""
    return Opened.of(Machine(version=request.param))


@pytest.fixture
def one() -> Opened:
    """A card."""
    return Opened.of(Machine())


# --- structures


@pytest.mark.parametrize(
    ("branch", "name", "size"),
    [
        (570, "map_dma", 56),
        (580, "map_dma", 64),
        (570, "vaspace", 48),
        (580, "vaspace", 56),
        (570, "schedule", 2),
        (580, "schedule", 3),
        (570, "class_list_2", 404),
        (580, "class_list_2", 804),
        (580, "uvm_free", 24),
        (590, "uvm_free", 16),
        (580, "uvm_unregister_channel", 28),
        (590, "uvm_unregister_channel", 12),
        (590, "channel", 368),
        (610, "channel", 376),
    ],
)
def test_sizes_by_branch(branch: int, name: str, size: int) -> None:
    assert layouts_of(branch)[name].size == size


def test_fields_lie_within_their_structures_and_apart() -> None:
    for branch in (570, 580, 590, 610):
        for name, found in layouts_of(branch).items():
            places = sorted(found.fields.values())
            ends = [offset + width for offset, width in places]
            assert ends == sorted(ends), name
            assert all(e <= o for e, (o, _) in zip(ends, places[1:], strict=False)), name
            assert not ends or ends[-1] <= found.size, name


def test_branches() -> None:
    versions = ("565.57.01", "570.144", "575.64.05", "580.159.03", "595.45.04", "610.43.03")
    assert [branch_of(v) for v in versions] == [570, 570, 575, 580, 590, 610]


# --- files


def test_files_of_a_machine() -> None:
    machine = Machine((GA102, H200))
    assert machine.names("/dev") == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert "580.159.03" in machine.read_text("/proc/driver/nvidia/version")
    assert len(machine.names("/proc/driver/nvidia/gpus")) == 2
    machine.forbidden.add("/dev/nvidia0")
    with pytest.raises(PermissionError):
        machine.open("/dev/nvidia0")
    machine.missing.add("/dev/nvidia-uvm")
    with pytest.raises(FileNotFoundError):
        machine.open("/dev/nvidia-uvm")


def test_a_file_is_closed_once() -> None:
    machine = Machine()
    file = machine.open("/dev/nvidiactl")
    machine.close(file)
    assert machine.ioctl(file, 0, 0) == errno.EBADF
    with pytest.raises(Mistake, match="not open"):
        machine.close(file)


def test_requests_have_exactly_their_size() -> None:
    raw = Raw(Machine())
    record = raw.record("alloc", hClass=0x41)
    assert raw.escape(0x2B, record, size=40) == errno.EINVAL
    assert raw.escape(0x2B, record) == 0
    assert raw.machine.ioctl(raw.control_file, 0x4620462B, record.address) == errno.ENOTTY
    assert raw.escape(0x99, record) == errno.EINVAL


def test_requests_of_the_other_kind_of_file_are_refused(one: Opened) -> None:
    raw = one.raw
    assert raw.escape(0x2B, raw.record("alloc", hClass=0x41), one.file) == errno.EINVAL
    assert raw.escape(0x27, raw.record("alloc_memory"), raw.control_file) == errno.EINVAL


def test_a_large_request_goes_through_another() -> None:
    raw = Raw(Machine())
    record = raw.record("alloc", hClass=0x41)
    xfer = raw.record("xfer", nr=0x2B, size=32, ptr=record.address)
    assert raw.escape(0xD3, xfer) == 0
    assert record["hObjectNew"]
    xfer["size"] = 33
    assert raw.escape(0xD3, xfer) == errno.EINVAL


def test_a_longer_form_of_rm_alloc() -> None:
    raw = Raw(Machine())
    record = raw.record("alloc_64", hClass=0x41)
    assert raw.escape(0x2B, record) == 0
    assert record["status"] == 0
    assert record["hObjectNew"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_version_is_told(version: str) -> None:
    raw = Raw(Machine(version=version))
    record = raw.record("check_version", cmd=ord("2"))
    assert raw.escape(0xD2, record) == 0
    assert bytes(record.bytes[8:72]).rstrip(b"\0").decode() == version
    strict = raw.record("check_version", cmd=0)
    strict.bytes[8:11] = b"1.0"
    assert raw.escape(0xD2, strict) == errno.EINVAL


def test_cards_are_listed() -> None:
    raw = Raw(Machine((GA102, H200)))
    layout = raw.machine.layouts["card_info"]
    memory = ctypes.create_string_buffer(32 * layout.size)
    place = ctypes.addressof(memory)
    request = 3 << 30 | 32 * layout.size << 16 | 0x46C8
    assert raw.machine.ioctl(raw.control_file, request, place) == 0
    cards = [Record(layout, place + n * layout.size) for n in range(32)]
    assert [c["device"] for c in cards if c["valid"]] == [0x2335, 0x2204]
    assert [c["minor_number"] for c in cards if c["valid"]] == [1, 0]
    assert raw.machine.ioctl(raw.control_file, request + (1 << 16), place) == errno.EINVAL


# --- clients, devices


def test_unknown_clients_parents_and_classes(one: Opened) -> None:
    raw = one.raw
    space = raw.record("vaspace")
    assert raw.alloc(1, one.device, 0x90F1, space)["status"] == Status.INVALID_CLIENT
    assert raw.alloc(one.root, 1, 0x90F1, space)["status"] == Status.INVALID_OBJECT_HANDLE
    bad = raw.alloc(one.root, one.subdevice, 0x90F1, space)
    assert bad["status"] == Status.INVALID_OBJECT_HANDLE
    assert raw.alloc(one.root, one.device, 0xCEC0)["status"] == Status.INVALID_CLASS
    assert raw.alloc(one.root, one.root, 0x2080)["status"] == Status.INVALID_OBJECT_HANDLE


def test_parameters_have_exactly_their_size(opened: Opened) -> None:
    raw = opened.raw
    space = raw.record("vaspace")
    record = raw.record(
        "alloc",
        hRoot=opened.root,
        hObjectParent=opened.device,
        hClass=0x90F1,
        pAllocParms=space.address,
        paramsSize=space.kind.size - 8,
    )
    raw.escape(0x2B, record)
    assert record["status"] == Status.INVALID_PARAM_STRUCT
    without = raw.alloc(opened.root, opened.device, 0x90F1)
    assert without["status"] == Status.INVALID_ARGUMENT


def test_a_device_needs_its_file() -> None:
    raw = Raw(Machine())
    root = raw.alloc(0, 0, 0x41)["hObjectNew"]
    params = raw.record("device", hClientShare=root)
    assert raw.alloc(root, root, 0x80, params)["status"] == Status.INVALID_DEVICE
    info = raw.record("id_info", gpuId=0x100)
    assert raw.control(root, root, 0x205, info) == Status.INVALID_ARGUMENT
    file = raw.machine.open("/dev/nvidia0")
    assert raw.alloc(root, root, 0x80, params)["status"] == Status.INVALID_DEVICE
    register = raw.record("register_fd", ctl_fd=raw.control_file)
    assert raw.escape(0xC9, register, file) == 0
    assert raw.escape(0xC9, register, file) == errno.EALREADY
    assert raw.control(root, root, 0x205, info) == 0
    assert raw.alloc(root, root, 0x80, params)["status"] == 0


def test_controls(opened: Opened) -> None:
    raw, root = opened.raw, opened.root
    listed = raw.record("class_list_2")
    assert raw.control(root, opened.device, 0x800292, listed) == 0
    count = listed["count"]
    found = set(memoryview(listed.bytes[4 : 4 + 4 * count]).cast("I"))
    assert {0xCBC0, 0xC8B5, 0xC86F} <= found
    gid = raw.record("gid_info", flags=2)
    assert raw.control(root, opened.subdevice, 0x2080014A, gid) == 0
    assert bytes(gid.bytes[12:28]) == opened.gpu.identity
    assert raw.control(root, opened.device, 0x2080014A, gid) == Status.NOT_SUPPORTED
    assert raw.control(root, opened.subdevice, 0x2080FFFF, gid) == Status.NOT_SUPPORTED
    assert raw.control(root, opened.subdevice, 0x2080200A, gid) == Status.INVALID_PARAM_STRUCT
    entries = (ctypes.c_uint32 * 4)(12, 0, 13, 0)
    info = raw.record("gr_info", listSize=2, list=ctypes.addressof(entries))
    assert raw.control(root, opened.subdevice, 0x20801201, info) == 0
    assert list(entries) == [12, 0x900, 13, 64]


def test_the_class_list_by_pointer(one: Opened) -> None:
    asked = one.raw.record("class_list")
    assert one.raw.control(one.root, one.device, 0x800201, asked) == 0
    room = (ctypes.c_uint32 * asked["count"])()
    asked["list"] = ctypes.addressof(room)
    assert one.raw.control(one.root, one.device, 0x800201, asked) == 0
    assert set(room) == set(H200.classes)


@pytest.mark.parametrize("name", CARDS)
def test_each_card_has_classes_of_its_own(name: str) -> None:
    facts = CARDS[name]
    opened = Opened.of(Machine((facts,)))
    listed = opened.raw.record("class_list_2")
    assert opened.raw.control(opened.root, opened.device, 0x800292, listed) == 0
    assert facts.compute in facts.classes
    others = {card.compute for card in CARDS.values()} - {facts.compute}
    assert not others & set(facts.classes)


# --- memory


def test_memory_is_shared_by_host_and_card(opened: Opened) -> None:
    for video in (True, False):
        buffer = opened.buffer(2 * PAGE, video=video)
        buffer.bytes[5000] = 77
        space = opened.raw.machine.resources.client(opened.root).objects[opened.space]
        region = space.memory.region_at(buffer.address + 5000)  # type: ignore[attr-defined]
        assert region.data[5000] == 77


def test_allocations_are_checked(one: Opened) -> None:
    assert one.memory(0)["status"] == Status.INVALID_ARGUMENT
    assert one.memory(PAGE, attr=1 << 25)["status"] == Status.INVALID_ARGUMENT
    assert one.memory(PAGE, video=False, attr=0)["status"] == Status.INVALID_ARGUMENT
    assert one.memory(H200.memory_bytes + PAGE)["status"] == Status.NO_MEMORY
    assert one.raw.alloc(one.root, one.root, 0x40)["status"] == Status.INVALID_OBJECT_HANDLE


def test_memory_of_the_card_is_counted_and_given_back(one: Opened) -> None:
    record = one.memory(5000, attr=VIDEO_ATTR | HUGE)
    assert one.gpu.used_bytes == 2 << 20
    assert one.raw.free(one.root, record["hObjectNew"]) == 0
    assert one.gpu.used_bytes == 0
    assert one.raw.free(one.root, record["hObjectNew"]) == Status.INVALID_OBJECT_HANDLE


def test_mapped_pages_outlive_their_handle(one: Opened) -> None:
    buffer = one.buffer(PAGE)
    assert one.raw.free(one.root, buffer.handle) == 0
    assert one.gpu.used_bytes == PAGE
    free = one.raw.record("uvm_free", base=buffer.address, length=PAGE)
    assert one.raw.uvm(one.uvm_file, 0x22, free) == 0
    assert one.gpu.used_bytes == 0


def test_a_file_maps_one_thing(one: Opened) -> None:
    machine = one.raw.machine
    handle = one.memory(2 * PAGE)["hObjectNew"]
    file = machine.open("/dev/nvidia0")
    with pytest.raises(OSError, match="nothing to map"):
        machine.map(0, PAGE, 3, mmap.MAP_SHARED, file, 0)
    record = one.map_record(handle, 2 * PAGE, file)
    one.raw.escape(0x4E, record)
    assert record["status"] == 0
    one.raw.escape(0x4E, record)
    assert record["status"] == Status.STATE_IN_USE
    with pytest.raises(OSError, match="nothing to map"):
        machine.map(0, 2 * PAGE, 3, mmap.MAP_SHARED, file, PAGE)
    with pytest.raises(OSError, match="of a mapping of"):
        machine.map(0, PAGE, 3, mmap.MAP_SHARED, file, 0)
    with pytest.raises(OSError, match="shared"):
        machine.map(0, 2 * PAGE, 3, mmap.MAP_PRIVATE, file, 0)


def test_the_file_of_a_mapping_fits_its_memory(one: Opened) -> None:
    machine = one.raw.machine
    for video, path in ((True, "/dev/nvidiactl"), (False, "/dev/nvidia0")):
        handle = one.memory(PAGE, video=video)["hObjectNew"]
        record = one.map_record(handle, PAGE, machine.open(path))
        one.raw.escape(0x4E, record)
        assert record["status"] == Status.INVALID_ARGUMENT
    record = one.map_record(handle, 2 * PAGE, machine.open("/dev/nvidiactl"))
    one.raw.escape(0x4E, record)
    assert record["status"] == Status.INVALID_ARGUMENT


def test_the_window_of_the_host_is_limited() -> None:
    import dataclasses  # noqa: PLC0415

    small = dataclasses.replace(A100, bar1_bytes=PAGE)
    opened = Opened.of(Machine((small,)))
    handle = opened.memory(2 * PAGE)["hObjectNew"]
    record = opened.map_record(handle, 2 * PAGE, opened.raw.machine.open("/dev/nvidia0"))
    opened.raw.escape(0x4E, record)
    assert record["status"] == Status.INSUFFICIENT_RESOURCES


def test_pages_of_the_process(one: Opened) -> None:
    machine = one.raw.machine
    host = machine.map(0, 2 * PAGE, 3, 0x4022, -1, 0)
    assert one.registered(host + 8, PAGE)["status"] == Status.INVALID_ARGUMENT
    assert one.registered(host, 100)["status"] == Status.INVALID_ARGUMENT
    assert one.registered(host, PAGE, hObjectNew=0)["status"] == Status.INVALID_OBJECT_HANDLE
    assert one.registered(host, PAGE, fd=3)["status"] == Status.INVALID_ARGUMENT
    assert one.registered(host, PAGE, flags=0)["status"] == Status.INVALID_ARGUMENT
    assert one.registered(1 << 40, PAGE)["status"] == Status.INVALID_ADDRESS
    record = one.registered(host, 2 * PAGE)
    assert record["status"] == 0
    address = one.map(record["hObjectNew"], 2 * PAGE)
    ctypes.memset(host + PAGE, 9, 4)
    space = machine.resources.client(one.root).objects[one.space]
    region = space.memory.region_at(address)  # type: ignore[attr-defined]
    assert list(region.data[PAGE : PAGE + 4]) == [9] * 4
    with pytest.raises(Mistake, match="taken from the host"):
        machine.unmap(host, 2 * PAGE)
    assert one.raw.uvm(one.uvm_file, 0x22, one.raw.record("uvm_free", base=address)) == 0
    machine.unmap(host, 2 * PAGE)


def test_memory_that_is_not_registered_with_a_registered_file(one: Opened) -> None:
    machine = one.raw.machine
    host = machine.map(0, PAGE, 3, 0x4022, -1, 0)
    other = machine.open("/dev/nvidia0")
    one.file = other
    assert one.registered(host, PAGE)["status"] == Status.INVALID_CLIENT


# --- UVM


def test_uvm_begins_with_initialize(opened: Opened) -> None:
    raw, machine = opened.raw, opened.raw.machine
    file = machine.open("/dev/nvidia-uvm")
    created = raw.record("uvm_create_range", base=1 << 40, length=PAGE)
    assert raw.uvm(file, 0x49, created) == Status.ILLEGAL_ACTION
    assert raw.uvm(file, 0x30000001, raw.record("uvm_initialize", flags=64)) != 0
    assert raw.uvm(file, 0x30000001, raw.record("uvm_initialize")) == 0
    assert raw.uvm(file, 0x49, created) == 0
    assert machine.ioctl(file, 0x77, created.address) == errno.EINVAL


def test_ranges_do_not_overlap(one: Opened) -> None:
    def created(base: int, size: int) -> int:
        record = one.raw.record("uvm_create_range", base=base, length=size)
        return one.raw.uvm(one.uvm_file, 0x49, record)

    assert created(1 << 40, 4 * PAGE) == 0
    assert created((1 << 40) + PAGE, PAGE) == Status.INVALID_ADDRESS
    assert created((1 << 40) - PAGE, 2 * PAGE) == Status.INVALID_ADDRESS
    assert created((1 << 40) + 4 * PAGE, PAGE) == 0
    assert created((1 << 41) + 8, PAGE) == Status.INVALID_ADDRESS
    assert created(1 << 41, 0) == Status.INVALID_ADDRESS


def test_mappings_are_checked(one: Opened) -> None:
    handle = one.memory(4 * PAGE)["hObjectNew"]
    base = 1 << 40
    one.raw.uvm(one.uvm_file, 0x49, one.raw.record("uvm_create_range", base=base, length=4 * PAGE))

    def status(address: int, size: int, **values: int) -> int:
        record = one.map_request(handle, address, size, **values)
        return one.raw.uvm(one.uvm_file, 0x21, record)

    assert status(base - PAGE, PAGE) == Status.INVALID_ADDRESS
    assert status(base, 5 * PAGE) == Status.INVALID_ADDRESS
    assert status(base + 16, PAGE) == Status.INVALID_ADDRESS
    assert status(base, PAGE, offset=4 * PAGE) == Status.INVALID_ARGUMENT
    assert status(base, PAGE, count=0) == Status.INVALID_ARGUMENT
    assert status(base, PAGE, count=257) == Status.INVALID_ARGUMENT
    assert status(base, PAGE, mappingType=9) == Status.INVALID_ARGUMENT
    assert status(base, PAGE) == 0
    with pytest.raises(Mistake, match="mapped again"):
        status(base, 2 * PAGE)


def test_a_range_is_freed_by_its_beginning(opened: Opened) -> None:
    buffer = opened.buffer(2 * PAGE)

    def freed(base: int) -> int:
        return opened.raw.uvm(opened.uvm_file, 0x22, opened.raw.record("uvm_free", base=base))

    assert freed(buffer.address + PAGE) == Status.INVALID_ADDRESS
    assert freed(buffer.address) == 0
    assert freed(buffer.address) == Status.INVALID_ADDRESS
    again = opened.raw.record("uvm_create_range", base=buffer.address, length=PAGE)
    assert opened.raw.uvm(opened.uvm_file, 0x49, again) == 0


def test_cards_are_registered_before_their_spaces() -> None:
    machine = Machine((H200, H200))
    one = Opened.of(machine)
    other = Opened(one.raw, machine.gpus[1], one.root, uvm_file=one.uvm_file)
    assert one.raw.uvm(one.uvm_file, 0x25, other.named("uvm_register_gpu")) != 0
    other.open_device()
    wrong = other.named("uvm_register_vaspace", hVaSpace=one.space)
    assert one.raw.uvm(one.uvm_file, 0x19, wrong) == Status.INVALID_DEVICE
    other.open_space()
    twice = other.named("uvm_register_vaspace", hVaSpace=other.space)
    assert one.raw.uvm(one.uvm_file, 0x19, twice) == Status.INVALID_DEVICE


@pytest.mark.parametrize("peers", [True, False])
def test_memory_of_another_card(peers: bool) -> None:
    machine = Machine((H200, H200), peers=peers)
    one = Opened.of(machine)
    other = Opened(one.raw, machine.gpus[1], one.root, uvm_file=one.uvm_file)
    other.open_device()
    other.open_space()
    buffer = one.buffer(PAGE)
    record = other.map_request(buffer.handle, buffer.address, PAGE)
    assert one.raw.uvm(one.uvm_file, 0x21, record) == Status.INVALID_DEVICE
    pair = one.named("uvm_enable_peer")
    pair.bytes[16:32] = other.gpu.identity
    status = one.raw.uvm(one.uvm_file, 0x1D, pair)
    assert status == (0 if peers else Status.NOT_SUPPORTED)
    if peers:
        assert one.raw.uvm(one.uvm_file, 0x21, record) == 0


def test_the_other_way_to_map(opened: Opened) -> None:
    raw = opened.raw
    handle = opened.memory(PAGE)["hObjectNew"]
    names = {"hClient": opened.root, "hDevice": opened.device, "hMemory": handle}
    into_uvm = raw.record("map_dma", **names, hDma=opened.space, length=PAGE)
    assert raw.escape(0x57, into_uvm) == 0
    assert into_uvm["status"] == Status.INVALID_STATE
    space = opened.got(opened.device, 0x90F1, raw.record("vaspace", vaBase=0x1000))
    record = raw.record("map_dma", **names, hDma=space, length=PAGE)
    raw.escape(0x57, record)
    assert record["status"] == 0
    fixed = raw.record("map_dma", **names, hDma=space, length=PAGE, flags=1 << 15)
    fixed["dmaOffset"] = record["dmaOffset"]
    raw.escape(0x57, fixed)
    assert fixed["status"] == Status.INVALID_ADDRESS
    fixed["dmaOffset"] += PAGE
    raw.escape(0x57, fixed)
    assert fixed["status"] == 0


# --- what is injected


def test_a_sandbox_refuses_some_requests() -> None:
    opened = Opened.of(Machine(sandbox=True))
    raw = opened.raw
    assert raw.escape(0x57, raw.record("map_dma")) == errno.EINVAL
    assert raw.alloc(opened.root, opened.device, 0x70)["status"] == Status.INVALID_CLASS
    usermode = raw.alloc(opened.root, opened.subdevice, 0xC561)
    assert usermode["status"] == Status.INVALID_CLASS
    assert raw.alloc(opened.root, opened.subdevice, 0xC661)["status"] == 0
    version = raw.record("build_version_2")
    assert raw.control(opened.root, opened.root, 0x13E, version) == Status.NOT_SUPPORTED


def test_a_lost_card(one: Opened) -> None:
    one.gpu.is_lost = True
    assert one.memory(PAGE)["status"] == Status.GPU_IS_LOST
    info = one.raw.record("gid_info", flags=2)
    assert one.raw.control(one.root, one.subdevice, 0x2080014A, info) == Status.GPU_IS_LOST
    with pytest.raises(OSError, match="nvidia0"):
        one.raw.machine.open("/dev/nvidia0")


def test_failures_of_choice(one: Opened) -> None:
    failures = one.raw.machine.failures
    failures["alloc 0x40"] = Status.NO_MEMORY
    assert one.memory(PAGE)["status"] == Status.NO_MEMORY
    failures["uvm 0x49"] = Status.INVALID_ADDRESS
    created = one.raw.record("uvm_create_range", base=FIRST_ADDRESS, length=PAGE)
    assert one.raw.uvm(one.uvm_file, 0x49, created) == Status.INVALID_ADDRESS
    failures["escape 0xd2"] = errno.EPERM
    record = one.raw.record("check_version", cmd=ord("2"))
    assert one.raw.escape(0xD2, record) == errno.EPERM


def test_all_ends_with_the_files(opened: Opened) -> None:
    machine = opened.raw.machine
    opened.buffer(PAGE)
    machine.close(opened.uvm_file)
    machine.close(opened.raw.control_file)
    assert opened.gpu.used_bytes == 0
    assert not machine.resources.clients


def test_cards_have_different_names() -> None:
    machine = Machine((GB202, GB202))
    assert machine.gpus[0].identity != machine.gpus[1].identity
