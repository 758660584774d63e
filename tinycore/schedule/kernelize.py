"""Cut a tensor graph into kernels: BUFFER, KERNEL and ASSIGN in place of what they compute.

Floor 3. Imports `uop` and nothing above it; knows no device and no renderer.
In: roots of a tensor graph. Out: for each value that got memory, `ASSIGN(BUFFER, KERNEL(...))`. The
kernels' sources are their buffers, so the graph itself holds every dependency, and calling again on
a graph that was already cut finds nothing left to do for that part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from tinycore.config import settings
from tinycore.dtype import ImageDType, dtypes
from tinycore.schedule.drafts import Draft, Drafts, versions
from tinycore.schedule.fuse import Boundaries, is_leaf, is_stored
from tinycore.schedule.images import pixels_of
from tinycore.schedule.kernel import (
    Kernel,
    base_of,
    custom_of,
    image_of,
    memory_of,
    new_buffer,
    new_memory,
    numel,
    slot,
    with_shape,
    without_unread,
)
from tinycore.schedule.partial import (
    in_memory,
    is_ordered,
    is_partial,
    loops_over,
    store,
    values_of,
)
from tinycore.schedule.ranges import RegionReader
from tinycore.schedule.room import MOST_BUFFERS
from tinycore.schedule.split import split_reductions
from tinycore.schedule.templates import Region, kernel_of, region_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, PARTIAL_WRITES, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify
from tinycore.uop.verify import verify

RECENT_GROUPS = 8
"""How many kernels of the same loops are tried as a home for one more output."""
NAMED = (
    frozenset({Op.REDUCE_AXIS, Op.SCAN_AXIS, Op.MERGE_AXIS, Op.GATHER, Op.COPY, Op.CONTIGUOUS})
    | PARTIAL_WRITES
)
"""What is no arithmetic and yet worth naming."""
MOVED = MOVEMENT | {Op.REDUCE_AXIS, Op.GATHER}
"""What reads its source at another point than it is read at."""


class Kernelizer:
    """One call of `kernelize`: boundaries, then drafts, then kernels."""

    def __init__(self, roots: tuple[UOp, ...]) -> None:
        self.roots = roots
        self.rewritten = in_memory(roots, new_memory)
        self.boundaries = Boundaries([self.rewritten[root] for root in roots])
        self.drafts = Drafts()
        self.home = self.drafts.home
        self.built: dict[UOp, UOp] = {}  # stored node -> BUFFER, or ASSIGN(BUFFER, KERNEL)
        self.recent: dict[object, list[Draft]] = {}
        self.regions: dict[UOp, list[UOp]] = {}
        self.fresh: dict[UOp, UOp] = {}  # new BUFFERs by the node they are for

    def run(self) -> dict[UOp, UOp]:
        """Build all kernels; map each node that got memory to that memory."""
        for node in self.boundaries.ordered():
            if numel(node) == 0:
                self.built[node] = new_buffer(node)
            else:
                self.place(node)
        self.save_what_changes()
        for draft in self.drafts.in_order():
            self.build(draft)
        return {
            old: with_shape(self.built[new], old.shape)
            for old, new in self.rewritten.items()
            if new in self.built and new in self.boundaries.stored
        }

    # --- drafts

    def place(self, node: UOp) -> None:
        """Put a stored node into a draft with the same loops if that is sound, else its own."""
        computed, partial = split_reductions(node, self.is_memory)
        for extra in partial:
            self.place(extra)
        needs = dict.fromkeys(self.reads(computed))
        draft = Draft([node], needs, replaced={node: computed} if computed is not node else {})
        key = self.loops(node) if computed is node else None
        home = self.find_home(draft, key) if key is not None else None
        if home is not None:
            self.drafts.join(home, draft)
            return
        self.drafts.add(draft)
        if key is not None:
            self.recent.setdefault(key, []).append(draft)

    def is_memory(self, node: UOp) -> bool:
        """Whether a node is read from memory by the kernels of this call."""
        return is_stored(node) or node in self.boundaries.stored or node in self.home

    def region(self, node: UOp) -> list[UOp]:
        """The nodes computed in the kernel of `node`, and the leaves they read."""
        if node not in self.regions:
            below = node.toposort(lambda n: n is node or not (is_leaf(n) or self.is_memory(n)))
            self.regions[node] = [n for n in below if n.shape_or_none is not None]
        return self.regions[node]

    def reads(self, node: UOp) -> list[UOp]:
        """The memory that the kernel of `node` loads; the target of an ASSIGN is not read."""
        found: dict[UOp, None] = {}
        for value in values_of(node):
            whole = value is not node and self.is_memory(value)
            read = [value] if whole else self.region(value)
            found |= dict.fromkeys(n for n in read if n is not node and self.is_memory(n))
        return list(found)

    def loops(self, node: UOp) -> object | None:
        """A key under which drafts can share loops, or None for a node that shares with no one."""
        alone = node.op in (Op.COPY, Op.SCAN_AXIS) or is_partial(node)
        if alone or self.image_of(node) is not None:
            return None
        if (custom := custom_of(node)) is not None:
            return custom  # the home of all that it stores
        if node.op is Op.MERGE_AXIS:
            return node.device, node.shape, node.arg, node.src[0]
        sizes = []
        for n in self.region(node):
            if n.op is Op.REDUCE_AXIS:
                if any(m.op is Op.EXPAND and numel(m) > numel(m.src[0]) for m in self.region(n)):
                    return None  # operands are reused: such kernels want registers of their own
                sizes.append(tuple(n.src[0].shape[axis] for axis in n.arg[1]))
            elif n.op is Op.GATHER:
                return None
        return node.device, node.shape, tuple(dict.fromkeys(sizes))

    def find_home(self, draft: Draft, key: object) -> Draft | None:
        """A draft with the same loops, common data, and no path through a third kernel."""
        for other in reversed(self.recent.get(key, [])[-RECENT_GROUPS:]):
            if isinstance(key, UOp):
                return other
            ours = set(other.outputs)
            direct = [n for n in draft.needs if n in ours]
            if not direct and not any(n in other.needs for n in draft.needs):
                continue
            most = min(MOST_BUFFERS, self.boundaries.limits.get(draft.first.device, MOST_BUFFERS))
            if len({*draft.needs, *other.needs}) + len(ours) >= most:
                continue
            if any(
                n in self.boundaries.cuts or not self.reads_in_place(draft.first, n) for n in direct
            ):
                continue
            if any(self.home.get(v) is other for v in versions(draft.first)):
                continue
            waits = [d for d in self.drafts.before(draft) if d is not other]
            if not self.drafts.comes_after(waits, other):
                return other
        return None

    def reads_in_place(self, node: UOp, source: UOp) -> bool:
        """Whether every path from `source` to `node` is elementwise."""
        for n in self.region(node):
            if source in n.src and not (n.shape == source.shape and n.op not in MOVED):
                return False
            if n is not source and n.op in MOVED and source in self.region(n):
                return False
        return True

    # --- memory that changes in place

    def save_what_changes(self) -> None:
        """Copy content that a kernel needs after an ASSIGN has replaced it."""
        for node in [n for n in self.home if n.op is Op.ASSIGN]:
            writer = self.home[node]
            for version in versions(node):
                for draft in self.drafts.readers(version):
                    if draft is writer:
                        repeats = is_partial(node) and node.src[1].op is Op.SCATTER
                        one_way = self.image_of(node) is not None  # a kernel reads it or writes it
                        unsafe = (
                            repeats
                            or one_way
                            or not self.reads_only_here(draft, memory_of(version))
                        )
                    else:
                        unsafe = self.drafts.comes_after([draft], writer)
                    if unsafe:
                        draft.old[version] = self.saved(version)
                        self.drafts.has_levels = False

    def readers_of_before(self, node: UOp) -> list[UOp]:
        """What kernels of earlier calls store that read the target of an ASSIGN as it was."""
        old = set(versions(node))
        return [n for n in self.cut if not old.isdisjoint(n.src[1].src)]

    @cached_property
    def cut(self) -> list[UOp]:
        """What kernels of earlier calls, not run yet, store."""
        return [n for n in UOp.sink(*self.roots).toposort() if n.op is Op.ASSIGN and is_stored(n)]

    def reads_only_here(self, draft: Draft, target: UOp) -> bool:
        """Whether each element of `target` is read only by the step that overwrites it.

        Who wrote a kernel by hand has seen to that.
        """
        if custom_of(draft.first) is not None:
            return True
        ast, memory = self.lower(draft)
        slots = {number for number, m in enumerate(memory) if memory_of(m) is target}
        touched = [
            n
            for n in ast.toposort()
            if n.op in (Op.LOAD, Op.STORE) and n.src[0].src[0].arg in slots
        ]
        stored = {n.src[0] for n in touched if n.op is Op.STORE}
        return all(n.src[0] in stored for n in touched)

    def saved(self, version: UOp) -> UOp:
        """A copy of a buffer's present content, made by a kernel of its own."""
        copy = UOp(Op.CONTIGUOUS, version.dtype, (version,), "saved")
        if copy not in self.home:
            self.drafts.add(Draft([copy], {version: None}))
        return copy

    # --- kernels

    def memory_list(self, draft: Draft) -> list[UOp]:
        """What the slots of a kernel hold: its outputs, then what it reads."""
        outputs = [self.output_memory(n) for n in draft.outputs]
        if (custom := custom_of(draft.first)) is not None:
            found = [base_of(s) for s in custom.src]
            return [m if (m := memory_of(n)) in outputs else self.resolve(draft, n) for n in found]
        inputs = [self.resolve(draft, n) for n in draft.needs if n not in draft.outputs]
        targets = {memory_of(m) for m in outputs}
        return outputs + list(dict.fromkeys(m for m in inputs if memory_of(m) not in targets))

    def image_of(self, node: UOp) -> ImageDType | None:
        """The image that a node is stored in, None for plain memory."""
        return image_of(self.output_memory(node)) if node.op in (Op.ASSIGN, Op.CONTIGUOUS) else None

    def output_memory(self, node: UOp) -> UOp:
        """Where a node is stored: the target of an ASSIGN, else a new buffer."""
        if node.op is Op.ASSIGN:
            return memory_of(node)
        if node not in self.fresh:
            self.fresh[node] = new_buffer(node)
        return self.fresh[node]

    def resolve(self, draft: Draft, node: UOp) -> UOp:
        """The memory that a draft reads a stored node from."""
        node = draft.old.get(node, node)
        if node in self.built:
            return self.built[node]
        return self.output_memory(node) if node in self.home else node

    def build(self, draft: Draft) -> None:
        """Make the KERNEL of a draft, and point its outputs at it."""
        ast, memory = self.lower(draft)
        waits = [self.built[n] for d in self.drafts.before(draft) for n in d.outputs]
        waits += [
            v for n in draft.outputs for v in versions(n) if is_stored(v) and v.op is Op.ASSIGN
        ]
        waits += [r for n in draft.outputs if n.op is Op.ASSIGN for r in self.readers_of_before(n)]
        later = dict.fromkeys(w for w in waits if w not in memory)
        kernel = UOp(Op.KERNEL, dtypes.void, (*memory, *later), Kernel(ast, self.metadata(draft)))
        for node in draft.outputs:
            target = self.output_memory(node)
            self.built[node] = UOp(Op.ASSIGN, target.dtype, (target, kernel))

    def metadata(self, draft: Draft) -> tuple[str, ...]:
        """The operations a draft computes, the last one first."""
        if (custom := custom_of(draft.first)) is not None:
            return tuple(custom.arg.metadata)
        computed = [
            n for o in draft.outputs for n in reversed(self.region(draft.replaced.get(o, o)))
        ]
        return tuple(
            dict.fromkeys(n.op.name.lower() for n in computed if n.op in ALU or n.op in NAMED)
        )

    def lower(self, draft: Draft) -> tuple[UOp, list[UOp]]:
        """The graph of a draft over its slots, and the memory in those slots."""
        memory = self.memory_list(draft)
        if draft.first.op is Op.COPY:
            return UOp(Op.COPY, dtypes.void, (slot(memory[0], 0), slot(memory[1], 1))), memory
        if (custom := custom_of(draft.first)) is not None:
            return without_unread(custom.arg.ast, memory)
        region = self.told_apart(draft, memory)
        if region is None:
            ast = self.arithmetic(draft, memory, {})
        else:
            ast = kernel_of(region, lambda numbers: self.arithmetic(draft, memory, numbers))
        return without_unread(ast, memory)

    def told_apart(self, draft: Draft, memory: list[UOp]) -> Region | None:
        """What tells the kernel of a draft from others; None for one that is made for itself."""
        if any(is_partial(n) or self.image_of(n) is not None for n in draft.outputs):
            return None
        values = [draft.replaced.get(n, values_of(n)[0]) for n in draft.outputs]
        nodes: list[UOp] = []
        for output, value in zip(draft.outputs, values, strict=True):
            nodes += (
                [value] if value is not output and self.is_memory(value) else self.region(value)
            )
        shapes = tuple([n.shape for n in draft.outputs])
        slots = tuple([slot(m, i) for i, m in enumerate(memory)])
        pointers: dict[UOp, UOp | None] = {}

        def pointer(node: UOp) -> UOp | None:
            if node not in pointers:
                pointers[node] = self.pointer(draft, node, memory)
            return pointers[node]

        return region_of(values, nodes, pointer, (shapes, slots))

    def arithmetic(self, draft: Draft, memory: list[UOp], numbers: Mapping[UOp, UOp]) -> UOp:
        """The graph of a draft over its slots, with what stands for some of its constants."""
        first = draft.replaced.get(draft.first, draft.first)
        point = loops_over(first) if self.image_of(draft.first) is None else pixels_of(first)
        reader = RegionReader(lambda n: self.pointer(draft, n, memory), len(point), numbers)
        stores = [
            store(reader, draft.replaced.get(n, n), point, slot(memory[i], i))
            for i, n in enumerate(draft.outputs)
        ]
        ranges = sorted((p for p in point if p.op is Op.RANGE), key=is_ordered)
        body = stores[0] if len(stores) == 1 else UOp(Op.GROUP, dtypes.void, tuple(stores))
        end = UOp(Op.END, dtypes.void, (body, *ranges)) if ranges else body
        return rewrite(UOp.sink(end), simplify, name="simplify kernel")

    def pointer(self, draft: Draft, node: UOp, memory: list[UOp]) -> UOp | None:
        """The slot that a node is loaded from, or None if the draft computes it."""
        if node in draft.outputs or not self.is_memory(node):
            return None
        found = self.resolve(draft, node)
        where = next(
            (i for i, m in enumerate(memory) if m is found or memory_of(m) is memory_of(found)),
            None,
        )
        assert where is not None, f"{node!r} is read by no slot"
        return slot(memory[where], where)


def kernelize(roots: Iterable[UOp]) -> dict[UOp, UOp]:
    """Cut the graph below `roots` into kernels.

    Returns, for each node that got memory, its replacement of the same shape: a (reshaped)
    ASSIGN(BUFFER, KERNEL), or a BUFFER where there is nothing to compute. Fused nodes are not in
    it. `VERIFY=1` checks the graph first.
    """
    graph = tuple(roots)
    if settings.VERIFY:
        verify(graph, "tensor")
    return Kernelizer(graph).run()
