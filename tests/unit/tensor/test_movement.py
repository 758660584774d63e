"""Shapes, order, padding, joining and cutting against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, IndexRangeError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
Function = Callable[..., Any]

CASES: dict[str, tuple[tuple[int, ...], Function, Function]] = {
    "reshape": ((2, 6), lambda x: x.reshape(3, -1), lambda x: x.reshape(3, -1)),
    "reshape_tuple": ((2, 6), lambda x: x.reshape((4, 3)), lambda x: x.reshape((4, 3))),
    "reshape_none": ((2, 6), lambda x: x.reshape(None, 2, 3), lambda x: x.reshape(2, 2, 3)),
    "view": ((2, 6), lambda x: x.view(12), lambda x: x.view(12)),
    "flatten": ((2, 3, 4), lambda x: x.flatten(1), lambda x: x.flatten(1)),
    "unflatten": ((2, 12), lambda x: x.unflatten(1, (3, -1)), lambda x: x.unflatten(1, (3, -1))),
    "squeeze": (
        (1, 3, 1),
        lambda x: [x.squeeze(), x.squeeze(0), x.squeeze(1)],
        lambda x: [x.squeeze(), x.squeeze(0), x.squeeze(1)],
    ),
    "unsqueeze": (
        (3,),
        lambda x: [x.unsqueeze(0), x.unsqueeze(-1)],
        lambda x: [x.unsqueeze(0), x.unsqueeze(-1)],
    ),
    "expand": ((3, 1), lambda x: x.expand(2, -1, 4), lambda x: x.expand(2, -1, 4)),
    "permute": ((2, 3, 4), lambda x: x.permute(2, 0, 1), lambda x: x.permute(2, 0, 1)),
    "transpose": ((2, 3, 4), lambda x: x.transpose(0, -1), lambda x: x.transpose(0, -1)),
    "T": ((2, 3), lambda x: x.T, lambda x: x.T),
    "movedim": ((2, 3, 4), lambda x: x.movedim(0, -1), lambda x: x.movedim(0, -1)),
    "flip": ((2, 3), lambda x: x.flip(0, 1), lambda x: x.flip(0, 1)),
    "roll": ((3, 4), lambda x: x.roll((1, -2), (0, 1)), lambda x: x.roll((1, -2), (0, 1))),
    "roll_flat": ((3, 4), lambda x: x.roll(5), lambda x: x.roll(5)),
    "shrink": ((3, 4), lambda x: x.shrink(((1, 3), None)), lambda x: x[1:3]),
    "pad_flat": ((2, 3), lambda x: x.pad((1, 2)), lambda x: F.pad(x, (1, 2))),
    "pad_pairs": ((2, 3), lambda x: x.pad(((0, 1), (2, 0))), lambda x: F.pad(x, (2, 0, 0, 1))),
    "pad_value": (
        (2, 3),
        lambda x: x.pad((1, 2, 0, 1), value=2.5),
        lambda x: F.pad(x, (1, 2, 0, 1), value=2.5),
    ),
    "pad_negative": ((2, 4), lambda x: x.pad((-1, 2)), lambda x: F.pad(x, (-1, 2))),
    "pad_reflect": (
        (1, 2, 5),
        lambda x: x.pad((3, 2), mode="reflect"),
        lambda x: F.pad(x, (3, 2), mode="reflect"),
    ),
    "pad_replicate": (
        (1, 2, 5),
        lambda x: x.pad((3, 7), mode="replicate"),
        lambda x: F.pad(x, (3, 7), mode="replicate"),
    ),
    "pad_circular": (
        (1, 2, 5),
        lambda x: x.pad((3, 2), mode="circular"),
        lambda x: F.pad(x, (3, 2), mode="circular"),
    ),
    "unfold": ((2, 9), lambda x: x.unfold(1, 3, 2), lambda x: x.unfold(1, 3, 2)),
    "split": ((7, 2), lambda x: x.split(3), lambda x: x.split(3)),
    "split_sizes": ((2, 6), lambda x: x.split([1, 2, 3], 1), lambda x: x.split([1, 2, 3], 1)),
    "chunk": ((7, 2), lambda x: x.chunk(3), lambda x: x.chunk(3)),
    "repeat": ((2, 3), lambda x: x.repeat(2, 1, 3), lambda x: x.repeat(2, 1, 3)),
    "repeat_interleave": (
        (2, 3),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: x.repeat_interleave(2, 1),
    ),
    "repeat_interleave_flat": (
        (2, 3),
        lambda x: x.repeat_interleave(2),
        lambda x: x.repeat_interleave(2),
    ),
    "diag": ((4,), lambda x: x.diag(), lambda x: x.diag()),
    "diagonal": ((3, 5), lambda x: x.diagonal(), lambda x: x.diagonal()),
    "diagonal_above": ((3, 5), lambda x: x.diagonal(1), lambda x: x.diagonal(1)),
    "diagonal_below": ((3, 5), lambda x: x.diagonal(-2), lambda x: x.diagonal(-2)),
    "diagonal_axes": ((2, 3, 4), lambda x: x.diagonal(1, 2, 0), lambda x: x.diagonal(1, 2, 0)),
    "tril": (
        (2, 4, 5),
        lambda x: [x.tril(), x.tril(1), x.tril(-2)],
        lambda x: [x.tril(), x.tril(1), x.tril(-2)],
    ),
    "triu": (
        (2, 4, 5),
        lambda x: [x.triu(), x.triu(1), x.triu(-2)],
        lambda x: [x.triu(), x.triu(1), x.triu(-2)],
    ),
    "rearrange": (
        (6, 4),
        lambda x: x.rearrange("(a b) c -> b (c a)", a=2),
        lambda x: x.reshape(2, 3, 4).permute(1, 2, 0).reshape(3, 8),
    ),
    "masked_fill": (
        (3, 4),
        lambda x: x.masked_fill(x > 0, -1.0),
        lambda x: x.masked_fill(x > 0, -1.0),
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_movement(name: str) -> None:
    shape, ours, theirs = CASES[name]

    compare(ours, theirs, numbers(*shape))


def test_cat() -> None:
    compare(
        lambda a, b, c: a.cat(b, c, dim=1),
        lambda a, b, c: torch.cat([a, b, c], 1),
        numbers(2, 3),
        numbers(2, 0),
        numbers(2, 4),
    )


def test_cat_promotes() -> None:
    joined = Tensor([1]).cat(Tensor([0.5]))

    assert joined.dtype is dtypes.float32
    assert joined.tolist() == [1.0, 0.5]


def test_cat_of_bools_and_infinities() -> None:
    assert Tensor([True]).cat(Tensor([False, True])).tolist() == [True, False, True]
    assert Tensor([float("inf")]).cat(Tensor([-float("inf")])).tolist() == [
        float("inf"),
        -float("inf"),
    ]


def test_stack() -> None:
    compare(
        lambda a, b: a.stack(b, dim=-1),
        lambda a, b: torch.stack([a, b], -1),
        numbers(2, 3),
        numbers(2, 3, seed=1),
    )


def test_class_call_takes_unpacked_tensors() -> None:
    parts = [Tensor([1]), Tensor([2])]

    assert Tensor.cat(*parts).tolist() == [1, 2]
    assert Tensor.stack(*parts).tolist() == [[1], [2]]


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_meshgrid(indexing: str) -> None:
    compare(
        lambda a, b, c: a.meshgrid(b, c, indexing=indexing),
        lambda a, b, c: torch.meshgrid(a, b, c, indexing=indexing),
        numbers(2),
        numbers(3),
        numbers(4),
    )


def test_pad_to_and_shrink_to() -> None:
    x = Tensor([[1, 2], [3, 4]])

    assert x.pad_to(None, 3, value=7).tolist() == [[1, 2, 7], [3, 4, 7]]
    assert x.shrink_to(1, None).tolist() == [[1, 2]]


def test_pad_of_integers_keeps_the_dtype_unless_the_value_is_broken() -> None:
    x = Tensor([1])

    assert x.pad((1, 1)).dtype is dtypes.int32
    assert x.pad((1, 1), value=7.0).tolist() == [7, 1, 7]
    assert x.pad((1, 0), value=2.5).tolist() == [2.5, 1.0]


def test_reshape_to_the_same_shape_is_the_same_node() -> None:
    x = Tensor([1, 2])

    assert x.reshape(2).uop is x.uop


def test_empty_tensors_move() -> None:
    x = Tensor.zeros(0, 3)

    assert x.reshape(3, 0).shape == (3, 0)
    assert x.permute(1, 0).flip(0).pad(((0, 0), (0, 2))).shape == (3, 2)
    assert x.cat(Tensor.ones(2, 3)).tolist() == [[1.0] * 3] * 2


ERRORS: list[tuple[Function, type[Exception], str]] = [
    (lambda x: x.reshape(5), ShapeError, r"reshape: shape \(2, 3\)"),
    (lambda x: x.expand(4, 3), ShapeError, r"expand: shape \(2, 3\)"),
    (lambda x: x.permute(0, 0), ShapeError, "permute"),
    (lambda x: x.transpose(0, 2), IndexRangeError, "transpose: axis 2"),
    (lambda x: x.flip(3), IndexRangeError, "flip: axis 3"),
    (lambda x: x.flip(0, 0), ArgumentError, "flip"),
    (lambda x: x.shrink(((0, 3), None)), ShapeError, "shrink"),
    (lambda x: x.pad((1, 1, 1, 1, 1, 1)), ShapeError, "pad: 6 amounts"),
    (lambda x: x.pad((1, 1), mode="mirror"), ArgumentError, "mirror"),
    (lambda x: x.pad((3, 0), mode="reflect"), ShapeError, "reflect"),
    (lambda x: x.cat(Tensor.zeros(2, 3, 1)), ShapeError, r"cat: shapes \(2, 3\) and \(2, 3, 1\)"),
    (lambda x: x.cat(x, dim=2), IndexRangeError, "cat: axis 2"),
    (lambda x: x.stack(Tensor.zeros(3)), ShapeError, "stack"),
    (lambda x: x.split([1, 2]), ShapeError, "split"),
    (lambda x: x.unsqueeze(4), IndexRangeError, "unsqueeze"),
    (lambda x: x.unsqueeze(0).diag(), ShapeError, "diag"),
    (lambda x: x.reshape(True, 6), ArgumentError, "reshape"),
    (lambda x: x.rearrange("a b -> b"), ArgumentError, "rearrange"),
]


@pytest.mark.parametrize(("function", "error", "text"), ERRORS, ids=[e[2] for e in ERRORS])
def test_mistakes_are_told_at_the_call(
    function: Function, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        function(Tensor.zeros(2, 3))


# --- what Tensor() takes


def test_nested_lists() -> None:
    x = Tensor([[1, 2], [3, 4]])

    assert (x.shape, x.dtype) == ((2, 2), dtypes.int32)
    assert x.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (3, dtypes.int32, ()),
        (2.5, dtypes.float32, ()),
        (True, dtypes.bool, ()),
        ([], dtypes.float32, (0,)),
        ([[]], dtypes.float32, (1, 0)),
        ([1, 2.5], dtypes.float32, (2,)),
        ([True, 2], dtypes.int32, (2,)),
        (b"abc", dtypes.uint8, (3,)),
        (numpy.float64(1.5), dtypes.float64, ()),
        (numpy.arange(3), dtypes.int64, (3,)),
        (numpy.zeros((2, 0)), dtypes.float64, (2, 0)),
    ],
    ids=repr,
)
def test_data_decides_dtype_and_shape(data: Any, dtype: Any, shape: Any) -> None:
    x = Tensor(data)

    assert (x.dtype, x.shape) == (dtype, shape)


def test_numpy_data_is_copied_in_row_order() -> None:
    array = numpy.arange(6).reshape(2, 3).T

    x = Tensor(array)
    array[:] = 0

    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_numbers_wrap_into_the_dtype_asked_for() -> None:
    assert Tensor([300, -1], dtype=dtypes.uint8).tolist() == [44, 255]
    assert Tensor([1.9, -1.9], dtype=dtypes.int32).tolist() == [1, -1]
    assert Tensor(2**64 - 1, dtype=dtypes.uint64).item() == 2**64 - 1


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, *dtypes.fp8s], ids=str)
def test_floats_that_numpy_lacks_are_rounded(dtype: Any) -> None:
    x = Tensor([1.0, -0.1, 200.0, 1e-9], dtype=dtype)

    names = {
        "bfloat16": torch.bfloat16,
        "fp8e4m3": torch.float8_e4m3fn,
        "fp8e5m2": torch.float8_e5m2,
        "fp8e4m3fnuz": torch.float8_e4m3fnuz,
        "fp8e5m2fnuz": torch.float8_e5m2fnuz,
    }
    assert (
        x.tolist() == torch.tensor([1.0, -0.1, 200.0, 1e-9]).to(names[dtype.name]).float().tolist()
    )


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(ShapeError, match="ragged"):
        Tensor([[1], [2, 3]])


@pytest.mark.parametrize("data", ["text", 1j, {1: 2}, [None]], ids=repr)
def test_strange_data_is_refused(data: Any) -> None:
    with pytest.raises(DTypeError):
        Tensor(data)


def test_item_needs_one_element() -> None:
    assert Tensor([[5]]).item() == 5
    with pytest.raises(ShapeError, match=r"item.*\(2,\)"):
        Tensor([1, 2]).item()


def test_facts() -> None:
    x = Tensor.zeros(2, 3, dtype=dtypes.float16)

    assert (x.numel(), x.nbytes(), x.ndim, len(x), x.size(), x.size(-1)) == (6, 12, 2, 2, (2, 3), 3)
    with pytest.raises(TypeError, match="len"):
        len(Tensor(1))
    with pytest.raises(ShapeError, match="truth"):
        bool(Tensor([1, 2]))


def test_repr_names_the_node_shape_dtype_and_device() -> None:
    x = Tensor([1.0, 2.0, 3.0])

    assert (
        repr(x * x)
        == f"<Tensor <UOp {x.device} (3,) float32 (Op.MUL, None)> on {x.device} with grad None>"
    )
