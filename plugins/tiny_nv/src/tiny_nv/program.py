"""CUDA C to a cubin, a cubin to a kernel, and its launches.

A kernel takes one block of arguments: the addresses of its buffers by slot, then its variables, 8
bytes each; then maps of buffers whose boxes it copies, 128 bytes each, encoded by the driver.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tiny_nv import _nvrtc
from tiny_nv._lib import ffi
from tiny_nv.arch import number_of
from tiny_nv.settings import cuda_settings
from tiny_nv.spills import VERBOSE, unspilled
from tiny_nv.tensor_map import TensorMap
from tinycore.dtype import dtypes
from tinycore.errors import (
    CompileError,
    CompilerUnavailable,
    DeviceError,
    LaunchTooLarge,
    UnsupportedError,
)
from tinycore.plugin import ProgramInfo, file_identity, lock

if TYPE_CHECKING:
    from tiny_nv.device import CudaDevice

__all__ = ["Arguments", "CudaProgram", "NvrtcCompiler", "PtxCompiler", "entry_name"]

# Values of CUfunction_attribute, CUjit_option, and of the `extra` of a launch.
FIRST_WITH_SPECIFIC: Final = (12, 0)
"""The nvrtc that knows sm_90a."""
_MOST_THREADS: Final = 0
_DYNAMIC_SHARED: Final = 8
_STATIC_SHARED: Final = 1
_ERROR_LOG: Final = 5
_ERROR_LOG_BYTES: Final = 6
_LOG_BYTES: Final = 8192
_POINTER: Final = 1
_SIZE: Final = 2
_OPTIONS: Final = ("--std=c++17", "--device-as-default-execution-space")


# Values of CUtensorMapInterleave, CUtensorMapL2promotion and CUtensorMapFloatOOBfill.
_NOT_INTERLEAVED: Final = 0
_PROMOTES_LINES: Final = 2
"""Lines of 128 bytes are fetched whole."""
_ZEROS_OUTSIDE: Final = 0
MAP_BYTES: Final = 128
MAP_ALIGNMENT: Final = 64
MAP_SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by the bytes of a row."""
MAP_TYPES: Final = {
    dtypes.int8: 0,
    dtypes.uint8: 0,
    dtypes.fp8e4m3: 0,
    dtypes.fp8e5m2: 0,
    dtypes.uint16: 1,
    dtypes.uint32: 2,
    dtypes.int32: 3,
    dtypes.float16: 6,
    dtypes.float32: 7,
    dtypes.bfloat16: 9,
}
"""CUtensorMapDataType by what an element is; it matters for nothing but its size."""
_ROUNDED: Final = 11
"""CUtensorMapDataType of float32 that is rounded to TF32 as it is copied: to the nearest, ties to
even, infinities and NaN as they are (so Triton's tests of `round_f32_to_tf32`)."""


def entry_name(name: str) -> str:
    """Name of a kernel in CUDA C: no keyword, nor one of its functions."""
    return f"{name}_"


class NvrtcCompiler:
    """nvrtc for one architecture.

    For a card that is newer than the compiler it makes PTX, which the card's driver assembles; with
    `assembles` False it does so for every card. Raises CompilerUnavailable where nvrtc is missing.
    """

    name = "NVRTC"

    def __init__(self, arch: str, assembles: bool = True) -> None:
        self.target, self.form = target_of(number_of(arch), _nvrtc.supported(), assembles)
        if arch == f"sm_{number_of(arch)}a":
            if _nvrtc.version() < FIRST_WITH_SPECIFIC or number_of(arch) not in _nvrtc.supported():
                raise CompilerUnavailable(
                    f"nvrtc at {_nvrtc.path()} does not compile for {arch}. Install that of CUDA "
                    f"12 or later, or set the architecture, as in DEV=CUDA::sm_{number_of(arch)}"
                )
            self.target += "a"
        more = cuda_settings.NVRTC_OPTIONS.split()
        told = (f"--ptxas-options={VERBOSE}",) if self.form == "CUBIN" else ()
        self.options = (f"--gpu-architecture={self.target}", *_OPTIONS, *told, *more)
        version = ".".join(map(str, _nvrtc.version()))
        build = file_identity(_nvrtc.path())
        self.key = f"NVRTC {version} {build} {self.form} {' '.join(self.options)}"

    def compile(self, source: str) -> bytes:
        """The cubin, or the PTX. Raises CompileError with the log."""
        return unspilled(source, self.built)[0]

    def built(self, source: str) -> tuple[bytes, str]:
        """The cubin or the PTX of just this source, and the log. Raises CompileError with it."""
        return _nvrtc.built(source, self.options, self.form)

    def assembly(self, source: str) -> str:
        """The PTX. Raises CompileError with the log."""
        return _nvrtc.compiled(source, self.options, "PTX").rstrip(b"\0").decode()


