"""Vector instructions: VOP1, VOP2, VOP3, VOPC and VOPD (ISA, sections 16.7 to 16.11).

A row states the types of result and sources and what is computed. Sources pass |x|, then -x; float
results pass the scale, then the clamp. Transcendental functions are computed exactly and rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy
from emulation.faults import SyntaxFault
from emulation.numbers import fma_double, fma_narrow

from emulator.decode import FIRST_VGPR, Instruction
from emulator.scalar import leading_zeros, reverse, sign_bits, trailing_zeros
from emulator.state import (
    EXEC,
    TYPES,
    VCC,
    Array,
    State,
    Step,
    Who,
    bit_lanes,
    lane_bits,
    put,
    read_mask,
    read_vector,
    scalar_word,
    vector_word,
    width_of,
    write_mask,
    write_scalar,
    write_vector,
)

Operation = Callable[..., Any]
U16, U32, U64, I32, I64 = numpy.uint16, numpy.uint32, numpy.uint64, numpy.int32, numpy.int64


@dataclass(frozen=True)
class Row:
    """Types of result and sources, and what is computed."""

    result: str
    sources: tuple[str, ...]
    compute: Operation


def row(types: str, compute: Operation) -> Row:
    """A row from "result source source"."""
    result, *sources = types.split()
    return Row(result, tuple(sources), compute)


# --- floats


def once(operation: Operation) -> Operation:
    """An operation computed in double and rounded by whoever writes the result."""
    return lambda *values: operation(*(numpy.asarray(v, numpy.float64) for v in values))


def power_of_two(a: Array) -> Array:
    """2**a; of float32 results below its normal numbers are 0."""
    found = numpy.exp2(numpy.asarray(a, numpy.float64))
    return numpy.where(found < 2.0**-126, 0.0, found) if a.dtype == numpy.float32 else found


def smaller(a: Array, b: Array) -> Array:
    """The minimum; of a number and NaN the number, of zeros the negative one."""
    return numpy.where((a == b) & numpy.signbit(a), a, numpy.fmin(a, b))


def larger(a: Array, b: Array) -> Array:
    """The maximum; of a number and NaN the number, of zeros the positive one."""
    return numpy.where((a == b) & ~numpy.signbit(a), a, numpy.fmax(a, b))


def median(a: Array, b: Array, c: Array) -> Array:
    """The middle one of three; with a NaN among them the least."""
    middle = larger(smaller(a, b), smaller(larger(a, b), c))
    any_nan = numpy.isnan(a) | numpy.isnan(b) | numpy.isnan(c)
    return numpy.where(any_nan, smaller(smaller(a, b), c), middle)


def to_integer(kind: str) -> Operation:
    """Toward zero, ending at the bounds; NaN gives 0."""
    bounds = numpy.iinfo(TYPES[kind])

    def convert(a: Array) -> Array:
        whole = numpy.trunc(numpy.asarray(a, numpy.float64))
        whole = numpy.clip(numpy.where(numpy.isnan(whole), 0.0, whole), bounds.min, bounds.max)
        return whole.astype(I64).astype(TYPES[kind])

    return convert


def fix_quotient(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """v_div_fixup: the quotient, correctly rounded."""
    return numerator.astype(numpy.float64) / denominator.astype(numpy.float64)


def fix_quotient_double(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """v_div_fixup_f64."""
    return numerator / denominator


def scale_by_power(a: Array, exponent: Array) -> Array:
    """a * 2**exponent."""
    bounded = numpy.clip(exponent.astype(I64), -5000, 5000).astype(I32)
    return numpy.ldexp(numpy.asarray(a, numpy.float64), bounded)


def fraction(a: Array) -> Array:
    """a - floor(a), below 1."""
    below: Array = numpy.nextafter(a.dtype.type(1), a.dtype.type(0))
    found: Array = numpy.minimum(a - numpy.floor(a), below)
    return found


def exponent_of(a: Array) -> Array:
    """The exponent of a number whose mantissa is in [0.5, 1); 0 for what is not finite."""
    return numpy.where(numpy.isfinite(a), numpy.frexp(a)[1], 0).astype(I32)


def mantissa_of(a: Array) -> Array:
    """The mantissa in [0.5, 1)."""
    return numpy.where(numpy.isfinite(a), numpy.frexp(a)[0], a)


def turns(function: Operation) -> Operation:
    """sin and cos of an argument in revolutions."""
    return lambda a: function(numpy.remainder(a, 1.0) * (2 * numpy.pi))


def times_unless_zero(a: Array, b: Array) -> Array:
    """The product in which 0 times anything is 0."""
    return numpy.where((a == 0) | (b == 0), 0.0, a * b)


def round_toward_zero(a: Array, b: Array) -> Array:
    """v_cvt_pk_rtz_f16_f32."""
    halves = []
    for value in numpy.broadcast_arrays(a, b):
        near = value.astype(numpy.float16)
        too_far = numpy.abs(near.astype(numpy.float32)) > numpy.abs(value)
        halves.append(numpy.where(too_far, numpy.nextafter(near, numpy.float16(0)), near))
    return pack(halves[0].astype(numpy.float16), halves[1].astype(numpy.float16))


def pack(low: Array, high: Array) -> Array:
    """Two halves as a word."""
    low, high = (numpy.ascontiguousarray(x).view(U16).astype(U32) for x in (low, high))
    return low | high << U32(16)


# --- integers


def low24(a: Array, is_signed: bool) -> Array:
    """The lower 24 bits as a number."""
    if is_signed:
        return ((a << U32(8)).view(I32) >> I32(8)).astype(I64)
    return (a & U32(0xFFFFFF)).astype(I64)


def extract(a: Array, offset: Array, width: Array) -> Array:
    """v_bfe_u32."""
    mask = (U32(1) << (width & 31)) - U32(1)
    field: Array = a >> (offset & 31) & mask
    return field


def extract_signed(a: Array, offset: Array, width: Array) -> Array:
    """v_bfe_i32."""
    field, bits = extract(a, offset, width), width & 31
    sign = numpy.where(bits > 0, field >> (numpy.maximum(bits, 1) - U32(1)) & U32(1), U32(0))
    return numpy.where(sign != 0, field | ~((U32(1) << bits) - U32(1)), field)


def align(a: Array, b: Array, bits: Array) -> Array:
    """32 bits of a shifted pair."""
    pair = a.astype(U64) << U64(32) | b
    return (pair >> bits.astype(U64)).astype(U32)


def permute(a: Array, b: Array, selector: Array) -> Array:
    """v_perm_b32: bytes 0 to 3 are those of b, 4 to 7 those of a."""
    pair = numpy.broadcast_to(
        a.astype(U64) << U64(32) | b, numpy.broadcast_shapes(a.shape, b.shape, selector.shape)
    )
    result = numpy.zeros(pair.shape, U32)
    for index in range(4):
        choice = (selector >> U32(8 * index) & U32(0xFF)).astype(U64)
        byte = pair >> (choice & U64(7)) * U64(8) & U64(0xFF)
        sign_of = (choice - U64(8)) * U64(2) + U64(1)
        sign = numpy.where(pair >> (sign_of & U64(7)) * U64(8) & U64(0x80) != 0, U64(0xFF), U64(0))
        byte = numpy.where(choice >= 13, U64(0xFF), numpy.where(choice >= 8, sign, byte))
        byte = numpy.where(choice == 12, U64(0), byte)
        result |= (byte << U64(8 * index)).astype(U32)
    return result


def high_product(a: Array, b: Array) -> Array:
    """The upper half, signed or not as the operands are."""
    wide = I64 if a.dtype == I32 else U64
    return ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)


def median_integer(a: Array, b: Array, c: Array) -> Array:
    """The middle one of three."""
    return numpy.maximum(numpy.minimum(a, b), numpy.minimum(numpy.maximum(a, b), c))


def byte_of(index: int) -> Operation:
    """A byte as a number."""
    return lambda a: a >> U32(8 * index) & U32(0xFF)


def dot_halves(a: Array, b: Array, c: Array) -> Array:
    """v_dot2acc_f32_f16: both products and the sum."""
    parts = []
    for shift in (0, 16):
        x, y = (((v >> U32(shift)) & U32(0xFFFF)).astype(U16).view(numpy.float16) for v in (a, b))
        parts.append(x.astype(numpy.float64) * y.astype(numpy.float64))
    return parts[0] + parts[1] + c


FLOAT: Final[dict[str, tuple[int, Operation]]] = {
    "add": (2, numpy.add),
    "sub": (2, numpy.subtract),
    "subrev": (2, lambda a, b: b - a),
    "mul": (2, numpy.multiply),
    "min": (2, smaller),
    "max": (2, larger),
    "min3": (3, lambda a, b, c: smaller(smaller(a, b), c)),
    "max3": (3, lambda a, b, c: larger(larger(a, b), c)),
    "med3": (3, median),
    "maxmin": (3, lambda a, b, c: smaller(larger(a, b), c)),
    "minmax": (3, lambda a, b, c: larger(smaller(a, b), c)),
    "trunc": (1, numpy.trunc),
    "ceil": (1, numpy.ceil),
    "rndne": (1, numpy.rint),
    "floor": (1, numpy.floor),
    "fract": (1, fraction),
    "exp": (1, power_of_two),
    "log": (1, once(numpy.log2)),
    "rcp": (1, once(lambda a: 1 / a)),
    "rsq": (1, once(lambda a: 1 / numpy.sqrt(a))),
    "sqrt": (1, numpy.sqrt),
    "sin": (1, once(turns(numpy.sin))),
    "cos": (1, once(turns(numpy.cos))),
    "frexp_mant": (1, mantissa_of),
}
"""Rows that exist for several float types: how many operands, and what is computed."""

UNTYPED: Final[dict[str, Row]] = {
    "v_mov_b32": row("b32 b32", lambda a: a),
    "v_mov_b16": row("b16 b16", lambda a: a),
    "v_mov_b64": row("b64 b64", lambda a: a),
    "v_not_b32": row("b32 b32", numpy.invert),
    "v_not_b16": row("b16 b16", numpy.invert),
    "v_bfrev_b32": row("b32 b32", reverse),
    "v_clz_i32_u32": row("b32 b32", leading_zeros),
    "v_ctz_i32_b32": row("b32 b32", trailing_zeros),
    "v_cls_i32": row("b32 b32", sign_bits),
    "v_cvt_i32_f64": row("i32 f64", to_integer("i32")),
    "v_cvt_u32_f64": row("u32 f64", to_integer("u32")),
    "v_cvt_i32_f32": row("i32 f32", to_integer("i32")),
    "v_cvt_u32_f32": row("u32 f32", to_integer("u32")),
    "v_cvt_i16_f16": row("i16 f16", to_integer("i16")),
    "v_cvt_u16_f16": row("u16 f16", to_integer("u16")),
    "v_cvt_nearest_i32_f32": row("i32 f32", lambda a: to_integer("i32")(numpy.floor(a + 0.5))),
    "v_cvt_floor_i32_f32": row("i32 f32", lambda a: to_integer("i32")(numpy.floor(a))),
    "v_cvt_f64_i32": row("f64 i32", lambda a: a.astype(numpy.float64)),
    "v_cvt_f64_u32": row("f64 u32", lambda a: a.astype(numpy.float64)),
    "v_cvt_f32_i32": row("f32 i32", lambda a: a.astype(numpy.float64)),
    "v_cvt_f32_u32": row("f32 u32", lambda a: a.astype(numpy.float64)),
    "v_cvt_f16_i16": row("f16 i16", lambda a: a.astype(numpy.float64)),
    "v_cvt_f16_u16": row("f16 u16", lambda a: a.astype(numpy.float64)),
    "v_cvt_f16_f32": row("f16 f32", lambda a: a),
    "v_cvt_f32_f16": row("f32 f16", lambda a: a),
    "v_cvt_f32_f64": row("f32 f64", lambda a: a),
    "v_cvt_f64_f32": row("f64 f32", lambda a: a.astype(numpy.float64)),
    **{f"v_cvt_f32_ubyte{i}": row("f32 u32", byte_of(i)) for i in range(4)},
    "v_cvt_i32_i16": row("i32 i16", lambda a: a.astype(I32)),
    "v_cvt_u32_u16": row("u32 u16", lambda a: a.astype(U32)),
    "v_rcp_iflag_f32": row("f32 f32", once(lambda a: 1 / a)),
    "v_frexp_exp_i32_f32": row("i32 f32", exponent_of),
    "v_frexp_exp_i32_f64": row("i32 f64", exponent_of),
    "v_frexp_exp_i16_f16": row("i16 f16", lambda a: exponent_of(a).astype(numpy.int16)),
    "v_sat_pk_u8_i16": row(
        "b16 b32",
        lambda a: (
            numpy.clip((a & U32(0xFFFF)).astype(U16).view(numpy.int16), 0, 255).astype(U16)
            | numpy.clip((a >> U32(16)).astype(U16).view(numpy.int16), 0, 255).astype(U16) << U16(8)
        ),
    ),
    # two operands
    "v_mul_dx9_zero_f32": row("f32 f32 f32", times_unless_zero),
    "v_mul_i32_i24": row("i32 b32 b32", lambda a, b: (low24(a, True) * low24(b, True)).astype(I32)),
    "v_mul_u32_u24": row(
        "u32 b32 b32", lambda a, b: (low24(a, False) * low24(b, False)).astype(U32)
    ),
    "v_mul_hi_i32_i24": row(
        "i32 b32 b32", lambda a, b: (low24(a, True) * low24(b, True) >> 32).astype(I32)
    ),
    "v_mul_hi_u32_u24": row(
        "u32 b32 b32", lambda a, b: (low24(a, False) * low24(b, False) >> 32).astype(U32)
    ),
    **{
        f"v_{name}_{kind}": row(f"{kind} {kind} {kind}", operation)
        for kind in ("i32", "u32", "i16", "u16")
        for name, operation in (("min", numpy.minimum), ("max", numpy.maximum))
    },
    **{
        f"v_{name}3_{kind}": row(f"{kind} {kind} {kind} {kind}", operation)
        for kind in ("i32", "u32", "i16", "u16")
        for name, operation in (
            ("min", lambda a, b, c: numpy.minimum(numpy.minimum(a, b), c)),
            ("max", lambda a, b, c: numpy.maximum(numpy.maximum(a, b), c)),
            ("med", median_integer),
        )
    },
    **{
        f"v_{name}_{kind}": row(f"{kind} {kind} {kind} {kind}", operation)
        for kind in ("i32", "u32")
        for name, operation in (
            ("maxmin", lambda a, b, c: numpy.minimum(numpy.maximum(a, b), c)),
            ("minmax", lambda a, b, c: numpy.maximum(numpy.minimum(a, b), c)),
        )
    },
    "v_lshlrev_b32": row("b32 b32 b32", lambda a, b: b << (a & U32(31))),
    "v_lshrrev_b32": row("b32 b32 b32", lambda a, b: b >> (a & U32(31))),
    "v_ashrrev_i32": row("i32 b32 i32", lambda a, b: b >> (a & U32(31)).view(I32)),
    "v_lshlrev_b16": row("b16 b16 b16", lambda a, b: b << (a & U16(15))),
    "v_lshrrev_b16": row("b16 b16 b16", lambda a, b: b >> (a & U16(15))),
    "v_ashrrev_i16": row("i16 b16 i16", lambda a, b: b >> (a & U16(15)).view(numpy.int16)),
    "v_lshlrev_b64": row("b64 b32 b64", lambda a, b: b << (a & U32(63)).astype(U64)),
    "v_lshrrev_b64": row("b64 b32 b64", lambda a, b: b >> (a & U32(63)).astype(U64)),
    "v_ashrrev_i64": row("i64 b32 i64", lambda a, b: b >> (a & U32(63)).astype(I64)),
    **{
        f"v_{name}_b{bits}": row(f"b{bits} b{bits} b{bits}", operation)
        for bits in (16, 32)
        for name, operation in (
            ("and", numpy.bitwise_and),
            ("or", numpy.bitwise_or),
            ("xor", numpy.bitwise_xor),
            ("xnor", lambda a, b: ~(a ^ b)),
        )
    },
    **{
        f"v_{name}_nc_{kind}": row(f"{kind} {kind} {kind}", operation)
        for kind in ("u32", "i32", "u16", "i16")
        for name, operation in (
            ("add", numpy.add),
            ("sub", numpy.subtract),
            ("subrev", lambda a, b: b - a),
        )
    },
    "v_mul_lo_u16": row("u16 u16 u16", numpy.multiply),
    "v_mul_lo_u32": row("u32 u32 u32", numpy.multiply),
    "v_mul_hi_u32": row("u32 u32 u32", high_product),
    "v_mul_hi_i32": row("i32 i32 i32", high_product),
    "v_cvt_pk_rtz_f16_f32": row("b32 f32 f32", round_toward_zero),
    "v_cvt_pk_u16_u32": row(
        "b32 u32 u32",
        lambda a, b: pack(
            *numpy.broadcast_arrays(
                numpy.minimum(a, U32(65535)).astype(U16), numpy.minimum(b, U32(65535)).astype(U16)
            )
        ),
    ),
    "v_cvt_pk_i16_i32": row(
        "b32 i32 i32",
        lambda a, b: pack(
            *numpy.broadcast_arrays(
                numpy.clip(a, -32768, 32767).astype(numpy.int16),
                numpy.clip(b, -32768, 32767).astype(numpy.int16),
            )
        ),
    ),
    "v_pack_b32_f16": row("b32 f16 f16", lambda a, b: pack(*numpy.broadcast_arrays(a, b))),
    "v_ldexp_f32": row("f32 f32 i32", scale_by_power),
    "v_ldexp_f64": row("f64 f64 i32", scale_by_power),
    "v_ldexp_f16": row("f16 f16 i16", scale_by_power),
    "v_bfm_b32": row(
        "b32 b32 b32", lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))
    ),
    "v_bcnt_u32_b32": row("u32 u32 u32", lambda a, b: numpy.bitwise_count(a).astype(U32) + b),
    # three operands
    "v_mad_i32_i24": row(
        "i32 b32 b32 i32", lambda a, b, c: (low24(a, True) * low24(b, True) + c).astype(I32)
    ),
    "v_mad_u32_u24": row(
        "u32 b32 b32 u32", lambda a, b, c: (low24(a, False) * low24(b, False) + c).astype(U32)
    ),
    "v_bfe_u32": row("b32 b32 b32 b32", extract),
    "v_bfe_i32": row("b32 b32 b32 b32", extract_signed),
    "v_bfi_b32": row("b32 b32 b32 b32", lambda a, b, c: (a & b) | (~a & c)),
    "v_fma_f32": row("f32 f32 f32 f32", fma_narrow),
    "v_fma_f16": row("f16 f16 f16 f16", fma_narrow),
    "v_fma_f64": row("f64 f64 f64 f64", fma_double),
    "v_fma_dx9_zero_f32": row(
        "f32 f32 f32 f32",
        lambda a, b, c: numpy.where((a == 0) | (b == 0), c, fma_narrow(a, b, c)),
    ),
    "v_alignbit_b32": row("b32 b32 b32 b32", lambda a, b, c: align(a, b, c & U32(31))),
    "v_alignbyte_b32": row("b32 b32 b32 b32", lambda a, b, c: align(a, b, (c & U32(3)) * U32(8))),
    "v_div_fixup_f32": row("f32 f32 f32 f32", fix_quotient),
    "v_div_fixup_f16": row("f16 f16 f16 f16", fix_quotient),
    "v_div_fixup_f64": row("f64 f64 f64 f64", fix_quotient_double),
    "v_div_fmas_f32": row("f32 f32 f32 f32", fma_narrow),
    "v_div_fmas_f64": row("f64 f64 f64 f64", fma_double),
    "v_xor3_b32": row("b32 b32 b32 b32", lambda a, b, c: a ^ b ^ c),
    "v_or3_b32": row("b32 b32 b32 b32", lambda a, b, c: a | b | c),
    "v_and_or_b32": row("b32 b32 b32 b32", lambda a, b, c: (a & b) | c),
    "v_add3_u32": row("u32 u32 u32 u32", lambda a, b, c: a + b + c),
    "v_lshl_add_u64": row("u64 u64 u32 u64", lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c),
    "v_lshl_add_u32": row("u32 u32 u32 u32", lambda a, b, c: (a << (b & U32(31))) + c),
    "v_add_lshl_u32": row("u32 u32 u32 u32", lambda a, b, c: (a + b) << (c & U32(31))),
    "v_lshl_or_b32": row("u32 u32 u32 u32", lambda a, b, c: (a << (b & U32(31))) | c),
    "v_xad_u32": row("u32 u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_mad_u16": row("u16 u16 u16 u16", lambda a, b, c: a * b + c),
    "v_mad_i16": row("i16 i16 i16 i16", lambda a, b, c: a * b + c),
    "v_mad_u32_u16": row("u32 u16 u16 u32", lambda a, b, c: a.astype(U32) * b.astype(U32) + c),
    "v_mad_i32_i16": row("i32 i16 i16 i32", lambda a, b, c: a.astype(I32) * b.astype(I32) + c),
    "v_perm_b32": row("b32 b32 b32 b32", permute),
    "v_sad_u32": row(
        "u32 u32 u32 u32", lambda a, b, c: numpy.where(a > b, a - b, b - a).astype(U32) + c
    ),
}
ROWS: Final[dict[str, Row]] = {
    **{
        f"v_{name}_{kind}": row(" ".join([kind] * (count + 1)), operation)
        for kind in ("f16", "f32", "f64")
        for name, (count, operation) in FLOAT.items()
    },
    **UNTYPED,
}
"""Rows by name."""


# --- operands and modifiers


def modified(value: Array, kind: str, instruction: Instruction, index: int) -> Array:
    """A source after |x| and -x."""
    if kind[0] == "f" and instruction.encoding != "VOP3P":
        if instruction.absolute >> index & 1:
            value = numpy.abs(value)
        if instruction.negated >> index & 1:
            value = -value
    return value


def finished(value: Array, kind: str, instruction: Instruction) -> Array:
    """A result after the scale and the clamp, as its type."""
    if kind[0] == "f":
        if instruction.scale:
            value = value * (0, 2.0, 4.0, 0.5)[instruction.scale]
        if instruction.clamp:
            value = numpy.where(numpy.isnan(value), 0.0, numpy.clip(value, 0, 1))
        return numpy.asarray(value).astype(TYPES[kind], copy=False)
    return numpy.asarray(value).astype(TYPES[kind], copy=False)


def half_of(instruction: Instruction, code: int, index: int, kind: str) -> tuple[int, bool]:
    """The register of a source of 16 bits, and whether its upper half is meant."""
    if width_of(kind) != 16 or instruction.clears_upper:
        return code, False
    if instruction.encoding in ("VOP1", "VOP2", "VOPC"):
        if code >= FIRST_VGPR and code & 0x80:
            return code & ~0x80, True
        return code, False
    return code, bool(instruction.select >> index & 1)


def read_source(state: State, who: Who, instruction: Instruction, index: int, kind: str) -> Array:
    """A source with its lanes moved and modifiers applied."""
    if instruction.parts is not None and index < 2:
        value = part_of_source(state, who, instruction, index, kind)
        return modified(value, kind, instruction, index)
    code, high = half_of(instruction, instruction.sources[index], index, kind)
    value = read_vector(state, who, code, kind, instruction.literal, high)
    if index == 0 and instruction.lanes is not None:
        value = moved(state, who, value, instruction.lanes)
    return modified(value, kind, instruction, index)


def write_result(state: State, who: Who, instruction: Instruction, kind: str, value: Array) -> None:
    """A result to the destination."""
    register, high = instruction.destination, False
    if instruction.parts is not None:
        write_part(state, who, instruction, finished(value, kind, instruction))
        return
    if width_of(kind) == 16:
        if instruction.clears_upper:
            half = numpy.ascontiguousarray(finished(value, kind, instruction)).view(U16)
            put(state, who, register, half.astype(U32))
            return
        if instruction.encoding in ("VOP1", "VOP2"):
            register, high = register & 0x7F, bool(register & 0x80)
        else:
            high = bool(instruction.select >> 3 & 1)
    if instruction.lanes is not None and not instruction.lanes >> 40 & 1:
        write_where_valid(state, who, instruction, kind, register, value)
        return
    write_vector(state, who, register, kind, finished(value, kind, instruction), high)


# --- parts of registers (SDWA)


def part_place(choice: int) -> tuple[int, int]:
    """Shift and width in bits of BYTE_0 to BYTE_3, WORD_0, WORD_1 and DWORD."""
    return ((0, 8), (8, 8), (16, 8), (24, 8), (0, 16), (16, 16), (0, 32))[choice]


def part_of_source(
    state: State, who: Who, instruction: Instruction, index: int, kind: str
) -> Array:
    """The part of a register that is a source, extended to the width of its type."""
    assert instruction.parts is not None
    field = instruction.parts >> (16 + 8 * index)
    shift, width = part_place(field & 7)
    word = read_vector(state, who, instruction.sources[index], "b32", 0, False)
    up = U32(32 - width)
    moved_up = (word >> U32(shift)) << up
    is_signed = field >> 3 & 1
    whole = (moved_up.view(I32) >> up.view(I32)).view(U32) if is_signed else moved_up >> up
    bits = {16: U16, 32: U32}.get(width_of(kind))
    if bits is None:
        raise SyntaxFault(f"{instruction}: a part of {kind} is not supported")
    return numpy.ascontiguousarray(whole.astype(bits)).view(TYPES[kind])


def write_part(state: State, who: Who, instruction: Instruction, value: Array) -> None:
    """A result to a part of its register; the rest is zero, the sign, or stays."""
    assert instruction.parts is not None
    shift, width = part_place(instruction.parts >> 8 & 7)
    unused = instruction.parts >> 11 & 3
    mask = U32((1 << width) - 1)
    bits = numpy.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").astype(U32) & mask
    word = bits << U32(shift)
    if unused == 1 and shift + width < 32:
        above = U32(0xFFFFFFFF) << U32(shift + width)
        word = numpy.where(bits >> U32(width - 1) != 0, word | above, word)
    elif unused == 2:
        word = word | vector_word(state, who, instruction.destination) & ~(mask << U32(shift))
    put(state, who, instruction.destination, word)


# --- lanes moved (DPP)


def lane_sources(lanes: int, count: int) -> tuple[Array, Array]:
    """For each lane the one it reads from, and whether there is one."""
    lane = numpy.arange(count)
    if lanes >> 40 & 1:
        chosen = numpy.array([lanes >> (8 + 3 * i) & 7 for i in range(8)])
        return lane // 8 * 8 + chosen[lane % 8], numpy.ones(count, numpy.bool_)
    control, row_start, within = lanes >> 8 & 0x1FF, lane // 16 * 16, lane % 16
    amount = control & 15
    valid = numpy.ones(count, numpy.bool_)
    if control < 0x100:
        chosen = numpy.array([control >> 2 * i & 3 for i in range(4)])
        return lane // 4 * 4 + chosen[lane % 4], valid
    kind = control & 0x1F0
    if kind == 0x100:
        source = within + amount
        return row_start + numpy.minimum(source, 15), source < 16
    if kind == 0x110:
        source = within - amount
        return row_start + numpy.maximum(source, 0), source >= 0
    if kind == 0x120:
        return row_start + (within - amount) % 16, valid
    if control == 0x140:
        return row_start + 15 - within, valid
    if control == 0x141:
        return lane // 8 * 8 + 7 - lane % 8, valid
    if control in (0x142, 0x143):  # before RDNA: the last lane of 16 or 32 to all of the next
        size = 16 if control == 0x142 else 32
        return numpy.maximum(lane // size * size - 1, 0), lane >= size
    if kind == 0x150:
        return row_start + amount, valid
    if kind == 0x160:
        return row_start + (within ^ amount), valid
    raise SyntaxFault(f"DPP control {control:#x} is not supported")


def moved(state: State, who: Who, value: Array, lanes: int) -> Array:
    """A source of other lanes; zero where there is none."""
    whole = numpy.broadcast_to(value, (state.count(who), state.lanes))
    source, valid = lane_sources(lanes, state.lanes)
    reads_inactive = lanes >> 18 & 1 or lanes >> 41 & 1
    result = whole[:, source]
    mask = state.mask(who)
    if mask is not None and not reads_inactive:
        valid = valid & mask[:, source]
    return numpy.where(valid, result, result.dtype.type(0))


def write_where_valid(
    state: State, who: Who, instruction: Instruction, kind: str, register: int, value: Array
) -> None:
    """A result of DPP: lanes without a source keep what they have, unless zeros were asked for."""
    lanes = instruction.lanes or 0
    source, valid = lane_sources(lanes, state.lanes)
    mask = state.mask(who)
    if mask is not None and not lanes >> 18 & 1:
        valid = valid & mask[:, source]
    lane = numpy.arange(state.lanes)
    enabled = (lanes >> 28 >> lane // 16 & 1 != 0) & (lanes >> 24 >> lane % 16 // 4 & 1 != 0)
    chosen = enabled if lanes >> 19 & 1 else enabled & valid
    if width_of(kind) != 32:
        raise SyntaxFault(f"{instruction}: DPP of {kind} is not supported")
    word = numpy.ascontiguousarray(finished(value, kind, instruction)).view(U32)
    old = vector_word(state, who, register)
    put(state, who, register, numpy.where(chosen, word, old))


# --- steps


def plain(instruction: Instruction, found: Row) -> Step:
    """A row of the table."""
    kinds, result, compute = found.sources, found.result, found.compute
    if instruction.clamp and result[0] != "f":
        return saturating(instruction, found)

    def step(state: State, who: Who) -> None:
        values = [read_source(state, who, instruction, i, kind) for i, kind in enumerate(kinds)]
        write_result(state, who, instruction, result, compute(*values))

    return step


def saturating(instruction: Instruction, found: Row) -> Step:
    """A row of integers that ends at the bounds of its type."""
    if width_of(found.result) > 32 or found.compute.__name__ not in ("add", "subtract", "multiply"):
        raise SyntaxFault(f"{instruction}: saturation is not supported here")
    bounds = numpy.iinfo(TYPES[found.result])

    def step(state: State, who: Who) -> None:
        values = [
            read_source(state, who, instruction, i, kind).astype(I64)
            for i, kind in enumerate(found.sources)
        ]
        value = numpy.clip(found.compute(*values), bounds.min, bounds.max)
        write_result(state, who, instruction, found.result, value.astype(TYPES[found.result]))

    return step


def accumulate(instruction: Instruction, kind: str) -> Step:
    """v_fmac: the destination is the third source."""

    def step(state: State, who: Who) -> None:
        a, b = (read_source(state, who, instruction, i, kind) for i in (0, 1))
        register, high = instruction.destination, False
        if kind == "f16" and not instruction.clears_upper:
            register, high = (
                (register & 0x7F, bool(register & 0x80))
                if instruction.encoding == "VOP2"
                else (register, bool(instruction.select >> 3 & 1))
            )
        old = read_vector(state, who, FIRST_VGPR + register, kind, 0, high)
        fused = fma_double if kind == "f64" else fma_narrow
        write_result(state, who, instruction, kind, fused(a, b, old))

    return step


def with_constant(instruction: Instruction) -> Step:
    """v_fmamk and v_fmaak: the constant behind the instruction is a factor or a term."""
    kind = instruction.name[-3:]
    bits = U32(instruction.literal) if kind == "f32" else U16(instruction.literal & 0xFFFF)
    constant = numpy.full((1, 1), bits).view(TYPES[kind])
    is_factor = "fmamk" in instruction.name

    def step(state: State, who: Who) -> None:
        a, b = (read_source(state, who, instruction, i, kind) for i in (0, 1))
        value = fma_narrow(a, constant, b) if is_factor else fma_narrow(a, b, constant)
        write_result(state, who, instruction, kind, value)

    return step


def select_by_mask(instruction: Instruction) -> Step:
    """v_cndmask: the second source where the lane's bit is set."""
    code = instruction.sources[2] if instruction.encoding == "VOP3" else VCC
    # modifiers of sources act on them as floats
    kind = "b16" if instruction.name.endswith("16") else "b32"

    def step(state: State, who: Who) -> None:
        mask = bit_lanes(state, read_mask(state, who, code))
        a, b = (read_source(state, who, instruction, i, kind) for i in (0, 1))
        for index in (0, 1):
            sign = a.dtype.type(1 << (width_of(kind) - 1))
            value = (a, b)[index]
            if instruction.absolute >> index & 1:
                value = value & ~sign
            if instruction.negated >> index & 1:
                value = value ^ sign
            a, b = (value, b) if index == 0 else (a, value)
        write_result(state, who, instruction, kind, numpy.where(mask, b, a))

    return step


