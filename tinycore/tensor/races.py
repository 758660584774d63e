"""Race detection for custom kernels: parallel steps that store to one element.

Floor 5. Where the index of a store can be foreseen, more steps than elements are a race, and so are
two of the first steps of each loop that meet; so many are tried that a kernel is checked in less
than a millisecond. What is loaded, as the index of a histogram, nobody can foresee.
"""

# ruff: noqa: PLW0108  NumPy waits for the first kernel

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeAlias

from tinycore._deferred import numpy
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.text import inline

Numbers: TypeAlias = "numpy.ndarray[Any, Any]"

MOST_TRIED_STEPS: Final = 1 << 14
"""Most steps of a kernel to try."""

ARITHMETIC: Final[dict[Op, Callable[..., Any]]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.MULACC: lambda a, b, c: a * b + c,
    Op.NEG: lambda a: -a,
    Op.FLOORDIV: lambda a, b: a // b,
    Op.FLOORMOD: lambda a, b: a % b,
    Op.IDIV: lambda a, b: (abs(a) // abs(b)) * numpy.sign(a) * numpy.sign(b),
    Op.MOD: lambda a, b: numpy.fmod(a, b),
    Op.AND: lambda a, b: a & b,
    Op.OR: lambda a, b: a | b,
    Op.XOR: lambda a, b: a ^ b,
    Op.SHL: lambda a, b: a << b,
    Op.SHR: lambda a, b: a >> b,
    Op.MAX: lambda a, b: numpy.maximum(a, b),
    Op.MIN: lambda a, b: numpy.minimum(a, b),
    Op.CMPEQ: lambda a, b: a == b,
    Op.CMPNE: lambda a, b: a != b,
    Op.CMPLT: lambda a, b: a < b,
    Op.WHERE: lambda c, a, b: numpy.where(c, a, b),
    Op.CAST: lambda a: a,
}
"""Ops on the small integers that indices are."""


@lru_cache(256)
def races(stores: tuple[UOp, ...]) -> tuple[str, ...]:
    """Races between the stores of a kernel, as sentences; cached for the latest kernels."""
    return tuple(found_races(stores))


def found_races(stores: tuple[UOp, ...]) -> Iterator[str]:
    """`races`, without the cache."""
    met: dict[UOp, list[Numbers]] = {}
    for store in stores:
        index = inline(store.src[0].src[1])
        if is_crowded(store):
            yield (
                f"several steps of its loops store to one element, at index {index}; fold the "
                "value over a REDUCE loop, or make the loop ORDERED"
            )
            return
        places = places_of(store)
        if places is None:
            continue
        steps, found = places
        owners = numpy.unique(numpy.stack([found, steps]), axis=1)[0]
        if twice := owners[1:][owners[1:] == owners[:-1]].tolist():
            yield (
                f"two steps of its loops store to element {twice[0]}, at index {index}; fold the "
                "value over a REDUCE loop, or make the loop ORDERED"
            )
            return
        pointer = pointer_of(store.src[0])
        for others in met.get(pointer, []):
            if (both := numpy.intersect1d(owners, others)).size:
                yield (
                    f"two stores write element {both[0]} of slot {pointer.arg}, and nothing says "
                    "which comes last; store a value chosen by where(), or give them gates"
                )
                return
        met.setdefault(pointer, []).append(owners)


def parallel(store: UOp) -> list[UOp]:
    """The loops around a store whose steps come in any order."""
    return [r for r in store.ranges if r.arg.kind is AxisKind.LOOP]


def size_of(loop: UOp) -> int:
    """Most steps that a loop may have."""
    return int(loop.vmax) + 1


def is_crowded(store: UOp) -> bool:
    """True if a store without a gate has more steps than elements to store to."""
    _, place, *gate = store.src[0].src
    if gate or not is_foreseen(place):
        return False
    return bool(math.prod(map(size_of, parallel(store))) > place.vmax - place.vmin + 1)


def is_foreseen(node: UOp) -> bool:
    """True if a value depends on loop counters alone."""
    known = (Op.CONST, Op.RANGE, *ARITHMETIC)
    return all(n.op in known for n in node.toposort())


def places_of(store: UOp) -> tuple[Numbers, Numbers] | None:
    """For the first steps, the number of each among parallel ones and where it stores.

    None if it cannot be told.
    """
    _, place, *gate = store.src[0].src
    if not all(map(is_foreseen, (place, *gate))):
        return None
    loops = list(dict.fromkeys([*parallel(store), *store.ranges]))
    sizes = first_steps([size_of(loop) for loop in loops])
    counters = numpy.indices(sizes).reshape(len(sizes), math.prod(sizes))
    values = dict(zip(loops, counters, strict=True))
    count = len(parallel(store))
    numbers = numpy.arange(math.prod(sizes)) // math.prod(sizes[count:])
    found = numpy.broadcast_to(evaluated(place, values), numbers.shape)
    if not gate:
        return numbers, found
    kept = numpy.broadcast_to(evaluated(gate[0], values), numbers.shape).astype(bool)
    return numbers[kept], found[kept]


def first_steps(sizes: list[int]) -> list[int]:
    """Steps of each loop to try: equally many of each, as far as it has them."""
    left, chosen = MOST_TRIED_STEPS, dict.fromkeys(range(len(sizes)), 1)
    waiting = sorted(range(len(sizes)), key=sizes.__getitem__)
    for number, loop in enumerate(waiting):
        share = int(left ** (1 / (len(sizes) - number)) + 1e-6)
        chosen[loop] = min(sizes[loop], max(2, share))
        left = max(1, left // chosen[loop])
    return [chosen[loop] for loop in range(len(sizes))]


def evaluated(node: UOp, counters: dict[UOp, Numbers]) -> Numbers:
    """A foreseen value at each step."""
    known: dict[UOp, Any] = dict(counters)
    for part in node.toposort():
        if part.op is Op.CONST:
            known[part] = numpy.int64(part.arg)
        elif part not in known:
            known[part] = ARITHMETIC[part.op](*[known[s] for s in part.src])
    return numpy.asarray(known[node])
