"""Train a small network on as many processes as there are, and print its losses and bytes sent.

    mpiexec -n 2 python train.py data 6

The first word says what is spread over processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy

import tiny_mpi
from tinycore import Tensor, TinyJit, nn
from tinycore.groups import group

RANKS = tiny_mpi.ranks()
FEATURES, HIDDEN, CLASSES, BATCH = 32, 64, 8, 32


class Net:
    """Two layers."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        """(N, FEATURES) -> (N, CLASSES)."""
        return self.second(self.first(x).relu())


def by_data(net: Net) -> Callable[[Tensor], Tensor]:
    """Copies of the parameters, parts of the batch."""
    for parameter in nn.state.get_parameters(net):
        parameter.shard_(RANKS)
    return lambda x: x.shard(RANKS, axis=0)


def by_parts(net: Net) -> Callable[[Tensor], Tensor]:
    """Parts of the parameters and of what the optimizer keeps, and parts of the batch: ZeRO 3."""
    for parameter in nn.state.get_parameters(net):
        parameter.shard_(RANKS, axis=0)
    return lambda x: x.shard(RANKS, axis=0)


def by_columns(net: Net) -> Callable[[Tensor], Tensor]:
    """Parts of each layer, and the whole batch in each process: tensor parallel."""
    axes = {"first.weight": 0, "first.bias": 0, "second.weight": 1, "second.bias": None}
    for name, parameter in nn.state.get_state_dict(net).items():
        parameter.shard_(RANKS, axis=axes[name])
    return lambda x: x.shard(RANKS)


WAYS = {"data": by_data, "parts": by_parts, "columns": by_columns}


def main() -> None:
    """Train."""
    Tensor.manual_seed(0)
    net = Net()
    spread = WAYS[sys.argv[1]](net)
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)
    numbers = numpy.random.default_rng(0)
    weights = numbers.standard_normal((FEATURES, CLASSES), dtype=numpy.float32)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss.realize()

    captured = TinyJit(step)
    losses, sent = [], []
    processes = group()
    with Tensor.train():
        for _ in range(int(sys.argv[2])):
            x = numbers.standard_normal((BATCH, FEATURES), dtype=numpy.float32)
            y = (x @ weights).argmax(axis=1).astype(numpy.int32)
            before = dict(getattr(processes, "sent_bytes", {}))
            loss = captured(spread(Tensor(x)).realize(), spread(Tensor(y)).realize())
            after = dict(getattr(processes, "sent_bytes", {}))
            losses.append(loss.item())
            sent.append(sum(after.values()) - sum(before.values()))
    told = processes.all_gather(numpy.array(losses))
    assert (told == told[0]).all(), told
    if processes.rank == 0:
        print(json.dumps({"losses": losses, "sent": sent}))


main()
