"""Launches of machine code: memory of groups and threads, arguments, constants, sizes."""

from __future__ import annotations

import numpy
import pytest
from adreno.kgsl import Kgsl
from nir_listings import A630, STORE, THREADS, compiled, launched

from tiny_qcom import ir3
from tiny_qcom.code import Code
from tiny_qcom.device import QcomDevice
from tinycore.errors import CompilerUnavailable, FileFormatError, UnsupportedError
from tinycore.plugin import ProgramInfo

try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


SHARED = """%two = const 32 0x2
%start = const 32 {start:#x}
%first = ishl %t %two
%mine = iadd %start %first
store shared 32 1 4 %t %mine
barrier
%last = const 32 {last:#x}
%o = isub %last %t
%far_off = ishl %o %two
%other = iadd %start %far_off
%r = load shared 32 1 4 %other
"""


def reversed_in_shared(threads: int, size: int) -> str:
    """Threads write their numbers to the end of shared memory, and read them in reverse."""
    body = SHARED.format(start=(size - 4 * threads) // 4 * 4, last=threads - 1)
    return body + STORE.format(bits=32)


@pytest.mark.parametrize("size", [256, 1024, 1025, 2048, 2052, 32_768])
def test_shared_memory_of_many_sizes(device: QcomDevice, size: int) -> None:
    binary = compiled(reversed_in_shared(THREADS, size), 1, shared=size)
    (found,) = launched(device, binary, [numpy.zeros(THREADS, "Q")], shared=size)
    assert found.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("size", [0, 1])
def test_least_shared_memory(device: QcomDevice, size: int) -> None:
    """One byte, which the last thread writes, and all read; or none."""
    body = "%zero = const 32 0x0\n%last = const 32 0x3f\n%r = mov %last\n"
    if size:
        body += "%g = ieq %t %last\n%n = u2u8 %t\nif %g\nstore shared 8 1 1 %n %zero\nendif\n"
        body += "barrier\n%b = load shared 8 1 1 %zero\n%s = u2u32 %b\n"
        body = body.replace("%r = mov", "%unused = mov") + "%r = mov %s\n"
    binary = compiled(body + STORE.format(bits=32), 1, shared=size)
    (found,) = launched(device, binary, [numpy.zeros(THREADS, "Q")], shared=size)
    assert found.tolist() == [63] * THREADS


@pytest.mark.parametrize("threads", [1, 32, 128, 1024])
def test_a_barrier_of_one_wave_to_sixteen(device: QcomDevice, threads: int) -> None:
    binary = compiled(reversed_in_shared(threads, 4096), 1, shared=4096, threads=threads)
    arrays = [numpy.zeros(threads, "Q")]
    (found,) = launched(device, binary, arrays, shared=4096, threads=threads)
    assert found.tolist() == list(range(threads - 1, -1, -1))


def test_an_array_of_a_thread_lies_in_private_memory(device: QcomDevice, driver: Kgsl) -> None:
    """Each thread has its own, of 1,200 bytes; the device allots powers of two of 512."""
    body = """%p1 = argument 64 8
%q1 = iadd %p1 %far
%n = load global 32 1 8 %q1
%zero = const 32 0x0
%end = const 32 0x12c
variable a 32 300
variable i 32 1
set i %zero
loop
%i = get i
%done = ige %i %end
if %done
break
endif
%square = imul %i %i
%value = iadd %square %t
set a %value %i
%next = iadd %i %one
set i %next
endloop
%r = get a %n
"""
    binary = compiled(body + STORE.format(bits=32), 2)
    assert Code.unpack(binary, "k").private_bytes == 1536
    numbers = numpy.random.default_rng(0).integers(0, 300, THREADS).astype("Q")
    found, _ = launched(device, binary, [numpy.zeros(THREADS, "Q"), numbers])
    assert found.tolist() == (numbers * numbers + numpy.arange(THREADS, dtype="Q")).tolist()
    assert driver.launches[-1].private_bytes == 2048


def test_more_shared_memory_than_there_is_is_refused_before_the_launch(device: QcomDevice) -> None:
    binary = compiled(reversed_in_shared(THREADS, 32_768), 1, shared=32_768)
    with pytest.raises(UnsupportedError, match="32769 bytes of shared memory"):
        device.load(binary, ProgramInfo("k", 1, block=(THREADS, 1, 1), shared_bytes=32_769))


def test_more_threads_than_registers_leave_room_for(device: QcomDevice) -> None:
    binary = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)
    with pytest.raises(UnsupportedError, match="a group of 2048 threads does not fit a630"):
        device.load(binary, ProgramInfo("k", 1, block=(2048, 1, 1)))


def test_a_launch_of_no_groups_does_nothing(device: QcomDevice) -> None:
    binary = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)
    (found,) = launched(device, binary, [numpy.full(THREADS, 7, "Q")], grid=(0, 1, 1))
    assert (found == 7).all()


def test_a_binary_takes_as_many_arguments_as_it_says(device: QcomDevice) -> None:
    binary = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)
    with pytest.raises(Exception, match="takes 1 arguments by its binary, and 2 buffers"):
        device.load(binary, ProgramInfo("k", 2, block=(THREADS, 1, 1)))


