"""The order of steps: what frees memory comes early, and nothing before what it depends on."""

from __future__ import annotations

import random

import pytest

from tinycore.dtype import dtypes
from tinycore.schedule.items import Step
from tinycore.schedule.order import order_for_liveness
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op

LARGE, SMALL = 1000, 1


def memory(size: int) -> UOp:
    device = UOp(Op.DEVICE, dtypes.void, (), "NULL")
    return UOp(Op.BUFFER, dtypes.float32, (device, unique()), size)


def step(writes: int, *reads: int) -> Step:
    """A kernel that stores to its first slot, and loads from the others."""
    slots = [UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(1), (), n) for n in range(1 + len(reads))]
    zero = UOp.index(0)
    places = [UOp(Op.INDEX, slot.dtype, (slot, zero)) for slot in slots]
    value = UOp.const(dtypes.float32, 1.0)
    for place in places[1:]:
        value = value + UOp(Op.LOAD, dtypes.float32, (place,))
    ast = UOp.sink(UOp(Op.STORE, dtypes.void, (places[0], value)))
    return Step(ast, (writes, *reads), (), ast)


def order(steps: list[Step], sizes: list[int], parameters: int, *lasting: int) -> list[int]:
    """Order of steps, by what they write."""
    found = order_for_liveness(steps, [memory(size) for size in sizes], parameters, lasting)
    assert sorted(s.places for s in found) == sorted(s.places for s in steps)
    return [s.places[0] for s in found]


def test_the_last_reader_of_a_large_value_comes_at_once() -> None:
    """Two large values, each with a reader at the end: one is gone before the other is made."""
    sizes = [LARGE, LARGE, LARGE, SMALL, SMALL]
    steps = [step(1, 0), step(2, 0), step(3, 1), step(4, 2)]

    assert order(steps, sizes, 1, 3, 4) == [1, 3, 2, 4]


def test_readers_follow_in_the_order_in_which_they_became_able_to() -> None:
    """Both values of a pair are freed before the next pair is made."""
    sizes = [LARGE] * 5 + [SMALL] * 4
    steps = [step(1, 0), step(2, 1), step(3, 0), step(4, 3), step(5, 2), step(6, 4)]
    steps += [step(7, 1), step(8, 3)]

    assert order(steps, sizes, 1, 5, 6, 7, 8) == [1, 2, 5, 7, 3, 4, 6, 8]


def test_what_takes_more_than_it_frees_waits() -> None:
    assert order([step(1, 0), step(2, 0), step(3, 1)], [1, SMALL, SMALL, LARGE], 1, 2, 3) == [
        1,
        2,
        3,
    ]


def test_what_lasts_is_not_freed() -> None:
    sizes = [LARGE, LARGE, LARGE, SMALL]

    assert order([step(1, 0), step(2, 0), step(3, 1)], sizes, 1, 1, 2, 3) == [1, 2, 3]


def test_no_reader_passes_a_writer() -> None:
    """The last reader of 1 also reads parameter 0, which is written before it, and may not pass."""
    sizes = [LARGE, LARGE, SMALL]
    steps = [step(1, 0), step(0, 1), step(2, 1, 0)]

    assert order(steps, sizes, 1, 2) == [1, 0, 2]


@pytest.mark.parametrize("seed", range(30))
def test_every_step_follows_what_it_depends_on(seed: int) -> None:
    """Random steps, some of which write parameters in place: conflicts keep their order."""
    rng = random.Random(seed)
    parameters, count = 3, 20
    sizes = [rng.choice((SMALL, LARGE)) for _ in range(parameters + count)]
    steps: list[Step] = []
    for _ in range(count):
        made = parameters + len([s for s in steps if s.places[0] >= parameters])
        reads = rng.sample(range(made), min(made, rng.randint(1, 3)))
        target = rng.randrange(parameters) if rng.random() < 0.2 else made
        steps.append(step(target, *(r for r in reads if r != target)))
    found = order_for_liveness(
        steps, [memory(size) for size in sizes], parameters, {parameters + count - 1}
    )
    position = {id(s): n for n, s in enumerate(found)}

    assert len(found) == len(steps)
    for later, b in enumerate(steps):
        for a in steps[:later]:
            if a.places[0] in b.places or b.places[0] in a.places:
                assert position[id(a)] < position[id(b)], (seed, a.places, b.places)
