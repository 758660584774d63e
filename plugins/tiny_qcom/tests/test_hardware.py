"""The script that an owner of a device runs, on the stand-in."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute

from tiny_qcom.ir3 import library_path
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import register, unregister

SCRIPT = Path(__file__).parents[1] / "hardware/run"
try:
    library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module, with the stand-in in the place of a device."""
    loader = importlib.machinery.SourceFileLoader("qcom_hardware_run", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    driver = Kgsl(execute)
    register(backend_of(driver))
    yield module
    unregister("QCOM")
    assert not driver.faults


def test_the_device_is_named(script: ModuleType) -> None:
    assert script.run_part("IR3", "device") == "a630, number 0x06030001"


@pytest.mark.parametrize(
    "part", ["copies", "shared", "wide", "captured", "imported", "images in half"]
)
def test_a_part_is_right(script: ModuleType, part: str) -> None:
    assert re.fullmatch(r"same|error \de-\d\d|error \d\.\de[-+]\d\d", script.run_part("IR3", part))


def test_questions_that_hardware_answers(script: ModuleType) -> None:
    found = dict(line.split(": 0x") for line in script.run_part("IR3", "questions").split("<br>"))
    assert len(found) == len(script.QUESTIONS)
    assert found["imul by 7 << 16: whose halves madsh.m16 takes"] == f"{3 * 7 << 16:08x}"
    product = 0x12345678 * 0x9ABCDEF1 & 0xFFFFFFFF
    assert found["imul of numbers of 32 bits"] == f"{product:08x}"


def test_a_part_that_fails_says_so(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own there is no device."""
    assert script.asked("IR3", "copies").endswith("FAILED")
