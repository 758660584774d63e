"""`OnnxRunner`, where users of tinygrad look for it; it comes from the package tiny-onnx.

Floor 6. Imports that package when the name is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tinycore.errors import PluginError

__all__ = ["OnnxRunner"]  # noqa: F822  given by `__getattr__`


def __getattr__(name: str) -> Any:
    if name != "OnnxRunner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("tiny_onnx").OnnxRunner
    except ModuleNotFoundError as error:
        if error.name != "tiny_onnx":
            raise
        raise PluginError(
            'OnnxRunner comes from tiny-onnx: `pip install "tinycore[onnx]"`'
        ) from None
