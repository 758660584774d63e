"""Level 2: reductions, movement, products of matrices, windows, as tensor programs use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy

from tiny_testing.suite.case import Level, Variant, case
from tiny_testing.suite.compare import check, unit_of
from tiny_testing.suite.operations import generator, inputs_for, words_of
from tiny_testing.suite.subject import Array, Subject
from tinycore import Tensor
from tinycore.dtype import DType, dtypes
from tinycore.uop.op import REDUCTIONS, Op

__all__ = [
    "test_a_convolution",
    "test_a_matrix_product",
    "test_a_reduction",
    "test_an_empty_tensor",
    "test_elements_are_picked_and_placed",
    "test_extremes_have_places",
    "test_many_buffers_in_one_kernel",
    "test_movement",
    "test_movement_of_every_dtype",
    "test_numbers_are_sorted",
    "test_random_numbers_are_the_same",
    "test_running_sums",
    "test_softmax",
]

Axis = int | tuple[int, ...] | None


class Fold(NamedTuple):
    """A reduction of a dtype over axes of a shape."""

    op: Op
    dtype: DType
    shape: tuple[int, ...]
    axis: Axis


TENSOR_FOLDS: Final[dict[Op, Callable[[Tensor, Axis], Tensor]]] = {
    Op.ADD: lambda x, axis: x.sum(axis),
    Op.MUL: lambda x, axis: x.prod(axis),
    Op.MAX: lambda x, axis: x.max(axis),
    Op.MIN: lambda x, axis: x.min(axis),
}
REDUCED_SHAPES: Final[dict[str, tuple[tuple[int, ...], Axis]]] = {
    "rows": ((5, 37), 1),
    "columns": ((37, 5), 0),
    "long": ((3, 4099), 1),
    "whole": ((2100,), None),
    "two": ((4, 6, 9), (0, 2)),
}
EVERY_DTYPE: Final = tuple(Variant(d.name, d, words_of(d)) for d in dtypes.all)
REDUCTION_VARIANTS: Final = tuple(
    Variant(f"{op.name}-{dtype.name}-{name}", Fold(op, dtype, shape, axis), words_of(dtype))
    for dtype in dtypes.all
    for op in sorted(REDUCTIONS, key=lambda op: op.name)
    for name, (shape, axis) in REDUCED_SHAPES.items()
    if name in ("rows", "long") or dtype in (dtypes.float32, dtypes.int32)
)


def accumulator_of(dtype: DType) -> DType:
    """The float in which sums of a float are accumulated."""
    return dtype if dtype is dtypes.float64 else dtypes.float32


@case(Level.COMPUTE, over=REDUCTION_VARIANTS)
def test_a_reduction(subject: Subject, fold: Fold) -> None:
    """Sums, products and extremes along axes; floats within the error of any order of summing."""
    op, dtype, shape, axis = fold
    size = int(numpy.prod(shape))
    (values,) = inputs_for(dtype, 1, f"fold {op.name}", size)
    if op is Op.MUL and dtypes.is_float(dtype):  # of thousands of factors, mostly 1
        factors = generator(fold).random(size) < 8 / size
        values = numpy.where(factors, numpy.sign(values) * 1.5, 1.0)
    x = subject.tensor(values.reshape(shape), dtype)
    check(subject, lambda x: TENSOR_FOLDS[op](x, axis), x, slack=slack_of(fold, x.numpy()))


def slack_of(fold: Fold, values: Array) -> Array | float:
    """Error bound of a sum or product of floats: its terms are added in any order."""
    op, dtype, _, axis = fold
    if not dtypes.is_float(dtype) or op in (Op.MAX, Op.MIN):
        return 0.0
    terms = numpy.abs(values.astype(numpy.float64))
    whole = terms.sum(axis=axis) if op is Op.ADD else terms.prod(axis=axis)
    steps = values.size // max(1, whole.size)
    return numpy.asarray(whole * (steps * unit_of(accumulator_of(dtype)) / 2 + unit_of(dtype)))


# --- movement


MOVES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "permute": lambda x: x.permute(2, 0, 1),
    "reshape": lambda x: x.permute(1, 0, 2).reshape(7, 30),
    "expand": lambda x: x.reshape(5, 7, 1, 6).expand(5, 7, 3, 6),
    "pad": lambda x: x.pad(((1, 2), (0, 3), (2, 0))),
    "shrink": lambda x: x.shrink(((1, 4), (0, 7), (2, 5))),
    "flip": lambda x: x.flip((0, 2)),
    "stride": lambda x: x[::2, 1::3, ::-1],
    "pad then shrink": lambda x: x.pad(((2, 2), (0, 0), (1, 1))).shrink(((1, 8), (1, 6), (0, 7))),
    "cat": lambda x: x.cat(x.flip(1), x, dim=1),
    "stack": lambda x: x.stack(x + x, dim=1),
    "roll": lambda x: x.roll(3, 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "transpose and add": lambda x: x + x.permute(0, 2, 1).flip(1).permute(0, 2, 1),
}
MOVE_VARIANTS: Final = tuple(Variant(name.replace(" ", "_"), move) for name, move in MOVES.items())


@case(Level.COMPUTE, over=MOVE_VARIANTS)
def test_movement(subject: Subject, move: Callable[[Tensor], Tensor]) -> None:
    """Elements change places; what is padded is 0."""
    for dtype in (dtypes.float32, dtypes.int32):
        (values,) = inputs_for(dtype, 1, "move", 210)
        check(
            subject, lambda x: move(x).contiguous(), subject.tensor(values.reshape(5, 7, 6), dtype)
        )


@case(Level.COMPUTE, over=EVERY_DTYPE)
def test_movement_of_every_dtype(subject: Subject, dtype: DType) -> None:
    """Elements of a dtype are loaded and stored at odd places, and padded, in whatever width."""
    (values,) = inputs_for(dtype, 1, "move", 7 * 13)
    x = subject.tensor(values.reshape(7, 13), dtype)
    check(subject, lambda x: x.permute(1, 0).pad(((1, 2), (3, 0))).flip(1).contiguous(), x)
    check(subject, lambda x: x[1:6:2, ::-3].contiguous(), x)


# --- composed


PRODUCTS: Final = tuple(
    Variant(f"{name}-{m}x{k}x{n}", (dtype, m, k, n), words_of(dtype))
    for name, dtype in (
        ("float32", dtypes.float32),
        ("float16", dtypes.float16),
        ("bfloat16", dtypes.bfloat16),
        ("float64", dtypes.float64),
        ("int32", dtypes.int32),
        ("int8", dtypes.int8),
    )
    for m, k, n in ((1, 1, 1), (3, 65, 17), (64, 64, 64), (130, 33, 70))
)


@case(Level.COMPUTE, over=PRODUCTS)
def test_a_matrix_product(subject: Subject, problem: tuple[DType, int, int, int]) -> None:
    """Products of matrices that do and do not fit tiles."""
    dtype, m, k, n = problem
    left, right = inputs_for(dtype, 2, "matmul", m * k + k * n)
    a = subject.tensor(left[: m * k].reshape(m, k), dtype)
    b = subject.tensor(right[: k * n].reshape(k, n), dtype)
    slack: Array | float = 0.0
    if dtypes.is_float(dtype):
        sizes = numpy.abs(a.numpy().astype(float)) @ numpy.abs(b.numpy().astype(float))
        slack = sizes * (k * unit_of(accumulator_of(dtype)) + unit_of(dtype))
    check(subject, lambda a, b: a @ b, a, b, slack=slack)


@case(Level.COMPUTE)
def test_a_convolution(subject: Subject) -> None:
    """Two-dimensional windows: strides, padding, groups, pooling."""
    random = generator("convolution")
    x = subject.tensor(random.standard_normal((2, 4, 9, 8)), dtypes.float32)
    w = subject.tensor(random.standard_normal((6, 4, 3, 3)), dtypes.float32)
    grouped = subject.tensor(random.standard_normal((4, 1, 3, 3)), dtypes.float32)
    near = 36 * 30 * unit_of(dtypes.float32)
    check(subject, lambda x, w: x.conv2d(w, padding=1), x, w, slack=near)
    check(subject, lambda x, w: x.conv2d(w, stride=2, dilation=2), x, w, slack=near)
    check(subject, lambda x, w: x.conv2d(w, groups=4), x, grouped, slack=near)
    check(subject, lambda x: x.max_pool2d((2, 3)), x)
    check(subject, lambda x: x.avg_pool2d((2, 2)), x, slack=near)


@case(Level.COMPUTE)
def test_softmax(subject: Subject) -> None:
    """Reductions that feed each other: softmax and normalization by rows."""
    x = subject.tensor(generator("softmax").standard_normal((6, 333)) * 4, dtypes.float32)
    near = 333 * unit_of(dtypes.float32)
    check(subject, lambda x: x.softmax(), x, slack=near)
    check(subject, lambda x: x.log_softmax(axis=0), x, slack=near)
    check(subject, lambda x: x.layernorm(), x, slack=near)
    check(subject, lambda x: x.std(axis=1), x, slack=near)


@case(Level.COMPUTE)
def test_extremes_have_places(subject: Subject) -> None:
    """The first of the greatest and of the least elements is found."""
    values = generator("places").integers(0, 9, (11, 50))
    x = subject.tensor(values, dtypes.int32)
    assert x.argmax(axis=1).numpy().tolist() == values.argmax(axis=1).tolist()
    assert x.argmin(axis=0).numpy().tolist() == values.argmin(axis=0).tolist()


@case(Level.COMPUTE)
def test_running_sums(subject: Subject) -> None:
    """Sums along an axis so far, short and long."""
    for size in (10, 1500):
        values = generator("running").integers(-9, 9, (3, size))
        x = subject.tensor(values, dtypes.int32)
        assert (x.cumsum(1).numpy() == values.cumsum(1)).all(), f"sums of {size} are wrong"


@case(Level.COMPUTE)
def test_numbers_are_sorted(subject: Subject) -> None:
    """Rows in order, with the places that the elements had."""
    values = generator("sort").permutation(120).reshape(4, 30)
    ordered, places = subject.tensor(values, dtypes.int32).sort()
    assert (ordered.numpy() == numpy.sort(values)).all()
    assert (places.numpy() == numpy.argsort(values)).all()


@case(Level.COMPUTE)
def test_elements_are_picked_and_placed(subject: Subject) -> None:
    """Rows by their numbers, from and into memory; a number outside gives 0."""
    random = generator("pick")
    table = subject.tensor(random.standard_normal((10, 4)), dtypes.float32)
    places = subject.tensor(numpy.array([[3, 0], [9, 3]]), dtypes.int32)
    rows = subject.tensor(random.standard_normal((3, 4)), dtypes.float32)
    check(subject, lambda t, i: t[i], table, places)
    check(subject, lambda t, i: t.gather(0, i), table, places)

    changed = table.clone().realize()
    changed[2:8:2] = rows
    expected = table.numpy().copy()
    expected[2:8:2] = rows.numpy()
    assert (changed.numpy() == expected).all(), "a slice was assigned to wrong places"


@case(Level.COMPUTE)
def test_many_buffers_in_one_kernel(subject: Subject) -> None:
    """A sum of forty tensors: more memory than some languages let one program have."""
    parts = [subject.tensor(numpy.arange(33) * n, dtypes.int32) for n in range(40)]

    def total(*parts: Tensor) -> Tensor:
        found = parts[0]
        for part in parts[1:]:
            found = found + part
        return found

    check(subject, total, *parts)


@case(Level.COMPUTE)
def test_an_empty_tensor(subject: Subject) -> None:
    """No elements, one element, and no axes."""
    empty = Tensor.zeros(0, 3, device=subject.name)
    assert empty.sum(0).tolist() == [0.0, 0.0, 0.0]
    assert (empty + 1).numpy().shape == (0, 3)
    one = subject.tensor(numpy.array([2.5]), dtypes.float32)
    assert (one * 2).sum().item() == 5.0
    assert Tensor(3.0, device=subject.name).exp().log().reshape(1, 1).numpy().shape == (1, 1)


@case(Level.COMPUTE, "uint64")
def test_random_numbers_are_the_same(subject: Subject) -> None:
    """The random numbers of a seed are those of every other device."""
    Tensor.manual_seed(7)
    found = Tensor.rand(500, device=subject.name).numpy()
    Tensor.manual_seed(7)
    expected = Tensor.rand(500, device="PYTHON").numpy()
    assert (found == expected).all(), "rand(500) differs from that of PYTHON"
    assert ((found >= 0) & (found < 1)).all()
