"""Types that a target can only store: computed in float32, converted where they meet memory.

Floor 3'. `Renderer.emulated` names them (bfloat16, the fp8s, float16 on some targets). In memory
they are unsigned integers of their width. A value of such a type takes one of two forms while the
rules run: its bits, as BITCAST from that integer (after LOAD, CAST and BITCAST), or a float32 that
stands for it unrounded (after arithmetic). Conversions round to nearest even by integer operations;
overflow and NaN follow the OCP 8-bit floating point specification, revision 1.0, as torch does.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from tinycore.dtype import DType, PointerDType, dtypes, float_layout
from tinycore.render.base import Renderer, pointer_of
from tinycore.uop.evaluate import round_to
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPARISON, Op
from tinycore.uop.pattern import RuleSet, node, var

UNROUNDED: Final = "unrounded"
"""The argument of a CAST whose source, a float32, stands for the value of the type as it is."""

ROUNDED: Final = "rounded"
"""The argument of a CAST to a wider float that takes the value as memory would hold it."""

STORAGE: Final = {1: dtypes.uint8, 2: dtypes.uint16}
"""The integer that holds a type of so many bytes."""

CONVERSIONS: Final = frozenset({Op.CAST, Op.BITCAST})


@cache
def lower_dtypes(renderer: Renderer) -> RuleSet:
    """The rules that leave no value of a type the renderer emulates."""
    return emulate(renderer.emulated) + detours


detours: Final = RuleSet("detours")


@detours.rule(node(Op.CAST, var("x", when=lambda x: is_lane_of(x, dtypes.float64)), name="root"))
def double_to_half(root: UOp, x: UOp) -> UOp | None:
    """float16(x) == float16(float32(x)): what targets can do without a library, and torch does."""
    if not is_lane_of(root, dtypes.float16):
        return None
    return x.cast(dtypes.float32).cast(dtypes.float16)


@cache
def emulate(types: frozenset[DType]) -> RuleSet:
    """Rules that compute values of `types` in float32."""
    rules = RuleSet("emulate " + " ".join(sorted(dtype.name for dtype in types)))

    def held(u: UOp) -> bool:
        return not isinstance(u.dtype, PointerDType) and u.dtype.scalar() in types

    def matrix_operands(root: UOp) -> UOp | None:
        """A matrix unit takes the bits of what it multiplies."""
        src = tuple([bits_of(s) if held(s) else s for s in root.src])
        return None if src == root.src else root.with_src(src)

    value = var("value", when=held)
    rules.rule(node(Op.CONST, name="root", when=held))(constant)
    rules.rule(node(ALU - CONVERSIONS - {Op.WHERE}, name="root", when=held))(arithmetic)
    rules.rule(node({Op.WHERE, Op.VECTORIZE, Op.EXTRACT}, name="root", when=held))(selection)
    rules.rule(node(COMPARISON, value, var(), name="root", ordered=True))(comparison)
    rules.rule(node(Op.CAST, name="root", when=held))(cast_to)
    rules.rule(node(Op.CAST, value, name="root"))(cast_from)
    rules.rule(node(Op.BITCAST, value, name="root"))(bits_from)
    rules.rule(node(Op.BITCAST, name="root", when=held))(bits_to)
    rules.rule(node(Op.MATRIX, name="root"))(matrix_operands)
    rules.rule(node(Op.LOAD, name="root", when=held))(load)
    rules.rule(node(Op.STORE, var("index"), value))(store)
    return rules


def is_lane_of(u: UOp, dtype: DType) -> bool:
    """Whether a value is of a scalar type, in any number of lanes."""
    return not isinstance(u.dtype, PointerDType) and u.dtype.scalar() is dtype


# --- the two forms of a value


def unrounded(dtype: DType, value: UOp) -> UOp:
    """A float32 that stands for a value of `dtype`."""
    return UOp(Op.CAST, dtype.vec(value.dtype.count), (value,), UNROUNDED)


def as_float(value: UOp) -> UOp:
    """The float32 of a value in either form."""
    if value.op is Op.CAST and value.arg == UNROUNDED:
        return value.src[0]
    return decode(bits_of(value), value.dtype.scalar())


def as_rounded(value: UOp) -> UOp:
    """The float32 that a value of its type has.

    What decides something must see the value that memory would hold: whether an element equals
    the maximum that another kernel stored, or which integer it becomes.
    """
    if value.op is Op.CAST and value.arg == UNROUNDED and value.src[0].op is Op.CONST:
        return value.src[0]
    return decode(bits_of(value), value.dtype.scalar())


def bits_of(value: UOp) -> UOp:
    """The integer of a value in either form."""
    if value.op is Op.CAST and value.arg == UNROUNDED:
        return encode(value.src[0], value.dtype.scalar())
    assert value.op is Op.BITCAST, f"{value!r} is in neither form"
    return value.src[0]


def storage(dtype: DType) -> DType:
    """The integer type with the bits of `dtype`, lane by lane."""
    return STORAGE[dtype.itemsize].vec(dtype.count)


def float32(dtype: DType) -> DType:
    """float32 with as many lanes."""
    return dtypes.float32.vec(dtype.count)


# --- rules; sources are in one of the two forms already


def constant(root: UOp) -> UOp:
    """A constant becomes the float32 it rounds to in its type."""
    return unrounded(root.dtype, UOp.const(dtypes.float32, round_to(root.dtype, root.arg)))


def arithmetic(root: UOp) -> UOp:
    """op(a, b) == op(float32(a), float32(b)), left unrounded."""
    src = tuple(as_float(s) for s in root.src)
    return unrounded(root.dtype.scalar(), UOp(root.op, float32(root.dtype), src, root.arg))


def selection(root: UOp) -> UOp:
    """Choosing values chooses their bits, or their floats where one is unrounded."""
    start = 1 if root.op is Op.WHERE else 0
    values = root.src[start:]
    if all(v.op is Op.BITCAST for v in values):
        src = (*root.src[:start], *map(bits_of, values))
        return UOp(root.op, storage(root.dtype), src, root.arg).bitcast(root.dtype)
    src = (*root.src[:start], *map(as_float, values))
    return unrounded(root.dtype.scalar(), UOp(root.op, float32(root.dtype), src, root.arg))


def comparison(root: UOp) -> UOp:
    """a < b == float32(a) < float32(b), both rounded."""
    return root.with_src(tuple(as_rounded(s) for s in root.src))


def cast_to(root: UOp) -> UOp | None:
    """A conversion to the type rounds to it. What is unrounded already is left alone."""
    if root.arg == UNROUNDED:
        return None
    source = root.src[0]
    wide = as_float(source) if source.dtype.itemsize < 4 and is_small(source) else source
    return encode(wide.cast(dtypes.float32), root.dtype.scalar()).bitcast(root.dtype)


def is_small(value: UOp) -> bool:
    """Whether a value is in one of the two forms."""
    return value.dtype.kind == "float" and (value.op is Op.BITCAST or value.arg == UNROUNDED)


def cast_from(root: UOp, value: UOp) -> UOp:
    """A conversion from the type is one from float32, rounded if an integer is asked for.

    A wider float takes the value unrounded: sums of products would pay for it at each element.
    """
    is_free = root.dtype.kind == "float" and root.arg != ROUNDED
    exact = as_float if is_free else as_rounded
    return exact(value).cast(root.dtype)


def bits_from(root: UOp, value: UOp) -> UOp:
    """The bits of a value are those of its integer."""
    return bits_of(value).bitcast(root.dtype)


def bits_to(root: UOp) -> UOp | None:
    """The bits come from the unsigned integer."""
    source = root.src[0]
    if source.dtype is storage(root.dtype):
        return None
    return source.bitcast(storage(root.dtype)).bitcast(root.dtype)


def load(root: UOp) -> UOp:
    """A LOAD reads the integer, from a register or shared memory the float32."""
    index = stored(root.src[0])
    assert isinstance(index.dtype, PointerDType)
    dtype = index.dtype.base.scalar().vec(root.dtype.count)
    if dtype.kind == "float":
        whole = UOp(Op.LOAD, dtype, (index, *map(as_float, root.src[1:])))
        return unrounded(root.dtype.scalar(), whole)
    other = tuple(bits_of(s) for s in root.src[1:])
    return UOp(Op.LOAD, dtype, (index, *other)).bitcast(root.dtype)


def store(index: UOp, value: UOp) -> UOp:
    """A STORE writes the integer, to a register or shared memory the float32."""
    target = stored(index)
    assert isinstance(target.dtype, PointerDType)
    text = as_float(value) if target.dtype.base.kind == "float" else bits_of(value)
    return UOp(Op.STORE, dtypes.void, (target, text))


def stored(pointer: UOp) -> UOp:
    """An INDEX, AFTER or DEFINE of the type as one of what is kept there in its place."""
    kind = pointer.dtype
    assert isinstance(kind, PointerDType)
    if pointer.op in (Op.INDEX, Op.AFTER):
        inner = stored(pointer.src[0])
        return UOp(pointer.op, inner.dtype, (inner, *pointer.src[1:]), pointer.arg)
    base = storage(kind.base) if pointer.op is Op.DEFINE_GLOBAL else float32(kind.base)
    return pointer.replace(dtype=base.ptr(kind.size, kind.space))


# --- operands of matrix units in shared memory


def stage_bits(kernel: UOp, types: frozenset[DType]) -> UOp:
    """The kernel with what matrix units multiply in shared memory as integers with its bits."""
    arrays = {
        pointer_of(n.src[0])
        for matrix in kernel.toposort()
        if matrix.op is Op.MATRIX
        for n in UOp.sink(*matrix.src[:2]).toposort(lambda n: n.op is not Op.LOAD)
        if n.op is Op.LOAD and n.dtype.scalar() in types
    }
    staged = {array for array in arrays if array.op is Op.DEFINE_LOCAL}
    if not staged:
        return kernel
    done: dict[UOp, UOp] = {}
    for old in kernel.toposort():
        new = old.with_src(tuple([done[s] for s in old.src]))
        done[old] = in_bits(old, new) if is_access(old, staged) else new
    return done[kernel]


def is_access(u: UOp, arrays: set[UOp]) -> bool:
    """Whether a node is one of some arrays, points into it, or reads or writes it."""
    if u.op in (Op.LOAD, Op.STORE):
        return pointer_of(u.src[0]) in arrays
    return isinstance(u.dtype, PointerDType) and pointer_of(u) in arrays


def in_bits(old: UOp, new: UOp) -> UOp:
    """An array of a type as one of its bits, a pointer into it, or an access to it."""
    if new.op is Op.LOAD:
        others = tuple([s.bitcast(storage(s.dtype)) for s in new.src[1:]])
        bits = UOp(Op.LOAD, storage(old.dtype), (new.src[0], *others), new.arg)
        return bits.bitcast(old.dtype)
    if new.op is Op.STORE:
        index, value = new.src
        return new.with_src((index, value.bitcast(storage(value.dtype))))
    if new.op is Op.DEFINE_LOCAL:
        assert isinstance(old.dtype, PointerDType)
        return new.replace(dtype=storage(old.dtype.base).ptr(old.dtype.size, old.dtype.space))
    return new.replace(dtype=new.src[0].dtype)


# --- bits


def encode(value: UOp, dtype: DType) -> UOp:
    """The bits of a float32 rounded to `dtype`, to nearest even."""
    bits = value.bitcast(dtypes.uint32.vec(value.dtype.count))
    magnitude = bits & 0x7FFFFFFF
    if dtype is dtypes.bfloat16:
        rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
        code = (magnitude > 0x7F800000).where(bits.const_like(0x7FC0), rounded)
        return code.cast(dtypes.uint16)
    layout = float_layout(dtype)
    mantissa, bias = layout.mantissa_bits, layout.bias
    shift = 23 - mantissa
    odd = (magnitude >> shift) & 1
    normal = (magnitude + odd - ((127 - bias << 23) - ((1 << shift - 1) - 1))) >> shift
    # Adding `unit * 2**23` leaves the count of the type's smallest numbers in the low bits.
    offset = bits.const_like(127 + 24 - bias - mantissa << 23)
    counted = magnitude.bitcast(value.dtype) + offset.bitcast(value.dtype)
    subnormal = counted.bitcast(bits.dtype) - offset
    code = (magnitude < (128 - bias << 23)).where(subnormal, normal)
    # What the rounding above cannot encode would be the next number after the greatest, or more.
    overflow = float32_bits(layout.magnitude(layout.beyond))
    code = (magnitude < overflow).where(code, bits.const_like(layout.beyond))
    code = (magnitude > 0x7F800000).where(bits.const_like(nan_code(dtype)), code)
    sign = (bits >> 31) << (dtype.bits - 1)
    if not layout.has_negative_zero:
        sign = code.ne(0).where(sign, bits.const_like(0))
    return (code | sign).cast(storage(dtype))


def decode(code: UOp, dtype: DType) -> UOp:
    """The float32 that `code`, the bits of a value of `dtype`, stands for: exactly."""
    bits = code.cast(dtypes.uint32)
    real = dtypes.float32.vec(code.dtype.count)
    if dtype is dtypes.bfloat16:
        return (bits << 16).bitcast(real)
    layout = float_layout(dtype)
    mantissa, bias = layout.mantissa_bits, layout.bias
    magnitude = bits & ((1 << dtype.bits - 1) - 1)
    shifted = magnitude << (23 - mantissa)
    normal = shifted + (127 - bias << 23)
    # A subnormal: put its digits behind a leading 1, then take the 1 away.
    one = bits.const_like(128 - bias << 23)
    subnormal = ((shifted + one).bitcast(real) - one.bitcast(real)).bitcast(bits.dtype)
    result = (magnitude < (1 << mantissa)).where(subnormal, normal)
    nan = bits.const_like(0x7FC00000)
    if layout.has_negative_zero:
        special = shifted | 0x7F800000 if layout.has_infinity else nan
        result = (magnitude < layout.beyond).where(result, special)
    else:
        result = bits.ne(layout.nan).where(result, nan)
    sign = (bits >> (dtype.bits - 1)) << 31
    return (result | sign).bitcast(real)


def nan_code(dtype: DType) -> int:
    """The bits of a quiet NaN, without its sign: in 8 bits as torch has it."""
    return 0x7E00 if dtype is dtypes.float16 else float_layout(dtype).nan


def float32_bits(value: float) -> int:
    """The bits of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
