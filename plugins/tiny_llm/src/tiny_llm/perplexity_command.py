"""`tinycore perplexity MODEL FILE`: how well a language model foresees a text."""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny_llm.options import add_model, check_device, chosen_device, load
from tinycore.cli.options import Commands, subcommand
from tinycore.errors import ArgumentError
from tinycore.plugin import progress

__all__ = ["add", "run"]


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "perplexity",
        "measure how well a language model foresees a text",
        "Measure the perplexity of a text: of the second half of each window, by the "
        "first, as llama.cpp does.",
    )
    add_model(command)
    command.add_argument("file", type=Path, help="a text in UTF-8")
    command.add_argument("--window", type=int, default=512, help="tokens, 512 unless given")


def run(arguments: argparse.Namespace) -> int:
    """Print the perplexity of a text."""
    try:
        text = arguments.file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"the text cannot be read: {error}") from error
    with chosen_device(arguments):
        return _measure(arguments, text)


def _measure(arguments: argparse.Namespace, text: str) -> int:
    import numpy  # noqa: PLC0415  `--help` needs no numbers

    from tiny_llm.perplexity import of_surprises, surprises  # noqa: PLC0415

    check_device()
    model = load(arguments)
    ids = model.prompt(text)
    found = surprises(model, ids, arguments.window)
    parts = progress(found, "reading windows", len(ids) // max(1, arguments.window))
    print(of_surprises(numpy.array([each for part in parts for each in part])))
    return 0
