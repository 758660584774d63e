"""The suite's cases of order, on devices that really are behind: threads with random delays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.device.hcq.machine import backend
from tinycore.plugin import register, unregister
from tinycore.testing.suite import Subject, queues
from tinycore.testing.suite.case import CASES, Level, NotApplicable, Trial, trials

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
