"""The programs of examples/ do what they say, made small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES.glob("*.py")])
def test_help_says_what_it_does(name: str) -> None:
    assert "Train a small" in output_of(name, "--help")


@pytest.mark.slow
def test_a_transformer_learns_to_write_backwards() -> None:
    out = output_of("transformer.py", "--steps", "150", "--length", "3", "--batch", "32")

    found = re.search(r"loss (.*) -> (.*)\n(.*)% of the symbols", out)
    assert found is not None, out
    first, last, right = map(float, found.groups())
    assert first > 2.2  # ln 10 = 2.303 is what guessing costs
    assert last < 0.3
    assert right > 90


@pytest.mark.slow
def test_a_gpt_learns_the_words_of_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat, and the dog sat on the log.\n" * 60)
    small = "--steps 150 --batch 16 --context 16 --features 32 --blocks 1 --dropout 0".split()
    small += "--rate 0.01 --sample 60".split()
    out = output_of("gpt.py", str(text), *small, "--temperature", "0.2")

    found = re.search(r"held out: loss (.*) -> (.*)\n", out)
    assert found is not None, out
    first, last = map(float, found.groups())
    assert first > 2.7  # ln 16 = 2.773 is what guessing costs
    assert last < 0.5
    assert " sat on the " in out.partition("\n")[2][16:]  # beyond what it was given


@pytest.mark.slow
def test_lora_trains_few_numbers_beside_frozen_ones() -> None:
    out = output_of("lora.py", "--steps", "250", "--features", "32")

    rights = [float(right) for right in re.findall(r"(\S+)% are right", out)]
    trained = [int(count) for count in re.findall(r"trained (\d+) numbers", out)]
    assert len(rights) == 4, out
    before, turned, tuned, merged = rights
    assert before > 95
    assert turned < 60
    assert tuned > 95
    assert abs(merged - tuned) < 2  # of other points
    assert trained == [96 + 2 * 1056 + 132, 4 * (34 + 64 + 64 + 36)]
    assert "weights are the same" in out


@pytest.mark.slow
def test_a_diffusion_model_draws_bright_shapes_on_black(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    small = ("--steps", "80", "--batch", "32", "--channels", "16", "--rate", "0.005")
    out = output_of("diffusion.py", *small, "--pictures", "2", "--folder", str(tmp_path))

    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["data.png", "step-00040.png", "step-00080.png"], out
    picture = numpy.asarray(image.open(tmp_path / "step-00080.png"))
    drawings = picture[::4, ::4].reshape(8, 16, 8, 16).swapaxes(1, 2)
    middle, corners = drawings[..., 7:9, 7:9], drawings[..., ::15, ::15]
    assert corners.mean() < 50  # of noise it is 127
    assert middle.mean() > 120


@pytest.mark.slow
def test_a_pole_is_held_up_longer_after_training() -> None:
    out = output_of("cartpole.py", "--steps", "2500")

    found = re.search(r"(\d+) moves of 500 at first\n(\d+) moves of 500 without", out)
    assert found is not None, out
    first, last = map(int, found.groups())
    assert first < 40
    assert last > 100
