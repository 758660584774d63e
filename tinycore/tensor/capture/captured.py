"""A capture of a function for calls with one key: its guards, and its recording.

Floor 5. See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import CapturedStep, capture
from tinycore.tensor.capture.arguments import Arguments, CallPattern
from tinycore.tensor.capture.capturing_run import CapturingRun, Run
from tinycore.tensor.capture.change_sets import ChangeSet, tracking_changes
from tinycore.tensor.capture.proxies import (
    ArgumentProxies,
    finish_reads,
    finish_writes,
    naming_variables,
)
from tinycore.tensor.capture.recorded_call import RecordedCall
from tinycore.tensor.guards.environment import Environment, Walk
from tinycore.tensor.guards.guard import Guard
from tinycore.tensor.guards.keys import Fact
from tinycore.tensor.storage import held_values
from tinycore.uop.size import Conditions, noting, sealed

NO_BLOCK: Final = nullcontext()
MOST_ADMITTED = 4096
"""Most numbers that are remembered to satisfy the guards."""


@dataclass
class Capture:
    """The capture for calls with one key: its guards, and the recorded call."""

    name: str
    around: Environment | None = None
    prune: bool = False
    """True if replays leave out launches that do the same in each of them."""
    atomic: bool = True
    """True if what a replay has overwritten is restored where an interrupt ends it."""
    guard: Guard | None = None
    """The guard of the environment of the function."""
    first: Run | None = None
    """Record of the first run; None before it, and where the next one is expected to differ."""
    changed: frozenset[str] = frozenset()
    """Paths in the environment that the function has changed, but for tensors left there."""
    recorded: RecordedCall | None = None
    """The recorded call; None until the capture is complete."""
    facts: dict[str, Fact] = field(default_factory=dict)
    """Values that are expected of these calls, by their places."""
    conditions: Conditions = field(default_factory=dict)
    """The guards on the numbers of Variables, from the calls that were run."""
    admitted: set[tuple[int, ...]] = field(default_factory=set)
    """Numbers that satisfied these guards."""
    pattern: CallPattern | None = None
    """The form of its calls, if they are known by that, without their key."""
    written: weakref.WeakSet[Buffer] = field(default_factory=weakref.WeakSet)
    """Memory that earlier runs wrote to."""
    retries: int = 0
    invalidations: int = 0

    @property
    def step(self) -> CapturedStep | None:
        """The launches, once something was captured."""
        return None if self.recorded is None else self.recorded.step

    def holds(self, given: Arguments) -> bool:
        """True if this capture is for the numbers, and for what the function finds around it."""
        if self.conditions and not self.admits(given.numbers):
            return False
        guard, around = self.guard, self.around
        return around is None or guard is None or guard.holds(around.roots(given.objects))

    def forget(self) -> None:
        """Drop the capture: the next two calls run the function again."""
        self.first = self.recorded = None
        self.conditions, self.admitted = {}, set()

    # --- conditions on numbers

    def admits(self, numbers: Mapping[str, int]) -> bool:
        """True if the recorded comparisons of sizes have the same answers for these numbers."""
        held = tuple(numbers.values())
        if held in self.admitted:
            return True
        if self.broken(numbers):
            return False
        if len(self.admitted) < MOST_ADMITTED:
            self.admitted.add(held)
        return True

    def broken(self, numbers: Mapping[str, int]) -> list[str]:
        """The conditions that do not hold for some numbers, as text."""
        return [c.told(numbers) for c in self.conditions if not c.holds(numbers)]

    def note(self, found: Conditions) -> None:
        """Add the conditions on numbers that were decided in a call."""
        self.conditions |= found
        self.admitted = set()

    # --- capturing

    def run(self, function: Callable[..., Any], given: Arguments) -> Any:
        """Run the function with a record of its effects, and capture it if it ran before and that
        can be done already; its result.

        What other threads have computed for them before must be done without a record.
        """
        assert self.around is not None, "there is a function to run"
        walk = self.around.walk(given.objects)
        finish_writes((*walk.values, *given.tensors))
        if self.first is not None:
            finish_reads(self.written.union(given.buffers))
            held_values.end(given.nodes)  # the function may write to them, by other names
        with naming_variables(given):
            return self.run_recorded(function, given, walk)

    def run_recorded(self, function: Callable[..., Any], given: Arguments, walk: Walk) -> Any:
        """Run the function for a first time, or capture it; its result."""
        assert self.around is not None, "there is a function to run"
        is_first = self.first is None
        self.pattern = CallPattern.of(given)
        change_set = ChangeSet()
        proxies = ArgumentProxies(given, are_used=not is_first)
        try:
            with (
                capture(not is_first, proxies.buffers if self.prune else None) as recording,
                NO_BLOCK if is_first else sealed(),
                held_values.isolated(ends_gradients=not is_first),
                noting() as conditions,
                tracking_changes(change_set),
            ):
                recording.written = self.written
                run = CapturingRun(self, walk, given, proxies, change_set)
                result = run.run(function)
            self.note(conditions)
            if is_first:
                self.first = run.first(recording)
            recorded = None if is_first else run.make_record(recording, result)
        except BaseException as error:
            proxies.restore(change_set)
            proxies.write_back()
            if isinstance(error, Exception):  # an interrupt ends the program without another walk
                self.guard = self.around.walk(given.objects).guard()
            raise
        proxies.restore(change_set)
        after = self.around.walk(given.objects, run.kept if recorded else ())
        self.guard = after.guard()
        self.facts = self.facts or given.facts | self.guard.facts()
        if recorded is not None:
            recorded.found_by, recorded.side_outputs = (self.guard, self.around), run.places(after)
            recorded.renew(given)
            self.recorded = recorded
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "recorded": self.recorded, "conditions": self.conditions}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(**kept)  # type: ignore[misc]
