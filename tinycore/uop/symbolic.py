"""`simplify`: the rules of every subject, and conditional simplification by them under a gate.

Floor 1. Integers wrap and floats keep IEEE exactly; only `index`, which never overflows, has the
richer algebra of sums, quotients and inequalities. Every rule is tested against evaluate.py, on
instances drawn from its own pattern, by tests/property/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.casts import casts
from tinycore.uop.compare import bound_of, comparisons, conjuncts_of
from tinycore.uop.divmod import divmod_rules
from tinycore.uop.identities import identities
from tinycore.uop.logic import logic
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.pattern import RuleSet, node, var
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import sum_of, sums, terms_of

algebra: Final = identities + logic + casts + sums + divmod_rules + comparisons
"""The rules that hold without knowing a condition."""

# --- conditional simplification: index expressions under a gate that is known to hold

# Padding reads at `i - 1` under the gate `i >= 1`: with that known, quotients and remainders that
# guard against a negative index vanish. Bounds from the gate's conjuncts are put on a variable,
# which stands for one side of the inequality while the index is simplified again.

gated: Final = RuleSet("gated")

index: Final = dtypes.index
BOUNDED: Final = frozenset({Op.FLOORDIV, Op.FLOORMOD, Op.MAX, Op.MIN, Op.CMPLT})
"""Ops that may vanish when more is known of the bounds of their operands."""
INDEX_LEAVES: Final = frozenset({Op.CONST, Op.RANGE, Op.SPECIAL, Op.DEFINE_VAR})


@gated.rule(node(Op.INDEX, var("p"), var("x", dtype=index), var("g", dtype=dtypes.bool)))
def index_under_gate(p: UOp, x: UOp, g: UOp) -> UOp | None:
    """An INDEX with a gate is read only where the gate holds."""
    known = simplify_under(x, g)
    return None if known is x else p.at(known, g)


@gated.rule(var("g", dtype=dtypes.bool).where(var("x", dtype=index), var("y")))
def choice_under_condition(g: UOp, x: UOp, y: UOp) -> UOp | None:
    """g ? x : y needs x only where g holds."""
    known = simplify_under(x, g)
    return None if known is x else g.where(known, y)


def simplify_under(expression: UOp, condition: UOp) -> UOp:
    """Simplify an index expression under the assumption that `condition` holds."""
    parts = expression.toposort()
    if not any(u.op in BOUNDED for u in parts):
        return expression
    # What is loaded must stay as it is: a load happens whether or not the condition holds.
    if not all(u.op in INDEX_LEAVES or u.op in ALU for u in parts):
        return expression
    current, values = expression, dict[UOp, UOp]()
    for number, (value, low, high) in enumerate(bounds_from(condition)):
        known = UOp.variable(f"$given{number}", low, high)
        limit = size(current)
        form = next((f for f in with_known(current, value, known) if size(f) <= limit), None)
        if form is not None:
            current, values[known] = form, value
    simpler = rewrite(current.substitute(values, is_no_loop), algebra)
    return simpler if size(simpler) < size(expression) else expression


def size(expression: UOp) -> int:
    """The number of nodes of an expression."""
    return len(expression.toposort())


def bounds_from(condition: UOp) -> Iterator[tuple[UOp, int, int]]:
    """Sums of index expressions, with bounds that a condition puts on them, inclusive."""
    found: dict[UOp, tuple[int, int]] = {}
    for conjunct in conjuncts_of(condition):
        if (bound := bound_of(conjunct)) is not None:
            value, side, limit = bound
            low, high = found.get(value, value.bounds)
            found[value] = (low, min(high, limit - 1)) if side else (max(low, limit), high)
    for value, (low, high) in found.items():
        if low <= high and (low, high) != value.bounds:
            yield value, low, high


def with_known(expression: UOp, value: UOp, known: UOp) -> Iterator[UOp]:
    """Rewritings of the expression in which the variable `known` stands for `value`.

    With value == t + rest, t is replaced by known - rest.
    """
    terms, constant = terms_of(value)
    for base, factor in terms.items():
        if factor in (1, -1):
            rest = {other: -number * factor for other, number in terms.items() if other is not base}
            replacement = known * factor + sum_of(rest, -constant * factor)
            yield rewrite(expression.substitute({base: replacement}, is_no_loop), algebra)


def is_no_loop(node: UOp) -> bool:
    """False for the counter of a loop, whose length is the same wherever it is read."""
    return node.op is not Op.RANGE


simplify: Final = algebra + gated
"""All algebra that holds for every value of the variables."""


def simplified(root: UOp, what: str = "all") -> UOp:
    """The graph in normal form under `simplify`; a trace calls the pass by what is simplified."""
    return rewrite(root, simplify, name=f"simplify {what}")
