"""Inlining: a value may move to its only use, unless something changes on the way."""

from __future__ import annotations

from tiny_testing.kernels import element, load, store
from tinycore.dtype import dtypes
from tinycore.render.inline import inlinable
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

ZERO = UOp.index(0)
FIRST = element(0, dtypes.float32, 8, ZERO)
SECOND = element(1, dtypes.float32, 8, ZERO)
VALUE = load(FIRST, dtypes.float32)
OTHER = load(SECOND, dtypes.float32)


def inlined(*uops: UOp) -> set[int]:
    """Places that may be inlined, but for constants and addresses."""
    return {p for p in inlinable(uops) if uops[p].op not in (Op.CONST, Op.INDEX)}


def test_value_used_once_is_written_where_it_is_used() -> None:
    total = VALUE + OTHER

    assert inlined(VALUE, OTHER, total, store(FIRST, total)) == {0, 1, 2}


def test_value_used_twice_has_a_name() -> None:
    square = VALUE * VALUE

    assert inlined(VALUE, square, store(SECOND, square)) == {1}


def test_load_does_not_move_past_a_store() -> None:
    change = store(FIRST, OTHER)

    assert inlined(VALUE, OTHER, change, store(SECOND, VALUE)) == {1}


def test_load_does_not_move_past_a_barrier() -> None:
    barrier = UOp(Op.BARRIER, dtypes.void)

    assert inlined(VALUE, barrier, store(SECOND, VALUE)) == set()


def test_value_does_not_move_into_a_loop() -> None:
    counter = UOp.range(4, 0)
    end = UOp(Op.END, dtypes.void, (UOp(Op.GROUP, dtypes.void), counter))

    assert inlined(VALUE, counter, store(SECOND, VALUE), end) == set()


def test_node_at_two_places_is_two_values() -> None:
    change = store(FIRST, OTHER)
    back = store(SECOND, VALUE)

    assert inlined(VALUE, back, OTHER, change, VALUE, back) == {0, 2, 4}


def test_half_has_a_name_so_that_it_is_rounded() -> None:
    place = element(0, dtypes.float16, 8, ZERO)
    half = load(place, dtypes.float16)
    total = half + 1.0

    assert inlined(half, total, store(place, total)) == set()
