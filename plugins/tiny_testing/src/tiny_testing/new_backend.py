"""`tinycore new-backend NAME`: a complete package that drives a device, to start from.

The package is made of the templates in `scaffold/`, in which @NAME@ and a few other words
stand for what is particular. It passes the conformance suite as it is written.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Final

from tinycore import Device
from tinycore.cli.options import Commands, subcommand
from tinycore.errors import ArgumentError

__all__ = ["FILES", "PACKAGE_KINDS", "add", "run", "write"]

FILES: Final = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "CHANGELOG.md": "CHANGELOG.md.txt",
    "LICENSE": "LICENSE.txt",
    "tox.ini": "tox.ini.txt",
    ".github/workflows/release.yml": "github/release.yml.txt",
    "src/@package@/__init__.py": "src/init.py.txt",
    "src/@package@/presence.toml": "src/presence.toml.txt",
    "tests/test_conformance.py": "tests/conformance.py.txt",
    "tests/test_device.py": "tests/device.py.txt",
}
"""Files of every package, with the templates that they are made of."""


@dataclass(frozen=True)
class Kind:
    """A kind of device to start from: its sources, and the words of the other templates."""

    sources: Mapping[str, str]
    words: Mapping[str, str]
    capabilities: str
    page: str = "docs/write-a-backend.md"

    def filling(self) -> dict[str, str]:
        """Words in place of the marks."""
        lines = "\n".join(f'            "{word}",' for word in self.capabilities.split())
        return {**self.words, "@capabilities@": lines}


_ONE_FILE: Final = (
    "- `src/@package@/device.py` is the device: a renderer, a compiler, memory, programs."
)
_TWO_FILES: Final = """\
- `src/@package@/c.py` is the language: a renderer, a compiler, memory, loading.
- `src/@package@/device.py` is the device: """
_OF_C: Final = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64"
_C: Final = {"@renderer@": "C", "@module@": "c"}

PACKAGE_KINDS: Final = {
    ("numpy", False): Kind(
        {"device.py": "src/device.py.txt"},
        {
            "@renderer@": "NUMPY",
            "@module@": "device",
            "@runtime@": "Runtime",
            "@does@": "computes with NumPy",
            "@parts@": _ONE_FILE,
        },
        "bool int32 int64 uint32 float32 float64",
    ),
    ("c", False): Kind(
        {"c.py": "src/c.py.txt", "device.py": "src/device_in_c.py.txt"},
        {
            **_C,
            "@runtime@": "Runtime",
            "@does@": "compiles C for this processor",
            "@parts@": _TWO_FILES + "programs.",
        },
        _OF_C,
        "docs/write-a-backend-in-c.md",
    ),
    ("c", True): Kind(
        {"c.py": "src/c.py.txt", "device.py": "src/device_with_queues.py.txt"},
        {
            **_C,
            "@runtime@": "QueueRuntime",
            "@does@": "runs C in threads that execute commands",
            "@parts@": _TWO_FILES + "queues, memory, programs.",
        },
        f"{_OF_C} queues graph host_memory",
        "docs/write-a-queue-backend.md",
    ),
}
"""Packages by language, and whether the device takes commands through queues."""

BACKEND_NAME: Final = re.compile(r"[A-Z][A-Z0-9]*")

NEXT: Final = """\
{folder} drives the device {name}. To try it:

  cd {folder}
  python -m pip install -e ".[test]"
  tinycore doctor {name}
  tinycore conformance {name} --level 2

{page} of tinycore's sources explains it line by line, as does the docstring of
tinycore.plugin; what a device owes is in tinycore.device.protocols.
"""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "new-backend",
        "write a package that drives a device, to start from",
        "Write a complete package: a device that computes on this processor, its "
        "entry point, tests that prove it, and what is needed to build and release it.",
    )
    command.add_argument("name", help="name of the device, as users will write it in DEV")
    command.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder to write the package to; the current one unless given",
    )
    command.add_argument(
        "--language",
        choices=("numpy", "c"),
        default="numpy",
        help="language of its programs, numpy unless given",
    )
    command.add_argument(
        "--queues", action="store_true", help="drive it through command queues; for --language c"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the package, and say what to do with it."""
    kind = kind_of(arguments.language, arguments.queues)
    folder = write(arguments.name, arguments.into, arguments.language, arguments.queues)
    print(NEXT.format(folder=folder, name=arguments.name.upper(), page=kind.page), end="")
    return 0


def kind_of(language: str, queues: bool) -> Kind:
    """The kind of device. Raises ArgumentError for queues whose commands could hold no address."""
    found = PACKAGE_KINDS.get((language, queues))
    if found is None:
        raise ArgumentError(
            f"queues need programs and memory that have addresses, which {language} does not give: "
            "add --language c"
        )
    return found


def write(name: str, into: Path, language: str = "numpy", queues: bool = False) -> Path:
    """The folder of a new package for the device `name`, below `into`: tiny-NAME.

    Raises ArgumentError for what is no device name, for the name of a backend that is installed,
    for queues in a language without addresses, and when the folder is there already.
    """
    kind = kind_of(language, queues)
    word = name.upper()
    if not BACKEND_NAME.fullmatch(word):
        raise ArgumentError(
            f"{name!r} cannot name a device: use letters and digits, a letter first, as in TOY2"
        )
    if (known := Device.plugins.find(word)) is not None:
        raise ArgumentError(f"{word} is the device of {known.origin}; choose another name")
    distribution = f"tiny-{word.lower()}"
    words = {
        **kind.filling(),
        "@NAME@": word,
        "@package@": distribution.replace("-", "_"),
        "@distribution@": distribution,
        "@hcq@": ', "tinycore[hcq]>=@version@"' if queues else "",
        "@version@": core_version(),
    }
    folder = into / words["@distribution@"]
    if folder.exists():
        raise ArgumentError(f"{folder} is there already; remove it, or choose another place")
    templates = files("tiny_testing") / "scaffold"
    sources = {f"src/@package@/{path}": template for path, template in kind.sources.items()}
    for path, template in (FILES | sources).items():
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
