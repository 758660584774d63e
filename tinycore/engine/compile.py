"""Compilation: kernels lowered, rendered, compiled and loaded, cached at each step.

Floor 4. Loaded programs are cached per device and graph; programs and binaries also on disk, once a
device has loaded them (`program_cache.py`). Kernels needed soon are compiled on a thread
pool: lowering holds the interpreter lock and is serialized, compilers are native code or
subprocesses and run in parallel to it. The search compiles its candidates by `build`, uncached.
"""

from __future__ import annotations

import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

from tinycore import cache
from tinycore._background import ending, start
from tinycore._collector import without_collecting
from tinycore._deferred import deferred
from tinycore._locks import in_child, lock
from tinycore._lru import Lru
from tinycore._stamp import decisive_values
from tinycore.config import Context, cpu_count, reader_of, settings
from tinycore.device.buffer import Buffer
from tinycore.device.hooks import hooks
from tinycore.device.protocols import (
    Program,
    ProgramInfo,
    SupportsAssembly,
    SupportsBinding,
    Toolchain,
)
from tinycore.device.registry import Device, OpenDevice, at_close
from tinycore.engine.counters import Estimate, report
from tinycore.engine.estimate import estimate
from tinycore.engine.program_cache import (
    BINARIES,
    CompiledKernel,
    binary_key,
    load_program,
    store_program,
)
from tinycore.engine.rule_hooks import hook_generation, hooked_rules
from tinycore.errors import ArgumentError, LaunchTooLarge, PluginError
from tinycore.render.base import LinearKernel, Renderer, value_names
from tinycore.schedule.kernel import kernel_name, slot_count
from tinycore.trace import PassTrace, Trace
from tinycore.uop.node import UOp
from tinycore.uop.parse import from_text
from tinycore.uop.text import to_text

if TYPE_CHECKING:
    from tinycore.lower.tile import Plan

Tools = Toolchain[Renderer]


Job = TypeVar("Job")

MOST_JOBS: Final = 16


def parallel_jobs() -> int:
    """The number of kernels compiled at the same time: PARALLEL, or one per processor."""
    return min(settings.PARALLEL or cpu_count(), MOST_JOBS)


def start_compiling(make: Callable[[Job], object], jobs: Iterable[Job]) -> None:
    """Start all jobs, in order, on a few threads, without waiting.

    Exceptions of jobs are dropped: the caller that needs the result compiles again, and gets them.
    Where no thread can be started, callers compile all.
    """
    waiting = deque(dict.fromkeys(jobs))
    jobs_at_once = min(len(waiting), parallel_jobs())
    if jobs_at_once < 2:
        return

    def work() -> None:
        while waiting and not ending:
            with suppress(Exception):  # also where another thread has taken the last one
                make(waiting.popleft())

    for _ in range(jobs_at_once):
        start(partial(copy_context().run, work))


lower: Final[Callable[..., LinearKernel]] = deferred("tinycore.lower.pipeline:lower")
"""Imported late: a process whose kernels are all in the disk cache does no lowering."""
tuned_plan = deferred("tinycore.engine.search:tuned_plan")
"""Imported late: only BEAM and TUNED use it."""

trace_source = Trace("source")
trace_plan = Trace("plan")
trace_binary = Trace("binary")
SHOWN_CHANNELS: Final = (
    *(trace_source, trace_plan, trace_binary, Trace("kernel"), Trace("linear")),
    PassTrace("passes"),
)
"""Trace channels that report on kernels as they are compiled."""


def as_generated(info: ProgramInfo) -> ProgramInfo:
    """Launch information with variables under the names that the generated source uses."""
    return replace(info, values=value_names(len(info.values))) if info.values else info


