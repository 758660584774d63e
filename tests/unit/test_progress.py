"""Progress of long work: on a terminal after a while, nowhere else."""

from __future__ import annotations

import _thread
import io
import sys
import time

import pytest

from tinycore import Context, Tensor, _progress
from tinycore._progress import progress, telling


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def opened(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, on which work is told at once."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(_progress, "SILENT_SECONDS", 0.01)
    return found


def wait_for(terminal: Terminal, text: str) -> None:
    """Wait until a text was written; the test fails without it."""
    end = time.monotonic() + 10
    while text not in terminal.getvalue() and time.monotonic() < end:
        time.sleep(0.002)
    assert text in terminal.getvalue()


def test_work_is_told_and_its_line_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = opened(monkeypatch)

    with telling("thinking, {:.0f} s".format):
        wait_for(terminal, "tinycore: thinking, 0 s")

    assert terminal.getvalue().endswith("\r\x1b[K")


def test_progress_tells_how_many_came_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = opened(monkeypatch)

    items = progress("abcd", "reading letters", 4)

    assert [next(items), next(items)] == ["a", "b"]
    wait_for(terminal, "reading letters: 1 of 4")
    assert list(items) == ["c", "d"]
    assert "s left" in terminal.getvalue()


def test_an_error_ends_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = opened(monkeypatch)

    def interrupted() -> None:
        with telling("{:.0f}".format):
            wait_for(terminal, "tinycore: 0")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    shown = terminal.getvalue()
    assert shown.endswith("\r\x1b[K")
    time.sleep(0.3)
    assert terminal.getvalue() == shown


def test_short_work_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)

    assert list(progress([1, 2], "counting", 2)) == [1, 2]

    assert found.getvalue() == ""


def test_nothing_goes_into_pipes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_progress, "SILENT_SECONDS", 0.0)

    with Context(CCACHE=0):
        (Tensor.arange(13, device="PYTHON") * 3 + 5).realize()
        with telling("{:.0f}".format):
            time.sleep(0.02)

    assert capsys.readouterr().err == ""


def test_a_program_without_standard_error_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    assert list(progress([1], "counting", 1)) == [1]


def test_work_is_done_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    opened(monkeypatch)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)

    assert list(progress("ab", "reading letters", 2)) == ["a", "b"]
