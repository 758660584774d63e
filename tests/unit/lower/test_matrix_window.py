"""Windows of images on units that read shared memory by themselves, from any piece of a row on."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy
import pytest
from described_cards import card_named, tried_windows

from tests.unit.lower.matrices import COPIES, MMA
from tiny_testing.accelerator.device import LIMITS
from tinycore import Tensor, dtypes
from tinycore._deferred import Deferred
from tinycore.errors import ArgumentError
from tinycore.lower.steps.fuse import Fuse
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import apply_plan
from tinycore.render.base import Limits
from tinycore.render.windows import Window, tiles_of_window
from tinycore.uop.matrix import MatrixDescriptor, MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

UNIT: Final = MatrixUnit(
    *("rows_m64n64k16", 64, 64, 16, dtypes.float16, dtypes.float16, dtypes.float32, 128),
    *("k2 k4 m1 m2 m4 m8 m16 | k1 k8 m32", "k2 k4 n1 n2 n4 n8 n16 | k1 k8 n32"),
    *("n2 n4 m1 m2 m4 m16 m32 | n1 m8 n8 n16 n32", False),
    MatrixDescriptor("rows", turned_bytes=2),
)
CARD: Final = replace(
    LIMITS,
    matrix=(UNIT,),
    subgroup=32,
    units=1,
    threads=1,
    shared_bytes=160 << 10,
    block=(512, 512, 64),
    block_threads=512,
)
NAME: Final = "WINDOWS"
WINDOW: Final = Window(2, 64, 14, 14, 32, (3, 3), (1, 1))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each plan of windows that is tried, whether it could be done."""
    return tried_windows(monkeypatch)


@pytest.mark.sample(9)
@pytest.mark.parametrize("copies", [None, COPIES], ids=["filled", "copied"])
@pytest.mark.parametrize(
    ("channels", "filters", "taps", "gap", "sides"),
    [
        (16, 64, (3, 3), 1, (14, 14)),
        (32, 61, (3, 3), 1, (15, 15)),
        (48, 64, (3, 3), 1, (9, 29)),
        (16, 60, (3, 3), 2, (17, 28)),
        (16, 64, (1, 5), 1, (8, 28)),
        (32, 64, (5, 1), 1, (14, 30)),
    ],
)
def test_windows_of_an_image_where_it_lies_are_numpys(
    channels: int,
    filters: int,
    taps: tuple[int, int],
    gap: int,
    sides: tuple[int, int],
    copies: Deferred | None,
    planned: list[bool],
) -> None:
    make = numpy.random.default_rng(channels)
    x = make.integers(-2, 3, (1, channels, *sides))
    w = make.integers(-2, 3, (filters, channels, *taps))
    down, along = (gap * (size // 2) for size in taps)
    padded = numpy.pad(x, ((0, 0), (0, 0), (down, down), (along, along)))
    reach = [gap * (size - 1) + 1 for size in taps]
    windows = numpy.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    expected = numpy.einsum("bchwij,ocij->bohw", windows[..., ::gap, ::gap], w)

    with card_named(NAME, replace(CARD, copies=copies)):
        image, weight = (Tensor(v.astype("f")).cast(dtypes.half).realize() for v in (x, w))
        border = (along, along, down, down)
        found = image.conv2d(weight, padding=border, dilation=gap, dtype=dtypes.float32).numpy()

    assert numpy.array_equal(found, expected)
    assert planned == [True]


def test_a_tile_has_whole_rows_and_what_lies_between_them() -> None:
    tiles = list(tiles_of_window(CARD, WINDOW, dtypes.half))

    assert tiles
    for tile in tiles:
        end = (tile.rows - 1) * WINDOW.pitch + WINDOW.width
        assert end <= tile.places
        assert tile.groups * tile.rows >= WINDOW.height * WINDOW.images
        assert 2 * tile.shared_bytes <= CARD.shared_bytes
        assert tile.waste >= 1


@pytest.mark.parametrize(
    ("limits", "window"),
    [
        pytest.param(replace(CARD, units=0), WINDOW, id="no card"),
        pytest.param(replace(CARD, matrix=(MMA,)), WINDOW, id="operands of lanes"),
        pytest.param(replace(CARD, shared_bytes=1 << 10), WINDOW, id="little shared memory"),
        pytest.param(CARD, WINDOW._replace(taps=(1, 3)), id="few places"),
        pytest.param(CARD, WINDOW._replace(channels=24), id="channels of no whole step"),
        pytest.param(CARD, WINDOW._replace(width=250), id="a row for each group"),
        pytest.param(CARD, WINDOW._replace(height=7, width=5), id="much between rows"),
    ],
)
def test_others_have_none(limits: Limits, window: Window) -> None:
    assert not list(tiles_of_window(limits, window, dtypes.half))


def rows_in_scratch(pitch: int, padding: int = 8) -> UOp:
    """Sums of two neighbors below one another of 4 rows of 6, staged in rows of a pitch."""
    source = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(5 * pitch), (), 1)
    target = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(4 * 6), (), 0)
    row, column = (UOp.range(size, (n,), AxisKind.LOOP) for n, size in enumerate((4, 6)))
    tap = UOp.range(2, (2,), AxisKind.REDUCE)
    place = UOp(Op.INDEX, source.dtype, (source, (row + tap) * pitch + column))
    value = UOp(Op.LOAD, dtypes.float32, (place,))
    total = UOp(Op.REDUCE, dtypes.float32, (value, tap), Op.ADD)
    index = UOp(Op.INDEX, target.dtype, (target, row * 6 + column))
    store = UOp(Op.STORE, dtypes.void, (index, total))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (store, row, column)))
    dimensions = ((((0,), 1), ((2,), 1)), (((1,), 1),))
    return apply_plan(kernel, (Stage(None, dimensions, padding=padding),))


def test_rows_that_lie_apart_in_shared_memory_are_one_loop() -> None:
    kernel = apply_plan(rows_in_scratch(6, padding=2), (Fuse((0,), (1,), 8, 32),))
    loops = {n.arg.number: n.src[0].arg for n in kernel.toposort() if n.op is Op.RANGE}
    (store,) = (
        n for n in kernel.toposort() if n.op is Op.STORE and n.src[0].src[0].op is Op.DEFINE_GLOBAL
    )

    assert loops[(0,)] == 32
    assert (1,) not in loops
    assert len(store.src[0].src) == 3  # a gate


@pytest.mark.parametrize(("pitch", "steps"), [(7, 32), (8, 64)], ids=["other rows", "past its end"])
def test_rows_that_lie_otherwise_are_not(pitch: int, steps: int) -> None:
    with pytest.raises(ArgumentError, match="steps apart"):
        apply_plan(rows_in_scratch(6, padding=2), (Fuse((0,), (1,), pitch, steps),))
