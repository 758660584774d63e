"""Gates of loads, and the loops that a device launches."""

from tinycore.dtype import dtypes
from tinycore.lower.dims import loops_to_launch
from tinycore.lower.gates import gates, implies
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite

POINTER = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(16), (), 0)
ZERO = UOp.const(dtypes.float32, 0.0)
I = UOp.range(16, 0)  # noqa: E741
TRUE = UOp.const(dtypes.bool, True)
FALSE = UOp.const(dtypes.bool, False)


def load(*gate: UOp) -> UOp:
    index = UOp(Op.INDEX, POINTER.dtype, (POINTER, I, *gate))
    return UOp(Op.LOAD, dtypes.float32, (index, *([ZERO] if gate else [])))


def test_gate_that_is_always_open_goes() -> None:
    assert rewrite(load(TRUE), gates) is load()


def test_load_that_never_happens_is_its_alternative() -> None:
    assert rewrite(load(FALSE), gates) is ZERO


def test_where_that_says_what_the_gate_says_goes() -> None:
    gate = I < 4

    assert rewrite(gate.where(load(gate), ZERO), gates) is load(gate)


def test_where_with_another_alternative_stays() -> None:
    gate = I < 4
    chosen = gate.where(load(gate), UOp.const(dtypes.float32, 1.0))

    assert rewrite(chosen, gates) is chosen


def test_where_that_says_more_than_the_gate_stays() -> None:
    gate, more = I < 4, I < 2
    chosen = more.where(load(gate), ZERO)

    assert rewrite(chosen, gates) is chosen


def test_a_conjunction_implies_its_parts() -> None:
    a, b = I < 4, I < 8

    assert implies(a & b, a)
    assert not implies(a, a & b)


def store(offset: UOp, *ranges: UOp) -> UOp:
    index = UOp(Op.INDEX, POINTER.dtype, (POINTER, offset))
    return UOp(Op.END, dtypes.void, (UOp(Op.STORE, dtypes.void, (index, ZERO)), *ranges))


def test_grid_loops_become_launch_indices_the_innermost_first() -> None:
    i, j = UOp.range(4, 0, AxisKind.GRID), UOp.range(3, 1, AxisKind.GRID)
    launched = loops_to_launch(UOp.sink(store(i * 3 + j, i, j)))
    sizes = {u.arg: u.src[0].arg for u in launched.toposort() if u.op is Op.SPECIAL}

    assert sizes == {"grid0": 3, "grid1": 4}
    assert not any(u.op in (Op.RANGE, Op.END) for u in launched.toposort())


def test_loops_inside_a_grid_stay_loops() -> None:
    i, j = UOp.range(4, 0, AxisKind.GRID), UOp.range(3, 1)
    launched = loops_to_launch(UOp.sink(store(i * 3 + j, i, j)))

    assert [u.op for u in launched.toposort() if u.op in (Op.RANGE, Op.END)] == [Op.RANGE, Op.END]
