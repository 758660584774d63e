"""The conformance suite on threads, on a process alone, and on processes of MPI."""

from __future__ import annotations

import re

import pytest
from processes import finished, output

from tiny_mpi.conformance import CHECKS, MISTAKES
from tiny_mpi.launch import started
from tiny_mpi.threads import on_threads
from tinycore.errors import GroupError

PASSES = """
from tiny_mpi.conformance import CHECKS
from tinycore.groups import group
for check in CHECKS.values():
    check(group())
print("passed")
"""
FAILS = """
import sys
from tiny_mpi.conformance import MISTAKES
from tinycore.groups import group
MISTAKES[sys.argv[1]].run(group())
"""


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_threads(name: str, size: int) -> None:
    on_threads(size, CHECKS[name])


@pytest.mark.parametrize("name", CHECKS)
def test_alone(name: str) -> None:
    CHECKS[name](started.__wrapped__())


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_processes(count: int) -> None:
    assert output(count, PASSES).count("passed") == count


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_on_threads(name: str, size: int) -> None:
    with pytest.raises(GroupError) as caught:
        on_threads(size, MISTAKES[name].run)

    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert len([text for text in told if "processes" in text or "ended" in text]) >= size - 1
    assert all(text in told[0] for text in MISTAKES[name].texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_processes(name: str) -> None:
    result = finished(2, FAILS, name)

    assert result.returncode != 0
    errors = re.findall(r"^\S*GroupError: .*", result.stderr, re.MULTILINE)
    assert len(errors) == (1 if name == "ended" else 2), result.stderr
    assert all(text in error for error in errors for text in MISTAKES[name].texts)


def test_the_error_of_a_thread_is_raised() -> None:
    def fails(group: object) -> None:
        raise ValueError(group)

    with pytest.raises(ValueError, match="ThreadGroup"):
        on_threads(2, fails)
