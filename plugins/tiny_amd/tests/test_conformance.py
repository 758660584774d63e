"""The suite's cases of memory and order through the driver, for both kinds of queues; its kernels,
which are the same for both, through PM4, and a sample of them through AQL, on other families, and
on cards that are driven by their registers. `docs/generate_conformance.py` runs all of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI21, NAVI31, NAVI48
from pci_standin.machine import PciMachine
from simulated_am import backend_of as backend_of_registers
from simulated_amd import backend_of
from trials import run_trial

from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore.plugin import register, unregister

CLAIMED = {"graph", "queues", "peer_copy"}
LONG = {"test_thousands_of_launches"}
CHURN = "test_freed_memory_comes_back"
"""Takes two seconds: it is slow with one of the two queues."""
OTHERS = {"host_memory", "external_pointer", "varied", "image"}
SAMPLE = 12
"""AQL, each other family and the interface PCI run one kernel in so many."""
CARDS = {"PM4": NAVI31, "AQL": NAVI31, "RDNA2": NAVI21, "RDNA4": NAVI48, "CDNA3": MI300}
"""Kinds of queues, or families, which have queues of PM4."""
KINDS = (*CARDS, "PCI")
"""PCI: two cards by their registers, with queues of PM4."""


def chosen(level: Level) -> list[Trial]:
    """Trials of a level that need nothing that is not claimed."""
    return [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]


def kernels() -> list[tuple[str, Trial]]:
    """Kinds of queues or cards, and the trials of kernels that run through them."""
    return [
        (queue, trial)
        for queue in KINDS
        for trial in chosen(Level.COMPUTE)
        if queue == "PM4" or zlib.crc32(trial.name.encode()) % SAMPLE == 0
    ]


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Two cards of a stand-in."""
    if request.param == "PCI":
        register(backend_of_registers(PciMachine(2)))
    else:
        card = CARDS[request.param]
        register(backend_of(Machine((card, card)), aql=request.param == "AQL"))
    found = Subject("AMD")
    with found.chosen():
        yield found
    unregister("AMD")


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("subject", "trial"),
    [
        pytest.param(
            *(queue, t),
            id=f"{queue}-{t.name}",
            marks=[pytest.mark.slow] if t.name == CHURN and queue != "PM4" else [],
        )
        for queue in KINDS
        for t in chosen(Level.MEMORY)
    ],
    indirect=["subject"],
    scope="module",
)
def test_memory(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


@pytest.mark.sample(20)
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


@pytest.mark.sample(80)
@pytest.mark.parametrize(
    ("subject", "trial"),
    kernels(),
    ids=[f"{queue}-{trial.name}" for queue, trial in kernels()],
    indirect=["subject"],
    scope="module",
)
def test_kernels(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)
