"""Every algebraic rule against plain arithmetic, on instances drawn from its own pattern."""

import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.expressions import (
    NoInstance,
    instance_of,
    random_expression,
    random_values,
)
from tinycore.dtype import dtypes
from tinycore.uop.evaluate import Undefined, evaluate
from tinycore.uop.node import UOp
from tinycore.uop.pattern import Rule
from tinycore.uop.symbolic import simplified, simplify
from tinycore.uop.text import to_text

NOT_ARITHMETIC = {"drop_single_steps", "index_under_gate"}
"""Rules about nodes that have no value to compare; tests/unit/uop/test_symbolic.py has them."""

RULES: dict[str, Rule] = {}
"""By name, and the number among the rules of that name: one function may stand under several
patterns. Tests take the name, as Hypothesis would print all of a Rule when it fails."""
for entry in simplify:
    if entry.name not in NOT_ARITHMETIC:
        RULES[f"{entry.name}-{sum(rule.name == entry.name for rule in RULES.values())}"] = entry

ATTEMPTS = 400
BINDINGS = 6


def same(a: Any, b: Any) -> bool:
    """Equal in type and value; NaN equals NaN, and 0.0 does not equal -0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


def assert_same_value(before: UOp, after: UOp, random: Random, what: str) -> None:
    for _ in range(BINDINGS):
        values = random_values(random, before)
        try:
            expected = evaluate(before, values)
        except Undefined:
            continue
        found = evaluate(after, values)
        assert same(found, expected), (
            f"{what}: {expected!r} became {found!r} for "
            f"{ {leaf.arg: value for leaf, value in values.items()} }\n"
            f"before:\n{to_text(before)}after:\n{to_text(after)}"
        )


def firing_instance(rule: Rule, random: Random) -> tuple[UOp, UOp]:
    """An instance of the rule's pattern to which it applies, and the result."""
    for _ in range(ATTEMPTS):
        try:
            before = instance_of(random, rule.pattern)
        except NoInstance:
            continue
        after = rule.apply(before)
        if after is not None:
            return before, after
    pytest.fail(f"{rule.name} applied to none of {ATTEMPTS} instances of its pattern")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_rule_preserves_value(name: str, seed: int) -> None:
    random = Random(seed)
    before, after = firing_instance(RULES[name], random)

    assert after.dtype is before.dtype
    assert_same_value(before, after, random, name)


@pytest.mark.parametrize("name", RULES)
def test_rule_states_its_equation(name: str) -> None:
    assert RULES[name].doc
    assert len(RULES[name].doc.splitlines()) == 1


MIXES = [
    (dtypes.index,),
    (dtypes.int32,),
    (dtypes.uint8, dtypes.int8),
    (dtypes.index, dtypes.int32, dtypes.uint8),
    (dtypes.float32,),
    (dtypes.float16, dtypes.float32, dtypes.int16),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(d.name for d in mix))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_simplified_expression_has_the_same_value(mix: tuple[Any, ...], seed: int) -> None:
    random = Random(seed)
    dtype = random.choice((*mix, dtypes.bool))
    before = random_expression(random, dtype, random.randint(2, 5), (*mix, dtypes.bool))

    after = simplified(before)

    assert after.dtype is before.dtype
    assert_same_value(before, after, random, "simplify")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_bounds_hold(seed: int) -> None:
    random = Random(seed)
    dtype = random.choice((dtypes.index, dtypes.int8, dtypes.uint8, dtypes.bool))
    expression = random_expression(random, dtype, 4, (dtype, dtypes.index))
    low, high = expression.bounds
    for _ in range(BINDINGS):
        try:
            value = evaluate(expression, random_values(random, expression))
        except Undefined:
            continue
        assert low <= value <= high, to_text(expression)


def test_rule_names_are_unique_functions() -> None:
    functions: dict[str, Counter[object]] = {}
    for rule in simplify:
        functions.setdefault(rule.name, Counter())[rule.function] += 1
    assert {name for name, found in functions.items() if len(found) > 1} == set()
