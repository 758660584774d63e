"""The record of a captured call, and the tensors that a replay expects unchanged (`Expected`).

Floor 5. It holds the launches, the form of results, state and side outputs. A replay needs
nothing else; see `captured.py`.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, count, repeat
from operator import add, attrgetter, call, is_, is_not, le
from sys import getrefcount
from typing import Any, Final, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.engine.jit import CapturedStep
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.arguments import is_realized, rebuilt
from tinycore.tensor.tensor import Tensor
from tinycore.uop.bindings import Naming, exchanging
from tinycore.uop.node import UOp, made_anew
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

    def shown(self, nodes: Mapping[int, UOp], naming: Naming | None) -> Tensor:
        """The tensor over BUFFER nodes, with the numbers that Variables hold in this call."""
        if self.form.op is Op.BUFFER:
            return Tensor.from_uop(nodes[self.places[0]])
        if self.form.op is Op.RESHAPE and self.form.src[0].op is Op.BUFFER and naming is None:
            return Tensor.from_uop(self.form.with_src((nodes[self.places[0]],)))
        exchange = {p: nodes[k] for p, k in zip(self.parameters, self.places, strict=True)}
        node = self.form.substitute(exchange)
        return Tensor.from_uop(node if naming is None else exchanging(node, naming.back))

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
    """Whether the tensor had no gradient before."""
    box: int = 0
    place: int = 0


COUNTS: Final = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether counts of references say who else has seen a tensor."""


NODE, GRAD, REQUIRES_GRAD = map(attrgetter, ("uop", "grad", "requires_grad"))
ENDLESS_NONE: Final = repeat(None)
"""None as often as it is asked for."""


class Expected:
    """What the tensors around a function must be before a replay.

    They lie in columns, so that all are compared by a few calls of C.
    """

    def __init__(self, recorded: RecordedCall) -> None:
        state, flags = recorded.state, recorded.flags
        left = [
            (side.tensor, side.is_first)
            for side in recorded.side_outputs
            if side.tensor is not None
        ]
        self.nodes = [entry.node for entry in state]
        self.tensors = [entry.tensor for entry in state] + [tensor for tensor, _ in flags]
        """Those with a node first."""
        self.required = [entry.requires_grad for entry in state] + [flag for _, flag in flags]
        self.owners = [entry.owner for entry in state if entry.owner is not None]
        self.gradients = [entry.tensor for entry in state if entry.owner is not None]
        self.side_tensors = [tensor for tensor, _ in left]
        self.are_first = [is_first for _, is_first in left]

    @staticmethod
    def of(recorded: RecordedCall) -> Expected | None:
        """What a recorded call expects of tensors; None if it knows of none."""
        return (
            Expected(recorded)
            if recorded.state or recorded.flags or recorded.side_outputs
            else None
        )

    def holds(self) -> bool:
        """Whether all tensors are there, with the same nodes, flags and gradients."""
        tensors = [*map(call, self.tensors)]
        try:
            return all(map(is_, self.nodes, map(NODE, tensors))) and self.marks_hold(tensors)
        except AttributeError:  # one is gone
            return False

    def marks_hold(self, tensors: Iterable[Any]) -> bool:
        """Whether these tensors are there, with the same flags and gradients."""
        flags, gradients = map(REQUIRES_GRAD, tensors), map(GRAD, map(call, self.owners))
        are_first = map(is_, map(GRAD, map(call, self.side_tensors)), ENDLESS_NONE)
        try:
            return (
                all(map(is_, self.required, flags))
                and all(map(is_, gradients, map(call, self.gradients)))
                and all(map(is_, are_first, self.are_first))
            )
        except AttributeError:
            return False


class ReusableGradient(NamedTuple):
    """A gradient that a replay made; the next one reuses its memory if nobody else refers to it."""

    number: int
    """Its place in `left`."""
    place: int
    """Its place among the outputs of the step."""
    owner: weakref.ref[Any]
    tensor: Tensor
    shown: UOp
    """The node of the tensor when it was left."""
    node: UOp
    buffer: Buffer
    made: Buffer
    """The buffer of the captured step that it stands for."""


