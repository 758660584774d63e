"""Moving elements by index, and putting them in order."""

from __future__ import annotations

from typing import Final

from benchmarks.case import FLOAT_BYTES, TENSOR, Case, Input

__all__ = ["CASES"]

_WORDS, _WIDTH, _PICKED = 50_257, 768, 8192
_SORTED: Final = 1 << 20

CASES: Final = (
    Case(
        "gather rows 8192x768",
        dict.fromkeys((TENSOR, "torch", "jax", "numpy"), lambda _, table, rows: table[rows]),
        (Input((_WORDS, _WIDTH)), Input((_PICKED,), "int32", limit=_WORDS)),
        read_bytes=_PICKED * _WIDTH * FLOAT_BYTES,
        written_bytes=_PICKED * _WIDTH * FLOAT_BYTES,
    ),
    Case(
        "sort 1M",
        {
            TENSOR: lambda _, x: x.sort()[0],
            "torch": lambda _, x: x.sort()[0],
            "jax": lambda jax, x: jax.numpy.sort(x),
            "numpy": lambda numpy, x: numpy.sort(x),
        },
        (Input((_SORTED,)),),
    ),
)
