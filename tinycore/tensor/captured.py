"""One capture of a function: its launches, what its results show, and the state it works on.

Floor 5. Capturing runs the function once more on tensors that stand for the arguments, so that
memory which the function also reaches in another way is noticed. What it leaves to be computed is
computed inside of the capture. A replay first looks at the tensors whose memory the launches use:
pending writes to them are done, and where another tensor has taken the place of one, the capture
is of no use any more.
See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.engine.jit import CapturedStep, capture
from tinycore.engine.run import Recording
from tinycore.errors import JitError
from tinycore.schedule.order import buffer_of, buffers
from tinycore.tensor.arguments import (
    Arguments,
    form_of,
    is_realized,
    leaves,
    rebuilt,
)
from tinycore.tensor.core import live_tensors, replace_nodes
from tinycore.tensor.held import holdings
from tinycore.tensor.showing import buffers_below
from tinycore.tensor.standins import StandIns, finish_writes
from tinycore.tensor.tensor import Tensor
from tinycore.uop.bindings import holding
from tinycore.uop.node import UOp, made_anew
from tinycore.uop.op import Op
from tinycore.uop.size import sealed

Noted = tuple[weakref.ref[Any], UOp]
"""A tensor, and what it was at some time."""


@dataclass(frozen=True)
class Output:
    """A tensor of a result: how it shows buffers, and which of the step's these are."""

    form: UOp
    places: tuple[int, ...]

    @cached_property
    def parameters(self) -> list[UOp]:
        """The BUFFERs in the form, in the order of `places`."""
        return sorted(buffers_below(self.form), key=lambda n: int(n.src[1].arg), reverse=True)

    def shown(self, nodes: list[UOp], numbers: dict[str, int]) -> Tensor:
        """The tensor over BUFFER nodes, with the numbers that Variables hold in this call."""
        if self.form.op is Op.BUFFER:
            return Tensor.from_uop(nodes[self.places[0]])
        if self.form.op is Op.RESHAPE and self.form.src[0].op is Op.BUFFER and not numbers:
            return Tensor.from_uop(self.form.with_src((nodes[self.places[0]],)))
        exchange = {p: nodes[k] for p, k in zip(self.parameters, self.places, strict=True)}
        node = self.form.substitute(exchange)
        return Tensor.from_uop(holding(node, numbers) if numbers else node)

    def __reduce__(self) -> tuple[object, ...]:
        return Output, (self.form, self.places)


class Run(NamedTuple):
    """What one run of the function did, as far as another one must do the same."""

    launches: tuple[tuple[str, UOp | None], ...]
    host: tuple[int, ...]

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


