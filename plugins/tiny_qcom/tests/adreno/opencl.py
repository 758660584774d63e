"""Qualcomm's OpenCL compiler and its code without either: the source itself, run by PoCL.

The compiler writes the container that Qualcomm's writes; in the place of machine code is the source
and where each argument lies in the constant file. The executor finds it where a launch says that
code is, takes the arguments from the constant file that was loaded, and lets PoCL run the kernel on
the memory of the stand-in, which is memory of this process.
"""

from __future__ import annotations

import json
import re
import struct
from functools import cache
from typing import Any, Final

from cffi import FFI
from emulation.faults import Fault
from emulation.memory import GlobalMemory

from adreno.state import Launch, bits
from tinycore.errors import CompileError

__all__ = ["Compiler", "execute", "missing"]

ffi: Final = FFI()
ffi.cdef(
    """
typedef void *handle;
int clGetPlatformIDs(unsigned, handle *, unsigned *);
int clGetPlatformInfo(handle, unsigned, size_t, void *, size_t *);
int clGetDeviceIDs(handle, uint64_t, unsigned, handle *, unsigned *);
handle clCreateContext(const intptr_t *, unsigned, handle *, void *, void *, int *);
handle clCreateCommandQueue(handle, handle, uint64_t, int *);
handle clCreateProgramWithSource(handle, unsigned, const char **, const size_t *, int *);
int clBuildProgram(handle, unsigned, handle *, const char *, void *, void *);
int clGetProgramBuildInfo(handle, handle, unsigned, size_t, void *, size_t *);
handle clCreateKernel(handle, const char *, int *);
int clSetKernelArgSVMPointer(handle, unsigned, const void *);
int clSetKernelArg(handle, unsigned, size_t, const void *);
int clEnqueueNDRangeKernel(handle, handle, unsigned, const size_t *, const size_t *,
  const size_t *, unsigned, void *, void *);
int clFinish(handle);
typedef struct { unsigned order, type; } format;
typedef struct {
  unsigned type; size_t width, height, depth, array, row_pitch, slice_pitch;
  unsigned levels, samples; handle buffer;
} description;
handle clCreateImage(handle, uint64_t, const format *, const description *, void *, int *);
int clEnqueueReadImage(handle, handle, unsigned, const size_t *, const size_t *, size_t, size_t,
  void *, unsigned, void *, void *);
int clReleaseMemObject(handle);
"""
)
MAGIC: Final = b"OpenCL C for the stand-in\n"
NAME_INFO: Final = 0x0902
BUILD_LOG: Final = 0x1183
PROCESSOR: Final = 2
RGBA: Final = 0x10B5
CHANNELS: Final = {0x82: (0x10DE, 16), 0x62: (0x10DD, 8)}
"""Formats of descriptors: the type of OpenCL, and bytes of a pixel."""
PLANE: Final = 0x10F1
USE_HOST_MEMORY: Final = 1 << 3
FIRST_ARGUMENT: Final = 0x140
"""Start of the arguments in the constant file: not its first bytes, as in those that were seen."""
SECTIONS: Final = 12
"""Entries of 20 bytes in the table of a container, the first at 48."""
DESCRIPTOR: Final = 0x400
REGISTERS: Final = 0x300


class Pocl:
    """PoCL's device of the processor."""

    def __init__(self) -> None:
        self.lib: Any = ffi.dlopen("libOpenCL.so.1")
        platforms, count = ffi.new("handle[8]"), ffi.new("unsigned *")
        self.lib.clGetPlatformIDs(8, platforms, count)
        for platform in platforms[0 : count[0]]:
            text = ffi.new("char[256]")
            self.lib.clGetPlatformInfo(platform, NAME_INFO, 256, text, ffi.NULL)
            if b"Portable Computing Language" in ffi.string(text):
                break
        else:
            raise OSError("no platform of PoCL")
        devices, status = ffi.new("handle[1]"), ffi.new("int *")
        if self.lib.clGetDeviceIDs(platform, PROCESSOR, 1, devices, ffi.NULL):
            raise OSError("PoCL has no device of the processor")
        self.device = devices
        self.context = self.lib.clCreateContext(ffi.NULL, 1, devices, ffi.NULL, ffi.NULL, status)
        self.queue = self.lib.clCreateCommandQueue(self.context, devices[0], 0, status)
        self.kernels: dict[tuple[str, str], Any] = {}

    def build(self, source: str) -> tuple[Any, str]:
        """A program, and what the compiler said where it is none."""
        text, status = ffi.new("char[]", source.encode()), ffi.new("int *")
        texts = ffi.new("const char *[]", [text])
        made = self.lib.clCreateProgramWithSource(self.context, 1, texts, ffi.NULL, status)
        if not self.lib.clBuildProgram(made, 1, self.device, b"-cl-std=CL1.2", ffi.NULL, ffi.NULL):
            return made, ""
        log = ffi.new("char[65536]")
        place = (made, self.device[0], BUILD_LOG, 65536, log, ffi.NULL)
        self.lib.clGetProgramBuildInfo(*place)
        return None, ffi.string(log).decode(errors="replace") or "PoCL said nothing"

    def kernel(self, source: str, name: str) -> Any:
        """A kernel, built once."""
        if (source, name) not in self.kernels:
            program, log = self.build(source)
            if program is None:
                raise Fault(f"PoCL does not take {name} any more: {log}")
            status = ffi.new("int *")
            made = self.lib.clCreateKernel(program, name.encode(), status)
            if status[0]:
                raise Fault(f"{name} is no kernel of its source: {status[0]}")
            self.kernels[source, name] = made
        return self.kernels[source, name]


