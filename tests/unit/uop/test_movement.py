"""Axes through movement ops: where an axis was, what moves with it, where its parts go."""

from __future__ import annotations

from typing import Any

import pytest

from tinycore import Tensor
from tinycore.uop.movement import axis_after, axis_along, base_of, below_movement, source_axis
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def base() -> UOp:
    return Tensor.empty(2, 6, 1, device="PYTHON").uop


def moved(op: Op, argument: Any) -> UOp:
    source = base()
    return UOp(op, source.dtype, (source,), argument)


CASES = [
    (Op.PERMUTE, (1, 0, 2), (1, 0, 2)),
    (Op.EXPAND, (2, 6, 4), (0, 1, None)),
    (Op.FLIP, (False, True, False), (0, None, 2)),
    (Op.PAD, ((0, 0), (1, 1), (0, 0)), (0, None, 2)),
    (Op.RESHAPE, (2, 3, 2), (0, None, None)),
]


@pytest.mark.parametrize(("op", "argument", "expected"), CASES)
def test_an_axis_that_was_passed_on(op: Op, argument: Any, expected: tuple[int | None]) -> None:
    node = moved(op, argument)

    assert tuple(source_axis(node, axis) for axis in range(3)) == expected


def test_an_axis_that_moves_along_a_padded_or_flipped_one() -> None:
    node = moved(Op.PAD, ((0, 0), (1, 1), (0, 0)))

    assert [axis_along(node, axis, node.src[0]) for axis in range(3)] == [0, 1, None]


def test_no_axis_moves_along_two() -> None:
    node = moved(Op.RESHAPE, (12,))

    assert axis_along(node, 0, node.src[0]) is None


@pytest.mark.parametrize(
    ("op", "argument", "after"),
    [
        (Op.PERMUTE, (1, 0, 2), 0),
        (Op.PAD, ((0, 0), (1, 1), (0, 0)), None),
        (Op.SHRINK, ((0, 2), (0, 6), (0, 1)), 1),
        (Op.SHRINK, ((0, 2), (0, 3), (0, 1)), None),
        (Op.FLIP, (False, True, False), None),
        (Op.RESHAPE, (2, 3, 2), 1),
        (Op.RESHAPE, (2, 2, 3), None),
    ],
)
def test_the_axis_whose_thirds_stay_thirds(op: Op, argument: Any, after: int | None) -> None:
    node = moved(op, argument)

    assert axis_after(node, node.src[0].shape, 1, 3) == after


def test_what_lies_below() -> None:
    node = base()
    reshaped = UOp(Op.RESHAPE, node.dtype, (node,), (12,))
    flipped = UOp(Op.FLIP, node.dtype, (reshaped,), (True,))

    assert base_of(reshaped) is base_of(node)
    assert base_of(flipped) is flipped
    assert below_movement(flipped) is base_of(node)