def info_of(linear: LinearKernel, buffers: int) -> ProgramInfo:
    """Launch information of a kernel with `buffers` parameters, unused ones included."""
    grid = tuple([linear.sizes.get(f"grid{axis}") for axis in range(3)])
    return ProgramInfo(
        name=linear.name,
        buffers=buffers,
        values=linear.values,
        parallel=linear.parallel,
        grid=linear.launch("grid"),
        block=linear.launch("block"),
        shared_bytes=linear.shared_bytes,
        written=linear.written,
        grid_extents=grid if any(grid) else (),
        parallel_extent=linear.sizes.get("parallel"),
        extras=tuple([effect.extra for effect in linear.effects if effect.extra]),
    )


@dataclass(frozen=True, eq=False)  # a program may have no hash
class CompiledRunner:
    """A program loaded on one device. Pickled as its kernel, which is compiled again on loading."""

    ast: UOp
    name: str
    device: str
    program: Program
    info: ProgramInfo
    estimate: Estimate
    alignment: int = 1
    """Required alignment of each buffer, in bytes."""

    @property
    def written(self) -> frozenset[int]:
        """Slots of the buffers it writes."""
        return self.info.written

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return runner_of_text, (to_text(self.ast), self.device)

    def accepts(self, bufs: Iterable[Buffer]) -> bool:
        """True if every buffer has the required alignment."""
        return self.alignment == 1 or all(
            buffer.alignment >= self.alignment
            for buffer in bufs  # others are aligned to what any program needs
            if buffer.origin or buffer.base is not None
        )

    def for_buffers(self, bufs: Iterable[Buffer]) -> CompiledRunner:
        """This program, or a variant for unaligned buffers where these are."""
        if self.accepts(bufs):
            return self
        return runner_for(self.ast, self.device, aligned=False)

    def launch(
        self, bufs: tuple[Buffer, ...], values: Mapping[str, int], wait: bool
    ) -> float | None:
        """Launch on the memory of `bufs`; the seconds it took if `wait`, else None.

        Raises ArgumentError when a variable has no value.
        """
        numbers = self.numbers(values) if self.info.values else ()
        handles = [b.handle for b in bufs]
        program = self.program if self.alignment == 1 else self.for_buffers(bufs).program
        return program(handles, numbers, wait=wait)

    def numbers(self, values: Mapping[str, int]) -> list[int]:
        """The values of the program's variables. Raises ArgumentError when one has none."""
        try:
            return [values[n] for n in self.info.values]
        except KeyError:
            missing = ", ".join(n for n in self.info.values if n not in values)
            raise ArgumentError(
                f"kernel {self.name} needs a value for {missing}; bind the variable."
            ) from None

    @cached_property
    def is_bindable(self) -> bool:
        """True if a launch can be bound as one native call."""
        return isinstance(self.program, SupportsBinding)

    def bound(self, bufs: tuple[Buffer, ...], values: Mapping[str, int]) -> Callable[[], None]:
        """A launch bound as one native call. Raises ArgumentError when a variable has no value."""
        program: Any = self.for_buffers(bufs).program
        handles = [b.handle for b in bufs]
        ready: Callable[[], None] = program.bound(handles, self.numbers(values))
        return ready


Key = tuple[UOp, int, int, tuple[Any, ...], bool]
LoadedProgram = tuple[CompiledRunner, OpenDevice, Tools]

programs: Lru[Key, LoadedProgram] = Lru(8192)
"""Loaded programs by graph, device, toolchain, settings of plans, rule hooks and alignment.

Devices and toolchains are keyed by id(); entries retain them, so that ids are not reused, until
the device is closed. Captured steps hold their own."""
search_settings: Final = reader_of(("BEAM", "TUNED"))
"""Settings that choose between the default plan of a kernel and one that was measured."""
under_construction: Final[dict[Key, ref[Construction]]] = {}
"""Programs that a thread constructs. An entry whose frame was interrupted is dead."""
in_child(under_construction.clear)
WAIT_SECONDS: Final = 10.0
"""Time that a thread waits for another one to construct a program, before it does so itself."""
lowering = lock()
"""Held during lowering and rendering, which are Python, but not during compilation."""


