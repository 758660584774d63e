"""Packed instructions (VOP3P): both halves of registers, dot products, and matrices (WMMA).

ISA, sections 7.7 (packed math) and 7.9 (WMMA). Operand lanes of WMMA on gfx11: lane l of A holds
row l % 16, lane l of B column l % 16; the upper 16 lanes must hold what the lower ones do, which is
checked here. Element (m, n) of the result lies in register m // 2 of lane n + 16 * (m % 2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy
from emulation.faults import ConvergenceFault, SyntaxFault
from emulation.numbers import bfloat_to_float, float_to_bfloat, fma_narrow

from emulator.decode import FIRST_VGPR, Instruction
from emulator.state import (
    TYPES,
    Array,
    State,
    Step,
    Who,
    put,
    read_vector,
    vector_word,
    write_vector,
)
from emulator.vector import larger, smaller

U16, U32 = numpy.uint16, numpy.uint32

HALVES: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "v_pk_mad_i16": ("i16", lambda a, b, c: a * b + c),
    "v_pk_mad_u16": ("u16", lambda a, b, c: a * b + c),
    "v_pk_mul_lo_u16": ("u16", numpy.multiply),
    "v_pk_add_i16": ("i16", numpy.add),
    "v_pk_add_u16": ("u16", numpy.add),
    "v_pk_sub_i16": ("i16", numpy.subtract),
    "v_pk_sub_u16": ("u16", numpy.subtract),
    "v_pk_lshlrev_b16": ("b16", lambda a, b: b << (a & U16(15))),
    "v_pk_lshrrev_b16": ("b16", lambda a, b: b >> (a & U16(15))),
    "v_pk_ashrrev_i16": ("i16", lambda a, b: b >> (a & numpy.int16(15))),
    "v_pk_max_i16": ("i16", numpy.maximum),
    "v_pk_min_i16": ("i16", numpy.minimum),
    "v_pk_max_u16": ("u16", numpy.maximum),
    "v_pk_min_u16": ("u16", numpy.minimum),
    "v_pk_fma_f16": ("f16", fma_narrow),
    "v_pk_add_f16": ("f16", numpy.add),
    "v_pk_mul_f16": ("f16", numpy.multiply),
    "v_pk_min_f16": ("f16", smaller),
    "v_pk_max_f16": ("f16", larger),
}
"""Type of a half, and what is computed of each."""

PAIRS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "v_pk_fma_f32": (3, fma_narrow),
    "v_pk_mul_f32": (2, numpy.multiply),
    "v_pk_add_f32": (2, numpy.add),
    "v_pk_mov_b32": (2, lambda a, b: a),
}
"""Packed math of CDNA3 on pairs of registers: the number of operands, and the operation."""


def half(
    state: State, who: Who, instruction: Instruction, index: int, kind: str, upper: bool
) -> Array:
    """The half of a source that takes part in the lower or upper half of the result."""
    chooses = instruction.select_high if upper else instruction.select
    negates = instruction.absolute if upper else instruction.negated
    code, high = instruction.sources[index], bool(chooses >> index & 1)
    if code < FIRST_VGPR and code >= 128 and kind != "f16":
        word = read_vector(state, who, code, "b32", instruction.literal, False)
        part = word >> U32(16) if high else word & U32(0xFFFF)
        value: Array = part.astype(U16).view(TYPES[kind])
    else:
        inline_high = high and not 240 <= code <= 248
        value = read_vector(state, who, code, kind, instruction.literal, inline_high)
        if high and 240 <= code <= 248:
            value = numpy.zeros_like(value)
    if kind == "f16" and negates >> index & 1:
        value = -value
    return value


def operand_count(name: str) -> int:
    """Number of operands a packed instruction reads: the third of two is encoded, as s0 for one."""
    if name in PAIRS:
        return PAIRS[name][0]
    return 2 if name in HALVES and "mad" not in name and "fma" not in name else 3


def packed_step(instruction: Instruction) -> Step:
    """The same on both halves."""
    kind, compute = HALVES[instruction.name]
    count = operand_count(instruction.name)
    if instruction.clamp and kind != "f16":
        raise SyntaxFault(f"{instruction}: saturation of integers is not supported")

    def step(state: State, who: Who) -> None:
        words = []
        for upper in (False, True):
            sources = [half(state, who, instruction, i, kind, upper) for i in range(count)]
            value = numpy.asarray(compute(*sources))
            if instruction.clamp:
                value = numpy.clip(value, 0, 1)
            words.append(value.astype(TYPES[kind]).view(U16).astype(U32))
        put(state, who, instruction.destination, words[0] | words[1] << U32(16))

    return step


def pair_step(instruction: Instruction) -> Step:
    """The same on both registers of pairs; v_pk_mov_b32 takes one register of each source."""
    name = instruction.name
    count, compute = PAIRS[name]
    moves = "mov" in name

    def source(state: State, who: Who, index: int, upper: bool) -> Array:
        chooses = instruction.select_high if upper and not moves else instruction.select
        negates = instruction.absolute if upper else instruction.negated
        code, high = instruction.sources[index], chooses >> index & 1
        if high and 128 <= code < FIRST_VGPR:
            raise SyntaxFault(f"{instruction}: the upper half of a constant")
        kind = "b32" if moves else "f32"
        value = read_vector(state, who, code + high, kind, instruction.literal, False)
        return -value if negates >> index & 1 else value

    def step(state: State, who: Who) -> None:
        words = []
        for upper in (False, True):
            sources = [source(state, who, i, upper) for i in range(count)]
            value = sources[upper] if moves else numpy.asarray(compute(*sources))
            if instruction.clamp:
                value = numpy.where(numpy.isnan(value), 0, numpy.clip(value, 0, 1))
            word = value if moves else value.astype(numpy.float32)
            words.append(numpy.ascontiguousarray(word).view(U32))
        for index, word in enumerate(words):
            put(state, who, instruction.destination + index, word)

    return step


def mixed_step(instruction: Instruction) -> Step:
    """v_fma_mix: each source a float, or a half of one; the result a float or a half."""
    name = instruction.name

    def source(state: State, who: Who, index: int) -> Array:
        is_half = instruction.select_high >> index & 1
        high = bool(instruction.select >> index & 1)
        kind = "f16" if is_half else "f32"
        value = read_vector(
            state,
            who,
            instruction.sources[index],
            kind,
            instruction.literal,
            bool(is_half) and high,
        ).astype(numpy.float32)
        value = numpy.abs(value) if instruction.absolute >> index & 1 else value
        return -value if instruction.negated >> index & 1 else value

    def step(state: State, who: Who) -> None:
        total = fma_narrow(*(source(state, who, i) for i in range(3)))
        if instruction.clamp:
            total = numpy.where(numpy.isnan(total), 0, numpy.clip(total, 0, 1))
        if name == "v_fma_mix_f32":
            write_vector(state, who, instruction.destination, "f32", total.astype(numpy.float32))
        else:
            value = total.astype(numpy.float16)
            write_vector(state, who, instruction.destination, "f16", value, name.endswith("hi_f16"))

    return step


def pieces(word: Array, bits: int, is_signed: bool) -> list[Array]:
    """The small integers of a word."""
    found = []
    for shift in range(0, 32, bits):
        part = (word >> U32(shift) & U32((1 << bits) - 1)).astype(numpy.int64)
        if is_signed:
            part = part - ((part >> (bits - 1)) << bits)
        found.append(part)
    return found


def third_of(instruction: Instruction) -> int:
    """The source to which a dot product is added: in VOP2 it is the destination."""
    if instruction.encoding == "VOP2":
        return FIRST_VGPR + instruction.destination
    return instruction.sources[2]


def dot_step(instruction: Instruction) -> Step:
    """v_dot2, v_dot4 and v_dot8: of floats, or of integers."""
    if instruction.lanes is not None:
        raise SyntaxFault(f"{instruction}: lanes that read others are not supported")
    return (
        dot_of_floats(instruction) if "_f32_" in instruction.name else dot_of_integers(instruction)
    )


def dot_of_floats(instruction: Instruction) -> Step:
    """Two halves each, the sum in double precision rounded once."""
    is_bfloat, is_short = "bf16" in instruction.name, instruction.encoding == "VOP2"

    def factor(state: State, who: Who, index: int, upper: bool) -> Array:
        if is_short:
            code = instruction.sources[index]
            word = read_vector(state, who, code, "b32", instruction.literal, False)
            part = (word >> U32(16 * upper) & U32(0xFFFF)).astype(U16)
        else:
            part = half(state, who, instruction, index, "b16", upper)
        value = bfloat_to_float(part) if is_bfloat else part.view(numpy.float16)
        return value.astype(numpy.float64)

    def step(state: State, who: Who) -> None:
        added = read_vector(state, who, third_of(instruction), "f32", instruction.literal, False)
        total = added.astype(numpy.float64)
        for upper in (False, True):
            total = total + factor(state, who, 0, upper) * factor(state, who, 1, upper)
        write_vector(state, who, instruction.destination, "f32", total.astype(numpy.float32))

    return step


def dot_of_integers(instruction: Instruction) -> Step:
    """Two, four or eight integers each; sums wrap, or saturate."""
    name = instruction.name
    bits = {"dot8": 4, "dot4": 8, "dot2": 16}[name[2:6]]
    is_signed = "_i32_" in name
    signs = [is_signed] * 2
    if "iu" in name:
        signs = [bool(instruction.negated >> i & 1) for i in (0, 1)]
    chosen = (instruction.select & 3, instruction.select_high & 3)
    if bits == 16 and instruction.encoding == "VOP3P" and chosen != (0, 3):
        raise SyntaxFault(f"{instruction}: halves that change places are not supported")

    def step(state: State, who: Who) -> None:
        codes = (*instruction.sources[:2], third_of(instruction))
        a, b, c = (
            read_vector(state, who, code, "b32", instruction.literal, False) for code in codes
        )
        products = [
            x * y for x, y in zip(pieces(a, bits, signs[0]), pieces(b, bits, signs[1]), strict=True)
        ]
        total = sum(products) + c.view(numpy.int32 if is_signed else U32).astype(numpy.int64)
        if instruction.clamp:
            low, top = (-(2**31), 2**31 - 1) if is_signed else (0, 2**32 - 1)
            total = numpy.clip(total, low, top)
        put(state, who, instruction.destination, total.astype(U32))

    return step


# --- matrices


def operand(state: State, who: Who, code: int, count: int, name: str) -> Array:
    """The registers of A or B as (waves, 16, words): row or column l of lane l."""
    words = numpy.stack(
        [vector_word(state, who, code - FIRST_VGPR + i) for i in range(count)], axis=2
    )
    if not numpy.array_equal(words[:, :16], words[:, 16:]):
        raise ConvergenceFault(f"{name}: the upper 16 lanes do not repeat the lower ones")
    return numpy.ascontiguousarray(words[:, :16])


def values_of(words: Array, kind: str, is_signed: bool) -> Array:
    """(waves, 16, words) as (waves, 16, 16) numbers along K."""
    if kind == "f16":
        return words.view(numpy.float16).astype(numpy.float64)
    if kind == "bf16":
        return bfloat_to_float(words.view(U16)).astype(numpy.float64)
    bits = 8 if kind == "iu8" else 4
    parts = numpy.stack(pieces(words, bits, is_signed), axis=3)
    return parts.reshape(*words.shape[:2], -1)


def matrix_step(instruction: Instruction) -> Step:
    """v_wmma_*: D = A @ B + C of 16 by 16 by 16."""
    _, _, out, _, kind = instruction.name.split("_")
    count = {"f16": 8, "bf16": 8, "iu8": 4, "iu4": 2}[kind]
    row = numpy.arange(16)[:, None]
    column = numpy.arange(16)[None]
    register, lane = row // 2, column + 16 * (row % 2)
    signs = [bool(instruction.negated >> i & 1) for i in (0, 1)]
    if kind in ("f16", "bf16") and (instruction.negated or instruction.absolute):
        raise SyntaxFault(f"{instruction}: signs of operands are not supported")

    def step(state: State, who: Who) -> None:
        if not (state.active if who is None else state.active[who]).all():
            raise ConvergenceFault(f"{instruction.name} needs every lane")
        a, b = (
            values_of(operand(state, who, code, count, instruction.name), kind, sign)
            for code, sign in zip(instruction.sources[:2], signs, strict=True)
        )
        c = accumulator(state, who, instruction, out, register, lane)
        result = a @ b.transpose(0, 2, 1) + c
        if out == "i32" and instruction.clamp:
            result = numpy.clip(result, -(2**31), 2**31 - 1)
        store(state, who, instruction, out, result)

    return step


def accumulator(
    state: State, who: Who, instruction: Instruction, out: str, register: Array, lane: Array
) -> Array:
    """C as (waves, 16, 16)."""
    code = instruction.sources[2]
    if code < FIRST_VGPR:
        kind = "i32" if out == "i32" else "f32"
        value = read_vector(state, who, code, kind, instruction.literal, False)
        return value[:, :, None].astype(numpy.float64 if kind == "f32" else numpy.int64)
    words = numpy.stack([vector_word(state, who, code - FIRST_VGPR + i) for i in range(8)], axis=1)[
        :, register, lane
    ]
    if out == "f32":
        return words.view(numpy.float32).astype(numpy.float64)
    if out == "i32":
        return words.view(numpy.int32).astype(numpy.int64)
    halves = (words >> U32(16) if instruction.select >> 2 & 1 else words).astype(U16)
    if out == "f16":
        return halves.view(numpy.float16).astype(numpy.float64)
    return bfloat_to_float(halves).astype(numpy.float64)


def store(state: State, who: Who, instruction: Instruction, out: str, result: Array) -> None:
    """D to its registers."""
    for index in range(8):
        rows = result[:, 2 * index : 2 * index + 2].reshape(len(result), 32)
        target = instruction.destination + index
        if out == "f32":
            write_vector(state, who, target, "f32", rows.astype(numpy.float32))
        elif out == "i32":
            put(state, who, target, rows.astype(numpy.int64).astype(U32))
        else:
            value = rows.astype(numpy.float16) if out == "f16" else float_to_bfloat(rows)
            kind = "f16" if out == "f16" else "b16"
            write_vector(state, who, target, kind, value, bool(instruction.select >> 2 & 1))


def vop3p_step(instruction: Instruction) -> Step:
    """VOP3P."""
    name = instruction.name
    if name in HALVES:
        return packed_step(instruction)
    if name in PAIRS:
        return pair_step(instruction)
    if name.startswith("v_fma_mix"):
        return mixed_step(instruction)
    if name.startswith("v_dot"):
        return dot_step(instruction)
    if name.startswith("v_wmma"):
        return matrix_step(instruction)
    raise SyntaxFault(f"{instruction} is not supported")
