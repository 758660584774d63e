"""Faults of an accelerator, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from tiny_testing.accelerator.device import (
    CORRECT,
    Accelerator,
    Compiler,
    KeptGraph,
    Memory,
    Parts,
    Queue,
    Rewriter,
)

__all__ = ["FAULTS", "Fault", "declare", "found_by"]


@dataclass(frozen=True)
class Fault:
    """A way to be wrong: its name, what it does, the parts that do it, the trial that finds it."""

    name: str
    meaning: str
    parts: Parts
    found_by: str


FAULTS: Final[dict[str, Fault]] = {}

PARTS: Final[dict[type, str]] = {
    Queue: "queue",
    Memory: "memory",
    Rewriter: "renderer",
    Compiler: "compiler",
    Accelerator: "device",
    KeptGraph: "graph",
}
"""The field of `Parts` that a subclass of a part replaces."""

Part = TypeVar("Part", bound=type)


def found_by(trial: str) -> Callable[[Part], Part]:
    """Enter a faulty part into FAULTS, with the name of the trial that must find it."""

    def enter(part: Part) -> Part:
        (field,) = [name for base, name in PARTS.items() if issubclass(part, base)]
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in part.__name__).strip("_")
        changes: dict[str, Any] = {field: part}
        parts = replace(CORRECT, **changes)
        FAULTS[name] = Fault(name, (part.__doc__ or "").strip(), parts, trial)
        return part

    return enter


def declare(name: str, meaning: str, trial: str, changes: frozenset[str]) -> None:
    """Enter a false declaration: `changes` are the capabilities that it has instead."""
    FAULTS[name] = Fault(name, meaning, replace(CORRECT, capabilities=changes), trial)
