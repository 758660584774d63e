"""One device and several in time: order, the timeline's end, hangs, losses, processes."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from queue_machine import Bus, QueuedDevice, add, number_in, zero

from tiny_hcq import HCQBuffer, HWQueue
from tiny_hcq import program as programs
from tinycore.config import Context, settings
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError

Make = Callable[..., QueuedDevice]
NO_WAIT_SECONDS = settings.WAIT_TIMEOUT_MS / 2e3
"""Half the time limit of a wait: what ends sooner has not waited for what never comes."""


# Copies


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 50_001])
def test_host_copies_of_every_size_are_staged(make: Make, size: int) -> None:
    device = make(seed=size)
    content = os.urandom(size)
    memory = device.allocator.alloc(size)
    device.allocator.write(memory, memoryview(content))
    found = bytearray(size)

    device.allocator.read(memoryview(found), memory)

    assert found == content


def test_copies_go_to_the_engine_of_their_direction(make: Make) -> None:
    device = make(directions=True)
    memory = device.allocator.alloc(50_000)
    content = os.urandom(50_000)
    counts = []
    copies: list[Callable[[], None]] = [
        lambda: device.allocator.write(memory, memoryview(content)),
        lambda: device.allocator.read(memoryview(bytearray(50_000)), memory),
    ]
    for copy in copies:
        before = [engine.executed for engine in device.engines]
        copy()
        device.synchronize()
        after = [engine.executed for engine in device.engines]
        counts.append([b > a for a, b in zip(before, after, strict=True)])
    found = bytearray(50_000)
    device.allocator.read(memoryview(found), memory)

    assert counts == [[False, True, False], [False, False, True]]
    assert found == content


def test_a_part_of_memory_is_copied_alone(device: QueuedDevice) -> None:
    memory = device.allocator.alloc(16)
    device.allocator.write(memory, memoryview(b"0123456789abcdef"))
    part = device.allocator.offset(memory, 4, 10)
    device.allocator.write(part, memoryview(b"WXYZ"))
    found = bytearray(16)

    device.allocator.read(memoryview(found), memory)

    assert found == b"0123456789WXYZef"


def test_memory_the_host_sees_is_mapped(device: QueuedDevice) -> None:
    seen, unseen = device.allocator.alloc_visible(8), device.allocator.alloc(8)
    device.allocator.write(seen, memoryview(b"12345678"))

    assert bytes(device.allocator.map(seen, 4)) == b"1234"
    with pytest.raises(UnsupportedError, match="does not see"):
        device.allocator.map(unseen, 8)


def test_peers_are_mapped_once_and_unmapped_when_freed(make: Make) -> None:
    one, other = make(), make()
    source, target = zero(one), zero(other)
    copy = other.copier(8, one)
    assert (one.allocator.mappings, other.allocator.mappings) == (1, 1)  # their signals

    copy([target, source])
    copy([target, source], wait=True)
    assert (one.allocator.mappings, other.allocator.mappings) == (2, 1)
    other.allocator.free(target)

    assert one.allocator.mappings == 1


def test_an_unmapped_peer_is_a_fault(make: Make) -> None:
    one, other = make(), make()
    foreign = zero(other)
    queue = one.copy_queue().copy(foreign.address, zero(one).address, 8)
    with one.lock:
        one.finish(queue)

    with pytest.raises(DeviceError, match=r"QUEUED:0 is lost.*memory of QUEUED:1, is not mapped"):
        one.synchronize()


def test_devices_of_another_group_are_refused(make: Make) -> None:
    one, stranger = make(), make(bus=Bus())

    assert not one.reaches(stranger)
    with pytest.raises(UnsupportedError, match=r"another group .* copy through the host"):
        one.copier(8, stranger)


def test_memory_of_a_device_that_was_not_met_is_not_addressed(make: Make) -> None:
    """Visible memory is what the host sees, and no device that is opened later."""
    one, other = make(), make()
    with one.lock:
        one.finish(one.compute_queue().wait(other.timeline_signal, 0))

    with pytest.raises(DeviceError, match=r"memory of QUEUED:1, is not mapped"):
        one.synchronize()


def test_signals_made_after_two_devices_met_are_reached_too(make: Make) -> None:
    one, other = make(), make()
    one.meet(other)
    signals = [other.new_signal() for _ in range(600)]

    for place in (signals[0], signals[-1]):
        with one.lock:
            one.finish(one.compute_queue().wait(place, 0))
    one.synchronize()


def test_a_device_that_is_closed_lets_go_of_the_signals_of_others(make: Make) -> None:
    one, other, third = make(), make(), make()
    one.meet(other)
    third.meet(one)
    mapped = other.allocator.mappings

    one.close()
    assert other.allocator.mappings == mapped - 1
    assert one.allocator.mappings == 0
    assert len([other.new_signal() for _ in range(600)]) == 600
    assert third.reaches(other)


def test_devices_whose_signals_cannot_be_mapped_do_not_reach_each_other(make: Make) -> None:
    one, other = make(), make()
    one.allocator.strangers.add(other)

    assert not one.reaches(other)
    assert not other.reaches(one)
    assert one.reaches(one)
    with pytest.raises(UnsupportedError, match=r"QUEUED:1.*no mapping of memory of QUEUED:1"):
        one.copier(8, other)
    with pytest.raises(UnsupportedError, match="no mapping of memory"):
        one.graph([(each.function(add, 1, 1), [zero(each)], [1]) for each in (one, other)])


@pytest.mark.parametrize("size", [8, 4096, 3 * 4096 + 24])
def test_without_peer_access_copies_go_through_the_host_in_order(make: Make, size: int) -> None:
    one, other = make(seed=1), make(seed=2)
    for device in (one, other):
        device.allocator.peer_access = False
    here, there = (device.allocator.alloc(size) for device in (one, other))
    content = bytes(range(8)) * (size // 8)
    one.allocator.write(here, memoryview(content))
    programs = [device.function(add, 1, 1) for device in (one, other)]
    begun = number_in(one, here)

    for number in range(20):
        programs[0]([here], [number])
        other.copier(size, one)([there, here])
        programs[1]([there], [1000])
        one.copier(size, other)([here, there])

    assert number_in(one, here) == number_in(other, there) == begun + sum(range(20)) + 20_000
    found = bytearray(size)
    other.allocator.read(memoryview(found), there)
    assert found[8:] == content[8:]
    assert one.allocator.mappings + other.allocator.mappings <= 2 * (1 + 3)  # signals, staging


# Order


def test_host_copies_launches_and_peers_happen_in_order(make: Make) -> None:
    one, other = make(seed=1), make(seed=2)
    here, there = zero(one), zero(other)
    programs = [device.function(add, 1, 1) for device in (one, other)]

    for number in range(40):
        programs[0]([here], [number])
        other.copier(8, one)([there, here])
        programs[1]([there], [1000])
        one.copier(8, other)([here, there])

    assert number_in(one, here) == number_in(other, there) == sum(range(40)) + 40_000


def test_a_wait_returns_the_time_between_two_timestamps(device: QueuedDevice) -> None:
    program = device.function(lambda memories, values: time.sleep(0.02), 1)

    seconds = program([zero(device)], [], wait=True)

    assert seconds is not None
    assert 0.02 <= seconds < 5


@pytest.fixture
def encoded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch takes its arguments from the arena."""
    monkeypatch.setattr(programs, "MOST_LAUNCHES", 0)


