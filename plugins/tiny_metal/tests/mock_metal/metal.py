"""Metal's classes: devices, buffers, libraries, pipelines, command buffers, events.

What Apple's validation layer stops a program for is a misuse here, noted with what was done; a
command buffer with a misuse fails as well. A queue executes its command buffers in order in a
thread of its own; several queues do as they like, and wait for each other by events only. A launch
of an encoder follows the one before it, and commands of an indirect command buffer run in any order
but for barriers.
"""

from __future__ import annotations

import mmap
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from emulation.faults import Fault
from shader.compiler import Compiled, CompileFailure, Function, compiled
from shader.launch import Executor, Memory, Span

from mock_metal.objective import Misuse, Mocked, World, class_of, ffi, libobjc, method, trampoline

__all__ = ["Gpu", "Mac", "Plan"]

Dims = tuple[int, int, int]

SHARED, PRIVATE = 0, 32
PRIVATE_MODE: Final = 2
PAGE_BYTES: Final = mmap.PAGESIZE
APPLE_PAGE_BYTES: Final = 16384
"""Page size of Apple silicon, which the length of pages of the host must fill."""
MOST_BYTES_SET: Final = 4096
SLOTS: Final = 31
COMPUTE_COMMANDS: Final = 32
NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, FAILED = range(6)
WAIT_SECONDS: Final = float(os.environ.get("MOCK_METAL_WAIT_SECONDS", "60"))
"""Longest wait for anything: a longer one is a deadlock."""


@dataclass
class Gpu:
    """A GPU that a mocked Mac has."""

    name: str = "Mock M1"
    families: tuple[int, ...] = (1007, 1006, 3003, 5001)
    language: tuple[int, int] = (3, 1)
    """The newest version of the language that the system compiles."""
    unified: bool = True
    has_indirect: bool = True
    needs_pipelines_first: bool = False
    """True if a pipeline of an indirect command must have been set on the encoder before."""
    math_mode: bool = True
    """True if compile options know setMathMode:."""
    most_bytes: int = 1 << 32
    memory_bytes: int = 1 << 33
    shared_bytes: int = 32 << 10
    most_threads: int = 1024
    """Threads that pipelines say fit into a group."""
    registry: int = 0x1000


@dataclass
class Plan:
    """Planned failures and delays."""

    failures: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Command buffers that fail, by their number from 0 on, with a code and a text."""
    fails_next: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By the name of a GPU: how the next command buffer that it begins fails."""
    no_memory_after: int | None = None
    """Number of further buffers that can be made."""
    warnings: str = ""
    """Warnings that the compiler gives beside a library."""
    delay: tuple[float, float] = (0.0, 0.0)
    """The shortest and the longest time before a command buffer runs."""
    seed: int = 1


class String(Mocked):
    """An NSString."""

    class_name = "NSString"

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = text
        self._bytes = ffi.new("char[]", text.encode())

    @method("stringWithUTF8String:", "id", "const char *", on_class=True)
    @classmethod
    def of_text(cls, text: Any) -> Mocked:
        return String(ffi.string(text).decode()).autorelease()

    @method("UTF8String", "const char *")
    def bytes_of(self) -> Any:
        return self._bytes


def autoreleased(text: str) -> Mocked:
    return String(text).autorelease()


class Error(Mocked):
    """An NSError."""

    def __init__(self, domain: str, code: int, text: str) -> None:
        super().__init__()
        self.facts = (domain, code, text)

    @method("localizedDescription", "id")
    def description(self) -> Mocked:
        return autoreleased(self.facts[2])

    @method("domain", "id")
    def domain(self) -> Mocked:
        return autoreleased(self.facts[0])

    @method("code", "NSInteger")
    def code(self) -> int:
        return self.facts[1]


class Array(Mocked):
    """An NSArray."""

    def __init__(self, items: Sequence[Mocked]) -> None:
        super().__init__()
        self.items = [item.retain() for item in items]

    @method("count", "NSUInteger")
    def count(self) -> int:
        return len(self.items)

    @method("objectAtIndex:", "id", "NSUInteger")
    def at(self, place: int) -> Mocked:
        if place >= len(self.items):
            raise Misuse(f"objectAtIndex: {place} of {len(self.items)}")
        return self.items[place]

    def ended(self) -> None:
        for item in self.items:
            item.release()


