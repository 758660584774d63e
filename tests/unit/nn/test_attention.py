"""Attention with several heads agrees with torch's layer, and with its parts."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.unit.nn.helpers import assert_same, given, weights_of
from tests.unit.tensor.helpers import numbers
from tinycore import Context, Tensor, dtypes, nn
from tinycore.errors import ArgumentError, ShapeError


class Twin(torch.nn.Module):
    """torch's parts put together under our names, its attention function in the middle."""

    def __init__(
        self, features: int, heads: int, shared: int, context: int, bias: bool = True
    ) -> None:
        super().__init__()
        inner = features // heads * shared
        self.heads, self.shared = heads, shared
        self.query = torch.nn.Linear(features, features, bias)
        self.key = torch.nn.Linear(context, inner, bias)
        self.value = torch.nn.Linear(context, inner, bias)
        self.output = torch.nn.Linear(features, features, bias)

    def forward(self, x: Any, context: Any = None, mask: Any = None, causal: bool = False) -> Any:
        source = x if context is None else context
        found = torch.nn.functional.scaled_dot_product_attention(
            self.query(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3),
            self.key(source).unflatten(-1, (self.shared, -1)).transpose(-2, -3),
            self.value(source).unflatten(-1, (self.shared, -1)).transpose(-2, -3),
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=self.shared != self.heads,
        )
        return self.output(found.transpose(-2, -3).flatten(-2))


@pytest.mark.parametrize("bias", [True, False])
def test_attention_to_itself_is_that_of_the_layer_in_torch(bias: bool) -> None:
    ours = nn.MultiHeadAttention(6, 3, bias=bias)
    theirs = torch.nn.MultiheadAttention(6, 3, bias=bias, batch_first=True).double()
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.tensor(numpy.concatenate([part.weight.numpy() for part in parts]))
        )
        theirs.out_proj.weight.copy_(torch.tensor(ours.output.weight.numpy()))
        if bias:
            biases = [part.bias.numpy() for part in parts if part.bias is not None]
            theirs.in_proj_bias.copy_(torch.tensor(numpy.concatenate(biases)))
            assert ours.output.bias is not None
            theirs.out_proj.bias.copy_(torch.tensor(ours.output.bias.numpy()))
    x = numbers(2, 5, 6)

    found = ours(Tensor(x, dtype="float32")).numpy()

    y = torch.tensor(x)
    numpy.testing.assert_allclose(found, theirs(y, y, y)[0].detach().numpy(), 1e-4, 1e-5)


@pytest.mark.slow
def test_attention_to_itself_with_gradients() -> None:
    assert_same(nn.MultiHeadAttention(4, 2), Twin(4, 2, 2, 4), numbers(2, 3, 4))


def test_attention_to_another_sequence_with_other_features() -> None:
    assert_same(
        nn.MultiHeadAttention(4, 2, context_dim=3),
        Twin(4, 2, 2, 3),
        numbers(1, 2, 4),
        numbers(1, 5, 3),
        dtypes_used=[dtypes.float32],
    )


def test_causal_attention_in_shared_heads() -> None:
    ours, theirs = nn.MultiHeadAttention(8, 4, kv_heads=2, bias=False), Twin(8, 4, 2, 8, False)

    assert_same(
        ours,
        theirs,
        numbers(2, 3, 8),
        call=lambda x: ours(x, is_causal=True),
        twin=lambda x: theirs(x, causal=True),
        dtypes_used=[dtypes.float32],
    )


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(kind: str) -> None:
    ours, theirs = nn.MultiHeadAttention(4, 2, kv_heads=1), Twin(4, 2, 1, 4)
    drawn = numbers(3, 2, 3, 3)
    mask: Any = drawn > -1.0 if kind == "bool" else drawn
    mask = mask | numpy.eye(3, dtype=bool) if kind == "bool" else mask

    assert_same(
        ours,
        theirs,
        numbers(3, 3, 4),
        call=lambda x: ours(x, mask=Tensor(mask, dtype=None if kind == "bool" else x.dtype)),
        twin=lambda x: theirs(x, mask=torch.tensor(mask)),
        dtypes_used=[dtypes.float32],
    )


def test_causal_attention_does_not_look_ahead() -> None:
    layer, x = nn.MultiHeadAttention(4, 2), numbers(1, 4, 4).astype(numpy.float32)
    other = x.copy()
    other[:, 2:] += 1

    first, second = (layer(Tensor(seen), is_causal=True).numpy() for seen in (x, other))

    assert numpy.array_equal(first[:, :2], second[:, :2])
    assert not numpy.array_equal(first[:, 2:], second[:, 2:])


def test_dropout_forgets_in_training_only() -> None:
    layer, x = nn.MultiHeadAttention(4, 2, dropout=1.0), Tensor(numbers(1, 3, 4), dtype="float32")
    plain = nn.MultiHeadAttention(4, 2)
    given(plain, weights_of(layer), dtypes.float32)

    assert layer(x).tolist() == plain(x).tolist()
    with Context(TRAINING=1):
        forgotten = layer(x)
    assert layer.output.bias is not None
    assert forgotten.tolist() == [[layer.output.bias.tolist()] * 3]


# --- what is refused


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.MultiHeadAttention(6, 4), "4 heads do not divide 6 features"),
        (lambda: nn.MultiHeadAttention(8, 4, 3), "3 key and value heads do not divide 4 heads"),
        (lambda: nn.MultiHeadAttention(8, 0), "num_heads must be a positive integer, got 0"),
        (lambda: nn.MultiHeadAttention(8, 2, dropout=-0.5), "between 0 and 1, got -0.5"),
    ],
)
def test_heads_that_do_not_divide(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


def test_inputs_that_do_not_fit() -> None:
    layer = nn.MultiHeadAttention(4, 2, context_dim=3)
    with pytest.raises(ShapeError, match=r"x is \(.., length, 4\), not \(2, 3, 5\)"):
        layer(Tensor.zeros(2, 3, 5), Tensor.zeros(2, 3, 3))
    with pytest.raises(ShapeError, match=r"context is \(.., length, 3\), not \(2, 3, 4\)"):
        layer(Tensor.zeros(2, 3, 4))
    with pytest.raises(ArgumentError, match="attn_mask or is_causal, not both"):
        layer(Tensor.zeros(1, 4), Tensor.zeros(1, 3), Tensor.zeros(1, 1), is_causal=True)
