"""Schedules with memory as a parameter: the second of two alike steps is looked up."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.schedule.graphs import assign, buffer, total
from tinycore import Context, GlobalCounters, Tensor
from tinycore._lru import Lru
from tinycore.dtype import dtypes
from tinycore.engine import compile as compiling
from tinycore.schedule import compiled
from tinycore.schedule.canonical import CanonicalGraph, canonicalize
from tinycore.schedule.compiled import Schedule, Varying, compile_schedule
from tinycore.schedule.retention import RetentionPolicy
from tinycore.uop.node import Held, Reads


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time a graph is cut into kernels, the table being empty at first."""
    found: list[int] = []
    whole = compile_schedule

    def counted(canonical: CanonicalGraph, policy: RetentionPolicy, varying: Varying) -> Schedule:
        found.append(1)
        return whole(canonical, policy, varying)

    monkeypatch.setattr(compiled, "compile_schedule", counted)
    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    return found


def host(*values: float) -> Tensor:
    return Tensor(list(values)).realize()


# Forms


def test_graphs_over_other_buffers_have_one_form() -> None:
    a, b, c, d = (buffer(4) for _ in range(4))

    assert canonicalize([a + b]).sink is canonicalize([c + d]).sink


def test_a_buffer_met_twice_is_another_form_than_two_buffers() -> None:
    a, b = buffer(4), buffer(4)

    assert canonicalize([a + a]).sink is not canonicalize([a + b]).sink


def test_a_form_is_continued_by_further_roots() -> None:
    a, b = buffer(4), buffer(4)
    roots = [a * 2 + 1, assign(b, a), b.cast(dtypes.int32), a + b]
    whole, part = canonicalize(roots), canonicalize(roots[:2])

    continued = canonicalize(roots, begun=part)

    assert continued.sink is whole.sink
    assert continued.memory == whole.memory
    assert continued.assigned == whole.assigned
    assert list(continued.nodes.items()) == list(whole.nodes.items())


def test_a_form_reads_what_nodes_hold_in_its_scope() -> None:
    a, b = buffer(4), buffer(4)
    node = a + 1
    node._memory = Held(b, "here", Reads(()))
    roots = [node * 2, node * 3]

    for scope, again, memory in (("here", (), b), ("there", (), a), ("here", [node], a)):
        whole = canonicalize(roots, scope, again)
        continued = canonicalize(roots, scope, again, canonicalize(roots[:1], scope, again))
        assert continued.sink is whole.sink
        assert continued.memory == whole.memory == (memory,)
        assert continued.cached == whole.cached == ({node: b} if memory is b else {})


def test_the_order_of_buffers_between_roots_is_part_of_the_form() -> None:
    a, b = buffer(4), buffer(4)
    same, crossed = canonicalize([a * 2, assign(a, b)]), canonicalize([a * 2, assign(b, a)])

    assert same.sink is not crossed.sink


def test_size_dtype_and_constants_are_part_of_the_form() -> None:
    forms = {canonicalize([x]).sink for x in (buffer(4) + 1.0, buffer(8) + 1.0, buffer(4) + 2.0)}

    assert len(forms) == 3


def test_what_a_form_was_found_in_is_told() -> None:
    a, b = buffer(4), buffer(4)
    form = canonicalize([root := total(a * b, 0)])

    assert form.memory == (a, b)
    assert form.originals[form.sink.src[0]] is root


def test_a_deep_graph_needs_no_recursion() -> None:
    x = buffer(4)
    for number in range(20_000):
        x = x + float(number)

    assert len(canonicalize([x]).nodes) > 20_000


# Schedules


def test_the_second_step_is_not_cut_again(cuts: list[int]) -> None:
    results = [((host(i, 2) * 3).sum() + 1).item() for i in range(4)]

    assert results == [3.0 * i + 7 for i in range(4)]
    assert len(cuts) == 1


def test_the_second_step_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (host(1, 2) * 7.125).realize()
    monkeypatch.setattr(compiling, "compile_kernel", None)

    assert (host(3, 4) * 7.125).tolist() == [21.375, 28.5]


def test_results_have_memory_of_their_own(cuts: list[int]) -> None:
    results = [(host(i) + 1).realize() for i in range(5)]

    assert [r.item() for r in results] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(cuts) == 1


def test_assignments_go_to_the_memory_of_this_step(cuts: list[int]) -> None:
    first, second = host(1), host(10)
    for _ in range(3):
        first.assign(first * 2).realize()
        second.assign(second * 2).realize()

    assert (first.item(), second.item()) == (8.0, 80.0)
    assert len(cuts) == 1


