"""Costs of a step that is done again: small training, decoding with a cache, many small kernels.

The work in these is little, so that what is seen is the cost of asking for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Final

from benchmarks.case import TENSOR, Case, Input, Kind, Prepared

__all__ = ["CASES"]

_KERNELS: Final = 1000
_BATCH: Final = 16
_RATE: Final = 0.01


def _many_kernels(_: Any, x: Any) -> Any:
    for _ in range(_KERNELS):
        x = (x + 1).realize()
    return x


def _many_calls(_: Any, x: Any) -> Any:
    for _ in range(_KERNELS):
        x = x + 1
    return x


def _small_training(tiny: Any, x: Any, labels: Any, *weights: Any) -> Callable[[], Any]:
    optimizer = tiny.nn.optim.Adam([weight.is_param_() for weight in weights], lr=_RATE)

    def step() -> Any:
        with tiny.Context(TRAINING=1):
            optimizer.zero_grad()
            out = (x @ weights[0]).relu() @ weights[1]
            loss = out.sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step())

    return step


def _small_training_torch(torch: Any, x: Any, labels: Any, *weights: Any) -> Callable[[], Any]:
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=_RATE)

    def step() -> Any:
        optimizer.zero_grad()
        out = torch.relu(x @ weights[0]) @ weights[1]
        loss = torch.nn.functional.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


_LAYERS, _WIDTH, _HEADS, _LENGTH = 12, 256, 4, 512
_HEAD: Final = _WIDTH // _HEADS
_OF_LAYER: Final = 4
_FIRST, _LAST = 240, 256
"""The positions that are decoded, again and again."""


def _positions() -> Iterator[int]:
    return cycle(range(_FIRST, _LAST))


def _decoded(
    x: Any, w: Any, cache: Any, position: Any, norm: Callable[[Any], Any], grow: Callable[..., Any]
) -> Any:
    """One layer on one token. `cache` is (2, length, heads, head): keys, then values."""
    mixed = (norm(x) @ w[0]).reshape(3, _HEADS, 1, _HEAD)
    seen = grow(cache, mixed[1:].reshape(2, 1, _HEADS, _HEAD), position)
    keys, values = seen[0].transpose(0, 1), seen[1].transpose(0, 1)
    scores = (mixed[0] @ keys.transpose(1, 2)) * _HEAD**-0.5
    attended = (scores.softmax(-1) @ values).reshape(1, _WIDTH)
    x = x + attended @ w[1]
    return x + (norm(x) @ w[2]).relu() @ w[3]


def _grown(cache: Any, new: Any, position: Any) -> Any:
    cache[:, position : position + 1].assign(new)
    return cache[:, : position + 1]


def _grown_at_once(cache: Any, new: Any, position: Any) -> Any:
    """The same for tinygrad, which wants an assignment to a slice realized before it is read."""
    cache[:, position : position + 1].assign(new).realize()
    return cache[:, : position + 1]


def _decode_tiny(tiny: Any, x: Any, *w: Any) -> Prepared:
    caches = [
        tiny.Tensor.zeros(2, _LENGTH, _HEADS, _HEAD).contiguous().realize() for _ in range(_LAYERS)
    ]
    variable = tiny.Variable("position", 0, _LENGTH - 1)
    positions = _positions()
    grow = _grown if tiny.__name__ == "tinycore" else _grown_at_once

    def step(position: Any) -> Any:
        result = x
        for layer, cache in enumerate(caches):
            weights = w[layer * _OF_LAYER : (layer + 1) * _OF_LAYER]
            norm = tiny.Tensor.layernorm
            result = _decoded(result, weights, cache, position, norm, grow)
        return result

    return Prepared(lambda: variable.bind(next(positions)), step)


def _decode_torch(torch: Any, x: Any, *w: Any) -> Prepared:
    caches = [torch.zeros(2, _LENGTH, _HEADS, _HEAD) for _ in range(_LAYERS)]
    positions = _positions()

    def grown(cache: Any, new: Any, position: int) -> Any:
        cache[:, position : position + 1] = new
        return cache[:, : position + 1]

    def step(position: int) -> Any:
        result = x
        with torch.no_grad():
            for layer, cache in enumerate(caches):
                weights = w[layer * _OF_LAYER : (layer + 1) * _OF_LAYER]
                result = _decoded(
                    result, weights, cache, position,
                    lambda t: torch.nn.functional.layer_norm(t, (_WIDTH,)), grown,
                )  # fmt: skip
        return result

    return Prepared(lambda: next(positions), step)


_LAYER_INPUTS: Final = (
    Input((_WIDTH, 3 * _WIDTH), scale=0.1),
    Input((_WIDTH, _WIDTH), scale=0.1),
    Input((_WIDTH, 4 * _WIDTH), scale=0.1),
    Input((4 * _WIDTH, _WIDTH), scale=0.05),
)

CASES: Final = (
    Case(
        "1000 tiny kernels",
        {TENSOR: _many_kernels, "torch": _many_calls},
        (Input((256,)),),
    ),
    Case(
        "tiny MLP training step",
        {TENSOR: _small_training, "torch": _small_training_torch},
        (
            Input((_BATCH, 32)),
            Input((_BATCH,), "int32", limit=10),
            Input((32, 32), scale=0.3),
            Input((32, 10), scale=0.3),
        ),
        kind=Kind.STEP,
    ),
    Case(
        "transformer decode, 12 layers of 256",
        {TENSOR: _decode_tiny, "torch": _decode_torch},
        (Input((1, _WIDTH)), *_LAYER_INPUTS * _LAYERS),
        flops=_LAYERS * 2.0 * (12 * _WIDTH**2 + 2 * _LAST * _WIDTH),
        kind=Kind.STEP,
        tolerance=5e-3,
    ),
)
