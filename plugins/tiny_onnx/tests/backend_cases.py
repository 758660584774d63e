"""The cases of the `onnx` package: operators and models, with inputs and the right outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.reference.ops import op_pool_common

from tiny_onnx import OnnxRunner
from tinycore import Tensor

Run = Callable[[Mapping[str, Any]], list[Any]]
"""A model: inputs by name -> outputs in their order."""

STORED = ("simple", "pytorch-converted", "pytorch-operator", "real")
"""Kinds of cases that are files of the package; those of `real` are image networks."""

LEAST_TOLERANCE = {"bfloat16": 1.6e-2, "float16": 2e-3}
"""Two units in the last place: sums are rounded once here, in the reference after each step."""

NARROW_INTEGERS = ("int4", "uint4", "int2", "uint2")
"""Integers that results hold in a byte each."""

EXCLUDED = {
    f"test_{name}": "random numbers of another generator"
    for name in (
        "bernoulli",
        "bernoulli_double",
        "bernoulli_double_expanded",
        "bernoulli_expanded",
        "bernoulli_seed",
        "bernoulli_seed_expanded",
        "training_dropout",
        "training_dropout_default",
        "training_dropout_default_mask",
        "training_dropout_mask",
    )
}
"""Cases that have no right answer, and why."""


_POOL = op_pool_common.pool


class Pooled(numpy.ndarray[Any, Any]):
    """The result of a pooling, which is computed when it is compared. The package loops over its
    elements, which takes most of the time in which all cases are made.
    """

    computed: Callable[[], Any]


def pooled(
    padded: Any, x_shape: Any, kernel: Any, strides: Any, shape: Any, *more: Any, **by: Any
) -> Any:
    """The result of the package's `pool` in its shape and dtype."""
    found = numpy.zeros((*x_shape[:2], *shape), padded.dtype).view(Pooled)
    found.computed = partial(_POOL, padded, x_shape, kernel, strides, shape, *more, **by)
    return found


@cache
def operators() -> dict[str, TestCase]:
    """All operator cases by name, but those that are excluded."""
    with warnings.catch_warnings(), patch.object(op_pool_common, "pool", pooled):
        warnings.simplefilter("ignore")  # casts that overflow, on purpose
        found = collect_testcases(None)
    return {
        case.name: case for case in found if case.model is not None and case.name not in EXCLUDED
    }


def cases() -> dict[str, TestCase]:
    """Operator cases without those that spell out a function of the standard by others."""
    return {name: case for name, case in operators().items() if "_expanded" not in name}


@cache
def stored() -> dict[str, TestCase]:
    """Cases of models by kind and name, their content not yet read."""
    return {f"{kind}/{case.name}": case for kind in STORED for case in load_model_tests(kind=kind)}


def loaded(case: TestCase) -> TestCase:
    """A case with its model, inputs and outputs."""
    if case.model is not None:
        return case
    if case.model_dir is None:  # all weights of these are equal, so they need no download
        assert case.url is not None
        path = Path(DATA_DIR) / case.url.removeprefix("onnx/backend/test/data/")
        model = onnx.load(path)
        (image,) = inputs_of(model)
        sides = [side.dim_value for side in image.type.tensor_type.shape.dim]
        count = numpy.prod(sides)
        given = (numpy.arange(count).reshape(sides) / count).astype(numpy.float32)
        wanted = onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))
        return replace(case, model=model, data_sets=[([given], [wanted])])
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    graph = model.graph
    sets = [
        (
            list(messages(each, "input", inputs_of(model))),
            list(messages(each, "output", graph.output)),
        )
        for each in sorted(folder.glob("test_data_set_*"))
    ]
    return replace(case, model=model, data_sets=sets)


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no weights, which models of old list as well."""
    weights = {each.name for each in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in weights]


def messages(folder: Path, kind: str, values: Iterable[onnx.ValueInfoProto]) -> Iterator[Any]:
    """The numbered inputs or outputs in a folder, as the types of a graph say."""
    for number, value in enumerate(values):
        path = folder / f"{kind}_{number}.pb"
        if not path.is_file():
            return  # what has a default value may be left out
        if value.type.WhichOneof("value") == "sequence_type":
            sequence = onnx.SequenceProto.FromString(path.read_bytes())
            yield onnx.numpy_helper.to_list(sequence)
        else:
            yield onnx.load_tensor(path)


def runner(model: onnx.ModelProto) -> Run:
    """A model as tiny_onnx runs it."""
    found = OnnxRunner(model)
    return lambda given: [on_host(each) for each in found(given).values()]


def check(case: TestCase, calls: int, prepare: Callable[[onnx.ModelProto], Run] = runner) -> None:
    """Call a case's model with its inputs, so often that it is captured and replayed."""
    case = loaded(case)
    assert case.model is not None
    run = prepare(case.model)
    for inputs, outputs in case.data_sets or ():
        names = [each.name for each in inputs_of(case.model)]
        given = dict(zip(names, map(plain, inputs), strict=False))
        right = [*map(plain, outputs)]
        for _ in range(calls):
            for found, wanted in zip(run(given), right, strict=True):
                compare(found, wanted, case.rtol, max(case.atol, 1e-6))


def plain(value: Any) -> Any:
    """An input or output in place of what some cases give."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, Pooled):
        return value.computed()
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
