"""Patterns, rules and rule sets."""

import pytest

from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import Const, Pattern, RuleSet, const, node, var

i = UOp.range(10, 0)
j = UOp.range(20, 1)


def matches(pattern: Pattern, candidate: UOp) -> bool:
    rules = RuleSet("one")
    rules.rule(pattern)(lambda root: UOp(Op.SINK, dtypes.void, (root,)))
    return rules.apply(candidate) is not None


def test_operators_build_patterns_like_expressions() -> None:
    assert matches((var("x") * const("a")) // const("b"), i * 12 // 4)
    assert not matches((var("x") * const("a")) // const("b"), i * j // 4)


def test_commutative_sources_match_in_both_orders() -> None:
    assert matches(var("x") + const("a"), 3 + i)
    assert matches(var("x") * (var("y") + 1), (1 + i) * j)


def test_ordered_sources_match_as_written() -> None:
    pattern = node(Op.ADD, var("x"), const("a"), ordered=True)

    assert matches(pattern, i + 3)
    assert not matches(pattern, 3 + i)


def test_noncommutative_sources_match_as_written() -> None:
    assert not matches(var("x") // const("a"), UOp.index(3) // i)


def test_one_name_is_one_node() -> None:
    assert matches(var("x") + var("x"), i + i)
    assert not matches(var("x") + var("x"), i + j)


def test_integer_stands_for_integers_only() -> None:
    zero = UOp(Op.DEFINE_VAR, dtypes.float32, (), ("f", 0, 0))

    assert matches(var() + 0, i + 0)
    assert not matches(var() + 0, zero + 0.0)


def test_float_stands_for_that_very_float() -> None:
    f = UOp(Op.DEFINE_VAR, dtypes.float32, (), ("f", 0, 0))

    assert matches(var() + 0.0, f + 0.0)
    assert not matches(var() + 0.0, f + -0.0)
    assert not matches(var() + 1.0, i + 1)


def test_true_stands_for_the_bool_only() -> None:
    assert matches(var().ne(True), (i < 3).ne(True))
    assert not matches(var().ne(True), i.ne(1))


def test_kind_and_dtype_are_conditions() -> None:
    assert matches(var(kind="index") + var(), i + j)
    assert not matches(var(kind=("int", "uint")) + var(kind="int"), i + j)
    assert not matches(var(dtype=dtypes.int32) + var(), i + j)


def test_when_is_a_condition() -> None:
    even = const("a", when=lambda a: a.arg % 2 == 0)

    assert matches(var() * even, i * 4)
    assert not matches(var() * even, i * 5)


def test_argument_is_a_condition() -> None:
    assert matches(node(Op.REDUCE, arg=Op.ADD), UOp(Op.REDUCE, dtypes.index, (i, j), Op.ADD))
    assert not matches(node(Op.REDUCE, arg=Op.MAX), UOp(Op.REDUCE, dtypes.index, (i, j), Op.ADD))


def test_rest_matches_any_number_of_sources() -> None:
    pattern = node(Op.SINK, var("x"), rest=node(Op.RANGE))

    assert matches(pattern, UOp.sink(i + 1))
    assert matches(pattern, UOp.sink(i + 1, i, j))
    assert not matches(pattern, UOp.sink(i + 1, i, j + 1))
    assert not matches(pattern, UOp.sink())


def test_without_rest_the_number_of_sources_counts() -> None:
    assert not matches(node(Op.SINK, var()), UOp.sink(i, j))
    assert matches(node(Op.SINK), UOp.sink(i, j))


def test_any_op_matches_everything() -> None:
    assert matches(var("x"), i)
    assert matches(node(None, var("x"), var("y")), i + j)


def test_rules_are_tried_in_order_of_definition() -> None:
    rules = RuleSet("two")
    rules.rule(var("x") + const("a"))(lambda x: x * 2)
    rules.rule(var("x") + 3)(lambda x: x * 3)

    assert rules.apply(i + 3) is i * 2


def test_rule_that_returns_none_lets_the_next_one_try() -> None:
    rules = RuleSet("two")
    rules.rule(var("x") + const("a"))(lambda x, a: None)
    rules.rule(var("x") + 3)(lambda x: x * 3)

    assert rules.apply(i + 3) is i * 3


def test_rule_that_returns_its_node_did_nothing() -> None:
    rules = RuleSet("one")
    rules.rule(var("x") + const("a"))(lambda root: root)

    assert rules.apply(i + 3) is None


def test_rule_keeps_its_name_and_its_equation() -> None:
    rules = RuleSet("one")

    @rules.rule(var("x") + 0)
    def add_zero(x: UOp) -> UOp:
        """x + 0 == x."""
        return x

    assert [(rule.name, rule.doc) for rule in rules] == [("add_zero", "x + 0 == x.")]
    assert add_zero(i) is i


def test_one_function_may_stand_under_several_patterns() -> None:
    rules = RuleSet("one")

    @rules.rule(var("x") + 0)
    @rules.rule(var("x") * 1)
    def identity(x: UOp) -> UOp:
        return x

    assert rules.apply(i + 0) is i
    assert rules.apply(i * 1) is i


def test_rule_gets_root() -> None:
    rules = RuleSet("one")

    @rules.rule(var("x") + const("a"))
    def scaled(root: UOp, a: Const) -> UOp:
        return root * a.arg

    assert rules.apply(i + 3) is (i + 3) * 3


def test_unknown_parameter_is_an_error() -> None:
    rules = RuleSet("one")

    with pytest.raises(
        ArgumentError, match=r"rule 'wrong' asks for y, but its pattern captures a, x"
    ):

        @rules.rule(var("x") + const("a"))
        def wrong(x: UOp, y: UOp) -> UOp:
            return x + y


def test_sum_of_rule_sets_is_one_object() -> None:
    first, second = RuleSet("first"), RuleSet("second")
    first.rule(var("x") + 0)(lambda x: x)
    second.rule(var("x") * 1)(lambda x: x)

    both = first + second

    assert both is first + second
    assert both.name == "first+second"
    assert both.apply(i + 0) is i
    assert both.apply(i * 1) is i


def test_rule_added_later_counts() -> None:
    rules = RuleSet("growing")
    assert rules.apply(i + 0) is None

    rules.rule(var("x") + 0)(lambda x: x)

    assert rules.apply(i + 0) is i
