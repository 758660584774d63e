"""Loop peeling at the borders of padded operands, so that the interior needs no gates.

Floor 3'. A gate compares an index with a constant; where the loop crosses it, it is cut in two.
"""

from __future__ import annotations

import itertools

from tinycore.lower.cost import LEAST_LANES
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import SMALL_LOOP, KernelFacts
from tinycore.lower.loops import Number
from tinycore.lower.steps.split import MOST_PEELED
from tinycore.lower.tile import Peel
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.symbolic import simplified


def peel_borders(draft: Draft) -> list[Number]:
    """Peel the borders of one loop, of a sum unless that is just a small window. The parts of the
    loop; none if no loop has borders."""
    facts = draft.facts
    is_window = all(r.extent <= SMALL_LOOP for r in facts.reduced)
    for loop in (*facts.reduced[::-1], *(facts.outputs[::-1] if is_window else ())):
        steps = steps_compared(facts, loop)
        edges = (0, *steps, loop.extent)
        widest = max(b - a for a, b in itertools.pairwise(edges))
        contiguous = loop.is_fixed and any(facts.stride(n, loop) == 1 for n in facts.accesses)
        if contiguous and 1 <= len(steps) < MOST_PEELED and widest >= LEAST_LANES:
            draft.do(Peel(number := loop.number, steps))
            return [(*number, part) for part in range(len(edges) - 1)]
    return []


def steps_compared(facts: KernelFacts, loop: UOp) -> tuple[int, ...]:
    """The steps of a loop at which a comparison with a constant changes its result.

    If short loops move the compared index, too: at which it has changed for all of their steps.
    """
    found = set[int]()
    for node in facts.nodes:
        if node.op is Op.CMPLT:
            a, b = node.src
            if b.op is Op.CONST:
                found |= steps_reaching(a, loop, b.arg)
            elif a.op is Op.CONST:
                found |= steps_reaching(b, loop, a.arg + 1)
    return tuple(sorted(s for s in found if 0 < s < loop.extent))


def steps_reaching(value: UOp, loop: UOp, bound: int) -> set[int]:
    """The steps of a loop from which on a value may reach a bound, and does for certain."""
    move = coefficient(value, loop) or 0
    others = [r for r in value.ranges if r is not loop]
    if move < 1 or any(r.extent > SMALL_LOOP for r in others):
        return set()
    rest = simplified(value - loop * move, "borders")
    return {-((least - bound) // move) for least in (int(rest.vmin), int(rest.vmax))}
