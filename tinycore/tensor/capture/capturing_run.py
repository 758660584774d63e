"""The capturing (tracing) run of a function, which rejects what a replay would get wrong.

Floor 5. The function runs on tensors that stand for its arguments, so that memory which it also
reaches in another way is noticed. What it leaves to be computed is computed inside of the capture;
what it leaves outside for good, such as gradients, become results that replays put there again.
See docs/decisions/0028-captures.md.

What the host draws is a constant of the launches, and two calls often draw alike, as in
`if random.random() < .1`. So a capture is refused if it drew a number from Python's or NumPy's
random generators, or finds an iterator, whose position nobody can ask for.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import CapturedStep
from tinycore.engine.run import Recording
from tinycore.engine.transactions import base_buffer
from tinycore.errors import JitError
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.gradient_sources import ended_at, ended_below, present
from tinycore.tensor.autograd.past import Homes
from tinycore.tensor.capture.arguments import Arguments, form_of, leaves, rebuilt
from tinycore.tensor.capture.change_sets import Before, ChangeSet, realized_buffers
from tinycore.tensor.capture.proxies import ArgumentProxies
from tinycore.tensor.capture.recorded_call import (
    Origins,
    Output,
    RecordedCall,
    Reference,
    SideOutput,
    State,
)
from tinycore.tensor.guards.environment import Change, Walk, is_same_nest
from tinycore.tensor.guards.keys import shortened
from tinycore.tensor.storage.liveness import while_walking
from tinycore.tensor.storage.realization import compute, unrealized, unshare
from tinycore.tensor.storage.storage import storages_over
from tinycore.tensor.tensor import Tensor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import shown_name

if TYPE_CHECKING:
    from tinycore.tensor.capture.captured import Capture


MOST_TRIES: Final = 3
"""Calls after which a function that still does something for the first time is refused."""


class Run(NamedTuple):
    """Record of one run of the function, as far as another must do the same."""

    launches: tuple[tuple[str, UOp | None], ...]
    host: tuple[Hashable, ...]

    @classmethod
    def of(cls, recording: Recording) -> Run:
        """The run that was recorded."""
        items = [(i.runner.name, getattr(i.runner, "ast", None)) for i in recording.items]
        return cls(tuple(items), tuple(recording.host))


def compare(name: str, first: Run, second: Run) -> None:
    """Raises JitError where two runs on like arguments did different things of the same kind."""
    kinds = [[n for n, _ in run.launches] for run in (first, second)]
    if kinds[0] != kinds[1]:
        return  # the first one did what need not be done again, such as filling weights
    for place, (one, other) in enumerate(zip(first.launches, second.launches, strict=True)):
        if one != other:
            raise JitError(
                f"{name} computed something else in its second call than in its first, with like "
                f"arguments: launch {place}, {one[0]}, has other constants. A Python value that is "
                "no argument changes from call to call; pass it as an argument, as a Tensor where "
                "it changes often, or as a Variable where it is a size or an offset"
            )
    if len(first.host) == len(second.host) and first.host != second.host:
        raise JitError(
            f"{name} took other data from the host in its second call than in its first; a replay "
            "would see none of it. Make the tensor outside, and pass it as an argument"
        )


class CapturingRun:
    """A run of a function on proxies, with a record of the state before."""

    def __init__(
        self,
        known: Capture,
        walk: Walk,
        given: Arguments,
        proxies: ArgumentProxies,
        change_set: ChangeSet,
    ) -> None:
        """Record the state now; `change_set` has what this thread changes from here on."""
        self.known, self.walk, self.given, self.proxies = known, walk, given, proxies
        self.name = known.name
        self.tensors: list[Tensor] = []
        """Tensors of the result."""
        self.kept: list[Change] = []
        """Tensors that were put somewhere."""
        self.other: list[Change] = []
        """Other changes of the function's environment."""
        self.gradients: list[tuple[Tensor, Before | None]] = []
        """Tensors from before that have another gradient now, and their former ones."""
        self.values: tuple[Any, ...] = ()
        """The value that is `placed`, with an Output for each new tensor."""
        self.change_set, self.is_old = change_set, change_set.is_old
        self.positions = walk.positions()

    def run(self, function: Callable[..., Any]) -> Any:
        """Run the function, and compute all that it leaves behind; its result."""
        stands = self.proxies.substitute_in(self.given.given)
        held = identities(stands) if self.proxies.are_used else []
        result = function(*stands[0], **stands[1])
        for one, other in zip_longest(held, identities(stands)):
            if one != other and self.proxies.are_used:
                path = (one or other)[0].removeprefix("[0]").removeprefix("[1]")
                raise JitError(
                    f"{self.name} changed what argument {path} holds; a replay could only write "
                    "to the memory of tensors. Return what is new instead"
                )
        self.tensors = realized(self.name, result)
        changes = self.walk.changes()
        self.kept = [change for change in changes if is_left(change)]
        self.other = [change for change in changes if not is_left(change)]
        self.gradients = self.change_set.other_gradients()
        found = [tensor for change in changes for tensor in tensors_in(change.now)]
        new = [tensor for tensor in found if not self.is_old(tensor)]
        handed = self.proxies.tensors or self.given.tensors  # in one order in both runs
        written = [*self.moved(), *handed]
        unshare([*self.tensors, *new, *self.left, *written])
        compute(partial(unrealized, written))  # not by name, which may end their gradients
        if left := [*new, *self.left]:
            Tensor.realize(*left)
        return result

    @while_walking
    def moved(self) -> list[Tensor]:
        """Tensors from before that this run has given other nodes, but for arguments."""
        given = set(map(id, self.given.tensors))
        return [t for _, t in self.change_set.moved() if self.is_own(t) and id(t) not in given]

    @while_walking
    def first(self, recording: Recording) -> Run | None:
        """The record of the first run; None where the next one is expected to differ."""
        self.known.changed = frozenset([change.path for change in self.other])
        if clears_gradients(self.gradients):
            return None
        is_whole = not any(b.waits for b, _ in self.change_set.moved())
        return Run.of(recording) if is_whole else Run((), ())  # it computed other things as well

    def is_own(self, tensor: Tensor) -> bool:
        """True if this run has changed the value of a tensor."""
        return id(tensor) in self.change_set.changed

    @property
    def placed(self) -> list[tuple[str, Any, Any]]:
        """The places where the function puts tensors: path, former value, and value now."""
        gradients = [
            ("the gradient of a tensor", None if b is None else b.tensor(), t.grad)
            for t, b in self.gradients
        ]
        return [(c.path, c.before, c.now) for c in self.kept] + gradients

    @property
    def left(self) -> list[Tensor]:
        """New tensors that outlive the call without being a result."""
        return [t for _, _, now in self.placed for t in tensors_in(now) if not self.is_old(t)]

    @property
    @while_walking
    def replaced(self) -> list[Before]:
        """Tensors that were replaced by those."""
        tensors = [tensor for change in self.kept for tensor in tensors_in(change.before)]
        known = self.change_set.before
        found = [known.get(id(tensor)) or Before.of(tensor) for tensor in tensors]
        return found + [b for t, b in self.gradients if b is not None and t.grad is not None]

    @property
    def passing(self) -> set[int]:
        """Identities of the tensors that were put somewhere, and of those they replaced."""
        replaced = [tensor for b in self.replaced if (tensor := b.tensor()) is not None]
        return {id(tensor) for tensor in (*self.left, *replaced)}

    @property
    def reached(self) -> set[int]:
        """Identities of the arguments, and of all that the function finds around it."""
        return {id(value) for value in (*self.walk.values, *self.given.tensors)}

    def places(self, walk: Walk) -> tuple[SideOutput, ...]:
        """The same places among the boxes of another walk. Raises JitError for one that is gone."""
        found: list[SideOutput] = []
        for change, value in zip(self.kept, self.values, strict=False):
            if (place := walk.place_of(change)) is None:
                raise JitError(
                    f"{self.name} put a tensor into {change.path}, and then something else in the "
                    "place of that; do one of the two"
                )
            found.append(SideOutput(value, None, *place))
        gradients = zip(self.gradients, self.values[len(found) :], strict=True)
        return (*found, *(SideOutput(value, weakref.ref(t)) for (t, _), value in gradients))

    # --- what came of it

    def make_record(self, recording: Recording, result: Any) -> RecordedCall | None:
        """Make the record for replays; None if the next call is to be captured instead.

        Raises JitError where replays would not do what the function does.
        """
        self.check_values(recording)
        self.proxies.check(self.name, recording)
        self.check_replaced(recording)
        self.check_moved()
        if self.known.first is not None and not self.does_once():
            compare(self.name, self.known.first, Run.of(recording))
        self.check_changes()
        self.check_arrays(recording)
        self.check_streams()
        # other threads may have made more of what it computed for them
        if not self.is_settled() or self.survives(recording):
            return None
        if not recording.items:
            if self.known.conditions:  # these numbers leave nothing to be done
                return None
            raise JitError(
                f"{self.name} launched nothing, so there is nothing to replay. Remove TinyJit."
            )
        return self.kept_step(recording, result)

    def check_values(self, recording: Recording) -> None:
        """Raises JitError for a Variable that was not bound by an argument."""
        for name, value in sorted(recording.values):
            if self.given.numbers.get(name) != value:
                raise JitError(
                    f"{self.name} bound the Variable {shown_name(name)} to {value} itself, or has "
                    "it so in a tensor that is no argument, which would be so in all replays; bind "
                    "it outside and pass it as an argument"
                )

    def check_changes(self) -> None:
        """Raises JitError if the function changes its environment in each call."""
        for change in self.other:
            if change.path in self.known.changed:
                raise JitError(
                    f"{self.name} changes {change.path} in each call ({told_change(change)}), "
                    "which a replay would not do. Do it outside, return what is new, or keep it in "
                    "a tensor that is written to with assign"
                )

    def check_arrays(self, recording: Recording) -> None:
        """Raises JitError for arrays whose content would be looked at once only."""
        if recording.host and self.walk.hidden:
            raise JitError(
                f"{self.name} takes data from the host and finds a large NumPy array around it "
                f"({self.walk.hidden[0]}), whose changes replays would not see. Make a Tensor of "
                "it outside, or make it read-only: array.setflags(write=False)"
            )

    def check_streams(self) -> None:
        """Raises JitError where the host drew a number, or would take the next item."""
        if self.walk.positions() != self.positions:
            raise JitError(
                f"{self.name} draws random numbers of Python or NumPy, and replays would repeat "
                "what these decided. Pass the number as an argument, or use Tensor.rand"
            )
        if found := self.walk.iterators:
            raise JitError(
                f"{self.name} finds an iterator around it ({shortened(found[0])}), from which "
                "replays would take nothing. Take the item outside, and pass it as an argument"
            )

    def check_replaced(self, recording: Recording) -> None:
        """Raises JitError if a tensor was read and then replaced by another one."""
        used = {b for item in recording.items for b in item.bufs} - recording.made
        for replaced in self.replaced:
            if used.intersection(replaced.read()):
                raise replaced_error(self.name, replaced.shape)

    def check_moved(self) -> None:
        """Raises JitError for a tensor from before that was put in the place of another one, and
        for one that was replaced and is shown elsewhere: in a result, or by what is left.
        """
        moved = {id(tensor) for _, before, _ in self.placed for tensor in tensors_in(before)}
        shown = {b for t in (*self.tensors, *self.left) for b in realized_buffers(t.uop)}
        for path, before, now in self.placed:
            for former, tensor in changed_in(before, now):
                if former is not None:
                    gone = shown.intersection(realized_buffers(former.uop))
                    if not gone.issubset(realized_buffers(tensor.uop)):
                        raise replaced_error(self.name, former.shape)
                if self.is_old(tensor) and (former is not None or id(tensor) in moved):
                    raise JitError(
                        f"{self.name} put a tensor of shape {tensor.shape} that was there before "
                        f"into {path}; which one that is may be another in each call, and a replay "
                        "would put the same one there for ever. Copy what it holds, as in "
                        "`previous.assign(current)`, or exchange tensors outside"
                    )

    def survives(self, recording: Recording) -> bool:
        """True if other threads made tensors of what this run computed. Raises JitError for one of
        this thread that outlives the call in a place that cannot be seen.
        """
        if self.survivors(recording):
            gc.collect()  # some may only wait for that
        survivors = self.survivors(recording)
        for tensor in filter(self.is_own, survivors):
            raise JitError(
                f"{self.name} left a tensor of shape {tensor.shape} behind in a place that "
                "replays cannot see (an object of a library, a list that grows, a generator, the "
                "gradient of a result); it would never change again. Return it instead"
            )
        return bool(survivors)

    @while_walking
    def survivors(self, recording: Recording) -> list[Tensor]:
        """Tensors made in this run, of its memory, that are neither results nor found again."""
        known = set(map(id, (*self.proxies.tensors, *self.tensors, *self.left)))
        ours = recording.made.union(buffer for buffer, _ in recording.repeated)

        def is_ours(node: UOp) -> bool:
            return node.op is Op.BUFFER and (node in self.proxies.back or buffers.get(node) in ours)

        return [
            tensor
            for reference in list(self.change_set.made.values())
            if isinstance(tensor := reference(), Tensor)
            and id(tensor) not in known
            and any(map(is_ours, tensor.uop.toposort()))
        ]

    def changed_from_before(self) -> list[tuple[Before, Tensor]]:
        """Tensors from before that have other nodes now, but for those that were put somewhere."""
        passing = self.passing
        return [(b, tensor) for b, tensor in self.change_set.moved() if id(tensor) not in passing]

    @while_walking
    def does_once(self) -> bool:
        """True if this run did what need not be done again: a gradient, perhaps of a call that
        failed, was taken away, or tensors that waited before were computed by it, of whatever
        thread, or by another thread where the function reads them: it may have computed them, too.
        """
        reached = self.reached
        return clears_gradients(self.gradients) or any(
            b.waits and (self.is_own(tensor) or id(tensor) in reached)
            for b, tensor in self.changed_from_before()
        )

    @while_walking
    def is_settled(self) -> bool:
        """True if this run did nothing that is done once only, such as filling memory made outside.

        Values computed for such a tensor need not be computed again. Raises JitError where memory
        was replaced, or each call finds something new to do.
        """
        settled = not (self.other or self.does_once())
        for b, tensor in self.changed_from_before():
            if b.waits or not self.is_own(tensor):
                continue
            if b.read() != realized_buffers(tensor.uop):
                raise JitError(
                    f"{self.name} replaced a tensor of shape {b.shape} by another, where a "
                    "replay could only write to memory; use assign"
                )
        known = self.known
        known.changed |= {change.path for change in self.other}
        known.retries += not settled
        if known.retries > MOST_TRIES:
            what = "; ".join(f"{c.path}: {told_change(c)}" for c in self.other)
            raise JitError(
                f"{self.name} did something for the first time in each of {known.retries} calls: "
                + (what or "it gave memory to tensors made outside; realize() them before the call")
            )
        return settled

    def kept_step(self, recording: Recording, result: Any) -> RecordedCall:
        """The step of a recording."""
        tensors = [*self.tensors, *self.left]
        nodes = list(dict.fromkeys(b for t in tensors for b in buffers_below(t.uop)))
        outputs = [buffer_of(node) for node in nodes]
        step = CapturedStep.of(recording, self.proxies.buffers, tuple(outputs), self.known.prune)
        step.atomic = self.known.atomic
        number, changes = self.proxies.number, self.change_set
        bindings = [
            number.get(node, None if buffer in recording.made else node)
            for node, buffer in zip(nodes, outputs, strict=True)
        ]

        def output(tensor: Tensor) -> Output:
            places = tuple([nodes.index(b) for b in buffers_below(tensor.uop)])
            asks = None if self.is_old(tensor) else tensor.requires_grad
            return Output(form_of(tensor.uop), places, asks)

        def left(tensor: Tensor) -> Output | Tensor:
            return tensor if self.is_old(tensor) else output(tensor)

        made = {n: p for p, n in enumerate(nodes) if outputs[p] in recording.made}
        for tensor in tensors:
            for buffer in made.keys() & buffers_below(tensor.uop):
                made |= dict.fromkeys(tensor._view.owned, made[buffer])
        self.values = rebuilt(tuple([now for _, _, now in self.placed]), Tensor, left)
        written = {
            number.get(n, n): origins_of(found, number, made)
            for n, found in changes.origins.items()
            if n in number or buffer_of(n) not in recording.made
            if {*present(found)} != {n}  # itself alone
        }
        return RecordedCall(
            step,
            rebuilt(result, Tensor, output),
            bindings,
            self.found_state(recording),
            graded=self.found_graded(),
            origins={
                p: origins_of(ended_at(n), number, made) for n, p in made.items() if n in nodes
            },
            written=written,
            arrived=origins_of(self.arrived, number, {}) if self.arrived else None,
            asked=origins_of(changes.asked, number, {}),
            asks_all=changes.asks_all,
        )

    @cached_property
    def arrived(self) -> Homes:
        """Memory at which gradients arrived, also through what was made inside; not that which the
        arguments of this call were computed from.
        """
        return self.change_set.arrived | self.change_set.below - ended_below(self.given.nodes)

    def found_graded(self) -> list[tuple[Reference, bool]]:
        """Tensors that were given a gradient, which may have been taken away again, and whether
        they had one before.
        """
        changed = {id(tensor) for tensor, _ in self.gradients}
        graded = list(self.change_set.graded.items())
        return [(t, f is not None) for number, (t, f) in graded if number in changed or f is None]

    @while_walking
    def found_state(self, recording: Recording) -> list[State]:
        """The tensors from before whose memory the launches work on, or gradients arrived at, then
        others around.

        Of memory that the function reaches by a tensor of its environment, other tensors are left
        out: a view that the caller or another thread holds for a while is not what it works on.
        Raises JitError where such a tensor is gone: the function put another one in its place.
        """
        used = {base_buffer(b) for i in recording.items for b in i.bufs if b not in recording.made}
        arrived = {n: storages_over(n) for n in present(self.arrived)}
        used |= {base_buffer(buffer_of(node)) for node, found in arrived.items() if found}
        graded = [tensor for tensor, _ in self.gradients]
        around = {id(t): t for t in (*self.walk.values, *graded) if isinstance(t, Tensor)}
        found: dict[int, Any] = {
            id(t): t for storages in arrived.values() for s in storages for t in s.tensors()
        } | around
        for bound in self.change_set.bound.values():
            if (buffer := bound.buffer()) in used:
                storages = bound.storages()
                if bound.was_shown and not storages:
                    raise replaced_error(self.name, (buffer.size,))
                found |= {id(t): t for storage in storages for t in storage.tensors()}
        owners = {id(t._grad): weakref.ref(t) for t in found.values() if t._grad is not None}
        passing = self.passing
        state: list[State] = []
        flags: list[State] = []
        known: set[Buffer] = set()
        others: list[tuple[State, set[Buffer]]] = []
        for number, tensor in found.items():
            touched = used.intersection(map(base_buffer, realized_buffers(tensor.uop)))
            entry = State(weakref.ref(tensor), None, tensor.requires_grad)
            if touched and self.is_old(tensor):
                owner = owners.get(number)
                entry = entry._replace(node=tensor.uop, owner=owner)
                if number in around or (owner is not None and id(owner()) in around):
                    state.append(entry)
                    known |= touched
                else:
                    others.append((entry, touched))
            elif number in around and number not in passing:
                flags.append(entry)
        return state + [entry for entry, touched in others if not touched <= known] + flags


