"""Checks of a release: `nox -s release`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("nox")


@pytest.fixture(scope="module")
def guide() -> ModuleType:
    spec = spec_from_file_location("guide", Path(__file__).parents[1] / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_package_comes_by_an_extra(guide: ModuleType) -> None:
    for package in set(guide.PACKAGES) - {"tinycore"}:
        assert guide.extras_of(package), package


def test_every_package_of_the_tree_is_released(guide: ModuleType) -> None:
    folders = {file.parent for file in guide.ROOT.glob("plugins/*/pyproject.toml")}

    assert set(guide.PACKAGES.values()) == {guide.ROOT, *folders}


def test_versions_changelogs_and_tags_agree(guide: ModuleType) -> None:
    assert [line for package in guide.PACKAGES for line in guide.objections(package, [])] == []

    [objection] = guide.objections("tiny-cl", ["tiny-cl-v9.9", "tiny-cpu-v9.9"])

    assert "tiny-cl-v9.9" in objection


def declare_toy(folder: Path, source: str) -> None:
    """Install a distribution whose backend is THING of a source."""
    facts = folder / "toy-9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 9\n")
    (facts / "entry_points.txt").write_text("[tinycore.backends]\nTOY = toy_declared:THING\n")
    (folder / "toy_declared.py").write_text(source)


@pytest.mark.parametrize(("source", "status"), [("THING = 1", 0), ("import no_such_module", 1)])
def test_what_a_wheel_declares_is_imported(
    guide: ModuleType, tmp_path: Path, source: str, status: int
) -> None:
    declare_toy(tmp_path, source)
    words = [sys.executable, "-c", guide.LOAD_ENTRY_POINTS, "toy"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == status


@pytest.mark.parametrize(
    ("state", "priority", "fails", "wrong"),
    [
        ("no-hardware", 100, "", ""),
        ("incompatible", 100, "", "TOY is incompatible: of another API"),
        ("ready", 100, "", ""),
        ("ready", 100, "doctor", "TOY does not compute"),
        ("ready", 100, "conformance", "TOY does not conform up to level 1"),
        ("ready", -1, "conformance", ""),
    ],
)
def test_a_device_that_is_here_is_proven(
    guide: ModuleType, tmp_path: Path, state: str, priority: int, fails: str, wrong: str
) -> None:
    declare_toy(tmp_path, f"class THING:\n    priority = {priority}")
    listed = {"devices": [{"name": "TOY", "state": state, "reason": "of another API"}]}
    command = tmp_path / "tinycore"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nprint({json.dumps(json.dumps(listed))})\n"
        f"sys.exit(sys.argv[1] == {fails!r})\n"
    )
    command.chmod(0o755)
    words = [sys.executable, "-c", guide.CONFORMANCE, "toy", "1"]
    path = {**os.environ, "PATH": str(tmp_path)}

    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env=path
    )

    assert done.stderr.strip() == wrong
    assert done.returncode == bool(wrong)
