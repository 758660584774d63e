"""Disk cache of compiled programs: later processes skip lowering.

Floor 4. The key is the kernel's graph as text, the toolchain, every setting that affects lowering,
and stamps of the source files of this floor, those below, and those of renderer and compiler, so
that editing them invalidates the cache. A program enters it after a device has loaded it, so what a
compiler left unfinished does not.
See docs/floors/schedule.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache as cache_forever
from itertools import repeat
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from tinycore import cache
from tinycore._deferred import module_of
from tinycore._stamp import ABOVE_ENGINE, decisive_settings, stamp, stamp_of_modules
from tinycore.config import settings
from tinycore.device.protocols import ProgramInfo, Toolchain
from tinycore.engine.counters import Estimate
from tinycore.engine.rule_hooks import hooked_rules
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

if TYPE_CHECKING:
    from tinycore.lower.tile import Plan

PROGRAMS: Final = "program"
"""The cache table of programs."""
BINARIES: Final = "binary"
"""The cache table of what compilers made of sources."""


@dataclass(frozen=True)
class CompiledKernel:
    """A binary with the facts needed to load and launch it."""

    info: ProgramInfo
    estimate: Estimate
    binary: bytes
    source: str = field(default="", compare=False)
    """The text that the compiler took; "" for a program from the cache."""


def load_program(
    ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None
) -> CompiledKernel | None:
    """The cached program of a kernel, or None."""
    content = cache.get(PROGRAMS, program_key(ast, toolchain, plan)) if settings.CCACHE else None
    if content is None:
        return None
    head, _, binary = content.partition(b"\n")
    info, estimate = json.loads(head)
    return CompiledKernel(restored(ProgramInfo, info), restored(Estimate, estimate), binary)


def plain_info(info: ProgramInfo) -> dict[str, Any]:
    """Launch information as JSON keeps it, which `restored` makes it from."""
    return asdict(info) | {"written": sorted(info.written)}


def restored(kind: Any, plain: Any) -> Any:
    """A value of a type from its JSON form: dataclasses from their fields, tuples, frozensets."""
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


hints_of: Final = cache_forever(get_type_hints)
"""The types of a dataclass's fields, by name."""


def store_program(
    ast: UOp, toolchain: Toolchain[Renderer], program: CompiledKernel, plan: Plan | None
) -> None:
    """Write a program that a device has loaded to the cache, and its binary, unless it comes from
    there.
    """
    if settings.CCACHE and program.source:
        head = json.dumps([plain_info(program.info), asdict(program.estimate)]).encode()
        content = head + b"\n" + program.binary
        cache.put(PROGRAMS, program_key(ast, toolchain, plan), content)
        cache.put(BINARIES, binary_key(program.source, toolchain), program.binary)


def program_key(ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None) -> str | None:
    """The cache key: everything that determines the program. Without a plan the default is
    used, which the stamp of the source files covers.

    None for a program that is not cached on disk: rules that observers add may be of any code, and
    that of a renderer, its rules, a compiler or a strategy may have no file.
    """
    renderer, compiler = toolchain.renderer, toolchain.compiler
    limits, rules = renderer.limits, [(name, own.rules) for name, own in renderer.rules.items()]
    hooks = [h for h in (*limits.strategies, limits.fills, limits.copies) if h]
    own = [name for hook in hooks for name in hook.modules]
    own += [module_of(rule.function) for _, added in rules for rule in added]
    code = stamp_of_modules((*modules_of(renderer), *modules_of(compiler), *own))
    if code is None or hooked_rules(toolchain):
        return None
    about = [toolchain.name, toolchain.arch, compiler.key, type(renderer).__qualname__]
    about.append(repr((renderer, rules, dict(renderer.instructions), plan)))
    return "\n".join([stamp(ABOVE_ENGINE), code, *about, *decisive_settings(), to_text(ast)])


def binary_key(source: str, toolchain: Toolchain[Renderer]) -> str | None:
    """The key of the compiler's output for a source, which other kernels and versions of tinycore
    may share; None where the compiler's code has no file.
    """
    compiler = toolchain.compiler
    code = stamp_of_modules(modules_of(compiler))
    return None if code is None else f"{code}\n{compiler.key}\n{source}"


def modules_of(thing: object) -> tuple[str, ...]:
    """The modules that define the class of an object."""
    return tuple([cls.__module__ for cls in type(thing).__mro__[:-1]])
