"""`tinycore tune`: a script is run, its kernels are searched for, and what was found is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tinycore import Context
from tinycore.cli.main import main
from tinycore.cli.tune import LaunchTimes

SCRIPT = """
import sys
from tinycore import Tensor
from helper_of_script import size
assert sys.argv[1:] == ["--twice", "-x"], sys.argv
for _ in range(2):
    print(Tensor([1.0] * size).sum().item())
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "helper_of_script.py").write_text("size = 48\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with Context(DEV="PYTHON", CACHE_DIR=str(tmp_path / "cache"), PARALLEL=1):
        yield path


def test_table_of_what_was_found(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--seconds", "3", "--beam", "1", str(script), "--twice", "-x"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("48.0\n48.0\n")
    (row,) = [line for line in out.splitlines() if line.startswith("reduce_48")]
    name, device, runs, share, before, _, after, _, speedup = row.split()
    assert (name, device, runs) == ("reduce_48", "PYTHON", "2")
    assert 0 < float(share[:-1]) <= 100
    assert float(before) >= float(after) > 0
    assert speedup.endswith("x")
    assert "all kernels: " in out


def test_failing_script_is_told_and_what_it_ran_is_tuned(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SCRIPT + "raise RuntimeError('lost my data')\n"
    script.write_text(text)

    assert main(["tune", "--seconds", "0.1", str(script), "--twice", "-x"]) == 1

    captured = capsys.readouterr()
    assert "RuntimeError: lost my data" in captured.err
    assert "failed; tuning what it ran before that" in captured.err
    assert "not tuned" in captured.out  # there was no time


def test_script_without_kernels(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("print('nothing to do')\n")

    assert main(["tune", str(script)]) == 1

    assert "ran no kernel that can be tuned" in capsys.readouterr().err


def test_missing_script(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=0):
        assert main(["tune", str(script.with_name("nope.py"))]) == 1

    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--beam", "0"], ["--seconds", "0"], ["--seconds", "-1"]])
def test_numbers_out_of_range_are_mistakes(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tune", *words, "script.py"])


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["tune", "--help"])

    out = capsys.readouterr().out
    assert "TUNED=1 python train.py" in out
    assert "good to know:" in out


def test_watch_adds_up_launches() -> None:
    profiler, runner = LaunchTimes(), object()
    profiler.record(runner, 0.5)
    profiler.record(runner, None)

    assert profiler.of(runner) == (2, 0.5)
    assert profiler.of(object()) == (0, 0.0)
