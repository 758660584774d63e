"""Train, save, and go on: prints the losses of the steps that it does.

mpiexec -n 2 python resume.py parts 0 4 folder     begin, and save after step 4
mpiexec -n 4 python resume.py copies 4 8 folder    go on from there
"""

from __future__ import annotations

import json
import sys

import numpy

import tiny_mpi
from tiny_mpi.checkpoint import load, save
from tinycore import Tensor, nn
from tinycore.groups import group

RANKS = tiny_mpi.ranks()
WAY = sys.argv[1]
DEVICES = tiny_mpi.mesh(2, len(RANKS) // 2) if WAY == "mesh" else RANKS
AXES = {"parts": 0, "copies": None, "mesh": (0, 1)}


def main() -> None:
    """Train."""
    first, last, folder = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    Tensor.manual_seed(first)  # what is loaded is another's
    layers = [nn.Linear(16, 32), nn.Linear(32, 8)]
    for parameter in nn.state.get_parameters(layers):
        axes = (0, None) if WAY == "mesh" and parameter.ndim == 1 else AXES[WAY]
        parameter.shard_(DEVICES, axis=axes).realize()
    # an epsilon far above the rounding of gradients, as in decoder.py
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.01, eps=1e-4)
    state = nn.state.get_state_dict({"layers": layers, "optimizer": optimizer})
    if first:
        assert load(folder, state) == {"step": first}
    losses = []
    with Tensor.train():
        for number in range(first, last):
            content = numpy.random.default_rng(number).standard_normal((16, 16), numpy.float32)
            x = Tensor(content).shard(DEVICES, axis=0)
            optimizer.zero_grad()
            inner = tiny_mpi.gathered(layers[0])(x).relu()
            loss = (tiny_mpi.gathered(layers[1])(inner) - x[:, :8]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    save(folder, state, {"step": last})
    if group().rank == 0:
        print(json.dumps(losses))


main()
