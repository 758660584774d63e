"""Graphs: what waits for what, what changes from run to run, and steps of tensors on them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from queue_machine import Bus, QueuedDevice, add, backend, number_in, zero
from queue_stress import Stress

from tiny_hcq.queue import Access, dependencies, pattern, waits
from tinycore import Context, Device, Tensor, TinyJit
from tinycore.engine.device_graph import HeldLaunches
from tinycore.errors import DeviceError, UnsupportedError
from tinycore.plugin import register, unregister

Make = Callable[..., QueuedDevice]


def read(start: int, size: int = 1, root: str = "a") -> Access:
    return Access(root, start, size, False)


def write(start: int, size: int = 1, root: str = "a") -> Access:
    return Access(root, start, size, True)


# Dependencies


def test_readers_come_after_the_writer_and_the_next_writer_after_them() -> None:
    launches = [[write(0)], [read(0)], [read(0)], [write(0)]]

    assert list(map(set, dependencies(launches))) == [set(), {0}, {0}, {0, 1, 2}]


def test_other_bytes_and_other_memory_do_not_matter() -> None:
    launches = [[write(0, 4)], [write(4, 4)], [write(0, 4, "b")], [read(3, 2)]]

    assert list(map(set, dependencies(launches))) == [set(), set(), set(), {0, 1}]


def test_what_is_overwritten_as_a_whole_is_forgotten() -> None:
    launches = [[write(0, 2)], [write(2, 2)], [write(0, 4)], [read(1)]]

    assert set(dependencies(launches)[3]) == {2}


def test_equal_patterns_whatever_the_memory_is() -> None:
    launches = [[write(0, 4, "a"), read(0, 4, "b")], [write(4, 4, "a")]]
    renamed = [[write(0, 4, "x"), read(0, 4, "y")], [write(4, 4, "x")]]
    merged = [[write(0, 4, "x"), read(0, 4, "x")], [write(4, 4, "x")]]

    assert pattern(launches) == pattern(renamed)
    assert pattern(launches) != pattern(merged)


def test_only_the_last_of_a_lane_is_waited_for_and_nothing_implied() -> None:
    lanes = ["a", "a", "b", "c", "c"]
    before = [set(), {0}, {0, 1}, {1, 2}, {0, 1, 2, 3}]

    # c waits for b alone, which has waited for all of a; within a lane order is enough
    assert waits(lanes, before) == [{}, {}, {"a": 1}, {"b": 2}, {}]


@pytest.mark.parametrize("seed", range(50))
def test_the_waits_that_remain_imply_every_dependency(seed: int) -> None:
    chance = random.Random(seed)
    lanes = [chance.choice("abc") for _ in range(20)]
    earlier = [{n for n in range(number) if chance.random() < 0.2} for number in range(20)]
    kept = waits(lanes, earlier)

    done_before: list[set[int]] = []
    for number, lane in enumerate(lanes):
        direct = {n for n in range(number) if lanes[n] == lane} | set(kept[number].values())
        done_before.append(direct.union(*(done_before[n] for n in direct)))

    assert all(before <= done for before, done in zip(earlier, done_before, strict=True))


# Runs


@pytest.mark.parametrize("binds", [True, False])
def test_a_graph_runs_again_with_other_buffers_and_values(make: Make, binds: bool) -> None:
    device = make(binds=binds)
    first, second = zero(device), zero(device)
    program = device.function(add, 1, 1)
    graph = device.graph([(program, [first], [1]), (program, [first], [10])])

    graph()
    graph.set_buffer(1, 0, second)
    graph.set_value(0, 0, 100)
    graph()

    assert (number_in(device, first), number_in(device, second)) == (111, 10)


def test_a_graph_spans_devices_and_queues(make: Make) -> None:
    one, other = make(seed=1), make(seed=2)
    here, there, back = zero(one), zero(other), zero(one)
    launches: list[Any] = []
    for number in range(8):
        launches += [
            (one.function(add, 1, 1), [here], [number]),
            (other.copier(8, one), [there, here], []),
            (other.function(add, 1, 1), [there], [1000]),
            (one.copier(8, other), [back, there], []),
            (one.copier(8, one), [here, back], []),
        ]
    graph = one.graph(launches)

    for _ in range(5):
        graph()

    assert number_in(one, back) == number_in(one, here) == 5 * (sum(range(8)) + 8000)
    assert graph(wait=True)


def test_a_run_waits_for_the_one_before_it_to_change_arguments(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    graph = device.graph([(program, [memory], [1])] * 3)
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    graph()
    threading.Timer(0.05, lambda: setattr(gate, "value", 1)).start()

    graph.set_value(1, 0, 100)
    graph()

    assert number_in(device, memory) == 3 + 102


def test_a_graph_follows_a_graph_without_the_host_waiting(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    graph = device.graph([(program, [memory], [1]), (program, [memory], [10])])
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()

    graph()
    graph.set_value(1, 0, 1000)
    graph()  # a wait would end in an error

    threading.Timer(0.05, lambda: setattr(gate, "value", 1)).start()
    graph.set_value(0, 0, 100)
    graph()  # which waits for the first
    graph.set_value(1, 0, 20)
    graph()
    assert number_in(device, memory) == 11 + 1001 + 1100 + 120


def test_independent_launches_of_a_graph_overlap(make: Make) -> None:
    device = make(overlaps=True)
    meeting = threading.Barrier(3)

    def meet(memories: list[memoryview], values: tuple[int, ...]) -> None:
        meeting.wait(5)  # raises unless three run at once
        add(memories, values)

    program, after = device.function(meet, 1, 1), device.function(add, 1, 1)
    memories = [zero(device) for _ in range(3)]
    graph = device.graph(
        [(program, [memory], [1]) for memory in memories]
        + [(after, [memory], [10]) for memory in memories]
    )

    for _ in range(3):
        graph()
        device.synchronize()

    assert [number_in(device, memory) for memory in memories] == [33, 33, 33]


def test_launches_that_depend_on_each_other_do_not_overlap(make: Make) -> None:
    device = make(overlaps=True)

    def slow(memories: list[memoryview], values: tuple[int, ...]) -> None:
        time.sleep(0.02)
        add(memories, values)

    def total(memories: list[memoryview], values: tuple[int, ...]) -> None:
        numbers = [int.from_bytes(memory[:8], "little") for memory in memories]
        memories[0][:8] = sum(numbers).to_bytes(8, "little")

    one, other, result = (zero(device) for _ in range(3))
    slowly, sums = device.function(slow, 1, 1), device.function(total, 3)
    graph = device.graph(
        [
            (slowly, [one], [1]),
            (slowly, [other], [10]),
            (sums, [result, one, other], []),
            (slowly, [one], [100]),  # after the sum has read it
            (slowly, [result], [1000]),
        ]
    )

    graph()

    assert number_in(device, result) == 1011
    assert number_in(device, one) == 101


def test_launches_that_come_to_share_memory_do_not_overlap_any_more(make: Make) -> None:
    device = make(overlaps=True)

    def slow(memories: list[memoryview], values: tuple[int, ...]) -> None:
        number = int.from_bytes(memories[0][:8], "little")
        time.sleep(0.02)
        memories[0][:8] = (number + values[0]).to_bytes(8, "little")

    program = device.function(slow, 1, 1)
    memories = [zero(device) for _ in range(4)]
    graph = device.graph([(program, [memory], [1]) for memory in memories[:2]])
    graph()
    graph.set_buffer(0, 0, memories[2])
    graph.set_buffer(1, 0, memories[3])  # others, and as far apart as before
    graph()
    graph.set_buffer(1, 0, memories[2])
    graph()
    graph()

    assert [number_in(device, memory) for memory in memories] == [1, 1, 5, 1]


def test_kernels_that_spill_do_not_overlap(make: Make) -> None:
    device = make(overlaps=True)
    inside = []

    def alone(memories: list[memoryview], values: tuple[int, ...]) -> None:
        inside.append(1)
        time.sleep(0.02)
        add(memories, (len(inside),))
        inside.pop()

    program = device.function(alone, 1, 1, spills=16)
    memories = [zero(device) for _ in range(2)]
    device.graph([(program, [memory], [0]) for memory in memories])()

    assert [number_in(device, memory) for memory in memories] == [1, 1]


def test_copies_of_two_directions_overlap(make: Make) -> None:
    device = make(directions=True)
    here, there = zero(device), zero(device)
    seen = device.allocator.alloc_visible(8)
    assert seen.view is not None
    seen.view[:] = bytes(8)
    device.function(add, 1, 1)([here], [7])
    copy = device.copier(8, device)
    graph = device.graph([(copy, [there, here], []), (copy, [seen, here], [])])
    device.synchronize()
    gate = device.new_signal()
    device.copy_queues[0]().wait(gate, 1).submit()

    graph()

    until = time.monotonic() + 5
    while seen.view[0] != 7 and time.monotonic() < until:
        time.sleep(1e-3)
    assert seen.view[0] == 7
    gate.value = 1
    assert number_in(device, there) == 7


def test_buffers_that_come_to_overlap_are_ordered_anew(make: Make) -> None:
    one, other = make(seed=3), make(seed=4)
    source, shared = zero(one), zero(other)
    apart = zero(other)
    slow = other.function(add, 1, 1)
    # While they are apart, neither waits for the other.
    graph = one.graph([(slow, [apart], [1])] * 20 + [(other.copier(8, one), [shared, source], [])])
    graph()
    for launch in range(20):
        graph.set_buffer(launch, 0, shared)

    graph()

    assert number_in(other, shared) == 0  # the copy is last
    assert number_in(other, apart) == 20


def test_a_dropped_graph_gives_its_memory_back(device: QueuedDevice) -> None:
    memory, program = zero(device), device.function(add, 1, 1)
    program([memory], [1])
    before = None

    for number in range(5):
        graph = device.graph([(program, [memory], [1])])
        graph()
        del graph  # which waits for nothing
        device.synchronize()
        device.reap()
        if number == 1:
            before = device.allocator.left
    assert device.allocator.left == before


def test_what_a_graph_cannot_hold_is_refused(make: Make) -> None:
    device, other, stranger = make(), make(), make(bus=Bus())
    program = device.function(add, 1, 1)
    graph = device.graph([(program, [zero(device)], [1])])

    with pytest.raises(UnsupportedError, match="cannot hold"):
        device.graph([(print, [zero(device)], [])])  # type: ignore[list-item]
    with pytest.raises(UnsupportedError, match="of another group"):
        device.graph([(stranger.function(add, 1, 1), [zero(stranger)], [1])])
    with pytest.raises(UnsupportedError, match="is memory of QUEUED:0, not of QUEUED:1"):
        graph.set_buffer(0, 0, zero(other))


def test_a_graph_that_cannot_be_submitted_loses_its_devices(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make(), make()
    launches: list[Any] = [
        (one.function(add, 1, 1), [zero(one)], [1]),
        (other.function(add, 1, 1), [zero(other)], [1]),
    ]
    graph = one.graph(launches)
    one.synchronize()
    other.synchronize()

    def broken(inbox: object, words: object) -> None:
        raise OSError("the doorbell is gone")

    monkeypatch.setattr(other.engines[0], "inbox", type("Inbox", (), {"put": broken})())
    with pytest.raises(OSError, match="doorbell"):
        graph()
    monkeypatch.undo()

    for device, launch in zip((one, other), launches, strict=True):
        with pytest.raises(DeviceError, match="a graph failed: the doorbell is gone"):
            device.graph([launch])()


def test_a_profile_says_when_each_launch_ran(make: Make) -> None:
    first, second = make(), make()
    here, there = zero(first), zero(second)
    graph = first.graph(
        [
            (first.function(add, 1, 1, "adds"), [here], [1]),
            (second.copier(8, first), [there, here], []),
            (second.function(add, 1, 1, "adds_more"), [there], [10]),
        ]
    )
    before = time.perf_counter()
    times = graph.profile()
    after = time.perf_counter()

    assert [one.name for one in times] == ["adds", "copy", "adds_more"]
    assert [one.device for one in times] == [first.name, first.name, second.name]
    assert all(one.begin <= one.end for one in times)
    assert number_in(second, there) == 11
    graph()
    assert number_in(second, there) == 12
    slack = after - before  # of the two clocks, which are read within this time
    assert all(before - slack <= one.begin and one.end <= after + slack for one in times)


def test_clocks_are_read_at_the_same_time(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.perf_counter_ns()
    ticks, nanoseconds = device.clock()
    after = time.perf_counter_ns()
    assert before < ticks < after  # which is the clock of this device
    assert before < nanoseconds < after

    graph = device.graph([(device.function(add, 1, 1), [zero(device)], [1])])
    monkeypatch.setattr(device, "clock", lambda: (ticks, ticks + 10**15))
    (times,) = graph.profile()
    assert times.begin > 10**6


def test_an_empty_graph_does_nothing(device: QueuedDevice) -> None:
    device.graph([])(wait=True)


# Random work


@pytest.mark.parametrize("seed", [1, 2])
def test_random_work_is_as_if_done_one_after_the_other(seed: int) -> None:
    stress = Stress(seed)

    stress.run(6000)

    assert sum(device.era for device in stress.devices) >= 3
    stress.close()


# Tensors


@pytest.fixture
def queued() -> Iterator[None]:
    register(backend())
    with Context(DEV="QUEUED"):
        yield
    unregister("QUEUED")


def test_tensors_compute_and_train_on_it(queued: None) -> None:
    weights = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = (Tensor([[1.0, -1.0]]) @ weights).square().sum()
    loss.backward()

    assert loss.item() == 8.0
    assert weights.grad is not None
    assert weights.grad.tolist() == [[-4, -4], [4, 4]]


def test_a_captured_step_over_three_devices_is_one_graph(queued: None) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        total = (x + y.to("QUEUED")).contiguous()
        doubled = (total.to("QUEUED:1") * 2).contiguous()
        return (doubled.to("QUEUED") + total).realize(), doubled.realize()

    for number in range(6):
        x = Tensor([float(number), 2.0]).realize()
        y = Tensor([1.0, number], device="QUEUED:2").realize()
        both, doubled = step(x, y)
        assert both.tolist() == [3.0 * (number + 1), 3.0 * (number + 2)]
        assert doubled.tolist() == [2.0 * (number + 1), 2.0 * (number + 2)]
    assert step.captured is not None
    assert step.captured.graphs is not None
    (part,) = step.captured.graphs
    assert isinstance(part, HeldLaunches)


def test_sharded_tensors_and_other_backends(queued: None) -> None:
    devices = ("QUEUED", "QUEUED:1", "QUEUED:2")
    x = Tensor(list(range(12)), dtype="float32").reshape(6, 2).shard(devices, 0)

    assert (x * 2).sum(0).tolist() == [60.0, 72.0]
    assert x.sum(1).to("PYTHON").tolist() == [1, 5, 9, 13, 17, 21]


def strangers() -> None:
    """Take from QUEUED and QUEUED:1 all ways to address memory of each other."""
    here: Any = Device["QUEUED"].runtime
    here.allocator.strangers.add(Device["QUEUED:1"].runtime)


def test_devices_that_do_not_reach_each_other_copy_through_the_host(queued: None) -> None:
    strangers()
    x = (Tensor([1.0, 2.0], device="QUEUED") + 1).realize()

    assert not Device["QUEUED"].waits_for(Device["QUEUED:1"])
    assert Device["QUEUED"].waits_for(Device["QUEUED:2"])
    assert (x.to("QUEUED:1") * 2).tolist() == [4.0, 6.0]
    assert x.to("QUEUED:1").to("QUEUED").tolist() == [2.0, 3.0]


def test_a_step_over_devices_that_do_not_reach_each_other_is_held_for_each(queued: None) -> None:
    strangers()

    @TinyJit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (x + 1).realize(), (y - 3).realize()
        return (a * 2).realize(), (b * 5).realize()

    for number in range(4):
        x = Tensor([float(number), 2.0], device="QUEUED").realize()
        y = Tensor([float(number), 1.0], device="QUEUED:1").realize()
        a, b = step(x, y)
        assert a.tolist() == [(number + 1) * 2, 6]
        assert b.tolist() == [(number - 3) * 5, -10]
    assert step.captured is not None
    assert step.captured.graphs is not None
    assert [type(part) for part in step.captured.graphs] == [HeldLaunches, HeldLaunches]


def test_it_is_an_ordinary_open_device(queued: None) -> None:
    device = Device["QUEUED"]

    assert device.waits_for(Device["QUEUED:1"])
    assert not device.waits_for(Device["PYTHON"])
