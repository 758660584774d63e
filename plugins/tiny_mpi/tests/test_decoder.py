"""A decoder on several processes: the losses of one, and exactly the bytes that theory says."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import output

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "decoder.py"
STEPS = 4
ACTIVATIONS = 8 * 16 * 32 * 4
"""Bytes of the activations between two layers, of the whole batch."""
LAYERS, TOKENS = 2, 8 * 16 * 4
MATRICES = LAYERS * (4 * 32 * 32 + 3 * 32 * 64) * 4
"""Bytes of the parameters that tensor parallelism divides."""


def on_mesh(columns: int, size: int) -> float:
    """Bytes that each process sends, of two rows of so many."""
    own = size - MATRICES + MATRICES / columns
    return own + 8 + (columns - 1) * 4 * LAYERS * ACTIVATIONS / 2


THEORY: dict[str, Callable[[int, int], float]] = {
    # gradients to each other process; the loss, and its number of tokens
    "data": lambda n, size: (n - 1) * (size + 8),
    # parts of the gradients to each other process, and the parts of the parameters
    "zero1": lambda n, size: (n - 1) * (8 + 2 * size / n),
    "zero2": lambda n, size: (n - 1) * (8 + 2 * size / n),
    "zero3": lambda n, size: (n - 1) * (8 + 2 * size / n),
    # as data parallel over two rows, and as tensor parallel in a row with half of the batch
    "mesh": lambda n, size: on_mesh(n // 2, size),
    "mesh-zero3": lambda n, size: on_mesh(n // 2, size),
    # two sums in each direction in each layer
    "tensor": lambda n, size: (n - 1) * 4 * LAYERS * ACTIVATIONS,
}
"""Bytes that each process sends in a step, for n processes and parameters of `size` bytes."""


@cache
def trained(count: int, way: str, sizes: str = "{}") -> Any:
    return json.loads(output(count, PROGRAM, way, str(STEPS), DECODER_SIZES=sizes))


@pytest.mark.parametrize(
    ("way", "count"),
    [
        *[(way, 2) for way in ("data", "zero1", "zero2", "zero3", "tensor", "pipeline")],
        *[(way, 4) for way in ("data", "zero1", "zero3")],
        ("tensor", 4),
        ("mesh", 4),
        ("mesh-zero3", 4),
        ("mesh", 8),
    ],
)
def test_losses_and_bytes(way: str, count: int) -> None:
    one, several = trained(1, "data"), trained(count, way)

    numpy.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-5)
    if way == "pipeline":  # activations there with the next tokens, their gradients back
        assert several["sent"] == [ACTIVATIONS + TOKENS, ACTIVATIONS]
    else:
        assert several["sent"] == [THEORY[way](count, one["parameters"] * 4)] * count
    assert one["sent"] == [0]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", ["data", "tensor", "pipeline"])
def test_losses_of_eight_processes(way: str) -> None:
    sizes = json.dumps({"heads": 8, "layers": 8 if way == "pipeline" else 2})

    one, eight = trained(1, "data", sizes), trained(8, way, sizes)

    numpy.testing.assert_allclose(eight["losses"], one["losses"], rtol=1e-5)
