"""Strides of an index along loops."""

from __future__ import annotations

from tinycore.uop.affine import coefficient, divisor, interval
from tinycore.uop.node import UOp
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

ROW, COLUMN = UOp.range(5, 0), UOp.range(7, 1)


def test_an_interval_is_where_some_counters_lead() -> None:
    place = ROW * 7 + COLUMN + 3

    assert interval(place, ()) == (3, 38)
    assert interval(place, (ROW,)) == (3, 10)
    assert interval(place, (ROW, COLUMN)) == (3, 4)
    assert interval(COLUMN * -2, ()) == (-12, 1)


def test_counters_that_stand_still_are_0_inside_of_a_division() -> None:
    place = rewrite((ROW * 3 + COLUMN) // 4, simplify)

    assert coefficient(place, ROW) is None
    assert interval(place, (ROW,)) == (0, 2)
    assert interval(place, ()) == (0, 5)


def test_exclusive_or_keeps_the_powers_of_two_of_both() -> None:
    i, j = (UOp.range(8, (number,)) for number in (0, 1))

    assert divisor(i * 8 ^ j * 4, 64) == 4
    assert divisor((i ^ j) * 8, 64) == 8