class CompileOptions(Mocked):
    """MTLCompileOptions."""

    class_name = "MTLCompileOptions"
    knows_math_mode: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.fast_math = True
        self.language = (0, 0)

    @method("respondsToSelector:", "BOOL", "SEL")
    def responds_to_selector(self, selector: Any) -> bool:
        name = ffi.string(libobjc().sel_getName(selector)).decode()
        known = self.knows_math_mode or name != "setMathMode:"
        return known and super().responds_to_selector(selector)

    @method("setFastMathEnabled:", "void", "BOOL")
    def set_fast_math(self, enabled: int) -> None:
        self.fast_math = bool(enabled)

    @method("setMathMode:", "void", "NSInteger")
    def set_math_mode(self, mode: int) -> None:
        if not self.knows_math_mode:
            raise Misuse("this system has no setMathMode:")
        self.fast_math = mode != 0

    @method("setLanguageVersion:", "void", "NSUInteger")
    def set_language(self, version: int) -> None:
        self.language = (version >> 16, version & 0xFFFF)


class PipelineDescriptor(Mocked):
    """MTLComputePipelineDescriptor."""

    class_name = "MTLComputePipelineDescriptor"

    def __init__(self) -> None:
        super().__init__()
        self.function: ShaderFunction | None = None
        self.most_threads = 0
        self.indirect = False

    @method("setComputeFunction:", "void", "id")
    def set_function(self, function: Any) -> None:
        if self.function is not None:
            self.function.release()
        self.function = object_at(function, ShaderFunction)
        self.function.retain()

    @method("setMaxTotalThreadsPerThreadgroup:", "void", "NSUInteger")
    def set_most_threads(self, count: int) -> None:
        self.most_threads = count

    @method("setSupportIndirectCommandBuffers:", "void", "BOOL")
    def set_indirect(self, supported: int) -> None:
        self.indirect = bool(supported)

    def ended(self) -> None:
        if self.function is not None:
            self.function.release()


def object_at(pointer: Any, kind: type[Any]) -> Any:
    """The object that a pointer is of. Raises Misuse for another, nil, or a freed one."""
    here = World.current
    assert here is not None
    address = int(ffi.cast("uintptr_t", pointer))
    found = here.alive.get(address)
    if not isinstance(found, kind):
        was = here.dead.get(address)
        what = f"a {was} that was freed" if was else type(found).__name__ if found else "nil"
        raise Misuse(f"a {kind.__name__} is needed, not {what if address else 'nil'}")
    return found