@pytest.mark.usefixtures("encoded_anew")
def test_arguments_are_not_overwritten_while_launches_wait(make: Make) -> None:
    device = make(argument_bytes=256)  # four launches
    memory, program = zero(device), device.function(add, 1, 1)
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    threading.Timer(0.05, lambda: setattr(gate, "value", 1)).start()

    for number in range(20):
        program([memory], [number])

    assert number_in(device, memory) == sum(range(20))


def test_arguments_beyond_all_room_are_refused(make: Make) -> None:
    device = make(argument_bytes=64)
    program = device.function(add, 20, 1)

    with pytest.raises(UnsupportedError, match="168 bytes of arguments does not fit the 64"):
        program([zero(device)] * 20, [1])


def test_a_dropped_program_that_owns_no_memory_waits(device: QueuedDevice) -> None:
    """Drivers of API versions before 1.9 free their code as soon as this returns."""
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    program = device.function(add, 1, 1)
    program([zero(device)], [1])
    threading.Timer(0.05, lambda: setattr(gate, "value", 1)).start()

    program.__del__()

    assert device.timeline_signal.value == device.timeline_value - 1


def test_code_of_a_dropped_program_is_kept_while_it_runs(device: QueuedDevice) -> None:
    memory = zero(device)
    program = device.function(add, 1, 1)
    code = program.owns(device.allocator.alloc(4096))
    for _ in range(2):  # the second allocates memory for arguments that are kept
        program([memory], [1])
    device.synchronize()
    left, gate = device.allocator.left, device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    program([memory], [1])
    began = time.monotonic()

    program.__del__()
    device.reap()

    assert time.monotonic() - began < NO_WAIT_SECONDS, "the collector waited for a kernel"
    assert device.allocator.left == left
    gate.value = 1
    device.synchronize()
    device.reap()
    assert device.allocator.left == left + code.size


