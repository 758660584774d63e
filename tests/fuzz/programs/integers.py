"""Families of ops on integers, which wrap, and on bools; comparisons."""

from __future__ import annotations

from typing import Final

from tests.fuzz.programs.builder import LIMIT, Builder
from tests.fuzz.programs.facts import broadcast
from tests.fuzz.programs.form import Rounding, Value
from tinycore.dtype import dtypes

COMPARISONS: Final = ("<", "<=", ">", ">=", "==", "!=")


def comparison(b: Builder) -> None:
    """A comparison of two values of one kind."""
    sign = b.draw.pick(COMPARISONS)
    if b.draw.chance(0.6):
        x = b.floating(convert=False)
        y = b.partner(x.shape, -LIMIT, LIMIT)
        if x.dtype is not y.dtype:
            return
    else:
        x = b.integer()
        y = integer_partner(b, x)
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    text = f"{x.name} {sign} {y.name}"
    b.compute(text, text, [x, y], shape, dtypes.bool, 0, 1, Rounding.EXACT)


def integer_partner(b: Builder, x: Value) -> Value:
    """An integer of the same dtype that broadcasts to another's shape."""
    return b.chosen(
        lambda v: v.dtype is x.dtype and broadcast(v.shape, x.shape) == x.shape,
        lambda: b.fresh_integer(b.narrowed(x.shape), x.dtype),
        again=0.6,
    )


INTEGER_OPS: Final = (
    ("{x} + {y}", "{x} + {y}"),
    ("{x} - {y}", "{x} - {y}"),
    ("{x} * {y}", "{x} * {y}"),
    ("{x} // ({y} & 7 | 1)", "torch.div({x}, ({y} & 7 | 1), rounding_mode='floor')"),
    ("{x} % ({y} & 7 | 1)", "{x} % ({y} & 7 | 1)"),
    ("{x}.fmod({y} & 7 | 1)", "torch.fmod({x}, {y} & 7 | 1)"),
    (
        "{x}.div({y} & 7 | 1, rounding_mode='trunc')",
        "torch.div({x}, {y} & 7 | 1, rounding_mode='trunc')",
    ),
    ("{x} & {y}", "{x} & {y}"),
    ("{x} | {y}", "{x} | {y}"),
    ("{x} ^ {y}", "{x} ^ {y}"),
    ("{x} << ({y} & 7)", "{x} << ({y} & 7)"),
    ("{x} >> ({y} & 7)", "{x} >> ({y} & 7)"),
    ("{x}.maximum({y})", "torch.maximum({x}, {y})"),
    ("{x}.minimum({y})", "torch.minimum({x}, {y})"),
    ("{x} ** ({y} & 3)", "{x} ** ({y} & 3)"),
    ("({x} > {y}).where({x}, {y})", "torch.where({x} > {y}, {x}, {y})"),
)


def integer_arithmetic(b: Builder) -> None:
    """Arithmetic of two integers of one dtype, which wraps."""
    x = b.integer()
    y = integer_partner(b, x)
    ours, theirs = b.draw.pick(INTEGER_OPS)
    least, most = float(dtypes.min(x.dtype)), float(dtypes.max(x.dtype))
    low, high = least, most
    if "+" in ours:
        low, high = x.low + y.low, x.high + y.high
    elif "imum" in ours or "where" in ours:
        low, high = min(x.low, y.low), max(x.high, y.high)
    elif "%" in ours or "fmod" in ours:
        low, high = (0.0 if x.low >= 0 or "%" in ours else -7.0), 7.0
    b.compute(
        ours.format(x=x.name, y=y.name),
        theirs.format(x=x.name, y=y.name),
        [x, y],
        x.shape,
        x.dtype,
        low,
        high,
        Rounding.EXACT,
    )


def integer_unary(b: Builder) -> None:
    """One integer: sign, magnitude, bits, limits."""
    x = b.integer()
    size = max(abs(x.low), abs(x.high))
    text = b.draw.pick(
        [
            "-{x}",
            "{x}.abs()",
            "{x}.sign()",
            "~{x}",
            "{x}.clamp(0, 5)",
            "{x} * 3",
            "{x} + 7",
            "{x} % 5",
            "{x}.square()",
            "{x}.relu()",
        ]
    )
    low, high = {
        "{x}.clamp(0, 5)": (0, 5),
        "{x} % 5": (0, 4),
        "{x}.sign()": (-1, 1),
        "{x}.abs()": (0, size),
        "{x} * 3": (x.low * 3, x.high * 3),
        "{x} + 7": (x.low + 7, x.high + 7),
        "{x}.relu()": (0, max(0, x.high)),
    }.get(text, (float(dtypes.min(x.dtype)), float(dtypes.max(x.dtype))))
    if text == "{x}.abs()" and x.low == dtypes.min(x.dtype):
        low = x.low
    ours = text.format(x=x.name)
    b.compute(ours, ours, [x], x.shape, x.dtype, low, high, Rounding.EXACT, views=True)


def logic(b: Builder) -> None:
    """Two bools."""
    x = b.boolean(b.shape())
    y = b.boolean(x.shape)
    text = b.draw.pick(["{x} & {y}", "{x} | {y}", "{x} ^ {y}", "~{x}", "{x} == {y}", "{x} != {y}"])
    both = text.format(x=x.name, y=y.name)
    b.compute(both, both, [x, y], x.shape, dtypes.bool, 0, 1, Rounding.EXACT)


def bits(b: Builder) -> None:
    """The same bytes as another integer of that width."""
    x = b.integer()
    pairs = {
        dtypes.int32: dtypes.uint32,
        dtypes.uint32: dtypes.int32,
        dtypes.int8: dtypes.uint8,
        dtypes.uint8: dtypes.int8,
    }
    if (target := pairs.get(x.dtype)) is not None:
        b.compute(
            f"{x.name}.bitcast(dtypes.{target.name})",
            x.name,
            [x],
            x.shape,
            target,
            float(dtypes.min(target)),
            float(dtypes.max(target)),
            Rounding.EXACT,
            views=True,
        )


FAMILY: Final = (
    (comparison, 2.5), (integer_arithmetic, 4), (integer_unary, 2), (logic, 1.5), (bits, 0.5),
)  # fmt: skip
"""Ops, and how often."""
