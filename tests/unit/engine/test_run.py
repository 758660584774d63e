"""Compiling, launching and counting."""

from __future__ import annotations

import gc
import weakref

import numpy
import pytest

from tests.unit.schedule.graphs import buffer, kernels, matmul, total
from tinycore import Context, Device, GlobalCounters, Tensor
from tinycore._lru import Lru
from tinycore.dtype import dtypes
from tinycore.engine import run
from tinycore.engine.compile import programs, runner_for
from tinycore.engine.counters import Estimate
from tinycore.engine.estimate import estimate
from tinycore.errors import ArgumentError
from tinycore.schedule.compiled import schedules
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def ast_of(root: UOp) -> UOp:
    ast = kernels(root)[-1].arg.ast
    assert isinstance(ast, UOp)
    return ast


def test_estimate_counts_a_load_of_the_same_element_once() -> None:
    x = buffer(16)

    assert estimate(ast_of(x * x + x)) == Estimate(32, 2 * 16 * 4)


def test_estimate_of_a_sum_has_one_operation_per_element() -> None:
    assert estimate(ast_of(total(buffer(8, 16), 1))) == Estimate(128, 4 * (128 + 8))


def test_estimate_of_a_shrunk_read_counts_what_is_read() -> None:
    x = buffer(1000)
    part = UOp(Op.SHRINK, x.dtype, (x,), ((0, 10),))

    assert estimate(ast_of(part + part)) == Estimate(10, 80)


def test_copy_reads_and_writes_every_byte() -> None:
    elsewhere = UOp(Op.DEVICE, dtypes.void, (), "NULL")
    x = buffer(32)

    assert estimate(ast_of(UOp(Op.COPY, x.dtype, (x, elsewhere)))) == Estimate(0, 256)


def test_programs_compiled_without_tiling_are_kept_apart() -> None:
    ast = ast_of(matmul(buffer(8, 8), buffer(8, 8)))
    tiled = runner_for(ast, "PYTHON")
    with Context(NOOPT=1):
        plain = runner_for(ast, "PYTHON")

    assert plain is not tiled
    assert runner_for(ast, "PYTHON") is tiled


def test_program_is_kept_with_its_device() -> None:
    ast = ast_of(buffer(3) + buffer(3))
    runner_for(ast, "PYTHON")

    assert any(key[0] is ast for key in programs)


def test_launch_without_a_value_for_its_variable_is_refused() -> None:
    x, n = buffer(4), UOp.variable("n", 1, 4)
    ast = ast_of(x + x)
    loop = next(u for u in ast.toposort() if u.op is Op.RANGE)
    with Context(NOOPT=1):
        runner = runner_for(ast.substitute({loop: loop.with_src((n,))}), "PYTHON")

    with pytest.raises(ArgumentError, match="needs a value for n"):
        runner.launch((), {}, wait=True)


def test_schedule_channel_lists_each_launch(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor([1.0, 2.0]).realize()
    with Context(TRACE="schedule"):
        (x + 1).realize()

    assert "elementwise_2 (add)" in capsys.readouterr().err


def test_counters_count_kernels_and_work() -> None:
    x = Tensor(numpy.zeros((8, 8), "f")).realize()
    GlobalCounters.reset()
    (x @ x).realize()

    assert GlobalCounters.kernel_count == 1
    assert GlobalCounters.global_ops == 2 * 8**3


def test_the_program_unused_longest_goes_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: Lru[object, object] = Lru(2)
    monkeypatch.setattr("tinycore.engine.compile.programs", kept)
    first, second, third = (ast_of(buffer(n) + buffer(n)) for n in (91, 92, 93))

    used_again = runner_for(first, "PYTHON")
    runner_for(second, "PYTHON")
    assert runner_for(first, "PYTHON") is used_again
    runner_for(third, "PYTHON")

    assert [key[0] for key in kept] == [first, third]  # type: ignore[index]
    assert runner_for(first, "PYTHON") is used_again


def test_a_schedule_that_runs_again_compiles_anew_what_was_dropped() -> None:
    def kernel() -> None:
        (Tensor([1.0, 2.0], device="PYTHON").realize() * 95).realize()

    kernel()
    kernel()
    programs.clear()
    kernel()

    assert len(programs) == 1


def test_a_device_that_is_closed_leaves_no_program_and_is_collected() -> None:
    runner_for(ast_of(buffer(94) + buffer(94)), "NULL")
    device = weakref.ref(Device["NULL"])
    assert any(entry[1] is device() for entry in programs.values())

    Device.close("NULL")

    assert not any(entry[1].name == "NULL" for entry in programs.values())
    gc.collect()
    assert device() is None


def test_programs_of_a_schedule_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0, 2.0, 4.0]).realize()
    asked: list[object] = []

    def note(*arguments: object) -> object:
        asked.append(arguments[0])
        return runner_for(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "runner_for", note)
    found = [(x / 8 - 1).realize().tolist() for _ in range(3)]
    assert (found, len(asked)) == ([[-0.875, -0.75, -0.5]] * 3, 1)

    with Context(NOOPT=1):
        (x / 8 - 1).realize()
        (x / 8 - 1).realize()
    assert len(asked) == 2
    (x / 8 - 1).realize()
    assert len(asked) == 2


def test_programs_of_a_schedule_go_with_their_device() -> None:
    x = Tensor([1.0, 2.0, 4.0, 8.0], device="NULL").realize()
    (x / 16 - 1).realize()
    device = weakref.ref(Device["NULL"])
    del x

    Device.close("NULL")

    layouts = [layout for schedule in schedules.values() for layout in schedule.layouts.values()]
    assert not any(layout.runners for layout in layouts)
    gc.collect()
    assert device() is None
    (Tensor([1.0, 2.0, 4.0, 8.0], device="NULL").realize() / 16 - 1).realize()
    assert any(entry[1].name == "NULL" for entry in programs.values())
