"""Add up a tensor over all processes, captured, many times, and print bytes sent and memory.

    RING=2 mpiexec -n 4 python ring.py 1200 1000

The words are the number of elements, and that of steps.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy

import tiny_mpi
from tinycore import Tensor, TinyJit
from tinycore.groups import group

RANKS = tiny_mpi.ranks()


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Add up."""
    size, steps = int(sys.argv[1]), int(sys.argv[2])
    processes: Any = group()
    rows = numpy.arange(len(RANKS) * size, dtype=numpy.float32).reshape(len(RANKS), size) % 1000
    x = Tensor(rows).shard(RANKS, axis=0).realize()
    added = TinyJit(lambda x: (x * 2).sum(axis=0).realize())
    memory = []
    for number in range(steps):
        before = sum(processes.sent_bytes.values())
        total = added(x)
        sent = sum(processes.sent_bytes.values()) - before
        if number % max(1, steps // 10) == 0:
            assert (total.numpy() == rows.sum(axis=0) * 2).all()
            memory.append(resident_bytes())
    if processes.rank == 0:
        print(json.dumps({"sent": sent, "memory": memory}))


main()
