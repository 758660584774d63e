"""Decoding on a card that the executor plays: heads that share keys are rows of one product."""

from __future__ import annotations

import numpy
import pytest
from matrix_programs import for_few_threads, noted
from simulated import Simulated, backend_of
from standin import Card
from tensor_programs import numbers

from tiny_nv.matrix import INSTRUCTIONS
from tinycore import Context, Tensor, dtypes
from tinycore.plugin import register, unregister

OF_HALVES = next(found.name for found in INSTRUCTIONS.values() if found.unit.a is dtypes.half)


@pytest.mark.slow
@pytest.mark.parametrize("renderer", ["NVRTC", "PTX"])
def test_heads_that_share_keys_are_decoded_together(
    renderer: str, request: pytest.FixtureRequest
) -> None:
    if renderer == "NVRTC":
        request.getfixturevalue("nvrtc")
    torch = pytest.importorskip("torch")
    shapes = (1, 8, 1, 64), (1, 2, 256, 64), (1, 2, 256, 64)
    given = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    visible = numpy.arange(256) < 150  # of which some units see nothing
    register(for_few_threads(backend_of(Simulated((Card(),))), units=8))
    try:
        with Context(DEV=f"CUDA:{renderer}:sm_90"), noted() as sources:
            q, k, v = (Tensor(x).half().realize() for x in given)
            mask = Tensor(visible.reshape(1, 256)).realize()
            sources.texts.clear()
            found = q.scaled_dot_product_attention(k, v, mask, enable_gqa=True).float().numpy()
    finally:
        unregister("CUDA")
    wide = [torch.from_numpy(x).half().double() for x in given]
    shared = [x.repeat_interleave(4, 1) for x in wide[1:]]
    hidden = torch.from_numpy(visible)[None]
    attended = torch.nn.functional.scaled_dot_product_attention(wide[0], *shared, hidden)

    numpy.testing.assert_allclose(found, attended.numpy(), rtol=3e-3, atol=3e-3)
    assert sources.count(OF_HALVES) == 1
    assert len(sources.texts) == 3
