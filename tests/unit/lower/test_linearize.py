"""Order: loops nest as their ENDs say, and invariant work stays outside."""

from tinycore.dtype import dtypes
from tinycore.lower.linearize import linearize
from tinycore.lower.registers import reduce_to_registers
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op


def element(slot: int, size: int, offset: UOp) -> UOp:
    pointer = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(size), (), slot)
    return UOp(Op.INDEX, pointer.dtype, (pointer, offset))


def loaded(slot: int, size: int, offset: UOp) -> UOp:
    return UOp(Op.LOAD, dtypes.float32, (element(slot, size, offset),))


def ops_between_loops(kernel: UOp) -> str:
    marks = {Op.RANGE: "(", Op.END: ")", Op.LOAD: "l", Op.STORE: "s", Op.MUL: "*"}
    return "".join(
        marks.get(u.op, "")
        for u in linearize(kernel)
        if u.dtype is not dtypes.index or u.op in marks
    )


def test_load_that_does_not_depend_on_the_inner_loop_is_outside_of_it() -> None:
    i, j = UOp.range(4, 0), UOp.range(8, 1)
    value = loaded(1, 4, i) + loaded(2, 8, j)
    store = UOp(Op.STORE, dtypes.void, (element(0, 32, j), value))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (store, i, j)))

    assert ops_between_loops(kernel) == "(l(ls))"


def test_store_to_memory_comes_after_every_load_of_its_loop() -> None:
    i = UOp.range(4, 0)
    first = UOp(Op.STORE, dtypes.void, (element(0, 4, i), UOp.const(dtypes.float32, 1.0)))
    second = UOp(Op.STORE, dtypes.void, (element(1, 4, i), loaded(0, 4, i)))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (UOp(Op.GROUP, dtypes.void, (first, second)), i)))

    assert ops_between_loops(kernel) == "(lss)"


def test_reductions_over_the_same_loop_share_it() -> None:
    i, k = UOp.range(4, 0), UOp.range(8, 1, AxisKind.REDUCE)
    value = loaded(1, 8, k)
    total = UOp(Op.REDUCE, dtypes.float32, (value, k), Op.ADD)
    squares = UOp(Op.REDUCE, dtypes.float32, (value * value, k), Op.ADD)
    store = UOp(Op.STORE, dtypes.void, (element(0, 4, i), total * squares))
    kernel = reduce_to_registers(UOp.sink(UOp(Op.END, dtypes.void, (store, i))))

    assert [u.op for u in linearize(kernel)].count(Op.RANGE) == 2


def test_reduction_of_a_reduction_over_the_same_loop_gets_a_pass_of_its_own() -> None:
    i, k = UOp.range(4, 0), UOp.range(8, 1, AxisKind.REDUCE)
    value = loaded(1, 8, k)
    total = UOp(Op.REDUCE, dtypes.float32, (value, k), Op.ADD)
    spread = UOp(Op.REDUCE, dtypes.float32, ((value - total), k), Op.MAX)
    store = UOp(Op.STORE, dtypes.void, (element(0, 4, i), spread))
    kernel = reduce_to_registers(UOp.sink(UOp(Op.END, dtypes.void, (store, i))))

    assert [u.op for u in linearize(kernel)].count(Op.RANGE) == 3


def test_linear_kernel_has_one_end_for_each_range() -> None:
    i, j = UOp.range(4, 0), UOp.range(8, 1)
    store = UOp(Op.STORE, dtypes.void, (element(0, 32, i * 8 + j), loaded(1, 32, i + j * 4)))
    lines = linearize(UOp.sink(UOp(Op.END, dtypes.void, (store, i, j))))

    assert [u.src[1] for u in lines if u.op is Op.END] == [j, i]
