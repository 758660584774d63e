"""Tensors in text, under NumPy's functions, and made of torch's."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy
import pytest
import torch

from tinycore.dtype import dtypes
from tinycore.engine.counters import GlobalCounters
from tinycore.tensor import Tensor
from tinycore.tensor.capture.jit import TinyJit

ROWS = [[0.25, 2.0], [3.0, 4.5]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "fp8e5m2", "int64", "bool"])
def test_print_shows_computed_elements(dtype: str) -> None:
    x = Tensor(ROWS, dtype=dtype).realize()

    shown = str(x)

    assert shown.startswith("Tensor([[")
    assert shown.endswith(f", dtype={dtype}, device={x.device})")
    assert shown.count("\n") == 1
    assert str(x.T) == str(x.T.contiguous().realize())


def test_print_computes_nothing() -> None:
    lazy, written = Tensor(ROWS) + 1, Tensor([1, 2, 3]).realize()
    written[0] = 9
    before = GlobalCounters.kernel_count

    assert str(lazy).startswith(f"<Tensor <UOp {lazy.device} (2, 2) float32 (Op.ADD")
    assert str(written).startswith(f"<Tensor <UOp {written.device} (3,) int32 (Op.ASSIGN")
    assert GlobalCounters.kernel_count == before
    assert str(written.realize()) == f"Tensor([9, 2, 3], dtype=int32, device={written.device})"


def test_containers_show_the_elements() -> None:
    x = Tensor([1, 2]).realize()

    assert repr([x]) == f"[Tensor([1, 2], dtype=int32, device={x.device})]"
    assert f"{x!r}" == str(x)


def test_of_many_elements_the_first_and_last_are_shown() -> None:
    x = Tensor.arange(5000).realize()

    tail = f"4999], shape=(5000,), dtype=int32, device={x.device})"
    assert str(x).startswith("Tensor([   0,")
    assert str(x).endswith(tail)
    empty = Tensor(numpy.zeros((0, 3), "float32")).realize()
    assert "Tensor(" not in str(empty) or "shape=(0, 3)" in str(empty)


def test_a_captured_function_may_print_its_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        print([x])
        return (x + 1).realize()

    found = [step(Tensor([n]).realize()).item() for n in range(4)]

    assert found == [1, 2, 3, 4]
    _, captured = capsys.readouterr().out.splitlines()
    assert "Op.BUFFER" in captured, "the elements of the capture are not those of a replay"


def test_print_of_what_cannot_be_read() -> None:
    x = Tensor(ROWS, device="NULL").realize()

    assert str(x).startswith("<Tensor <UOp NULL (2, 2) float32")


def test_numbers_are_formatted() -> None:
    assert f"{Tensor([1.0, 2.0]).mean():.3f}" == "1.500"
    assert f"{Tensor(7):>4d}" == "   7"
    assert f"{Tensor([1, 2]).realize()}".startswith("Tensor([1, 2]")
    with pytest.raises(ValueError, match=r"one element|shape"):
        f"{Tensor([1.0, 2.0]):.3f}"


UNARY = "exp exp2 log log2 log10 log1p expm1 sqrt square sin cos tan tanh arctan floor ceil abs"


@pytest.mark.parametrize("name", [*UNARY.split(), "negative", "isfinite", "sign", "rint"])
def test_functions_of_numpy_build_graphs(name: str) -> None:
    found: Any = getattr(numpy, name)(Tensor(ROWS))

    assert isinstance(found, Tensor)
    expected = getattr(numpy, name)(numpy.array(ROWS, numpy.float32))
    numpy.testing.assert_allclose(found.numpy(), expected, 1e-5, 1e-6)


@pytest.mark.parametrize("name", "add subtract divide power maximum greater equal matmul".split())
def test_functions_of_two_operands(name: str) -> None:
    function, array = getattr(numpy, name), numpy.array([[1, 2], [3, 1]], numpy.float32)
    expected = function(numpy.array(ROWS, numpy.float32), array)

    for found in (function(Tensor(ROWS), array), function(Tensor(ROWS), Tensor(array))):
        assert isinstance(found, Tensor)
        numpy.testing.assert_allclose(found.numpy(), expected, 1e-5)
    back = function(array, Tensor(ROWS))
    assert isinstance(back, Tensor)
    numpy.testing.assert_allclose(back.numpy(), function(array, numpy.array(ROWS)), 1e-5)


def test_what_is_no_method_is_computed_by_numpy() -> None:
    x, array = Tensor([3.0, 4.0]), numpy.ones(2, numpy.float32)

    assert isinstance(numpy.hypot(x, array), numpy.ndarray)
    assert numpy.add.reduce(x) == 7.0
    array += x
    assert array.tolist() == [4.0, 5.0]
    assert float(numpy.linalg.norm(x)) == 5.0


def test_numbers_of_numpy_before_a_tensor() -> None:
    x = Tensor([1.0, 2.0])

    for compute in (operator.add, operator.sub, operator.mul, operator.truediv, operator.lt):
        found = compute(numpy.float32(3), x)
        assert isinstance(found, Tensor)
        assert found.tolist() == compute(3.0, numpy.array([1.0, 2.0])).tolist()
        assert found.dtype in (dtypes.float32, dtypes.bool)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn", "int64", "bool"]
)
def test_tensors_of_torch_of_any_dtype(dtype: str) -> None:
    theirs = torch.tensor([[0.0, 1.0], [2.0, -3.0]]).to(getattr(torch, dtype))

    ours = Tensor(theirs.T)

    assert ours.shape == (2, 2)
    assert type(ours.uop.arg) is tuple  # no class of torch is in a graph
    assert ours.float().tolist() == theirs.T.float().tolist()
    assert Tensor(theirs, dtype="float64").dtype is dtypes.float64
    assert Tensor(torch.tensor(2.5).to(torch.bfloat16)).item() == 2.5
    assert Tensor(torch.ones(2, requires_grad=True) * math.pi).shape == (2,)
