"""Names and arguments of tinygrad's programs, taken as they are."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

import tinycore
from tinycore.errors import ShapeError, UnknownDevice
from tinycore.helpers import fetch, getenv, to_mv
from tinycore.tensor import Tensor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

PAIR = ("PYTHON:0", "PYTHON:1")
GROUP = ("PYTHON", "PYTHON:1")


def test_rows_of_devices() -> None:
    x: Any = Tensor([[1.0, 2.0], [3.0, 4.0]])
    make: Any = Tensor

    assert x.to(PAIR).device == x.clone().to_(PAIR).device == GROUP
    assert x.rand_like(device=PAIR).device == make.rand(2, device=PAIR).device == GROUP
    assert make.zeros(2, device=list(PAIR)).device == GROUP
    assert make([1.0], device=("PYTHON",)).device == "PYTHON"
    assert x.to(PAIR).tolist() == x.tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "bfloat16", "fp8e5m2"])
def test_bytes_are_elements_as_they_are(dtype: str, tmp_path: Path) -> None:
    given = Tensor([1.0, 2.0, 3.0, 0.0], dtype=dtype)
    content = given.bitcast("uint8").numpy().tobytes() if dtype != "uint8" else bytes([1, 2, 3, 0])
    (tmp_path / "x").write_bytes(content)

    for source in (content, bytearray(content), memoryview(content), tmp_path / "x"):
        found = Tensor(source, dtype=dtype)
        assert (found.dtype, found.tolist()) == (given.dtype, given.tolist())
    assert Tensor(content).dtype.name == "uint8"
    assert Tensor(b"", dtype=dtype).shape == (0,)


def test_bytes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"3 bytes hold no whole number of dtypes\.float32"):
        Tensor(b"abc", dtype="float32")


def test_ranges_are_indices() -> None:
    x = Tensor([[1, 2], [3, 4], [5, 6]])

    assert x[range(2, 0, -1)].tolist() == [[5, 6], [3, 4]]
    assert x[range(2), 1].tolist() == [2, 4]
    assert x[range(0)].shape == (0, 2)
    x[range(0, 3, 2)] = 0
    assert x.tolist() == [[0, 0], [3, 4], [0, 0]]


def test_bytes_and_nested_lists_are_positions_as_in_numpy() -> None:
    rows = numpy.array([[1, 2], [3, 4]])
    x = Tensor(rows)

    for index in (numpy.array([1, 0, 1], numpy.uint8), [[0, 1], [1, 0]]):
        assert x[index].tolist() == rows[index].tolist()


def test_lists_of_tensors_are_indices() -> None:
    x, i = Tensor([[1, 2], [3, 4], [5, 6]]), Tensor(2)

    assert x[[i, 0]].tolist() == [[5, 6], [1, 2]]
    assert x[[Tensor([0, 1]), Tensor([2, 2])]].tolist() == [[[1, 2], [3, 4]], [[5, 6], [5, 6]]]
    x[[i, 0]] = 9
    assert x.tolist() == [[9, 9], [3, 4], [9, 9]]


def test_a_clone_has_the_gradient() -> None:
    x = Tensor([2.0], requires_grad=True)
    (x * 3).sum().backward()

    copy = x.clone()

    assert copy.grad is not None
    assert copy.grad is not x.grad
    assert copy.grad.tolist() == [3.0]
    (x.clone() * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5.0]


def test_contiguous_takes_hints_and_tensors_are_pickled() -> None:
    x: Any = Tensor([[1, 2], [3, 4]])

    assert x.T.contiguous(arg=("hint",)).tolist() == [[1, 3], [2, 4]]
    assert pickle.loads(pickle.dumps(x + 1)).tolist() == [[2, 3], [4, 5]]


def test_names_at_their_usual_places() -> None:
    package: Any = tinycore
    ops: Any = __import__("tinycore.uop.ops", fromlist=["Ops"])
    array = numpy.arange(4, dtype=numpy.uint8)
    x: Any = Tensor([1])

    assert (package.UOp, package.fetch, package.getenv) == (UOp, fetch, getenv)
    assert (ops.UOp, ops.Ops) == (UOp, Op)
    assert x.lazydata is x.uop
    view = to_mv(array.ctypes.data, 4)
    view[0] = 7
    assert array.tolist() == [7, 1, 2, 3]


@pytest.mark.parametrize(
    ("device", "answer"),
    [
        ("disk:/tmp/x", r"safe_save\(state, path\)"),
        ("DISK:x", r"Tensor\(path"),
        ("disk", r"Tensor\(path"),
        ("shm:x", "from_blob"),
        ("NPY", r"Tensor\(array\)"),
    ],
)
def test_storage_that_is_no_device_is_answered(device: str, answer: str) -> None:
    message = f"{device!r} is no device; here it is .*{answer}"
    with pytest.raises(UnknownDevice, match=message):
        Tensor([1.0]).to(device)
    with pytest.raises(UnknownDevice, match=message):
        Tensor.empty(4, device=device)
