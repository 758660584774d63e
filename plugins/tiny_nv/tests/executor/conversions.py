"""cvt: between integers, floats and small formats (PTX ISA 9.0, section 9.7.9.22)."""

from __future__ import annotations

from typing import Any, Final

import numpy
from emulation.faults import SyntaxFault
from emulation.numbers import (
    bfloat_to_float,
    eight_bits_to_float,
    float_to_bfloat,
    float_to_eight_bits,
    float_to_tf32,
    flush,
)

from executor.operations import plain_step, rounded_float
from executor.registers import ARRAY_TYPES, Array, Step
from executor.syntax import Instruction

FLOATS: Final = frozenset({"f16", "bf16", "f32", "f64"})
PACKED: Final = frozenset({"f16x2", "bf16x2", "e4m3x2", "e5m2x2"})
WHOLE: Final = {
    "rni": numpy.rint,
    "rzi": numpy.trunc,
    "rmi": numpy.floor,
    "rpi": numpy.ceil,
}
"""Rounding of floats to whole numbers."""


def cvt_step(instruction: Instruction) -> Step:
    """cvt.mode.to.from."""
    to, source = instruction.types[0], instruction.types[-1]
    if to in PACKED:
        return pack_step(instruction, to, source)
    if source in FLOATS and to in (*FLOATS, "tf32"):
        return plain_step(
            instruction, lambda x: float_to_float(x, to, source, instruction), to, [source]
        )
    if source in FLOATS:
        return plain_step(
            instruction, lambda x: float_to_integer(x, to, source, instruction), to, [source]
        )
    if to in FLOATS:
        return plain_step(instruction, lambda x: integer_to_float(x, to, instruction), to, [source])
    return plain_step(instruction, lambda x: integer_to_integer(x, to, instruction), to, [source])


def decoded(values: Array, kind: str) -> Array:
    """A type's values as doubles."""
    if kind == "bf16":
        return bfloat_to_float(values).astype(numpy.float64)
    return values.astype(numpy.float64)


def mode_of(instruction: Instruction) -> str:
    """The rounding mode of floats; to nearest where none is named."""
    return next((m for m in instruction.modifiers if m in ("rn", "rna", "rz", "rm", "rp")), "rn")


def encoded(values: Array, kind: str, instruction: Instruction) -> Array:
    """Doubles as a float type, or its bits."""
    mode = mode_of(instruction)
    if "relu" in instruction.modifiers:
        values = numpy.where(values < 0, 0.0, values)
    if kind == "bf16":
        return float_to_bfloat(values, mode)
    if kind == "tf32":
        return float_to_tf32(values, mode)
    if kind == "f32":
        narrow = rounded_float(values, mode)
        return flush(narrow) if "ftz" in instruction.modifiers else narrow
    if kind == "f16" and mode != "rn":
        raise SyntaxFault(f"{instruction}: rounding .{mode} to f16 is not supported")
    return values.astype(ARRAY_TYPES[kind])


def float_to_float(values: Array, to: str, source: str, instruction: Instruction) -> Array:
    """Between float types, or to a whole number of the same type."""
    if "ftz" in instruction.modifiers and source == "f32":
        values = flush(values)
    wide = decoded(values, source)
    for modifier in instruction.modifiers:
        if modifier in WHOLE:
            wide = WHOLE[modifier](wide)
    if "sat" in instruction.modifiers:
        wide = numpy.where(numpy.isnan(wide), 0.0, numpy.clip(wide, 0, 1))
    return encoded(wide, to, instruction)


def float_to_integer(values: Array, to: str, source: str, instruction: Instruction) -> Array:
    """To the nearest integer that the type has; NaN gives 0."""
    if "ftz" in instruction.modifiers and source == "f32":
        values = flush(values)
    wide = decoded(values, source)
    for modifier in instruction.modifiers:
        if modifier in WHOLE:
            wide = WHOLE[modifier](wide)
    target = numpy.iinfo(ARRAY_TYPES[to])
    low, high = float(target.min), float(target.max)
    wide = numpy.where(numpy.isnan(wide), 0.0, wide)
    inside = (wide >= low) & (wide < high)  # the largest of 64 bits is no double
    whole = numpy.where(inside, wide, 0.0).astype(ARRAY_TYPES[to])
    edge = numpy.where(wide < low, target.min, target.max).astype(ARRAY_TYPES[to])
    return numpy.where(inside, whole, edge)


def integer_to_float(values: Array, to: str, instruction: Instruction) -> Array:
    """Rounded once, also from 64 bits."""
    if values.dtype.itemsize == 8 and to != "f64":
        return encoded(odd_doubles(values), to, instruction)
    return encoded(values.astype(numpy.float64), to, instruction)


def odd_doubles(values: Array) -> Array:
    """64-bit integers as doubles that round to narrower formats as the integers would."""
    sticky = (values & 0x7FF) != 0
    base = values & ~values.dtype.type(0x7FF)
    large = numpy.abs(values.astype(numpy.float64)) >= 2.0**53
    odd = base | numpy.where(sticky, values.dtype.type(0x800), values.dtype.type(0))
    return numpy.where(large, odd, values).astype(numpy.float64)


def integer_to_integer(values: Array, to: str, instruction: Instruction) -> Array:
    """Cut, extend, or end at the bounds (.sat)."""
    wanted = ARRAY_TYPES[to]
    if "sat" not in instruction.modifiers:
        return values.astype(wanted)
    bounds = numpy.iinfo(wanted)
    low = max(int(bounds.min), int(numpy.iinfo(values.dtype).min))
    high = min(int(bounds.max), int(numpy.iinfo(values.dtype).max))
    return numpy.clip(values, low, high).astype(wanted)


def pack_step(instruction: Instruction, to: str, source: str) -> Step:
    """Two numbers into one register (the first operand is the upper one), or two out of one."""
    if source == "f32":
        return plain_step(
            instruction, lambda high, low: packed(high, low, to, instruction), to, ["f32", "f32"]
        )
    return plain_step(instruction, lambda x: repacked(x, to, source, instruction), to, [source])


def packed(high: Array, low: Array, to: str, instruction: Instruction) -> Array:
    """Two float32 as halves of a register."""
    parts = [half_bits(x.astype(numpy.float64), to, instruction) for x in (low, high)]
    whole: Any = numpy.uint16 if parts[0].dtype.itemsize == 1 else numpy.uint32
    found: Array = numpy.ascontiguousarray(numpy.stack(parts, axis=1)).view(whole)[:, 0]
    return found


def half_bits(values: Array, to: str, instruction: Instruction) -> Array:
    """Bits of each half of a packed type."""
    kind = to[:-2]
    if kind in ("e4m3", "e5m2"):
        return float_to_eight_bits(values, kind)
    bits = encoded(values, kind, instruction)
    return bits.view(numpy.uint16) if bits.dtype == numpy.float16 else bits


def repacked(values: Array, to: str, source: str, instruction: Instruction) -> Array:
    """Between packed types."""
    kind = source[:-2]
    if kind in ("e4m3", "e5m2"):
        parts = [(values >> numpy.uint16(8 * i) & numpy.uint16(0xFF)) for i in range(2)]
        low, high = (eight_bits_to_float(part, kind) for part in parts)
    else:
        halves = numpy.ascontiguousarray(values).view(
            numpy.float16 if kind == "f16" else numpy.uint16
        )
        low, high = (decoded(part, kind) for part in (halves[::2], halves[1::2]))
    return packed(high, low, to, instruction)