@cache
def pocl() -> Pocl:
    return Pocl()


def missing() -> str:
    """Why nothing can be run; "" when it can."""
    try:
        pocl()
    except OSError as error:
        return f"PoCL is not here ({error}): apt-get install pocl-opencl-icd ocl-icd-libopencl1"
    return ""


# --- the compiler


class Compiler:
    """In place of `tiny_qcom.llvm_qcom.Library`."""

    def compile(self, source: str, chip_id: int) -> bytes:
        """The container of a source with one kernel. Raises CompileError."""
        program, log = pocl().build(source)
        if program is None:
            why = "the stand-in of Qualcomm's compiler rejected a kernel:"
            raise CompileError(why, log=log, source=source)
        head = re.search(r"void (\w+)\((.*?)\)\s*\{", source, re.DOTALL)
        assert head is not None, source
        name, parameters = head[1], [p.strip() for p in head[2].split(",")]
        shared = sum(
            int(size) * SIZES[kind.rstrip("0123456789")]
            for kind, size in re.findall(r"local (\w+) \w+\[(\d+)\];", source)
        )
        arguments = [(kind_of(p), FIRST_ARGUMENT + 8 * n) for n, p in enumerate(parameters) if p]
        return container(name, source, arguments, shared)


SIZES: Final = {
    "bool": 1,
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "half": 2,
    "int": 4,
    "uint": 4,
    "float": 4,
    "long": 8,
    "ulong": 8,
}


def kind_of(parameter: str) -> int:
    """0 for a buffer or a number, 1 for a texture, 2 for an image that is written."""
    if "image2d_t" not in parameter:
        return 0
    return 2 if "write_only" in parameter else 1


