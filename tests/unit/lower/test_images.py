"""Places in images become columns, rows and channels."""

from __future__ import annotations

import pytest

from tiny_testing.kernels import element
from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError
from tinycore.lower.dtypes import lower_dtypes
from tinycore.lower.image_access import PIXEL, lower_images
from tinycore.lower.lanes import vector_of
from tinycore.render.base import Limits, Renderer
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite

RENDERER = Renderer(Limits(image=(100, 100)))
KIND = dtypes.imagef((5, 7))
IMAGE = UOp(Op.DEFINE_GLOBAL, KIND, (), 0)
F32 = dtypes.float32
I = UOp.range(35, 0)  # noqa: E741


def load(place: UOp, lanes: int = 1, *gate: UOp) -> UOp:
    index = UOp(Op.INDEX, KIND, (IMAGE, place, *gate))
    other = [UOp(Op.VECTORIZE, F32.vec(lanes), (UOp.const(F32, 9.0),) * lanes)] if gate else []
    return UOp(Op.LOAD, F32.vec(lanes), (index, *other))


def store(place: UOp, lanes: int) -> UOp:
    value = vector_of(UOp.const(F32, float(lane)) for lane in range(lanes))
    index = UOp(Op.INDEX, KIND, (IMAGE, place))
    return UOp(Op.STORE, dtypes.void, (index, value))


def lowered(node: UOp) -> UOp:
    return lower_images(node, RENDERER)


def pixel(column: UOp, row: UOp) -> UOp:
    return UOp(Op.LOAD, PIXEL, (UOp(Op.PIXEL, KIND, (IMAGE, column, row)),))


def test_four_elements_from_a_multiple_of_four_are_a_pixel() -> None:
    row, column = UOp.range(5, 0), UOp.range(7, 1)

    assert lowered(load(row * 28 + column * 4, 4)) is pixel(column, row)


def test_an_element_at_a_known_channel_is_picked_from_its_pixel() -> None:
    column = UOp.range(7, 1)

    found = lowered(load(column * 4 + 2))

    assert (found.op, found.arg, found.src) == (Op.EXTRACT, (2,), (pixel(column, UOp.index(0)),))


def test_neighbors_in_two_pixels_are_picked_from_both() -> None:
    found = lowered(load(UOp.index(6), 4))

    zero = UOp.index(0)
    assert (found.op, found.arg) == (Op.EXTRACT, (2, 3, 4, 5))
    assert found.src == (pixel(UOp.index(1), zero), pixel(UOp.index(2), zero))


def test_an_element_at_any_channel_reads_one_pixel() -> None:
    found = lowered(load(UOp.range(140, 0)))

    loads = [n for n in found.toposort() if n.op is Op.LOAD]
    assert (found.op, len(loads)) == (Op.WHERE, 1)


def test_a_gated_load_reads_outside_and_chooses() -> None:
    found = lowered(load(I * 4, 4, I < 3))

    assert found.op is Op.WHERE
    assert len(found.src[1].src[0].src) == 3


def test_a_pixel_is_stored_whole() -> None:
    found = lowered(store(I * 4, 4))

    assert (found.op, found.src[0].op) == (Op.STORE, Op.PIXEL)
    assert found.src[0].src[1:] == (I % 7, I // 7)


def test_two_pixels_are_stored_one_by_one() -> None:
    found = lowered(store(UOp.range(17, 0) * 8, 8))

    stored = [[lane.arg for lane in s.src[1].src] for s in found.src]
    assert stored == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(("place", "lanes"), [(I, 1), (I * 4, 2), (I * 2, 4), (I * 4 + 1, 4)])
def test_parts_of_pixels_are_not_stored(place: UOp, lanes: int) -> None:
    with pytest.raises(UnsupportedError, match=r"by whole pixels, not .* x\.cast"):
        lowered(store(place, lanes))


def test_a_renderer_without_images_says_so() -> None:
    with pytest.raises(UnsupportedError, match=r"has no images, .* leave out \.cast"):
        lower_images(load(I * 4, 4), Renderer())


class WithoutHalf(Renderer):
    emulated = frozenset({dtypes.float16})


def test_what_is_stored_in_halves_was_rounded_to_one() -> None:
    """Drivers round a float32 in a way of their own."""
    kind = dtypes.imageh((1, 1))
    image = UOp(Op.DEFINE_GLOBAL, kind, (), 0)
    wide = UOp(Op.LOAD, PIXEL, (element(1, F32, 4, UOp.index(0)),))
    half = (wide * 3.0).cast(dtypes.float16.vec(4))
    renderer = WithoutHalf(Limits(image=(100, 100)))
    kernel = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, kind, (image, UOp.index(0))), half + half))

    found = rewrite(lower_images(kernel, renderer), lower_dtypes(renderer))

    assert found.src[1].dtype is PIXEL
    assert any(n.dtype.scalar() is dtypes.uint16 for n in found.src[1].toposort())
    assert not any(n.dtype.scalar() is dtypes.float16 for n in found.src[1].toposort())