def carry(instruction: Instruction) -> Step:
    """Sums and differences of 32 bits with a carry a lane."""
    name = instruction.name
    reads_carry = "_ci_" in name
    is_wide = instruction.encoding == "VOP3"
    source = instruction.sources[2] if is_wide else VCC
    target = instruction.second if is_wide else VCC

    def step(state: State, who: Who) -> None:
        a, b = (read_source(state, who, instruction, i, "u32").astype(I64) for i in (0, 1))
        extra: Array | int = 0
        if reads_carry:
            extra = bit_lanes(state, read_mask(state, who, source)).astype(I64)
        if name.startswith("v_add"):
            total = a + b + extra
        else:
            total = (b - a if "subrev" in name else a - b) - extra
        flags = (total < 0) | (total >= 2**32)
        mask = lane_bits(state, who, flags)
        write_result(state, who, instruction, "u32", total.astype(U32))
        write_mask(state, who, target, mask)

    return step


def multiply_add_wide(instruction: Instruction) -> Step:
    """v_mad_u64_u32 and v_mad_i64_i32."""
    is_signed = "i64" in instruction.name
    narrow, wide = ("i32", "i64") if is_signed else ("u32", "u64")

    def step(state: State, who: Who) -> None:
        a, b = (read_source(state, who, instruction, i, narrow) for i in (0, 1))
        c = read_source(state, who, instruction, 2, wide)
        product = a.astype(TYPES[wide]) * b.astype(TYPES[wide])
        total = product + c
        over = total < product if not is_signed else (total < product) != (c < 0)
        write_vector(state, who, instruction.destination, wide, total)
        write_mask(state, who, instruction.second, lane_bits(state, who, over))

    return step