@dataclass
class Capture:
    """Everything known of the calls with one key."""

    name: str
    facts: list[tuple[str, Hashable]] = field(default_factory=list)
    """What the key says, with names."""
    prune: bool = False
    """Whether replays leave out what is the same in each of them."""
    first: Run | None = None
    """What the first run did; None before it."""
    step: CapturedStep | None = None
    result: Any = None
    """The result, with an Output for each tensor."""
    sources: list[int] = field(default_factory=list)
    """For each buffer of the step's outputs, the number of the argument's buffer it is, or -1."""
    nodes: list[UOp | None] = field(default_factory=list)
    """For each buffer of the step's outputs, its BUFFER node where that stays the same."""
    state: list[Noted] = field(default_factory=list)
    """Tensors whose memory the launches work on."""
    put_off: int = 0
    forgotten: int = 0

    def forget(self) -> None:
        """Give up what was captured: the next two calls run the function again."""
        self.first = self.step = self.result = None
        self.sources, self.nodes, self.state = [], [], []

    # --- capturing

    def take(
        self,
        function: Callable[..., Any],
        given: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the function and capture it, if that can be done already; its result."""
        finish_writes()
        holdings.drop(given.nodes)  # to which the function may write, under the names of stand-ins
        before = [(weakref.ref(t), t.uop) for t in live_tensors()]
        parts = StandIns(given)
        with capture() as recording, sealed(), holdings.apart():
            result = function(*parts.instead(args), **parts.instead(kwargs))
            tensors = realized(self.name, result)
            now: list[tuple[Any, UOp]] = [(reference(), node) for reference, node in before]
            changed = [t for t, node in now if t is not None and t.uop is not node]
            if left := [*tensors, *changed, *parts.tensors]:
                Tensor.realize(*left)
        self.check_values(recording, given)
        parts.check(self.name, recording)
        if self.first is not None:
            compare(self.name, self.first, Run.of(recording))
        if self.is_settled(before):
            self.keep(recording, parts, result, tensors)
            self.state = self.found_state(before, recording)
        replace_nodes(parts.back)
        return result

    def check_values(self, recording: Recording, given: Arguments) -> None:
        """Raises JitError for a Variable that was not bound by an argument."""
        for name, value in sorted(recording.values):
            if given.numbers.get(name) != value:
                raise JitError(
                    f"{self.name} bound the Variable {name} to {value} itself, which would be so "
                    "in all replays; bind it outside and pass it as an argument"
                )

    def is_settled(self, before: Iterable[Noted]) -> bool:
        """Whether no tensor from before got its memory only now, or another memory.

        What was computed for such a tensor need not be computed again. Raises JitError where memory
        was replaced, or each call finds something new to fill.
        """
        settled = True
        for reference, node in before:
            tensor = reference()
            if tensor is None or tensor.uop is node:
                continue
            if not is_realized(node):
                settled = False
            elif buffers_below(node) != buffers_below(tensor.uop):
                raise JitError(
                    f"{self.name} replaced a tensor of shape {node.shape} by another, where a "
                    "replay could only write to memory; use assign"
                )
        self.put_off += not settled
        if self.put_off > MOST_TRIES:
            raise JitError(
                f"{self.name} gave memory to tensors made outside in each of {self.put_off} calls; "
                "realize() them before the call"
            )
        return settled

    def keep(
        self, recording: Recording, parts: StandIns, result: Any, tensors: list[Tensor]
    ) -> None:
        """Make the step of a recording."""
        if not recording.items:
            raise JitError(
                f"{self.name} launched nothing, so there is nothing to replay. Remove TinyJit."
            )
        nodes = list(dict.fromkeys(b for t in tensors for b in buffers_below(t.uop)))
        outputs = [buffer_of(node) for node in nodes]
        self.step = CapturedStep.of(recording, parts.buffers, tuple(outputs), self.prune)
        self.sources = [parts.number.get(node, -1) for node in nodes]
        fixed = [
            b not in recording.made and s < 0 for b, s in zip(outputs, self.sources, strict=True)
        ]
        self.nodes = [node if stays else None for node, stays in zip(nodes, fixed, strict=True)]

        def output(tensor: Tensor) -> Output:
            places = tuple([nodes.index(b) for b in buffers_below(tensor.uop)])
            return Output(form_of(tensor.uop), places)

        self.result = rebuilt(result, Tensor, output)

    def found_state(self, before: list[Noted], recording: Recording) -> list[Noted]:
        """The tensors from before whose memory the launches work on.

        Raises JitError where such a tensor is gone: the function put another one in its place.
        """
        used = {b for i in recording.items for b in i.bufs} - recording.made
        shown = {b for t in live_tensors() for b in realized_buffers(t.uop)}
        state = []
        for reference, node in before:
            tensor = reference()
            touched = used.intersection(realized_buffers(node))
            if tensor is not None and touched:
                state.append((reference, tensor.uop))
            elif touched - shown:
                raise JitError(
                    f"{self.name} read a tensor of shape {node.shape} and then put another one in "
                    "its place, as in `x = x + 1`, or by adding to a gradient that was there "
                    "before; a replay would read the first one for ever. Write to it with assign, "
                    "or begin with zero_grad()"
                )
        return state

    # --- replaying

    def is_current(self) -> bool:
        """Whether the tensors that the launches work on are still where they were.

        Writes to them that wait are done.
        """
        for place, (reference, node) in enumerate(self.state):
            tensor = reference()
            if tensor is None:
                return False
            if tensor.uop is node:
                continue
            if not is_realized(tensor.uop):
                tensor.realize()
            if not is_realized(tensor.uop) or buffers_below(tensor.uop) != buffers_below(node):
                return False
            self.state[place] = reference, tensor.uop
        return True

    def replay(self, given: Arguments) -> Any:
        """Run the captured launches on this call's arguments; the result."""
        step = self.step
        assert step is not None, "only what was captured is replayed"
        if not step.used.isdisjoint(given.buffers):
            self.refuse_shared(step, given)
        numbers = given.numbers
        if holdings.entries:
            holdings.drop(self.memory_of(given))
        found = step.replay(given.buffers, numbers)
        nodes = []
        for place, source in enumerate(self.sources):
            nodes.append(given.nodes[source] if source >= 0 else self.node_of(place, found[place]))
        if type(self.result) is Output:
            return self.result.shown(nodes, numbers)
        return rebuilt(self.result, Output, lambda output: output.shown(nodes, numbers))

    def memory_of(self, given: Arguments) -> list[UOp]:
        """The BUFFERs of arguments and state, which a replay may write to."""
        state = [memory for _, node in self.state for memory in buffers_below(node)]
        return [*given.nodes, *state, *(node for node in self.nodes if node is not None)]

    def refuse_shared(self, step: CapturedStep, given: Arguments) -> None:
        """Raise JitError for an argument in memory that the launches work on."""
        for buffer, node in zip(given.buffers, given.nodes, strict=True):
            if buffer in step.used:
                raise JitError(
                    f"an argument of {self.name} (of {node.arg} x {node.dtype!r}) is memory that "
                    "the function also works on itself, which it was not in the captured call. "
                    "Pass a copy (clone)"
                )

    def node_of(self, place: int, buffer: Buffer) -> UOp:
        """The BUFFER node of a result that is no argument: a new one, unless it is state."""
        node = self.nodes[place]
        if node is None:
            node = made_anew(self.kinds[place])
            buffers[node] = buffer
            if buffer in (self.step.used if self.step else ()):
                self.nodes[place] = node
        return node

    @cached_property
    def kinds(self) -> list[UOp]:
        """For each output, a BUFFER node of its kind."""
        outputs = [leaf for _, leaf in leaves_of(self.result)]
        found: dict[int, UOp] = {}
        for output in outputs:
            found |= dict(zip(output.places, output.parameters, strict=True))
        return [found[place] for place in range(len(self.sources))]

    def __getstate__(self) -> dict[str, Any]:
        kept = {"name": self.name, "step": self.step, "result": self.result}
        return kept | {"sources": self.sources, "nodes": [None] * len(self.nodes)}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(**kept)  # type: ignore[misc]


MOST_TRIES = 3
"""Calls after which a function that still fills memory made outside is refused."""


def realized_buffers(node: UOp) -> list[Buffer]:
    """The buffers that a node shows, if nothing is left to be computed."""
    return list(map(buffer_of, buffers_below(node))) if is_realized(node) else []


def leaves_of(result: Any) -> list[tuple[str, Output]]:
    """The Outputs in a result that was kept."""
    found: list[tuple[str, Output]] = []
    rebuilt(result, Output, lambda output: found.append(("", output)))
    return found


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
