"""Resident memory of whole processes: a training step takes what its plan says, and what waits for
reuse goes back to the system under pressure and by age.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="Linux tells the most resident memory"
)

MB = 1 << 20
CONSTANT = 48 * MB
"""Allowance for graphs, code of kernels and Python itself beside the plan of a step."""

RESIDENT = """
import json
def resident(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
from tinycore import Context, GlobalCounters, Tensor, nn
ones = Tensor.ones(4, 4, device="CPU").contiguous()
(ones @ ones).sum().item()
del ones
open("/proc/self/clear_refs", "w").write("5")
base = resident("VmRSS")
GlobalCounters.reset()
"""

TRAINING = """
sizes = [(512, 1024), (1024, 1024), (1024, 10)]
w = [(Tensor.rand(*size, device="CPU") - 0.5).realize().is_param_() for size in sizes]
optimizer = nn.optim.Adam(w, lr=1e-3)
for batch in (4096, 3584, 3072, 2560, 4096):  # no two steps in a row reuse each other's blocks
    x = Tensor.rand(batch, 512, device="CPU").realize()
    y = Tensor.zeros(batch, dtype="int32", device="CPU").contiguous().realize()
    with Context(TRAINING=1):
        optimizer.zero_grad()
        out = ((x @ w[0]).relu() @ w[1]).relu() @ w[2]
        loss = out.sparse_categorical_crossentropy(y).backward()
        loss.realize(*optimizer.schedule_step())
    del x, y, out, loss
print(json.dumps([resident("VmHWM") - base, GlobalCounters.mem_peak]))
"""

CACHE = """
import time
from tinycore import Device
from tinycore.device import pool
def block(megabytes):
    return Tensor.ones(megabytes << 18, device="CPU").contiguous().realize()
found = []
big = block(256)
del big
found.append(resident("VmRSS") - base)
pool.LEAST_SPARE_BYTES = 0
for megabytes in (255, 254, 253):  # each needs room that an older block takes
    other = block(megabytes)
    del other
found.append(resident("VmRSS") - base)
allocator = Device["CPU"].allocator
allocator.cached  # what came back last is noted, with the time
allocator._clock = lambda: time.monotonic() + 2 * pool.AGE_SECONDS
small = block(1)
found.append(resident("VmRSS") - base)
print(json.dumps(found))
"""


def numbers_of(script: str) -> list[int]:
    """Numbers that a script prints, run in a process of its own."""
    command = (sys.executable, "-c", RESIDENT + script)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in json.loads(done.stdout)]


@pytest.mark.device("CPU")
@pytest.mark.slow
def test_steps_of_training_take_what_their_plan_says() -> None:
    peak, plan = numbers_of(TRAINING)

    assert plan > 60 * MB
    assert peak <= 1.1 * plan + CONSTANT


@pytest.mark.slow
@pytest.mark.device("CPU")
def test_cached_blocks_go_back_to_the_system_under_pressure_and_by_age() -> None:
    waiting, after_pressure, after_age = numbers_of(CACHE)

    assert waiting > 240 * MB  # the block waits for reuse
    assert after_pressure < 256 * MB * 1.1 + CONSTANT  # of four blocks one is kept
    assert after_age < CONSTANT