@pytest.mark.parametrize("count", [1, 8, 9, 17, 40, 300])
def test_arguments_lie_where_the_compiler_wants_them(device: QcomDevice, count: int) -> None:
    """Also beyond the first 64 bytes, of which the compiler may leave out what is not read."""
    place = 8 * (count - 1)
    body = f"%p0 = argument 64 {place}\n%q0 = iadd %p0 %far\nstore global 32 1 8 %t %q0\n"
    binary = compiled(body, count)
    arrays = [numpy.full(THREADS, 99, "Q") for _ in range(count)]
    arrays[-1][:] = 0
    found = launched(device, binary, arrays)
    assert found[-1].tolist() == list(range(THREADS))
    assert all((rest == 99).all() for rest in found[:-1])


def test_arguments_far_apart_lie_in_two_ranges(device: QcomDevice) -> None:
    """A gap that nobody reads has no place among the constants; numbers come behind."""
    body = """%p0 = argument 64 0
%p1 = argument 64 2392
%q0 = iadd %p0 %far
%q1 = iadd %p1 %far
%x = load global 32 1 8 %q0
%n = const 32 0x7654321
%y = imul %x %n
store global 32 1 8 %y %q1
"""
    binary = compiled(body, 300)
    code = Code.unpack(binary, "k")
    first, last = code.arguments[0], code.arguments[299]
    assert first == 0
    assert 0 < last < 128, "the second range comes right behind the first"
    assert -1 in code.arguments
    assert code.constants[0][0] > last
    arrays = [numpy.arange(THREADS, dtype="Q") for _ in range(300)]
    found = launched(device, binary, arrays)
    assert found[-1].tolist() == [n * 0x7654321 & 0xFFFFFFFF for n in range(THREADS)]


def test_what_all_threads_share_is_computed_by_each() -> None:
    """Code that runs once in front of a launch wants a constant file that launches do not have."""
    body = "%n = argument 32 8\n%m = argument 32 16\n%a = i2f32 %n\n%b = i2f32 %m\n%c = fsqrt %a\n"
    body += "%d = frcp %b\n%e = fmul %c %d\n%f = fsin %e\n%g = i2f32 %t\n%r = fmul %f %g\n"
    binary = compiled(body + STORE.format(bits=32), 3)
    text = ir3.Ir3Compiler(A630).disassemble(Code.unpack(binary, "k").machine)
    assert "sqrt" in text
    assert "shps" not in text


def test_more_constants_than_a_launch_has_are_refused() -> None:
    with pytest.raises(FileFormatError, match="4112 bytes of constants do not fit the 4096"):
        Code("k", "ir3", bytes(128), (), constant_bytes=4112)


def test_code_longer_than_what_is_loaded_beforehand(device: QcomDevice, driver: Kgsl) -> None:
    steps = "".join(f"%v{n + 1} = imul %v{n} %x\n%x = ixor %x %v{n + 1}\n" for n in range(300))
    body = "%x = iadd %t %one\n%v0 = mov %t\n" + steps + "%r = mov %v300\n"
    binary = compiled(body + STORE.format(bits=32), 1)
    assert Code.unpack(binary, "k").groups > 64
    (found,) = launched(device, binary, [numpy.zeros(THREADS, "Q")])
    x = numpy.arange(THREADS, dtype="I") + 1
    v = x - 1
    for _ in range(300):
        v = v * x
        x = x ^ v
    assert found.tolist() == v.tolist()


VARIES = """kernel k
block varies
shared 0
arguments 8
%x = thread 0
%y = thread 1
%z = thread 2
%sx = size 0
%sy = size 1
%sz = size 2
%zy = imul %z %sy
%yz = iadd %y %zy
%yx = imul %yz %sx
%t = iadd %x %yx
%three = const 32 0x3
%big = const 32 0x12345678
%wide = u2u64 %t
%far = ishl %wide %three
%r = imul %sz %big
"""


@pytest.mark.parametrize("block", [(4, 3, 2), (64, 1, 1), (1, 2, 64)])
def test_groups_of_a_size_that_a_launch_says(
    device: QcomDevice, block: tuple[int, int, int]
) -> None:
    """The parameters of the launch come first among the constants, then arguments, then numbers."""
    binary = ir3.Ir3Compiler(A630).compile(VARIES + STORE.format(bits=32))
    code = Code.unpack(binary, "k")
    assert (code.launch_parameters, code.arguments) == (0, (64,))
    assert code.constants[0][0] >= 128
    threads = block[0] * block[1] * block[2]
    kernel = device.load(binary, ProgramInfo("k", 1, block=block))
    out = device.allocator.alloc(8 * threads)
    device.allocator.write(out, memoryview(bytes(8 * threads)))
    kernel([out], [], wait=True)
    found = bytearray(8 * threads)
    device.allocator.read(memoryview(found), out)
    device.allocator.free(out)
    assert set(numpy.frombuffer(found, "Q").tolist()) == {block[2] * 0x12345678 & 0xFFFFFFFF}
