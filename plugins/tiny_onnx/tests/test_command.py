"""`tinycore run`: inputs from files, what is printed, mistakes on the command line."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy
import pytest
from graphs import model, value
from onnx import TensorProto, helper
from PIL import Image

from tiny_onnx.element_types import ELEMENTS
from tiny_onnx.files import loaded
from tiny_onnx.runner import Description
from tinycore.cli.main import main
from tinycore.errors import FileFormatError


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


def means(path: Path, channels: int = 3) -> list[int]:
    """The mean of each channel of a picture, as a model is given it."""
    wanted = Description((1, channels, 8, 8), ELEMENTS[TensorProto.UINT8])
    return [round(mean) for mean in loaded(str(path), wanted, "byte")[0].mean((1, 2))]


def test_pictures_are_given_as_they_are_shown(tmp_path: Path) -> None:
    deep, clear, turned, wide = (tmp_path / f"{name}.png" for name in ("d", "c", "t", "w"))
    Image.fromarray(numpy.full((8, 8), 30000, numpy.uint16)).save(deep)
    assert means(deep, 1) == means(deep, 1) == [30000 // 257]

    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(clear)  # of a drawing, what is around it
    assert means(clear) == [255] * 3
    Image.new("RGBA", (8, 8), (10, 20, 30, 255)).save(clear)
    assert means(clear) == [10, 20, 30]

    sky = numpy.zeros((16, 8, 3), numpy.uint8)
    sky[:8] = 200
    exif = Image.Exif()
    exif[0x0112] = 3  # a camera held upside down
    Image.fromarray(sky).save(turned, exif=exif)
    given = loaded(str(turned), Description((1, 3, 16, 8), ELEMENTS[TensorProto.UINT8]), "byte")
    assert given[0, :, :4].max() == 0
    assert given[0, :, -4:].min() == 200

    Image.fromarray(numpy.full((8, 8), 1 << 20, numpy.int32)).save(wide.with_suffix(".tiff"))
    with pytest.raises(FileFormatError, match="32 bits for a pixel"):
        means(wide.with_suffix(".tiff"))


def test_sounds_of_24_bits_and_files_that_are_no_text(tmp_path: Path) -> None:
    sound, other = tmp_path / "sound.wav", tmp_path / "other.txt"
    samples = [0, 1 << 22, -(1 << 23), (1 << 23) - 1]
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 3, 16000, 0, "NONE", ""))
        file.writeframes(b"".join(n.to_bytes(3, "little", signed=True) for n in samples))
    wanted = Description((1, "n"), ELEMENTS[TensorProto.FLOAT])
    assert loaded(str(sound), wanted, "unit").tolist() == [[0.0, 0.5, -1.0, pytest.approx(1.0)]]

    other.write_bytes(b"\xff\xfe\x80")
    with pytest.raises(FileFormatError, match="is no text, array, picture or sound"):
        loaded(str(other), wanted, "unit")
