"""The script for a card, from end to end on stand-ins: all parts run, on one page."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from rm_standin import Machine
from rm_standin.cards import H200

from tiny_hcq import use_system
from tinycore import Context, Tensor

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "hardware/run"
SUPPORT = TESTS.parents[2] / "tests/support"
FIGURES_FILE = TESTS.parent / "hardware/figures.py"
PROBE_FILE = TESTS.parent / "hardware/probe.py"
STEPS = 20
"""Number of the probe's steps."""
STEPS_BEFORE_DEVICE = 17
"""Number of its steps that open no device of tensors."""
FIGURES = 43
TOLERANCES = {"f32": 1e-5, "tf32": 1e-5, "f16": 3e-3, "bf16": 3e-2}


def page_of(path: Path, *options: str) -> str:
    """The page that the script writes."""
    stand_ins = ["--register", "simulated:BACKEND", "--register", "simulated_nv:BACKEND"]
    stand_ins += ["--system", "simulated_nv:MACHINE", "--seconds", "0", "--by", "512"]
    paths = os.pathsep.join(map(str, (TESTS, SUPPORT)))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run(
        [sys.executable, SCRIPT, path, *stand_ins, *options], check=True, env=environment
    )
    return path.read_text()


def test_the_probe_tells_every_status(tmp_path: Path) -> None:
    text = page_of(tmp_path / "page.md", "--only", "probe")

    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert "**" not in text, text
    assert len(rows) == STEPS
    for said in (
        *("signalled after", "all bytes arrive", "stored what it should"),
        *("RM_ALLOC 0xcbc0: ok", "UVM_REGISTER_GPU: ok", "RM_CONTROL 0xa06c0101: ok"),
        "RM_ALLOC 0x70",
    ):
        assert said in text, said


@pytest.mark.parametrize("version", ["570.144", "575.64.05", "590.48.01", "610.43.03"])
def test_the_probe_finds_the_statuses_of_a_branch(version: str) -> None:
    rows = runpy.run_path(str(PROBE_FILE))["rows"]
    machine = Machine((H200,), version=version)

    with use_system(machine):
        text = "\n".join(itertools.islice(rows(), STEPS_BEFORE_DEVICE))

    assert "**" not in text
    assert "RM_MAP_MEMORY_DMA: INVALID_OBJECT_HANDLE 0x33" in text
    assert "UVM_FREE: ok" in text
    assert "UVM_UNREGISTER_CHANNEL: ok" in text


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.slow
def test_all_parts_of_the_script_run(tmp_path: Path) -> None:
    options = ["--only", "figures,training,drivers,conformance", "--named", "bytes"]

    text = page_of(tmp_path / "page.md", *options)

    assert "**" not in text, text
    assert "A card that is not there (sm_90" in text
    figures = text.partition("## training")[0]
    assert len(re.findall(r"^\| (?!what)", figures, re.MULTILINE)) == FIGURES
    assert text.count("held-out accuracy") == 3
    assert text.count("of the symbols of unseen strings are right") == 3
    assert text.count("| 100 launches in a graph |") == 2
    targets = ("CUDA", "CUDA:PTX", "NV")
    assert re.findall(r"^(\S+) conforms up to level 5$", text, re.MULTILINE) == [*targets]


@pytest.mark.slow
def test_both_sides_of_a_figure_compute_the_same() -> None:
    torch = pytest.importorskip("torch")
    figures = runpy.run_path(str(FIGURES_FILE))
    dtypes, generator = figures["KINDS"], numpy.random.default_rng(0)

    for case in figures["cases"](512):
        arrays = [generator.standard_normal(shape, "f") for shape in case.shapes]
        kind = dtypes[case.kind]
        with Context(DEV="CPU"):
            ours = case.ours(*[Tensor(a).cast(kind).realize() for a in arrays]).float().numpy()
        exact = case.theirs(*map(torch.from_numpy, arrays)).numpy()
        error = numpy.linalg.norm(ours - exact) / numpy.linalg.norm(exact)
        assert ours.shape == exact.shape, case.label
        assert error < TOLERANCES[case.kind], f"{case.group} {case.label} {case.kind}: {error}"