class ReusableGradients:
    """The gradients that a replay made, in columns that few calls of C look at."""

    def __init__(
        self,
        rows: Sequence[ReusableGradient] = (),
        known: Sequence[int] = (),
        known_below: Sequence[int] = (),
    ) -> None:
        self.rows = rows
        self.owners = [row.owner for row in rows]
        self.tensors = [row.tensor for row in rows]
        self.shown = [row.shown for row in rows]
        self.below: list[Any] = [x for row in rows for x in (row.shown, row.node, row.buffer)]
        self.known, self.known_below = [*known], [*known_below]
        """How many references there are to the tensors, and to what is below, if nobody has seen
        them; of as many of the first ones as were counted."""
        self.numbers = frozenset([row.number for row in rows])
        self.places = frozenset([row.place for row in rows])
        self.again = {row.made: row.buffer for row in rows}
        """For buffers of the captured step, those to be used again."""

    def count(self) -> None:
        """See how often the new ones are referred to, now that nobody has seen them."""
        if len(self.known) == len(self.rows):
            return
        counts, below = [*map(getrefcount, self.tensors)], [*map(getrefcount, self.below)]
        self.known += counts[len(self.known) :]
        self.known_below += below[len(self.known_below) :]

    def unseen(self) -> ReusableGradients:
        """Those that the next replay may overwrite, in their places.

        Those to which nothing refers that did not when they were left.
        """
        counts, below = map(getrefcount, self.tensors), map(getrefcount, self.below)
        owners: list[Any] = [*map(call, self.owners)]
        if (
            len(self.known) == len(owners)
            and all(map(is_not, owners, ENDLESS_NONE))
            and all(map(is_, map(NODE, self.tensors), self.shown))
            and all(map(le, below, self.known_below))
        ):
            missing = [*map(is_not, map(GRAD, owners), self.tensors)]
            if all(map(le, map(add, counts, missing), self.known)):
                for number in compress(count(), missing):
                    owners[number].grad = self.tensors[number]
                return self
        return self.some_unseen()

    def some_unseen(self) -> ReusableGradients:
        """The same where not all of them are."""
        counts, below = [*map(getrefcount, self.tensors)], [*map(getrefcount, self.below)]
        rows, known, known_below = [], [], []
        for number, (row, most) in enumerate(zip(self.rows, self.known, strict=False)):
            owner, three = row.owner(), slice(3 * number, 3 * number + 3)
            if owner is None or row.tensor.uop is not row.shown:
                continue
            is_missing = owner.grad is not row.tensor
            most_below = self.known_below[three]
            if counts[number] + is_missing <= most and all(map(le, below[three], most_below)):
                rows.append(row)
                known.append(most)
                known_below += most_below
                if is_missing:
                    owner.grad = row.tensor
        return ReusableGradients(rows, known, known_below)


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
    expected: Expected | None = field(init=False)
    """The contents of `state`, `flags` and `side_outputs` in columns, for quick comparison."""
    gradients: ReusableGradients = field(init=False, default_factory=ReusableGradients)
    """What the last replay left of gradients in memory of their own."""

    def __post_init__(self) -> None:
        self.expected = Expected.of(self)

    @cached_property
    def returned(self) -> tuple[int, ...]:
        """The places among the step's outputs that the result shows."""
        return tuple(dict.fromkeys(p for _, leaf in leaves_of(self.result) for p in leaf.places))

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
        )


def node_of(recorded: RecordedCall, place: int, buffer: Buffer) -> UOp:
    """The BUFFER node of a result that is no argument: a new one, unless it is state."""
    node = recorded.nodes[place]
    if node is None:
        node = made_anew(recorded.kinds[place])
        buffers[node] = buffer
        if buffer in recorded.step.used:
            recorded.nodes[place] = node
    return node


def leaves_of(result: Any) -> list[tuple[str, Output]]:
    """The Outputs in a result that was kept."""
    found: list[tuple[str, Output]] = []
    rebuilt(result, Output, lambda output: found.append(("", output)))
    return found


def realized_buffers(node: UOp) -> list[Buffer]:
    """The buffers that a node shows, if nothing is left to be computed."""
    return list(map(buffer_of, buffers_below(node))) if is_realized(node) else []
