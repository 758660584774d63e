"""Faults of shifts beyond the width, and of vectors: right in scalars, or for tame numbers.

The accelerator itself has no vectors; those of these faults that are about lanes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiny_testing.accelerator.device import LIMITS, VECTOR_BYTES, Rewriter
from tiny_testing.accelerator.faults.fault import found_by
from tiny_testing.loads import TileLoad
from tinycore.dtype import DType, dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import SHIFTS, Op

__all__ = ["Vectors"]


class Vectors(Rewriter):
    """Lanes of 16 bytes, which are accessed at multiples of that."""

    dims = replace(LIMITS, vector_bytes=VECTOR_BYTES, access_alignment=VECTOR_BYTES)


@found_by("test_external_memory_may_begin_anywhere[1]")
class OverstatedAlignment(Vectors):
    """The limits say that vectors may begin anywhere, and the device wants them aligned."""

    dims = replace(Vectors.dims, access_alignment=1, block_wanted=64)


@found_by("test_matrix_units_load_operands")
class UnturnedTiles(Vectors):
    """Tiles of a matrix unit's operand that should be turned are loaded as they lie."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Row by row."""
        if not isinstance(node.arg, TileLoad):
            return (node,)
        return (node.replace(arg=replace(node.arg, is_turned=False)),)


@found_by("test_lanes_exchange_values[float32]")
class NearbyLanes(Rewriter):
    """A lane that asks one in the other half of its subgroup gets the value of one in its own."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The upper bit of the mask is left out."""
        half = LIMITS.subgroup // 2
        if node.op is not Op.SHUFFLE or node.arg <= half:
            return (node,)
        return (node.replace(arg=node.arg - half),)


@found_by("test_own_instructions_compute_what_they_mean")
class SwappedOperands(Rewriter):
    """An instruction of the device's own takes its operands in the opposite order."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The sources turned around."""
        return (node.with_src(node.src[::-1]) if node.op is Op.INSTRUCTION else node,)


@found_by("test_operands_in_swizzled_rows[float32-2x16]")
class JoinedBits(Rewriter):
    """Bits of addresses that should be exchanged are joined, so pieces of rows coincide."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Replace an XOR by an OR."""
        is_place = node.op is Op.XOR and node.dtype is dtypes.index
        return (node.replace(op=Op.OR),) if is_place else (node,)


def is_cast(node: UOp, source: DType, target: DType) -> bool:
    """True if a node casts one dtype to another, in lanes or not."""
    if node.op is not Op.CAST or node.dtype.scalar() is not target:
        return False
    return node.src[0].dtype.scalar() is source


def as_lanes(target: DType, node: UOp) -> DType:
    """A dtype with the lanes of a node."""
    return target.vec(node.dtype.count)


def cast_lanes(node: UOp, target: DType) -> UOp:
    """A node cast to a dtype, lane by lane."""
    return UOp(Op.CAST, as_lanes(target, node), (node,))


def bits_as(node: UOp, target: DType) -> UOp:
    """The bits of a node as another dtype, lane by lane."""
    return UOp(Op.BITCAST, as_lanes(target, node), (node,))


def constant(like: UOp, value: int) -> tuple[UOp, ...]:
    """The nodes of a number in every lane, that of all lanes last."""
    made = like.const_like(value)
    return (*made.src[:1], made)


# --- shifts


@found_by("test_shifts_by_every_amount[uint8]")
class WidenedShift(Rewriter):
    """Numbers of 8 bits are shifted as those of 32, so amounts are taken modulo 32."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Shift in uint32."""
        if node.op not in SHIFTS or node.dtype.scalar() is not dtypes.uint8:
            return (node,)
        a, b = (cast_lanes(s, dtypes.uint32) for s in node.src)
        shifted = UOp(node.op, a.dtype, (a, b))
        return (a, b, shifted, cast_lanes(shifted, dtypes.uint8))


@found_by("test_shifts_by_every_amount[int16]")
class EmptiedShift(Rewriter):
    """Numbers of 16 bits shifted by the width and more become 0, as NumPy has it."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """0 where the amount is as great as the width."""
        if node.op not in SHIFTS or node.dtype.scalar() is not dtypes.int16:
            return (node,)
        unsigned = bits_as(node.src[1], dtypes.uint16)
        width, zero = unsigned.const_like(15), node.const_like(0)
        beyond = UOp(Op.CMPLT, as_lanes(dtypes.bool, node), (width, unsigned))
        return (node, unsigned, width, zero, beyond, beyond.where(zero, node))


@found_by("test_shifts_by_every_amount[int32]")
class OneAmount(Vectors):
    """All lanes are shifted by the amount of the first, as instructions with one amount do."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The first lane of the amounts, repeated."""
        if (
            node.op not in SHIFTS
            or node.dtype.count == 1
            or node.dtype.scalar() is not dtypes.int32
        ):
            return (node,)
        amounts = node.src[1]
        first = UOp(Op.EXTRACT, amounts.dtype, (amounts,), (0,) * amounts.dtype.count)
        return (first, node.with_src((node.src[0], first)))


