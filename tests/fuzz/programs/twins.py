"""Twins: a node that a program realizes, and that other values hold without being derived from it.

`v.sqrt().reciprocal()` and `v.rsqrt()` are one node here and two values in torch. Where
one of them is realized, gradients end in both here (docs/coming-from.md), but only in one there: no
mismatch in such a program tells anything. The text of a program does not show it, its graph does.

A derivative has twins too: that of `a / b` holds the quotient here, where torch divides anew. So
what a gradient holds does not count as derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.fuzz.programs.form import Kind, Program, Step, ours_of
from tests.fuzz.programs.mirror import compiled
from tinycore import Tensor


def realizes_twins(program: Program, scope: dict[str, Any]) -> bool:
    """Run a program in a scope that holds its inputs, up to the first value that has a twin."""
    derived: dict[str, set[str]] = {}
    for step in program.steps:
        if step.kind is Kind.REALIZE and any(has_twin(end, scope, derived) for end in step.ends):
            return True
        exec(compiled("\n".join(ours_of((step,)))), scope)
        note(step, derived)
    return False


def note(step: Step, derived: dict[str, set[str]]) -> None:
    """Add what the results of a step are derived from: a gradient from nothing."""
    sources = set() if step.kind is Kind.GRADIENT else step.reads()
    above = sources.union(*(derived.get(name, set()) for name in sources))
    for value in step.outputs:
        derived[value.name] = above


def has_twin(name: str, scope: dict[str, Any], derived: dict[str, set[str]]) -> bool:
    """True if the node of a value is part of another that is not derived from it."""
    node = scope[name].uop
    return any(node in other.toposort() for other in others(name, scope, derived))


def others(name: str, scope: dict[str, Any], derived: dict[str, set[str]]) -> Iterable[Any]:
    """The nodes of the values that are not derived from one."""
    for other, value in scope.items():
        if isinstance(value, Tensor) and other != name and name not in derived.get(other, set()):
            yield value.uop
