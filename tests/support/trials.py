"""Trials of the conformance suite as tests of pytest, on the stand-in of a plugin's hardware."""

from __future__ import annotations

import pytest

from tiny_testing.suite.case import NotApplicable, Trial
from tiny_testing.suite.subject import Subject

__all__ = ["run_trial"]


def run_trial(trial: Trial, subject: Subject) -> None:
    """Run a trial; skip the test where the device has nothing of what the trial is about."""
    try:
        trial.run(subject)
    except NotApplicable as reason:
        pytest.skip(str(reason))