class Device(Mocked):
    """An MTLDevice."""

    def __init__(self, mac: Mac, gpu: Gpu) -> None:
        super().__init__()
        self.mac, self.gpu = mac, gpu

    @method("name", "id")
    def name(self) -> Mocked:
        return autoreleased(self.gpu.name)

    @method("registryID", "uint64_t")
    def registry(self) -> int:
        return self.gpu.registry

    @method("hasUnifiedMemory", "BOOL")
    def is_unified(self) -> bool:
        return self.gpu.unified

    @method("maxBufferLength", "NSUInteger")
    def most_bytes(self) -> int:
        return self.gpu.most_bytes

    @method("maxThreadgroupMemoryLength", "NSUInteger")
    def shared_bytes(self) -> int:
        return self.gpu.shared_bytes

    @method("supportsFamily:", "BOOL", "NSInteger")
    def supports(self, family: int) -> bool:
        return family in self.gpu.families

    @method("newCommandQueue", "id")
    def new_queue(self) -> Mocked:
        return CommandQueue(self)

    @method("newSharedEvent", "id")
    def new_event(self) -> Mocked:
        return SharedEvent()

    @method("newBufferWithLength:options:", "id", "NSUInteger", "NSUInteger")
    def new_buffer(self, size: int, options: int) -> Mocked | None:
        if not size:
            raise Misuse("a buffer of no bytes")
        if options not in (SHARED, PRIVATE):
            raise Misuse(f"resource options {options}")
        plan = self.mac.plan
        if plan.no_memory_after is not None:
            if not plan.no_memory_after:
                return None
            plan.no_memory_after -= 1
        if size > self.gpu.most_bytes or self.mac.used + size > self.gpu.memory_bytes:
            return None
        return Buffer(self, size, options)

    @method(
        "newBufferWithBytesNoCopy:length:options:deallocator:",
        *("id", "void *", "NSUInteger", "NSUInteger", "id"),
    )
    def wrap_pages(self, pages: Any, size: int, options: int, deallocator: Any) -> Mocked | None:
        address = int(ffi.cast("uintptr_t", pages))
        if address % PAGE_BYTES or not size or size % APPLE_PAGE_BYTES:
            raise Misuse(f"{size} bytes at {address:#x} are no whole pages")
        if options != SHARED or deallocator != ffi.NULL:
            raise Misuse(f"pages of the host with options {options} and {deallocator}")
        return Buffer(self, size, options, Pages(address))

    @method("newLibraryWithSource:options:error:", "id", "id", "id", "id *")
    def new_library(self, source: Any, options: Any, error: Any) -> Mocked | None:
        text = object_at(source, String).text
        asked = object_at(options, CompileOptions)
        if asked.fast_math:
            raise Misuse("kernels are compiled with fast math, which loses NaN and infinity")
        code, said = self.compile(text, asked.language)
        if self.mac.plan.warnings or code is None:
            problem = (
                Error("MTLLibraryErrorDomain", 3, said)
                if code is None
                else Error("MTLLibraryErrorDomain", 4, self.mac.plan.warnings)
            )
            error[0] = problem.autorelease().pointer
        return None if code is None else Library(self, code)

    def compile(self, text: str, language: tuple[int, int]) -> tuple[Compiled | None, str]:
        """A compiled source, and the compiler's messages."""
        if language > self.gpu.language or language < (2, 0):
            return None, "program_source: error: invalid value in '-std=', language not supported"
        has_bfloat = language >= (3, 1) and max(self.gpu.families) >= 1006 and self.gpu.unified
        try:
            return compiled(text, language if has_bfloat else min(language, (3, 0))), ""
        except CompileFailure as failure:
            return None, str(failure)
        except OSError as error:
            return None, f"the mock failed: {error!r}"

    @method(
        "newComputePipelineStateWithDescriptor:options:reflection:error:",
        *("id", "id", "NSUInteger", "id *", "id *"),
    )
    def new_pipeline(
        self, described: Any, options: int, reflection: Any, error: Any
    ) -> Mocked | None:
        asked = object_at(described, PipelineDescriptor)
        if asked.function is None:
            raise Misuse("a pipeline without a function")
        bytes_shared = sum(array.size for array in asked.function.code.arrays)
        problem = ""
        if bytes_shared > self.gpu.shared_bytes:
            problem = f"Threadgroup memory size ({bytes_shared}) exceeds the maximum"
        if asked.most_threads > self.gpu.most_threads and self.gpu.most_threads == 1024:
            problem = f"maxTotalThreadsPerThreadgroup ({asked.most_threads}) is too large"
        if asked.indirect and not self.gpu.has_indirect:
            problem = "Compute function cannot be used with indirect command buffers"
        if problem:
            if error != ffi.NULL:
                fault = Error("AGXMetalDomain", 3, problem)
                error[0] = fault.autorelease().pointer
            return None
        return Pipeline(self, asked.function, asked.indirect)

    @method(
        "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
        *("id", "id", "NSUInteger", "NSUInteger"),
    )
    def new_indirect(self, described: Any, count: int, options: int) -> Mocked | None:
        asked = object_at(described, IndirectDescriptor)
        if not self.gpu.has_indirect:
            return None
        if asked.kinds != COMPUTE_COMMANDS or asked.inherits or not 0 < asked.most_slots <= SLOTS:
            raise Misuse(
                f"an indirect command buffer of kinds {asked.kinds}, {asked.most_slots} slots"
            )
        return IndirectBuffer(count, asked.most_slots)


class Pages:
    """Memory of the host that a buffer shows and does not free."""

    def __init__(self, address: int) -> None:
        self.address = address

    def free(self) -> None:
        """Nothing: it is the host's."""


