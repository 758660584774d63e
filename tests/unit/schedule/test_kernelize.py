"""Kernels that a graph is cut into, and their order."""

import pytest
from call_counts import calls

from tests.unit.schedule.graphs import (
    assign,
    buffer,
    expand,
    kernels,
    matmul,
    permute,
    reshape,
    stores,
    total,
)
from tinycore.dtype import dtypes
from tinycore.schedule import kernelize
from tinycore.schedule.kernel import memory_of
from tinycore.schedule.nests import KernelGroups
from tinycore.schedule.storage import Storage
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def test_multiply_fuses_into_add() -> None:
    a, b, c = buffer(4), buffer(4), buffer(4)

    (kernel,) = kernels(a * b + c)

    assert len(kernel.src) == 4
    assert stores(kernel) == 1


def test_result_is_an_assign_of_a_buffer_and_a_kernel() -> None:
    a = buffer(4)
    out = a + a

    result = kernelize([out])[out]

    assert [result.op, *(s.op for s in result.src)] == [Op.ASSIGN, Op.BUFFER, Op.KERNEL]


def test_kernelize_twice_finds_nothing_more() -> None:
    a = buffer(4)
    out = kernelize([root := a + a])[root]

    assert kernelize([out]) == {}


def test_child_of_a_kernelized_value_loads_its_buffer() -> None:
    a = buffer(4)
    out = kernelize([root := a + a])[root]
    child = kernelize([leaf := out * a])[leaf]

    assert out in child.src[1].src
    assert not any(n.op is Op.ADD and n.dtype is a.dtype for n in child.src[1].arg.ast.toposort())


def test_matmul_bias_relu_is_one_kernel() -> None:
    x = matmul(buffer(8, 4), buffer(4, 6)) + expand(buffer(1, 6), (8, 6))

    assert len(kernels(x.maximum(x))) == 1


def test_expanded_reduction_gets_memory() -> None:
    x = buffer(8, 4)
    centered = x - expand(total(x, 1), (8, 4))

    assert len(kernels(centered)) == 2


@pytest.mark.parametrize(("op", "count"), [(Op.SIN, 2), (Op.EXP, 1), (Op.SQRT, 1)])
def test_an_expanded_sine_gets_memory(op: Op, count: int) -> None:
    rotated = buffer(64, 6) * expand(buffer(1, 6).alu(op), (64, 6))

    assert len(kernels(rotated)) == count


def test_reduction_used_twice_after_meeting_again_stays_fused() -> None:
    x = total(buffer(8, 4), 1)

    assert len(kernels(x * x + x)) == 1


def test_what_uses_a_reduction_twice_and_meets_again_stays_with_it() -> None:
    x = matmul(buffer(8, 4), buffer(4, 6))
    hidden = (x < x * x).where(x, x * x) + buffer(8, 6)

    assert len(kernels(matmul(hidden, buffer(6, 3)) + matmul(hidden, buffer(6, 3)))) == 2


def test_a_dear_value_of_a_reduction_that_meets_again_is_computed_once_with_it() -> None:
    dear = matmul(buffer(8, 4), buffer(4, 6))
    for _ in range(6):
        dear = dear.alu(Op.EXP)
    hidden = dear * dear + dear

    assert len(kernels(matmul(hidden, buffer(6, 3)))) == 2


def test_two_matmuls_are_two_kernels() -> None:
    hidden = matmul(buffer(8, 4), buffer(4, 6))

    assert len(kernels(matmul(hidden, buffer(6, 3)))) == 2


def test_outputs_with_the_same_loops_and_data_share_a_kernel() -> None:
    a, b = buffer(8, 4), buffer(8, 4)

    (kernel,) = kernels(a + b, a * b)

    assert stores(kernel) == 2


def test_outputs_without_common_data_do_not_share_a_kernel() -> None:
    assert len(kernels(buffer(8) + buffer(8), buffer(8) * buffer(8))) == 2


def test_output_read_through_a_movement_is_not_forwarded() -> None:
    a = buffer(4, 4)
    first = a + a

    assert len(kernels(first, permute(first, 1, 0) * a)) == 2


def test_statistics_of_one_axis_share_a_kernel() -> None:
    x = buffer(8, 4)

    (kernel,) = kernels(total(x, 0), total(x * x, 0))

    assert stores(kernel) == 2


def test_adam_step_is_one_kernel() -> None:
    weight, gradient, mean, square = (buffer(8, 4) for _ in range(4))
    new_mean = assign(mean, mean + gradient)
    new_square = assign(square, square + gradient * gradient)
    new_weight = assign(weight, weight - new_mean * new_square.alu(Op.RECIPROCAL))

    (kernel,) = kernels(new_mean, new_square, new_weight)

    assert len(kernel.src) == 4


def test_reader_of_old_content_comes_before_the_assign() -> None:
    weight = buffer(8, 4)
    old = total(weight, 0, 1)
    new = assign(weight, weight + weight)

    order = kernels(new, old)

    assert memory_of(order[-1].src[0]) is memory_of(weight)
    assert len(order) == 2


def test_reader_of_old_and_new_content_reads_a_saved_copy() -> None:
    weight = buffer(8, 8)
    new = assign(weight, weight + weight)
    both = matmul(new, permute(weight, 1, 0))

    order = kernels(both)

    assert len(order) == 3
    assert len(order[0].src) == 2


def test_assign_that_moves_its_own_elements_saves_them_first() -> None:
    square = buffer(4, 4)

    assert len(kernels(assign(square, permute(square, 1, 0)))) == 2


