"""Faults of images: how rows lie, which coordinate is which, what is outside."""

from __future__ import annotations

from collections.abc import Sequence

from tiny_testing.accelerator.device import Memory, Rewriter, Span
from tiny_testing.accelerator.faults.fault import found_by
from tinycore.dtype import ImageDType
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


@found_by("test_images_keep_their_pixels[float32]")
class PackedRows(Memory):
    """An image is read as if its rows had nothing between them."""

    def read(self, dst: memoryview, src: Span) -> None:
        """The first bytes, whatever they are."""
        if not src.block.is_image:
            super().read(dst, src)
            return
        self.queue.wait(self.queue.asked)
        dst[:] = src.block.memory.memory[: dst.nbytes].data


@found_by("test_pixels_are_read_by_column_and_row[float32]")
class TurnedImages(Rewriter):
    """Rows are taken for columns where an image is read."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The coordinates exchanged."""
        if node.op is not Op.LOAD or node.src[0].op is not Op.PIXEL:
            return (node,)
        pixel = node.src[0]
        image, column, row = pixel.src
        turned = pixel.with_src((image, row, column))
        return (turned, node.with_src((turned,)))


@found_by("test_a_pixel_outside_of_an_image_is_zero[float32]")
class ClampedToTheEdge(Rewriter):
    """Outside of an image the nearest pixel is read, as another kind of sampler does."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """Constant coordinates moved inside."""
        if node.op is not Op.PIXEL:
            return (node,)
        image, column, row = node.src[:3]
        kind = image.dtype
        if not isinstance(kind, ImageDType) or {column.op, row.op} != {Op.CONST}:
            return (node,)
        inside = (
            UOp.index(min(max(column.arg, 0), kind.width - 1)),
            UOp.index(min(max(row.arg, 0), kind.height - 1)),
        )
        return (*inside, node.with_src((image, *inside, *node.src[3:])))


@found_by("test_pixels_are_written_by_column_and_row[float32]")
class FirstRowOnly(Rewriter):
    """Whatever the row, the first one is written."""

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The row of a store lost."""
        if node.op is not Op.STORE or node.src[0].op is not Op.PIXEL:
            return (node,)
        image, column, _, *gate = node.src[0].src
        first = UOp.index(0)
        moved = node.src[0].with_src((image, column, first, *gate))
        return (first, moved, node.with_src((moved, node.src[1])))
