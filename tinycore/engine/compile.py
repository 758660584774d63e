"""From a kernel's graph to a loaded program: lowered, rendered, compiled, each only once.

Floor 4. Programs are kept per device and graph; binaries also on disk, keyed by the source and by
all that decides what the compiler makes of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from tinycore import cache
from tinycore._collector import without_collecting
from tinycore._deferred import deferred
from tinycore._locks import lock
from tinycore.config import settings, settings_in_force
from tinycore.device.buffer import Buffer
from tinycore.device.hooks import hooks
from tinycore.device.protocols import (
    Program,
    ProgramInfo,
    SupportsAssembly,
    SupportsBinding,
    Toolchain,
)
from tinycore.device.registry import Device, OpenDevice
from tinycore.engine import kept as disk
from tinycore.engine.added import added_rules, generation
from tinycore.engine.ahead import start_ahead
from tinycore.engine.counters import Estimate
from tinycore.engine.estimate import estimate
from tinycore.engine.kept import KeptProgram
from tinycore.errors import ArgumentError, PluginError
from tinycore.render.base import LinearKernel, Renderer, value_names
from tinycore.schedule.kernel import kernel_name, slot_count
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.parse import from_text
from tinycore.uop.text import to_text

if TYPE_CHECKING:
    from tinycore.lower.tile import Plan

lower: Final[Callable[..., LinearKernel]] = deferred("tinycore.lower.pipeline:lower")
"""Lowering is a third of the core's code, and a process whose kernels are kept needs none of it."""
tuned_plan = deferred("tinycore.engine.search:tuned_plan")
"""What BEAM and TUNED ask for; most programs never do."""

trace_source = Trace("source")
trace_plan = Trace("plan")
trace_binary = Trace("binary")
SHOWN: Final = (trace_source, trace_plan, trace_binary, Trace("kernel"), Trace("linear"))
"""Channels that tell of a kernel while it is compiled."""

BINARIES = "binary"
"""The table of the disk cache that binaries are in."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel lowered for one toolchain, with its source and its binary."""

    linear: LinearKernel
    source: str
    binary: bytes
    estimate: Estimate
    buffers: int

    @cached_property
    def info(self) -> ProgramInfo:
        """What a device must know to launch it."""
        return info_of(self.linear, self.buffers)


def as_generated(info: ProgramInfo) -> ProgramInfo:
    """What a device is told of a program: variables by the names that they have in its source."""
    return replace(info, values=value_names(len(info.values))) if info.values else info


def info_of(linear: LinearKernel, buffers: int) -> ProgramInfo:
    """What a device must know to launch a kernel with so many buffers.

    Lowering may find that one of them is never read; it is passed all the same.
    """
    return ProgramInfo(
        name=linear.name,
        buffers=buffers,
        values=linear.values,
        parallel=linear.parallel,
        grid=linear.launch("grid"),
        block=linear.launch("block"),
        shared_bytes=linear.shared_bytes,
        written=linear.written,
    )


@dataclass(frozen=True)
class CompiledRunner:
    """A program ready to launch on one device. For pickle it is its kernel, compiled anew."""

    ast: UOp
    name: str
    device: str
    program: Program
    info: ProgramInfo
    estimate: Estimate
    alignment: int = 1
    """The bytes at a multiple of which each of its buffers must start."""

    @property
    def written(self) -> frozenset[int]:
        """The slots it writes to."""
        return self.info.written

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return runner_of_text, (to_text(self.ast), self.device)

    def suits(self, bufs: Iterable[Buffer]) -> bool:
        """Whether every buffer starts where its accesses may begin."""
        return self.alignment == 1 or all(b.alignment >= self.alignment for b in bufs)

    def suited(self, bufs: Iterable[Buffer]) -> CompiledRunner:
        """This program, or the same kernel for buffers that start anywhere, as these do."""
        if self.suits(bufs):
            return self
        return runner_for(self.ast, self.device, aligned=False)

    def launch(
        self, bufs: tuple[Buffer, ...], values: Mapping[str, int], wait: bool
    ) -> float | None:
        """Launch on the memory of `bufs`; the seconds it took if `wait`, else None.

        Raises ArgumentError when a variable has no value.
        """
        names = self.info.values
        if missing := [n for n in names if n not in values]:
            raise ArgumentError(
                f"kernel {self.name} needs a value for {', '.join(missing)}; bind the variable."
            )
        handles = [b.handle for b in bufs]
        program = self.program if self.alignment == 1 else self.suited(bufs).program
        return program(handles, [values[n] for n in names], wait=wait)

    @cached_property
    def is_bindable(self) -> bool:
        """Whether a launch can be made ready as one call of C."""
        return isinstance(self.program, SupportsBinding)

    def bound(self, bufs: tuple[Buffer, ...], values: Mapping[str, int]) -> Callable[[], None]:
        """A launch as one call of C. Raises ArgumentError when a variable has no value."""
        if missing := [n for n in self.info.values if n not in values]:
            raise ArgumentError(
                f"kernel {self.name} needs a value for {', '.join(missing)}; bind the variable."
            )
        program: Any = self.suited(bufs).program
        ready: Callable[[], None] = program.bound(
            [b.handle for b in bufs], [values[n] for n in self.info.values]
        )
        return ready


Key = tuple[UOp, int, int, bool, int, bool, int, bool]
Kept = tuple[CompiledRunner, OpenDevice, Toolchain[Renderer]]

