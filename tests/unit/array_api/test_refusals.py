"""Errors of the standard are errors here, of a class of `tinycore.errors`."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import tinycore.array_api as xp
from tests.unit.array_api.comparing import Case
from tinycore import TinyJit
from tinycore.dtype import dtypes
from tinycore.errors import (
    ArgumentError,
    DTypeError,
    IndexRangeError,
    JitError,
    ShapeError,
    TinycoreError,
)
from tinycore.tensor import Tensor

Refusal = tuple[Case, type[TinycoreError], str]


def ones(*shape: int, dtype: Any = None) -> Tensor:
    return xp.ones(shape, dtype=dtype)


REFUSALS: list[Refusal] = [
    (lambda xp: xp.broadcast_to(ones(3), (2,)), ShapeError, r"\(3,\)"),
    (lambda xp: xp.broadcast_to(ones(2, 3), (3,)), ShapeError, r"\(2, 3\)"),
    (lambda xp: xp.broadcast_arrays(ones(2), ones(3)), ShapeError, "broadcast"),
    (lambda xp: xp.concat([ones(2), ones(2, dtype=xp.int8)]), DTypeError, "no common"),
    (lambda xp: xp.concat([ones(2, 3), ones(2, 2)]), ShapeError, r"\(2, 3\)"),
    (lambda xp: xp.stack([ones(2), ones(3)]), ShapeError, "differ"),
    (lambda xp: xp.expand_dims(ones(2), axis=3), IndexRangeError, "axis 3"),
    (lambda xp: xp.moveaxis(ones(2, 3), (0, 0), (0, 1)), ArgumentError, "once"),
    (lambda xp: xp.permute_dims(ones(2, 3), (0, 0)), ShapeError, "permutation"),
    (lambda xp: xp.repeat(ones(3), -1), ArgumentError, "negative, got -1"),
    (lambda xp: xp.repeat(ones(3), xp.asarray([1, 2])), ShapeError, r"\(2,\)"),
    (lambda xp: xp.repeat(ones(2), xp.asarray([1, -2])), ArgumentError, "got -2"),
    (lambda xp: xp.reshape(ones(2, 3), (4,)), ShapeError, "6 elements"),
    (lambda xp: xp.reshape(ones(0, 3), (0, -1)), ShapeError, "inferred"),
    (lambda xp: xp.roll(ones(2, 3), (1, 2), axis=(0,)), ArgumentError, "2 shifts"),
    (lambda xp: xp.squeeze(ones(2, 1), 0), ShapeError, "size 1"),
    (lambda xp: xp.unstack(xp.asarray(1)), ShapeError, "no axes"),
    (lambda xp: xp.asarray([1], copy=False), ArgumentError, "copy=False"),
    (lambda xp: xp.asarray(1j), DTypeError, "complex"),
    (lambda xp: xp.asarray(numpy.ones(2, "complex64")), DTypeError, "complex64"),
    (lambda xp: xp.asarray("text"), ArgumentError, "cannot hold an object of type str"),
    (lambda xp: xp.asarray(ones(2), dtype=xp.int8, copy=False), ArgumentError, "copied"),
    (lambda xp: xp.from_dlpack([1.0]), ArgumentError, "list"),
    (lambda xp: xp.full(2, 1j), DTypeError, "complex"),
    (lambda xp: xp.arange(0, 5, 0), ArgumentError, "step"),
    (lambda xp: xp.linspace(0, 1, -1), ArgumentError, "-1"),
    (lambda xp: xp.meshgrid(ones(2), indexing="yx"), ArgumentError, "'yx'"),
    (lambda xp: xp.tril(ones(3)), ShapeError, r"\(3,\)"),
    (lambda xp: xp.take(ones(2, 3), xp.asarray([0])), ArgumentError, "axes"),
    (lambda xp: xp.take(ones(2), xp.asarray([[0]])), ShapeError, "one axis"),
    (lambda xp: xp.take(ones(2), ones(1)), DTypeError, "integer"),
    (lambda xp: xp.take_along_axis(ones(2, 3), xp.asarray([0])), ShapeError, r"\(1,\)"),
    (lambda xp: xp.searchsorted(ones(2, 2), ones(1)), ShapeError, "one axis"),
    (lambda xp: xp.searchsorted(ones(2), ones(1), side="up"), ArgumentError, "up"),
    (lambda xp: xp.nonzero(xp.asarray(1)), ShapeError, "no axes"),
    (lambda xp: xp.where(ones(2), ones(2), ones(2)), DTypeError, "bool"),
    (lambda xp: xp.max(ones(0)), ShapeError, "no elements"),
    (lambda xp: xp.mean(xp.asarray([1])), DTypeError, "floating-point"),
    (lambda xp: xp.sum(xp.asarray([True])), DTypeError, "numeric"),
    (lambda xp: xp.sum(ones(2), axis=1), IndexRangeError, "axis 1"),
    (lambda xp: xp.cumulative_sum(ones(2, 3)), ArgumentError, "axes"),
    (lambda xp: xp.diff(ones(2), n=-1), ArgumentError, "-1"),
    (lambda xp: xp.diff(xp.asarray(1.0)), ShapeError, "no axes"),
    (lambda xp: xp.isdtype(xp.int8, "integer"), ArgumentError, "'integer'"),
    (lambda xp: xp.finfo(xp.int8), DTypeError, "int8"),
    (lambda xp: xp.iinfo(xp.float32), DTypeError, "float32"),
    (lambda xp: xp.result_type(1, 2.0), ArgumentError, "array or a dtype"),
    (lambda xp: xp.matmul(ones(2, 3), ones(2, 3)), ShapeError, "inner sizes"),
    (lambda xp: xp.matmul(xp.asarray(1.0), ones(1)), ShapeError, "axis"),
    (lambda xp: xp.matrix_transpose(ones(2)), ShapeError, "two axes"),
    (lambda xp: xp.tensordot(ones(2, 3), ones(2, 3), axes=1), ShapeError, "3 and 2"),
    (lambda xp: xp.vecdot(ones(2), ones(3)), ShapeError, "2 and 3"),
    (lambda xp: xp.vecdot(ones(2, 3), ones(2, 3), axis=0), ArgumentError, "axis 0"),
    (lambda xp: xp.linalg.cross(ones(2), ones(2)), ShapeError, "size 3"),
    (lambda xp: xp.linalg.solve(ones(2, 3), ones(2)), ShapeError, "square"),
    (lambda xp: xp.linalg.solve(ones(2, 2), ones(3)), ShapeError, "fit"),
    (lambda xp: xp.linalg.inv(xp.ones((2, 2), dtype=xp.int8)), DTypeError, "int8"),
    (lambda xp: xp.linalg.outer(ones(2, 2), ones(2)), ShapeError, "vectors"),
    (lambda xp: xp.linalg.matrix_norm(ones(2, 2), ord=3), ArgumentError, "3"),
]


@pytest.mark.parametrize(("case", "error", "says"), REFUSALS)
def test_refused(case: Case, error: type[TinycoreError], says: str) -> None:
    with pytest.raises(error, match=says):
        case(xp)


def test_a_singular_matrix_has_no_inverse() -> None:
    x = xp.asarray([[[1.0, 2.0], [2.0, 4.0]], [[2.0, 0.0], [0.0, 4.0]]])

    assert numpy.isnan(xp.linalg.inv(x)[0].numpy()).all()
    assert xp.linalg.inv(x)[1].tolist() == [[0.5, 0.0], [0.0, 0.25]]


# One element as a Python number


def test_one_element_converts() -> None:
    assert bool(Tensor(2)) is True
    assert bool(Tensor([[0.0]])) is False
    assert bool(Tensor(float("nan"))) is True
    assert (int(Tensor([7])), float(Tensor(2.5)), complex(Tensor(True))) == (7, 2.5, 1 + 0j)
    assert [10, 20, 30][Tensor(2)] == 30


def test_other_numbers_of_elements_do_not_convert() -> None:
    for tensor in (Tensor([1, 2]), Tensor.zeros(0)):
        with pytest.raises(ShapeError, match=r"bool: .*any\(\) or \.all\(\)"):
            bool(tensor)
        for convert in (int, float, complex):
            with pytest.raises(ShapeError, match="exactly one element"):
                convert(tensor)


def test_only_integers_are_positions() -> None:
    with pytest.raises(DTypeError, match=r"index: .*dtypes.float"):
        [1, 2][Tensor(1.0)]
    with pytest.raises(DTypeError, match=r"index: .*dtypes.bool"):
        range(Tensor(True))


@pytest.mark.parametrize("convert", [bool, int, float, complex, lambda x: [1, 2, 3][x]])
def test_a_captured_step_reads_nothing(convert: Any) -> None:
    step = TinyJit(lambda x: x + (1 if convert(x.sum()) else 0))
    step(Tensor([1, 1]).realize())

    with pytest.raises(JitError, match="read back"):
        step(Tensor([1, 1]).realize())


def test_the_namespace_of_a_tensor() -> None:
    assert Tensor(1).__array_namespace__() is xp
    assert Tensor(1).__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ArgumentError, match=r"'2019.01'.*2024\.12"):
        Tensor(1).__array_namespace__(api_version="2019.01")


def test_to_device_takes_no_stream() -> None:
    x = Tensor([1, 2], dtype=dtypes.int32)

    assert x.to_device(x.device) is x
    assert x.to_device("PYTHON").device == "PYTHON"
    with pytest.raises(ArgumentError, match="stream"):
        x.to_device(x.device, stream=1)  # type: ignore[arg-type]
