"""The executor of PTX against NumPy, and each fault that it must find.

Kernels are written here in PTX, so that no compiler is needed. Numbers are random by SEED.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy
import pytest
from emulation.faults import (
    BarrierFault,
    ConvergenceFault,
    Fault,
    IllegalAddress,
    LaunchFault,
    MisalignedAddress,
    RaceFault,
    SyntaxFault,
    TimeoutFault,
)
from emulation.memory import Region
from executor.bulk import TensorMap, swizzled
from executor.launch import Executor
from executor.syntax import parse
from executor.warpgroup import MatrixDescriptor

Array = numpy.ndarray[Any, Any]
SEED = 20261122
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
    .reg .pred %p<8>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %rd<32>;
    .reg .f32 %f<64>; .reg .f64 %fd<32>;
"""
START = """
    ld.param.u64 %rd0, [k_param_0]; ld.param.u64 %rd1, [k_param_1];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r3, %r1, %r2, %r0;
"""
"""%rd0 result, %rd1 input, %r0 thread, %r3 thread of the grid."""


def kernel(body: str, parameters: int = 2, variables: str = "") -> str:
    """A module with one kernel `k`."""
    names = ", ".join(f".param .u64 k_param_{i}" for i in range(parameters))
    return f"{HEADER}.visible .entry k({names}) {{ {variables} {REGISTERS} {body} \n ret; }}"


def run(
    text: str,
    *arrays: Array,
    blocks: int = 1,
    threads: int = 32,
    dynamic_shared: int = 0,
    executor: Executor | None = None,
) -> None:
    """Launch `k` with the addresses of arrays as its parameters."""
    executor = executor or Executor()
    address, parameters = 0x7000_0000_0000, b""
    for number, array in enumerate(arrays):
        executor.memory.add(Region(address, array.view(numpy.uint8).ravel(), f"array {number}"))
        parameters += struct.pack("<Q", address)
        address += -(-array.nbytes // 256) * 256 + 256
    module = parse(text)
    executor.launch(
        module, "k", (blocks, 1, 1), (threads, 1, 1), parameters, dynamic_shared=dynamic_shared
    )


def at(base: str, index: str, width: int) -> str:
    """%rd4 = base + index * width."""
    return f"mul.wide.u32 %rd5, {index}, {width}; add.s64 %rd4, {base}, %rd5;"


LETTERS = {"f32": "f", "f64": "fd", "b16": "h", "b32": "r", "b64": "rd"}


def width(kind: str) -> int:
    """Bytes of a type in memory."""
    known = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
    return known.get(kind) or int(kind[1:]) // 8


def held(kind: str) -> str:
    """The letters of the registers that hold a type."""
    return LETTERS[kind if kind in ("f32", "f64") else f"b{max(8 * width(kind), 16)}"]


def elementwise(statement: str, result: str, *sources: str) -> str:
    """A kernel that reads one element of each source, computes, and writes one.

    In the statement d is the result, a, b and c the sources.
    """
    body, names = START, {}
    for number, (name, kind) in enumerate(zip("abc", sources, strict=False)):
        moved = "b" + str(8 * width(kind)) if kind in ("f16", "bf16") else kind
        names[name] = f"%{held(kind)}{10 + number}"
        body += f"ld.param.u64 %rd6, [k_param_{number + 1}]; {at('%rd6', '%r3', width(kind))}\n"
        body += f"ld.global.{moved} {names[name]}, [%rd4];\n"
    names["d"] = f"%{held(result)}20"
    words = [names.get(word.strip(",;"), word.strip(",;")) for word in statement.split()[1:]]
    body += f"{statement.split(maxsplit=1)[0]} {', '.join(words)};\n"
    moved = "b" + str(8 * width(result)) if result in ("f16", "bf16") else result
    body += f"{at('%rd0', '%r3', width(result))} st.global.{moved} [%rd4], {names['d']};"
    return kernel(body, parameters=1 + len(sources))


TYPES: dict[str, Any] = {
    **{f"u{8 * n}": numpy.dtype(f"u{n}").type for n in (1, 2, 4, 8)},
    **{f"s{8 * n}": numpy.dtype(f"i{n}").type for n in (1, 2, 4, 8)},
    **{f"b{8 * n}": numpy.dtype(f"u{n}").type for n in (2, 4, 8)},
    "f16": numpy.float16,
    "f32": numpy.float32,
    "f64": numpy.float64,
}


def numbers(kind: str, generator: numpy.random.Generator, count: int = 256) -> Array:
    """Random values of a type, with its special ones in front."""
    wanted = TYPES[kind]
    if kind[0] == "f":
        special = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-40, 6e4, -0.3]
        values = generator.standard_normal(count) * 10.0 ** generator.integers(-3, 4, count)
        values[: len(special)] = special
        with numpy.errstate(over="ignore"):
            return values.astype(wanted)
    bounds = numpy.iinfo(wanted)
    values = generator.integers(bounds.min, bounds.max, count, wanted, endpoint=True)
    special = [0, 1, bounds.max, bounds.min, bounds.max - 1, 7]
    values[: len(special)] = special
    return values


