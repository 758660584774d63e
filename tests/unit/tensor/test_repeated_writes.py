"""Equal writes in a row are different writes, whatever is read between them and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tinycore import Context, Device, Tensor, nn

BETWEEN: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda x: None,
    "kernelize": lambda x: x.kernelize(),
    "realize": lambda x: x.realize(),
    "item": lambda x: x.sum().item(),
}
KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "a copy": lambda x: x.clone(),
    "a product": lambda x: x * 1,
    "a sum": lambda x: x.sum().reshape(1),
}


@pytest.mark.parametrize("device", ["", "PYTHON"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("between", BETWEEN)
def test_each_value_of_a_counter_is_there(
    between: str, kept: str, order: list[int], device: str
) -> None:
    with Context(DEV=device or Device.DEFAULT):
        count = Tensor([0]).realize()
        seen = []
        for _ in range(5):
            count += 1
            seen.append(KEPT[kept](count))
            BETWEEN[between](count)

        assert {n: seen[n].item() for n in order} == {n: n + 1 for n in order}
        assert count.item() == 5


def test_a_write_between_kernels_that_wait_is_done_each_time() -> None:
    count = Tensor([1.0]).realize()
    seen = []
    for step in range(6):
        count.assign(count * 0.5)
        if step % 2:
            count.kernelize()
        seen.append(count.clone())

    assert [x.item() for x in seen] == [0.5**n for n in range(1, 7)]
    assert count.item() == 0.5**6


@pytest.mark.parametrize("first", ["difference", "written"])
def test_a_write_by_a_kernel_that_another_result_has_made_run_is_not_done_again(first: str) -> None:
    x = Tensor([7]).realize()
    x += 2
    difference = x - x
    copy = difference.clone()
    copy.kernelize()  # one kernel writes to both
    read = {"difference": difference, "written": x}

    assert read[first].tolist() == [0 if first == "difference" else 9]
    assert (x.tolist(), difference.tolist(), copy.tolist()) == ([9], [0], [0])
    x += 1
    assert x.tolist() == [10]


def test_a_kernel_by_hand_runs_as_often_as_it_is_called() -> None:
    def grow(x: Any) -> Any:
        return x.store(0, x[0] + 1)

    x = Tensor([0.0]).realize()
    seen = []
    for _ in range(4):
        x.custom_kernel(fxn=grow)
        seen.append(x.clone())

    assert [kept.item() for kept in seen] == [1.0, 2.0, 3.0, 4.0]
    assert x.item() == 4.0


def test_gradient_descent_by_hand_whose_losses_are_read_at_the_end() -> None:
    w = Tensor([1.0, -2.0, 4.0]).realize()
    losses = []
    for _ in range(5):
        loss = (w * w).sum()
        (slope,) = loss.gradient(w)
        losses.append(loss.clone())
        w.assign(w - 0.25 * slope)

    expected, x = [], numpy.array([1.0, -2.0, 4.0])
    for _ in range(5):
        expected.append((x * x).sum())
        x = x - 0.25 * 2 * x
    assert [loss.item() for loss in losses] == expected
    assert w.tolist() == x.tolist()


def test_a_schedule_steps_in_a_loop() -> None:
    optimizer = nn.optim.SGD([Tensor([1.0], requires_grad=True)], lr=1.0)
    schedule = nn.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    seen = []
    for _ in range(5):
        schedule.schedule_step()
        seen.append(optimizer.lr.clone())

    assert [rate.item() for rate in seen] == [0.5**n for n in range(1, 6)]
    assert optimizer.lr.item() == 0.5**5


def test_a_batch_norm_counts_its_batches() -> None:
    layer = nn.BatchNorm(2)
    counts = []
    with Tensor.train():
        for _ in range(5):
            layer(Tensor.ones(4, 2, 1, 1))
            counts.append(layer.num_batches_tracked.clone())

    assert [count.item() for count in counts] == [1, 2, 3, 4, 5]
    assert layer.num_batches_tracked.item() == 5