@found_by("test_shifts_by_a_constant[uint64]")
class ShortImmediate(Rewriter):
    """An amount that the program states has five bits, as in instructions for words of 32."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The amount modulo 32."""
        if node.op not in SHIFTS or node.src[1].op is not Op.CONST:
            return (node,)
        short = node.const_like(int(node.src[1].arg) % 32)
        return (short, node.with_src((node.src[0], short)))


# --- floats that become integers


@found_by("test_a_cast_in_lanes[float32-uint8]")
class SaturatedBytes(Rewriter):
    """A float beyond the bytes becomes the least or the greatest of them, as some cards have it."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The float is held between 0 and 255."""
        if not is_cast(node, dtypes.float32, dtypes.uint8):
            return (node,)
        x = node.src[0]
        least, most = x.const_like(0.0), x.const_like(255.0)
        above = x.alu(Op.MAX, least)
        held = above.alu(Op.MIN, most)
        return (least, most, above, held, node.with_src((held,)))


@found_by("test_a_cast_in_lanes[float32-uint32]")
class SignedLanes(Vectors):
    """Lanes of floats become uint32 through int32, as where there is no instruction for them."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Convert by way of int32."""
        if node.dtype.count == 1 or not is_cast(node, dtypes.float32, dtypes.uint32):
            return (node,)
        signed = cast_lanes(node.src[0], dtypes.int32)
        return (signed, bits_as(signed, dtypes.uint32))


@found_by("test_floats_that_are_no_numbers_become_integers[float32-int32]")
class ZeroForNan(Rewriter):
    """NaN becomes 0, as some instructions have it."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """0 where a float differs from itself."""
        if not is_cast(node, dtypes.float32, dtypes.int32):
            return (node,)
        x, zero = node.src[0], node.const_like(0)
        strange = UOp(Op.CMPNE, as_lanes(dtypes.bool, node), (x, x))
        return (node, zero, strange, strange.where(zero, node))


# --- other casts in lanes


@found_by("test_a_cast_in_lanes[float32-bool]")
class TruncatedTruth(Vectors):
    """Lanes of floats become bools through integers, so a half is false."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Convert by way of int32."""
        if node.dtype.count == 1 or not is_cast(node, dtypes.float32, dtypes.bool):
            return (node,)
        cut = cast_lanes(node.src[0], dtypes.int32)
        return (cut, cast_lanes(cut, dtypes.bool))


@found_by("test_a_cast_in_lanes[int8-int32]")
class UnsignedWidening(Vectors):
    """Lanes of int8 are widened without their sign."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Widen from uint8."""
        if node.dtype.count == 1 or not is_cast(node, dtypes.int8, dtypes.int32):
            return (node,)
        unsigned = bits_as(node.src[0], dtypes.uint8)
        return (unsigned, cast_lanes(unsigned, dtypes.int32))


@found_by("test_a_cast_in_lanes[float32-bfloat16]")
class CutBfloat16(Vectors):
    """Lanes of float32 become bfloat16 without being rounded."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The upper half of the bits."""
        if node.dtype.count == 1 or not is_cast(node, dtypes.float32, dtypes.bfloat16):
            return (node,)
        bits = bits_as(node.src[0], dtypes.uint32)
        mask = constant(bits, 0xFFFF_0000)
        upper = bits.alu(Op.AND, mask[-1])
        cut = bits_as(upper, dtypes.float32)
        return (bits, *mask, upper, cut, node.with_src((cut,)))


@found_by("test_a_cast_in_lanes[float32-float16]")
class HalvedVector(Vectors):
    """The upper half of lanes that become float16 repeats the lower one."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The lower half of the lanes, twice."""
        count = node.dtype.count
        if count == 1 or not is_cast(node, dtypes.float32, dtypes.float16):
            return (node,)
        half = count // 2
        numbers = (*range(half), *range(half))
        return (node, UOp(Op.EXTRACT, node.dtype, (node,), numbers))


@found_by("test_a_cast_in_lanes[fp8e4m3-float32]")
class UnsignedBytes(Vectors):
    """Lanes of 8-bit floats lose their sign."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Its magnitude."""
        if node.dtype.count == 1 or not is_cast(node, dtypes.fp8e4m3, dtypes.float32):
            return (node,)
        bits = bits_as(node, dtypes.uint32)
        mask = constant(bits, 0x7FFF_FFFF)
        magnitude = bits.alu(Op.AND, mask[-1])
        return (node, bits, *mask, magnitude, bits_as(magnitude, dtypes.float32))
