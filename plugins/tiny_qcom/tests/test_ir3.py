"""Mesa's compiler, the machine code it makes, and the interpreter: operation by operation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from adreno.ir3.actions import Code as InterpretedCode
from adreno.ir3.run import Groups
from adreno.ir3.syntax import Instruction, instruction, program
from adreno.kgsl import Kgsl
from adreno.state import Launch
from emulation.faults import IllegalAddress, SyntaxFault
from emulation.memory import GlobalMemory
from simulated_qcom import Simulated, execute

from tiny_qcom import ir3
from tiny_qcom.chip import chip_of
from tiny_qcom.code import Code
from tiny_qcom.device import QcomDevice
from tinycore.errors import CompileError, CompilerUnavailable, FileFormatError, UnsupportedError
from tinycore.plugin import ProgramInfo

Array = numpy.ndarray[Any, Any]
try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

A630 = chip_of("a630")
THREADS = 64
HEAD = """kernel k
block {threads} 1 1
shared {shared}
arguments {bytes}
%one = const 32 0x1
%size = const 32 {shift:#x}
%t = thread 0
%wide = u2u64 %t
%far = ishl %wide %size
"""


@pytest.fixture(scope="module")
def driver() -> Kgsl:
    return Kgsl(execute)


@pytest.fixture(scope="module")
def device(driver: Kgsl) -> Iterator[QcomDevice]:
    opened = Simulated(driver)
    yield opened
    opened.close()
    assert not driver.faults


def compiled(body: str, arguments: int, shared: int = 0, threads: int = THREADS) -> bytes:
    head = HEAD.format(threads=threads, shared=shared, bytes=8 * arguments, shift=3)
    return ir3.server().compile(head + body, A630)


def launched(
    device: QcomDevice,
    binary: bytes,
    arrays: list[Array],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = THREADS,
    shared: int = 0,
) -> list[Array]:
    """Run a kernel on arrays; what they are afterwards."""
    info = ProgramInfo("k", len(arrays), grid=grid, block=(threads, 1, 1), shared_bytes=shared)
    kernel = device.load(binary, info)
    handles = [device.allocator.alloc(max(a.nbytes, 64)) for a in arrays]
    for handle, array in zip(handles, arrays, strict=True):
        device.allocator.write(handle, memoryview(array).cast("B"))
    kernel(handles, [], wait=True)
    found = []
    for handle, array in zip(handles, arrays, strict=True):
        back = bytearray(array.nbytes)
        device.allocator.read(memoryview(back), handle)
        device.allocator.free(handle)
        found.append(numpy.frombuffer(back, array.dtype))
    return found


def operands(kind: str, seed: int) -> Array:
    """Numbers at random, with those that are special in front."""
    generator = numpy.random.default_rng(seed)
    if kind == "f":
        special = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e30, -1e-30]
        numbers = [*special, *(generator.standard_normal(THREADS - 8) * 100)]
        return generator.permutation(numpy.array(numbers, "f")).view("I").astype("Q")
    bits = 32 if kind == "i" else 64
    special = [0, 1, 2, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 31, 0xFFFF]
    numbers = generator.integers(0, (1 << bits) - 1, THREADS - 8, "Q", endpoint=True)
    return generator.permutation(numpy.concatenate([numpy.array(special, "Q"), numbers]))


def s32(a: Array) -> Array:
    return a.astype("I").view("i").astype("q")


def s64(a: Array) -> Array:
    return a.view("q")


def f32(a: Array) -> Array:
    return a.astype("I").view("f")


def as_bits(a: Any) -> Array:
    return numpy.asarray(a, "f").view("I").astype("Q")


CASES: dict[str, tuple[str, Callable[[Array, Array], Any]]] = {
    "iadd": ("i", lambda a, b: a + b),
    "isub": ("i", lambda a, b: a - b),
    "imul": ("i", lambda a, b: a * b),
    "iand": ("i", lambda a, b: a & b),
    "ior": ("i", lambda a, b: a | b),
    "ixor": ("i", lambda a, b: a ^ b),
    "ishl": ("i", lambda a, b: a << (b & 31)),
    "ushr": ("i", lambda a, b: a >> (b & 31)),
    "ishr": ("i", lambda a, b: s32(a) >> (b & 31).astype("q")),
    "umin": ("i", numpy.minimum),
    "umax": ("i", numpy.maximum),
    "imin": ("i", lambda a, b: numpy.minimum(s32(a), s32(b))),
    "imax": ("i", lambda a, b: numpy.maximum(s32(a), s32(b))),
    "udiv": ("i", lambda a, b: a // numpy.maximum(b, 1)),
    "umod": ("i", lambda a, b: a % numpy.maximum(b, 1)),
    "fadd": ("f", lambda a, b: as_bits(f32(a) + f32(b))),
    "fmul": ("f", lambda a, b: as_bits(f32(a) * f32(b))),
    "fmin": ("f", lambda a, b: as_bits(numpy.minimum(f32(a), f32(b)))),
    "fmax": ("f", lambda a, b: as_bits(numpy.maximum(f32(a), f32(b)))),
}
WIDE: dict[str, Callable[[Array, Array], Any]] = {
    "iadd": lambda a, b: a + b,
    "isub": lambda a, b: a - b,
    "imul": lambda a, b: a * b,
    "ixor": lambda a, b: a ^ b,
    "imax": lambda a, b: numpy.maximum(s64(a), s64(b)).view("Q"),
    "umin": numpy.minimum,
}
COMPARED: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "ilt": ("i", lambda a, b: s32(a) < s32(b)),
    "ult": ("i", lambda a, b: a < b),
    "ige": ("i", lambda a, b: s32(a) >= s32(b)),
    "uge": ("i", lambda a, b: a >= b),
    "ieq": ("i", lambda a, b: a == b),
    "flt": ("f", lambda a, b: f32(a) < f32(b)),
    "fge": ("f", lambda a, b: f32(a) >= f32(b)),
    "fneu": ("f", lambda a, b: f32(a) != f32(b)),
}
LOAD = """%p{n} = argument 64 {place}
%q{n} = iadd %p{n} %far
%x{n} = load global {bits} 1 8 %q{n}
"""
STORE = """%p0 = argument 64 0
%q0 = iadd %p0 %far
store global {bits} 1 8 %r %q0
"""


def computed(device: QcomDevice, operation: str, a: Array, b: Array, bits: int) -> Array:
    """An operation on each pair of numbers."""
    loads = "".join(LOAD.format(n=n, place=8 * n, bits=bits) for n in (1, 2))
    binary = compiled(loads + operation + STORE.format(bits=min(bits, 64)), 3)
    return launched(device, binary, [numpy.zeros(THREADS, "Q"), a, b])[0]


@pytest.mark.parametrize("name", CASES)
def test_an_operation_on_32_bits(device: QcomDevice, name: str) -> None:
    kind, expected = CASES[name]
    a, b = operands(kind, 1), operands(kind, 2)
    if name in ("udiv", "umod"):
        b = numpy.maximum(b, 1)
    found = computed(device, f"%r = {name} %x1 %x2\n", a, b, 32)
    right = numpy.asarray(expected(a, b)).astype("q").view("Q") & 0xFFFFFFFF
    if kind == "f":  # the sign of a zero is not told apart
        assert (f32(found) == f32(right)).all()
    else:
        assert found.tolist() == right.tolist()


@pytest.mark.parametrize("name", WIDE)
def test_an_operation_on_64_bits(device: QcomDevice, name: str) -> None:
    a, b = operands("q", 3), operands("q", 4)
    found = computed(device, f"%r = {name} %x1 %x2\n", a, b, 64)
    assert found.tolist() == WIDE[name](a, b).tolist()


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison(device: QcomDevice, name: str) -> None:
    kind, expected = COMPARED[name]
    a, b = operands(kind, 5), operands(kind, 6)
    b[::3] = a[::3]
    if kind == "f":
        a[1] = b[2] = 0x7FC00000  # NaN
    found = computed(device, f"%g = {name} %x1 %x2\n%r = b2i32 %g\n", a, b, 32)
    assert (found == expected(a, b)).all()


def test_branches_and_loops_that_threads_leave_apart(device: QcomDevice) -> None:
    """Each thread adds up its own number of steps, of which odd ones count twice."""
    body = """%p1 = argument 64 8
%q1 = iadd %p1 %far
%n = load global 32 1 8 %q1
%zero = const 32 0x0
variable i 32 1
variable sum 32 1
set i %zero
set sum %zero
loop
%i = get i
%done = ige %i %n
if %done
break
endif
%s = get sum
%t1 = iadd %s %i
set sum %t1
%low = iand %i %one
%odd = ine %low %zero
if %odd
%s2 = get sum
%t2 = iadd %s2 %i
set sum %t2
endif
%j = iadd %i %one
set i %j
endloop
%r = get sum
"""
    counts = numpy.random.default_rng(0).integers(0, 40, THREADS).astype("Q")
    binary = compiled(body + STORE.format(bits=32), 2)
    found, _ = launched(device, binary, [numpy.zeros(THREADS, "Q"), counts])
    assert found.tolist() == [sum(i * (1 + i % 2) for i in range(int(n))) for n in counts]


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


def test_what_all_threads_share_is_computed_by_each() -> None:
    """Code that runs once in front of a launch wants a constant file that launches do not have."""
    body = "%n = argument 32 8\n%m = argument 32 16\n%a = i2f32 %n\n%b = i2f32 %m\n%c = fsqrt %a\n"
    body += "%d = frcp %b\n%e = fmul %c %d\n%f = fsin %e\n%g = i2f32 %t\n%r = fmul %f %g\n"
    binary = compiled(body + STORE.format(bits=32), 3)
    text = ir3.server().disassemble(Code.unpack(binary, "k").machine, A630)
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


def test_loops_in_loops_that_threads_leave_apart(device: QcomDevice) -> None:
    """Thread t goes round t % 5 times, and inside of that t % 7 times, every other time once."""
    loop = """set {i} %zero
loop
%{i} = get {i}
%{i}_done = ige %{i} %{end}
if %{i}_done
break
endif
{body}%{i}_next = iadd %{i} %one
set {i} %{i}_next
endloop
"""
    inner = "%s = get sum\n%s1 = iadd %s %j\n%s2 = iadd %s1 %one\nset sum %s2\n"
    leave = "%low = iand %i %one\n%odd = ine %low %zero\n"
    leave += "%few = bcsel %odd %one %seventh\n"
    nested = leave + loop.format(i="j", end="few", body=inner)
    body = "%zero = const 32 0x0\n%five = const 32 0x5\n%seven = const 32 0x7\n"
    body += "%fifth = umod %t %five\n%seventh = umod %t %seven\n"
    body += "variable i 32 1\nvariable j 32 1\nvariable sum 32 1\nset sum %zero\n"
    body += loop.format(i="i", end="fifth", body=nested) + "%r = get sum\n"
    binary = compiled(body + STORE.format(bits=32), 1)
    (found,) = launched(device, binary, [numpy.zeros(THREADS, "Q")])
    rounds = [[1 if i % 2 else t % 7 for i in range(t % 5)] for t in range(THREADS)]
    assert found.tolist() == [sum(n * (n + 1) // 2 for n in one) for one in rounds]


def test_bytes_beside_a_stored_byte_stay(device: QcomDevice) -> None:
    body = "%v = u2u8 %t\n%p0 = argument 64 0\n%q0 = iadd %p0 %far\nstore global 8 1 1 %v %q0\n"
    (found,) = launched(device, compiled(body, 1), [numpy.full(THREADS, 2**64 - 1, "Q")])
    assert (found == (2**64 - 256) + numpy.arange(THREADS, dtype="Q")).all()


NARROW = """%p1 = argument 64 8
%q1 = iadd %p1 %far
%x1 = load global {bits} 1 8 %q1
%y1 = {extend} %x1
%p2 = argument 64 16
%q2 = iadd %p2 %far
%x2 = load global {bits} 1 8 %q2
%y2 = {extend} %x2
"""


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["ilt", "imax", "imin", "irem", "idiv"])
def test_signed_numbers_that_are_narrow_in_memory(device: QcomDevice, name: str, bits: int) -> None:
    """Bytes become signed words by cov.u8s32: there is no type of signed bytes."""
    a, b = operands("i", 7), operands("i", 8) | 1
    x, y = (
        numpy.ascontiguousarray(n).astype(f"u{bits // 8}").view(f"i{bits // 8}") for n in (a, b)
    )
    expected = {
        "ilt": x < y,
        "imax": numpy.maximum(x, y),
        "imin": numpy.minimum(x, y),
        "irem": numpy.fmod(x, y),
        "idiv": numpy.trunc(x / y.astype("d")),
    }[name]
    body = NARROW.format(bits=bits, extend="i2i32")
    body += f"%g = {name} %y1 %y2\n" + ("%r = b2i32 %g\n" if name == "ilt" else "%r = mov %g\n")
    found = launched(
        device, compiled(body + STORE.format(bits=32), 3), [numpy.zeros(THREADS, "Q"), a, b]
    )[0]
    assert s32(found).tolist() == expected.astype("q").tolist()


@pytest.mark.parametrize("bits", [8, 16])
def test_narrow_numbers_in_shared_memory(device: QcomDevice, bits: int) -> None:
    """Their registers are half ones, which the disassembler prints as full ones."""
    body = NARROW.format(bits=bits, extend="i2i32") + "%last = const 32 0x3f\n"
    body += f"%s = const 32 {bits // 16:#x}\n%mine = ishl %t %s\n%n = u2u{bits} %y1\n"
    body += f"store shared {bits} 1 1 %n %mine\nbarrier\n%o = isub %last %t\n"
    body += f"%p = ishl %o %s\n%l = load shared {bits} 1 1 %p\n%r = i2i32 %l\n"
    a = operands("i", 10)
    binary = compiled(body.replace(" 1 1 %", f" 1 {bits // 8} %") + STORE.format(bits=32), 3, 256)
    found = launched(device, binary, [numpy.zeros(THREADS, "Q"), a, a], shared=256)[0]
    expected = a.astype(f"u{bits // 8}").view(f"i{bits // 8}")[::-1]
    assert s32(found).tolist() == expected.tolist()


@pytest.mark.parametrize("bits", [8, 16])
def test_a_narrow_number_or_a_constant(device: QcomDevice, bits: int) -> None:
    """A pass of Mesa for the phi of both ends its process for bytes, and is left out."""
    body = NARROW.format(bits=bits, extend="i2i32").splitlines()[:3]
    body = [*body, "%m = const 32 0xfffffff3", "%c10 = const 32 0xa", "%g = ult %t %c10"]
    body += ["if %g", "%y = i2i32 %x1", "else", "endif", "%r = phi %y %m"]
    a = operands("i", 11)
    binary = compiled("\n".join(body) + "\n" + STORE.format(bits=32), 2)
    found = launched(device, binary, [numpy.zeros(THREADS, "Q"), a])[0]
    expected = a.astype(f"u{bits // 8}").view(f"i{bits // 8}").astype("q")
    expected[10:] = -13
    assert s32(found).tolist() == expected.tolist()


def test_a_half_constant_is_the_lower_half_of_a_constant(device: QcomDevice) -> None:
    """65,535 does not fit an instruction, so Mesa compares halves with a constant."""
    body = NARROW.format(bits=16, extend="i2i32")
    body += "%m = const 32 0xffffffff\n%g = ieq %y1 %m\n%r = b2i32 %g\n"
    a = operands("i", 9)
    a[::5] = 0x1FFFF
    binary = compiled(body + STORE.format(bits=32), 3)
    text = ir3.server().disassemble(Code.unpack(binary, "k").machine, A630)
    assert ", hc" in text
    found = launched(device, binary, [numpy.zeros(THREADS, "Q"), a, a])[0]
    assert found.tolist() == (a & 0xFFFF == 0xFFFF).tolist()


# --- the compiler


def test_a_listing_that_means_nothing_is_refused() -> None:
    with pytest.raises(CompileError, match="rejected a kernel") as raised:
        compiled("%r = what %t\n", 1)
    assert "KeyError: 'what'" in str(raised.value)


def test_an_end_of_the_compiler_is_an_error_and_the_next_kernel_compiles() -> None:
    """float64 ends Mesa's process: the renderer refuses it, and a listing that has it is told."""
    body = "%d = f2f64 %t\n%e = fmul %d %d\n%r = f2f32 %e\n" + STORE.format(bits=32)
    with pytest.raises(CompileError, match=r"compiler ended with status -\d+"):
        compiled(body, 1)
    assert compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)


