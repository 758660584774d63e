"""Names of other libraries that tinycore does not have, each with the equivalent to use instead.

Floor 5. Asking for one of them, on `Tensor`, `tinycore` or `tinycore.nn`, raises UnknownNameError
with the equivalent; any other unknown name is answered with names of similar spelling: by
`unknown_name` for modules, and by Python for tensors. See
docs/decisions/0056-no-getattr-on-tensors.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final, NoReturn

from tinycore.errors import UnknownNameError


def read_tables(text: str) -> dict[str, dict[str, str]]:
    """The tables of a text by their titles: names, each with the equivalent."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        names, _, equivalent = line.partition(": ")
        if line.startswith("["):
            table = found[line.strip("[]")] = {}
        elif equivalent and not line.startswith("#"):
            table |= dict.fromkeys(names.split(), equivalent)
    return found


TABLES: Final = read_tables(Path(__file__).with_suffix(".txt").read_text("utf-8"))
"""The tables of `foreign_names.txt`, which says what each is of."""
OF_TENSOR, DEVICE_METHODS = TABLES["tensor"], TABLES["device methods"]
OF_NN, OF_LAYER, OF_PACKAGE = TABLES["nn"], TABLES["layer"], TABLES["package"]
OF_OPTIM, OF_SCHEDULERS, NO_DEVICES = TABLES["optim"], TABLES["schedulers"], TABLES["no devices"]


def of_package(name: str, functions: object, types: object) -> dict[str, str]:
    """OF_PACKAGE with a name that tensors or dtypes have, or that is known of them."""
    if name in OF_PACKAGE:
        return OF_PACKAGE
    if name in DEVICE_METHODS:
        return {name: "x.to(device); DEV=device chooses one for the whole program"}
    if name in OF_TENSOR:
        return OF_TENSOR
    if hasattr(functions, name):
        return {name: f"Tensor.{name}"}
    return {name: f"dtypes.{name}"} if hasattr(types, name) else {}


class ForeignName:
    """A descriptor that raises UnknownNameError, on instances of a class and on the class."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        name = "Tensor" if owner is None else owner.__name__
        article = "an " if name.startswith(tuple("AEIOU")) else "a "
        raise UnknownNameError(f"{name if instance is None else article + name} has no {self.text}")


def public(names: Iterable[str], hidden: Container[str]) -> list[str]:
    """Names for completion: neither hidden nor private."""
    return [n for n in names if n not in hidden and (n[0] != "_" or n[:2] == "__")]


def unknown_name(owner: str, name: str, ours: dict[str, str], known: Iterable[str]) -> Exception:
    """The error for an unknown name, with the names that are spelled like it."""
    text = f"{owner} has no {name!r}"
    if name in ours:
        return UnknownNameError(f"{text}; here it is {ours[name]}")
    near = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], 3, 0.7)
    return UnknownNameError(f"{text}; did you mean {' or '.join(near)}?" if near else text)
