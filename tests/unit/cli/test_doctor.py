"""`tinycore doctor`: as JSON, with the checks of observers, and when a driver kills the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pluggy
import pytest

from tinycore import Context, Device
from tinycore.cli import devices, doctor
from tinycore.cli.isolated import Ended, run_isolated
from tinycore.cli.main import main
from tinycore.device.hooks import hooks

listen = pluggy.HookimplMarker("tinycore")


def plugin(name: str, body: str) -> str:
    """The module of a backend that nobody chooses unasked, or everybody."""
    return f"""
import os, signal, time
from tinycore.plugin import Backend

def crash(*asked):
    os.kill(os.getpid(), signal.SIGSEGV)

def hang(*asked):
    time.sleep(600)

BACKEND = Backend(name="{name}", api=(2, 0), renderers={{"C": crash}}, {body})
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install backends for the processes that the commands start: their names, and fields."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def installed(**backends: str) -> None:
        for name, body in backends.items():
            word = name.lower()
            (tmp_path / word).mkdir()
            (tmp_path / word / "__init__.py").write_text(plugin(name, body))
            rank = body.partition("priority=")[2]
            (tmp_path / word / "presence.toml").write_text(f"[[{name}]]\npriority = {rank}\n")
            info = tmp_path / f"tiny_{word}-0.1.dist-info"
            info.mkdir()
            metadata = f"Metadata-Version: 2.1\nName: tiny-{word}\nVersion: 0.1\n"
            (info / "METADATA").write_text(metadata)
            entry = f"[tinycore.backends]\n{name} = {word}:BACKEND\n"
            (info / "entry_points.txt").write_text(entry)

    return installed


@pytest.mark.slow
def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "PYTHON", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert [row["what"] for row in told["checks"]] == ["open", "copy", "compute"]
    assert {row["name"] for row in told["devices"]} >= {"PYTHON", "NULL"}


@pytest.mark.slow
def test_a_driver_that_kills_the_process_is_told(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(CRASHER="open=crash, priority=-1")

    assert main(["doctor", "CRASHER"]) == 1
    assert "FAIL  open: the process was killed by SIGSEGV" in capsys.readouterr().out


@pytest.mark.slow
def test_a_driver_that_hangs_is_told(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(HANGER="open=hang, priority=-1")

    assert main(["doctor", "HANGER", "--timeout", "3"]) == 1
    assert "FAIL  open: nothing came of it in 3 s, so it was ended" in capsys.readouterr().out


@pytest.mark.slow
def test_the_list_goes_on_after_drivers_that_hang_and_crash(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        HANGER="open=hang, probe=hang, priority=900",
        CRASHER="open=crash, probe=crash, priority=800",
        LATER="open=hang, priority=700",
    )

    assert main(["devices", "--json", "--timeout", "3"]) == 0

    told = json.loads(capsys.readouterr().out)
    rows = {row["name"]: (row["state"], row["reason"]) for row in told["devices"]}
    state, reason = rows["HANGER"]
    assert state == "no-hardware"
    assert reason.startswith("asked for its devices: nothing came of it in 3 s")
    state, reason = rows["CRASHER"]
    assert state == "no-hardware"
    assert reason.startswith("asked for its devices: the process was killed by SIGSEGV")
    state, reason = rows["LATER"]  # found ready, and then it hung when it was opened
    assert reason.startswith("asked for its devices: nothing came of it in 3 s")
    assert told["default"] not in {*rows} - {"CPU", "CL", "WEBGPU", "PYTHON"}
    assert rows["PYTHON"] == ("ready", "") or told["default"] == "PYTHON"


def test_what_was_lost_was_denied_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(seconds: float, without: tuple[str, ...]) -> Any:
        if not without:
            return None, "PYTHON", Ended(None, "", seconds)
        with Context(TINYCORE_PLUGINS_DENY=without):
            blocked = Device.plugins.find("PYTHON")
        assert blocked is not None
        return devices.Survey(None, f"PYTHON ({blocked.reason})", []), "", Ended(0, "", seconds)

    monkeypatch.setattr(devices, "_surveyed", slow)

    told = devices.survey(1.0).objection
    assert told.startswith("PYTHON (asked for its devices: nothing came of it in 1 s")
    assert "DENY names" not in told


def test_what_is_built_in_has_time_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def slow_once(seconds: float, without: tuple[str, ...]) -> Any:
        asked.append(without)
        if len(asked) == 1:
            return None, "PYTHON", Ended(None, "", seconds)
        return devices.Survey("PYTHON", "", []), "", Ended(0, "", seconds)

    monkeypatch.setattr(devices, "_surveyed", slow_once)

    assert devices.survey(1.0).default == "PYTHON"
    assert asked == [(), ()]


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


def test_what_is_known_is_written_before_a_device_kills_the_process() -> None:
    script = (
        "import os; from tinycore.cli import doctor, main; "
        "doctor.CHECKS['open'] = lambda name: os._exit(3); "
        "main.main(['doctor', 'PYTHON', '--in-process'])"
    )
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=buffered
    )

    assert done.returncode == 3
    assert done.stdout.startswith("python ")
    assert "\ndevice " in done.stdout


def test_how_a_process_died() -> None:
    said = Ended(3, "oh no\n", 1.0).manner
    killed = Ended(-9, "", 1.0).manner

    assert said == "the process ended with status 3, saying 'oh no'"
    assert killed.startswith("the process was killed by SIGKILL; the system ended")


@pytest.mark.parametrize("status", [0, 1])
def test_a_check_that_ends_the_process_has_failed(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def rows(*arguments: Any) -> Iterator[Any]:
        yield {"what": "open", "passed": True, "detail": "", "seconds": 0.0}
        yield Ended(status, "", 1.0)

    monkeypatch.setattr(doctor, "run_isolated", rows)

    found = list(doctor.checked_apart("TOY", 1.0))

    assert [(row["what"], row["passed"]) for row in found] == [("open", True), ("copy", False)]
    assert f"ended with status {status}" in found[-1]["detail"]


def test_a_check_that_raises_what_is_no_exception_has_failed() -> None:
    def check(name: str) -> str:
        raise SystemExit(0)

    row = doctor.tried("open", check, "TOY")

    assert not row["passed"]
    assert "SystemExit" in row["detail"]


@pytest.mark.slow
def test_a_child_that_a_plugin_leaves_is_not_waited_for() -> None:
    """It has the output of the process that asked, which would end with it."""
    script = "import os, time; print('{}', flush=True); os.fork() or time.sleep(40)"
    began = time.monotonic()

    row, ended = run_isolated(["timeit", "-n", "1", "-r", "1", script], 60.0)

    assert (row, getattr(ended, "status", None)) == ({}, 0)
    assert time.monotonic() - began < 30


def test_nothing_is_awaited_after_a_check_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*arguments: Any) -> Iterator[Any]:
        yield {"what": "open", "passed": False, "detail": "", "seconds": 0.0}
        pytest.fail("a thread of the plugin keeps the process")

    monkeypatch.setattr(doctor, "run_isolated", rows)

    assert [row["what"] for row in doctor.checked_apart("TOY", 1.0)] == ["open"]
