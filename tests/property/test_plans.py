"""Programs under random limits of a card: whatever plan these lead to, results are NumPy's.

Limits are those of no card: few groups along an axis, little shared memory, units of a made-up
number of lanes. The interpreter runs the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import numpy
import pytest
from described_cards import card_named

from tests.unit.lower.matrices import (
    COPIES,
    MFMA,
    MMA,
    MMA_BFLOAT,
    MMA_INT8,
    SIMDGROUP,
    WMMA,
    WMMA_BLOCKS,
)
from tiny_testing.accelerator.device import LIMITS
from tiny_testing.kernels import Array
from tinycore import Tensor
from tinycore.dtype import DType, dtypes
from tinycore.render.base import Limits

NAME: Final = "PLANNED"
UNITS: Final = (MMA, MMA_BFLOAT, MMA_INT8, WMMA, WMMA_BLOCKS, MFMA, SIMDGROUP)
LENGTHS: Final = (1, 5, 16, 17, 32, 33, 48, 64, 65, 100)
PROGRAMS: Final = 96

Program = Callable[[Random, DType], tuple[Tensor, Array, float]]
"""Function of random choices and a type: a tensor, what NumPy has, and the tolerance."""


def limits_of(random: Random) -> Limits:
    """Limits of a card, whose groups have room for a subgroup and little more."""
    unit, pick = random.choice(UNITS), random.choice
    return replace(
        LIMITS,
        matrix=(unit,),
        subgroup=unit.threads,
        grid=pick((LIMITS.grid, (509, 127, 63), (65, 8191, 7))),
        block_threads=pick((max(unit.threads, 64), 256)),
        shared_bytes=pick((2 << 10, 8 << 10, 48 << 10)),
        shuffles=pick((LIMITS.shuffles, LIMITS.shuffles, ())),
        copies=pick((None, COPIES)),
        vector_bytes=pick((4, 8, 16)),
        threads=pick((1, 64, 1024)),
        units=pick((0, 1, 3, 8)),
        thread_registers=pick((0, 64, 255)),
        l2_bytes=pick((0, 1 << 10, 1 << 20)),
    )


def whole_numbers(random: Random, *shape: int) -> Array:
    """Numbers whose sums of products are exact in every type."""
    return numpy.random.default_rng(random.getrandbits(32)).integers(-2, 3, shape)


def numbers(random: Random, *shape: int) -> Array:
    """Normally distributed numbers that every type has."""
    found = numpy.random.default_rng(random.getrandbits(32)).standard_normal(shape)
    return numpy.round(found * 16) / 16


def held(values: Array, dtype: DType) -> Tensor:
    """Values of a type, in memory."""
    return Tensor(values.astype("f")).cast(dtype).contiguous().realize()


def view(random: Random, values: Array, dtype: DType) -> Tensor:
    """A tensor with some values, which is part of memory, or memory in another order."""
    rows, columns = values.shape
    match random.randrange(5):
        case 0:
            return held(values.T, dtype).T
        case 1:
            return held(values[::-1], dtype).flip(0)
        case 2:
            top, left = random.choice((1, 8)), random.choice((0, 3, 16))
            around = numpy.pad(values, ((top, 1), (left, 2)))
            return held(around, dtype)[top : top + rows, left : left + columns]
        case 3:
            return held(numpy.repeat(values, 2, 0), dtype)[::2]
    return held(values, dtype)


def product(random: Random, dtype: DType) -> tuple[Tensor, Array, float]:
    """A product of views, a bias, and a sum or a maximum of rows."""
    rows, inner, columns = (random.choice(LENGTHS) for _ in range(3))
    a, b = whole_numbers(random, rows, inner), whole_numbers(random, inner, columns)
    bias = whole_numbers(random, columns)
    total = dtypes.int32 if dtype is dtypes.int8 else dtypes.float32
    found = view(random, a, dtype).matmul(view(random, b, dtype), dtype=total) + held(bias, total)
    expected = a @ b + bias
    match random.randrange(4):
        case 0:
            return found.sum(-1), expected.sum(-1), 0
        case 1:
            return found.relu().max(0), numpy.maximum(expected, 0).max(0), 0
        case 2:
            return found.argmax(-1), expected.argmax(-1), 0
    return found, expected, 0


def convolution(random: Random, dtype: DType) -> tuple[Tensor, Array, float]:
    """Windows, with gaps or apart, of images with or without channels last in memory."""
    channels, size = random.choice((3, 8, 16, 32)), random.choice((1, 3, 3, 5))
    x = whole_numbers(random, 2, channels, random.choice((7, 12)), random.choice((6, 17)))
    w = whole_numbers(random, random.choice((4, 16, 17)), channels, size, size)
    images = held(x, dtype)
    if random.random() < 0.5:
        images = held(x.transpose(0, 2, 3, 1), dtype).permute(0, 3, 1, 2)
    total = dtypes.int32 if dtype is dtypes.int8 else dtypes.float32
    gap, apart = random.choice((1, 1, 2)), random.choice((1, 1, 2))
    border = max(random.choice((1, 2, 4)), gap * (size - 1) // 2)
    padded = numpy.pad(x, ((0, 0), (0, 0), (border, border), (border, border)))
    reach = gap * (size - 1) + 1
    windows = numpy.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (2, 3))
    windows = windows[:, :, ::apart, ::apart, ::gap, ::gap]
    expected = numpy.einsum("bchwij,ocij->bohw", windows, w)
    weight = held(w, dtype)
    found = images.conv2d(weight, padding=border, stride=apart, dilation=gap, dtype=total)
    return found, expected, 0


def attention(random: Random, dtype: DType) -> tuple[Tensor, Array, float]:
    """Two products with a softmax between, of which a mask may hide later keys."""
    dtype = dtypes.float32 if dtype is dtypes.int8 else dtype
    queries, keys = random.choice(LENGTHS), random.choice(LENGTHS)
    width, is_causal = random.choice((16, 32)), random.random() < 0.5
    q, k, v = (numbers(random, 2, n, width) for n in (queries, keys, keys))
    scores = q @ k.transpose(0, 2, 1) / width**0.5
    if is_causal:
        scores = numpy.where(numpy.tri(queries, keys, dtype=bool), scores, -numpy.inf)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    query, key, value = (held(x, dtype) for x in (q, k, v))
    found = query.scaled_dot_product_attention(key, value, is_causal=is_causal)
    return found.float(), expected, 4 * 2.0 ** -(23 if dtype is dtypes.float32 else 7)


def rows(random: Random, dtype: DType) -> tuple[Tensor, Array, float]:
    """A softmax of rows or columns, which are long or short."""
    x = numbers(random, random.choice(LENGTHS), random.choice((*LENGTHS, 1000, 1024, 3001)))
    axis = random.choice((0, 1))
    powers = numpy.exp(x - x.max(axis, keepdims=True))
    expected = powers / powers.sum(axis, keepdims=True)
    return view(random, x, dtypes.float32).softmax(axis), expected, 1e-5


def copies(random: Random, dtype: DType) -> tuple[Tensor, Array, float]:
    """The sum of a view and of a transposed one."""
    height, width = random.choice(LENGTHS), random.choice(LENGTHS)
    x, y = whole_numbers(random, height, width), whole_numbers(random, width, height)
    return view(random, x, dtype) + view(random, y, dtype).T, x + y.T, 0


PLANNED: Final[tuple[Program, ...]] = (
    product,
    product,
    convolution,
    attention,
    attention,
    rows,
    copies,
)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_results_are_numpys_whatever_the_limits(seed: int) -> None:
    random = Random(seed)
    limits = limits_of(random)
    dtype = limits.matrix[0].a
    program = random.choice(PLANNED)

    with card_named(NAME, limits):
        found, expected, tolerance = program(random, dtype)
        result = found.numpy()

    scale = float(numpy.abs(expected).max())
    numpy.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * scale)
