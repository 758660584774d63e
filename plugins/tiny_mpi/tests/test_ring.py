"""Sums over processes: bytes sent by either algorithm, and memory over many steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import output

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "ring.py"
OVERLAP = PROGRAM.with_name("overlap.py")
SIZE = 1200


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("ring", ["0", "2"])
def test_bytes_of_a_sum(count: int, ring: str) -> None:
    sent = json.loads(output(count, PROGRAM, str(SIZE), "4", RING=ring))["sent"]

    around, direct = 2 * (count - 1) * SIZE * 4 // count, (count - 1) * SIZE * 4
    assert sent == (around if ring == "2" else direct)


def test_memory_of_many_steps_does_not_grow() -> None:
    memory = json.loads(output(2, PROGRAM, "100000", "1000"))["memory"]

    assert max(memory[2:]) - memory[1] < 400_000 * 3  # three results, where one is read


def test_kernels_run_while_bytes_come() -> None:
    """Gradients of three layers are computed while those of the last one are on their way."""
    found = json.loads(output(2, OVERLAP))

    assert found["came"] == 8
    assert found["beside"] >= 3
