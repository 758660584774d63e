"""What a run has to compute, and what the living tensors see after it.

Floor 5. Two promises are kept here. A tensor computed from memory shows what that memory held when
the tensor was written down, also if an assignment came later. And computing a tensor takes the
graph, and with it the gradient, from nobody who did not ask for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tinycore._deferred import deferred
from tinycore._locks import writing
from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.core import (
    Core,
    is_shared,
    live_tensors,
    replace_nodes,
    shown,
    waiting_tensors,
)
from tinycore.tensor.grad import passes_gradient
from tinycore.tensor.held import Known, holdings
from tinycore.tensor.past import past
from tinycore.tensor.runtime import runtime
from tinycore.tensor.showing import under
from tinycore.tensor.views import shows_repeated
from tinycore.uop.bindings import sizes_below
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph
    from tinycore.schedule.results import Computed, HeldValue, Settled

canonicalize: Final[Callable[..., CanonicalGraph]] = deferred(
    "tinycore.schedule.canonical:canonicalize"
)
made_settled: Final[Callable[..., Settled]] = deferred("tinycore.schedule.results:Settled")
made_held: Final[Callable[..., HeldValue]] = deferred("tinycore.schedule.results:HeldValue")

SOURCES: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.ASSIGN, Op.CALL})
"""Where a gradient may have arrived."""


class Writes:
    """How many runs that wrote to memory living tensors have been told of."""

    done = 0


def compute(
    asked: Callable[[], list[UOp]], owners: Sequence[Core] = (), read: UOp | None = None
) -> dict[UOp, UOp]:
    """Run what is asked for, tell all living tensors, and give the memory of each root.

    Runs that write to memory follow one another: what one thread has written, as a part of what
    it asked for, another one that waited for it need not write again, so it asks once more.
    """
    while True:
        runtime().finish()
        before = Writes.done
        if not (roots := asked()):
            return {}
        known = holdings.known()
        form = canonicalize(roots, at_hand(known.memory, roots))
        while more := readers_of_what_changes(form):
            more = [*form.roots, *more]
            form = canonicalize(more, at_hand(known.memory, more))
        if not form.assigned:
            return carried_out(known, form, owners, read, set(roots) if owners else set())
        with writing:
            if Writes.done == before:
                return carried_out(known, form, owners, read, set(roots) if owners else set())


def carried_out(
    known: Known, form: CanonicalGraph, owners: Sequence[Core], read: UOp | None, asked: set[UOp]
) -> dict[UOp, UOp]:
    """Run what the roots of a form need, and tell living tensors; the memory of each root.

    What living tensors still have to read from memory about to be overwritten is computed with it.
    The memory of a root is its owner's and its views'. Another tensor that was written down as the
    very same node keeps the value only: an assignment to one must not show in the other.

    A value that is `read` is the one root, which has no owner; its memory holds it from then on.
    """
    waiting = waiting_tensors()
    ours = set(form.roots)
    others = [
        t.uop
        for t in waiting
        if not (t.uop in ours or graph.base_of(t.uop) is read or graph.is_buffer(t.uop))
    ]

    def tell(computed: Computed) -> None:
        given, held = computed
        bases = map(graph.base_of, form.roots)
        given |= {base: form.held[base] for base in bases if base in form.held}
        if read is not None and not form.assigned:
            held += values_read(read, given[form.roots[0]], form)
        note_past(form, given, asked, owners, read)
        replace_nodes(given, {id(tensor) for tensor in owners})
        holdings.note(known, given, held, memory_written(form.assigned))
        Writes.done += bool(form.assigned)

    return runtime().realize(form, settled, others, tell).given


def note_past(
    form: CanonicalGraph,
    given: dict[UOp, UOp],
    asked: set[UOp],
    owners: Sequence[Core],
    read: UOp | None,
) -> None:
    """Keep the graphs, for `backward`, of what was computed though nobody asked for it by name."""
    past.done(form.assigned)
    if holdings.scope.innermost is not None:  # of what is captured, gradients are computed inside
        past.end(memory_written(form.assigned))
        return
    memory = {n: b for n, m in given.items() if (b := graph.base_of(m)).op is Op.BUFFER}
    kept = {n: memory[n] for n in form.roots[read is not None :] if n in memory and n not in asked}
    done: dict[UOp, UOp] = {}
    if form.assigned:
        latest = set(form.assigned) - {graph.base_of(n.src[0]) for n in form.assigned}
        done = {node: memory[node] for node in form.assigned if node in latest and node in memory}
        named = {under(root) for root in asked}
        kept = {n: b for n, b in (done | kept).items() if n not in named}
    free = {root_of(t) for t in owners if t.requires_grad is None} & asked & memory.keys()
    past.note(done, kept, {node: memory[node] for node in free})


def at_hand(held: Mapping[UOp, UOp], roots: list[UOp]) -> Mapping[UOp, UOp]:
    """What may be read from memory to compute some roots.

    A root that shows elements of a value in another order, or a part of them, gets memory of its
    own: it must not become a view of that which holds the value.
    """
    apart = set()
    for root in roots if held else ():
        *_, base = moved_from(root)
        if base is not graph.base_of(root):
            apart.add(base)
    return held if apart.isdisjoint(held) else {n: held[n] for n in held if n not in apart}


def memory_with(tensor: Core) -> UOp:
    """Memory with the elements of a tensor row by row, computed if need be; its graph stays."""
    while True:
        node = tensor.uop
        base = shown_whole(node)
        if (memory := holdings.memory_of(base)) is not None:
            return memory
        copy = UOp(Op.CONTIGUOUS, node.dtype, (node,))

        def asked(node: UOp = node, copy: UOp = copy) -> list[UOp]:
            return [copy] if tensor.uop is node else []

        if found := compute(asked, read=base):
            return found[copy]


def shown_whole(node: UOp) -> UOp:
    """The node whose elements a node has in the same order: below reshapes and DETACHs."""
    base = graph.base_of(node)
    while base.op is Op.DETACH:
        base = graph.base_of(base.src[0])
    return base


def values_read(node: UOp, memory: UOp, form: CanonicalGraph) -> list[HeldValue]:
    """That memory holds a node, if it is new, and the node the same whenever it is computed."""
    below = set(memory.toposort())
    is_new = graph.is_buffer(under(memory)) and below.isdisjoint(form.memory)
    if node.op in MOVEMENT or graph.is_memory(node) or not is_new:
        return []
    return [made_held(node, graph.reshape(memory, node.shape), form.memory)]


def memory_written(assigned: Iterable[UOp]) -> set[UOp]:
    """The BUFFERs that ASSIGNs write to."""
    found = set()
    seen = {node.src[0] for node in assigned}
    stack = [*seen]
    while stack:
        node = stack.pop()
        if node.op is Op.BUFFER:
            found.add(node)
        else:
            below = node.src if node.op is Op.MULTI else node.src[:1]
            stack += [s for s in below if s not in seen]
            seen.update(below)
    return found


def told_apart(tensors: Iterable[Core]) -> None:
    """Give all but the first of different tensors that are the same uncomputed node a copy."""
    owners: dict[UOp, Core] = {}
    for tensor in tensors:
        owner = owners.setdefault(tensor.uop, tensor)
        if owner is tensor or is_shared(under(tensor.uop)):
            continue
        if (value := tensor._value) is None:
            tensor._become(graph.copied(tensor.uop))
        elif value is not owner._value:
            tensor._show(value.tensors(), value.base, graph.copied(value.base))


def settled(roots: list[UOp], memory: dict[UOp, UOp]) -> Settled:
    """Which nodes give way to the memory that now holds them, for good, and which are read from it.

    The roots give way, and what is memory by nature. Other intermediate results do only if they
    come from no memory that may have a gradient, like random numbers: the graph above memory is
    lost to `backward`, and nobody asked for that here. They stay, and are read from memory while
    they live, unless they depend on the number of a Variable. What only shows another value, as a
    detached one, stays a view of that, whatever memory a kernel had for it.
    """
    asked = {below for root in roots for below in moved_from(root)}
    comes = {node: source for node, source in sources_below(memory).items() if source}
    values = {n: m for n, m in memory.items() if n in asked or not is_view(n)}
    given = {n: m for n, m in values.items() if n in asked or n.op is Op.ASSIGN or n not in comes}
    shown = UOp.sink(*roots).substitute(memory).src
    given |= {root: ended(node) for root, node in zip(roots, shown, strict=True)}
    stays = [n for n in values if n not in given and n.op not in MOVEMENT]
    return made_settled(given, {n: memory[n] for n in stays} if not sizes_below(roots) else {})


def is_view(node: UOp) -> bool:
    """Whether a node is detached, or rearranges memory: both show what a write to it changes."""
    return node.op is Op.DETACH or (node.op in MOVEMENT and is_shared(under(node)))


def ended(node: UOp) -> UOp:
    """What a root gives way to: memory of its own, without the CALL that it was computed for."""
    calls = [n for n in node.toposort() if n.op is Op.CALL]
    return node.substitute({n: n.src[0] for n in calls}) if calls else node


def moved_from(node: UOp) -> Iterator[UOp]:
    """A node, and what it is a rearrangement of."""
    while node.op in MOVEMENT:
        yield node
        node = node.src[0]
    yield node


def sources_below(nodes: Iterable[UOp]) -> dict[UOp, bool]:
    """For every node below the given ones, whether it is computed from numbers of memory.

    They may be detached on the way: what is detached is an intermediate result like others.
    What is below a CALL in a form tells nothing: its gradient goes to arguments that are left out.
    """
    found: dict[UOp, bool] = {}
    for node in UOp.sink(*nodes).toposort()[:-1]:
        is_source = node.op in SOURCES and dtypes.is_float(node.dtype)
        passes = node.op is Op.DETACH or passes_gradient(node)
        found[node] = is_source or (passes and any(found[s] for s in node.src))
    return found


def unrealized(tensors: Iterable[Core]) -> list[UOp]:
    """The graphs that have something to compute."""
    nodes = dict.fromkeys(root_of(t) for t in tensors)
    return [n for n in nodes if not graph.is_buffer(n) and 0 not in n.shape]


def root_of(tensor: Core) -> UOp:
    """What is computed for a tensor: with views that live, what all of them show."""
    if (value := tensor._value) is not None:
        is_alone = len(value.tensors()) == 1 and not shows_repeated(tensor.uop, value.base)
        return tensor.uop if is_alone else value.base
    base = under(tensor.uop)
    is_part = base is not tensor.uop and graph.is_copy(base)
    return base if is_part and len(shown.of(base)) > 1 else tensor.uop


def values_of_tensors() -> set[UOp]:
    """What is computed for living tensors before memory that it is computed from is overwritten."""
    return {n for t in waiting_tensors() if not shows_memory(n := root_of(t), set())}


def readers_of_what_changes(form: CanonicalGraph) -> list[UOp]:
    """What living tensors still have to compute from memory that some roots overwrite.

    Plain views are not among them: they show the new content. Copies on the way are, since a
    derivative may need them.
    """
    if not form.assigned:
        return []
    replaced = {graph.base_of(n.src[0]) for n in form.assigned}
    latest = set(form.assigned) - replaced
    done = {*form.assigned, *form.roots}
    waiting = [n for n in dict.fromkeys(map(root_of, live_tensors())) if not shows_memory(n, done)]
    reads: dict[UOp, bool] = {}
    for node in UOp.sink(*waiting).toposort(lambda n: n not in latest):
        reads[node] = node in replaced or (node not in latest and any(reads[s] for s in node.src))
    copies = [n for n in reads if reads[n] and graph.is_alone(n) and n not in done]
    return list(dict.fromkeys((*copies, *(n for n in waiting if reads[n]))))


def with_readers(roots: list[UOp]) -> list[UOp]:
    """Some roots, and all that is to be computed before they overwrite memory."""
    while more := readers_of_what_changes(canonicalize(roots)):
        roots = [*roots, *more]
    return roots


def shows_memory(node: UOp, done: set[UOp]) -> bool:
    """Whether a node only rearranges memory, or what is about to become memory."""
    while node not in done and (node.op in MOVEMENT or node.op is Op.DETACH):
        node = node.src[0]
    return node in done or graph.is_buffer(node) or node.op in (Op.BUFFER_VIEW, Op.CONST)
