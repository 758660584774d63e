"""BEAM: what it finds, what it survives, and what it remembers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.unit.engine.misbehaving_worker import (
    CRASHES,
    CRASHES_EARLY,
    HANGS,
    IS_HUNGRY,
    IS_WRONG,
)
from tests.unit.schedule.graphs import buffer, kernels, matmul
from tinycore import Context, Tensor, cache
from tinycore._lru import Lru
from tinycore.device import Device
from tinycore.device.protocols import ProgramInfo
from tinycore.device.worker_process import WorkerProcess
from tinycore.dtype import DType, dtypes
from tinycore.engine import candidate_runner, plan_cache
from tinycore.engine.candidate_runner import (
    CandidateLost,
    CandidateRunner,
    candidate_runner_for,
    new_worker,
)
from tinycore.engine.compile import Binary, runner_for
from tinycore.engine.plan_cache import TunedPlan
from tinycore.engine.search import Entrant, Report, Search, search, tune, tuned_plan
from tinycore.engine.trial import Outcome, Scratch, Trial, agrees, integers_below, random_values
from tinycore.lower.plan import plan_for
from tinycore.lower.plan_neighbors import Candidate, candidate_by
from tinycore.lower.tile import Plan, Split
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

MISBEHAVING = Path(__file__).with_name("misbehaving_worker.py")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with Context(CACHE_DIR=str(tmp_path), PARALLEL=1):
        yield


def product() -> UOp:
    ast = kernels(matmul(buffer(24, 16), buffer(16, 24)))[-1].arg.ast
    assert isinstance(ast, UOp)
    return ast


def tuned() -> TunedPlan:
    """A plan as a search may have kept it."""
    candidate = candidate_by(
        product(), {"threads 0": 16}, Device["PYTHON"].toolchain.renderer.limits
    )
    assert candidate is not None
    return TunedPlan(candidate, 1, 2.0, 1.0)


# --- what it survives

GOOD = 2
SIZES = (CRASHES_EARLY, CRASHES, HANGS, IS_WRONG, IS_HUNGRY, GOOD)


@pytest.fixture(scope="module")
def survivor() -> Iterator[tuple[TunedPlan, Report]]:
    """A search with a candidate for every kind of trouble, and a good one after them."""
    workers: list[WorkerProcess] = []

    def worker() -> WorkerProcess:
        workers.append(new_worker((str(MISBEHAVING),)))
        return workers[-1]

    device = Device["PYTHON"]
    # A group, with so many outputs of a thread.
    one = {"threads 0": 768, "proposal 0": -1, "unrolled 0": 1}
    more = [{**one, "of a thread 0": size} for size in SIZES]
    with pytest.MonkeyPatch.context() as patch, Context(PARALLEL=1):
        patch.setattr(candidate_runner, "RUN_SECONDS", 2.0)
        patch.setattr(candidate_runner, "RUNS", 1.0)
        yield search(
            product(), device, device.toolchain, 1, more=more, seconds=0.001, worker=worker
        )
    for started in workers:
        started.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "verdict", "told"),
    [
        (CRASHES, "failed", "running: it was ended by SIGSEGV"),
        (HANGS, "failed", "running: it gave no answer within"),
        (IS_WRONG, "wrong", "576 of 576 elements of buffer 0 differ, the first at 0"),
        (IS_HUNGRY, "failed", "running: MemoryError"),
        (CRASHES_EARLY, "failed", "compiling: it was ended by SIGABRT"),
    ],
    ids=["crash", "hang", "wrong result", "memory", "crash of the compiler"],
)
def test_broken_candidate_is_told(
    size: int, verdict: str, told: str, survivor: tuple[TunedPlan, Report]
) -> None:
    _, report = survivor

    (loss,) = [loss for loss in report.losses if f"split(0 by {size})" in loss]
    assert loss.startswith(f"{verdict}: ")
    assert told in loss


@pytest.mark.slow
def test_broken_candidates_are_survived(survivor: tuple[TunedPlan, Report]) -> None:
    found, report = survivor

    assert report.verdicts["failed"] == 4, report.losses
    assert report.verdicts["wrong"] == 1
    assert report.verdicts["right"] == 1
    assert found.candidate.asked.get("of a thread 0") not in SIZES[:-1]


def test_arena_in_this_process_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device["PYTHON"]
    monkeypatch.setattr(candidate_runner, "warned", set())
    dies = new_worker(("-c", "raise SystemExit('no such card')"))

    with pytest.warns(UserWarning, match="cannot use PYTHON from another process.*no such card"):
        found = candidate_runner_for(product(), device, device.toolchain, lambda: dies)

    assert not found.workers
    (binary,) = found.build_all([()])
    assert not isinstance(binary, CandidateLost)
    assert found.set_reference(binary) > 0


def test_candidates_are_compiled_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    device = Device["PYTHON"]
    monkeypatch.setattr(threading.Thread, "start", refuse)
    runner = CandidateRunner(product(), device, device.toolchain, [new_worker(("-c", ""))])
    built: list[Plan] = []
    monkeypatch.setattr(runner, "build", lambda plan, worker: built.append(plan))
    runner.build_all([(), ()])

    assert built == [(), ()]


# --- what it remembers

PROGRAM = """
from tinycore import Tensor
print(Tensor([float(i) for i in range(64)]).sum().item())
"""


@pytest.mark.slow
def test_second_process_searches_nothing(tmp_path: Path) -> None:
    def run(**settings: str) -> str:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        variables = {"DEV": "PYTHON", "CACHE_DIR": str(tmp_path), "TRACE": "beam,cache"}
        variables |= {"PYTHONPATH": path, "BEAM_SECONDS": "1"} | settings
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "2016.0\n"
        return done.stderr

    first, second, replayed = run(BEAM="1"), run(BEAM="1"), run(TUNED="1")

    assert " candidates (" in first
    assert " candidates (" not in second + replayed
    assert second.count("hit     plan") == replayed.count("hit     plan") > 0


def test_a_cached_plan_is_used_only_if_asked() -> None:
    device, ast = Device["PYTHON"], product()
    plan_cache.store_plan(ast, device, device.toolchain, tuned())

    assert tuned_plan(ast, device, device.toolchain) is None
    with Context(TUNED=1):
        assert tuned_plan(ast, device, device.toolchain) == tuned().candidate.plan
    with Context(TUNED=1, NOOPT=1):
        assert tuned_plan(ast, device, device.toolchain) is None


def test_wider_search_is_made_again() -> None:
    device, ast = Device["PYTHON"], product()
    toolchain = device.toolchain
    narrow = tuned()
    plan_cache.store_plan(ast, device, toolchain, narrow)

    with Context(BEAM=1):
        assert tuned_plan(ast, device, toolchain) == narrow.candidate.plan
    with Context(BEAM=2, BEAM_SECONDS=1):
        tuned_plan(ast, device, toolchain)
    again = plan_cache.load_plan(ast, device, toolchain)
    assert again is not None
    assert again.width == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"plan": "()", "width": 1, "before": 1, "seconds": 1}',
        b'[{"threads 0": 8}, 1, 1, 1',
        b'[{"threads 0": 8}, null, 1, 1]',
        b'[{"threads 0": "many"}, 1, 1, 1]',
        b'[{"threads 0": Infinity}, 1, 1, 1]',
        b'[["threads 0", 8], 1, 1, 1]',
    ],
)
def test_damaged_entry_is_as_if_not_there(content: bytes) -> None:
    device, ast = Device["PYTHON"], product()
    cache.put(plan_cache.PLANS_TABLE, plan_cache.plan_key(ast, device, device.toolchain), content)

    assert plan_cache.load_plan(ast, device, device.toolchain) is None


def test_programs_of_different_searches_are_kept_apart() -> None:
    device, ast = Device["PYTHON"], product()
    plan_cache.store_plan(ast, device, device.toolchain, tuned())
    plain = runner_for(ast, "PYTHON")
    with Context(TUNED=1):
        chosen = runner_for(ast, "PYTHON")

    assert chosen is not plain
    assert runner_for(ast, "PYTHON") is plain


def test_a_program_is_compiled_by_its_cached_plan_if_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinycore.engine.compile.programs", Lru(8))
    device, ast = Device["PYTHON"], product()
    plan_cache.store_plan(ast, device, device.toolchain, tuned())

    with Context(TUNED=1, TRACE="cache"):
        runner_for(ast, "PYTHON")

    assert "hit     plan" in capsys.readouterr().err


def test_kernel_that_cannot_be_tried_keeps_the_heuristics_plan() -> None:
    device = Device["NULL"]

    assert tune(product(), device, device.toolchain, 1) is None


# --- what it decides by


def test_heuristics_plan_stays_unless_it_is_beaten() -> None:
    device, ast = Device["PYTHON"], product()

    found, _ = search(ast, device, device.toolchain, 1, seconds=0.001)

    assert found.seconds <= found.before
    if found.candidate.plan == plan_for(ast, device.toolchain.renderer.limits):
        assert found.speedup == 1.0


class Judge:
    """A runner that finds right what is launched in one group, and wrong all else."""

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        is_right = candidate.info.grid == (1, 1, 1)
        return Outcome("right", 1e-3) if is_right else Outcome("wrong")


def test_equal_code_in_other_groups_is_another_candidate() -> None:
    """A measurement of one launch says nothing of another one of the same code."""
    runner: Any = Judge()
    found = Search(product(), runner, Device["PYTHON"].toolchain.renderer, 1)
    one, many = (Binary(b"code", ProgramInfo("code", 1, grid=(groups, 1, 1))) for groups in (1, 4))
    found.beam = [Entrant(Candidate((), product(), {}, {}), one, 1e-3)]

    assert found.outcome(one).verdict == "right"
    assert found.outcome(many).verdict == "wrong"


def test_scratch_of_a_gather_keeps_addresses_inside() -> None:
    counter = UOp.range(8, 0)
    table = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(50), (), 1)
    places = UOp(Op.DEFINE_GLOBAL, dtypes.int32.ptr(8), (), 2)
    place = UOp(Op.LOAD, dtypes.int32, (UOp(Op.INDEX, places.dtype, (places, counter)),))
    element = UOp(Op.INDEX, table.dtype, (table, place.cast(dtypes.index) * 4 + 1))
    out = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(8), (), 0)
    value = UOp(Op.LOAD, dtypes.float32, (element,))
    store = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, out.dtype, (out, counter)), value))
    ast = UOp.sink(UOp(Op.END, dtypes.void, (store, counter)))

    assert integers_below(places, ast) == 12
    assert Scratch(ast, "PYTHON").buffers[2].numpy().max() < 12


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if d.kind == "float"], ids=str)
def test_scratch_of_floats_is_mostly_positive_and_of_about_one(dtype: DType) -> None:
    drawn = random_values(numpy.random.default_rng(1), 1000, dtype, 0)
    values = drawn if drawn.dtype.kind == "f" else Tensor(drawn).bitcast(dtype).float().numpy()

    assert numpy.abs(values).max() <= 1
    assert numpy.median(numpy.abs(values)) > 0.2
    assert 0.2 < (values < 0).mean() < 0.4


def test_scratch_names_what_differs() -> None:
    scratch = Scratch(product(), "PYTHON")
    expected = [array.copy() for array in scratch.results()]
    expected[0][5] += 1

    assert "1 of 576 elements of buffer 0 differ, the first at 5:" in scratch.difference(expected)


@pytest.mark.parametrize(
    ("dtype", "found", "expected", "same"),
    [
        (dtypes.int32, [1, 2], [1, 3], [True, False]),
        (dtypes.float32, [1.0, 1.001], [1.00001, 1.0], [True, False]),
        (dtypes.float32, [float("nan"), float("inf")], [float("nan")] * 2, [True, False]),
        (dtypes.float32, [float("inf"), 1.0], [float("inf"), float("inf")], [True, False]),
    ],
)
def test_results_agree_as_far_as_their_dtype_can_tell(
    dtype: object, found: list[float], expected: list[float], same: list[bool]
) -> None:
    kind = "int32" if dtype is dtypes.int32 else "float32"
    arrays = numpy.array(found, kind), numpy.array(expected, kind)

    assert agrees(*arrays, dtype).tolist() == same  # type: ignore[arg-type]


def test_narrow_floats_agree_within_a_few_steps() -> None:
    one = numpy.array([0x3F80, 0x3F80, 0x0001, 0x8001], numpy.uint16)
    other = numpy.array([0x3F82, 0x3FA0, 0x8001, 0x0001], numpy.uint16)

    assert agrees(one, other, dtypes.bfloat16).tolist() == [True, False, True, True]


def test_a_candidate_that_was_lost_is_told_to_who_traces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report()
    with Context(TRACE="beam"):
        report.note((Split((0,), 2),), Outcome("right", 0.5))
        assert capsys.readouterr().err == ""
        report.note((Split((0,), 4),), Outcome("failed", detail="it was ended"))

    assert "failed: split(0 by 4): it was ended" in capsys.readouterr().err


def test_a_program_that_tells_no_time_is_timed_around_its_launch() -> None:
    trial = Trial(kernels(buffer(4) * buffer(4))[0], Device["PYTHON"], Device["PYTHON"].toolchain)
    trial.scratch = Scratch(trial.ast, "PYTHON")
    trial.values = []

    seconds = trial.run(lambda *given, **options: None)

    assert 0 <= seconds < 60
