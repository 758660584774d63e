"""A capture of a function for calls with one key: its recording and its replay.

Floor 5. A replay first looks at the tensors whose memory the launches use: it does pending writes
to them, and the capture is invalid if one of them was replaced by another tensor.
See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tinycore._signals import deferred
from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import NOTHING, CapturedStep, capture
from tinycore.engine.transactions import base_buffer
from tinycore.errors import JitError
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor.aliases import buffers_below, is_realized
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.capture.arguments import Arguments, CallPattern, rebuilt
from tinycore.tensor.capture.capturing_run import CapturingRun, Run
from tinycore.tensor.capture.change_sets import ChangeSet, realized_buffers, tracking_changes
from tinycore.tensor.capture.proxies import (
    ArgumentProxies,
    finish_reads,
    finish_writes,
    naming_variables,
)
from tinycore.tensor.capture.recorded_call import (
    KeptResult,
    LeftGradients,
    Output,
    RecordedCall,
    node_of,
)
from tinycore.tensor.graph import holding
from tinycore.tensor.guards.environment import Environment, Walk
from tinycore.tensor.guards.guard import Guard
from tinycore.tensor.storage import held_values
from tinycore.tensor.storage.liveness import replace_nodes
from tinycore.tensor.storage.storage import waiting
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
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
    facts: list[tuple[str, Hashable]] = field(default_factory=list)
    """The guarded facts of these calls, by name."""
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
        self.facts = self.facts or [*given.facts, *self.guard.facts()]
        if recorded is not None:
            self.recorded = replace(recorded, side_outputs=run.places(after))
            self.renew(given)
        return result

    # --- replaying

    def is_current(self) -> bool:
        """True if the tensors that the launches work on are still where they were.

        Pending writes to them are done. For use where `Expected.holds` says no.
        """
        recorded = self.recorded
        assert recorded and recorded.expected, "only what was captured is replayed"  # noqa: PT018
        expected, state = recorded.expected, recorded.state
        for place, entry in enumerate(state):
            tensor = entry.tensor()
            if tensor is None:
                return False
            if entry.node is None or tensor.uop is entry.node:
                continue
            if not is_realized(tensor.uop):
                tensor.realize()
            if realized_buffers(tensor.uop) != realized_buffers(entry.node):
                return False
            state[place] = entry._replace(node=tensor.uop)
            expected.exchange(place, tensor.uop)
            recorded.known = -1
        return expected.holds()

    def replay(self, given: Arguments) -> Any:
        """Run the captured launches on this call's arguments; the result."""
        recorded = self.recorded
        assert recorded is not None, "only what was captured is replayed"
        step, naming, result = recorded.step, given.naming, recorded.result
        if not step.used.isdisjoint(given.buffers):
            self.refuse_shared(step, given)
        if waiting and step.overwritten:
            finish_reads(step.overwritten.union(step.exchanged(given.buffers)))
        kept = next(filter(KeptResult.is_free, step.kept_results), None)
        is_all = step.overwritten or recorded.side_outputs  # written and left outside, or nothing
        with ExitStack() if step.is_long else deferred() if is_all else NO_BLOCK as last:
            nodes = self.launch(recorded, given, kept, last)
        if recorded.keeps_results:
            shown = iter((kept or recorded.keep(nodes)).shown)
            return rebuilt(result, Output, lambda output: output.tensor(next(shown)))
        return rebuilt(result, Output, lambda o: o.tensor(o.node(nodes, naming)))

    def launch(
        self,
        recorded: RecordedCall,
        given: Arguments,
        kept: KeptResult | None,
        last: ExitStack | None,
    ) -> Mapping[int, UOp]:
        """Run the launches, in the memory of a kept result if there is one, and leave tensors
        outside; the BUFFERs of the result by their places. For `last` see `CapturedStep.replay`.
        """
        again = NOTHING if kept is None else kept.again
        is_left = False
        wanted: Iterable[int] = recorded.shown
        if sides := recorded.side_outputs:
            left = LeftGradients() if last is not None else recorded.gradients.taken_back()
            recorded.gradients = left  # those of a long step stay as they are in an interrupt
            again = {**again, **left.again}
            if is_left := len(left.places) < len(sides):
                wanted = [p for p in range(len(recorded.bindings)) if p not in left.places]
        try:
            written = recorded.step.replay(given.buffers, given.numbers, again, last)
        finally:
            if recorded.step.overwritten:
                self.renew(given)
        nodes = {} if kept is None else kept.begun()
        for place in wanted:
            if place not in nodes:
                nodes[place] = node_of(recorded, place, written[place], given.nodes)
        recorded.end_gradients(nodes, given.nodes)
        if is_left:
            self.leave(nodes, written, given)
            nodes = {place: nodes[place] for place in recorded.shown}
        return nodes

    def leave(self, nodes: Mapping[int, UOp], written: Sequence[Buffer], given: Arguments) -> None:
        """Put tensors where the function leaves them."""
        recorded, guard, around = self.recorded, self.guard, self.around
        assert recorded is not None and guard is not None and around is not None, "as captured"  # noqa: PT018
        roots, done, rows = around.roots(given.objects), recorded.gradients.places, []
        for number, side in enumerate(recorded.side_outputs):
            if done and number in recorded.overwritable:
                continue
            new = rebuilt(side.value, Output, lambda o: o.tensor(o.node(nodes, given.naming)))
            if side.tensor is None:
                guard.put(roots, side.box, side.place, new)
            elif (owner := side.tensor()) is not None:
                owner.grad = new
                if number in recorded.overwritable:
                    new._is_seen = False
                    rows.append((side.tensor, new, new.uop, side.value.places[0]))
        if rows:
            owners, tensors, shown, places = zip(*rows, strict=True)
            made = recorded.step.outputs
            known = dict(zip(places, map(base_of, shown), strict=True))
            again = {made[place]: written[place] for place in places}
            recorded.gradients = LeftGradients(owners, tensors, shown, known, again)

    def renew(self, given: Arguments) -> None:
        """End the values that were computed from memory which launches have overwritten, also those
        that another thread has read meanwhile, and begin new versions where graphs know the former.
        """
        written = self.overwritten(given) if holding or history.kept else ()
        held_values.end(written)
        if written:
            replace_nodes(history.renewed(written))

    def overwritten(self, given: Arguments) -> set[UOp]:
        """The BUFFERs of arguments and state that a replay writes to."""
        assert self.recorded is not None, "only what was captured is replayed"
        step = self.recorded.step
        fixed = [node for node in self.recorded.bindings if isinstance(node, UOp)]
        state = [
            m for s in self.recorded.state if s.node is not None for m in buffers_below(s.node)
        ]
        shown = {node: buffer_of(node) for node in (*state, *fixed)}
        shown.update(zip(given.nodes, step.inputs, strict=True))
        return {
            versions.current(node)
            for node, buffer in shown.items()
            if base_buffer(buffer) in step.overwritten
        }

    def refuse_shared(self, step: CapturedStep, given: Arguments) -> None:
        """Raise JitError for an argument in memory that the launches work on."""
        for path, tensor in given.named_tensors:
            if step.used.intersection(map(buffer_of, buffers_below(tensor.uop))):
                raise JitError(
                    f"{path} of {self.name} (of shape {tensor.shape}, {tensor.dtype!r}) is memory "
                    "that the function also works on itself, which it was not in the captured "
                    "call. Pass a copy (clone)"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "recorded": self.recorded, "conditions": self.conditions}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(**kept)  # type: ignore[misc]
