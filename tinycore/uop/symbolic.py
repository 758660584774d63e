"""`simplify`: all algebra that holds for every value of the variables.

Floor 1. Integers wrap and floats keep IEEE exactly; only `index`, which never overflows, has the
richer algebra of sums, quotients and inequalities. Every rule is tested against evaluate.py, on
instances drawn from its own pattern, by tests/property/test_rules.py.
"""

from __future__ import annotations

from typing import Final

from tinycore.uop.algebra import algebra
from tinycore.uop.conditional import gated
from tinycore.uop.node import UOp
from tinycore.uop.rewrite import rewrite

__all__ = ["simplified", "simplify"]

simplify: Final = algebra + gated


def simplified(root: UOp) -> UOp:
    """The graph in normal form under `simplify`."""
    return rewrite(root, simplify, name="simplify")
