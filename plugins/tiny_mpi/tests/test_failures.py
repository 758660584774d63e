"""Deaths, exceptions and waits end in an error in every process that waits, not in a hang.

Mistakes of programs are in `tiny_mpi.conformance`.
"""

from __future__ import annotations

import re
import subprocess
import time

import pytest
from processes import UNNOTICED, finished

pytestmark = pytest.mark.slow

BEGIN = """
import os, sys, time, numpy
from tinycore.groups import group
processes = group()
rank = processes.rank
print("process", os.getpid(), flush=True)
"""
SECONDS = 45
"""Time in which a program must have ended after its mistake: some sleep for longer."""


def failure(count: int, program: str, within: tuple[str, ...] = (), **variables: str) -> str:
    """Messages of a program that fails, in the time that it may take, and leaves no process."""
    begun = time.monotonic()
    result = finished(count, BEGIN + program, within=within, variables=variables)
    assert result.returncode != 0, result.stdout
    assert time.monotonic() - begun < SECONDS
    for number in re.findall(r"process (\d+)", result.stdout):
        assert not is_running(number), result.stderr
    return result.stderr


def is_running(number: str) -> bool:
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", number], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()[:1] not in ("", "Z")


def told_by(rank: int, size: int, errors: str) -> str:
    """The line with the error of one process."""
    begun = errors.partition(f"rank {rank} of {size} failed:")[2]
    found = re.search(r"^\S*GroupError: .*", begun, re.MULTILINE)
    assert found, errors
    return found[0]


def test_a_ring_of_waits_is_found() -> None:
    errors = failure(3, "processes.recv((rank + 1) % 3)")

    assert "rank 2 in recv from 0" in told_by(1, 3, errors)


TOLD = """
waits, wait = [], processes.stalls.wait
processes.stalls.wait = lambda is_done, call: (waits.append(call), wait(is_done, call))
processes.send(numpy.zeros(1 << 20), rank)
processes.recv(rank)
from tiny_mpi.waits import State, cycle_text
print([(call.name, cycle_text(rank, {rank: State(call)}) != "") for call in waits])
"""


def test_what_is_on_its_way_is_no_cycle() -> None:
    """Processes that send each other what takes seconds wait for no other call of theirs."""
    result = finished(2, BEGIN + TOLD)

    assert result.returncode == 0, result.stderr
    assert result.stdout.count("[('recv', True), ('transfer', False)]") == 2


def test_a_slow_process_is_waited_for() -> None:
    program = "time.sleep(2.5 * rank); print(processes.all_reduce(numpy.ones(1))[0])"

    result = finished(2, BEGIN + program)

    assert result.returncode == 0, result.stderr
    assert result.stdout.count("2.0") == 2


def test_a_wait_has_an_end() -> None:
    errors = failure(2, "time.sleep(60 * rank); processes.barrier()", MPI_TIMEOUT="2")

    assert "rank 1 computes" in told_by(0, 2, errors)


def test_an_exception_in_one_process_ends_all() -> None:
    errors = failure(2, "assert rank == 0, 'a mistake'\nprocesses.barrier()")

    assert "AssertionError: a mistake" in errors
    assert "rank 1 of 2 failed" in errors


def test_a_hook_that_was_there_before_prints_the_exception() -> None:
    before = "import sys\nsys.excepthook = lambda *told: print('told', told[1], file=sys.stderr)\n"

    result = finished(2, before + BEGIN + "rank == 1 and 1 / 0\nprocesses.barrier()")

    assert result.returncode != 0
    assert "rank 1 of 2 failed:\ntold division by zero" in result.stderr


def test_a_killed_process_ends_all() -> None:
    failure(3, "rank == 2 and os.kill(os.getpid(), 9)\nprocesses.barrier()")


def test_a_killed_process_is_named_where_its_launcher_does_not_notice() -> None:
    program = "rank == 2 and os.kill(os.getpid(), 9)\nprocesses.barrier()"

    errors = failure(3, program, within=UNNOTICED)

    for rank in (0, 1):
        assert re.search(r"rank 2 \(process \d+ on .*\) has died", told_by(rank, 3, errors))


def test_a_program_that_differs_between_processes_is_an_error() -> None:
    program = """
import tiny_mpi
from tinycore import Tensor
x = Tensor([1.0, 2.0]).shard(tiny_mpi.ranks(), axis=0)
if rank == 0:
    x.sum().item()
processes.barrier()
"""

    errors = failure(2, program)

    assert "rank 1 barrier" in told_by(0, 2, errors) or "rank 1 in barrier" in told_by(0, 2, errors)
