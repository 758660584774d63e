"""Emulated dtypes: stored as integers, computed in float32.

Floor 3'. `Renderer.emulated` names them (bfloat16, the fp8s, float16 on some targets). In memory
they are unsigned integers of their width. A value of such a type takes one of two forms while the
rules run: its bits, as BITCAST from that integer (after LOAD, CAST and BITCAST), or a float32 that
stands for it unrounded (after arithmetic). Conversions round to nearest even by integer operations,
or are CASTs where the device has instructions for them (`Renderer.converts`); overflow and NaN
follow the OCP 8-bit floating point specification, revision 1.0, as torch does.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from tinycore.dtype import DType, PointerDType, dtypes, float_layout
from tinycore.render.base import Renderer, pointer_of
from tinycore.uop.evaluate import round_to
from tinycore.uop.instruction import reads_memory
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPARISON, Op
from tinycore.uop.pattern import RuleSet, node, var
from tinycore.uop.rewrite import rebuilt

UNROUNDED: Final = "unrounded"
"""The argument of a CAST whose source, a float32, stands for the value of the type as it is."""

ROUNDED: Final = "rounded"
"""The argument of a CAST to a wider float that takes the value as memory would hold it."""

STORAGE: Final = {1: dtypes.uint8, 2: dtypes.uint16}
"""The integer with the size of a type, by bytes."""

CONVERSIONS: Final = frozenset({Op.CAST, Op.BITCAST})


@cache
def lower_dtypes(renderer: Renderer) -> RuleSet:
    """The rules that leave no arithmetic in a type the renderer emulates."""
    return emulate(renderer.emulated, renderer.converts) + detours


detours: Final = RuleSet("detours")


@detours.rule(node(Op.CAST, var("x", when=lambda x: is_lane_of(x, dtypes.float64)), name="root"))
def double_to_half(root: UOp, x: UOp) -> UOp | None:
    """float16(x) == float16(float32(x)): what targets can do without a library, and torch does."""
    if not is_lane_of(root, dtypes.float16):
        return None
    return x.cast(dtypes.float32).cast(dtypes.float16)


@cache
def emulate(types: frozenset[DType], converted: frozenset[DType] = frozenset()) -> RuleSet:
    """Rules that compute values of `types` in float32; CASTs convert those that are `converted`."""
    rules = RuleSet("emulate " + " ".join(sorted(dtype.name for dtype in types)))
    forms = Forms(types, converted)
    value = var("value", when=forms.holds)
    rules.rule(node(Op.CONST, name="root", when=forms.holds))(constant)
    rules.rule(node(ALU - CONVERSIONS - {Op.WHERE}, name="root", when=forms.holds))(
        forms.arithmetic
    )
    rules.rule(node({Op.WHERE, Op.VECTORIZE, Op.EXTRACT}, name="root", when=forms.holds))(
        forms.selection
    )
    rules.rule(node(COMPARISON, value, var(), name="root", ordered=True))(forms.comparison)
    rules.rule(node(Op.CAST, name="root", when=forms.holds))(forms.cast_to)
    rules.rule(node(Op.CAST, value, name="root"))(forms.cast_from)
    rules.rule(node(Op.BITCAST, value, name="root"))(forms.bits_from)
    rules.rule(node(Op.BITCAST, name="root", when=forms.holds))(bits_to)
    rules.rule(node(Op.MATRIX, name="root"))(forms.matrix_operands)
    rules.rule(node({Op.LOAD, Op.INSTRUCTION}, name="root", when=forms.is_read))(forms.load)
    rules.rule(node(Op.STORE, var(), value, name="root"))(forms.store)
    rules.rule(node(Op.INSTRUCTION, name="root"))(forms.effect)
    return rules


def is_lane_of(u: UOp, dtype: DType) -> bool:
    """True if a value is of a scalar type, in any number of lanes."""
    return not isinstance(u.dtype, PointerDType) and u.dtype.scalar() is dtype


# --- the forms of a value


def unrounded(dtype: DType, value: UOp) -> UOp:
    """A float32 that represents a value of `dtype` without rounding."""
    return UOp(Op.CAST, dtype.vec(value.dtype.count), (value,), UNROUNDED)


def is_unrounded(value: UOp) -> bool:
    """True if a value is held as a float32 that was not rounded."""
    return value.op is Op.CAST and value.arg == UNROUNDED


def storage(dtype: DType) -> DType:
    """The integer type with the bits of `dtype`, lane by lane."""
    return STORAGE[dtype.itemsize].vec(dtype.count)


def is_exact(integer: DType, dtype: DType) -> bool:
    """True if a float type has every value of a type of integers, as bfloat16 those of 8 bits."""
    if integer.kind not in ("int", "uint", "bool"):
        return False
    bits = integer.bits - (integer.kind == "int")  # the least one is a power of two
    return bits <= float_layout(dtype).mantissa_bits + 1


def float32(dtype: DType) -> DType:
    """float32 with the same number of lanes."""
    return dtypes.float32.vec(dtype.count)


def constant(root: UOp) -> UOp:
    """A constant becomes the float32 it rounds to in its type."""
    return unrounded(root.dtype, UOp.const(dtypes.float32, round_to(root.dtype, root.arg)))


def bits_to(root: UOp) -> UOp | None:
    """The bits come from the unsigned integer."""
    source = root.src[0]
    if source.dtype is storage(root.dtype):
        return None
    return source.bitcast(storage(root.dtype)).bitcast(root.dtype)


@dataclass(frozen=True)
class Forms:
    """The forms of values of `types`, and the rules; their sources are in one of them already.

    A type that is `converted` has a third form: a CAST from float32, which its device rounds.
    """

    types: frozenset[DType]
    converted: frozenset[DType]

    def holds(self, u: UOp) -> bool:
        """True if a value is of one of the types."""
        return not isinstance(u.dtype, PointerDType) and u.dtype.scalar() in self.types

    def is_read(self, u: UOp) -> bool:
        """True if a node reads a value of one of the types from memory."""
        return self.holds(u) and reads_memory(u)

    def is_converted(self, u: UOp) -> bool:
        """True if a value is of a type that the device converts."""
        return u.dtype.scalar() in self.converted

    def as_float(self, value: UOp) -> UOp:
        """The float32 of a value in any form."""
        return value.src[0] if is_unrounded(value) else self.exact(value)

    def as_rounded(self, value: UOp) -> UOp:
        """The float32 that a value of its type has.

        What decides something must see the value that memory would hold: whether an element equals
        the maximum that another kernel stored, or which integer it becomes.
        """
        if is_unrounded(value):
            if value.src[0].op is Op.CONST:
                return value.src[0]
            value = self.encoded(value.src[0], value.dtype).bitcast(value.dtype)
        return self.exact(value)

    def exact(self, value: UOp) -> UOp:
        """The float32 of a value that is rounded."""
        if self.is_converted(value):
            return value.cast(dtypes.float32)
        return decode(self.bits_of(value), value.dtype.scalar())

    def bits_of(self, value: UOp) -> UOp:
        """The integer of a value in any form."""
        if is_unrounded(value):
            return self.encoded(value.src[0], value.dtype)
        if value.op is Op.CAST:
            return value.bitcast(storage(value.dtype))
        assert value.op is Op.BITCAST, f"{value!r} is in none of the forms"
        return value.src[0]

    def encoded(self, value: UOp, dtype: DType) -> UOp:
        """The bits of a float32 in one of the types."""
        if dtype.scalar() in self.converted and value.op is not Op.CONST:
            return value.cast(dtype.scalar()).bitcast(storage(dtype))
        return encode(value, dtype.scalar())

    # --- rules

    def arithmetic(self, root: UOp) -> UOp:
        """op(a, b) == op(float32(a), float32(b)), left unrounded."""
        src = tuple(map(self.as_float, root.src))
        return unrounded(root.dtype.scalar(), UOp(root.op, float32(root.dtype), src, root.arg))

    def selection(self, root: UOp) -> UOp:
        """Choosing values chooses their bits, or their floats where one is unrounded."""
        start = 1 if root.op is Op.WHERE else 0
        values = root.src[start:]
        if not any(map(is_unrounded, values)):
            src = (*root.src[:start], *map(self.bits_of, values))
            return UOp(root.op, storage(root.dtype), src, root.arg).bitcast(root.dtype)
        src = (*root.src[:start], *map(self.as_float, values))
        return unrounded(root.dtype.scalar(), UOp(root.op, float32(root.dtype), src, root.arg))

    def comparison(self, root: UOp, value: UOp) -> UOp:
        """a < b == float32(a) < float32(b), both rounded."""
        return root.with_src(tuple(map(self.as_rounded, root.src)))

    def cast_to(self, root: UOp) -> UOp | None:
        """A conversion to the type rounds to it. An unrounded value is unchanged."""
        source = root.src[0]
        is_float32 = source.dtype.scalar() is dtypes.float32
        if root.arg == UNROUNDED or (self.is_converted(root) and is_float32):
            return None
        wide = self.as_float(source) if self.holds(source) else source
        wide = wide.cast(dtypes.float32)
        if is_exact(source.dtype.scalar(), root.dtype.scalar()):
            return unrounded(root.dtype.scalar(), wide)
        if self.is_converted(root):
            return wide.cast(root.dtype)
        return encode(wide, root.dtype.scalar()).bitcast(root.dtype)

    def cast_from(self, root: UOp, value: UOp) -> UOp | None:
        """A conversion from the type is one from float32, rounded for integers.

        A wider float takes the value unrounded: sums of products would pay for it at each element.
        """
        is_free = root.dtype.kind == "float" and root.arg != ROUNDED
        found = (self.as_float if is_free else self.as_rounded)(value).cast(root.dtype)
        return None if found is root else found

    def bits_from(self, root: UOp, value: UOp) -> UOp | None:
        """The bits of a value are those of its integer."""
        found = self.bits_of(value).bitcast(root.dtype)
        return None if found is root else found

    def matrix_operands(self, root: UOp) -> UOp | None:
        """A matrix unit takes the bits of its operands."""
        src = tuple([self.bits_of(s) if self.holds(s) else s for s in root.src])
        return None if src == root.src else root.with_src(src)

    def load(self, root: UOp) -> UOp:
        """A LOAD, or an Effect, reads the integer, from a register or an array the float32."""
        index = stored(root.src[0])
        dtype = base_of(index).scalar().vec(root.dtype.count)
        kept = self.as_float if dtype.kind == "float" else self.bits_of
        whole = UOp(root.op, dtype, (index, *map(kept, root.src[1:])), root.arg)
        is_float = dtype.kind == "float"
        return unrounded(root.dtype.scalar(), whole) if is_float else whole.bitcast(root.dtype)

    def store(self, root: UOp, value: UOp) -> UOp:
        """A STORE writes the integer, to a register or an array the float32."""
        target = stored(root.src[0])
        kept = self.as_float if base_of(target).kind == "float" else self.bits_of
        return root.with_src((target, kept(value)))

    def effect(self, root: UOp) -> UOp | None:
        """Instructions without a result act on buffers of the integers."""
        buffers = [s for s in root.src if s.op is Op.DEFINE_GLOBAL]
        bits = {s: stored(s) for s in buffers if base_of(s).scalar() in self.types}
        return root.with_src(tuple([bits.get(s, s) for s in root.src])) if bits else None


def base_of(pointer: UOp) -> DType:
    """The type of the elements that a pointer is to."""
    assert isinstance(pointer.dtype, PointerDType)
    return pointer.dtype.base


def stored(pointer: UOp) -> UOp:
    """An INDEX, AFTER or DEFINE of the type as one of its storage type, unless it is one."""
    kind = pointer.dtype
    assert isinstance(kind, PointerDType)
    if kind.base.kind != "float":
        return pointer
    if pointer.op in (Op.INDEX, Op.AFTER):
        inner = stored(pointer.src[0])
        return UOp(pointer.op, inner.dtype, (inner, *pointer.src[1:]), pointer.arg)
    base = storage(kind.base) if pointer.op is Op.DEFINE_GLOBAL else float32(kind.base)
    return pointer.replace(dtype=base.ptr(kind.size, kind.space))


# --- arrays in shared memory


def stage_bits(kernel: UOp, renderer: Renderer) -> UOp:
    """The kernel with arrays in shared memory that keep their narrow type, as integers of its bits.

    Those are operands of matrix units, and what is only moved. Other arrays are of float32, so that
    a value is converted once. Rules convert what is read from these arrays and stored to them.
    """
    if not renderer.emulated:
        return kernel
    nodes = kernel.toposort()
    staged = operands_staged(nodes, renderer.emulated) | moved_arrays(nodes, renderer.emulated)
    if not staged:
        return kernel

    def change(old: UOp, new: UOp) -> UOp:
        kind = old.dtype
        if not isinstance(kind, PointerDType) or pointer_of(old) not in staged:
            return new
        return new.replace(dtype=storage(kind.base).ptr(kind.size, kind.space))

    return rebuilt(kernel, change)


def operands_staged(nodes: Iterable[UOp], types: frozenset[DType]) -> set[UOp]:
    """The arrays in shared memory that matrix units multiply from."""
    multiplied = UOp.sink(*(s for n in nodes if n.op is Op.MATRIX for s in n.src[:2]))
    operands = multiplied.toposort(lambda n: not reads_memory(n))
    loads = [n for n in operands if reads_memory(n) and n.dtype.scalar() in types]
    return {array for n in loads if (array := pointer_of(n.src[0])).op is Op.DEFINE_LOCAL}


def rounded_arrays(nodes: Iterable[UOp], types: frozenset[DType]) -> set[UOp]:
    """The arrays in shared memory that hold but rounded values of some types."""
    stores: dict[UOp, list[UOp]] = defaultdict(list)
    for n in nodes:
        if n.op is Op.STORE and (array := pointer_of(n.src[0])).op is Op.DEFINE_LOCAL:
            stores[array].append(n.src[1])
    found = {a for a, values in stores.items() if values[0].dtype.scalar() in types}
    while wrong := {a for a in found if not all(is_rounded(v, found) for v in stores[a])}:
        found -= wrong
    return found


def moved_arrays(nodes: Iterable[UOp], types: frozenset[DType]) -> set[UOp]:
    """The arrays in shared memory whose values come from memory and go to memory as they are."""
    nodes = list(nodes)
    if not (arrays := rounded_arrays(nodes, types)):
        return set()
    other = {s for n in nodes for s in (n.src if n.op is not Op.STORE else (n.src[0], *n.src[2:]))}
    read: set[UOp] = set()
    for n in nodes:
        # Lanes that only a STORE takes are moved as they are.
        is_moved = n.op is Op.VECTORIZE and n not in other
        moved = n.src[1:2] if n.op is Op.STORE else n.src if is_moved else ()
        read.update(pointer_of(s.src[0]) for s in n.src if reads_memory(s) and s not in moved)
    return arrays - read


def is_rounded(value: UOp, arrays: set[UOp]) -> bool:
    """True if a value of a narrow type is no result of arithmetic, which is left unrounded."""
    if value.op is Op.LOAD:
        memory = pointer_of(value.src[0])
        kept = memory.op is Op.DEFINE_GLOBAL or memory in arrays
        return kept and all(is_rounded(other, arrays) for other in value.src[1:])
    if value.op in (Op.WHERE, Op.VECTORIZE, Op.EXTRACT):
        return all(is_rounded(v, arrays) for v in value.src[value.op is Op.WHERE :])
    return value.op in (Op.CONST, Op.CAST, Op.BITCAST)


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
    """The exact float32 of `code`, the bits of a value of `dtype`."""
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
