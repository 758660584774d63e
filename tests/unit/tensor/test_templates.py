"""Graph templates: from its second call on, a method makes the very nodes that it would make."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import unwrap
from typing import Any

import pytest

from tinycore import Context, Tensor, Variable
from tinycore.dtype import dtypes
from tinycore.errors import IndexRangeError, ShapeError
from tinycore.tensor.methods.indexing import paths
from tinycore.tensor.methods.templates import Template, templated, templates
from tinycore.uop.shape import device_of, shape_of

CALLS: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, ...]], dict[str, Any]]] = {
    "dot": (lambda x, y: (y.T,), {}),
    "softmax": (lambda x, y: (-1,), {}),
    "log_softmax": (lambda x, y: (), {"axis": 0}),
    "logsumexp": (lambda x, y: (1,), {"keepdim": True}),
    "mean": (lambda x, y: ((0, 1),), {}),
    "layernorm": (lambda x, y: (), {"eps": 1e-3}),
    "batchnorm": (lambda x, y: (None, y[0], x[1], y[1]), {}),
    "relu": (lambda x, y: (), {}),
    "leaky_relu": (lambda x, y: (0.1,), {}),
    "gelu": (lambda x, y: (), {}),
    "hardswish": (lambda x, y: (), {}),
    "elu": (lambda x, y: (), {"alpha": 0.5}),
    "softplus": (lambda x, y: (), {}),
    "tanh": (lambda x, y: (), {}),
    "sigmoid": (lambda x, y: (), {}),
    "erf": (lambda x, y: (), {}),
}
"""Other arguments of each method, for two operands of shape (3, 3)."""

OPERANDS: dict[str, Callable[[], Tensor]] = {
    "memory": lambda: Tensor.ones(3, 3).contiguous().realize(),
    "a part of memory": lambda: Tensor.ones(4, 6).contiguous().realize()[1:, ::2],
    "a constant": lambda: Tensor.full((3, 3), 1e-5),
    "computed later": lambda: Tensor.ones(3, 3).contiguous().realize() * 2,
    "detached": lambda: Tensor.ones(3, 3).contiguous().realize().exp().detach(),
    "written": lambda: Tensor.ones(3, 3).contiguous().realize().add_(1),
    "a leaf": lambda: Tensor.ones(3, 3, requires_grad=True) * 1,
}


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("name", CALLS)
def test_nodes_of_a_template_are_those_of_the_method(name: str, kind: str) -> None:
    method = getattr(Tensor, name)
    more, named = CALLS[name]
    for _ in range(3):
        x, y = OPERANDS[kind](), OPERANDS[kind]()
        for first, second in ((x, y), (x, x)):
            given = more(first, second)
            found = method(first, *given, **named).uop
            assert found is unwrap(method)(first, *given, **named).uop
            assert found.shape == shape_of(found)
            assert found.device == device_of(found)


@pytest.mark.parametrize("named", [{}, {"padding": 1, "stride": (2, 1)}, {"groups": 2}])
def test_a_convolution_has_a_template(named: dict[str, Any]) -> None:
    w, bias = (Tensor.ones(*shape).contiguous().realize() for shape in ((4, 2, 3, 3), (4,)))
    channels = 2 * named.get("groups", 1)
    for number in range(3):
        memory = Tensor.full((1, channels, 5, 5), number + 1.0).contiguous().realize()
        for x in (memory, memory * 2, memory.clone()):
            for given in ((w,), (w, bias)):
                found = x.conv2d(*given, **named).uop
                assert found is unwrap(Tensor.conv2d)(x, *given, **named).uop
                assert found.shape == shape_of(found)
    assert any(isinstance(found, Template) for key, found in templates.items() if x.shape in key)


def test_operands_that_are_one_have_their_own_template() -> None:
    x, y = (Tensor.ones(2, 2).contiguous().realize() for _ in range(2))
    for _ in range(3):
        assert x.dot(x).uop is not x.dot(y).uop
        assert x.dot(x).uop is x.dot(x, dtype=None).uop


def test_a_product_is_computed_by_a_template() -> None:
    for number in range(3):
        x = Tensor([[1.0 + number, 2.0, 5.0]])
        assert x.dot(x.T).tolist() == [[(1.0 + number) ** 2 + 29.0]]


def test_a_template_holds_the_gradient_of_a_function() -> None:
    def traced_again(x: Tensor) -> Tensor:
        calls.append(x)
        return x.tanh()

    calls: list[Tensor] = []
    method = templated(traced_again)
    for number in range(4):
        x = Tensor([0.5 + number]).realize()
        (slope,) = method(x).sum().gradient(x)
        assert slope.item() == pytest.approx(math.cosh(0.5 + number) ** -2, rel=1e-5)
    assert len(calls) == 3  # twice, and once for the template


def test_numbers_of_other_types_and_signs_have_their_own_template() -> None:
    x = Tensor([-1.0, 2.0]).realize()
    for _ in range(3):
        assert math.copysign(1, x.leaky_relu(0.0)[0].item()) == -1
        assert math.copysign(1, x.leaky_relu(-0.0)[0].item()) == 1


def test_a_refused_call_is_refused_each_time() -> None:
    x, y = Tensor.ones(2, 3).realize(), Tensor.ones(2, 3).realize()
    for _ in range(3):
        with pytest.raises(ShapeError, match="inner sizes"):
            x.dot(y)


def test_sizes_of_variables_have_no_template() -> None:
    rows = Variable("rows", 1, 4)
    x = Tensor.ones(4, 3).contiguous().realize()
    sums = []
    for count in (1, 2, 3, 4):
        part = x[: rows.bind(count)]
        sums.append(part.dot(Tensor.ones(3)).sum().item())

    assert sums == [3.0, 6.0, 9.0, 12.0]


def test_templates_know_the_setting_of_images() -> None:
    x, w = Tensor.ones(8, 8).contiguous().realize(), Tensor.ones(8, 8).contiguous().realize()
    for _ in range(3):
        plain = x.dot(w).uop
        with Context(IMAGE=1):
            assert x.dot(w).uop is unwrap(Tensor.dot)(x, w).uop
        assert x.dot(w).uop is plain


def test_a_result_that_shows_its_operand_has_no_template() -> None:
    x = Tensor([[1.0], [2.0]]).realize()
    for _ in range(3):
        y = x.mean(1)
        y.assign(Tensor([5.0, 6.0])).realize()
        assert x.tolist() == [[1.0], [2.0]]


def test_gradients_flow_through_nodes_of_templates() -> None:
    for _ in range(4):
        x = Tensor([[0.5, -1.0]], requires_grad=True)
        w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        x.dot(w).sum().backward()

        assert x.grad is not None
        assert w.grad is not None
        assert (x.grad.tolist(), w.grad.tolist()) == ([[3.0, 7.0]], [[0.5, 0.5], [-1.0, -1.0]])


INDICES = (0, slice(1, None), (slice(None), 2), (None, ..., slice(None, None, -2)), (1, ..., None))


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices_that_were_seen_before_make_the_same_views(index: Any) -> None:
    for kind in ("memory", "computed later", "a part of memory"):
        x = OPERANDS[kind]()
        numbers = x.numpy()
        paths.clear()
        first = x[index].uop
        again = x[index]
        assert again.uop is first
        assert again.shape == shape_of(first)
        assert again.tolist() == numbers[index].tolist()


def test_a_view_by_an_index_that_was_seen_before_shows_writes() -> None:
    for _ in range(3):
        x = Tensor.zeros(3, 3).contiguous().realize()
        view = x[1:, ::2]
        view.assign(Tensor.ones(2, 2))
        assert x.tolist() == [[0, 0, 0], [1, 0, 1], [1, 0, 1]]


def test_indices_are_told_apart_by_type() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    for _ in range(3):
        assert x[1].tolist() == [3.0, 4.0]
        assert x[True].tolist() == [[[1.0, 2.0], [3.0, 4.0]]]
        with pytest.raises(IndexRangeError):
            x[2]


@pytest.mark.parametrize("default", ["int32", "int64"])
def test_templates_of_integers_know_the_default_dtypes(
    default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "default_int", getattr(dtypes, default))
    scores = Tensor([[0.5, -1.0, 2.0], [0.0, 1.0, 3.0]]).realize()
    labels = Tensor([2, 0], dtype="int16").realize()
    loss = unwrap(Tensor.cross_entropy)
    for _ in range(3):
        assert scores.cross_entropy(labels).uop is loss(scores, labels).uop


def test_several_results_have_a_template_unless_they_show_each_other() -> None:
    @templated
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x * y

    @templated
    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x * 2
        return whole[:1], whole[1:]

    for number in range(4):
        x, y = Tensor([number + 1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
        total, product = both(x, y)
        assert (total.tolist(), product.tolist()) == ([number + 4, 6], [(number + 1) * 3, 8])
        first, second = halves(x)
        first.assign(Tensor([7.0]))
        assert (first.tolist(), second.tolist()) == ([7.0], [4.0])
        assert x.tolist() == [number + 1.0, 2.0]
