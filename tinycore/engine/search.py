"""BEAM search: the fastest plan of a kernel by measurement, cached on disk.

Floor 4. A search begins with the default plan, the cheapest proposal of the strategies, and with
further proposals. Each round tries plans one size away from the best `width` found so far
(`lower/plan_neighbors.py`). Candidates run in worker processes on scratch memory
(`candidate_runner.py`); one that crashes, hangs or computes something else is rejected.
At the end the best and the default plan take turns, and the default stays unless it loses.
See docs/tuning.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from tinycore._locks import lock
from tinycore._progress import telling
from tinycore.config import settings
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.device.worker_process import WorkerProcess
from tinycore.engine import plan_cache
from tinycore.engine.candidate_runner import CandidateLost, CandidateRunner, candidate_runner_for
from tinycore.engine.compile import Binary
from tinycore.engine.plan_cache import TunedPlan
from tinycore.engine.trial import Outcome
from tinycore.lower.plan_neighbors import (
    Candidate,
    Sizes,
    candidate_by,
    default,
    neighbors,
    starts,
)
from tinycore.lower.tile import Plan
from tinycore.render.base import Renderer
from tinycore.schedule.kernel import kernel_name
from tinycore.trace import Trace
from tinycore.uop.node import UOp

trace = Trace("beam")

searching: Final = lock()
"""Held during a search, which wants the workers and the machine for itself."""

MOST_ROUNDS: Final = 12
PER_ROUND: Final = 24
"""Candidates of a round, for each plan of the beam."""
LEAST_SPEEDUP: Final = 0.01
"""A round that makes the best plan no faster than this share is the last."""
LEAST_WIN: Final = 0.02
"""Fraction by which a plan must beat the default plan when they take turns."""
FINALISTS: Final = 3
TOO_SHORT: Final = 2e-6
"""Seconds below which a launch costs more than the kernel, and no plan matters."""


@dataclass(frozen=True)
class Entrant:
    """A measured candidate, and its time."""

    candidate: Candidate
    binary: Binary
    seconds: float


@dataclass
class Report:
    """The record of a search: counts of verdicts, and a description of each loss."""

    verdicts: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, plan: Plan, outcome: Outcome) -> None:
        """Count an outcome; report it if the candidate was wrong or lost."""
        self.verdicts[outcome.verdict] += 1
        if outcome.verdict in ("wrong", "failed"):
            steps = " ".join(map(str, plan))
            self.losses.append(f"{outcome.verdict}: {steps}: {outcome.detail}")
            trace(self.losses[-1])

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        return f"{sum(self.verdicts.values())} candidates ({counts}) in {self.seconds:.1f} s"


class Search:
    """One search for one kernel."""

    def __init__(self, ast: UOp, runner: CandidateRunner, renderer: Renderer, width: int) -> None:
        self.ast = ast
        self.runner = runner
        self.limits = renderer.limits
        self.width = width
        self.report = Report()
        self.seen: set[UOp] = set()
        self.outcomes: dict[Binary, Outcome] = {}
        """By code and launch information: equal code in other groups computes other things."""
        self.beam: list[Entrant] = []

    def run(self, more: Sequence[Sizes], seconds: float) -> TunedPlan:
        """Search for some seconds at most (0: to its end), from plans of `more` sizes, too.

        Raises CandidateLost when not even the heuristic's plan can be run.
        """
        began = time.monotonic()
        known = (candidate_by(self.ast, sizes, self.limits) for sizes in more)
        others = [c for c in (*starts(self.ast, self.limits), *known) if c is not None]
        base = self.enter_reference()
        self.enter([c for c in others if c.plan != base.candidate.plan])
        end = began + seconds if seconds else float("inf")
        if base.seconds >= TOO_SHORT:
            self.rounds(end)
        self.report.seconds = time.monotonic() - began
        return self.decide(base)

    def enter_reference(self) -> Entrant:
        """Measure the default plan, the reference for all others. Raises CandidateLost."""
        candidate = default(self.ast, self.limits)
        (binary,) = self.runner.build_all([candidate.plan])
        if isinstance(binary, CandidateLost):
            raise binary
        entrant = Entrant(candidate, binary, self.runner.set_reference(binary))
        self.seen.add(candidate.tiled)
        self.beam = [entrant]
        return entrant

    def rounds(self, end: float) -> None:
        """Round after round, until nothing gets better or the time is over."""
        name = kernel_name(self.ast)
        with telling(
            lambda s: (
                f"{name}: {len(self.seen)} plans tried, the best takes "
                f"{self.beam[0].seconds * 1e6:.1f} us, {s:.0f} s"
            )
        ):
            for number in range(MOST_ROUNDS):
                before = self.beam[0].seconds
                self.enter(self.next_candidates(number), end)
                if time.monotonic() > end:
                    break
                if number and self.beam[0].seconds > before * (1 - LEAST_SPEEDUP):
                    break

    def next_candidates(self, number: int) -> list[Candidate]:
        """New neighbors of the beam, those of the best first."""
        found: list[Candidate] = []
        for entrant in self.beam:
            near = neighbors(self.ast, entrant.candidate, self.limits, seed=number)
            new = list(islice((c for c in near if c.tiled not in self.seen), PER_ROUND))
            self.seen.update(c.tiled for c in new)
            found += new
        return found

    def enter(self, candidates: list[Candidate], end: float = float("inf")) -> None:
        """Compile and measure candidates; the best of them and of the beam are the new beam."""
        at_once = 8
        for place in range(0, len(candidates), at_once):
            if time.monotonic() > end:
                return
            group = candidates[place : place + at_once]
            binaries = self.runner.build_all([c.plan for c in group])
            for candidate, binary in zip(group, binaries, strict=True):
                outcome = self.outcome(binary)
                self.report.note(candidate.plan, outcome)
                if outcome.verdict == "right" and isinstance(binary, Binary):
                    self.beam.append(Entrant(candidate, binary, outcome.seconds))
            self.beam = sorted(self.beam, key=lambda entrant: entrant.seconds)[: self.width]

    def outcome(self, binary: Binary | CandidateLost) -> Outcome:
        """Return the outcome of a candidate, measured unless the same code was before."""
        if isinstance(binary, CandidateLost):
            return Outcome("failed", detail=str(binary))
        known = self.outcomes.get(binary)
        if known is not None:
            return known
        to_beat = self.beam[-1].seconds * (1 if len(self.beam) >= self.width else 2)
        try:
            outcome = self.runner.measure(binary, to_beat)
        except CandidateLost as lost:
            outcome = Outcome("failed", detail=str(lost))
        self.outcomes[binary] = outcome
        return outcome

    def decide(self, base: Entrant) -> TunedPlan:
        """Return the best plan of the beam if it beats the default plan in turns, else that."""
        finalists = [e for e in self.beam if e.binary != base.binary][:FINALISTS]
        unchanged = TunedPlan(base.candidate, self.width, base.seconds, base.seconds)
        if not finalists:
            return unchanged
        try:
            before, *seconds = self.runner.compare([base.binary, *(e.binary for e in finalists)])
        except CandidateLost as lost:
            trace(f"lost in the final: {lost}")
            return unchanged
        least = min(seconds)
        if least > before * (1 - LEAST_WIN):
            return TunedPlan(base.candidate, self.width, before, before)
        best = finalists[seconds.index(least)]
        return TunedPlan(best.candidate, self.width, before, least)


def search(
    ast: UOp,
    device: OpenDevice,
    toolchain: Toolchain[Renderer],
    width: int,
    *,
    more: Sequence[Sizes] = (),
    seconds: float = 0,
    worker: Callable[[], WorkerProcess] | None = None,
) -> tuple[TunedPlan, Report]:
    """Search for a kernel's best plan without the disk cache.

    Raises CandidateLost when not even the heuristic's plan can be run.
    """
    runner = candidate_runner_for(ast, device, toolchain, worker)
    running = Search(ast, runner, toolchain.renderer, width)
    found = running.run(more, seconds)
    return found, running.report


def tuned_plan(ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> Plan | None:
    """The plan that settings select, cached or searched for; None for the default plan.

    With BEAM=n a kept plan of a search at least as wide is taken, and else a search made. With
    TUNED=1 a kept plan is taken if there is one.
    """
    if settings.NOOPT or not (settings.BEAM or settings.TUNED):
        return None
    known = plan_cache.load_plan(ast, device, toolchain)
    if known is not None and known.width >= settings.BEAM:
        return known.candidate.plan
    if not settings.BEAM:
        return None
    more = () if known is None else (known.candidate.asked,)
    found = tune(ast, device, toolchain, settings.BEAM, more, settings.BEAM_SECONDS)
    return None if found is None else found.candidate.plan


def tune(
    ast: UOp,
    device: OpenDevice,
    toolchain: Toolchain[Renderer],
    width: int,
    more: Sequence[Sizes] = (),
    seconds: float = 0,
) -> TunedPlan | None:
    """Search for a kernel's best plan and cache it; None if the kernel cannot be tried out."""
    try:
        with searching:
            found, report = search(ast, device, toolchain, width, more=more, seconds=seconds)
    except CandidateLost as lost:
        trace(f"{kernel_name(ast)}: not searched: {lost}")
        return None
    plan_cache.store_plan(ast, device, toolchain, found)
    if trace.on:
        steps = " ".join(map(str, found.candidate.plan)) or "as it stands"
        times = f"{found.before * 1e6:.1f} -> {found.seconds * 1e6:.1f} us"
        trace(f"{kernel_name(ast)}: {report}: {times} ({found.speedup:.2f} times): {steps}")
    return found
