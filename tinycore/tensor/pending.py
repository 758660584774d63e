"""What a run has to compute, and what the living tensors see after it.

Floor 5. Two promises are kept here. A tensor computed from memory shows what that memory held when
the tensor was written down, also if an assignment came later. And computing a tensor takes the
graph, and with it the gradient, from nobody who did not ask for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tinycore._deferred import deferred
from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.core import Core, live_tensors, replace_nodes, waiting_tensors
from tinycore.tensor.grad import passes_gradient
from tinycore.tensor.runtime import runtime
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op

if TYPE_CHECKING:
    from tinycore.schedule.form import Form

form_of: Final[Callable[[list[UOp]], Form]] = deferred("tinycore.schedule.form:form_of")


def compute(roots: list[UOp], owners: Iterable[Core] = ()) -> dict[UOp, UOp]:
    """Run what the roots need, tell all living tensors, and give the memory of each root.

    What living tensors still have to read from memory about to be overwritten is computed with it.
    The memory of a root is its owner's. Another tensor that was written down as the very same node
    gets a copy of it when it needs one: an assignment to one must not show in the other.
    """
    form = form_of(roots)
    while more := readers_of_what_changes(form):
        form = form_of([*form.roots, *more])
    fresh = {root for root in form.roots if not is_view(root)}
    owned = {id(tensor) for tensor in owners}
    waiting = waiting_tensors()
    sharing = [t for t in waiting if t.uop in fresh and id(t) not in owned]
    ours = set(form.roots)
    others = [t.uop for t in waiting if t.uop not in ours and not graph.is_buffer(t.uop)]
    found = runtime().realize(form, settled, others)
    replace_nodes(found)
    for tensor in sharing:
        tensor._become(graph.copied(tensor.uop))
    return found


def is_view(node: UOp) -> bool:
    """Whether a node only rearranges memory: one tensor of it shows what is written to another."""
    *_, base = moved_from(node)
    return graph.is_memory(base)


def told_apart(tensors: Iterable[Core]) -> None:
    """Give all but the first of different tensors that are the same uncomputed node a copy."""
    owner: dict[UOp, Core] = {}
    for tensor in tensors:
        if owner.setdefault(tensor.uop, tensor) is not tensor and not is_view(tensor.uop):
            tensor._become(graph.copied(tensor.uop))


def settled(roots: list[UOp], memory: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """Which nodes give way to the memory that now holds them, for good.

    The roots do, and what is memory by nature. Other intermediate results do only if no gradient
    flows through them: the graph above memory is lost to `backward`, and nobody asked for that
    here.
    """
    asked = {below for root in roots for below in moved_from(root)}
    flows = {node: flow for node, flow in gradient_flows(memory).items() if flow}
    kept = {n: m for n, m in memory.items() if n in asked or n.op is Op.ASSIGN or n not in flows}
    return kept | {root: root.substitute(memory) for root in roots}


def moved_from(node: UOp) -> Iterator[UOp]:
    """A node, and what it is a rearrangement of."""
    while node.op in MOVEMENT:
        yield node
        node = node.src[0]
    yield node


def gradient_flows(nodes: Iterable[UOp]) -> dict[UOp, bool]:
    """For every node below the given ones, whether a gradient can flow through it to memory."""
    flows: dict[UOp, bool] = {}
    for node in UOp.sink(*nodes).toposort()[:-1]:
        is_source = node.op in (Op.BUFFER, Op.BUFFER_VIEW, Op.ASSIGN) and dtypes.is_float(
            node.dtype
        )
        flows[node] = is_source or (passes_gradient(node) and any(flows[s] for s in node.src))
    return flows


def unrealized(tensors: Iterable[Core]) -> list[UOp]:
    """The graphs that have something to compute."""
    nodes = dict.fromkeys(t.uop for t in tensors)
    return [n for n in nodes if not graph.is_buffer(n) and 0 not in n.shape]


def readers_of_what_changes(form: Form) -> list[UOp]:
    """What living tensors still have to compute from memory that some roots overwrite.

    Plain views are not among them: they show the new content.
    """
    if not form.assigned:
        return []
    replaced = {graph.base_of(n.src[0]) for n in form.assigned}
    latest = set(form.assigned) - replaced
    done = {*form.assigned, *form.roots}
    waiting = [n for n in dict.fromkeys(t.uop for t in live_tensors()) if not shows_memory(n, done)]
    reads: dict[UOp, bool] = {}
    for node in UOp.sink(*waiting).toposort(lambda n: n not in latest):
        reads[node] = node in replaced or (node not in latest and any(reads[s] for s in node.src))
    return [n for n in waiting if reads[n]]


def shows_memory(node: UOp, done: set[UOp]) -> bool:
    """Whether a node only rearranges memory, or what is about to become memory."""
    while node not in done and (node.op in MOVEMENT or node.op is Op.DETACH):
        node = node.src[0]
    return node in done or graph.is_buffer(node) or node.op in (Op.BUFFER_VIEW, Op.CONST)
