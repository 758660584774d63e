"""Disk cache of compiled programs, which spares later processes the lowering.

Floor 4. The key is the kernel's graph as text, the toolchain, every setting that affects lowering,
and a hash of the source files that implement it, so that editing them invalidates the cache.
See docs/decisions/0025-schedule-cache.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tinycore import cache
from tinycore._stamp import decisive_settings, stamp
from tinycore.config import settings
from tinycore.device.protocols import ProgramInfo, Toolchain
from tinycore.engine.counters import Estimate
from tinycore.engine.rule_hooks import describe_rules, hooked_rules, rule_modules
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

if TYPE_CHECKING:
    from tinycore.lower.tile import Plan

PROGRAMS: Final = "program"
"""The cache table."""

LOWERING: Final = (
    *("_dtype.py", "dtype.py", "uop", "render", "lower", "lower/steps", "lower/strategies"),
    *("engine/compile.py", "engine/program_cache.py", "device/protocols.py", "schedule/kernel.py"),
)
"""The source files that determine the program made from a kernel."""


@dataclass(frozen=True)
class CachedProgram:
    """A binary with the facts needed to load and launch it."""

    info: ProgramInfo
    estimate: Estimate
    binary: bytes


def load_program(
    ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None
) -> CachedProgram | None:
    """The cached program of a kernel, or None."""
    content = cache.get(PROGRAMS, program_key(ast, toolchain, plan)) if settings.CCACHE else None
    if content is None:
        return None
    head, _, binary = content.partition(b"\n")
    info, estimate = json.loads(head)
    for name in ("grid", "block", "values"):
        info[name] = tuple(info[name])
    info["written"] = frozenset(info["written"])
    return CachedProgram(ProgramInfo(**info), Estimate(**estimate), binary)


def store_program(
    ast: UOp, toolchain: Toolchain[Renderer], program: CachedProgram, plan: Plan | None
) -> None:
    """Write a program to the cache."""
    if settings.CCACHE:
        info = asdict(program.info) | {"written": sorted(program.info.written)}
        head = json.dumps([info, asdict(program.estimate)]).encode()
        cache.put(PROGRAMS, program_key(ast, toolchain, plan), head + b"\n" + program.binary)


def program_key(ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None) -> str:
    """The cache key: everything that determines the program. Without a plan the default is
    used, which the hash of the source files covers.
    """
    renderer = toolchain.renderer
    chosen = decisive_settings()
    about = [toolchain.name, toolchain.arch, toolchain.compiler.key]
    about += [f"{type(renderer).__module__}.{type(renderer).__qualname__}", repr(renderer)]
    modules = [cls.__module__ for cls in type(renderer).__mro__]
    if added := hooked_rules(toolchain):
        about += describe_rules(added)
        modules += rule_modules(added)
    chosen += [] if plan is None else [repr(plan)]
    return "\n".join([stamp(LOWERING, tuple(modules)), *about, *chosen, to_text(ast)])
