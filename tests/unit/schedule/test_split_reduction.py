"""Split reductions: those that are cut in parts, and into how many."""

import functools
from dataclasses import replace

import numpy
import pytest

from tests.unit.schedule.graphs import buffer, expand, kernels, matmul, permute, reshape, total
from tinycore.render.base import Limits
from tinycore.schedule.kernel import memory_of
from tinycore.schedule.limits import cut_for
from tinycore.tensor import Tensor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Variable

LOOPS = Limits(vector_bytes=32, threads=2)
GRID = Limits(grid=(1 << 16,) * 3, block=(64, 1, 1), block_threads=64)


def shapes(root: UOp, limits: Limits = LOOPS) -> list[tuple[int, ...]]:
    """The shape of what each kernel stores."""
    with cut_for(limits):
        return [memory_of(k.src[0]).shape for k in kernels(root)]


def test_parts_of_a_long_product_are_its_outermost_axis() -> None:
    with cut_for(LOOPS):
        first, second = kernels(matmul(buffer(64, 1 << 15), buffer(1 << 15, 32)))

    assert first.arg.name == "reduce_16_64_32_2048"
    assert second.arg.name == "reduce_64_32_16"


def test_short_product_stays_whole() -> None:
    assert len(shapes(matmul(buffer(64, 4096), buffer(4096, 32)))) == 1


def test_product_with_many_results_has_fewer_parts() -> None:
    few, many = (shapes(matmul(buffer(n, 1 << 14), buffer(1 << 14, n))) for n in (256, 1024))

    assert [s[0] for s in few] == [8 * 256 * 256, 256 * 256]
    assert [s[0] for s in many] == [4 * 1024 * 1024, 1024 * 1024]


def test_product_with_more_results_than_operands_stays_whole() -> None:
    x = buffer(1 << 15, 1 << 14)

    assert len(shapes(matmul(x, permute(x, 1, 0)))) == 1


def test_sums_of_long_rows_stay_whole_if_there_are_enough() -> None:
    assert len(shapes(total(buffer(100, 1 << 16), 1))) == 1


def test_sums_of_few_long_columns_are_cut_for_threads() -> None:
    x = buffer(1 << 16, 256)

    assert shapes(total(x, 0)) == [(512 * 256,), (256,)]
    assert shapes(total(permute(x, 1, 0), 1)) == [(512 * 256,), (256,)]
    assert len(shapes(total(buffer(1 << 16, 1024), 0))) == 1


def test_a_matrix_times_a_vector_is_as_its_larger_operand_lies() -> None:
    row, size = buffer(1, 1 << 16), 1 << 16
    factor = expand(row, (128, size))

    assert len(shapes(total(buffer(128, size) * factor, 1))) == 1
    assert len(shapes(total(permute(buffer(size, 128), 1, 0) * factor, 1))) == 2


def test_of_several_axes_the_outermost_with_enough_steps_is_cut() -> None:
    names = [
        k.arg.name
        for shape in ((32, 8, 64, 64), (2, 8, 256, 256))
        for k in kernels(total(buffer(*shape), 0, 2, 3))
    ]

    assert names == ["reduce_32_8_64_64", "reduce_8_32", "reduce_8_256_2_256", "reduce_8_256"]


@pytest.mark.parametrize("size", [8192, 8209, 32771, 40000])
def test_steps_that_no_number_of_parts_divides_are_left_over(size: int) -> None:
    left = numpy.arange(size, dtype=numpy.int64).reshape(1, size) * [[1], [3], [-5]] % 101
    right = numpy.arange(size * 5, dtype=numpy.int64).reshape(size, 5) % 89

    found = (Tensor(left.astype(numpy.int32)) @ Tensor(right.astype(numpy.int32))).numpy()

    assert (found == left @ right).all()
    assert (Tensor(right.astype(numpy.int32)).max(0).numpy() == right.max(0)).all()


def sum_of_products(count: int, rows: int, inner: int, columns: int) -> UOp:
    """The gradient of an operand that some layers read: added before it is summed."""
    whole = (rows, columns, inner)
    terms = [
        expand(reshape(buffer(rows, inner), (rows, 1, inner)), whole)
        * expand(reshape(buffer(columns, inner), (1, columns, inner)), whole)
        for _ in range(count)
    ]
    return total(functools.reduce(UOp.__add__, terms), 2)


def test_products_that_are_added_are_summed_one_by_one() -> None:
    asts = [k.arg.ast for k in kernels(sum_of_products(3, 128, 96, 128))]

    assert len(asts) == 3
    for ast in asts:
        (fold,) = (n for n in ast.toposort() if n.op is Op.REDUCE)
        assert fold.src[0].op is Op.MUL


