"""The record of a captured call, and the tensors that a replay requires unchanged.

Floor 5. It holds the launches, the form of results, state and side outputs. A replay needs
nothing else; see `captured.py`.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import le
from sys import getrefcount
from typing import Any, Final, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import CapturedStep, ResultMemory
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.arguments import is_realized, rebuilt
from tinycore.tensor.gradient_sources import BufferSet
from tinycore.tensor.liveness import walking
from tinycore.tensor.tensor import Tensor
from tinycore.tensor.versions import versions
from tinycore.uop.bindings import Naming, exchanging, sizes_below
from tinycore.uop.node import UOp, made_anew, new
from tinycore.uop.op import Op


@dataclass(frozen=True)
class Output:
    """A tensor of a result: its graph over buffers, and their numbers among the step's outputs."""

    form: UOp
    places: tuple[int, ...]

    @cached_property
    def parameters(self) -> list[UOp]:
        """The BUFFERs in the form, in the order of `places`."""
        return sorted(buffers_below(self.form), key=lambda n: int(n.src[1].arg), reverse=True)

    @cached_property
    def is_sized(self) -> bool:
        """True if the shapes depend on Variables."""
        return bool(sizes_below([self.form]))

    def node(self, nodes: Mapping[int, UOp], naming: Naming | None) -> UOp:
        """The node over BUFFERs, with the numbers that Variables hold in this call."""
        form = self.form
        if form.op is Op.BUFFER:
            return nodes[self.places[0]]
        is_plain = naming is None or not self.is_sized
        if is_plain and form.op is Op.RESHAPE and form.src[0].op is Op.BUFFER:
            key = Op.RESHAPE, form.dtype, (nodes[self.places[0]],), form.arg
            return new(key, form.arg)
        exchange = {p: nodes[k] for p, k in zip(self.parameters, self.places, strict=True)}
        node = self.form.substitute(exchange)
        return node if is_plain or naming is None else exchanging(node, naming.back)

    def shown(self, nodes: Mapping[int, UOp], naming: Naming | None) -> Tensor:
        """The tensor over BUFFERs, with the numbers that Variables hold in this call."""
        return Tensor._from_node(self.node(nodes, naming))

    def __reduce__(self) -> tuple[object, ...]:
        return Output, (self.form, self.places)


class State(NamedTuple):
    """A tensor whose memory the launches work on, with its node at the capture."""

    tensor: weakref.ref[Any]
    node: UOp
    requires_grad: bool | None
    owner: weakref.ref[Any] | None = None
    """The tensor whose gradient it is."""


class SideOutput(NamedTuple):
    """A place outside where the function puts a tensor: a box of its guard, or a gradient."""

    tensor: weakref.ref[Any] | None
    is_first: bool = False
    """True if the tensor had no gradient before."""
    box: int = 0
    place: int = 0


COUNTS: Final = getattr(sys, "_is_gil_enabled", lambda: True)()
"""True if reference counts tell whether others hold a tensor."""


Reference = Callable[[], Any]
"""A weak reference to a tensor. That one may be gone is seen when an attribute of it is read."""


