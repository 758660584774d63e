"""Sums over processes: bytes sent by either algorithm, and memory over many steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import output

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "ring.py"
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
