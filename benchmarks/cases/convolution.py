"""Convolutions, alone and in a residual block."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.case import FLOAT_BYTES, TENSOR, Case, Input

__all__ = ["CASES"]


def _conv_jax(jax: Any, x: Any, w: Any, padding: int, *, stride: int = 1, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride,) * 2, [(padding,) * 2] * 2, feature_group_count=groups
    )


def _conv(
    name: str, batch: int, channels: int, outputs: int, side: int, kernel: int,
    *, stride: int = 1, groups: int = 1,
) -> Case:  # fmt: skip
    padding = kernel // 2
    out = (side + 2 * padding - kernel) // stride + 1
    weight = (outputs, channels // groups, kernel, kernel)

    def tiny(_: Any, x: Any, w: Any) -> Any:
        return x.conv2d(w, stride=stride, padding=padding, groups=groups)

    def torch(torch: Any, x: Any, w: Any) -> Any:
        return torch.conv2d(x, w, stride=stride, padding=padding, groups=groups)

    def jax(jax: Any, x: Any, w: Any) -> Any:
        return _conv_jax(jax, x, w, padding, stride=stride, groups=groups)

    pixels = batch * outputs * out * out
    return Case(
        name,
        {TENSOR: tiny, "torch": torch, "jax": jax},
        (Input((batch, channels, side, side)), Input(weight)),
        flops=2.0 * pixels * weight[1] * kernel * kernel,
        read_bytes=batch * channels * side * side * FLOAT_BYTES,
        written_bytes=pixels * FLOAT_BYTES,
    )


_CHANNELS, _SIDE = 64, 56


def _block_tiny(_: Any, x: Any, *w: Any) -> Any:
    first = x.conv2d(w[0], padding=1).mul(w[1]).add(w[2]).relu()
    return first.conv2d(w[3], padding=1).mul(w[4]).add(w[5]).add(x).relu()


def _block_torch(torch: Any, x: Any, *w: Any) -> Any:
    first = torch.conv2d(x, w[0], padding=1).mul(w[1]).add(w[2]).relu()
    return torch.conv2d(first, w[3], padding=1).mul(w[4]).add(w[5]).add(x).relu()


def _block_jax(jax: Any, x: Any, *w: Any) -> Any:
    first = jax.nn.relu(_conv_jax(jax, x, w[0], 1) * w[1] + w[2])
    return jax.nn.relu(_conv_jax(jax, first, w[3], 1) * w[4] + w[5] + x)


def _block() -> Case:
    weight = Input((_CHANNELS, _CHANNELS, 3, 3), scale=0.1)
    scale = Input((1, _CHANNELS, 1, 1))
    return Case(
        "residual block 1x64x56x56",
        {TENSOR: _block_tiny, "torch": _block_torch, "jax": _block_jax},
        (Input((1, _CHANNELS, _SIDE, _SIDE)), *(weight, scale, scale) * 2),
        flops=2 * 2.0 * _CHANNELS * _SIDE * _SIDE * _CHANNELS * 9,
    )


def _gradient(batch: int, channels: int, side: int) -> Case:
    """Windows of 3 by 3, then the gradient of a weighted sum for the images and the weights."""

    def tiny(_: Any, x: Any, w: Any, over: Any) -> Any:
        of_images, of_weight = (x.conv2d(w, padding=1) * over).sum().gradient(x, w)
        return of_images.flatten().cat(of_weight.flatten())

    def torch(torch: Any, x: Any, w: Any, over: Any) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
            slopes = torch.autograd.grad(torch.conv2d(*leaves, padding=1), leaves, over)
            return torch.cat([slope.flatten() for slope in slopes])

    def jax(jax: Any, x: Any, w: Any, over: Any) -> Any:
        def total(x: Any, w: Any) -> Any:
            return (_conv_jax(jax, x, w, 1) * over).sum()

        return jax.numpy.concatenate([each.ravel() for each in jax.grad(total, (0, 1))(x, w)])

    images = Input((batch, channels, side, side))
    return Case(
        f"conv {batch}x{channels}x{side}x{side} 3x3, its gradient",
        {TENSOR: tiny, "torch": torch, "jax": jax},
        (images, Input((channels, channels, 3, 3)), images),
        flops=2 * 2.0 * batch * channels * side * side * channels * 9,
    )


def _transposed(batch: int, channels: int, outputs: int, side: int, kernel: int) -> Case:
    """Windows side by side: as well the gradient of a convolution's images, as of patches."""

    def tiny(_: Any, x: Any, w: Any) -> Any:
        return x.conv_transpose2d(w, stride=kernel)

    def torch(torch: Any, x: Any, w: Any) -> Any:
        return torch.conv_transpose2d(x, w, stride=kernel)

    def jax(jax: Any, x: Any, w: Any) -> Any:
        placed = jax.numpy.einsum("ncyx,cohw->noyhxw", x, w)
        return placed.reshape(batch, outputs, side * kernel, side * kernel)

    pixels = batch * outputs * (side * kernel) ** 2
    return Case(
        f"conv {batch}x{channels}x{side}x{side} {kernel}x{kernel} transposed",
        {TENSOR: tiny, "torch": torch, "jax": jax},
        (Input((batch, channels, side, side)), Input((channels, outputs, kernel, kernel))),
        flops=2.0 * pixels * channels,
        read_bytes=batch * channels * side * side * FLOAT_BYTES,
        written_bytes=pixels * FLOAT_BYTES,
    )


CASES: Final = (
    _conv("conv 8x64x56x56 3x3", 8, 64, 64, 56, 3),
    _conv("conv 8x64x56x56 3x3 stride 2", 8, 64, 64, 56, 3, stride=2),
    _conv("conv 8x64x56x56 1x1 to 256", 8, 64, 256, 56, 1),
    _conv("conv 8x64x56x56 3x3 depthwise", 8, 64, 64, 56, 3, groups=64),
    _gradient(8, _CHANNELS, _SIDE - 1),
    _transposed(8, 96, 64, 14, 4),
    _block(),
)
