"""The suite's cases of memory and order through the driver NV, for each form of launch descriptors
and each branch of NVIDIA's driver; its kernels on one card and a sample of them on the others, as
the PTX of a plan is the same for all cards (test_compiled.py). `docs/generate_conformance.py` runs
all of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from rm_standin import Machine
from rm_standin.cards import GA102, GB202, H200, CardFacts
from simulated_nv import backend_of
from trials import run_trial

from tinycore import Context
from tinycore.plugin import register, unregister
from tinycore.testing.suite import Subject
from tinycore.testing.suite.case import Level, Trial, trials

CLAIMED = {"graph", "queues", "peer_copy"}
LONG = {
    "test_a_captured_step_computes_what_it_did",
    "test_a_long_loop",
    "test_thousands_of_launches",
}
CHURN = "test_freed_memory_comes_back"
"""Takes two seconds: it is slow on all cards but one."""
OTHERS = {"host_memory", "external_pointer", "varied", "image"}
CARDS: dict[str, tuple[CardFacts, str]] = {
    "ampere-570": (GA102, "570.144"),
    "hopper-580": (H200, "580.159.03"),
    "hopper-590": (H200, "590.48.01"),
    "blackwell-610": (GB202, "610.43.03"),
}
FULL = "hopper-580"
"""The card that runs all kernels; the others run one in SAMPLE, each other ones."""
AGAIN = "hopper-590"
"""The same card on another branch of the driver, whose layouts test_nvk_card.py has: it is slow."""
SAMPLE = 12


def chosen(level: Level) -> list[Trial]:
    """Trials of a level that need nothing that is not claimed."""
    return [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]


def is_run(card: str, trial: Trial) -> bool:
    """Whether a trial is run on a card."""
    place = zlib.crc32(trial.name.encode()) % SAMPLE
    return trial.case.level != Level.COMPUTE or card == FULL or place == list(CARDS).index(card)


def is_slow(card: str, trial: Trial) -> bool:
    """True if a trial is slow on a card."""
    return trial.name in LONG or card == AGAIN or (trial.name == CHURN and card != FULL)


def on_cards(level: Level) -> pytest.MarkDecorator:
    """Cards, and the trials of a level that run on them."""
    cases = [(card, t) for card in CARDS for t in chosen(level) if is_run(card, t)]
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
    facts, version = CARDS[request.param]
    register(backend_of(Machine((facts, facts), version=version)))
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