def test_elementwise_assign_works_in_place() -> None:
    weight = buffer(4, 4)

    (kernel,) = kernels(assign(weight, weight + weight))

    assert len(kernel.src) == 1


def test_second_assign_comes_after_the_first_and_its_readers() -> None:
    weight, other = buffer(4), buffer(4)
    first = assign(weight, other)
    reader = total(first * first, 0)
    second = assign(first, other + other)

    order = [memory_of(k.src[0]) for k in kernels(second, reader)]

    assert order.count(memory_of(weight)) == 2
    assert order[-1] is memory_of(weight)


def test_long_reduction_to_one_value_is_split() -> None:
    first, second = kernels(total(buffer(1 << 20), 0))

    assert memory_of(first.src[0]).shape[0] > 1
    assert memory_of(second.src[0]).shape == (1,)


@pytest.mark.parametrize("is_value", [False, True])
def test_padded_input_of_a_reduction_that_reads_it_often_gets_memory(is_value: bool) -> None:
    x = buffer(8, 4)
    padded = UOp(Op.PAD, x.dtype, (x,), ((1, 1), (0, 0)))
    padded = UOp(Op.VALUE, x.dtype, (padded,)) if is_value else padded

    order = kernels(matmul(padded, buffer(4, 16)))

    assert len(order) == 2


@pytest.mark.slow
def test_chain_of_twenty_thousand_ops_is_cut_and_needs_no_recursion() -> None:
    x = buffer(4)
    for _ in range(20_000):
        x = x + 1.0 if x.shape == () else x + x

    order = kernels(x)

    assert 100 < len(order) < 200


def test_stages_that_exchange_elements_do_not_multiply() -> None:
    x = buffer(64)
    for _ in range(40):
        x = x.maximum(UOp(Op.FLIP, x.dtype, (x,), (True,)))

    order = kernels(x)

    assert 8 <= len(order) <= 40
    assert max(len(k.arg.ast.toposort()) for k in order) < 400


@pytest.mark.parametrize("op", [Op.ADD, Op.MAX, Op.CMPLT])
def test_stages_along_many_axes_do_not_multiply(op: Op) -> None:
    """Costs do not tell: what is read twice is the permuted value, and casts are free."""
    x = buffer(*[2] * 9)
    for axis in range(9):
        turned = UOp(Op.FLIP, x.dtype, (x,), tuple([axis == at for at in range(9)]))
        x = UOp(Op.PERMUTE, x.dtype, (x.alu(op, turned).cast(x.dtype),), (*range(1, 9), 0))

    assert max(len(k.arg.ast.toposort()) for k in kernels(x)) < 400


def test_empty_tensor_needs_no_kernel() -> None:
    x = buffer(0, 4)

    assert kernels(x + x) == []
    assert kernelize([out := x * x])[out].shape == (0, 4)


def test_view_of_a_buffer_needs_no_kernel() -> None:
    assert kernels(permute(buffer(4, 3), 1, 0)) == []


def test_copy_of_a_view_first_makes_it_contiguous() -> None:
    elsewhere = UOp(Op.DEVICE, dtypes.void, (), "NULL")
    x = permute(buffer(4, 3), 1, 0)

    order = kernels(UOp(Op.COPY, x.dtype, (x, elsewhere)))

    assert [k.arg.name for k in order] == ["elementwise_3_4", "copy"]


def test_gather_reads_its_index_inside_the_kernel() -> None:
    table, index = buffer(10, 4), buffer(3, dtype=dtypes.int32)

    (kernel,) = kernels(
        UOp(Op.CONTIGUOUS, table.dtype, (UOp(Op.GATHER, table.dtype, (table, index)),))
    )

    assert len(kernel.src) == 3


def test_reshape_of_a_result_keeps_the_shape() -> None:
    a = buffer(2, 6)
    root = reshape(a + a, (3, 4))

    cut = kernelize([root])

    assert root.substitute(cut).shape == (3, 4)


def test_a_sum_over_what_repeats_is_a_product() -> None:
    (kernel,) = kernels(total(expand(buffer(1, 6), (1 << 14, 6)), 0))

    nodes = kernel.arg.ast.toposort()

    assert not any(n.op is Op.REDUCE for n in nodes)
    assert any(n.op is Op.CONST and n.arg == 1 << 14 and n.dtype is dtypes.float32 for n in nodes)


def test_a_write_to_a_part_reads_the_value_and_not_the_memory() -> None:
    memory, value = buffer(8), buffer(3)
    view = UOp(Op.SHRINK, memory.dtype, (memory,), ((2, 5),))
    written = assign(memory, UOp(Op.INSERT, memory.dtype, (memory, view, value + value)))

    assert KernelGroups(Storage([written]).choose()).reads(written) == [value]


def test_values_whose_uses_never_meet_are_decided_in_linear_time() -> None:
    def decided(steps: int) -> int:
        """The calls that choose storage for two values, each of which reads both before."""
        a, b = buffer(4), buffer(4)
        for _ in range(steps):
            a, b = a * a + b, a - b
        return calls(Storage([a, b]).choose)

    assert decided(2400) < 5 * decided(600)


def test_writes_look_for_what_waits_to_run_once() -> None:
    def emitted(count: int) -> int:
        """The calls that cut as many writes as there are kernels that wait to run."""
        memory = [buffer(4) for _ in range(count)]
        done = kernelize([m + m for m in memory])
        writes = [assign(m, old * old) for m, old in zip(memory, done.values(), strict=True)]
        return calls(lambda: kernelize(writes))

    assert emitted(320) < 8.5 * emitted(40)