def test_part_of_memory_is_written_in_place_each_time(cuts: list[int]) -> None:
    x = host(0, 0, 0, 0)
    for i in range(1, 4):
        x[1:3] = host(i, i)
        x.realize()

    assert x.tolist() == [0, 3, 3, 0]
    assert len(cuts) == 1


def test_an_alias_is_not_taken_for_two_tensors() -> None:
    def step(target: Tensor, source: Tensor) -> list[float]:
        return target.assign(source.flip(0) + target).realize().tolist()  # type: ignore[no-any-return]

    a, b = host(1, 2), host(10, 20)

    assert step(a, b) == [21, 12]
    assert step(a, a) == [33, 33]
    assert step(a, b) == [53, 43]


def test_intermediate_results_that_are_held_become_memory_each_time(cuts: list[int]) -> None:
    for i in range(3):
        middle = (host(i, 1) * 2).detach().contiguous()
        (middle.sum() + 1).realize()
        before = GlobalCounters.kernel_count
        assert middle.tolist() == [2.0 * i, 2.0]
        assert GlobalCounters.kernel_count == before


def test_random_numbers_differ_from_step_to_step(cuts: list[int]) -> None:
    Tensor.manual_seed(3)
    drawn = [Tensor.rand(4).realize().tolist() for _ in range(3)]

    assert len(cuts) == 1
    assert len(set(map(tuple, drawn))) == 3


def test_copies_of_one_node_stay_apart(cuts: list[int]) -> None:
    for i in range(3):
        x = host(i, i)
        a, b = x.clone(), x.clone()
        Tensor.realize(a, b)
        a.assign(a + 1).realize()
        assert (a.tolist(), b.tolist()) == ([i + 1, i + 1], [i, i])


def test_kernels_cut_before_are_run_by_a_later_step(cuts: list[int]) -> None:
    for i in range(3):
        half = (host(i, 4) * 2).kernelize()
        assert (half.sum() + 1).item() == 2 * i + 9


def test_several_devices(cuts: list[int]) -> None:
    devices = ("PYTHON", "PYTHON:1")
    for i in range(3):
        x = Tensor([i, 1, 2, 3], device="PYTHON").shard(devices, 0)
        assert (x * x).sum().item() == i * i + 14

    assert len(cuts) < 4


def test_the_setting_of_the_ring_is_part_of_the_key(cuts: list[int]) -> None:
    devices = ("PYTHON", "PYTHON:1", "PYTHON:2")
    for ring in (0, 2):
        x = Tensor(list(range(6)), device="PYTHON").shard(devices, 0).realize()
        cuts.clear()
        with Context(RING=ring):
            assert x.sum().item() == 15
        assert cuts


def test_what_rounds_operands_is_part_of_the_key(cuts: list[int]) -> None:
    x = host(1)
    for allowed in (0, 1):
        cuts.clear()
        with Context(ALLOW_TF32=allowed):
            (x + 1).realize()
        assert cuts


def test_the_limits_of_a_device_are_part_of_the_key(cuts: list[int]) -> None:
    for target in ("PYTHON", "PYTHON::groups=32", "PYTHON::groups=64"):
        cuts.clear()
        with Context(DEV=target):
            x = Tensor([1.0], device="PYTHON").realize()
            cuts.clear()
            (x + 1).realize()
            assert cuts
            cuts.clear()
            (x + 1).realize()
            assert not cuts


def test_the_table_is_bounded(cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "schedules", Lru(3))
    x = host(1)
    for i in range(6):
        (x + i).realize()
    assert len(compiled.schedules) == 3
    cuts.clear()
    (x + 5).realize()
    assert len(cuts) == 0

    (x + 1).realize()
    assert len(cuts) == 1


def test_no_memory_is_held_by_the_table() -> None:
    (host(1, 2) + 1).realize()
    gc.collect()
    before = GlobalCounters.mem_used
    (host(1, 2) + 1).realize()
    gc.collect()

    assert GlobalCounters.mem_used == before


def test_threads_that_compute_the_same_form_at_once(cuts: list[int]) -> None:
    barrier = threading.Barrier(4)

    def steps(start: int) -> list[float]:
        barrier.wait()
        found = []
        for i in range(start, start + 20):
            x = host(i, i + 1, i + 2)
            found.append(((x * 2).sum() + x.max()).item())
        return found

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(steps, (0, 100, 200, 300)))

    assert results == [
        [7.0 * i + 8 for i in range(start, start + 20)] for start in (0, 100, 200, 300)
    ]


def test_a_schedule_names_memory_of_its_own() -> None:
    first, second = [((host(i, 1) * 2).sum() + 1).schedule() for i in range(2)]

    assert [item.ast for item in first] == [item.ast for item in second]
    assert not {b for item in first for b in item.bufs} & {b for item in second for b in item.bufs}
    assert first[-1].kernel.src[0] is not second[-1].kernel.src[0]
