"""Tensors by the memory that they show."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tinycore
from tinycore import Tensor, nn
from tinycore.tensor import aliases, core, liveness
from tinycore.tensor.aliases import AliasIndex, base_of_view


def views_of(tensor: Tensor) -> set[int]:
    return {id(t) for t in liveness.alias_index.of(base_of_view(tensor.uop))}


def found_by_looking(tensor: Tensor) -> set[int]:
    return {
        id(t) for t in liveness.live_tensors() if base_of_view(t.uop) is base_of_view(tensor.uop)
    }


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
    x.replace(y)

    assert views_of(y) == {id(x), id(y)}


def test_all_are_looked_at_where_too_many_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "MOST_NEW", 3)
    x = Tensor([1.0, 2.0, 3.0]).realize()
    views = [x[n : n + 1] for n in range(3)] * 2
    more = [x.reshape(3, 1) for _ in range(5)]

    assert views_of(x) == {id(x), *map(id, views), *map(id, more)}
    views[1].assign(Tensor([7.0]))
    assert (x.tolist(), more[4].flatten().tolist()) == ([1.0, 7.0, 3.0], [1.0, 7.0, 3.0])


def test_groups_of_what_is_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "MOST_NEW", 20)
    group = AliasIndex(liveness.living.values)
    for _ in range(100):
        x = Tensor([1.0]).realize()
        group.note(liveness.living[id(x)])
        group.of(x.uop)

    assert group.count <= 41 + len(liveness.living)


@pytest.mark.slow
def test_an_optimizer_looks_at_each_tensor_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[Callable[[Tensor], Tensor]] = [nn.Linear(2, 2) for _ in range(20)]
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers))
    x = Tensor.ones(1, 2)
    looked: list[object] = []
    one = AliasIndex.place

    def counted(self: AliasIndex, reference: weakref.ref[Any]) -> None:
        looked.append(reference)
        one(self, reference)

    monkeypatch.setattr(AliasIndex, "place", counted)
    with tinycore.Context(TRAINING=1):
        for _ in range(2):
            optimizer.zero_grad()
            x.sequential(layers).sum().backward()
            looked.clear()
            updates = optimizer.schedule_step()

    assert len(updates) >= 40
    assert len(looked) < 40 * len(updates)  # not the living times the updates
    Tensor.realize(*updates)


def test_values_are_taken_in_one_way_only() -> None:
    files = Path(core.__file__).parent.glob("*.py")
    found = [(f.name, len(re.findall(r"\.uop = ", f.read_text(encoding="utf-8")))) for f in files]

    assert [f for f in found if f[1]] == [("core.py", 2)]  # `_enter` and `_become`
