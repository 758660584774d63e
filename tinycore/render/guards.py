"""Guards: helper functions that define undefined behavior of C, such as division by zero.

Floor 2. `cstyle.py` calls them wherever a dialect does not list the op in `defined`. A vector goes
through its lanes one by one; a dialect with vector instructions for it overrides `alu` and `cast`.
"""

from __future__ import annotations

from typing import Final, Protocol

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.render.writer import Writer
from tinycore.uop.op import Op

UNDEFINED_IN_C: Final = frozenset({Op.IDIV, Op.MOD, Op.SHL, Op.SHR, Op.CAST})
"""Ops whose plain text in C is undefined for some operands that docs/numerics.md defines."""

HELPER_NAMES: Final = {Op.IDIV: "quotient", Op.MOD: "remainder"}
WIDE_BITS: Final = 63
"""From 2**63 on a float fits uint64 only."""


class Dialect(Protocol):
    """The syntax that guards need of a renderer."""

    @property
    def function(self) -> str:
        """The template of a helper function."""

    @property
    def vector(self) -> str:
        """The template of a vector with given lanes."""

    def constant(self, dtype: DType, value: Scalar) -> str:
        """A literal."""


def suffix(dtype: DType) -> str:
    """A type as part of a name: float32, or float32x8."""
    return dtype.name + (f"x{dtype.count}" if dtype.count > 1 else "")


def by_lanes(name: str, dtype: DType, operands: tuple[DType, ...], call: str, writer: Writer,
             dialect: Dialect) -> str:  # fmt: skip
    """Define `name`, which applies `call` to each lane of its operands {a} and {b}."""
    letters = "ab"[: len(operands)]
    lanes = [
        call.format(**{letter: f"{letter}[{i}]" for letter in letters}) for i in range(dtype.count)
    ]
    kind = writer.type(dtype)
    value = dialect.vector.format(type=kind, lanes=", ".join(lanes))
    return defined(name, dtype, operands, f"return {value};", writer, dialect)


def defined(name: str, dtype: DType, operands: tuple[DType, ...], body: str, writer: Writer,
            dialect: Dialect) -> str:  # fmt: skip
    """Define a function of operands `a` and `b`, and return its name."""
    parameters = ", ".join(
        f"{writer.type(kind)} {letter}" for kind, letter in zip(operands, "ab", strict=False)
    )
    text = dialect.function.format(
        type=writer.type(dtype), name=name, parameters=parameters, body=body
    )
    writer.define(text)
    return name


def division(op: Op, dtype: DType, writer: Writer, dialect: Dialect) -> str:
    """IDIV or MOD that yields 0 for a zero divisor, and wraps for the least number over -1."""
    name = f"{HELPER_NAMES[op]}_{suffix(dtype)}"
    if dtype.count > 1:
        scalar = division(op, dtype.scalar(), writer, dialect)
        return by_lanes(name, dtype, (dtype, dtype), f"{scalar}({{a}}, {{b}})", writer, dialect)
    sign = "/" if op is Op.IDIV else "%"
    usual = f"b == 0 ? 0 : a {sign} b"
    if dtype.kind == "int":
        unsigned = writer.type(dtypes.by_name[f"u{dtype.name}"])
        negated = f"({writer.type(dtype)})(({unsigned})0 - ({unsigned})a)"
        at_minus = negated if op is Op.IDIV else "0"
        usual = f"b == 0 ? 0 : b == -1 ? {at_minus} : a {sign} b"
    return defined(name, dtype, (dtype, dtype), f"return {usual};", writer, dialect)


def conversion(target: DType, source: DType, writer: Writer, dialect: Dialect) -> str:
    """A cast that C leaves undefined, or does not have: of floats to integers, and of vectors."""
    name = f"{suffix(source)}_to_{suffix(target)}"
    if target.count > 1:
        return by_lanes(name, target, (source,), lane_cast(target, source, writer, dialect),
                        writer, dialect)  # fmt: skip
    if target is dtypes.uint64:
        return to_uint64(name, source, writer, dialect)
    wide = target.itemsize == 8 or target.kind == "index" or target is dtypes.uint32
    carrier = dtypes.int64 if wide else dtypes.int32
    c, least = writer.type(carrier), dialect.constant(carrier, dtypes.min(carrier))
    tests = in_range(carrier, source, dialect)
    body = f"return ({writer.type(target)})({tests} ? ({c})a : {least});"
    return defined(name, target, (compared_as(source),), body, writer, dialect)


def lane_cast(target: DType, source: DType, writer: Writer, dialect: Dialect) -> str:
    """The cast of one lane, {a}."""
    target, source = target.scalar(), source.scalar()
    if target.kind == "bool":
        return "{a} != 0"
    if source.kind == "float" and target.kind != "float":
        return f"{conversion(target, source, writer, dialect)}({{a}})"
    return f"({writer.type(target)}){{a}}"


def to_uint64(name: str, source: DType, writer: Writer, dialect: Dialect) -> str:
    """A float as uint64: below 2**63 as int64, above less 2**63 with the highest bit set."""
    compared, t = compared_as(source), writer.type(dtypes.uint64)
    signed = conversion(dtypes.int64, source, writer, dialect)
    half, end = (dialect.constant(compared, 2.0**n) for n in (WIDE_BITS, WIDE_BITS + 1))
    sign = dialect.constant(dtypes.uint64, 1 << WIDE_BITS)
    body = (
        f"return a < {half} ? ({t}){signed}(a) "
        f": a < {end} ? ({t}){signed}(a - {half}) ^ {sign} : {sign};"
    )
    return defined(name, dtypes.uint64, (compared,), body, writer, dialect)


def compared_as(source: DType) -> DType:
    """The float type to compare limits in: 2**31 is beyond a half."""
    return dtypes.float32 if source.itemsize < 4 else source


def in_range(carrier: DType, source: DType, dialect: Dialect) -> str:
    """Condition, as code, that `a` truncated fits the carrier; false for NaN."""
    compared = compared_as(source)
    end = 2.0 ** (carrier.bits - 1)
    least, below = (dialect.constant(compared, x) for x in (-end, end))
    above = f"a >= {least}"
    if compared is dtypes.float64 and carrier is dtypes.int32:  # what truncates to the least one
        above = f"a > {dialect.constant(compared, -end - 1)}"
    return f"{above} && a < {below}"
