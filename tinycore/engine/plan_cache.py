"""Disk cache of tuned plans: the sizes of the best plan that BEAM found for a kernel, and its time.

Floor 4. The key has everything that a plan's speed depends on. An entry has the sizes that differ
from the planner's own, of which the same strategies make the plan again; one that is damaged, or
whose plan is not legal, is ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tinycore import cache
from tinycore._stamp import ABOVE_ENGINE, decisive_settings, stamp
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.lower.plan_neighbors import Candidate, candidate_by
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

PLANS_TABLE: Final = "plan"
"""The cache table."""


@dataclass(frozen=True)
class TunedPlan:
    """The best plan of a search of some beam width, with its time and the default plan's."""

    candidate: Candidate
    width: int
    before: float
    """Seconds per launch under the default plan."""
    seconds: float
    """Seconds per launch under this plan."""

    @property
    def speedup(self) -> float:
        """The ratio of the default plan's time to this plan's."""
        return self.before / self.seconds if self.seconds else 1.0


def plan_key(ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> str:
    """The cache key."""
    words = (
        stamp(ABOVE_ENGINE),
        f"{device.backend.name} {toolchain.name} {toolchain.arch}",
        toolchain.compiler.key,
        repr(toolchain.renderer.limits),
        *decisive_settings(),
        to_text(ast),
    )
    return "\n".join(words)


def load_plan(ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> TunedPlan | None:
    """The cached plan of a kernel, if it exists and is legal."""
    content = cache.get(PLANS_TABLE, plan_key(ast, device, toolchain))
    if content is None:
        return None
    try:
        asked, width, before, seconds = json.loads(content)
        asked = {name: int(size) for name, size in asked.items()}
        numbers = int(width), float(before), float(seconds)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    found = candidate_by(ast, asked, toolchain.renderer.limits)
    return None if found is None else TunedPlan(found, *numbers)


def store_plan(
    ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer], found: TunedPlan
) -> None:
    """Write the sizes of a plan to the cache."""
    content = json.dumps([found.candidate.asked, found.width, found.before, found.seconds])
    cache.put(PLANS_TABLE, plan_key(ast, device, toolchain), content.encode())
