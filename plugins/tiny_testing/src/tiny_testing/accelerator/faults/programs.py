"""Faults of what a renderer writes and a compiler makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.accelerator.faults.fault import found_by
from tinycore.dtype import dtypes
from tinycore.render.base import LATE
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


@found_by("test_an_operation[CMPLT-int32]")
class FlippedComparison(Rewriter):
    """a < b is written as b < a."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Exchange the operands."""
        if node.op is Op.CMPLT and node.src[0].dtype.scalar() is dtypes.int32:
            return (node.with_src(node.src[::-1]),)
        return (node,)


@found_by("test_division_is_rounded_correctly[float32]")
class FastDivision(Rewriter):
    """a / b is a * (1 / b), rounded twice."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """A product."""
        if node.op is not Op.FDIV or node.dtype is not dtypes.float32:
            return (node,)
        a, b = node.src
        inverse = b.alu(Op.RECIPROCAL)
        return (inverse, a.alu(Op.MUL, inverse))


@found_by("test_an_operation[SHR-int32]")
class LogicalShift(Rewriter):
    """Numbers below 0 are shifted right as if they had no sign."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Through unsigned numbers."""
        if node.op is not Op.SHR or node.dtype is not dtypes.int32:
            return (node,)
        a, b = (s.bitcast(dtypes.uint32) for s in node.src)
        shifted = a.alu(Op.SHR, b)
        return (a, b, shifted, shifted.bitcast(dtypes.int32))


@found_by("test_special_values[float32]")
class CarelessMaximum(Rewriter):
    """The greater of two is found by one comparison, so NaN gets lost."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """b where a < b, else a."""
        if node.op is not Op.MAX or node.dtype is not dtypes.float32:
            return (node,)
        a, b = node.src
        less = a < b
        return (less, less.where(b, a))


@found_by("test_subnormals_are_kept[float32]")
class FlushedProducts(Rewriter):
    """Products below the normal range become 0."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """0 where the square of a product, scaled up, is small."""
        if node.op is not Op.MUL or node.dtype is not dtypes.float32:
            return (node,)
        least, zero = node.const_like(2.0**-126), node.const_like(0.0)
        negative = node.const_like(-(2.0**-126))
        above, below = node < least, negative < node
        inside = above & below
        return (node, least, zero, negative, above, below, inside, inside.where(zero, node))


@found_by("test_a_cast[float32-int32]")
class RoundingCast(Rewriter):
    """Floats become the nearest integer, and are not cut."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Add 0.5 before the conversion."""
        if node.op is not Op.CAST or node.dtype is not dtypes.int32:
            return (node,)
        if node.src[0].dtype is not dtypes.float32:
            return (node,)
        half = node.src[0].const_like(0.5)
        moved = node.src[0].alu(Op.ADD, half)
        return (half, moved, node.with_src((moved,)))


@found_by("test_movement[pad]")
class ForgottenGate(Rewriter):
    """A gated load whose gate is closed gives 1, not its alternative."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Replace the alternative of a gated load."""
        if node.op is not Op.LOAD or len(node.src) < 2 or node.dtype is not dtypes.float32:
            return (node,)
        one = node.src[1].const_like(1.0)
        return (one, node.with_src((node.src[0], one)))


@found_by("test_shared_memory_is_filled_ahead[float32-2]")
class LostFill(Rewriter):
    """Shared memory is not filled for later steps of a loop, but for the first ones alone."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Nothing is stored late."""
        return () if node.op is Op.STORE and node.arg == LATE else (node,)


@found_by("test_all_of_shared_memory")
class ShiftedShared(Rewriter):
    """Shared memory is addressed from one element too far on."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The next element."""
        if node.op is not Op.INDEX or node.src[0].op is not Op.DEFINE_LOCAL:
            return (node,)
        one = UOp.index(1)
        place = node.src[1].alu(Op.ADD, one)
        return (one, place, node.with_src((node.src[0], place, *node.src[2:])))


@found_by("test_a_barrier_orders_a_group")
class PartialBarrier(Rewriter):
    """A barrier stands in a branch that only some threads of a group take."""

    def ordered(self, line: list[UOp]) -> Sequence[UOp]:
        """Put the barrier into a loop that the first thread skips."""
        threads = [u for u in line if u.op is Op.SPECIAL and u.arg.startswith("block")]
        order: list[UOp] = []
        for node in line:
            if node.op is not Op.BARRIER or not threads:
                order.append(node)
                continue
            taken = UOp.range(threads[0].minimum(1), (900, len(order)))
            end = UOp(Op.END, dtypes.void, (UOp(Op.GROUP, dtypes.void), taken))
            fresh = [n for n in taken.toposort() if n not in order]
            order += [*fresh, node, end.src[0], end]
        return order


