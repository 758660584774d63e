"""Values that are read from the memory they were computed into, while their graph stays.

See docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tinycore import Tensor, TinyJit
from tinycore.engine.captured_step import CapturedStep
from tinycore.engine.counters import GlobalCounters
from tinycore.nn.optim import SGD
from tinycore.tensor.runtime import runtime
from tinycore.tensor.storage import held_values

pytestmark = pytest.mark.sample(2)

LAYERS = 5


@pytest.fixture(autouse=True)
def nothing_held() -> None:
    """Collect the values that other tests left behind."""
    gc.collect()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    found = numpy.random.default_rng(seed).uniform(-1, 1, shape).astype(numpy.float32)
    return Tensor(found).realize()


def bent(x: Tensor) -> Tensor:
    """Something that is not linear, and soon compiled."""
    return x * x * 0.5 + x


def counted(target: str, run: Callable[[], object]) -> int:
    """The launches of a run."""
    if target == "reference":
        pytest.skip("the evaluator launches nothing")
    GlobalCounters.reset()
    run()
    return GlobalCounters.kernel_count


# --- what is not computed again


def launches_by_layer(target: str, look: Callable[[Tensor], object]) -> list[int]:
    """The launches of each layer of a stack in which something is looked at."""
    weights = [numbers(4, 4, seed=n) for n in range(LAYERS)]
    state: Any = numbers(2, 4, seed=99)
    found = []
    for weight in weights:
        key = state @ weight
        found.append(counted(target, lambda key=key: look(key)))  # type: ignore[misc]
        state = state + (key * 0.5).relu() @ weight
    found.append(counted(target, state.tolist))
    return found


@pytest.mark.parametrize("how", ["realize", "tolist", "argmax"])
def test_a_layer_computes_no_earlier_layer(how: str, target: str) -> None:
    looks: dict[str, Callable[[Tensor], object]] = {
        "realize": lambda key: key.realize(),
        "tolist": lambda key: key.tolist(),
        "argmax": lambda key: key.argmax().tolist(),
    }
    found = launches_by_layer(target, looks[how])

    assert max(found[2:-1]) <= found[2] <= 5, found


def test_what_was_read_is_not_computed_again(target: str) -> None:
    x = numbers(3)
    loss = (x * 2).sum()

    first = loss.item()

    assert counted(target, loss.item) == 0
    assert loss.item() == first
    assert counted(target, (loss + 1).item) == 1
    assert loss.gradient(x)[0].tolist() == [2.0] * 3


def test_realizing_what_was_read_launches_nothing(target: str) -> None:
    x = numbers(3)
    y = x * 2
    expected = y.tolist()

    assert counted(target, y.realize) == 0
    assert y.tolist() == expected


def test_gradients_read_one_by_one_share_what_they_need(target: str) -> None:
    weights = [numbers(4, 4, seed=n).requires_grad_() for n in range(4)]

    def made() -> list[Tensor]:
        state = numbers(2, 4, seed=9)
        for weight in weights:
            state = bent(state @ weight)
        return state.sum().gradient(*weights)

    found = made()
    counted(target, lambda: [slope.tolist() for slope in found])
    among_others = GlobalCounters.global_ops
    alone = 0
    for number in range(4):
        counted(target, made()[number].tolist)
        alone += GlobalCounters.global_ops

    assert among_others < alone
    for slope, again in zip(found, made(), strict=True):
        numpy.testing.assert_allclose(slope.numpy(), again.numpy(), rtol=1e-4, atol=1e-6)


def test_a_schedule_shows_what_is_left_to_do(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator schedules nothing")
    y = numbers(3) * 2
    assert len(y.sum().schedule()) == 1

    y.tolist()

    assert len(y.schedule()) == 0


def test_what_was_read_is_not_computed_again_after_what_it_was_made_of_is_realized(
    target: str,
) -> None:
    weight, x = numbers(3).requires_grad_(), numbers(3, seed=1)
    shifted = x + 1
    loss = (weight * shifted).sum()
    expected = loss.item()

    shifted.realize()

    assert counted(target, loss.item) == 0
    assert loss.item() == expected
    assert loss.gradient(weight)[0].tolist() == shifted.tolist()


# --- gradients


@pytest.mark.parametrize("how", [Tensor.realize, Tensor.tolist])
def test_gradients_are_those_of_a_graph_that_nobody_looked_at(how: Callable[..., object]) -> None:
    def found(look: bool) -> list[Any]:
        w, x = numbers(3, 3, seed=1).requires_grad_(), numbers(2, 3, seed=2)
        hidden = bent(x @ w)
        if look:
            how((hidden * 3).sum(0))
        again = bent(hidden @ w)
        if look:
            how(again.max())
            (again + 0).tolist()
        loss = (again * again).sum()
        if look:
            loss.item()
        loss.backward()
        if look:
            loss.item()
        assert w.grad is not None
        return [w.grad.numpy(), loss.numpy()]

    for plain, looked in zip(found(False), found(True), strict=True):
        numpy.testing.assert_allclose(plain, looked, rtol=1e-5, atol=1e-6)


def test_second_derivatives_see_the_graph() -> None:
    x = numbers(3)
    (slope,) = (x**3).sum().gradient(x)

    slope.tolist()

    (curve,) = slope.sum().gradient(x)
    numpy.testing.assert_allclose(curve.numpy(), 6 * x.numpy(), rtol=1e-5)


def test_training_that_looks_at_everything_learns_the_same() -> None:
    def trained(look: bool) -> list[float]:
        weight = numbers(3, 3).requires_grad_()
        optimizer = SGD([weight], lr=0.1, momentum=0.9)
        losses = []
        with Tensor.train():
            for _ in range(4):
                optimizer.zero_grad()
                hidden = bent(weight @ weight)
                loss = (hidden * hidden).sum().backward()
                if look:
                    hidden.tolist()
                    losses.append(loss.item())
                    hidden[0].sum().item()
                optimizer.step()
                if look:
                    assert loss.item() == losses[-1]
        return list(weight.flatten().tolist())

    numpy.testing.assert_allclose(trained(False), trained(True), rtol=1e-4, atol=1e-6)


# --- writes


def test_a_write_to_what_was_read_ends_it() -> None:
    x = Tensor([1.0, 2.0]).realize()
    node = (x * 2).uop
    assert Tensor.from_uop(node).tolist() == [2.0, 4.0]

    x.assign(x + 10).realize()

    assert (x * 2).tolist() == [22.0, 24.0]


def test_a_write_to_a_part_ends_it() -> None:
    x = Tensor([1.0, 2.0]).realize()
    node = (x * 2).uop
    assert Tensor.from_uop(node).tolist() == [2.0, 4.0]

    x[1] = 7
    assert x.tolist() == [1.0, 7.0]

    assert Tensor.from_uop(node).tolist() == [2.0, 14.0]


def test_values_of_values_end_as_well() -> None:
    x = Tensor([1.0, 2.0]).realize()
    first = x * 2
    first.tolist()
    second = first.exp2()
    second.tolist()
    nodes = first.uop, second.uop
    del first, second

    x.assign(x + 1).realize()

    assert [Tensor.from_uop(node).tolist() for node in nodes] == [[4.0, 6.0], [16.0, 64.0]]


def test_tensors_keep_the_value_from_before_a_write(target: str) -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x * 2
    y.tolist()

    x.assign(x + 10)

    assert counted(target, x.realize) <= 2
    assert (y.tolist(), (x * 2).tolist()) == ([2.0, 4.0], [22.0, 24.0])


def test_a_value_above_a_pending_write_is_that_after_it() -> None:
    x = Tensor([1.0, 2.0]).realize()
    x.assign(x + 10)
    y = x * 2

    y.sum().item()
    y.tolist()
    x.assign(x + 100)
    z = x * 2

    assert (y.tolist(), z.tolist(), x.tolist()) == ([22.0, 24.0], [222.0, 224.0], [111.0, 112.0])


def test_a_write_below_a_value_is_done_once() -> None:
    x = Tensor([1.0, 2.0]).realize()
    memory = x.uop
    weight = Tensor([3.0, 4.0]).realize()
    x.assign(x + 10)
    hidden = (x * weight).contiguous()
    result = hidden * hidden
    del x

    hidden.max().item()
    (slope,) = result.sum().gradient(weight)

    assert slope.tolist() == [2 * 33.0 * 11, 2 * 48.0 * 12]
    assert Tensor.from_uop(memory).tolist() == [11.0, 12.0]


def test_equal_tensors_do_not_share_what_was_read() -> None:
    x = Tensor([1.0, 2.0]).realize()
    first, second = x * 2, x * 2
    assert first.uop is second.uop
    first.tolist()

    first.realize()
    first.assign([0.0, 0.0]).realize()

    third = x * 2
    assert (second.tolist(), third.tolist()) == ([2.0, 4.0], [2.0, 4.0])


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x.permute(1, 0),
        lambda x: x.reshape(1, 4),
        lambda x: x[:1],
        lambda x: x[None],
        lambda x: x.flip(0).reshape(4),
    ],
)
def test_a_view_of_what_was_read_is_written_as_ever(how: Callable[[Tensor], Tensor]) -> None:
    def found(look: bool) -> list[Any]:
        x = numbers(2, 2) * 2
        if look:
            x.tolist()
        view = how(x)
        view.realize()
        view.assign(numbers(*view.shape, seed=5)).realize()
        return [x.tolist(), view.tolist()]

    assert found(True) == found(False)


def test_parts_of_what_was_read_are_written_as_ever() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize() * 2
    x.tolist()
    whole = x + 0

    x[0] = 9
    x[:, 1].assign([5.0, 6.0])

    assert (x.tolist(), whole.tolist()) == ([[9.0, 5.0], [6.0, 6.0]], [[2.0, 4.0], [6.0, 8.0]])


def test_a_clone_that_was_read_is_written_as_ever() -> None:
    x = Tensor([1.0, 2.0]).realize()
    copy = (x * 2).clone()
    view = copy[:1]
    copy.tolist()

    copy[0] = 9

    assert (copy.tolist(), view.tolist()) == ([9.0, 4.0], [9.0])


def test_a_write_in_another_thread_ends_it() -> None:
    x = Tensor([1.0, 2.0]).realize()
    node = (x * 2).uop
    Tensor.from_uop(node).tolist()

    thread = threading.Thread(target=lambda: x.assign([5.0, 6.0]).realize())
    thread.start()
    thread.join()

    assert Tensor.from_uop(node).tolist() == [10.0, 12.0]


def test_a_value_of_what_is_written_meanwhile_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0, 2.0]).realize()
    run = runtime()

    def realize(*args: Any) -> Any:
        held_values.end([])  # as another thread that writes
        return plain(*args)

    plain = run.realize
    for meanwhile in (False, True):
        y = x * (2.0 + meanwhile)
        with monkeypatch.context() as patch:
            if meanwhile:
                patch.setattr(run, "realize", realize)
            y.tolist()
        assert (held_values.memory_held(y.uop) is None) == meanwhile


def test_memory_that_a_held_value_came_to_be_over_ends_it() -> None:
    x = Tensor([1.0, 2.0]).realize()
    doubled = x * 2
    more = doubled + 1
    more.tolist()
    doubled.realize()  # the node of `more` is over its memory from now on

    numpy.from_dlpack(doubled)[:] = 7

    assert (doubled + 1).tolist() == [8.0, 8.0]


def test_a_read_during_a_replay_is_not_held_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Tensor([1.0, 2.0]).realize()
    weight.requires_grad = True
    step = TinyJit(lambda: weight.assign(weight + 1).realize())
    for _ in range(3):
        step()
    read, replay = list[Tensor](), CapturedStep.replay

    def other() -> None:
        read.append(weight * 2 + 1)
        read[0].tolist()

    def beside(*args: Any) -> Any:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return replay(*args)

    with monkeypatch.context() as patch:
        patch.setattr(CapturedStep, "replay", beside)
        step()

    assert (weight * 2 + 1).tolist() == [2 * value + 1 for value in weight.tolist()]