def test_a_forked_child_has_a_compiler_of_its_own() -> None:
    binary = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)
    child = os.fork()
    if not child:  # nothing may return from here
        try:
            same = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1) == binary
            ir3.server().stop()
        finally:
            os._exit(0 if same else 1)
    assert compiled("%r = iadd %t %t\n" + STORE.format(bits=32), 1) != binary
    assert os.waitpid(child, 0)[1] == 0
    assert compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1) == binary


def test_a_compiler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompilerUnavailable, match=r"pip install tinymesa==25\.2\.7\.2"):
        ir3.library_path.__wrapped__()


def test_a_container_that_is_cut_off_is_refused() -> None:
    binary = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)
    assert Code.unpack(binary, "k").pack() == binary
    for size in (20, 100, len(binary) - 8):
        with pytest.raises(FileFormatError, match="k: "):
            Code.unpack(binary[:size], "k")


def test_other_chips_are_refused_by_name() -> None:
    with pytest.raises(CompilerUnavailable, match=r"'a730' is no Adreno .*a618, a630, a640"):
        chip_of("a730")


# --- the interpreter


def test_an_instruction_that_is_not_known_is_a_fault() -> None:
    with pytest.raises(SyntaxFault, match="not known"):
        instruction("add.f r0.x, r1.x, <what>")


