"""Train on two workers of Ray, one of which is killed, with data of `ray.data`.

    python train.py FOLDER [kill]

Prints the losses of all steps that were done, in the order in which they were.
"""

from __future__ import annotations

import json
import os
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

STEPS, BATCH, FEATURES, KILLED_AFTER = 6, 8, 16, 3


def work(config: dict[str, Any]) -> None:
    """Train, in each worker."""
    ranks = tiny_mpi.ranks()
    folder = Path(config["folder"])
    Tensor.manual_seed(0)
    layers = [nn.Linear(FEATURES, 8)]
    for parameter in nn.state.get_parameters(layers):
        parameter.shard_(ranks).realize()
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.1)
    state = nn.state.get_state_dict({"layers": layers, "optimizer": optimizer})
    facts = resumed(state) or {"step": 0}
    rows = ray.train.get_dataset_shard("train").iter_batches(batch_size=BATCH // len(ranks))
    with Tensor.train():
        for step, batch in enumerate(rows):
            if step < facts["step"]:
                continue
            x = tiny_mpi.from_parts(batch["data"].astype(numpy.float32))
            optimizer.zero_grad()
            loss = (layers[0](x) - x[:, :8]).square().mean()
            loss.backward()
            optimizer.step()
            told = loss.item()
            if group().rank == 0:
                with (folder / "losses").open("a") as file:
                    file.write(json.dumps([step, told]) + "\n")
            report({"loss": told}, state, {"step": step + 1})
            mark = folder / "killed"
            is_victim = config["kill"] and step + 1 == KILLED_AFTER and group().rank == 1
            if is_victim and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, and print losses."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    numbers = numpy.random.default_rng(0).standard_normal((STEPS * BATCH, FEATURES))
    trainer = DataParallelTrainer(
        work,
        train_loop_config={"folder": str(folder), "kill": sys.argv[2:] == ["kill"]},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(folder), name="run", failure_config=FailureConfig(max_failures=1)
        ),
        datasets={"train": ray.data.from_numpy(numbers)},
    )
    trainer.fit()
    print((folder / "losses").read_text())


if __name__ == "__main__":
    main()
