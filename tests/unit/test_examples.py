"""The programs of examples/ do what they say, made small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy
import pytest
from fetched import fetched
from weights import file_of

EXAMPLES = Path(__file__).parents[2] / "examples"


ABSENT = re.compile(r"No module named '(PIL|ray|tokenizers)'")
"""Packages that some examples want beside tinycore."""


def output_of(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command,
        env=os.environ | {"VERIFY": "0"},  # as users run them; tests of models verify their graphs
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if absent := ABSENT.search(done.stderr):
        pytest.skip(f"{name} needs the package {absent[1]}")
    done.check_returncode()
    return done.stdout


def output_with_weights(name: str, *arguments: str) -> str:
    """Output of a program that fetches weights; skips the test where it cannot fetch them."""
    try:
        return output_of(name, *arguments)
    except subprocess.CalledProcessError as error:
        if "cannot be fetched" in error.stderr:
            pytest.skip(error.stderr[-300:])
        raise AssertionError(error.stderr[-2000:]) from None


PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "weights.py")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [path.name for path in PROGRAMS])
def test_help_says_what_it_does(name: str) -> None:
    first_line = (EXAMPLES / name).read_text(encoding="utf-8").partition("\n")[0]

    assert first_line.removeprefix('"""').rstrip(".").split(" to 98%")[0] in " ".join(
        output_of(name, "--help").split()
    )


@pytest.mark.parametrize("name", [path.name for path in PROGRAMS])
def test_it_ends_with_the_line_that_shows_its_timeline(name: str) -> None:
    assert "its timeline: VIZ=" in (EXAMPLES / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_no_code_of_a_package_is_run_to_fetch_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, ran = tmp_path / "spiteful-1.0", tmp_path / "ran"
    source.mkdir()
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: spiteful\nVersion: 1.0\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'
    )
    (source / "build.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    with tarfile.open(tmp_path / "spiteful-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("WEIGHTS_FOLDER", str(tmp_path))

    with pytest.raises(SystemExit, match=r"spiteful==1\.0 cannot be fetched"):
        file_of("spiteful==1.0", "weights", "0" * 64)
    assert not ran.exists()


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


PICTURES = "scikit-image==0.26"


@pytest.mark.slow
def test_a_photo_is_classified_and_the_place_of_the_cat_is_bright(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    sha256 = "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"
    photo = fetched(PICTURES, "skimage/data/chelsea.png", sha256)
    picture = tmp_path / "where.png"

    out = output_with_weights("classify.py", str(photo), "--picture", str(picture))

    assert re.match(r" +[67]\d\.\d%  class 285\n", out), out
    pixels = numpy.asarray(image.open(picture), numpy.float32)
    assert pixels.shape == (224, 448, 3)
    light = pixels[:, 224:].mean(2) / pixels[:, :224].mean(2).clip(1)
    assert light[60:150, 60:170].mean() > 1.3 * light[:40].mean()


@pytest.mark.slow
def test_a_sentence_of_the_same_meaning_is_found(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = tmp_path / "sentences.txt"
    text.write_text(
        "A girl is carrying a baby.\nA man is eating a piece of bread.\n"
        "A cheetah is running behind its prey.\n"
    )

    out = output_with_weights("sentences.py", "A man is eating food.", str(text))

    assert out.startswith(" 0.76  A man is eating a piece of bread.\n"), out


@pytest.fixture
def speech() -> str:
    sha256 = "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61"
    return str(fetched("moonshine-voice==0.1.5", "moonshine_voice/assets/beckett.wav", sha256))


@pytest.mark.slow
def test_speech_is_found_and_written_down(speech: str, tmp_path: Path) -> None:
    pytest.importorskip("tiny_onnx")
    pytest.importorskip("tokenizers")
    picture = tmp_path / "speech.png"

    found = output_with_weights("voice.py", speech, "--picture", str(picture))
    text = output_with_weights("transcribe.py", speech)

    assert found.count("speech from") == 6, found
    assert "141 of 311 frames" in found
    assert picture.is_file()
    said = "Ever tried, ever failed. No matter, try again. Fail again. Fail better.\n"
    assert text == said


@pytest.mark.slow
def test_files_are_told_apart_by_their_bytes(speech: str) -> None:
    pytest.importorskip("tiny_onnx")

    out = output_with_weights("file_types.py", __file__, speech, str(EXAMPLES / "README.md"))

    found = [line.split()[0] for line in out.splitlines()[:3]]
    assert found == ["python", "wav", "markdown"]


@pytest.mark.slow
def test_a_page_is_read(tmp_path: Path) -> None:
    pytest.importorskip("tiny_onnx")
    sha256 = "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3"
    page, picture = fetched(PICTURES, "skimage/data/page.png", sha256), tmp_path / "lines.png"

    out = output_with_weights("read_page.py", str(page), "--picture", str(picture))

    lines = out.splitlines()
    assert lines[0] == "Region-based segmentation"
    assert lines[1] == "Let us first determine markers of the coins and the"
    assert picture.is_file()


@pytest.mark.slow
def test_a_question_is_answered() -> None:
    pytest.importorskip("tiny_llm")
    asked = ("What is the capital of France?", "--temperature", "0")

    assert output_with_weights("chat.py", *asked) == "The capital of France is Paris.\n"