@pytest.mark.parametrize(
    ("line", "a", "expected"),
    [
        ("cov.u8s32 r1.x, hr0.x", 0x1FF, 0xFFFF_FFFF),
        ("cov.u8s32 r1.x, hr0.x", 0x7F, 0x7F),
        ("cov.u8s16 hr2.x, hr0.x", 0x80, 0xFF80),
        ("cov.s32u8 hr2.x, r0.x", 0x1FF, 0xFF),
        ("cov.s16s32 r1.x, hr0.x", 0x8000, 0xFFFF_8000),
        ("cov.u16s32 r1.x, hr0.x", 0x8000, 0x8000),
        ("cov.f32u32 r1.x, r0.x", 0x4F80_0000, 0xFFFF_FFFF),
        ("cov.f32s32 r1.x, r0.x", 0x7FC0_0000, 0),
        ("cov.f32s32 r1.x, r0.x", 0xBFE0_0000, 0xFFFF_FFFF),
        ("cov.s32f32 r1.x, r0.x", 0xFFFF_FFFF, 0xBF80_0000),
        ("cov.u32f32 r1.x, r0.x", 0xFFFF_FFFF, 0x4F80_0000),
        ("absneg.s r1.x, (abs)r0.x", 0xFFFF_FFFE, 2),
        ("absneg.s r1.x, (neg)r0.x", 5, 0xFFFF_FFFB),
        ("absneg.s hr2.x, (abs)hr0.x", 0xFFFE, 2),
        ("absneg.f r1.x, (neg)(abs)r0.x", 0xBF80_0000, 0xBF80_0000),
        ("and.b r1.x, (not)r0.x, 15", 5, 10),
        ("max.s hr2.x, hr0.x, h(0)", 0x8000, 0),
        ("max.u hr2.x, hr0.x, h(0)", 0x8000, 0x8000),
        ("min.s hr2.x, hr0.x, h(-1)", 0xFFFE, 0xFFFE),
        ("cmps.s.lt hr2.x, hr0.x, h(-1)", 0xFFFE, 1),
        ("cmps.u.eq hr2.x, hr0.x, h(-1)", 0xFFFF, 1),
        ("ashr.b hr2.x, hr0.x, h(4)", 0x8000, 0xF800),
        ("shr.b hr2.x, hr0.x, h(4)", 0x8000, 0x0800),
        ("(sat)add.u r1.x, r0.x, 9", 0xFFFF_FFF8, 0xFFFF_FFFF),
        ("(sat)add.u r1.x, r0.x, 9", 0xFFFF_FFF6, 0xFFFF_FFFF),
        ("(sat)add.u r1.x, r0.x, 9", 0xFFFF_FFF5, 0xFFFF_FFFE),
        ("(sat)sub.u r1.x, r0.x, 9", 8, 0),
        ("(sat)add.s r1.x, r0.x, 9", 0x7FFF_FFF8, 0x7FFF_FFFF),
        ("(sat)sub.s r1.x, r0.x, 9", 0x8000_0008, 0x8000_0000),
        ("(rpt2)mov.u32u32 r1.x, (r)r0.x", 7, 7),
    ],
)
@pytest.mark.parametrize("merged", [True, False])
def test_what_an_instruction_computes(line: str, a: int, expected: int, merged: bool) -> None:
    """Whether half registers are the halves of full ones, or lie apart."""
    assert interpreted(line, a, merged) == expected


