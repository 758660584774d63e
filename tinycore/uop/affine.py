"""How an index moves with a loop: a stride of 1 makes a vector load, a stride of 0 is reuse.

Floor 1.
"""

from __future__ import annotations

from tinycore.uop.node import UOp
from tinycore.uop.op import Op
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


def repetition(expression: UOp, counter: UOp) -> int | None:
    """After how many steps of `counter` the expression grows by 1; None where it moves otherwise.

    So it does where the counter, plus what stands still, is divided by that number.
    """
    bases, _ = terms_of(expression)
    moving = [(base, times) for base, times in bases.items() if counter in base.ranges]
    if len(moving) != 1 or moving[0][0].op is not Op.FLOORDIV or moving[0][1] != 1:
        return None
    dividend, divisor = moving[0][0].src
    is_plain = divisor.op is Op.CONST and divisor.arg > 1 and coefficient(dividend, counter) == 1
    return int(divisor.arg) if is_plain else None
