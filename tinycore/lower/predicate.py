"""Predication: gated stores, loads and reductions.

Floor 3'. Threads of a grid come in whole groups, so some may have no step of their own. They run
nevertheless, because all threads of a group must meet at its barriers, and read what the last step
reads; their stores and their contributions to sums are masked. Rules then simplify gates that are
constant, or that repeat the condition of a WHERE.
"""

from __future__ import annotations

from tinycore.render.base import pointer_of
from tinycore.uop.compare import conjuncts_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, neutral_element
from tinycore.uop.pattern import RuleSet, node, var
from tinycore.uop.rewrite import rebuilt


def stores_to_buffers(kernel: UOp) -> list[UOp]:
    """The STOREs that are seen from outside of a kernel."""
    stores = kernel.every(Op.STORE)
    return [n for n in stores if pointer_of(n.src[0]).op is Op.DEFINE_GLOBAL]


def loops_around_stores(kernel: UOp) -> list[UOp]:
    """The loops of a kernel that may become threads of a grid, outermost first.

    A store outside of such a loop would be executed by every thread.
    """
    root, stores = kernel.src[0], stores_to_buffers(kernel)
    own = root.src[1:] if len(kernel.src) == 1 and root.op is Op.END else ()
    return [r for r in own if all(r in n.ranges for n in stores)]


def gate_stores(kernel: UOp, gate: UOp, inside: UOp | None = None) -> UOp:
    """The kernel with its stores to buffers done only where `gate` holds.

    With `inside`, a loop whose other steps compute nothing, only stores in that loop are gated, and
    so are loads in it from memory that the kernel overwrites: another thread may be storing there.
    """
    accesses = (Op.STORE,) if inside is None else (Op.STORE, Op.LOAD)
    stores = kernel.every(Op.STORE)
    outputs = {p for n in stores if (p := pointer_of(n.src[0])).op is Op.DEFINE_GLOBAL}

    def gated(node: UOp, new: UOp) -> UOp:
        is_access = node.op in accesses and pointer_of(node.src[0]) in outputs
        if not is_access or not (inside is None or inside in node.ranges):
            return new
        index, *rest = new.src
        values = rest or [new.const_like(0)]
        return new.with_src((with_gate(index, gate), *values))

    return rebuilt(kernel, gated)


def gate_loads(kernel: UOp, gate: UOp, counter: UOp | None = None) -> UOp:
    """The kernel with loads gated by `gate`: where it does not hold, 0 is used.

    With `counter`, a loop, only the loads in it.
    """

    def gated(node: UOp, new: UOp) -> UOp:
        if node.op is not Op.LOAD or not (counter is None or counter in node.ranges):
            return new
        index, *other = new.src
        instead = other[0] if other else new.const_like(0)
        return new.with_src((with_gate(index, gate), instead))

    return rebuilt(kernel, gated)


def with_gate(index: UOp, gate: UOp) -> UOp:
    """An INDEX that is read or written where a gate holds, and any that it has."""
    both = index.src[2] & gate if len(index.src) == 3 else gate
    return index.with_src((*index.src[:2], both))


def gate_sums(kernel: UOp, gate: UOp, counter: UOp) -> UOp:
    """The kernel with the terms of a reduction masked by `gate`."""

    def gated(node: UOp, new: UOp) -> UOp:
        if node.op is not Op.REDUCE or counter not in node.src[1:]:
            return new
        values = [s if s.op is Op.RANGE else left_out(s, gate, node.arg) for s in new.src]
        return new.with_src(tuple(values))

    return rebuilt(kernel, gated)


def left_out(value: UOp, gate: UOp, op: Op) -> UOp:
    """A value to fold by `op`, or the neutral element where `gate` does not hold.

    All factors of a product are set to 0 there, so the gate is tested where a factor is computed:
    once for a staged operand, however many sums read it.
    """
    if op is Op.ADD and value.op in (Op.MUL, Op.CAST) and value.src[0].dtype.kind != "bool":
        return value.with_src(tuple([left_out(s, gate, op) for s in value.src]))
    return gate.where(value, value.const_like(neutral_element(op, value.dtype)))


gates = RuleSet("gates")


@gates.rule(node(Op.INDEX, var("pointer"), var("index"), var("gate")))
def open_gate(pointer: UOp, index: UOp, gate: UOp) -> UOp | None:
    """p[i] where true == p[i]."""
    if gate.op is Op.CONST and gate.arg is True:
        return pointer.at(index)
    return None


@gates.rule(node(Op.LOAD, node(Op.INDEX, name="index"), var("other"), name="root"))
def closed_load(root: UOp, index: UOp, other: UOp) -> UOp | None:
    """A load that never happens == its alternative; one that always happens needs none."""
    if len(index.src) == 2:
        return root.with_src((index,))
    gate = index.src[2]
    return other if gate.op is Op.CONST and gate.arg is False else None


@gates.rule(node(Op.WHERE, var("gate"), node(Op.LOAD, name="load"), var("other")))
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


@gates.rule(
    node(
        Op.WHERE,
        node(Op.VECTORIZE, name="gates"),
        node(Op.VECTORIZE, name="loads"),
        node(Op.VECTORIZE, name="others"),
    )
)
def lanes_gated_twice(gates: UOp, loads: UOp, others: UOp) -> UOp | None:
    """The same of vectors whose lanes are loaded from apart."""
    lanes = zip(gates.src, loads.src, others.src, strict=True)
    repeats = (load.op is Op.LOAD and gated_twice(gate, load, x) is load for gate, load, x in lanes)
    return loads if all(repeats) else None


def implies(condition: UOp, part: UOp) -> bool:
    """True if `part` is among the conditions that `condition` joins by AND."""
    return set(conjuncts_of(part)) <= set(conjuncts_of(condition))


def copied_from(value: UOp) -> UOp | None:
    """Place in a buffer that a value is loaded from, gated where it is else 0; None for others."""
    if value.op is Op.WHERE and is_zero(value.src[2]) and value.src[0].dtype.count == 1:
        inner = copied_from(value.src[1])
        return None if inner is None else with_gate(inner, value.src[0])
    if value.op is not Op.LOAD or not all(map(is_zero, value.src[1:])):
        return None
    index = value.src[0]
    of_buffer = index.op is Op.INDEX and pointer_of(index).op is Op.DEFINE_GLOBAL
    return index if of_buffer else None


def is_zero(value: UOp) -> bool:
    """True if a value is 0 in every lane."""
    lanes = value.src if value.op is Op.VECTORIZE else (value,)
    return all(lane.op is Op.CONST and not lane.arg and str(lane.arg)[0] != "-" for lane in lanes)
