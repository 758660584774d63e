"""Blocks taken apart mean the numbers that the `gguf` package reads from them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import gguf
import numpy
import pytest

from tiny_llm.packing import PANEL, packed, packed_experts
from tiny_llm.quants import SPLITS, Groups, split
from tinycore import Context, Tensor
from tinycore.nn.blocks import BLOCK_TYPES

HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q8_0": (0,), "MXFP4": (),
}  # fmt: skip
"""The places of float16 numbers, which must be finite, in the blocks of each type."""
ROWS, COLUMNS = 67, 512


def drawn(kind: str) -> tuple[Any, Any]:
    """Random blocks, and the matrix that they are."""
    number, (_, elements, size, _) = next((n, b) for n, b in BLOCK_TYPES.items() if b.name == kind)
    random = numpy.random.default_rng(number)
    blocks = random.integers(0, 256, (ROWS * COLUMNS // elements, size), numpy.uint8)
    for at in HALVES[kind]:
        scales = random.standard_normal((len(blocks), 1)).astype(numpy.float16)
        blocks[:, at : at + 2] = scales.view(numpy.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = random.integers(100, 140, len(blocks))
    rows = blocks.reshape(ROWS, -1)
    return blocks, gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(number))


def numbers(groups: Groups) -> Any:
    """The matrix that groups mean, in NumPy."""
    integers = groups.integers.reshape(*groups.scale.shape, -1)
    if groups.bits == 4:
        integers = numpy.concatenate([integers & 15, integers >> 4], axis=2)

    def spread(values: Any, outer: Any) -> Any:
        values = values.astype(numpy.float32)
        if outer is not None:
            repeated = outer.astype(numpy.float32).repeat(values.shape[1] // outer.shape[1], 1)
            values = values * repeated
        return values[:, :, None]

    found = (integers.astype(numpy.float32) - groups.zero) * spread(groups.scale, groups.outer)
    if groups.least is not None:
        found = found + spread(groups.least, groups.outer_least)
    return found.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", SPLITS)
def test_a_type_is_taken_apart_without_rounding(kind: str) -> None:
    blocks, expected = drawn(kind)

    groups = split(kind, blocks, ROWS)

    assert groups is not None
    assert numpy.array_equal(numbers(groups), expected)


def test_other_types_are_left_whole() -> None:
    assert split("IQ2_XS", numpy.zeros((1, 74), numpy.uint8), 1) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLITS)
def test_products_and_rows_of_packed_matrices(kind: str) -> None:
    blocks, expected = drawn(kind)
    groups = split(kind, blocks, ROWS)
    assert groups is not None
    x = numpy.random.default_rng(0).standard_normal((3, COLUMNS)).astype(numpy.float32)
    matrix = packed(groups)
    assert matrix.integers.shape[0] * PANEL == 128  # the last panel is filled up

    product, rows = matrix(Tensor(x)).numpy(), matrix.taken(Tensor([0, 66, 64, 0])).numpy()

    exact = x.astype(numpy.float64) @ expected.astype(numpy.float64).T
    assert numpy.abs(product - exact).max() < 1e-5 * numpy.abs(exact).max()
    assert numpy.array_equal(rows, expected[[0, 66, 64, 0]])


def test_a_matrix_is_packed_with_one_copy_beside_it() -> None:
    blocks = numpy.zeros((5000 * COLUMNS // 32, 34), numpy.uint8)
    tracemalloc.start()
    try:
        groups = split("Q8_0", blocks, 5000)
        assert groups is not None
        packed(groups)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most < 1.3 * blocks.nbytes


def test_a_packed_product_on_the_interpreter() -> None:
    blocks, expected = drawn("Q4_1")
    groups = split("Q4_1", blocks[: COLUMNS // 32 * 2], 2)
    assert groups is not None
    with Context(DEV="PYTHON"):
        found = packed(groups).taken(Tensor([1])).numpy()

    assert numpy.array_equal(found[0], expected[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q6_K", "Q4_0"])
def test_products_with_chosen_matrices_of_several(kind: str) -> None:
    blocks, _ = drawn(kind)
    groups = split(kind, blocks, ROWS)
    assert groups is not None
    other = Groups(**(vars(groups) | {"scale": groups.scale * 2}))
    matrices = packed_experts([groups, other, groups])
    single = packed(other)
    random = numpy.random.default_rng(0)
    x = random.standard_normal((2, COLUMNS)).astype(numpy.float32)

    indices = Tensor([[1, 0], [2, 1]])
    found = matrices.of_experts(Tensor(x).unsqueeze(1), indices, 3).numpy()

    plain, doubled = packed(groups)(Tensor(x)).numpy(), single(Tensor(x)).numpy()
    wanted = numpy.stack([[doubled[0], plain[0]], [plain[1], doubled[1]]])
    assert numpy.abs(found - wanted).max() < 1e-5 * numpy.abs(wanted).max()
    one = matrices.of_expert(Tensor(x), 1, 3).numpy()
    assert numpy.abs(one - doubled).max() < 1e-5 * numpy.abs(doubled).max()
