"""The order of steps: what frees memory comes early, and nothing before what it depends on."""

from __future__ import annotations

import random

import pytest

from tinycore.dtype import dtypes
from tinycore.schedule.access import Launch
from tinycore.schedule.order import ListScheduler, overlap_copies
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op

LARGE, SMALL = 1000, 1


def memory(size: int) -> UOp:
    device = UOp(Op.DEVICE, dtypes.void, (), "NULL")
    return UOp(Op.BUFFER, dtypes.float32, (device, unique()), size)


def step(writes: int, *reads: int) -> Launch:
    """A kernel that stores to its first slot, and loads from the others."""
    slots = [UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(1), (), n) for n in range(1 + len(reads))]
    zero = UOp.index(0)
    places = [UOp(Op.INDEX, slot.dtype, (slot, zero)) for slot in slots]
    value = UOp.const(dtypes.float32, 1.0)
    for place in places[1:]:
        value = value + UOp(Op.LOAD, dtypes.float32, (place,))
    ast = UOp.sink(UOp(Op.STORE, dtypes.void, (places[0], value)))
    return Launch(ast, (writes, *reads))


def order(steps: list[Launch], sizes: list[int], parameters: int, *lasting: int) -> list[int]:
    """Order of steps, by what they write."""
    found = ListScheduler(steps, [memory(size) for size in sizes], parameters, lasting).run()
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


def test_what_waits_for_a_small_value_to_free_a_large_one_comes_with_it() -> None:
    """The gradient of a weight waits for a slope, and is the last to read the factor."""
    sizes = [LARGE, LARGE, LARGE, SMALL, LARGE, LARGE, SMALL]
    steps = [step(1, 0), step(2, 1), step(3, 2), step(4, 3), step(5, 1, 3), step(6, 4)]

    assert order(steps, sizes, 1, 5, 6) == [1, 2, 3, 5, 4, 6]


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
    steps: list[Launch] = []
    for _ in range(count):
        made = parameters + len([s for s in steps if s.places[0] >= parameters])
        reads = rng.sample(range(made), min(made, rng.randint(1, 3)))
        target = rng.randrange(parameters) if rng.random() < 0.2 else made
        steps.append(step(target, *(r for r in reads if r != target)))
    found = ListScheduler(
        steps, [memory(size) for size in sizes], parameters, {parameters + count - 1}
    ).run()
    position = {id(s): n for n, s in enumerate(found)}

    assert len(found) == len(steps)
    for later, b in enumerate(steps):
        for a in steps[:later]:
            if a.places[0] in b.places or b.places[0] in a.places:
                assert position[id(a)] < position[id(b)], (seed, a.places, b.places)


# --- copies between devices


def copy_step(writes: int, reads: int) -> Launch:
    ast = UOp(Op.COPY, dtypes.void, ())
    return Launch(ast, (writes, reads))


def test_kernels_run_between_a_copy_and_its_reader() -> None:
    """Each gradient is sent when it is there, and the sums wait for the last gradient."""
    gradients, copied, sums = (1, 2, 3), (4, 5, 6), (7, 8, 9)
    steps = [
        one
        for g, c, total in zip(gradients, copied, sums, strict=True)
        for one in (step(g, 0), copy_step(c, g), step(total, g, c))
    ]

    found = overlap_copies(steps, [memory(SMALL) for _ in range(10)])

    assert [launch.places[0] for launch in found] == [1, 4, 2, 5, 3, 6, 7, 8, 9]


def test_copies_of_what_was_copied_wait_in_turn() -> None:
    """A sum of shards is gathered after all shards were sent."""
    steps = [step(1, 0), copy_step(4, 1), step(7, 4), copy_step(8, 7), step(2, 0), copy_step(5, 2)]

    found = overlap_copies(steps, [memory(SMALL) for _ in range(9)])

    assert [launch.places[0] for launch in found] == [1, 4, 2, 5, 7, 8]


@pytest.mark.parametrize("seed", range(40))
def test_random_steps_with_copies_keep_what_they_depend_on(seed: int) -> None:
    numbers = random.Random(seed)
    memories = [memory(SMALL) for _ in range(6)]
    memories += [UOp(Op.BUFFER_VIEW, m.dtype, (m,), (1, 0)) for m in memories[:2]]
    base = [0, 1, 2, 3, 4, 5, 0, 1]
    steps = []
    for _ in range(25):
        target, *sources = numbers.sample(range(8), numbers.randint(2, 4))
        steps.append(
            copy_step(target, sources[0]) if numbers.random() < 0.4 else step(target, *sources)
        )

    found = overlap_copies(steps, memories)

    assert set(found) == set(steps)
    for second, later in enumerate(steps):
        for earlier in steps[:second]:
            writes = {base[earlier.places[0]], base[later.places[0]]}
            touched = {base[p] for p in earlier.places} & {base[p] for p in later.places}
            assert not writes & touched or found.index(earlier) < found.index(later)