class Expected:
    """The tensors that a replay requires unchanged: nodes, flags and gradients at the capture."""

    def __init__(self, recorded: RecordedCall) -> None:
        state = recorded.state
        self.nodes: list[tuple[Reference, UOp, bool | None]] = [
            (entry.tensor, entry.node, entry.requires_grad) for entry in state
        ]
        """Tensors with their nodes, and if they require gradients."""
        self.flags: Sequence[tuple[Reference, bool | None]] = recorded.flags
        self.owners: list[tuple[Reference, Reference]] = [
            (entry.owner, entry.tensor) for entry in state if entry.owner is not None
        ]
        """Tensors with their gradients."""
        self.left: list[tuple[Reference, bool]] = [
            (side.tensor, side.is_first)
            for side in recorded.side_outputs
            if side.tensor is not None
        ]
        self.left += [(reference, True) for reference in recorded.untouched]
        """Tensors that are given a gradient, and if they have none before."""
        self.scope: dict[str, Any] = {}
        """The names in the code of `holds`."""

    @staticmethod
    def of(recorded: RecordedCall) -> Expected | None:
        """The tensors that a recorded call requires unchanged; None if there are none."""
        return (
            Expected(recorded)
            if recorded.state or recorded.flags or recorded.side_outputs or recorded.untouched
            else None
        )

    @cached_property
    def holds(self) -> Callable[[], bool]:
        """A function, true if all tensors are alive, with the same nodes, flags and gradients.

        It is one expression, compiled at the first replay, which reads each tensor once.
        """
        scope, names = self.scope, dict[int, str]()

        def read(reference: Reference) -> str:
            if (name := names.get(id(reference))) is not None:
                return name
            name = names[id(reference)] = f"t{len(names)}"
            scope[f"at_{name}"] = reference
            return f"({name} := at_{name}())"

        terms = []
        for place, (reference, node, flag) in enumerate(self.nodes):
            scope[f"node{place}"] = node
            terms.append(f"{read(reference)}.uop is node{place}")
            terms.append(f"{read(reference)}._requires_grad is {flag}")
        terms += [f"{read(reference)}._requires_grad is {flag}" for reference, flag in self.flags]
        terms += [f"{read(owner)}._grad is {read(gradient)}" for owner, gradient in self.owners]
        terms += [
            f"{read(reference)}._grad is {'' if is_first else 'not '}None"
            for reference, is_first in self.left
        ]
        lines = ["def holds():", "    try:", f"        return {' and '.join(terms) or True}"]
        lines += ["    except AttributeError:", "        return False"]  # one is gone
        exec(compile("\n".join(lines), "expected", "exec"), scope)
        found: Callable[[], bool] = scope["holds"]
        return found

    def exchange(self, place: int, node: UOp) -> None:
        """From now on a tensor is expected to have another node."""
        reference, _, flag = self.nodes[place]
        self.nodes[place] = reference, node, flag
        self.scope[f"node{place}"] = node

    def marks_hold(self) -> bool:
        """True if all tensors are alive, with the same flags and gradients."""
        flags = [*((reference, flag) for reference, _, flag in self.nodes), *self.flags]
        try:
            return (
                all(reference()._requires_grad is flag for reference, flag in flags)
                and all(owner()._grad is gradient() for owner, gradient in self.owners)
                and all((side()._grad is None) is is_first for side, is_first in self.left)
            )
        except AttributeError:  # one is gone
            return False


class ReusableGradient(NamedTuple):
    """A gradient made by a replay; the next one reuses its memory if nothing else refers to it."""

    number: int
    """Its index in `left`."""
    place: int
    """Its index among the outputs of the step."""
    owner: weakref.ref[Any]
    tensor: Tensor
    shown: UOp
    """The node of the tensor when it was left."""
    node: UOp
    buffer: Buffer
    made: Buffer
    """The buffer of the captured step that it stands for."""


COUNTED: Final = 4
"""Objects of a gradient whose references are counted: its tensor, node, BUFFER and Buffer."""