def compile_kernel(ast: UOp, toolchain: Tools, plan: Plan | None = None) -> CompiledKernel:
    """The program of a kernel, lowered, rendered and compiled; the binary comes from the disk cache
    if possible, and does not enter it here: no device has loaded it yet.

    Without a plan, the cheapest proposal of the strategies is applied.
    Raises CompileError with the compiler's log.
    """
    began = time.perf_counter()
    added = hooked_rules(toolchain)
    with lowering, without_collecting:
        linear = lower(ast, toolchain.renderer, kernel_name(ast), plan, added)
        source: object = toolchain.renderer.render(linear)
    if not isinstance(source, str):
        raise PluginError(
            f"render() of {toolchain.name} returned {type(source).__name__} for {linear.name}; "
            "a source is text"
        )
    if trace_source.on:
        trace_source(f"{toolchain.name} {linear.name}", source)
    rendered = time.perf_counter()
    found = cache.get(BINARIES, binary_key(source, toolchain)) if settings.CCACHE else None
    binary = toolchain.compiler.compile(source) if found is None else found
    if not isinstance(binary, bytes):
        raise PluginError(
            f"compile() of {toolchain.compiler.name} returned {type(binary).__name__} for "
            f"{linear.name}; a binary is bytes"
        )
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
    return CompiledKernel(info_of(linear, slot_count(ast)), estimate(ast), binary, source)


def program_of(ast: UOp, toolchain: Tools, plan: Plan | None = None) -> CompiledKernel:
    """The compiled program of a kernel, from the disk cache if it is there.

    The cache is bypassed while traces, hooks or VERIFY observe lowering. Without a plan the
    cheapest proposal of the strategies is applied. Raises CompileError with the compiler's log.
    """
    watched = any(trace.on for trace in SHOWN_CHANNELS) or settings.VERIFY
    watched = watched or hooks.active("tinycore_kernel_compiled") is not None
    if not watched and (found := load_program(ast, toolchain, plan)) is not None:
        return found
    return compile_kernel(ast, toolchain, plan)


