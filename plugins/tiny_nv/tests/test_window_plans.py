"""Windows of images on units that read shared memory by themselves, from any piece of a row on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy
import pytest
from described_cards import card_named
from windowed import tried_windows

from tiny_nv.matrix import INSTRUCTIONS
from tiny_nv.operand_loads import MatrixDescriptor
from tiny_nv.windows import Window, tiles_of_window
from tiny_testing.accelerator.device import LIMITS
from tinycore import Tensor, dtypes
from tinycore._deferred import Deferred
from tinycore.plugin import deferred
from tinycore.render.base import Limits
from tinycore.schedule.limits import cut_for
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Op

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
    strategies=(deferred("tiny_nv.window_plans:propose"),),
    layout=deferred("tiny_nv.windows:copies"),
)
COPIES: Final = deferred("tiny_nv.copied_fills:begin_copies")
OF_LANES: Final = tuple(found.unit for found in INSTRUCTIONS.values())
NAME: Final = "WINDOWS"
WINDOW: Final = Window(2, 64, 14, 14, 32, (3, 3), (1, 1))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Mapping[object, bool]:
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
    planned: Mapping[object, bool],
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
    assert list(planned.values()) == [True]


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
        pytest.param(
            replace(CARD, matrix=OF_LANES),
            WINDOW,
            id="operands of lanes",
        ),
        pytest.param(replace(CARD, shared_bytes=1 << 10), WINDOW, id="little shared memory"),
        pytest.param(CARD, WINDOW._replace(taps=(1, 3)), id="few places"),
        pytest.param(CARD, WINDOW._replace(channels=24), id="channels of no whole step"),
        pytest.param(CARD, WINDOW._replace(width=250), id="a row for each group"),
        pytest.param(CARD, WINDOW._replace(height=7, width=5), id="much between rows"),
    ],
)
def test_others_have_none(limits: Limits, window: Window) -> None:
    assert not list(tiles_of_window(limits, window, dtypes.half))


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        pytest.param({"padding": 1}, [], id="through gates"),
        pytest.param({}, [], id="without a border"),
        pytest.param({"padding": 2, "dilation": 2}, [], id="with gaps"),
        pytest.param({"padding": 1, "stride": 2}, [4 * 32 * 16 * 30], id="apart"),
    ],
)
def test_images_stay_where_a_unit_reads_their_windows(
    way: dict[str, int], expected: list[int]
) -> None:
    image, weight = (
        Tensor.empty(*size, dtype=dtypes.half, device="PYTHON").realize()
        for size in ((4, 32, 14, 28), (128, 32, 3, 3))
    )
    with cut_for(replace(CARD, units=4, vector_bytes=16)):
        items = image.conv2d(weight, **way).schedule()  # type: ignore[arg-type]
    copies = [i.bufs[0].size for i in items if not any(n.op is Op.REDUCE for n in i.ast.toposort())]

    assert copies == [*expected, 128 * 32 * 9]
