"""Matrix products of many shapes, and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.case import FLOAT_BYTES, TENSOR, Case, Input

__all__ = ["CASES"]

_SIDE: Final = 4096
_PEERS: Final = (TENSOR, "torch", "jax", "numpy")


def _product(_: Any, a: Any, b: Any) -> Any:
    return a @ b


def _integer_product(_: Any, a: Any, b: Any) -> Any:
    return a.matmul(b, dtype="int32")


def _torch_integer_product(torch: Any, a: Any, b: Any) -> Any:
    return torch._int_mm(a, b)


def _jax_integer_product(jax: Any, a: Any, b: Any) -> Any:
    return jax.numpy.matmul(a, b, preferred_element_type=jax.numpy.int32)


def _matmuls() -> Iterator[Case]:
    square = [(side, side, side) for side in (256, 512, 1000, 1024, 2048)]
    for rows, inner, columns in (*square, (1023, 1025, 77)):
        name = str(rows) if rows == inner == columns else f"{rows}x{inner}x{columns}"
        yield Case(
            f"matmul {name}",
            dict.fromkeys(_PEERS, _product),
            (Input((rows, inner)), Input((inner, columns))),
            flops=2.0 * rows * inner * columns,
            read_bytes=(rows + columns) * inner * FLOAT_BYTES,
            written_bytes=rows * columns * FLOAT_BYTES,
        )
    yield Case(
        "matmul 1024 bfloat16",
        dict.fromkeys((TENSOR, "torch", "jax"), _product),
        (Input((1024, 1024), "bfloat16"), Input((1024, 1024), "bfloat16")),
        flops=2.0 * 1024**3,
        tolerance=0.02,
    )
    yield Case(
        "matmul 1024 int8",
        {
            TENSOR: _integer_product,
            "torch": _torch_integer_product,
            "jax": _jax_integer_product,
        },
        (Input((1024, 1024), "int8", scale=127.0), Input((1024, 1024), "int8", scale=127.0)),
        flops=2.0 * 1024**3,
    )
    yield Case(
        "matmul 64x128x128x128",
        dict.fromkeys(_PEERS, _product),
        (Input((64, 128, 128)), Input((64, 128, 128))),
        flops=2.0 * 64 * 128**3,
        read_bytes=2 * 64 * 128**2 * FLOAT_BYTES,
        written_bytes=64 * 128**2 * FLOAT_BYTES,
    )


def _gemvs() -> Iterator[Case]:
    matrix, vector = Input((_SIDE, _SIDE)), Input((_SIDE,))
    for name, inputs in (("A@x", (matrix, vector)), ("x@A", (vector, matrix))):
        yield Case(
            f"gemv 4096 {name}",
            dict.fromkeys(_PEERS, _product),
            inputs,
            flops=2.0 * _SIDE * _SIDE,
            read_bytes=_SIDE * _SIDE * FLOAT_BYTES,
        )


def _attention(length: int, *, causal: bool) -> Case:
    heads, width = 8, 64
    words = " causal" if causal else ""

    def tiny(_: Any, q: Any, k: Any, v: Any) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    def torch(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def jax(jax: Any, *given: Any) -> Any:
        q, k, v = (tensor.swapaxes(1, 2) for tensor in given)  # JAX has the heads behind
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal).swapaxes(1, 2)

    def numpy(numpy: Any, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) * numpy.float32(width**-0.5)
        if causal:
            scores = numpy.where(numpy.tri(length, dtype=bool), scores, -numpy.inf)
        powers = numpy.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v

    return Case(
        f"attention {heads}x{length}x{width}{words}",
        {TENSOR: tiny, "torch": torch, "jax": jax, "numpy": numpy},
        (Input((1, heads, length, width), scale=2.0),) * 3,
        flops=4.0 * heads * length * length * width / (2 if causal else 1),
        read_bytes=3 * heads * length * width * FLOAT_BYTES,
        written_bytes=heads * length * width * FLOAT_BYTES,
    )


def _attention_gradient(length: int) -> Case:
    """Causal attention, then the gradient of its sum for queries, keys and values."""
    heads, width = 8, 64

    def tiny(_: Any, q: Any, k: Any, v: Any) -> Any:
        total = q.scaled_dot_product_attention(k, v, is_causal=True).sum()
        slopes = total.gradient(q, k, v)
        return slopes[0].cat(*slopes[1:])

    def torch(torch: Any, *given: Any) -> Any:
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in given]
            total = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True).sum()
            return torch.cat(torch.autograd.grad(total, leaves))

    def jax(jax: Any, *given: Any) -> Any:
        def total(*given: Any) -> Any:
            q, k, v = (tensor.swapaxes(1, 2) for tensor in given)
            return jax.nn.dot_product_attention(q, k, v, is_causal=True).sum()

        return jax.numpy.concatenate(jax.grad(total, (0, 1, 2))(*given))

    return Case(
        f"attention {heads}x{length}x{width} causal, its gradient",
        {TENSOR: tiny, "torch": torch, "jax": jax},
        (Input((1, heads, length, width), scale=2.0),) * 3,
        flops=7.0 * heads * length * length * width,
    )


CASES: Final = (
    *_matmuls(),
    *_gemvs(),
    _attention(512, causal=False),
    _attention(2048, causal=True),
    _attention_gradient(2048),
)
