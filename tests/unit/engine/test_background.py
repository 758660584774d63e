"""Kernels compiled several at a time: each once, under the settings of who asked."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.unit.schedule.graphs import buffer, kernels
from tinycore import Context, Tensor
from tinycore.config import settings
from tinycore.engine import compile as compiling
from tinycore.engine.compile import (
    Construction,
    Key,
    compile_kernel,
    runner_for,
    start_compiling,
)
from tinycore.engine.program_cache import CompiledKernel
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


def test_where_no_thread_can_be_started_the_caller_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(work: object, arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with Context(PARALLEL=4):
        x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], device="PYTHON").realize()
        results = [(x + n).contiguous() for n in (1.5, 2.5)]
        Tensor.realize(*results)

    assert [r.tolist()[0] for r in results] == [2.5, 3.5]


def test_a_frame_that_constructs_a_program_waits_for_no_other_thread() -> None:
    first, second = (ast_key(kernels(buffer(5) + buffer(5) * n)[-1].arg.ast) for n in (11.0, 12.0))
    entered, leave = threading.Event(), threading.Event()

    def construct() -> None:
        with Construction(second):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=construct)
    thread.start()
    assert entered.wait(60)
    began = time.monotonic()
    with Construction(first), Construction(second):  # as in a handler that interrupts the first
        taken = time.monotonic() - began
    leave.set()
    thread.join()

    assert taken < compiling.WAIT_SECONDS / 2
    assert not compiling.under_construction


def ast_key(ast: UOp) -> Key:
    return (ast, 0, 0, (), True)


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
