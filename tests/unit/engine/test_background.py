"""Kernels compiled several at a time: each once, under the settings of who asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.schedule.graphs import buffer, kernels
from tinycore import Context, Tensor
from tinycore.config import settings
from tinycore.engine import compile as compiling
from tinycore.engine.compile import CompiledKernel, compile_kernel, runner_for, start_compiling
from tinycore.uop.node import UOp


def test_jobs_see_the_settings_of_who_asked() -> None:
    found: list[int] = []
    done = threading.Barrier(3, timeout=60)

    def job(number: int) -> None:
        found.append(number * 10 + settings.BEAM)
        done.wait()

    with Context(PARALLEL=2, BEAM=3):
        start_compiling(job, [1, 2, 2, 1])
    done.wait()

    assert sorted(found) == [13, 23]


def test_one_job_starts_no_thread() -> None:
    before = threading.active_count()
    with Context(PARALLEL=4):
        start_compiling(lambda _: pytest.fail("nobody waits for it"), [1])
    with Context(PARALLEL=1):
        start_compiling(lambda _: pytest.fail("nobody asked for it"), [1, 2])

    assert threading.active_count() == before


def test_each_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[UOp] = []

    def noted(ast: UOp, *rest: Any) -> CompiledKernel:
        made.append(ast)
        return compile_kernel(ast, *rest)

    monkeypatch.setattr(compiling, "compile_kernel", noted)
    x = Tensor.ones(9, device="PYTHON").contiguous().realize()
    with Context(PARALLEL=4, VERIFY=1):  # of other sizes each, so that no kernel stores two
        results = [(x[: n - 38] + float(n)).contiguous() for n in range(40, 46)]
        chained = [(r * 2.5 + float(n)).contiguous() for n, r in enumerate(results)]
        Tensor.realize(*chained)

    assert [c.tolist()[0] for c in chained] == [(n + 41) * 2.5 + n for n in range(6)]
    assert len(made) == len(set(made)) >= len(chained)


def test_threads_that_want_one_kernel_get_one_program() -> None:
    ast = kernels(buffer(5) + buffer(5) + buffer(5))[-1].arg.ast
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(runner_for(ast, "PYTHON"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert len({id(runner) for runner in found}) == 1
