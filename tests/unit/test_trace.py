"""Trace channels: which are on, what a line looks like, and colors."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tinycore.config import CHANNELS, Context
from tinycore.errors import SettingError
from tinycore.trace import PassTrace, Trace, ansilen, ansistrip, colored


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.mark.parametrize(
    ("level", "channels"),
    [
        (0, set()),
        (1, {"device", "layout"}),
        (2, {"device", "layout", "run"}),
        (3, {"device", "layout", "run", "schedule", "plan", "beam"}),
        (4, {"device", "layout", "run", "schedule", "plan", "beam", "source"}),
        (5, {"device", "layout", "run", "schedule", "plan", "beam", "source", "kernel"}),
        (
            6,
            {
                "device",
                "layout",
                "run",
                "schedule",
                "plan",
                "beam",
                "source",
                "kernel",
                "linear",
            },
        ),
        (
            7,
            {
                "device",
                "layout",
                "run",
                "schedule",
                "plan",
                "beam",
                "source",
                "kernel",
                "linear",
                "binary",
            },
        ),
    ],
)
def test_debug_turns_on_every_channel_up_to_its_level(level: int, channels: set[str]) -> None:
    with Context(DEBUG=level, TRACE=""):
        assert {name for name in CHANNELS if Trace(name).on} == channels


def test_trace_turns_on_channels_by_name() -> None:
    with Context(DEBUG=0, TRACE="memory,tiny_amd.ioctl"):
        assert Trace("memory").on
        assert Trace("tiny_amd.ioctl").on
        assert not Trace("run").on


def test_an_unknown_channel_is_refused_where_it_is_made() -> None:
    with pytest.raises(SettingError, match=r"no trace channel 'rnu'\. Known: device, layout"):
        Trace("rnu")


def test_a_line_is_the_channel_in_eight_columns_and_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Context(TRACE="run"):
        Trace("run")("CPU    r_16")

    assert capsys.readouterr() == ("", "run      CPU    r_16\n")


def test_a_body_follows_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(TRACE="source"):
        Trace("source")("r_16", "void r_16() {\n}")

    assert capsys.readouterr().err == "source   r_16\nvoid r_16() {\n}\n"


def test_nothing_is_printed_when_off(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=0, TRACE=""):
        Trace("run")("CPU    r_16")

    assert capsys.readouterr() == ("", "")


def test_a_graph_is_printed_after_the_passes_that_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = PassTrace("passes")
    with Context(TRACE="passes:row,passes:sum_8"):
        is_on = trace.on
        first = trace.after("row fusion", "%0 = A\n")
        again = trace.after("row order", "%0 = A\n", first)
        other = trace.after("group", "%0 = A\n", again)
        trace.after("tile", "%0 = A\n", other, "sum_8_8")
    with Context(DEBUG=7, TRACE="run"):
        is_on_now = trace.on

    assert (is_on, is_on_now) == (True, False)
    assert capsys.readouterr().err == (
        "passes   after row fusion\n%0 = A\npasses   after row order: as before\n"
        "passes   after tile of sum_8_8\n%0 = A\n"
    )


def test_a_terminal_gets_colors(terminal: Terminal) -> None:
    with Context(NO_COLOR=False, TRACE="run"), redirect_stdout(terminal), redirect_stderr(terminal):
        assert colored("x", "green") == "\x1b[32mx\x1b[0m"
        assert colored("x", "RED") == "\x1b[91mx\x1b[0m"
        assert colored("x", "blue", background=True) == "\x1b[44mx\x1b[0m"
        assert colored("x", None) == "x"
        Trace("run")("r_16")
    assert terminal.getvalue() == "\x1b[36mrun     \x1b[0m r_16\n"


def test_no_color_and_dumb_terminals_are_honored(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(NO_COLOR=True):
        assert colored("x", "green", stream=terminal) == "x"
    monkeypatch.setenv("TERM", "dumb")
    with Context(NO_COLOR=False):
        assert colored("x", "green", stream=terminal) == "x"


def test_a_pipe_gets_no_colors() -> None:
    with Context(NO_COLOR=False):
        assert colored("x", "green", stream=io.StringIO()) == "x"


def test_columns_are_counted_without_color_codes() -> None:
    assert ansilen("\x1b[32mabc\x1b[0m") == 3
    assert ansistrip("\x1b[1;32mabc\x1b[0m") == "abc"


def test_nothing_is_printed_where_standard_error_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Context(NO_COLOR=False, TRACE="run"):
        Trace("run")("a line")
