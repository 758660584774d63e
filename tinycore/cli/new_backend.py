"""`tinycore new-backend NAME`: a complete package that drives a device, to start from.

Floor 6. The package is made of the templates in `scaffold/`, in which @NAME@ and a few other words
stand for what is particular. It passes the conformance suite as it is written.
"""

from __future__ import annotations

import argparse
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Final

from tinycore import Device
from tinycore.errors import ArgumentError

__all__ = ["FILES", "add", "run", "write"]

FILES: Final = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "CHANGELOG.md": "CHANGELOG.md.txt",
    "LICENSE": "LICENSE.txt",
    "tox.ini": "tox.ini.txt",
    ".github/workflows/release.yml": "github/release.yml.txt",
    "src/@package@/__init__.py": "src/init.py.txt",
    "src/@package@/device.py": "src/device.py.txt",
    "tests/test_conformance.py": "tests/conformance.py.txt",
    "tests/test_device.py": "tests/device.py.txt",
}
"""Every file of the package, with the template it is made of."""

WORD: Final = re.compile(r"[A-Z][A-Z0-9]*")

NEXT: Final = """\
{folder} drives the device {name}. To try it:

  cd {folder}
  python -m pip install -e ".[test]"
  tinycore doctor {name}
  tinycore conformance {name} --level 2

docs/write-a-backend.md of tinycore's sources explains it line by line, as does the docstring of
tinycore.plugin; what a device owes is in tinycore.device.protocols.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command to the command line."""
    command = commands.add_parser(
        "new-backend",
        help="write a package that drives a device, to start from",
        description="Write a complete package: a device that computes with NumPy, its entry "
        "point, tests that prove it, and what is needed to build and release it.",
    )
    command.add_argument("name", help="the word that users will write in DEV")
    command.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="where the package goes"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the package, and say what to do with it."""
    folder = write(arguments.name, arguments.into)
    print(NEXT.format(folder=folder, name=arguments.name.upper()), end="")
    return 0


def write(name: str, into: Path) -> Path:
    """The folder of a new package for the device `name`, below `into`.

    Raises ArgumentError for what is no device name, for the name of a backend that is installed,
    and when the folder is there already.
    """
    word = name.upper()
    if not WORD.fullmatch(word):
        raise ArgumentError(
            f"{name!r} cannot name a device: use letters and digits, a letter first, as in TOY2"
        )
    if (known := Device.plugins.find(word)) is not None:
        raise ArgumentError(f"{word} is the device of {known.origin}; choose another name")
    words = {
        "@NAME@": word,
        "@package@": f"tinycore_{word.lower()}",
        "@distribution@": f"tinycore-{word.lower()}",
        "@version@": core_version(),
    }
    folder = into / words["@distribution@"]
    if folder.exists():
        raise ArgumentError(f"{folder} is there already; remove it, or choose another place")
    templates = files("tinycore.cli") / "scaffold"
    for path, template in FILES.items():
        target = folder / filled(path, words)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(filled((templates / template).read_text("utf-8"), words), "utf-8")
    return folder


def filled(text: str, words: dict[str, str]) -> str:
    """A template with its words in place."""
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


def core_version() -> str:
    """The version of the core, which the package will need at least."""
    try:
        return version("tinycore")
    except PackageNotFoundError:
        return "0.1"
