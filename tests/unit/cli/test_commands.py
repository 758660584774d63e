"""Subcommands of packages: found by entry points, imported when used, explained when absent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tinycore import Context
from tinycore.cli import commands
from tinycore.cli.main import main
from tinycore.device import discovery

MODULE = """
def add(commands):
    command = commands.add_parser("greet", help="say hello")
    command.add_argument("name")
    command.set_defaults(run=lambda arguments: print(f"hello {arguments.name}") or 3)

def add_nothing(commands):
    pass
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package that states entry points of commands: its name, and the lines."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(name: str, *lines: str, body: str = MODULE) -> None:
        (tmp_path / f"{name}.py").write_text(body)
        info = tmp_path / f"{name}-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text("\n".join(["[tinycore.commands]", *lines]))
        discovery._groups.cache_clear()

    with Context(DEBUG=0):
        yield installed
    discovery._groups.cache_clear()
    for name in ("greeter", "rival"):
        sys.modules.pop(name, None)


def test_a_command_of_a_package_runs(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("greeter", "greet = greeter:add")

    assert main(["greet", "world"]) == 3
    assert capsys.readouterr().out == "hello world\n"


def test_help_lists_it_without_importing_it(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("greeter", "greet = greeter:add", body="raise SystemExit(9)\n")

    assert main([]) == 0
    assert "greet      a command (of greeter 0.3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "body", "said"),
    [
        ("greeter:add", "import absent_of_all\n", "ModuleNotFoundError: No module named"),
        ("greeter:absent", MODULE, "AttributeError"),
        ("greeter:add_nothing", MODULE, "of greeter 0.3 adds no command greet"),
    ],
)
def test_a_broken_one_is_explained(
    line: str,
    body: str,
    said: str,
    install: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("greeter", f"greet = {line}", body=body)

    assert main(["greet", "world"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "greeter 0.3" in error


def test_two_owners_of_one_word_are_named(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("greeter", "greet = greeter:add")
    install("rival", "greet = rival:add")

    assert main(["greet", "world"]) == 1
    error = capsys.readouterr().err
    assert "the command greet is claimed by " in error
    assert "greeter 0.3" in error
    assert "rival 0.3" in error


def test_the_words_of_the_core_are_its_own(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("greeter", "settings = greeter:add")

    assert main(["settings"]) == 0
    assert "DEBUG=" in capsys.readouterr().out


def test_a_command_that_is_not_installed_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "entry_points", lambda group: ())

    with Context(DEBUG=0):
        assert main(["chat", "model.gguf"]) == 1
    assert '`pip install "tinycore[llm]"`' in capsys.readouterr().err
