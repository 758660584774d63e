"""An open WebGPU device: its queue, the commands recorded for it, and how they are waited for.

Launches are recorded and go to the queue together: when somebody writes or waits, or when there
are enough. WebGPU reports mistakes to a callback; they are raised by whatever was asked, with
Dawn's own words. One lock guards the device, as Dawn's objects are for one thread at a time.
"""

from __future__ import annotations

from typing import Final

from tiny_webgpu._lib import BufferUsage, Feature, Pointer, dawn, ffi, new
from tiny_webgpu._turns import Turns
from tiny_webgpu.arch import Arch
from tiny_webgpu.memory import STORAGE, Block, WebGpuAllocator
from tiny_webgpu.probe import Adapter, adapters, no_adapter, request
from tiny_webgpu.program import ENTRY, Clock, Pipeline, WebGpuProgram
from tiny_webgpu.render import Wgsl, WgslWithoutHalves
from tinycore.errors import CompileError, DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import ProgramInfo, Toolchain

__all__ = ["WebGpuDevice", "wgsl_toolchain"]

_MAP_READ: Final = 1
_TOGGLES: Final = 327_690
"""WGPUSType_DawnTogglesDescriptor."""
_DISABLED: Final = ("timestamp_quantization",)
"""Toggles of Dawn turned off: a coarse clock is a protection that only web pages need."""
_MOST_RECORDED: Final = 64
"""Launches after which the commands are submitted, so that the device has something to do."""
_ARGUMENT_BYTES: Final = 64 << 10
_ARGUMENT_ALIGNMENT: Final = 256
"""minUniformBufferOffsetAlignment of every device."""
_STAGING_KEPT_BYTES: Final = 16 << 20
"""A buffer for reading of up to this size is kept for the next read."""