def container(name: str, source: str, arguments: list[tuple[int, int]], shared: int) -> bytes:
    """A container of Qualcomm's compiler, as far as it is known, around a source."""
    name += "_" * (len(name) % 4 == 0)
    facts = {"source": source, "name": name.rstrip("_") + "_", "arguments": arguments}
    machine = MAGIC + json.dumps(facts).encode() + b"\0"
    machine += bytes(-len(machine) % 128)
    data = bytearray(0x800)

    def word(offset: int, value: int) -> None:
        end = max(len(data), offset + 4)
        data.extend(bytes(end - len(data)))
        struct.pack_into("<I", data, offset, value)

    word(24, SECTIONS)
    for section in range(SECTIONS):
        word(48 + 20 * section, section)
    samplers = 1 if any(kind == 1 for kind, _ in arguments) else 0
    word(0x34, REGISTERS)
    word(REGISTERS + 0x14, 12)
    word(REGISTERS + 0x18, 3)
    word(0x110, DESCRIPTOR)
    word(DESCRIPTOR + 0xC4, 0)
    word(DESCRIPTOR + 0xD8, shared)
    word(DESCRIPTOR + 0xDC, samplers)
    word(DESCRIPTOR + 0x108, 4)
    start = DESCRIPTOR + 0x158
    data[start : start + len(name)] = name.encode()
    at = -(-(start + len(name)) // 4) * 4 + 8 * samplers
    for kind, place in arguments:
        word(at, 40)
        word(at + 12, place // 4)
        word(at + 28, kind)
        at += 40
    word(at, 0)
    constants = -(-len(data) // 8) * 8
    data.extend(bytes(constants - len(data)))
    word(0xAC, constants)
    word(0xB0, 80)
    for number, value in enumerate((0x3F800000, 0xC0DE)):  # 32 bits, then 16
        word(constants, value)
        word(constants + 16, 16 + number)
        word(constants + 24, 1 - number)
        data.extend(bytes(40 - (len(data) - constants)))
        constants += 40
    word(0xC0, len(data))
    word(0x100, len(machine))
    return bytes(data) + machine


# --- the executor


def execute(launch: Launch, memory: GlobalMemory) -> None:
    """Run a launch of what `Compiler` made."""
    if not launch.is_blob or not launch.machine.startswith(MAGIC):
        raise Fault("the code at the launch's address is not what the compiler made")
    head = launch.machine[len(MAGIC) :].partition(b"\0")[0]
    facts = json.loads(head)
    if int(launch.constants[16]) != 0x3F800000 or int(launch.constants[8]) >> 16 != 0xC0DE:
        raise Fault("constants of the compiler are not where it wants them")
    library = pocl()
    kernel = library.kernel(facts["source"], facts["name"])
    lib, images = library.lib, []
    textures, written = list(launch.textures), list(launch.images)
    if textures and not launch.samplers:
        raise Fault("textures are read without a sampler")
    try:
        for number, (kind, place) in enumerate(facts["arguments"]):
            low, high = (int(word) for word in launch.constants[place // 4 : place // 4 + 2])
            if kind:
                descriptor = (textures if kind == 1 else written).pop(0)
                images.append(image_of(descriptor, memory, library))
                status = lib.clSetKernelArg(kernel, number, 8, ffi.new("handle *", images[-1]))
            elif is_pointer(facts["source"], number):
                address = low | high << 32
                if memory.region_at(address) is None:
                    raise Fault(f"argument {number} is {address:#x}, where no memory is")
                pointer = ffi.cast("void *", host_address(address, memory))
                status = lib.clSetKernelArgSVMPointer(kernel, number, pointer)
            else:
                value = ffi.new("uint64_t *", low | high << 32)
                status = lib.clSetKernelArg(kernel, number, 8, value)
            if status:
                raise Fault(f"PoCL does not take argument {number}: {status}")
        sizes = [n * t for n, t in zip(launch.groups, launch.threads, strict=True)]
        place = (ffi.new("size_t[3]", sizes), ffi.new("size_t[3]", launch.threads))
        queue = (library.queue, kernel, 3, ffi.NULL)
        status = lib.clEnqueueNDRangeKernel(*queue, *place, 0, ffi.NULL, ffi.NULL)
        status = status or lib.clFinish(library.queue)
        if status:
            raise Fault(f"PoCL does not launch {facts['name']}: {status}")
    finally:
        for image in images:
            lib.clReleaseMemObject(image)


def is_pointer(source: str, number: int) -> bool:
    head = re.search(r"void (\w+)\((.*?)\)\s*\{", source, re.DOTALL)
    assert head is not None
    return "*" in head[2].split(",")[number]


def host_address(address: int, memory: GlobalMemory) -> int:
    """Address in this process of what the device has at an address."""
    region = memory.region_at(address)
    assert region is not None
    return int(region.data.ctypes.data) + address - region.address


def image_of(words: Any, memory: GlobalMemory, library: Pocl) -> Any:
    """An image of OpenCL over the pixels that a descriptor names."""
    kind, pixel_bytes = CHANNELS[bits(words[0], 22, 8)]
    width, height = bits(words[1], 0, 15), bits(words[1], 15, 15)
    pitch = bits(words[2], 7, 22)
    address = int(words[4]) | bits(words[5], 0, 17) << 32
    if pitch < width * pixel_bytes or bits(words[2], 29, 3) != 1 or address % 64:
        raise Fault(f"the descriptor of an image of {height} rows of {width} is wrong: {words}")
    region = memory.region_at(address)
    if region is None or address + pitch * height > region.address + region.data.nbytes:
        raise Fault(f"an image of {height} rows at {address:#x} is outside of memory")
    pixels = ffi.new("format *", {"order": RGBA, "type": kind})
    shape = {"type": PLANE, "width": width, "height": height, "row_pitch": pitch}
    host = ffi.cast("void *", host_address(address, memory))
    status = ffi.new("int *")
    place = (library.context, USE_HOST_MEMORY | 1, pixels, ffi.new("description *", shape))
    made = library.lib.clCreateImage(*place, host, status)
    if status[0]:
        raise Fault(f"PoCL makes no image of {height} rows of {width}: {status[0]}")
    return made
