"""Passes from a tensor graph to launches over numbered memory.

Floor 3. In: roots of a tensor graph (stage "tensor" of `uop.verify`). Out: a `State` with kernels,
steps and a memory layout. The order of the passes is stated here and nowhere else. `VERIFY=1`
checks the state after every pass; DEBUG=3 (TRACE=schedule) prints what each pass decided and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tinycore.config import settings
from tinycore.schedule import checks, explain
from tinycore.schedule.adjoint import with_windows
from tinycore.schedule.attention import choose_attention
from tinycore.schedule.buffer_limit import limit_buffers
from tinycore.schedule.candidates import Memory
from tinycore.schedule.emit import KernelEmitter
from tinycore.schedule.fusion_search import fuse_rows
from tinycore.schedule.group import group_values
from tinycore.schedule.hazards import save_overwritten
from tinycore.schedule.invariants import invariant_first
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import new_memory, with_shape
from tinycore.schedule.memory_plan import plan_memory
from tinycore.schedule.numbering import number_memory, relink
from tinycore.schedule.operand_layout import lay_out_operands
from tinycore.schedule.order import order_for_liveness, overlap_copies
from tinycore.schedule.partial_writes import place_partial_writes
from tinycore.schedule.retention import Replacements, RetentionPolicy
from tinycore.schedule.shard import ShardedGraph
from tinycore.schedule.split_reduction import split_reductions
from tinycore.schedule.state import State
from tinycore.schedule.storage import Storage
from tinycore.trace import PassTrace, Trace
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.origins import texts

trace = Trace("schedule")
trace_passes = PassTrace("passes")


class Pass(NamedTuple):
    """One step of scheduling: its function of a state, and the invariant it establishes."""

    name: str
    run: Callable[[State], State]
    check: Callable[[State], None]
    """Raise VerifyError, or the error of an illegal graph, for a state that breaks an invariant."""
    explain: Callable[[State], Iterable[str]]
    """Lines of DEBUG=3 on the decisions."""


def shard(state: State) -> State:
    """Nodes on groups of devices become nodes on single devices, and copies."""
    return replace(state, sharded=ShardedGraph(state.roots))


def place_writes(state: State) -> State:
    """Each partial write is assigned to the memory that it changes."""
    return replace(state, rewritten=place_partial_writes(state.sharded.parts, new_memory))


def attend(state: State) -> State:
    """Attention and its gradients are computed over all scores at once, in parts or in pieces."""
    rewritten, refusals = choose_attention(state.rewritten)
    return replace(state, rewritten=rewritten, refusals=refusals)


def use_windows(state: State) -> State:
    """Adjoints of sliding windows become sliding windows, where they are made of images."""
    return replace(state, rewritten=with_windows(state.rewritten))


def lay_out(state: State) -> State:
    """Operands of matrix units that are read many times are copied along a summed axis."""
    return replace(state, rewritten=lay_out_operands(state.rewritten))


def choose_storage(state: State) -> State:
    """Values that are not worth recomputing are stored, each for a reason."""
    roots = [state.rewritten[root] for root in state.sharded.parts]
    constant = None
    if (varying := state.varying) is not None:
        constant = {node for n, node in enumerate(state.parameters) if n not in varying}
    return replace(state, storage=Storage(roots, constant).choose())


def respect_buffer_limit(state: State) -> State:
    """More values are stored where a kernel would take too many buffers."""
    return replace(state, storage=limit_buffers(state.storage))


def split(state: State) -> State:
    """Long reductions are computed from stored partial results."""
    return replace(state, values=split_reductions(state.storage))


def group(state: State) -> State:
    """Stored values with the same loops and common data share a kernel."""
    return replace(state, groups=group_values(state.storage, state.values))


def save_hazards(state: State) -> State:
    """Content that is read after it was overwritten is copied first."""
    return replace(state, groups=save_overwritten(state.groups))


def emit(state: State) -> State:
    """Each group becomes a KERNEL over the memory of its slots."""
    origins = {state.rewritten.get(n, n): text for n, text in texts(state.known).items()}
    emitter = KernelEmitter(state.groups, state.sharded.parts, origins)
    built = emitter.run()
    stored = state.storage.reasons
    cut = {}
    for old, new in state.rewritten.items():
        # A pass may compute a node in another shape; a RESHAPE of what is stored is no value.
        value = base_of(new)
        is_view = old.op is Op.RESHAPE and value is base_of(state.rewritten[old.src[0]])
        if value in built and value in stored and not is_view:
            cut[old] = with_shape(built[value], old.shape)
    return replace(state, cut=cut, emitter=emitter)


def order(state: State) -> State:
    """Kernels that free more memory than they allocate run as early as they may."""
    count = len(state.parameters)
    ordered = order_for_liveness(state.steps, state.memory, count, state.persistent)
    return replace(state, steps=tuple(ordered))


def fuse(state: State) -> State:
    """Neighbors that share a loop over rows become one kernel.

    Steps that do the same in every replay of a capture come first, and fuse only with each other.
    """
    count, parts = len(state.parameters), [state.steps]
    if state.varying is not None:
        parts = [*map(tuple, invariant_first(state.steps, state.varying, count))]
    fused: list[tuple[Step, list[Step]]] = []
    for part in parts:
        read = {place for other in parts if other is not part for s in other for place in s.places}
        kept = state.persistent | read
        fused += fuse_rows(Memory(part, state.memory, count, kept, state.emitter))
    # What nobody reads any more, as x of `x - x`, may leave a kernel without memory.
    fused = [(step, run) for step, run in fused if step.places]
    steps = tuple([step for step, _ in fused])
    return replace(state, steps=steps, members=tuple([tuple(run) for _, run in fused]))


def overlap(state: State) -> State:
    """Copies between devices come early, and what reads them late: kernels run meanwhile."""
    if all(step.ast.op is not Op.COPY for step in state.steps):
        return state
    order = overlap_copies(state.steps, state.memory)
    members = tuple([state.members[number] for number in order])
    return replace(state, steps=tuple([state.steps[n] for n in order]), members=members)


def place_memory(state: State) -> State:
    """Temporary values share blocks, some in place of an operand; others get their own memory."""
    layout = plan_memory(
        state.steps, state.memory, len(state.parameters), state.results, state.cached, state.needed
    )
    return replace(state, layout=layout)


SCHEDULE_PIPELINE: Final = (
    Pass("shard", shard, checks.sharded, explain.no_lines),
    Pass("partial writes", place_writes, checks.writes, explain.no_lines),
    Pass("attention", attend, checks.writes, explain.attention),
    Pass("windows", use_windows, checks.writes, explain.no_lines),
    Pass("operand layout", lay_out, checks.writes, explain.no_lines),
    Pass("choose storage", choose_storage, checks.stored, explain.storage),
    Pass("limit buffers", respect_buffer_limit, checks.stored, explain.buffer_limit),
    Pass("split reductions", split, checks.values, explain.splits),
    Pass("group", group, checks.grouped, explain.groups),
    Pass("hazards", save_hazards, checks.acyclic, explain.hazards),
    Pass("emit kernels", emit, checks.kernels, explain.kernels),
    Pass("number memory", number_memory, checks.steps, explain.no_lines),
    Pass("order", order, checks.steps, explain.order),
    Pass("row fusion", fuse, checks.steps, explain.order),
    Pass("overlap", overlap, checks.steps, explain.order),
    Pass("memory plan", place_memory, checks.layout, explain.no_lines),
)
"""The whole of scheduling. The memory plan runs once for each set of nodes that are read later."""

PASS_NAMES: Final = tuple(step.name for step in SCHEDULE_PIPELINE)


def run_passes(state: State, first: str = PASS_NAMES[0], last: str = PASS_NAMES[-1]) -> State:
    """The state after the passes from `first` to `last`."""
    before = ""
    for step in SCHEDULE_PIPELINE[PASS_NAMES.index(first) : PASS_NAMES.index(last) + 1]:
        state = step.run(state)
        if settings.VERIFY:
            step.check(state)
        if trace.on:
            for line in step.explain(state):
                trace(f"{step.name:<16} {line}")
        if trace_passes.on:
            before = trace_passes.after(step.name, explain.graph(state), before)
    return state


def kernelize(roots: Iterable[UOp]) -> Replacements:
    """Cut the graph below `roots` into kernels: the passes up to their emission.

    Returns, for each node that got memory, its replacement of the same shape: a (reshaped)
    ASSIGN(BUFFER, KERNEL), or a BUFFER where there is nothing to compute. Fused nodes are not in
    it. The sources of a KERNEL are all it depends on, and kernels of earlier calls stay as they
    are, so a second call finds nothing left to do.
    """
    return run_passes(State(tuple(roots)), last="emit kernels").cut


def kernelize_as_run(roots: Iterable[UOp], policy: RetentionPolicy) -> Replacements:
    """Cut the graph below `roots` into the kernels that run: with row fusion, in their order.

    Returns the nodes that `policy` replaces. Values inside a fused kernel have no memory.
    """
    sink = UOp.sink(*roots)
    nodes = sink.toposort()
    state = State(
        sink.src,
        policy,
        parameters=tuple([n for n in nodes if n.op in (Op.BUFFER, Op.BUFFER_VIEW)]),
        known={node: node for node in nodes},
        pending=frozenset(n for n in nodes if n.op is Op.KERNEL),
    )
    return relink(run_passes(state, last="overlap"))
