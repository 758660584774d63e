"""Spills: kernels assembled again for fewer blocks side by side, where values fit no registers.

ptxas gives a thread few registers so that many blocks fit on a multiprocessor, and where that is a
little too few it stores values to local memory. A kernel for which it says so is assembled again
with a promise of fewer blocks (`.minnctapersm`, in CUDA C the second launch bound).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod
from typing import Final

__all__ = ["VERBOSE", "spilled_bytes", "unspilled"]

VERBOSE: Final = "-v"
"""The option of ptxas by which it tells what a kernel takes."""
LEAST_THREADS: Final = (512, 256)
"""Threads that should fit on a multiprocessor: at most 128 registers for each, then the most."""
BOUNDS: Final = re.compile(r"__launch_bounds__\((?P<c>\d+)\)|\.maxntid (?P<ptx>[\d, ]*\d)")
SPILL: Final = re.compile(r"(\d+) bytes spill (?:stores|loads)")


def unspilled(source: str, assemble: Callable[[str], tuple[bytes, str]]) -> tuple[bytes, str]:
    """The binary of a source that spills least, and of those the one with most blocks.

    With the log of ptxas for it: both as `assemble` gives them.
    """
    best = assemble(source)
    for bounded in promises(source) if spilled_bytes(best[1]) else ():
        other = assemble(bounded)
        if spilled_bytes(other[1]) < spilled_bytes(best[1]):
            best = other
        if not spilled_bytes(best[1]):
            break
    return best


def spilled_bytes(log: str) -> int:
    """Bytes that a thread stores to local memory and loads again, as ptxas tells them."""
    return sum(map(int, SPILL.findall(log)))


def promises(source: str) -> Iterator[str]:
    """A kernel with a bound of the blocks that fit at once, from many to few."""
    found = BOUNDS.search(source)
    if found is None:
        return
    threads = prod(map(int, (found["c"] or found["ptx"]).split(",")))
    for blocks in dict.fromkeys(max(wanted // threads, 1) for wanted in LEAST_THREADS):
        bound = f"__launch_bounds__({threads}, {blocks})"
        if not found["c"]:
            bound = f"{found[0]} .minnctapersm {blocks}"
        yield source[: found.start()] + bound + source[found.end() :]
