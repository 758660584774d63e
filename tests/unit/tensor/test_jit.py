"""TinyJit: captured at the second call, replayed from the third; refused where that is wrong."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy
import pytest

from tinycore import Context, GlobalCounters, Tensor, TinyJit
from tinycore.errors import JitError
from tinycore.tensor.capture import jit
from tinycore.tensor.capture.jit import MOST_CAPTURES


def host(*values: float) -> Tensor:
    return Tensor(list(values)).realize()


def test_replay_computes_with_new_inputs() -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return (x * 2).realize()

    results = [double(host(i, i + 1.0)).tolist() for i in range(5)]

    assert results == [[2.0 * i, 2.0 * i + 2] for i in range(5)]


def test_function_runs_only_twice() -> None:
    called = Mock()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        called()
        return x + 1

    for i in range(5):
        step(host(i))

    assert called.call_count == 2


def test_earlier_result_is_not_overwritten_by_a_later_call() -> None:
    step = TinyJit(lambda x: x + 1)
    results = [step(host(i)) for i in range(6)]

    assert [r.tolist() for r in results] == [[i + 1.0] for i in range(6)]


def test_state_changed_in_place_goes_on_changing() -> None:
    count = host(0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return count.assign(count + x).realize() * 1

    for _ in range(5):
        last = step(host(2))

    assert count.tolist() == [10.0]
    assert last.tolist() == [10.0]


def test_containers_of_tensors_are_taken_and_returned() -> None:
    @TinyJit
    def step(pair: list[Tensor], *, named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": pair[0] + pair[1], "product": named["a"] * pair[0]}

    for i in range(4):
        result = step([host(i), host(1)], named={"a": host(3)})

    assert result["sum"].tolist() == [4.0]
    assert result["product"].tolist() == [9.0]


def test_methods_are_captured_for_each_object() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = host(factor)

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.factor

    two, three = Scale(2), Scale(3)
    for i in range(4):
        assert two.run(host(i)).tolist() == [2.0 * i]
        assert three.run(host(i)).tolist() == [3.0 * i]


class Doubling:
    def __init__(self) -> None:
        self.factor = host(2)

    @TinyJit
    def run(self, x: Tensor) -> Tensor:
        return self.as_written(x)

    def as_written(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_a_method_keeps_its_object_alive_and_what_it_captured_does_not() -> None:
    kept = Doubling().run
    alive = weakref.ref(kept.__self__)

    for i in range(4):
        assert Doubling().run(host(i)).tolist() == [2.0 * i]
        assert kept(host(i)).tolist() == [2.0 * i]

    assert kept.captured is not None
    del kept
    assert alive() is None


@pytest.mark.parametrize("name", ["run", "as_written"])
def test_a_method_handed_to_a_captured_function_is_the_same_at_each_lookup(name: str) -> None:
    called, doubling = Mock(), Doubling()

    @TinyJit
    def apply(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        called()
        return function(x) + 1

    for i in range(5):
        assert apply(getattr(doubling, name), host(i)).tolist() == [2.0 * i + 1]

    assert called.call_count == 2


def test_random_numbers_advance_between_replays() -> None:
    Tensor.manual_seed(3)
    draw = TinyJit(lambda x: x + Tensor.rand(4))
    zero = Tensor.zeros(4).contiguous().realize()

    drawn = [draw(zero).tolist() for _ in range(5)]

    assert len({tuple(d) for d in drawn}) == 5


def test_random_numbers_are_those_of_the_function_without_jit() -> None:
    zero = Tensor.zeros(4).contiguous().realize()

    def draws(function: Callable[[Tensor], Tensor]) -> list[list[float]]:
        Tensor.manual_seed(11)
        return [function(zero).tolist() for _ in range(4)]

    def draw(x: Tensor) -> Tensor:
        return x + Tensor.rand(4)

    assert draws(TinyJit(draw)) == draws(draw)


def test_views_as_inputs() -> None:
    base = Tensor(numpy.arange(12, dtype=numpy.float32).reshape(3, 4)).realize()
    step = TinyJit(lambda x: x.sum(axis=0))

    for _ in range(4):
        assert step(base.T).tolist() == base.numpy().T.sum(0).tolist()


def test_launches_are_counted_in_replays() -> None:
    step = TinyJit(lambda x: (x + 1).contiguous() * 2)
    for i in range(3):
        GlobalCounters.reset()
        step(host(i))

    assert GlobalCounters.kernel_count >= 1


def test_jit_0_runs_the_function_each_time() -> None:
    calls = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    with Context(JIT=0):
        for i in range(4):
            step(host(i))

    assert len(calls) == 4


def captured(function: Callable[..., Tensor]) -> TinyJit[..., Tensor]:
    step = TinyJit(function)
    step(host(1, 2))
    step(host(3, 4))
    return step


def test_other_shapes_have_captures_of_their_own() -> None:
    step = TinyJit(lambda x: x.sum() + 1)

    for _ in range(3):
        assert step(host(1, 2)).item() == 4
        assert step(host(1, 2, 3)).item() == 7
    assert [len(c.step.items) > 0 for c in step.captures if c.step] == [True, True]


def test_python_values_have_captures_of_their_own() -> None:
    step = TinyJit(lambda x, k: x * k)

    for k in (2, 3, 2, 3, 2, 3, True, 1, 1.0):
        assert step(host(5), k).tolist() == [5.0 * k]
    assert len(step.captures) == 5


def test_other_structures_have_captures_of_their_own() -> None:
    step = TinyJit(lambda *x, **more: sum(x) * 2 + sum(more.values()))

    for _ in range(3):
        assert step(host(1)).tolist() == [2.0]
        assert step(host(1), host(3)).tolist() == [8.0]
        assert step(host(1), host(3), bias=host(1)).tolist() == [9.0]
    assert len(step.captures) == 3


@pytest.mark.slow
def test_a_value_that_always_changes_is_refused_in_the_end() -> None:
    step = TinyJit(lambda x, k: x * k)
    for k in range(MOST_CAPTURES):
        step(host(1), k)

    with pytest.raises(JitError, match=r"argument \[1\] is 99, was 63"):
        step(host(1), 99)


class Unprintable(int):
    """A number that cannot be shown."""

    def __repr__(self) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("one", "other"),
    [(1 << 20000, 3 << 20000), (Unprintable(2), Unprintable(4)), ("a" * 99 + "b", "a" * 99 + "c")],
    ids=["huge", "unprintable", "long"],
)
def test_values_that_are_shown_in_part_or_not_at_all_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, one: Any, other: Any
) -> None:
    monkeypatch.setattr(jit, "MOST_CAPTURES", 1)
    inside = one
    step = TinyJit(lambda x, k: x + (1 if k == inside else 0))
    for number in range(3):
        assert step(host(number), one).tolist() == [number + 1]

    with pytest.raises(JitError, match=r"differed from the last one: argument \[1\] is .*, was "):
        step(host(1), other)


def test_reading_a_value_inside_is_refused() -> None:
    step = TinyJit(lambda x: x + x.sum().item())
    step(host(1))

    with pytest.raises(JitError, match="read back"):
        step(host(1))


def test_result_that_is_no_tensor_is_refused() -> None:
    step = TinyJit(lambda x: (x + 1, 5))

    with pytest.raises(JitError, match="returned 5"):
        step(host(1))


def test_numpy_argument_is_refused() -> None:
    with pytest.raises(JitError, match="NumPy"):
        TinyJit(lambda x: x)(numpy.zeros(3))


def test_inputs_that_share_memory_have_a_capture_of_their_own() -> None:
    def swap(x: Tensor, y: Tensor) -> Tensor:
        x.assign(y + 1)
        return y * 10

    step, expected = TinyJit(swap), []
    for _ in range(3):
        assert step(host(1), host(2)).tolist() == [20.0]
        x, y = host(1), host(1)
        expected = [swap(y, y).tolist(), y.tolist()]
        assert [step(x, x).tolist(), x.tolist()] == expected

    base = host(1, 2, 3, 4)
    for _ in range(3):  # overlapping views
        step(base[:3], base[1:])
    assert base.tolist() != [1.0, 2.0, 3.0, 4.0]
    other = host(1, 2, 3, 4)
    for _ in range(3):
        swap(other[:3], other[1:]).realize()
    assert base.tolist() == other.tolist()


def test_function_that_launches_nothing_is_refused() -> None:
    step = TinyJit(lambda x: x)
    step(host(1))

    with pytest.raises(JitError, match="launched nothing"):
        step(host(1))


def test_reset_captures_anew() -> None:
    step = captured(lambda x: x + 1)
    step.reset()

    assert step(host(1, 2, 3)).tolist() == [2.0, 3.0, 4.0]


def test_numbers_as_arguments_are_content_not_code() -> None:
    step = TinyJit(lambda x, rate: (x * rate).realize())
    x = host(3)

    for rate in (1.0, 2.0, 3.0, 4.0):
        assert step(x, Tensor(rate)).tolist() == (x.numpy() * rate).tolist()


def test_a_captured_function_says_what_it_is() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        """One more."""
        return x + 1

    assert (step.__name__, step.__doc__) == ("step", "One more.")  # type: ignore[attr-defined]


def test_an_argument_without_elements_is_an_argument() -> None:
    def joined(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.sum() + x.cat(y)).realize(), x * 2

    step = TinyJit(joined)
    results = [step(Tensor.zeros(0), Tensor([float(i)])) for i in range(4)]

    assert [first.tolist() for first, _ in results] == [[0.0], [1.0], [2.0], [3.0]]
    assert [second.tolist() for _, second in results] == [[]] * 4


def test_without_guards_a_replay_compares_the_arguments_alone() -> None:
    class Scaled:
        def __init__(self) -> None:
            self.factor = 2
            self.table = numpy.zeros(1 << 20, numpy.float32)  # large and writable: guards refuse it

        def __call__(self, x: Tensor) -> Tensor:
            return (x * self.factor + Tensor(self.table[:1])).realize()

    scaled = Scaled()
    call = TinyJit(scaled, guards=False)
    found = []
    for number in range(6):
        scaled.factor = 2 if number < 4 else 5  # promised not to change: replays do not see it
        found.append(call(Tensor([float(number)])).item())
    assert found == [0, 2, 4, 6, 8, 10]
    assert call(Tensor([1.0, 2.0])).tolist() == [5, 10]  # another shape: a capture of its own
