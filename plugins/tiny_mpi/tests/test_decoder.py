"""A decoder on several processes: the losses of one, and exactly the bytes that theory says.

Eight processes of two cores take minutes, as each schedules the whole graph: of the table of ways
and processes a part is run, all of it by `DECODER_ALL=1 pytest -m slow test_decoder.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import finished

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "decoder.py"
STEPS = 4
ACTIVATIONS = 8 * 16 * 32 * 4
"""Bytes of the activations between two layers, of the whole batch."""
TOKENS = 8 * 16 * 4
MATRICES = (4 * 32 * 32 + 3 * 32 * 64) * 4
"""Bytes of the parameters of a layer that tensor parallelism divides."""


def on_mesh(columns: int, size: int, layers: int) -> float:
    """Bytes that each process sends, of two rows of so many."""
    own = size - layers * MATRICES * (1 - 1 / columns)
    return own + 8 + (columns - 1) * 4 * layers * ACTIVATIONS / 2


THEORY: dict[str, Callable[[int, int, int], float]] = {
    # gradients to each other process; the loss, and its number of tokens
    "data": lambda n, size, _: (n - 1) * (size + 8),
    # parts of the gradients to each other process, and the parts of the parameters
    "zero1": lambda n, size, _: (n - 1) * (8 + 2 * size / n),
    "zero2": lambda n, size, _: (n - 1) * (8 + 2 * size / n),
    "zero3": lambda n, size, _: (n - 1) * (8 + 2 * size / n),
    # as data parallel over two rows, and as tensor parallel in a row with half of the batch
    "mesh": lambda n, size, layers: on_mesh(n // 2, size, layers),
    "mesh-zero3": lambda n, size, layers: on_mesh(n // 2, size, layers),
    # two sums in each direction in each layer
    "tensor": lambda n, size, layers: (n - 1) * 4 * layers * ACTIVATIONS,
}
"""Bytes that each process sends in a step, for n processes, bytes of parameters, and layers."""


@cache
def trained(count: int, way: str, layers: int) -> Any:
    sizes = json.dumps({"heads": 8, "layers": layers})
    verified = str(int(count <= 2))  # graphs of more processes are alike
    # each process schedules the whole graph, so time on few processors grows with their number
    result = finished(
        count,
        PROGRAM,
        way,
        str(STEPS),
        seconds=40 * (count + 2),
        variables={"DECODER_SIZES": sizes, "VERIFY": verified},
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


ALL = [
    (way, count)
    for way in [*THEORY, "pipeline"]
    for count in (2, 4, 8)
    if count > 2 or not way.startswith("mesh")  # two rows of one are no mesh
]
LONG = {("zero1", 4), ("zero2", 4), *((way, 8) for way in (*THEORY, "pipeline") if way != "mesh")}
"""Redundant cells, each of whose claims another cell proves: two and four processes show that bytes
grow as in theory, zero3 how all that is divided grows, and the mesh of two by four has sides of two
lengths.
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "count"), [case for case in ALL if "DECODER_ALL" in os.environ or case not in LONG]
)
def test_losses_and_bytes(way: str, count: int) -> None:
    fewest = min(n for each, n in ALL if each == way)
    layers = count if way == "pipeline" else 2 if count == fewest else 1

    one, several = trained(1, "data", layers), trained(count, way, layers)

    numpy.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-6)
    if way == "pipeline":  # activations there with the next tokens, their gradients back
        first, last = ACTIVATIONS + TOKENS, ACTIVATIONS
        assert several["sent"] == [first, *[2 * ACTIVATIONS] * (count - 2), last]
    else:
        assert several["sent"] == [THEORY[way](count, one["parameters"] * 4, layers)] * count
    assert one["sent"] == [0]
