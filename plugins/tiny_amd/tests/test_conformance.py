"""The suite's cases of memory and order through the driver, for both kinds of queues and on cards
that are driven by their registers; its kernels, which are the same for all, through PM4, and a
sample of them in the other ways. Other families differ in fields of some packets: they share the
cases of memory and order, and run a sample of the kernels. `docs/generate_conformance.py` runs all.
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
from trials import is_one_form, run_trial

from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore.plugin import register, unregister

CLAIMED = {"graph", "queues", "peer_copy"}
LONG = {"test_thousands_of_launches"}
CHURN = "test_freed_memory_comes_back"
"""Takes two seconds: it is slow with one of the two queues."""
OTHERS = {"host_memory", "external_pointer", "varied", "image"}
SAMPLE = 24
"""AQL, each other family and the interface PCI run one kernel in so many."""
CARDS = {"PM4": NAVI31, "AQL": NAVI31, "RDNA2": NAVI21, "RDNA4": NAVI48, "CDNA3": MI300}
"""Kinds of queues, or families, which have queues of PM4."""
KINDS = (*CARDS, "PCI")
"""PCI: two cards by their registers, with queues of PM4."""
SHARING = ("RDNA2", "RDNA4", "CDNA3")
"""Families that share the cases of memory and order: each has others."""


def chosen(level: Level) -> list[Trial]:
    """Trials of a level that need nothing that is not claimed."""
    return [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]


def is_run(kind: str, trial: Trial) -> bool:
    """True if a trial runs through a kind of queue, or on a family."""
    place = zlib.crc32(trial.name.encode())
    if trial.case.level == Level.COMPUTE:
        return is_one_form(trial) and (kind == "PM4" or place % SAMPLE == 0)
    return kind not in SHARING or place % len(SHARING) == SHARING.index(kind)


def is_slow(kind: str, trial: Trial) -> bool:
    """True if a trial takes long, and others run faster."""
    return trial.name in LONG or (trial.name == CHURN and kind != "PM4")


def on_cards(level: Level) -> pytest.MarkDecorator:
    """Kinds of queues or cards, and the trials of a level that run through them."""
    cases = [(kind, trial) for kind in KINDS for trial in chosen(level) if is_run(kind, trial)]
    return pytest.mark.parametrize(
        ("subject", "trial"),
        [
            pytest.param(
                *case,
                id=f"{case[0]}-{case[1].name}",
                marks=[pytest.mark.slow] if is_slow(*case) else [],
            )
            for case in cases
        ],
        indirect=["subject"],
        scope="module",
    )


@pytest.fixture(scope="module")
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
@on_cards(Level.MEMORY)
def test_memory(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


@pytest.mark.sample(20)
@on_cards(Level.ORDER)
def test_order(subject: Subject, trial: Trial) -> None:
    assert all(map(subject.claims, CLAIMED))
    run_trial(trial, subject)


@pytest.mark.sample(80)
@on_cards(Level.COMPUTE)
def test_kernels(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)
