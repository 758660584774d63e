"""The tensors that wait to be computed are found without a look at all that are memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tinycore import Tensor
from tinycore.tensor import liveness
from tinycore.tensor.liveness import is_waiting, live_tensors, waiting_tensors
from tinycore.uop.node import UOp


def memory() -> Tensor:
    return Tensor([1.0, 2.0]).contiguous().realize()


def found_by_looking_at_all() -> list[int]:
    return [id(t) for t in live_tensors() if is_waiting(t.uop)]


def assign(x: Tensor) -> object:
    return x.assign(x + 1)


def assign_and_realize(x: Tensor) -> object:
    return x.assign(x + 1).realize()


def replace(x: Tensor) -> object:
    return x.replace(x + 1)


def write_slice(x: Tensor) -> object:
    x[0:1] = 3.0
    return x


def add_in_place(x: Tensor) -> object:
    x += 1
    return x


def derive(x: Tensor) -> object:
    x.requires_grad_(True)
    return (x * x).sum().backward()


CHANGES: tuple[Callable[[Tensor], object], ...] = (
    assign, assign_and_realize, replace, write_slice, add_in_place, derive, Tensor.kernelize,
    lambda x: (x + 1).kernelize(), lambda x: (x * 2).sum().item(),
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_waits_is_found_in_order_of_creation(change: Callable[[Tensor], object]) -> None:
    old, waits, new = memory(), memory() + 1, memory()
    waiting_tensors()

    for x in (new, old, waits):
        kept = change(x)
        assert [id(t) for t in waiting_tensors()] == found_by_looking_at_all()
        assert [id(t) for t in waiting_tensors()] == found_by_looking_at_all()
        del kept


def test_what_waits_is_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "MOST_CANDIDATES", 40)
    kept = [x if n % 3 else x + 1 for n in range(100) for x in [memory()]]

    assert [id(t) for t in waiting_tensors()] == found_by_looking_at_all()
    assert len(kept) == 100
    assert len(liveness.waiting_index.candidates) < 100


def test_a_run_looks_at_no_tensor_that_was_memory_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [memory() for _ in range(50)]
    (kept[0] + 1).realize()
    looked: list[UOp] = []

    def counted(node: UOp) -> bool:
        looked.append(node)
        return is_waiting(node)

    monkeypatch.setattr(liveness, "is_waiting", counted)
    waits = len(waiting_tensors())
    looked.clear()
    (kept[0] + 1).realize()

    assert len(looked) <= 2 * (waits + 2)
