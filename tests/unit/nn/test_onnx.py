"""`tinycore.nn.onnx` without the package that it leads to."""

from __future__ import annotations

import sys

import pytest

from tinycore.errors import PluginError


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import tinycore.nn.onnx  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "tiny_onnx", None)

    with pytest.raises(PluginError, match=r'pip install "tinycore\[onnx\]"'):
        _ = tinycore.nn.onnx.OnnxRunner
