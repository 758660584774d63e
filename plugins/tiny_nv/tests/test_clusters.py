"""Clusters of blocks that copy boxes for each other (CUDA_CLUSTERS=1), on the executor."""

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


@pytest.fixture(scope="module", params=on_one_of("NVRTC", "PTX"), autouse=True)
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Hopper with one multiprocessor that the executor plays."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    register(for_few_threads(backend_of(Simulated((Card(),)))))
    with pytest.MonkeyPatch.context() as patch, Context(DEV=f"CUDA:{request.param}:sm_90a"):
        patch.setenv("CUDA_CLUSTERS", "1")
        yield
    unregister("CUDA")


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(512, 256), (264, 384)])
def test_blocks_of_a_cluster_copy_for_each_other(
    rows: int, columns: int, turned: tuple[bool, bool]
) -> None:
    """Two blocks side by side read the same rows, and each copies half of them; three do not."""
    x = factor(rows, 320, dtypes.half, turned[0])
    y = factor(320, columns, dtypes.half, turned[1], seed=1)
    with noted() as sources:
        found = x.matmul(y, dtype=dtypes.float32).numpy()

    exact = small_integers(rows, 320) @ small_integers(320, columns, seed=1)
    assert numpy.array_equal(found, exact)
    (text,) = sources.texts
    clusters = "__cluster_dims__(2, 1, 1)" in text or ".reqnctapercluster 2, 1, 1" in text
    assert clusters == (columns == 256)
    assert (".multicast::cluster [%" in text) == clusters
    assert ("barrier.cluster.wait" in text) == clusters
