"""Factors of values that a condition hides."""

from __future__ import annotations

import math

import pytest

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.proportional import with_common_factors

GATE = UOp.range(4, 0).eq(0)
VALUE = UOp(Op.DEFINE_VAR, dtypes.float32, (), ("x", -1.0, 1.0))


def hidden(value: UOp, infinity: float) -> UOp:
    """A number where the gate holds, else a value."""
    return GATE.where(UOp.const(dtypes.float32, infinity), value)


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
@pytest.mark.parametrize("factor", [0.125, -0.125])
def test_a_factor_goes_behind_an_infinite_choice(factor: float, infinity: float) -> None:
    constant = UOp.const(dtypes.float32, factor)
    found = with_common_factors(hidden(VALUE * constant, infinity))

    assert found is hidden(VALUE, math.copysign(infinity, infinity * factor)) * constant


@pytest.mark.parametrize(
    "value",
    [
        hidden(VALUE * UOp.const(dtypes.float32, 0.125), 1.0),
        hidden(VALUE * UOp.const(dtypes.float32, 0.0), math.inf),
        hidden(VALUE * UOp.const(dtypes.float32, math.inf), math.inf),
        hidden(VALUE * VALUE, math.inf),
    ],
)
def test_other_choices_stay_as_they_are(value: UOp) -> None:
    assert with_common_factors(value) is value
