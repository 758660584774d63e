"""Names of arguments, dtypes and methods in torch, NumPy and tinygrad: taken or explained."""

from __future__ import annotations

import math
import operator
import re
import traceback
from collections.abc import Callable
from inspect import getmro
from operator import attrgetter
from typing import Any

import numpy
import pytest
import torch

import tinycore
from tinycore import nn
from tinycore.dtype import _from_torch_dtype, _to_torch_dtype, dtypes, to_dtype
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    UnknownDevice,
    UnknownNameError,
)
from tinycore.tensor import Tensor
from tinycore.tensor.interop.foreign_names import OF_NN, OF_OPTIM, OF_PACKAGE, OF_TENSOR

ROWS = [[1.0, 2.0], [3.0, 4.0]]


def x() -> Any:
    return Tensor(ROWS)


# --- names of arguments

TAKEN: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda t: t.sum(dim=0), lambda t: t.sum(0)),
    (lambda t: t.sum(axis=1, keepdims=True), lambda t: t.sum(1, True)),
    (lambda t: t.mean(dim=1, keep_dim=True), lambda t: t.mean(1, True)),
    (lambda t: t.argmax(dim=1), lambda t: t.argmax(1)),
    (lambda t: t.softmax(dim=-1), lambda t: t.softmax(-1)),
    (lambda t: t.cumsum(dim=1), lambda t: t.cumsum(1)),
    (lambda t: t.std(dim=0, ddof=0), lambda t: t.std(0, correction=0)),
    (lambda t: t.cat(t, axis=1), lambda t: t.cat(t, dim=1)),
    (lambda t: t.unsqueeze(axis=0), lambda t: t.unsqueeze(0)),
    (lambda t: t.flip(dims=(0,)), lambda t: t.flip(0)),
    (lambda t: t.permute(dims=(1, 0)), lambda t: t.T),
    (lambda t: t.reshape(shape=(4,)), lambda t: t.reshape(4)),
    (lambda t: t.clamp(min=2, max=3), lambda t: t.clamp(2, 3)),
    (lambda t: t.add(other=1), lambda t: t + 1),
    (numpy.sum, lambda t: t.sum()),
    (lambda t: numpy.mean(t, axis=0), lambda t: t.mean(0)),
    (lambda t: numpy.clip(t, 2, 3), lambda t: t.clamp(2, 3)),
]


@pytest.mark.parametrize(("written", "meant"), TAKEN)
def test_arguments_by_names_of_other_libraries(
    written: Callable[[Any], Any], meant: Callable[[Any], Any]
) -> None:
    assert written(x()).tolist() == meant(x()).tolist()


def test_unknown_arguments_are_told_with_the_known() -> None:
    with pytest.raises(
        ArgumentTypeError, match="sum: no argument is called 'foo'; it takes axis, "
    ):
        x().sum(foo=1)
    with pytest.raises(ArgumentTypeError, match=r"did you mean 'requires_grad'\? It takes data"):
        Tensor([1.0], requires_gard=True)  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="sum: 'dim' is 'axis', which was given twice"):
        x().sum(axis=0, dim=1)
    with pytest.raises(ArgumentTypeError, match="gather: missing 1 required positional argument"):
        x().gather(0)


# --- lists of tensors


def test_cat_and_stack_take_lists_as_in_torch() -> None:
    a: Any = Tensor
    one, theirs = x(), torch.tensor(ROWS)

    for rows in ([one, one], (one, one)):
        assert a.cat(rows).tolist() == torch.cat([theirs, theirs]).tolist()
        assert a.cat(rows, 1).tolist() == torch.cat([theirs, theirs], 1).tolist()
        assert a.cat(rows, dim=1).tolist() == torch.cat([theirs, theirs], 1).tolist()
        assert a.stack(rows, -1).tolist() == torch.stack([theirs, theirs], -1).tolist()
    assert one.cat([one, one]).shape == (6, 2)
    with pytest.raises(ArgumentError, match=r"stack: needs at least one tensor, got \[\]"):
        a.stack([])
    with pytest.raises(ArgumentTypeError, match="cat: args is 'a' of type str"):
        a.cat([one, "a"])


