"""Quantized operators of com.microsoft, beside onnxruntime's on random numbers."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from graphs import model, value
from onnx import helper

from tiny_onnx import OnnxRunner
from tinycore import Tensor

ARRAYS = {
    "Add": 2, "Mul": 2, "Sigmoid": 1, "LeakyRelu": 1, "GlobalAveragePool": 1, "Concat": 2,
    "Softmax": 1, "Where": 2,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("name", ARRAYS)
def test_a_result_is_quantized_as_by_onnxruntime(name: str, kind: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    draw = numpy.random.default_rng(len(name))
    bounds = numpy.iinfo(kind)

    def numbers(count: int) -> list[Any]:
        """Quantized tensors, each with its scale and zero."""
        shape = (1, 3, 4, 4) if name == "GlobalAveragePool" else (3, 4)
        parts: list[Any] = []
        for scale in (0.1, 0.05)[:count]:
            parts += [draw.integers(bounds.min, bounds.max, shape).astype(kind)]
            parts += [numpy.array(scale, "float32"), draw.integers(0, 20, ()).astype(kind)]
        return parts

    step = 0.004 if name == "Softmax" else 0.2
    target = [numpy.array(step, "float32"), draw.integers(0, 20, ()).astype(kind)]
    arrays = numbers(ARRAYS[name])
    arrays = [*target, *arrays] if name == "Concat" else [*arrays, *target]
    arrays = [draw.random((3, 4)) > 0.5, *arrays] if name == "Where" else arrays
    given = {f"x{place}": array for place, array in enumerate(arrays)}
    stated = {"Concat": {"axis": 0}, "GlobalAveragePool": {"channels_last": 0}}
    stated["Softmax"] = {"axis": 0, "opset": 13}
    attributes: dict[str, Any] = {**stated.get(name, {})}
    node = helper.make_node(f"QLinear{name}", [*given], ["y"], domain="com.microsoft", **attributes)
    number = helper.np_dtype_to_tensor_dtype(numpy.dtype(kind))
    inputs = [
        value(key, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        for key, array in given.items()
    ]
    rank = 4 if name == "GlobalAveragePool" else 2
    proto = model([node], inputs, [value("y", [None] * rank, number)], ir_version=10)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    (expected,) = runtime.InferenceSession(proto.SerializeToString()).run(None, given)
    found = OnnxRunner(proto)(given)["y"]
    assert isinstance(found, Tensor)
    difference = found.numpy().astype(int) - expected.astype(int)
    assert abs(difference).max() <= 1  # halves of a step are rounded by either side
