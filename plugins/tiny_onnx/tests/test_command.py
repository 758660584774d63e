"""`tinycore run`: inputs from files, what is printed, mistakes on the command line."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy
import pytest
from graphs import model, value
from onnx import helper
from PIL import Image

from tinycore.cli.main import main


@pytest.fixture
def reddest(tmp_path: Path) -> Path:
    """A model that scores twelve classes by the brightness of a picture's channels."""
    weight = numpy.zeros((12, 3), "float32")
    weight[7, 0] = weight[3, 1] = weight[5, 2] = 9
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["scores"], transB=1),
    ]
    proto = model(nodes, [value("image", [1, 3, 8, 8])], [value("scores", [1, 12])], {"w": weight})
    path = tmp_path / "reddest.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_picture_is_classified(
    reddest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, labels = tmp_path / "red.png", tmp_path / "labels.txt"
    Image.new("RGB", (40, 30), (250, 10, 10)).save(picture)
    labels.write_text("\n".join(f"thing {number}" for number in range(12)))
    saved = tmp_path / "scores.npy"
    words = ["run", str(reddest), "--input", str(picture), "--labels", str(labels)]
    assert main([*words, "--output", f"scores={saved}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  takes image: float32 1x3x8x8" in lines
    first = next(line for line in lines if "%" in line)
    assert first.endswith("thing 7")
    assert numpy.load(saved).argmax() == 7


def test_without_inputs_it_says_what_the_model_takes(
    reddest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(reddest)]) == 0
    assert "run it on files by --input NAME=FILE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("image=nowhere.png", "cannot be read as a picture"),
        ("image=[1, 2", "neither a file nor numbers"),
        ("image=[1, 2]", "not of shape 2"),
        ("image=", "neither a file nor numbers"),
        ("nowhere.npy", "not an array of NumPy"),
    ],
)
def test_mistakes_are_explained(
    reddest: Path, capsys: pytest.CaptureFixture[str], word: str, text: str
) -> None:
    assert main(["run", str(reddest), "--input", word]) == 1
    assert text in capsys.readouterr().err


def test_an_input_is_given_once_and_as_one_array(
    reddest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy.savez(tmp_path / "x.npz", image=numpy.zeros(1))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    for words, text in (
        ([f"image={tmp_path / 'x.npy'}"], "an archive of arrays"),
        (["image=zeros", "image=zeros"], "'image' is given twice"),
    ):
        given = [word for each in words for word in ("--input", each)]
        assert main(["run", str(reddest), *given]) == 1
        assert text in capsys.readouterr().err


def test_sounds_are_samples_between_minus_one_and_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = model(
        [helper.make_node("ReduceMax", ["x"], ["loudest"], keepdims=0)],
        [value("x", [1, "samples"])],
        [value("loudest", [])],
    )
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(numpy.array([[0, 0], [16384, 16384], [-32768, 0]], "<i2").tobytes())
    assert main(["run", str(tmp_path / "m.onnx"), "--input", f"x={tmp_path / 's.wav'}"]) == 0
    assert "0.5" in capsys.readouterr().out


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nowhere.onnx", "."):
        assert main(["run", name]) == 1
        assert f"{name!r} is no file; give one of" in capsys.readouterr().err
