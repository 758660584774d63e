"""Programs kept on disk by what they are made from, so that a later process lowers nothing.

Floor 4. The key is the kernel's graph as text, the toolchain, every setting that may decide how it
is lowered, and a stamp of the code that lowers it: when a file of that changes, nothing made by the
old one is found. See docs/decisions/0025-schedule-cache.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tinycore import cache
from tinycore._stamp import decisive_settings, stamp
from tinycore.config import settings
from tinycore.device.protocols import ProgramInfo, Toolchain
from tinycore.engine.added import added_rules, modules_of, text_of
from tinycore.engine.counters import Estimate
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

if TYPE_CHECKING:
    from tinycore.lower.tile import Plan

PROGRAMS: Final = "program"
"""The table of the disk cache that they are in."""

LOWERING: Final = (
    *("_dtype.py", "dtype.py", "uop", "render", "lower"),
    *("engine/compile.py", "engine/kept.py", "device/protocols.py", "schedule/kernel.py"),
)
"""The parts of this package that make a program of a kernel."""


@dataclass(frozen=True)
class KeptProgram:
    """All that is needed to load and launch a kernel."""

    info: ProgramInfo
    estimate: Estimate
    binary: bytes


def find(ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None) -> KeptProgram | None:
    """The program that some process made of this kernel; None where there is none."""
    content = cache.get(PROGRAMS, key_of(ast, toolchain, plan)) if settings.CCACHE else None
    if content is None:
        return None
    head, _, binary = content.partition(b"\n")
    info, estimate = json.loads(head)
    for name in ("grid", "block", "values"):
        info[name] = tuple(info[name])
    info["written"] = frozenset(info["written"])
    return KeptProgram(ProgramInfo(**info), Estimate(**estimate), binary)


def keep(ast: UOp, toolchain: Toolchain[Renderer], program: KeptProgram, plan: Plan | None) -> None:
    """Keep a program for later processes."""
    if settings.CCACHE:
        info = asdict(program.info) | {"written": sorted(program.info.written)}
        head = json.dumps([info, asdict(program.estimate)]).encode()
        cache.put(PROGRAMS, key_of(ast, toolchain, plan), head + b"\n" + program.binary)


def key_of(ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None) -> str:
    """Everything that a program depends on; without a plan, the heuristic's is one of the code."""
    renderer = toolchain.renderer
    chosen = decisive_settings()
    about = [toolchain.name, toolchain.arch, toolchain.compiler.key]
    about += [f"{type(renderer).__module__}.{type(renderer).__qualname__}", repr(renderer)]
    modules = [cls.__module__ for cls in type(renderer).__mro__]
    if added := added_rules(toolchain):
        about += text_of(added)
        modules += modules_of(added)
    chosen += [] if plan is None else [repr(plan)]
    return "\n".join([stamp(LOWERING, tuple(modules)), *about, *chosen, to_text(ast)])
