"""Gradient history: graphs from which memory was computed, retained for `backward`.

Floor 5. An in-place write is done once, so after a run its node is replaced by the memory. If the
run only had to read a value, the gradient must not end there: the written graph is kept here, by
the BUFFER that it was written to. Content from before the write is gone; in the kept graphs a
BUFFER that is never computed stands for it. A derivative that needs its value is refused; one that
only passes through it is not.
See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import chain
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tinycore._locks import in_child, recursive_lock
from tinycore.dtype import dtypes
from tinycore.errors import GradientError
from tinycore.tensor import graph
from tinycore.tensor.aliases import VIEW_OPS, base_of_view
from tinycore.tensor.change_tracking import PendingWrites
from tinycore.tensor.grad import is_data_written, passes_gradient
from tinycore.tensor.gradient_sources import (
    NOBODY,
    BufferSet,
    ended_at,
    is_filled,
    leads_to_leaf,
    nodes_below,
    origin,
    parameters_of_gradient,
    source_at,
    sources,
    sources_below,
    still_there,
    with_shape,
    with_sources,
)
from tinycore.tensor.run_graphs import (
    BoundWrites,
    CanonicalWrites,
    FormerContent,
    HistoryEntry,
    RunGraphs,
    canonical_writes,
)
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, is_gradient_leaf
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.schedule.canonical import CanonicalGraph

BUFFER: Final = Op.BUFFER
MOST_HISTORY_NODES: Final = 50_000
"""Most nodes in all kept graphs; beyond that the oldest are evicted."""
FEWEST_DROPPED: Final = 64
"""Sources of realized memory between two looks at which of them are still there."""
NO_GRAPHS: Final[Mapping[UOp, Collection[UOp]]] = MappingProxyType({})


class GradientHistory:
    """The graphs of memory, by BUFFER. `history` is the one instance."""

    def __init__(self) -> None:
        self.lock = recursive_lock()
        self.kept: dict[int, HistoryEntry] = {}
        """By the id of the BUFFER, the oldest first."""
        self.size = 0
        self.former: weakref.WeakKeyDictionary[UOp, weakref.ref[UOp]] = weakref.WeakKeyDictionary()
        """Map from the stand-in of overwritten content to the BUFFER that held it."""
        self.pending = PendingWrites()
        self.written: dict[int, tuple[weakref.ref[UOp], UOp]] = {}
        """By its id, an ASSIGN that is done and the memory that has its value."""
        in_child(self.renew)

    def renew(self) -> None:
        """In a forked child: restore consistency, as another thread may have been changing this."""
        keys: dict[RunGraphs, set[int]] = {}
        for key, entry in list(self.kept.items()):
            keys.setdefault(entry.group, set()).add(key)
        for group, found in keys.items():
            group.keys = found
        self.size = sum(group.size for group in keys)

    # --- recording

    def mark_pending(self, written: UOp, thread: int | None = None) -> None:
        """Record a write to memory that is not done yet, by this thread if none is given."""
        node = base_of(written)
        self.written.pop(id(node), None)  # it is to be done once more
        if node.op is Op.ASSIGN:
            self.pending.note(node, get_ident() if thread is None else thread)

    def mark_done(self, writes: Iterable[UOp], memory: Mapping[UOp, UOp]) -> None:
        """Record that writes are done, which a thread may still find in a graph that it builds."""
        for node in writes:
            if (found := memory.get(node)) is not None:
                key = id(node)
                forget = partial(self.forget_written, key)
                self.written[key] = weakref.ref(node, forget), found
        self.mark_written(writes)

    def forget_written(self, key: int, reference: weakref.ref[UOp]) -> None:
        """Drop the record of a write whose node is gone."""
        if (found := self.written.get(key)) is not None and found[0] is reference:
            del self.written[key]

    def done(self, writes: Iterable[UOp]) -> dict[UOp, UOp]:
        """Finished writes among some, with the memory that has their values."""
        known = [(node, self.written.get(id(node))) for node in writes]
        return {node: found[1] for node, found in known if found is not None}

    def mark_written(self, writes: Iterable[UOp]) -> None:
        """Record that writes are pending no more; tensors may still refer to their nodes."""
        for node in writes:
            self.pending.forget(node)

    def cancel_pending(self, written: UOp) -> None:
        """Remove a pending write that was rolled back."""
        node = base_of(written)
        if node.op is Op.ASSIGN:
            self.mark_written([node])

    def discard(self, memory: Iterable[UOp]) -> None:
        """Drop the graphs of memory whose content may change without a graph."""
        with self.lock:
            for buffer in memory:
                if (found := self.sources_of(buffer)) is not None:
                    buffer._ended = self.ended_below(found)
                    self.drop(id(buffer))

    def record(
        self, done: Mapping[UOp, UOp], kept: Mapping[UOp, UOp], form: CanonicalGraph
    ) -> None:
        """Record a run, each node with the BUFFER that has its value now.

        `done` are writes and `kept` stays differentiable. `form` is the graph of the run.
        """
        with self.lock:
            if not (kept or (done and self.kept)):
                return
            gone = self.retire(set(done.values()))
            if done.keys().isdisjoint(kept):
                if floats := {n: m for n, m in kept.items() if dtypes.is_float(n.dtype)}:
                    self.defer(floats, done, gone)
                return
            shown = {n: graph.reshape(m, n.shape) for n, m in done.items()}
            if computed := {n: m for n, m in kept.items() if n not in done}:
                made = with_sources(computed, shown | gone.stand_ins)
                self.retain({m: graph.reshape(node, m.shape) for m, node in made.items()})
            both = [node for node in done if node in kept]  # these share most of their graphs
            if (canonical := canonical_writes(both, done, form)) is not None:
                self.retain_writes([kept[n] for n in both], done, gone, canonical, form)
                return
            parts = [part for node in both for part in node.src]
            after = iter(UOp.sink(*parts).substitute(shown | gone.stand_ins).src)
            before = {n: n.with_src(tuple([next(after) for _ in n.src])) for n in both}
            own = gone.stand_ins
            below = sources_below(before.values())
            found = {n: below[before[n]] for n in both}
            alone = {n: None if leads_to_leaf(before[n]) else own.get(kept[n]) for n in both}
            new = [n for n in both if self.has_source(found[n], alone[n])]
            self.retain(
                {kept[n]: with_shape(before[n], n.shape, kept[n].shape) for n in new},
                {kept[n]: found[n] for n in new},
            )

    def retire(self, written: set[UOp]) -> FormerContent:
        """Replace overwritten BUFFERs by stand-ins for their former content, in all kept graphs."""
        gone = FormerContent(self.former, written)
        for group in self.touched(written):
            if group.make is not None:
                self.resolve(group)
        for group in self.touched(written):
            self.move(group, gone.stand_ins)
        return gone

    def move(self, group: RunGraphs, new: dict[UOp, UOp]) -> None:
        """Replace BUFFERs by others in the graphs of a group, and among those that have them."""
        found = [(m, self.kept[id(m)]) for m in self.memory_of(group)]
        graphs = [entry.graph for _, entry in found if entry.graph is not None]
        after = dict(zip(graphs, UOp.sink(*graphs).substitute(new).src, strict=True))
        for key in list(group.keys):
            self.drop(key)
        numbers = {id(memory): id(stand_in) for memory, stand_in in new.items()}
        reads, get = {numbers.get(key, key) for key in group.reads}, new.get
        moved = RunGraphs(reads, group.size, writes=group.writes)
        moved.sources = {
            numbers.get(key, key): [get(n, n) for n in known]
            for key, known in group.sources.items()
        }
        self.enter(
            {
                (own := get(m, m)): HistoryEntry(
                    self.watched(own),
                    None if entry.graph is None else after[entry.graph],
                    moved,
                    tuple([get(n, n) for n in entry.reads]),
                    entry.place,
                )
                for m, entry in found
            }
        )

    def retain_writes(
        self,
        written: Sequence[UOp],
        done: Mapping[UOp, UOp],
        gone: FormerContent,
        canonical: CanonicalWrites,
        form: CanonicalGraph,
    ) -> None:
        """Keep the graphs of memory that a run wrote to, to be made when one is asked for."""
        own = gone.stand_ins
        memory = [*(own.get(buffer, buffer) for buffer in form.memory), *done.values()]
        reads = {id(memory[number]) for number in canonical.parameters}
        group = RunGraphs(
            reads, canonical.size, writes=BoundWrites(canonical, form.naming, form.apart)
        )
        entries = {}
        for place, buffer in enumerate(written):
            found = [memory[number] for number in canonical.sources[place]]
            if self.has_source(found, None if canonical.leads_to_leaf[place] else own.get(buffer)):
                group.sources[id(buffer)] = found
                entries[buffer] = HistoryEntry(
                    self.watched(buffer),
                    None,
                    group,
                    tuple([memory[number] for number in canonical.reads[place]]),
                    place,
                )
        if entries:
            self.enter(entries)

    def touched(self, written: set[UOp]) -> set[RunGraphs]:
        """The groups whose graphs are of some BUFFERs, or read them."""
        numbers = set(map(id, written))
        groups = {entry.group for entry in list(self.kept.values())}  # some go meanwhile
        return {
            g for g in groups if not (numbers.isdisjoint(g.reads) and numbers.isdisjoint(g.keys))
        }

    def memory_of(self, group: RunGraphs) -> list[UOp]:
        """The BUFFERs whose graphs a group has."""
        entries = [self.kept.get(key) for key in sorted(group.keys)]
        found = [entry.memory() for entry in entries if entry is not None]
        return [memory for memory in found if memory is not None]

    def retain(
        self,
        graphs: Mapping[UOp, UOp],
        sources: Mapping[UOp, Collection[UOp]] = NO_GRAPHS,
        group: RunGraphs | None = None,
    ) -> None:
        """Keep the graphs of some BUFFERs, each in the shape of its BUFFER.

        `sources` are the BUFFERs that gradients of them go to, where known, and `group` is theirs
        unless it has to be found.
        """
        if not graphs:
            return  # a group that no graph is in would never be given up
        group = group or RunGraphs.of(UOp.sink(*graphs.values()).toposort())
        group.sources = {id(memory): found for memory, found in sources.items()}
        self.enter({m: HistoryEntry(self.watched(m), n, group) for m, n in graphs.items()})

    def defer(
        self, computed: Mapping[UOp, UOp], done: Mapping[UOp, UOp], gone: FormerContent
    ) -> None:
        """Keep the graphs of nodes by their BUFFERs, to be made when one of them is asked for.

        The last gradients of a training step, which read what the step overwrites, are replaced
        before anything asks. `done` and `gone` are the writes of the run.
        """
        nodes = UOp.sink(*computed).toposort()
        below = nodes_below(computed, nodes)
        inner = tuple([computed[node] for node in nodes if node in below])
        references = {node: weakref.ref(memory) for node, memory in computed.items()}

        def make() -> dict[UOp, UOp]:
            alive = {n: memory for n, ref in references.items() if (memory := ref()) is not None}
            shown = {n: graph.reshape(m, n.shape) for n, m in done.items()}
            return with_sources(alive, shown | gone.stand_ins)

        group = RunGraphs.of(nodes, make)
        group.reads.update(map(id, (*inner, *done.values())))
        places = {memory: place for place, memory in enumerate(inner)}
        self.enter(
            {
                m: HistoryEntry(self.watched(m), None, group, inner[: places.get(m)])
                for m in computed.values()
            }
        )

    def watched(self, memory: UOp) -> weakref.ref[UOp]:
        """A reference to a BUFFER, whose graph is dropped with it."""
        return weakref.ref(memory, partial(self.drop, id(memory)))

    def enter(self, entries: Mapping[UOp, HistoryEntry]) -> None:
        """Keep the graphs of a group, by BUFFER."""
        for memory, entry in entries.items():
            key = id(memory)
            self.drop(key)
            self.kept[key] = entry
            entry.group.keys.add(key)
        self.size += entry.group.size
        while self.size > MOST_HISTORY_NODES:
            oldest = next(iter(list(self.kept.values()))).group
            if oldest.make is None:
                self.evict(oldest)
            else:
                self.resolve(oldest)  # which may be less than all that was kept for it

    def resolve(self, group: RunGraphs) -> None:
        """Make the graphs of a group, where that was put off."""
        with self.lock:
            if group.writes is not None:
                self.make_writes(group, group.writes)
            if group.make is None:
                return
            made = group.make()
            self.retain(
                {m: graph.reshape(node, m.shape) for m, node in made.items() if id(m) in group.keys}
            )
            for key in list(group.keys):
                self.drop(key)  # no gradient of it goes anywhere

    def make_writes(self, group: RunGraphs, writes: BoundWrites) -> None:
        """Make the graphs of a group of writes."""
        memory = self.memory_of(group)
        entries = [self.kept[id(m)] for m in memory]
        numbers: dict[int, UOp] = {}
        for entry in entries:
            numbers.update(zip(writes.canonical.reads[entry.place], entry.reads, strict=True))
        found = writes.graphs([entry.place for entry in entries], numbers)
        for buffer, entry, node in zip(memory, entries, found, strict=True):
            self.kept[id(buffer)] = entry._replace(
                graph=graph.reshape(node, buffer.shape), reads=()
            )
        group.writes = None

    def evict(self, group: RunGraphs) -> None:
        """Drop all graphs of a run."""
        for key in list(group.keys):
            if (buffer := self.kept[key].memory()) is not None:
                self.discard([buffer])
            self.drop(key)

    def drop(self, key: int, reference: weakref.ref[UOp] | None = None) -> None:
        """Drop a graph."""
        entry = self.kept.get(key)
        if entry is not None and reference in (None, entry.memory):
            del self.kept[key]
            entry.group.keys.discard(key)
            self.size -= 0 if entry.group.keys else entry.group.size

    def has_source(self, found: Iterable[UOp], own: UOp | None) -> bool:
        """True if there is a source other than `own`, or one with a graph.

        Otherwise a counter that is read again and again would keep all its former values.
        """
        return any(n is not own or id(n) in self.kept for n in found)

    def ended(self, node: UOp, form: CanonicalGraph | None = None) -> BufferSet:
        """The BUFFERs that a gradient of a node goes to, or would if not ended.

        Those of a root of a canonical graph are known from other graphs of the same form.
        """
        places: tuple[int, ...] | None = None
        if form is not None and not form.cached:
            places = parameters_of_gradient(form.nodes[node])
        return self.ended_below(
            sources(node) if places is None or form is None else [form.memory[k] for k in places]
        )

    def end(self, replaced: Mapping[UOp, UOp]) -> None:
        """Record that the gradients of nodes end at the memory that kernels write for them."""
        with self.lock:
            for node, new in replaced.items():
                base = graph.differentiable_base(new)
                if is_filled(base) and (found := self.ended(node)):
                    origin(base)._ended = found

    def begin(self, memory: UOp) -> None:
        """Record that a BUFFER is a leaf from now on, whatever it was computed from."""
        if ended_at(memory):
            memory._ended = NOBODY

    def ended_below(self, memory: Iterable[UOp]) -> BufferSet:
        """The same for a node whose gradient goes to some BUFFERs first.

        Nobody can want a gradient of a BUFFER that is gone. So now and then those are left out, or
        each step of `x = f(x).realize()` would take longer than the one before.
        """
        ends = self.ends_below(memory) if self.kept else [*memory]
        found = {*map(weakref.ref, ends)}
        most = 0
        for node in ends:
            if ended := getattr(node, "_ended", None):
                most = max(most, len(ended))
                found |= ended
        if len(found) // FEWEST_DROPPED > most // FEWEST_DROPPED:
            return frozenset([reference for reference in found if reference() is not None])
        return frozenset(found)

    def ends_below(self, memory: Iterable[UOp]) -> list[UOp]:
        """The BUFFERs without a kept graph that a gradient of some BUFFERs goes to in the end."""
        ends: list[UOp] = []
        stack = [*memory]
        seen = {*stack}
        while stack:
            node = stack.pop()
            if (below := self.sources_of(node)) is None:
                ends.append(node)
            else:
                new = [n for n in below if n not in seen]
                seen.update(new)
                stack += new
        return ends

    def sources_of(self, memory: UOp) -> Collection[UOp] | None:
        """The BUFFERs that a gradient of a kept graph goes to first; None where none is kept."""
        if not self.kept or (entry := self.entry_of(memory)) is None:
            return None
        if (found := entry.group.sources.get(id(memory))) is not None:
            return found
        if self.graph_of(memory) is None:
            return None
        group = self.kept[id(memory)].group
        if id(memory) not in group.sources:
            entries = {key: self.kept.get(key) for key in list(group.keys)}
            made = {k: e.graph for k, e in entries.items() if e is not None and e.graph is not None}
            found = sources_below(made.values())
            group.sources |= {key: found[node] for key, node in made.items()}
        return group.sources[id(memory)]

    # --- queries

    def memory_among(self, nodes: Iterable[UOp]) -> list[UOp]:
        """The BUFFERs among some nodes, and those whose former content is among them."""
        found = [n for n in nodes if n.op is BUFFER]
        if not self.former:
            return found
        written = [reference() for n in found if (reference := self.former.get(n)) is not None]
        return found + [n for n in written if n is not None]

    def unroll(self, nodes: list[UOp]) -> tuple[list[UOp], dict[UOp, UOp]]:
        """Graphs with memory replaced by its kept graphs, and the map from those back to memory."""
        back: dict[UOp, UOp] = {}
        root = UOp.sink(*nodes)
        while self.kept:
            found = {n: e for n in root.toposort() if (e := self.graph_of(n)) is not None}
            if not found:
                break
            root = root.substitute(found)
            moved = UOp.sink(*back).substitute(found).src if back else ()
            back = dict(zip(moved, back.values(), strict=True))
            back |= {node: memory for memory, node in found.items()}
        return list(root.src), back

    def graph_of(self, node: UOp) -> UOp | None:
        """The graph that is kept of a BUFFER."""
        if (entry := self.entry_of(node)) is None:
            return None
        if entry.graph is None:
            self.resolve(entry.group)
            return self.graph_of(node)
        return entry.graph

    def entry_of(self, node: UOp) -> HistoryEntry | None:
        """The entry of a BUFFER whose graph is kept, made or not."""
        entry = self.kept.get(id(node)) if node.op is BUFFER else None
        return None if entry is None or entry.memory() is not node else entry

    def versions_in(self, below: Collection[UOp]) -> Callable[[UOp], Iterator[UOp]]:
        """For memory that a tensor shows, the nodes of a graph that are its former content.

        They may have another shape.
        """
        former: defaultdict[UOp, list[UOp]] = defaultdict(list)
        keys = [node for key in self.former.keyrefs() if (node := key()) is not None]  # a copy
        held = {node: buffer for node in keys if (buffer := self.former[node]()) is not None}
        for stand_in, buffer in held.items():
            former[buffer].append(stand_in)
        for node in below if held else ():
            if node.op is Op.ASSIGN and (written := held.get(origin(node))) is not None:
                former[written].append(node)
        owned: defaultdict[int, list[UOp]] = defaultdict(list)
        for node in below:
            if node.op is Op.OWN:
                owned[node.arg].append(node)

        def versions(node: UOp) -> Iterator[UOp]:
            base = base_of(node)
            for before in owned.get(base.arg, ()) if self.shows_data(base) else ():
                if before is not base and (found := graph.reshape(before, node.shape)) in below:
                    yield found
            while base.op is Op.ASSIGN:
                base = base_of(base.src[0])
                if base in below:
                    yield base
            yield from (before for before in former.get(base, ()) if before in below)

        return versions

    def shows_data(self, node: UOp) -> bool:
        """True if earlier uses count in the gradient of a node of one tensor: it shows data."""
        if node.op is not Op.OWN:
            return False
        memory = base_of_view(node)
        is_plain = memory.op is BUFFER and self.graph_of(memory) is None
        is_data = is_data_written(memory) or memory.arg == graph.EQUAL
        return is_plain or is_data or is_gradient_leaf(node)

    def check(
        self, node: UOp, lasting: Callable[[], set[UOp]], computed: Collection[UOp] = ()
    ) -> None:
        """Raises GradientError for a derivative that needs content which was overwritten.

        A copy, and the value of what is `lasting`, is computed before the write and stays. While
        the write waits, so is what the derivative needs of the nodes that were `computed`.
        """
        if self.overwritten(node, frozenset()) is None:
            return
        if (found := self.overwritten(node, lasting(), computed)) is not None:
            raise GradientError(
                f"backward: a derivative needs the values that memory of shape {found.shape} "
                "had before it was written to in place. Differentiate before the write, keep "
                "what was computed from them in a tensor, or compute with a copy: clone()"
            )

    def overwritten(
        self, node: UOp, lasting: Collection[UOp], computed: Collection[UOp] = ()
    ) -> UOp | None:
        """Memory below a node whose content it needs and which was, or will be, overwritten."""
        if not (self.former or self.pending):
            return None
        seen = {(node, False)}
        stack = [*seen]
        while stack:
            node, is_value = stack.pop()
            if node.op in (Op.BUFFER, Op.ASSIGN):
                is_waiting = not is_value and self.pending.overwrites(node)
                if is_waiting or self.is_former(node):
                    return node
            if node.op is Op.ASSIGN or graph.is_alone(node) or node in lasting:
                continue  # an ASSIGN has the value that was written last
            is_value = is_value or (node.op not in VIEW_OPS and node in computed)
            below = {(s, is_value) for s in node.src} - seen
            stack += below
            seen |= below
        return None

    def is_former(self, node: UOp) -> bool:
        """True if memory, after any writes, is the stand-in of overwritten content."""
        return origin(node) in self.former

    def check_ended(
        self,
        root: UOp,
        nodes: Iterable[UOp],
        wanted: Callable[[Sequence[UOp]], Iterable[UOp]],
    ) -> None:
        """Raises GradientError where `realize` cut the way to BUFFERs off that want a gradient.

        `nodes` are the root and those below it. `wanted` selects BUFFERs from some, and may give
        others.
        """
        if not any(n.op is BUFFER and ended_at(n) for n in nodes):
            return  # as mostly, without a look at which of them a gradient goes to
        below = [n for n in root.toposort(passes_gradient) if not is_gradient_leaf(n)]
        found = [m for n in below if (m := source_at(n)) is not None and ended_at(m)]
        if not found:
            return
        origins = {node: still_there(ended_at(node)) for node in found}
        asked = set(wanted([*found, *chain.from_iterable(origins.values())]))
        for node, ended in origins.items():
            lost = [n for n in ended if n in asked and n is not node]
            if lost:
                raise GradientError(
                    f"backward: realize() ended the gradient at a tensor of {node.arg} elements, "
                    f"which was computed from one of {lost[0].arg} that wants it. Differentiate "
                    "before realize() and kernelize(), or read the value without them (item, "
                    "tolist, numpy); where the gradient is to end there, realize what detach() "
                    "gives"
                )


history: Final = GradientHistory()
