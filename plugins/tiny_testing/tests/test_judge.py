"""A capability is a claim to prove: what each outcome means, by what is claimed and skipped."""

from __future__ import annotations

import pytest

from tiny_testing.suite.judge import PROMISES, Outcome, Skips, Verdict, judge
from tinycore.errors import PluginError

F16 = frozenset({"float16"})
NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("needs", "claims", "outcome", "verdict"),
    [
        (NONE, NONE, Outcome.PASSED, Verdict.PASSED),
        (NONE, NONE, Outcome.FAILED, Verdict.FAILED),
        (NONE, NONE, Outcome.SKIPPED, Verdict.NOT_APPLICABLE),
        (NONE, NONE, Outcome.CRASHED, Verdict.FAILED),
        (F16, F16, Outcome.PASSED, Verdict.PASSED),
        (F16, F16, Outcome.FAILED, Verdict.FAILED),
        (F16, F16, Outcome.SKIPPED, Verdict.FAILED),
        (F16, F16, Outcome.ABSENT, Verdict.NOT_APPLICABLE),
        (F16, NONE, Outcome.ABSENT, Verdict.NOT_CLAIMED),
        (F16, F16, Outcome.CRASHED, Verdict.FAILED),
        (F16, NONE, Outcome.PASSED, Verdict.UNCLAIMED),
        (F16, NONE, Outcome.FAILED, Verdict.NOT_CLAIMED),
        (F16, NONE, Outcome.SKIPPED, Verdict.NOT_CLAIMED),
        (F16, NONE, Outcome.CRASHED, Verdict.FAILED),
    ],
)
def test_a_verdict_follows_from_claim_and_outcome(
    needs: frozenset[str], claims: frozenset[str], outcome: Outcome, verdict: Verdict
) -> None:
    assert judge(needs, claims, Skips(), outcome, "detail").verdict is verdict


def test_a_claim_that_is_skipped_fails_even_when_it_works() -> None:
    found = judge(F16, F16, Skips(float16="slow"), Outcome.PASSED)

    assert found.verdict is Verdict.FAILED
    assert found.reason == (
        "the backend claims float16, and SKIPS leaves it out: keep one of the two"
    )


def test_the_reason_of_a_skip_is_told() -> None:
    found = judge(F16, NONE, Skips(float16="the language has no halves"), Outcome.FAILED)

    assert found.reason == "the language has no halves"


def test_a_promise_is_claimed_unless_it_is_skipped() -> None:
    needs = frozenset({"subnormals"})

    assert "subnormals" in PROMISES
    assert judge(needs, NONE, Skips(), Outcome.FAILED).verdict is Verdict.FAILED
    skipped = Skips(subnormals="it flushes them to zero")
    assert judge(needs, NONE, skipped, Outcome.FAILED).verdict is Verdict.NOT_CLAIMED
    assert judge(needs, NONE, skipped, Outcome.PASSED).verdict is Verdict.UNCLAIMED


def test_an_unknown_word_in_skips() -> None:
    with pytest.raises(PluginError, match=r"SKIPS names float63, no capability\. There are"):
        Skips(float63="is no type")


def test_a_skip_needs_a_reason() -> None:
    with pytest.raises(PluginError, match="SKIPS gives no reason for float16"):
        Skips(float16=" ")
