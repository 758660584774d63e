"""Convolutional layers.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinycore import Tensor
from tinycore.errors import ArgumentError
from tinycore.nn.initializers import inverse_root_uniform, positive_sizes, verify_input

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]


class Conv2d:
    """Convolution with learned filters: x (N, C, H, W) -> (N, O, H', W').

    H' = (H + 2*padding - dilation*(kernel_size - 1) - 1) // stride + 1. With `padding="same"` H' is
    H; an odd pixel goes to the end. `kernel_size` of other than two axes convolves as many. Weight
    (O, C/groups, *kernel_size) and bias (O,) start uniform within 1/sqrt(C/groups * kernel).

    Raises ArgumentError when `groups` does not divide the channels, "same" meets a stride, or a
    size is not positive.

    >>> nn.Conv2d(3, 8, 3, stride=2)(Tensor.zeros(2, 3, 9, 9)).shape
    (2, 8, 4, 4)
    >>> nn.Conv2d(3, 8, (3, 5), padding="same")(Tensor.zeros(2, 3, 9, 9)).shape
    (2, 8, 9, 9)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        _check_groups(in_channels, out_channels, groups)
        self.kernel_size = _per_axis(kernel_size, 2)
        _check_steps("kernel_size", self.kernel_size)
        _check_steps("stride", _per_axis(stride, 1))
        _check_steps("dilation", _per_axis(dilation, 1))
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = self._padding(padding)
        fan_in = in_channels // groups * math.prod(self.kernel_size)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = inverse_root_uniform(shape, fan_in)
        self.bias = inverse_root_uniform((out_channels,), fan_in) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Raises ShapeError when `x` has other channels, or is smaller than the window."""
        verify_input(self, x)
        return x.conv2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding
        )

    def _padding(self, padding: int | Sequence[int] | str) -> int | tuple[int, ...]:
        """Padding as `Tensor.conv2d` takes it: per axis, or before and after from the last axis."""
        if not isinstance(padding, str):
            return padding if isinstance(padding, int) else tuple(padding)
        if padding != "same":
            raise ArgumentError(f"padding is a number, a tuple or 'same', not {padding!r}")
        if any(step != 1 for step in _per_axis(self.stride, 1)):
            raise ArgumentError(f"padding='same' needs a stride of 1, not {self.stride}")
        dilations = _per_axis(self.dilation, len(self.kernel_size))
        totals = [d * (k - 1) for d, k in zip(dilations, self.kernel_size, strict=True)]
        return tuple(n for total in totals[::-1] for n in (total // 2, total - total // 2))


class ConvTranspose2d(Conv2d):
    """Transposed convolution, each pixel becomes a window: x (N, C, H, W) -> (N, O, H', W').

    H' = (H - 1)*stride - 2*padding + dilation*(kernel_size - 1) + output_padding + 1.
    Weight (C, O/groups, *kernel_size) and bias (O,) start uniform within 1/sqrt(O/groups * kernel).

    Raises ArgumentError when `groups` does not divide the channels, a size is not positive, or
    padding is no number: "same" has no meaning here.

    >>> nn.ConvTranspose2d(8, 3, 2, stride=2)(Tensor.zeros(2, 8, 4, 4)).shape
    (2, 3, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        # the same filters seen from the other side: channels trade places, the bias stays with O
        super().__init__(
            out_channels, in_channels, kernel_size, stride, padding, dilation, groups, bias=False
        )
        self.output_padding = output_padding
        fan_in = out_channels // groups * math.prod(self.kernel_size)
        self.bias = inverse_root_uniform((out_channels,), fan_in) if bias else None

    def _padding(self, padding: int | Sequence[int] | str) -> int | tuple[int, ...]:
        """Padding as `Tensor.conv_transpose2d` takes it."""
        if isinstance(padding, str):
            raise ArgumentError(f"a transposed convolution is padded by numbers, not {padding!r}")
        return super()._padding(padding)

    def __call__(self, x: Tensor) -> Tensor:
        """Raises ShapeError when `x` has other channels."""
        verify_input(self, x)
        return x.conv_transpose2d(
            self.weight,
            self.bias,
            self.groups,
            self.stride,
            self.dilation,
            self.padding,
            self.output_padding,
        )


def Conv1d(  # noqa: N802  the name that other frameworks' users know
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> Conv2d:
    """Convolution over one axis: x (N, C, L) -> (N, O, L'). See `Conv2d`.

    >>> nn.Conv1d(4, 8, 3, padding=1)(Tensor.zeros(2, 4, 10)).shape
    (2, 8, 10)
    """
    window = (kernel_size,)
    return Conv2d(in_channels, out_channels, window, stride, padding, dilation, groups, bias)


def ConvTranspose1d(  # noqa: N802
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> ConvTranspose2d:
    """Transposed convolution over one axis: x (N, C, L) -> (N, O, L'). See `ConvTranspose2d`.

    >>> nn.ConvTranspose1d(4, 8, 2, stride=2)(Tensor.zeros(2, 4, 5)).shape
    (2, 8, 10)
    """
    window = (kernel_size,)
    return ConvTranspose2d(
        in_channels, out_channels, window, stride, padding, output_padding, dilation, groups, bias
    )


def _check_groups(in_channels: int, out_channels: int, groups: int) -> None:
    positive_sizes("convolution", in_channels=in_channels, out_channels=out_channels)
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ArgumentError(
            f"{groups} groups do not divide {in_channels} and {out_channels} channels"
        )


def _check_steps(name: str, values: tuple[int, ...]) -> None:
    if any(value < 1 for value in values):
        raise ArgumentError(f"convolution: {name} must be positive, got {values}")


def _per_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * axes
