"""MSL to a pipeline, and its launches.

The system compiles a source when a program is loaded, and remembers what it compiled: what is kept
on disk by the core is the source.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tiny_metal._lib import NIL, Object, Pool, ffi, text_of
from tiny_metal.arch import Arch
from tiny_metal.memory import MetalMemory
from tiny_metal.render import entry_name
from tinycore.errors import CompileError, DeviceError, LaunchTooLarge
from tinycore.plugin import ProgramInfo

if TYPE_CHECKING:
    from tiny_metal.device import MetalDevice

__all__ = ["MetalProgram", "MslCompiler", "library_of"]

_SAFE_MATH: Final = 0
"""MTLMathModeSafe: NaN and infinity are, and no sum is taken apart."""


class MslCompiler:
    """Leaves compiling to the system, which does it for the GPU at hand."""

    name = "MSL"

    def __init__(self, arch: Arch) -> None:
        self.key = f"MSL {arch}"

    def compile(self, source: str) -> bytes:
        """The source, as bytes. Raises CompileError for what is no kernel."""
        if "kernel void " not in source:
            raise CompileError("the source has no kernel", log="", source=source)
        return source.encode()

    def assembly(self, source: str) -> str:
        """The source: machine code is not shown by the system."""
        return source


def library_of(device: MetalDevice, source: str, language: tuple[int, int]) -> Object:
    """The MTLLibrary of a source, to be released. Raises CompileError with the compiler's log."""
    metal = device.metal
    with Pool(metal):
        options = metal.new("MTLCompileOptions")
        if metal.responds(options, "setMathMode:"):
            device.send(options, "setMathMode:", _SAFE_MATH)
        else:
            device.send(options, "setFastMathEnabled:", 0)
        major, minor = language
        device.send(options, "setLanguageVersion:", major << 16 | minor)
        error = ffi.new("id *")
        place = (metal.string(source), options, error)
        library = device.send(device.handle, "newLibraryWithSource:options:error:", *place)
        device.send(options, "release")
        if library == NIL:  # warnings come as an error beside the library
            raise CompileError(
                f"Metal cannot compile a kernel for {device.info.name}:",
                log=told(device, error[0]),
                source=source,
            )
        return library


def told(device: MetalDevice, error: Object) -> str:
    """Description of an NSError."""
    if error == NIL:
        return "no reason was given"
    text = text_of(device.metal, device.send(error, "localizedDescription"))
    domain = text_of(device.metal, device.send(error, "domain"))
    return f"{text} ({domain} {device.send(error, 'code')})"


class MetalProgram:
    """A kernel, launched by calling it."""

    def __init__(self, device: MetalDevice, binary: bytes, info: ProgramInfo) -> None:
        self.info = info
        self.device = device
        self.is_indirect = False
        """True if the pipeline supports indirect command buffers."""
        self.pipeline = self._pipeline(binary.decode())
        device.keep(self, self.pipeline)
        self._verify_threads()
        self._fixed_groups = ffi.new("MTLSize *", info.grid)[0]
        self.threads = ffi.new("MTLSize *", info.block)[0]
        self.layout = struct.Struct(f"{len(info.values)}q")

    def _pipeline(self, source: str) -> Object:
        """The MTLComputePipelineState. Raises CompileError and DeviceError."""
        device, name = self.device, entry_name(self.info.name)
        metal = device.metal
        library = library_of(device, source, device.language)
        with Pool(metal):
            function = device.send(library, "newFunctionWithName:", metal.string(name))
            device.send(library, "release")
            if function == NIL:
                raise DeviceError(f"the library of kernel {self.info.name} has no function {name}")
            described = metal.new("MTLComputePipelineDescriptor")
            device.send(described, "setComputeFunction:", function)
            x, y, z = self.info.block
            device.send(described, "setMaxTotalThreadsPerThreadgroup:", x * y * z)
            self.is_indirect = device.holds_graphs
            error = ffi.new("id *")
            selector = "newComputePipelineStateWithDescriptor:options:reflection:error:"
            asked = (selector, described, 0, NIL, error)
            pipeline = NIL
            if self.is_indirect:
                device.send(described, "setSupportIndirectCommandBuffers:", 1)
                pipeline = device.send(device.handle, *asked)
            if pipeline == NIL:  # some kernels are refused only as indirect ones
                self.is_indirect = False
                device.send(described, "setSupportIndirectCommandBuffers:", 0)
                pipeline = device.send(device.handle, *asked)
            device.send(described, "release")
            device.send(function, "release")
            if pipeline == NIL:
                raise CompileError(
                    f"{device.info.name} takes no kernel {self.info.name}:",
                    log=told(device, error[0]),
                    source=source,
                )
            return pipeline

    def _verify_threads(self) -> None:
        x, y, z = self.info.block
        most = int(self.device.send(self.pipeline, "maxTotalThreadsPerThreadgroup"))
        if x * y * z > most:
            raise LaunchTooLarge(
                f"kernel {self.info.name} has groups of {x * y * z} threads; as Metal compiled it, "
                f"{most} fit on {self.device.info.name}. NOOPT=1 makes it smaller.",
                most=most,
            )

    def encode(
        self, encoder: Object, buffers: Sequence[MetalMemory], values: Sequence[int]
    ) -> None:
        """Put a launch into an encoder."""
        send = self.device.send
        send(encoder, "setComputePipelineState:", self.pipeline)
        for slot, memory in enumerate(buffers):
            send(encoder, "setBuffer:offset:atIndex:", memory.buffer, memory.start, slot)
        if values:
            packed = self.layout.pack(*values)
            send(encoder, "setBytes:length:atIndex:", packed, len(packed), len(buffers))
        selector = "dispatchThreadgroups:threadsPerThreadgroup:"
        send(encoder, selector, self.groups(values), self.threads)

    def groups(self, values: Sequence[int]) -> Any:
        """The groups of a launch with these values, as an MTLSize."""
        if not self.info.grid_extents:
            return self._fixed_groups
        return ffi.new("MTLSize *", self.info.groups(values))[0]

    def __call__(
        self, buffers: Sequence[MetalMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds the GPU took."""
        device = self.device

        def encode(commands: Any) -> None:
            with device.encoder(commands) as encoder:
                self.encode(encoder, buffers, values)

        return device.submit(encode, f"kernel {self.info.name}", wait)