# --- NumPy arrays

NUMPY_FUNCTIONS: list[Callable[[Any], Any]] = [
    numpy.nonzero,
    numpy.argwhere,
    numpy.size,
    lambda a: numpy.size(a, 0),
    numpy.ndim,
    numpy.shape,
    lambda a: numpy.moveaxis(a, 0, 1),
    lambda a: numpy.rollaxis(a, 1),
    lambda a: numpy.block([[a, a], [a, a]]),
    lambda a: numpy.transpose(a, (1, 0)),
    lambda a: numpy.swapaxes(a, 0, 1),
    lambda a: numpy.repeat(a, 2, axis=1),
    lambda a: numpy.split(a, 2, axis=1),
    lambda a: numpy.take(a, [1, 0], axis=1),
    lambda a: numpy.roll(a, 1),
    lambda a: numpy.sort(a, axis=0),
    lambda a: numpy.partition(a, 1),
    lambda a: numpy.median(a, axis=1),
    lambda a: numpy.std(a, axis=0),
    lambda a: numpy.max(a, axis=0),
    lambda a: numpy.concatenate([a, numpy.ones((1, 2)), a]),
    numpy.array_repr,
    lambda a: numpy.result_type(a, numpy.float64) == numpy.float64,
]
"""Functions of NumPy; some have the names of methods that mean something else."""


@pytest.mark.parametrize("function", NUMPY_FUNCTIONS)
def test_functions_of_numpy_answer_as_for_an_array(function: Callable[[Any], Any]) -> None:
    array = x().numpy().astype("float32")
    found, expected = function(Tensor(array)), function(array)

    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            numpy.testing.assert_array_equal(one, other)
    elif isinstance(expected, str):
        assert found == expected
    else:
        numpy.testing.assert_allclose(numpy.asarray(found), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["?", "i1", "i4", "u2", "i8", "f2", "f4", "f8", ">i4", ">f4"])
def test_a_memoryview_holds_numbers_of_its_format(dtype: str) -> None:
    array: Any = numpy.arange(12).reshape(3, 4).astype(dtype)
    for view in (memoryview(array), memoryview(array)[::2], memoryview(array.T)):
        found = Tensor(view)
        assert found.tolist() == numpy.asarray(view).tolist()
        assert found.dtype is Tensor(array.astype(array.dtype.newbyteorder("="))).dtype


def test_a_memoryview_of_bytes_is_reinterpreted_and_other_formats_are_refused() -> None:
    numbers: Any = numpy.arange(4, dtype="float32")
    content = memoryview(numbers).cast("B")

    assert Tensor(content).tolist() == list(content)
    assert Tensor(content, dtype="float32").tolist() == [0.0, 1.0, 2.0, 3.0]
    assert Tensor(content[::4]).tolist() == list(content[::4])
    assert Tensor(memoryview(numbers), dtype="int32").tolist() == [0, 1, 2, 3]
    strange: Any = numpy.zeros(2, "complex128")
    with pytest.raises(DTypeError, match="format 'Zd' holds no numbers of a dtype"):
        Tensor(memoryview(strange))


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "pow", "mod", "lt", "eq", "matmul"]
)
def test_arrays_stand_on_either_side_of_an_operator(name: str) -> None:
    compute, array = getattr(operator, name), numpy.array([[2, 3], [5, 7]], numpy.float32)

    right, left = compute(x(), array), compute(array, x())

    assert isinstance(right, Tensor)
    assert isinstance(left, Tensor)
    numpy.testing.assert_allclose(right.numpy(), compute(numpy.array(ROWS), array), 1e-5)
    numpy.testing.assert_allclose(left.numpy(), compute(array, numpy.array(ROWS)), 1e-5)


