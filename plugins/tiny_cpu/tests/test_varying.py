"""Loops of symbolic length that threads share: launched, replayed and through queues."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import numpy
from tinycore import Tensor, TinyJit, Variable
from tinycore.device.registry import Device
from tinycore.engine.run import lower_schedule

MOST = 700
values, weight = (numpy.random.default_rng(n).standard_normal(s).astype("f")
    for n, s in enumerate([(MOST, 512), (512,)]))
rows, column = Tensor(values).realize(), Tensor(weight).realize()
size = Variable("size", 1, MOST)

def compute(n):
    return (rows[:n] * column).sum(-1).realize(), (rows[:n] * 2 + 1).contiguous().realize()

step = TinyJit(compute)
for value in (1, 2, 15, 16, 17, 699, 700, 3):
    for call in (compute, step):
        sums, doubled = call(size.bind(value))
        numpy.testing.assert_allclose(sums.numpy(), values[:value] @ weight, rtol=1e-3, atol=1e-3)
        numpy.testing.assert_allclose(doubled.numpy(), values[:value] * 2 + 1, rtol=1e-5)

*_, item = lower_schedule((rows[: size.bind(5)] * column).sum(-1).schedule())
info = item.runner.info
assert (info.parallel, info.steps([5]), info.steps([700])) == (MOST, 5, 700), info
"""


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["", "HCQ+"])
def test_threads_share_as_many_steps_as_a_value_says(interface: str) -> None:
    """In a process of its own, with two threads whatever the machine has."""
    environment = os.environ | {"DEV": f"{interface}CPU:LLVM", "CPU_COUNT": "2", "VERIFY": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
