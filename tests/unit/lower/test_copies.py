"""Copies of a body for steps of loop counters: few nodes, and those of the canonical form."""

from __future__ import annotations

import itertools

from tinycore.dtype import dtypes
from tinycore.lower.expand import instances, placed
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.symbolic import simplified


def load(place: UOp) -> UOp:
    """An element of a buffer."""
    pointer = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(4096), (), 0)
    return UOp(Op.LOAD, dtypes.float32, (UOp(Op.INDEX, pointer.dtype, (pointer, place)),))


def by_substitution(root: UOp, counters: tuple[UOp, ...]) -> list[UOp]:
    """Expected copies: counters replaced one by one, and simplified."""
    steps = itertools.product(*[map(UOp.index, range(c.extent)) for c in counters])
    return [simplified(root.substitute(dict(zip(counters, s, strict=True)))) for s in steps]


def test_index_sums_of_copies_are_in_canonical_form() -> None:
    row, i, j = UOp.range(9, 1), UOp.range(4, 2), UOp.range(3, 3)
    body = simplified(load(row * 64 + i * 3 + j + 5))

    found = instances(body, (i, j))

    assert found == by_substitution(body, (i, j))  # the nodes themselves, not yet simplified


def test_copies_share_all_but_the_constant() -> None:
    row, column, i = UOp.range(9, 1), UOp.range(8, 2), UOp.range(4, 3)
    body = simplified(load(row * 64 + column * 8 + i + 1))

    places = [copy.src[0].src[1] for copy in instances(body, (i,))]

    assert {place.src[0] for place in places} == {simplified(row * 64 + column * 8)}
    assert [place.src[1].arg for place in places] == [1, 2, 3, 4]


def test_a_counter_inside_of_another_term_is_replaced_there() -> None:
    row, i = UOp.range(9, 1), UOp.range(4, 2)
    body = simplified(load((row + i * 2) // 3 + i))

    assert [simplified(n) for n in instances(body, (i,))] == by_substitution(body, (i,))


def test_what_does_not_depend_on_the_counter_is_shared() -> None:
    row, i = UOp.range(9, 1), UOp.range(4, 2)
    same = load(row)
    body = same + load(row * 4 + i)

    copies = instances(body, (i,))

    assert {copy.src[0] for copy in copies} == {same}
    assert placed(body, i, 2) is copies[2]
    assert instances(same, (i,)) == [same] * 4
