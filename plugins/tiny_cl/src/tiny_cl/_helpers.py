"""Functions of OpenCL C that define what the language leaves undefined, one for each type.

Each is written before the kernel that calls it. Lanes of vectors are chosen by `?:`, whose
condition has lanes as wide as what it chooses.
"""

from __future__ import annotations

from typing import Protocol

from tinycore.dtype import DType, dtypes
from tinycore.render.writer import Writer
from tinycore.uop.op import Op

__all__ = ["division", "truncation"]


class Language(Protocol):
    """The part of the renderer that helpers use."""

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type."""


def division(op: Op, dtype: DType, language: Language, writer: Writer) -> str:
    """a / b or a % b where b may be 0, which gives 0, or -1, whose quotient wraps."""
    t = language.type_name(dtype, writer)
    name = f"{'quotient' if op is Op.IDIV else 'remainder'}_{t}"
    zero, one = f"({t})(0)", f"({t})(1)"
    if dtype.kind == "uint":
        usual = "a / safe" if op is Op.IDIV else "a % safe"
        body = f"{t} safe = b == {zero} ? {one} : b; return b == {zero} ? {zero} : ({t})({usual});"
    else:
        minus = f"({t})(-1)"
        negated = f"as_{t}(as_{unsigned(t)}({zero}) - as_{unsigned(t)}(a))"
        if dtype.itemsize // dtype.count < 4 and dtype.count == 1:
            negated = f"({t})(0 - a)"
        at_minus = negated if op is Op.IDIV else zero
        usual = f"({t})(a {'/' if op is Op.IDIV else '%'} safe)"
        body = (
            f"{t} safe = (b == {zero}) || (b == {minus}) ? {one} : b; "
            if dtype.count == 1
            else f"{t} safe = ((b == {zero}) | (b == {minus})) ? {one} : b; "
        )
        body += f"return b == {zero} ? {zero} : (b == {minus} ? {at_minus} : {usual});"
    writer.define(f"{t} {name}({t} a, {t} b) {{ {body} }}")
    return name


def unsigned(name: str) -> str:
    """The unsigned type beside a signed one."""
    return f"u{name}"


def truncation(target: DType, source: DType, language: Language, writer: Writer) -> str:
    """A float as an integer: what does not fit, and NaN, is the least int32, or for wide types the
    least int64, cut to the width.
    """
    t, s = language.type_name(target, writer), language.type_name(source, writer)
    name = f"{t}_of_{s}"
    scalar = target.scalar()
    if scalar is dtypes.uint64:
        return wide_truncation(target, source, language, writer)
    wide = scalar.itemsize == 8 or scalar in (dtypes.uint32, dtypes.index)
    carrier = (dtypes.int64 if wide else dtypes.int32).vec(target.count)
    c = language.type_name(carrier, writer)
    least = f"({c})({'LONG_MIN' if wide else 'INT_MIN'})"
    fits = mask(in_range(source, s, 63 if wide else 31), carrier, source)
    value = conversion("x", c, target)
    body = f"{c} y = {fits} ? {value} : {least}; return {conversion('y', t, target)};"
    writer.define(f"{t} {name}({s} x) {{ {body} }}")
    return name


def wide_truncation(target: DType, source: DType, language: Language, writer: Writer) -> str:
    """A float as uint64: as int64 below 2**63, above it less 2**63 with the highest bit set."""
    carrier = dtypes.int64.vec(target.count)
    if source.scalar() is dtypes.float16:  # none is beyond int64
        signed = truncation(carrier, source, language, writer)
        return defined_wide(target, source, f"return as_{{t}}({signed}(x));", language, writer)
    signed = truncation(carrier, source, language, writer)
    s = language.type_name(source, writer)
    f = "f" if source.scalar() is dtypes.float32 else ""
    small = mask(f"x < ({s})(0x1p63{f})", carrier, source)
    fits = mask(f"x < ({s})(0x1p64{f})", carrier, source)
    sign = "({t})(0x8000000000000000ul)"
    high = f"as_{{t}}({signed}(x - ({s})(0x1p63{f}))) ^ {sign}"
    body = f"return {small} ? as_{{t}}({signed}(x)) : ({fits} ? {high} : {sign});"
    return defined_wide(target, source, body, language, writer)


def defined_wide(
    target: DType, source: DType, body: str, language: Language, writer: Writer
) -> str:
    """The name of a conversion to uint64, defined by its body."""
    t, s = language.type_name(target, writer), language.type_name(source, writer)
    writer.define(f"{t} {t}_of_{s}({s} x) {{ {body.format(t=t)} }}")
    return f"{t}_of_{s}"


def in_range(source: DType, name: str, bits: int) -> str:
    """Condition, as code, that `x` truncated fits a signed integer of one bit more; not NaN."""
    scalar = source.scalar()
    if scalar is dtypes.float16:  # its infinity and NaN do not; all that is finite does
        return f"(x > ({name})(-INFINITY)) & (x < ({name})(INFINITY))"
    f = "f" if scalar is dtypes.float32 else ""
    above = (
        f"x > ({name})(-2147483649.0)" if not f and bits == 31 else f"x >= ({name})(-0x1p{bits}{f})"
    )
    return f"({above}) & (x < ({name})(0x1p{bits}{f}))"


def mask(test: str, carrier: DType, source: DType) -> str:
    """A condition as `?:` wants it: lanes of a vector as wide as the carrier's."""
    if carrier.count == 1:
        return f"({test})"
    lanes = {4: "int", 8: "long"}[carrier.scalar().itemsize]
    if carrier.scalar().itemsize == source.scalar().itemsize:
        return f"({test})"
    return f"(convert_{lanes}{carrier.count}({test}) != ({lanes}{carrier.count})(0))"


def conversion(text: str, name: str, dtype: DType) -> str:
    """The text converted to a type that is called `name`."""
    return f"({name}){text}" if dtype.count == 1 else f"convert_{name}({text})"