class Buffer(Mocked):
    """An MTLBuffer."""

    def __init__(self, device: Device, size: int, options: int, pages: Pages | None = None) -> None:
        super().__init__()
        self.device, self.size, self.options = device, size, options
        self.memory: Any = pages or Memory(size)
        device.mac.used += size

    @method("contents", "void *")
    def contents(self) -> Any:
        return ffi.cast("void *", 0 if self.options == PRIVATE else self.memory.address)

    @method("length", "NSUInteger")
    def length(self) -> int:
        return self.size

    @method("storageMode", "NSUInteger")
    def mode(self) -> int:
        return PRIVATE_MODE if self.options == PRIVATE else 0

    def ended(self) -> None:
        self.device.mac.used -= self.size
        self.memory.free()


class Library(Mocked):
    """An MTLLibrary."""

    def __init__(self, device: Device, code: Compiled) -> None:
        super().__init__()
        self.device, self.code = device, code

    @method("newFunctionWithName:", "id", "id")
    def new_function(self, name: Any) -> Mocked | None:
        found = self.code.functions.get(object_at(name, String).text)
        return None if found is None else ShaderFunction(self.code, found)


class ShaderFunction(Mocked):
    """An MTLFunction."""

    def __init__(self, code: Compiled, function: Function) -> None:
        super().__init__()
        self.code, self.function = code, function


class Pipeline(Mocked):
    """An MTLComputePipelineState."""

    def __init__(self, device: Device, function: ShaderFunction, indirect: bool) -> None:
        super().__init__()
        self.device, self.indirect = device, indirect
        self.code, self.function = function.code, function.function

    @method("maxTotalThreadsPerThreadgroup", "NSUInteger")
    def most_threads(self) -> int:
        return self.device.gpu.most_threads

    @method("threadExecutionWidth", "NSUInteger")
    def width(self) -> int:
        return 32


