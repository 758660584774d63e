"""Each case of the `onnx` package, called four times: built, captured and replayed."""

from __future__ import annotations

import pytest
from backend_cases import cases, check, stored

CALLS = 4


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", list(cases()))
def test_case(name: str) -> None:
    check(cases()[name], CALLS)


NETWORKS = ["real/test_shufflenet", "real/test_squeezenet", "real/test_zfnet512"]
"""Models of nine that compile fast; `python -m benchmarks.onnx_cases real` runs all."""


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", [name for name in stored() if not name.startswith("real/")])
def test_model(name: str) -> None:
    check(stored()[name], CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    check(stored()[name], CALLS)
