"""Families of ops that make one element of two or three: arithmetic, choices, conversions.

Operands are brought into intervals where the op is defined and well-conditioned.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.programs.builder import INTEGERS, LIMIT, Builder
from tests.fuzz.programs.facts import broadcast, common
from tests.fuzz.programs.form import Rounding, Value
from tests.fuzz.programs.unary import as_real
from tinycore.dtype import dtypes, least_upper_dtype

# --- two operands


def arithmetic(b: Builder) -> None:
    """Sums, products, quotients, extremes of two broadcast floats (or a float and an integer)."""
    x = b.floating()
    y = b.partner(x.shape, -LIMIT, LIMIT)
    shape, dtype = broadcast(x.shape, y.shape), common(x, y)
    assert shape is not None
    if b.draw.chance(0.5):
        x, y = y, x
    left, right = as_real(x), as_real(y)
    ends = [a * c for a in (x.low, x.high) for c in (y.low, y.high)]
    rows = {
        f"{x.name} + {y.name}": (
            f"{left} + {right}",
            x.low + y.low,
            x.high + y.high,
            Rounding.WHOLE,
        ),
        f"{x.name} - {y.name}": (
            f"{left} - {right}",
            x.low - y.high,
            x.high - y.low,
            Rounding.WHOLE,
        ),
        f"{x.name} * {y.name}": (f"{left} * {right}", min(ends), max(ends), Rounding.WHOLE),
        f"{x.name}.maximum({y.name})": (
            f"torch.maximum({left}, {right})",
            max(x.low, y.low),
            max(x.high, y.high),
            Rounding.WHOLE,
        ),
        f"{x.name}.minimum({y.name})": (
            f"torch.minimum({left}, {right})",
            min(x.low, y.low),
            min(x.high, y.high),
            Rounding.WHOLE,
        ),
    }
    ours = b.draw.pick(list(rows))
    theirs, low, high, rounding = rows[ours]
    b.compute(ours, theirs, [x, y], shape, dtype, low, high, rounding)


def special(b: Builder) -> None:
    """Quotients, powers, remainders and the like, each with operands from its own intervals."""
    rows = (
        ("{x} / {y}", "{x} / {y}", -16, 16, 0.5, 8, -32, 32),
        ("{x}.pow({y})", "{x}.pow({y})", 0.5, 3, -2, 2, 0, 9),
        ("{x} ** {y}", "{x} ** {y}", 0.5, 3, -2, 2, 0, 9),
        ("{x}.fmod({y})", "torch.fmod({x}, {y})", -8, 8, 0.5, 4, -4, 4),
        ("{x} % {y}", "torch.remainder({x}, {y})", -8, 8, 0.5, 4, -4, 4),
        ("{x}.copysign({y})", "torch.copysign({x}, {y})", -16, 16, 0.25, 16, -16, 16),
        ("{x}.logaddexp({y})", "torch.logaddexp({x}, {y})", -8, 8, -8, 8, -8, 9),
        (
            "{x}.div({y}, rounding_mode='floor')",
            "torch.div({x}, {y}, rounding_mode='floor')",
            -8,
            8,
            0.5,
            4,
            -16,
            16,
        ),
        (
            "{x}.div({y}, rounding_mode='trunc')",
            "torch.div({x}, {y}, rounding_mode='trunc')",
            -8,
            8,
            0.5,
            4,
            -16,
            16,
        ),
    )
    ours, theirs, a, c, low, high, least, most = b.draw.pick(rows)
    x = b.floating(a, c, convert=False)
    y = b.partner(x.shape, low, high)
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    b.compute(
        ours.format(x=x.name, y=y.name),
        theirs.format(x=x.name, y=y.name),
        [x, y],
        shape,
        common(x, y),
        least,
        most,
    )


def with_number(b: Builder) -> None:
    """Arithmetic with a Python number, on either side."""
    c = b.number()
    if b.draw.chance(0.25):
        x = b.floating(0.5, 3, convert=False)
        n = b.draw.pick([2, 3, 0.5, -1, -2, 1.5, 2.25, 0, 1])
        b.compute(f"{x.name} ** {n}", f"{x.name} ** {n}", [x], x.shape, x.dtype, 0, 27)
        return
    if b.draw.chance(0.2):
        x = b.floating(0.5, 8, convert=False)
        b.compute(
            f"{c} / {x.name}", f"{c} / {x.name}", [x], x.shape, x.dtype, -abs(c) * 2, abs(c) * 2
        )
        return
    x = b.floating(-LIMIT, LIMIT, convert=False)
    size, c = abs(c) + 1, c or 1.0
    pattern = b.draw.pick(["{x} + {c}", "{c} - {x}", "{x} * {c}", "{x} / {c}", "{c} * {x}"])
    text = pattern.format(x=x.name, c=c)
    most = LIMIT * 8 * size
    b.compute(text, text, [x], x.shape, x.dtype, -most, most, Rounding.WHOLE)


# --- choices and conversions


def choice(b: Builder) -> None:
    """`where` and `masked_fill`, `lerp`, limits that are tensors."""
    x = b.floating(convert=False)
    kind = b.draw.pick(["where", "where", "fill", "lerp", "clamp", "number"])
    if kind == "lerp":
        y, w = b.partner(x.shape, -LIMIT, LIMIT), b.partner(x.shape, 0, 1)
        shape = broadcast(x.shape, y.shape, w.shape)
        if shape is not None:
            b.compute(
                f"{x.name}.lerp({y.name}, {w.name})",
                f"torch.lerp({x.name}, {y.name}, {w.name})",
                [x, y, w],
                shape,
                common(x, y, w),
                -2 * LIMIT,
                2 * LIMIT,
            )
        return
    mask = b.boolean(x.shape)
    if kind in ("fill", "number"):
        c = b.number()
        if kind == "fill":
            ours, theirs = (f"{x.name}.masked_fill({mask.name}, {c})",) * 2
        else:
            ours = f"{mask.name}.where({c}, {x.name})"
            theirs = f"torch.where({mask.name}, constant({c}), {x.name})"
        b.compute(
            ours,
            theirs,
            [x, mask],
            x.shape,
            x.dtype,
            min(x.low, c),
            max(x.high, c),
            Rounding.EXACT,
        )
        return
    y = b.partner(x.shape, -LIMIT, LIMIT)
    shape = broadcast(x.shape, y.shape, mask.shape)
    if shape is None or x.dtype is not y.dtype:
        return
    if kind == "clamp":
        ours = f"{x.name}.clamp({y.name}, {y.name} + 1)"
        theirs = f"torch.clamp({x.name}, {y.name}, {y.name} + 1)"
        inputs, low, high = [x, y], min(x.low, y.low), max(x.high, y.high) + 1
        shape = broadcast(x.shape, y.shape)
    else:
        ours = f"{mask.name}.where({x.name}, {y.name})"
        theirs = f"torch.where({mask.name}, {x.name}, {y.name})"
        inputs, low, high = [mask, x, y], min(x.low, y.low), max(x.high, y.high)
    assert shape is not None
    exact = Rounding.ROUNDED if kind == "clamp" else Rounding.EXACT
    b.compute(ours, theirs, inputs, shape, x.dtype, low, high, exact)


def cast(b: Builder) -> None:
    """A conversion between any two dtypes that hold the range."""
    x = b.anything()
    if not math_finite(x):
        x = b.fitted(x, -2, 2)
    if b.draw.chance(0.5):
        target = b.draw.weighted([*[(d, w) for d, w in INTEGERS], (dtypes.bool, 0.15)])
        if dtypes.is_float(x.dtype) and target is not dtypes.bool:
            least, most = max(-99.0, float(dtypes.min(target))), 99.0
            x = b.fitted(x, least, most)
        low, high = (0.0, 1.0) if target is dtypes.bool else (x.low, x.high)
        theirs = f"truth({x.name})" if target is dtypes.bool else f"{x.name}.long()"
        b.compute(
            f"{x.name}.cast(dtypes.{target.name})",
            theirs,
            [x],
            x.shape,
            target,
            low,
            high,
            Rounding.EXACT,
            views=True,
        )
        return
    target = b.draw.pick([dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16])
    if max(abs(x.low), abs(x.high)) > 2000 and target is dtypes.float16:
        return
    wider = dtypes.is_float(x.dtype) and least_upper_dtype(x.dtype, target) is target
    b.compute(
        f"{x.name}.cast(dtypes.{target.name})",
        f"real({x.name})",
        [x],
        x.shape,
        target,
        x.low,
        x.high,
        Rounding.EXACT if wider else Rounding.ROUNDED,
        views=True,
    )


def math_finite(x: Value) -> bool:
    """True if the range of a value is known."""
    return abs(x.low) < float("inf") and abs(x.high) < float("inf")


FAMILY: Final = ((arithmetic, 12), (special, 4), (with_number, 4), (choice, 5), (cast, 4))
"""Ops, and how often."""