# --- changes


def is_left(change: Change) -> bool:
    """True if a change puts tensors in a place where a replay can put others."""
    return (
        change.can_be_stored and bool(tensors_in(change.now)) and is_nest(change.before, change.now)
    )


def is_nest(before: Any, now: Any) -> bool:
    """True if a value is made of tensors, and of plain values that were there before."""
    if before is None:
        return all(isinstance(v, Tensor) or v in NESTS for _, v in leaves(now, ""))
    return is_same_nest(*[rebuilt(value, Tensor, lambda _: None) for value in (before, now)])


NESTS: Final = (list, tuple, dict)


def changed_in(before: Any, now: Any) -> Iterator[tuple[Any, Tensor]]:
    """The tensors in a value that replaced others, or None, in the one before."""
    former = dict(leaves(before, ""))
    for path, value in leaves(now, ""):
        if isinstance(value, Tensor) and value is not former.get(path):
            yield former.get(path), value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in containers."""
    return [found for _, found in leaves(value, "") if isinstance(found, Tensor)]


def origins_of(ended: Homes, number: Mapping[UOp, int], made: Mapping[UOp, int]) -> Origins:
    """The memory that a result was computed from: BUFFERs, numbers of those of arguments, and
    places of other results, by their BUFFERs and the identities of their tensors.
    """
    found = {*present(ended)}
    fixed = versions.references(found - number.keys() - made.keys())
    given, results = [{known[m] for m in found & known.keys()} for known in (number, made)]
    return fixed, tuple(sorted(given)), tuple(sorted(results))


def clears_gradients(changed: Iterable[tuple[Tensor, Before | None]]) -> bool:
    """True if a gradient that was there, perhaps of a call that failed, was taken away."""
    return any(tensor.grad is None for tensor, _ in changed)


def told_change(change: Change) -> str:
    """A change in a few words."""
    if change.place < 0:
        return f"from {len(change.before)} to {len(change.now)} values"
    return f"from {shortened(change.before)} to {shortened(change.now)}"


def replaced_error(name: str, shape: tuple[Any, ...]) -> JitError:
    """The error for a tensor of some shape that was read and then replaced."""
    return JitError(
        f"{name} read a tensor of shape {shape} and then put another one in its place, as in "
        "`x = x + 1`, or by adding to a gradient that was there before; a replay would read the "
        "first one for ever. Write to it with assign, or begin with zero_grad(), also of what "
        "other steps train and backward() reaches. To add gradients up over several calls, "
        "write to them: p.grad.assign(p.grad + loss.gradient(p)[0])"
    )


def identities(value: Any) -> list[tuple[str, int]]:
    """Paths and ids of all values in some containers."""
    return [(path, id(item)) for path, item in leaves(value, "")]


def realized(name: str, result: Any) -> list[Tensor]:
    """Compute a result; its tensors. Raises JitError for one that holds anything else."""
    tensors = []
    for path, value in leaves(result, "result"):
        if isinstance(value, Tensor):
            tensors.append(value)
        elif value is not None and not isinstance(value, type):
            raise JitError(
                f"{name} returned {value!r} ({path}), which a replay would return "
                "unchanged for ever. Return tensors only."
            )
    if tensors:
        Tensor.realize(*tensors)
    return tensors
