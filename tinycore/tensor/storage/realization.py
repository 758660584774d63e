"""Realization planning: the nodes that a run computes, and those that its memory replaces.

Floor 5. Two promises are kept here. A tensor computed from memory shows what that memory held when
the tensor was made, also if an assignment came later. And computing a tensor cuts the graph, and
with it the gradient, of no other tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tinycore._deferred import deferred
from tinycore._locks import writing
from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.aliases import VIEW_OPS, base_of_view, buffers_below, parts_of, views_below
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.autograd.grad import (
    end_at,
    ended_at,
    homes_at,
    is_data_written,
    origin,
    passes_gradient,
)
from tinycore.tensor.autograd.versions import BY_CALL, NOBODY, Homes
from tinycore.tensor.core import Core
from tinycore.tensor.runtime import runtime
from tinycore.tensor.storage import held_values
from tinycore.tensor.storage.change_tracking import scope
from tinycore.tensor.storage.liveness import replace_nodes, while_walking
from tinycore.tensor.storage.storage import is_shared, waiting_storages
from tinycore.tensor.storage.writes import show
from tinycore.uop.bindings import sizes_below
from tinycore.uop.movement import base_of, below_movement, source_below
from tinycore.uop.node import UOp, is_gradient_leaf, ordered
from tinycore.uop.op import MOVEMENT, Op
from tinycore.uop.shape import is_group

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph
    from tinycore.schedule.retention import Realized

Replacements = dict[UOp, UOp]
"""Nodes, and what stands in the place of each."""
Owners = Mapping[Core, Homes | None]
"""Tensors that are realized by name, with what is added to the memory where their gradients end:
BY_CALL where a captured call realizes them. None where that is data, as the tensor refuses one.
"""
NO_OWNERS: Final[Owners] = {}

canonicalize: Final[Callable[..., CanonicalGraph]] = deferred(
    "tinycore.schedule.canonical:canonicalize"
)
make_realized: Final[Callable[..., Realized]] = deferred("tinycore.schedule.retention:Realized")
stale_choices: Final[Callable[..., frozenset[UOp]]] = deferred(
    "tinycore.schedule.canonical:stale_choices"
)

SOURCES: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.ASSIGN, Op.CALL, Op.OWN})
"""Ops at which a gradient may arrive."""
NAMED_BY: Final = MOVEMENT | {Op.OWN}
"""Ops by which a tensor that is realized by name shows what is computed."""


SHOWN: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.CONST})
"""Ops of memory, and of what needs none."""
IN_ORDER: Final = frozenset({Op.RESHAPE, Op.DETACH, Op.OWN})
"""Ops whose result has the elements of their source in the same order."""


class Writes:
    """Count of the runs that wrote to memory and whose results living tensors have."""

    done = 0


def compute(
    requested: Callable[[], list[UOp]], owners: Owners = NO_OWNERS, read: UOp | None = None
) -> Replacements:
    """Compute the requested roots, publish the result to living tensors; the memory of each root.

    The `owners` are realized by name.
    Runs that write to memory exclude one another. A thread that waited for another one may find
    its writes done, so it calls `requested` again.
    """
    repeated: set[UOp] = set()
    while True:
        runtime().finish()
        before = Writes.done
        if not (roots := requested()):
            return {}
        changes = held_values.Changes.count
        form, others = with_waiting(roots, read)
        asked = set(roots) if owners or read is not None else set()
        if not form.assigned:
            return run_and_publish(changes, form, owners, read, asked, others)
        with writing:
            if Writes.done != before:
                continue
            if (done := history.done(form.assigned)).keys() <= repeated:
                return run_and_publish(changes, form, owners, read, asked, others)
            repeated |= done.keys()
            replace_nodes(done)  # another thread did these while this one built its graph


@while_walking
def with_waiting(roots: list[UOp], read: UOp | None = None) -> tuple[CanonicalGraph, list[UOp]]:
    """The canonical graph of roots and of what waiting tensors still have to read from memory that
    they overwrite; and the nodes of the other waiting tensors.
    """
    form = graph_read(roots)
    others = [storage.root() for storage in waiting_storages()]
    while form.assigned and (more := readers_of_overwritten(form, others)):
        form = graph_read([*form.roots, *more], form)
    ours = set(form.roots)
    others = [n for n in others if not (n in ours or base_of(n) is read or graph.is_buffer(n))]
    bases = map(base_of, (*ours, *others))
    shown = {n for n in bases if (form.cached or n in form.nodes) and not graph.is_memory(n)}
    return form._replace(shown=shown), others


def run_and_publish(
    changes: int,
    form: CanonicalGraph,
    owners: Owners,
    read: UOp | None,
    asked: set[UOp],
    others: Sequence[UOp],
) -> Replacements:
    """Run a canonical graph and publish its results to living tensors; the memory of each root.

    What living tensors still have to read from memory about to be overwritten is computed too.
    The memory of a root belongs to its owner and the owner's views. Another tensor with the very
    same node gets the value only: an assignment to one must not show in the other.

    A value that is `read` is the only root and has no owner; its node holds the memory. `others`
    are the nodes of living tensors that are not memory alone. If another thread has written to
    memory since there were so many `changes`, the run may have read it before or after that write,
    so no node holds anything new.
    """
    if own := scope.owner:
        own.note_bound(form.memory)
    written = memory_written(form.assigned) if form.assigned else None
    renewed: Replacements = {}

    def publish(computed: Realized) -> None:
        replaced, cached = computed
        captured = scope.ends_gradients
        if written:
            # a kernel that ran for one of its results has written the others, though none is read
            ran = {n.src[1] for n in replaced if n.op is Op.ASSIGN and n.src[1].op is Op.KERNEL}
            beside = [n for n in form.assigned if n.src[1] in ran]
            replaced = {n: graph.reshape(origin(n), n.shape) for n in beside} | replaced
            if not renewed:
                of_run = history if captured else versions  # captures work on addresses
                renewed.update(of_run.renewed(written))
            replaced = {node: m.substitute(renewed) for node, m in replaced.items()}
            cached = {node: m.substitute(renewed) for node, m in cached.items()}
        if form.cached:
            bases = map(base_of, form.roots)
            replaced |= {base: form.cached[base] for base in bases if base in form.cached}
        if read is not None and not written:
            cached |= readable_again(read, replaced[form.roots[0]], form)
        note_history(form, replaced, asked, owners)
        if written:
            held_values.end(written)
        held_values.hold(cached, form, changes + bool(written))
        changed = replaced | renewed
        if read is not None:  # nobody shows the copy that was read
            del changed[form.roots[0]]
        replace_nodes(changed, {id(tensor) for tensor in owners})
        for node in cached if written and captured else ():
            graph.set_memory(node, None)  # unlike those in its place, it reads what was overwritten
        if written:  # others do not have the lock
            Writes.done += 1

    return runtime().realize(form, choose_retention, others, publish).replaced


def note_history(
    form: CanonicalGraph,
    replaced: Replacements,
    asked: set[UOp],
    owners: Owners,
) -> None:
    """Keep the graphs, for `backward`, of values that were computed but not realized by name."""
    if form.assigned:
        history.mark_done(form.assigned, replaced)
    captured = scope.ends_gradients
    ends = history.Ends(form, (*form.roots, *form.assigned))
    begun = end_anew(form, replaced, ends)
    for tensor, mark in owners.items():
        root = node = root_of(tensor)
        if (base := source_below(node, NAMED_BY)).op is Op.ASSIGN:
            node = base  # whose memory all views of it show, whichever is named
        is_data = is_data_written(base) or base in begun
        if mark is not None and not is_data and root in asked and node in replaced:
            memory = graph.differentiable_base(graph.below_own(replaced[node]))
            node = graph.below_own(node) if is_gradient_leaf(node) else node
            if graph.is_buffer(memory) and (origins := ends.at(node)):
                end_at(memory, origins - BY_CALL | mark, tensor._view.owned)
    kept = differentiable(form, replaced, asked)
    if captured:
        for node, memory in kept.items():
            if node not in begun and (origins := ends.at(node)):
                end_at(memory, origins | BY_CALL)
    elif kept:
        history.record(kept, form)


def end_anew(form: CanonicalGraph, replaced: Replacements, ends: history.Ends) -> Collection[UOp]:
    """Record what the values that were written were computed from, and return these: a version of
    memory begins with what gradients ended at in the one before, and in captures always.
    """
    is_all, own = scope.ends_gradients, scope.owner
    mark = BY_CALL if is_all else NOBODY
    found = {}
    for node in form.assigned:
        memory = graph.differentiable_base(replaced.get(node, node))
        is_asked = is_all or any(map(ended_at, buffers_below(memory)))
        if is_asked and graph.is_buffer(memory) and dtypes.is_float(node.dtype):
            found[node] = memory, ends.at(node) | mark
    for memory, origins in found.values():  # after all of them are known, as one may read another
        if is_all and own:
            parts = buffers_below(memory)  # of which none was computed from another
            rest = origins.difference(homes_at(parts), *map(ended_at, parts))
            own.origins |= {p: rest | origins & (ended_at(p) | homes_at([p])) for p in parts}
        end_at(memory, origins)
    return found


def differentiable(form: CanonicalGraph, replaced: Replacements, asked: set[UOp]) -> Replacements:
    """Nodes of a run that stay differentiable, each with its memory: the writes come first."""
    named = {source_below(root, NAMED_BY) for root in asked}
    if asked.issuperset(form.roots) and named.issuperset(form.assigned):
        return {}
    named |= asked
    former = {base_of(n.src[0]) for n in form.assigned}
    nodes = [n for n in form.assigned if n not in former]
    nodes += [n for n in form.roots if n not in asked]
    # of views of views, too, the nodes of tensors between stay those of their own uses
    shared = [map(graph.differentiable_base, (n, replaced.get(n, n))) for n in nodes]
    return {n: m for n, m in shared if graph.is_buffer(m) and m is not n and n not in named}


def graph_read(roots: list[UOp], begun: CanonicalGraph | None = None) -> CanonicalGraph:
    """The canonical graph of some roots, read from what nodes hold as far as it may be.

    A root that permutes or slices a held value gets memory of its own: it must not become a view of
    the memory held. A maximum is computed again where `x` is compared with it.
    """
    again: set[UOp] = set()
    while True:
        form = canonicalize(roots, scope.owner, again, begun)
        if not form.cached:
            return form
        viewed = {*stale_choices(roots, form.cached, graph.is_memory)}
        for root in roots:
            base = below_movement(root)
            if base is not base_of(root):
                viewed.update(map(below_movement, parts_of(base)))
        if not (viewed := viewed & form.cached.keys()):
            return form
        again |= viewed
        begun = None


def materialize(tensor: Core) -> UOp:
    """Memory with the elements of a tensor row by row, computed if need be; its graph stays."""
    while True:
        node = tensor.uop
        base = source_below(node, IN_ORDER)
        if (memory := held_values.memory_held(base)) is not None:
            return memory
        copy = node.alu(Op.CONTIGUOUS)

        def requested(node: UOp = node, copy: UOp = copy) -> list[UOp]:
            return [copy] if tensor.uop is node else []

        if found := compute(requested, read=base):
            return found[copy]


def readable_again(node: UOp, memory: UOp, form: CanonicalGraph) -> Replacements:
    """A node that was read with its memory, if that is new."""
    below = set(memory.toposort())
    is_new = graph.is_buffer(base_of_view(memory)) and below.isdisjoint(form.memory)
    return {node: graph.reshape(memory, node.shape)} if is_new and node.op not in MOVEMENT else {}


def memory_written(assigned: Iterable[UOp]) -> set[UOp]:
    """The BUFFERs that ASSIGNs write to."""
    bases = [base_of_view(node.src[0]) for node in assigned]
    return {m for base in bases if base.op is not Op.ASSIGN for m in buffers_below(base)}


def unshare(tensors: Iterable[Core]) -> None:
    """Copies that de-alias: of tensors over one uncomputed node, all but the first get one."""
    owners: dict[UOp, Core] = {}
    for tensor in tensors:
        node = root_of(tensor)
        owner = owners.setdefault(node, tensor)
        if owner is tensor or is_shared(base_of_view(node)):
            continue
        if (storage := tensor._settle()) is not owner._view.storage:
            value, copy = base_of(storage.value), graph.copied(storage.value)
            versions.home(value)
            versions.move(value, copy)
            show(storage, copy)


def choose_retention(roots: list[UOp], memory: Replacements) -> Realized:
    """The retention policy of tensors: nodes replaced by their memory, and nodes cached in it.

    Roots and ASSIGNs are replaced. Other intermediate results are replaced only if no gradient
    flows through them, like random numbers: a replaced node is lost to `backward`. Nor is the copy
    that a tensor has for itself, into which its views may have written meanwhile. All others are
    cached, unless they depend on a Variable. A view of another value, such as a detached one,
    stays a view of it, whatever memory a kernel used for it; so does a root that shows part of a
    written or copied tensor, which an op like GATHER had copied.
    """
    memory = {n: m for n, m in memory.items() if not shows_stored(n, memory)}
    asked = {below for root in roots for below in views_below(root, MOVEMENT)}
    comes = gradient_sources(memory)
    values = {n: m for n, m in memory.items() if n in asked or not is_view(n)}
    replaced = {
        n: m
        for n, m in values.items()
        if n in asked or n.op is Op.ASSIGN or not (comes[n] or graph.is_alone(n))
    }
    whole = UOp.sink(*roots).substitute(memory)
    shown = whole.substitute({call: call.src[0] for call in whole.every(Op.CALL)}).src
    replaced |= {root: detached_as(root, node) for root, node in zip(roots, shown, strict=True)}
    stays = [n for n in values if n not in replaced and n.op not in MOVEMENT]
    return make_realized(replaced, {n: memory[n] for n in stays} if not sizes_below(roots) else {})


def is_view(node: UOp) -> bool:
    """True if a node is detached, or rearranges memory: both show what a write to it changes."""
    if node.op in MOVEMENT:
        return is_shared(base_of_view(node))
    return node.op in VIEW_OPS


def shows_stored(node: UOp, memory: Mapping[UOp, UOp]) -> bool:
    """True if a node rearranges what is in memory itself, as a written or copied tensor is."""
    if node.op not in MOVEMENT:
        return False
    base = base_of_view(node)
    return base.op is Op.ASSIGN or (base in memory and is_shared(base))


def detached_as(root: UOp, memory: UOp) -> UOp:
    """The memory of a root: if that was detached on several devices, detached as a whole.

    What has its parts detached is no memory that could be written to.
    """
    base = base_of(root)
    parts = [*map(base_of, parts_of(memory))] if memory.op is Op.MULTI else []
    if base.op not in (Op.DETACH, Op.OWN) or not all(p.op is base.op for p in parts) or not parts:
        return memory
    whole = memory.substitute({part: part.src[0] for part in parts})
    return base.with_src((detached_as(base.src[0], whole),))


def gradient_sources(nodes: Iterable[UOp]) -> dict[UOp, bool]:
    """For every node below some nodes, whether a gradient could reach memory of floats through it.

    DETACH does not count as an end: a detached value is an intermediate result like others.
    Nodes below a CALL do not count: its gradient goes to arguments that a canonical graph lacks.
    """
    found: dict[UOp, bool] = {}
    for node in UOp.sink(*nodes).toposort()[:-1]:
        is_source = node.op in SOURCES and dtypes.is_float(node.dtype)
        passes = node.op is Op.DETACH or passes_gradient(node)
        found[node] = is_source or (passes and any(found[s] for s in node.src))
    return found


def unrealized(tensors: Iterable[Core]) -> list[UOp]:
    """The roots of tensors that are not in memory yet."""
    roots = dict.fromkeys(map(root_of, tensors))
    return [n for n in roots if not (graph.is_buffer(n) or 0 in n.shape)]


def root_of(tensor: Core) -> UOp:
    """The node computed for a tensor: with other living views, the value that all of them show."""
    storage = tensor._view.storage
    if tensor._view is storage:
        return storage.value
    return tensor.uop if graph.is_memory(base_of_view(storage.value)) else storage.root()


def readers_of_overwritten(form: CanonicalGraph, roots: Iterable[UOp]) -> list[UOp]:
    """Nodes that living tensors still have to compute from memory which some roots overwrite, and
    the latest writes on several devices: one is done as a whole, whatever parts of it are read.
    """
    done = {*form.assigned, *form.roots}
    # on several devices kernels read parts
    replaced = {base_of(part) for n in form.assigned for part in parts_of(n.src[0])}
    latest = set(form.assigned) - replaced
    parted = latest.difference(map(base_of, form.roots))
    whole = [
        n for n in form.assigned if n in parted and (is_group(n.device) or n.src[1].op is Op.KERNEL)
    ]
    return whole + readers(dict.fromkeys(roots), replaced.__contains__, done, latest)


def readers(
    roots: Iterable[UOp],
    is_overwritten: Callable[[UOp], bool],
    done: Collection[UOp] = frozenset(),
    latest: Collection[UOp] = frozenset(),
) -> list[UOp]:
    """The roots that are still to be computed from nodes which are overwritten.

    Plain views are not among them: they show the new content, as does what is read of the `latest`
    writes. Copies on the way are, since a derivative may need them; not those that are `done`.
    """
    nodes = [n for n in roots if not shows_memory(n, done)]
    reading: set[UOp] = set()
    copies = []
    for node in ordered(UOp.sink(*nodes), None, latest) if nodes else ():
        if is_overwritten(node) or not (node in latest or reading.isdisjoint(node.src)):
            reading.add(node)
            if graph.is_alone(node) and node not in done:
                copies.append(node)
    return [*dict.fromkeys(copies + [n for n in nodes if n in reading])]


def shows_memory(node: UOp, done: Collection[UOp]) -> bool:
    """True if a node is a view of memory, or of a node in `done` that is about to become memory."""
    while node.op in VIEW_OPS and node not in done:
        node = node.src[0]
    return node.op in SHOWN or node in done or graph.is_buffer(node)