class ReusableGradients:
    """The gradients made by a replay, and their reference counts at its end."""

    def __init__(self, rows: Sequence[ReusableGradient] = (), known: Sequence[int] = ()) -> None:
        self.rows = rows
        self.tensors: list[tuple[Reference, Tensor, UOp]] = [
            (row.owner, row.tensor, row.shown) for row in rows
        ]
        """Owners, their gradients, and the nodes of these."""
        self.counted: list[Any] = [
            x for row in rows for x in (row.tensor, row.shown, row.node, row.buffer)
        ]
        self.known = [*known]
        """Counts of references to `counted` while nobody has seen them, of the first rows only
        until `count` is called."""
        self.numbers = frozenset([row.number for row in rows])
        self.places = frozenset([row.place for row in rows])
        self.again = {row.made: row.buffer for row in rows}
        """For buffers of the captured step, those to be used again."""
        self.is_counted = len(self.known) == len(self.counted)
        """True if the references to all of them were counted."""

    def count(self) -> None:
        """Count the references to the new ones, before anyone else has seen them.

        Those of a thread that looks at all tensors just then must not count.
        """
        with walking:
            self.known += [*map(getrefcount, self.counted)][len(self.known) :]
        self.is_counted = True

    def unseen(self) -> ReusableGradients:
        """The gradients that the next replay may overwrite, back in their places.

        Nothing refers to them that did not when they were left.
        """
        counts = [*map(getrefcount, self.counted)]
        if counts == self.known and self.are_in_place():
            return self
        kept = []
        for number, of_row in enumerate(self.tensors[: len(self.known) // COUNTED]):
            part = slice(COUNTED * number, COUNTED * (number + 1))
            if put_back(*of_row, counts[part], self.known[part]):
                kept.append(number)
        if len(kept) == len(self.rows):
            return self
        return ReusableGradients(
            [self.rows[number] for number in kept],
            [most for n in kept for most in self.known[COUNTED * n : COUNTED * (n + 1)]],
        )

    def are_in_place(self) -> bool:
        """True if all of them are the gradients of their owners, unchanged."""
        try:
            return all(
                o()._grad is tensor and tensor.uop is shown for o, tensor, shown in self.tensors
            )
        except AttributeError:  # one is gone
            return False


def put_back(
    reference: Reference,
    tensor: Tensor,
    shown: UOp,
    counts: Sequence[int],
    known: Sequence[int],
) -> bool:
    """Restore a gradient if it is unchanged and nothing new refers to it."""
    owner = reference()
    if owner is None or tensor.uop is not shown:
        return False
    is_missing = owner._grad is not tensor  # as after zero_grad(): a reference less
    if counts[0] + is_missing > known[0] or not all(map(le, counts[1:], known[1:])):
        return False
    if is_missing:
        owner.grad = tensor
    return True


class ReusableResult(ResultMemory):
    """The memory and the nodes of a result; a replay uses them again when nothing else does.

    To make them costs more than the rest of a replay. The memory of small results is so kept from
    one replay to the next.
    """

    __slots__ = ("counted", "ended", "known", "nodes", "shown")

    def __init__(
        self, recorded: RecordedCall, written: Sequence[Buffer], nodes: Mapping[int, UOp]
    ) -> None:
        step, result = recorded.step, recorded.result
        places = [place for place, _ in recorded.shown]
        self.nodes = {place: nodes[place] for place in places}
        super().__init__({step.outputs[place]: written[place] for place in places})
        is_one = type(result) is Output and not result.is_sized
        self.shown = result.node(self.nodes, None) if is_one else None
        """The node of the only tensor, if there is one whose shape is the same in all calls."""
        self.counted = [*self.nodes.values(), *self.again.values()]
        self.counted += [] if self.shown is None else [self.shown]
        self.known: list[int] = []
        """Counts of references to them while no tensor shows them."""
        self.ended: Mapping[int, BufferSet] = {}
        """By its place, what each of the nodes was computed from in the last replay."""


MOST_KEPT_BYTES: Final = 8 << 20
"""Most memory of a result that is kept: the work on more takes longer than to make its nodes."""
MOST_KEPT_RESULTS: Final = 2
"""Results that are kept: while one is looked at, the next is computed."""


@dataclass(eq=False)
class RecordedCall:
    """A captured call: all that a replay needs."""

    step: CapturedStep
    result: Any
    """The result, with an Output for each tensor."""
    sources: list[int]
    """For each buffer of the step's outputs, the number of the argument's buffer it is, or -1."""
    nodes: list[UOp | None]
    """For each buffer of the step's outputs, its BUFFER node where that stays the same."""
    state: list[State] = field(default_factory=list)
    """Tensors whose memory the launches work on."""
    side_outputs: tuple[SideOutput, ...] = ()
    """Places outside of the function where it stores tensors that outlive the call."""
    values: tuple[Any, ...] = ()
    """The values stored there, with an Output for each tensor."""
    flags: tuple[tuple[weakref.ref[Any], bool | None], ...] = ()
    """Other tensors around the function, and whether they required gradients."""
    untouched: tuple[weakref.ref[Any], ...] = ()
    """Tensors that had no gradient before and have none after, but in between."""
    origins: Mapping[int, tuple[BufferSet, tuple[int, ...]]] = field(default_factory=dict)
    """For outputs that gradients would go through: memory that they were computed from, and the
    numbers of buffers of arguments.
    """
    expected: Expected | None = field(init=False)
    """The contents of `state`, `flags` and `side_outputs` in columns, for quick comparison."""
    gradients: ReusableGradients = field(init=False, default_factory=ReusableGradients)
    """Gradients that the last replay left in separate memory."""

    def __post_init__(self) -> None:
        self.expected = Expected.of(self)

    def end_gradients(self, nodes: Mapping[int, UOp], given: Sequence[UOp]) -> dict[int, BufferSet]:
        """Record of outputs what they were computed from: a gradient that should go there, and ends
        at a result, is refused. Gradients that are used again keep what was recorded before.
        """
        ended: dict[int, BufferSet] = {}
        for place, (fixed, arguments) in self.origins.items():
            if (node := nodes.get(place)) is not None:
                own = [weakref.ref(versions.home(given[number])) for number in arguments]
                node._ended = ended[place] = fixed.union(own) if own else fixed
        return ended

    @cached_property
    def shown(self) -> tuple[tuple[int, int], ...]:
        """The places among the step's outputs that the result shows, each with its source."""
        places = dict.fromkeys(p for _, leaf in leaves_of(self.result) for p in leaf.places)
        return tuple((place, self.sources[place]) for place in places)

    @cached_property
    def keeps_results(self) -> bool:
        """True if results have their memory alone, and it is little."""
        outputs = self.step.outputs
        left = {outputs[place] for _, leaf in leaves_of(self.values) for place in leaf.places}
        new = set(self.step.fresh_outputs) - left
        found = [outputs[place] for place, source in self.shown if source < 0]
        return (
            COUNTS
            and len({*found}) == len(self.shown) > 0
            and new.issuperset(found)
            and sum(buffer.nbytes for buffer in found) <= MOST_KEPT_BYTES
        )

    def reusable_result(self) -> ReusableResult | None:
        """A result whose memory and nodes may be used again."""
        kept: list[ReusableResult] = self.step.kept_results
        for found in kept:
            if [*map(getrefcount, found.counted)] == found.known:
                for place, node in found.nodes.items():
                    is_ended = getattr(node, "_ended", None) is not found.ended.get(place)
                    if is_ended or versions.is_former(node):
                        break  # it was written to
                else:
                    return found
        return None

    def keep(self, made: ReusableResult) -> None:
        """Keep a new result, of which nobody else knows yet."""
        made.known = [*map(getrefcount, made.counted)]
        kept = self.step.kept_results
        kept.append(made)
        del kept[:-MOST_KEPT_RESULTS]

    @cached_property
    def kinds(self) -> list[UOp]:
        """For each output, a BUFFER node of its kind."""
        outputs = [leaf for _, leaf in leaves_of((self.result, *self.values))]
        found: dict[int, UOp] = {}
        for output in outputs:
            found |= dict(zip(output.places, output.parameters, strict=True))
        return [found[place] for place in range(len(self.sources))]

    @cached_property
    def unshared(self) -> frozenset[int]:
        """Numbers of side outputs in memory of their own, which later replays may overwrite."""
        outputs = [leaf for _, leaf in leaves_of((self.result, *self.values))]
        used = Counter(place for output in outputs for place in output.places)
        new = set(self.step.fresh_outputs)

        def is_alone(value: Any) -> bool:
            if type(value) is not Output or len(value.places) != 1:
                return False
            (place,) = value.places
            is_whole = value.form.op is Op.BUFFER or value.form.src[0].op is Op.BUFFER
            return is_whole and used[place] == 1 and self.step.outputs[place] in new

        found = [number for number, value in enumerate(self.values) if is_alone(value)]
        return frozenset(found if COUNTS else ())

    def __reduce__(self) -> tuple[object, ...]:
        return RecordedCall, (
            self.step,
            self.result,
            self.sources,
            [None] * len(self.nodes),
            [],
            (),
            self.values,
            (),
            (),
            {place: (frozenset(), arguments) for place, (_, arguments) in self.origins.items()},
        )


def node_of(recorded: RecordedCall, place: int, buffer: Buffer) -> UOp:
    """The BUFFER node of a result that is no argument: a new one, unless it is state."""
    node = recorded.nodes[place]
    if node is None:
        node = made_anew(recorded.kinds[place])
        buffers[node] = buffer
        if buffer in recorded.step.used:
            recorded.nodes[place] = node
    elif versions.is_former(node):
        node = recorded.nodes[place] = versions.latest(node)
    return node


def leaves_of(result: Any) -> list[tuple[str, Output]]:
    """The Outputs in a recorded result."""
    found: list[tuple[str, Output]] = []
    rebuilt(result, Output, lambda output: found.append(("", output)))
    return found


def realized_buffers(node: UOp) -> list[Buffer]:
    """The buffers that a node shows, if nothing is left to be computed."""
    return list(map(buffer_of, buffers_below(node))) if is_realized(node) else []
