"""The package that `tinycore new-backend` writes: built, installed, and proven."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from built_wheels import empty_environment, wheel_of

from tiny_testing.new_backend import FILES, PACKAGE_KINDS, write
from tinycore.cli.main import main
from tinycore.errors import ArgumentError

ROOT = Path(__file__).parents[3]
SUPPORT = [ROOT / "plugins" / name for name in ("tiny_hcq", "tiny_testing")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "queues", "highest", "least"),
    [
        ("numpy", False, 2, 300),
        # kernels are those of the package with queues, from the same file; test_pages_in_c.py runs
        # a sample of them on this device
        ("c", False, 1, 30),
        ("c", True, 3, 300),
    ],
)
def test_the_package_passes_in_an_empty_environment(
    tmp_path: Path, language: str, queues: bool, highest: int, least: int
) -> None:
    folder = write("toy", tmp_path, language, queues)
    python = empty_environment(
        tmp_path / "environment",
        *(wheel_of(each, tmp_path) for each in (ROOT, *SUPPORT, folder)),
    )
    environment = os.environ | {"TINYCORE_PLUGINS": "TOY", "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    script = (
        "import json, sys, tinycore, tiny_toy\n"
        "from tinycore.cli.main import main\n"
        "places = [tinycore.__file__, tiny_toy.__file__]\n"
        f"status = main(['conformance', 'TOY', '--level', '{highest}', '--claimed', '--in-process',"
        "\n"
        "               '--json', 'told.json', '--suite', sys.argv[1]])\n"
        "print(json.dumps([status, places]))\n"
    )
    done = subprocess.run(
        [python, "-c", script, folder / "tests/test_conformance.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    status, places = json.loads(done.stdout.splitlines()[-1])
    told = json.loads((tmp_path / "told.json").read_text("utf-8"))

    assert status == 0, done.stdout
    assert all(str(tmp_path) in place for place in places)  # the wheels, and not this tree
    assert told["conforms"] is True
    assert told["distribution"] == "tiny-toy"
    assert told["counts"]["passed"] > least
    assert {trial["level"] for trial in told["trials"]} == set(range(highest + 1))


@pytest.mark.slow
def test_its_own_tests_run_under_pytest(tmp_path: Path) -> None:
    folder = write("Toy", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--level", "1",
         "--rootdir", folder, "-c", folder / "pyproject.toml", "-k", "device or memory or view"],
        cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{metadata(folder)}"},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "TOY conforms up to level 1" in done.stdout


def metadata(folder: Path) -> Path:
    """A folder with the entry point of the package, as installing it would leave."""
    info = folder / "installed/tiny_toy-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-toy\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[tinycore.backends]\nTOY = tiny_toy:BACKEND\n")
    return info.parent


@pytest.mark.parametrize(("language", "queues"), PACKAGE_KINDS)
def test_every_word_is_filled_in(tmp_path: Path, language: str, queues: bool) -> None:
    folder = write("toy", tmp_path, language, queues)
    texts = [path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()]

    assert folder.name == "tiny-toy"
    assert len(texts) == len(FILES) + len(PACKAGE_KINDS[language, queues].sources)
    assert [text for text in texts if "@" in text.replace("@v", "").replace("@release", "")] == []


def test_the_command_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", "toy", "--into", str(tmp_path)]) == 0
    assert "tinycore conformance TOY --level 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2D", "'2D' cannot name a device: use letters and digits, a letter first, as in TOY2"),
        ("a-b", "'a-b' cannot name a device"),
        ("python", "PYTHON is the device of tinycore"),
    ],
)
def test_a_name_that_does_not_do(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        write(name, tmp_path)


def test_queues_need_a_language_with_addresses(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="which numpy does not give: add --language c"):
        write("toy", tmp_path, queues=True)


def test_a_device_with_queues_names_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["new-backend", "toy", "--into", str(tmp_path), "--language", "c", "--queues"]

    assert main(command) == 0
    assert "docs/write-a-queue-backend.md" in capsys.readouterr().out


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write("toy", tmp_path)

    with pytest.raises(ArgumentError, match="is there already"):
        write("toy", tmp_path)