@pytest.mark.parametrize("shape", [(2048, 32, 64), (64, 64, 64)])
def test_small_products_that_are_added_are_one_kernel(shape: tuple[int, int, int]) -> None:
    assert len(shapes(sum_of_products(3, *shape))) == 1


def test_sums_of_what_is_read_once_stay_one_kernel() -> None:
    x, y = buffer(1024, 4096), buffer(1024, 4096)

    assert len(shapes(total(x * x + y * y, 1))) == 1


def test_products_with_sums_of_other_lengths_are_kernels_of_their_own() -> None:
    """As the way around a block of a residual network, which has windows of another size."""
    image, narrow = Tensor.empty(8, 64, 8, 8), Tensor.empty(8, 96, 8, 8)
    block = image.conv2d(Tensor.empty(64, 64, 3, 3), padding=1)
    both = block + narrow.conv2d(Tensor.empty(64, 96, 1, 1))
    alike = matmul(buffer(128, 96), buffer(96, 128)) + matmul(buffer(128, 96), buffer(96, 128))

    names = [k.arg.name for k in kernels(both.relu().uop)]
    assert [name for name in names if name.startswith("reduce")] == [
        "reduce_8_64_8_8_96",
        "reduce_8_64_8_8_64_3_3",
    ]
    assert len(kernels(alike)) == 1


def test_taps_of_a_transposed_convolution_are_not_stored_beside_another_one() -> None:
    image = Tensor.empty(2, 64, 12, 12, device="PYTHON")
    weight, other = (Tensor.empty(64, 64, 3, 3, device="PYTHON") for _ in range(2))
    both = image.conv2d(weight, padding=1) + image.conv_transpose2d(other, padding=1)
    twice = image.conv_transpose2d(weight, padding=1) + image.conv_transpose2d(other, padding=1)

    with cut_for(LOOPS):
        first, second = ([item.bufs[0].size for item in t.schedule()] for t in (both, twice))

    results, whole = 2 * 64 * 12 * 12, 2 * 64 * 14 * 14
    assert sorted(first) == [results, results, whole, 2 * 64 * 16 * 16]
    assert sorted(second) == [results, whole, 2 * 64 * 16 * 16]


def test_sum_over_a_product_does_not_store_the_product() -> None:
    assert shapes(total(matmul(buffer(1024, 64), buffer(64, 1024)), 1)) == [(1024,)]


def test_slopes_of_what_several_layers_read() -> None:
    x = numpy.arange(128 * 64).reshape(128, 64) % 7 - 3
    weights = [numpy.arange(64 * 128).reshape(64, 128) * (n + 2) % 5 - 2 for n in range(3)]
    read = Tensor(x.astype(numpy.float32)).realize()
    layers = [Tensor(w.astype(numpy.float32)).realize() for w in weights]

    (found,) = Tensor.stack(*[(read @ w).square().sum() for w in layers]).sum().gradient(read)

    assert (found.numpy() == sum(2 * (x @ w) @ w.T for w in weights)).all()


def test_a_grid_is_given_products_whole() -> None:
    assert len(shapes(matmul(buffer(64, 1 << 15), buffer(1 << 15, 32)), GRID)) == 1


CARD = replace(GRID, units=16, threads=1 << 14)


def test_a_card_has_parts_of_a_product_for_each_of_its_units() -> None:
    few = shapes(matmul(buffer(64, 1 << 13), buffer(1 << 13, 256)), CARD)

    assert few == [(32 * 64 * 256,), (64 * 256,)]
    assert shapes(matmul(buffer(64, 1 << 13), buffer(1 << 13, 256)), GRID) == [(64 * 256,)]


@pytest.mark.parametrize("size", [(1024, 1 << 10, 1024), (64, 64, 64), (64, 64, 1 << 9)])
def test_a_product_with_groups_enough_or_little_work_stays_whole_on_a_card(
    size: tuple[int, int, int],
) -> None:
    rows, inner, columns = size

    assert len(shapes(matmul(buffer(rows, inner), buffer(inner, columns)), CARD)) == 1


def test_a_product_of_symbolic_length_stays_whole_on_a_card() -> None:
    length = Variable("length", 1, 1 << 13).bind(100)
    left = Tensor.empty(64, 1 << 13, device="NULL")[:, :length]
    right = Tensor.empty(1 << 13, 256, device="NULL")[:length]

    assert shapes((left @ right).uop, CARD) == [(64 * 256,)]


def test_windows_of_an_image_stay_whole() -> None:
    image, weight = Tensor.empty(16, 8, 64, 64), Tensor.empty(8, 8, 3, 3)
    (gradient,) = (image.conv2d(weight, padding=1)).square().sum().gradient(weight)

    assert kernels(gradient.uop)[-1].arg.name == "reduce_8_8_3_3_16_64_64"
