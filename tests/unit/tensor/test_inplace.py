"""`x += 1` and methods that end in `_` write where the tensor is, as torch's do."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy
import pytest
import torch

from tinycore import Context, Tensor, TinyJit, Variable, nn
from tinycore.errors import DTypeError, ShapeError

OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "+=": (operator.iadd, "float32"),
    "-=": (operator.isub, "float32"),
    "*=": (operator.imul, "float32"),
    "/=": (operator.itruediv, "float32"),
    "//=": (operator.ifloordiv, "int32"),
    "%=": (operator.imod, "int32"),
    "**=": (operator.ipow, "float32"),
    "&=": (operator.iand, "int32"),
    "|=": (operator.ior, "int32"),
    "^=": (operator.ixor, "int32"),
    "<<=": (operator.ilshift, "int32"),
    ">>=": (operator.irshift, "int32"),
    "@=": (operator.imatmul, "float32"),
}


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_writes_where_every_alias_sees_it(name: str, realized: bool) -> None:
    write, dtype = OPERATORS[name]
    start = numpy.array([[5, 7], [9, 12]], dtype)
    other = numpy.array([[2, 3], [1, 2]], dtype)
    x = Tensor(start).realize() + 0
    if realized:
        x.realize()
    held, row = [x], x[1]
    expected = start.copy()
    expected = start @ other if name == "@=" else write(expected, other)

    result = write(x, Tensor(other))

    assert result is x
    numpy.testing.assert_allclose(held[0].numpy(), expected, rtol=1e-6)
    numpy.testing.assert_allclose(row.numpy(), expected[1], rtol=1e-6)


METHODS: dict[str, Callable[[Any], Any]] = {
    "add_": lambda x: x.add_(2.0, alpha=3),
    "sub_": lambda x: x.sub_(x, alpha=0.5),
    "mul_": lambda x: x.mul_(1.5),
    "div_": lambda x: x.div_(4.0, rounding_mode="floor"),
    "pow_": lambda x: x.pow_(2),
    "clamp_": lambda x: x.clamp_(0.5, 2.0),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, 0.0),
    "lerp_": lambda x: x.lerp_(x * 2, 0.25),
    "copy_": lambda x: x.copy_(x[:1] * 2),
    "fill_": lambda x: x.fill_(3.0),
    "zero_": lambda x: x.zero_(),
    "abs_": lambda x: x.abs_(),
    "neg_": lambda x: x.neg_(),
    "exp_": lambda x: x.exp_(),
    "log_": lambda x: x.abs_().log_(),
    "sqrt_": lambda x: x.abs_().sqrt_(),
    "rsqrt_": lambda x: x.abs_().rsqrt_(),
    "reciprocal_": lambda x: x.reciprocal_(),
    "floor_": lambda x: x.floor_(),
    "ceil_": lambda x: x.ceil_(),
    "round_": lambda x: x.round_(),
    "trunc_": lambda x: x.trunc_(),
    "relu_": lambda x: x.relu_(),
    "sigmoid_": lambda x: x.sigmoid_(),
    "tanh_": lambda x: x.tanh_(),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_writes_what_torch_writes(name: str, realized: bool) -> None:
    data = [[-1.25, 2.5], [0.75, 3.0]]
    x, other = Tensor(data).realize() * 1, torch.tensor(data)
    if realized:
        x.realize()
    column = x[:, 1]

    result = METHODS[name](x)
    METHODS[name](other)

    assert result is x
    numpy.testing.assert_allclose(x.numpy(), other.numpy(), rtol=1e-5)
    numpy.testing.assert_allclose(column.numpy(), other.numpy()[:, 1], rtol=1e-5)


def test_draws_are_written() -> None:
    x = Tensor.zeros(1000).contiguous().realize()
    alias = x.reshape(10, 100)

    x.uniform_(2, 3)
    assert 2 <= alias.min().item() < 2.1
    assert 2.9 < alias.max().item() < 3
    x.normal_(5, 0.1)
    assert abs(alias.mean().item() - 5) < 0.02


def test_a_list_of_parameters_sees_a_step_by_hand() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    parameters = [w]

    for _ in range(3):
        w.grad = None
        (w * w).sum().backward()
        w -= 0.25 * w.grad  # type: ignore[operator]
    assert parameters[0] is w
    assert parameters[0].tolist() == [0.125, 0.25]
    assert w.requires_grad


@pytest.mark.parametrize("write", [lambda x: x.__iadd__(1), lambda x: x.mul_(2), lambda x: x[0]])
def test_a_captured_function_writes_to_its_argument(
    write: Callable[[Tensor], Tensor], target: str
) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")

    def change(x: Tensor) -> Tensor:
        write(x)
        x -= 0.5
        return x * 2

    step = TinyJit(change)
    x, plain = (Tensor([1.0, 2.0, 3.0]).realize() for _ in range(2))
    for _ in range(5):
        assert step(x).tolist() == change(plain).tolist()
        assert x.tolist() == plain.tolist()


def test_a_captured_function_writes_to_state(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    state, half = Tensor([1.0, 2.0]).realize(), Tensor([4.0]).realize()
    alias = state[1:]

    @TinyJit
    def step(x: Tensor) -> Tensor:
        nonlocal state
        state += x
        half.div_(2)
        return state + half

    results = [step(Tensor([number]).realize()).tolist() for number in (1.0, 2.0, 3.0, 4.0)]

    assert results == [[4, 5], [5, 6], [7.5, 8.5], [11.25, 12.25]]
    assert alias.tolist() == [12]


def test_layers_share_what_is_written_in_place() -> None:
    layer = nn.Linear(2, 2)
    shared = layer.weight
    layer.weight.fill_(1.0)
    layer.weight *= 3

    assert shared is layer.weight
    assert (Tensor([[1.0, 1.0]]) @ shared.T).tolist() == [[6.0, 6.0]]


def test_what_does_not_fit_is_refused() -> None:
    x, whole = Tensor([1.0, 2.0]), Tensor([1, 2])

    with pytest.raises(ShapeError, match=r"^add in place: the result has shape \(2, 2\)"):
        x += Tensor([[1.0], [2.0]])
    with pytest.raises(
        DTypeError, match=r"^div in place: the result is dtypes.float32, and is written into"
    ):
        whole /= 2
    with pytest.raises(DTypeError, match="mul_"):
        whole.mul_(0.5)
    with pytest.raises(ShapeError, match="fill_: needs one number"):
        x.fill_(x)
    assert (x.tolist(), whole.tolist()) == ([1, 2], [1, 2])


def test_the_dtype_stays_as_in_torch() -> None:
    for kind, other in (("float16", "float32"), ("int32", "int64"), ("float32", "int64")):
        x = Tensor([1, 2], dtype=kind)
        x += Tensor([1, 2], dtype=other)
        assert (x.dtype.name, x.tolist()) == (kind, [2, 4])


def test_a_symbolic_value_is_written_whole(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no Variables")
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    part = x[: Variable("n", 1, 4).bind(3)] * 2
    part += 1

    assert part.tolist() == [3, 5, 7]


def test_in_place_works_while_training() -> None:
    with Context(TRAINING=1):
        w = Tensor([2.0], requires_grad=True)
        optimizer = nn.optim.SGD([w], lr=0.5)
        hidden = w * 3
        hidden += w
        hidden *= hidden
        hidden.sum().backward()
        optimizer.step()

    assert w.tolist() == [2.0 - 0.5 * 64]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "rows": lambda x: x[1:],
    "turned": lambda x: x.T,
    "reshaped": lambda x: x.reshape(3, 2),
    "a part of what is reshaped": lambda x: x.reshape(3, 2).T[1:],
    "detached": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_that_is_done_leaves_the_graph_as_small_as_it_was(name: str) -> None:
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize()
    views = [make(x) for make in VIEWS.values()]
    expected, sizes = x.numpy(), []
    for _ in range(4):
        VIEWS[name](x).assign(VIEWS[name](x) + 1)
        sizes.append([len(t.uop.toposort()) for t in views])
        x.realize()
        sizes.append([len(t.uop.toposort()) for t in views])

    assert sizes[4:] == sizes[2:4] * 2
    written = Tensor(numpy.zeros_like(expected)).realize()
    VIEWS[name](written).assign(VIEWS[name](written) + 4)
    assert x.tolist() == (expected + written.numpy()).tolist()


def test_kernels_that_overwrite_what_each_other_reads_are_ordered_by_a_copy() -> None:
    w = Tensor([0.5, -1.0, 2.0]).realize()
    v = Tensor([1.5, 1.0, -0.5]).realize()
    x = Tensor.zeros(3)
    y = w + v
    x.add_(x)
    w.assign(x * 0.5)
    x.copy_(v)
    z = y * y.sum()

    assert x.sum().item() == 2.0
    assert z.tolist() == [7.0, 0.0, 5.25]
    assert w.tolist() == [0.0, 0.0, 0.0]
    assert x.tolist() == [1.5, 1.0, -0.5]


def test_gradient_that_repeats_a_number_is_written_to_after_it_is_realized() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (x.sum(0).sum() * 1.875).backward()
    gradient = x.grad
    assert gradient is not None
    gradient.realize()
    before = gradient + 0

    gradient *= 2

    assert gradient.tolist() == [[3.75, 3.75], [3.75, 3.75]]
    assert before.tolist() == [[1.875, 1.875], [1.875, 1.875]]


MOVES: Final[dict[str, Callable[[Any], Any]]] = {
    "rows": lambda x: x[::-1],
    "columns": lambda x: x[:, ::-1],
    "axes": lambda x: x.T,
    "twice": lambda x: x.T[::-1],
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_elements_that_move_within_their_memory_are_read_before_they_are_written(
    move: Callable[[Any], Any],
) -> None:
    # of more than one axis: there the memory that is read is reshaped
    expected = numpy.arange(16, dtype=numpy.int32).reshape(4, 4)
    x = Tensor(expected.copy()).realize()

    x.assign(move(x)).realize()
    expected = move(expected).copy()
    x *= move(x)
    expected = expected * move(expected)
    x[:2] += move(x)[:2]
    expected[:2] += move(expected)[:2].copy()

    assert x.tolist() == expected.tolist()
