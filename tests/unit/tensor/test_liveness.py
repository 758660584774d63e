"""The tensors that wait to be computed are found without a look at all that are memory."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from call_counts import calls

from tests.unit.tensor.helpers import live_tensors
from tinycore import Context, Tensor, nn
from tinycore.tensor.storage import liveness, storage
from tinycore.tensor.storage.storage import Storage, is_waiting, of_memory, waiting_tensors
from tinycore.uop.node import UOp


def memory() -> Tensor:
    return Tensor([1.0, 2.0]).contiguous().realize()


def found_by_looking_at_all() -> list[int]:
    return [id(t) for t in live_tensors() if is_waiting(t._view.storage.value)]


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


def test_what_is_gone_waits_no_more() -> None:
    kept = [x if n % 3 else x + 1 for n in range(100) for x in [memory()]]
    waiting_tensors()
    before = len(storage.waiting)
    kept += [memory() + 1 for _ in range(100)]
    assert len(storage.waiting) >= before + 100

    del kept[100:]
    assert len(storage.waiting) <= before + 100
    assert [id(t) for t in waiting_tensors()] == found_by_looking_at_all()


def test_a_run_looks_at_no_tensor_that_was_memory_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [memory() for _ in range(50)]
    (kept[0] + 1).realize()
    looked: list[UOp] = []

    def counted(node: UOp) -> bool:
        looked.append(node)
        return is_waiting(node)

    monkeypatch.setattr(storage, "is_waiting", counted)
    waits = len(waiting_tensors())
    looked.clear()
    (kept[0] + 1).realize()

    assert len(looked) <= 2 * (waits + 2)


def training_step() -> Callable[[], object]:
    """A step of an optimizer, with its gradients."""
    w, x = memory().requires_grad_(True), memory()
    optimizer = nn.optim.Adam([w])

    def step() -> None:
        optimizer.zero_grad()
        with Context(TRAINING=1):
            (w * x).sum().backward()
            optimizer.step()

    return step


def plain_call() -> Callable[[], object]:
    """One kernel."""
    x = memory()

    def call() -> Tensor:
        return (x + 1).realize()

    return call


@pytest.mark.parametrize("make", [training_step, plain_call])
def test_work_does_not_grow_with_the_number_of_living_tensors(
    make: Callable[[], Callable[[], object]],
) -> None:
    work = make()
    for _ in range(4):
        work()
    alone = calls(work)
    others = [memory() for _ in range(200)]
    work()  # the new ones are placed in groups once

    assert calls(work) < alone + len(others) / 4


def test_a_read_looks_at_no_graphs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    total = Tensor([1.0, 2.0]).realize()
    others = [total * n for n in range(3)]
    found: list[Collection[Storage]] = []
    monkeypatch.setattr(liveness, "replace_in", lambda storages, *_: found.append(storages))

    assert (total + 1).tolist() == [2.0, 3.0]

    assert found == []
    assert others[2].tolist() == [2.0, 4.0]


def test_memory_that_is_written_again_and_again_is_known_once() -> None:
    x, others = memory(), list[UOp]()
    before = len(of_memory)
    for _ in range(20):
        x.assign(x + 1).realize()
        others.append(x.uop)  # so that no version has the place of one before

    assert len(of_memory) <= before + 1