def scale_division(instruction: Instruction) -> Step:
    """v_div_scale: nothing is scaled, as v_div_fixup divides anew."""
    kind = instruction.name[-3:]

    def step(state: State, who: Who) -> None:
        value = read_source(state, who, instruction, 0, kind)
        write_vector(state, who, instruction.destination, kind, value)
        write_mask(state, who, instruction.second, numpy.zeros(state.count(who), U64))

    return step


RELATIONS: Final[dict[str, Operation]] = {
    "f": lambda a, b: numpy.zeros(numpy.broadcast_shapes(a.shape, b.shape), numpy.bool_),
    "lt": numpy.less,
    "eq": numpy.equal,
    "le": numpy.less_equal,
    "gt": numpy.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": numpy.greater_equal,
    "o": lambda a, b: ~(numpy.isnan(a) | numpy.isnan(b)),
    "u": lambda a, b: numpy.isnan(a) | numpy.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "ne": numpy.not_equal,
    "t": lambda a, b: numpy.ones(numpy.broadcast_shapes(a.shape, b.shape), numpy.bool_),
    "tru": lambda a, b: numpy.ones(numpy.broadcast_shapes(a.shape, b.shape), numpy.bool_),
}


def classify(value: Array, mask: Array) -> Array:
    """v_cmp_class: whether a number is of one of the classes that a mask names."""
    tiny = numpy.finfo(value.dtype).tiny
    negative, size = numpy.signbit(value), numpy.abs(value)
    bits = value.view(f"u{value.dtype.itemsize}")
    quiet_bit = {2: 9, 4: 22, 8: 51}[value.dtype.itemsize]
    quiet = bits >> bits.dtype.type(quiet_bit) & bits.dtype.type(1) != 0
    number = ~numpy.isnan(value)
    normal = number & (size >= tiny) & numpy.isfinite(value)
    subnormal = number & (size > 0) & (size < tiny)
    classes = [
        ~number & ~quiet,
        ~number & quiet,
        numpy.isinf(value) & negative,
        normal & negative,
        subnormal & negative,
        (value == 0) & negative,
        (value == 0) & ~negative,
        subnormal & ~negative,
        normal & ~negative,
        numpy.isinf(value) & ~negative,
    ]
    result = numpy.zeros(numpy.broadcast_shapes(value.shape, mask.shape), numpy.bool_)
    for index, holds in enumerate(classes):
        result |= holds & (mask >> mask.dtype.type(index) & mask.dtype.type(1) != 0)
    return result


