"""Trials of the conformance suite as tests of pytest, on the stand-in of a plugin's hardware."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import pytest

from tiny_testing.suite.case import NotApplicable, Trial
from tiny_testing.suite.subject import Subject

__all__ = ["is_one_form", "run_trial"]

FORMS: Final = ("test_a_cast", "test_a_cast_in_lanes")
"""Cases that take all 272 pairs of types."""


def is_one_form(trial: Trial) -> bool:
    """True unless a cast of the same types is tried in the other form, single or in lanes.

    Every pair of types is tried, and each type as source and as result in both forms.
    """
    case, _, types = trial.name.partition("[")
    return case not in FORMS or case == FORMS[crc32(types.encode()) % 2]


def run_trial(trial: Trial, subject: Subject) -> None:
    """Run a trial; skip the test where the device has nothing of what the trial is about."""
    try:
        trial.run(subject)
    except NotApplicable as reason:
        pytest.skip(str(reason))