@found_by("test_the_axes_of_a_launch")
class FlatGrid(Rewriter):
    """The third axis of a grid is not launched."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """One group along it."""
        if node.op is not Op.SPECIAL or node.arg != "grid2":
            return (node,)
        one = UOp.index(1)
        return (one, UOp(Op.SPECIAL, node.dtype, (one,), node.arg))


@found_by("test_a_full_grid[axis0]")
class LostWrite(Rewriter):
    """The last group of a large grid is not run."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """A grid of one group less."""
        if node.op is not Op.SPECIAL or node.arg != "grid0" or int(node.src[0].arg) < 50_000:
            return (node,)
        fewer = UOp.index(int(node.src[0].arg) - 1)
        return (fewer, UOp(Op.SPECIAL, node.dtype, (fewer,), node.arg))


@found_by("test_a_long_loop")
class ShortLoops(Rewriter):
    """Loops end after 65,535 rounds, as if they had no end, and the program goes on."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Limit the steps of loops."""
        if node.op is not Op.RANGE or int(node.src[0].bounds[1]) <= 0xFFFF:
            return (node,)
        fewer = UOp.index(0xFFFF)
        return (fewer, node.with_src((fewer, *node.src[1:])))


@found_by("test_a_barrier_orders_a_group")
class NoBarrier(Rewriter):
    """Threads do not wait for each other: they read shared memory before it is written."""

    def ordered(self, line: list[UOp]) -> Sequence[UOp]:
        """Each store to shared memory comes after the loads that should have waited for it."""
        late: list[UOp] = []
        order: list[UOp] = []
        for node in line:
            if node.op is Op.STORE and is_shared(node):
                late.append(node)
                continue
            if node.op is Op.BARRIER:
                continue
            order.append(node)
            if node.op is Op.LOAD and is_shared(node):
                order += late
                late = []
        return [*order, *late]


def is_shared(node: UOp) -> bool:
    """True if a load or store is of shared memory."""
    return node.src[0].src[0].op is Op.DEFINE_LOCAL


@found_by("test_narrow_operands_in_shared_memory[float16-32x16x32]")
class FirstOfWord(Rewriter):
    """The first of two numbers of 16 bits in one word of shared memory is read for both."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The index, rounded down to an even one."""
        if node.op is not Op.LOAD or not is_shared(node) or node.dtype.itemsize != 2:
            return (node,)
        index = node.src[0]
        pointer, place, *gate = index.src
        mask = UOp.index(-2)
        even = place.alu(Op.AND, mask)
        moved = index.with_src((pointer, even, *gate))
        return (mask, even, moved, node.with_src((moved, *node.src[1:])))


@found_by("test_narrow_operands_are_widened[int8-32x16x32]")
class WidenedByZeros(Rewriter):
    """A byte that is read from memory is widened by zeros, whatever its sign."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Load the byte as unsigned."""
        if node.op is not Op.CAST or node.src[0].op is not Op.LOAD:
            return (node,)
        if node.src[0].dtype is not dtypes.int8:
            return (node,)
        unsigned = node.src[0].bitcast(dtypes.uint8)
        return (unsigned, node.with_src((unsigned,)))


@found_by("test_matrix_units_multiply")
class TurnedFragment(Rewriter):
    """A lane gives its elements of the left matrix to the matrix unit in the opposite order."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Reverse the elements of a lane."""
        if node.op is not Op.MATRIX:
            return (node,)
        left, *others = node.src
        scalar, count = left.dtype.scalar(), left.dtype.count
        lanes = [UOp(Op.EXTRACT, scalar, (left,), (lane,)) for lane in reversed(range(count))]
        turned = UOp(Op.VECTORIZE, left.dtype, tuple(lanes))
        return (*lanes, turned, node.with_src((turned, *others)))


@found_by("test_all_of_shared_memory")
class OverstatedMemory(Rewriter):
    """The limits state more shared memory than there is."""

    dims = replace(LIMITS, shared_bytes=2 * LIMITS.shared_bytes)


@found_by("test_a_full_block[axis0]")
class OverstatedBlock(Rewriter):
    """The limits state more threads than a group can have."""

    dims = replace(LIMITS, block=(1024, 1024, 64), block_threads=1024)
