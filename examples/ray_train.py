"""Train on two workers of Ray; one that is killed is replaced, and the losses stay the same.

    python examples/ray_train.py runs/first
    python examples/ray_train.py runs/second --kill

`ray.data` feeds the workers, each with its part of a batch; parameters and gradients are spread
over both. After each step they save a checkpoint in parallel, from which the ones that Ray Train
starts anew go on. A line is a step and its loss.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import numpy
import ray
import ray.data
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import tiny_mpi
from tiny_ray.training import report, resumed
from tinycore import Tensor, nn
from tinycore.groups import group

STEPS, BATCH, FEATURES, OUTPUTS, KILLED_AFTER = 6, 8, 16, 8, 3


def work(config: dict[str, Any]) -> None:
    """Train, in each worker: to copy the first columns of a row."""
    ranks = tiny_mpi.ranks()
    Tensor.manual_seed(0)
    layer = nn.Linear(FEATURES, OUTPUTS)
    for parameter in nn.state.get_parameters(layer):
        parameter.shard_(ranks).realize()
    optimizer = nn.optim.Adam(nn.state.get_parameters(layer), lr=0.1)
    state = nn.state.get_state_dict({"layer": layer, "optimizer": optimizer})
    facts = resumed(state) or {"step": 0}
    rows = ray.train.get_dataset_shard("train").iter_batches(batch_size=BATCH // len(ranks))
    with Tensor.train():
        for step, batch in enumerate(rows):
            if step < facts["step"]:
                continue
            x = tiny_mpi.from_parts(batch["data"].astype(numpy.float32))
            optimizer.zero_grad()
            loss = (layer(x) - x[:, :OUTPUTS]).square().mean().backward()
            optimizer.step()
            told = loss.item()
            if group().rank == 0:
                with Path(config["folder"], "losses").open("a") as file:
                    file.write(json.dumps([step, told]) + "\n")
            report({"loss": told}, state, {"step": step + 1})
            if config["kill"] and step + 1 == KILLED_AFTER and group().rank == 1:
                end_once(Path(config["folder"], "killed"))


def end_once(mark: Path) -> None:
    """Die as a machine does, unless it has happened before."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Start two workers, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a new folder for checkpoints and losses")
    parser.add_argument("--kill", action="store_true", help="kill a worker after three steps")
    options = parser.parse_args()

    options.folder.mkdir(parents=True)
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    numbers = numpy.random.default_rng(0).standard_normal((STEPS * BATCH, FEATURES))
    DataParallelTrainer(
        work,
        train_loop_config={"folder": str(options.folder.resolve()), "kill": options.kill},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(options.folder.resolve()),
            name="run",
            failure_config=FailureConfig(max_failures=1),
        ),
        datasets={"train": ray.data.from_numpy(numbers)},
    ).fit()
    print((options.folder / "losses").read_text(), end="")
    print(f"its timeline: VIZ=1 python {shlex.join(sys.argv)}", file=sys.stderr)


if __name__ == "__main__":
    main()
