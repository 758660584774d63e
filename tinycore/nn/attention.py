"""Multi-head attention.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

from tinycore import Tensor
from tinycore.errors import ArgumentError, ShapeError
from tinycore.nn.dropout import probability
from tinycore.nn.initializers import positive_sizes, verify_input
from tinycore.nn.linear import Linear

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention:
    """Attention with several heads (https://arxiv.org/abs/1706.03762): x (.., L, E) -> (.., L, E).

    Queries come from `x`; keys and values from `context` (.., S, context_dim), or from `x` itself.
    Each head attends in E/num_heads of the features. With `kv_heads`, fewer than `num_heads`,
    groups of query heads share keys and values (https://arxiv.org/abs/2305.13245). `dropout`
    drops weights of the attention, in training. `query`, `key`, `value` and `output` are
    `Linear`.

    Raises ArgumentError when the heads do not divide the features, or `kv_heads` the heads.

    >>> layer = nn.MultiHeadAttention(8, num_heads=2)
    >>> layer(Tensor.zeros(3, 5, 8)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        context_dim: int | None = None,
    ) -> None:
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.context_dim = embed_dim if context_dim is None else context_dim
        self._check_sizes()
        self.dropout = probability("MultiHeadAttention", dropout)
        shared = self.embed_dim // num_heads * self.kv_heads
        self.query = Linear(embed_dim, embed_dim, bias)
        self.key = Linear(self.context_dim, shared, bias)
        self.value = Linear(self.context_dim, shared, bias)
        self.output = Linear(embed_dim, embed_dim, bias)

    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend from every place of `x`.

        A bool `mask`, broadcast to (.., num_heads, L, S), lets through where it holds, any other is
        added to the scores. Causal lets place i see places up to i of the context.
        Raises ShapeError when sizes do not fit, ArgumentError for a mask together with `is_causal`.
        """
        verify_input(self, x)
        source = x if context is None else context
        self._check("x", x, self.embed_dim)
        self._check("context", source, self.context_dim)
        found = self._heads(self.query(x), self.num_heads).scaled_dot_product_attention(
            self._heads(self.key(source), self.kv_heads),
            self._heads(self.value(source), self.kv_heads),
            attn_mask=mask,
            dropout_p=self.dropout,
            is_causal=is_causal,
            enable_gqa=self.kv_heads != self.num_heads,
        )
        return self.output(found.transpose(-2, -3).flatten(-2))

    def _heads(self, x: Tensor, count: int) -> Tensor:
        """(.., L, heads*d) -> (.., heads, L, d)."""
        return x.unflatten(-1, (count, x.shape[-1] // count)).transpose(-2, -3)

    def _check(self, what: str, x: Tensor, features: int) -> None:
        if x.ndim < 2 or x.shape[-1] != features:
            raise ShapeError(
                f"MultiHeadAttention: {what} is (.., length, {features}), not {x.shape}"
            )

    def _check_sizes(self) -> None:
        heads, shared, features = self.num_heads, self.kv_heads, self.embed_dim
        positive_sizes(
            "MultiHeadAttention",
            embed_dim=features,
            num_heads=heads,
            kv_heads=shared,
            context_dim=self.context_dim,
        )
        if features % heads:
            raise ArgumentError(
                f"MultiHeadAttention: {heads} heads do not divide {features} features"
            )
        if heads % shared:
            raise ArgumentError(
                f"MultiHeadAttention: {shared} key and value heads do not divide {heads} heads"
            )
