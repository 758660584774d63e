"""Where the tensors of these tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tinycore.tensor import runtime
from tinycore.testing.reference import ReferenceRuntime


@pytest.fixture(autouse=True)
def chosen_runtime(request: pytest.FixtureRequest) -> Iterator[None]:
    """With TENSOR_TESTS=reference the plain evaluator, else the engine on the default device."""
    if os.environ.get("TENSOR_TESTS") == "reference" and request.path.name == "test_jit.py":
        pytest.skip("the evaluator has no launches to capture")
    if os.environ.get("TENSOR_TESTS") != "reference":
        yield
        return
    before = runtime.Holder.active
    runtime.use(ReferenceRuntime())
    yield
    runtime.Holder.active = before
