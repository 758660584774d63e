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
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import CapturedStep
from tinycore.engine.run import Recording
from tinycore.engine.transactions import base_buffer
from tinycore.errors import JitError
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import ended_at, ended_below, present
from tinycore.tensor.autograd.versions import Homes
from tinycore.tensor.capture.arguments import Arguments, form_of, leaves, rebuilt
from tinycore.tensor.capture.change_sets import Before, ChangeSet, realized_buffers
from tinycore.tensor.capture.proxies import ArgumentProxies
from tinycore.tensor.capture.recorded_call import (
    Expected,
    Origins,
    Output,
    RecordedCall,
    SideOutput,
)
from tinycore.tensor.guards.environment import Change, Walk
from tinycore.tensor.guards.guard import shortened
from tinycore.tensor.storage.liveness import while_walking
from tinycore.tensor.storage.realization import compute, unrealized, unshare
from tinycore.tensor.storage.storage import storages_over
from tinycore.tensor.tensor import Tensor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import shown_name

if TYPE_CHECKING:
    from tinycore.tensor.capture.jit import Capture


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


def differences(first: Run, second: Run) -> Iterator[str]:
    """Differences between two runs on like arguments that did things of the same kind."""
    kinds = [[n for n, _ in run.launches] for run in (first, second)]
    if kinds[0] != kinds[1]:
        return  # the first one did what need not be done again, such as filling weights
    for place, (one, other) in enumerate(zip(first.launches, second.launches, strict=True)):
        if one != other:
            yield (
                "computed something else in its second call than in its first, with like "
                f"arguments: launch {place}, {one[0]}, has other constants. A Python value that is "
                "no argument changes from call to call; pass it as an argument, as a Tensor where "
                "it changes often, or as a Variable where it is a size or an offset"
            )
    if len(first.host) == len(second.host) and first.host != second.host:
        yield (
            "took other data from the host in its second call than in its first; a replay "
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
        self.values: list[Output | Tensor | None] = []
        """Tensors that are `placed`, an Output for each new one."""
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
        Tensor._realize_for_call([*new, *self.left])
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
    def placed(self) -> list[tuple[str, Tensor | None, Tensor | None]]:
        """The places where the function puts tensors: path, the former one, and that now."""
        gradients = [
            ("the gradient of a tensor", None if b is None else b.tensor(), t.grad)
            for t, b in self.gradients
        ]
        return [(c.path, c.before, c.now) for c in self.kept] + gradients

    @property
    def left(self) -> list[Tensor]:
        """New tensors that outlive the call without being a result."""
        return [t for _, _, t in self.placed if t is not None and not self.is_old(t)]

    @property
    @while_walking
    def replaced(self) -> list[Before]:
        """Tensors that were replaced by those."""
        tensors = [change.before for change in self.kept if change.before is not None]
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
        wrong = chain(
            self.wrong_numbers(recording),
            self.proxies.wrong(recording),
            self.wrong_tensors(recording),
            self.other_work(recording),
            self.wrong_surroundings(recording),
        )
        for what in wrong:
            raise JitError(f"{self.name} {what}")
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

    def wrong_numbers(self, recording: Recording) -> Iterator[str]:
        """Variables that were not bound by an argument."""
        for name, value in sorted(recording.values):
            if self.given.numbers.get(name) != value:
                yield (
                    f"bound the Variable {shown_name(name)} to {value} itself, or has "
                    "it so in a tensor that is no argument, which would be so in all replays; bind "
                    "it outside and pass it as an argument"
                )

    def wrong_tensors(self, recording: Recording) -> Iterator[str]:
        """Tensors that were read and then replaced by another one, or that were there before and
        were put in the place of another, or were replaced and are shown elsewhere: in a result, or
        by what is left.
        """
        used = {b for item in recording.items for b in item.bufs} - recording.made
        for replaced in self.replaced:
            if used.intersection(replaced.read()):
                yield told_replaced(replaced.shape)
        moved = {id(before) for _, before, _ in self.placed}
        shown = {b for t in (*self.tensors, *self.left) for b in realized_buffers(t.uop)}
        for path, former, tensor in self.placed:
            if tensor is None:
                continue
            if former is not None:
                gone = shown.intersection(realized_buffers(former.uop))
                if not gone.issubset(realized_buffers(tensor.uop)):
                    yield told_replaced(former.shape)
            if self.is_old(tensor) and (former is not None or id(tensor) in moved):
                yield (
                    f"put a tensor of shape {tensor.shape} that was there before "
                    f"into {path}; which one that is may be another in each call, and a replay "
                    "would put the same one there for ever. Copy what it holds, as in "
                    "`previous.assign(current)`, or exchange tensors outside"
                )

    def other_work(self, recording: Recording) -> Iterator[str]:
        """Launches and data that differ from those of the first run."""
        first = self.known.first
        if first is not None and not self.does_once():
            yield from differences(first, Run.of(recording))

    def wrong_surroundings(self, recording: Recording) -> Iterator[str]:
        """Changes of the environment in each call; arrays whose content would be looked at once
        only; numbers that the host drew, and iterators, from which it would take the next item.
        """
        for change in self.other:
            if change.path in self.known.changed:
                yield (
                    f"changes {change.path} in each call ({told_change(change)}), "
                    "which a replay would not do, as it stores single tensors only. Do it outside, "
                    "return what is new, or keep it in a tensor that is written to with assign"
                )
        if recording.host and self.walk.hidden:
            yield (
                "takes data from the host and finds a large NumPy array around it "
                f"({self.walk.hidden[0]}), whose changes replays would not see. Make a Tensor of "
                "it outside, or make it read-only: array.setflags(write=False)"
            )
        if self.walk.positions() != self.positions:
            yield (
                "draws random numbers of Python or NumPy, and replays would repeat "
                "what these decided. Pass the number as an argument, or use Tensor.rand"
            )
        if found := self.walk.iterators:
            yield (
                f"finds an iterator around it ({shortened(found[0])}), from which "
                "replays would take nothing. Take the item outside, and pass it as an argument"
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
        places = {node: place for place, node in enumerate(nodes)}
        outputs = [buffer_of(node) for node in nodes]
        step = CapturedStep.of(recording, self.proxies.buffers, tuple(outputs), self.known.prune)
        step.atomic = self.known.atomic
        number, changes = self.proxies.number, self.change_set
        bindings = [
            number.get(node, None if buffer in recording.made else node)
            for node, buffer in zip(nodes, outputs, strict=True)
        ]

        def output(tensor: Tensor) -> Output:
            asks = None if self.is_old(tensor) else tensor.requires_grad
            return Output(form_of(tensor.uop, places), asks, type(tensor))

        made = {n: p for n, p in places.items() if outputs[p] in recording.made}
        for tensor in tensors:
            for buffer in made.keys() & buffers_below(tensor.uop):
                made |= dict.fromkeys(tensor._view.owned, made[buffer])
        self.values = [t if t is None or self.is_old(t) else output(t) for _, _, t in self.placed]
        written = {
            number.get(n, n): origins_of(found, number, made)
            for n, found in changes.origins.items()
            if n in number or buffer_of(n) not in recording.made
            if {*present(found)} != {n}  # itself alone
        }
        return RecordedCall(
            self.name,
            step,
            rebuilt(result, Tensor, output),
            bindings,
            self.found_state(recording),
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

    @while_walking
    def found_state(self, recording: Recording) -> Expected | None:
        """The tensors from before whose memory the launches work on, or gradients arrived at, then
        others around, and those that were given a gradient, which may have been taken away again.

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
                    raise JitError(f"{self.name} {told_replaced((buffer.size,))}")
                found |= {id(t): t for storage in storages for t in storage.tensors()}
        owners = {id(t._grad): weakref.ref(t) for t in found.values() if t._grad is not None}
        passing, expected = self.passing, Expected()
        known: set[Buffer] = set()
        others: list[tuple[Tensor, set[Buffer]]] = []
        for number, tensor in found.items():
            touched = used.intersection(map(base_buffer, realized_buffers(tensor.uop)))
            if touched and self.is_old(tensor):
                owner = owners.get(number)
                if number in around or (owner is not None and id(owner()) in around):
                    expected.require_state(tensor, owner)
                    known |= touched
                else:
                    others.append((tensor, touched))
            elif number in around and number not in passing:
                expected.require_flag(tensor)
        for tensor, touched in others:
            if not touched <= known:
                expected.require_state(tensor, owners.get(id(tensor)))
        changed = {id(tensor) for tensor, _ in self.gradients}
        for number, (reference, former) in list(self.change_set.graded.items()):
            if number in changed or former is None:
                expected.require(reference, f"_grad is {'' if former is None else 'not '}None")
        return expected if expected.terms else None


# --- changes


def is_left(change: Change) -> bool:
    """True if a change puts a tensor in a place where a replay can put another."""
    is_free = change.before is None or isinstance(change.before, Tensor)
    return change.can_be_stored and is_free and isinstance(change.now, Tensor)


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
        return "which has other items or attributes than before"
    return f"from {shortened(change.before)} to {shortened(change.now)}"


def told_replaced(shape: tuple[Any, ...]) -> str:
    """The message on a tensor of some shape that was read and then replaced."""
    return (
        f"read a tensor of shape {shape} and then put another one in its place, as in "
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
    Tensor._realize_for_call(tensors)
    return tensors
