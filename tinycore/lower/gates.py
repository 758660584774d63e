"""Rules about loads: a gate that is known, a gate that says again what a WHERE says.

Floor 3'.
"""

from __future__ import annotations

from tinycore.uop.compare import conjuncts_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import RuleSet, node, var

gates = RuleSet("gates")


@gates.rule(node(Op.INDEX, var("pointer"), var("index"), var("gate")))
def open_gate(pointer: UOp, index: UOp, gate: UOp) -> UOp | None:
    """p[i] where true == p[i]."""
    if gate.op is Op.CONST and gate.arg is True:
        return UOp(Op.INDEX, pointer.dtype, (pointer, index))
    return None


@gates.rule(node(Op.LOAD, node(Op.INDEX, rest=var()).named("index"), var("other")).named("root"))
def closed_load(root: UOp, index: UOp, other: UOp) -> UOp | None:
    """A load that never happens == its alternative; one that always happens needs none."""
    if len(index.src) == 2:
        return root.with_src((index,))
    gate = index.src[2]
    return other if gate.op is Op.CONST and gate.arg is False else None


@gates.rule(node(Op.WHERE, var("gate"), node(Op.LOAD, rest=var()).named("load"), var("other")))
def gated_twice(gate: UOp, load: UOp, other: UOp) -> UOp | None:
    """gate ? (load where gate and ..., else a) : a == the load."""
    index = load.src[0]
    if (
        len(index.src) == 3
        and len(load.src) == 2
        and load.src[1] is other
        and implies(index.src[2], gate)
    ):
        return load
    return None


def implies(condition: UOp, part: UOp) -> bool:
    """Whether `part` is among the conditions that `condition` joins by AND."""
    return set(conjuncts_of(part)) <= set(conjuncts_of(condition))
