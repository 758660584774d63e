"""Geometry of sliding windows: kernel, strides, dilations, padding of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_onnx.call import Call

__all__ = ["Windows", "windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last axes of a tensor; all tuples have one entry for each of these."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def is_even(self) -> bool:
        """True if each axis is padded alike at both ends."""
        return all(before == after and before >= 0 for before, after in self.pads)

    def spans(self) -> list[int]:
        """Elements from the first to the last that a window covers."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def counts(self, sides: Sequence[int], is_ceil: bool) -> list[int]:
        """Windows along each axis. By `is_ceil` also one that begins inside and ends beyond."""
        result = []
        axes = zip(sides, self.spans(), self.strides, self.pads, strict=True)
        for side, span, stride, (before, after) in axes:
            room = side + before + after - span
            count = (-(-room // stride) if is_ceil else room // stride) + 1
            if is_ceil and (count - 1) * stride >= side + before:
                count -= 1
            result.append(count)
        return result

    def extension(self, sides: Sequence[int], is_ceil: bool) -> list[tuple[int, int]]:
        """Elements to add after padding so that exactly `counts` windows fit."""
        result = []
        axes = zip(
            sides, self.counts(sides, is_ceil), self.spans(), self.strides, self.pads, strict=True
        )
        for side, count, span, stride, (before, after) in axes:
            result.append((0, max(0, (count - 1) * stride + span - side - before - after)))
        return result


def windows(call: Call, kernel: Sequence[int], sides: Sequence[int]) -> Windows:
    """The windows that a node's attributes describe, over axes of the given lengths."""
    rank = len(sides)
    kernel = tuple(int(each) for each in call.get("kernel_shape", kernel))
    strides = tuple(call.get("strides", [1] * rank))
    dilations = tuple(call.get("dilations", [1] * rank))
    if not len(kernel) == len(strides) == len(dilations) == rank:
        raise ValueError(f"kernel {kernel} and strides {strides} do not fit {rank} axes")
    plain = Windows(kernel, strides, dilations, ((0, 0),) * rank)
    mode = call.get("auto_pad", "NOTSET") or "NOTSET"
    if mode == "VALID":
        return plain
    if mode == "NOTSET":
        flat = call.get("pads", [0] * (2 * rank))
        pads = tuple((flat[axis], flat[axis + rank]) for axis in range(rank))
        return Windows(kernel, strides, dilations, pads)
    pads = tuple(
        _same(side, span, stride, mode == "SAME_LOWER")
        for side, span, stride in zip(sides, plain.spans(), strides, strict=True)
    )
    return Windows(kernel, strides, dilations, pads)


def _same(side: int, span: int, stride: int, more_before: bool) -> tuple[int, int]:
    """Padding by which an axis has one window for each `stride` elements."""
    lacking = max(0, (-(-side // stride) - 1) * stride + span - side)
    less = lacking // 2
    return (lacking - less, less) if more_before else (less, lacking - less)