def compare(instruction: Instruction) -> Step:
    """v_cmp and v_cmpx: a bit a lane, to a scalar register or to EXEC."""
    _, action, relation, kind = instruction.name.split("_")
    target = EXEC if action == "cmpx" else instruction.destination
    kinds = (kind, "b16" if kind == "f16" else "b32") if relation == "class" else (kind, kind)
    test = classify if relation == "class" else RELATIONS[relation]

    def step(state: State, who: Who) -> None:
        a, b = (read_source(state, who, instruction, i, k) for i, k in enumerate(kinds))
        write_mask(state, who, target, lane_bits(state, who, test(a, b)))

    return step


def first_lane(instruction: Instruction) -> Step:
    """v_readfirstlane_b32: of the lowest active lane."""
    code = instruction.sources[0]

    def step(state: State, who: Who) -> None:
        value = read_vector(state, who, code, "b32", instruction.literal, False)
        value = numpy.broadcast_to(value, (state.count(who), state.lanes))
        active = state.active if who is None else state.active[who]
        lane = active.argmax(axis=1)
        write_scalar(state, who, instruction.destination, value[numpy.arange(len(lane)), lane])

    return step


def read_lane(instruction: Instruction) -> Step:
    """v_readlane_b32."""
    code, lane_code = instruction.sources[:2]

    def step(state: State, who: Who) -> None:
        value = read_vector(state, who, code, "b32", instruction.literal, False)
        lane = scalar_word(state, who, lane_code, instruction.literal) % state.lanes
        value = numpy.broadcast_to(value, (state.count(who), state.lanes))
        write_scalar(state, who, instruction.destination, value[numpy.arange(len(lane)), lane])

    return step


