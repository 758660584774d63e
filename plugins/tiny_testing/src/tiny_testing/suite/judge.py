"""Claims and what came of them: a capability is a claim to prove.

Claimed and failing, or claimed and skipped, fails. Not claimed and passing is told. A
crash is a failure, whatever was claimed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tinycore.device.protocols import CAPABILITIES
from tinycore.errors import PluginError

__all__ = ["PROMISES", "Judgement", "Outcome", "Skips", "Verdict", "judge"]

PROMISES: Final = {
    "subnormals": "floats below the normal range are kept, not flushed to zero",
    "special_values": "infinities and NaN come out where IEEE 754 has them",
    "rounding": "quotients and square roots are rounded correctly",
}
"""Promises of docs/numerics.md that some languages cannot keep. A device promises
all of it; an author who cannot says why in SKIPS, and the table of the device says it too."""


class Skips(Mapping[str, str]):
    """Capabilities and promises that a device does without, each with the reason.

    `Skips(float64="the language has no 64-bit floats")`. Raises PluginError for an unknown word or
    an empty reason.
    """

    def __init__(self, **reasons: str) -> None:
        unknown = sorted(reasons.keys() - CAPABILITIES.keys() - PROMISES.keys())
        if unknown:
            known = ", ".join([*CAPABILITIES, *PROMISES])
            raise PluginError(
                f"SKIPS names {', '.join(unknown)}, no capability. There are {known}."
            )
        if silent := sorted(word for word, reason in reasons.items() if not reason.strip()):
            raise PluginError(f"SKIPS gives no reason for {', '.join(silent)}")
        self._reasons = dict(reasons)

    def __getitem__(self, word: str) -> str:
        return self._reasons[word]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)

    def __repr__(self) -> str:
        inside = ", ".join(f"{word}={reason!r}" for word, reason in self._reasons.items())
        return f"Skips({inside})"


class Outcome(enum.Enum):
    """Outcome of a trial."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ABSENT = "absent"  # the machine has not what the trial needs
    CRASHED = "crashed"


class Verdict(enum.Enum):
    """Meaning of an outcome for the device."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CLAIMED = "not claimed"  # does not work, and nobody said it would
    UNCLAIMED = "passed unclaimed"  # works, though nobody said so
    NOT_APPLICABLE = "not applicable"  # there is nothing to try it on


@dataclass(frozen=True)
class Judgement:
    """A verdict with the reason for it, "" where it passed."""

    verdict: Verdict
    reason: str = ""


def claims_of(capabilities: frozenset[str], skips: Mapping[str, str]) -> frozenset[str]:
    """The words that a device has to prove: its capabilities, and the promises it does not skip."""
    return capabilities | (PROMISES.keys() - skips.keys())


def judge(
    needs: frozenset[str],
    capabilities: frozenset[str],
    skips: Mapping[str, str],
    outcome: Outcome,
    detail: str = "",
) -> Judgement:
    """The verdict on a trial that needs some words, by what the device claims and what came out."""
    if outcome is Outcome.CRASHED:
        return Judgement(Verdict.FAILED, detail)
    both = sorted(needs & capabilities & skips.keys())
    if both:
        return Judgement(
            Verdict.FAILED,
            f"the backend claims {', '.join(both)}, and SKIPS leaves it out: keep one of the two",
        )
    missing = sorted(needs - claims_of(capabilities, skips))
    if missing:
        reason = "; ".join(skips.get(word, f"{word} is not claimed") for word in missing)
        worked = outcome is Outcome.PASSED
        return Judgement(Verdict.UNCLAIMED if worked else Verdict.NOT_CLAIMED, reason)
    if outcome is Outcome.ABSENT:
        return Judgement(Verdict.NOT_APPLICABLE, detail)
    if outcome is Outcome.SKIPPED:
        if needs:
            claimed = ", ".join(sorted(needs))
            return Judgement(Verdict.FAILED, f"{claimed} is claimed, but was skipped: {detail}")
        return Judgement(Verdict.NOT_APPLICABLE, detail)
    if outcome is Outcome.PASSED:
        return Judgement(Verdict.PASSED)
    return Judgement(Verdict.FAILED, detail)
