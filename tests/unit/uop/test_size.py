"""Arithmetic on variables and sizes: the numbers it gives, and what they are held by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tinycore.uop.size import Variable, notes, noting

length = Variable("length", 2, 9)

ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "n + 3": lambda n: n + 3,
    "3 + n": lambda n: 3 + n,
    "n - 1": lambda n: n - 1,
    "20 - n": lambda n: 20 - n,
    "n * 3": lambda n: n * 3,
    "3 * n": lambda n: 3 * n,
    "n // 2": lambda n: n // 2,
    "100 // n": lambda n: 100 // n,
    "n % 4": lambda n: n % 4,
    "100 % n": lambda n: 100 % n,
    "-n": lambda n: -n,
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_an_expression_of_a_variable_has_the_value_of_its_number(name: str) -> None:
    compute = ARITHMETIC[name]

    assert [compute(length).holding({"length": n}).value for n in (2, 7)] == [
        compute(2),
        compute(7),
    ]


def test_sizes_of_two_bindings_hold_the_numbers_of_both() -> None:
    n, m = length.bind(5), Variable("other", 1, 4).bind(3)

    assert (n * m + n).value == 20
    assert (n + m).values == (m + n).values
    assert (n + n).values == n.values


def test_conditions_are_noted_where_they_are_asked_for() -> None:
    n = length.bind(5)
    with noting() as outer:
        with noting() as inner:
            assert n > 3
        first = dict(inner)
        assert n < 7

    assert len(first) == 1
    assert inner == first
    assert len(outer) == 2
    assert notes.open == []
