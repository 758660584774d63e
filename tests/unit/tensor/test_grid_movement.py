"""Movement, padding and joining over empty, single and odd shapes and every dtype, with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import Array, as_list, compare, numbers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, IndexRangeError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
Function = Callable[..., Any]
FLOAT = [dtypes.float32]

OPERATIONS: dict[str, Function] = {
    "flatten": lambda x: x.flatten(),
    "squeeze": lambda x: [x.squeeze(), x.squeeze(0), x.squeeze((0, -1))],
    "unsqueeze": lambda x: [x.unsqueeze(-1), x.unsqueeze(1)],
    "permute": lambda x: x.permute(-1, *range(x.ndim - 1)),
    "transpose": lambda x: x.transpose(0, -1),
    "movedim": lambda x: [x.movedim(0, -1), x.movedim((0, -1), (-1, 0))],
    "flip": lambda x: [x.flip((0,)), x.flip((0, -1)), x.flip(())],
    "roll": lambda x: [x.roll(7), x.roll(-1, 0), x.roll((2, 5), (-1, 0))],
    "tril": lambda x: [x.tril(k) for k in (-9, -1, 0, 2)],
    "triu": lambda x: [x.triu(k) for k in (-2, 0, 1, 9)],
    "diagonal": lambda x: [x.diagonal(k) for k in (-9, -1, 0, 1)] + [x.diagonal(1, -1, 0)],
    "split": lambda x: [*x.split(2, -1), *x.split([x.shape[0], 0])],
    "chunk": lambda x: [*x.chunk(2), *x.chunk(9, -1)],
    "unflatten": lambda x: x.unflatten(0, (1, x.shape[0])),
    "expand": lambda x: [x.expand(2, *x.shape), x.unsqueeze(0).expand(3, *[-1] * x.ndim)],
    "unfold": lambda x: x.unfold(-1, 1, 2),
    "repeat_interleave": lambda x: [x.repeat_interleave(n, -1) for n in (0, 1, 3)],
}
"""Operations that are spelled the same here and in torch."""

SPELLED: dict[str, tuple[Function, Function]] = {
    "repeat": (lambda x: x.repeat(2, *[3] * x.ndim), lambda x: x.repeat(2, *[3] * x.ndim)),
    "repeat_none": (lambda x: x.repeat([0] * x.ndim), lambda x: x.repeat([0] * x.ndim)),
    "cat": (lambda x: x.cat(x, x, dim=-1), lambda x: torch.cat([x, x, x], -1)),
    "stack": (lambda x: x.stack(x, dim=1), lambda x: torch.stack([x, x], 1)),
    "pad": (lambda x: x.pad((2, 1, 0, 3)), lambda x: F.pad(x, (2, 1, 0, 3))),
    "pad_to": (
        lambda x: x.pad_to(None, *[n + 2 for n in x.shape[1:]]),
        lambda x: F.pad(x, (0, 2) * (x.ndim - 1)),
    ),
    "shrink_to": (
        lambda x: x.shrink_to(None, 0, *[1] * (x.ndim - 2)),
        lambda x: x[(slice(None), slice(0), *[slice(1)] * (x.ndim - 2))],
    ),
    "rearrange": (
        lambda x: x.rearrange("a ... b -> b (... a) 1"),
        lambda x: x.movedim(-1, 0).movedim(1, -1).flatten(1).unsqueeze(-1),
    ),
    "meshgrid": (
        lambda x: list(x.flatten().meshgrid(x[:1].flatten())),
        lambda x: list(torch.meshgrid(x.flatten(), x[:1].flatten(), indexing="ij")),
    ),
}
"""(here, in torch)."""

EVERYTHING = {name: (function, function) for name, function in OPERATIONS.items()} | SPELLED
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "CPU:CLANG": [(3, 5)],
    "CPU:LLVM": [(0, 3), (3, 1, 2)],
}
"""Shapes for targets that compile; the others take all."""


@pytest.mark.parametrize("name", EVERYTHING)
def test_values_and_gradients(name: str, target: str) -> None:
    ours, theirs = EVERYTHING[name]

    for shape in SHAPES.get(target, [(3, 5), (0, 3), (3, 1, 2)]):
        compare(ours, theirs, numbers(*shape), dtypes_used=FLOAT)


KINDS = ["bool", "uint8", "uint32", "int16", "int64", "float16", "float64"]
IN_TORCH = {"uint32": "int64"}
"""A wider dtype where torch moves nothing of this one."""


def as_kind(kind: str, *shape: int) -> Array:
    return (numpy.random.default_rng(1).integers(0, 100, shape) % 7).astype(kind)


@pytest.mark.parametrize("number", range(2 * len(KINDS)))
def test_other_dtypes_are_moved(number: int) -> None:
    """All results of several operations joined: each operation meets two of the dtypes."""
    kind, names = KINDS[number // 2], list(EVERYTHING)[(number * 3) % 7 :: 7]
    x = as_kind(kind, 3, 4)
    ours: list[Tensor] = []
    theirs: list[torch.Tensor] = []
    for name in names:
        ours += as_list(EVERYTHING[name][0](Tensor(x)))
        theirs += as_list(EVERYTHING[name][1](torch.tensor(x.astype(IN_TORCH.get(kind, kind)))))

    whole = ours[0].flatten().cat(*[t.flatten() for t in ours[1:]])

    assert [t.shape for t in ours] == [tuple(t.shape) for t in theirs]
    assert {t.dtype for t in ours} == {Tensor(x).dtype}
    assert whole.tolist() == torch.cat([t.flatten() for t in theirs]).tolist()


def test_bfloat16_is_moved() -> None:
    x = Tensor([[1.0, -2.5], [0.1, 3.0]], dtype=dtypes.bfloat16)

    moved = x.cat(x.flip(0), dim=1).roll(1, 0).pad((1, 0))

    assert moved.dtype is dtypes.bfloat16
    rounded = torch.tensor([[1.0, -2.5], [0.1, 3.0]]).bfloat16().float()
    expected = F.pad(torch.cat([rounded, rounded.flip(0)], 1).roll(1, 0), (1, 0))
    assert moved.tolist() == expected.tolist()


def test_zeros_keep_their_sign_where_tensors_are_joined() -> None:
    x = numpy.array([-0.0, 0.0, numpy.nan, -numpy.inf], numpy.float32)
    ours = Tensor(x)

    joined = [ours.cat(ours), ours.stack(ours), ours.roll(1), ours.pad((2, 3), mode="circular")]

    expected = [numpy.tile(x, 2), numpy.stack([x, x]), numpy.roll(x, 1)]
    for result, wanted in zip(joined, [*expected, numpy.pad(x, (2, 3), "wrap")], strict=True):
        assert (numpy.signbit(result.numpy()) == numpy.signbit(wanted)).all()
        numpy.testing.assert_array_equal(result.numpy(), wanted)


def test_a_long_join(target: str) -> None:
    counts = [(7 * i) % 5 for i in range(20 if target != "PYTHON" else 12)]
    parts = [numbers(2, n, seed=i) for i, n in enumerate(counts)]

    compare(
        lambda *x: x[0].cat(*x[1:], dim=1),
        lambda *x: torch.cat(x, 1),
        *parts,
        dtypes_used=FLOAT,
    )


# --- padding

MODES = ["constant", "reflect", "replicate", "circular"]
AMOUNTS = [(0, 0), (2, 1), (4, 3), (-1, 2), (3, -2), (-2, -1), (1, -4)]


@pytest.mark.parametrize("mode", MODES)
def test_padding_of_every_mode(mode: Any) -> None:
    """Positive and negative amounts, also where one side is padded from what the other loses."""

    def ours(x: Tensor) -> list[Tensor]:
        return [x.pad(pair, mode=mode) for pair in fitting]

    def theirs(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.pad(x, pair, mode=mode) for pair in fitting]

    fitting = [p for p in AMOUNTS if mode != "circular" or max(p) <= 5 + min(0, *p)]
    compare(ours, theirs, numbers(1, 2, 5), dtypes_used=FLOAT)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_of_two_axes(mode: Any) -> None:
    compare(
        lambda x: x.pad((1, 2, 2, 0), mode=mode),
        lambda x: F.pad(x, (1, 2, 2, 0), mode=mode),
        numbers(1, 2, 3, 4),
        dtypes_used=FLOAT,
    )
    ours = Tensor(numbers(1, 2, 3, 4))
    pairs = ours.pad((None, None, (2, 0), (1, 2)), mode=mode)
    assert pairs.tolist() == ours.pad((1, 2, 2, 0), mode=mode).tolist()


@pytest.mark.parametrize("value", [-numpy.inf, numpy.nan, 1.5, -0.0, 3, True])
def test_padding_with_a_number(value: Any) -> None:
    x = numbers(2, 3)

    ours = Tensor(x).pad(((1, 0), (0, 2)), value=float(value)).numpy()

    expected = numpy.pad(x, ((1, 0), (0, 2)), constant_values=float(value))
    numpy.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("kind", ["uint8", "int64", "float16", "bool"])
@pytest.mark.parametrize("mode", MODES)
def test_padding_of_other_dtypes(mode: Any, kind: str) -> None:
    x = as_kind(kind, 1, 4)
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}

    ours = Tensor(x).pad((3, 2), mode=mode)

    assert ours.numpy().dtype == x.dtype
    expected = numpy.pad(x, ((0, 0), (3, 2)), names[mode])  # type: ignore[call-overload]
    assert ours.tolist() == expected.tolist()


def test_padding_of_nothing() -> None:
    x = Tensor.zeros(2, 0)

    assert x.pad((1, 2), value=5.0).tolist() == [[5.0] * 3] * 2
    assert x.pad((0, 0), mode="reflect").shape == (2, 0)
    with pytest.raises(ShapeError, match="replicate"):
        x.pad((1, 0), mode="replicate")


# --- diagonals


@pytest.mark.parametrize("offset", [-7, -2, 0, 1, 4])
@pytest.mark.parametrize("shape", [(3,), (0,), (3, 5), (4, 2), (0, 3)], ids=str)
def test_diag(shape: tuple[int, ...], offset: int) -> None:
    compare(lambda x: x.diag(offset), lambda x: x.diag(offset), numbers(*shape), dtypes_used=FLOAT)


# --- mistakes

MISTAKES: dict[str, tuple[Function, type[Exception], str]] = {
    "reshape_beside_zero": (
        lambda x: x.shrink_to(0, 3).reshape(0, -1),
        ShapeError,
        r"reshape: shape \(0, 3\)",
    ),
    "reshape_two_unknown": (lambda x: x.reshape(-1, -1), ShapeError, "reshape"),
    "flatten_backwards": (lambda x: x.flatten(1, 0), ArgumentError, "flatten"),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), ShapeError, r"unflatten: sizes \(2, 2\)"),
    "unflatten_of_nothing": (
        lambda x: x.shrink_to(0, 3).unflatten(1, (4, 1)),
        ShapeError,
        "unflatten",
    ),
    "expand_new_axis": (lambda x: x.expand(-1, 2, 3), ShapeError, "expand: a new axis"),
    "expand_down": (lambda x: x.expand(1, 3), ShapeError, "expand"),
    "movedim_unequal": (lambda x: x.movedim((0, 1), 0), ArgumentError, "movedim"),
    "movedim_twice": (lambda x: x.movedim((0, 0), (0, 1)), ArgumentError, "movedim"),
    "roll_unequal": (lambda x: x.roll((1, 2), 0), ArgumentError, r"roll: shifts \(1, 2\)"),
    "roll_flat": (lambda x: x.roll((1, 2)), ArgumentError, "roll"),
    "roll_axis": (lambda x: x.roll(1, 2), IndexRangeError, "roll: axis 2"),
    "repeat": (lambda x: x.repeat(2), ShapeError, "repeat"),
    "repeat_negative": (lambda x: x.repeat(1, -1), ShapeError, "repeat"),
    "interleave_negative": (lambda x: x.repeat_interleave(-1), ArgumentError, "repeat_interleave"),
    "split_negative": (lambda x: x.split([3, -1]), ShapeError, r"split: sizes \[3, -1\]"),
    "split_none": (lambda x: x.split(0), ArgumentError, "split"),
    "split_scalar": (lambda x: x.sum().split(1), IndexRangeError, "split: axis 0"),
    "chunk_scalar": (lambda x: x.sum().chunk(1), IndexRangeError, "chunk: axis 0"),
    "chunk_none": (lambda x: x.chunk(0), ArgumentError, "chunk"),
    "unfold": (lambda x: x.unfold(1, 4, 1), ShapeError, "unfold: windows of 4 every 1"),
    "unfold_scalar": (lambda x: x.sum().unfold(0, 1, 1), IndexRangeError, "unfold: axis 0"),
    "unfold_step": (lambda x: x.unfold(1, 2, 0), ShapeError, "unfold"),
    "diag": (lambda x: x.unsqueeze(0).diag(), ShapeError, "diag"),
    "diagonal": (lambda x: x.diagonal(0, 1, -1), ArgumentError, "diagonal"),
    "triangle": (lambda x: x.flatten().tril(), ShapeError, "tril"),
    "pad_taking_too_much": (lambda x: x.pad((-2, -2)), ShapeError, "takes away more"),
    "pad_reflect": (lambda x: x.pad((0, 3), mode="reflect"), ShapeError, "reflect"),
    "pad_circular": (lambda x: x.pad((-1, 3), mode="circular"), ShapeError, "circular"),
    "pad_odd": (lambda x: x.pad((1,)), ShapeError, "pad: 1 amounts"),
    "pad_pairs": (lambda x: x.pad(((1, 1),)), ShapeError, "pad: 1 pairs"),
    "pad_to": (lambda x: x.pad_to(2, 2), ShapeError, "pad_to"),
    "shrink_to": (lambda x: x.shrink_to(2, 4), ShapeError, "shrink"),
    "meshgrid": (lambda x: x.meshgrid(x, indexing="yx"), ArgumentError, "meshgrid"),
    "cat": (lambda x: x.cat(x.flatten()), ShapeError, "cat"),
    "stack_axis": (lambda x: x.stack(x, dim=3), IndexRangeError, "stack: axis 3"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_at_the_call(name: str) -> None:
    function, error, text = MISTAKES[name]

    with pytest.raises(error, match=text):
        function(Tensor.zeros(2, 3))


# --- rearrange

FORMULAS: dict[str, tuple[tuple[int, ...], dict[str, int], Function]] = {
    "a b -> b a": ((2, 3), {}, lambda x: x.T),
    "(a b) c -> a (b c)": ((6, 2), {"a": 3}, lambda x: x.reshape(3, 4)),
    "(a b) (c d) -> (a c) (b d)": (
        (4, 6),
        {"a": 2, "c": 3},
        lambda x: x.reshape(2, 2, 3, 2).permute(0, 2, 1, 3).reshape(6, 4),
    ),
    "... a -> a ...": ((2, 3, 4), {}, lambda x: x.movedim(-1, 0)),
    "\N{HORIZONTAL ELLIPSIS} a -> a \N{HORIZONTAL ELLIPSIS}": (
        (2, 3, 4),
        {},
        lambda x: x.movedim(-1, 0),
    ),
    "a ... -> (... a)": ((2, 3, 4), {}, lambda x: x.movedim(0, -1).flatten()),
    "a 1 b -> 1 (a b) ()": ((2, 1, 3), {}, lambda x: x.reshape(1, 6, 1)),
    "(a b) c->c b a": ((0, 3), {"a": 2}, lambda x: x.reshape(2, 0, 3).permute(2, 1, 0)),
    "height_1 w -> w height_1": ((2, 3), {"w": 3}, lambda x: x.T),
    "->": ((), {}, lambda x: x),
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_rearrange(formula: str) -> None:
    shape, sizes, theirs = FORMULAS[formula]

    compare(lambda x: x.rearrange(formula, **sizes), theirs, numbers(*shape), dtypes_used=FLOAT)


@pytest.mark.parametrize(
    ("formula", "sizes", "error"),
    [
        ("a b", {}, ArgumentError),
        ("a -> b -> c", {}, ArgumentError),
        ("a b -> a", {}, ArgumentError),
        ("a a -> a a", {}, ArgumentError),
        ("a b -> a b c", {}, ArgumentError),
        ("(a b -> a b", {}, ArgumentError),
        ("a b) -> a b", {}, ArgumentError),
        ("(a (b c)) d -> a b c d", {}, ArgumentError),
        ("a, b -> b a", {}, ArgumentError),
        ("... a ... -> a", {}, ArgumentError),
        ("a 3 -> a", {}, ArgumentError),
        ("a b -> b a", {"c": 1}, ArgumentError),
        ("a b c -> a b c", {}, ShapeError),
        ("(a b) c -> a b c", {}, ShapeError),
        ("(a b) c -> a b c", {"a": 4}, ShapeError),
        ("(a b) c -> a b c", {"a": 0}, ShapeError),
        ("a 1 -> a", {}, ShapeError),
        ("a b -> a b", {"b": 5}, ShapeError),
    ],
)
def test_formulas_that_do_not_fit(
    formula: str, sizes: dict[str, int], error: type[Exception]
) -> None:
    with pytest.raises(error, match="rearrange"):
        Tensor.zeros(6, 3).rearrange(formula, **sizes)
