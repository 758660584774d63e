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
from tinycore.schedule.access import Launch
from tinycore.schedule.adjoint import with_windows
from tinycore.schedule.attention import choose_attention
from tinycore.schedule.buffer_limit import limit_buffers
from tinycore.schedule.candidates import Memory
from tinycore.schedule.emit import emit
from tinycore.schedule.fusion_search import fuse_rows
from tinycore.schedule.group import group_values
from tinycore.schedule.hazards import save_overwritten
from tinycore.schedule.invariants import invariant_first
from tinycore.schedule.kernel import new_memory
from tinycore.schedule.memory_plan import plan_memory
from tinycore.schedule.numbering import number_memory
from tinycore.schedule.operand_layout import lay_out_operands
from tinycore.schedule.order import ListScheduler, overlap_copies
from tinycore.schedule.partial_writes import place_partial_writes
from tinycore.schedule.retention import Replacements, RetentionPolicy
from tinycore.schedule.shard import ShardedGraph
from tinycore.schedule.split_reduction import split_reductions
from tinycore.schedule.state import State, replace_all
from tinycore.schedule.storage import Storage
from tinycore.trace import PassTrace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace_passes = PassTrace("passes")


class Pass(NamedTuple):
    """One step of scheduling: its function of a state, and the invariant it establishes."""

    name: str
    run: Callable[[State], State]
    check: Callable[[State], None]
    """Raise VerifyError, or the error of an illegal graph, for a state that breaks an invariant."""


def shard(state: State) -> State:
    """Nodes on groups of devices become nodes on single devices, and copies."""
    return replace(state, sharded=ShardedGraph(state.roots))


def place_writes(state: State) -> State:
    """Each partial write is assigned to the memory that it changes."""
    return replace(state, rewritten=place_partial_writes(state.sharded.parts, new_memory))


def rewriting(rewrite: Callable[[Replacements], Replacements]) -> Callable[[State], State]:
    """The pass that replaces nodes on single devices by others."""
    return lambda state: replace(state, rewritten=rewrite(state.rewritten))


def choose_storage(state: State) -> State:
    """Values that are not worth recomputing are stored, each for a reason."""
    roots = [state.rewritten[root] for root in state.sharded.parts]
    constant = None
    if (varying := state.varying) is not None:
        constant = {node for n, node in enumerate(state.parameters) if n not in varying}
    storage = Storage(roots, constant).choose()
    if explain.trace.on:
        stored, graph = storage.ordered(), storage.graph
        explain.tell("choose storage", f"{len(stored)} values of {len(graph)} nodes are stored")
    return replace(state, storage=storage)


def respect_buffer_limit(state: State) -> State:
    """More values are stored where a kernel would take too many buffers."""
    return replace(state, storage=limit_buffers(state.storage))


def split(state: State) -> State:
    """Long reductions are computed from stored partial results."""
    done = split_reductions(state.storage, state.rewritten.values())
    return replace(state, rewritten={old: done.get(n, n) for old, n in state.rewritten.items()})


def group(state: State) -> State:
    """Stored values with the same loops and common data share a kernel."""
    return replace(state, groups=group_values(state.storage))


def save_hazards(state: State) -> State:
    """Content that is read after it was overwritten is copied first."""
    return replace(state, groups=save_overwritten(state.groups))


def order(state: State) -> State:
    """Kernels that free more memory than they allocate run as early as they may."""
    count = len(state.parameters)
    scheduler = ListScheduler(state.launches, state.memory, count, state.persistent)
    return replace(state, launches=tuple(scheduler.run()))


def fuse(state: State) -> State:
    """Neighbors that share a loop over rows become one kernel.

    What does the same in every replay of a capture comes first, and fuses only with its like.
    """
    count, parts = len(state.parameters), [state.launches]
    if state.varying is not None:
        parts = [*map(tuple, invariant_first(state.launches, state.varying, count))]
    fused: list[Launch] = []
    for part in parts:
        read = {p for other in parts if other is not part for one in other for p in one.places}
        kept = state.persistent | read
        fused += fuse_rows(Memory(part, state.memory, count, kept, state.groups))
    # What nobody reads any more, as x of `x - x`, may leave a kernel without memory.
    return replace(state, launches=tuple([launch for launch in fused if launch.places]))


def overlap(state: State) -> State:
    """Copies between devices come early, and what reads them late: kernels run meanwhile."""
    return replace(state, launches=tuple(overlap_copies(state.launches, state.memory)))


def place_memory(state: State) -> State:
    """Temporary values share blocks, some in place of an operand; others get their own memory."""
    return replace(state, layout=plan_memory(state))


SCHEDULE_PIPELINE: Final = (
    Pass("shard", shard, checks.sharded),
    Pass("partial writes", place_writes, checks.writes),
    Pass("attention", rewriting(choose_attention), checks.writes),
    Pass("windows", rewriting(with_windows), checks.writes),
    Pass("operand layout", rewriting(lay_out_operands), checks.writes),
    Pass("choose storage", choose_storage, checks.stored),
    Pass("limit buffers", respect_buffer_limit, checks.stored),
    Pass("split reductions", split, checks.writes),
    Pass("group", group, checks.grouped),
    Pass("hazards", save_hazards, checks.acyclic),
    Pass("number memory", number_memory, checks.launches),
    Pass("order", order, checks.launches),
    Pass("row fusion", fuse, checks.launches),
    Pass("overlap", overlap, checks.launches),
    Pass("emit kernels", emit, checks.kernels),
    Pass("memory plan", place_memory, checks.layout),
)
"""The whole of scheduling. The memory plan runs once for each set of nodes that are read later."""

PASS_NAMES: Final = tuple(step.name for step in SCHEDULE_PIPELINE)


def run_passes(state: State, first: str = PASS_NAMES[0], last: str = PASS_NAMES[-1]) -> State:
    """The state after the passes from `first` to `last`."""
    before, known = "", explain.decisions(state) if explain.trace.on else {}
    for step in SCHEDULE_PIPELINE[PASS_NAMES.index(first) : PASS_NAMES.index(last) + 1]:
        state = step.run(state)
        if settings.VERIFY:
            step.check(state)
        # The level of a value is told once, when all kernels are known.
        if explain.trace.on and (state.steps or not state.launches):
            known = explain.tell_changes(step.name, state, known)
        if trace_passes.on:
            before = trace_passes.after(step.name, explain.graph(state), before)
    return state


def kernelize(roots: Iterable[UOp], policy: RetentionPolicy = replace_all) -> Replacements:
    """Cut the graph below `roots` into the kernels that run: the passes up to their emission.

    Returns, for each node that `policy` replaces, its replacement of the same shape: a (reshaped)
    ASSIGN(BUFFER, KERNEL), or a BUFFER where there is nothing to compute. The sources of a KERNEL
    are all it depends on, and kernels of earlier calls stay as they are, so a second call finds
    nothing left to do. Values inside of a fused kernel have no memory.
    """
    sink = UOp.sink(*roots)
    nodes = sink.toposort()
    state = State(
        sink.src,
        policy,
        parameters=tuple([n for n in nodes if n.op in (Op.BUFFER, Op.BUFFER_VIEW)]),
        known={node: node for node in nodes},
    )
    state = run_passes(state, last="emit kernels")
    given, _ = policy(list(state.roots), state.sharded.unshard(state.cut))
    return {node: found for node, found in given.items() if node in state.results}
