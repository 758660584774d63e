"""`tinycore plan`: the cost of a training step of a decoder on many devices, estimated."""

from __future__ import annotations

import argparse
from dataclasses import astuple, fields
from typing import Final

from tiny_mpi.plan import Decoder, Estimate, Machine, Way, estimate, ways
from tinycore.cli.options import Commands, subcommand
from tinycore.cli.tables import Table

__all__ = ["add", "run"]

EPILOG: Final = """\
example, of 1,024 cards in nodes of 8:
  tinycore plan --layers 32 --width 4096 --inner 11008 --heads 32 --vocabulary 32000 \\
    --length 2048 --batch 512 --devices 1024 --node 8 --flops 4e14 --memory 80e9 \\
    --near 4.5e11 --far 5e10
"""
SIZES: Final = {
    "layers": "layers of the decoder",
    "width": "width of the residual stream",
    "inner": "width inside the feed-forward network",
    "heads": "attention heads",
    "vocabulary": "size of the vocabulary",
    "length": "tokens per sequence",
    "batch": "sequences per step",
    "devices": "devices in all",
    "node": "devices per node",
}
RATES: Final = {
    "flops": "operations per second of a device, as measured",
    "memory": "bytes of memory of a device",
    "near": "bytes per second between devices of a node",
    "far": "bytes per second from a device to other nodes",
}


MACHINE: Final = ("devices", "flops", "memory", "node", "near", "far", "latency")
"""Arguments in the order of the fields of `Machine`."""
COLUMNS: Final = (
    ">data  >tensor  >stages  >zero  >micro  >seconds  >GB held  >GB sent: data  >tensor  >stages"
)
"""Columns of the table: how each way divides the work, and what it costs."""


def positive(text: str) -> int:
    """A whole number of one or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no positive number")
    return number


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "plan",
        "estimate a training step of a decoder on many devices",
        "Estimate time, memory and bytes sent of a training step of a decoder, in "
        "float32 with Adam, for each way to divide it. Bytes are those that tinycore's schedules "
        "send; times follow from the given rates; nothing is overlapped but the stages of a "
        "pipeline and their links. They were compared with processes behind slowed links, not with "
        "a cluster.",
        EPILOG,
    )
    for name, meaning in SIZES.items():
        command.add_argument(f"--{name}", type=positive, required=True, help=meaning)
    for name, meaning in RATES.items():
        command.add_argument(f"--{name}", type=float, required=True, help=meaning)
    command.add_argument(
        "--latency", type=float, default=0.0, help="seconds per message, besides its bytes"
    )
    command.add_argument("--show", type=positive, default=5, help="number of ways to show")


def run(arguments: argparse.Namespace) -> int:
    """Print the fastest ways that fit into memory. Status 1 where none does."""
    given = vars(arguments)
    decoder = Decoder(**{field.name: given[field.name] for field in fields(Decoder)})
    machine = Machine(*(given[name] for name in MACHINE))
    found = [(way, estimate(decoder, machine, way)) for way in ways(decoder, machine)]
    fitting = [one for one in found if one[1].memory_bytes <= machine.memory_bytes]
    print(f"{decoder.parameters:,} parameters, {decoder.operations:.3g} operations a step")
    if not fitting:
        least = min((cost.memory_bytes for _, cost in found), default=float("inf"))
        print(f"no way fits into {machine.memory_bytes:.3g} bytes; the least is {least:.3g}")
        return 1
    best = sorted(fitting, key=lambda one: one[1].seconds)[: arguments.show]
    Table(COLUMNS, [cells(way, cost) for way, cost in best]).show()
    return 0


def cells(way: Way, cost: Estimate) -> list[str]:
    """A row of the table."""
    sent = (cost.memory_bytes, cost.data_bytes, cost.tensor_bytes, cost.stage_bytes)
    sizes = [f"{size / 1e9:.3f}" for size in sent]
    return [*map(str, astuple(way)), f"{cost.seconds:.3f}", *sizes]
