"""Level 2: programs written by hand, for what tensors do not ask of every device.

Launch limits, shared memory and barriers, variables, views as arguments. The programs are
linear UOps: what a renderer is given.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import numpy

from tiny_testing.kernels import element, elementwise, load, store
from tiny_testing.suite.case import Level, NotApplicable, Variant, case
from tiny_testing.suite.subject import Array, Subject
from tinycore.device.protocols import Program
from tinycore.dtype import DType, dtypes
from tinycore.engine.compile import as_generated, info_of
from tinycore.errors import UnsupportedError
from tinycore.render.base import Limits, LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = [
    "loaded",
    "loaded_kernel",
    "test_a_barrier_orders_a_group",
    "test_a_full_block",
    "test_a_full_grid",
    "test_a_launch_says_how_long_it_took",
    "test_a_long_loop",
    "test_a_program_keeps_no_state",
    "test_a_sum_in_shared_memory",
    "test_all_of_shared_memory",
    "test_buffers_that_are_not_used",
    "test_groups_have_shared_memory_of_their_own",
    "test_one_memory_in_two_slots",
    "test_the_axes_of_a_launch",
    "test_variables_are_passed_by_name",
    "test_vectors_are_loaded_and_stored",
    "test_views_are_arguments",
]

I32: Final = dtypes.int32
GROUP: Final = 32
"""Threads of a group in the programs below, where a device takes as many."""
WIDEST: Final = 70_000
"""Groups that are launched at most, along an axis that allows more."""
LOOP_ROUNDS: Final = 100_000
"""Rounds of a long loop: drivers were seen that end one after 65,535."""


def special(name: str, size: int) -> UOp:
    """An index of the launch."""
    return UOp(Op.SPECIAL, dtypes.index, (UOp.index(size),), name)


def shared(size: int, dtype: DType = I32) -> UOp:
    """Memory of a group."""
    return UOp(Op.DEFINE_LOCAL, dtype.ptr(size, "local"), (), 0)


def at(pointer: UOp, place: UOp | int, *gate: UOp) -> UOp:
    """The element of a pointer at a place."""
    return UOp(Op.INDEX, pointer.dtype, (pointer, UOp.index(0) + place, *gate))


def barrier(*done: UOp) -> UOp:
    """All threads of a group have done something."""
    return UOp(Op.BARRIER, dtypes.void, done)


def in_line(*roots: UOp) -> tuple[UOp, ...]:
    """The nodes of several roots, those of an earlier root first."""
    order: dict[UOp, None] = {}
    for root in roots:
        order.update(dict.fromkeys(root.toposort(lambda node: node not in order)))
    return tuple(order)


def loaded(subject: Subject, uops: Sequence[UOp], buffers: int, name: str = "by_hand") -> Program:
    """A linear program, compiled for the device and loaded."""
    return loaded_kernel(subject, LinearKernel(name, tuple(uops)), buffers)


def loaded_kernel(subject: Subject, kernel: LinearKernel, buffers: int) -> Program:
    """The same of a kernel that was lowered, with the sizes of its launch."""
    source = subject.toolchain.renderer.render(kernel)
    binary = subject.toolchain.compiler.compile(source)
    return subject.runtime.load(binary, as_generated(info_of(kernel, buffers)))


def results(
    subject: Subject, program: Program, arrays: Sequence[Array], values: Sequence[int] = ()
) -> list[Array]:
    """Content of buffers after a launch that began with `arrays` in them."""
    handles = [subject.allocator.alloc(array.nbytes) for array in arrays]
    for handle, array in zip(handles, arrays, strict=True):
        subject.allocator.write(handle, memoryview(array.tobytes()))
    program(handles, values)
    found = [
        numpy.frombuffer(subject.read(handle, array.nbytes), array.dtype)
        for handle, array in zip(handles, arrays, strict=True)
    ]
    subject.runtime.synchronize()
    for handle in handles:
        subject.allocator.free(handle)
    return found


def run(
    subject: Subject, uops: Sequence[UOp], *arrays: Array, values: Sequence[int] = ()
) -> list[Array]:
    """Content of the buffers after a program has run once."""
    return results(subject, loaded(subject, uops, len(arrays)), arrays, values)


def integers(size: int, seed: int = 0) -> Array:
    """Random numbers."""
    return numpy.random.default_rng(seed + size).integers(-999, 999, size).astype(numpy.int32)


def zeros(size: int) -> Array:
    """Memory for results, filled with a number that is none of them."""
    return numpy.full(size, -7777, numpy.int32)


# --- arguments


@case(Level.COMPUTE)
def test_variables_are_passed_by_name(subject: Subject) -> None:
    """The values of variables arrive in the order of their names, negative ones too."""
    z, a = UOp.variable("z", -100, 100), UOp.variable("a", -(1 << 20), 1 << 20)
    kernel = elementwise(lambda x: [x * z.cast(I32) + a.cast(I32)], [I32], 10)
    x = integers(10)
    found, _ = subject.bench.run(kernel, zeros(10), x, values=[-70_000, -3])
    assert found.tolist() == (x * -3 - 70_000).tolist()


@case(Level.COMPUTE)
def test_buffers_that_are_not_used(subject: Subject) -> None:
    """A program is given all its buffers, also those that it never reads."""
    counter = UOp.range(20, 0)
    value = load(element(3, I32, 20, counter), I32) + 5
    body = UOp(Op.END, dtypes.void, (store(element(1, I32, 20, counter), value), counter))
    x = integers(20)
    found = subject.bench.run(UOp.sink(body), zeros(4), zeros(20), zeros(4), x)
    assert found[1].tolist() == (x + 5).tolist()
    assert found[0].tolist() == found[2].tolist() == zeros(4).tolist(), "unused memory changed"
    assert found[3].tolist() == x.tolist(), "memory that is only read changed"


@case(Level.COMPUTE)
def test_one_memory_in_two_slots(subject: Subject) -> None:
    """The same memory may be read through two slots of a program."""
    kernel = subject.bench.lower(elementwise(lambda x, y: [x * y + x], [I32, I32], 50))
    program = loaded(subject, kernel.uops, 3, kernel.name)
    x = integers(50)
    with subject.memory(x.tobytes()) as source, subject.memory(zeros(50).tobytes()) as target:
        program([target, source, source], [])
        found = numpy.frombuffer(subject.read(target, 200), numpy.int32)
    assert found.tolist() == (x * x + x).tolist()


@case(Level.COMPUTE, over=(Variant(f"{n}", n) for n in (4, 12, 64, 100, 256)))
def test_views_are_arguments(subject: Subject, start: int) -> None:
    """Memory from any element on is read and written by a program."""
    kernel = subject.bench.lower(elementwise(lambda x: [x + 1], [I32], 30))
    program = loaded(subject, kernel.uops, 2, kernel.name)
    x, y = integers(200), zeros(200)
    with subject.memory(x.tobytes()) as source, subject.memory(y.tobytes()) as target:
        part = subject.allocator.offset(source, 120, start)
        place = subject.allocator.offset(target, 120, 2 * start)
        program([place, part], [])
        found = numpy.frombuffer(subject.read(target, 800), numpy.int32)
    first, where = start // 4, start // 2
    y[where : where + 30] = x[first : first + 30] + 1
    assert found.tolist() == y.tolist(), f"views from byte {start} and {2 * start} on are wrong"


@case(Level.COMPUTE)
def test_a_program_keeps_no_state(subject: Subject) -> None:
    """Two programs with one name run in turns, each on other memory every time."""
    kernels = [elementwise(lambda x, n=n: [x + n], [I32], 25) for n in (10, 20)]
    programs = [
        loaded(subject, subject.bench.lower(kernel).uops, 2, "same_name") for kernel in kernels
    ]
    for turn in range(4):
        x = integers(25, seed=turn)
        found, _ = results(subject, programs[turn % 2], [zeros(25), x])
        assert found.tolist() == (x + (10, 20)[turn % 2]).tolist(), f"launch {turn} is wrong"


@case(Level.COMPUTE)
def test_a_launch_says_how_long_it_took(subject: Subject) -> None:
    """With `wait` a launch returns seconds, no more than have passed; without it None."""
    kernel = subject.bench.lower(elementwise(lambda x: [x * 3], [I32], 10_000))
    program = loaded(subject, kernel.uops, 2, kernel.name)
    with subject.memory(40_000) as source, subject.memory(40_000) as target:
        assert program([target, source], []) is None, "a launch without wait returns a value"
        began = time.perf_counter()
        seconds = program([target, source], [], wait=True)
        passed = time.perf_counter() - began
    assert isinstance(seconds, float), f"a launch with wait returns {seconds!r}"
    assert 0 <= seconds <= passed * 1.5 + 1e-3, f"it took {seconds} s of {passed} s"


@case(Level.COMPUTE, over=(Variant(f"{n}", n) for n in (2, 4)))
def test_vectors_are_loaded_and_stored(subject: Subject, lanes: int) -> None:
    """Vectors of 32-bit lanes are loaded, computed and stored, at aligned places."""
    if subject.limits.vector_bytes < 4 * lanes:
        raise NotApplicable(f"its vectors have {subject.limits.vector_bytes} bytes")
    kernel = elementwise(lambda x, y: [x * y - x], [I32, I32], 64, lanes)
    x, y = integers(64), integers(64, seed=1)
    found, *_ = subject.bench.run(kernel, zeros(64), x, y)
    assert found.tolist() == (x * y - x).tolist()


@case(Level.COMPUTE)
def test_a_long_loop(subject: Subject) -> None:
    """A thread goes round 100,000 times; a device that ends it earlier refuses, and says why."""
    kernel = elementwise(lambda x: [x + 1], [I32], LOOP_ROUNDS)
    try:
        program = loaded(subject, subject.bench.lower(kernel).uops, 2)
    except UnsupportedError as error:
        raise NotApplicable(str(error)) from error
    x = integers(LOOP_ROUNDS)
    found, _ = results(subject, program, [zeros(LOOP_ROUNDS), x])
    wrong = numpy.flatnonzero(found != x + 1)
    assert not len(wrong), f"of {LOOP_ROUNDS} rounds {len(wrong)} were left out, from {wrong[0]} on"


# --- grids


def grid_limits(subject: Subject) -> tuple[Limits, tuple[int, int, int]]:
    """The limits of a device that launches a grid."""
    limits = subject.limits
    if limits.grid is None:
        raise NotApplicable("it launches no grid")
    return limits, limits.grid


def numbered(grid: Sequence[int], block: Sequence[int]) -> tuple[tuple[UOp, ...], int]:
    """A program in which every thread writes its number to its place, and how many there are."""
    place: UOp = UOp.index(0)
    sizes = [*(("grid", n, size) for n, size in enumerate(grid))]
    sizes += [("block", n, size) for n, size in enumerate(block)]
    count = 1
    for kind, axis, size in sizes:
        count *= size
        place = place * size + (special(f"{kind}{axis}", size) if size > 1 else 0)
    pointer = UOp(Op.DEFINE_GLOBAL, I32.ptr(count), (), 0)
    return in_line(store(at(pointer, place), place.cast(I32))), count


def numbers_itself(subject: Subject, grid: Sequence[int], block: Sequence[int]) -> None:
    """Check that every thread of a launch runs once, and knows where it is."""
    uops, count = numbered(grid, block)
    (found,) = run(subject, uops, zeros(count))
    wrong = numpy.flatnonzero(found != numpy.arange(count))
    assert not len(wrong), (
        f"of {count} threads in {tuple(grid)} groups of {tuple(block)}, {len(wrong)} wrote "
        f"something else than their number; thread {wrong[0]} wrote {found[wrong[0]]}"
    )


def capped(sizes: Iterable[int], limits: Limits) -> list[int]:
    """A block that a device takes: no axis above its limit, nor all threads together."""
    left, found = limits.block_threads, []
    for size, most in zip(sizes, limits.block, strict=True):
        found.append(max(1, min(size, most, left)))
        left //= found[-1]
    return found


@case(Level.COMPUTE)
def test_the_axes_of_a_launch(subject: Subject) -> None:
    """Three axes of groups and three of threads, each with its own index."""
    limits, grid = grid_limits(subject)
    groups = [min(size, most) for size, most in zip((3, 4, 5), grid, strict=True)]
    numbers_itself(subject, groups, capped((2, 3, 2), limits))
    numbers_itself(subject, groups, [1, 1, 1])
    numbers_itself(subject, [7, 1, 1], capped((1, 1, 4), limits))


@case(Level.COMPUTE, over=(Variant(f"axis{n}", n) for n in range(3)))
def test_a_full_block(subject: Subject, axis: int) -> None:
    """A group of as many threads as the limits allow along an axis."""
    limits, _ = grid_limits(subject)
    sizes = [1, 1, 1]
    sizes[axis] = min(limits.block[axis], limits.block_threads)
    numbers_itself(subject, [3, 1, 1], sizes)


@case(Level.COMPUTE, over=(Variant(f"axis{n}", n) for n in range(3)))
def test_a_full_grid(subject: Subject, axis: int) -> None:
    """As many groups as the limits allow along an axis, or many."""
    _, grid = grid_limits(subject)
    sizes = [1, 1, 1]
    sizes[axis] = min(grid[axis], WIDEST)
    numbers_itself(subject, sizes, [1, 1, 1])


# --- shared memory


def group_of(subject: Subject) -> int:
    """The threads of a group, a power of two; raises NotApplicable for devices without groups."""
    limits, _ = grid_limits(subject)
    most = min(GROUP, limits.block[0], limits.block_threads, limits.shared_bytes // 4)
    if most < 2:
        raise AssertionError(f"local_memory is claimed, with {limits}")
    return 1 << (most.bit_length() - 1)


def reversed_groups(groups: int, threads: int, size: int) -> tuple[UOp, ...]:
    """A program in which each group turns its elements around, at the end of its shared memory."""
    group, thread = special("grid0", groups), special("block0", threads)
    place = group * threads + thread
    source = UOp(Op.DEFINE_GLOBAL, I32.ptr(groups * threads), (), 1)
    target = UOp(Op.DEFINE_GLOBAL, I32.ptr(groups * threads), (), 0)
    mine = store(at(shared(size), thread + (size - threads)), load(at(source, place), I32))
    other = load(at(shared(size), thread * -1 + (size - 1)), I32)
    return (*in_line(mine, barrier(mine)), *after(store(at(target, place), other), mine))


def after(root: UOp, *done: UOp) -> tuple[UOp, ...]:
    """The nodes of a root that were not there before."""
    before = set(UOp.sink(*done).toposort())
    return tuple([node for node in root.toposort() if node not in before])


@case(Level.COMPUTE, "local_memory")
def test_a_barrier_orders_a_group(subject: Subject) -> None:
    """Threads read behind a barrier what their neighbors wrote before it."""
    threads = group_of(subject)
    x = integers(5 * threads)
    found, _ = run(subject, reversed_groups(5, threads, threads), zeros(5 * threads), x)
    assert found.tolist() == x.reshape(5, threads)[:, ::-1].reshape(-1).tolist()


@case(Level.COMPUTE, "local_memory")
def test_all_of_shared_memory(subject: Subject) -> None:
    """A group has as many bytes of shared memory as the limits say."""
    threads, size = group_of(subject), subject.limits.shared_bytes // 4
    x = integers(3 * threads)
    found, _ = run(subject, reversed_groups(3, threads, size), zeros(3 * threads), x)
    assert found.tolist() == x.reshape(3, threads)[:, ::-1].reshape(-1).tolist()


@case(Level.COMPUTE, "local_memory")
def test_groups_have_shared_memory_of_their_own(subject: Subject) -> None:
    """Hundreds of groups at once do not see each other's memory."""
    threads = group_of(subject)
    x = integers(500 * threads)
    found, _ = run(subject, reversed_groups(500, threads, threads), zeros(500 * threads), x)
    wrong = found.reshape(500, threads) != x.reshape(500, threads)[:, ::-1]
    assert not wrong.any(), f"{int(wrong.any(axis=1).sum())} of 500 groups are wrong"


