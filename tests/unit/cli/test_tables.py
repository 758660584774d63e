"""Tables of the command line: one text for pipes, and what `rich` makes of it on a terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable

import pytest

from tinycore.cli.tables import Table

PROFILE = Table(
    ">share  >time  <device  <kernel  <where",
    [
        ("71.6%", "21.24 ms", "CPU", "elementwise_131072", "Linear train.py:11"),
        ("4.7%", "698.2 us", "WEBGPU", "reduce_64_512", "[red]softmax :x: train.py:11"),
    ],
)
REASONS = Table(
    "<device  <state",
    [("* CPU", "open"), ("  CUDA", "missing", "a reason of some words " * 5, "", "another")],
)


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[Table, int], list[str]]:
    """The lines that a terminal of some width shows, without styles."""

    def lines(table: Table, columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        table.show()
        return re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()

    return lines


def test_columns_are_aligned_and_notes_stand_below_their_row() -> None:
    assert str(PROFILE).splitlines() == [
        "share      time  device  kernel              where",
        "71.6%  21.24 ms  CPU     elementwise_131072  Linear train.py:11",
        " 4.7%  698.2 us  WEBGPU  reduce_64_512       [red]softmax :x: train.py:11",
    ]
    assert str(REASONS).splitlines() == [
        "device  state",
        "* CPU   open",
        "  CUDA  missing",
        "        a reason of some words a reason of some words a reason of some words a reason of",
        "        some words a reason of some words",
        "        another",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert str(Table("<kernel  >runs", [])) == "kernel  runs"


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    PROFILE.show()

    assert capsys.readouterr().out == f"{PROFILE}\n"


def test_a_terminal_gets_plain_text_without_rich(
    shown: Callable[[Table, int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)

    assert shown(PROFILE, 60) == str(PROFILE).splitlines()


def test_a_wide_terminal_gets_the_same_rows(shown: Callable[[Table, int], list[str]]) -> None:
    pytest.importorskip("rich")

    assert shown(PROFILE, 73) == str(PROFILE).splitlines()


@pytest.mark.parametrize("columns", [72, 60, 42, 23, 20])
def test_no_cell_is_cut_on_a_narrow_terminal(
    shown: Callable[[Table, int], list[str]], columns: int
) -> None:
    pytest.importorskip("rich")
    lines = shown(PROFILE, columns)

    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    for cells, _ in PROFILE.rows:
        assert all(cell.strip().replace(" ", "") in text.replace(" ", "") for cell in cells)


def test_a_first_column_as_wide_as_the_terminal_leaves_room_for_the_others(
    shown: Callable[[Table, int], list[str]],
) -> None:
    pytest.importorskip("rich")
    table = Table("<kernel  <device  >runs", [("a" * 40, "CPU", "12", "a note of some words")])

    for columns in (43, 40, 20):
        lines = "\n".join(shown(table, columns)).split()
        assert "".join(lines) == "kerneldeviceruns" + "a" * 40 + "CPU12anoteofsomewords"
        assert len(lines) < 14  # words are whole


def test_notes_take_the_width_of_the_terminal(shown: Callable[[Table, int], list[str]]) -> None:
    pytest.importorskip("rich")

    wide = shown(REASONS, 140)
    assert wide[3].strip() == ("a reason of some words " * 5).strip()
    assert [line.rstrip() for line in shown(REASONS, 40)[3:5]] == [
        "        a reason of some words a reason",
        "        of some words a reason of some",
    ]