class Construction:
    """The construction of a program by one thread, while others that need it wait.

    Nobody waits who constructs a program already: such is a signal handler that interrupted one,
    and other threads may wait for what the interrupted frame holds.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.thread = get_ident()
        self.ended: SimpleQueue[None] = SimpleQueue()

    def __enter__(self) -> None:
        own = ref(self)
        known = under_construction.setdefault(self.key, own)
        if (other := known()) is None:  # the frame that held it was interrupted
            under_construction[self.key] = own
        elif other is not self and not self.is_nested():
            other.wait()

    def is_nested(self) -> bool:
        """True if this thread constructs another program already."""
        others = [one() for one in list(under_construction.values())]
        return any(one and one is not self and one.thread == self.thread for one in others)

    def wait(self) -> None:
        """Wait for the end, but not for ever."""
        with suppress(Empty):
            self.ended.put(self.ended.get(timeout=WAIT_SECONDS))

    def __exit__(self, *exception: object) -> None:
        if (known := under_construction.get(self.key)) is not None and known() is self:
            under_construction.pop(self.key, None)
        self.ended.put(None)


def runner_for(
    ast: UOp, device_name: str, others: Iterable[tuple[UOp, str]] = (), *, aligned: bool = True
) -> CompiledRunner:
    """The program of a kernel on a device, compiled and loaded at the first call.

    `others` are kernels needed soon: if this one is compiled, their compilation starts in the
    background. With `aligned` False the program takes buffers that start at any element.
    """
    device: OpenDevice = Device[device_name]
    toolchain = device.toolchain
    key = (ast, id(device), id(toolchain), program_settings(), aligned)
    if (found := programs.find(key)) is None:
        if not settings.BEAM and not any(trace.on for trace in SHOWN_CHANNELS):
            start_compiling(lambda kernel: runner_for(*kernel), others)
        with Construction(key):
            if (found := programs.find(key)) is None:
                found = load_runner(ast, device, toolchain, aligned), device, toolchain
                programs.keep(key, found)
    return found[0]


def program_settings() -> tuple[Any, ...]:
    """Settings, and the version of hooks, that decide a program besides its toolchain."""
    return (*decisive_values(), *search_settings(), hook_generation())


def state_of_programs() -> tuple[Any, ...]:
    """The state in which a program that was found before is the one that would be found."""
    return (programs.version, *program_settings())


def forget_programs(device: OpenDevice) -> None:
    """Drop the programs of a device that is closed."""
    programs.drop(lambda key: key[1] == id(device))


at_close.append(forget_programs)


def load_runner(
    ast: UOp, device: OpenDevice, toolchain: Tools, aligned: bool = True
) -> CompiledRunner:
    """Compile and load a kernel."""
    alignment = toolchain.renderer.limits.access_alignment
    if not aligned:
        toolchain, alignment = with_limits(toolchain, buffers_aligned=False), 1
    measured = aligned and (settings.BEAM or settings.TUNED)
    plan = tuned_plan(ast, device, toolchain) if measured else None
    began = time.perf_counter()
    made, program = loaded_program(ast, device, toolchain, plan)
    runner = CompiledRunner(
        ast, made.info.name, device.name, program, made.info, made.estimate, alignment
    )
    report("compiled", runner, made.source, time.perf_counter() - began)
    return runner


def loaded_program(
    ast: UOp, device: OpenDevice, toolchain: Tools, plan: Plan | None
) -> tuple[CompiledKernel, Program]:
    """Compile and load a kernel: once more, in smaller groups, where its groups turn out too large
    for the registers that its threads take.
    """
    while True:
        try:
            return program_once_loaded(ast, device, toolchain, plan)
        except LaunchTooLarge as error:
            most, limits = error.most, toolchain.renderer.limits
            if not 0 < most < limits.block_threads:
                raise
            if trace_plan.on:
                trace_plan(f"lowered again for groups of {most} threads: {error}")
            wanted = min(limits.block_wanted, most)
            toolchain = with_limits(toolchain, block_threads=most, block_wanted=wanted)
            plan = None


def program_once_loaded(
    ast: UOp, device: OpenDevice, toolchain: Tools, plan: Plan | None
) -> tuple[CompiledKernel, Program]:
    """Compile and load a kernel, which enters the disk cache if that worked or if its groups are
    too large (LaunchTooLarge). One from there that does not load is compiled anew, as the driver
    may be another one by now.
    """
    made = program_of(ast, toolchain, plan)
    try:
        program = device.load(made.binary, as_generated(made.info))
    except Exception as error:
        if isinstance(error, LaunchTooLarge):
            store_program(ast, toolchain, made, plan)
        if isinstance(error, LaunchTooLarge) or not settings.CCACHE:
            raise
        with Context(CCACHE=0):
            made, program = program_once_loaded(ast, device, toolchain, plan)
    store_program(ast, toolchain, made, plan)
    return made, program


def with_limits(toolchain: Tools, **changed: Any) -> Tools:
    """The toolchain for some other limits, such as buffers that start at any element."""
    limits = replace(toolchain.renderer.limits, **changed)
    return replace(toolchain, renderer=replace(toolchain.renderer, limits=limits))


def runner_of_text(text: str, device: str) -> CompiledRunner:
    """The program of a kernel given as text."""
    return runner_for(from_text(text), device)


@dataclass(frozen=True)
class Binary:
    """A kernel compiled under one plan."""

    content: bytes
    info: ProgramInfo


def build(ast: UOp, toolchain: Tools, plan: Plan | None) -> Binary:
    """A kernel lowered, rendered and compiled; without a plan, under the default one.

    Raises CompileError with the compiler's log.
    """
    added = hooked_rules(toolchain)
    linear = lower(ast, toolchain.renderer, kernel_name(ast), plan, added)
    content = toolchain.compiler.compile(toolchain.renderer.render(linear))
    return Binary(content, info_of(linear, slot_count(ast)))
