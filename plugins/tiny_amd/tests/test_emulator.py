"""The emulator of three families beside the processor: one function of LLVM IR, compiled for both.

What LLVM emits for the card is executed by the emulator, what it emits for this machine natively;
numbers are random by SEED, with special ones among them. Faults are provoked by assembly.
"""

from __future__ import annotations

import struct

import numpy
import pluggy
import pytest

llvm = pytest.importorskip("llvmlite.binding")

from code_object import CODE, compile_kernel, load, run  # noqa: E402  needs llvmlite
from emulation.faults import (  # noqa: E402
    BarrierFault,
    ConvergenceFault,
    IllegalAddress,
    LaunchFault,
    MisalignedAddress,
    RaceFault,
    SyntaxFault,
    TimeoutFault,
)
from emulator.decode import FIRST_VGPR, decode  # noqa: E402
from emulator.dispatch import Emulator, touched, vector_registers  # noqa: E402
from emulator.opcodes import NAMES  # noqa: E402
from emulator.scalar import extract_wide  # noqa: E402
from ir_programs import (  # noqa: E402
    BARRIER,
    COUNT,
    NUMPY,
    SEED,
    SHARED,
    at,
    intrinsic,
    kernel,
    module_of,
    numbers,
    on_card,
    on_processor,
    reversed_in_shared,
    same,
    statement,
)
from listings import DECODERS, disagreement, listed  # noqa: E402

from tiny_amd.arch import arch_of  # noqa: E402
from tiny_amd.llvm import FEATURES  # noqa: E402
from tinycore import Context, Tensor, dtypes  # noqa: E402
from tinycore.plugin import register_observer, unregister_observer  # noqa: E402

each_arch = pytest.mark.parametrize("arch", DECODERS)


