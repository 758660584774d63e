"""Work that memory limits: chains of elementwise operations, sums, copies, running sums."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.case import FLOAT_BYTES, TENSOR, Case, Input

__all__ = ["CASES"]

_CHAIN: Final = 32 << 20
_SUM: Final = 64 << 20
_SIDE: Final = 4096
_MATRIX_BYTES: Final = _SIDE * _SIDE * FLOAT_BYTES


def _chain(_: Any, a: Any, b: Any) -> Any:
    return ((a * 2 + b).relu() - 1) * b


def _chain_numpy(numpy: Any, a: Any, b: Any) -> Any:
    return (numpy.maximum(a * 2 + b, 0) - 1) * b


def _chain_jax(jax: Any, a: Any, b: Any) -> Any:
    return (jax.nn.relu(a * 2 + b) - 1) * b


CASES: Final = (
    Case(
        "trivial",
        dict.fromkeys((TENSOR, "torch", "jax", "numpy"), lambda _, a, b: a + b),
        (Input((16,)), Input((16,))),
        by_default=False,
    ),
    Case(
        "elementwise chain 32M",
        {TENSOR: _chain, "torch": _chain, "jax": _chain_jax, "numpy": _chain_numpy},
        (Input((_CHAIN,)), Input((_CHAIN,))),
        read_bytes=2 * _CHAIN * FLOAT_BYTES,
        written_bytes=_CHAIN * FLOAT_BYTES,
    ),
    Case(
        "sum 64M",
        dict.fromkeys((TENSOR, "torch", "jax", "numpy"), lambda _, a: a.sum()),
        (Input((_SUM,)),),
        read_bytes=_SUM * FLOAT_BYTES,
        tolerance=0.05,  # the terms nearly cancel
    ),
    Case(
        "transpose copy 4096²",
        {
            TENSOR: lambda _, a: a.transpose(0, 1).contiguous(),
            "torch": lambda _, a: a.transpose(0, 1).contiguous(),
            "jax": lambda _, a: a.T,
            "numpy": lambda _, a: a.T.copy(),
        },
        (Input((_SIDE, _SIDE)),),
        read_bytes=_MATRIX_BYTES,
        written_bytes=_MATRIX_BYTES,
    ),
    *(
        Case(
            f"cumsum 4096² axis {axis}",
            dict.fromkeys(
                (TENSOR, "torch", "jax", "numpy"), lambda _, a, axis=axis: a.cumsum(axis)
            ),
            (Input((_SIDE, _SIDE)),),
            read_bytes=_MATRIX_BYTES,
            written_bytes=_MATRIX_BYTES,
        )
        for axis in (1, 0)
    ),
)
