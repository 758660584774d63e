"""Decide which values of the tensor graph get memory of their own.

Floor 3. Everything else is recomputed inside the kernels that use it. The reasons for memory:

1. the user asked (an output, CONTIGUOUS, ASSIGN) or the op needs it (COPY, SCAN_AXIS, MERGE_AXIS
   and its sources, the table of a GATHER);
2. a reduction whose result is used by more than one kernel, or repeated (expanded): computing it
   again costs more than loading it. What is elementwise after it stays with it;
3. something dear, or a padded image, that a reduction would recompute many times over;
4. a chain so long that a kernel would outgrow what compilers handle well;
5. a value that one kernel would compute at many points, as in the stages of a sort;
6. a kernel that would read more buffers than its device binds (`room.py`).

See docs/decisions/0007-fusion-boundaries.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tinycore.schedule.kernel import base_of, custom_of, numel
from tinycore.schedule.ranges import TRANSPARENT
from tinycore.schedule.room import PASSED_THROUGH, crowded, limits_below
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPARISON, DIVISIONS, MOVEMENT, SAME_VALUE, TRANSCENDENTAL, Op
from tinycore.uop.size import greatest

LONGEST_CHAIN = 128
"""Elementwise ops in a row that one kernel may hold."""
DEAREST_REPEATED = 2
"""Cost that a reduction may recompute for each time it reads an expanded value."""
DEAREST_EXPANDED = 16
"""Cost that elementwise code may recompute for an expanded value."""
DEAREST_SHARED = 40
"""Cost that several kernels may each compute for themselves."""
REPEATED_OFTEN = 4
"""Reads of each element from which a padded copy pays."""

MOST_POINTS = 16
"""Different points at which one kernel may compute a value anew."""
MOST_GROWTH = 4
"""How many times its source a padded copy may be."""
SHORT_REDUCTION = 16
"""Terms of a sum that may be computed inside another sum that reads it once."""
MOST_COUNTED = 1 << 20
"""Where counting of costs stops: shared subgraphs are counted once per use, which doubles fast."""

COSTS = (
    dict.fromkeys(TRANSCENDENTAL, 10)
    | dict.fromkeys((Op.SQRT, Op.RECIPROCAL, Op.FDIV), 3)
    | dict.fromkeys(DIVISIONS, 3)
    | dict.fromkeys((Op.CAST, Op.BITCAST, *COMPARISON), 0)
    | {Op.THREEFRY: 60}
)
"""What an op costs, where that is not 1. A comparison is counted with what it selects."""
ALWAYS_STORED = frozenset({Op.CONTIGUOUS, Op.COPY, Op.ASSIGN, Op.SCAN_AXIS, Op.MERGE_AXIS})
READ_ONCE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.UNSKEW}) | TRANSPARENT
"""Ops that read each element of their source at most once, at a place of their own."""
REARRANGING = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})
"""Ops that read each element of their source once."""
LEAVES = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.CONST, Op.DEVICE, Op.KERNEL, Op.BIND})
SHAPE_ONLY = PASSED_THROUGH | {Op.VALUE}


def is_stored(node: UOp) -> bool:
    """Whether a node already is memory: a buffer, or one that a kernel of an earlier call fills."""
    op = node.op
    if op is Op.ASSIGN:
        return node.src[1].op is Op.KERNEL
    return op is Op.BUFFER or op is Op.BUFFER_VIEW


def is_leaf(node: UOp) -> bool:
    """Whether scheduling stops at a node."""
    return node.op in LEAVES or (node.op is Op.ASSIGN and is_stored(node))


def computed_of(node: UOp) -> UOp:
    """What has to be computed for a node: itself, less repetition and reshapes on top of it."""
    while node.op in SAME_VALUE or node.op is Op.RESHAPE or node.op is Op.EXPAND:
        node = node.src[0]
    below = node
    while below.op in PASSED_THROUGH:  # not VALUE, which is no view of memory
        below = below.src[0]
    return below if is_leaf(below) or below.op is Op.ASSIGN else node


class Boundaries:
    """The nodes below some roots that get memory, in an order that puts sources first."""

    def __init__(self, roots: Iterable[UOp]) -> None:
        self.roots = [b for root in roots if not is_leaf(b := computed_of(root))]
        self.graph = [n for n in self.traverse(self.roots) if n.shape_or_none is not None]
        self.position = {n: place for place, n in enumerate(self.graph)}
        self.users: dict[UOp, list[UOp]] = {n: [] for n in self.graph}
        for node in self.graph:
            if not is_leaf(node):
                for source in dict.fromkeys(node.src):
                    if source in self.users:
                        self.users[source].append(node)
        self.stored: set[UOp] = set(self.roots)
        self.cuts: set[UOp] = (
            set()
        )  # stored to end a kernel here, so nothing may take them from registers
        self.store_required()
        self.reduced_above = self.below_reductions()
        self.cost: dict[UOp, int] = {}
        self.depth: dict[UOp, int] = {}
        for node in self.graph:
            self.visit(node)
        self.store_what_is_read_at_many_points()
        self.limits = limits_below(self.graph)
        if self.limits:
            self.make_room()

    @staticmethod
    def traverse(roots: list[UOp]) -> list[UOp]:
        """Every node down to the leaves, sources first."""
        if not roots:
            return []
        return UOp.sink(*roots).toposort(lambda n: not is_leaf(n))[:-1]

    def ordered(self) -> list[UOp]:
        """The nodes that get memory, sources first."""
        return [n for n in self.graph if n in self.stored and not is_leaf(n)]

    def store(self, node: UOp) -> None:
        """Give a node memory, unless it needs none."""
        if not is_leaf(computed_of(node)):
            self.stored.add(node)

    def store_flat(self, node: UOp) -> None:
        """Give memory to a source of COPY or CUSTOM, unless it fills a buffer row by row."""
        node = base_of(node)
        if not is_stored(node):
            self.stored.add(node)

    def store_required(self) -> None:
        """Reason 1: asked for, or needed by the op."""
        for node in self.graph:
            if is_leaf(node):
                continue
            if node.op in ALWAYS_STORED:
                self.stored.add(node)
            if node.op is Op.GATHER:
                self.store(node.src[0])
            if node.op is Op.MERGE_AXIS:
                for source in node.src:
                    self.store(base_of(source))
            if node.op is Op.COPY:
                self.store_flat(node.src[0])
            if (custom := custom_of(node)) is not None:
                for source in custom.src:
                    self.store_flat(source)

    def make_room(self) -> None:
        """Reason 6: a kernel of a device binds only so many buffers."""
        while cut := crowded(self.graph, lambda n: n in self.stored or is_stored(n), self.limits):
            self.stored.update(cut)
            self.cuts.update(cut)

    def below_reductions(self) -> set[UOp]:
        """Nodes that some reduction reads through nothing but fused work."""
        found: set[UOp] = set()
        for node in reversed(self.graph):
            for user in self.users[node]:
                if user.op is Op.REDUCE_AXIS or (user in found and user not in self.stored):
                    found.add(node)
        return found

    def visit(self, node: UOp) -> None:
        """Decide one node, all its sources being decided."""
        if is_leaf(node):
            self.cost[node] = self.depth[node] = 0
            return
        if node.op is Op.REDUCE_AXIS and node not in self.stored:
            self.place_reduction(node)
        if node.op is Op.EXPAND:
            self.place_expanded(node)
        self.cost[node] = self.count(node, self.cost, COSTS.get(node.op, 1), sum)
        self.depth[node] = self.count(node, self.depth, 1, max)
        shared = len(self.users[node]) > 1 and self.cost[node] > DEAREST_SHARED
        if shared or self.depth[node] > LONGEST_CHAIN:
            self.store_here(node)
        if self.depth[node] > LONGEST_CHAIN and node in self.stored:
            self.cuts.add(node)

    def store_what_is_read_at_many_points(self) -> None:
        """Reason 5: where paths through movement fork and meet, reads multiply stage by stage.

        A path from a stored node down to another is the movement on it; two paths that differ read
        different points, or so it is assumed.
        """
        numbers: dict[
            tuple[int, UOp], int
        ] = {}  # a path is a number: a shorter path, and its last step
        paths: dict[UOp, dict[UOp, set[int]]] = {}  # by node, then by the stored node they begin at
        for node in reversed(self.graph):
            found: dict[UOp, set[int]] = {}
            for user in self.users[node] if node not in self.stored else ():
                moves = user.op in MOVEMENT or user.op in (Op.REDUCE_AXIS, Op.GATHER)
                for root, above in paths[user].items():
                    longer = (
                        {numbers.setdefault((p, user), len(numbers)) for p in above}
                        if moves
                        else above
                    )
                    found.setdefault(root, set()).update(longer)
            if node.op in ALU and any(len(p) > MOST_POINTS for p in found.values()):
                self.stored.add(node)
            if node in self.stored:
                found = {node: {numbers.setdefault((-1, node), len(numbers))}}
            paths[node] = found

    def store_here(self, node: UOp) -> None:
        """Give memory to a node if it is arithmetic: a change of shape is redone at no cost."""
        if node.op in ALU:
            self.stored.add(node)

    def count(
        self, node: UOp, known: dict[UOp, int], own: int, join: Callable[[Iterable[int]], int]
    ) -> int:
        """Work below a node that is not stored, with its own if it is arithmetic."""
        below = join([0 if s in self.stored else known.get(s, 0) for s in node.src] or [0])
        return min(below + (own if node.op in ALU else 0), MOST_COUNTED)

    def place_reduction(self, node: UOp) -> None:
        """Reason 2: find where the result of a reduction goes to memory, if it must."""
        if (tip := self.meeting_point(node)) is not None:
            self.stored.add(tip)

    def meeting_point(self, node: UOp) -> UOp | None:
        """The last value, no larger than `node`, that all its elementwise uses go into.

        None when that has memory already, or is a sum that takes a short one in registers.
        """
        last, open_ = node, {node}
        while True:
            current = min(open_, key=self.position.__getitem__)
            users = self.users[current]
            if len(open_) == 1:
                outer = users[0] if len(users) == 1 else None
                if current in self.stored or (
                    outer is not None and self.is_part(node, current, outer)
                ):
                    return None
                if current.op in ALU and numel(current) <= numel(node):
                    last = current
            elif current in self.stored:
                return last
            alone = not open_.difference((current,)) and len(users) == 1
            if not all(self.takes(user, current, alone) for user in users):
                return last
            open_.remove(current)
            open_.update(users)

    @staticmethod
    def takes(user: UOp, node: UOp, alone: bool) -> bool:
        """Whether `user` reads each element of `node` at most once; `alone`, it leaves some out."""
        if user.op in READ_ONCE or (alone and user.op is Op.SHRINK):
            return True
        return user.op in ALU and user.shape == node.shape

    @staticmethod
    def is_part(node: UOp, top: UOp, outer: UOp) -> bool:
        """Whether a sum is added up again as it is, or is short (of a window, say) in another sum.

        `top` is what the other one reads, and is made of the sum alone.
        """
        if outer.op is not Op.REDUCE_AXIS:
            return False
        op, axes = node.arg
        while top.op in REARRANGING:
            top = top.src[0]
        length = math.prod(greatest(node.src[0].shape[axis]) for axis in axes)
        return op is outer.arg[0] is Op.ADD and (top is node or length <= SHORT_REDUCTION)

    def place_expanded(self, node: UOp) -> None:
        """Reason 3: store what would be recomputed for every repetition, if that is dear."""
        source = node.src[0]
        repeats = numel(node) // max(1, numel(source))
        bottom = source
        while bottom.op in SHAPE_ONLY and bottom.op is not Op.PAD and bottom not in self.stored:
            bottom = bottom.src[0]
        if bottom in self.stored or is_leaf(bottom) or repeats <= 1:
            return
        under_reduction = node in self.reduced_above
        reads = numel(node) // max(1, numel(bottom))
        if bottom.op is Op.PAD and under_reduction and reads >= REPEATED_OFTEN:
            if self.grows(bottom):
                self.store(bottom.src[0])
            else:
                self.stored.add(bottom)
        elif self.cost.get(bottom, 0) >= (
            DEAREST_REPEATED if under_reduction else DEAREST_EXPANDED
        ):
            self.store_here(bottom)

    @staticmethod
    def grows(node: UOp) -> bool:
        """Whether a PAD makes much more of its source."""
        return numel(node) > MOST_GROWTH * numel(node.src[0])
