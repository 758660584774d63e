"""Spectra: DFT, STFT, windows, mel filters.

A spectrum is a product with the matrix of the transform's roots of unity; an even length is split
into halves first (Cooley and Tukey, 1965) as long as that saves work.
"""

from __future__ import annotations

import math

import numpy

from tiny_onnx.call import Call
from tiny_onnx.element_types import named
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, as_tensor
from tinycore import Tensor

SHORTEST_SPLIT = 256
"""Lengths above which a transform is split into those of the even and of the odd elements."""


def rotated(
    re: Tensor, im: Tensor, cosine: numpy.ndarray, sine: numpy.ndarray
) -> tuple[Tensor, Tensor]:
    """Complex numbers multiplied by cosine + i * sine."""
    c, s = (
        Tensor(each.astype(numpy.float32), device=re.device).cast(re.dtype)
        for each in (cosine, sine)
    )
    return re * c - im * s, re * s + im * c


def transformed(re: Tensor, im: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """The discrete Fourier transform of the last axis, with exponents of a sign, not scaled."""
    length = int(re.shape[-1])
    if length % 2 == 0 and length > SHORTEST_SPLIT:
        pair = (*re.shape[:-1], length // 2, 2)
        halves = [
            transformed(re.reshape(*pair)[..., part], im.reshape(*pair)[..., part], sign)
            for part in (0, 1)
        ]
        angle = sign * 2 * math.pi * numpy.arange(length // 2) / length
        (a, b), (c, d) = halves[0], rotated(*halves[1], numpy.cos(angle), numpy.sin(angle))
        return (a + c).cat(a - c, dim=-1), (b + d).cat(b - d, dim=-1)
    turns = numpy.outer(numpy.arange(length), numpy.arange(length)) % length
    angle = sign * 2 * math.pi * turns / length
    c, s = (
        Tensor(each.astype(numpy.float32), device=re.device).cast(re.dtype)
        for each in (numpy.cos(angle), numpy.sin(angle))
    )
    return re.matmul(c) - im.matmul(s), re.matmul(s) + im.matmul(c)


def to_length(x: Tensor, axis: int, length: int) -> Tensor:
    """An axis cut, or filled with zeros, to a length."""
    pairs = [(0, 0)] * x.ndim
    pairs[axis] = (0, length - int(x.shape[axis]))
    return x.pad(tuple(pairs))


@operator("DFT")
def dft(call: Call) -> Data:
    """The discrete Fourier transform of an axis, or its inverse; the last axis holds re and im."""
    x = call.tensor(0)
    is_input = call.version >= 20
    axis = int(call.number(2, -2)) % x.ndim if is_input else call.axis("axis", x.ndim, 1)
    is_inverse, is_half = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    length = int(call.number(1, int(x.shape[axis])))
    if is_inverse and is_half:
        return inverse_of_half(x, axis, int(call.number(1, 2 * (int(x.shape[axis]) - 1))))
    x = to_length(x, axis, length)
    re = x[..., 0]
    im = x[..., 1] if x.shape[-1] == 2 else re.zeros_like()
    re, im = re.movedim(axis, -1), im.movedim(axis, -1)
    re, im = transformed(re, im, 1 if is_inverse else -1)
    if is_inverse:
        re, im = re / length, im / length
    if is_half:
        re, im = re[..., : length // 2 + 1], im[..., : length // 2 + 1]
    return Tensor.stack(re.movedim(-1, axis), im.movedim(-1, axis), dim=-1)


def inverse_of_half(x: Tensor, axis: int, length: int) -> Tensor:
    """The real signal whose spectrum has these first coefficients, the others being conjugates."""
    half = length // 2 + 1
    x = to_length(x, axis, half)
    re, im = x[..., 0].movedim(axis, -1), x[..., 1].movedim(axis, -1)
    places = numpy.arange(length)
    mirrored = numpy.where(places < half, places, length - places)
    index = Tensor(mirrored.astype(numpy.int32), device=x.device)
    signs = Tensor(numpy.where(places < half, 1, -1).astype(numpy.float32), device=x.device)
    re = re.index_select(re.ndim - 1, index)
    im = im.index_select(im.ndim - 1, index) * signs.cast(im.dtype)
    result, _ = transformed(re, im, 1)
    return (result / length).movedim(-1, axis).unsqueeze(-1)


@operator("STFT")
def stft(call: Call) -> Data:
    """Spectra of frames of a signal, each multiplied by a window."""
    x, step = call.tensor(0), int(call.number(1))
    x = x if x.ndim == 3 else x.unsqueeze(-1)
    window = call.optional(2)
    length = int(call.number(3)) if call.has(3) else int(window.shape[0])  # type: ignore[union-attr]
    count = 1 + (int(x.shape[1]) - length) // step
    places = numpy.arange(count)[:, None] * step + numpy.arange(length)
    index = Tensor(places.reshape(-1).astype(numpy.int32), device=x.device)
    parts = []
    for part in range(int(x.shape[-1])):
        frames = x[..., part].index_select(1, index).reshape(x.shape[0], count, length)
        parts.append(frames if window is None else frames * window)
    im = parts[1] if len(parts) > 1 else parts[0].zeros_like()
    re, im = transformed(parts[0], im, -1)
    result = Tensor.stack(re, im, dim=-1)
    return result[:, :, : length // 2 + 1] if call.get("onesided", 1) else result


COSINES = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""Coefficients of windows that are sums of cosines."""


@operator(*COSINES)
def window(call: Call) -> Data:
    """A window that fades a frame in and out."""
    length = int(call.number(0))
    whole = length if call.get("periodic", 1) else length - 1
    angle = 2 * math.pi * numpy.arange(length) / max(1, whole)
    a, b, c = COSINES[call.node.op]
    values = a - b * numpy.cos(angle) + c * numpy.cos(2 * angle)
    element = named(int(call.get("output_datatype", 1)), str(call.node))
    return values.astype(element.array)


@operator("MelWeightMatrix")
def mel_matrix(call: Call) -> Data:
    """Triangular filters, evenly spaced on the mel scale, over the bins of a spectrum."""
    bins, length, rate = (int(call.number(index)) for index in range(3))
    edges = numpy.array([call.number(3), call.number(4)], numpy.float64)
    low, high = 2595 * numpy.log10(1 + edges / 700)
    mels = low + numpy.arange(bins + 2) * (high - low) / (bins + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((length + 1) * hertz // rate).astype(int)
    matrix = numpy.zeros((length // 2 + 1, bins))
    for index in range(bins):
        begin, peak, end = places[index : index + 3]
        if peak == begin:
            matrix[peak, index] = 1
        else:
            rise = numpy.arange(begin, peak + 1)
            matrix[rise, index] = (rise - begin) / (peak - begin)
        if end > peak:
            fall = numpy.arange(peak, end)
            matrix[fall, index] = (end - fall) / (end - peak)
    element = named(int(call.get("output_datatype", 1)), str(call.node))
    return as_tensor(matrix.astype(element.array), call.run.device)
