"""Sums, quotients and remainders of index expressions."""

from tinycore.uop.node import UOp
from tinycore.uop.symbolic import simplified

i = UOp.range(8, 0)
j = UOp.range(56, 1)
k = UOp.range(3, 2)
n = UOp.variable("n", -20, 20)


# --- sums


def test_terms_are_collected() -> None:
    assert simplified(i * 2 + j + i * 3) is simplified(i * 5 + j)


def test_terms_that_cancel_vanish() -> None:
    assert simplified(i * 2 + j - i * 2) is j


def test_order_of_terms_does_not_matter() -> None:
    assert simplified(k + 1 + j * 4 + i) is simplified(1 + (i + (j * 4 + k)))


def test_outer_loops_come_first() -> None:
    assert simplified(k + j + i) is i + j + k


def test_constants_come_last_and_are_joined() -> None:
    assert simplified((i + 3) * 4 + j + 2) is i * 4 + j + 14


def test_differences_become_sums() -> None:
    assert simplified(j - i) is i * -1 + j


def test_products_of_variables_are_ordered() -> None:
    assert simplified(j * (i * 3)) is i * j * 3


# --- flattened, then split


def test_row_of_a_flat_index() -> None:
    assert simplified(((i * 56 + j) * 3 + k) // 168) is i


def test_column_of_a_flat_index() -> None:
    assert simplified(((i * 56 + j) * 3 + k) // 3 % 56) is j


def test_last_axis_of_a_flat_index() -> None:
    assert simplified(((i * 56 + j) * 3 + k) % 3) is k


def test_split_into_other_sizes() -> None:
    assert simplified((i * 56 + j) // 28) is i * 2 + j // 28
    assert simplified((i * 56 + j) % 28) is j % 28


# --- recombination


def test_quotient_and_remainder_recombine() -> None:
    assert simplified(j // 7 * 7 + j % 7) is j


def test_recombination_keeps_a_common_factor() -> None:
    assert simplified(j // 7 * 35 + i + j % 7 * 5) is i + j * 5


def test_remainder_of_a_quotient_recombines() -> None:
    assert simplified(j // 4 % 7 * 4 + j % 4) is j % 28


def test_sums_recombine_after_being_split() -> None:
    flat = i * 3 + k

    assert simplified(flat // 6 * 6 + flat % 6) is flat


def test_quotient_of_a_merged_divisor_recombines() -> None:
    assert simplified(j // 28 * 7 + j // 4 % 7) is j // 4


# --- quotients


def test_small_is_divided_to_zero() -> None:
    assert simplified(k // 3) is UOp.index(0)


def test_whole_terms_leave_the_quotient() -> None:
    assert simplified((i * 12 + j) // 12) is i + j // 12


def test_whole_constant_leaves_the_quotient() -> None:
    assert simplified((j - 1) // 4) is (j + 3) // 4 + -1


def test_common_factor_is_divided_out() -> None:
    assert simplified((i * 4 + 6) // 8) is (i + 1) // 2


def test_small_rest_is_dropped() -> None:
    assert simplified((i * 4 + k) // 12) is i // 3
    assert simplified((i * 4 + j) // 12) is (i * 4 + j) // 12


def test_negative_rest_is_not_dropped() -> None:
    rest = UOp.variable("rest", -1, 1)

    assert simplified((rest + i * 4) // 8) is (rest + i * 4) // 8


def test_quotients_of_quotients_merge() -> None:
    assert simplified(j // 3 // 4) is j // 12
    assert simplified((j // 3 + 2) // 4) is (j + 6) // 12


def test_quotient_of_a_remainder_becomes_a_remainder() -> None:
    assert simplified(j % 12 // 4) is j // 4 % 3
    assert simplified(j % 10 // 4) is j % 10 // 4


def test_negative_divisor_changes_sign() -> None:
    assert simplified(n // -4) is n * -1 // 4
    assert simplified(n % -4) is n * -1 % 4 * -1


# --- remainders


def test_small_is_its_own_remainder() -> None:
    assert simplified(k % 3) is k


def test_remainder_in_one_known_period() -> None:
    assert simplified((k + 10) % 10) is k


def test_whole_periods_vanish() -> None:
    assert simplified((i * 12 + j) % 4) is j % 4
    assert simplified((j + 57) % 56) is (j + 1) % 56


def test_remainder_of_a_remainder() -> None:
    assert simplified((j % 12 + i) % 4) is (i + j) % 4
    assert simplified((j % 10 + i) % 4) is (i + j % 10) % 4


def test_common_factor_leaves_the_remainder() -> None:
    assert simplified(j * 4 % 12) is j % 3 * 4
    assert simplified((i * 4 + k) % 12) is i % 3 * 4 + k


# --- limits


def test_product_of_divisors_must_fit() -> None:
    huge = 1 << 40

    assert simplified(n // huge // huge) is n // huge // huge
    assert simplified((n // huge + 1) // huge).vmax == 0


def test_shifts_stay_because_lowering_makes_them() -> None:
    assert simplified(j << 2) is j << 2
    assert simplified(j >> 2) is j >> 2


def test_exclusive_or_has_the_bits_of_the_longer_operand() -> None:
    i, j = (UOp.range(extent, (number,)) for number, extent in enumerate((6, 3)))

    assert (i ^ j).bounds == (0, 7)
    assert (i * 8 ^ j).bounds == (0, 63)
