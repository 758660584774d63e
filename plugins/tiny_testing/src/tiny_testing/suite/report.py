"""Reports of a run: lines while it goes on, a table, JSON, and a page for docs/conformance."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from tiny_testing.suite.case import CASES, LEVELS, Level
from tiny_testing.suite.judge import PROMISES, Outcome, Verdict, claims_of
from tiny_testing.suite.run import Result
from tiny_testing.suite.subject import Subject
from tinycore.device.protocols import CAPABILITIES

__all__ = ["Report", "Word", "line_of"]

MARKS: Final = {
    Verdict.PASSED: "ok",
    Verdict.FAILED: "FAIL",
    Verdict.NOT_CLAIMED: "-",
    Verdict.UNCLAIMED: "+",
    Verdict.NOT_APPLICABLE: "n/a",
}


def line_of(result: Result) -> str:
    """A result for people: its mark, its name, and the reason if there is one."""
    mark = MARKS[result.judgement.verdict]
    reason = result.judgement.reason or result.figure
    first, *rest = reason.splitlines() or [""]
    more = "".join(f"\n        {line}" for line in rest)
    return f"{mark:<5} {result.name}" + (f": {first}" if first else "") + more


@dataclass(frozen=True)
class Word:
    """A capability or a promise, and what its trials say of the claim."""

    word: str
    claimed: bool
    reason: str
    """Why it is not claimed, by SKIPS."""
    passed: int
    trials: int

    @property
    def verdict(self) -> str:
        """Verdict in a few words: proven, disproven, not claimed, works without being claimed."""
        if not self.trials:
            return "claimed, not tried" if self.claimed else "not claimed"
        if self.claimed:
            return "proven" if self.passed == self.trials else "disproven"
        if self.passed == self.trials:
            return "works, though not claimed"
        return "not claimed"


@dataclass
class Report:
    """The results of a device, as they come in."""

    subject: Subject
    level: int
    results: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Take in a result."""
        self.results.append(result)

    @property
    def failures(self) -> list[Result]:
        """The results for which the device fails."""
        return [r for r in self.results if r.judgement.verdict is Verdict.FAILED]

    @property
    def is_conformant(self) -> bool:
        """True if there are results, and none of them is a failure."""
        return bool(self.results) and not self.failures

    # --- what was found, by claim and by level

    def words(self) -> list[Word]:
        """Every capability and promise with its standing."""
        skips = self.subject.skips
        claimed = self.subject.backend.capabilities | (PROMISES.keys() - skips.keys())
        found = []
        for word in [*CAPABILITIES, *PROMISES]:
            tried = [r for r in self.results if word in r.needs and self.decides(r, word)]
            passed = sum(r.outcome is Outcome.PASSED for r in tried)
            found.append(Word(word, word in claimed, skips.get(word, ""), passed, len(tried)))
        return found

    def decides(self, result: Result, word: str) -> bool:
        """True if a result tells about a word: all other words it needs are claimed."""
        if result.judgement.verdict is Verdict.NOT_APPLICABLE:
            return False
        claims = claims_of(self.subject.backend.capabilities, self.subject.skips)
        return set(result.needs) - {word} <= claims

    def by_level(self) -> dict[Level, Counter[Verdict]]:
        """Number of results of each verdict at each level."""
        found: dict[Level, Counter[Verdict]] = {}
        for result in self.results:
            found.setdefault(Level(result.level), Counter())[result.judgement.verdict] += 1
        return found

    # --- for people

    def summary(self) -> list[str]:
        """The levels, the claims that differ from what was found, and the verdict."""
        lines = [f"{self.subject.target}, {origin(self.subject)}"]
        for level, counts in self.by_level().items():
            told = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
            lines.append(f"  L{level.value} {level.name.lower():<12} {told}")
        surprises = ("disproven", "works, though not claimed")
        lines += [
            f"  {word.word}: {word.verdict} ({word.passed} of {word.trials})"
            for word in self.words()
            if word.verdict in surprises
        ]
        count = len(self.failures)
        verdict = "conforms" if self.is_conformant else f"fails {count} trials"
        return [*lines, f"{self.subject.target} {verdict} up to level {self.level}"]

    # --- for programs

    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        subject = self.subject
        return {
            "device": str(subject.target),
            "distribution": subject.candidate.distribution,
            "version": subject.candidate.version,
            "api": list(subject.backend.api),
            "tinycore": installed("tinycore"),
            "python": ".".join(map(str, sys.version_info[:3])),
            "platform": sys.platform,
            "level": self.level,
            "conforms": self.is_conformant,
            "capabilities": sorted(subject.backend.capabilities),
            "skips": dict(subject.skips),
            "counts": counted(r.judgement.verdict.value for r in self.results),
            "words": [vars(word) | {"verdict": word.verdict} for word in self.words()],
            "trials": [self._row(result) for result in self.results],
        }

    def _row(self, result: Result) -> dict[str, Any]:
        return {
            "name": result.name,
            "level": result.level,
            "needs": list(result.needs),
            "outcome": result.outcome.value,
            "verdict": result.judgement.verdict.value,
            "reason": result.judgement.reason,
            "figure": result.figure,
            "seconds": round(result.seconds, 4),
        }

    # --- for the documentation

    def to_markdown(self) -> str:
        """A page without figures, which differ from run to run."""
        subject = self.subject
        lines = [
            f"# Conformance of {subject.target}",
            "",
            f"Written by `tinycore conformance {subject.target} --markdown FILE`: "
            f"{origin(subject)}, plugin API {'.'.join(map(str, subject.backend.api))}. "
            + ("It conforms" if self.is_conformant else "It does not conform")
            + f" up to level {min(self.level, Level.MODELS)}.",
            "",
            "| level | about | " + " | ".join(v.value for v in Verdict) + " |",
            "|" + "---|" * (2 + len(Verdict)),
        ]
        for level, counts in self.by_level().items():
            if level is not Level.PERFORMANCE:
                numbers = " | ".join(str(counts[v]) for v in Verdict)
                lines.append(f"| L{level.value} | {LEVELS[level]} | {numbers} |")
        lines += ["", "## Claims", "", "| word | standing | trials | what it means |"]
        lines.append("|---|---|---|---|")
        for word in self.words():
            means = CAPABILITIES.get(word.word) or PROMISES[word.word]
            why = f": {word.reason}" if word.reason else ""
            tried = f"{word.passed} of {word.trials}" if word.trials else ""
            lines.append(f"| {word.word} | {word.verdict}{why} | {tried} | {means} |")
        lines += ["", *self._exceptions()]
        return "\n".join(lines).rstrip() + "\n"

    def _exceptions(self) -> list[str]:
        """Every trial that did not simply pass, those of one case and reason in one line."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for result in self.results:
            if result.judgement.verdict is Verdict.PASSED or result.level == Level.PERFORMANCE:
                continue
            case, _, variant = result.name.partition("[")
            reason = result.judgement.reason.partition("\n")[0].replace("|", "\\|")
            key = case, result.judgement.verdict.value, reason
            groups.setdefault(key, []).append(variant.rstrip("]"))
        if not groups:
            return ["Every trial passed."]
        lines = ["## Trials that did not simply pass", "", "| trial | verdict | reason |"]
        lines.append("|---|---|---|")
        for (case, verdict, reason), variants in groups.items():
            named = [variant for variant in variants if variant]
            shown = f" ({len(named)}: {named[0]}, ...)" if len(named) > 1 else ""
            shown = f"[{named[0]}]" if len(named) == 1 else shown
            meaning = CASES[case].meaning if case in CASES else ""
            lines.append(f"| `{case}`{shown}: {meaning} | {verdict} | {reason} |")
        return lines


def origin(subject: Subject) -> str:
    """The distribution that a device comes from."""
    return subject.candidate.origin


def installed(distribution: str) -> str:
    """The version of a distribution, "" where its metadata is missing."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def counted(words: Iterable[str]) -> Mapping[str, int]:
    """Number of occurrences of each word."""
    return dict(Counter(words))
