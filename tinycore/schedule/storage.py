"""Storage (materialization): which values of the graph are stored, and why; others are fused.

Floor 3. A value without memory is recomputed inside every kernel that uses it (loop fusion with
recomputation, Halide's `compute_inline`; a stored value is `compute_root`). `Reason` lists why a
value is stored, and DEBUG=3 prints it for each.

See docs/decisions/0007-fusion-boundaries.md and docs/floors/schedule.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from itertools import islice

from tinycore.schedule.comparisons import compared_with_itself, is_widening
from tinycore.schedule.index_values import is_made_of_indices
from tinycore.schedule.invariants import invariant_nodes
from tinycore.schedule.kernel import custom_of, nbytes, numel
from tinycore.schedule.limits import chained_types, limits_of, multiplies_by_lanes
from tinycore.schedule.ranges import TRANSPARENT
from tinycore.uop.movement import base_of, source_below
from tinycore.uop.node import UOp, exchange, ordered
from tinycore.uop.op import ALU, COMPARISON, DIVISIONS, MOVEMENT, SAME_VALUE, TRANSCENDENTAL, Op
from tinycore.uop.shape import DeviceLike
from tinycore.uop.size import are_ints, greatest

LONGEST_CHAIN = 128
"""Elementwise ops in a row that one kernel may hold."""
DEAREST_REPEATED = 2
"""Cost that a reduction may recompute each time it reads an expanded value."""
DEAREST_MASK = 8
"""Cost of a mask of indices that a chain of products may recompute for each score."""
DEAREST_EXPANDED = 16
"""Cost that elementwise code may recompute for an expanded value."""
DEAREST_SHARED = 40
"""Cost that several kernels may each compute for themselves."""
DEAREST_REPLAYED = 8
"""Cost that each replay of a capture may recompute for an element that never changes."""
OPS_OF_A_BYTE = 8
"""Ops in the time of reading a byte: 128 lanes of a unit, which gets 16 bytes a clock."""
COLUMNS_OF_A_TILE = 64
"""Columns of a product that a group computes, at least, from rows that it stages."""
LEAST_PRODUCT = 1 << 20
"""Multiply-adds of a contraction from which such tiles are planned for all units."""
REPEATED_OFTEN = 4
"""Reads of each element from which a padded copy pays."""
MOST_POINTS = 16
"""Different points at which one kernel may recompute a value."""
MOST_GROWTH = 4
"""Size of a padded copy, in sizes of its source, up to which it is stored."""
SHORT_REDUCTION = 16
"""Terms of a sum that may be fused into another sum that reads it once."""
MOST_COUNTED = 1 << 20
"""The cap of cost counts: shared subgraphs count once per use, which doubles at every level."""

MASKING = frozenset({Op.ADD, Op.WHERE, Op.AND, Op.OR, Op.CMPNE})
"""Ops by which masks are made and applied."""
COSTS = (
    dict.fromkeys(TRANSCENDENTAL, 10)
    | dict.fromkeys((Op.SQRT, Op.RECIPROCAL, Op.FDIV), 3)
    | dict.fromkeys(DIVISIONS, 3)
    | dict.fromkeys((Op.CAST, Op.BITCAST, *COMPARISON), 0)
    | {Op.THREEFRY: 60, Op.SIN: 30}
)
"""Costs of ops that do not cost 1. A comparison counts as part of the selection that it is for.
A sine reduces its argument with more digits than it has, and takes the time of five exponentials on
an EPYC; embeddings of positions by rotation read its few values at all heads."""
ALWAYS_STORED = frozenset({Op.CONTIGUOUS, Op.COPY, Op.ASSIGN, Op.SCAN_AXIS, Op.MERGE_AXIS})
SHIFTING = MOVEMENT | {Op.REDUCE_AXIS, Op.GATHER}
"""Ops that read their source at other points than their own."""
READ_ONCE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.UNSKEW}) | TRANSPARENT
"""Ops that read each element of their source at most once."""
REARRANGING = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})
"""Ops that read each element of their source once."""
CUTTING = REARRANGING | {Op.SHRINK}
"""Ops that read each element of their source at most once, and compute none."""
REPEATING = SAME_VALUE | {Op.RESHAPE, Op.EXPAND}
"""Ops that have the elements of their source in order, each once or more."""
NEVER_STORED = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.CONST, Op.DEVICE, Op.KERNEL, Op.BIND})
PASSED_THROUGH = MOVEMENT | SAME_VALUE
SHAPE_ONLY = PASSED_THROUGH | {Op.VALUE}


class Reason(Enum):
    """Why a value is stored, as DEBUG=3 says it."""

    ASKED = "asked for"
    WRITTEN = "its op writes memory"
    OPERAND = "an op reads it from memory"
    SHARED_REDUCTION = "a reduction that several kernels, or repetitions, read"
    DEAR_REPEAT = "dear, and repeated by an expand"
    PADDED = "padded, and read many times by a reduction"
    DEAR_SHARED = "dear, and used several times"
    INVARIANT = "dear, and the same in every replay"
    LONG_CHAIN = "ends a chain too long for one kernel"
    MANY_POINTS = "read at many points by one kernel"
    COMPARED = "compared with itself, to be equal"
    BUFFER_LIMIT = "its kernel would exceed the buffers of the device"
    PARTIAL = "partial result of a split reduction"
    SAVED = "overwritten before it is read"


def is_stored(node: UOp) -> bool:
    """True if a node is memory: a buffer, or an ASSIGN whose kernel exists already."""
    op = node.op
    if op is Op.ASSIGN:
        return node.src[1].op is Op.KERNEL
    return op is Op.BUFFER or op is Op.BUFFER_VIEW


def is_read_by_groups(node: UOp) -> bool:
    """True on a card whose groups stage what they read in shared memory.

    There a gate costs one test per element staged, less than a padded copy, which passes through
    memory twice.
    """
    device = node.device_or_none
    if device is None:
        return False
    limits = limits_of(device)
    return bool(limits.units and limits.shared_bytes and limits.shared_is_near)


def is_leaf(node: UOp) -> bool:
    """True if scheduling stops at a node."""
    return node.op in NEVER_STORED or (node.op is Op.ASSIGN and is_stored(node))


def is_no_leaf(node: UOp) -> bool:
    """True if scheduling goes on below a node."""
    return not is_leaf(node)


def above_leaves(roots: Iterable[UOp]) -> list[UOp]:
    """Some nodes and all below them down to leaves, sources first."""
    return UOp.sink(*roots).toposort(is_no_leaf)[:-1]


def region_of(node: UOp, is_memory: Callable[[UOp], bool]) -> list[UOp]:
    """The nodes that are computed in the kernel of a node, and the leaves that they read."""
    below = node.toposort(lambda n: n is node or not (is_leaf(n) or is_memory(n)))
    return [n for n in below if n.shape_or_none is not None]


def rebuilt_above_leaves(
    nodes: Mapping[UOp, UOp], change: Callable[[UOp, UOp, Mapping[UOp, UOp]], UOp]
) -> dict[UOp, UOp]:
    """Nodes by those of another graph, with what `change` makes of each, above leaves, given the
    one over new sources, and those that are done.
    """
    done: dict[UOp, UOp] = {}
    for node in above_leaves(nodes.values()):
        new = node if is_leaf(node) else node.with_src(tuple([done[s] for s in node.src]))
        done[node] = change(node, new, done)
    return {old: done[new] for old, new in nodes.items()}


def replaced(nodes: Iterable[UOp], changes: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """The nodes at and below some that become others, where some have another in their place.

    What these are made of is replaced, too. It takes few calls in a row if `changes` have those
    first that others are made of.
    """
    done: dict[UOp, UOp] = {}
    seen: set[UOp] = set()

    def visit(root: UOp) -> None:
        order = ordered(root, lambda n: is_no_leaf(n) and n not in changes, seen)
        for node in order:
            if node in changes and node not in done:
                visit(new := changes[node])
                done[node] = done.get(new, new)
        exchange(order, done, is_no_leaf)
        seen.update(order)

    for root in (*changes, UOp.sink(*nodes)):
        visit(root)
    return done


def users_of(graph: Sequence[UOp]) -> dict[UOp, list[UOp]]:
    """The nodes of a graph that read each of its nodes, each once."""
    users: dict[UOp, list[UOp]] = {n: [] for n in graph}
    for node in graph:
        for source in () if is_leaf(node) else dict.fromkeys(node.src):
            if source in users:
                users[source].append(node)
    return users


def computed_of(node: UOp) -> UOp:
    """The node that computes the value of a node, below reshapes and expands."""
    node = source_below(node, REPEATING)
    memory = source_below(node, PASSED_THROUGH)  # not VALUE, which is no view of memory
    return memory if is_leaf(memory) or memory.op is Op.ASSIGN else node


class Storage:
    """The stored values below some roots, each with its reason, and the graph they are in."""

    def __init__(self, roots: Iterable[UOp] = (), constant: Collection[UOp] | None = None) -> None:
        """`constant` is the memory with the same content in every replay of a pruned capture, which
        hoists what is computed from it alone; None where nothing is pruned.
        """
        self.roots = [b for root in roots if not is_leaf(b := computed_of(root))]
        self.graph = [n for n in above_leaves(self.roots) if n.shape_or_none is not None]
        """All nodes down to the leaves, in topological order."""
        self.position = {n: place for place, n in enumerate(self.graph)}
        self.users = users_of(self.graph)
        self.reasons = dict.fromkeys(self.roots, Reason.ASKED)
        """The stored nodes, and why they are stored."""
        self.cuts: set[UOp] = set()
        """Nodes stored to end a kernel: other kernels must load them."""
        self.reduced_above: set[UOp] = set()
        self.invariant = frozenset[UOp]()
        """Nodes with the same value in every replay."""
        if constant is not None:
            self.invariant = invariant_nodes(self.graph, constant)
        self.cost: dict[UOp, int] = {}
        self.depth: dict[UOp, int] = {}

    def choose(self) -> Storage:
        """Store every value that one of the reasons holds for, except the buffer limit."""
        self.store_required()
        self.reduced_above = self.below_reductions()
        for node in self.graph:
            self.visit(node)
        while (again := self.compared_with_itself()) is not None:
            self.store(again, Reason.COMPARED)
        self.store_what_is_read_at_many_points()
        return self

    def compared_with_itself(self) -> UOp | None:
        """A value that has to be stored as some comparison reads it by two ways; None if none."""
        return compared_with_itself(self.graph, self.is_memory, is_leaf)

    @cached_property
    def buffer_limits(self) -> dict[DeviceLike, int]:
        """The most buffers a kernel may take, for each device that has such a limit."""
        devices = {n.device_or_none for n in self.graph} - {None}
        limits = {d: limits_of(d).buffers for d in devices if d is not None}
        return {d: limit for d, limit in limits.items() if limit is not None}

    def is_memory(self, node: UOp) -> bool:
        """True if a kernel reads a node from memory."""
        return node in self.reasons or is_stored(node)

    def store(self, node: UOp, reason: Reason) -> None:
        """Store a node; the first reason counts."""
        self.reasons.setdefault(node, reason)

    def change(self, done: Mapping[UOp, UOp], values: Iterable[UOp]) -> None:
        """Go on with other nodes in place of some; all `values` are stored, sources first."""
        self.roots = [done.get(n, n) for n in self.roots]
        self.cuts = {done.get(n, n) for n in self.cuts}
        self.invariant = frozenset([done.get(n, n) for n in self.invariant])
        known, stored = self.reasons, dict.fromkeys((*values, *self.reasons))
        self.reasons = {done.get(n, n): known.get(n, Reason.PARTIAL) for n in stored}

    def ordered(self) -> list[UOp]:
        """The stored nodes, in topological order."""
        return [n for n in self.graph if n in self.reasons and not is_leaf(n)]

    def store_computed(self, node: UOp, reason: Reason) -> None:
        """Store a node, unless it is memory under movement ops."""
        if not is_leaf(computed_of(node)):
            self.store(node, reason)

    def store_flat(self, node: UOp) -> None:
        """Store a source of COPY or CUSTOM, unless it is a whole buffer, row by row."""
        node = base_of(node)
        if not is_stored(node):
            self.store(node, Reason.OPERAND)

    def store_required(self) -> None:
        """Store the values that the graph requires, and the operands of ops that read memory."""
        for node in self.graph:
            if is_leaf(node):
                continue
            if node.op in ALWAYS_STORED:
                asked = node.op in (Op.CONTIGUOUS, Op.ASSIGN)
                self.store(node, Reason.ASKED if asked else Reason.WRITTEN)
            if node.op is Op.GATHER:
                self.store_computed(node.src[0], Reason.OPERAND)
            if node.op is Op.MERGE_AXIS:
                for source in node.src:
                    self.store_computed(base_of(source), Reason.OPERAND)
            if node.op is Op.COPY:
                self.store_flat(node.src[0])
            if (custom := custom_of(node)) is not None:
                for source in custom.src:
                    self.store_flat(source)

    def below_reductions(self) -> set[UOp]:
        """Nodes that some reduction reads through fused values only."""
        found: set[UOp] = set()
        for node in reversed(self.graph):
            for user in self.users[node]:
                if user.op is Op.REDUCE_AXIS or (user in found and user not in self.reasons):
                    found.add(node)
        return found

    def visit(self, node: UOp) -> None:
        """Decide one node after all its sources."""
        if is_leaf(node):
            self.cost[node] = self.depth[node] = 0
            return
        # What is stored here costs nothing above it, so this comes before the costs.
        if node.op is Op.REDUCE_AXIS and node not in self.reasons:
            self.place_reduction(node)
        if node.op is Op.EXPAND:
            self.place_expanded(node)
        if self.invariant and node not in self.invariant:
            for source in self.invariant.intersection(node.src):
                self.place_invariant(source, node)
        self.cost[node] = self.count(node, self.cost, COSTS.get(node.op, 1), sum)
        self.depth[node] = self.count(node, self.depth, 1, max)
        is_dear = len(self.users[node]) > 1 and self.cost[node] > DEAREST_SHARED
        # Where all uses lead into one other value, its kernel computes this one once for all.
        if is_dear and len([*islice(self.meetings(node, SAME_VALUE), 2)]) < 2:
            self.store_arithmetic(node, Reason.DEAR_SHARED)
        if self.depth[node] > LONGEST_CHAIN:
            self.store_arithmetic(node, Reason.LONG_CHAIN)
        if self.depth[node] > LONGEST_CHAIN and node in self.reasons:
            self.cuts.add(node)

    def meetings(
        self, node: UOp, moves: Collection[Op], cuts: Collection[Op] = ()
    ) -> Iterator[UOp]:
        """A value, and each one above it into which all its uses lead: elementwise, through ops
        that are `moves`, or `cuts` where one alone reads it."""
        # `open_` is a cut through all paths from the node upwards, advanced at its lowest member.
        open_ = {node}
        for _ in range(LONGEST_CHAIN):
            current = min(open_, key=self.position.__getitem__)
            users, is_met = self.users[current], len(open_) == 1
            if is_met:
                yield current
            ops = {*moves, *cuts} if is_met and len(users) == 1 else moves
            if (
                current in self.reasons
                or not users
                or any(
                    u.op not in ops and not (u.op in ALU and u.shape == current.shape)
                    for u in users
                )
            ):
                return
            open_.remove(current)
            open_.update(users)

    def store_what_is_read_at_many_points(self) -> None:
        """Store values that one kernel would recompute at many points, as in the stages of a sort.

        Where paths through movement ops fork and meet again, the points multiply with each stage.
        The cost of a value does not tell: comparisons and casts have none, and a value is not read
        twice where what moves it is. Two different paths are assumed to read different points.
        """
        # The paths to each node, as hashes of their movement ops, by the stored node at the top.
        paths: dict[UOp, dict[UOp, set[int]]] = {}
        for node in reversed(self.graph):
            found: dict[UOp, set[int]] = defaultdict(set)
            for user in self.users[node]:
                for root, above in paths[user].items():
                    moves = user.op in SHIFTING
                    found[root] |= {hash((p, user)) for p in above} if moves else above
            if node.op in ALU and any(len(p) > MOST_POINTS for p in found.values()):
                self.store(node, Reason.MANY_POINTS)
            paths[node] = {node: {0}} if node in self.reasons else found

    def store_arithmetic(self, node: UOp, reason: Reason) -> None:
        """Store a node if it is arithmetic: repeating movement costs nothing."""
        if node.op in ALU:
            self.store(self.unwidened(node), reason)

    @staticmethod
    def unwidened(node: UOp) -> UOp:
        """The operand of a widening CAST on devices with matrix units, which multiply narrow types;
        else the node."""
        if node.op is not Op.CAST:
            return node
        narrow, device = node.src[0], node.device_or_none
        narrow = source_below(narrow, CUTTING)
        is_wider = narrow.dtype.kind == node.dtype.kind == "float"
        if not is_wider or narrow.dtype.itemsize >= node.dtype.itemsize or narrow.op not in ALU:
            return node
        return narrow if device is not None and limits_of(device).matrix else node

    def count(
        self, node: UOp, known: dict[UOp, int], own: int, join: Callable[[Iterable[int]], int]
    ) -> int:
        """The cost fused into a node, including its own."""
        below = join([0 if s in self.reasons else known.get(s, 0) for s in node.src] or [0])
        return min(below + (own if node.op in ALU else 0), MOST_COUNTED)

    def place_reduction(self, node: UOp) -> None:
        """Store a reduction that several kernels use, or one kernel repeatedly.

        To compute a reduction again costs more than to load its result. Elementwise operations
        after it stay in its kernel: the last of their values is stored instead.
        """
        if (tip := self.meeting_point(node)) is not None:
            self.store(self.unwidened(tip), Reason.SHARED_REDUCTION)

    def meeting_point(self, node: UOp) -> UOp | None:
        """The last value, no larger than `node`, into which all elementwise uses of `node` lead.

        None if that value is stored already, or fuses into the reduction that reads it.
        """
        last = node
        for current in self.meetings(node, READ_ONCE, (Op.SHRINK,)):
            outer = self.users[current][0] if len(self.users[current]) == 1 else None
            is_part = outer is not None and self.is_part(node, current, outer)
            if is_part or current in self.reasons:
                return None
            if current.op in ALU and numel(current) <= numel(node):
                last = current
        return last

    @staticmethod
    def is_part(node: UOp, top: UOp, outer: UOp) -> bool:
        """True if a sum fuses into the sum `outer`: it is summed unchanged, or is short (a window).

        `top` is the operand of `outer`, computed from the sum alone.
        """
        op, axes = node.arg
        if outer.op is not Op.REDUCE_AXIS or not op is outer.arg[0] is Op.ADD:
            return False
        length = math.prod(greatest(node.src[0].shape[axis]) for axis in axes)
        return length <= SHORT_REDUCTION or source_below(top, REARRANGING) is node

    def place_expanded(self, node: UOp) -> None:
        """Store the value below an EXPAND if recomputing it for every repetition is dear."""
        source = node.src[0]
        repeats = numel(node) // max(1, numel(source))
        bottom = source
        while bottom.op in SHAPE_ONLY and bottom.op is not Op.PAD and bottom not in self.reasons:
            bottom = bottom.src[0]
        if bottom in self.reasons or is_leaf(bottom) or repeats <= 1:
            return
        under_reduction = node in self.reduced_above
        if under_reduction and self.is_mask_of_chain(node, bottom):
            return
        reads = numel(node) // max(1, numel(bottom))
        if bottom.op is Op.PAD and under_reduction and reads >= REPEATED_OFTEN:
            # The source is read through gates where the copy would be mostly zeros, and where
            # groups of threads load each element once for all of its reads.
            grows = numel(bottom) > MOST_GROWTH * numel(bottom.src[0])
            if grows or is_read_by_groups(bottom):
                self.store_computed(bottom.src[0], Reason.PADDED)
            else:
                self.store(bottom, Reason.PADDED)
            return
        is_dear = self.cost.get(bottom, 0) >= (
            DEAREST_REPEATED if under_reduction else DEAREST_EXPANDED
        )
        if is_dear and not (under_reduction and self.is_computed_for_tiles(node, bottom)):
            self.store_arithmetic(bottom, Reason.DEAR_REPEAT)

    def is_computed_for_tiles(self, node: UOp, bottom: UOp) -> bool:
        """True if an operand that a product reads expanded is computed faster than stored.

        Without matrix units the rows of a tile are staged: a group computes an element once for all
        of its columns, as weights of attention from scores.
        """
        product, device = self.product_of(node), node.device_or_none
        if product is None or device is None or not multiplies_by_lanes(limits_of(device)):
            return False
        elements = numel(bottom)
        tiles = -(-(numel(node) // elements) // COLUMNS_OF_A_TILE)
        own = nbytes(bottom)
        read = self.bytes_read_for(bottom)
        saved = own + read + (own - read) * tiles
        return self.cost[bottom] * elements * tiles <= OPS_OF_A_BYTE * saved

    def product_of(self, node: UOp) -> UOp | None:
        """The contraction that alone reads a value, as an operand; None where there is none."""
        while len(users := self.users[node]) == 1:
            (user,) = users
            if user.op is Op.REDUCE_AXIS:
                is_sum = user.arg[0] is Op.ADD and node.op is Op.MUL
                work = numel(node) if are_ints(node.shape) else 0
                return user if is_sum and work >= LEAST_PRODUCT else None
            is_operand = user.op in (Op.MUL, Op.CAST) or user.op in PASSED_THROUGH
            if not is_operand or user in self.reasons:
                return None
            node = user
        return None

    def bytes_read_for(self, node: UOp) -> int:
        """The bytes of all memory that a value is computed from."""
        return sum(nbytes(n) for n in region_of(node, self.is_memory) if self.is_memory(n))

    def is_mask_of_chain(self, node: UOp, bottom: UOp) -> bool:
        """True for a mask computed from indices alone and applied to the scores of a possible chain
        of products: lanes compute such a mask faster than they load it."""
        if self.cost.get(bottom, 0) > DEAREST_MASK or not self.masks(node):
            return False
        return is_made_of_indices(bottom) and bool(chained_types(node.single_device))

    def masks(self, node: UOp) -> bool:
        """True if a value is used in masks, and in values to which they are applied, only."""
        return all(
            user.op in MASKING or (user.op in MOVEMENT and self.masks(user))
            for user in self.users[node]
        )

    def place_invariant(self, source: UOp, user: UOp) -> None:
        """Store an operand that is the same in every replay, if that makes replays faster.

        A replay computes less, but may read more: dequantized weights are larger than quantized
        ones.
        """
        bottom = source
        while bottom not in self.reasons and (bottom.op in SHAPE_ONLY or is_widening(bottom)):
            bottom = bottom.src[0]
        if bottom in self.reasons or is_leaf(bottom):
            return
        tiled = user.op is Op.REDUCE_AXIS or user in self.reduced_above
        repeats = 1 if tiled else max(1, numel(user) // max(1, numel(bottom)))
        cost = self.cost[bottom] * repeats  # a product computes an operand once for a tile
        more = max(nbytes(bottom) - self.bytes_read_for(bottom), 0)
        if cost >= DEAREST_REPLAYED and cost * numel(bottom) >= OPS_OF_A_BYTE * more:
            self.store_arithmetic(bottom, Reason.INVARIANT)
