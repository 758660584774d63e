"""`tinycore plan` beside measured steps, of processes in network namespaces with slowed links.

    sudo .venv/bin/python -m benchmarks.plan 20mbit 3

Each process is in a namespace of its own, whose link lets through so many bits a second (a token
bucket of `tc`), so that bytes go by TCP. The rate of a device is that of as many processes that
each train alone at the same time; the rate and the latency of a link are those of messages around
all. The estimate follows from these three and from nothing else. They are measured anew in each of
some rounds, before the steps, and the medians of the rounds are shown: on a machine that others use
all rates change, and a ratio compares what was measured within a minute. Each is the best of some,
which is what others disturbed least.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tiny_mpi.plan import Decoder, Machine, Way, estimate

SIZES: Final = {
    "vocabulary": 256, "width": 128, "heads": 4, "inner": 256, "layers": 4, "batch": 8,
    "length": 32,
}  # fmt: skip
PROGRAM: Final = Path(__file__).parent.parent / "plugins/tiny_mpi/tests/programs/decoder.py"
STEPS: Final = {"alone": 100, "pipeline": 40}
"""Steps by what is measured; more where they take little time, most of it of computing."""
FEWEST_STEPS: Final = 9
WARM: Final = 4
"""Steps before those that count."""
LINK: Final = """
import time, numpy
from tinycore.groups import group
processes, times = group(), []
content = numpy.zeros(1 << 21, numpy.uint8)
for _ in range(5):
    processes.barrier()
    began = time.perf_counter()
    processes.send(content, (processes.rank + 1) % processes.size)
    processes.recv((processes.rank - 1) % processes.size)
    processes.barrier()
    times.append(time.perf_counter() - began)
processes.barrier()
latencies = []
for _ in range(20):
    began = time.perf_counter()
    for _ in range(10):
        processes.send(content[:64], (processes.rank + 1) % processes.size)
        processes.recv((processes.rank - 1) % processes.size)
    latencies.append((time.perf_counter() - began) / 10)
if processes.rank == 0:
    print(content.nbytes / min(times), min(latencies))
"""
WAYS: Final[dict[str, Callable[[int], Way]]] = {
    "data": lambda count: Way(data=count),
    "zero1": lambda count: Way(data=count, zero=1),
    "tensor": lambda count: Way(tensor=count),
    "pipeline": lambda count: Way(stages=count, microbatches=4),
    "mesh": lambda count: Way(data=2, tensor=count // 2),
}
"""Ways by the words of the program."""


def command(*words: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def namespaces(count: int, rate: str) -> Iterator[None]:
    """So many network namespaces behind a bridge, with links of a rate. Needs root."""
    command("ip", "link", "add", "tcbr", "type", "bridge")
    command("ip", "link", "set", "tcbr", "up")
    try:
        for number in range(count):
            space, link = f"tc{number}", f"tcv{number}"
            command("ip", "netns", "add", space)
            command(*f"ip link add {link} type veth peer name eth0 netns {space}".split())
            command(*f"ip link set {link} master tcbr up".split())
            command(*f"ip -n {space} addr add 10.77.0.{number + 1}/24 dev eth0".split())
            command(*f"ip -n {space} link set eth0 up".split())
            command(*f"ip -n {space} link set lo up".split())
            slow = f"tc qdisc add dev eth0 root tbf rate {rate} burst 64kb latency 400ms"
            command(*f"ip netns exec {space} {slow}".split())
        yield
    finally:
        for number in range(count):
            subprocess.run(["ip", "netns", "del", f"tc{number}"], check=False, capture_output=True)
        command("ip", "link", "del", "tcbr")


def outputs(count: int, *words: str, alone: bool = False) -> list[str]:
    """Lines that `count` processes print; `alone`, each is a program of its own."""
    mpiexec = str(Path(sysconfig.get_path("scripts")) / "mpiexec")
    inside = ["sh", "-c", 'exec ip netns exec "tc$PMI_RANK" "$@"', "sh"]
    within = ["env", "-u", "PMI_RANK", "-u", "PMI_SIZE"] if alone else inside
    given = {
        "CPU_COUNT": "1",
        "DEV": "CPU:LLVM",
        "DECODER_SIZES": json.dumps(SIZES),
        "MPIR_CVAR_NOLOCAL": "1",  # else memory is shared by what is on one machine
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
    }
    result = subprocess.run(
        [mpiexec, "-n", str(count), *within, sys.executable, *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **given},
    )
    return result.stdout.splitlines()


def seconds(count: int, way: str, alone: bool = False) -> float:
    """Shortest time of a step: what a program that is not disturbed takes."""
    steps = STEPS.get("alone" if alone else way, FEWEST_STEPS)
    lines = outputs(count, str(PROGRAM), way, str(steps), alone=alone)
    found = [json.loads(line)["seconds"] for line in lines if line.startswith("{")]
    return float(max(min(each[WARM:]) for each in found))


class Row(NamedTuple):
    """Rates, an estimate and a measured time, in seconds and bytes a second."""

    compute: float
    link: float
    latency: float
    estimated: float
    measured: float

    @property
    def ratio(self) -> float:
        """The estimate as a part of the measured time."""
        return self.estimated / self.measured


def measured(count: int, decoder: Decoder) -> Iterator[tuple[str, Row]]:
    """A row of each way, of rates and times that are measured one after another."""
    alone = seconds(count, "data", alone=True)
    if count == 1:
        yield "one", Row(alone, 0, 0, alone, seconds(1, "data", alone=True))
        return
    told = next(line for line in outputs(count, "-c", LINK) if line[:1].isdigit())
    link, latency = map(float, told.split())
    machine = Machine(count, decoder.operations / alone, 1e12, count, link, link, latency)
    for way, divided in WAYS.items():
        if way == "mesh" and count < 4:
            continue  # no mesh
        guess = estimate(decoder, machine, divided(count)).seconds
        yield way, Row(alone / count, link, latency, guess, seconds(count, way))


def main() -> None:
    """Measure, and print a table."""
    rate, rounds = sys.argv[1], int(sys.argv[2])
    order = ("layers", "width", "inner", "heads", "vocabulary", "length", "batch")
    decoder = Decoder(*[SIZES[name] for name in order])
    print(f"{decoder.parameters:,} parameters, links of {rate}, {rounds} rounds\n")
    names = "processes", "way", "compute ms", "link MB/s", "message ms", "estimated", "measured"
    print(f"| {' | '.join(names)} | ratio | ratios |\n|--:|---{'|--:' * 7}|")
    for count in (1, 2, 4):
        rows: dict[str, list[Row]] = defaultdict(list)
        with namespaces(count, rate):
            for _ in range(rounds):
                for way, row in measured(count, decoder):
                    rows[way].append(row)
                    print(count, way, row, row.ratio, file=sys.stderr, flush=True)
        for way, found in rows.items():
            each = [statistics.median(row[place] for row in found) for place in range(5)]
            shown = each[0] * 1e3, each[1] / 1e6, each[2] * 1e3, each[3] * 1e3, each[4] * 1e3
            numbers = [f"{shown[0]:.0f}", f"{shown[1]:.1f}", *[f"{n:.3g}" for n in shown[2:]]]
            ratios = sorted(row.ratio for row in found)
            told = " ".join(f"{ratio:.2f}" for ratio in ratios)
            middle = statistics.median(ratios)
            print(
                f"| {count} | {way} | {' | '.join(numbers)} | {middle:.2f} | {told} |", flush=True
            )


if __name__ == "__main__":
    main()
