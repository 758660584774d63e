"""Copies of operands along a summed axis, for matrix units: which are made, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest
import torch

from tests.unit.lower.matrices import MMA
from tests.unit.lower.test_units import UNIT
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes
from tinycore.plugin import deferred
from tinycore.render.base import Limits
from tinycore.schedule.limits import cut_for
from tinycore.uop.affine import coefficient
from tinycore.uop.matrix import OperandLoad
from tinycore.uop.op import Op

CARD = replace(UNIT, matrix=(MMA,))
OWN = deferred("own:fills")
"""Fills by a device, which layouts ask for and do not call."""


def empty(*shape: int, dtype: DType = dtypes.float16) -> Tensor:
    """Memory of halves."""
    return Tensor.empty(*shape, dtype=dtype, device="PYTHON").realize()


def copies(result: Tensor, limits: Limits = CARD) -> list[int]:
    """Numbers of elements of the kernels of a result that only copy, for a card."""
    return [size for size, folds in kernels(result, limits) if not folds]


def kernels(result: Tensor, limits: Limits = CARD) -> list[tuple[int, bool]]:
    """By kernel the number of elements that it stores, and whether it folds anything."""
    with cut_for(limits):
        items = result.schedule()
    return [
        (item.bufs[0].size, any(n.op is Op.REDUCE for n in item.ast.toposort())) for item in items
    ]


def convolution(dtype: DType = dtypes.float16, channels: int = 32) -> Tensor:
    """Windows of 3 x 3 over a padded image."""
    image = empty(4, channels, 9, 9, dtype=dtype)
    return image.conv2d(empty(32, channels, 3, 3, dtype=dtype), padding=1)


def test_operands_that_are_narrowed_are_copied_in_the_narrow_type() -> None:
    image, weight = (empty(*size, dtype=dtypes.float32) for size in ((4, 32, 9, 9), (32, 32, 3, 3)))
    halves = (x.cast(dtypes.float16) for x in (image, weight))
    with cut_for(CARD):
        items = next(halves).conv2d(next(halves), padding=1).schedule()

    assert [item.bufs[0].size for item in items[:2]] == [4 * 32 * 11 * 11, 32 * 32 * 9]
    assert {item.bufs[0].dtype for item in items} == {dtypes.float16}


def test_images_and_weights_are_copied_along_channels() -> None:
    with cut_for(CARD):
        items = convolution().schedule()
    image, weight, _ = items
    (stored,) = [n for n in image.ast.toposort() if n.op is Op.STORE]
    loops = {r.arg.number: r for r in stored.ranges}
    innermost = loops[max(loops)]

    assert copies(convolution()) == [4 * 32 * 11 * 11, 32 * 32 * 9]
    assert [item.bufs[0].size for item in (image, weight)] == copies(convolution())
    assert innermost.src[0].arg == 32
    assert coefficient(stored.src[0].src[1], innermost) == 1


@pytest.mark.parametrize(
    ("make", "limits"),
    [
        pytest.param(lambda: convolution(dtypes.float32), CARD, id="no unit for the type"),
        pytest.param(convolution, replace(CARD, matrix=()), id="no units of matrices"),
        pytest.param(lambda: convolution(channels=6), CARD, id="few channels"),
    ],
)
def test_others_are_left_as_they_lie(make: Callable[[], Tensor], limits: Limits) -> None:
    assert not copies(make(), limits)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(replace(CARD, units=0), id="no card"),
        pytest.param(replace(CARD, matrix=(), shared_bytes=0), id="nothing shared"),
        pytest.param(replace(CARD, matrix=(), shared_is_near=False), id="shared in buffers' cache"),
    ],
)
def test_image_is_padded_in_memory_where_no_group_reads_it_once(limits: Limits) -> None:
    assert copies(convolution(), limits) == [4 * 32 * 11 * 11]


def test_what_is_padded_is_computed_once() -> None:
    image, weight = (empty(*s, dtype=dtypes.float32) for s in ((4, 32, 9, 9), (32, 32, 3, 3)))
    found = image.exp().conv2d(weight, padding=1)

    assert copies(found) == [4 * 32 * 9 * 9]


@pytest.mark.parametrize("turned", [False, True])
def test_operands_in_vectors_are_not_copied(turned: bool) -> None:
    left, right = empty(64, 64), empty(64, 64)
    assert not copies(left @ (right.T if turned else right))
    assert not copies(empty(4, 32, 8, 8).conv2d(empty(64, 32, 1, 1)))


class Described(OperandLoad):
    """Operands that a unit reads by itself."""

    is_described = True


ALONG_SUM = replace(MMA, load=Described("rows", 128))
"""A unit that reads operands in shared memory by itself, in rows along the sum alone."""


@pytest.mark.parametrize(
    ("limits", "reads", "expected"),
    [
        pytest.param(replace(CARD, matrix=(ALONG_SUM,)), 512, [64 * 64], id="along the sum"),
        pytest.param(replace(CARD, matrix=(ALONG_SUM,)), 256, [], id="few reads"),
        pytest.param(CARD, 512, [], id="in any order"),
    ],
)
def test_what_a_unit_reads_along_the_sum_alone_is_copied_so(
    limits: Limits, reads: int, expected: list[int]
) -> None:
    assert copies(empty(reads, 64) @ empty(64, 64), limits) == expected
    assert not copies(empty(reads, 64) @ empty(64, 64).T, limits)


def test_what_a_unit_rounds_is_copied_where_boxes_are() -> None:
    unit = replace(ALONG_SUM, a=dtypes.float32, b=dtypes.float32, rounds=True)
    card = replace(CARD, matrix=(unit,))
    product = empty(512, 64, dtype=dtypes.float32) @ empty(64, 64, dtype=dtypes.float32)

    assert not copies(product, replace(card, fills=OWN))
    with Context(ALLOW_TF32=1):
        assert not copies(product, card)
        assert copies(product, replace(card, fills=OWN)) == [64 * 64]


def test_what_is_read_seldom_is_not_copied() -> None:
    few = empty(1, 32, 9, 9).conv2d(empty(2, 32, 3, 3), padding=1)
    assert not copies(few)


def gradient(dtype: DType) -> Tensor:
    """The gradient of the images of a convolution."""
    image, weight = (empty(*s, dtype=dtype) for s in ((16, 32, 8, 8), (32, 32, 3, 3)))
    leaves = [x.requires_grad_(True) for x in (image, weight)]
    slope = empty(16, 32, 8, 8, dtype=dtype)
    (leaves[0].conv2d(leaves[1], padding=1) * slope).sum().backward()
    assert leaves[0].grad is not None
    return leaves[0].grad


def test_weights_of_a_small_batch_have_gradients_of_operands_along_their_channels() -> None:
    image, weight = (empty(*s).requires_grad_(True) for s in ((6, 32, 8, 8), (32, 32, 3, 3)))
    (image.conv2d(weight, padding=1) * empty(6, 32, 8, 8)).sum().backward()
    assert weight.grad is not None
    with cut_for(CARD):
        slope, padded, *_ = weight.grad.schedule()

    for item in (slope, padded):
        (stored,) = [n for n in item.ast.toposort() if n.op is Op.STORE]
        moved = [r for r in stored.ranges if coefficient(stored.src[0].src[1], r) == 1]
        assert [r.src[0].arg for r in moved] == [32]
    assert [slope.bufs[0].size, padded.bufs[0].size] == [6 * 32 * 8 * 8, 6 * 32 * 10 * 10]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
def test_no_gradient_is_stored_for_each_place_of_a_window(dtype: DType) -> None:
    assert max(size for size, _ in kernels(gradient(dtype), Limits())) <= 16 * 32 * 12 * 12


def test_gradients_of_halves_are_rounded_once() -> None:
    generator = numpy.random.default_rng(0)
    image = generator.standard_normal((2, 16, 6, 6), "f")
    weight = generator.standard_normal((16, 16, 3, 3), "f")
    x, w = (Tensor(a, device="PYTHON").cast(dtypes.bfloat16).realize() for a in (image, weight))
    leaf = x.requires_grad_(True)
    leaf.conv2d(w, padding=1).sum().backward()
    assert leaf.grad is not None
    found = leaf.grad.cast(dtypes.float32).numpy()

    exact = torch.tensor(x.cast(dtypes.float32).numpy()).double().requires_grad_(True)
    kernel = torch.tensor(w.cast(dtypes.float32).numpy()).double()
    summed = torch.nn.functional.conv2d(exact, kernel, padding=1).sum()
    (expected,) = torch.autograd.grad(summed, exact)
    error = numpy.abs(found - expected.numpy())
    assert (error <= 2.0**-8 * numpy.abs(expected.numpy()) + 1e-5).all()


LANES = replace(CARD, matrix=(), shuffles=())
"""A card without matrix units, whose lanes exchange nothing."""


def floats(*shape: int) -> Tensor:
    """Memory of floats."""
    return empty(*shape, dtype=dtypes.float32)


def stored_sizes(result: Tensor, limits: Limits) -> list[int]:
    """Elements of what each kernel of a result stores."""
    return [size for size, _ in kernels(result, limits)]


def weighed(columns: int) -> Tensor:
    """exp of scores less a number of each row, times values."""
    scores, values, most = floats(128, 128), floats(128, columns), floats(128, 1)
    return (scores - most).exp() @ values


@pytest.mark.parametrize(
    ("limits", "columns", "is_stored"),
    [
        pytest.param(LANES, 64, False, id="a tile has all columns"),
        pytest.param(replace(LANES, units=0), 64, True, id="nothing is known of its units"),
        pytest.param(LANES, 1024, True, id="many tiles would compute them"),
        pytest.param(LANES, 8, True, id="few products"),
    ],
)
def test_what_rows_are_computed_from_is_computed_where_tiles_stage_it(
    limits: Limits, columns: int, is_stored: bool
) -> None:
    stored = stored_sizes(weighed(columns), limits)

    assert (stored[0] == 128 * 128 and len(stored) > 1) == is_stored


def test_an_operand_of_more_memory_than_it_has_is_stored() -> None:
    scores = [floats(128, 128) for _ in range(7)]
    result = sum(scores[1:], scores[0]).exp() @ floats(128, 256)

    assert stored_sizes(result, LANES)[0] == 128 * 128


def test_a_sum_of_few_rows_is_taken_in_parts_where_lanes_cannot_share_it() -> None:
    """As values of heads that share them, weighed for one query."""
    rows, columns = floats(4, 4096), floats(4096, 128)
    card = replace(LANES, units=6, l2_rate=28.0)

    parts = stored_sizes(rows @ columns, card)

    assert len(parts) == 2
    assert parts[0] > parts[1] == 4 * 128
    assert len(stored_sizes(rows @ columns, replace(card, shuffles=(dtypes.float32,)))) == 1
