"""Products of an Adreno: tiles whose columns texture units read, and copies that suit them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiny_qcom.chip import CHIPS, limits_of
from tiny_qcom.textures import propose
from tinycore import Tensor
from tinycore.dtype import DType, dtypes
from tinycore.lower.plan import plan_for
from tinycore.schedule.items import ScheduleItem
from tinycore.schedule.limits import cut_for
from tinycore.tiling import KernelFacts
from tinycore.uop.affine import coefficient
from tinycore.uop.op import Op

CARD = limits_of(CHIPS["a640"], textures=True)
PLAIN = limits_of(CHIPS["a640"])
"""The same without buffers of texels, as OpenCL C has it."""


def empty(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    """Memory of a type."""
    return Tensor.empty(*shape, dtype=dtype, device="PYTHON").realize()


def items_of(result: Tensor) -> list[ScheduleItem]:
    """The kernels of a result."""
    with cut_for(CARD):
        return list(result.schedule())


def strategies(result: Tensor) -> list[str]:
    """Names of what is proposed for the last kernel of a result, the cheapest first."""
    kernel = items_of(result)[-1].ast
    found = sorted(propose(KernelFacts(kernel, (kernel,)), CARD), key=lambda p: p.cost)
    return [proposal.strategy for proposal in found]


def copies(result: Tensor) -> list[int]:
    """Numbers of elements of the kernels of a result that only copy."""
    return [
        item.bufs[0].size
        for item in items_of(result)
        if not any(n.op is Op.REDUCE for n in item.ast.toposort())
    ]


def test_the_tile_of_a_product_is_the_plugins() -> None:
    (product,) = items_of(empty(512, 512) @ empty(512, 512))

    assert strategies(empty(512, 512) @ empty(512, 512))[0].startswith("grid textured")
    assert plan_for(product.ast, CARD) != plan_for(product.ast, PLAIN)


def test_of_few_outputs_of_long_sums_none_is_proposed() -> None:
    """Threads of a group share each of them."""
    assert not strategies(empty(4, 8192) @ empty(8192, 4))


@pytest.mark.parametrize(
    ("dtype", "expected"), [(dtypes.float32, "4x4"), (dtypes.float16, "2x4")], ids=str
)
def test_both_sides_are_read_along_the_sum_where_they_lie_so(dtype: DType, expected: str) -> None:
    """By tiles of four rows at most, and of fewer sums where a pixel has more numbers."""
    found = strategies(empty(4, 64, dtype=dtype) @ empty(32768, 64, dtype=dtype).T)

    assert found[0] == f"grid along sum {expected}"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: empty(4, 64) @ empty(64, 32768), id="columns lie side by side"),
        pytest.param(lambda: empty(4, 62) @ empty(32768, 62).T, id="no whole pixels"),
        pytest.param(lambda: empty(4, 64) @ empty(64, 8), id="few columns"),
    ],
)
def test_others_are_not(make: Callable[[], Tensor]) -> None:
    assert not [name for name in strategies(make()) if "along sum" in name]


def convolution(dtype: DType = dtypes.float16, channels: int = 32) -> Tensor:
    """Windows of 3 x 3 over a padded image."""
    image = empty(4, channels, 9, 9, dtype=dtype)
    return image.conv2d(empty(32, channels, 3, 3, dtype=dtype), padding=1)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32], ids=str)
def test_textures_read_weights_along_their_filters(dtype: DType) -> None:
    items = items_of(convolution(dtype, channels=6))
    (stored,) = [n for n in items[0].ast.toposort() if n.op is Op.STORE]
    loops = {r.arg.number: r for r in stored.ranges}
    innermost = loops[max(loops)]

    assert copies(convolution(dtype, channels=6)) == [32 * 6 * 9]
    assert innermost.src[0].arg == 32
    assert coefficient(stored.src[0].src[1], innermost) == 1


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda: empty(64, 8) @ empty(8, 64), [], id="columns lie side by side"),
        pytest.param(lambda: empty(8, 64).T @ empty(64, 8).T, [], id="rows lie side by side"),
        pytest.param(lambda: empty(64, 8) @ empty(128, 8).T, [64 * 8], id="both along the sum"),
        pytest.param(lambda: empty(64, 8) @ empty(64, 8).T, [64 * 8], id="of one size"),
        pytest.param(lambda: empty(32, 8) @ empty(32, 8).T, [], id="few reads"),
        pytest.param(lambda: empty(6, 8) @ empty(6, 8).T, [], id="no whole pixels"),
        pytest.param(
            lambda: empty(2, 64, 8) @ empty(2, 64, 8).transpose(1, 2), [2 * 64 * 8], id="batch"
        ),
    ],
)
def test_textures_read_one_operand_along_a_side(
    make: Callable[[], Tensor], expected: list[int]
) -> None:
    assert copies(make()) == expected


def test_of_operands_of_a_size_the_one_that_results_lie_along_is_copied() -> None:
    copy, product = items_of(empty(64, 8) @ empty(64, 8).T)
    (read,) = [b for b in product.bufs[1:] if b is copy.bufs[0]]
    loads = [n for n in product.ast.toposort() if n.op is Op.LOAD]
    (place,) = [n.src[0].src[1] for n in loads if product.bufs[n.src[0].src[0].arg] is read]
    (stored,) = [n.src[0].src[1] for n in product.ast.toposort() if n.op is Op.STORE]
    (column,) = [r for r in stored.ranges if coefficient(stored, r) == 1]

    assert coefficient(place, column) == 1
