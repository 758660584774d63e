"""The PYTHON device on linear programs written by hand: loops, grids, masks, vectors, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from tinycore.builtin import interpreter
from tinycore.builtin.interpreter import (
    PythonCompiler,
    PythonRenderer,
    PythonRuntime,
    toolchain,
)
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, CompileError, DeviceError, UnsupportedError
from tinycore.plugin import ProgramInfo
from tinycore.render.base import LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

F32 = dtypes.float32


def buffer(slot: int, size: int, dtype: DType = F32) -> UOp:
    return UOp(Op.DEFINE_GLOBAL, dtype.ptr(size), (), slot)


def at(pointer: UOp, index: UOp | int, gate: UOp | None = None) -> UOp:
    position = UOp.index(index) if isinstance(index, int) else index
    sources = (pointer, position) if gate is None else (pointer, position, gate)
    return UOp(Op.INDEX, pointer.dtype, sources)


def load(index: UOp, dtype: DType = F32, other: UOp | None = None) -> UOp:
    return UOp(Op.LOAD, dtype, (index,) if other is None else (index, other))


def store(index: UOp, value: UOp) -> UOp:
    return UOp(Op.STORE, dtypes.void, (index, value))


def register(number: int = 0, dtype: DType = F32) -> UOp:
    return UOp(Op.DEFINE_REG, dtype.ptr(1, "register"), (), number)


def special(name: str, size: int) -> UOp:
    return UOp(Op.SPECIAL, dtypes.index, (UOp.index(size),), name)


def end(loop: UOp, last: UOp) -> UOp:
    return UOp(Op.END, dtypes.void, (last, loop))


def linear(*roots: UOp) -> tuple[UOp, ...]:
    """The nodes below the roots, each root's before the next one's."""
    order: dict[UOp, None] = {}
    for root in roots:
        for u in root.toposort(lambda n: n not in order):
            order.setdefault(u)
    return tuple(order)


def run(
    uops: Sequence[UOp], buffers: Sequence[Any], values: Sequence[int] = (), name: str = "kernel"
) -> None:
    """Through renderer, compiler and device, as any kernel goes."""
    kernel = LinearKernel(name, tuple(uops))
    info = ProgramInfo(
        name,
        len(buffers),
        tuple(v.arg[0] for v in kernel.variables),
        grid=kernel.launch("grid"),
        block=kernel.launch("block"),
    )
    source = PythonRenderer().render(kernel)
    program = PythonRuntime(0, "").load(PythonCompiler().compile(source), info)
    handles = [array.reshape(-1).view(numpy.uint8) for array in buffers]
    program(handles, values)


def zeros(size: int, dtype: Any = numpy.float32) -> Any:
    return numpy.zeros(size, dtype)


def numbers(size: int) -> Any:
    return numpy.arange(size, dtype=numpy.float32)


# Threads, loops and registers


def test_one_thread_per_element() -> None:
    x, i = numbers(6), special("grid0", 6)
    out = zeros(6)
    run(linear(store(at(buffer(0, 6), i), load(at(buffer(1, 6), i)) * 2.0 + 1.0)), [out, x])

    assert out.tolist() == (x * 2 + 1).tolist()


def test_three_axes_of_a_grid_and_a_block() -> None:
    i, j, k = special("grid0", 2), special("grid1", 3), special("grid2", 4)
    b = special("block0", 5)
    index = ((i * 3 + j) * 4 + k) * 5 + b
    out = zeros(120, numpy.int64)
    run(linear(store(at(buffer(0, 120, dtypes.int64), index), index.cast(dtypes.int64))), [out])

    assert out.tolist() == list(range(120))


def test_a_sum_in_a_loop() -> None:
    i, r = special("grid0", 3), UOp.range(4, 1, AxisKind.REDUCE)
    total = at(register(), 0)
    start = store(total, UOp.const(F32, 0.0))
    step = store(total, load(total) + load(at(buffer(1, 12), i * 4 + r)))
    final = store(at(buffer(0, 3), i), load(total))
    out = zeros(3)
    run((*linear(start, r, step), end(r, step), *linear(final)), [out, numbers(12)])

    assert out.tolist() == [6, 22, 38]


def test_a_node_that_stands_twice_is_done_twice() -> None:
    total, one = at(register(0, dtypes.int32), 0), UOp.const(dtypes.int32, 1)
    value = load(total, dtypes.int32)
    start, step = store(total, one), store(total, value + value)
    final = store(at(buffer(0, 1, dtypes.int32), 0), value)
    out = zeros(1, numpy.int32)
    run((*linear(start), *linear(step), *linear(step), *linear(final)), [out])

    assert out.tolist() == [4]


def test_nested_loops() -> None:
    i, j = UOp.range(2, 0), UOp.range(3, 1)
    write = store(at(buffer(0, 6, dtypes.int64), i * 3 + j), (i * 10 + j).cast(dtypes.int64))
    out = zeros(6, numpy.int64)
    run((*linear(i, j, write), end(j, write), end(i, write)), [out])

    assert out.tolist() == [0, 1, 2, 10, 11, 12]


def test_a_loop_that_differs_between_threads() -> None:
    i = special("grid0", 4)
    r, total = UOp.range(i, 0, AxisKind.REDUCE), at(register(), 0)
    start = store(total, UOp.const(F32, 0.0))
    step = store(total, load(total) + load(at(buffer(1, 3), r)))
    final = store(at(buffer(0, 4), i), load(total))
    out = zeros(4)
    run((*linear(start, i, r, step), end(r, step), *linear(final)), [out, numbers(3) + 1])

    assert out.tolist() == [0, 1, 3, 6]  # and the longest thread alone read the last element


def test_a_condition_is_a_loop_of_0_or_1() -> None:
    i = special("grid0", 4)
    r = UOp.range((i % 2).cast(dtypes.index), 0)
    write = store(at(buffer(0, 4), i), UOp.const(F32, 5.0))
    out = zeros(4)
    run((*linear(i, r, write), end(r, write)), [out])

    assert out.tolist() == [0, 5, 0, 5]


def test_an_inner_loop_keeps_the_mask_of_the_outer_one() -> None:
    i = special("grid0", 3)
    outer, inner = UOp.range(i, 0), UOp.range(2, 1)
    write = store(
        at(buffer(0, 12, dtypes.int64), i * 4 + outer * 2 + inner), UOp.const(dtypes.int64, 1)
    )
    out = zeros(12, numpy.int64)
    run((*linear(i, outer, inner, write), end(inner, write), end(outer, write)), [out])

    assert out.reshape(3, 4).sum(axis=1).tolist() == [0, 2, 4]


def test_a_loop_of_no_steps() -> None:
    r = UOp.range(0, 0)
    write = store(at(buffer(0, 1), r), UOp.const(F32, 1.0))
    out = zeros(1)
    run((*linear(r, write), end(r, write)), [out])

    assert out.tolist() == [0]


def test_variables_are_given_at_launch_in_the_order_of_their_names() -> None:
    a, b = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
    out = zeros(1, numpy.int64)
    run(
        linear(store(at(buffer(0, 1, dtypes.int64), 0), (b * 10 + a).cast(dtypes.int64))),
        [out],
        [3, 4],
    )

    assert out.tolist() == [43]


def test_a_large_grid_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "VALUES_AT_ONCE", 4)
    i = special("grid0", 10)
    out = zeros(10, numpy.int64)
    run(linear(store(at(buffer(0, 10, dtypes.int64), i), i.cast(dtypes.int64))), [out])

    assert out.tolist() == list(range(10))


# Memory


def test_a_gate_that_is_false_loads_the_alternative_and_stores_nothing() -> None:
    i = special("grid0", 4)
    inside = i < 2
    value = load(at(buffer(1, 2), i, inside), other=UOp.const(F32, -1.0))
    out = zeros(4)
    run(linear(store(at(buffer(0, 4), i, i > 0), value)), [out, numbers(2) + 7])

    assert out.tolist() == [0, 8, -1, -1]


def test_shared_memory_belongs_to_a_workgroup() -> None:
    group, thread = special("grid0", 3), special("block0", 2)
    shared = UOp(Op.DEFINE_LOCAL, F32.ptr(2, "local"), (), 0)
    i = group * 2 + thread
    write = store(at(shared, thread), load(at(buffer(1, 6), i)))
    barrier = UOp(Op.BARRIER, dtypes.void, (write,))
    other = load(at(shared, thread * -1 + 1))
    out = zeros(6)
    run((*linear(write, barrier), *linear(store(at(buffer(0, 6), i), other))), [out, numbers(6)])

    assert out.tolist() == [1, 0, 3, 2, 5, 4]


def test_vectors_are_loaded_computed_taken_apart_and_stored() -> None:
    i, four = special("grid0", 2), F32.vec(4)
    x = load(at(buffer(1, 8), i * 4), four)
    swapped = UOp(Op.VECTORIZE, four, tuple(UOp(Op.EXTRACT, F32, (x,), (k,)) for k in (3, 2, 1, 0)))
    pair = UOp(Op.EXTRACT, F32.vec(2), (swapped,), (0, 1))
    out, ends = zeros(8), zeros(4)
    run(
        linear(
            store(at(buffer(0, 8), i * 4), swapped * UOp.const(four, 2.0)),
            store(at(buffer(2, 4), i * 2), pair),
        ),
        [out, numbers(8), ends],
    )

    assert out.tolist() == [6, 4, 2, 0, 14, 12, 10, 8]
    assert ends.tolist() == [3, 2, 7, 6]


def test_a_vector_register() -> None:
    four = F32.vec(4)
    total = at(register(0, four), 0)
    r = UOp.range(2, 0, AxisKind.REDUCE)
    start = store(total, UOp.const(four, 0.0))
    step = store(total, load(total, four) + load(at(buffer(1, 8), r * 4), four))
    final = store(at(buffer(0, 4), 0), load(total, four))
    out = zeros(4)
    uops = (*linear(start, r, step), end(r, step), *linear(final))
    run(uops, [out, numbers(8)])

    assert out.tolist() == [4, 6, 8, 10]


def test_a_where_over_lanes_under_one_condition() -> None:
    i, two = special("grid0", 2), F32.vec(2)
    condition = (i < 1).alu(Op.WHERE, UOp.const(two, 1.0), UOp.const(two, 2.0))
    out = zeros(4)
    run(linear(store(at(buffer(0, 4), i * 2), condition)), [out])

    assert out.tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, *dtypes.fp8s])
def test_small_floats_are_rounded_after_every_op(dtype: DType) -> None:
    one, tiny = UOp.const(dtype, 1.0), UOp.const(dtype, 2.0**-6)
    value = one + tiny + tiny + tiny + tiny
    out = zeros(1)
    run(linear(store(at(buffer(0, 1), 0), value.cast(F32))), [out])

    expected = 1.0625 if dtype is dtypes.bfloat16 else 1.0
    assert out.tolist() == [expected]


def test_integers_wrap() -> None:
    x = UOp(Op.LOAD, dtypes.int8, (at(buffer(1, 1, dtypes.int8), 0),))
    out = zeros(1, numpy.int8)
    run(
        linear(store(at(buffer(0, 1, dtypes.int8), 0), x * x)),
        [out, numpy.array([100], numpy.int8)],
    )

    assert out.tolist() == [100 * 100 - 39 * 256]


# Errors


@pytest.mark.parametrize(("offset", "index"), [(2, 6), (-1, -1)])
def test_an_index_outside_names_kernel_buffer_index_and_thread(offset: int, index: int) -> None:
    i = special("grid0", 5)
    value = load(at(buffer(1, 6), i + offset))

    with pytest.raises(DeviceError) as raised:
        run(linear(store(at(buffer(0, 5), i), value)), [zeros(5), numbers(6)], name="shift_5")
    thread = 4 if offset > 0 else 0
    assert str(raised.value) == (
        f"kernel shift_5 reads buffer 1 at index {index}, outside its 6 elements, "
        f"grid ({thread}, 0, 0)"
    )


def test_a_vector_must_lie_inside_whole() -> None:
    value = load(at(buffer(1, 6), 3), F32.vec(4))

    with pytest.raises(
        DeviceError, match=r"reads buffer 1 at index 3 \(4 lanes\), outside its 6 el"
    ):
        run(linear(store(at(buffer(0, 4), 0), value)), [zeros(4), numbers(6)])


def test_a_store_outside() -> None:
    with pytest.raises(
        DeviceError, match="kernel writes buffer 0 at index 1, outside its 1 elements"
    ):
        run(linear(store(at(buffer(0, 1), 1), UOp.const(F32, 0.0))), [zeros(2)])


def test_threads_that_take_no_part_may_be_anywhere() -> None:
    i = special("grid0", 3)
    r = UOp.range((i % 2).cast(dtypes.index), 0)
    write = store(at(buffer(0, 2), i), UOp.const(F32, 1.0))
    out = zeros(2)
    run((*linear(i, r, write), end(r, write)), [out])

    assert out.tolist() == [0, 1]


def test_a_barrier_that_a_part_of_a_group_reaches_is_a_fault() -> None:
    thread = special("block0", 4)
    loop = UOp.range(thread.minimum(1), 0)
    barrier = UOp(Op.BARRIER, dtypes.void, ())
    closed = UOp(Op.END, dtypes.void, (UOp(Op.GROUP, dtypes.void), loop))
    target = store(at(buffer(0, 4), thread), UOp.const(F32, 1))
    program = (*linear(loop, target), barrier, closed.src[0], closed)

    with pytest.raises(DeviceError, match="a barrier is reached by a part of a group"):
        run(program, [zeros(4)])


def test_a_barrier_that_all_groups_reach_but_one_is_none() -> None:
    group, thread = special("grid0", 3), special("block0", 4)
    loop = UOp.range(group.minimum(1), 0)
    barrier = UOp(Op.BARRIER, dtypes.void, ())
    closed = UOp(Op.END, dtypes.void, (UOp(Op.GROUP, dtypes.void), loop))
    target = store(at(buffer(0, 12), group * 4 + thread), UOp.const(F32, 1))
    memory = zeros(12)
    run((*linear(loop, target), barrier, closed.src[0], closed), [memory])

    assert memory.tolist() == [0] * 4 + [1] * 8


def test_a_register_is_written_before_it_is_read() -> None:
    with pytest.raises(DeviceError, match="kernel reads register 7 before it is written"):
        run(linear(store(at(buffer(0, 1), 0), load(at(register(7), 0)))), [zeros(1)])


def test_a_buffer_that_is_too_small() -> None:
    with pytest.raises(
        DeviceError,
        match=r"kernel needs 4 elements of dtypes.float32 in buffer 0, which has 8 bytes",
    ):
        run(linear(store(at(buffer(0, 4), 0), UOp.const(F32, 0.0))), [zeros(2)])


def test_too_few_buffers_or_values() -> None:
    write = store(at(buffer(1, 1), 0), UOp.variable("n", 0, 9).cast(F32))

    with pytest.raises(ArgumentError, match="kernel uses buffer 1 of 1 given"):
        run(linear(write), [zeros(1)], [1])
    with pytest.raises(ArgumentError, match="kernel takes 1 values, not 0"):
        run(linear(write), [zeros(1), zeros(1)])


def test_a_node_that_is_not_linear() -> None:
    r = UOp.range(2, 0)
    folded = UOp(Op.REDUCE, F32, (r.cast(F32), r), Op.ADD)

    with pytest.raises(
        UnsupportedError, match="the interpreter has no REDUCE: programs are linear"
    ):
        run((*linear(r.cast(F32)), end(r, r), folded), [])


def test_a_loop_that_is_never_closed() -> None:
    with pytest.raises(UnsupportedError, match="program kernel never closes the loop <UOp RANGE"):
        run(linear(UOp.range(2, 0)), [])


def test_text_that_is_no_program() -> None:
    with pytest.raises(CompileError, match="the interpreter cannot read a program"):
        PythonCompiler().compile("%0 = COFFEE")


def test_a_launch_that_is_waited_for_says_how_long_it_took() -> None:
    program = PythonRuntime(0, "").load(b"", ProgramInfo("nothing", 0))

    assert program([], []) is None
    seconds = program([], [], wait=True)
    assert seconds is not None
    assert seconds >= 0


def test_the_toolchain_renders_what_the_device_reads() -> None:
    found = toolchain("")

    assert found.name == found.compiler.name == found.renderer.name == "PYTHON"
    assert found.renderer.limits.grid is not None
    assert PythonRuntime.fxn_for_op[Op.ADD](numpy.ones(1), numpy.ones(1)).tolist() == [2]