def compute(statement: str, result: str, sources: Sequence[str], *values: Array) -> Array:
    """Result of an instruction for arrays."""
    wanted = numpy.uint16 if result == "bf16" else TYPES[result]
    found = numpy.zeros(values[0].shape, wanted)
    run(elementwise(statement, result, *sources), found, *values, blocks=2, threads=128)
    return found


FLOAT_CASES: dict[str, Callable[..., Any]] = {
    "add.{t} d a b": lambda a, b: a + b,
    "sub.{t} d a b": lambda a, b: a - b,
    "mul.{t} d a b": lambda a, b: a * b,
    "min.{t} d a b": numpy.fmin,
    "max.{t} d a b": numpy.fmax,
    "neg.{t} d a": lambda a: -a,
    "abs.{t} d a": numpy.abs,
}


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize("statement", FLOAT_CASES)
def test_arithmetic_of_floats(statement: str, kind: str) -> None:
    generator = numpy.random.default_rng(SEED)
    sources = [numbers(kind, generator) for _ in range(statement.count(" ") - 1)]
    with numpy.errstate(all="ignore"):
        wanted = FLOAT_CASES[statement](*sources)
    found = compute(statement.format(t=kind), kind, [kind] * len(sources), *sources)
    numpy.testing.assert_array_equal(found, wanted)