programs: dict[Key, Kept] = {}
"""By graph, device, toolchain, NOOPT, BEAM and TUNED, by who adds rules, and for what buffers.

What goes by its id is kept, so that the id stays its."""
CHOICES: Final = ("NOOPT", "BEAM", "TUNED")
MOST_PROGRAMS: Final = 8192
"""How many programs are kept; the one unused longest goes. Captured steps hold their own."""
table = lock()
"""Held to look a program up: never while one is compiled."""
making: Final[WeakValueDictionary[Key, threading.Lock]] = WeakValueDictionary()
"""A lock for each program that is being made, held by who makes it."""
lowering = lock()
"""Held while a kernel is lowered and rendered, which is Python, but not while it is compiled."""


def compile_kernel(
    ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None
) -> CompiledKernel:
    """Lower, render and compile a kernel; the binary comes from the disk cache if it is there.

    Without a plan the heuristic makes one.
    Raises CompileError with the compiler's log.
    """
    began = time.perf_counter()
    added = added_rules(toolchain)
    with lowering, without_collecting:
        linear = lower(ast, toolchain.renderer, kernel_name(ast), plan, added)
        source = toolchain.renderer.render(linear)
    if trace_source.on:
        trace_source(f"{toolchain.name} {linear.name}", source)
    rendered = time.perf_counter()
    key = f"{toolchain.compiler.key}\n{source}"
    found = cache.get(BINARIES, key)
    binary = toolchain.compiler.compile(source) if found is None else found
    if not isinstance(binary, bytes):
        raise PluginError(
            f"compile() of {toolchain.compiler.name} returned {type(binary).__name__} for "
            f"{linear.name}; a binary is bytes"
        )
    if found is None:
        cache.put(BINARIES, key, binary)
    if trace_binary.on and isinstance(toolchain.compiler, SupportsAssembly):
        trace_binary(f"{toolchain.name} {linear.name}", toolchain.compiler.assembly(source))
    if compiled := hooks.active("tinycore_kernel_compiled"):
        compiled(
            kernel=linear.name,
            target=f"{toolchain.name}:{toolchain.arch}",
            source=source,
            binary=binary,
            seconds=time.perf_counter() - began,
            cached=found is not None,
        )
    if trace_plan.on:
        ours, theirs = (rendered - began) * 1e3, (time.perf_counter() - rendered) * 1e3
        trace_plan(f"{linear.name}: lowered in {ours:.1f} ms, compiled in {theirs:.1f} ms")
    return CompiledKernel(linear, source, binary, estimate(ast), slot_count(ast))


def program_of(ast: UOp, toolchain: Toolchain[Renderer], plan: Plan | None = None) -> KeptProgram:
    """What a kernel is compiled to: as kept on disk, unless somebody wants to watch it being made.

    Without a plan the heuristic makes one.
    Raises CompileError with the compiler's log.
    """
    watched = any(trace.on for trace in SHOWN) or settings.VERIFY
    watched = watched or hooks.active("tinycore_kernel_compiled") is not None
    if not watched and (found := disk.find(ast, toolchain, plan)) is not None:
        return found
    compiled = compile_kernel(ast, toolchain, plan)
    made = KeptProgram(compiled.info, compiled.estimate, compiled.binary)
    disk.keep(ast, toolchain, made, plan)
    return made


def runner_for(
    ast: UOp, device_name: str, others: Iterable[tuple[UOp, str]] = (), *, aligned: bool = True
) -> CompiledRunner:
    """The program for a kernel on a device, compiled and loaded at first need.

    `others` will be needed soon: if this one has to be compiled, compiling them begins too. With
    `aligned` False it takes buffers that start at any element.
    """
    device: OpenDevice = Device[device_name]
    toolchain = device.toolchain
    key = (ast, id(device), id(toolchain), *settings_in_force(CHOICES), generation(), aligned)
    if (found := kept(key)) is None:
        if not settings.BEAM and not any(trace.on for trace in SHOWN):
            start_ahead(lambda kernel: runner_for(*kernel), others)
        with lock_of(key):
            if (found := kept(key)) is None:
                found = made(ast, device, toolchain, aligned), device, toolchain
                keep(key, found)
    return found[0]


def made(
    ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer], aligned: bool = True
) -> CompiledRunner:
    """A kernel compiled and loaded."""
    alignment = toolchain.renderer.limits.access_alignment
    if not aligned:
        toolchain, alignment = unaligned(toolchain), 1
    measured = aligned and (settings.BEAM or settings.TUNED)
    plan = tuned_plan(ast, device, toolchain) if measured else None
    made = program_of(ast, toolchain, plan)
    program = device.load(made.binary, as_generated(made.info))
    return CompiledRunner(
        ast, made.info.name, device.name, program, made.info, made.estimate, alignment
    )


def unaligned(toolchain: Toolchain[Renderer]) -> Toolchain[Renderer]:
    """The toolchain for launches on buffers that start at any element."""
    limits = replace(toolchain.renderer.limits, buffers_aligned=False)
    return replace(toolchain, renderer=replace(toolchain.renderer, limits=limits))


def lock_of(key: Key) -> threading.Lock:
    """What is held while the program of a key is made."""
    with table:
        return making.setdefault(key, lock())


def runner_of_text(text: str, device: str) -> CompiledRunner:
    """The program for a kernel written as text."""
    return runner_for(from_text(text), device)


def kept(key: Key) -> Kept | None:
    """The program of a key, if it is kept; from now on it is the one used last."""
    with table:
        if (found := programs.pop(key, None)) is not None:
            programs[key] = found
        return found


def keep(key: Key, program: Kept) -> None:
    """Keep a program, and let go of the one unused longest if there are too many."""
    with table:
        programs[key] = program
        if len(programs) > MOST_PROGRAMS:
            del programs[next(iter(programs))]
