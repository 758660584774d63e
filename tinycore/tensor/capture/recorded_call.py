"""The record of a captured call, and its replay.

Floor 5. The launches, and a binding for each of their outputs: an argument, state, or new memory.
A replay first looks at the tensors whose memory the launches use: it does pending writes to them,
and the record is invalid if one of them was replaced by another tensor. Then it launches, and makes
results, and what is left outside, of the outputs. See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from operator import attrgetter, call, is_
from sys import getrefcount
from typing import Any, Final, NamedTuple

from tinycore._signals import deferred
from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import NOTHING, CapturedStep
from tinycore.engine.transactions import base_buffer
from tinycore.errors import JitError
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.tensor.aliases import buffers_below, is_realized
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.autograd.grad import (
    Pasts,
    end_at,
    ended_at,
    ended_below,
    ended_below_buffer,
    homes_at,
    present,
)
from tinycore.tensor.autograd.versions import (
    BY_CALL,
    NOBODY,
    Homes,
    Known,
    kept_of,
    known_of,
)
from tinycore.tensor.capture.arguments import Arguments, number_of, rebuilt
from tinycore.tensor.capture.change_sets import realized_buffers
from tinycore.tensor.capture.proxies import finish_reads
from tinycore.tensor.graph import holding
from tinycore.tensor.guards.environment import Environment
from tinycore.tensor.guards.guard import Guard
from tinycore.tensor.storage import held_values
from tinycore.tensor.storage.liveness import buffers_of_parameters, replace_nodes
from tinycore.tensor.storage.storage import waiting
from tinycore.tensor.tensor import Tensor
from tinycore.uop.bindings import Naming, exchanging, sizes_below
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, made_anew
from tinycore.uop.op import Op


@dataclass(frozen=True)
class Output:
    """A tensor of a result: its graph over stand-ins for the outputs of the step."""

    form: UOp
    asks: bool | None = None
    """True if a new tensor asks for a gradient, False if it refuses one, None if neither."""
    kind: type[Tensor] = Tensor

    @cached_property
    def places(self) -> dict[UOp, int]:
        """The stand-ins, with the numbers of those outputs."""
        return {stand: number_of(stand) for stand in buffers_below(self.form)}

    @cached_property
    def place(self) -> int:
        """The first of these."""
        return next(iter(self.places.values()))

    @cached_property
    def is_sized(self) -> bool:
        """True if the shapes depend on Variables."""
        return bool(sizes_below([self.form]))

    def node(self, nodes: Mapping[int, UOp], naming: Naming | None) -> UOp:
        """The node over BUFFERs, with the numbers that Variables hold in this call."""
        form = self.form
        if form.op is Op.BUFFER:
            return nodes[self.place]
        node = form.substitute({stand: nodes[place] for stand, place in self.places.items()})
        return exchanging(node, naming.back) if naming and self.is_sized else node

    def tensor(self, node: UOp) -> Tensor:
        """A new tensor of its node."""
        tensor = self.kind._from_node(node)
        tensor._requires_grad = self.asks  # which ends no gradient that is refused at its memory
        return tensor


Origins = tuple[Homes, tuple[int, ...], tuple[int, ...]]
Reference = Callable[[], Any]
"""A weak reference to a tensor. That one may be gone is seen when an attribute of it is read."""


class SideOutput(NamedTuple):
    """A place outside where the function puts tensors: a box of its guard, or a gradient."""

    value: Any
    """The value that is put there, with an Output for each tensor."""
    tensor: Reference | None
    box: int = 0
    place: int = 0


class Expected:
    """The tensors that a replay requires unchanged: nodes, flags and gradients at the capture."""

    def __init__(self) -> None:
        self.state: list[tuple[Reference, UOp]] = []
        """The tensors whose memory the launches work on, with their nodes."""
        self.scope: dict[str, Any] = {}
        """The names in the code of `holds`."""
        self.terms: list[str] = []

    def require_state(self, tensor: Tensor, owner: Reference | None) -> None:
        """Add a tensor that the launches work on, perhaps the gradient of an owner."""
        reference, place = weakref.ref(tensor), len(self.state)
        self.state.append((reference, tensor.uop))
        self.scope[f"node{place}"] = tensor.uop
        self.require(reference, f"_view.value is node{place}")
        self.require_flag(tensor)
        if owner is not None:
            self.require(owner, f"_grad is {self.read(reference)}")

    def require_flag(self, tensor: Tensor) -> None:
        """Add a tensor that must ask for a gradient as it does now."""
        self.require(weakref.ref(tensor), f"_requires_grad is {tensor.requires_grad}")

    @property
    def memory(self) -> list[UOp]:
        """The BUFFERs of the state."""
        return [memory for _, node in self.state for memory in buffers_below(node)]

    def read(self, reference: Reference) -> str:
        """The text that reads a tensor, once."""
        name, place = f"t{id(reference)}", f"at_{id(reference)}"
        if place in self.scope:
            return name
        self.scope[place] = reference
        return f"({name} := {place}())"

    def require(self, reference: Reference, term: str) -> None:
        """Add a term on an attribute of a tensor."""
        self.terms.append(f"{self.read(reference)}.{term}")

    @cached_property
    def holds(self) -> Callable[[], bool]:
        """A function, true if all tensors are alive, with the same nodes, flags and gradients.

        It is one expression, compiled at the first replay: to read slots so takes less time than
        by functions of C.
        """
        lines = ["def holds():", "    try:", f"        return {' and '.join(self.terms)}"]
        lines += ["    except AttributeError:", "        return False"]  # one is gone
        exec(compile("\n".join(lines), "expected", "exec"), self.scope)
        found: Callable[[], bool] = self.scope["holds"]
        return found

    def is_current(self) -> bool:
        """True if the tensors that the launches work on are still where they were.

        Pending writes to them are done. For use where `holds` says no.
        """
        for place, (reference, node) in enumerate(self.state):
            tensor = reference()
            if tensor is None:
                return False
            if tensor.uop is node:
                continue
            if not is_realized(tensor.uop):
                tensor._realize_for_call([tensor])
            if realized_buffers(tensor.uop) != realized_buffers(node):
                return False
            self.state[place] = reference, tensor.uop
            self.scope[f"node{place}"] = tensor.uop
        return self.holds()


class LeftGradients(NamedTuple):
    """Gradients that a replay has left alone in their memory, one in each row of these columns. The
    next one overwrites them, unless somebody saw one.
    """

    owners: Sequence[Reference] = ()
    tensors: Sequence[Tensor] = ()
    nodes: Sequence[UOp] = ()
    """The nodes of the tensors."""
    places: Mapping[int, UOp] = NOTHING
    """Their indices among the outputs of the step, and their BUFFERs."""
    again: Mapping[Buffer, Buffer] = NOTHING
    """For buffers of the captured step, those to be used again."""

    def taken_back(self) -> LeftGradients:
        """The tensors, given to their owners again, if nobody has seen one, so that all may be
        overwritten; else none.
        """
        is_unseen = not any(map(IS_SEEN, self.tensors))
        if is_unseen and all(map(is_, map(NODE, self.tensors), self.nodes)):
            try:
                deque(map(setattr, map(call, self.owners), GRADIENTS, self.tensors), maxlen=0)
                return self
            except AttributeError:  # an owner is gone
                pass
        return LeftGradients()


ENDED, MADE = map(attrgetter, ("ended", "made"))
IS_SEEN, NODE = map(attrgetter, ("_is_seen", "_view.value"))
GRADIENTS: Final = repeat("_grad")


class KeptResult:
    """Memory and nodes of a result, in which a replay computes again if nobody else has them.

    To make them anew takes as long as all else in a replay, and no explicit state tells when a
    program drops a node: so references are counted. Tensors are new in each call: one that is kept
    would be among the living tensors that `backward` gives gradients.
    """

    __slots__ = tuple("again counts held nodes numbers shown".split())

    def __init__(self, recorded: RecordedCall, nodes: Mapping[int, UOp]) -> None:
        """Nobody else has any of them yet."""
        self.nodes, outputs = nodes, recorded.step.outputs
        self.numbers = [*map(id, nodes.values())]
        deque(map(known_of, nodes.values()), maxlen=0)
        self.again = {outputs[place]: buffer_of(node) for place, node in nodes.items()}
        self.shown = [leaf.node(nodes, None) for leaf in recorded.leaves]
        self.held = [*nodes.values(), *self.again.values(), *self.shown]
        self.counts = [*map(getrefcount, self.held)]

    def is_free(self) -> bool:
        """True if nobody else has them, and no write has ended their version."""
        is_alone = [*map(getrefcount, self.held)] == self.counts
        return is_alone and versions.former.keys().isdisjoint(self.numbers)

    def begun(self) -> dict[int, UOp]:
        """The nodes, as those of other tensors, from which nothing was computed yet."""
        for node in self.nodes.values():
            node._past = Known(node)
            if versions.values:
                versions.values.pop(id(node), None)
        return {**self.nodes}


NO_BLOCK: Final = nullcontext()
MOST_KEPT_BYTES: Final = 8 << 20
"""Most memory of a result that is kept: the work on more takes longer than to make its nodes."""
MOST_KEPT_RESULTS: Final = 2
"""Results that are kept: while one is looked at, the next is computed."""
COUNTS: Final = getattr(sys, "_is_gil_enabled", lambda: True)()
"""True if reference counts tell whether others hold an object."""


@dataclass(eq=False)
class RecordedCall:
    """A captured call: all that a replay needs."""

    name: str
    step: CapturedStep
    result: Any
    """The result, with an Output for each tensor."""
    bindings: list[int | UOp | None]
    """Bindings of the buffers of the step's outputs: each the number of an argument's buffer, the
    BUFFER node of state, or None for new memory.
    """
    expected: Expected | None = None
    """The tensors that must be as they were; None where there are none."""
    side_outputs: tuple[SideOutput, ...] = ()
    """Places outside of the function where it stores tensors that outlive the call."""
    origins: Mapping[int, Origins] = field(default_factory=dict)
    """For new outputs: memory that they were computed from and gradients would go to, the numbers
    of buffers of arguments, and the places of other outputs.
    """
    written: Mapping[int | UOp, Origins] = field(default_factory=dict)
    """The same for what it writes to: numbers of buffers of arguments, and the BUFFERs of state."""
    arrived: Origins | None = None
    """Memory at which gradients inside arrive."""
    asked: Origins = NOBODY, (), ()
    """Their targets."""
    asks_all: bool = False
    """True if one is for all that require it."""
    facts: list[Known] = field(init=False, default_factory=list)
    """Facts of the state among the memory at which gradients arrive."""
    known: int = field(init=False, default=-1)
    """The number of changes for which `pasts`, and what was written, are known."""
    pasts: dict[Homes, Homes] = field(init=False, default_factory=dict)
    """The state among origins, with what that was computed from, until it changes."""
    near: Mapping[int, Homes] = field(init=False, default_factory=dict)
    """Sources of the arguments of the last replay."""
    found: dict[Origins, Homes] = field(init=False, default_factory=dict)
    """Sources of results that were computed from these and from state alone."""
    found_by: tuple[Guard, Environment] = field(init=False, repr=False)
    """The guard and the environment that find the places of `side_outputs`."""
    gradients: LeftGradients = field(init=False, default=LeftGradients())
    """Gradients that the last replay left in separate memory."""

    # --- replaying

    def is_current(self) -> bool:
        """True if the state is still where it was. For use where `Expected.holds` says no."""
        assert self.expected is not None, "something is expected"
        self.known = -1
        return self.expected.is_current()

    def replay(self, given: Arguments) -> Any:
        """Run the captured launches on a call's arguments; the result."""
        step, naming, result = self.step, given.naming, self.result
        if not step.used.isdisjoint(given.buffers):
            self.refuse_shared(given)
        if waiting and step.overwritten:
            finish_reads(step.overwritten.union(step.exchanged(given.buffers)))
        kept = next(filter(KeptResult.is_free, step.kept_results), None)
        is_all = step.overwritten or self.side_outputs  # written and left outside, or nothing
        with ExitStack() if step.is_long else deferred() if is_all else NO_BLOCK as last:
            nodes = self.launch(given, kept, last)
        if self.keeps_results:
            shown = iter((kept or self.keep(nodes)).shown)
            return rebuilt(result, Output, lambda output: output.tensor(next(shown)))
        return rebuilt(result, Output, lambda o: o.tensor(o.node(nodes, naming)))

    def launch(
        self, given: Arguments, kept: KeptResult | None, last: ExitStack | None
    ) -> Mapping[int, UOp]:
        """Run the launches, in the memory of a kept result if there is one, and leave tensors
        outside; the BUFFERs of the result by their places. For `last` see `CapturedStep.replay`.
        """
        again = NOTHING if kept is None else kept.again
        is_left = False
        wanted: Iterable[int] = self.shown
        if sides := self.side_outputs:
            left = LeftGradients() if last is not None else self.gradients.taken_back()
            self.gradients = left  # those of a long step stay as they are in an interrupt
            again = {**again, **left.again}
            if is_left := len(left.places) < len(sides):
                wanted = [p for p in range(len(self.bindings)) if p not in left.places]
        try:
            written = self.step.replay(given.buffers, given.numbers, again, last)
        finally:
            if self.step.overwritten:
                self.renew(given)
        nodes = {} if kept is None else kept.begun()
        for place in wanted:
            if place not in nodes:
                nodes[place] = self.node(place, written[place], given.nodes)
        self.end_gradients(nodes, given.nodes)
        if is_left:
            self.leave(nodes, written, given)
            nodes = {place: nodes[place] for place in self.shown}
        return nodes

    def node(self, place: int, buffer: Buffer, given: Sequence[UOp]) -> UOp:
        """The BUFFER node of an output: that of an argument, of state, or a new one."""
        bound = self.bindings[place]
        if bound is None:
            node = made_anew(self.kinds[place])
            buffers[node] = buffer
            if buffer in self.step.used:
                self.bindings[place] = node
            return node
        if not isinstance(bound, UOp):
            return versions.current(given[bound])
        bound = self.bindings[place] = versions.latest(bound)
        return bound

    def leave(self, nodes: Mapping[int, UOp], written: Sequence[Buffer], given: Arguments) -> None:
        """Put tensors where the function leaves them."""
        done, rows = self.gradients.places, []
        for number, side in enumerate(self.side_outputs):
            if done and number in self.overwritable:
                continue
            new = rebuilt(side.value, Output, lambda o: o.tensor(o.node(nodes, given.naming)))
            if side.tensor is None:
                guard, around = self.found_by
                guard.put(around.roots(given.objects), side.box, side.place, new)
            elif (owner := side.tensor()) is not None:
                owner.grad = new
                if number in self.overwritable:
                    new._is_seen = False
                    rows.append((side.tensor, new, new.uop, side.value.place))
        if rows:
            owners, tensors, shown, places = zip(*rows, strict=True)
            made = self.step.outputs
            known = dict(zip(places, map(base_of, shown), strict=True))
            again = {made[place]: written[place] for place in places}
            self.gradients = LeftGradients(owners, tensors, shown, known, again)

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
        step, fixed = self.step, [node for node in self.bindings if isinstance(node, UOp)]
        state = self.expected.memory if self.expected else ()
        shown = {node: buffer_of(node) for node in (*state, *fixed)}
        shown.update(zip(given.nodes, step.inputs, strict=True))
        return {
            versions.current(node)
            for node, buffer in shown.items()
            if base_buffer(buffer) in step.overwritten
        }

    def refuse_shared(self, given: Arguments) -> None:
        """Raise JitError for an argument in memory that the launches work on."""
        for path, tensor in given.named_tensors:
            if self.step.used.intersection(map(buffer_of, buffers_below(tensor.uop))):
                raise JitError(
                    f"{path} of {self.name} (of shape {tensor.shape}, {tensor.dtype!r}) is memory "
                    "that the function also works on itself, which it was not in the captured "
                    "call. Pass a copy (clone)"
                )

    # --- what gradients may reach

    def goes_on(self, given: Sequence[UOp], arrived: Origins) -> bool:
        """True if a gradient inside would now go on below what it has arrived at: that was computed
        since the capture from what gets it.
        """
        fixed, places, _ = arrived
        arguments = [given[place] for place in places]
        if self.known < 0:
            self.facts = [*map(known_of, present(fixed))]
        facts = [*self.facts, *map(known_of, arguments)]
        if not (any(map(ENDED, facts)) or any(map(MADE, facts))):
            return False  # as mostly
        memory = [*present(fixed), *arguments]
        pasts = [ended_below([node]) - homes_at([node]) for node in memory]
        getting = [given[place] for place in self.asked[1]]
        if self.asks_all:
            getting += buffers_of_parameters([*memory, *present(NOBODY.union(*pasts))])
        asked = self.asked[0] | homes_at(getting)
        return not all(map(asked.isdisjoint, pasts)) or (
            self.asks_all and any(map(kept_of, memory))
        )

    def end_gradients(self, nodes: Mapping[int, UOp], given: Sequence[UOp]) -> None:
        """Record of new outputs, and of what was written, what they were computed from: a gradient
        that should go there, and ends here, is refused. Gradients that are used again keep what was
        recorded before.
        """
        near = {place: ended_below_buffer(given[place]) for place in self.read}
        is_same = self.known == Pasts.count and self.near == near  # as then for state
        if not is_same:
            if self.known != Pasts.count:
                self.pasts.clear()
            self.known, self.near = Pasts.count, near
            self.found.clear()
        targets = self.varying if is_same else self.written
        written = [(target, self.past(origins, nodes)) for target, origins in targets.items()]
        for place, node in nodes.items():
            if (origins := self.origins.get(place)) is not None:
                known_of(node).ended = self.past(origins, nodes)
        for target, found in written:  # after all of them are known, as what it held was read
            memory = versions.current(given[target] if isinstance(target, int) else target)
            before = ended_at(memory)
            end_at(memory, found)
            Pasts.count += ended_at(memory) != before

    def past(self, origins: Origins, nodes: Mapping[int, UOp]) -> Homes:
        """Sources of an output of this replay; `nodes` are the new outputs."""
        if (found := self.found.get(origins)) is None:
            fixed, arguments, others = origins
            if (found := self.pasts.get(fixed)) is None:
                found = self.pasts[fixed] = fixed | ended_below(present(fixed)) | BY_CALL
            found = found.union(*map(self.near.__getitem__, arguments))
            if others:
                left = self.gradients.places
                made = [nodes[p] if p in nodes else left[p] for p in others]
                return found | ended_below(made)
            self.found[origins] = found
        return found

    @cached_property
    def read(self) -> set[int]:
        """The numbers of the buffers of arguments that something was computed from."""
        known = chain(self.origins.values(), self.written.values())
        return {place for _, arguments, _ in known for place in arguments}

    @cached_property
    def varying(self) -> dict[int | UOp, Origins]:
        """Targets of writes whose sources differ in replays with the same arguments."""
        known = self.written.items()
        return {to: origins for to, origins in known if type(to) is int or origins[2]}

    @cached_property
    def leaves(self) -> list[Output]:
        """The Outputs of the result."""
        return leaves_of(self.result)

    @cached_property
    def shown(self) -> tuple[int, ...]:
        """The places among the step's outputs that the result shows."""
        return tuple(dict.fromkeys(p for leaf in self.leaves for p in leaf.places.values()))

    @cached_property
    def unshared(self) -> frozenset[Buffer]:
        """New memory that the result alone shows, or one tensor left outside."""
        left = self.outputs[len(self.leaves) :]
        places = [*self.shown, *[place for output in left for place in output.places.values()]]
        used = Counter([self.step.outputs[place] for place in places])
        return frozenset(buffer for buffer in self.step.fresh_outputs if used[buffer] == 1)

    @cached_property
    def keeps_results(self) -> bool:
        """True if results have their memory alone, which is little, and one shape in all calls."""
        found = [self.step.outputs[place] for place in self.shown]
        is_little = 0 < sum(buffer.nbytes for buffer in found) <= MOST_KEPT_BYTES
        is_sized = any(leaf.is_sized for leaf in self.leaves)
        return COUNTS and is_little and not is_sized and self.unshared.issuperset(found)

    def keep(self, nodes: Mapping[int, UOp]) -> KeptResult:
        """Keep a new result, of which nobody else knows yet."""
        made = KeptResult(self, nodes)
        kept = self.step.kept_results
        kept[:] = [*kept, made][-MOST_KEPT_RESULTS:]
        return made

    @cached_property
    def outputs(self) -> list[Output]:
        """The Outputs of the result, then those left outside."""
        return [*self.leaves, *leaves_of([side.value for side in self.side_outputs])]

    @cached_property
    def kinds(self) -> dict[int, UOp]:
        """For each output of the step, a BUFFER node of its kind."""
        return {p: stand for output in self.outputs for stand, p in output.places.items()}

    @cached_property
    def overwritable(self) -> frozenset[int]:
        """Numbers of gradients in memory of their own, which later replays may overwrite."""
        return frozenset(
            number
            for number, side in enumerate(self.side_outputs)
            if side.tensor and type(side.value) is Output
            if base_of(side.value.form).op is Op.BUFFER
            if self.step.outputs[side.value.place] in self.unshared
        )

    def __reduce__(self) -> tuple[object, ...]:
        """All but what is state here, which is no tensor in another process."""
        return RecordedCall, (
            self.name,
            self.step,
            self.result,
            [b if type(b) is int else None for b in self.bindings],
            None,
            (),
            {place: without_state(found) for place, found in self.origins.items()},
            {k: without_state(found) for k, found in self.written.items() if type(k) is int},
            self.arrived and without_state(self.arrived),
            without_state(self.asked),
            self.asks_all,
        )


def without_state(origins: Origins) -> Origins:
    """The arguments and other outputs among origins."""
    return NOBODY, *origins[1:]


def leaves_of(result: Any) -> list[Output]:
    """The Outputs in a recorded result."""
    found: list[Output] = []
    rebuilt(result, Output, found.append)
    return found
