"""Many writes to one memory are scheduled in time that grows with their number, not its square."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from call_counts import calls

from tinycore import Context, Tensor

FEW, MANY = 30, 120


def whole(x: Tensor, number: int) -> None:
    x.assign(x * 0.5 + number)


def part(x: Tensor, number: int) -> None:
    x[number % 8] = x[(number + 1) % 8] + number


def written(change: Callable[[Tensor, int], None], count: int) -> Tensor:
    x = Tensor([0.0] * 8, device="PYTHON").realize()
    for number in range(count):
        change(x, number)
    return x


@pytest.mark.parametrize("change", [whole, part])
def test_four_times_the_writes_are_four_times_the_work(
    change: Callable[[Tensor, int], None],
) -> None:
    with Context(CCACHE=0, VERIFY=0):
        written(change, 3).schedule()
        few, many = (calls(written(change, count).schedule) for count in (FEW, MANY))

    assert many < 5 * few


@pytest.mark.parametrize("change", [whole, part])
def test_many_writes_come_out_as_done_one_by_one(change: Callable[[Tensor, int], None]) -> None:
    together, single = written(change, 30), Tensor([0.0] * 8, device="PYTHON").realize()
    for number in range(30):
        change(single, number)
        single.realize()

    assert together.tolist() == single.tolist()


def test_what_was_read_between_many_writes_is_what_it_was_then() -> None:
    x = Tensor([0.0, 1.0], device="PYTHON").realize()
    seen = []
    for _ in range(12):
        seen.append(x.flip(0) * 10)
        x += 1
    late = x * 1

    Tensor.realize(x, *seen)

    assert [s.tolist() for s in seen] == [[10.0 * (n + 1), 10.0 * n] for n in range(12)]
    assert late.tolist() == x.tolist() == [12.0, 13.0]