def test_arrays_are_taken_where_a_tensor_is_asked_for() -> None:
    index = numpy.array([[0, 0], [1, 1]])

    assert x().gather(0, index).tolist() == x().gather(0, Tensor(index)).tolist()
    assert x().maximum(numpy.array([2.5, 2.5])).tolist() == [[2.5, 2.5], [3.0, 4.0]]
    assert (x() > 2).where(numpy.zeros((2, 2)), x()).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert (x() + numpy.ones(2)).dtype is dtypes.float64
    with pytest.raises(DTypeError, match="Complex"):
        x() + numpy.ones(2, complex)


# --- dtypes


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (numpy.float32, "float32"),
        (numpy.dtype("int8"), "int8"),
        (numpy.bool_, "bool"),
        (numpy.intc, "int32"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
        (torch.uint8, "uint8"),
        (torch.float8_e4m3fn, "fp8e4m3"),
        (torch.float8_e5m2, "fp8e5m2"),
        (float, "float32"),
        (int, "int32"),
        (bool, "bool"),
        ("torch.float64", "float64"),
    ],
    ids=str,
)
def test_dtypes_of_other_libraries(given: Any, name: str) -> None:
    assert to_dtype(given).name == Tensor([1], dtype=given).dtype.name == name
    assert x().cast(given).dtype.name == Tensor.zeros(2, dtype=given).dtype.name == name


@pytest.mark.parametrize("given", [numpy.complex64, torch.complex64, object, 3], ids=str)
def test_dtypes_that_there_are_not(given: Any) -> None:
    with pytest.raises(DTypeError, match="float32"):
        x().cast(given)


def test_dtypes_of_torch_by_tinygrads_names() -> None:
    for name in ("bool", "uint8", "int64", "bfloat16", "float8_e4m3fn"):
        dtype = getattr(torch, name)
        assert _to_torch_dtype(_from_torch_dtype(dtype)) is dtype


# --- names that there are not

ELSEWHERE: list[tuple[Callable[[], Any], str]] = [
    (lambda: x().cuda(), r"a Tensor has no 'cuda'; x.to\(device\) moves it"),
    (lambda: Tensor.from_numpy, r"Tensor has no 'from_numpy'; here it is Tensor\(array\)"),  # type: ignore[attr-defined]
    (lambda: x().cpu(), r"a Tensor has no 'cpu'; x.to\(device\) moves it"),
    (lambda: Tensor.cuda, r"^Tensor has no 'cuda'"),  # type: ignore[attr-defined]
    (lambda: nn.ReLU, r"nn has no 'ReLU'; here it is x.relu\(\)"),  # type: ignore[attr-defined]
    (lambda: nn.Module, "no base class"),  # type: ignore[attr-defined]
    (lambda: nn.Linaer, "did you mean Linear"),  # type: ignore[attr-defined]
    (lambda: tinycore.compile, "TinyJit"),
    (lambda: tinycore.Tensr, "did you mean Tensor"),
    (lambda: tinycore.zeros, "tinycore has no 'zeros'; here it is Tensor.zeros"),
    (lambda: tinycore.float32, "here it is dtypes.float32"),
    (lambda: tinycore.addmm, "here it is x [+] a @ b"),
    (lambda: tinycore.cuda, r"here it is x.to\(device\); DEV=device"),
    (lambda: nn.optim.RMSprop, r"nn.optim has no 'RMSprop'; here it is Adam\("),  # type: ignore[attr-defined]
    (lambda: nn.optim.Adamw, "did you mean Adam or AdamW"),  # type: ignore[attr-defined]
    (lambda: nn.BatchNorm1d, "here it is nn.BatchNorm\n"),  # type: ignore[attr-defined]
    (lambda: nn.optim.lr_scheduler.CyclicLR, r"no 'CyclicLR'; here it is LambdaLR\("),  # type: ignore[attr-defined]
    (lambda: nn.optim.lr_scheduler.StepLr, "did you mean StepLR"),  # type: ignore[attr-defined]
    (lambda: scheduler().state_dict, r"a StepLR has no 'state_dict'; here it is nn.state.get_sta"),
    (lambda: nn.Linear(2, 3).parameters(), r"Linear has no 'parameters'; here it is nn.state.get"),  # type: ignore[attr-defined]
    (lambda: nn.Embedding(2, 3).state_dict(), "an Embedding has no 'state_dict'; here it is nn"),  # type: ignore[attr-defined]
    (lambda: nn.GRU(2, 3).cuda(), "a GRU has no 'cuda'; here it is x.to_"),  # type: ignore[attr-defined]
    (lambda: nn.LayerNorm(2).eval(), "'eval'; here it is Tensor.training = False"),  # type: ignore[attr-defined]
    (lambda: nn.Conv2d.forward, r"^Conv2d has no 'forward'; here it is layer\(x\)"),  # type: ignore[attr-defined]
    (lambda: x().max(0).values, "x.max.axis. gives the greatest alone"),
]