INTEGER_CASES: dict[str, Callable[..., Any]] = {
    "add.{t} d a b": lambda a, b: a + b,
    "sub.{t} d a b": lambda a, b: a - b,
    "mul.lo.{t} d a b": lambda a, b: a * b,
    "min.{t} d a b": min,
    "max.{t} d a b": max,
    "div.{t} d a b": lambda a, b: (
        None if b == 0 else abs(a) // abs(b) * (-1) ** ((a < 0) != (b < 0))
    ),
    "rem.{t} d a b": lambda a, b: None if b == 0 else math.copysign(1, a) * (abs(a) % abs(b)),
    "mad.lo.{t} d a b a": lambda a, b: a * b + a,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("statement", INTEGER_CASES)
def test_arithmetic_of_integers(statement: str, kind: str) -> None:
    generator = numpy.random.default_rng(SEED)
    a, b = numbers(kind, generator), generator.permutation(numbers(kind, generator))
    found = compute(statement.format(t=kind), kind, [kind, kind], a, b)
    bits = 8 * a.dtype.itemsize
    for x, y, got in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        if "rem" in statement:
            wanted = None if y == 0 else (abs(x) % abs(y)) * (-1 if x < 0 else 1)
        else:
            wanted = INTEGER_CASES[statement](x, y)
        if wanted is not None:
            assert got % 2**bits == wanted % 2**bits, (statement, x, y)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_high_half_of_a_product(kind: str) -> None:
    generator = numpy.random.default_rng(SEED)
    a, b = numbers(kind, generator), numbers(kind, generator)[::-1].copy()
    found = compute(f"mul.hi.{kind} d a b", kind, [kind, kind], a, b)
    bits = 8 * a.dtype.itemsize
    assert found.tolist() == [x * y >> bits for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["b32", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("opcode", ["shl", "shr"])
def test_shifts_end_at_the_width(opcode: str, kind: str) -> None:
    generator = numpy.random.default_rng(SEED)
    a = numbers(kind, generator)
    amount = generator.integers(0, 80, a.size).astype(numpy.uint32)
    written = f"b{8 * a.dtype.itemsize}" if opcode == "shl" else kind
    found = compute(f"{opcode}.{written} d a b", kind, [kind, "u32"], a, amount)
    mask = 2 ** (8 * a.dtype.itemsize) - 1
    for x, n, got in zip(a.tolist(), amount.tolist(), found.tolist(), strict=True):
        assert got & mask == (x << n if opcode == "shl" else x >> n) & mask


@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_fma_rounds_once(kind: str) -> None:
    generator = numpy.random.default_rng(SEED)
    a, b = (generator.standard_normal(256).astype(TYPES[kind]) for _ in range(2))
    c = (-a.astype(numpy.float64) * b * (1 + generator.integers(-2, 3, 256) * 2.0**-12)).astype(
        TYPES[kind]
    )
    found = compute(f"fma.rn.{kind} d a b c", kind, [kind] * 3, a, b, c)
    for x, y, z, got in zip(*(v.tolist() for v in (a, b, c, found)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = TYPES[kind](float(exact)) if kind != "f32" else found.dtype.type(float(exact))
        gap = float(numpy.spacing(numpy.abs(TYPES[kind](got))))
        assert abs(Fraction(got) - exact) * 2 <= Fraction(gap), (x, y, z, got, near)


@pytest.mark.slow
def test_conversions_between_floats() -> None:
    torch = pytest.importorskip("torch")
    generator = numpy.random.default_rng(SEED)
    values = numbers("f32", generator)
    half = compute("cvt.rn.f16.f32 d a", "f16", ["f32"], values)
    with numpy.errstate(over="ignore"):
        numpy.testing.assert_array_equal(half, values.astype(numpy.float16))
    brain = compute("cvt.rn.bf16.f32 d a", "bf16", ["f32"], values)
    finite = ~numpy.isnan(values)
    wanted = torch.tensor(values).bfloat16().view(torch.int16).numpy().view(numpy.uint16)
    numpy.testing.assert_array_equal(brain[finite], wanted[finite])
    assert (brain[~finite] & 0x7FFF > 0x7F80).all()


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
def test_floats_to_integers_end_at_the_bounds(kind: str) -> None:
    values = numbers("f32", numpy.random.default_rng(SEED)) * numpy.float32(1000)
    bounds = numpy.iinfo(TYPES[kind])
    held = "u16" if kind == "u8" else "s16" if kind == "s8" else kind
    found = compute(f"cvt.rzi.{kind}.f32 d a", held, ["f32"], values)
    for value, got in zip(values.tolist(), found.tolist(), strict=True):
        wanted = 0 if math.isnan(value) else min(max(value, bounds.min), bounds.max)
        assert got == int(wanted), value


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_integers_to_floats_round_once(kind: str) -> None:
    values = numbers(kind, numpy.random.default_rng(SEED))
    found = compute(f"cvt.rn.f32.{kind} d a", "f32", [kind], values)
    for value, got in zip(values.tolist(), found.tolist(), strict=True):
        gap = Fraction(float(numpy.spacing(numpy.float32(abs(got)))))
        assert abs(Fraction(got) - value) * 2 <= gap, value


def test_eight_bit_floats() -> None:
    torch = pytest.importorskip("torch")
    values = numbers("f32", numpy.random.default_rng(SEED))
    for kind, wanted_type in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        bits = compute(f"cvt.rn.satfinite.{kind}x2.f32 d b a", "b16", ["f32"] * 2, values, values)
        assert (bits >> 8 == bits & 0xFF).all()
        largest = 448 if kind == "e4m3" else 57344
        clipped = torch.tensor(values).clamp(-largest, largest)
        finite = ~numpy.isnan(values)
        wanted = clipped.to(wanted_type).view(torch.uint8).numpy()
        numpy.testing.assert_array_equal((bits & 0xFF)[finite], wanted[finite])
        back = compute(f"cvt.rn.f16x2.{kind}x2 d a", "b32", ["b16"], bits)
        numpy.testing.assert_array_equal(
            (back & 0xFFFF).astype(numpy.uint16).view(numpy.float16)[finite],
            clipped.to(wanted_type).half().numpy()[finite],
        )


BIT_CASES: dict[str, Callable[[int], int]] = {
    "popc.b32 d a": lambda a: a.bit_count(),
    "clz.b32 d a": lambda a: 32 - a.bit_length(),
    "brev.b32 d a": lambda a: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 d a": lambda a: (a.bit_length() - 1) % 2**32,
    "bfe.u32 d a 5 7": lambda a: a >> 5 & 127,
    "bfe.s32 d a 20 12": lambda a: ((a >> 20 & 0xFFF) ^ 0x800) - 0x800 & 0xFFFFFFFF,
    "bfi.b32 d a 0 8 8": lambda a: (a & 255) << 8,
    "prmt.b32 d a 0 0x0123": lambda a: int.from_bytes(a.to_bytes(4, "little"), "big"),
    "shf.l.wrap.b32 d a a 9": lambda a: (a << 9 | a >> 23) & 0xFFFFFFFF,
    "dp2a.lo.u32.u32 d a 0x04030201 7": lambda a: (a & 0xFFFF) + 2 * (a >> 16) + 7,
    "dp2a.hi.u32.u32 d a 0x04030201 7": lambda a: 3 * (a & 0xFFFF) + 4 * (a >> 16) + 7,
    "lop3.b32 d a 255 15 0x96": lambda a: a ^ 255 ^ 15,
    "not.b32 d a": lambda a: ~a & 0xFFFFFFFF,
}


@pytest.mark.parametrize("statement", BIT_CASES)
def test_bits(statement: str) -> None:
    values = numbers("u32", numpy.random.default_rng(SEED))
    found = compute(statement, "b32", ["b32"], values)
    assert found.tolist() == [BIT_CASES[statement](value) for value in values.tolist()]


# --- control


def test_threads_that_diverge_meet_again() -> None:
    """Each thread counts the steps of its own Collatz sequence; then all shuffle together."""
    body = f"""{START} {at("%rd1", "%r3", 4)} ld.global.u32 %r4, [%rd4]; mov.u32 %r5, 0;
    $loop: setp.le.u32 %p1, %r4, 1; @%p1 bra $end;
    and.b32 %r6, %r4, 1; setp.eq.u32 %p2, %r6, 1; @!%p2 bra $even;
    mad.lo.u32 %r4, %r4, 3, 1; bra.uni $next;
    $even: shr.u32 %r4, %r4, 1;
    $next: add.u32 %r5, %r5, 1; bra.uni $loop;
    $end: shfl.sync.bfly.b32 %r7|%p3, %r5, 1, 31, -1; add.u32 %r5, %r5, %r7;
    {at("%rd0", "%r3", 4)} st.global.u32 [%rd4], %r5;"""
    values = numpy.arange(1, 257, dtype=numpy.uint32)
    found = numpy.zeros_like(values)
    run(kernel(body), found, values, blocks=2, threads=128)

    def steps(value: int) -> int:
        count = 0
        while value > 1:
            value, count = (3 * value + 1 if value & 1 else value >> 1), count + 1
        return count

    single = numpy.array([steps(value) for value in values.tolist()])
    numpy.testing.assert_array_equal(found, single + single[numpy.arange(256) ^ 1])


REVERSED = f"""{START} {at("%rd1", "%r3", 4)} ld.global.b32 %r4, [%rd4];
    mov.u32 %r5, tile; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6; st.shared.b32 [%r7], %r4;
    BARRIER
    sub.u32 %r8, 63, %r0; shl.b32 %r8, %r8, 2; add.u32 %r8, %r5, %r8; ld.shared.b32 %r9, [%r8];
    {at("%rd0", "%r3", 4)} st.global.b32 [%rd4], %r9;"""
TILE = ".shared .align 4 .b8 tile[256];"


def test_shared_memory_and_a_barrier() -> None:
    values = numpy.arange(128, dtype=numpy.uint32)
    found = numpy.zeros_like(values)
    text = kernel(REVERSED.replace("BARRIER", "bar.sync 0;"), variables=TILE)
    run(text, found, values, blocks=2, threads=64)
    numpy.testing.assert_array_equal(found, values.reshape(2, 64)[:, ::-1].ravel())


def test_a_missing_barrier_is_a_race() -> None:
    values = numpy.arange(64, dtype=numpy.uint32)
    text = kernel(REVERSED.replace("BARRIER", ""), variables=TILE)
    with pytest.raises(
        RaceFault, match=r"k, line .*ld\.shared.*thread 0 .*no barrier after thread 63"
    ):
        run(text, numpy.zeros_like(values), values, threads=64)


def test_a_barrier_of_a_warp_orders_its_threads_alone() -> None:
    values = numpy.arange(64, dtype=numpy.uint32)
    body = REVERSED.replace("BARRIER", "bar.warp.sync -1;")
    with pytest.raises(RaceFault):
        run(kernel(body, variables=TILE), numpy.zeros_like(values), values, threads=64)
    found = numpy.zeros(32, numpy.uint32)
    body = body.replace("63, %r0", "31, %r0")
    run(kernel(body, variables=TILE), found, values, threads=32)
    numpy.testing.assert_array_equal(found, numpy.arange(32)[::-1])


def test_two_writes_to_one_place_are_a_race() -> None:
    body = f"{START} mov.u32 %r5, tile; st.shared.b32 [%r5], %r0;"
    with pytest.raises(RaceFault, match="writes"):
        run(kernel(body, variables=TILE), numpy.zeros(1), numpy.zeros(1))


@pytest.mark.parametrize("limit", [32, 40])
def test_a_barrier_that_some_threads_never_reach(limit: int) -> None:
    """Whole warps that left, and a part of one."""
    body = f"{START} setp.ge.u32 %p1, %r0, {limit}; @%p1 bra $out; bar.sync 0; $out:"
    with pytest.raises(BarrierFault, match=r"bar\.sync"):
        run(kernel(body), numpy.zeros(1), numpy.zeros(1), threads=64)


def test_a_kernel_that_never_ends() -> None:
    executor = Executor()
    executor.most_instructions = 1000
    with pytest.raises(TimeoutFault, match="1000"):
        run(kernel(f"{START} $l: bra.uni $l;"), numpy.zeros(1), numpy.zeros(1), executor=executor)


# --- memory


def test_addresses_outside_of_every_allocation() -> None:
    body = f"{START} add.u32 %r4, %r3, 1; {at('%rd1', '%r4', 4)} ld.global.b32 %r5, [%rd4];"
    with pytest.raises(IllegalAddress, match=r"read of 4 bytes at .*array 1"):
        run(kernel(body), numpy.zeros(32, numpy.uint32), numpy.zeros(32, numpy.uint32))


def test_misaligned_addresses() -> None:
    body = f"{START} ld.global.v2.b32 {{%r4, %r5}}, [%rd1+4];"
    with pytest.raises(MisalignedAddress, match="8 bytes"):
        run(kernel(body), numpy.zeros(32, numpy.uint32), numpy.zeros(32, numpy.uint32))


def test_shared_memory_outside_of_its_array() -> None:
    body = f"{START} mov.u32 %r5, tile; st.shared.b32 [%r5+256], %r0;"
    with pytest.raises(IllegalAddress, match="shared memory"):
        run(kernel(body, variables=TILE), numpy.zeros(1), numpy.zeros(1), threads=1)


def test_dynamic_shared_memory_is_as_long_as_the_launch_says() -> None:
    text = kernel(f"{START} mov.u32 %r5, more; st.shared.b32 [%r5+1020], %r0;")
    text = text.replace(".visible", ".extern .shared .align 16 .b8 more[];\n.visible")
    run(text, numpy.zeros(1), numpy.zeros(1), threads=1, dynamic_shared=1024)
    with pytest.raises(IllegalAddress):
        run(text, numpy.zeros(1), numpy.zeros(1), threads=1, dynamic_shared=512)
    with pytest.raises(LaunchFault, match="shared memory"):
        run(text, numpy.zeros(1), numpy.zeros(1), threads=1, dynamic_shared=1 << 20)


def test_generic_addresses_find_their_space() -> None:
    body = f"""{START} mov.u32 %r5, tile; cvt.u64.u32 %rd6, %r5; cvta.shared.u64 %rd7, %rd6;
    mul.wide.u32 %rd8, %r0, 4; add.u64 %rd7, %rd7, %rd8; st.b32 [%rd7], %r3;
    ld.b32 %r9, [%rd7]; mov.u64 %rd9, own; cvta.local.u64 %rd9, %rd9; st.b32 [%rd9], %r9;
    ld.b32 %r9, [%rd9]; {at("%rd0", "%r3", 4)} st.b32 [%rd4], %r9;"""
    found = numpy.zeros(128, numpy.uint32)
    text = kernel(body, variables=f"{TILE} .local .align 4 .b8 own[8];")
    run(text, found, numpy.zeros(1), blocks=2, threads=64)
    numpy.testing.assert_array_equal(found, numpy.arange(128))


def test_atomics_take_turns() -> None:
    body = f"""{START} and.b32 %r4, %r3, 7; {at("%rd0", "%r4", 4)}
    atom.global.add.u32 %r5, [%rd4], 1; red.global.max.u32 [%rd0+32], %r3;"""
    found = numpy.zeros(9, numpy.uint32)
    run(kernel(body), found, numpy.zeros(1), blocks=4, threads=64)
    assert found.tolist() == [32] * 8 + [255]


SHUFFLES: dict[str, Callable[[int], int]] = {
    "up.b32 %r5|%p1, %r0, 3, 0, -1": lambda lane: lane - 3 if lane >= 3 else lane,
    "down.b32 %r5|%p1, %r0, 3, 31, -1": lambda lane: lane + 3 if lane < 29 else lane,
    "bfly.b32 %r5|%p1, %r0, 5, 31, -1": lambda lane: lane ^ 5,
    "idx.b32 %r5|%p1, %r0, 9, 31, -1": lambda lane: 9,
    "bfly.b32 %r5|%p1, %r0, 3, 0x1c1f, -1": lambda lane: lane ^ 3,
    "idx.b32 %r5|%p1, %r0, 1, 0x1c1f, -1": lambda lane: lane // 4 * 4 + 1,
}


@pytest.mark.parametrize("statement", SHUFFLES)
def test_shuffles(statement: str) -> None:
    found = numpy.zeros(32, numpy.uint32)
    body = f"{START} shfl.sync.{statement}; {at('%rd0', '%r3', 4)} st.global.b32 [%rd4], %r5;"
    run(kernel(body), found, numpy.zeros(1))
    assert found.tolist() == [SHUFFLES[statement](lane) for lane in range(32)]


def test_a_shuffle_of_a_part_of_its_mask() -> None:
    body = f"{START} setp.lt.u32 %p1, %r0, 16; @%p1 shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1;"
    with pytest.raises(ConvergenceFault, match="mask 0xffffffff"):
        run(kernel(body), numpy.zeros(1), numpy.zeros(1))


def test_votes() -> None:
    body = f"""{START} and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 1;
    vote.sync.ballot.b32 %r5, %p1, -1; vote.sync.all.pred %p2, %p1, -1;
    vote.sync.any.pred %p3, %p1, -1; selp.b32 %r6, 1, 0, %p2; selp.b32 %r7, 2, 0, %p3;
    or.b32 %r6, %r6, %r7; redux.sync.add.s32 %r8, %r0, -1;
    st.global.b32 [%rd0], %r5; st.global.b32 [%rd0+4], %r6; st.global.b32 [%rd0+8], %r8;"""
    found = numpy.zeros(3, numpy.uint32)
    run(kernel(body), found, numpy.zeros(1))
    assert found.tolist() == [0xAAAAAAAA, 2, 496]


# --- asynchronous copies

COPIED = f"""{START} mov.u32 %r5, tile; shl.b32 %r6, %r0, 4; add.u32 %r7, %r5, %r6;
    {at("%rd1", "%r0", 16)} cp.async.cg.shared.global [%r7], [%rd4], 16;
    cp.async.commit_group; WAIT bar.sync 0;
    xor.b32 %r8, %r0, 1; shl.b32 %r8, %r8, 4; add.u32 %r8, %r5, %r8;
    ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r8];
    {at("%rd0", "%r0", 16)} st.global.v4.b32 [%rd4], {{%r10, %r11, %r12, %r13}};"""
WIDE_TILE = ".shared .align 16 .b8 tile[1024];"


def test_asynchronous_copies() -> None:
    values = numpy.arange(128, dtype=numpy.uint32)
    found = numpy.zeros_like(values)
    text = kernel(COPIED.replace("WAIT", "cp.async.wait_group 0;"), variables=WIDE_TILE)
    run(text, found, values, threads=32)
    wanted = values.reshape(32, 4)[numpy.arange(32) ^ 1]
    numpy.testing.assert_array_equal(found.reshape(32, 4), wanted)


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_a_copy_that_nobody_waited_for(wait: str) -> None:
    values = numpy.arange(128, dtype=numpy.uint32)
    text = kernel(COPIED.replace("WAIT", wait), variables=WIDE_TILE)
    with pytest.raises(RaceFault, match="unfinished copy"):
        run(text, numpy.zeros_like(values), values, threads=32)


BULK = f"""{START} mov.u32 %r5, tile; mov.u32 %r6, signal; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 512;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r5], [%rd1], 512, [%r6];
    WAIT
    shl.b32 %r7, %r0, 2; add.u32 %r7, %r5, %r7; ld.shared.b32 %r8, [%r7];
    {at("%rd0", "%r0", 4)} st.global.b32 [%rd4], %r8;"""
WAITS = "$wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r6], 0; @!%p2 bra $wait;"
BULK_TILE = ".shared .align 128 .b8 tile[1024]; .shared .align 8 .b8 signal[8];"


def test_bulk_copies_signal_an_mbarrier() -> None:
    values = numpy.arange(128, dtype=numpy.uint32)
    found = numpy.zeros_like(values)
    run(kernel(BULK.replace("WAIT", WAITS), variables=BULK_TILE), found, values, threads=128)
    numpy.testing.assert_array_equal(found, values)
    text = kernel(BULK.replace("WAIT", "bar.sync 0;"), variables=BULK_TILE)
    with pytest.raises(RaceFault, match="unfinished copy"):
        run(text, found, values, threads=128)


def test_an_mbarrier_that_nobody_completes() -> None:
    text = kernel(
        BULK.replace("WAIT", WAITS).replace("_, [%r6], 512", "_, [%r6], 528"), variables=BULK_TILE
    )
    with pytest.raises(BarrierFault, match="mbarrier that nobody completes"):
        run(text, numpy.zeros(128, numpy.uint32), numpy.zeros(128, numpy.uint32), threads=128)


def tensor_map(
    address: int, sizes: Sequence[int], box: Sequence[int], swizzle: int, kind: int = 7
) -> bytes:
    """The map of a dense tensor of float32, or of another kind of 4 bytes."""
    data = bytearray(128)
    stride, strides = 4, []
    for size in sizes[:-1]:
        stride *= size
        strides.append(stride)
    head = (len(sizes) - 1) << 4 | kind << 7 | swizzle << 13
    struct.pack_into("<QI", data, 0, address, head)
    for index, each in enumerate(strides):
        struct.pack_into("<I", data, 0x0C + 4 * index, each >> 4)
    for index, size in enumerate(sizes):
        struct.pack_into("<I", data, 0x20 + 4 * index, size - 1)
        data[0x37 + index] = box[index] - 1
    return bytes(data)


@pytest.mark.parametrize(("swizzle", "kind"), [(0, 7), (3, 7), (3, 11)])
def test_boxes_of_tensors_arrive_swizzled_and_padded(swizzle: int, kind: int) -> None:
    """A box of 8 rows of 32 floats at (1, 16) of a tensor of 12 rows of 40, or rounded ones."""
    values = numpy.arange(12 * 40, dtype=numpy.float32).reshape(12, 40) + 0.3
    executor = Executor()
    encoded = tensor_map(0x7000_0000_0200, (40, 12), (32, 8), swizzle, kind)
    maps = numpy.frombuffer(encoded, numpy.uint8)
    body = f"""{START} ld.param.u64 %rd2, [k_param_2]; mov.u32 %r5, tile; mov.u32 %r6, signal;
    setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 1024;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r5], [%rd1, {{16, 1}}], [%r6];
    {WAITS} shl.b32 %r7, %r0, 2; add.u32 %r7, %r5, %r7; ld.shared.b32 %r8, [%r7];
    {at("%rd0", "%r0", 4)} st.global.b32 [%rd4], %r8;"""
    found = numpy.zeros(256, numpy.float32)
    maps = maps.copy()
    # parameters 0, 1, 2 are the result, the map and the tensor; addresses go up by 256 and size
    struct.pack_into("<Q", maps.data, 0, 0x7000_0000_0000 + 1024 + 256 + 512)
    variables = ".shared .align 1024 .b8 tile[1024]; .shared .align 8 .b8 signal[8];"
    run(
        kernel(body, 3, variables),
        found,
        maps,
        values,
        threads=256,
        executor=executor,
    )
    wanted = numpy.zeros((8, 32), numpy.float32)
    wanted[:, :24] = values[1:9, 16:]
    if kind == 11:  # 10 bits of a fraction
        whole, exponent = numpy.frexp(wanted)
        wanted = numpy.ldexp(numpy.round(whole * 2048) / 2048, exponent)
    start = 1024  # where shared memory begins, a multiple of the swizzle's period
    places = swizzled(start + numpy.arange(1024), swizzle)[::4] - start
    plain = numpy.zeros(256, numpy.float32)
    plain[places // 4] = wanted.ravel()
    numpy.testing.assert_array_equal(found, plain)
    assert TensorMap.decode(maps.tobytes()).box == (32, 8)


# --- matrix units

SHAPES = {
    "f16": (16, 8, 16),
    "bf16": (16, 8, 16),
    "tf32": (16, 8, 8),
    "s8": (16, 8, 32),
    "u8": (16, 8, 32),
    "e4m3": (16, 8, 32),
}


def element(
    kind: str, generator: numpy.random.Generator, shape: tuple[int, int]
) -> tuple[Array, Array]:
    """Small numbers of a type: their values, and their bits."""
    whole = generator.integers(0 if kind == "u8" else -4, 5, shape)
    values = whole.astype(numpy.float32)
    if kind == "f16":
        return values, values.astype(numpy.float16).view(numpy.uint16)
    if kind == "bf16":
        return values, (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    if kind == "tf32":
        return values, values.view(numpy.uint32)
    if kind == "e4m3":
        table = {0: 0, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48}
        bits = [table[abs(v)] | (0x80 if v < 0 else 0) for v in whole.ravel().tolist()]
        return values, numpy.array(bits, numpy.uint8).reshape(shape)
    return values, whole.astype(numpy.int8).view(numpy.uint8)


@pytest.mark.parametrize("kind", SHAPES)
def test_products_of_fragments(kind: str) -> None:
    """Lanes read A and B by the published maps, row by row; C is A @ B + 1."""
    m, n, k = SHAPES[kind]
    generator = numpy.random.default_rng(SEED)
    a, a_bits = element(kind, generator, (m, k))
    b, b_bits = element(kind, generator, (k, n))
    per = 4 // a_bits.itemsize
    lane = numpy.arange(32)
    group, inner = lane // 4, lane % 4
    a_words = numpy.ascontiguousarray(a_bits).view(numpy.uint32)
    b_words = numpy.ascontiguousarray(b_bits.T).view(numpy.uint32)
    half = k // per // 2
    fragments = [
        a_words[group, inner],
        a_words[group + 8, inner],
        a_words[group, inner + half],
        a_words[group + 8, inner + half],
        b_words[group, inner],
        b_words[group, inner + half],
    ]
    result = "s32" if kind in ("s8", "u8") else "f32"
    letter = "r" if result == "s32" else "f"
    one = "1" if result == "s32" else "0f3F800000"
    loads = "".join(f"ld.global.b32 %r{10 + i}, [%rd4+{4 * i}];" for i in range(6))
    stores = "".join(f"st.global.b32 [%rd4+{4 * i}], %{letter}{20 + i};" for i in range(4))
    registers = ", ".join(f"%{letter}{20 + i}" for i in range(4))
    body = f"""{START} {at("%rd1", "%r0", 24)} {loads}
    mma.sync.aligned.m{m}n{n}k{k}.row.col.{result}.{kind}.{kind}.{result}
        {{{registers}}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{{one}, {one}, {one}, {one}}};
    {at("%rd0", "%r0", 16)} {stores}"""
    found = numpy.zeros((32, 4), numpy.int32 if result == "s32" else numpy.float32)
    run(kernel(body), found, numpy.ascontiguousarray(numpy.stack(fragments, 1)))
    wanted = a @ b + 1
    rows = group[:, None] + numpy.array([0, 0, 8, 8])
    columns = 2 * inner[:, None] + numpy.array([0, 1, 0, 1])
    numpy.testing.assert_array_equal(found, wanted[rows, columns])


def test_a_product_of_a_part_of_a_warp() -> None:
    body = f"""{START} setp.lt.u32 %p1, %r0, 16; @%p1
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
    {{%f1, %f2, %f3, %f4}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%f1, %f2, %f3, %f4}};"""
    with pytest.raises(ConvergenceFault):
        run(kernel(body), numpy.zeros(1), numpy.zeros(1))


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(trans: str) -> None:
    values = numpy.arange(256, dtype=numpy.uint16).reshape(4, 8, 8)
    body = f"""{START} mov.u32 %r5, tile; shl.b32 %r6, %r0, 4; add.u32 %r7, %r5, %r6;
    {at("%rd1", "%r0", 16)} ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd4];
    st.shared.v4.b32 [%r7], {{%r10, %r11, %r12, %r13}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r7];
    {at("%rd0", "%r0", 16)} st.global.v4.b32 [%rd4], {{%r20, %r21, %r22, %r23}};"""
    found = numpy.zeros((32, 4, 2), numpy.uint16)
    run(kernel(body, variables=WIDE_TILE), found, values)
    matrices = values.transpose(0, 2, 1) if trans else values
    lane = numpy.arange(32)
    for number in range(4):
        for half in range(2):
            wanted = matrices[number, lane // 4, lane % 4 * 2 + half]
            numpy.testing.assert_array_equal(found[:, number, half], wanted)


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_wgmma_reads_operands_by_their_descriptors(swizzle: int) -> None:
    """64x16 by 16x8 of float16, both operands in shared memory, laid out for each swizzle."""
    generator = numpy.random.default_rng(SEED)
    span = 32 if swizzle == 0 else 16 << swizzle
    k_columns = 16  # 32 bytes of a row are used, whatever the swizzle's span is
    a, b = (generator.integers(-4, 5, (rows, k_columns)) for rows in (64, 8))
    block = 256 if swizzle == 0 else 8 * span
    leading, stride, code = (
        (128, 256, 0) if swizzle == 0 else (16, block, {1: 3, 2: 2, 3: 1}[swizzle])
    )
    a_start, b_start = 1024, 1024 + 8192
    image = numpy.zeros(8192 + 1024, numpy.uint8)
    for start, rows in ((a_start, a), (b_start, b)):
        bits = leading >> 4 << 16 | stride >> 4 << 32 | code << 62 | start >> 4
        places = MatrixDescriptor.decode(bits).places(len(rows), 32)
        image[places.ravel() - 1024] = (
            rows.astype(numpy.float16).view(numpy.uint8).reshape(len(rows), 32).ravel()
        )
    descriptor = leading >> 4 << 16 | stride >> 4 << 32 | code << 62
    body = f"""{START} mov.u32 %r5, tile; mov.u32 %r6, 0;
    $fill: {at("%rd1", "%r6", 1)} mul.wide.u32 %rd6, %r0, 4; add.u64 %rd4, %rd4, %rd6;
    ld.global.b32 %r7, [%rd4]; shl.b32 %r8, %r0, 2; add.u32 %r8, %r8, %r6; add.u32 %r8, %r8, %r5;
    st.shared.b32 [%r8], %r7; add.u32 %r6, %r6, 512; setp.lt.u32 %p1, %r6, {image.size};
    @%p1 bra $fill; bar.sync 0; fence.proxy.async; wgmma.fence.sync.aligned;
    mov.u64 %rd8, {descriptor | a_start >> 4}; mov.u64 %rd9, {descriptor | b_start >> 4};
    mov.pred %p2, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {{%f1, %f2, %f3, %f4}}, %rd8, %rd9, %p2, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    {at("%rd0", "%r0", 16)} st.global.v4.f32 [%rd4], {{%f1, %f2, %f3, %f4}};"""
    found = numpy.zeros((128, 4), numpy.float32)
    variables = f".shared .align 1024 .b8 tile[{image.size}];"
    run(kernel(body, variables=variables), found, image, threads=128)
    thread = numpy.arange(128)[:, None]
    rows = thread // 32 * 16 + thread % 32 // 4 + numpy.array([0, 0, 8, 8])
    columns = thread % 4 * 2 + numpy.array([0, 1, 0, 1])
    numpy.testing.assert_array_equal(found, (a @ b.T)[rows, columns])

    unfinished = body.replace("wgmma.wait_group.sync.aligned 0;", "")
    run(kernel(unfinished, variables=variables), found, image, threads=128)
    assert numpy.isnan(found).all()  # nobody has waited for the product


# --- what is no kernel


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("frobnicate.u32 %r1, %r2;", "does not know frobnicate"),
        ("bra $nowhere;", r"label \$nowhere"),
        ("add.u32 %r1, %r2, %nosuch;", "%nosuch|nosuch"),
        ("ld.global.v2.b32 %r1, [%rd1];", "1 registers for 2"),
    ],
)
def test_text_that_is_no_kernel(body: str, text: str) -> None:
    with pytest.raises(SyntaxFault, match=text):
        run(kernel(START + body), numpy.zeros(1), numpy.zeros(1))


def test_launches_that_a_card_refuses() -> None:
    with pytest.raises(LaunchFault, match="too large"):
        run(kernel(""), numpy.zeros(1), numpy.zeros(1), threads=2048)
    with pytest.raises(LaunchFault, match="bytes of parameters"):
        run(kernel(""), numpy.zeros(1))
    with pytest.raises(LaunchFault, match="no kernel 'j'"):
        Executor().launch(parse(kernel("")), "j", (1, 1, 1), (1, 1, 1), b"")
    assert issubclass(LaunchFault, Fault)
