"""Comparisons, conjunctions of bounds, extremes, and what a gate says about an index."""

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.symbolic import simplified, simplify_under

i = UOp.range(8, 0)
j = UOp.range(56, 1)
k = UOp.range(3, 2)
n = UOp.variable("n", 1, 9)
TRUE, FALSE = UOp.const(dtypes.bool, True), UOp.const(dtypes.bool, False)
buffer = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(4096), (), 0)


def at(index: UOp, gate: UOp) -> UOp:
    return UOp(Op.INDEX, buffer.dtype, (buffer, index, gate))


# --- inequalities


def test_bounds_decide() -> None:
    assert simplified(i < 8) is TRUE
    assert simplified(i < 0) is FALSE


def test_constants_move_to_the_right() -> None:
    assert simplified(i - 1 < 5) is (i < 6)
    assert simplified(i - 1 >= 0) is (i < 1).logical_not()


def test_constant_on_the_left_becomes_a_negation() -> None:
    assert simplified(i > 3) is (i < 4).logical_not()


def test_negative_factor_becomes_a_negation() -> None:
    assert simplified(7 - i < 3) is (i < 5).logical_not()


def test_shared_terms_cancel() -> None:
    assert simplified(i + j < j + n) is (i < n)
    assert simplified(i < i + 1) is TRUE


def test_factor_is_divided_out() -> None:
    assert simplified(i * 4 < 10) is (i < 3)


def test_small_rest_is_dropped() -> None:
    assert simplified(i * 4 + k < 12) is (i < 3)
    assert simplified(i * 4 + k < 11) is (i < 3)


def test_rest_that_decides_is_not_dropped() -> None:
    assert simplified(i * 4 + k < 9) is (i * 4 + k < 9)
    assert simplified(i * 4 + j < 12) is (i * 4 + j < 12)


def test_quotient_compares_like_its_dividend() -> None:
    assert simplified(i // 4 < 1) is (i < 4)


def test_counters_compare_before_their_cast() -> None:
    assert simplified(i.cast(dtypes.int32) + 1 < j.cast(dtypes.int32)) is (i + 1 < j)


# --- equalities


def test_constants_move_to_the_right_of_equality() -> None:
    assert simplified((i + 3).eq(7)) is i.eq(4)


def test_impossible_remainder_decides_equality() -> None:
    assert simplified((i * 4).eq(7)) is FALSE
    assert simplified((i * 4).ne(7)) is TRUE


def test_shared_terms_cancel_in_equality() -> None:
    assert simplified((i * 56 + j).eq(j + 56)) is i.eq(1)


# --- conjunctions


def test_tighter_bound_stays() -> None:
    assert simplified((i < 5) & (i < 3)) is (i < 3)
    assert simplified((i >= 2) & (i < 7) & (i >= 1)) is (i < 2).logical_not() & (i < 7)


def test_bounds_that_exclude_each_other_are_false() -> None:
    assert simplified((i < 3) & (i >= 5)) is FALSE


def test_bound_implied_by_the_range_vanishes() -> None:
    assert simplified((i < 5) & (i >= 0)) is (i < 5)


def test_other_conditions_stay() -> None:
    flag = UOp(Op.DEFINE_VAR, dtypes.bool, (), ("flag", False, True))

    assert simplified((i < 5) & flag & (i < 3)) is flag & (i < 3)


# --- extremes


def test_extreme_is_known_by_bounds() -> None:
    assert simplified(i.minimum(9)) is i
    assert simplified(i.maximum(-1)) is i
    assert simplified(i.maximum(j)) is i.maximum(j)


# --- given a gate


def test_gate_makes_padded_quotients_exact() -> None:
    row, column = j + k - 1, i + k - 1
    gate = (row >= 0) & (row < 56) & (column >= 0) & (column < 8)
    flat = row * 8 + column

    found = simplified(at(flat // 8 * 8 + flat % 8, gate))

    assert found.src[1] is simplified(flat)


def test_gate_is_used_in_a_choice() -> None:
    assert simplified((i < 3).where((i + 5) // 8, i)) is (i < 3).where(UOp.index(0), i)


def test_what_is_loaded_stays_as_it_is() -> None:
    loaded = UOp(Op.LOAD, dtypes.index, (UOp(Op.INDEX, buffer.dtype, (buffer, (i + 5) // 8)),))

    assert simplify_under(loaded, i < 3) is loaded


def test_gate_that_says_nothing_changes_nothing() -> None:
    assert simplify_under((i + 5) // 8, j < 3) is (i + 5) // 8


def test_a_condition_on_the_length_of_a_loop_leaves_the_loop_as_it_is() -> None:
    """Another RANGE, of the length under the condition, would be closed by nobody."""
    length = UOp.variable("n", 1, 32)
    step = UOp.range((length + 7) // 8, (0,), AxisKind.LOOP)

    under = simplify_under(step * 8, (length < 32).logical_not())
    assert {u for u in under.toposort() if u.op is Op.RANGE} == {step}
