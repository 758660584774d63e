"""`tinycore chat MODEL`: talk with a language model, or let it continue a text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tiny_llm.options import (
    add_model,
    add_sampling,
    add_speculation,
    check_device,
    chosen_device,
    load,
    sampling_of,
)
from tinycore.cli.options import Commands, subcommand
from tinycore.errors import ArgumentError

__all__ = ["add", "run"]

EPILOG = """\
examples:
  tinycore chat SmolLM2-135M-Instruct.Q4_1.gguf              talk; an empty line or Ctrl-D ends
  tinycore chat model.gguf "The capital of France is"        continue a text, and end
  tinycore chat model.gguf --message "Name three rivers."    one question, one answer
  echo "Once upon a time" | tinycore chat model.gguf         continue what a pipe brings
"""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "chat",
        "talk with a language model",
        "Chat with a language model, or let it continue a text. "
        "The answer goes to standard output, all else to standard error.",
        EPILOG,
    )
    add_model(command)
    command.add_argument(
        "text", metavar="[text]", help="a text to continue, in place of a talk"
    ).required = False  # with nargs="?", Python 3.11 takes none behind an option
    command.add_argument("--message", help="one message of a talk, in place of many")
    command.add_argument("--system", help="what the model is told before the talk")
    command.add_argument("--limit", type=int, help="most tokens of an answer")
    command.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop where this text appears"
    )
    add_sampling(command)
    add_speculation(command)


def run(arguments: argparse.Namespace) -> int:
    """Load a model, then continue a text or talk."""
    sampling_of(arguments)  # a mistake is told before the model is loaded
    with chosen_device(arguments):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    check_device()
    model = load(arguments)
    text = arguments.text
    if text is None and arguments.message is None and not sys.stdin.isatty():
        text = sys.stdin.read().rstrip("\n")
    if text is not None:
        print(text, end="", flush=True)
        _answer(model, text, arguments)
    elif arguments.message is not None:
        _answer(model, [*_system(arguments), _said("user", arguments.message)], arguments)
    else:
        _talk(model, arguments)
    return 0


def _talk(model: Any, arguments: argparse.Namespace) -> None:
    """Messages by turns, until an empty line or the end of input."""
    if model.template is None:
        raise ArgumentError(f"{model.name} has no chat template; give a text to continue")
    print(f"{model.name}; an empty line or Ctrl-D ends", file=sys.stderr)
    messages = _system(arguments)
    while line := _line():
        messages.append(_said("user", line))
        messages.append(_said("assistant", _answer(model, messages, arguments)))


def _line() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return ""


def _system(arguments: argparse.Namespace) -> list[dict[str, str]]:
    return [] if arguments.system is None else [_said("system", arguments.system)]


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _answer(
    model: Any, given: str | Sequence[dict[str, str]], arguments: argparse.Namespace
) -> str:
    """Print an answer as it comes, and its speed; Ctrl-C ends it and keeps what came."""
    pieces = model.generate(
        given,
        sampling_of(arguments),
        limit=arguments.limit,
        stop=arguments.stop,
        speculate=arguments.speculate,
    )
    shown = []
    try:
        for text in _texts(pieces, model):
            shown.append(text)
            print(text, end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
    finally:
        pieces.close()
    return "".join(shown)


def _texts(pieces: Iterable[Any], model: Any) -> Iterable[str]:
    for piece in pieces:
        yield piece.text
        if piece.reason == "context":
            sys.stdout.flush()
            print(
                f"\nthe context of {model.context} tokens is full; --context gives more, up to "
                f"{model.decoder.about.context}",
                file=sys.stderr,
            )
        if piece.speed is not None:
            sys.stdout.flush()
            print(f"\n[{piece.speed}]", file=sys.stderr)