class PtxCompiler:
    """The assembler of PTX: a toolkit's ptxas, or the driver of the card, which takes text.

    With `assembles` False the driver assembles in any case.
    """

    name = "PTX"

    def __init__(self, arch: str, assembles: bool = True) -> None:
        self._arch = arch
        self._assembler = _nvrtc.tool("ptxas") if assembles else None
        by = ""
        if self._assembler:
            build = file_identity(self._assembler)
            by = f" {VERBOSE} {_version_of(self._assembler)} {build}"
        self.key = f"PTX {arch}{by}"

    def compile(self, source: str) -> bytes:
        """The cubin, or the text, ended as C's are. Raises CompileError with the log."""
        if not source.startswith(".version"):
            raise CompileError("PTX begins with its .version", log="", source=source)
        if self._assembler is None:
            return source.encode() + b"\0"
        return unspilled(source, self.built)[0]

    def built(self, source: str) -> tuple[bytes, str]:
        """The cubin of just this text, and what ptxas says. Raises CompileError with the log."""
        with tempfile.TemporaryDirectory() as folder:
            text, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
            text.write_text(source)
            options = (VERBOSE, f"-arch={self._arch}", "-o", str(cubin))
            command = [str(self._assembler), *options, str(text)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                log = done.stderr.replace(f"{folder}/", "")
                what = f"{self._assembler} cannot assemble a kernel"
                raise CompileError(what, log=log, source=source)
            return cubin.read_bytes(), done.stderr

    def assembly(self, source: str) -> str:
        """The text."""
        return source


@cache
def _version_of(assembler: str) -> str:
    """The version of ptxas."""
    done = subprocess.run([assembler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().rpartition("\n")[2]


def target_of(number: int, supported: Sequence[int], assembles: bool) -> tuple[str, str]:
    """Target of nvrtc: an architecture, and CUBIN or PTX.

    Raises CompilerUnavailable where it knows neither the architecture nor an older one.
    """
    if number in supported and assembles:
        return f"sm_{number}", "CUBIN"
    older = [known for known in supported if known <= number]
    if not older:
        known = ", ".join(f"sm_{number}" for number in supported)
        raise CompilerUnavailable(
            f"nvrtc at {_nvrtc.path()} does not compile for sm_{number}, only for {known}. Install "
            f"an older one, of CUDA 12"
        )
    return f"compute_{max(older)}", "PTX"


class BoundMap:
    """The map of a buffer as the driver encodes it, anew for each address."""

    def __init__(self, device: CudaDevice, found: TensorMap, kernel: str) -> None:
        self.map = found
        self._device = device
        self._what = f"the map of buffer {found.slot} of kernel {kernel}"
        self._room = ffi.new("char[]", MAP_BYTES + MAP_ALIGNMENT)
        start = -int(ffi.cast("uintptr_t", self._room)) % MAP_ALIGNMENT
        self._target = ffi.cast("CUtensorMap *", self._room + start)
        self._encoded = ffi.buffer(self._target, MAP_BYTES)
        self._sizes = ffi.new("uint64_t[]", found.sizes)
        self._strides = ffi.new("uint64_t[]", found.strides or (0,))
        self._box = ffi.new("uint32_t[]", found.box)
        self._steps = ffi.new("uint32_t[]", [1] * len(found.box))
        self._address = -1

    def at(self, address: int) -> Any:
        """The 128 bytes of the map of a tensor at an address. Raises DeviceError."""
        if address != self._address:
            found = self.map
            self._device.call(
                "cuTensorMapEncodeTiled",
                self._target,
                _ROUNDED if found.rounds else MAP_TYPES[found.dtype],
                len(found.sizes),
                ffi.cast("void *", address),
                *(self._sizes, self._strides, self._box, self._steps),
                *(_NOT_INTERLEAVED, MAP_SWIZZLES[found.swizzle], _PROMOTES_LINES, _ZEROS_OUTSIDE),
                what=self._what,
            )
            self._address = address
        return self._encoded


class Arguments:
    """The arguments of one launch, in a block that CUDA copies when it is asked for.

    Maps are aligned in a card's constants, not in the block of parameters, whose offsets are the
    assembler's: with maps each argument is passed by its address (`parameters`), and by a block
    (`extra`) without.
    """

    def __init__(self, device: CudaDevice, info: ProgramInfo) -> None:
        self.layout = struct.Struct(f"{info.buffers}Q{len(info.values)}q")
        self._maps_at = -(-self.layout.size // MAP_ALIGNMENT) * MAP_ALIGNMENT
        maps = [BoundMap(device, TensorMap.from_json(text), info.name) for text in info.extras]
        self._maps: dict[int, list[tuple[BoundMap, int]]] = {}
        for number, bound in enumerate(maps):
            places = self._maps.setdefault(bound.map.slot, [])
            places.append((bound, self._maps_at + number * MAP_BYTES))
        size = self._maps_at + len(maps) * MAP_BYTES if maps else self.layout.size
        self.block = ffi.new("char[]", max(size, 8))
        self.view = ffi.buffer(self.block)
        self._words = memoryview(self.view).cast("q")
        self._size = ffi.new("size_t *", size)
        self._held: tuple[int, ...] = ()
        """Addresses and values in the block; empty where that is not known."""
        self.parameters, self.extra = ffi.NULL, ffi.NULL
        if maps:
            count = info.buffers + len(info.values)
            offsets = [8 * number for number in range(count)]
            offsets += [self._maps_at + number * MAP_BYTES for number in range(len(maps))]
            self.parameters = ffi.new("void *[]", [self.block + offset for offset in offsets])
        else:
            words = (_POINTER, self.block, _SIZE, self._size, ffi.NULL)
            self.extra = ffi.new("void *[]", [ffi.cast("void *", word) for word in words])

    def fill(self, buffers: Sequence[int], values: Sequence[int]) -> None:
        """Set all arguments. Raises DeviceError for memory that is no tensor of a map."""
        numbers = (*buffers, *values)
        if numbers == self._held:
            return
        self._held = ()
        self.layout.pack_into(self.view, 0, *numbers)
        for slot in self._maps:
            self._bind(slot, buffers[slot])
        self._held = numbers

    def _bind(self, slot: int, address: int) -> None:
        for bound, place in self._maps.get(slot, ()):
            self.view[place : place + MAP_BYTES] = bound.at(address)

    def set_buffer(self, slot: int, address: int) -> None:
        """Set the address of one buffer. Raises DeviceError as `fill` does."""
        self.set_value(slot, address)
        self._bind(slot, address)

    def set_value(self, position: int, number: int) -> None:
        """Set one number, by its position among all arguments."""
        self._held = ()
        self._words[position] = number


def loaded(device: CudaDevice, binary: bytes, what: str) -> Any:
    """The module of a cubin or of PTX. Raises CompileError with what the assembler says."""
    log = ffi.new("char[]", _LOG_BYTES)
    options = ffi.new("int[]", [_ERROR_LOG, _ERROR_LOG_BYTES])
    values = [ffi.cast("void *", log), ffi.cast("void *", _LOG_BYTES)]
    place = (ffi.from_buffer(binary), len(values), options, ffi.new("void *[]", values))
    try:
        return device.got("CUmodule *", "cuModuleLoadDataEx", *place, what=what)
    except DeviceError as error:
        told = bytes(ffi.string(log)).decode("utf-8", "replace")
        if not told:
            raise
        source = "" if binary.startswith(b"\x7fELF") else binary.rstrip(b"\0").decode()
        raise CompileError(str(error), log=told, source=source) from error


class CudaProgram:
    """A kernel, launched by calling it."""

    def __init__(self, device: CudaDevice, binary: bytes, info: ProgramInfo) -> None:
        self.info = info
        self.device = device
        what = f"kernel {info.name}"
        self.module = loaded(device, binary, what)
        device.keep_module(self, self.module)
        name = entry_name(info.name).encode()
        self.function: Any = device.got(
            "CUfunction *", "cuModuleGetFunction", self.module, name, what=what
        )
        self.shared_bytes = self._dynamic_bytes()
        self._verify_threads()
        self._arguments = Arguments(device, info)
        given = (self._arguments.parameters, self._arguments.extra)
        ending = (*info.block, self.shared_bytes, device.stream, *given)
        self._launch = None if info.grid_extents else (self.function, *info.grid, *ending)
        """Arguments of the driver for a launch, unless values say how many groups there are."""
        self._ending = ending
        self._lock = lock()

    def _dynamic_bytes(self) -> int:
        """Shared memory that a launch has to ask for: what the kernel has not by itself."""
        if self._attribute(_STATIC_SHARED) or not (size := self.info.shared_bytes):
            return 0
        what = f"{size:,} bytes of shared memory of kernel {self.info.name}"
        if size > self.device.info.shared_bytes:
            raise UnsupportedError(
                f"{what} do not fit: {self.device.info.name} has {self.device.info.shared_bytes:,}"
            )
        self.device.call("cuFuncSetAttribute", self.function, _DYNAMIC_SHARED, size, what=what)
        return size

    def _attribute(self, attribute: int) -> int:
        return int(self.device.got("int *", "cuFuncGetAttribute", attribute, self.function))

    def _verify_threads(self) -> None:
        x, y, z = self.info.block
        most = self._attribute(_MOST_THREADS)
        if x * y * z > most:
            raise LaunchTooLarge(
                f"kernel {self.info.name} has blocks of {x * y * z} threads; as it was compiled, "
                f"{most} fit on {self.device.info.name}. NOOPT=1 makes it smaller.",
                most=most,
            )

    def __call__(
        self, buffers: Sequence[int], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds the card took."""
        device = self.device
        with self._lock:  # the block of arguments belongs to the launch until CUDA has copied it
            device.enter()
            self._arguments.fill(buffers, values)
            launch = self._launch or (self.function, *self.info.groups(values), *self._ending)
            if not wait:
                device.launch(self.info.name, launch)
                return None
            with device.timed() as seconds:
                device.launch(self.info.name, launch)
        return seconds()
