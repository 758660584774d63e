"""Every rule about gated loads fires, and what is read stays the same."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.expressions import random_values
from tiny_testing.kernels import element, load
from tinycore.dtype import Scalar, dtypes
from tinycore.lower.predicate import gates
from tinycore.uop.evaluate import evaluate
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import Rule
from tinycore.uop.text import to_text

RULES = {f"{rule.name}-{number}": rule for number, rule in enumerate(gates)}
SIZE = 8
ATTEMPTS = 1000
BINDINGS = 6

PLACE = UOp.range(SIZE, 0)
FLAGS = [UOp(Op.DEFINE_VAR, dtypes.bool, (), (name, False, True)) for name in "pq"]
CONDITIONS = [*FLAGS, PLACE < 3, PLACE > 1, *(UOp.const(dtypes.bool, b) for b in (True, False))]
OTHERS = [UOp.const(dtypes.float32, value) for value in (0.0, 1.0)]


def random_access(random: Random) -> UOp:
    """An element, a load of it, or a choice that a load takes part in, each with a gate or none;
    or such choices side by side, as lanes of vectors that are loaded from apart.
    """
    place, *choice = parts_of_choice(random)
    lanes = [choice, random.choice((choice, parts_of_choice(random)[1:]))]
    beside = [vector(list(part)) for part in zip(*lanes, strict=True)]
    return random.choice((place, choice[1], UOp.where(*choice), UOp.where(*beside)))


def parts_of_choice(random: Random) -> tuple[UOp, UOp, UOp, UOp]:
    """An element, and a choice of a load of it: the condition, the load, and the other value."""
    condition, gate = random.sample(CONDITIONS, 2)
    gate = random.choice((gate, condition, gate & condition))
    other = random.choice(OTHERS)
    place = element(0, dtypes.float32, SIZE, PLACE, random.choice((gate, None)))
    value = load(place, dtypes.float32, *random.choice(((), (other,))))
    return place, condition, value, random.choice(OTHERS)


def vector(lanes: list[UOp]) -> UOp:
    return UOp(Op.VECTORIZE, lanes[0].dtype.vec(len(lanes)), tuple(lanes))


def firing_instance(rule: Rule, random: Random) -> tuple[UOp, UOp]:
    """A node to which the rule applies, and what it becomes; a gated load has an alternative."""
    for _ in range(ATTEMPTS):
        before = random_access(random)
        is_legal = all(len(u.src) >= len(u.src[0].src) - 1 for u in loads_in(before))
        after = rule.apply(before)
        if is_legal and after is not None:
            return before, after
    pytest.fail(f"{rule.name} applied to none of {ATTEMPTS} instances")


def loads_in(root: UOp) -> list[UOp]:
    return [u for u in root.toposort() if u.op is Op.LOAD]


def meaning(root: UOp, values: dict[UOp, Scalar], memory: list[float]) -> Any:
    """The value that is read; of an element its place, None where the gate is closed."""
    if root.op is Op.INDEX:
        is_open = len(root.src) == 2 or evaluate(root.src[2], values)
        return evaluate(root.src[1], values) if is_open else None
    if root.op is Op.VECTORIZE:
        return [meaning(lane, values, memory) for lane in root.src]
    if root.op is Op.WHERE and root.src[0].op is Op.VECTORIZE:
        lanes = zip(*[part.src for part in root.src], strict=True)
        return [meaning(UOp.where(*lane), values, memory) for lane in lanes]
    known = dict(values)
    for u in loads_in(root):
        place = meaning(u.src[0], values, memory)
        known[u] = evaluate(u.src[1], values) if place is None else memory[place]
    return evaluate(root, known)


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_rule_reads_the_same(name: str, seed: int) -> None:
    random = Random(seed)
    memory = [float(random.randint(2, 99)) for _ in range(SIZE)]
    before, after = firing_instance(RULES[name], random)

    assert after.dtype is before.dtype
    for _ in range(BINDINGS):
        values = random_values(random, before)
        found, expected = meaning(after, values, memory), meaning(before, values, memory)
        assert found == expected, f"{name}\nbefore:\n{to_text(before)}after:\n{to_text(after)}"
