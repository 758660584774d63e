"""The interpreter of ir3: what single instructions compute, against numbers made another way."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy
import pytest
from adreno.ir3 import operations
from adreno.ir3.actions import Code
from adreno.ir3.run import Groups
from adreno.ir3.syntax import Instruction, instruction
from adreno.state import POISON, Launch
from emulation.faults import IllegalAddress, SyntaxFault
from emulation.memory import GlobalMemory

from tiny_qcom import ir3
from tinycore.errors import CompilerUnavailable

try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

WORD = (1 << 32) - 1


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
        ("cov.f32f16 (even)hr2.x, r0.x", 0x3F80_1000, 0x3C00),
        ("cov.f32f16 (even)hr2.x, r0.x", 0x3F80_3000, 0x3C02),
        ("cov.f32f16 (even)hr2.x, r0.x", 0x477F_F000, 0x7C00),
        ("cov.f32f16 (even)hr2.x, r0.x", 0x3380_0000, 0x0001),
        ("cov.f32f16 (even)hr2.x, r0.x", 0x3300_0000, 0),
        ("cov.f32f16 hr2.x, r0.x", 0x3F80_3FFF, 0x3C01),
        ("cov.f32f16 hr2.x, r0.x", 0xC77F_F000, 0xFBFF),
        ("cov.f32f16 hr2.x, r0.x", 0x7F80_0000, 0x7C00),
        ("cov.f16f32 r1.x, hr0.x", 0x0001, 0x3380_0000),
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
    """Half registers are the halves of full ones, or lie apart."""
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


def ready(instructions: tuple[Instruction, ...], merged: bool, threads: int = 4) -> Groups:
    """A group of threads, about to run."""
    code = Code(instructions, merged)
    constants = numpy.arange(16, dtype="I") * 0x10001
    launch = Launch(
        *(False, (1, 1, 1), (threads, 1, 1), b"", 0, 0, constants, 16, 8, 8, merged, False),
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


def computed(line: str, *columns: Sequence[int]) -> list[int]:
    """Result of an instruction on r0.x, r0.y and so on, a thread for each row."""
    groups = ready((instruction(line), instruction("end")), True, len(columns[0]))
    for number, column in enumerate(columns):
        groups.full[number] = numpy.array(column, "I")
    groups.run()
    return [int(n) for n in groups.full[4]]


def signed(n: int) -> int:
    return n - (1 << 32) if n >> 31 else n


def low(n: int) -> int:
    return n & 0xFFFF


def narrow(n: int) -> int:
    """24 bits, with their sign."""
    n &= 0xFFFFFF
    return n - (1 << 24) if n >> 23 else n


def clamped(n: int, least: int, most: int) -> int:
    return min(max(n, least), most)


INTEGERS: dict[str, Callable[..., int]] = {
    "add.u": lambda a, b: a + b,
    "add.s": lambda a, b: a + b,
    "sub.u": lambda a, b: a - b,
    "sub.s": lambda a, b: a - b,
    "absneg.s": lambda a: a,
    "min.u": min,
    "max.u": max,
    "min.s": lambda a, b: min(signed(a), signed(b)),
    "max.s": lambda a, b: max(signed(a), signed(b)),
    "and.b": lambda a, b: a & b,
    "or.b": lambda a, b: a | b,
    "xor.b": lambda a, b: a ^ b,
    "not.b": lambda a: ~a,
    "shl.b": lambda a, b: a << b % 32,
    "shr.b": lambda a, b: a >> b % 32,
    "ashr.b": lambda a, b: signed(a) >> b % 32,
    "clz.b": lambda a: 32 - a.bit_length() if a else -1,
    "cbits.b": lambda a: a.bit_count(),
    "bfrev.b": lambda a: int(f"{a:032b}"[::-1], 2),
    "mul.u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mul.s24": lambda a, b: narrow(a) * narrow(b),
    "mull.u": lambda a, b: low(a) * low(b),
    "madsh.m16": lambda a, b, c: c + (low(a) * (b >> 16) << 16),
    "mad.u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "mad.s24": lambda a, b, c: narrow(a) * narrow(b) + c,
    "mad.u16": lambda a, b, c: low(a) * low(b) + c,
    "shrm": lambda a, b, c: b >> a % 32 & c,
    "shlm": lambda a, b, c: b << a % 32 & c,
    "shrg": lambda a, b, c: b >> a % 32 | c,
    "shlg": lambda a, b, c: b << a % 32 | c,
    "andg": lambda a, b, c: b & a | c,
    "sel.b32": lambda a, b, c: a if b else c,
    "sel.b16": lambda a, b, c: a if b else c,
    "(sat)add.u": lambda a, b: clamped(a + b, 0, WORD),
    "(sat)sub.u": lambda a, b: clamped(a - b, 0, WORD),
    "(sat)add.s": lambda a, b: clamped(signed(a) + signed(b), -(1 << 31), (1 << 31) - 1),
    "(sat)sub.s": lambda a, b: clamped(signed(a) - signed(b), -(1 << 31), (1 << 31) - 1),
    "cmps.u.lt": lambda a, b: a < b,
    "cmps.u.ge": lambda a, b: a >= b,
    "cmps.s.le": lambda a, b: signed(a) <= signed(b),
    "cmps.s.gt": lambda a, b: signed(a) > signed(b),
    "cmps.u.eq": lambda a, b: a == b,
    "cmps.s.ne": lambda a, b: a != b,
}
"""Operations of words, as Python computes them. Shifts take five bits; the clz of 0 is what Mesa
takes for none."""


def nearest(exact: Fraction) -> float:
    """The float32 next to a number, ties to even."""
    guess = ctypes.c_float(float(exact)).value
    if math.isinf(guess):
        return guess
    word = bits_of(guess)
    words = (word, word + 1) if not word & WORD >> 1 else (word - 1, word, word + 1)
    around = [float_of(word) for word in words]
    finite = [x for x in around if math.isfinite(x)]
    return min(finite, key=lambda x: (abs(Fraction(x) - exact), bits_of(x) & 1))


def fused(a: float, b: float, c: float) -> float:
    """a * b + c, rounded once."""
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest(exact) if exact else a * b + c


def other_if_nan(choose: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """A choice between two numbers, of which one may be none."""
    return lambda a, b: b if math.isnan(a) else a if math.isnan(b) else choose(a, b)


def whole(round_: Callable[[float], float]) -> Callable[[float], float]:
    """A rounding to whole numbers, which infinities and NaN pass."""
    return lambda a: float(round_(a)) if math.isfinite(a) else a


def if_finite(function: Callable[[float], float], at_infinity: float) -> Callable[[float], float]:
    """A function of Python, which raises where hardware has infinity or NaN."""

    def run(a: float) -> float:
        if math.isnan(a) or a == -math.inf or (a < 0 and function is not math.exp2):
            return 0.0 if a == -math.inf and function is math.exp2 else math.nan
        if a == math.inf:
            return at_infinity
        try:
            return function(a)
        except OverflowError:
            return math.inf
        except (ValueError, ZeroDivisionError):
            return -math.inf if function is math.log2 else math.copysign(math.inf, a)

    return run


FLOATS: dict[str, Callable[..., float]] = {
    "add.f": lambda a, b: a + b,
    "mul.f": lambda a, b: a * b,
    "min.f": other_if_nan(min),
    "max.f": other_if_nan(max),
    "floor.f": whole(math.floor),
    "ceil.f": whole(math.ceil),
    "rndne.f": whole(round),
    "trunc.f": whole(math.trunc),
    "sign.f": lambda a: a if math.isnan(a) else float(a > 0) - float(a < 0),
    "absneg.f": lambda a: a,
    "mad.f32": fused,
    "rcp": lambda a: 1 / a if a else math.copysign(math.inf, a),
    "rsq": if_finite(lambda a: 1 / math.sqrt(a), 0.0),
    "sqrt": if_finite(math.sqrt, math.inf),
    "exp2": if_finite(math.exp2, math.inf),
    "log2": if_finite(math.log2, math.inf),
    "sin": lambda a: math.sin(a) if math.isfinite(a) else math.nan,
    "cos": lambda a: math.cos(a) if math.isfinite(a) else math.nan,
    "(sat)mul.f": lambda a, b: 0.0 if math.isnan(a * b) else clamped_float(a * b),
}
"""Operations of floats, as Python computes them in float64."""
APPROXIMATE = {"rsq", "sqrt", "exp2", "log2", "sin", "cos", "rcp"}


def clamped_float(a: float) -> float:
    return min(max(a, 0.0), 1.0)


def bits_of(a: float) -> int:
    """The word of a number, rounded to float32."""
    return ctypes.c_uint32.from_buffer(ctypes.c_float(a)).value


def float_of(word: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


EDGES = [0, 1, 2, 31, 32, 33, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0x7FFFFFFF, 0x80000000, WORD]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, 3.3e38, -3.3e38, 1e-20, 7e8]
SPECIAL = [*NUMBERS, math.inf, -math.inf, math.nan]


def drawn(few: Sequence[Any], draw: Callable[[random.Random], Any], count: int) -> list[list[Any]]:
    """All combinations of a few operands, then some at random, as columns."""
    generator = random.Random(count)
    rows = list(itertools.product(few, repeat=count))[:5000]
    rows += [tuple(draw(generator) for _ in range(count)) for _ in range(300)]
    return [list(column) for column in zip(*rows, strict=True)]


def line_of(name: str, function: Callable[..., Any]) -> tuple[str, int]:
    """An instruction with as many sources as a function takes, and their number."""
    one = name in ("min.u", "max.u")
    count = 2 if one or name in ("min.f", "max.f") else function.__code__.co_argcount
    return f"{name} r1.x, {', '.join(f'r0.{c}' for c in 'xyz'[:count])}", count


def test_every_operation_that_is_known_is_compared() -> None:
    compared = {name.removeprefix("(sat)") for name in (*INTEGERS, *FLOATS)}
    assert compared >= {*operations.INTEGER, *operations.FLOAT, *operations.SATURATED}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_operation_of_words(name: str) -> None:
    """Shifts by 0, 31, 32 and more, the least and the greatest numbers, and some at random."""
    function = INTEGERS[name]
    line, count = line_of(name, function)
    columns = drawn(EDGES, lambda g: g.getrandbits(32), count)
    expected = [int(function(*row)) & WORD for row in zip(*columns, strict=True)]
    assert computed(line, *columns) == expected


@pytest.mark.parametrize("name", FLOATS)
def test_an_operation_of_floats(name: str) -> None:
    """Zeros of both signs, subnormal numbers, infinities, NaN, and some at random."""
    function = FLOATS[name]
    line, count = line_of(name, function)
    columns = drawn(SPECIAL, lambda g: ctypes.c_float(g.gauss(0, 100)).value, count)
    columns = [[float_of(bits_of(a)) for a in column] for column in columns]
    found = computed(line, *[[bits_of(a) for a in column] for column in columns])
    for word, *row in zip(found, *columns, strict=True):
        expected, got = float_of(bits_of(function(*row))), float_of(word)
        if name in APPROXIMATE:
            assert got == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True), row
        else:
            assert (math.isnan(got) and math.isnan(expected)) or got == expected, row


@pytest.mark.parametrize("condition", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_comparison_with_nan_holds_only_for_inequality(condition: str) -> None:
    a, b = drawn(SPECIAL, lambda g: g.gauss(0, 1), 2)
    a, b = ([float_of(bits_of(n)) for n in column] for column in (a, b))
    holds = {
        "lt": float.__lt__,
        "le": float.__le__,
        "gt": float.__gt__,
        "ge": float.__ge__,
        "eq": float.__eq__,
        "ne": float.__ne__,
    }[condition]
    columns = [[bits_of(n) for n in column] for column in (a, b)]
    found = computed(f"cmps.f.{condition} r1.x, r0.x, r0.y", *columns)
    assert found == [int(holds(x, y)) for x, y in zip(a, b, strict=True)]


# --- registers that a0.x names


def addressed(line: str, addresses: Sequence[int], merged: bool = True) -> Groups:
    """Threads with addresses of their own, after an instruction; r1.x is 100, r1.y 101 and on."""
    made = [instruction(text) for text in ("mova a0.x, hr0.x", line, "end")]
    groups = ready(tuple(made), merged, len(addresses))
    groups.full[0] = numpy.array(addresses, "i").view("I")
    groups.half[0] = groups.full[0] & numpy.uint32(0xFFFF)
    for number in range(4, 32):
        groups.full[number] = numpy.full(len(addresses), 96 + number, "I")
        groups.half[number] = groups.full[number]
    groups.run()
    return groups


def test_a_source_that_an_address_names() -> None:
    addresses = [0, 3, -2, 3, 5]
    assert addressed("mov.u32u32 r0.y, r<a0.x + 6>", addresses).full[1].tolist() == [
        96 + 6 + n for n in addresses
    ]
    found = addressed("(rpt1)add.u r0.y, (r)r<a0.x + 6>, 1", addresses)
    assert found.full[2].tolist() == [96 + 8 + n for n in addresses]
    constants = addressed("mov.u32u32 r0.y, c<a0.x + 2>", addresses).full[1]
    assert constants.tolist() == [0x10001 * (n + 2) for n in addresses]


def test_a_target_that_an_address_names() -> None:
    found = addressed("add.u r<a0.x + 8>, r1.x, 5", [0, 3, -2, 3])
    for thread, number in enumerate((8, 11, 6, 11)):
        changed = [n for n in range(4, 32) if found.full[n][thread] != 96 + n]
        assert changed == [number]
        assert found.full[number][thread] == 105


@pytest.mark.parametrize("merged", [True, False])
def test_a_half_register_that_an_address_names(merged: bool) -> None:
    """Two of them share a full one, or lie apart."""
    found = addressed("mov.u16u16 hr<a0.x + 13>, hr<a0.x + 20>", [0, 1, 2, 3], merged)
    expected = [110, 0, 111, 0] if merged else [116, 117, 118, 119]
    reader = [found.code.words_of("hr", 13 + n)(found)[n] for n in range(4)]
    expected = [106, 0, 107, 0] if merged else expected
    assert [int(n) for n in reader] == expected


@pytest.mark.parametrize("address", [-40, 200])
def test_an_address_beyond_the_registers_of_a_launch_is_a_fault(address: int) -> None:
    with pytest.raises(IllegalAddress, match=r"instruction 1, mov.*of component .* by a0\.x"):
        addressed("mov.u32u32 r0.y, r<a0.x + 4>", [0, address])


def test_an_address_that_nobody_wrote_is_a_fault() -> None:
    made = instruction("mov.u32u32 r0.y, r<a0.x + 4>")
    with pytest.raises(IllegalAddress, match=r"by a0\.x"):
        ready((made, instruction("end")), True).run()


# --- predicates and poison


def test_predicates_turn_threads_off_until_they_end() -> None:
    lines = ["cmps.s.lt p0.x, r0.x, 2", "predt", "mov.u32u32 r1.x, 7", "predf"]
    lines += ["mov.u32u32 r1.x, 8", "prede", "add.u r1.y, r1.x, 1", "end"]
    groups = ready(tuple(map(instruction, lines)), True)
    groups.full[0] = numpy.arange(4, dtype="I")
    groups.run()
    assert groups.full[4].tolist() == [7, 7, 8, 8]
    assert groups.full[5].tolist() == [8, 8, 9, 9]


@pytest.mark.parametrize(
    ("name", "taken"), [("brao p0.x, p0.y", [1, 2, 3]), ("braa p0.x, !p0.y", [1])]
)
def test_a_branch_on_two_predicates(name: str, taken: list[int]) -> None:
    """Threads 0 to 3: the first predicate holds for odd ones, the second for those above 1."""
    lines = ["and.b r0.y, r0.x, 1", "cmps.s.gt p0.x, r0.y, 0", "cmps.s.gt p0.y, r0.x, 1"]
    lines += ["mov.u32u32 r1.x, 1", f"{name}, #2", "mov.u32u32 r1.x, 0", "end"]
    groups = ready(tuple(map(instruction, lines)), True)
    groups.full[0] = numpy.arange(4, dtype="I")
    groups.run()
    assert groups.full[4].tolist() == [int(n in taken) for n in range(4)]


def test_registers_shared_and_private_memory_begin_as_garbage() -> None:
    lines = ["mov.u32u32 r1.y, 0", "ldl.u32 r1.z, l[r1.y], 1", "ldp.u32 r1.w, p[r1.y], 1", "end"]
    groups = ready(tuple(map(instruction, lines)), True)
    groups.run()
    assert set(groups.full[4].tolist()) == {POISON}
    assert all(groups.full[n].all() for n in (6, 7))


def test_code_without_an_end_is_a_fault() -> None:
    with pytest.raises(Exception, match="goes on behind its end"):
        ready((instruction("add.u r1.x, r0.x, 1"),), True).run()
