"""Each operator case of the `onnx` package, called four times: built, captured and replayed."""

from __future__ import annotations

import pytest
from backend_cases import cases, check

CALLS = 4


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", list(cases()))
def test_case(name: str) -> None:
    check(cases()[name], CALLS)