def scheduler() -> Any:
    return nn.optim.lr_scheduler.StepLR(nn.optim.SGD([x()]), 2)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (torch.float16, r"device is torch.float16 .* x.cast\(dtype\) changes the dtype"),
        (numpy.float16, r"x.cast\(dtype\) changes the dtype"),
        (dtypes.half, r"device is dtypes.float16 .* x.cast\(dtype\) changes the dtype"),
        ("float16", r"'float16' is a dtype, no device: x.cast\('float16'\)"),
        (x, r"Give x.device; x.cast\(dtype\) changes the dtype"),
        (torch.device("cpu"), r"Give its name, str\(device\)"),
        (3, "it must be a string or a sequence of strings or None\n"),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_what_is_no_device_says_what_it_is(device: Any, message: str) -> None:
    with pytest.raises((ArgumentTypeError, UnknownDevice), match=message):
        x().to(device() if device is x else device)


def test_attributes_of_a_users_layer_are_its_own() -> None:
    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.train = 7

        def parameters(self) -> int:
            return 8

    assert (Own().train, Own().parameters()) == (7, 8)
    assert not hasattr(nn.Linear(2, 3), "parameters")


@pytest.mark.parametrize(("ask", "message"), ELSEWHERE)
def test_unknown_names_are_answered(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        ask()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: x().relus(), "'Tensor' object has no attribute 'relus'. Did you mean: 'relu'?"),
        (lambda: Tensor.zerso(3), "'Tensor' has no attribute 'zerso'. Did you mean: 'zeros'?"),  # type: ignore[attr-defined]
    ],
)
def test_misspelt_names_of_tensors_are_answered_by_python(
    ask: Callable[[], Any], message: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        ask()
    assert message in "".join(traceback.format_exception(caught.value))


def test_reading_an_attribute_of_a_tensor_calls_nothing_of_python() -> None:
    # with it, Python 3.11 specializes no read, and binds a method to an object before each call
    assert not any("__getattr__" in vars(link) for link in (*getmro(Tensor), *getmro(type(Tensor))))


def test_names_of_other_libraries_are_not_listed() -> None:
    for listed in (dir(Tensor), dir(x())):
        assert "reshape" in listed
        assert {"cuda", "astype", "lazydata"}.isdisjoint(listed)


def centered(rows: Any) -> Any:
    """The rows without their means."""
    return rows - rows.mean(1, keepdim=True)


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "scatter_add": lambda x: x.scatter_add(0, torch.tensor([[1, 0]]), x),
    "take": lambda x: x.take(torch.tensor([[1, 0]])),
    "take_along_dim": lambda x: x.take_along_dim(torch.tensor([[1, 0]]), 0),
    "t": lambda x: x.t(),
    "rot90": lambda x: x.rot90(),
    "fliplr": lambda x: x.fliplr(),
    "flipud": lambda x: x.flipud(),
    "absolute": lambda x: x.absolute(),
    "floor_divide": lambda x: x.floor_divide(x.T),
    "remainder": lambda x: x.remainder(x.T),
    "float_power": lambda x: x.float_power(x.T),
    "fmax": lambda x: x.fmax(x.T),
    "fmin": lambda x: x.fmin(x.T),
    "clamp_min": lambda x: x.clamp_min(2),
    "clamp_max": lambda x: x.clamp_max(2),
    "frac": lambda x: x.frac(),
    "deg2rad": lambda x: x.deg2rad(),
    "addcmul": lambda x: x.addcmul(x, x.T, value=3),
    "addcdiv": lambda x: x.addcdiv(x, x.T, value=3),
    "addmm": lambda x: x.addmm(x, x.T),
    "dist": lambda x: x.dist(x.T),
    "nansum": lambda x: x.nansum(0),
    "nanmean": lambda x: x.nanmean(0),
    "nan_to_num": lambda x: x.nan_to_num(),
    "count_nonzero": lambda x: x.count_nonzero(0),
    "msort": lambda x: x.msort(),
    "argwhere": lambda x: x.argwhere(),
    "prelu": lambda x: x.prelu(torch.tensor([3.0])),
    "moveaxis": lambda x: x.moveaxis(0, 1),
    "cov": lambda x: x.cov(),
    "cosine_similarity": lambda x: torch.cosine_similarity(x, x.T, -1),
    "smooth_l1_loss": lambda x: torch.nn.functional.smooth_l1_loss(x, centered(x)),
    "xlogy": lambda x: x.xlogy(centered(x)),
    "logspace": lambda x: torch.logspace(0, 2, 3),
}
"""Methods of torch that have an equivalent by another name, in torch's words."""
OPERANDS: dict[str, Any] = {"low": 2, "high": 2, "axis": 0, "value": 3, "weight": 3.0}
OPERANDS |= {"destination": 1, "math": math, "Tensor": Tensor, "base": 10, "start": 0, "stop": 2}
OPERANDS["steps"] = 3


