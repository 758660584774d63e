"""The end of cached values: memory of others, captures, the last tensor; and values never cached.

See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy
import pytest
from lending import need_host_lender

from tests.unit.tensor.test_held_values import bent, counted, numbers
from tinycore import Tensor, TinyJit, Variable
from tinycore.engine.counters import GlobalCounters
from tinycore.errors import SharingError
from tinycore.nn.optim import SGD
from tinycore.tensor.storage import held_values
from tinycore.uop.node import Reads, UOp, held_by


@pytest.fixture
def held_here() -> Callable[[], list[UOp]]:
    """Nodes that hold values since this test began."""
    gc.collect()
    before = set(held_values.holders())
    return lambda: [node for node, held in held_values.holders() if (node, held) not in before]


# --- memory that others have


def test_memory_of_others_is_read_anew(target: str) -> None:
    need_host_lender(target)
    array = numpy.array([1.0, 2.0], numpy.float32)
    x = Tensor.from_blob(array.ctypes.data, (2,), dtype="float32", owner=array)
    y = x * 2
    assert y.tolist() == [2.0, 4.0]

    array[0] = 5

    assert y.tolist() == [10.0, 4.0]


@pytest.mark.parametrize("early", [False, True])
def test_memory_that_others_were_given_is_read_anew(early: bool) -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = (x * 2).exp2()
    if early:
        y.tolist()
    try:
        view = x.__array__(copy=False)
    except SharingError as error:
        pytest.skip(str(error))
    assert y.tolist() == [4.0, 16.0]

    view[0] = 2

    assert y.tolist() == [16.0, 16.0]


def test_memory_of_a_capsule_is_read_anew() -> None:
    source = numpy.array([1.0, 2.0], numpy.float32)
    try:
        x = Tensor.from_dlpack(source, copy=False)
    except SharingError as error:
        pytest.skip(str(error))
    y = x + 1
    assert y.tolist() == [2.0, 3.0]

    source[1] = 7

    assert y.tolist() == [2.0, 8.0]


# --- captures


def test_a_replay_ends_what_was_read_from_its_state(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    state = Tensor([1.0, 2.0]).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        state.assign(state + x).realize()
        return state.sum().realize()

    one = Tensor([1.0, 1.0]).realize()
    found, held = [], []
    for _ in range(4):
        held.append((state * 2).uop)  # by which the cache keeps what is read
        Tensor.from_uop(held[-1]).tolist()
        step(one)
        found.append((state * 2).tolist())

    assert found == [[4.0, 6.0], [6.0, 8.0], [8.0, 10.0], [10.0, 12.0]]


def test_every_call_ends_what_was_read_from_its_arguments(target: str) -> None:
    """The first runs, the second is captured, the others are replays."""
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    x = Tensor([1.0, 2.0]).realize()
    held = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x.assign(x + 1).realize() * 2).realize()

    for call in range(4):
        held.append((x * 3).uop)
        assert Tensor.from_uop(held[-1]).tolist() == [3.0 * (call + 1), 3.0 * (call + 2)]
        step(x)


def test_a_capture_computes_what_was_read_outside(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    weight = Tensor([1.0, 2.0]).realize()
    node = (weight * 2).uop
    Tensor.from_uop(node).tolist()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (Tensor.from_uop(node) + x).realize()

    one = Tensor([1.0, 1.0]).realize()
    found = []
    for number in range(4):
        weight.assign([number, number]).realize()
        Tensor.from_uop(node).tolist()
        found.append(step(one).tolist())

    assert found == [[1.0, 1.0], [3.0, 3.0], [5.0, 5.0], [7.0, 7.0]]


@pytest.mark.slow
def test_values_are_held_inside_of_a_capture_only(
    target: str, held_here: Callable[[], list[UOp]]
) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    weight = numbers(3, 3)

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = bent(x @ weight)
        most = hidden.max().realize()
        least = (hidden @ weight).min().realize()
        return most, least

    def plain(x: Tensor) -> list[float]:
        hidden = bent(x @ weight)
        return [hidden.max().item(), (hidden @ weight).min().item()]

    for seed in range(4):
        x = numbers(2, 3, seed=seed)
        found = [t.item() for t in step(x)]
        numpy.testing.assert_allclose(found, plain(x), rtol=1e-5)
    gc.collect()
    assert not held_here()


# --- how long


def test_memory_goes_with_the_last_tensor_that_needs_it(
    target: str, held_here: Callable[[], list[UOp]]
) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no memory of a device")
    x = numbers(32, 32)
    before = GlobalCounters.mem_used
    y = x * 2
    z = (y + 1).relu()

    y.tolist()
    assert GlobalCounters.mem_used == before + y.nbytes()
    del y
    assert GlobalCounters.mem_used > before
    del z

    assert GlobalCounters.mem_used == before
    assert not held_here()


def test_a_write_frees_what_it_ends(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no memory of a device")
    x = numbers(32, 32)
    node = (x * 2).uop
    Tensor.from_uop(node).tolist()
    gc.collect()  # else what another test left may be freed meanwhile
    before = GlobalCounters.mem_used

    x.assign(x + 1).realize()

    assert GlobalCounters.mem_used == before - x.nbytes()


def test_a_step_of_training_holds_nothing(target: str, held_here: Callable[[], list[UOp]]) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no memory of a device")
    weights = [numbers(8, 8, seed=n).requires_grad_() for n in range(3)]
    optimizer = SGD(weights, lr=0.1)
    x = numbers(4, 8, seed=9)
    with Tensor.train():
        for _ in range(2):
            optimizer.zero_grad()
            hidden = x
            for weight in weights:
                hidden = bent(hidden @ weight)
            loss = hidden.sum().backward()
            optimizer.step()
            assert not held_here()
        assert isinstance(loss.item(), float)


# --- kinds of values


def test_values_of_symbolic_shape_are_held_while_they_live(
    target: str, held_here: Callable[[], list[UOp]]
) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    length = Variable("length", 1, 3)

    for number in (2, 3, 2):
        part = x[: length.bind(number)] * 2
        total = part.sum()
        assert [total.item(), total.item()] == [2.0 * sum(range(1, number + 1))] * 2
    del part, total
    gc.collect()
    assert not held_here()


def test_random_numbers_stay() -> None:
    x = numbers(4)
    noise = Tensor.rand(4)
    y = x + noise

    first = y.numpy()
    Tensor.rand(4).tolist()

    numpy.testing.assert_array_equal(y.numpy(), first)
    numpy.testing.assert_allclose((y * 2).numpy(), first * 2)


def test_values_on_several_devices_are_held(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has one device")
    device = target.partition(":")[0]
    x = numbers(4, 2).shard((device, f"{device}:1"), 0).realize()
    y = x * 2
    expected = y.tolist()

    assert counted(target, y.tolist) == 0
    node = y.uop
    x.assign(x + 1).realize()

    assert y.tolist() == expected
    numpy.testing.assert_allclose(
        Tensor.from_uop(node).numpy(), numpy.array(expected) + 2, rtol=1e-6
    )


# --- what is known of values


def entries_after(steps: int, held_here: Callable[[], list[UOp]]) -> int:
    """Number of notes on the values held of a running total that is read at each step."""
    weights = Tensor([1.0, 2.0]).realize()
    total = Tensor([0.0, 0.0]).realize()
    for step in range(steps):
        total = total + weights * step
        total.tolist()
    held = [held_by(node, None) for node in held_here()]
    found, stack = set[Reads](), [known.depends for known in held if known is not None]
    assert len(stack) >= steps
    while stack:
        reads = stack.pop()
        if reads not in found:
            found.add(reads)
            stack += reads.before
    return sum(len(reads.buffers) + len(reads.before) for reads in found)


def test_a_running_total_that_is_read_takes_linear_memory(
    held_here: Callable[[], list[UOp]],
) -> None:
    few = entries_after(20, held_here)
    gc.collect()

    assert entries_after(60, held_here) <= 4 * few


def test_a_running_total_ends_with_a_write_to_its_first_operand() -> None:
    first, weights = Tensor([1.0, 2.0]).realize(), Tensor([1.0, 1.0]).realize()
    total, steps = first * 2, 4
    for step in range(steps):
        total = total + weights * step
        total.tolist()

    first.assign([5.0, 6.0]).realize()

    assert total.tolist() == [8.0, 10.0]
    assert (first * 2 + weights * 6).tolist() == [16.0, 18.0]
