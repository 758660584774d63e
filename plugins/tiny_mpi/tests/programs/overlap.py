"""Train a perceptron on all processes, observed, and print what was launched while bytes came.

    mpiexec -n 2 python overlap.py

Prints the number of kernels that ran in this process from when bytes were awaited to when they were
used, and how often bytes came.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy

import tiny_mpi
from tinycore import Device, Tensor, nn
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.groups import group

RANKS = tiny_mpi.ranks()
OWN = Device.canonicalize(RANKS[group().rank])


class Timeline(LaunchProfiler):
    """Begin, end and name of each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[float, float, str]] = []

    def record(
        self,
        runner: Any,
        seconds: float | None,
        bufs: Sequence[Any] = (),
        metadata: Sequence[str] = (),
        ended: float | None = None,
    ) -> None:
        """Add a launch of this process."""
        if runner.device == OWN and runner.name != "copy":
            end = time.perf_counter() if ended is None else ended
            self.events.append((end - (seconds or 0), end, runner.name))


def main() -> None:
    """Train."""
    Tensor.manual_seed(0)
    layers = [nn.Linear(16, 16) for _ in range(4)]
    parameters = nn.state.get_parameters(layers)
    for parameter in parameters:
        parameter.shard_(RANKS).realize()
    optimizer = nn.optim.SGD(parameters, lr=0.01)
    content = numpy.random.default_rng(0).standard_normal((8, 16), numpy.float32)
    x = Tensor(content).shard(RANKS, axis=0).realize()
    timeline = Timeline()
    with Tensor.train():
        y = x
        for layer in layers:
            y = layer(y).relu()
        (y - x).square().mean().backward()
        profilers.append(timeline)
        optimizer.step()
    profilers.remove(timeline)
    came = [(a, b) for a, b, name in timeline.events if name.startswith("receive")]
    ran = [(a, b) for a, b, name in timeline.events if not name.startswith("receive")]
    beside = sum(any(a < c and d < b for a, b in came) for c, d in ran)
    if group().rank == 0:
        print(json.dumps({"beside": beside, "kernels": len(ran), "came": len(came)}))


main()
