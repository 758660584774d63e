"""The driver: order, fixpoint, memory, and rules that never end."""

import pytest

from tinycore.config import Context
from tinycore.dtype import dtypes
from tinycore.errors import VerifyError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import Const, RuleSet, const, node, var
from tinycore.uop.rewrite import observe, rewrite

i = UOp.range(10, 0)
x, y, a, b = var("x"), var("y"), const("a"), const("b")

fold = RuleSet("fold")


@fold.rule(x + 0)
def add_zero(x: UOp) -> UOp:
    return x


@fold.rule((x + a) + b)
def join(x: UOp, a: Const, b: Const) -> UOp:
    return x + (a.arg + b.arg)


def test_result_is_rewritten_to_the_end() -> None:
    assert rewrite(((i + 1) + 2) + -3, fold) is i


def test_untouched_graph_is_the_same_object() -> None:
    graph = UOp.sink(i * 2, i + 5)

    assert rewrite(graph, fold) is graph


def test_sources_are_finished_before_users() -> None:
    order: list[UOp] = []
    rules = RuleSet("note")

    @rules.rule(node(None, name="x"))
    def note(x: UOp) -> None:
        order.append(x)

    rewrite(UOp.sink(i + 1, i * 2), rules)

    assert [u.op.name for u in order] == ["CONST", "RANGE", "CONST", "ADD", "CONST", "MUL", "SINK"]


def test_each_node_is_visited_once() -> None:
    visits: list[UOp] = []
    rules = RuleSet("note")

    @rules.rule(node(None, name="x"))
    def note(x: UOp) -> None:
        visits.append(x)

    shared = i + 1

    rewrite(UOp.sink(shared * shared, shared), rules)

    assert len(visits) == len(set(visits))


@pytest.mark.slow
def test_deep_graph_needs_no_recursion() -> None:
    deep = i
    for _ in range(20_000):
        deep = (deep + 0) * 3

    assert rewrite(deep, fold).op is Op.MUL


def test_normal_form_is_remembered_per_rule_set() -> None:
    graph = (i + 0) * 2
    other = RuleSet("other")
    other.rule(x * 2)(lambda x: x + x)

    assert rewrite(graph, fold) is i * 2
    assert rewrite(i * 2, other) is i + i


def test_rule_added_after_a_rewrite_applies() -> None:
    rules = RuleSet("growing")
    assert rewrite(i + 0, rules) is i + 0

    rules.rule(x + 0)(lambda x: x)

    assert rewrite(i + 0, rules) is i


def test_rules_that_undo_each_other_are_named() -> None:
    rules = RuleSet("seesaw")

    @rules.rule(node(Op.MUL, x, 2))
    def to_sum(x: UOp) -> UOp:
        return x + x

    @rules.rule(x + x)
    def to_product(x: UOp) -> UOp:
        return x * 2

    with pytest.raises(VerifyError) as caught:
        rewrite(UOp.sink(i * 2), rules)

    assert "rule set 'seesaw' rewrites forever at" in str(caught.value)
    assert "to_sum" in str(caught.value)
    assert "to_product" in str(caught.value)


@pytest.mark.slow
def test_rule_that_grows_its_own_match_is_named() -> None:
    rules = RuleSet("growth")

    @rules.rule(node(Op.MUL, x, a, ordered=True))
    def grow(x: UOp, a: Const) -> UOp:
        return (x + 1) * (a.arg + 1)

    with pytest.raises(VerifyError, match=r"rewrites forever.*Rules involved: grow"):
        rewrite(i * 3, rules)


def test_rule_whose_result_contains_its_node_is_named() -> None:
    rules = RuleSet("wrap")

    @rules.rule(node(Op.RANGE, name="r"))
    def wrap(r: UOp) -> UOp:
        return r + 1

    with pytest.raises(VerifyError, match="Rules involved: wrap"):
        rewrite(i, rules)


def test_observers_are_told_of_every_rule_that_fires() -> None:
    seen: list[tuple[str, UOp, UOp]] = []

    with observe(lambda rule, before, after: seen.append((rule.name, before, after))):
        rewrite(i + 0, fold)
    rewrite(i + 0, fold)

    assert seen == [("add_zero", i + 0, i)]


def test_observers_are_told_also_of_what_is_known() -> None:
    rewrite((i + 1) + 2, fold)
    seen: list[str] = []

    with observe(lambda rule, before, after: seen.append(rule.name)):
        rewrite((i + 1) + 2, fold)

    assert seen == ["join"]


def test_trace_names_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(TRACE="rewrite", NO_COLOR=True):
        rewrite((UOp.range(3, 77) + 1) + 2, fold, name="demo")

    line = capsys.readouterr().err
    assert line.split() == "rewrite demo join ((r77 + 1) + 2) -> (r77 + 3)".split()


def test_rewrite_in_one_process_keeps_dtypes_apart() -> None:
    one = UOp.const(dtypes.int32, 1)

    assert rewrite(one + 0, fold) is one


def test_a_sum_of_sets_does_not_ask_again_what_its_addend_was_asked() -> None:
    asked: list[UOp] = []
    adds, products = RuleSet("adds"), RuleSet("products")
    adds.rule(node(Op.ADD, var("x"), var(), ordered=True))(lambda root, x: asked.append(root))
    products.rule(node(Op.MUL, var("x"), var(), ordered=True))(lambda root, x: asked.append(root))
    graph = UOp.sink((i + 11) * 7)

    rewrite(graph, adds)
    rewrite(graph, adds + products)

    assert [u.op for u in asked] == [Op.ADD, Op.MUL]


def test_a_sum_of_sets_asks_the_rules_that_another_addend_has_for_an_op() -> None:
    asked: list[str] = []
    first, second = RuleSet("first"), RuleSet("second")
    first.rule(node(Op.ADD, var("x"), var(), ordered=True))(lambda x: asked.append("first"))
    second.rule(node(Op.ADD, var("x"), var(), ordered=True))(lambda x: asked.append("second"))
    graph = UOp.sink(i + 13)

    rewrite(graph, first)
    rewrite(graph, first + second)

    assert asked == ["first", "first", "second"]


def test_an_addend_that_got_a_rule_later_says_nothing_of_the_old_sum() -> None:
    asked: list[str] = []
    first, second = RuleSet("first"), RuleSet("second")
    second.rule(node(Op.MUL, var("x"), var(), ordered=True))(lambda x: asked.append("second"))
    both = first + second
    second.rule(node(Op.ADD, var("x"), var(), ordered=True))(lambda x: asked.append("later"))
    graph = UOp.sink((i + 17) * 3)

    rewrite(graph, both)
    rewrite(graph, second)

    assert asked == ["second", "later", "second"]
