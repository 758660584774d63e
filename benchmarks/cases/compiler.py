"""Costs of Python: building and scheduling a long program, launching many small kernels.

The program is 96 layers of relu(x @ w) * c + x. In the "new" one the constants c change every time,
so that no cache of schedules helps; in the "seen" one they do not. The chain is new each time.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Final

from benchmarks.case import TENSOR, Case, Input, Kind, Prepared

__all__ = ["CASES"]

_LAYERS: Final = 96
_KERNELS: Final = 100
_INDICES: Final = 50
_DEPTH: Final = 20_000


def _layers(x: Any, weights: Any, constant: float) -> Any:
    for layer in range(_LAYERS):
        x = (x @ weights[layer]).relu() * (constant + layer / 1000) + x
    return x


def _weights(tiny: Any, weights: Any) -> list[Any]:
    return [weights[layer].contiguous().realize() for layer in range(_LAYERS)]


def _kernels_of(tiny: Any, result: Any) -> int:
    """Schedule without running anything; how many kernels that makes."""
    if hasattr(result, "schedule_linear"):
        return len(result.schedule_linear().src)
    return len(result.schedule())


def _build(tiny: Any, x: Any, weights: Any) -> Callable[[], int]:
    matrices = _weights(tiny, weights)

    def step() -> int:
        _layers(x, matrices, 0.5)
        return _LAYERS

    return step


def _schedule_new(tiny: Any, x: Any, weights: Any) -> Prepared:
    matrices = _weights(tiny, weights)
    constants = iter(range(1, 1_000_000))
    return Prepared(
        lambda: _layers(x, matrices, 1 / next(constants)),
        lambda result: _kernels_of(tiny, result),
    )


def _schedule_seen(tiny: Any, x: Any, weights: Any) -> Prepared:
    matrices = _weights(tiny, weights)
    return Prepared(
        lambda: _layers(x, matrices, 0.5),
        lambda result: _kernels_of(tiny, result),
    )


def _deep(tiny: Any, x: Any) -> Prepared:
    constants = iter(range(1, 1_000_000))

    def chain() -> Any:
        constant, result = 1 / next(constants), x
        for _ in range(_DEPTH // 2):
            result = result * constant + x
        return result

    return Prepared(chain, lambda result: _kernels_of(tiny, result))


def _tiny_kernels(tiny: Any, x: Any) -> Any:
    for _ in range(_KERNELS):
        x = (x + 1).realize()
    return x


def _tiny_calls(_: Any, x: Any) -> Any:
    for _ in range(_KERNELS):
        x = x + 1
    return x


def _rewriting(node_at: str, rewrite_at: str, rules_at: str) -> Callable[..., Prepared]:
    """Simplify index expressions as reshapes make them: flatten, split again, each on new loops."""

    def build(_: Any) -> Prepared:
        node, rewrite, rules = map(pkgutil.resolve_name, (node_at, rewrite_at, rules_at))
        numbers = iter(range(0, 100_000_000, 4))

        def expressions() -> Any:
            return node.sink(*(_flattened_and_split(node, next(numbers)) for _ in range(_INDICES)))

        return Prepared(expressions, lambda sink: len(rewrite(sink, rules).toposort()))

    return build


def _flattened_and_split(node: Any, number: int) -> Any:
    i, j, k = (node.range(end, number + axis) for axis, end in enumerate((8, 56, 3)))
    flat = (i * 56 + j) * 3 + k
    split = flat // 3 % 56 * 100 + flat // 168 * 7 + flat % 3
    return split + (flat + number % 50) // 12 % 14


_SMALL: Final = (Input((32, 64)), Input((_LAYERS, 64, 64)))

CASES: Final = (
    Case(
        "rewrite 50 index expressions",
        {
            "tinycore": _rewriting(
                "tinycore.uop.node:UOp",
                "tinycore.uop.rewrite:rewrite",
                "tinycore.uop.symbolic:simplify",
            ),
            "tinygrad": _rewriting(
                "tinygrad.uop.ops:UOp",
                "tinygrad.uop.ops:graph_rewrite",
                "tinygrad.uop.symbolic:symbolic",
            ),
        },
        kind=Kind.TOOL,
    ),
    Case("build 96 layers", {TENSOR: _build}, _SMALL, kind=Kind.TOOL),
    Case("schedule 96 layers, new", {TENSOR: _schedule_new}, _SMALL, kind=Kind.TOOL),
    Case("schedule 96 layers, seen", {TENSOR: _schedule_seen}, _SMALL, kind=Kind.TOOL),
    Case("schedule a chain of 20,000 ops", {TENSOR: _deep}, (Input((256,)),), kind=Kind.TOOL),
    Case(
        "100 tiny kernels",
        {TENSOR: _tiny_kernels, "torch": _tiny_calls, "numpy": _tiny_calls},
        (Input((256,)),),
    ),
)
