"""Cases of functions of dtypes, over all pairs, and what a namespace says of itself."""

from __future__ import annotations

from typing import Any, Final

from tests.unit.array_api.comparing import DTYPES, Case, drawn

KINDS: Final = (
    "bool",
    "signed integer",
    "unsigned integer",
    "integral",
    "real floating",
    "complex floating",
    "numeric",
)


def dtype_pairs(xp: Any) -> list[tuple[Any, Any]]:
    """Every dtype beside every dtype."""
    return [(getattr(xp, a), getattr(xp, b)) for a in DTYPES for b in DTYPES]


def or_refusal(function: Any, *arguments: Any) -> Any:
    """Result of a function, or its refusal of the dtypes."""
    try:
        return function(*arguments)
    except TypeError:
        return "TypeError"


TYPED: Final[dict[str, tuple[Case, ...]]] = {
    "astype": (
        lambda xp: xp.astype(drawn(xp, 4, dtype="int8"), xp.float64),
        lambda xp: [
            xp.astype(drawn(xp, 4, dtype=a), getattr(xp, b))
            for a in ("bool", "int8", "uint64", "float32")
            for b in ("bool", "int16", "uint8", "float64")
            if (a, b) != ("float32", "uint8")  # negative numbers have no one result
        ],
        lambda xp: [xp.astype(drawn(xp, 2), xp.float64, copy=copy) for copy in (True, False)],
    ),
    "can_cast": (
        lambda xp: [xp.can_cast(a, b) for a, b in dtype_pairs(xp)],
        lambda xp: [xp.can_cast(drawn(xp, 1, dtype="int8"), b) for b in (xp.int16, xp.uint8)],
    ),
    "finfo": (
        lambda xp: [
            getattr(xp.finfo(x), field)
            for x in (xp.float32, xp.float64, xp.ones(1, dtype=xp.float32))
            for field in "bits eps max min smallest_normal dtype".split()
        ],
    ),
    "iinfo": (
        lambda xp: [
            getattr(xp.iinfo(getattr(xp, name)), field)
            for name in DTYPES[1:9]
            for field in "bits max min dtype".split()
        ],
        lambda xp: xp.iinfo(xp.ones(1, dtype=xp.int8)).max,
    ),
    "isdtype": (
        lambda xp: [xp.isdtype(getattr(xp, d), kind) for d in DTYPES for kind in KINDS],
        lambda xp: [xp.isdtype(a, b) for a, b in dtype_pairs(xp)],
        lambda xp: xp.isdtype(xp.int8, ("bool", xp.int8, "real floating")),
    ),
    "result_type": (
        lambda xp: [or_refusal(xp.result_type, a, b) for a, b in dtype_pairs(xp)],
        lambda xp: [
            or_refusal(xp.result_type, getattr(xp, d), x) for d in DTYPES for x in (True, 1, 1.5)
        ],
        lambda xp: xp.result_type(drawn(xp, 1, dtype="int8"), xp.uint16, 3),
    ),
}


INSPECTED: Final[dict[str, tuple[Case, ...]]] = {
    "__array_namespace_info__": (
        lambda xp: sorted(xp.__array_namespace_info__().dtypes(kind=("integral", "bool"))),
        lambda xp: [
            xp.__array_namespace_info__().default_dtypes()[kind]
            for kind in ("real floating", "integral", "indexing")
        ],
        lambda xp: xp.__array_namespace_info__().capabilities()["boolean indexing"],
    ),
}
