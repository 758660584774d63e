"""Plans as text, for the disk and for other processes.

Floor 3'. A step is written as graphs write arguments: `Split((1,), 8)`. Text comes from anywhere:
it is parsed, never evaluated, and what it says is checked for legality before it is done.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from tinycore.errors import FileFormatError
from tinycore.lower.tile import Plan, Step, Tail
from tinycore.uop.parse import Reader
from tinycore.uop.text import argument_text, register_argument

STEP_TYPES: tuple[type[Any], ...] = get_args(Step)
"""Every kind of step."""


def fields_of(step: Any) -> tuple[Any, ...]:
    """The fields of a step, in order."""
    return tuple(getattr(step, field.name) for field in fields(step))


register_argument(Tail, lambda tail: (tail.value,), Tail)
for kind in STEP_TYPES:
    register_argument(kind, fields_of, kind)


def plan_to_text(plan: Plan) -> str:
    """A plan on one line."""
    return argument_text(tuple(plan), {})


def plan_from_text(text: str) -> Plan:
    """The plan that a line says. Raises FileFormatError for text that is no plan."""
    reader = Reader(text, 1, {})
    found = reader.argument(0)
    if not reader.at_end() or not isinstance(found, tuple):
        raise FileFormatError(f"plan text: {text[:80]!r} is no plan")
    if wrong := [step for step in found if not isinstance(step, STEP_TYPES)]:
        raise FileFormatError(f"plan text: {wrong[0]!r} is no step of a plan")
    return found
