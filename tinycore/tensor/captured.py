"""A captured function, as far as calls of one kind go: what was taken, and how it is replayed.

Floor 5. A replay first looks at the tensors whose memory the launches use: pending writes to them
are done, and where another tensor has taken the place of one, the capture is of no use any more.
See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinycore.device.buffer import Buffer
from tinycore.engine.jit import CapturedStep, capture
from tinycore.errors import JitError
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.arguments import Arguments, is_realized, rebuilt
from tinycore.tensor.attempt import (
    Attempt,
    Before,
    Run,
    changed_gradients,
    is_left,
    realized,
    tensors_in,
)
from tinycore.tensor.core import replace_nodes
from tinycore.tensor.environment import Environment, Guard
from tinycore.tensor.past import past
from tinycore.tensor.standins import StandIns, finish_writes, with_names
from tinycore.tensor.taken import NOTHING, Output, Spare, State, Taken, node_of
from tinycore.tensor.tensor import Tensor
from tinycore.tensor.value_cache import value_cache
from tinycore.tensor.watching import watching
from tinycore.uop.bindings import Naming
from tinycore.uop.node import UOp
from tinycore.uop.size import Conditions, noting, sealed

MOST_ADMITTED = 4096
"""Numbers of which it is kept that conditions hold for them."""


@dataclass
class Capture:
    """Everything known of the calls of one kind."""

    name: str
    around: Environment | None = None
    prune: bool = False
    """Whether replays leave out what is the same in each of them."""
    guard: Guard | None = None
    """What has to be found around the function."""
    first: Run | None = None
    """What the first run did; None before it."""
    changed: frozenset[str] = frozenset()
    """What runs of the function have changed around it, other than tensors it leaves there."""
    taken: Taken | None = None
    """What was captured: it is there as a whole, or not at all."""
    facts: list[tuple[str, Hashable]] = field(default_factory=list)
    """What tells these calls from others, with names."""
    conditions: Conditions = field(default_factory=dict)
    """What the numbers of Variables decided in the calls that were run."""
    admitted: set[tuple[int, ...]] = field(default_factory=set)
    """Numbers for which these were found to hold."""
    put_off: int = 0
    forgotten: int = 0

    @property
    def step(self) -> CapturedStep | None:
        """The launches, once something was captured."""
        return None if self.taken is None else self.taken.step

    def find(self, given: Arguments) -> list[Any] | None:
        """What is around the function, if this capture is for that and for its numbers."""
        if self.conditions and not self.admits(given.numbers):
            return None
        if self.around is None or self.guard is None:
            return []
        around = self.around
        roots = around.alone if around.alone and not given.objects else around.roots(given.objects)
        return self.guard.find(roots)

    def told(self, given: Arguments) -> list[tuple[str, Hashable]]:
        """What tells a call from others: its arguments, and what is around the function."""
        around = [] if self.around is None else self.around.walk(given.objects).guard().facts()
        return [*given.facts, *around]

    def forget(self) -> None:
        """Give up what was captured: the next two calls run the function again."""
        self.first = self.taken = None
        self.conditions, self.admitted = {}, set()

    # --- conditions on numbers

    def admits(self, numbers: Mapping[str, int]) -> bool:
        """Whether what numbers decided in the calls that were run is so for these."""
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
        """Add what numbers decided in a call."""
        self.conditions |= found
        self.admitted = set()

    # --- capturing

    def run(
        self,
        function: Callable[..., Any],
        given: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The first run, noting what it did."""
        assert self.around is not None, "there is a function to run"
        finish_writes()
        walk, before = self.around.walk(given.objects), Before.all()
        args, kwargs = with_names(given, args), with_names(given, kwargs)
        with (
            capture(refuses=False) as recording,
            value_cache.isolated(),
            noting() as conditions,
            watching() as watch,
        ):
            result = function(*args, **kwargs)
            tensors = realized(self.name, result)
            changes = walk.changes()
            left = [t for change in changes for t in tensors_in(change.now)]
            left += [t.grad for t, _ in changed_gradients(before, watch) if t.grad is not None]
            if left:
                Tensor.realize(*tensors, *left)
        self.note(conditions)
        self.changed = frozenset([c.path for c in changes if not is_left(c)])
        self.guard = self.around.walk(given.objects).guard()
        self.first = Run.of(recording)
        self.facts = [*given.facts, *self.guard.facts()]
        return result

    def take(
        self,
        function: Callable[..., Any],
        given: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the function and capture it, if that can be done already; its result."""
        assert self.around is not None, "there is a function to run"
        finish_writes()
        value_cache.invalidate(given.nodes)  # the function may write to them, by other names
        parts = StandIns(given)
        try:
            attempt = Attempt(self, self.around.walk(given.objects), given, parts)
            with capture() as recording, sealed(), value_cache.isolated(), noting() as conditions:
                result = attempt.run(function, args, kwargs)
            self.note(conditions)
            taken = attempt.taken(recording, result)
        except Exception:
            replace_nodes(parts.back)
            parts.give_back()
            self.guard = self.around.walk(given.objects).guard()
            raise
        except BaseException:
            replace_nodes(parts.back)
            parts.give_back()
            raise
        replace_nodes(parts.back)
        if taken is None:
            self.guard = self.around.walk(given.objects).guard()
        else:
            after = self.around.walk(given.objects, attempt.free)
            self.guard = after.guard()
            self.taken = replace(taken, left=attempt.places(after))
        return result

    # --- replaying

    def is_current(self) -> bool:
        """Whether the tensors that the launches work on are still where they were.

        Writes to them that wait are done.
        """
        assert self.taken is not None, "only what was captured is replayed"
        state = self.taken.state
        for place, (reference, node, requires_grad, owner) in enumerate(state):
            tensor = reference()
            if tensor is None or tensor.requires_grad is not requires_grad:
                return False
            if owner is not None and getattr(owner(), "grad", None) is not tensor:
                return False
            if tensor.uop is node:
                continue
            if not is_realized(tensor.uop):
                tensor.realize()
            if not is_realized(tensor.uop) or buffers_below(tensor.uop) != buffers_below(node):
                return False
            state[place] = State(reference, tensor.uop, requires_grad, owner)
        for reference, requires_grad in self.taken.flags:
            tensor = reference()
            if tensor is None or tensor.requires_grad is not requires_grad:
                return False
        for left in self.taken.left:
            if left.tensor is not None:
                owner = left.tensor()
                if owner is None or (owner.grad is None) is not left.is_first:
                    return False
        return True

    def replay(self, given: Arguments, found: list[Any]) -> Any:
        """Run the captured launches on this call's arguments; the result."""
        taken = self.taken
        assert taken is not None, "only what was captured is replayed"
        step = taken.step
        if not step.used.isdisjoint(given.buffers):
            self.refuse_shared(step, given)
        numbers, naming = given.numbers, given.naming
        if value_cache.entries:
            value_cache.invalidate(self.memory_of(given))
        if past.kept:
            past.end(self.memory_of(given))
        spares = taken.unseen() if taken.spares else {}
        again = {spare.made: spare.buffer for spare in spares.values()}
        written = step.replay(given.buffers, numbers, again)
        kept = {spare.place for spare in spares.values()} if spares else ()
        nodes = []
        for place, source in enumerate(taken.sources):
            if source >= 0:
                nodes.append(given.nodes[source])
            else:
                buffer = written[place]
                nodes.append(NOTHING if place in kept else node_of(taken, place, buffer))
        if len(spares) < len(taken.left):
            self.leave(nodes, written, naming, found, spares)
        if type(taken.result) is Output:
            return taken.result.shown(nodes, naming)
        return rebuilt(taken.result, Output, lambda output: output.shown(nodes, naming))

    def leave(
        self,
        nodes: list[UOp],
        written: Sequence[Buffer],
        naming: Naming | None,
        found: list[Any],
        spares: dict[int, Spare],
    ) -> None:
        """Put tensors where the function leaves them."""
        taken, guard = self.taken, self.guard
        assert taken is not None and guard is not None, "what is left outside was found there"  # noqa: PT018
        for number, (left, value) in enumerate(zip(taken.left, taken.values, strict=True)):
            if number in spares:
                continue
            new = rebuilt(value, Output, lambda output: output.shown(nodes, naming))
            if left.tensor is None:
                box = guard.boxes[left.box]
                assert box.store is not None, "the function has put something there"
                box.store(found[box.parent][box.place], left.place, new)
            elif (owner := left.tensor()) is not None:
                owner.grad = new
                if number in taken.alone:
                    place = value.places[0]
                    spares[number] = Spare(
                        left.tensor,
                        new,
                        nodes[place],
                        written[place],
                        taken.step.outputs[place],
                        place,
                    )
        taken.spares.clear()
        taken.spares.update(spares)

    def memory_of(self, given: Arguments) -> list[UOp]:
        """The BUFFERs of arguments and state, which a replay may write to."""
        assert self.taken is not None, "only what was captured is replayed"
        state = [memory for entry in self.taken.state for memory in buffers_below(entry.node)]
        spares = [spare.node for spare in self.taken.spares.values()]
        fixed = [node for node in self.taken.nodes if node is not None]
        return [*given.nodes, *state, *spares, *fixed]

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
        return {"name": self.name, "taken": self.taken, "conditions": self.conditions}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(**kept)  # type: ignore[misc]
