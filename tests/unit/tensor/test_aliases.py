"""Tensors by the storage that they show."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.tensor.helpers import live_tensors
from tinycore import Tensor
from tinycore.tensor import core
from tinycore.tensor.aliases import base_of_view
from tinycore.tensor.storage.storage import of_memory, view_of


def views_of(tensor: Tensor) -> set[int]:
    return {id(t) for t in tensor._view.storage.tensors()}


def found_by_looking(tensor: Tensor) -> set[int]:
    return {id(t) for t in live_tensors() if base_of_view(t.uop) is base_of_view(tensor.uop)}


def test_views_are_found_as_they_come_and_go() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    row, turned = x[0], x.transpose(0, 1)
    assert views_of(x) == {id(x), id(row), id(turned)}

    del turned
    later = x.reshape(4)
    assert views_of(x) == {id(x), id(row), id(later)}
    row.assign(Tensor([5.0, 6.0]))
    assert views_of(x) == found_by_looking(x) == {id(x), id(row), id(later)}
    assert later.tolist() == [5.0, 6.0, 3.0, 4.0]


def test_a_tensor_that_takes_another_value_moves_on() -> None:
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    former = x.reshape(2, 1)
    x.replace(y)

    assert views_of(y) == {id(x), id(y)}
    assert views_of(former) == {id(former)}


def test_tensors_made_of_nodes_over_the_same_memory_have_its_storage() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    column, again = Tensor.from_uop(x.T[1].uop), Tensor(x.uop)
    column.assign(Tensor([7.0, 8.0]))

    assert views_of(x) == {id(x), id(column), id(again)}
    assert again.tolist() == x.tolist() == [[1.0, 7.0], [3.0, 8.0]]


def test_a_view_keeps_no_former_version_of_what_it_shows() -> None:
    x = Tensor([1.0, 2.0]).realize()
    part = x[1:]
    for step in range(3):
        x.assign(x + 1)
        assert part.uop.toposort()  # which derives it from a pending write
        x.realize()
        last = part._view.last  # type: ignore[union-attr]
        assert last is None or last[0] is x._view.value  # where values are known, it is looked at
        assert part.tolist() == [3.0 + step]


def test_storages_that_no_tensor_shows_are_gone() -> None:
    x = Tensor([1.0]).realize()
    for _ in range(100):
        (x + 1).realize()
    held = len(of_memory)
    for _ in range(100):
        (x + 1).realize()

    assert len(of_memory) == held


def test_former_memory_is_no_view_of_what_was_written() -> None:
    x = Tensor([1.0, 2.0]).realize()
    before = x.uop
    x.assign(x + 1)

    assert view_of(before).storage is not x._view.storage


def test_values_are_taken_in_one_way_only() -> None:
    files = Path(core.__file__).parent.glob("*.py")
    found = [(f.name, len(re.findall(r"\._view = ", f.read_text(encoding="utf-8")))) for f in files]

    assert [f for f in found if f[1]] == [("core.py", 2)]  # `_enter` and `_move`


def test_a_view_keeps_no_former_version_beside_values_that_several_tensors_show() -> None:
    x = Tensor([1.0, 2.0]).realize()
    one, other = x * 2, x * 2
    one.realize()
    y, part = other * 3, x[1:]
    x.assign(x + 1).realize()

    assert part._view.last is None  # type: ignore[union-attr]
    assert part.tolist() == [3.0]
    assert y.tolist() == [6.0, 12.0]
