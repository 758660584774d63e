"""Gates of loads."""

from tinycore.dtype import dtypes
from tinycore.lower.predicate import gates, implies
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
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
