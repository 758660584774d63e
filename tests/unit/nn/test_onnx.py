"""`tinycore.nn.onnx` without the package that it leads to."""

from __future__ import annotations

import pytest

from tinycore.device import discovery
from tinycore.errors import PluginError
from tinycore.nn import onnx


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "entry_points", lambda _: [])

    with pytest.raises(PluginError, match=r'pip install "tinycore\[onnx\]"'):
        _ = onnx.OnnxRunner
