"""Sorting and selection by condition against torch and NumPy."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import ArgumentError
from tinycore.tensor import Tensor


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 37])
def test_sort(size: int, descending: bool) -> None:
    compare(
        lambda x: x.sort(0, descending)[0], lambda x: x.sort(0, descending)[0], numbers(size, 2)
    )


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(descending: bool) -> None:
    x = integers(40, low=0, high=4)

    compare(
        lambda t: list(t.sort(0, descending)),
        lambda t: list(torch.sort(t, stable=True, descending=descending)),
        x,
        gradient=False,
    )


def test_nan_is_greater_than_any_number() -> None:
    x = Tensor([math.nan, math.inf, -1.0, math.nan, 2.0])

    assert x.argsort().tolist() == [2, 4, 1, 0, 3]
    assert x.argsort(descending=True).tolist() == [0, 3, 1, 4, 2]


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 448.0, 2.0**-9, -3.0]
KINDS = {
    "float": [
        *(dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16),
        *(dtypes.fp8e4m3, dtypes.fp8e5m2),
    ],
    "int": [dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64],
    "uint": [dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64],
    "bool": [dtypes.bool],
}


def drawn(kind: DType, *shape: int) -> Tensor:
    """Elements of a dtype, many of them equal, the least and the greatest of all among them."""
    random = numpy.random.default_rng([len(shape), *shape])
    if dtypes.is_float(kind):
        return Tensor(random.choice(SPECIAL, shape), dtype=dtypes.float32).cast(kind)
    ends = [int(dtypes.min(kind)), int(dtypes.max(kind))]
    choice = [*ends, ends[1] - 1, 0, 1, ends[1] // 3]
    values = numpy.array(choice, dtype=to_numpy_dtype(kind))[random.integers(0, 6, shape)]
    return Tensor(values, dtype=kind)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [d for kinds in KINDS.values() for d in kinds], ids=str)
def test_every_dtype_is_sorted_as_torch_sorts(dtype: DType, descending: bool) -> None:
    x = drawn(dtype, 77).realize()
    wide = x.cast(dtypes.float64) if dtypes.is_float(dtype) else x
    theirs = wide.numpy().astype(object) if dtype is dtypes.uint64 else wide.numpy()
    if dtype is dtypes.uint64:
        theirs = (theirs - 2**63).astype(numpy.int64)
    order = torch.sort(torch.tensor(theirs), stable=True, descending=descending)[1].numpy()

    values, places = x.sort(0, descending)

    assert places.tolist() == order.tolist()
    assert (values.numpy().tobytes()) == x.numpy()[order].tobytes()


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1000,), 0), ((3, 70), 1), ((70, 3), 0), ((2, 40, 3), 1), ((2, 3, 33), -1), ((513,), 0)],
)
def test_sizes_of_all_kinds(shape: tuple[int, ...], axis: int) -> None:
    numbers = integers(*shape, low=-5, high=5)
    for descending in (False, True):
        theirs = torch.sort(torch.tensor(numbers), stable=True, dim=axis, descending=descending)
        values, places = Tensor(numbers).sort(axis, descending)
        assert (values.numpy() == theirs[0].numpy()).all()
        assert (places.numpy() == theirs[1].numpy()).all()


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (0, 3), ()])
def test_nothing_and_one(shape: tuple[int, ...]) -> None:
    x = Tensor.ones(*shape)

    values, places = x.sort()

    assert values.shape == places.shape == shape
    assert not places.numpy().any()


@pytest.mark.parametrize("k", [1, 2, 6, 7, 16, 17, 100, 999])
def test_the_first_of_many(k: int) -> None:
    numbers = integers(2, 999, low=-300, high=300)
    theirs = torch.sort(torch.tensor(numbers), stable=True, descending=True)

    values, places = Tensor(numbers).topk(k)

    assert (values.numpy() == theirs[0].numpy()[:, :k]).all()
    assert (places.numpy() == theirs[1].numpy()[:, :k]).all()


@pytest.mark.device("CPU")
def test_few_are_found_by_one_kernel() -> None:
    _, places = Tensor(numbers(4, 300).astype("float32"), device="CPU").realize().topk(3)
    assert len(places.schedule()) == 1


def test_few_are_found_in_order() -> None:
    x = numpy.array([2.0, numpy.nan, -0.0, 0.0, numpy.inf] * 5, "float32")
    values, places = Tensor(x).topk(6, largest=False)
    assert values.eq(0).all().item()
    assert places.tolist() == [2, 3, 7, 8, 12, 13]
    assert Tensor(x).topk(6)[1].tolist() == [1, 6, 11, 16, 21, 4]


def test_topk() -> None:
    compare(lambda x: x.topk(3)[0], lambda x: x.topk(3)[0], numbers(4, 7))
    assert Tensor([5, 9, 7]).topk(2)[1].tolist() == [1, 2]
    assert Tensor([5, 9, 7]).topk(1, largest=False)[0].tolist() == [5]
    with pytest.raises(ArgumentError, match="topk"):
        Tensor([1]).topk(2)


def test_nonzero() -> None:
    x = integers(4, 5, low=-1, high=2)

    assert (Tensor(x).nonzero().numpy() == numpy.argwhere(x)).all()
    assert Tensor([0, 3, 4]).nonzero(size=3).tolist() == [[1], [2], [0]]
    assert Tensor([0, 0]).nonzero().shape == (0, 1)


def test_masked_select() -> None:
    compare(lambda x: x.masked_select(x > 0), lambda x: x.masked_select(x > 0), numbers(4, 5))
    assert Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=3).tolist() == [
        1,
        3,
        0,
    ]
    assert Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=1).tolist() == [1]
