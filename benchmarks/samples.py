"""Samples, and the figures that stand for them: median and spread of the undisturbed ones."""

from __future__ import annotations

import gc
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.clock import seconds as clock

__all__ = ["Sample", "Summary", "inner_calls", "is_enough", "summarize", "take", "undisturbed"]

ENOUGH: Final = 5
"""Samples that must remain before disturbed ones are discarded."""
SHORTEST_SECONDS: Final = 0.0005
"""A sample of shorter calls is several calls, so that the clock's own cost does not show."""


@dataclass(frozen=True)
class Sample:
    """Seconds per call, and how often the system took a processor away meanwhile."""

    seconds: float
    switches: int


@dataclass(frozen=True)
class Summary:
    """Seconds per call: the middle one, and the quarter-way ones on both sides."""

    median: float
    low: float
    high: float
    kept: int
    disturbed: bool
    """True if a processor was taken away during most of the samples it stands for."""

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, in parts of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def take(call: Callable[[], object], calls: int) -> Sample:
    """One sample of `calls` calls."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        start = clock()
        for _ in range(calls):
            call()
        seconds = clock() - start
        after = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    finally:
        if collecting:
            gc.enable()
    return Sample(seconds / calls, after - before)


def inner_calls(seconds: float) -> int:
    """Number of calls of so many seconds that make a sample."""
    return max(1, min(10_000, round(SHORTEST_SECONDS / max(seconds, 1e-9))))


def undisturbed(samples: Sequence[Sample], enough: int = ENOUGH) -> list[Sample]:
    """The samples without involuntary context switches; with as few as possible, if too few."""
    allowed = 0
    kept = [sample for sample in samples if sample.switches <= allowed]
    while len(kept) < min(enough, len(samples)):
        allowed = min(sample.switches for sample in samples if sample.switches > allowed)
        kept = [sample for sample in samples if sample.switches <= allowed]
    return kept


def is_enough(samples: Sequence[Sample]) -> bool:
    """True if disturbed samples can be left out."""
    return sum(sample.switches == 0 for sample in samples) >= ENOUGH


def summarize(samples: Sequence[Sample]) -> Summary:
    """The figures of at least one sample."""
    chosen = undisturbed(samples)
    disturbed = 2 * sum(sample.switches > 0 for sample in chosen) > len(chosen)
    kept = sorted(sample.seconds for sample in chosen)
    middle = statistics.median(kept)
    last = len(kept) - 1
    low, high = kept[round(last * 0.25)], kept[round(last * 0.75)]
    return Summary(middle, low, high, len(kept), disturbed)
