"""The suite's cases of order, on devices that really are behind: threads with random delays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import pytest
from queue_machine import backend

from tiny_testing.suite import Subject, queues
from tiny_testing.suite.case import CASES, Level, NoSecondDevice, NotApplicable, Trial, trials
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import register, unregister

ORDER = [
    trial
    for trial in trials(Level.ORDER, only=CASES.values())
    if trial.case.level == Level.ORDER and trial.needs & {"graph", "queues"}
    if "2097157" not in trial.name  # its staging buffers are small
]


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    register(backend())
    found = Subject("QUEUED")
    with found.chosen():
        yield found
    unregister("QUEUED")


@pytest.mark.parametrize("trial", ORDER, ids=lambda trial: trial.name)
def test_order_holds(subject: Subject, trial: Trial) -> None:
    trial.run(subject)


def test_one_device_has_no_neighbor(subject: Subject) -> None:
    with pytest.raises(NotApplicable, match="there is no other device"):
        queues.neighbor(Subject("NOSUCH"))


def test_a_machine_with_one_card_disproves_nothing() -> None:
    def opened(index: int, interface: str) -> NoReturn:
        raise DeviceUnavailable(f"there is no ALONE:{index}")

    register(replace(backend(), name="ALONE", open=opened, count=lambda: 1))
    try:
        with pytest.raises(NoSecondDevice, match=r"count\(\) says that there is 1 device"):
            queues.neighbor(Subject("ALONE"))
    finally:
        unregister("ALONE")
