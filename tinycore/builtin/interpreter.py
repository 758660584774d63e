"""The PYTHON device: linear programs run on NumPy, all threads of the grid at once.

A value is an array with an axis for each index of the launch, of size 1 where the value does not
depend on it; a vector has its lanes on the last axis. Every node is done for all threads before the
next one, so barriers have nothing to do. A loop without loops inside that only folds values into
registers is an axis too, and the values are folded in its order. Others are Python loops; where
their ends differ between threads, the threads that are through wait under a mask. Large grids go in
pieces of whole workgroups. Every access to memory is checked: this interpreter is what other
devices are compared with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import numpy

from tinycore.builtin.arithmetic import OPERATIONS, Array
from tinycore.builtin.frame import Frame, Memory
from tinycore.builtin.image import Image, of_slot
from tinycore.builtin.plan import Plan
from tinycore.dtype import ImageDType, dtypes, image, to_numpy_dtype
from tinycore.errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    FileFormatError,
    OutOfMemory,
    SettingError,
)
from tinycore.plugin import ALIGNMENT_BYTES, DeviceRuntime, ProgramInfo, Toolchain
from tinycore.render.base import Limits, LinearKernel, Renderer
from tinycore.uop.op import Op
from tinycore.uop.parse import program_from_text
from tinycore.uop.text import to_text

__all__ = ["PythonAllocator", "PythonCompiler", "PythonProgram", "PythonRenderer", "PythonRuntime"]

GRID: Final = (1 << 31) - 1
BLOCK_THREADS: Final = 1024
VECTOR_BYTES: Final = 16
SHARED_BYTES: Final = 64 << 10
LONGEST_ROW: Final = 16_384
VALUES_AT_ONCE: Final = 1 << 16
"""Values of a node computed at once, over threads and steps of loops: enough to keep NumPy busy,
few enough that they stay in the cache.
"""


class PythonRenderer(Renderer):
    """Writes a linear program in the text form of graphs, which reads back to the same nodes."""

    name = "PYTHON"

    def render(self, kernel: LinearKernel) -> str:
        """The program as text, one node per line."""
        return to_text(kernel.uops)


class PythonCompiler:
    """Checks that the text can be read, and returns it as the binary."""

    name = "PYTHON"
    key = "PYTHON 1"

    def compile(self, source: str) -> bytes:
        """The text as bytes. Raises CompileError when it is no program."""
        try:
            program_from_text(source)
        except FileFormatError as error:
            raise CompileError(
                "the interpreter cannot read a program", log=str(error), source=source
            ) from error
        return source.encode()


def toolchain(arch: str) -> Toolchain[Renderer]:
    """The one toolchain of PYTHON. Its ARCH may select the plans of a graphics card: `groups=64`.

    Such plans have groups of so many threads, which share sums and operands, and vectors. They take
    longer here; what they compute is checked like all else. Raises SettingError.
    """
    threads = threads_in_groups(arch)
    limits = Limits(
        threads=threads,
        vector_bytes=VECTOR_BYTES if threads > 1 else 0,
        grid=(GRID, GRID, GRID),
        grid_varies=True,
        block=(BLOCK_THREADS, BLOCK_THREADS, BLOCK_THREADS),
        block_threads=BLOCK_THREADS,
        block_wanted=threads,
        shared_bytes=SHARED_BYTES,
        image=(LONGEST_ROW, LONGEST_ROW),
    )
    return Toolchain("PYTHON", arch, PythonRenderer(limits), PythonCompiler())


def threads_in_groups(arch: str) -> int:
    """The threads of a group that an ARCH selects; 1 by default."""
    if not arch:
        return 1
    name, _, number = arch.partition("=")
    if name != "groups" or not number.isdecimal() or not 1 < int(number) <= BLOCK_THREADS:
        raise SettingError(
            f"{arch!r} is no ARCH of PYTHON; it has one for the plans of a graphics card, "
            f"`groups=64`, with 2 to {BLOCK_THREADS} threads in a group."
        )
    return int(number)


class PythonAllocator:
    """Memory of this process, as NumPy arrays of bytes."""

    def alloc(self, size: int) -> Array:
        """`size` bytes, not cleared."""
        try:
            block = numpy.empty(size + ALIGNMENT_BYTES, numpy.uint8)
            return block[-block.ctypes.data % ALIGNMENT_BYTES :][:size]
        except (MemoryError, ValueError) as error:
            raise OutOfMemory(f"NumPy cannot allocate {size} bytes") from error

    def image(self, height: int, width: int, channel_bytes: int) -> Image:
        """Pixels, not cleared, in rows of whole multiples of 64."""
        base = dtypes.float32 if channel_bytes == dtypes.float32.itemsize else dtypes.float16
        memory = self.alloc(image(base, (height, width)).memory_bytes())
        return Image(memory, height, width, channel_bytes)

    def free(self, handle: Array | Image) -> None:
        """Nothing to do: the memory goes with its last reference."""

    def write(self, dst: Array | Image, src: memoryview) -> None:
        """Copy host bytes to the start of `dst`."""
        if isinstance(dst, Image):
            dst.fill(src)
        else:
            dst[: src.nbytes] = numpy.frombuffer(src, numpy.uint8)

    def read(self, dst: memoryview, src: Array | Image) -> None:
        """Fill host bytes from the start of `src`."""
        dst[:] = (src.content() if isinstance(src, Image) else src[: dst.nbytes]).data

    def offset(self, handle: Array, size: int, start: int) -> Array:
        """A part of the memory."""
        return handle[start : start + size]

    def map(self, handle: Array, size: int) -> memoryview:
        """The memory itself."""
        return handle[:size].data

    def wrap(self, pointer: int, size: int) -> Array:
        """Memory at an address of this process."""
        return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))

    def wrap_image(self, pointer: int, height: int, width: int, channel_bytes: int) -> Image:
        """Pixels at an address of this process, in rows of whole multiples of 64."""
        base = dtypes.float32 if channel_bytes == dtypes.float32.itemsize else dtypes.float16
        memory = self.wrap(pointer, image(base, (height, width)).memory_bytes())
        return Image(memory, height, width, channel_bytes)

    def copy_from(self, dst: Array, src: Array, size: int, source: DeviceRuntime) -> None:
        """Copy from the memory of another device, which is the same memory."""
        dst[:size] = src[:size]


class PythonProgram:
    """A program, ready to be interpreted."""

    def __init__(self, binary: bytes, info: ProgramInfo) -> None:
        self.info = info
        self.plan = Plan(info.name, program_from_text(binary.decode()))

    def __call__(
        self, buffers: Sequence[Array], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Interpret the program to its end. Returns the seconds it took when `wait`."""
        start = perf_counter()
        frame = self._frame(buffers, values)
        with numpy.errstate(all="ignore"):
            self.plan.run(frame)
        return perf_counter() - start if wait else None

    def _frame(self, buffers: Sequence[Array], values: Sequence[int]) -> Frame:
        plan, name = self.plan, self.info.name
        if len(values) != len(plan.variables):
            raise ArgumentError(
                f"kernel {name} takes {len(plan.variables)} values, not {len(values)}"
            )
        varies = bool(self.info.grid_extents)
        groups = self.info.groups(values) if varies else plan.axes.sizes("grid")
        frame = plan.frame(VALUES_AT_ONCE, groups)
        for u, value in zip(plan.variables, values, strict=True):
            frame.values[u] = plan.axes.single(value, to_numpy_dtype(u.dtype))
            frame.spans[u] = (value, 1)
        for u in plan.buffers:
            if u.arg >= len(buffers):
                raise ArgumentError(f"kernel {name} uses buffer {u.arg} of {len(buffers)} given")
            memory = of_slot if isinstance(u.dtype, ImageDType) else Memory.of_buffer
            frame.values[u] = memory(u, buffers[u.arg], name)
        return frame


class PythonRuntime:
    """The device. Its index distinguishes it from others of its kind."""

    fxn_for_op: Final[dict[Op, Callable[..., Any]]] = OPERATIONS
    """Function of each op on arrays; see docs/spec-map.md."""

    def __init__(self, index: int, interface: str) -> None:
        self.allocator = PythonAllocator()

    def load(self, binary: bytes, info: ProgramInfo) -> PythonProgram:
        """Read a program."""
        try:
            return PythonProgram(binary, info)
        except (FileFormatError, UnicodeDecodeError) as error:
            raise DeviceError(f"the program {info.name} cannot be read: {error}") from error

    def synchronize(self) -> None:
        """Nothing to wait for: a launch returns when it is done."""

    def close(self) -> None:
        """Nothing to release."""
