"""Golden files: expected texts that people have read, kept beside the tests. Devices of tests."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.standins import STANDINS, device_of
from tinycore import Context, Device
from tinycore._setting import current
from tinycore.device.target import parse_targets
from tinycore.errors import CompilerUnavailable, DeviceUnavailable, TinycoreError, UnknownDevice

FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("VERIFY", "1")  # every graph is checked at every stage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden: CI compares golden files, it never writes them")


@dataclass(frozen=True)
class Golden:
    """Compares texts with `tests/golden/<case>/<name>`; with --update-golden, writes them."""

    update: bool

    def check(self, case: str, name: str, text: str) -> None:
        """Fail, showing the difference, unless the file holds exactly `text`."""
        path = FOLDER / case / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            return
        old = path.read_text("utf-8") if path.exists() else ""
        if text != old:
            lines = difflib.unified_diff(
                old.splitlines(), text.splitlines(), "expected", "found", lineterm=""
            )
            shown = "\n".join(lines)
            pytest.fail(
                f"{case}/{name} differs; after reading, `pytest --update-golden`\n{shown}",
                pytrace=False,
            )


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    """No test leaves a Context open, in which every later test would run."""
    before = current.get()
    yield
    assert current.get() is before, f"left open: {current.get()}"


def absence(target: str) -> str:
    """Why a device is not there, or its compiler that is named; empty where they are."""
    (wanted,) = parse_targets(target)
    try:
        Device[wanted.name].toolchain_for(wanted.renderer, wanted.arch)
    except (CompilerUnavailable, DeviceUnavailable, UnknownDevice) as error:
        return str(error)
    return ""


def play(name: str) -> None:
    """Have a stand-in be a device, for tests of tensors. Raises UsageError where it cannot be."""
    if name not in STANDINS:
        raise pytest.UsageError(f"STANDIN={name}: there are {', '.join(STANDINS)}")
    try:
        STANDINS[name].register()
        why = absence(device_of(name))
    except (LookupError, OSError, TinycoreError) as error:
        why = str(error)
    if why:
        raise pytest.UsageError(f"no stand-in: {why}")
    os.environ["TENSOR_TESTS"] = device_of(name)


if standin := os.environ.get("STANDIN"):  # before conftest.py of a folder asks for TENSOR_TESTS
    play(standin)


@pytest.fixture(autouse=True)
def on_its_device(request: pytest.FixtureRequest, settings_stay: None) -> Iterator[None]:
    """A test runs on what its mark `device` names: the core is tested without any plugin too."""
    mark = request.node.get_closest_marker("device")
    if mark is None:
        yield
        return
    (target,) = mark.args
    if why := absence(target):
        pytest.skip(why)
    with Context(DEV=target):
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The golden files."""
    return Golden(request.config.getoption("--update-golden"))
