"""`tinycore doctor`: as JSON, with the checks of observers, and when a driver kills the process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pluggy
import pytest

from tinycore.cli import doctor
from tinycore.cli.main import main
from tinycore.device.hooks import hooks

listen = pluggy.HookimplMarker("tinycore")

CRASHING = """
import os, signal
from tinycore.plugin import Backend

def crash(index, interface):
    os.kill(os.getpid(), signal.SIGSEGV)

BACKEND = Backend(name="CRASHER", api=(1, 0), open=crash, renderers={"C": crash}, priority=-1)
"""


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "PYTHON", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert [row["what"] for row in told["checks"]] == ["open", "copy", "compute"]
    assert {row["name"] for row in told["devices"]} >= {"PYTHON", "NULL"}


def test_a_driver_that_kills_the_process_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crasher.py").write_text(CRASHING)
    info = tmp_path / "tiny_crasher-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-crasher\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[tinycore.backends]\nCRASHER = crasher:BACKEND\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert main(["doctor", "CRASHER"]) == 1
    assert "FAIL  open: the process was killed by SIGSEGV" in capsys.readouterr().out


class Observer:
    @listen
    def tinycore_doctor_checks(self) -> dict[str, Callable[[str], str]]:
        return {"cable": lambda name: f"{name} is plugged in"}

    @listen
    def tinycore_report_header(self) -> str:
        return "rack 7, shelf 2"


def test_observers_add_checks_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    observer = Observer()
    hooks.register(observer)
    try:
        assert main(["doctor", "PYTHON", "--in-process"]) == 0
    finally:
        hooks.unregister(observer)

    out = capsys.readouterr().out
    assert "rack 7, shelf 2\n" in out
    assert "ok    cable: PYTHON is plugged in" in out


def test_how_a_process_died() -> None:
    assert doctor.manner(3, "oh no\n") == "the process ended with status 3, saying 'oh no'"
    assert doctor.manner(-9, "").startswith("the process was killed by SIGKILL; the system ended")
