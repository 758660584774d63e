"""Checkpoints: what a training resumes from, whole at any moment; and folders of Hugging Face."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinycore import Context, Tensor, TinyJit, nn
from tinycore.errors import ArgumentError, FileFormatError


class Training:
    """A network with dropout, its optimizer and its schedule, from seed 7."""

    def __init__(self) -> None:
        Tensor.manual_seed(7)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.optimizer = nn.optim.AdamW(nn.state.get_parameters([self.first, self.second]), lr=0.01)
        self.schedule = nn.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 40)
        self.run = TinyJit(self.step)

    def step(self) -> Tensor:
        with Context(TRAINING=1):
            x = Tensor.rand(16, 8)
            found = self.second(self.first(x).relu().dropout(0.4))
            self.optimizer.zero_grad()
            loss = (found - x[:, :4]).square().mean().backward()
            changed = self.optimizer.schedule_step() + self.schedule.schedule_step()
            return loss.realize(*changed)

    def state(self) -> object:
        return {
            "model": [self.first, self.second],
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }


def losses(training: Training, count: int) -> list[float]:
    return [training.run().item() for _ in range(count)]


def test_a_resumed_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    expected = losses(Training(), 12)
    first, file = Training(), tmp_path / "run"
    assert losses(first, 5) == expected[:5]
    nn.state.save_checkpoint(file, first.state(), step=5)
    losses(first, 2)  # what comes after the checkpoint is lost

    second = Training()
    losses(second, 3)
    assert nn.state.load_checkpoint(file, second.state()) == 5
    assert losses(second, 7) == expected[5:]


def test_the_checkpoint_before_is_kept(tmp_path: Path) -> None:
    x, file = Tensor([1.0]), tmp_path / "run"
    for step in (1, 2, 3):
        nn.state.save_checkpoint(file, [x], step=step)

    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run.previous"]
    assert nn.state.load_checkpoint(tmp_path / "run.previous", [x]) == 2
    file.unlink()  # as if a process ended while the file was replaced
    assert nn.state.load_checkpoint(file, [x]) == 2


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path) -> None:
    file, layer = tmp_path / "run", nn.Linear(2, 2)
    nn.state.save_checkpoint(file, [Tensor([1.0])])
    before, place = layer.weight.tolist(), Tensor.get_rng_state().tolist()
    with pytest.raises(ArgumentError, match="lacks 'weight', 'bias'"):
        nn.state.load_checkpoint(file, layer)

    assert (layer.weight.tolist(), Tensor.get_rng_state().tolist()) == (before, place)
    with pytest.raises(FileNotFoundError):
        nn.state.load_checkpoint(tmp_path / "none", layer)


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_checkpoints import Training
from tinycore import nn

file, training, step = sys.argv[2], Training(), 0
if Path(file).exists() or Path(file + ".previous").exists():
    step = nn.state.load_checkpoint(file, training.state())
while step < 30:
    step += 1
    print(step, training.run().item().hex(), flush=True)
    nn.state.save_checkpoint(file, training.state(), step)
"""


@pytest.mark.slow
def test_a_training_that_is_killed_at_any_moment_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
    whole = subprocess.run(
        [*command, tmp_path / "whole"], capture_output=True, text=True, check=True
    )
    expected = dict(line.split() for line in whole.stdout.splitlines())
    draw, found = random.Random(3), dict[str, str]()
    for _ in range(3):
        process = subprocess.Popen([*command, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draw.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        found |= dict(line.split() for line in rest.splitlines() if len(line.split()) == 2)
    last = subprocess.run([*command, tmp_path / "run"], capture_output=True, text=True, check=True)
    found |= dict(line.split() for line in last.stdout.splitlines())

    assert len(expected) == 30
    assert found == {step: expected[step] for step in found}
    assert "30" in found


def test_a_folder_of_hugging_face_in_one_file_or_in_several(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own"}')
    parts = {"a.safetensors": {"x": Tensor([1.0])}, "b.safetensors": {"y": Tensor([2.0])}}
    for name, tensors in parts.items():
        nn.state.safe_save(tensors, tmp_path / name)
    places = {"x": "a.safetensors", "y": "b.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))

    config, tensors = nn.state.folder_load(tmp_path)
    assert config == {"model_type": "own"}
    assert {name: x.tolist() for name, x in tensors.items()} == {"x": [1.0], "y": [2.0]}
    index.unlink()
    nn.state.safe_save({"z": Tensor([3.0])}, tmp_path / "model.safetensors")
    assert [*nn.state.folder_load(tmp_path)[1]] == ["z"]


def test_a_file_of_several_is_read_once_and_may_hold_elements_without_a_dtype(
    tmp_path: Path,
) -> None:
    entry = {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}
    header = json.dumps({"x": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "a.safetensors").write_bytes(content)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))

    assert isinstance(nn.state.safe_load(index)["x"], nn.state.Opaque)


def test_a_folder_that_is_none_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        nn.state.folder_load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(FileFormatError, match="no JSON object"):
        nn.state.folder_load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin"):
        nn.state.folder_load(tmp_path)
