"""Memory of tensors over several devices: where it lies, writes to it, and mistakes."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.unit.tensor.spread import A, group, index_of, mesh
from tinycore import Context, GlobalCounters, Tensor, Variable, nn
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    IndexRangeError,
    ShapeError,
    TinycoreError,
    UnknownDevice,
)
from tinycore.uop.shape import Axis, DeviceLike

Layout = tuple[DeviceLike, Axis]

LAYOUTS: list[Layout] = [
    *[(group(2), axis) for axis in (0, 1, None)],
    *[(mesh(2, 2), axes) for axes in ((0, None), (None, 1), (0, 0), (1, 0), (None, None))],
]
"""Devices, and the axes along which a tensor lies on them."""
LAYOUT_PAIRS = [(LAYOUTS[k], LAYOUTS[(k + step) % 8]) for k in range(8) for step in (1, 2, 3)]


@pytest.fixture(autouse=True)
def target() -> Iterator[None]:
    """Not on every target: what is tested is above them."""
    with Context(DEV="PYTHON"):
        yield


# --- what lies where


def test_facts_are_those_of_the_whole() -> None:
    x = Tensor(A).shard(group(2), 1)

    assert x.shape == (4, 6)
    assert x.device == ("PYTHON", "PYTHON:1")
    assert x.devices == ("PYTHON", "PYTHON:1")
    assert x.sharded_axis == 1
    assert Tensor(A).shard(group(2)).sharded_axis is None
    assert Tensor(A).sharded_axis is None
    assert x.shard(group(2), -1) is x
    assert (x + 1).sharded_axis == x.T.T.sharded_axis == x.sum(0).sharded_axis + 1 == 1  # type: ignore[operator]


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("devices", [group(2), ("PYTHON:2", "PYTHON:3"), group(1), ("PYTHON:3",)])
def test_layout_can_be_changed(devices: tuple[str, ...], axis: int | None) -> None:
    for first in (0, 1, None):
        x = Tensor(A).shard(group(2), first).shard(devices, axis)

        assert x.sharded_axis == (axis if len(devices) > 1 else None)
        assert x.tolist() == A.tolist()


@pytest.mark.parametrize(("before", "after"), LAYOUT_PAIRS)
def test_layout_of_a_mesh_can_be_changed(before: Layout, after: Layout) -> None:
    x = Tensor(A).shard(*before).realize().shard(*after)

    assert (x.sharded_axis, x.tolist()) == (after[1], A.tolist())
    assert (x + 1).realize().sharded_axis == after[1]


def test_a_dimension_of_one_is_left_out() -> None:
    x = Tensor(A).shard(mesh(1, 2), (0, 1))

    assert (x.device, x.sharded_axis) == (Tensor(A).shard(group(2)).device, 1)
    assert Tensor(A).shard(mesh(1, 1), (0, 1)).device == "PYTHON"
    assert x.shard(mesh(1, 2), 1) is x


@pytest.mark.parametrize("devices", [group(2), mesh(2, 2)])
def test_name_of_a_group_is_a_device(devices: DeviceLike) -> None:
    x = Tensor(A).shard(devices, 0)
    made = Tensor(A, device=x.device)
    zeros = Tensor.zeros(4, 6, device=x.device)

    assert (made + zeros + x).tolist() == (A * 2).tolist()
    assert zeros.assign(x).realize().tolist() == A.tolist()
    assert Tensor(A).to(("PYTHON:1", "PYTHON:0")).devices == ("PYTHON:1", "PYTHON")


def test_tensors_like_a_sharded_one_lie_like_it() -> None:
    x = Tensor(A).shard(group(2), 1)

    for like in (x.zeros_like(), x.full_like(3), x.empty_like(), x.clone(), copy.deepcopy(x)):
        assert like.sharded_axis == 1
    assert (x + x.full_like(3)).tolist() == (A + 3).tolist()
    assert Tensor(A).shard_like(x).sharded_axis == 1
    assert x.shard_like(Tensor(A)).device == "PYTHON"
    assert pickle.loads(pickle.dumps(x)).tolist() == A.tolist()


def test_constant_lies_in_parts_when_asked() -> None:
    x = Tensor.full((4, 6), 2.0, buffer=False).shard(group(2), 0)

    assert x.sharded_axis == 0
    assert x.assign(x + 1).realize().tolist() == (A * 0 + 3).tolist()
    assert Tensor(5.0).shard(group(2)).item() == 5.0


def test_random_numbers_are_those_of_one_device() -> None:
    def drawn(device: DeviceLike) -> Any:
        Tensor.manual_seed(3)
        return Tensor.rand(4, 6, device=device)

    found = drawn(("PYTHON", "PYTHON:1"))

    assert found.tolist() == drawn("PYTHON").tolist()
    assert found.to("PYTHON").tolist() == found.to("PYTHON:1").tolist()
    with Context(TRAINING=1):
        assert Tensor(A).shard(group(2), 0).dropout(0.5).sharded_axis == 0


def test_state_is_saved_whole_and_loaded_in_parts(tmp_path: Path) -> None:
    layer, other = nn.Linear(6, 4), nn.Linear(6, 4)
    for target in (layer, other):
        target.weight.shard_(group(2), 0)
    nn.state.safe_save(nn.state.get_state_dict(layer), str(tmp_path / "layer"))

    nn.state.load_state_dict(other, nn.state.safe_load(str(tmp_path / "layer")), verbose=False)

    assert other.weight.sharded_axis == 0
    assert other.weight.tolist() == layer.weight.tolist()


# --- writing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_memory_of_their_own(layout: Layout) -> None:
    x = Tensor(A).realize()
    y, z = x.shard(*layout), x.shard(*layout)
    Tensor.realize(y, z)

    y.assign(y * 0).realize()

    assert x.tolist() == z.tolist() == A.tolist()
    there = z.to("PYTHON:1").realize()
    there.assign(there * 0).realize()
    assert z.tolist() == A.tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_a_tensor_are_written(layout: Layout) -> None:
    x, right = Tensor(A).shard(*layout).realize(), A.copy()

    x[1], right[1] = 7, 7
    x[:, 2], right[:, 2] = Tensor([1.0, 2.0, 3.0, 4.0], device=x.device), [1, 2, 3, 4]
    x[2:4, 1:3] += 1
    right[2:4, 1:3] += 1
    x[index_of(x, 0, 3)], right[[0, 3]] = 5, 5
    flat = x.reshape(24)
    flat[3:9], right.reshape(-1)[3:9] = 0, 0

    assert flat.tolist() == right.reshape(-1).tolist()
    assert x.tolist() == right.tolist()
    assert x.sharded_axis == layout[1]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda t: t.T,
    "rows": lambda t: t[1:3],
    "reshaped": lambda t: t.reshape(6, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VIEWS)
def test_views_show_what_is_written(name: str, layout: Layout) -> None:
    view, right = VIEWS[name], A.copy()
    x = Tensor(A).shard(*layout).realize()
    shown = view(x).realize()

    x.assign(x * 2 + 1)
    right = right * 2 + 1
    assert shown.tolist() == view(right).tolist()
    shown.assign(shown + 3).realize()
    view(right)[...] += 3
    assert x.tolist() == right.tolist()
    before = shown * 2
    x.assign(x - 1).realize()
    assert before.tolist() == (view(right) * 2).tolist()
    assert shown.tolist() == view(right - 1).tolist()
    assert x.sharded_axis == layout[1]


@pytest.mark.parametrize("devices", [group(2), mesh(2, 2)])
def test_assignment_exchanges_parts(devices: DeviceLike) -> None:
    x = Tensor(A.reshape(-1)).shard(devices, 0).realize()

    x.assign(x.flip(0)).realize()

    assert x.tolist() == A.reshape(-1)[::-1].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_detached_and_cloned_tensors(layout: Layout) -> None:
    x = Tensor(A).shard(*layout).realize()

    part, whole = x.detach().realize(), x.clone().realize()
    part.assign(part + 1).realize()

    assert x.tolist() == (A + 1).tolist()
    assert whole.tolist() == A.tolist()
    assert whole.sharded_axis == x.zeros_like().sharded_axis == layout[1]


@pytest.mark.parametrize("devices", [group(2), mesh(2, 2)])
def test_what_was_cut_into_kernels_is_not_computed_again(devices: DeviceLike) -> None:
    x = Tensor(A).shard(devices, 0)
    total = (x + 1).sum(0).kernelize()
    x.realize()
    launched = GlobalCounters.kernel_count

    assert (total * 2).tolist() == ((A + 1).sum(0) * 2).tolist()
    assert total.tolist() == (A + 1).sum(0).tolist()
    again = GlobalCounters.kernel_count
    assert total.realize().tolist() == (A + 1).sum(0).tolist()
    assert launched < again == GlobalCounters.kernel_count


def test_sums_of_a_group_beside_what_one_device_has_cut_into_kernels() -> None:
    x, cut = Tensor(A).shard(group(2), 0).realize(), (Tensor(A).realize() + 1).kernelize()
    total, beside = x.sum(0), cut * 2

    Tensor.realize(total, beside)

    assert total.tolist() == A.sum(0).tolist()
    assert beside.tolist() == ((A + 1) * 2).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_symbolic_slices_of_a_tensor_in_parts(seed: int) -> None:
    numbers = numpy.random.default_rng(seed)
    whole = numbers.integers(0, 9, (4, 8)).astype(numpy.int32)
    axis, cut = (int(n) for n in numbers.integers(0, 2, 2))
    most = whole.shape[cut]
    low = int(numbers.integers(0, 2))
    for high in (int(n) for n in numbers.integers(low + 1, most + 1, 3)):
        end = Variable("end", low + 1, most).bind(high)
        x = Tensor(whole).shard(group(2), axis)
        box = [slice(None)] * cut + [slice(low, end)]
        plain = [slice(None)] * cut + [slice(low, high)]

        assert x[tuple(box)].tolist() == whole[tuple(plain)].tolist()
        assert (x[tuple(box)] + 1).sum().item() == (whole[tuple(plain)] + 1).sum()
        after = Tensor(whole)[tuple(box)].shard(group(2), 1 - cut)
        assert after.tolist() == whole[tuple(plain)].tolist()
        written = whole.copy()
        written[tuple(plain)] *= 2
        x[tuple(box)] = x[tuple(box)] * 2
        assert x.tolist() == written.tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_writes_at_symbolic_places_of_a_tensor_in_parts(axis: int) -> None:
    whole = numpy.arange(32, dtype=numpy.int32).reshape(4, 8)
    x = Tensor(whole).shard(group(2), axis)
    for place in (0, 2, 1):
        at = Variable("at", 0, 2).bind(place)
        for box, plain in (
            ((at,), (place,)),
            ((slice(None), at), (slice(None), place)),
            ((slice(at, at + 2), slice(3, 5)), (slice(place, place + 2), slice(3, 5))),
        ):
            x[box] = -place
            whole[plain] = -place
            assert x.tolist() == whole.tolist()


# --- mistakes


MISTAKES: dict[str, tuple[Callable[[Tensor], object], type[TinycoreError], str]] = {
    "uneven": (
        lambda x: x.shard(group(3), 0),
        ShapeError,
        "shard: axis 0 of shape (4, 6) has 4 elements, which is no multiple of 3 devices: axes ",
    ),
    "no axis": (lambda x: x.sum().shard(group(2), 0), ShapeError, "has no axis to cut"),
    "axis": (lambda x: x.shard(group(2), 2), IndexRangeError, "axis 2 is outside [-2, 1]"),
    "twice": (lambda x: x.shard(("PYTHON", "python:0")), DeviceError, "names a device twice"),
    "none": (lambda x: x.shard(()), ArgumentError, "needs at least one device, got ()"),
    "unknown": (lambda x: x.shard(("PYTHON", "NOPE")), UnknownDevice, "'NOPE'"),
    "no name": (lambda x: x.shard(3), ArgumentTypeError, "devices is 3 of type int"),  # type: ignore[arg-type]
    "mixed": (
        lambda x: x.shard(group(2), 0) + x,
        DeviceError,
        "operands are on ('PYTHON', 'PYTHON:1') and PYTHON; move one of them with .shard(devices)",
    ),
    "other group": (
        lambda x: x.shard(group(2), 0) @ x.shard(group(3)),
        DeviceError,
        "operands are on ('PYTHON', 'PYTHON:1') and ('PYTHON', 'PYTHON:1', 'PYTHON:2'); move one",
    ),
    "no device": (lambda x: x.to(()), DeviceError, "() names no device"),
    "number of axes": (
        lambda x: x.shard(mesh(2, 2), (0, 1, None)),
        ArgumentError,
        "axis=(0, 1, None) is for 3 dimensions of devices, and",
    ),
    "uneven both ways": (
        lambda x: Tensor.ones(3, 5).shard(mesh(2, 2), (0, 1)),
        ShapeError,
        "3 elements, which is no multiple of 2 devices, and axis 1 of shape (3, 5) has 5 elements",
    ),
    "one axis both ways": (
        lambda x: Tensor.ones(6).shard(mesh(2, 2), 0),
        ShapeError,
        "6 elements, which is no multiple of 4 devices: axes (0, 0) are along ",
    ),
    "symbolic parts": (
        lambda x: Tensor.empty_like(x.shard(group(2), 1)[: Variable("n", 1, 3).bind(2)]),
        ShapeError,
        "memory in parts on ('PYTHON', 'PYTHON:1') has no symbolic sizes, and shape (n[n=2], ",
    ),
    "uneven rows": (
        lambda x: x.shard(mesh(2, 3), (1, 0)),
        ShapeError,
        "('PYTHON:3', 'PYTHON:4', 'PYTHON:5')). Pad it to (6, 6), or choose other axes or devices.",
    ),
    "no mesh": (
        lambda x: x.shard((group(2), ("PYTHON:2",))),
        DeviceError,
        "is no mesh",
    ),
    "nothing in rows": (lambda x: x.shard(((), ())), DeviceError, "is no mesh"),
    "row and device": (
        lambda x: x.shard((group(2), "PYTHON:2")),
        DeviceError,
        "is no mesh",
    ),
    "row beside mesh": (
        lambda x: x.shard(mesh(2, 2), 0) + x.shard(group(2)),
        DeviceError,
        "operands are on (('PYTHON', 'PYTHON:1'), ('PYTHON:2', 'PYTHON:3')) and ('PYTHON', 'PYTH",
    ),
    "assigned": (lambda x: x.shard(group(2), 0).assign(x), DeviceError, "assign: operands are on"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_told(name: str) -> None:
    act, error, text = MISTAKES[name]

    with pytest.raises(error, match=re.escape(text)):
        act(Tensor(A))


@pytest.mark.parametrize("axis", [None, 1])
def test_part_of_symbolic_size_is_read_from_several_devices(axis: int | None) -> None:
    rows = Variable("rows", 1, 10).bind(3)
    memory = Tensor.arange(20).reshape(10, 2).contiguous().realize()

    assert memory[:rows].shard(group(2), axis).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert memory[:rows].shard(group(2), axis).T.tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("axis", [None, 0])
def test_what_was_cut_into_kernels_reads_memory_before_it_is_overwritten(axis: int | None) -> None:
    rows = [[-4.0, 2.0], [3.0, 1.0]]
    x = Tensor(rows).shard(group(2), axis).clone().realize()
    total, same = (x + x.sum()).contiguous(), x.reshape(4).clone()
    x[1] = 8.0
    Tensor.kernelize(total, same)

    assert x.clone().tolist() == [[-4.0, 2.0], [8.0, 8.0]]
    assert total.tolist() == [[-2.0, 4.0], [5.0, 3.0]]
    assert same.tolist() == [-4.0, 2.0, 3.0, 1.0]


def test_a_write_that_was_cut_into_kernels_is_done_once_for_all_parts() -> None:
    """The copy of each part shares a kernel with the write, which a part that is read begins."""
    x = Tensor([-4, 16, 2, -8]).shard(group(2), 0).realize()
    x += 1
    same = x.clone().kernelize()

    assert same[-2].item() == 3
    assert (same.tolist(), x.tolist()) == ([-3, 17, 3, -7], [-3, 17, 3, -7])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("together", [False, True])
def test_values_that_are_equal_on_one_device_have_memory_of_their_own(
    order: tuple[int, int], written: int, together: bool
) -> None:
    x = Tensor([5, 6, -3, -1]).shard(group(2), 0)
    values = []
    for _ in order:
        x[0].assign(x[0] + 1)
        values.append(x + 0)
    x[0].assign(x[0] + 1)
    if together:
        Tensor.realize(*[values[n] for n in order])
    else:
        for n in order:
            values[n].realize()
    values[written] += 10

    expected = [[6, 6, -3, -1], [7, 6, -3, -1]]
    expected[written] = [n + 10 for n in expected[written]]
    assert [value.tolist() for value in values] == expected


@pytest.mark.parametrize("axis", [None, 0])
def test_a_copy_that_kernelize_cut_is_in_order(axis: int | None) -> None:
    x = Tensor(A).shard(group(2), axis).realize()
    copy = x.clone()
    x.assign(x + 1)
    (x + 1).kernelize()

    same = copy.contiguous()
    copy[:] = x
    assert same.tolist() == (A + 1).tolist()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_padded_value_whose_parts_were_read_gets_memory_of_its_own(axis: int | None) -> None:
    zeros = Tensor.zeros(4, 4).shard(group(2), axis)
    x = zeros.pad(((1, 1), (0, 0)) if axis else ((0, 0), (1, 1)))
    x.tolist()
    view = x[1:3]
    x.realize(view)

    view -= 1

    assert [sum(row) for row in x.tolist()][:4] == [0.0, -x.shape[1], -x.shape[1], 0.0]
