"""The driver NV on a machine that is a stand-in: launches, queues, graphs, faults, recovery."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cubin import assemble
from driver_memory import closing, content, written
from nvk_faults import FAULTS, SOURCES
from rm_standin import Machine, Mistake, Status
from rm_standin.cards import AD102, GA102, GB202, H200, CardFacts
from simulated_nv import opened

from tiny_nv.nvk.device import NvDevice
from tinycore import Context
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import ProgramInfo

HEADER = ".version 7.8\n.target sm_80\n.address_size 64\n"
ADD = (
    HEADER
    + """
.visible .entry add_(.param .u64 out, .param .u64 in, .param .s64 n)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<6>;
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [in];
  ld.param.u64 %rd2, [n];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %tid.x;
  mad.lo.u32 %r2, %r0, 32, %r1;
  mul.wide.u32 %rd3, %r2, 4;
  add.u64 %rd1, %rd1, %rd3;
  add.u64 %rd0, %rd0, %rd3;
  ld.global.u32 %r3, [%rd1];
  cvt.u32.u64 %r4, %rd2;
  add.u32 %r3, %r3, %r4;
  st.global.u32 [%rd0], %r3;
  ret;
}
"""
)
SPILLS = (
    HEADER
    + """
.visible .entry spills_(.param .u64 out, .param .u64 in)
{
  .local .align 8 .b8 there[96];
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd1, %r0, 4;
  add.u64 %rd0, %rd0, %rd1;
  st.local.u32 [there], %r0;
  ld.local.u32 %r1, [there];
  st.global.u32 [%rd0], %r1;
  ret;
}
"""
)
SHARES = (
    HEADER
    + """
.visible .entry shares_(.param .u64 out, .param .u64 in)
{
  .shared .align 4 .b8 there[128];
  .reg .b64 %rd<4>;
  .reg .b32 %r<6>;
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [in];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd2, %r0, 4;
  add.u64 %rd1, %rd1, %rd2;
  add.u64 %rd0, %rd0, %rd2;
  ld.global.u32 %r1, [%rd1];
  mov.u32 %r4, there;
  shl.b32 %r2, %r0, 2;
  add.u32 %r2, %r4, %r2;
  st.shared.u32 [%r2], %r1;
  bar.sync 0;
  xor.b32 %r3, %r0, 31;
  shl.b32 %r3, %r3, 2;
  add.u32 %r3, %r4, %r3;
  ld.shared.u32 %r1, [%r3];
  st.global.u32 [%rd0], %r1;
  ret;
}
"""
)
INFO = ProgramInfo("add", 2, ("n",), grid=(2, 1, 1), block=(32, 1, 1), written=frozenset({0}))
SPILLS_INFO = ProgramInfo("spills", 2, block=(32, 1, 1), written=frozenset({0}))
SHARES_INFO = ProgramInfo("shares", 2, block=(32, 1, 1), written=frozenset({0}))
BYTES = 256
CARDS = {"ampere": GA102, "ada": AD102, "hopper": H200, "blackwell": GB202}
BRANCHES = {"ampere": "570.144", "ada": "590.48.01", "blackwell": "610.43.03"}
Make = Callable[..., NvDevice]


@pytest.fixture
def make() -> Iterator[Make]:
    """Opens cards that are closed after the test."""
    with closing(opened, timeout_ms=200) as device:
        yield device


@pytest.fixture(params=CARDS)
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine with two cards of each architecture, and another branch of the driver for each."""
    facts: CardFacts = CARDS[request.param]
    return Machine((facts, facts), version=BRANCHES.get(request.param, "580.159.03"))


@pytest.fixture
def device(machine: Machine, make: Make) -> NvDevice:
    """Its first card."""
    return make(machine)


@pytest.fixture
def hopper(make: Make) -> NvDevice:
    """A card where the architecture does not matter."""
    return make(Machine((H200,)))


def load(device: NvDevice, source: str = ADD, info: ProgramInfo = INFO) -> Any:
    return device.load(assemble(source, device.card.arch_number), info)


def machine_of(device: NvDevice) -> Machine:
    found: Machine = device.machine  # type: ignore[attr-defined]
    return found