def test_memory_that_was_discarded_is_had_again_when_it_is_short(make: Make) -> None:
    device = make()
    memory, program = zero(device), device.function(add, 1, 1)
    size = device.allocator.left - 4096
    device.own(large := device.allocator.alloc(size))
    program([memory], [1])

    device.discard(large, device.upcoming())
    program([memory], [1])
    again = device.allocator.alloc(size)

    assert again.size == size
    with pytest.raises(OutOfMemory):
        device.allocator.alloc(size)


def test_memory_that_was_discarded_is_freed_every_few_hundred_submissions(
    device: QueuedDevice,
) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    device.discard(device.allocator.alloc(8192), device.upcoming())
    for _ in range(2):
        program([memory], [1])
    device.synchronize()
    left = device.allocator.left

    for _ in range(300):
        program([memory], [1])

    assert device.allocator.left == left + 8192


def test_memory_of_programs_and_the_driver_goes_with_the_device(make: Make) -> None:
    device = make()
    left = device.allocator.left
    program = device.function(add, 1, 1)
    program.owns(device.allocator.alloc(100))
    device.own(device.allocator.alloc(200))

    device.close()
    program.__del__()

    assert device.allocator.left >= left


def test_arguments_are_aligned_as_a_program_says(device: QueuedDevice) -> None:
    memory = zero(device)
    narrow, wide = device.function(add, 1, 1), device.function(add, 1, 1)
    wide.ARGUMENT_ALIGNMENT = 256  # type: ignore[misc]
    arena = device.kernel_arguments

    places = [arena.take(12, p.ARGUMENT_ALIGNMENT).address for p in (narrow, wide, narrow, wide)]
    graph = device.graph([(p, [memory], [1]) for p in (narrow, wide, narrow, wide)])
    held = [one.memory.address for one in graph._instances[0].arguments if one]

    assert [place % 256 for place in (places[1], places[3], held[1], held[3])] == [0] * 4
    assert places[2] - places[1] == 64
    graph()
    assert number_in(device, memory) == 4


@pytest.mark.usefixtures("encoded_anew")
def test_half_of_the_arguments_is_used_while_launches_use_the_other(make: Make) -> None:
    device = make(argument_bytes=512)  # four launches in each half
    memory, program = zero(device), device.function(add, 1, 1)
    device.synchronize()
    for _ in range(5):
        program([memory], [1])
    device.synchronize()
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()

    for _ in range(7):  # three end the ring, four begin it anew: nobody need wait
        program([memory], [1])

    assert device.timeline_signal.value < device.timeline_value - 1
    gate.value = 1
    assert number_in(device, memory) == 12


# Encoded launches


