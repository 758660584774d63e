"""The operator cases of the `onnx` package, with inputs and the outputs that it computes."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

from tiny_onnx import OnnxRunner
from tinycore import Tensor

LEAST_TOLERANCE = {"bfloat16": 1.6e-2, "float16": 2e-3}
"""Two units in the last place: sums are rounded once here, in the reference after each step."""

NARROW_INTEGERS = ("int4", "uint4", "int2", "uint2")
"""Integers that results hold in a byte each."""

EXCLUDED = {
    f"test_{name}": "random numbers of another generator"
    for name in (
        "bernoulli",
        "bernoulli_double",
        "bernoulli_seed",
        "training_dropout",
        "training_dropout_default",
        "training_dropout_default_mask",
        "training_dropout_mask",
    )
}
"""Cases that have no right answer, and why."""


@cache
def cases() -> dict[str, TestCase]:
    """All cases by name, but those that are excluded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts that overflow, on purpose
        found = collect_testcases(None)
    return {
        case.name: case
        for case in found
        if case.model is not None
        and case.name not in EXCLUDED
        and "_expanded" not in case.name  # functions of the standard, spelled out: made of others
    }


def check(case: TestCase, calls: int) -> None:
    """Call a case's model with its inputs, so often that it is captured and replayed."""
    assert case.model is not None
    model = OnnxRunner(case.model)
    for inputs, outputs in case.data_sets or ():
        names = [each.name for each in case.model.graph.input]
        given = dict(zip(names, map(plain, inputs), strict=False))
        for _ in range(calls):
            results = model(given)
            for name, wanted in zip(model.graph_outputs, map(plain, outputs), strict=True):
                compare(on_host(results[name]), wanted, case.rtol, max(case.atol, 1e-6))


def plain(value: Any) -> Any:
    """An input or output in place of the message that some cases give."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value


def on_host(value: Any) -> Any:
    """A result with arrays in place of tensors."""
    if isinstance(value, list):
        return [on_host(each) for each in value]
    return value.numpy() if isinstance(value, Tensor) else value


def compare(found: Any, wanted: Any, relative: float, absolute: float) -> None:
    """Assert that a result is what a case wants, in shape, dtype and elements."""
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            compare(one, other, relative, absolute)
        return
    if wanted is None:
        assert found is None
        return
    found, wanted = numpy.asarray(found), numpy.asarray(wanted)
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "OUST":
        assert found.astype(str).tolist() == wanted.astype(str).tolist()
        return
    name = wanted.dtype.name
    if name in NARROW_INTEGERS:
        found, wanted = found.astype(numpy.int32), wanted.astype(numpy.int32)
    elif wanted.dtype.kind not in "biu" and name not in ("float32", "float64"):
        relative = max(relative, LEAST_TOLERANCE.get(name, 0))
        found, wanted = found.astype(numpy.float32), wanted.astype(numpy.float32)

    assert found.dtype == wanted.dtype
    numpy.testing.assert_allclose(found, wanted, rtol=relative, atol=absolute)
