"""Origins of nodes: the method that a user called to make each, and the line of the call.

Floor 1. Recorded only while somebody shows them (DEBUG=2, VIZ). As text they are among the
metadata of kernels, told from the names of operations by their space.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from os.path import basename
from typing import Any, Final

from tinycore.config import in_force
from tinycore.uop.node import UOp

ORIGIN: Final = attrgetter("_origin")
MOST_LINES: Final = 1 << 15
"""Lines that are remembered: code that is made again and again must not pile up."""
lines: Final[dict[object, Any]] = {}
"""Origins, and what holds the code, by the id of a code, an instruction in it, and a method.

To find the line of an instruction takes 5 us in a long function.
"""
files: Final[set[str]] = set()
"""Files of tinycore. To ask for the name of a frame's module takes twice as long."""


def are_recorded() -> bool:
    """True if new tensors note where they were made."""
    values = in_force()
    return bool(values["DEBUG"] > 1 or values["VIZ"] or "run" in values["TRACE"])


def note_origin(node: UOp) -> None:
    """Record the innermost line outside of tinycore as the origin of a node, unless it has one."""
    if node._origin is not None:
        return
    own: Any = sys._getframe(2)
    frame = own
    while True:
        try:
            while frame.f_code.co_filename in files:
                own, frame = frame, frame.f_back
        except AttributeError:
            return  # nobody calls tinycore, as at exit
        code, method = frame.f_code, own.f_code.co_qualname
        place = id(code), frame.f_lasti, method
        if (found := lines.get(place)) is not None:
            node._origin = found[1]
            return
        file = code.co_filename
        if not str(frame.f_globals.get("__name__")).startswith("tinycore."):
            if len(lines) >= MOST_LINES:
                lines.clear()
            lines[place] = code, (method, file, frame.f_lineno)
        elif "<" in file:  # a method of a dataclass
            own, frame = frame, frame.f_back
        else:
            files.add(file)


def origins_of(nodes: Iterable[UOp]) -> tuple[object, ...]:
    """The origin of each node, None where none is known; () while none are recorded."""
    return tuple(map(ORIGIN, nodes)) if are_recorded() else ()


def texts(known: Mapping[UOp, UOp]) -> dict[UOp, str]:
    """Origins as text, `softmax /home/me/train.py:31`, for nodes that stand for others.

    `known` has sources first. A node without an origin has that of the first which uses it. Methods
    are without their underscores, or the class that was called.
    """
    found: dict[UOp, str] = {}
    for node, original in reversed([*known.items()]) if are_recorded() else ():
        if origin := original._origin:
            method, file, line = origin
            *owner, name = method.split(".")
            word = owner[-1] if name in ("__call__", "__init__") else name.strip("_")
            found[node] = f"{word} {file}:{line}"
        if own := found.get(node):
            for source in node.src:
                found[source] = own
    return found


def short(metadata: Iterable[str]) -> str:
    """The origins among the metadata of a kernel, for one line: `matmul softmax train.py:31`."""
    lines: dict[str, list[str]] = {}
    for method, _, place in (word.partition(" ") for word in metadata):
        lines.setdefault(basename(place), []).insert(0, method)
    return ", ".join(" ".join([*names, place]) for place, names in lines.items() if place)
