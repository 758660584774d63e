"""Names in the code of a captured function."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.tensor import helpers
from tinycore import Tensor, TinyJit


def test_libraries_that_code_imports_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: Tensor) -> Any:
        import json  # noqa: PLC0415

        import tests.unit.tensor.helpers  # noqa: PLC0415

        return x * getattr(tests.unit.tensor.helpers, "factor", 2.0), json.encoder

    step, x = TinyJit(lambda x: run(x)[0]), Tensor([1.0]).realize()
    for _ in range(3):
        assert step(x).item() == 2.0
    monkeypatch.setattr(json, "encoder", None)
    step(x)
    assert len(step.captures) == 1

    monkeypatch.setattr(helpers, "factor", 5.0, raising=False)

    assert step(x).item() == 5.0
