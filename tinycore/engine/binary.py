"""Uncached compilation of a kernel under a given plan, for the search.

Floor 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.device.protocols import ProgramInfo, Toolchain
from tinycore.engine.compile import info_of
from tinycore.engine.rule_hooks import hooked_rules
from tinycore.lower.pipeline import lower
from tinycore.lower.tile import Plan
from tinycore.render.base import Renderer
from tinycore.schedule.kernel import kernel_name, slot_count
from tinycore.uop.node import UOp


@dataclass(frozen=True)
class Binary:
    """A kernel compiled under one plan."""

    content: bytes
    info: ProgramInfo


def build(ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None) -> Binary:
    """A kernel lowered, rendered and compiled; without a plan, under the default one.

    Raises CompileError with the compiler's log.
    """
    added = hooked_rules(toolchain)
    linear = lower(ast, toolchain.renderer, kernel_name(ast), plan, added)
    content = toolchain.compiler.compile(toolchain.renderer.render(linear))
    return Binary(content, info_of(linear, slot_count(ast)))
