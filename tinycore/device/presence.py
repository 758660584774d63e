"""Presence of devices: how each shows on a machine, declared by its package as data.

Floor 1. Imports `errors`. The automatic choice reads `presence.toml` beside the `__init__.py` of
every package that declares a backend, looks for the files, libraries and PCI functions it names,
and imports the one plugin that it takes: it runs no code of the others and starts no process.

    [[TOY]]                        # one table for each way in which the device shows
    priority = 205                 # its rank there, as in `Backend.priority`
    platforms = ["linux"]          # values of sys.platform; any where this is missing
    files = ["/dev/toy[0-9]*"]     # patterns of paths, one of which exists
    libraries = ["$TOY_LIBRARY", "libtoy.so.1"]  # one of them is installed
    pci = ["pci:v00001AB8*bc03*"]  # patterns of modalias, one of which a function matches
    variables = ["TOY_RANK"]       # one of them is set in the environment

A word such as `$TOY_LIBRARY` stands for the value of that variable. See
docs/decisions/0074-declared-presence.md.
"""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass, fields
from fnmatch import filter as matching
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tinycore.errors import PluginError

PRESENCE_FILE: Final = "presence.toml"
PCI_FUNCTIONS: Final = "/sys/bus/pci/devices"
LOADER_CACHE: Final = "/etc/ld.so.cache"
"""Paths of all libraries in the folders that ld.so.conf names (glibc's ldconfig)."""
LIBRARY_VARIABLES: Final = ("PATH" if os.name == "nt" else "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
LIBRARY_FOLDERS: Final = (
    "/usr/lib /usr/lib64 /usr/local/lib /lib /lib64 /usr/lib/*-linux-gnu "
    "/run/opengl-driver/lib /opt/homebrew/lib /system/lib64 /vendor/lib64".split()
)
"""Folders of libraries where no list of the loader says: musl, NixOS, macOS, Android."""


@dataclass(frozen=True)
class Sight:
    """A way in which a device shows on a machine, with its rank in the automatic choice."""

    priority: int
    platforms: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """True if it is of this operating system."""
        return not self.platforms or sys.platform.startswith(self.platforms)

    @property
    def obstacle(self) -> str:
        """Reason why it does not show here; "" where the device shows."""
        if not self.is_possible:
            return f"it runs on {', '.join(self.platforms)}, and this is {sys.platform}"
        looks = (
            ("file", self.files, exists),
            ("library", self.libraries, is_installed),
            ("PCI function", self.pci, is_on_bus),
            ("variable", self.variables, os.environ.__contains__),
        )
        for kind, words, look in looks:
            if words and not any(look(path) for word in words if (path := expanded(word))):
                return f"there is no {kind} {' or '.join(words)}"
        return ""


def expanded(word: str) -> str:
    """A word of the data; the value of the variable that it names, "" for one that is not set."""
    return os.environ.get(word[1:], "") if word.startswith("$") else word


def exists(pattern: str) -> bool:
    """True if a path matches."""
    return bool(glob(pattern))


def is_installed(name: str) -> bool:
    """True if the loader would find a library, by its name or path. Loads nothing."""
    if os.sep in name:
        return os.path.exists(name)
    return f"/{name}\0".encode() in _loader_cache() or any(
        os.path.exists(os.path.join(folder, name)) for folder in _library_folders()
    )


def is_on_bus(pattern: str) -> bool:
    """True if a PCI function matches a pattern of its modalias, or none can be looked at here."""
    aliases = _pci_functions()
    return not aliases or bool(matching(aliases, pattern))


def _loader_cache() -> bytes:
    try:
        return Path(LOADER_CACHE).read_bytes()
    except OSError:
        return b""


def _library_folders() -> list[str]:
    lists = [os.path.join(sys.prefix, "lib"), *(os.environ.get(v, "") for v in LIBRARY_VARIABLES)]
    named = [folder for listed in lists for folder in listed.split(os.pathsep) if folder]
    return named + [folder for pattern in LIBRARY_FOLDERS for folder in glob(pattern)]


def _pci_functions() -> list[str]:
    """The modalias of each PCI function, as in `pci:v000010DEd00002204sv...bc03sc00i00`."""
    try:
        return [path.read_text().strip() for path in Path(PCI_FUNCTIONS).glob("*/modalias")]
    except OSError:
        return []


def sight_of(reference: str, name: str) -> Sight:
    """The first way in which a backend's device shows here, else the last one on this system.

    Raises PluginError, with the fix, for a package without data, or with data of another form.
    """
    sights = sights_of(reference, name)
    here = [sight for sight in sights if sight.is_possible] or sights
    return next((sight for sight in here if not sight.obstacle), here[-1])


def sights_of(reference: str, name: str) -> tuple[Sight, ...]:
    """The ways in which a backend's device shows, by the data of its package."""
    package = reference.partition(":")[0].partition(".")[0]
    where = f"{package}/{PRESENCE_FILE}"
    tables = _data_of(package)
    if tables is None:
        raise PluginError(f"there is no {where}, which says how it shows; DEV={name} uses it")
    rows = tables.get(name)
    if not isinstance(rows, list) or not rows:
        raise PluginError(f"{where} has no table [[{name}]]; DEV={name} uses it")
    return tuple(_sight(row, f"[[{name}]] in {where}") for row in rows)


def _data_of(package: str) -> dict[str, Any] | None:
    """The tables of a package's data, None where it has none; imports nothing."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    for folder in () if spec is None else spec.submodule_search_locations or ():
        try:
            return tomllib.loads(Path(folder, PRESENCE_FILE).read_text("utf-8"))
        except OSError:
            continue
        except ValueError as error:  # of TOML, or of UTF-8
            raise PluginError(f"{package}/{PRESENCE_FILE} is not TOML: {error}") from error
    return None


def _sight(row: object, where: str) -> Sight:
    if not isinstance(row, dict) or type(row.get("priority")) is not int:
        raise PluginError(f"{where} needs a priority, a whole number")
    lists = {key: given for key, given in row.items() if key != "priority"}
    for key, given in lists.items():
        if key not in _LISTS:
            raise PluginError(f"{where} has {key!r}; known are priority, {', '.join(_LISTS)}")
        if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
            raise PluginError(f"{where}: {key} must be a list of texts, not {given!r}")
    return Sight(row["priority"], **{key: tuple(given) for key, given in lists.items()})


_LISTS: Final = tuple(field.name for field in fields(Sight))[1:]
