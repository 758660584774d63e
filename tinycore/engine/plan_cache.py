"""Disk cache of tuned plans: the best plan that BEAM found for a kernel, and its time.

Floor 4. The key has everything that a plan's speed depends on. Entries are text from a file: they
are parsed and checked for legality, and those that fail are ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from tinycore import cache
from tinycore._stamp import decisive_settings
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.errors import ArgumentError, FileFormatError
from tinycore.lower.tile import Plan, apply_checked, plan_from_text, plan_to_text
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

PLANS_TABLE: Final = "plan"
"""The cache table."""
EDITION: Final = 1
"""The version of the plan language; raised when the meaning of a step changes."""


@dataclass(frozen=True)
class TunedPlan:
    """The best plan of a search of some beam width, with its time and the default plan's."""

    plan: Plan
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
        f"edition {EDITION}",
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
        data = json.loads(content)
        plan = plan_from_text(data["plan"])
        apply_checked(ast, plan, toolchain.renderer.limits)
        return TunedPlan(plan, int(data["width"]), float(data["before"]), float(data["seconds"]))
    except (ArgumentError, FileFormatError, ValueError, TypeError, KeyError):
        return None


def store_plan(
    ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer], found: TunedPlan
) -> None:
    """Write a plan to the cache."""
    data = asdict(found) | {"plan": plan_to_text(found.plan)}
    cache.put(PLANS_TABLE, plan_key(ast, device, toolchain), json.dumps(data).encode())
