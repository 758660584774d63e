"""How an index moves with a loop: a stride of 1 makes a vector load, a stride of 0 is reuse.

Floor 1.
"""

from __future__ import annotations

from tinycore.uop.node import UOp
from tinycore.uop.sums import terms_of


def coefficient(expression: UOp, counter: UOp) -> int | None:
    """By how much `expression` grows with each step of `counter`; None where that varies.

    The expression is a sum in normal form, as `simplify` leaves it.
    """
    if counter not in expression.ranges:
        return 0
    bases, _ = terms_of(expression)
    if any(base is not counter and counter in base.ranges for base in bases):
        return None
    return bases.get(counter, 0)
