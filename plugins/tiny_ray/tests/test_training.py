"""A worker of Ray Train is killed, and training goes on with the losses of one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from tiny_ray.launch import started

PROGRAM = Path(__file__).parents[3] / "examples" / "ray_train.py"
SECONDS = 400


def losses(*arguments: str) -> list[tuple[int, float]]:
    """Steps and losses of the program."""
    environment = {"CPU_COUNT": "1", "DEV": "CPU:LLVM", "RAY_TRAIN_V2_ENABLED": "1"}
    result = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr[-5000:]
    return [tuple(json.loads(line)) for line in result.stdout.split("\n") if line[:1] == "["]


def test_outside_of_a_worker_there_is_no_group() -> None:
    assert started() is None


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_a_killed_worker_is_replaced_and_the_losses_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed")
    pytest.importorskip("ray")
    whole, killed = losses(str(tmp_path / "whole")), losses(str(tmp_path / "killed"), "--kill")

    assert (tmp_path / "killed" / "killed").exists()
    assert len(dict(whole)) == len(whole) == len(dict(killed))
    for step, loss in killed:
        numpy.testing.assert_allclose(loss, dict(whole)[step], rtol=1e-5)
