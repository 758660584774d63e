"""Mesa's compiler, the machine code it makes, and the interpreter: operation by operation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from adreno.ir3.syntax import program
from emulation.faults import SyntaxFault
from nir_listings import (
    A630,
    HEAD,
    NARROW,
    STORE,
    THREADS,
    Array,
    as_bits,
    compiled,
    computed,
    f32,
    launched,
    operands,
    s32,
    s64,
)

from tiny_qcom import ir3
from tiny_qcom.chip import chip_of
from tiny_qcom.code import Code
from tiny_qcom.device import QcomDevice
from tinycore.errors import CompileError, CompilerUnavailable, FileFormatError

try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


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


@pytest.mark.parametrize("bits", [8, 16])
def test_what_lies_beside_a_stored_byte_stays(device: QcomDevice, bits: int) -> None:
    body = f"%v = u2u{bits} %t\n%p0 = argument 64 0\n%q0 = iadd %p0 %far\n"
    body += f"store global {bits} 1 {bits // 8} %v %q0\n"
    (found,) = launched(device, compiled(body, 1), [numpy.full(THREADS, 2**64 - 1, "Q")])
    assert (found == (2**64 - (1 << bits)) + numpy.arange(THREADS, dtype="Q")).all()


def test_an_array_that_registers_hold_is_found_by_an_address(device: QcomDevice) -> None:
    """Each thread writes and reads the element that it names, some behind a branch."""
    body = """%zero = const 32 0x0
%two = const 32 0x2
%three = const 32 0x3
%many = const 32 0x28
variable a 32 4
set a %t %zero
set a %many %one
set a %three %two
set a %two %three
%i = iand %t %three
%square = imul %t %t
set a %square %i
%few = ult %t %many
if %few
%k = ixor %i %two
set a %t %k
endif
%j = ixor %i %one
%r = get a %j
"""
    binary = compiled(body + STORE.format(bits=32), 1)
    text = ir3.Ir3Compiler(A630).disassemble(Code.unpack(binary, "k").machine)
    assert "mov.u32u32 r<a0.x + " in text
    assert ", r<a0.x + " in text
    (found,) = launched(device, binary, [numpy.zeros(THREADS, "Q")])
    expected = []
    for t in range(THREADS):
        a = [t, 40, 3, 2]
        a[t & 3] = t * t
        if t < 40:
            a[t & 3 ^ 2] = t
        expected.append(a[t & 3 ^ 1])
    assert found.tolist() == expected


def test_a_product_and_a_sum_are_rounded_each(device: QcomDevice) -> None:
    """No mad.f32 takes their place: the builder is told that arithmetic is exact."""
    body = "%p = fmul %x1 %x1\n%r = fadd %p %x2\n"
    a = numpy.full(THREADS, 0x3F800001, "Q")  # 1 + 2**-23, whose square is no float32
    b = numpy.full(THREADS, 0xBF800000, "Q")
    found = computed(device, body, a, b, 32)
    assert f32(found).tolist() == [2.0**-22] * THREADS


UNMERGED = """
import sys
from tiny_qcom import ir3, mesa
made = mesa.Mesa(str(ir3.library_path()))
compiler, _ = made.compiler(630, 0x06030001)
mesa.at(compiler, 320, "uint8_t")[0] = 0  # half registers lie apart
sys.stdout.buffer.write(made.compile(sys.stdin.read(), 630, 0x06030001).pack())
"""


def test_half_registers_apart_and_in_full_ones_compute_the_same(device: QcomDevice) -> None:
    """Mesa makes both kinds of code; a launch says which it is, and how many of each it has."""
    body = NARROW.format(bits=16, extend="i2i32")
    body += "%n = u2u8 %y1\n%m = i2i32 %n\n%p = imul %m %y2\n%g = ilt %y1 %y2\n"
    body += "%e = b2i32 %g\n%r = iadd %p %e\n" + STORE.format(bits=32)
    listing = HEAD.format(threads=THREADS, shared=0, bytes=24, shift=3) + body
    done = subprocess.run(
        [sys.executable, "-c", UNMERGED], input=listing.encode(), capture_output=True, check=True
    )
    kinds = [Code.unpack(done.stdout, "k"), Code.unpack(compiled(body, 3), "k")]
    assert [kind.merged for kind in kinds] == [False, True]
    assert kinds[0].half_registers
    a, b = operands("i", 12), operands("i", 13)
    arrays = [numpy.zeros(THREADS, "Q"), a, b]
    found = [launched(device, kind.pack(), arrays)[0].tolist() for kind in kinds]
    x, y = (n.astype("u2").view("i2").astype("q") for n in (a, b))
    expected = x.astype("i1").astype("q") * y + (x < y)
    assert found[0] == found[1] == (expected.view("Q") & 0xFFFFFFFF).tolist()


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
    text = ir3.Ir3Compiler(A630).disassemble(Code.unpack(binary, "k").machine)
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
    with pytest.raises(CompileError, match=r"compiler was ended by SIG\w+ on a kernel"):
        compiled(body, 1)
    assert compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)


def test_a_forked_child_has_a_compiler_of_its_own() -> None:
    binary = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1)
    child = os.fork()
    if not child:  # nothing may return from here
        try:
            same = compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1) == binary
            ir3.worker().stop()
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


def test_a_fault_names_the_bytes_of_an_instruction() -> None:
    machine = Code.unpack(compiled("%r = imul %t %t\n" + STORE.format(bits=32), 1), "k").machine
    with pytest.raises(SyntaxFault, match="bytes ffffffffffffffff"):
        program(bytes(8 * [255]) + machine[8:])
