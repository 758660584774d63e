"""The table of docs/array-api.md: every name of the standard, and what becomes of it here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tinycore.array_api as xp
from tests.unit.array_api.standard import (
    ATTRIBUTES,
    CONSTANTS,
    DATA_TYPES,
    METHODS,
    SECTIONS,
)
from tinycore.array_api._left_out import LEFT_OUT
from tinycore.tensor import Tensor

PAGE = Path(__file__).resolve().parents[3] / "docs/array-api.md"
PART = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end of table -->)", re.DOTALL)

READS = "computes the array: the shape of the result depends on it"

NOTES = {
    "asarray": "shares the memory of NumPy arrays and buffers where that is possible",
    "conj": "the array itself",
    "nonzero": READS,
    "positive": "the array itself",
    "real": "the array itself",
    "repeat": "computes an array of counts: the shape of the result depends on it",
    "reshape": "`copy=False` never fails: no shape needs a copy",
    "searchsorted": "compares and counts all elements, so `x1` need not be in order",
    "take": "reads 0 where an index is out of range",
    "take_along_axis": "reads 0 where an index is out of range",
    "unique_all": READS,
    "unique_counts": READS,
    "unique_inverse": READS,
    "unique_values": READS,
    "__array_namespace_info__": 'no "complex floating" among the default dtypes',
    "linalg.cholesky": "NaN where a matrix is not positive definite",
    "linalg.inv": "NaN where a matrix is singular",
    "linalg.solve": "NaN where a matrix is singular",
    "array.T": "also of other than two axes: their order reversed",
    "array.device": 'a name, such as `"CPU"`',
    "array.to_device": "takes no stream",
}
"""Notes on names that are here."""

OBJECT = [f"array.{name}" for name in (*ATTRIBUTES, *METHODS)]
EVERYTHING = {
    "Constants": CONSTANTS,
    "Data types": DATA_TYPES,
    "Array object": OBJECT,
    **{title: list(names) for title, names in SECTIONS.items()},
}
"""Every name of the standard by section; an array's own begin with `array.`."""

NAMES = [name for names in EVERYTHING.values() for name in names]


def reason(name: str) -> str | None:
    """Why a name is left out, or the extension that it belongs to; None when it is not."""
    return LEFT_OUT.get(name, LEFT_OUT.get(name.partition(".")[0]))


def is_here(name: str) -> bool:
    """True if the namespace, or the array, has a name."""
    owner, _, attribute = name.rpartition(".")
    if owner == "array":
        found = getattr(Tensor, attribute, None)
        return found is not None and (attribute in METHODS) == callable(found)
    return hasattr(getattr(xp, owner, None) if owner else xp, attribute)


def rows() -> Iterator[str]:
    """The table, line by line."""
    here = sum(reason(name) is None for name in NAMES)
    yield f"{here} names of {len(NAMES)} are here, {len(NAMES) - here} are left out."
    for title, names in EVERYTHING.items():
        yield from ("", f"### {title}", "", "| name | here | note |", "|---|---|---|")
        for name in names:
            missing = reason(name)
            note = NOTES.get(name, "") if missing is None else missing
            yield f"| `{name}` | {'yes' if missing is None else 'left out'} | {note} |"


def generated() -> str:
    """The table as it should stand in the page."""
    return "\n" + "\n".join(rows()) + "\n\n"
