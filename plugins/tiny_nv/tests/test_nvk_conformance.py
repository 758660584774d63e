"""The suite's cases of memory and order through the driver NV, for each form of launch descriptors,
and its kernels on one card; on each other card and branch of NVIDIA's driver, and with every option
on, a sample of all, as the PTX of a plan is the same for all cards (test_compiled.py).
`docs/generate_conformance.py` runs all of it everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from simulated_nv import NAMES, backend_named
from trials import is_one_form, run_trial

from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore import Context
from tinycore.plugin import register, unregister

CLAIMED = {"graph", "queues", "peer_copy"}
LONG = {
    "test_a_captured_step_computes_what_it_did",
    "test_a_long_loop",
    "test_thousands_of_launches",
}
CHURN = "test_freed_memory_comes_back"
"""Takes two seconds: it is slow on all cards but one."""
OTHERS = {"host_memory", "external_pointer", "varied", "image"}
FULL = "HOPPER_580"
"""The card that runs all kernels."""
WHOLE = (FULL, "AMPERE_570", "BLACKWELL_610")
"""Cards that run all cases of memory and order: one for each form of launch descriptors."""
SHARING = tuple(name for name in NAMES if name not in WHOLE)
"""Cards and branches that share the cases of memory and order: each has others."""
SAMPLE = 4
"""Each of NAMES but FULL runs one kernel in so many of its share."""


def chosen(level: Level) -> list[Trial]:
    """Trials of a level that need nothing that is not claimed."""
    return [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]


def is_run(card: str, trial: Trial) -> bool:
    """True if a trial is run on a card."""
    place = zlib.crc32(trial.name.encode())
    if trial.case.level == Level.COMPUTE:
        share = place % (SAMPLE * len(NAMES))
        return is_one_form(trial) and (card == FULL or share == NAMES.index(card))
    return card in WHOLE or place % len(SHARING) == SHARING.index(card)


def is_slow(card: str, trial: Trial) -> bool:
    """True if a trial is slow on a card."""
    return trial.name in LONG or (trial.name == CHURN and card != FULL)


def on_cards(level: Level) -> pytest.MarkDecorator:
    """Cards, and the trials of a level that run on them."""
    cases = [(card, t) for card in NAMES for t in chosen(level) if is_run(card, t)]
    marks = [[pytest.mark.slow] if is_slow(*case) else [] for case in cases]
    return pytest.mark.parametrize(
        ("subject", "trial"),
        [
            pytest.param(card, trial, id=f"{card}-{trial.name}", marks=found)
            for (card, trial), found in zip(cases, marks, strict=True)
        ],
        indirect=["subject"],
        scope="module",
    )


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Two cards of a stand-in, whose kernels are our own PTX."""
    register(backend_named(request.param))
    found = Subject("NV:PTX")
    with Context(DEV="NV:PTX"), found.chosen():
        yield found
    unregister("NV")


@pytest.mark.sample(5)
@on_cards(Level.MEMORY)
def test_memory(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


@pytest.mark.sample(8)
@on_cards(Level.ORDER)
def test_order(subject: Subject, trial: Trial) -> None:
    assert all(map(subject.claims, CLAIMED))
    run_trial(trial, subject)


@pytest.mark.sample(60)
@on_cards(Level.COMPUTE)
def test_kernels(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)
