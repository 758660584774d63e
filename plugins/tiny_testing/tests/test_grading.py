"""The suite graded: each seeded fault of the reference accelerator is found by its named trial."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import VECTOR_BYTES, Span
from tiny_testing.accelerator.faults import FAULTS
from tiny_testing.accelerator.faults.lanes import OverstatedAlignment, Vectors
from tiny_testing.accelerator.faults.memory import OffByOneCopy, Unreached
from tiny_testing.accelerator.faults.order import OverlappedGraph
from tiny_testing.grading import accelerator, grade, score
from tiny_testing.suite.case import Level, trials
from tiny_testing.suite.judge import Verdict
from tiny_testing.suite.memory import noise
from tiny_testing.suite.run import run_here

BETWEEN_DEVICES = (
    "test_copies_from_device_to_device",
    "test_a_device_that_is_opened_later_is_reached",
)
PAGE = Path(__file__).parents[3] / "docs/conformance/suite.md"


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_trial(name: str) -> None:
    found = grade(FAULTS[name])

    assert found.correct.judgement.verdict is Verdict.PASSED, found.correct.judgement.reason
    assert found.faulty.judgement.verdict is Verdict.FAILED


class SecondHand(OffByOneCopy):
    """Memory that holds by chance what is about to be written, and loses last bytes."""

    def alloc(self, size: int) -> Span:
        """A block with the bytes of the case's noise."""
        span = super().alloc(size)
        self.inner.write(self.place(span), memoryview(noise(size)))
        return span


def test_a_lost_byte_is_found_where_memory_holds_it_already() -> None:
    fault = replace(FAULTS["off_by_one_copy"], parts=replace(CORRECT, memory=SecondHand))

    assert grade(fault).is_found


@pytest.mark.slow
def test_the_correct_accelerator_conforms_in_memory_and_order() -> None:
    chosen = [t for t in trials(Level.EXCHANGE) if t.case.level is not Level.COMPUTE]
    with accelerator() as subject:
        wrong = {
            result.name: result.judgement.reason
            for result in run_here(subject, chosen)
            if result.judgement.verdict is Verdict.FAILED
        }

    assert wrong == {}


def test_vectors_without_a_fault_conform() -> None:
    """So it is the fault that a trial of lanes finds, and not that there are lanes."""
    chosen = [t for t in trials(Level.COMPUTE) if t.case.name == "test_shifts_by_every_amount"]
    named = {fault.found_by for fault in FAULTS.values()}
    chosen += [t for t in trials(Level.COMPUTE, "test_a_cast_in_lanes") if t.name in named]
    with accelerator(replace(CORRECT, renderer=Vectors)) as subject:
        results = list(run_here(subject, chosen))

    assert {r.judgement.verdict for r in results} == {Verdict.PASSED}


def test_a_graph_that_overlaps_independent_launches_conforms() -> None:
    """So it is the fault that is found, and not that launches overlap."""
    chosen = [t for t in trials(Level.ORDER) if t.case.name.startswith("test_a_graph_")]
    chosen = [t for t in chosen if "queues" not in t.case.needs]
    with accelerator(replace(CORRECT, graph=OverlappedGraph)) as subject:
        results = list(run_here(subject, chosen))

    assert {r.judgement.verdict for r in results} == {Verdict.PASSED}


class Aligned(OverstatedAlignment):
    """The same plans, where the limits say how the device wants its vectors."""

    dims = replace(OverstatedAlignment.dims, access_alignment=VECTOR_BYTES)


def test_vectors_that_are_aligned_as_the_limits_say_conform() -> None:
    chosen = [t for t in trials(Level.EXCHANGE) if "begin_anywhere" in t.name]
    with accelerator(replace(CORRECT, renderer=Aligned)) as subject:
        results = list(run_here(subject, chosen))

    assert len(results) == 5
    assert {r.judgement.verdict for r in results} == {Verdict.PASSED}


def test_devices_that_do_not_reach_each_other_conform() -> None:
    """So it is how that is said which is found, and not that the host copies."""
    chosen = [t for t in trials(Level.EXCHANGE) if t.case.name in BETWEEN_DEVICES]
    with accelerator(replace(CORRECT, memory=Unreached)) as subject:
        results = list(run_here(subject, chosen))

    assert len(results) == len(BETWEEN_DEVICES)
    assert {r.judgement.verdict for r in results} == {Verdict.PASSED}


def test_every_part_and_every_level_has_faults() -> None:
    levels = {trial.name: trial.case.level for trial in trials(Level.PERFORMANCE)}

    assert {levels[fault.found_by] for fault in FAULTS.values()} == set(range(5))


def test_the_page_has_every_fault() -> None:
    text = PAGE.read_text("utf-8")

    assert re.findall(r"^\| (\w+) \| [^-]", text, re.MULTILINE)[1:] == list(FAULTS)
    assert f"Score: {len(FAULTS)} of {len(FAULTS)} seeded faults" in text
    assert score([]) == "0 of 0 seeded faults are found by their trials"