def test_a_repeated_instruction_takes_the_next_registers_where_it_says_so() -> None:
    made = instruction("(rpt2)add.u r2.x, (r)r0.y, r0.x")
    groups = ready((made, instruction("end")), merged=True)
    groups.full[:4] = [numpy.full(4, n, "I") for n in (100, 1, 2, 3)]
    groups.run()
    assert [int(groups.full[8 + n][0]) for n in range(3)] == [101, 102, 103]


@pytest.mark.parametrize(
    "line", ["cov.u8u32 r1.x, hr0.x", "cov.u8f32 r1.x, hr0.x", "cov.f32u8 hr2.x, r0.x"]
)
def test_a_conversion_of_bytes_that_hardware_does_not_do(line: str) -> None:
    with pytest.raises(SyntaxFault, match=f"instruction 0, {line}: cov.* hardware does not do"):
        interpreted(line, 1)


def test_half_constants_need_a_launch_that_demotes_constants() -> None:
    with pytest.raises(IllegalAddress, match="half constant hc0 of 0"):
        interpreted("cmps.s.eq hr2.x, hr0.x, hc0.x", 1)


def ready(instructions: tuple[Instruction, ...], merged: bool) -> Groups:
    """A group of four threads, about to run."""
    code = InterpretedCode(instructions, merged)
    launch = Launch(
        *(False, (1, 1, 1), (4, 1, 1), b"", 0, 0, numpy.zeros(16, "I"), 16, 8, 8, merged, False),
        *(0, 1024, 0, 0xFC, 0xFC),
    )
    code.check(launch)
    return Groups(launch, GlobalMemory(), code, numpy.arange(1))


def interpreted(line: str, a: int, merged: bool = True) -> int:
    """The first register that an instruction writes, after it ran with a number in r0.x."""
    made = instruction(line)
    groups = ready((made, instruction("end")), merged)
    groups.full[0] = numpy.full(4, a, "I")
    groups.half[0] = groups.full[0] & numpy.uint32(0xFFFF)
    groups.run()
    target = made.operands[0]
    (found,) = set(groups.code.source(target.kind, target.number)(groups).tolist())
    return int(found)


def test_a_fault_names_the_bytes_of_an_instruction() -> None:
    machine = Code.unpack(compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1), "k").machine
    with pytest.raises(SyntaxFault, match="bytes ffffffffffffffff"):
        program(bytes(8 * [255]) + machine[8:])
