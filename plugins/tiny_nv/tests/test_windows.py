"""Convolutions on wgmma from images where they lie: NumPy's, on an executor of PTX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import numpy
import pluggy
import pytest
from matrix_programs import for_few_threads
from numpy.typing import NDArray
from sampling import on_one_of
from simulated import Simulated, backend_of
from standin import Card
from windowed import tried_windows

from tiny_nv.program import NvrtcCompiler
from tiny_nv.spills import spilled_bytes, unspilled
from tinycore import Context, Tensor, dtypes
from tinycore.plugin import register, register_observer, unregister, unregister_observer

Array = NDArray[Any]
CASES = 32


@pytest.fixture(scope="module", params=on_one_of("NVRTC", "PTX"))
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Hopper with one multiprocessor that the executor plays."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    register(for_few_threads(backend_of(Simulated((Card(),)))))
    with Context(DEV=f"CUDA:{request.param}:sm_90a", VERIFY=1, CCACHE=0):
        yield
    unregister("CUDA")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Mapping[object, bool]:
    """For each plan of windows that is tried, whether it could be done."""
    return tried_windows(monkeypatch)


def integers(random: Random, *shape: int) -> Array:
    """Numbers whose sums of products are exact."""
    return numpy.random.default_rng(random.getrandbits(32)).integers(-2, 3, shape)


def held(values: Array, *, is_half: bool) -> Tensor:
    """Numbers of 16 bits in memory."""
    kind = dtypes.float16 if is_half else dtypes.bfloat16
    return Tensor(values.astype("f")).cast(kind).contiguous().realize()


def check(random: Random, image: Array, weight: Array, gaps: tuple[int, int], border: int) -> None:
    """Compare a convolution, and what may follow it in its kernel, with NumPy's."""
    reach = [gap * (taps - 1) + 1 for gap, taps in zip(gaps, weight.shape[2:], strict=True)]
    around = numpy.pad(image, ((0, 0), (0, 0), (border, border), (border, border)))
    windows = numpy.lib.stride_tricks.sliding_window_view(around, reach, (2, 3))
    taken = windows[:, :, :, :, :: gaps[0], :: gaps[1]]
    expected = numpy.einsum("bchwij,ocij->bohw", taken, weight)
    is_half = random.random() < 0.5
    images, weights = (held(x, is_half=is_half) for x in (image, weight))
    found = images.conv2d(weights, padding=border, dilation=gaps, dtype=dtypes.float32)
    match random.randrange(4):
        case 0:
            bias = integers(random, len(weight), 1, 1)
            found, expected = (found + held(bias, is_half=is_half)).relu(), expected + bias
            expected = numpy.maximum(expected, 0)
        case 1:
            other = integers(random, *expected.shape)
            found, expected = found + Tensor(other.astype("f")).realize(), expected + other
        case 2:
            found, expected = found.permute(0, 2, 3, 1).contiguous(), expected.transpose(0, 2, 3, 1)
    assert numpy.array_equal(found.numpy(), expected)


@pytest.mark.sample(12)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("seed", range(CASES))
def test_random_convolutions_are_numpys(seed: int) -> None:
    random = Random(seed)
    taps = random.choice(((3, 3), (3, 3), (5, 5), (2, 2), (1, 5), (5, 1), (4, 3)))
    gaps = random.choice(((1, 1), (1, 1), (2, 2), (1, 2)))
    border = random.choice((0, 1, 1, 2))
    reach = [gap * (size - 1) + 1 - 2 * border for gap, size in zip(gaps, taps, strict=True)]
    sides = (random.choice((7, 9, 11, 14)), random.choice((9, 13, 28, 30)))
    height, width = (max(side, least) for side, least in zip(sides, reach, strict=True))
    channels = random.choice((16, 32, 48))
    image = integers(random, random.choice((1, 2)), channels, height, width)
    weight = integers(random, random.choice((48, 56, 64, 72, 128)), channels, *taps)

    check(random, image, weight, gaps, border)


@pytest.mark.sample(2)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("channels", "side", "size", "gap"),
    [
        (16, 14, 3, 1),
        (32, 15, 3, 1),
        (48, 29, 3, 1),
        (32, 16, 5, 1),
        (16, 17, 3, 2),
    ],
)
def test_images_are_read_where_they_lie(
    channels: int, side: int, size: int, gap: int, planned: Mapping[object, bool]
) -> None:
    random = Random(channels + side)
    image, weight = (
        integers(random, *shape)
        for shape in ((2, channels, side, side), (64, channels, size, size))
    )

    check(random, image, weight, (gap, gap), gap)

    assert list(planned.values()) == [True]


@pytest.mark.usefixtures("card")
def test_windows_of_an_even_side_keep_their_copies(planned: Mapping[object, bool]) -> None:
    """A limit of the plan, not of what is computed."""
    random = Random(28)
    image, weight = integers(random, 2, 16, 12, 12), integers(random, 64, 16, 2, 2)

    check(random, image, weight, (1, 1), 1)

    assert not planned


@pytest.mark.slow
def test_no_kernel_of_windows_spills(nvrtc: None) -> None:
    found: list[str] = []

    class Kernels:
        @pluggy.HookimplMarker("tinycore")
        def tinycore_kernel_compiled(self, kernel: str, source: str) -> None:
            if "wgmma" in source:
                found.append(source)

    observer, compiler = Kernels(), NvrtcCompiler("sm_90a")
    register_observer(observer)
    try:
        with Context(DEV="NULL:NVRTC:sm_90a", CCACHE=0):
            for filters, side, size in ((64, 56, 3), (128, 28, 3), (256, 28, 3), (64, 57, 7)):
                image = Tensor.empty(32, filters, side, side, dtype=dtypes.bfloat16).realize()
                weight = Tensor.empty(filters, filters, size, size, dtype=dtypes.bfloat16)
                image.conv2d(weight.realize(), padding=size // 2).relu().realize()
    finally:
        unregister_observer(observer)

    def spills(source: str) -> int:
        return spilled_bytes(unspilled(source, compiler.built)[1])

    assert len(found) == 4
    assert not any(map(spills, found))