@case(Level.COMPUTE, "local_memory")
def test_a_sum_in_shared_memory(subject: Subject) -> None:
    """A group adds its elements in a tree, with a barrier between the steps."""
    threads, groups = group_of(subject), 9
    group, thread = special("grid0", groups), special("block0", threads)
    memory = shared(threads)
    source = UOp(Op.DEFINE_GLOBAL, I32.ptr(groups * threads), (), 1)
    target = UOp(Op.DEFINE_GLOBAL, I32.ptr(groups), (), 0)
    last = store(at(memory, thread), load(at(source, group * threads + thread), I32))
    uops = [*in_line(last, barrier(last))]
    zero = UOp.const(I32, 0)
    half = threads // 2
    while half:
        inside = thread < half
        added = load(at(memory, thread + half, inside), I32, zero)
        mine = load(at(memory, thread, inside), I32, zero)
        step = store(at(memory, thread, inside), mine + added)
        uops += [node for node in in_line(step, barrier(step)) if node not in uops]
        half //= 2
    total = store(at(target, group, thread.eq(0)), load(at(memory, 0), I32))
    uops += [node for node in total.toposort() if node not in uops]
    x = integers(groups * threads)
    found, _ = run(subject, uops, zeros(groups), x)
    assert found.tolist() == x.reshape(groups, threads).sum(axis=1).tolist()
