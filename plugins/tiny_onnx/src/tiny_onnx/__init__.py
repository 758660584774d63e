"""ONNX models on tinycore: `OnnxRunner(path)(**inputs)`, on any device.

The file is read by the `onnx` package; operators are written in terms of `Tensor`, so a model is
fused, compiled and replayed like any other program. `tinycore run model.onnx` is its command.
"""

from tiny_onnx.export import export
from tiny_onnx.runner import OnnxRunner

__all__ = ["OnnxRunner", "export"]
