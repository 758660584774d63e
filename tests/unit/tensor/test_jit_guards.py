"""Programs that an unguarded replay would silently get wrong: refused, or computed right."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Context, Tensor, TinyJit, Variable
from tinycore.errors import JitError


def host(*values: float) -> Tensor:
    return Tensor([float(v) for v in values]).realize()


# --- six things that tinygrad documents as silently different


def test_a_method_shared_by_objects() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = host(factor)

        def run(self, x: Tensor) -> Tensor:
            return x * self.factor

    shared = TinyJit(Scale.run)
    two, three = Scale(2), Scale(3)

    for i in range(4):
        assert shared(two, host(i)).tolist() == [2.0 * i]
        assert shared(three, host(i)).tolist() == [3.0 * i]


def test_a_slice_written_and_not_realized() -> None:
    cache = Tensor.zeros(4).contiguous().realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        cache[1:2] = x
        return x + 1

    for i in range(5):
        step(host(i))
        assert cache.tolist() == [0.0, float(i), 0.0, 0.0]


def test_results_are_not_overwritten_by_the_next_call() -> None:
    step = TinyJit(lambda x: {"a": x + 1, "b": (x * 2).realize()})
    found = [step(host(i)) for i in range(6)]

    assert [(f["a"].item(), f["b"].item()) for f in found] == [(i + 1, 2 * i) for i in range(6)]


def test_a_symbolic_pad() -> None:
    length = Variable("length", 1, 4)
    step = TinyJit(lambda x, n: x[:n].pad(((0, 4 - n),)) + 1)
    x = host(1, 2, 3, 4)

    for n in (1, 2, 3, 4, 1):
        assert step(x, length.bind(n)).tolist() == [i + 2.0 if i < n else 1.0 for i in range(4)]
    assert len(step.captures) == 1


def test_python_numbers_around_the_function() -> None:
    factor = 2
    step = TinyJit(lambda x: x * factor)
    for factor in (2, 2, 2, 5, 5, 5):
        assert step(host(3)).tolist() == [3.0 * factor]

    class Layer:
        scale = 1

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.scale

    layer = Layer()
    for layer.scale in (2, 2, 2, 7, 7, 7):
        assert layer.run(host(3)).tolist() == [3.0 * layer.scale]


def test_branches_on_what_is_around() -> None:
    @dataclasses.dataclass
    class Options:
        double: bool

    def body(x: Tensor, options: Options) -> Tensor:
        return x * 2 if options.double else x + 1

    step = TinyJit(body)
    for double in (True, True, True, False, False, False, True):
        assert step(host(5), Options(double)).item() == (10 if double else 6)


def test_branching_on_data_is_refused() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x + 1

    step(host(1))
    with pytest.raises(JitError, match="read back"):
        step(host(1))


# --- results and arguments


def test_a_write_to_a_result_that_is_an_argument_shows_in_it() -> None:
    step = TinyJit(lambda x: (x, x.reshape(2, 1), x[1:], x + 1))

    for i in range(4):
        x = host(i, i + 1)
        whole, column, tail, _ = step(x)
        whole += 10
        column += 100
        tail += 1000
        assert x.tolist() == [i + 110.0, i + 1111.0]
        x[0] = 5
        assert whole.tolist() == column.reshape(2).tolist() == [5.0, i + 1111.0]


def test_a_result_that_is_a_view_of_an_argument_shows_it() -> None:
    step = TinyJit(lambda x: ((x + 1).realize(), x[1:], x))

    for i in range(4):
        x = host(i, i + 1)
        _, tail, whole = step(x)
        assert tail.tolist() == [i + 1.0]
        x.assign(x * 0).realize()
        assert tail.tolist() == [0.0]
        assert whole.tolist() == [0.0, 0.0]


def test_an_argument_that_is_written_to_changes() -> None:
    @TinyJit
    def step(x: Tensor) -> None:
        x.assign(x + 1)

    x = host(0)
    for _ in range(4):
        step(x)
    y = host(10)
    step(y)

    assert (x.tolist(), y.tolist()) == ([4.0], [11.0])


def test_an_argument_that_the_function_also_reaches_is_refused() -> None:
    weight = host(2)
    step = TinyJit(lambda x: x * weight)
    step(weight)

    with pytest.raises(JitError, match="also reaches in another way"):
        step(weight)


def test_state_as_argument_of_a_replay_is_refused() -> None:
    weight = host(2)
    step = TinyJit(lambda x: x * weight)
    for i in range(3):
        step(host(i))

    with pytest.raises(JitError, match=r"memory that\s+the function also works on"):
        step(weight)


def test_a_result_fed_back_is_an_argument_like_any_other() -> None:
    step = TinyJit(lambda x: x * 2)
    x = host(1)
    for _ in range(6):
        x = step(x)

    assert x.tolist() == [64.0]


@dataclasses.dataclass
class Pair:
    first: Tensor
    second: Tensor
    name: str = "pair"


def test_dataclasses_and_nested_containers() -> None:
    @TinyJit
    def step(pair: Pair, *, more: Mapping[str, tuple[Tensor, ...]]) -> Pair:
        return Pair(pair.first + more["a"][0], pair.second * more["a"][1], pair.name)

    def returned(pair: Pair, *, more: Mapping[str, tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        return (pair.first + more["a"][0], pair.second * more["a"][1])

    whole = TinyJit(returned)
    for i in range(4):
        more = {"a": (host(i), host(i + 1))}
        first, second = whole(Pair(host(1), host(2)), more=more)
        assert (first.item(), second.item()) == (1 + i, 2 * (i + 1))
    with pytest.raises(JitError, match=r"returned 'pair' \(result.name\)"):
        step(Pair(host(1), host(2)), more=more)


def test_another_device_has_a_capture_of_its_own() -> None:
    step = TinyJit(lambda x: x + 1)

    for i in range(3):
        found = step(host(i)), step(Tensor([float(i)], device="PYTHON").realize())
        assert [f.item() for f in found] == [i + 1, i + 1]
        assert found[1].device == "PYTHON"


# --- state


def test_a_pending_write_is_done_before_a_replay() -> None:
    state = host(0)
    step = TinyJit(lambda x: x + state)
    for i in range(5):
        state.assign(Tensor([i * 10.0]))
        assert step(host(1)).tolist() == [1.0 + 10 * i]


def test_a_write_from_before_the_capture_is_no_part_of_it() -> None:
    state = host(0)
    step = TinyJit(lambda x: state.assign(state + x).realize() + 0)
    step(host(1))
    state.assign(Tensor([100.0]))

    assert [step(host(1)).item() for _ in range(3)] == [101, 102, 103]


def test_a_replaced_weight_is_used() -> None:
    class Layer:
        def __init__(self) -> None:
            self.weight = host(2)

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.weight

    layer = Layer()
    assert [layer.run(host(1)).item() for _ in range(3)] == [2, 2, 2]
    layer.weight = host(5)
    assert [layer.run(host(1)).item() for _ in range(3)] == [5, 5, 5]
    layer.weight.replace(host(7))
    assert [layer.run(host(1)).item() for _ in range(3)] == [7, 7, 7]


def test_a_tensor_that_is_rebound_by_the_function_is_refused() -> None:
    class Counter:
        def __init__(self) -> None:
            self.inner: dict[str, Tensor] = {"n": host(0)}

        def step(self, x: Tensor) -> Tensor:
            self.inner["n"] = (self.inner["n"] + x).realize()
            return self.inner["n"] * 1

    step = TinyJit(Counter().step)
    step(host(1))

    with pytest.raises(JitError, match="put another one in its place"):
        step(host(1))


def test_data_of_the_host_that_changes_is_refused() -> None:
    generator = numpy.random.default_rng(0)
    step = TinyJit(lambda x: x + Tensor(generator.standard_normal(2).astype(numpy.float32)))
    step(host(1, 2))

    with pytest.raises(JitError, match="other data from the host"):
        step(host(1, 2))


def test_data_of_the_host_that_stays_is_a_constant() -> None:
    step = TinyJit(lambda x: x + Tensor([1.0, 2.0]))

    for i in range(4):
        assert step(host(i, i)).tolist() == [i + 1.0, i + 2.0]


def test_a_python_number_that_changes_inside_is_refused() -> None:
    step = TinyJit(lambda x: x * random.random())
    step(host(1))

    with pytest.raises(JitError, match="something else in its second call"):
        step(host(1))


def test_weights_filled_in_the_first_call_are_captured_right() -> None:
    weight = Tensor.arange(3) * 2.0
    step = TinyJit(lambda x: (weight.realize() * x).sum())

    assert [step(host(i)).item() for i in range(5)] == [6 * i for i in range(5)]


def test_a_jitted_function_inside_another_is_a_part_of_it() -> None:
    inner = TinyJit(lambda x: (x * 2).realize())
    outer = TinyJit(lambda x: inner(x) + 1)
    for i in range(4):
        inner(host(i))

    assert [outer(host(i)).item() for i in range(5)] == [2 * i + 1 for i in range(5)]


# --- variables


def test_a_variable_bound_inside_is_refused() -> None:
    length = Variable("length", 1, 4)
    x = host(1, 2, 3, 4)
    numbers = iter((2, 3))
    step = TinyJit(lambda x: x[: length.bind(next(numbers))].sum() + 0)
    step(x)

    with pytest.raises(JitError, match="bound the Variable length to 3 itself"):
        step(x)


def test_the_number_of_a_variable_is_not_to_be_looked_at() -> None:
    length = Variable("length", 1, 4)
    step = TinyJit(lambda x, n: x * n.value)
    step(host(1), length.bind(2))

    with pytest.raises(JitError, match="was asked for inside a function being captured"):
        step(host(1), length.bind(2))


def test_results_of_symbolic_shape() -> None:
    length = Variable("length", 1, 4)
    step = TinyJit(lambda x, n: (x[:n] * 2).realize())
    x = host(1, 2, 3, 4)
    found = [(n, step(x, length.bind(n))) for n in (1, 4, 2, 3)]

    assert [f.tolist() for _, f in found] == [[2.0 * i for i in range(1, n + 1)] for n, _ in found]


def test_tensors_of_symbolic_shape_as_arguments() -> None:
    length = Variable("length", 1, 4)
    step = TinyJit(lambda x: x.sum() + 0)
    x = host(1, 2, 3, 4)

    assert [step(x[: length.bind(n)]).item() for n in (1, 2, 3, 4)] == [1, 3, 6, 10]
    assert len(step.captures) == 1


# --- pickle

SCRIPT = """
import pickle, sys
from tinycore import Context, Tensor, Variable
with Context(DEV=sys.argv[2]):
    step = pickle.load(open(sys.argv[1], "rb"))
    length = Variable("length", 1, 3)
    for n in (1, 3):
        result = step(Tensor([1.0, 2.0, 3.0]), length.bind(n))
        print(result["sum"].tolist(), len(result["drawn"].tolist()))
    try:
        step(Tensor([1.0, 2.0]), length.bind(1))
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_captured_function_replays_in_another_process(tmp_path: Path, target: str) -> None:
    if os.environ.get("STANDIN"):
        pytest.skip("another process has no stand-in")
    weight, length = host(10, 20, 30), Variable("length", 1, 3)

    @TinyJit
    def step(x: Tensor, n: Any) -> dict[str, Tensor]:
        return {"sum": (x * weight)[:n].sum(), "drawn": Tensor.rand(2) + 0}

    with pytest.raises(JitError, match="captured nothing yet"):
        pickle.dumps(step)
    for _ in range(2):
        step(host(1, 1, 1), length.bind(2))
    file = tmp_path / "step.pickle"
    file.write_bytes(pickle.dumps(step))
    command = [sys.executable, "-c", SCRIPT, str(file), target]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert found.stdout.split("\n")[:3] == ["10.0 2", "140.0 2", "JitError"], found.stderr


def test_intermediate_memory_can_be_given_back() -> None:
    step = TinyJit(lambda x: ((x + 1).contiguous() * 2).contiguous().sum())
    for i in range(3):
        step(host(i))
    assert step.captured is not None
    step.captured.free_intermediates()

    assert not any(b.is_allocated for b in step.captured.made)
    assert step(host(4)).item() == 10


def test_debug_says_what_was_captured(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(TRACE="jit"):
        step = TinyJit(lambda x: (x + 1).contiguous() * 2)
        for i in range(3):
            step(host(i))

    told = capsys.readouterr().err
    assert "captured" in told
    assert "1 inputs, 1 outputs" in told
    assert "replaying" in told
