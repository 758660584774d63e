"""Products with operands in images (texture memory).

Floor 5. An image (`dtypes.imagef`, `dtypes.imageh`) is memory that graphics cards read through
their texture units, four floats at a time; see `pixels.py`.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

from tinycore.config import Context
from tinycore.dtype import DTypeLike, ImageDType
from tinycore.errors import UnsupportedError
from tinycore.tensor.checks import Ints
from tinycore.tensor.methods.custom import Custom
from tinycore.tensor.methods.pixels import image_of, in_image


class Images(Custom):
    """Operations on devices with images."""

    __slots__ = ()

    @property
    def image(self) -> ImageDType | None:
        """The requested image of the tensor, None for plain memory.

        A device without images, or with smaller ones, has it in plain memory all the same.

        >>> x = Tensor.ones(2, 8).cast(dtypes.imagef((2, 2)))
        >>> x.image, x.dtype, (x + 1).image
        (dtypes.imagef((2, 2)), dtypes.float32, None)
        """
        return image_of(self.uop)

    def image_conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Ints = 1,
        dilation: Ints = 1,
        padding: Ints = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """`conv2d` with input and weight in images; the setting IMAGE=1 asks it where it can pay.

        >>> x = Tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
        >>> x.image_conv2d(Tensor([[[[1.0, 1.0], [0.0, -1.0]]]])).tolist()
        [[[[-2.0, -1.0]]]]
        """
        kept, weight = in_image(self), in_image(weight)
        with Context(IMAGE=0):  # they are where they shall be
            return kept.conv2d(weight, bias, groups, stride, dilation, padding, dtype)

    def image_dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """`dot` with both operands in images; the setting IMAGE=1 asks it where it can pay.

        >>> Tensor([[1.0, 2.0]]).image_dot(Tensor([[3.0], [4.0]])).tolist()
        [[11.0]]
        """
        kept, w = in_image(self), in_image(w)
        with Context(IMAGE=0):  # they are where they shall be
            return kept.dot(w, dtype)

    def decode_hevc_frame(
        self,
        frame_pos: Any,
        shape: tuple[int, ...],
        state: Self,
        ref_frames: list[Self] | None = None,
    ) -> NoReturn:
        """Nothing: raises UnsupportedError, as no device here has a decoder for video."""
        raise UnsupportedError(
            f"decode_hevc_frame: {self.device} has no video decoder, and no backend offers one. "
            "Decode with a library such as PyAV, and pass the frames: Tensor(frame), or "
            "Tensor.from_dlpack(frame) without a copy"
        )
