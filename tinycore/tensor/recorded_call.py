"""The record of a captured call: launches, the form of results, state, and side outputs.

Floor 5. A replay needs nothing else; see `captured.py`.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from sys import getrefcount
from typing import Any, Final, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
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

    def shown(self, nodes: list[UOp], naming: Naming | None) -> Tensor:
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


UNUSED: Final = UOp(Op.SINK, dtypes.void, ())
"""Placeholder for a node that is not needed."""


class ReusableGradient:
    """A gradient that a replay made; the next one reuses its memory if nobody else refers to it."""

    __slots__ = ("buffer", "known", "made", "node", "owner", "place", "shown", "tensor")

    def __init__(
        self,
        owner: weakref.ref[Any],
        tensor: Tensor,
        node: UOp,
        buffer: Buffer,
        made: Buffer,
        place: int,
    ) -> None:
        self.owner, self.tensor, self.node = owner, tensor, node
        self.shown = tensor.uop
        self.buffer, self.made, self.place = buffer, made, place
        self.known = (0, 0, 0)

    def counts(self) -> tuple[int, int, int]:
        """How many references there are to the nodes and the memory."""
        return getrefcount(self.shown), getrefcount(self.node), getrefcount(self.buffer)


@dataclass(frozen=True, eq=False)
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
    left: tuple[SideOutput, ...] = ()
    """Where the function leaves tensors that outlive the call."""
    values: tuple[Any, ...] = ()
    """What it leaves there, with an Output for each tensor."""
    spares: dict[int, ReusableGradient] = field(default_factory=dict)
    """Gradients of the last replay, by their place in `left`."""

    flags: tuple[tuple[weakref.ref[Any], bool | None], ...] = ()
    """Other tensors around the function, and whether they required gradients."""

    @cached_property
    def kinds(self) -> list[UOp]:
        """For each output, a BUFFER node of its kind."""
        outputs = [leaf for _, leaf in leaves_of((self.result, *self.values))]
        found: dict[int, UOp] = {}
        for output in outputs:
            found |= dict(zip(output.places, output.parameters, strict=True))
        return [found[place] for place in range(len(self.sources))]

    @cached_property
    def alone(self) -> frozenset[int]:
        """What is left and has new memory to itself, so that a later replay may overwrite it."""
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

    def count(self) -> None:
        """See how often gradients are referred to, now that nobody has seen them."""
        for spare in self.spares.values():
            if not any(spare.known):
                spare.known = spare.counts()

    def reusable_gradients(self) -> dict[int, ReusableGradient]:
        """The gradients of the last replay that the next one may overwrite, in their places.

        Those to which nothing refers that did not when they were left.
        """
        found = {}
        for number, spare in self.spares.items():
            owner = spare.owner()
            if owner is None or spare.tensor.uop is not spare.shown:
                continue
            is_there = owner.grad is spare.tensor
            uop, node, buffer = spare.known
            if (
                getrefcount(spare.tensor) <= 2 + is_there
                and getrefcount(spare.shown) <= uop
                and getrefcount(spare.node) <= node
                and getrefcount(spare.buffer) <= buffer
            ):
                found[number] = spare
                if not is_there:
                    owner.grad = spare.tensor
        return found

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
