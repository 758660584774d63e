"""Values that the lanes of a warp exchange, and operands that they load together by tiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from matrix_programs import noted
from sampling import on_one_of
from simulated import Simulated, backend_of
from standin import Card

from tiny_testing.suite.case import Level, Trial, trials
from tiny_testing.suite.subject import Subject
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.plugin import register, unregister

PROVEN = [
    trial
    for name in ("test_lanes_exchange_values", "test_matrix_units_load_operands")
    for trial in trials(Level.COMPUTE, name)
]


@pytest.fixture(scope="module", params=on_one_of("NVRTC", "PTX"))
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A card that the executor plays, whose kernels nvrtc or we write."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    register(backend_of(Simulated((Card(),))))
    with Context(DEV=f"CUDA:{request.param}"):
        yield
    unregister("CUDA")


@pytest.mark.sample(6)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("trial", PROVEN, ids=lambda trial: trial.name)
def test_lanes_do_as_the_suite_says(trial: Trial) -> None:
    trial.run(Subject("CUDA"))


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("rows", "length"), [(3, 500), (1 << 14, 100), (1 << 14, 128), (1 << 14, 500)]
)
def test_sums_of_rows_are_folded_by_lanes(rows: int, length: int) -> None:
    x = numpy.random.default_rng(0).integers(-5, 6, (rows, length)).astype(numpy.float32)
    with noted() as sources:
        found = Tensor(x).sum(1).numpy()

    assert numpy.array_equal(found, x.sum(1))
    assert any(word in sources.texts[-1] for word in ("__shfl_xor_sync(", "shfl.sync.bfly.b32 "))


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
def test_softmax_of_halves_takes_the_power_of_the_card(dtype: DType) -> None:
    x = Tensor(numpy.random.default_rng(0).standard_normal((7, 300), "f") * 9).cast(dtype).realize()
    with noted() as sources:
        found = x.softmax(-1).realize()

    given = x.cast(dtypes.float64).numpy()
    exact = numpy.exp(given - given.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    half_a_place = {dtypes.float16: 2.0**-11, dtypes.bfloat16: 2.0**-8}.get(dtype, 2.0**-20)
    error = numpy.abs(found.cast(dtypes.float64).numpy() - exact)
    assert (error <= 1.02 * half_a_place * exact + 2.0**-24).all()
    assert any("ex2.approx" in text for text in sources.texts) == (dtype.itemsize == 2)
