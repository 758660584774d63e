"""Problems whose plans are judged, each with the least work that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tinycore import Tensor
from tinycore.dtype import DType, dtypes

__all__ = ["Subject", "subjects_of"]

TYPES: Final = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


@dataclass(frozen=True)
class Subject:
    """A problem."""

    name: str
    build: Callable[[], Tensor]
    """The result, on memory that holds nothing."""
    operations: float
    """Multiplications and additions that it takes."""
    moved: float
    """Bytes of operands and results."""
    dtype: str
    """The type whose rate is its limit."""


def memory(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    """A tensor in memory."""
    return Tensor.empty(*shape, dtype=dtype)


def product(rows: int, inner: int, columns: int, dtype: DType) -> Subject:
    """A product of two matrices."""
    elements = rows * inner + inner * columns + rows * columns
    return Subject(
        f"matmul {rows}x{inner}x{columns} {dtype.name}",
        lambda: memory(rows, inner, dtype=dtype) @ memory(inner, columns, dtype=dtype),
        2.0 * rows * inner * columns,
        elements * dtype.itemsize,
        dtype.name,
    )


def convolution(batch: int, channels: int, side: int, dtype: DType) -> Subject:
    """3x3, with a border of zeros."""
    pixels = batch * channels * side * side
    weights = channels * channels * 9
    return Subject(
        f"conv2d {batch}x{channels}x{side}² 3x3 {dtype.name}",
        lambda: memory(batch, channels, side, side, dtype=dtype).conv2d(
            memory(channels, channels, 3, 3, dtype=dtype), padding=1
        ),
        2.0 * pixels * channels * 9,
        (2 * pixels + weights) * dtype.itemsize,
        dtype.name,
    )


def attention(heads: int, length: int, features: int, dtype: DType) -> Subject:
    """Scaled products of queries and keys, of all heads."""

    def build() -> Tensor:
        q, k, v = (memory(1, heads, length, features, dtype=dtype) for _ in range(3))
        return q.scaled_dot_product_attention(k, v)

    return Subject(
        f"attention {heads}x{length}x{features} {dtype.name}",
        build,
        4.0 * heads * length * length * features,
        4.0 * heads * length * features * dtype.itemsize,
        dtype.name,
    )


def shared_attention(
    heads: tuple[int, int], length: int, seen: int, features: int, dtype: DType
) -> Subject:
    """Attention of heads of queries, groups of which share a head of keys: (heads, groups)."""
    many, groups = heads

    def build() -> Tensor:
        queries = memory(1, many, length, features, dtype=dtype)
        keys, values = (memory(1, groups, seen, features, dtype=dtype) for _ in range(2))
        return queries.scaled_dot_product_attention(keys, values, enable_gqa=True)

    return Subject(
        f"attention {many} on {groups}x{length}x{seen}x{features} {dtype.name}",
        build,
        4.0 * many * length * seen * features,
        2.0 * features * (many * length + groups * seen) * dtype.itemsize,
        dtype.name,
    )


def rows(name: str, side: int, function: Callable[[Tensor], Tensor], written: int) -> Subject:
    """A function of the rows of a matrix."""
    moved = (side * side + written) * dtypes.float32.itemsize
    return Subject(f"{name} {side}²", lambda: function(memory(side, side)), 0.0, moved, "float32")


def decoding(features: int, heads: int, length: int, dtype: DType) -> Subject:
    """A token through a layer of a transformer, with keys and values of those before it."""
    wide, each = 4 * features, features // heads

    def build() -> Tensor:
        x = memory(1, features, dtype=dtype)
        queries, out = (memory(features, features, dtype=dtype) for _ in range(2))
        up, down = memory(features, wide, dtype=dtype), memory(wide, features, dtype=dtype)
        keys, values = (memory(heads, length, each, dtype=dtype) for _ in range(2))
        q = (x.layernorm() @ queries).reshape(heads, 1, each)
        scores = (q @ keys.transpose(1, 2)) * each**-0.5
        mixed = (scores.softmax(-1) @ values).reshape(1, features)
        x = x + mixed @ out
        result: Tensor = x + (x.layernorm() @ up).gelu() @ down
        return result

    weights = 2 * features * features + 2 * features * wide + 2 * features * length
    name = f"decode {features} after {length} {dtype.name}"
    return Subject(name, build, 2.0 * weights, weights * dtype.itemsize, dtype.name)


def subjects_of(scale: int, types: tuple[DType, ...] = TYPES) -> Iterator[Subject]:
    """The problems for a card; `scale` divides their sides."""
    for dtype in types:
        for side in (512, 2048, 4096):
            yield product(side // scale, side // scale, side // scale, dtype)
        yield product(64, 4096 // scale, 4096 // scale, dtype)
    yield convolution(32 // scale, 64, 56, types[-1])
    yield convolution(32 // scale, 64, 56, dtypes.float32)
    yield attention(16, 2048 // scale, 64, types[-1])
    yield shared_attention((32, 8), 2048 // scale, 2048 // scale, 128, types[-1])
    yield shared_attention((32, 8), 1, 4096, 128, types[-1])
    side = 8192 // scale
    yield rows("softmax", side, lambda x: x.softmax(-1), side * side)
    yield rows("layernorm", side, lambda x: x.layernorm(), side * side)
    yield rows("sum", side, lambda x: x.sum(), 1)
    yield rows("sum of rows", side, lambda x: x.sum(1), side)
    yield rows("sum of columns", side, lambda x: x.sum(0), side)
    yield decoding(4096 // scale, 32 // scale, 2048, types[-1])