class WebGpuDevice:
    """An open adapter."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        found = adapters(interface)
        if index >= len(found):
            known = ", ".join(f"{i}: {adapter.name}" for i, adapter in enumerate(found))
            why = f"there is no adapter {index}; there are {known}" if found else ""
            raise DeviceUnavailable(why or no_adapter(interface))
        self.adapter: Adapter = found[index]
        self.name = f"WEBGPU:{index} ({self.adapter.name})"
        self.lib = dawn().lib
        self.lock = Turns(self._settle)
        self._open()
        self._encoder: Pointer = None
        self._launches = 0
        self._spent: list[Block] = []
        self._argued = bytearray()
        self._pipelines: dict[bytes, Pipeline] = {}
        self._staging: Block | None = None
        self.arguments = self.create_block(
            _ARGUMENT_BYTES, BufferUsage.UNIFORM | BufferUsage.COPY_SRC | BufferUsage.COPY_DST
        )
        """Arguments of launches that are recorded."""
        self.allocator = WebGpuAllocator(self)
        self.clock = Clock(self) if self.adapter.has_timestamps else None

    @property
    def arch(self) -> str:
        """The features and limits that kernels for this device may use."""
        return str(self.adapter.arch)

    def _open(self) -> None:
        lib = self.lib
        pointer, message = request(self.adapter.backend, self.adapter.way)
        if pointer is None:
            raise DeviceUnavailable(f"{self.name} is gone: {message}")
        wanted = [Feature.SHADER_F16] if self.adapter.arch.float16 else []
        wanted += [Feature.TIMESTAMP_QUERY] if self.adapter.has_timestamps else []
        features = ffi.new("uint32_t[]", [int(feature) for feature in wanted])
        limits = new("WGPUSupportedLimits")
        lib.wgpuAdapterGetLimits(pointer, limits)
        limits.nextInChain = ffi.NULL
        words = [ffi.new("char[]", word.encode()) for word in _DISABLED]
        disabled = ffi.new("char *[]", words)
        toggles = new(
            "WGPUDawnTogglesDescriptor",
            chain={"sType": _TOGGLES},
            disabledToggleCount=len(words),
            disabledToggles=disabled,
        )
        sink, self._errors = dawn().error_sink()
        descriptor = new(
            "WGPUDeviceDescriptor",
            nextInChain=toggles,
            requiredFeatureCount=len(features),
            requiredFeatures=features,
            requiredLimits=limits,
            uncapturedErrorCallbackInfo=sink,
        )
        opened, device, message = dawn().wait_for_object(
            lambda info: lib.wgpuAdapterRequestDevice2(pointer, descriptor, info)
        )
        if not opened:
            raise DeviceUnavailable(f"{self.name} gave no device: {message}")
        self.pointer = device
        self._queue = lib.wgpuDeviceGetQueue(device)
        self.max_buffer_bytes = min(
            limits.limits.maxBufferSize, limits.limits.maxStorageBufferBindingSize
        )
        self.storage_alignment: int = limits.limits.minStorageBufferOffsetAlignment

    # --- errors

    def verify(self, what: str) -> None:
        """Raise what Dawn complained of since the last time, as DeviceError."""
        if self._errors:
            told = "\n".join(self._errors)
            self._errors.clear()
            raise DeviceError(f"{self.name}: {what} failed: {told}")

    # --- memory

    def create_block(self, size: int, usage: BufferUsage) -> Block:
        """A buffer of whole words. Raises OutOfMemory."""
        with self.lock:
            descriptor = new("WGPUBufferDescriptor", usage=int(usage), size=size)
            pointer = self.lib.wgpuDeviceCreateBuffer(self.pointer, descriptor)
            if self._errors or pointer == ffi.NULL:
                told = " ".join(self._errors)
                self._errors.clear()
                raise OutOfMemory(
                    f"{self.name} has no {size:,} bytes left to give. {told} "
                    "Free tensors, or use a smaller batch."
                )
            return Block(pointer, size)

    def destroy_block(self, block: Block) -> None:
        """Give a buffer back once the device is done with it, and nothing is being recorded."""
        self.lock.put_off(block)

    def _settle(self, block: Block) -> None:
        self._submit()
        self._destroy(block)
        # Dawn lets go of the memory only after commands that come later, and when it is asked.
        self.read(self.arguments, 0, memoryview(bytearray(4)))
        self.lib.wgpuDeviceTick(self.pointer)

    def _destroy(self, block: Block) -> None:
        pointer, block.pointer = block.pointer, ffi.NULL
        self.lib.wgpuBufferDestroy(pointer)
        self.lib.wgpuBufferRelease(pointer)

    def write(self, block: Block, start: int, data: memoryview) -> None:
        """Copy whole words to a buffer, after what was launched before."""
        with self.lock:
            self.flush()
            source = ffi.from_buffer(data)
            self.lib.wgpuQueueWriteBuffer(self._queue, block.pointer, start, source, data.nbytes)
            self.verify("a write")

    def read(self, block: Block, start: int, data: memoryview) -> None:
        """Copy whole words from a buffer once all that was asked before is done."""
        size = data.nbytes
        with self.lock:
            staging = self._staging_block(size)
            self.copy(staging, 0, block, start, size)
            self.flush()
            mapped, _, message = dawn().wait(
                lambda info: self.lib.wgpuBufferMapAsync2(staging.pointer, _MAP_READ, 0, size, info)
            )
            self.verify("a read")
            if not mapped:
                raise DeviceError(f"{self.name}: memory could not be mapped: {message}")
            source = self.lib.wgpuBufferGetConstMappedRange(staging.pointer, 0, size)
            ffi.memmove(ffi.from_buffer(data), source, size)
            self.lib.wgpuBufferUnmap(staging.pointer)
            if staging is not self._staging:
                self._destroy(staging)

    def _staging_block(self, size: int) -> Block:
        """A buffer that can be mapped, of at least `size` bytes; small ones are used again."""
        if self._staging is not None and size <= self._staging.size:
            return self._staging
        usage = BufferUsage.MAP_READ | BufferUsage.COPY_DST
        if size > _STAGING_KEPT_BYTES:
            return self.create_block(size, usage)
        block = self.create_block(max(1 << (size - 1).bit_length(), 1 << 12), usage)
        if self._staging is not None:
            self._destroy(self._staging)
        self._staging = block
        return block

    def copy(self, target: Block, at: int, source: Block, start: int, size: int) -> None:
        """Record a copy of whole words between two buffers."""
        self.lib.wgpuCommandEncoderCopyBufferToBuffer(
            self.encoder(), source.pointer, start, target.pointer, at, size
        )

    def temporary(self, size: int) -> Block:
        """A buffer that is given back once what is being recorded was submitted."""
        block = self.create_block(size, STORAGE)
        self._spent.append(block)
        return block

    # --- commands

    def encoder(self) -> Pointer:
        """The commands under way."""
        if self._encoder is None:
            descriptor = new("WGPUPlainDescriptor")
            self._encoder = self.lib.wgpuDeviceCreateCommandEncoder(self.pointer, descriptor)
        return self._encoder

    def make_room(self, size: int) -> None:
        """Submit what is recorded when arguments of this size have no more room."""
        if len(self._argued) + size + -size % _ARGUMENT_ALIGNMENT > _ARGUMENT_BYTES:
            self.flush()

    def argue(self, words: bytes) -> int:
        """Offset at which the next launch finds these arguments, for which there is room."""
        place = len(self._argued)
        self._argued += words.ljust(len(words) + -len(words) % _ARGUMENT_ALIGNMENT, b"\0")
        return place

    def recorded(self) -> None:
        """Count a launch that was recorded."""
        self._launches += 1
        if self._launches >= _MOST_RECORDED:
            self.flush()

    def flush(self) -> None:
        """Submit what is recorded. Raises DeviceError when it was not valid."""
        self._submit()
        self.verify("a launch")

    def _submit(self) -> None:
        if self._encoder is None:
            return
        lib, encoder = self.lib, self._encoder
        if self._argued:
            data, size = ffi.from_buffer(self._argued), len(self._argued)
            lib.wgpuQueueWriteBuffer(self._queue, self.arguments.pointer, 0, data, size)
            ffi.release(data)
        spent, self._encoder, self._launches = self._spent, None, 0
        self._spent, self._argued = [], bytearray()
        commands = lib.wgpuCommandEncoderFinish(encoder, new("WGPUPlainDescriptor"))
        lib.wgpuQueueSubmit(self._queue, 1, ffi.new("void *[]", [commands]))
        lib.wgpuCommandBufferRelease(commands)
        lib.wgpuCommandEncoderRelease(encoder)
        for block in spent:
            self._destroy(block)

    # --- the device

    def load(self, binary: bytes, info: ProgramInfo) -> WebGpuProgram:
        """A kernel from its WGSL. Raises CompileError with what Dawn says of it."""
        with self.lock:
            pipeline = self._pipelines.get(binary)
            if pipeline is None:
                pipeline = Pipeline(self, binary, info.name)
                if self._errors:
                    log = "\n".join(self._errors)
                    self._errors.clear()
                    raise CompileError("Dawn rejected a kernel:", log=log, source=binary.decode())
                self._pipelines[binary] = pipeline
            return WebGpuProgram(self, pipeline, info)

    def synchronize(self) -> None:
        """Wait until everything asked of this device is done."""
        with self.lock:
            self._submit()
            dawn().wait_for_status(
                lambda info: self.lib.wgpuQueueOnSubmittedWorkDone2(self._queue, info)
            )

    def close(self) -> None:
        """Wait, then release the device."""
        self.synchronize()
        with self.lock:
            self._pipelines.clear()
            self.lib.wgpuDeviceDestroy(self.pointer)
            self.lib.wgpuQueueRelease(self._queue)
            self.lib.wgpuDeviceRelease(self.pointer)


class WgslCompiler:
    """Hands WGSL on as it is: only a device can compile it, and does so when it is loaded."""

    name = "WGSL"
    key = "WGSL"

    def compile(self, source: str) -> bytes:
        """The text in UTF-8. Raises CompileError where it has no entry point."""
        if f"fn {ENTRY}(" not in source:
            raise CompileError(
                f"a kernel in WGSL has the entry point {ENTRY}:", log="there is none", source=source
            )
        return source.encode("utf-8")


def wgsl_toolchain(arch: str = "") -> Toolchain[Wgsl]:
    """WGSL for a device. Raises SettingError for a malformed `arch`."""
    parsed = Arch.parse(arch)
    renderer = Wgsl if parsed.float16 else WgslWithoutHalves
    return Toolchain("WGSL", str(parsed), renderer(parsed.limits(), parsed.rounds), WgslCompiler())