INTEGERS = ["i8", "i16", "i32", "i64"]
FLOATS = ["half", "float", "double"]
INTEGER_CASES = {
    **{op: f"%r = {op} {{t}} %x, %y" for op in ("add", "sub", "mul", "and", "or", "xor")},
    **{
        op: f"%d = or {{t}} %y, 1\n%r = {op} {{t}} %x, %d"
        for op in ("udiv", "urem", "sdiv", "srem")
    },
    **{
        op: f"%n = and {{t}} %y, {{last}}\n%r = {op} {{t}} %x, %n" for op in ("shl", "lshr", "ashr")
    },
    **{
        f"icmp {relation}": f"%c = icmp {relation} {{t}} %x, %y\n"
        "%r = select i1 %c, {t} %x, {t} %y"
        for relation in ("eq", "ne", "ult", "ule", "ugt", "uge", "slt", "sle", "sgt", "sge")
    },
    "square plus": "%s = mul {t} %x, %x\n%r = add {t} %s, %y",
    "shift and add": "%s = shl {t} %x, 3\n%r = add {t} %s, %y",
    "shift and or": "%s = shl {t} %x, 2\n%r = or {t} %s, %y",
    "field": "%s = lshr {t} %x, 3\n%r = and {t} %s, 15",
    "not": "%r = xor {t} %x, -1",
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("case", INTEGER_CASES)
@each_arch
def test_integers(case: str, kind: str, arch: str) -> None:
    generator = numpy.random.default_rng(SEED)
    values = [numbers(kind, generator), generator.permutation(numbers(kind, generator))]
    if case in ("sdiv", "srem"):
        values[1] %= numpy.iinfo(NUMPY[kind]).max // 2  # the least by -1 is undefined
    text = INTEGER_CASES[case].format(t=kind, last=int(kind[1:]) - 1)
    function = statement(text, kind, [kind, kind])
    found, _ = on_card(function, kind, [kind, kind], *values, arch=arch)
    same(found, on_processor(function, kind, [kind, kind], *values))


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize(
    "name", ["ctpop", "bitreverse", "smin", "smax", "umin", "umax", "fshl", "abs"]
)
@each_arch
def test_intrinsics_of_integers(name: str, kind: str, arch: str) -> None:
    generator = numpy.random.default_rng(SEED)
    count = {"ctpop": 1, "bitreverse": 1, "abs": 1, "fshl": 3}.get(name, 2)
    function = intrinsic(name, kind, count, ", i1 0" if name == "abs" else "")
    values = [numbers(kind, generator) for _ in range(count)]
    found, _ = on_card(function, kind, [kind] * count, *values, arch=arch)
    same(found, on_processor(function, kind, [kind] * count, *values))


@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("name", ["ctlz", "cttz"])
@each_arch
def test_zeros_at_either_end(name: str, kind: str, arch: str) -> None:
    values = numbers(kind, numpy.random.default_rng(SEED))
    function = intrinsic(name, kind, 1, ", i1 0")
    found, _ = on_card(function, kind, [kind], values, arch=arch)
    same(found, on_processor(function, kind, [kind], values))


FLOAT_CASES = {
    **{op: f"%r = {op} {{t}} %x, %y" for op in ("fadd", "fsub", "fmul", "fdiv")},
    "fneg": "%r = fneg {t} %x",
    **{
        f"fcmp {relation}": f"%c = fcmp {relation} {{t}} %x, %y\n"
        "%r = select i1 %c, {t} 1.0, {t} 2.0"
        for relation in (
            "oeq",
            "une",
            "olt",
            "ole",
            "ogt",
            "oge",
            "ult",
            "uge",
            "ord",
            "uno",
            "one",
        )
    },
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("case", FLOAT_CASES)
@each_arch
def test_floats(case: str, kind: str, arch: str) -> None:
    generator = numpy.random.default_rng(SEED)
    values = [numbers(kind, generator), generator.permutation(numbers(kind, generator))]
    function = statement(FLOAT_CASES[case].format(t=kind), kind, [kind, kind])
    found, _ = on_card(function, kind, [kind, kind], *values, arch=arch)
    same(found, on_processor(function, kind, [kind, kind], *values))


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    "name", ["fabs", "floor", "ceil", "trunc", "rint", "sqrt", "minnum", "maxnum", "copysign"]
)
@each_arch
def test_intrinsics_of_floats(name: str, kind: str, arch: str) -> None:
    generator = numpy.random.default_rng(SEED)
    count = 2 if name in ("minnum", "maxnum", "copysign") else 1
    values = [generator.permutation(numbers(kind, generator)) for _ in range(count)]
    found, _ = on_card(intrinsic(name, kind, count), kind, [kind] * count, *values, arch=arch)
    same(found, on_processor(intrinsic(name, kind, count), kind, [kind] * count, *values))


@pytest.mark.parametrize("kind", ["float", "double"])
@each_arch
def test_fma(kind: str, arch: str) -> None:
    generator = numpy.random.default_rng(SEED)
    values = [generator.permutation(numbers(kind, generator)) for _ in range(3)]
    function = intrinsic("fma", kind, 3)
    found, _ = on_card(function, kind, [kind] * 3, *values, arch=arch)
    same(found, on_processor(function, kind, [kind] * 3, *values))


CONVERSIONS = [
    *(("fptosi.sat", source, to) for source in FLOATS for to in ("i16", "i32", "i64")),
    *(("fptoui.sat", source, to) for source in FLOATS for to in ("i16", "i32", "i64")),
    *((op, source, to) for op in ("sitofp", "uitofp") for source in INTEGERS for to in FLOATS),
    *(("fpext", a, b) for a, b in (("half", "float"), ("half", "double"), ("float", "double"))),
    *(("fptrunc", b, a) for a, b in (("half", "float"), ("float", "double"))),
    *((op, "i16", "i64") for op in ("sext", "zext")),
    *((op, "i8", "i32") for op in ("sext", "zext")),
    ("trunc", "i64", "i16"),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("op", "source", "to"), CONVERSIONS)
@each_arch
def test_conversions(op: str, source: str, to: str, arch: str) -> None:
    values = numbers(source, numpy.random.default_rng(SEED))
    if op.endswith("sat"):
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[source]
        name = f"llvm.{op}.{to}.{suffix}"
        function = f"declare {to} @{name}({source})\n" + statement(
            f"%r = call {to} @{name}({source} %x)", to, [source]
        )
    else:
        function = statement(f"%r = {op} {source} %x to {to}", to, [source])
    found, _ = on_card(function, to, [source], values, arch=arch)
    wanted = on_processor(function, to, [source], values)
    if op.endswith("sat"):
        wanted[numpy.isnan(values)] = 0  # LLVM's language says so; x86 code for i16 does not
    same(found, wanted)


@pytest.mark.parametrize("case", ["exp2", "log2"])
@each_arch
def test_transcendental_functions(case: str, arch: str) -> None:
    values = numpy.abs(numbers("float", numpy.random.default_rng(SEED)))
    values = numpy.where(values > 100, numpy.float32(3.7), values)
    found, _ = on_card(intrinsic(case, "float", 1), "float", ["float"], values, arch=arch)
    with numpy.errstate(all="ignore"):
        wanted = getattr(numpy, case)(values.astype(numpy.float64))
    numpy.testing.assert_allclose(found, wanted, rtol=3e-7)


def test_pairs_of_halves_and_of_instructions() -> None:
    """Two halves are added in one instruction, two words in a VOPD pair."""
    halves = """%x2 = bitcast i32 %x to <2 x half>
%y2 = bitcast i32 %y to <2 x half>
%s = fadd <2 x half> %x2, %y2
%m = fmul <2 x half> %s, %y2
%r = bitcast <2 x half> %m to i32"""
    generator = numpy.random.default_rng(SEED)
    values = [
        generator.standard_normal(2 * COUNT).astype(numpy.float16).view(numpy.uint32)
        for _ in range(2)
    ]
    found, emulator = on_card(statement(halves, "i32", ["i32", "i32"]), "i32", ["i32"] * 2, *values)
    x, y = (v.view(numpy.float16) for v in values)
    numpy.testing.assert_array_equal(found.view(numpy.float16), (x + y) * y)
    assert {"v_pk_add_f16", "v_pk_mul_f16"} <= set(emulator.executed)
    pairs = "".join(
        f"%a{n} = fmul float %x, %{'xyz'[n % 3]}\n%b{n} = fadd float %a{n}, %{'zxy'[n % 3]}\n"
        f"%c{n} = fmul float %b{n}, {n + 2}.0\n"
        for n in range(6)
    )
    pairs += "%s1 = fadd float %c0, %c1\n" + "".join(
        f"%s{n} = fadd float %s{n - 1}, %c{n}\n" for n in range(2, 6)
    )
    pairs += "%r = fadd float %s5, 0.0"
    floats = [generator.standard_normal(COUNT).astype(numpy.float32) for _ in range(3)]
    function = statement(pairs, "float", ["float"] * 3)
    found, emulator = on_card(function, "float", ["float"] * 3, *floats)
    same(found, on_processor(function, "float", ["float"] * 3, *floats))
    assert any(name.startswith("v_dual") for name in emulator.executed), emulator.executed


# --- control


def test_lanes_and_waves_that_diverge() -> None:
    """Each work-item counts the steps of its own Collatz sequence."""
    body = f"""{at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  br label %loop
loop:
  %x = phi i32 [%v, %0], [%next, %more]
  %n = phi i32 [0, %0], [%m, %more]
  %done = icmp ule i32 %x, 1
  br i1 %done, label %end, label %more
more:
  %odd = and i32 %x, 1
  %isodd = icmp eq i32 %odd, 1
  %triple = mul i32 %x, 3
  %up = add i32 %triple, 1
  %half = lshr i32 %x, 1
  %next = select i1 %isodd, i32 %up, i32 %half
  %m = add i32 %n, 1
  br label %loop
end:
  {at("o", "%p0", "i32")} store i32 %n, ptr addrspace(1) %o"""
    values = numpy.arange(1, 257, dtype=numpy.uint32)
    found = numpy.zeros_like(values)
    run(compile_kernel(kernel(body, size=96)), [found, values], 2, 96)

    def steps(value: int) -> int:
        count = 0
        while value > 1:
            value, count = (3 * value + 1 if value & 1 else value >> 1), count + 1
        return count

    assert found[:192].tolist() == [steps(v) for v in values[:192].tolist()]


def test_shared_memory_and_a_barrier() -> None:
    values = numpy.arange(128, dtype=numpy.uint32)
    found = numpy.zeros_like(values)
    run(compile_kernel(reversed_in_shared(BARRIER)), [found, values], 2, 64)
    assert found.tolist() == values.reshape(2, 64)[:, ::-1].ravel().tolist()


def test_a_missing_barrier_is_a_race() -> None:
    values = numpy.arange(64, dtype=numpy.uint32)
    code = compile_kernel(reversed_in_shared('fence syncscope("wavefront") seq_cst'))
    with pytest.raises(RaceFault, match="no barrier after"):
        run(code, [numpy.zeros_like(values), values], 1, 64)


def test_a_barrier_that_some_waves_never_reach() -> None:
    body = """%c = icmp ult i32 %t, 32
  br i1 %c, label %stay, label %leave
leave:
  ret void
stay:
  call void @llvm.amdgcn.s.barrier()"""
    with pytest.raises(BarrierFault, match=r"s_barrier"):
        run(compile_kernel(kernel(body)), [numpy.zeros(1), numpy.zeros(1)], 1, 64)


def test_an_operand_that_is_encoded_and_not_read_is_not_waited_for() -> None:
    """LLVM writes s0 in the place of the third operand of a packed instruction of two."""
    shift = decode(struct.pack("<2I", 0xCC044024, 0x10002E81), 0)

    assert shift.name == "v_pk_lshlrev_b16"
    assert vector_registers(shift) == [23, FIRST_VGPR + 0x24]


def test_an_address_in_scratch_is_one_scalar() -> None:
    words = 0xED05C002, 0x00000001, 0x000FF000  # scratch_load_b128 v[1:4], off, s2 offset:4080
    loaded = decode(struct.pack("<3I", *words), 0, DECODERS["gfx1201"])
    assert touched(loaded) == [2]


def test_a_root_of_a_scalar_has_one_operand() -> None:
    """RDNA4's v_s_sqrt_f32 s5, s4 is encoded with two more, both of them s0."""
    root = decode(struct.pack("<2I", 0xD6880005, 4), 0, DECODERS["gfx1201"])

    assert root.name == "v_s_sqrt_f32"
    assert vector_registers(root) == [4]


def test_classes_of_a_double_are_one_word() -> None:
    """CDNA3's v_cmp_class_f64 vcc, v[4:5], v1."""
    compare = decode(struct.pack("<I", 0x7C240304), 0, DECODERS["gfx942"])

    assert compare.name == "v_cmp_class_f64"
    assert vector_registers(compare) == [FIRST_VGPR + 4, FIRST_VGPR + 5, FIRST_VGPR + 1]


def test_the_borrow_of_a_reversed_difference_goes_where_it_is_told() -> None:
    """RDNA3's v_subrev_co_u32 v1, s2, 0x80, v16: most differences have their borrow in VCC."""
    words = (0xD7020201, 0x000220FF, 0x80)
    difference = decode(struct.pack("<3I", *words), 0)

    assert (difference.name, difference.second) == ("v_subrev_co_u32", 2)


def test_a_scalar_product_with_a_constant_added() -> None:
    """RDNA4 computes what is the same in all lanes by scalar instructions."""
    body = f"""%a = load float, ptr addrspace(1) %p1
  %q = getelementptr float, ptr addrspace(1) %p1, i64 1
  %b = load float, ptr addrspace(1) %q
  %m = fadd float %a, %b
  %n = fsub float %a, %b
  %v = call float @llvm.fma.f32(float %m, float %n, float 0x400D800000000000)
  %w = fmul float %v, %m
  {at("o", "%p0", "float", "%t")} store float %w, ptr addrspace(1) %o"""
    module = kernel(body, more="declare float @llvm.fma.f32(float, float, float)")
    found, given = numpy.zeros(32, numpy.float32), numpy.array([1.5, -4.0], numpy.float32)
    emulator = Emulator(decoder=DECODERS["gfx1201"])
    run(compile_kernel(module, "gfx1201"), [found, given], emulator=emulator)

    assert "s_fmaak_f32" in {name for name, _ in listed(module, "gfx1201")}
    assert (found == (-2.5 * 5.5 + 3.6875) * -2.5).all()


def test_a_scalar_product_by_a_constant_has_it_between_its_operands() -> None:
    """LLVM writes a * 3.6875 + b so: s_fmamk_f32 s4, s5, 0x406c0000, s6."""
    words = (2 << 30 | 70 << 23 | 4 << 16 | 6 << 8 | 5, 0x406C0000)
    product = decode(struct.pack("<2I", *words), 0, DECODERS["gfx1201"])

    assert (product.name, product.size) == ("s_fmamk_f32", 8)
    assert (product.sources, product.literal) == ((5, 255, 6), 0x406C0000)


def test_addresses_outside_of_every_allocation() -> None:
    body = f"""{at("a", "%p1", "i32", "%t")} %b = getelementptr i8, ptr addrspace(1) %a, i64 4
  %v = load i32, ptr addrspace(1) %b
  {at("o", "%p0", "i32", "%t")} store i32 %v, ptr addrspace(1) %o"""
    arrays = [numpy.zeros(32, numpy.uint32), numpy.zeros(32, numpy.uint32)]
    with pytest.raises(IllegalAddress, match=r"global_load_b32.*array 1"):
        run(compile_kernel(kernel(body)), arrays)


def test_misaligned_addresses() -> None:
    body = f"""{at("a", "%p1", "i8", "%t")} %v = load i32, ptr addrspace(1) %a, align 4
  {at("o", "%p0", "i32", "%t")} store i32 %v, ptr addrspace(1) %o"""
    with pytest.raises(MisalignedAddress):
        run(compile_kernel(kernel(body)), [numpy.zeros(32), numpy.zeros(32)])


def test_accesses_that_may_lie_anywhere_are_of_bytes() -> None:
    """LLVM would join them, counting on a setting of the kernel's driver."""
    body = f"""{at("a", "%p1", "i8", "%t")} %v = load <4 x i32>, ptr addrspace(1) %a, align 1
  %n = mul i32 %t, 18
  {at("o", "%p0", "i8", "%n")} store <4 x i32> %v, ptr addrspace(1) %o, align 1"""
    given = numpy.arange(100, dtype=numpy.uint8)
    found = numpy.zeros(32 * 18, numpy.uint8)
    run(compile_kernel(kernel(body), features=FEATURES), [found, given])
    windows = numpy.lib.stride_tricks.sliding_window_view(given, 16)[:32]
    assert (found.reshape(32, 18)[:, :16] == windows).all()
    assert not found.reshape(32, 18)[:, 16:].any()


def test_misaligned_atomics() -> None:
    body = f"""{at("a", "%p1", "i8", "%t")}
  %v = atomicrmw add ptr addrspace(1) %a, i32 1 syncscope("agent") monotonic, align 4"""
    with pytest.raises(MisalignedAddress):
        run(compile_kernel(kernel(body)), [numpy.zeros(32), numpy.zeros(32)])


def test_shared_memory_outside_of_its_array() -> None:
    body = f"""%far = add i32 %t, 256
  {at("w", "@tile", "i32", "%far", 3)} store volatile i32 %t, ptr addrspace(3) %w"""
    with pytest.raises(IllegalAddress, match="shared memory"):
        run(compile_kernel(kernel(body, 2, SHARED)), [numpy.zeros(1), numpy.zeros(1)])


def test_a_kernel_that_never_ends() -> None:
    emulator = Emulator()
    emulator.most_instructions = 1000
    body = """br label %loop
loop:
  store volatile i32 %t, ptr addrspace(1) %p0
  br label %loop
never:"""
    with pytest.raises(TimeoutFault, match="1000"):
        run(
            compile_kernel(kernel(body)),
            [numpy.zeros(32), numpy.zeros(1)],
            emulator=emulator,
        )


def test_private_memory() -> None:
    body = f"""%m = alloca [16 x i32], addrspace(5)
  {at("first", "%m", "i32", "%t", 5)} store i32 %t, ptr addrspace(5) %m
  %n = and i32 %t, 15
  {at("w", "%m", "i32", "%n", 5)} store volatile i32 %i, ptr addrspace(5) %w
  %k = xor i32 %n, 0
  {at("q", "%m", "i32", "%k", 5)} %v = load volatile i32, ptr addrspace(5) %q
  {at("o", "%p0", "i32")} store i32 %v, ptr addrspace(1) %o"""
    found = numpy.zeros(64, numpy.uint32)
    emulator = run(compile_kernel(kernel(body, size=32)), [found, numpy.zeros(1)], 2, 32)
    assert found.tolist() == list(range(64))
    assert any(name.startswith("scratch_") for name in emulator.executed)


@each_arch
def test_private_memory_at_a_distance_from_a_register_below_zero(arch: str) -> None:
    """From RDNA4 on LLVM adds a positive offset to a register that may be negative."""
    body = f"""%m = alloca [32 x i32], addrspace(5)
  %b = sub i32 0, %t
  {at("w", "%m", "i32", "%b", 5)} {at("x", "%w", "i32", "31", 5)}
  store volatile i32 %i, ptr addrspace(5) %x
  %u = sub i32 0, %g
  {at("y", "%m", "i32", "%u", 5)} {at("z", "%y", "i32", "31", 5)}
  %v = load volatile i32, ptr addrspace(5) %z
  %c = icmp eq i32 %t, %g
  %r = select i1 %c, i32 %v, i32 0
  {at("o", "%p0", "i32")} store i32 %r, ptr addrspace(1) %o"""
    found = numpy.zeros(128, numpy.uint32)
    binary = compile_kernel(kernel(body, size=32), arch)
    run(binary, [found, numpy.zeros(1)], 4, 32, emulator=Emulator(decoder=DECODERS[arch]))
    wanted = numpy.zeros((4, 32), numpy.uint32)
    numpy.fill_diagonal(wanted, range(0, 128, 33))
    assert found.tolist() == wanted.ravel().tolist()


def test_atomics() -> None:
    body = f"""%b = and i32 %i, 3
  {at("w", "%p0", "i32", "%b")}
  %old = atomicrmw add ptr addrspace(1) %w, i32 %i syncscope("agent") monotonic
  {at("l", "@tile", "i32", "%b", 3)} %zero = icmp ult i32 %t, 4
  br i1 %zero, label %clear, label %go
clear:
  store i32 0, ptr addrspace(3) %l
  br label %go
go:
  {BARRIER}
  %o2 = atomicrmw max ptr addrspace(3) %l, i32 %t syncscope("workgroup") monotonic
  {BARRIER}
  {at("m", "%p1", "i32", "%b")} %v = load i32, ptr addrspace(3) %l
  store i32 %v, ptr addrspace(1) %m"""
    sums, most = numpy.zeros(4, numpy.uint32), numpy.zeros(4, numpy.uint32)
    run(compile_kernel(kernel(body, 2, SHARED, 64)), [sums, most], 2, 64)
    assert sums.tolist() == [sum(range(k, 128, 4)) for k in range(4)]
    assert most.tolist() == [60, 61, 62, 63]


# --- matrices

MATRIX = """
declare <8 x float> @llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16(
  <16 x half>, <16 x half>, <8 x float>)
"""


def matrix_kernel(lane: str) -> str:
    """C = A @ B by WMMA; `lane` is the row or column whose elements a lane loads."""
    body = f"""%l = {lane}
  %ra = mul i32 %l, 16
  {at("a", "%p1", "half", "%ra")} %av = load <16 x half>, ptr addrspace(1) %a, align 32
  {at("b", "%p2", "half", "%ra")} %bv = load <16 x half>, ptr addrspace(1) %b, align 32
  %c = call <8 x float> @llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16(
    <16 x half> %av, <16 x half> %bv, <8 x float> zeroinitializer)
  %rc = mul i32 %t, 8
  {at("o", "%p0", "float", "%rc")} store <8 x float> %c, ptr addrspace(1) %o, align 32"""
    return kernel(body, 3, MATRIX)


def test_products_of_matrices() -> None:
    """B is stored by columns; element (m, n) is in register m // 2 of lane n + 16 * (m % 2)."""
    generator = numpy.random.default_rng(SEED)
    a, b = (generator.standard_normal((16, 16)).astype(numpy.float16) for _ in range(2))
    found = numpy.zeros((32, 8), numpy.float32)
    run(compile_kernel(matrix_kernel("and i32 %t, 15")), [found, a, b.T.copy()])
    wanted = a.astype(numpy.float64) @ b.astype(numpy.float64)
    row, column = numpy.arange(16)[:, None], numpy.arange(16)[None]
    numpy.testing.assert_allclose(
        found[column + 16 * (row % 2), row // 2], wanted, rtol=1e-5, atol=1e-5
    )


def test_lanes_of_matrices_must_repeat_each_other() -> None:
    generator = numpy.random.default_rng(SEED)
    a, b = (generator.standard_normal((32, 16)).astype(numpy.float16) for _ in range(2))
    with pytest.raises(ConvergenceFault, match="upper 16 lanes"):
        run(
            compile_kernel(matrix_kernel("and i32 %t, 31")),
            [numpy.zeros((32, 8), numpy.float32), a, b],
        )


# --- decoding


@pytest.mark.slow
@pytest.mark.parametrize("arch", DECODERS)
def test_instructions_are_those_that_llvm_lists(arch: str) -> None:
    """Mnemonic and length of each instruction of these tests' kernels and of products."""
    texts = [
        statement(case.format(t=kind, last=int(kind[1:]) - 1), kind, [kind, kind])
        for case in INTEGER_CASES.values()
        for kind in INTEGERS[1::2]
    ]
    texts += [
        statement(c.format(t=k), k, [k] * 2) for c in FLOAT_CASES.values() for k in FLOATS[::2]
    ]
    modules = [module_of(text) for text in texts]
    modules += [reversed_in_shared(BARRIER)]
    listings = [one for module in modules for one in listed(module, arch, FEATURES)]
    assert not [said for name, code in listings if (said := disagreement(name, code, arch))]
    assert len(listings) > 1000


def normalized_attention(x: Tensor) -> Tensor:
    """Operations of the usual networks: products, softmax, sums, casts and moved elements."""
    y = (x @ x.transpose(-1, -2)).softmax(-1) @ x
    return (y.conv2d(y.reshape(8, 8, 1, 64)[:, :, :, :3], padding=1) + 1).sum((1, 3)).exp()


@pytest.mark.slow
@pytest.mark.parametrize("arch", DECODERS)
def test_instructions_of_tensors_are_those_that_llvm_lists(arch: str) -> None:
    """Kernels of tensors, those with matrix instructions among them."""
    kernels: list[str] = []

    class Sources:
        @pluggy.HookimplMarker("tinycore")
        def tinycore_kernel_compiled(self, source: str) -> None:
            kernels.append(source)

    observer = Sources()
    register_observer(observer)
    try:
        with Context(DEV=f"NULL:LLVM:{arch}", CCACHE=0):
            x = Tensor.empty(1, 8, 8, 64, dtype=dtypes.float16)
            normalized_attention(x).realize()
            x.reshape(64, 64).matmul(x.reshape(64, 64)).realize()
    finally:
        unregister_observer(observer)

    listings = [one for kernel in kernels for one in listed(kernel, arch, FEATURES)]
    assert not [said for name, code in listings if (said := disagreement(name, code, arch))]
    if arch_of(arch).matrix:
        assert any("mfma" in name or "wmma" in name for name, _ in listings)


def test_lengths_of_all_instructions_of_a_kernel_add_up() -> None:
    """The code of a kernel decodes from its first byte to s_endpgm, literals and pairs included."""
    loaded = load(compile_kernel(reversed_in_shared(BARRIER)))
    place = loaded.symbols["k"] - CODE
    seen: list[str] = []
    while not seen or seen[-1] != "s_endpgm":
        instruction = decode(loaded.image[place : place + 16].tobytes(), place)
        seen.append(instruction.name)
        place += instruction.size
    assert {"s_load_b128", "ds_store_b32", "s_barrier", "global_store_b32"} <= set(seen)


def test_bytes_that_are_no_instruction() -> None:
    with pytest.raises(SyntaxFault, match="no instruction"):
        decode(struct.pack("<I", 0xF0000000))
    with pytest.raises(SyntaxFault, match="VOP1 9"):
        decode(struct.pack("<I", 0x7E000000 | 9 << 9))
    with pytest.raises(SyntaxFault, match="the code ends"):
        decode(struct.pack("<I", 0xD8340000))
    assert sum(map(len, NAMES.values())) > 1200


def test_dispatches_that_are_refused() -> None:
    emulator = Emulator()
    code = compile_kernel(kernel(""), features="+wavefrontsize64,-wavefrontsize32")
    with pytest.raises(LaunchFault, match="waves of 64"):
        run(code, [numpy.zeros(1), numpy.zeros(1)], emulator=emulator)
    with pytest.raises(LaunchFault, match="no dispatch"):
        run(compile_kernel(kernel("")), [numpy.zeros(1), numpy.zeros(1)], 1, 2048)


def test_fields_of_64_bits() -> None:
    generator = numpy.random.default_rng(7)
    for number in generator.integers(0, 2**64, 2000, dtype=numpy.uint64).tolist():
        offset, width = (int(n) for n in generator.integers(0, [64, 65]))
        control = numpy.array([offset | width << 16], numpy.uint32)
        source, mask = numpy.array([number], numpy.uint64), (1 << width) - 1
        signed = (number - (number >> 63 << 64)) >> offset & mask
        signed -= (1 << width) if width and signed >> (width - 1) else 0

        assert extract_wide(source, control, False).tolist() == [number >> offset & mask]
        assert extract_wide(source, control, True).tolist() == [signed % 2**64]
