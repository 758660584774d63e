"""What devices with image memory or video decoders do in their own way; here, the same results.

Floor 5. An image is a layout of memory (`dtypes.imagef`, `dtypes.imageh`) that no device here has
yet, so operations named for it compute as their plain relatives do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Self

from tinycore.dtype import DTypeLike
from tinycore.errors import UnsupportedError
from tinycore.tensor.custom import Custom

Ints = int | Sequence[int]


class Images(Custom):
    """Operations by their names on devices with images."""

    __slots__ = ()

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
        """`conv2d`, which a device with image memory would compute on pixels of four channels."""
        return self.conv2d(weight, bias, groups, stride, dilation, padding, dtype)

    def image_dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """`dot`, which a device with image memory would compute on pixels of four channels."""
        return self.dot(w, dtype)

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
