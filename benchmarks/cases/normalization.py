"""Rows of a matrix: softmax, layer normalization, the largest element."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.case import FLOAT_BYTES, TENSOR, Case, Input

__all__ = ["CASES"]

_SIDE: Final = 4096
_BYTES: Final = _SIDE * _SIDE * FLOAT_BYTES


def _softmax_numpy(numpy: Any, x: Any) -> Any:
    powers = numpy.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _layernorm_jax(jax: Any, x: Any) -> Any:
    return jax.nn.standardize(x, -1, epsilon=1e-5)


def _layernorm_numpy(numpy: Any, x: Any) -> Any:
    centered = x - x.mean(1, keepdims=True)
    return centered / numpy.sqrt((centered * centered).mean(1, keepdims=True) + 1e-5)


def _softmax(name: str, columns: int) -> Case:
    size = _SIDE * columns * FLOAT_BYTES
    return Case(
        f"softmax {name}",
        {
            TENSOR: lambda _, x: x.softmax(-1),
            "torch": lambda _, x: x.softmax(-1),
            "jax": lambda jax, x: jax.nn.softmax(x, -1),
            "numpy": _softmax_numpy,
        },
        (Input((_SIDE, columns), scale=8.0),),
        read_bytes=size,
        written_bytes=size,
    )


CASES: Final = (
    _softmax("4096²", _SIDE),
    _softmax("4096x1000", 1000),
    Case(
        "layernorm 4096²",
        {
            TENSOR: lambda _, x: x.layernorm(),
            "torch": lambda torch, x: torch.nn.functional.layer_norm(x, (_SIDE,)),
            "jax": _layernorm_jax,
            "numpy": _layernorm_numpy,
        },
        (Input((_SIDE, _SIDE)),),
        read_bytes=_BYTES,
        written_bytes=_BYTES,
    ),
    Case(
        "argmax 4096² axis 1",
        dict.fromkeys((TENSOR, "torch", "jax", "numpy"), lambda _, x: x.argmax(1)),
        (Input((_SIDE, _SIDE)),),
        read_bytes=_BYTES,
    ),
)