def write_lane(instruction: Instruction) -> Step:
    """v_writelane_b32: one lane, active or not."""
    code, lane_code = instruction.sources[:2]

    def step(state: State, who: Who) -> None:
        value = scalar_word(state, who, code, instruction.literal)
        lane = scalar_word(state, who, lane_code, instruction.literal) % state.lanes
        state.vectors[instruction.destination][state.numbers(who), lane] = value

    return step


def count_below(instruction: Instruction) -> Step:
    """v_mbcnt: bits of a mask below the lane, plus a number; _lo has those of lanes below 32."""
    first = 0 if "_lo_" in instruction.name else 32

    def step(state: State, who: Who) -> None:
        mask, base = (read_source(state, who, instruction, i, "u32") for i in (0, 1))
        lanes = numpy.clip(numpy.arange(state.lanes) - first, 0, 32).astype(U64)
        below = ((U64(1) << lanes) - U64(1)).astype(U32)
        count = numpy.bitwise_count(mask & below).astype(U32)
        write_result(state, who, instruction, "u32", count + base)

    return step


def of_scalar(instruction: Instruction) -> Step:
    """v_s_exp_f32 and its like (RDNA4): a transcendental function of a scalar, to a scalar."""
    _, _, action, kind = instruction.name.split("_")
    compute = FLOAT[action][1]

    def step(state: State, who: Who) -> None:
        value = finished(compute(read_source(state, who, instruction, 0, kind)), kind, instruction)
        word = value.view(U16 if kind == "f16" else U32).astype(U32)[:, 0]
        write_scalar(state, who, instruction.destination, word)

    return step


