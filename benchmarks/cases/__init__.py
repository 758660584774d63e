"""Everything that is measured, by subject."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from benchmarks.case import Case, StartCase
from benchmarks.cases import (
    asking,
    compiler,
    convolution,
    linear,
    lowering,
    memory,
    normalization,
    replay,
    selection,
    start,
    training,
)

__all__ = ["CASES", "find_case", "selected"]

CASES: Final[tuple[Case | StartCase, ...]] = (
    *start.CASES,
    *asking.CASES,
    *compiler.CASES,
    *replay.CASES,
    *lowering.CASES,
    *memory.CASES,
    *normalization.CASES,
    *selection.CASES,
    *linear.CASES,
    *convolution.CASES,
    *training.CASES,
)


def find_case(name: str) -> Case | StartCase:
    """The case with this name."""
    return next(case for case in CASES if case.name == name)


def selected(pattern: str) -> Iterator[Case | StartCase]:
    """Cases whose name has a match of the regular expression; all default ones for an empty one."""
    for case in CASES:
        if re.search(pattern, case.name) if pattern else case.by_default:
            yield case
