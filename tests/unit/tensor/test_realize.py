"""Realizing, reading back, assigning, copies, and the order of reads and writes."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import live_tensors
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError, DTypeError, ShapeError
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor import Tensor
from tinycore.tensor.core import Core
from tinycore.tensor.storage import liveness, realization, realize
from tinycore.tensor.storage.storage import Storage
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def test_realize_replaces_the_graph_by_a_buffer() -> None:
    x = Tensor([1, 2]) + 1

    assert x.uop.op is Op.ADD
    assert x.realize().uop.op is Op.BUFFER
    assert x.tolist() == [2, 3]


def test_reading_back_leaves_the_graph() -> None:
    x = Tensor([1, 2]) + 1

    assert x.tolist() == [2, 3]
    assert x.uop.op is Op.ADD


def test_views_may_be_made_by_another_thread_while_a_tensor_becomes_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = Tensor([1, 2]).realize()
    y, other = x + 1, x + 2
    views: list[Tensor] = []
    publish = liveness.publish

    def meanwhile(found: dict[Storage, UOp], alone: dict[Storage, Core]) -> None:
        thread = threading.Thread(target=lambda: views.append(y[1:]))
        thread.start()
        thread.join()
        publish(found, alone)

    with monkeypatch.context() as patch:
        patch.setattr(liveness, "publish", meanwhile)
        y.realize()

    assert y.tolist() == [2, 3]
    assert [view.tolist() for view in views] == [[3]]
    assert other.tolist() == [3, 4]


def test_a_tensor_may_be_read_while_another_thread_writes_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, left = Tensor([0]).realize(), [1, 2]

    def compute_and_be_late(*args: Any, **kwargs: Any) -> object:
        found = compute(*args, **kwargs)
        if left:
            x.add_(left.pop())
        return found

    compute = realization.compute
    monkeypatch.setattr(realize, "compute", compute_and_be_late)
    x.add_(1)

    assert x.tolist() == [4]


def test_children_of_a_realized_tensor_load_it() -> None:
    x = Tensor([1, 2]) + 1
    y = x * 2

    x.realize()

    assert y.uop.src[0] is x.uop
    assert y.tolist() == [4, 6]


def test_data_and_array_protocols() -> None:
    x = Tensor([[1, 2], [3, 4]])

    assert x.data().tobytes() == numpy.array([1, 2, 3, 4], numpy.int32).tobytes()
    assert numpy.asarray(x).tolist() == [[1, 2], [3, 4]]
    assert (float(Tensor(1.5)), int(Tensor(3))) == (1.5, 3)
    assert Tensor([1.0], dtype=dtypes.bfloat16).numpy().dtype == numpy.float32
    with pytest.raises(DTypeError, match="bfloat16"):
        Tensor([1.0], dtype=dtypes.bfloat16).data()


def test_empty_and_zero_sized() -> None:
    assert Tensor.empty(2, 3).shape == (2, 3)
    assert Tensor.zeros(0, 2).realize().tolist() == []
    assert Tensor([]).numpy().shape == (0,)


def test_living_tensors_are_known_until_they_die() -> None:
    x = Tensor([1.0])

    assert any(t is x for t in live_tensors())

    gc.collect()
    before = len(live_tensors())
    del x
    assert len(live_tensors()) == before - 1


# --- assigning


def test_assign_writes_in_place() -> None:
    x = Tensor([1.0, 2.0]).realize()
    before = x.uop

    x.assign(Tensor([5.0, 6.0])).realize()

    assert buffer_of(x.uop) is buffer_of(before)
    assert x.uop is not before  # a node is a version of memory
    assert x.tolist() == [5.0, 6.0]


def test_assign_to_itself_plus_one_many_times() -> None:
    x = Tensor.zeros(3)

    for _ in range(4):
        x.assign(x + 1)

    assert x.tolist() == [4.0] * 3


def test_assign_broadcasts_numbers_and_rows() -> None:
    x = Tensor.zeros(2, 2)

    assert x.assign(7).tolist() == [[7.0, 7.0]] * 2
    assert x.assign([1.0, 2.0]).tolist() == [[1.0, 2.0]] * 2


def test_what_was_computed_before_an_assignment_stays() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x + 1

    x.assign(Tensor([5.0, 6.0])).realize()

    assert y.tolist() == [2.0, 3.0]
    assert (x + 1).tolist() == [6.0, 7.0]


def test_what_was_cut_into_kernels_before_an_assignment_stays() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x + 1

    y.kernelize()
    x.assign(Tensor([5.0, 6.0])).realize()

    assert y.tolist() == [2.0, 3.0]


def test_a_loss_read_after_the_step_is_the_loss_before() -> None:
    w = Tensor([3.0]).realize()
    loss = (w * w).sum()
    loss.backward()

    assert w.grad is not None
    w.assign(w - w.grad * 0.5).realize()

    assert (w.item(), loss.item(), w.grad.item()) == (0.0, 9.0, 6.0)


def test_values_swap() -> None:
    x, y = Tensor([1.0]).realize(), Tensor([2.0]).realize()
    old_x, old_y = x + 0, y + 0

    x.assign(old_y)
    y.assign(old_x)
    Tensor.realize(x, y)

    assert (x.item(), y.item()) == (2.0, 1.0)


def test_views_show_the_new_content() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    view = x[1:]

    x.assign(Tensor([5.0, 6.0, 7.0])).realize()

    assert view.tolist() == [6.0, 7.0]


@pytest.mark.parametrize(
    "index", [slice(1, None), slice(None, None, 2), slice(None, None, -1), 1], ids=str
)
def test_assign_to_a_view_writes_into_its_buffer(index: Any) -> None:
    expected = numpy.arange(8.0).reshape(4, 2)
    x = Tensor(expected, dtype=dtypes.float32).realize()
    value = -expected[index] - 1

    x[index].assign(Tensor(value, dtype=dtypes.float32))
    expected[index] = value

    assert x.tolist() == expected.tolist()


def test_assign_to_a_tensor_without_memory_takes_the_value() -> None:
    x = Tensor([1.0]) + 1

    assert x.assign(Tensor([9.0])).tolist() == [9.0]


def test_assign_mistakes_are_told_at_the_call() -> None:
    x = Tensor.zeros(2)

    with pytest.raises(ShapeError, match=r"assign: shapes \(2,\) and \(3,\)"):
        x.assign(Tensor.zeros(3))
    with pytest.raises(DTypeError, match=r"assign.*int32.*float32"):
        x.assign(Tensor([1, 2]))
    with pytest.raises(DeviceError, match="assign"):
        x.assign(Tensor([1.0, 2.0]).to(f"{x.device}:1"))


def test_clone_has_memory_of_its_own() -> None:
    x = Tensor([1.0, 2.0]).realize()
    first, second = x.clone(), x.clone()

    x.assign(0)
    first.assign(5)

    assert (x.tolist(), first.tolist(), second.tolist()) == ([0.0] * 2, [5.0] * 2, [1.0, 2.0])


def test_replace_takes_over_a_value() -> None:
    x = Tensor([1.0, 2.0])

    assert x.replace(Tensor([3.0, 4.0])).tolist() == [3.0, 4.0]
    with pytest.raises(ShapeError, match="replace"):
        x.replace(Tensor([1.0]))


def test_full_tensors_have_memory_of_their_own() -> None:
    x, y = Tensor.zeros(2), Tensor.zeros(2)

    x[0] = 1

    assert (x.tolist(), y.tolist()) == ([1.0, 0.0], [0.0, 0.0])
    assert Tensor.full((2,), 3, buffer=False).uop.op is Op.EXPAND


# --- devices


def test_to_copies_and_back() -> None:
    x = Tensor([1.0, 2.0])
    there = x.to(f"{x.device}:1")

    assert there.device == f"{x.device}:1"
    assert (there + 1).to(x.device).tolist() == [2.0, 3.0]
    assert x.to(x.device) is x
    assert x.to(None) is x


def test_gradient_crosses_devices() -> None:
    x = Tensor([1.0, 2.0])

    (gradient,) = (x.to(f"{x.device}:1") * 3).sum().gradient(x)

    assert gradient.device == x.device
    assert gradient.tolist() == [3.0, 3.0]


# --- creation


def test_arange() -> None:
    assert Tensor.arange(3).tolist() == [0, 1, 2]
    assert Tensor.arange(1, 10, 4).tolist() == [1, 5, 9]
    assert Tensor.arange(5, 0, -2).tolist() == [5, 3, 1]
    assert Tensor.arange(0, 1, 0.25).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert Tensor.arange(3, 1).shape == (0,)
    assert Tensor.arange(5.0).dtype is dtypes.float32
    assert Tensor.arange(300, dtype=dtypes.uint8)[299].item() == 43


def test_linspace_ends_exactly() -> None:
    assert Tensor.linspace(0, 1, 5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Tensor.linspace(-0.3, 0.7, 11)[-1].item() == pytest.approx(0.7)
    assert Tensor.linspace(2, 9, 1).tolist() == [2.0]


def test_eye_full_and_likes() -> None:
    assert Tensor.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert Tensor.full((2,), True).dtype is dtypes.bool
    x = Tensor.ones(2, dtype=dtypes.float16)
    assert (x.zeros_like().dtype, x.ones_like().tolist(), x.full_like(2.5).tolist()) == (
        dtypes.float16,
        [1.0] * 2,
        [2.5] * 2,
    )
    assert x.empty_like(dtype=dtypes.int32).dtype is dtypes.int32


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="zeros"):
        Tensor.zeros(-1)


def test_infinity_and_nan_constants() -> None:
    assert Tensor.full((1,), math.inf).item() == math.inf
    assert math.isnan(Tensor(math.nan).item())


def test_reading_a_contiguous_tensor_leaves_its_gradient() -> None:
    x = Tensor([[1.0], [2.0]]).realize()
    y = (x * 2).contiguous()

    y.numpy()

    assert y.sum().gradient(x)[0].tolist() == [[2], [2]]
