"""Sizes at the edge: more elements than can be numbered, and sizes equal only by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tinycore import Tensor, TinyJit, Variable
from tinycore.errors import ShapeError

LONG = 1 << 32
longest = Variable("longest", 1, (1 << 31) - 1)
TOO_MANY: dict[str, Callable[[], Tensor]] = {
    "expand": lambda: Tensor.arange(LONG).reshape(LONG, 1).expand(LONG, LONG),
    "full": lambda: Tensor.full((LONG, LONG), 1),
    "zeros": lambda: Tensor.zeros(1 << 61, 4),
    "empty": lambda: Tensor.empty(1 << 61, 4),
    "rand": lambda: Tensor.rand(1 << 61, 4),
    "eye": lambda: Tensor.eye(LONG),
    "arange": lambda: Tensor.arange(1 << 63, dtype="int64"),
    "pad": lambda: Tensor.ones(2, 2).pad(((0, LONG), (0, LONG))),
    "repeat": lambda: Tensor.ones(2, 2).repeat(LONG, LONG),
    "repeat_interleave": lambda: Tensor.ones(4).repeat_interleave(1 << 61),
    "broadcast": lambda: Tensor.ones(LONG, 1) + Tensor.ones(LONG),
    "rows": lambda: Tensor.ones(2, LONG)[Tensor.zeros(LONG, dtype="int32")],
    "windows": lambda: Tensor.ones(1 << 33).unfold(0, LONG, 1),
    "variable": lambda: Tensor.ones(1, 1 << 34).expand(longest.bind(1), 1 << 34),
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_more_elements_than_int64_can_number_are_refused_at_the_call(name: str) -> None:
    with pytest.raises(ShapeError, match=r"elements; there can be at most 2\*\*63 - 1"):
        TOO_MANY[name]()


def test_as_many_elements_as_int64_can_number_are_taken() -> None:
    assert (Tensor.zeros((1 << 63) - 1, dtype="uint8") + 1).shape == ((1 << 63) - 1,)


def test_no_elements_are_never_too_many() -> None:
    assert Tensor.zeros(LONG, LONG, 0).sum().item() == 0


# --- two symbolic sizes, one number

short, long = Variable("short", 1, 8), Variable("long", 1, 12)

TOGETHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise": lambda a, b: a * b,
    "where": lambda a, b: (a > 2).where(a, b),
    "stack": lambda a, b: Tensor.stack(a, b).sin(),
    "cat": lambda a, b: a.reshape(1, -1).cat(b.reshape(1, -1)).exp2(),
    "dot": lambda a, b: a.reshape(1, -1) @ b.reshape(-1, 1),
}
SIZES: dict[str, tuple[Any, Any]] = {
    "short beside long": (short.bind(3), long.bind(3)),
    "long beside short": (long.bind(3), short.bind(3)),
    "fixed beside long": (3, long.bind(3)),
    "short beside fixed": (short.bind(3), 3),
    "two bindings": (short.bind(2) + 1, short.bind(3)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", TOGETHER)
def test_sizes_of_one_number_stand_beside_each_other(name: str, sizes: str) -> None:
    def derived(m: Any, n: Any) -> list[Any]:
        x = (Tensor.arange(12).float() / 3).contiguous().realize().requires_grad_()
        y = (Tensor.arange(12).float() - 1).contiguous().realize().requires_grad_()
        total = TOGETHER[name](x[:m], y[:n]).sum()
        found = [t.flatten().tolist() for t in (*total.gradient(x, y), total)]
        return [number for numbers in found for number in numbers]

    assert derived(*SIZES[sizes]) == pytest.approx(derived(3, 3))


def test_a_value_whose_size_has_the_number_of_the_place_is_written() -> None:
    x, y = (Tensor([0.0] * 12).realize(), Tensor.arange(12).float().contiguous().realize())
    x[: short.bind(3)] = y[4 : long.bind(3) + 4]
    x[8 : long.bind(2) + 8].assign(y[:2])
    assert x.tolist() == [4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_sizes_of_other_numbers_are_refused() -> None:
    x = Tensor.arange(12).realize()
    with pytest.raises(ShapeError, match=r"add: shapes \(short\[short=3\],\) and \(long\[long=4\]"):
        x[: short.bind(3)] + x[: long.bind(4)]
    with pytest.raises(ShapeError, match="stack: shapes"):
        Tensor.stack(x[: short.bind(1)], x[: long.bind(4)])


def test_a_replay_checks_that_the_numbers_are_equal_still() -> None:
    x = Tensor.arange(12).realize()
    add = TinyJit(lambda m, n: (x[:m] + x[:n]).realize())
    for number in (3, 3, 3, 5, 8, 3):
        found = add(short.bind(number), long.bind(number)).tolist()
        assert found == [2 * i for i in range(number)]
    with pytest.raises(ShapeError, match="cannot be broadcast together"):
        add(short.bind(3), long.bind(4))
    assert add(short.bind(4), long.bind(4)).tolist() == [0, 2, 4, 6]


def test_a_replay_checks_that_a_number_is_that_of_a_fixed_size_still() -> None:
    x = Tensor.arange(12).realize()
    add = TinyJit(lambda n: (x[:n] + x[:3]).realize())
    assert [add(short.bind(3)).tolist() for _ in range(4)] == [[0, 2, 4]] * 4
    with pytest.raises(ShapeError, match="cannot be broadcast together"):
        add(short.bind(4))