@pytest.mark.parametrize("name", COMPUTED)
def test_an_equivalent_is_what_torch_computes(name: str) -> None:
    rows = [[1.5, float("nan") if name.startswith("nan") else -2.0], [0.0, 4.0]]
    mine, theirs = Tensor(rows), torch.tensor(rows)
    source = mine if name == "scatter_add" else 0
    scope = {"x": mine, "a": mine, "b": mine.T, "index": Tensor([[1, 0]]), "source": source}
    scope["y"] = centered(mine)

    found = eval(OF_TENSOR[name].split(";")[0], OPERANDS | scope)

    numpy.testing.assert_allclose(found.numpy(), COMPUTED[name](theirs).numpy(), 1e-6)


def test_equivalents_name_what_there_is() -> None:
    owners = {"Tensor": Tensor, "nn": nn, "dtypes": dtypes, "x": Tensor([[1.0]])}
    named = [
        path
        for table in (OF_TENSOR, OF_NN, OF_OPTIM, OF_PACKAGE)
        for text in table.values()
        for path in re.findall(r"\b(?:Tensor|nn|dtypes|x)(?:\.[a-zA-Z_]\w*)+", text)
    ]

    assert len(named) > 100
    for path in named:
        owner, *attributes = path.split(".")
        attrgetter(".".join(attributes))(owners[owner])


def test_a_module_that_is_called_like_a_function_of_torch() -> None:
    with pytest.raises(ArgumentTypeError, match=r"a tensor is made by Tensor\(data\)"):
        tinycore.tensor([1.0])  # type: ignore[operator]


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(x(), "cuda")
    assert getattr(x(), "foo", 3) == 3
    assert not hasattr(x(), "__sycl_usm_array_interface__")
    assert not hasattr(nn, "__wrapped__")


def test_lists_without_end() -> None:
    deep: list[Any] = [1]
    for _ in range(5000):
        deep = [deep]
    itself: list[Any] = []
    itself.append(itself)

    for data in (deep, itself):
        with pytest.raises(ShapeError, match="nested more than 64 deep"):
            Tensor(data)
        with pytest.raises(ShapeError, match="nested more than 64 deep"):
            x()[data]