def test_a_kernel_adds(device: NvDevice) -> None:
    program = load(device)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)

    seconds = program([target, source], [5], wait=True)

    assert seconds is not None
    assert 0 < seconds < 10
    assert content(device, target).tolist() == list(range(5, 69))


def test_launches_happen_in_order(device: NvDevice) -> None:
    program = load(device)
    a, b = written(device, range(64)), device.allocator.alloc(BYTES)
    for _ in range(20):
        program([b, a], [1])
        program([a, b], [1])

    assert content(device, a).tolist() == list(range(40, 104))


def test_a_negative_number_is_an_argument(hopper: NvDevice) -> None:
    source, target = written(hopper, range(64)), hopper.allocator.alloc(BYTES)
    load(hopper)([target, source], [-3])
    assert content(hopper, target).tolist() == list(range(-3, 61))


def test_a_graph_is_replayed_with_other_arguments(device: NvDevice) -> None:
    program = load(device)
    a, b, c = written(device, range(64)), *(device.allocator.alloc(BYTES) for _ in range(2))
    graph = device.graph([(program, [b, a], [1]), (program, [c, b], [2])])
    graph()
    assert content(device, c).tolist() == list(range(3, 67))

    graph.set_value(1, 0, 10)
    graph.set_buffer(0, 1, c)
    graph()
    graph()
    assert content(device, c).tolist() == list(range(25, 89))


def test_many_launches_in_one_submission(hopper: NvDevice) -> None:
    program = load(hopper)
    a, b = written(hopper, range(64)), hopper.allocator.alloc(BYTES)
    graph = hopper.graph([(program, [b, a], [1]), (program, [a, b], [1])] * 10)
    before = hopper.group.compute.written
    graph()
    assert hopper.group.compute.written == before + 1
    assert content(hopper, a).tolist() == list(range(20, 84))


@pytest.mark.parametrize("entries", [16, 64])
def test_rings_are_used_again(make: Make, monkeypatch: Any, entries: int) -> None:
    monkeypatch.setattr("tiny_nv.nvk.channel.ENTRIES", entries)
    monkeypatch.setattr("tiny_nv.nvk.device.COMMAND_BYTES", 4096)
    machine = Machine((H200,))
    device = make(machine)
    program = load(device)
    a, b = written(device, range(64)), device.allocator.alloc(BYTES)
    for _ in range(60):
        program([b, a], [1])
        device.copier(BYTES, device)([a, b], ())
    for _ in range(60):
        device.copier(BYTES, device)([b, a], ())

    assert content(device, a).tolist() == list(range(60, 124))
    assert content(device, b).tolist() == list(range(60, 124))
    assert min(device.group.compute.written, device.group.copies.written) > 32


class Counted:
    """A word that notes how often it is read."""

    def __init__(self, word: memoryview) -> None:
        self.word, self.reads = word, 0

    def __getitem__(self, place: int) -> int:
        self.reads += 1
        return int(self.word[place])


