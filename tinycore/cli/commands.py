"""The subcommands of `tinycore`: those of the core, and those of packages, by their entry points.

Floor 6. Imports no command before it is used. A package offers a command by an entry point in the
group `tinycore.commands`, such as `chat = "tiny_llm.chat_command:add"`: the function is given what
`argparse.ArgumentParser.add_subparsers` returns, adds a parser of that name with help, and sets
`run` as a default of it, a function from the parsed arguments to an exit status.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tinycore._deferred import Deferred
from tinycore.cli.options import Commands
from tinycore.device.discovery import entry_points
from tinycore.errors import PluginError

__all__ = ["COMMAND_GROUP", "Command", "add_commands"]

COMMAND_GROUP: Final = "tinycore.commands"

CORE_COMMANDS: Final = {
    word: f"tinycore.cli.{word}:add"
    for word in ("demo", "devices", "settings", "doctor", "export", "tune")
}
"""The core's own, as help lists them: known without looking at what is installed (20 ms)."""

PACKAGE_COMMANDS: Final = {
    "conformance": ("testing", "prove what a device claims, level by level"),
    "new-backend": ("testing", "write a package that drives a device, to start from"),
    "chat": ("llm", "talk with a language model"),
    "serve": ("llm", "serve a language model to programs, as OpenAI's API"),
    "perplexity": ("llm", "measure how well a language model predicts a text"),
    "plan": ("mpi", "estimate a training step of a decoder on many devices"),
    "run": ("onnx", "run an ONNX model on files"),
    "export-onnx": ("onnx", "write a model as a file of the ONNX standard"),
    "viz": ("viz", "show the profile of a program: timeline, kernels, memory"),
}
"""Commands of our other packages: the extra that brings each, and what it is for."""


@dataclass(frozen=True)
class Command:
    """A subcommand: its word, and where the function that adds its parser is, if installed."""

    word: str
    reference: str = ""
    origin: str = "tinycore"

    def add(self, commands: Commands) -> None:
        """Import it, and add its parser. Raises PluginError where that fails, with the fix."""
        if not self.reference:
            raise PluginError(
                f"the command {self.word} is not installed: "
                f'`pip install "tinycore[{PACKAGE_COMMANDS[self.word][0]}]"`'
            )
        try:
            add = Deferred(self.reference).resolve()
        except Exception as error:
            raise PluginError(
                f"the command {self.word} of {self.origin} cannot be imported: "
                f"{type(error).__name__}: {error}. "
                f"`pip install --upgrade --force-reinstall {self.origin.split()[0]}` may mend it"
            ) from error
        add(commands)
        if self.word not in commands.choices:
            raise PluginError(f"{self.reference} of {self.origin} adds no command {self.word}")

    def announce(self, commands: Commands) -> None:
        """Add its name to the help, without importing it."""
        extra, purpose = PACKAGE_COMMANDS.get(self.word, ("", "a command"))
        origin = f"of {self.origin}" if self.reference else f'pip install "tinycore[{extra}]"'
        commands.add_parser(self.word, help=f"{purpose} ({origin})")


def add_commands(commands: Commands, word: str | None) -> None:
    """Add the subcommand that `word` names, or else all of them, for help and mistakes.

    Raises PluginError for one that is not installed, cannot be imported, or is two packages'.
    """
    if word in CORE_COMMANDS:
        Command(word, CORE_COMMANDS[word]).add(commands)
        return
    others = _of_packages()
    if word in others:
        _the_one(word, others[word]).add(commands)
        return
    for name, reference in CORE_COMMANDS.items():
        Command(name, reference).add(commands)
    for claims in others.values():
        claims[0].announce(commands)


def _of_packages() -> dict[str, list[Command]]:
    """Commands that other packages offer, or would: for each word, every claim to it."""
    found: dict[str, list[Command]] = {}
    for entry in entry_points(COMMAND_GROUP):
        if entry.name not in CORE_COMMANDS:
            origin = f"{entry.distribution} {entry.version}".strip()
            found.setdefault(entry.name, []).append(Command(entry.name, entry.reference, origin))
    for word in PACKAGE_COMMANDS:
        found.setdefault(word, [Command(word)])
    return dict(sorted(found.items()))


def _the_one(word: str, claims: Sequence[Command]) -> Command:
    if len(claims) > 1:
        owners = " and ".join(claim.origin for claim in claims)
        raise PluginError(f"the command {word} is claimed by {owners}; uninstall one of them")
    return claims[0]
