"""Plans that were found by measuring, on disk.

Floor 4. The key says all that a plan's worth depends on. What is read is text from a file: it is
parsed and checked for legality, and what does not fit is as if it were not there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache as once
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tinycore import cache
from tinycore.device.protocols import Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.errors import ArgumentError, FileFormatError
from tinycore.lower.legality import checked
from tinycore.lower.plan_text import plan_from_text, plan_to_text
from tinycore.lower.tile import Plan
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

TABLE: Final = "plan"
"""The table of the disk cache that plans are in."""
EDITION: Final = 1
"""Raised when steps come to mean something else."""


@dataclass(frozen=True)
class Tuned:
    """The best plan that a search of some width found, and how long heuristic's and it take."""

    plan: Plan
    width: int
    before: float
    """Seconds of one run under the heuristic's plan."""
    seconds: float
    """Seconds of one run under the plan."""

    @property
    def speedup(self) -> float:
        """How many times faster it is."""
        return self.before / self.seconds if self.seconds else 1.0


@once
def our_version() -> str:
    """The version of this package."""
    try:
        return version("tinycore")
    except PackageNotFoundError:
        return "source"


def key_of(ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> str:
    """All that decides which plan is best."""
    words = (
        f"tinycore {our_version()}, edition {EDITION}",
        f"{device.backend.name} {toolchain.name} {toolchain.arch}",
        toolchain.compiler.key,
        repr(toolchain.renderer.limits),
        to_text(ast),
    )
    return "\n".join(words)


def kept(ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> Tuned | None:
    """What was found for a kernel before, if that is legal still."""
    content = cache.get(TABLE, key_of(ast, device, toolchain))
    if content is None:
        return None
    try:
        data = json.loads(content)
        plan = plan_from_text(data["plan"])
        checked(ast, plan, toolchain.renderer.limits)
        return Tuned(plan, int(data["width"]), float(data["before"]), float(data["seconds"]))
    except (ArgumentError, FileFormatError, ValueError, TypeError, KeyError):
        return None


def keep(ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer], found: Tuned) -> None:
    """Keep what was found for every later process."""
    data = {
        "plan": plan_to_text(found.plan),
        "width": found.width,
        "before": found.before,
        "seconds": found.seconds,
    }
    cache.put(TABLE, key_of(ast, device, toolchain), json.dumps(data).encode())