def permute_rows(instruction: Instruction) -> Step:
    """v_permlane16 and v_permlanex16: lanes of a row by nibbles of two scalars."""
    crosses = "x16" in instruction.name

    def step(state: State, who: Who) -> None:
        value = read_source(state, who, instruction, 0, "b32")
        low, high = (
            scalar_word(state, who, instruction.sources[i], instruction.literal) for i in (1, 2)
        )
        selector = high.astype(U64) << U64(32) | low
        lane = numpy.arange(state.lanes)
        nibble = (selector[:, None] >> (lane % 16 * 4).astype(U64)) & U64(15)
        base = (lane // 16 ^ 1 if crosses else lane // 16) * 16
        source = base + nibble.astype(numpy.int64)
        whole = numpy.broadcast_to(value, (state.count(who), state.lanes))
        write_result(state, who, instruction, "b32", numpy.take_along_axis(whole, source, axis=1))

    return step


SPECIAL: Final[dict[str, Callable[[Instruction], Step]]] = {
    "v_nop": lambda i: lambda state, who: None,
    "v_readfirstlane_b32": first_lane,
    "v_readlane_b32": read_lane,
    "v_writelane_b32": write_lane,
    "v_mbcnt_lo_u32_b32": count_below,
    "v_mbcnt_hi_u32_b32": count_below,
    **{
        f"v_s_{name}_{kind}": of_scalar
        for name in ("exp", "log", "rcp", "rsq", "sqrt")
        for kind in ("f16", "f32")
    },
    "v_permlane16_b32": permute_rows,
    "v_permlanex16_b32": permute_rows,
    "v_cndmask_b32": select_by_mask,
    "v_cndmask_b16": select_by_mask,
    "v_fmac_f32": lambda i: accumulate(i, "f32"),
    "v_fmac_f16": lambda i: accumulate(i, "f16"),
    "v_fmac_f64": lambda i: accumulate(i, "f64"),
    "v_mad_u64_u32": multiply_add_wide,
    "v_mad_i64_i32": multiply_add_wide,
    "v_div_scale_f32": scale_division,
    "v_div_scale_f64": scale_division,
    **dict.fromkeys(("v_fmamk_f32", "v_fmaak_f32", "v_fmamk_f16", "v_fmaak_f16"), with_constant),
    **dict.fromkeys(
        (
            "v_add_co_ci_u32",
            "v_sub_co_ci_u32",
            "v_subrev_co_ci_u32",
            "v_add_co_u32",
            "v_sub_co_u32",
            "v_subrev_co_u32",
        ),
        carry,
    ),
}
"""Instructions that are more than a row."""


def vector_step(instruction: Instruction) -> Step:
    """VOP1, VOP2, VOP3 or VOPC."""
    name = instruction.name
    if name in SPECIAL:
        return SPECIAL[name](instruction)
    if name in ROWS:
        return plain(instruction, ROWS[name])
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return compare(instruction)
    raise SyntaxFault(f"{instruction} is not supported")


# --- pairs (VOPD)


def pair_step(instruction: Instruction) -> Step:
    """Both halves read their sources before either writes."""
    assert instruction.partner is not None
    halves = (instruction, instruction.partner)
    computes = [pair_half(half) for half in halves]

    def step(state: State, who: Who) -> None:
        values = [compute(state, who) for compute in computes]
        for half, value in zip(halves, values, strict=True):
            put(state, who, half.destination, value)

    return step


def pair_half(half: Instruction) -> Callable[[State, Who], Array]:
    """Function of one half of a pair, to words."""
    name = half.name.replace("v_dual_", "v_")
    constant = numpy.full((1, 1), U32(half.literal)).view(numpy.float32)

    def source(state: State, who: Who, index: int, kind: str) -> Array:
        return read_vector(state, who, half.sources[index], kind, half.literal, False)

    def compute(state: State, who: Who) -> Array:
        value: Any
        if name == "v_cndmask_b32":
            mask = bit_lanes(state, read_mask(state, who, VCC))
            value = numpy.where(mask, source(state, who, 1, "b32"), source(state, who, 0, "b32"))
        elif name in ("v_fmac_f32", "v_fmaak_f32", "v_fmamk_f32", "v_dot2acc_f32_f16"):
            kind = "b32" if "dot2" in name else "f32"
            a, b = source(state, who, 0, kind), source(state, who, 1, kind)
            old = vector_word(state, who, half.destination).view(numpy.float32)
            value = {
                "v_fmac_f32": lambda: fma_narrow(a, b, old),
                "v_fmaak_f32": lambda: fma_narrow(a, b, constant),
                "v_fmamk_f32": lambda: fma_narrow(a, constant, b),
                "v_dot2acc_f32_f16": lambda: dot_halves(a, b, old),
            }[name]()
            value = value.astype(numpy.float32)
        else:
            found = ROWS[name]
            values = [source(state, who, i, kind) for i, kind in enumerate(found.sources)]
            value = numpy.asarray(found.compute(*values)).astype(TYPES[found.result])
        shape = (state.count(who), state.lanes)
        return numpy.ascontiguousarray(numpy.broadcast_to(value, shape)).view(U32)

    if name not in ROWS and name not in SPECIAL and name != "v_dot2acc_f32_f16":
        raise SyntaxFault(f"{half} is not supported")
    return compute
