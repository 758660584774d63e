"""Implementations of operators, by domain, name and the version since which they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from tiny_onnx.call import Call
    from tiny_onnx.values import Data, Value

__all__ = ["Operator", "find", "operator", "supported"]

Operator: TypeAlias = "Callable[[Call], Data | Value | Sequence[Data | Value]]"
"""Computes the outputs of a node; one alone needs no tuple."""

MODULES: Final = (
    "elementwise", "layout", "reduction", "products", "pooling", "normalization", "recurrent",
    "quantization", "resizing", "control", "sequences", "indexing", "signals", "detection",
    "attention", "random", "losses", "training", "machine_learning", "microsoft",
    "grouped_attention",
)  # fmt: skip
"""The files in `ops/`, which register what they have when they are imported."""

_table: dict[tuple[str, str], list[tuple[int, Operator]]] = {}
_loaded: list[bool] = []


def operator(*names: str, since: int = 1, domain: str = "") -> Callable[[Operator], Operator]:
    """Register a function for operators from a version of their set on."""

    def register(function: Operator) -> Operator:
        for name in names:
            entries = _table.setdefault((domain, name), [])
            entries.append((since, function))
            entries.sort(key=lambda entry: entry[0])
        return function

    return register


def _load() -> None:
    if not _loaded:
        for module in MODULES:
            import_module(f"tiny_onnx.ops.{module}")
        _loaded.append(True)


def find(domain: str, name: str, version: int) -> Operator | None:
    """The implementation that holds in a version of the operator set, None if there is none."""
    _load()
    found = None
    for since, function in _table.get((domain, name), ()):
        if since <= version:
            found = function
    return found


def supported() -> Iterator[tuple[str, str]]:
    """Domain and name of every operator that is implemented here."""
    _load()
    return iter(sorted(_table))
