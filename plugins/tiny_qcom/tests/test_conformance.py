"""The suite's cases of memory and order through the driver, and a sample of its kernels, in machine
code of Mesa's compiler. `docs/generate_conformance.py` runs all of it, also in OpenCL C.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute
from trials import is_one_form, run_trial

from tiny_qcom.ir3 import library_path
from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore import Context
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import register, unregister

try:
    library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

CLAIMED = {"graph", "image", "external_pointer"}
LONG = {"test_thousands_of_launches", "test_a_captured_step_computes_what_it_did"}
OTHERS = {"varied", "peer_copy", "float64", "rounding", "queues"}


def chosen(level: Level) -> list[Trial]:
    """Trials of a level that need nothing that is not claimed."""
    return [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    """A device on a stand-in."""
    driver = Kgsl(execute)
    register(backend_of(driver))
    found = Subject("QCOM:IR3")
    with Context(DEV="QCOM:IR3"), found.chosen():
        yield found
    unregister("QCOM")
    assert not driver.faults


@pytest.mark.sample(4)
@pytest.mark.parametrize("trial", chosen(Level.MEMORY), ids=lambda trial: trial.name)
def test_memory(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(t, marks=[pytest.mark.slow] if t.name in LONG else [])
        for t in chosen(Level.ORDER)
    ],
    ids=lambda trial: trial.name,
)
def test_order(subject: Subject, trial: Trial) -> None:
    assert all(map(subject.claims, CLAIMED))
    run_trial(trial, subject)


@pytest.mark.sample(40)
@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(t, marks=[pytest.mark.slow] if t.name == "test_a_long_loop" else [])
        for t in filter(is_one_form, chosen(Level.COMPUTE))
    ],
    ids=lambda trial: trial.name,
)
def test_kernels(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)
