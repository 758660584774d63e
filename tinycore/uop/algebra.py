"""`algebra`: the rules of every subject that hold without knowing a condition.

Floor 1. A file of rules joins here. `conditional.py` simplifies by these rules under a condition,
and `symbolic.py` adds the rules that this makes possible.
"""

from __future__ import annotations

from typing import Final

from tinycore.uop.casts import casts
from tinycore.uop.compare import comparisons
from tinycore.uop.divmod import divmod_rules
from tinycore.uop.identities import identities
from tinycore.uop.logic import logic
from tinycore.uop.sums import sums

__all__ = ["algebra"]

algebra: Final = identities + logic + casts + sums + divmod_rules + comparisons