class CommandQueue(Mocked):
    """An MTLCommandQueue, with the thread that executes what it is given."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.waiting: queue.SimpleQueue[CommandBuffer | None] = queue.SimpleQueue()
        self.worker: threading.Thread | None = None
        self.unfinished = threading.Semaphore(64)

    @method("commandBuffer", "id")
    def command_buffer(self) -> Mocked:
        if not self.unfinished.acquire(timeout=WAIT_SECONDS):
            raise Misuse("64 command buffers of a queue are never finished")
        return CommandBuffer(self).autorelease()

    def give(self, commands: CommandBuffer) -> None:
        """Have a command buffer executed after those before."""
        if self.worker is None:
            self.worker = threading.Thread(target=self.work, daemon=True, name="mock GPU")
            self.worker.start()
        commands.retain()
        self.waiting.put(commands)

    def work(self) -> None:
        """Execute, in order, until the end is asked for."""
        chance = random.Random(self.device.mac.plan.seed)
        while (commands := self.waiting.get()) is not None:
            shortest, longest = self.device.mac.plan.delay
            if longest:
                time.sleep(chance.uniform(shortest, longest))
            commands.execute()
            self.unfinished.release()
            commands.release()

    def ended(self) -> None:
        if self.worker is not None:
            self.waiting.put(None)


class CommandBuffer(Mocked):
    """An MTLCommandBuffer: used once."""

    def __init__(self, owner: CommandQueue) -> None:
        super().__init__()
        self.owner = owner
        self.device = owner.device
        self.state = NOT_ENQUEUED
        self.work: list[Callable[[], None]] = []
        self.held: list[Mocked] = []
        self.open: Encoder | None = None
        self.problem: Error | None = None
        self.misuse = ""
        self.done = threading.Event()
        self.times = (0.0, 0.0)

    def needs(self, is_right: bool, text: str) -> None:
        """Raise Misuse, after which the command buffer will fail as well."""
        if not is_right:
            self.misuse = self.misuse or text
            raise Misuse(text)

    def hold(self, what: Any) -> Any:
        """Keep an object until the work has ended."""
        self.held.append(what.retain())
        return what

    @method("computeCommandEncoder", "id")
    def compute(self) -> Mocked:
        return self.encoder(ComputeEncoder)

    @method("blitCommandEncoder", "id")
    def blit(self) -> Mocked:
        return self.encoder(BlitEncoder)

    def encoder(self, kind: type[Encoder]) -> Mocked:
        self.needs(self.state == NOT_ENQUEUED, "an encoder of a command buffer that is committed")
        self.needs(self.open is None, "an encoder is begun before the one before has ended")
        self.open = kind(self)
        return self.open.autorelease()

    @method("encodeSignalEvent:value:", "void", "id", "uint64_t")
    def signal(self, event: Any, value: int) -> None:
        self.needs(self.open is None, "an event is signaled inside of an encoder")
        found = self.hold(object_at(event, SharedEvent))
        self.work.append(lambda: found.reach(value))

    @method("encodeWaitForEvent:value:", "void", "id", "uint64_t")
    def wait_for(self, event: Any, value: int) -> None:
        self.needs(self.open is None, "an event is waited for inside of an encoder")
        found = self.hold(object_at(event, SharedEvent))
        self.work.append(lambda: found.wait(value))

    @method("commit")
    def commit(self) -> None:
        self.needs(self.open is None, "commit before endEncoding")
        self.needs(self.state == NOT_ENQUEUED, "a command buffer is committed twice")
        self.state = COMMITTED
        self.owner.give(self)

    @method("waitUntilCompleted")
    def wait(self) -> None:
        self.needs(self.state >= COMMITTED, "a command buffer is waited for before its commit")
        if not self.done.wait(WAIT_SECONDS):
            raise Misuse("a command buffer never ends")

    @method("status", "NSUInteger")
    def status(self) -> int:
        return self.state

    @method("error", "id")
    def error(self) -> Mocked | None:
        return self.problem

    @method("GPUStartTime", "double")
    def began(self) -> float:
        self.needs(self.state >= COMPLETED, "times of a command buffer that has not ended")
        return self.times[0]

    @method("GPUEndTime", "double")
    def finished(self) -> float:
        self.needs(self.state >= COMPLETED, "times of a command buffer that has not ended")
        return self.times[1]

    def execute(self) -> None:
        """Do everything, in order; fail at the first fault."""
        mac, began = self.device.mac, time.perf_counter()
        self.state = SCHEDULED
        number = next(mac.numbers)
        code, text = mac.plan.failures.get(number, (0, ""))
        if not code:
            code, text = mac.plan.fails_next.pop(self.device.gpu.name, (0, ""))
        if not code and self.misuse:
            code, text = 9, f"Invalid Resource: {self.misuse}"
        if not code:
            code, text = self.run_all()
        if code:
            self.problem = Error("MTLCommandBufferErrorDomain", code, text)
        self.times = (began, time.perf_counter())
        self.state = FAILED if code else COMPLETED
        held, self.held = self.held, []
        for item in held:
            item.release()
        self.done.set()

    def run_all(self) -> tuple[int, str]:
        """Run the work; 0, or the code and text of an error."""
        try:
            for step in self.work:
                step()
        except Fault as fault:
            self.world.complain(str(fault))
            return 3, f"Caused GPU Address Fault Error: {fault}"
        except Misuse as misuse:
            self.world.complain(str(misuse))
            return 1, str(misuse)
        except Exception as error:  # a mistake of the mock must not hang whoever waits
            self.world.complain(f"the mock failed: {type(error).__name__}: {error}")
            return 1, str(error)
        return 0, ""

    def ended(self) -> None:
        if self.open is not None:
            self.world.complain("an encoder is released without endEncoding")
        if self.state < COMMITTED:
            self.owner.unfinished.release()
        for item in self.held:
            item.release()
        if self.problem is not None:
            self.problem.release()


class Encoder(Mocked):
    """The common part of encoders."""

    def __init__(self, commands: CommandBuffer) -> None:
        super().__init__()
        self.commands = commands

    def needs(self, is_right: bool, text: str) -> None:
        """Raise Misuse, which the command buffer fails for."""
        self.commands.needs(is_right, text)

    def verify_open(self) -> None:
        """Refuse what is encoded after the end."""
        self.needs(self.commands.open is self, "an encoder is used after endEncoding")

    @method("endEncoding")
    def end(self) -> None:
        self.verify_open()
        self.commands.open = None


@dataclass
class Bound:
    """Content of a slot: a buffer and an offset, or bytes."""

    memory: Memory
    start: int
    is_bytes: bool = False


def size_of(size: Any) -> Dims:
    return (size.width, size.height, size.depth)


class ComputeEncoder(Encoder):
    """An MTLComputeCommandEncoder of serial dispatch."""

    def __init__(self, commands: CommandBuffer) -> None:
        super().__init__(commands)
        self.pipeline: Pipeline | None = None
        self.bound: dict[int, Bound] = {}
        self.used: set[Buffer] = set()
        self.pipelines: set[Pipeline] = set()

    @method("setComputePipelineState:", "void", "id")
    def set_pipeline(self, pipeline: Any) -> None:
        self.verify_open()
        self.pipeline = self.commands.hold(object_at(pipeline, Pipeline))

    @method("setBuffer:offset:atIndex:", "void", "id", "NSUInteger", "NSUInteger")
    def set_buffer(self, buffer: Any, offset: int, slot: int) -> None:
        self.verify_open()
        self.needs(slot < SLOTS, f"slot {slot}: there are {SLOTS}")
        found = self.commands.hold(object_at(buffer, Buffer))
        self.needs(offset < found.size, f"offset {offset} of a buffer of {found.size} bytes")
        self.bound[slot] = Bound(found.memory, offset)

    @method("setBytes:length:atIndex:", "void", "const void *", "NSUInteger", "NSUInteger")
    def set_bytes(self, data: Any, size: int, slot: int) -> None:
        self.verify_open()
        self.needs(slot < SLOTS, f"slot {slot}: there are {SLOTS}")
        self.needs(0 < size <= MOST_BYTES_SET, f"setBytes of {size} bytes")
        holder = Buffer(self.commands.device, size, SHARED)
        ffi.memmove(ffi.cast("void *", holder.memory.address), data, size)
        self.commands.held.append(holder)
        self.bound[slot] = Bound(holder.memory, 0, is_bytes=True)

    @method("dispatchThreadgroups:threadsPerThreadgroup:", "void", "MTLSize", "MTLSize")
    def dispatch(self, groups: Any, threads: Any) -> None:
        self.verify_open()
        self.needs(self.pipeline is not None, "a launch without a pipeline")
        assert self.pipeline is not None
        pipeline, sizes = self.pipeline, (size_of(groups), size_of(threads))
        count = sizes[1][0] * sizes[1][1] * sizes[1][2]
        most = pipeline.most_threads()
        self.needs(count <= most, f"{sizes[1]} threads of a group, of which {most} fit")
        if 0 in sizes[0] or not count:
            self.pipelines.add(pipeline)
            return
        bound = dict(self.bound)
        for parameter in pipeline.function.parameters:
            self.needs(
                parameter.slot in bound,
                f"{pipeline.function.name}: nothing is bound to {parameter.name} "
                f"in slot {parameter.slot}",
            )
        self.commands.work.append(lambda: launch(self.commands, pipeline, bound, *sizes))

    @method("useResources:count:usage:", "void", "id *", "NSUInteger", "NSUInteger")
    def use(self, resources: Any, count: int, usage: int) -> None:
        self.verify_open()
        self.needs(usage in (1, 2, 3), f"usage {usage}")
        for place in range(count):
            self.used.add(self.commands.hold(object_at(resources[place], Buffer)))

    @method("executeCommandsInBuffer:withRange:", "void", "id", "NSRange")
    def run_indirect(self, indirect: Any, span: Any) -> None:
        self.verify_open()
        found = self.commands.hold(object_at(indirect, IndirectBuffer))
        self.needs(
            span.location + span.length <= len(found.commands), "commands that there are not"
        )
        commands = found.commands[span.location : span.location + span.length]
        first = self.commands.device.gpu.needs_pipelines_first
        for command in commands:
            command.verify(self, first)
        chance = random.Random(self.commands.device.mac.plan.seed)

        def run() -> None:
            for batch in batches(commands):
                chance.shuffle(batch)
                for command in batch:
                    assert command.pipeline is not None
                    command.verify_alive()
                    place = (command.pipeline, command.spans(), *command.sizes)
                    launch(self.commands, *place)

        self.commands.work.append(run)


def launch(
    commands: CommandBuffer,
    pipeline: Pipeline,
    bound: dict[int, Bound],
    groups: Dims,
    threads: Dims,
) -> None:
    """Run a kernel to its end."""
    spans = {slot: Span(place.memory, place.start) for slot, place in bound.items()}
    executor = commands.device.mac.executor
    executor.launch(pipeline.code, pipeline.function, spans, groups, threads)


class BlitEncoder(Encoder):
    """An MTLBlitCommandEncoder."""

    @method(
        "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
        *("void", "id", "NSUInteger", "id", "NSUInteger", "NSUInteger"),
    )
    def copy(self, source: Any, start: int, target: Any, place: int, size: int) -> None:
        self.verify_open()
        one = self.commands.hold(object_at(source, Buffer))
        other = self.commands.hold(object_at(target, Buffer))
        self.needs(size > 0, "a copy of no bytes")
        self.needs(start + size <= one.size, f"{size} bytes from {start} of {one.size}")
        self.needs(place + size <= other.size, f"{size} bytes to {place} of {other.size}")
        overlaps = one is other and start < place + size and place < start + size
        self.needs(not overlaps, "a copy of bytes onto themselves")

        def run() -> None:
            ffi.memmove(
                ffi.cast("void *", other.memory.address + place),
                ffi.cast("void *", one.memory.address + start),
                size,
            )

        self.commands.work.append(run)


class SharedEvent(Mocked):
    """An MTLSharedEvent: a number that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0
        self.changed = threading.Condition()

    @method("signaledValue", "uint64_t")
    def signaled(self) -> int:
        return self.value

    @method("setSignaledValue:", "void", "uint64_t")
    def set_signaled(self, value: int) -> None:
        self.reach(value)

    def reach(self, value: int) -> None:
        """Signal."""
        with self.changed:
            if value < self.value:
                raise Misuse(f"an event goes back from {self.value} to {value}")
            self.value = value
            self.changed.notify_all()

    def wait(self, value: int) -> None:
        """Wait for a signal."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.value >= value, WAIT_SECONDS):
                raise Misuse(f"an event stays at {self.value} and never reaches {value}")


class IndirectDescriptor(Mocked):
    """MTLIndirectCommandBufferDescriptor."""

    class_name = "MTLIndirectCommandBufferDescriptor"

    def __init__(self) -> None:
        super().__init__()
        self.kinds = 0
        self.inherits = True
        self.most_slots = 0

    @method("setCommandTypes:", "void", "NSUInteger")
    def set_kinds(self, kinds: int) -> None:
        self.kinds = kinds

    @method("setInheritBuffers:", "void", "BOOL")
    def set_inherits(self, inherits: int) -> None:
        self.inherits = bool(inherits)

    @method("setInheritPipelineState:", "void", "BOOL")
    def set_inherits_pipeline(self, inherits: int) -> None:
        if inherits:
            raise Misuse("commands that inherit their pipeline")

    @method("setMaxKernelBufferBindCount:", "void", "NSUInteger")
    def set_slots(self, count: int) -> None:
        self.most_slots = count


class IndirectBuffer(Mocked):
    """An MTLIndirectCommandBuffer."""

    def __init__(self, count: int, most_slots: int) -> None:
        super().__init__()
        self.commands = [IndirectCommand(most_slots) for _ in range(count)]

    @method("indirectComputeCommandAtIndex:", "id", "NSUInteger")
    def command(self, place: int) -> Mocked:
        if place >= len(self.commands):
            raise Misuse(f"command {place} of {len(self.commands)}")
        return self.commands[place]

    def ended(self) -> None:
        for command in self.commands:
            command.release()


class IndirectCommand(Mocked):
    """An MTLIndirectComputeCommand: it keeps nothing alive."""

    def __init__(self, most_slots: int) -> None:
        super().__init__()
        self.most_slots = most_slots
        self.pipeline: Pipeline | None = None
        self.buffers: dict[int, tuple[Buffer, int]] = {}
        self.sizes: tuple[Dims, Dims] = ((0, 0, 0), (0, 0, 0))
        self.is_launched = False
        self.has_barrier = False

    @method("setComputePipelineState:", "void", "id")
    def set_pipeline(self, pipeline: Any) -> None:
        self.pipeline = object_at(pipeline, Pipeline)
        if not self.pipeline.indirect:
            raise Misuse("a pipeline that was not made for indirect command buffers")

    @method("setKernelBuffer:offset:atIndex:", "void", "id", "NSUInteger", "NSUInteger")
    def set_buffer(self, buffer: Any, offset: int, slot: int) -> None:
        found = object_at(buffer, Buffer)
        if slot >= self.most_slots or offset >= found.size or offset >> 32:
            raise Misuse(f"slot {slot} of {self.most_slots}, byte {offset} of {found.size}")
        self.buffers[slot] = (found, offset)

    @method("concurrentDispatchThreadgroups:threadsPerThreadgroup:", "void", "MTLSize", "MTLSize")
    def dispatch(self, groups: Any, threads: Any) -> None:
        self.sizes = (size_of(groups), size_of(threads))
        self.is_launched = True

    @method("setBarrier")
    def set_barrier(self) -> None:
        self.has_barrier = True

    def verify(self, encoder: ComputeEncoder, needs_pipeline_first: bool) -> None:
        """Refuse what a GPU would fault on."""
        needs, pipeline = encoder.needs, self.pipeline
        needs(pipeline is not None, "an indirect command without a pipeline")
        assert pipeline is not None
        needs(self.is_launched, "an indirect command that launches nothing")
        for parameter in pipeline.function.parameters:
            needs(parameter.slot in self.buffers, f"nothing is bound to {parameter.name}")
        for buffer, _ in self.buffers.values():
            needs(buffer in encoder.used, "a buffer of an indirect command is not made resident")
        known = pipeline in encoder.pipelines
        needs(known or not needs_pipeline_first, "a pipeline is not set on the encoder before")

    def verify_alive(self) -> None:
        """Refuse what was freed since."""
        assert self.pipeline is not None
        for item in (self.pipeline, *(buffer for buffer, _ in self.buffers.values())):
            if not item.references:
                raise Misuse(f"an indirect command uses a {type(item).__name__} that was freed")

    def spans(self) -> dict[int, Bound]:
        """The buffers as a launch takes them."""
        return {slot: Bound(b.memory, start) for slot, (b, start) in self.buffers.items()}


def batches(commands: Iterable[IndirectCommand]) -> list[list[IndirectCommand]]:
    """Commands between barriers, which may run in any order: a barrier is before its command."""
    found: list[list[IndirectCommand]] = [[]]
    for command in commands:
        if command.has_barrier:
            found.append([])
        found[-1].append(command)
    return found


class Mac:
    """A mocked macOS: what `tiny_metal._lib.use` takes, and what tests look at."""

    def __init__(self, gpus: Sequence[Gpu] = (Gpu(),), plan: Plan | None = None) -> None:
        self.gpus = tuple(gpus)
        self.plan = plan or Plan()
        self.world = World()
        self.executor = Executor(self.plan.seed)
        self.numbers = iter(range(1 << 62))
        self.used = 0
        CompileOptions.knows_math_mode = all(gpu.math_mode for gpu in self.gpus)
        for kind in (String, CompileOptions, PipelineDescriptor, IndirectDescriptor):
            class_of(kind)
        self.devices = [Device(self, gpu) for gpu in self.gpus]
        self.objc_msgSend = ffi.addressof(trampoline(), "mock_send")
        self.objc_getClass = libobjc().objc_getClass
        self.sel_registerName = libobjc().sel_registerName
        self.objc_autoreleasePoolPush = self.world.push
        self.objc_autoreleasePoolPop = self.world.pop

    def MTLCreateSystemDefaultDevice(self) -> Any:  # noqa: N802
        """The first GPU."""
        return self.devices[0].retain().pointer if self.devices else ffi.NULL

    def MTLCopyAllDevices(self) -> Any:  # noqa: N802
        """All GPUs."""
        return Array(self.devices).pointer

    @property
    def left(self) -> dict[str, int]:
        """Living objects, and devices that somebody else than the Mac still holds."""
        found = dict(self.world.left())
        held = sum(device.references > 1 for device in self.devices)
        found.pop("Device", None)
        return found | ({"Device": held} if held else {})

    @property
    def misuses(self) -> list[str]:
        """Misuses so far."""
        return self.world.misuses
