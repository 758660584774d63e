"""The script that an owner of a device runs, on the stand-in."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from adreno import opencl
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute

from tiny_qcom.code import Code
from tiny_qcom.ir3 import library_path
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import register, unregister

FOLDER = Path(__file__).parents[1] / "hardware"
try:
    library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


def loaded(name: str) -> ModuleType:
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(f"qcom_hardware_{name}", str(FOLDER / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module, with the stand-in in the place of a device."""
    module = loaded("run")
    driver = Kgsl(execute)
    register(backend_of(driver))
    yield module
    unregister("QCOM")
    assert not driver.faults


def test_the_device_is_named(script: ModuleType) -> None:
    assert script.run_part("IR3", "device") == "a630, number 0x06030001"


def test_a_part_that_fails_says_so(script: ModuleType) -> None:
    """In a process of its own there is no device."""
    assert script.asked("IR3", "copies", "").endswith("FAILED")


def test_questions_that_hardware_answers(script: ModuleType) -> None:
    found = dict(line.split(": 0x") for line in script.run_part("IR3", "questions").split("<br>"))
    assert len(found) == len(script.QUESTIONS)
    assert found["imul by 7 << 16: whose halves madsh.m16 takes"] == f"{3 * 7 << 16:08x}"
    product = 0x12345678 * 0x9ABCDEF1 & 0xFFFFFFFF
    assert found["imul of numbers of 32 bits"] == f"{product:08x}"


@pytest.mark.parametrize("part", ["subnormal halves", "texels", "powers of two"])
def test_pixels_and_small_halves(script: ModuleType, part: str) -> None:
    assert script.run_part("IR3", part) == RIGHT[part]


RIGHT = {
    "queue": r"100 submissions, \d+ us each; counter \d\.\d\d of the time",
    "copies": "same",
    "wide": "same",
    "private": "same",
    "cl_memory": r"not tried: .*|same",
    "subnormal halves": "widened same, narrowed same, multiplied same",
    "texels": "float same, again same; half same, again same",
    "powers of two": "near",
    "image times": r"(\d+ rows: \d+ us plain, \d+ us in images(<br>)?)+",
    "image edges": "float same, half same",
    "questions": r"(.*: 0x[0-9a-f]{8}<br>)+.*: 0x[0-9a-f]{8}",
}
"""Results of parts; of others an error."""


@pytest.mark.slow
def test_one_command_tries_everything_and_writes_the_page(tmp_path: Path) -> None:
    """As the owner of a device runs it, but for the stand-in, which each process has anew."""
    plugin = FOLDER.parent
    folders = (plugin / "tests", plugin.parents[1] / "tests/support")
    command: list[str | Path] = [sys.executable, FOLDER / "run", tmp_path / "page.md"]
    done = subprocess.run(
        [*command, "--compiler", "IR3", "--register", "simulated_qcom:BACKEND"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "VERIFY": "0"},
    )
    page = (tmp_path / "page.md").read_text("utf-8")
    assert done.returncode == 0, page + done.stderr
    assert re.search(r"Python 3\.\d+\.\d+, a630, number 0x06030001$", page, re.MULTILINE)
    rows = re.findall(r"^\| IR3 \| ([a-z_ ]+) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == 19
    for part, result in rows:
        assert re.fullmatch(RIGHT.get(part, r"error \d\.\de[-+]\d\d"), result), (part, result)


@pytest.mark.skipif(bool(opencl.missing()), reason=opencl.missing())
@pytest.mark.parametrize("part", ["queue", "images in half", "captured"])
def test_a_part_in_opencl_c(script: ModuleType, part: str) -> None:
    found = script.run_part("QCOMCL", part)
    assert re.fullmatch(RIGHT.get(part, r"error \d\.\de[-+]\d\d"), found)


def test_kernels_of_other_devices_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of tensors that exchange memory compile for a processor too."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    kernels = loaded("compile").Kernels()
    kernels.tinycore_kernel_compiled("k", "of a processor", b"\x7fELF\x02")
    assert not kernels.found
    made = Code("k", "ir3", bytes(128), ()).pack()
    kernels.tinycore_kernel_compiled("k", "of an Adreno", made)
    assert list(kernels.found) == ["of an Adreno"]
