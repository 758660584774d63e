"""Disk cache of compiled programs: later processes skip lowering.

Floor 4. The key is the kernel's graph as text, the toolchain, every setting that affects lowering,
and a hash of the source files that implement it, so that editing them invalidates the cache.
See docs/decisions/0025-schedule-cache.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache as cache_forever
from itertools import repeat
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from tinycore import cache
from tinycore._stamp import decisive_settings, stamp
from tinycore.config import settings
from tinycore.device.protocols import ProgramInfo, Toolchain
from tinycore.dtype import DType, dtypes
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
    *("engine/compile.py", "engine/estimate.py", "engine/program_cache.py", "schedule/kernel.py"),
    *("device/protocols.py", "device/extent.py", "tensor_map.py"),
)
"""The source files that determine the program of a kernel, and what is kept beside it."""


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
    return CachedProgram(restored(ProgramInfo, info), restored(Estimate, estimate), binary)


def plain_info(info: ProgramInfo) -> dict[str, Any]:
    """Launch information as JSON keeps it, which `restored` makes it from."""
    maps = [asdict(found) | {"dtype": found.dtype.name} for found in info.maps]
    return asdict(info) | {"written": sorted(info.written), "maps": maps}


def restored(kind: Any, plain: Any) -> Any:
    """A value of a type from its JSON form: dataclasses from their fields, tuples, frozensets."""
    if kind is DType:
        return getattr(dtypes, plain)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = hints_of(kind)
        return kind(**{name: restored(hints[name], value) for name, value in plain.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        kinds = repeat(arguments[0]) if arguments[-1] is ... else arguments
        return tuple(map(restored, kinds, plain))
    if origin is frozenset:
        return frozenset([restored(arguments[0], value) for value in plain])
    if origin is UnionType and plain is not None:
        whole = next((one for one in arguments if is_dataclass(one)), None)
        return plain if whole is None else restored(whole, plain)
    return plain


@cache_forever
def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    return get_type_hints(kind)


def store_program(
    ast: UOp, toolchain: Toolchain[Renderer], program: CachedProgram, plan: Plan | None
) -> None:
    """Write a program to the cache."""
    if settings.CCACHE:
        head = json.dumps([plain_info(program.info), asdict(program.estimate)]).encode()
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
