"""Sampling: the fast cases of the tests, one in so many of each test, each on one target.

`python -m pytest -m "not slow"` runs the fast ones, `-m slow` all the others. Which they are is
decided by checksums of the names of cases: always the same, and no more often the first than the
last of a grid. However few a mark `sample` asks for, each test keeps a case, and so does each dtype
and each function of tensors that a folder has cases of.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

from tinycore import Tensor, dtypes

SHARES: Final = {"CPU:LLVM": 8, "PYTHON": 7}
"""Weights of targets in the choice of the one that a case is fast on; others have 1. Most programs
run on CPU:LLVM, PYTHON takes the least time, CPU:CLANG starts a process for each kernel.
"""


@dataclass
class Case:
    """The parameters of a test beside its target, and what runs it on each target."""

    test: tuple[Path, str]
    name: str
    one_in: int = 1
    items: dict[str, pytest.Item] = field(default_factory=dict)

    @property
    def checksum(self) -> int:
        """A number that the name decides."""
        return crc32(self.name.encode())

    @property
    def words(self) -> frozenset[str]:
        """The dtypes and functions of tensors that its parameters name."""
        return vocabulary().intersection(re.findall(r"\w+", self.name.partition("[")[2]))

    def fast_target(self) -> str:
        """The target on which the case is fast."""
        targets = list(self.items)
        ends = list(accumulate(SHARES.get(target, 1) for target in targets))
        return targets[bisect(ends, self.checksum % ends[-1])]


def on_one_of(*targets: str) -> list[Any]:
    """Parameters of a fixture that is a target: each case is fast on one of them."""
    return [pytest.param(target, marks=pytest.mark.target(target)) for target in targets]


@cache
def vocabulary() -> frozenset[str]:
    """Names of dtypes, and of functions of tensors."""
    functions = (name for name in dir(Tensor) if not name.startswith("_"))
    return frozenset([*(dtype.name for dtype in dtypes.all), *functions])


def leave_out(
    config: pytest.Config, items: list[pytest.Item], gone: Collection[pytest.Item]
) -> None:
    """Remove some tests from those that are collected."""
    if gone:
        config.hook.pytest_deselected(items=list(gone))
        items[:] = [item for item in items if item not in gone]


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that no sample takes, and on the other targets those that one takes."""
    folders: dict[Path, list[Case]] = defaultdict(list)
    for case in cases_of(items):
        folders[case.test[0].parent].append(case)
    for cases in folders.values():
        fast = {id(case) for case in sample(cases)}
        for case in cases:
            kept = case.fast_target() if id(case) in fast else None
            for target, item in case.items.items():
                if target != kept:
                    item.add_marker("slow")


def cases_of(items: Iterable[pytest.Item]) -> Iterable[Case]:
    """Cases of tests, each with its items by target; without a mark `target` there is one."""
    found: dict[str, Case] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.get_closest_marker("slow"):
            continue
        mark, share = item.get_closest_marker("target"), item.get_closest_marker("sample")
        target = mark.args[0] if mark else ""
        name = item.nodeid.replace(target, "", 1) if target else item.nodeid
        case = found.get(name)
        if case is None:
            one_in = share.args[0] if share else 1
            case = found[name] = Case((item.path, item.originalname), name, one_in)
        case.items[target] = item
    return found.values()


def sample(cases: Sequence[Case]) -> list[Case]:
    """The fast cases of a folder."""
    tests: dict[tuple[Path, str], list[Case]] = defaultdict(list)
    for case in cases:
        tests[case.test].append(case)
    fast, left = [], []
    for alike in tests.values():
        count = max(1, round(len(alike) / alike[0].one_in))
        alike = sorted(alike, key=lambda case: case.checksum)
        fast += alike[:count]
        left += alike[count:]
    named: set[str] = set().union(*(case.words for case in fast))
    for case in sorted(left, key=lambda case: case.checksum):
        if not case.words <= named:
            fast.append(case)
            named |= case.words
    return fast
