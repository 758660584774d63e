"""Clusters of blocks that copy boxes for each other, on the executor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from matrix_programs import for_few_threads, noted, small_integers
from sampling import on_one_of
from simulated import Simulated, backend_of
from standin import Card
from test_warpgroup import factor

from tinycore import Context, dtypes
from tinycore.plugin import register, unregister

UNITS = 64


@pytest.fixture(scope="module", params=on_one_of("NVRTC", "PTX"), autouse=True)
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Hopper that the executor plays, with multiprocessors for two blocks of a product each."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    register(for_few_threads(backend_of(Simulated((Card(),))), units=UNITS))
    with Context(DEV=f"CUDA:{request.param}:sm_90a"):
        yield
    unregister("CUDA")


@pytest.mark.sample(9)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(512, 256), (512, 192)])
def test_blocks_of_a_cluster_copy_for_each_other(
    rows: int, columns: int, turned: tuple[bool, bool]
) -> None:
    """Four blocks side by side read the same rows, and each copies a part; three do not."""
    x = factor(rows, 320, dtypes.half, turned[0])
    y = factor(320, columns, dtypes.half, turned[1], seed=1)
    with noted() as sources:
        found = x.matmul(y, dtype=dtypes.float32).numpy()

    exact = small_integers(rows, 320) @ small_integers(320, columns, seed=1)
    assert numpy.array_equal(found, exact)
    (text,) = sources.texts
    clusters = "__cluster_dims__(4, 1, 1)" in text or ".reqnctapercluster 4, 1, 1" in text
    assert clusters == (columns == 256)
    assert (".multicast::cluster [%" in text) == clusters
    assert ("barrier.cluster.wait" in text) == clusters
