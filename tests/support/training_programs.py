"""Networks that a plugin's tests train on the stand-in of its hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tinycore import Tensor, TinyJit, dtypes, nn
from tinycore.dtype import DType
from tinycore.nn.datasets import digits

__all__ = ["digits_are_learned"]

Layers = list[Callable[[Tensor], Tensor]]
INK: Final = 16
"""The value of the darkest pixel."""
BATCH: Final = 128
STEPS: Final = 25


def digits_are_learned(dtype: DType = dtypes.float32) -> None:
    """Train two layers by 25 captured steps; most digits that were held out are told apart.

    Weights are float32; what is multiplied is of a type.
    """
    images, labels, held_out, truth = digits()
    Tensor.manual_seed(0)
    first, second = nn.Linear(64, 32), nn.Linear(32, 10)

    def scores(x: Tensor) -> Tensor:
        hidden = product(x.flatten(1) / INK, first, dtype).relu()
        return product(hidden, second, dtype).float()

    optimizer = nn.optim.Adam(nn.state.get_parameters([first, second]), lr=0.02)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = scores(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    losses = []
    drawn, named = images.numpy(), labels.numpy()
    for number in range(STEPS):
        start = number * BATCH % (len(drawn) - BATCH)
        x = Tensor(drawn[start : start + BATCH]).float().realize()
        losses.append(float(step(x, Tensor(named[start : start + BATCH])).item()))
    right = (scores(held_out.float()).argmax(1) == truth).float().mean().item()
    assert losses[-1] < losses[0] / 4
    assert right > 0.85


def product(x: Tensor, layer: nn.Linear, dtype: DType) -> Tensor:
    """Output of a layer, computed in a type."""
    assert layer.bias is not None
    return x.cast(dtype) @ layer.weight.cast(dtype).T + layer.bias.cast(dtype)
