"""The suite's cases of memory and order through the driver NV, for each form of launch descriptors
and each branch of NVIDIA's driver; a sample of its kernels. `docs/generate_conformance.py` runs all
of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rm_standin import Machine
from rm_standin.cards import GA102, GB202, H200, CardFacts
from simulated_nv import backend_of

from tinycore import Context
from tinycore.plugin import register, unregister
from tinycore.testing.suite import Subject
from tinycore.testing.suite.case import Level, Trial, trials

CLAIMED = {"graph", "queues", "peer_copy"}
LONG = {"test_thousands_of_launches", "test_a_captured_step_computes_what_it_did"}
OTHERS = {"host_memory", "external_pointer", "varied", "image"}
CARDS: dict[str, tuple[CardFacts, str]] = {
    "ampere-570": (GA102, "570.144"),
    "hopper-580": (H200, "580.159.03"),
    "hopper-590": (H200, "590.48.01"),
    "blackwell-610": (GB202, "610.43.03"),
}


def chosen(level: Level) -> list[Trial]:
    """Trials of a level that need nothing that is not claimed."""
    return [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]


@pytest.fixture(scope="module", params=CARDS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Two cards of a stand-in, whose kernels are our own PTX."""
    facts, version = CARDS[request.param]
    register(backend_of(Machine((facts, facts), version=version)))
    found = Subject("NV:PTX")
    with Context(DEV="NV:PTX"), found.chosen():
        yield found
    unregister("NV")


@pytest.mark.parametrize("trial", chosen(Level.MEMORY), ids=lambda trial: trial.name)
def test_memory(subject: Subject, trial: Trial) -> None:
    trial.run(subject)


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
    trial.run(subject)


@pytest.mark.sample(20)
@pytest.mark.parametrize("trial", chosen(Level.COMPUTE), ids=lambda trial: trial.name)
def test_kernels(subject: Subject, trial: Trial) -> None:
    trial.run(subject)