def test_a_launch_is_encoded_once_while_the_device_keeps_up(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    made = []
    new_queue = device.compute_queue

    def counted() -> HWQueue:
        made.append(1)
        return new_queue()

    device.compute_queue = counted

    for number in range(40):
        program([memory], [number])
        device.synchronize()

    assert number_in(device, memory) == sum(range(40))
    assert len(made) == 2  # the first launch, which may be the only one, and the one that is kept


def test_programs_that_end_with_the_interpreter_use_no_name_of_a_module(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, function = zero(device), device.function(add, 1, 1)
    for number in range(3):
        function([memory], [number])
        device.synchronize()
    monkeypatch.setattr(programs, "Moment", None)  # as the interpreter leaves it

    assert function._encoded is not None
    function._encoded.__del__(lambda: True)
    function.__del__(lambda: True)


def test_launches_that_are_under_way_are_not_patched(make: Make) -> None:
    device = make(argument_bytes=1 << 16)
    memory, program = zero(device), device.function(add, 1, 1)
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()

    for number in range(3 * programs.MOST_LAUNCHES):
        program([memory], [number])
    gate.value = 1

    assert number_in(device, memory) == sum(range(3 * programs.MOST_LAUNCHES))


def test_an_encoded_launch_waits_for_what_other_queues_do(device: QueuedDevice) -> None:
    one, other = zero(device), zero(device)
    program, copy = device.function(add, 1, 1), device.copier(8, device)
    graph = device.graph([(program, [one], [100])])
    for _ in range(3):
        program([one], [1])
    device.synchronize()
    gate = device.new_signal()
    device.copy_queue().wait(gate, 1).submit()  # so the copy comes late
    threading.Timer(0.05, lambda: setattr(gate, "value", 1)).start()

    copy([other, one])
    program([one], [1])
    graph()
    program([one], [1])

    assert (number_in(device, other), number_in(device, one)) == (3, 105)


def test_encoded_launches_signal_the_timeline_of_their_era(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    for _ in range(3):  # so that two are kept
        program([memory], [1])
    gate.value = 1
    device.synchronize()
    program([memory], [1])
    device.synchronize()
    device.TIMELINE_LIMIT = device.timeline_value - 1  # type: ignore[misc]

    program([memory], [1])

    with Context(WAIT_TIMEOUT_MS=2000):
        assert number_in(device, memory) == 5
    assert device.era == 1


def test_a_program_with_encoded_launches_goes_with_its_last_reference(
    device: QueuedDevice,
) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    for _ in range(3):
        program([memory], [1])
    device.synchronize()
    found = weakref.ref(program)
    device.programs.clear()
    left = device.allocator.left

    del program

    assert found() is None, "only the collector would find it"
    for _ in range(100):  # whose arguments lie where those of others lay
        program = device.function(add, 1, 1)
        for _ in range(3):
            program([memory], [1])
        device.synchronize()
        device.programs.clear()
    assert device.allocator.left == left


# Scratch


@pytest.mark.parametrize("binds", [True, False])
def test_a_graph_follows_scratch_that_grows(make: Make, binds: bool) -> None:
    device = make(binds=binds)
    memory = zero(device)
    small = device.function(add, 1, 1, spills=16)
    graph = device.graph([(small, [memory], [1])] * 2)
    graph()
    before = device.scratch
    assert before is not None

    large = device.function(add, 1, 1, spills=4096)
    large([memory], [100])
    graph()
    device.synchronize()
    device.reap()
    graph()

    assert device.scratch is not None
    assert device.scratch.size > before.size
    assert before.address not in device.bus.starts, "the scratch of before is still there"
    assert number_in(device, memory) == 106


def test_scratch_is_kept_while_launches_use_it(device: QueuedDevice) -> None:
    memory = zero(device)
    small = device.function(add, 1, 1, spills=16)
    small([memory], [1])
    device.synchronize()
    before, gate = device.scratch, device.new_signal()
    assert before is not None
    device.compute_queue().wait(gate, 1).submit()
    small([memory], [1])

    device.function(add, 1, 1, spills=4096)
    device.reap()

    assert before.address in device.bus.starts
    gate.value = 1
    assert number_in(device, memory) == 2


def test_a_kernel_that_spills_is_refused_where_there_is_no_scratch(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(QueuedDevice, "scratch_size")

    with pytest.raises(UnsupportedError, match=r"QUEUED:0 has no scratch.*16 bytes for a thread"):
        device.function(add, 1, 1, spills=16)


# The end of the timeline


def test_the_timeline_begins_anew(device: QueuedDevice) -> None:
    device.TIMELINE_LIMIT = 10  # type: ignore[misc]
    memory, program = zero(device), device.function(add, 1, 1)
    before = device.upcoming()

    for _ in range(100):
        program([memory], [1])

    assert number_in(device, memory) == 100
    assert device.era == 10
    assert device.timeline_value <= 12
    assert before.passed


def test_whoever_waits_for_the_old_timeline_is_waited_for(make: Make) -> None:
    one, late = make(), make()
    one.TIMELINE_LIMIT = 6  # type: ignore[misc]
    memory, program = zero(one), one.function(add, 1, 1)
    target, gate = zero(late), late.new_signal()
    late.compute_queue().wait(gate, 1).submit()  # whatever comes next on this queue is late
    for _ in range(4):
        program([memory], [1])
    late.copier(8, one)([target, memory])  # late waits for 6, which no later era leaves standing
    threading.Timer(0.1, lambda: setattr(gate, "value", 1)).start()

    for _ in range(8):
        program([memory], [1])

    with Context(WAIT_TIMEOUT_MS=3000):
        late.synchronize()
    assert (one.era, one.timeline_value) == (2, 3)
    assert (number_in(late, target), number_in(one, memory)) == (4, 12)


def test_a_captured_step_survives_the_end_of_the_timeline(make: Make) -> None:
    device = make(seed=3)
    device.TIMELINE_LIMIT = 5  # type: ignore[misc]
    memory, program = zero(device), device.function(add, 1, 1)
    graph = device.graph([(program, [memory], [1]), (program, [memory], [10])])

    for _ in range(20):
        graph()

    assert number_in(device, memory) == 220
    assert device.era >= 3


# Hangs and losses


def test_a_hang_is_told_with_the_state(make: Make) -> None:
    device = make()
    program = device.function(add, 1, 1)
    memory = zero(device)
    device.synchronize()
    device.stalled = True
    program([memory], [1])

    with Context(WAIT_TIMEOUT_MS=50), pytest.raises(DeviceError) as told:
        device.synchronize()

    asked = device.timeline_value - 1
    assert str(told.value).startswith(
        f"QUEUED:0 did not bring a signal from {asked - 1} to {asked} within 50 ms: "
        f"{asked - 1} of {asked} submissions are done; what may be stuck: kernel function. If "
        "kernels may take that long, set WAIT_TIMEOUT_MS higher."
    )


def test_a_closed_device_has_done_all_without_a_look_at_its_memory(make: Make) -> None:
    """A program that goes later waits for its last launch, whose signal was given back."""

    class Gone:
        def __getitem__(self, _: int) -> int:
            raise AssertionError("memory that was given back is read")

    device = make()
    program = device.function(add, 1, 1)
    program([zero(device)], [1])
    launched = program.last_launch
    device.close()

    assert launched is not None
    launched.signal._words = Gone()  # type: ignore[assignment]

    assert launched.passed
    launched.wait()


def test_a_closed_device_describes_itself_without_a_look_at_its_memory(make: Make) -> None:
    device = make()
    program = device.function(add, 1, 1)
    program([zero(device)], [1])
    launched = program.last_launch
    device.close()
    assert launched is not None
    launched.signal.value = 0  # as if the memory had been given to somebody else

    assert "2 of 2 submissions are done" in repr(device)


def test_a_lost_device_takes_no_more_work_and_is_closed_at_once(make: Make) -> None:
    device = make()
    program, memory = device.function(add, 1, 1), zero(device)
    device.synchronize()
    device.stalled = True
    program([memory], [1])
    with Context(WAIT_TIMEOUT_MS=20), pytest.raises(DeviceError):
        device.synchronize()

    with pytest.raises(DeviceError, match="is lost and takes no more work"):
        program([memory], [1])
    with pytest.raises(DeviceError, match="is lost"):
        device.allocator.read(memoryview(bytearray(8)), memory)
    device.synchronize()  # says nothing more
    began = time.monotonic()
    device.close()
    assert time.monotonic() - began < NO_WAIT_SECONDS


def test_memory_of_a_lost_device_is_read_nowhere(make: Make) -> None:
    """It is not what its kernels should have written: neither here nor by a device opened anew."""
    device = make()
    program, memory = device.function(add, 1, 1), zero(device)
    seen = device.allocator.alloc_visible(8)
    device.stalled = True
    program([memory], [1])
    with Context(WAIT_TIMEOUT_MS=20), pytest.raises(DeviceError):
        device.synchronize()

    with pytest.raises(DeviceError, match="memory of QUEUED:0 is lost with it"):
        device.allocator.map(seen, 8)
    device.close()
    other = make()
    own = zero(other)
    for use in (
        lambda: other.allocator.map(seen, 8),
        lambda: other.allocator.read(memoryview(bytearray(8)), memory),
        lambda: other.function(add, 1, 1)([memory], [1]),
        lambda: other.copier(8, other)([own, memory]),
    ):
        with pytest.raises(DeviceError, match="memory of QUEUED:0 is lost with it"):
            use()
    assert number_in(other, own) == 0


def test_memory_of_a_device_that_was_closed_in_good_order_is_still_there(make: Make) -> None:
    device = make()
    seen = device.allocator.alloc_visible(8)
    device.allocator.write(seen, memoryview(b"8 bytes."))
    device.close()

    assert bytes(make().allocator.map(seen, 8)) == b"8 bytes."


def test_a_fault_is_told_at_once(device: QueuedDevice) -> None:
    program = device.function(add, 1, 1)
    memory = zero(device)
    device.synchronize()
    device.bus.remove(memory)  # as if the address were wrong
    began = time.monotonic()

    program([memory], [1])
    with pytest.raises(DeviceError, match=r"QUEUED:0 is lost, .*no memory at 0x7f0"):
        device.synchronize()

    assert time.monotonic() - began < NO_WAIT_SECONDS


def test_the_loss_of_another_device_is_told_at_once(make: Make) -> None:
    one, other = make(), make()
    source, target = zero(one), zero(other)
    one.synchronize()
    other.synchronize()
    one.stalled = True
    other.copier(8, one)([target, source])
    one.fail("it fell off the bus")
    began = time.monotonic()

    with pytest.raises(DeviceError, match="waits for QUEUED:0, where it fell off the bus"):
        other.synchronize()

    assert time.monotonic() - began < NO_WAIT_SECONDS


def test_a_hang_names_the_kernels(make: Make) -> None:
    device = make()
    memory = zero(device)
    programs = [device.function(add, 1, 1, name=name) for name in ("first", "second", "third")]
    device.synchronize()
    device.stalled = True
    programs[1]([memory], [1])
    with Context(WAIT_TIMEOUT_MS=20), pytest.raises(DeviceError, match="stuck: kernel second"):
        device.synchronize()

    other = make()
    memory = zero(other)
    names = ["a", "b", "c", "d", "e", "f"]
    graph = other.graph([(other.function(add, 1, 1, name=name), [memory], [1]) for name in names])
    other.synchronize()
    other.stalled = True
    graph()
    expected = "stuck: one of the kernels a, b, c, d and 2 more"
    with Context(WAIT_TIMEOUT_MS=20), pytest.raises(DeviceError, match=expected):
        other.synchronize()


def test_a_hanging_graph_names_what_was_not_done(device: QueuedDevice) -> None:
    memory, other = zero(device), zero(device)
    first, last = (device.function(add, 1, 1, name=name) for name in ("first", "last"))
    copy = device.copier(8, device)
    graph = device.graph(
        [(first, [memory], [1]), (copy, [other, memory], []), (last, [other], [1])]
    )
    device.synchronize()
    gate = device.new_signal()
    device.copy_queue().wait(gate, 1).submit()
    graph()

    with Context(WAIT_TIMEOUT_MS=200), pytest.raises(DeviceError) as told:
        device.synchronize()

    assert "stuck: one of the kernels last" in str(told.value)
    gate.value = 1


def test_a_hanging_copy_is_told_as_one(device: QueuedDevice) -> None:
    memory = zero(device)
    device.synchronize()
    device.stalled = True

    device.copier(8, device)([memory, memory])

    with Context(WAIT_TIMEOUT_MS=20), pytest.raises(DeviceError, match="stuck: a copy"):
        device.synchronize()


def test_a_fault_names_the_kernel(device: QueuedDevice) -> None:
    memory, other = zero(device), zero(device)
    program = device.function(add, 1, 1, name="astray")
    device.function(add, 1, 1, name="innocent")([other], [1])
    device.synchronize()
    device.bus.remove(memory)

    program([memory], [1])

    with pytest.raises(DeviceError, match=r"no memory at .*What ran: kernel astray"):
        device.synchronize()


def test_a_program_is_known_by_an_address_of_its_code(device: QueuedDevice) -> None:
    program = device.function(add, 1, 1)
    code = program.owns(device.allocator.alloc(4096))

    assert device.program_at(code.address + 100) is program
    assert device.program_at(code.address + 4096) is None


def test_progress_starts_the_time_limit_anew(device: QueuedDevice) -> None:
    slow = device.new_signal()

    def count() -> None:
        for _ in range(6):
            time.sleep(0.05)
            slow.value += 1

    thread = threading.Thread(target=count)
    thread.start()
    slow.wait(6, timeout_ms=200)
    thread.join()

    with pytest.raises(DeviceError, match="from 6 to 7 within 20 ms"):
        slow.wait(7, timeout_ms=20)
    assert device.error_state is None  # a signal of one's own is nobody's timeline


def test_a_submission_that_fails_loses_the_device(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, memory = device.function(add, 1, 1), zero(device)

    def broken(inbox: object, words: object) -> None:
        raise OSError("the doorbell is gone")

    monkeypatch.setattr(device.engines[0], "inbox", type("Inbox", (), {"put": broken})())
    with pytest.raises(OSError, match="doorbell"):
        program([memory], [1])
    monkeypatch.undo()

    with pytest.raises(DeviceError, match="a submission failed: the doorbell is gone"):
        program([memory], [1])


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_leaves_the_device_usable(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    program([memory], [1])
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        device.synchronize()

    gate.value = 1
    assert number_in(device, memory) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_that_the_device_is_its_parents(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            program([memory], [1])
        except DeviceError as error:
            os._exit(0 if "opened by the parent" in str(error) else 2)
        os._exit(1)

    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gives_nothing_of_its_parent_back(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = zero(device)
    given_back: list[HCQBuffer] = []
    monkeypatch.setattr(device.allocator, "release", given_back.append)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        device.allocator.free(memory)
        device.close()
        try:
            device.allocator.alloc(64)
        except DeviceError as error:
            os._exit(len(given_back) + 2 * ("opened by the parent" not in str(error)))
        os._exit(4)

    assert os.waitpid(child, 0)[1] == 0
    device.allocator.free(memory)
    assert given_back == [memory]


def test_threads_of_the_host_take_turns(make: Make) -> None:
    one, other = make(seed=5), make(seed=6)
    for device in (one, other):
        device.TIMELINE_LIMIT = 20  # type: ignore[misc]
    memories = [zero(device) for device in (one, other)]
    programs = [device.function(add, 1, 1) for device in (one, other)]
    spare = [zero(other), zero(one)]

    def work(number: int) -> None:
        devices = (one, other) if number % 2 else (other, one)
        for _ in range(25):
            programs[number % 2]([memories[number % 2]], [1])
            devices[0].copier(8, devices[1])([spare[number % 2], memories[number % 2]])

    spare = [zero(other), zero(one)]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [number_in(d, m) for d, m in zip((one, other), memories, strict=True)] == [50, 50]
