"""Checks of a release: `nox -s release_check`."""

from __future__ import annotations

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


def test_a_package_is_built_with_what_it_needs_of_this_tree(guide: ModuleType) -> None:
    found = guide.with_own_requirements("tiny-qcom")

    assert set(found) == {"tinycore", "tiny-cl", "tiny-hcq", "tiny-qcom"}
    assert found[-1] == "tiny-qcom"
    assert guide.with_own_requirements("tinycore") == ["tinycore"]


@pytest.mark.parametrize(("source", "status"), [("THING = 1", 0), ("import no_such_module", 1)])
def test_what_a_wheel_declares_is_imported(
    guide: ModuleType, tmp_path: Path, source: str, status: int
) -> None:
    facts = tmp_path / "toy-9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 9\n")
    (facts / "entry_points.txt").write_text("[tinycore.backends]\nTOY = toy_declared:THING\n")
    (tmp_path / "toy_declared.py").write_text(source)
    words = [sys.executable, "-c", guide.LOAD_ENTRY_POINTS, "toy"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == status
