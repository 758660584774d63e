"""The suite's cases of memory and order through the interface PCI, and a sample of its kernels: on
a card of Ampere by the kernel's files, and a sample of all on one of Ada by vfio, on a Hopper and
on a Blackwell. Each card has 4 GiB, and a BAR1 of 256 MiB.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from nv_pci_standin import Chip, PciMachine
from simulated_pci import backend_of
from trials import run_trial

from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore import Context
from tinycore.plugin import register, unregister

OTHERS = {"host_memory", "external_pointer", "varied", "image", "peer_copy"}
LONG = {
    "test_a_captured_step_computes_what_it_did",
    "test_a_long_loop",
    "test_freed_memory_comes_back",
    "test_thousands_of_launches",
}
CARDS = {
    "ampere": (0x17, "nvidia", ""),
    "ada-vfio": (0x19, "vfio-pci", "DMA"),
    "hopper": (0x18, "nvidia", ""),
    "blackwell-vfio": (0x1B, "vfio-pci", "DMA"),
}
SAMPLES = {(card, level): 6 for card in [*CARDS][1:] for level in (Level.MEMORY, Level.ORDER)}
"""One trial of so many runs on a card; all without a row."""
KERNELS = 48
"""One trial of kernels of so many runs on each card, each other ones."""


def is_run(card: str, level: Level, trial: Trial) -> bool:
    """True if a trial is run on a card."""
    place = zlib.crc32(trial.name.encode())
    if level == Level.COMPUTE:
        return place % KERNELS == [*CARDS].index(card)
    return not place % SAMPLES.get((card, level), 1)


def on_cards(level: Level) -> pytest.MarkDecorator:
    """Cards, and the trials of a level that run on them."""
    chosen = [t for t in trials(level) if t.case.level == level and not t.needs & OTHERS]
    cases = [(card, trial) for card in CARDS for trial in chosen if is_run(card, level, trial)]
    return pytest.mark.parametrize(
        ("subject", "trial"),
        [
            pytest.param(
                card,
                trial,
                id=f"{card}-{trial.name}",
                marks=[pytest.mark.slow] if trial.name in LONG else [],
            )
            for card, trial in cases
        ],
        indirect=["subject"],
        scope="module",
    )


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A card of a stand-in, whose kernels are our own PTX."""
    architecture, driver, iommu = CARDS[request.param]
    chip = Chip(architecture, driver=driver, iommu=iommu)
    register(backend_of(PciMachine(chip)))
    found = Subject("NV:PTX")
    with Context(DEV="NV:PTX"), found.chosen():
        yield found
    unregister("NV")
    assert chip.driver == driver
    assert not chip.memory.is_master


@pytest.mark.sample(5)
@on_cards(Level.MEMORY)
def test_memory(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


@pytest.mark.sample(5)
@on_cards(Level.ORDER)
def test_order(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)


@pytest.mark.sample(5)
@on_cards(Level.COMPUTE)
def test_kernels(subject: Subject, trial: Trial) -> None:
    run_trial(trial, subject)
