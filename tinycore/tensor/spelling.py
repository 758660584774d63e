"""Argument names of PyTorch, NumPy and tinygrad, mapped to ours.

Floor 5. An argument that a method does not know by its name is taken by another name for the same,
or told with the names that the method has.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tinycore.errors import ArgumentTypeError

SPELLINGS: Final = (
    ("axis", "dim", "axes", "dims", "order"),
    ("keepdim", "keepdims", "keep_dim", "keep_dims"),
    ("shape", "size", "sizes"),
    ("min_", "min", "a_min", "amin"),
    ("max_", "max", "a_max", "amax"),
    ("correction", "ddof"),
    ("Y", "target", "labels"),
    ("fill_value", "value"),
    ("x", "other", "y"),
    ("dim0", "axis1"),
    ("dim1", "axis2"),
    ("stop", "end"),
    ("repeats", "reps"),
    ("neg_slope", "negative_slope"),
    ("eps", "epsilon"),
    ("padding", "pad"),
)
"""Names of one meaning."""

NEUTRAL_ARGUMENTS: Final = {
    "out": None,
    "dtype": None,
    "where": True,
    "initial": None,
    "copy": None,
}
"""Arguments that NumPy's functions pass to methods, and the value of each that has no effect."""


def spelled(
    name: str,
    parameters: Iterable[str],
    repeated: Sequence[str],
    given: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call by the names that a method has.

    Raises ArgumentTypeError for a name that it has not.
    """
    known = list(parameters)
    found: dict[str, Any] = {}
    for word, value in named.items():
        if word in known and word not in repeated:
            found[word] = value
            continue
        other = word if word in known else synonym(word, known)
        if (other in named and other != word) or other in found:
            raise ArgumentTypeError(f"{name}: {word!r} is {other!r}, which was given twice")
        if other is None:
            if word in NEUTRAL_ARGUMENTS and value is NEUTRAL_ARGUMENTS[word]:
                continue
            raise ArgumentTypeError(unknown(name, word, known))
        if other in repeated:
            given = (*given, value)
        else:
            found[other] = value
    return given, found


def synonym(word: str, known: Sequence[str]) -> str | None:
    """The parameter that is called like a word, or by another name of the same meaning."""
    words = next((group for group in SPELLINGS if word in group), (word,))
    return next((p for p in known if p in words), None)


def unknown(name: str, word: str, known: Sequence[str]) -> str:
    """Message about an argument of an unknown name."""
    shown = [p for p in known if p not in ("self", "cls")]
    near = difflib.get_close_matches(word, shown, 1)
    takes = f"it takes {', '.join(shown)}" if shown else "it takes none by name"
    return f"{name}: no argument is called {word!r}" + (
        f"; did you mean {near[0]!r}? {takes[0].upper()}{takes[1:]}" if near else f"; {takes}"
    )