def test_memory_of_the_card_is_not_read_before_a_ring_may_be_full(
    make: Make, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tiny_nv.nvk.channel.ENTRIES", 16)
    device = make(Machine((H200,)))
    program = load(device)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.synchronize()
    channel = device.group.compute
    counted = Counted(channel._get)
    monkeypatch.setattr(channel, "_get", counted)
    free = channel.taken + 15 - channel.written

    for _ in range(free):
        program([target, source], [1])
    assert counted.reads == 0
    device.synchronize()
    program([target, source], [1])
    assert counted.reads == 1
    assert content(device, target).tolist() == list(range(1, 65))


def test_signals_have_64_bits(hopper: NvDevice) -> None:
    passed, noted = hopper.new_signal(1 << 33), hopper.new_signal()
    for make_queue in (hopper.compute_queue, hopper.copy_queue):
        with hopper.lock:
            queue = make_queue().wait(passed, 7).signal(noted, 1 << 34 | 5)
            hopper.finish(queue)
        hopper.synchronize()
        assert noted.value == 1 << 34 | 5
        noted.value = 0


def test_a_wait_takes_any_later_value(hopper: NvDevice) -> None:
    passed = hopper.new_signal(9)
    with hopper.lock:
        hopper.finish(hopper.compute_queue().wait(passed, 7))
        hopper.finish(hopper.copy_queue().wait(passed, 8))
    with Context(WAIT_TIMEOUT_MS=500):
        hopper.synchronize()


def test_clocks_of_both_queues_only_grow(hopper: NvDevice) -> None:
    times = [hopper.new_signal() for _ in range(4)]
    with hopper.lock:
        queue = hopper.compute_queue().timestamp(times[0]).timestamp(times[1])
        done = hopper.finish(queue)
        queue = hopper.copy_queue().wait(done.signal, done.value)
        hopper.finish(queue.timestamp(times[2]).timestamp(times[3]))
    hopper.synchronize()
    stamps = [signal.timestamp for signal in times]
    assert 0 < stamps[0] < stamps[1] < stamps[2] < stamps[3]


def test_copies_of_one_queue_happen_in_order(hopper: NvDevice) -> None:
    a, b, c = written(hopper, range(64)), *(hopper.allocator.alloc(BYTES) for _ in range(2))
    with hopper.lock:
        hopper.ready()
        queue = hopper.copy_queue().wait(hopper.timeline_signal, hopper.timeline_value - 1)
        queue.copy(b.address, a.address, BYTES).copy(c.address, b.address, BYTES)
        hopper.finish(queue)
    assert content(hopper, c).tolist() == list(range(64))


def test_each_of_many_signals_comes_after_the_launch(hopper: NvDevice) -> None:
    program = load(hopper)
    source = written(hopper, range(64))
    target, seen = (written(hopper, [0] * 64) for _ in range(2))
    signals = [hopper.new_signal() for _ in range(5)]
    with hopper.lock:
        hopper.ready()
        arguments = program.arguments(
            hopper.kernel_arguments.take(program.argument_bytes), [target, source], [1]
        )
        queue = hopper.compute_queue().wait(hopper.timeline_signal, hopper.timeline_value - 1)
        queue.memory_barrier().exec(program, arguments, INFO.grid, INFO.block)
        for signal in signals:
            queue.signal(signal, 1)
        hopper.finish(queue)
        copies = hopper.copy_queue().wait(signals[4], 1)
        hopper.finish(copies.copy(seen.address, target.address, BYTES))
    assert content(hopper, seen).tolist() == list(range(1, 65))


def test_a_launch_after_a_wait_comes_after_the_launch_before(hopper: NvDevice) -> None:
    program, passed = load(hopper), hopper.new_signal(1)
    a, b = written(hopper, range(64)), hopper.allocator.alloc(BYTES)
    with hopper.lock:
        hopper.ready()
        queue = hopper.compute_queue().wait(hopper.timeline_signal, hopper.timeline_value - 1)
        for buffers in ([b, a], [a, b]):
            place = hopper.kernel_arguments.take(program.argument_bytes)
            arguments = program.arguments(place, buffers, [1])
            queue.wait(passed, 1).memory_barrier()
            queue.exec(program, arguments, INFO.grid, INFO.block)
        hopper.finish(queue)
    assert content(hopper, a).tolist() == list(range(2, 66))


def test_memory_goes_back_at_once(hopper: NvDevice) -> None:
    gpu = machine_of(hopper).gpus[0]
    hopper.synchronize()
    before = gpu.used_bytes
    hopper.allocator.free(hopper.allocator.alloc(1 << 20))
    assert gpu.used_bytes == before


def test_a_kernel_with_a_stack(device: NvDevice) -> None:
    target = device.allocator.alloc(BYTES)
    load(device)([target, written(device, range(64))], [1])
    load(device, SPILLS, SPILLS_INFO)([target, target], [])
    assert content(device, target)[:32].tolist() == list(range(32))


def test_a_larger_stack_replaces_the_memory_of_all_stacks(hopper: NvDevice) -> None:
    target = hopper.allocator.alloc(BYTES)
    load(hopper, SPILLS, SPILLS_INFO)([target, target], [])
    before = hopper.scratch
    load(hopper, SPILLS.replace("[96]", "[960]"), SPILLS_INFO)([target, target], [])
    assert hopper.scratch is not before
    assert before is not None
    hopper.synchronize()
    hopper.reap()
    assert before.address not in addresses(hopper)
    assert content(hopper, target)[:32].tolist() == list(range(32))


@pytest.mark.parametrize("size", [128, 12288])
def test_a_kernel_with_shared_memory(device: NvDevice, size: int) -> None:
    source, target = written(device, range(32)), device.allocator.alloc(128)
    load(device, SHARES.replace("[128]", f"[{size}]"), SHARES_INFO)([target, source], [])
    assert content(device, target).tolist() == list(range(31, -1, -1))


def test_cards_copy_to_each_other(machine: Machine, make: Make) -> None:
    one, other = make(machine), make(machine, 1)
    source, target = written(one, range(64)), other.allocator.alloc(BYTES)
    other.copier(BYTES, one)([target, source], ())
    assert content(other, target).tolist() == list(range(64))


def test_a_kernel_reads_another_cards_memory(make: Make) -> None:
    machine = Machine((H200, H200))
    one, other = make(machine), make(machine, 1)
    source, target = written(one, range(64)), other.allocator.alloc(BYTES)
    one.synchronize()
    other.reach(source)
    load(other)([target, source], [1])
    assert content(other, target).tolist() == list(range(1, 65))


@pytest.mark.parametrize("facts", [H200, GB202], ids=["hopper", "blackwell"])
def test_a_sandbox_runs_kernels(make: Make, facts: CardFacts) -> None:
    device = make(Machine((facts,), sandbox=True))
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    load(device)([target, source], [5])
    assert content(device, target).tolist() == list(range(5, 69))


def test_commands_lie_where_pushbuffers_may(device: NvDevice) -> None:
    graph = device.graph([(load(device), [written(device, range(64))] * 2, [1])])
    graph()
    device.synchronize()
    assert [a for a in addresses(device) if a < 1 << 40]


def addresses(device: NvDevice) -> list[int]:
    """All addresses of the card that mean something."""
    client = machine_of(device).resources.client(device.card.rm.root)
    space: Any = client.objects[device.card.va_space]
    return list(space.mapped)


# --- what goes wrong


def test_memory_that_was_given_back_is_a_fault(device: NvDevice) -> None:
    program, other = load(device), load(device, SPILLS, SPILLS_INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    other([target, target], [])
    device.synchronize()
    address = source.address
    device.allocator.free(source)
    program([target, source], [1])

    with pytest.raises(DeviceError) as raised:
        device.synchronize()
    said = str(raised.value)
    assert f"a read at {address:#x}: nothing is mapped there" in said
    assert "Xid 31" in said
    assert said.count("kernel add") == 1
    assert "spills" not in said
    with pytest.raises(DeviceError, match="takes no more work"):
        program([target, source], [1])


def test_a_fault_in_a_sandbox_is_told_by_the_notifier(make: Make) -> None:
    device = make(Machine((H200,), sandbox=True))
    program = load(device)
    source = written(device, range(64))
    device.synchronize()
    device.allocator.free(source)
    program([source, source], [1])
    with pytest.raises(DeviceError, match=r"Xid 31.*kernel add"):
        device.synchronize()


def test_an_access_that_is_not_aligned(hopper: NvDevice) -> None:
    machine_of(hopper).tells_faults = True
    program, source = load(hopper), written(hopper, range(65))
    program([source.offset(2, BYTES), source], [1])
    with pytest.raises(DeviceError, match=r"not aligned"):
        hopper.synchronize()


def test_a_queue_that_hangs_ends_by_the_time_limit(hopper: NvDevice) -> None:
    program = load(hopper)
    source, target = written(hopper, range(64)), hopper.allocator.alloc(BYTES)
    hopper.synchronize()
    machine = machine_of(hopper)
    machine.stuck |= {channel.id for channel in machine.resources.channels}
    program([target, source], [1])
    with (
        Context(WAIT_TIMEOUT_MS=50),
        pytest.raises(DeviceError, match=r"within 50 ms.*kernel add"),
    ):
        hopper.synchronize()
    machine.stuck.clear()
    hopper.synchronize()


def test_a_full_ring_of_a_card_that_hangs(make: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr("tiny_nv.nvk.channel.ENTRIES", 16)
    device = make(Machine((H200,)))
    program = load(device)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.synchronize()
    machine = machine_of(device)
    machine.stuck |= {channel.id for channel in machine.resources.channels}
    for _ in range(15):
        program([target, source], [1])
    with Context(WAIT_TIMEOUT_MS=50), pytest.raises(DeviceError, match="is full and has taken"):
        program([target, source], [1])
    machine.stuck.clear()


def test_a_reset_is_told(hopper: NvDevice) -> None:
    program = load(hopper)
    source, target = written(hopper, range(64)), hopper.allocator.alloc(BYTES)
    hopper.synchronize()
    for channel in machine_of(hopper).resources.channels:
        assert channel.ring is not None
        channel.ring.fail(43)
    program([target, source], [1])
    with pytest.raises(DeviceError, match=r"reset \(Xid 43\)"):
        hopper.synchronize()


def test_a_card_is_opened_again_after_a_fault(make: Make) -> None:
    machine = Machine((H200,))
    device = make(machine)
    program, source = load(device), written(device, range(64))
    device.synchronize()
    device.allocator.free(source)
    program([source, source], [1])
    with pytest.raises(DeviceError):
        device.synchronize()
    device.close()

    again = make(machine)
    source, target = written(again, range(64)), again.allocator.alloc(BYTES)
    load(again)([target, source], [5])
    assert content(again, target).tolist() == list(range(5, 69))


def test_exhaustion(hopper: NvDevice) -> None:
    with pytest.raises(OutOfMemory):
        hopper.allocator.alloc(1 << 33)
    assert content(hopper, written(hopper, [1])).tolist() == [1]


def test_everything_is_given_back(machine: Machine, make: Make) -> None:
    device = make(machine)
    program = load(device)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.graph([(program, [target, source], [1])])()
    load(device, SPILLS, SPILLS_INFO)([target, target], [])
    device.synchronize()
    device.allocator.free(source)
    device.allocator.free(target)
    device.close()

    assert [gpu.used_bytes for gpu in machine.gpus] == [0, 0]
    assert machine.resources.channels == []
    assert [uvm.ranges for file in machine.files.values() if (uvm := file.uvm)] == [{}, {}]


@pytest.mark.parametrize(
    "name",
    ["alloc 0xa06c", "alloc 0x9067", "alloc 0xc86f", "alloc 0xcbc0", "alloc 0xc8b5", "uvm 0x1b"],
)
def test_a_refusal_leaves_nothing(name: str) -> None:
    machine = Machine((H200,))
    machine.failures[name] = Status.INSUFFICIENT_RESOURCES
    with pytest.raises(DeviceError):
        opened(machine)
    assert machine.gpus[0].used_bytes == 0
    assert machine.resources.channels == []
    machine.failures.clear()
    opened(machine).close()


def test_a_card_that_is_not_there(make: Make) -> None:
    with pytest.raises(DeviceUnavailable, match="there is no NV:3"):
        make(Machine((H200,)), 3)


def test_a_card_that_is_lost(hopper: NvDevice) -> None:
    program = load(hopper)
    source = written(hopper, range(64))
    hopper.synchronize()
    machine_of(hopper).gpus[0].is_lost = True
    with pytest.raises(DeviceError, match="GPU_IS_LOST"):
        program([source, source], [1])
    hopper.fail("its card is lost")


def test_a_device_file_that_fails(make: Make) -> None:
    machine = Machine((H200,))
    machine.failures["escape 0xc9"] = errno.EPERM
    with pytest.raises(DeviceError):
        make(machine)


# --- that the stand-in would find


def test_a_wrong_token(hopper: NvDevice) -> None:
    program, source = load(hopper), written(hopper, range(64))
    hopper.synchronize()
    hopper.group.compute.token += 77
    program([source, source], [1])
    with pytest.raises(Mistake, match="no channel's token"):
        hopper.synchronize()
    hopper.group.compute.token -= 77
    hopper.group.compute.ring_doorbell()
    hopper.synchronize()


def test_a_bank_without_the_drivers_words(hopper: NvDevice) -> None:
    program = load(hopper)
    program.bank_content = bytes(len(program.bank_content))
    source = written(hopper, range(64))
    program([source, source], [1])
    with pytest.raises(Mistake, match="blockDim"):
        hopper.synchronize()


def test_each_seeded_fault_changes_one_text() -> None:
    for name, old, new in FAULTS:
        assert (SOURCES / "nvk" / name).read_text("utf-8").count(old) == 1, (name, old)
        assert old != new
