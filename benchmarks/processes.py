"""Data parallel training on processes of MPI, beside torch's DDP over gloo on the same network.

    python -m benchmarks.processes [PROCESSES] [ROUNDS]

Both take turns, each round in processes of its own with one thread each; the ratio is that of the
medians. Each step is a batch of 256 through a network of three layers, with Adam.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy

FEATURES, HIDDEN, CLASSES, BATCH = 256, 1024, 16, 256
WARM, STEPS = 5, 30
LIMIT_SECONDS: Final = 300
DEVICE: Final = os.environ.get("DEV") or "CPU:LLVM"


def batches() -> tuple[Any, Any]:
    numbers = numpy.random.default_rng(0)
    x = numbers.standard_normal((BATCH, FEATURES), dtype=numpy.float32)
    return x, x[:, :CLASSES].argmax(axis=1).astype(numpy.int32)


def ours() -> float:
    """Seconds of a step on RANK."""
    import tiny_mpi  # noqa: PLC0415
    from tinycore import Tensor, TinyJit, nn  # noqa: PLC0415

    ranks = tiny_mpi.ranks()
    layers = [nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES)]
    parameters = nn.state.get_parameters(layers)
    for parameter in parameters:
        parameter.shard_(ranks).realize()
    optimizer = nn.optim.Adam(parameters, lr=0.001)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        hidden = layers[1](layers[0](x).relu()).relu()
        loss = layers[2](hidden).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss.realize()

    x, y = (Tensor(array).shard(ranks, axis=0).realize() for array in batches())
    with Tensor.train():
        for number in range(WARM + STEPS):
            if number == WARM:
                begun = time.perf_counter()
            step(x, y).item()
    return (time.perf_counter() - begun) / STEPS


def torchs() -> float:
    """Seconds of a step of DistributedDataParallel."""
    import torch  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    torch.set_num_threads(1)
    rank, count = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=count
    )
    layers = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )
    network = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    part = slice(rank * BATCH // count, (rank + 1) * BATCH // count)
    x, y = (torch.from_numpy(array[part]) for array in batches())
    for number in range(WARM + STEPS):
        if number == WARM:
            begun = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), y.long())
        loss.backward()
        optimizer.step()
        loss.item()
    seconds = (time.perf_counter() - begun) / STEPS
    torch.distributed.destroy_process_group()
    return seconds


def measured(who: str, count: int) -> float:
    """Seconds of a step, of the slowest of some processes."""
    mpiexec = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "meeting"))
        result = subprocess.run(
            [mpiexec, "-n", str(count), sys.executable, "-m", "benchmarks.processes", who],
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_SECONDS,
            env={
                **os.environ,
                "CPU_COUNT": "1",
                "OMP_NUM_THREADS": "1",
                "MEETING": meeting,
                "DEV": DEVICE,
            },
        )
    return max(map(float, result.stdout.split()))


def main() -> None:
    """Measure, and print a row."""
    if sys.argv[1:2] in (["ours"], ["torchs"]):
        print(f"{ours() if sys.argv[1] == 'ours' else torchs()}\n", end="", flush=True)
        return
    count, rounds = (int(word) for word in [*sys.argv[1:], "2", "3"][:2])
    found: dict[str, list[float]] = {"ours": [], "torchs": []}
    for _ in range(rounds):
        for who, seconds in found.items():
            seconds.append(measured(who, count))
    mine, other = (statistics.median(seconds) * 1e3 for seconds in found.values())
    print("| processes | tinycore, ms a step | torch DDP over gloo, ms a step | tinycore / torch |")
    print("|--:|--:|--:|--:|")
    print(f"| {count} | {mine:.1f} | {other:.1f} | {mine / other:.2f} |")


if __name__ == "__main__":
    main()
