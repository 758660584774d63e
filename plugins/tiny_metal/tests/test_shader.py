"""The executor of MSL: right results of right kernels, and a fault for each kind of wrong one."""

from __future__ import annotations

import numpy
import pytest

pytestmark = pytest.mark.usefixtures("mock")

FRAME = """\
#include <metal_stdlib>
using namespace metal;
kernel void k(device float *out [[buffer(0)]], const device float *in [[buffer(1)]],
    constant long *values [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_ [[thread_position_in_threadgroup]]) {{
  int i = thread_.x, g = group.x, at = g * 64 + i;
  {body}
}}
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
SUM = f"""threadgroup float t[64];
  t[i] = in[at];
  {BARRIER}
  for (int s = 32; s > 0; s >>= 1) {{ if (i < s) t[i] += t[i + s]; {BARRIER} }}
  if (i == 0) out[g] = t[0] * (float)values[0];"""
GROUPS = 5


def ran(body: str, frame: str = FRAME, kinds: str = "ff") -> numpy.ndarray:
    """Result of a kernel of 5 groups of 64 threads for 0, 1, 2, ..."""
    from shader.compiler import compiled  # noqa: PLC0415
    from shader.launch import Executor, Memory, Span, ffi  # noqa: PLC0415

    code = compiled(frame.format(body=body) if frame is FRAME else frame)
    sizes = (GROUPS * 64 * numpy.dtype(kinds[0]).itemsize, GROUPS * 64 * 4, 8)
    memory = [Memory(size) for size in sizes]

    def seen(which: int, kind: str) -> numpy.ndarray:
        place = ffi.cast("char *", memory[which].address)
        return numpy.frombuffer(ffi.buffer(place, sizes[which]), kind)

    seen(0, kinds[0])[:] = 0
    seen(1, kinds[1])[:] = numpy.arange(GROUPS * 64)
    seen(2, "q")[:] = 3
    try:
        spans = {slot: Span(item) for slot, item in enumerate(memory)}
        Executor().launch(code, code.functions["k"], spans, (GROUPS, 1, 1), (64, 1, 1))
        return seen(0, kinds[0]).copy()
    finally:
        for item in memory:
            item.free()


def test_a_sum_over_a_group() -> None:
    expected = 3 * numpy.arange(GROUPS * 64.0).reshape(GROUPS, 64).sum(1)
    assert ran(SUM)[:GROUPS].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("body", "fault", "words"),
    [
        (SUM.replace(f"in[at];\n  {BARRIER}", "in[at];"), "RaceFault", "array t"),
        (SUM.replace(f"t[i + s]; {BARRIER}", "t[i + s];"), "RaceFault", "with no barrier between"),
        (SUM.replace("mem_threadgroup", "mem_device"), "RaceFault", "array t"),
        (f"if (i < 40) {{ {BARRIER} }}", "BarrierFault", "waits at a barrier"),
        (f"if (i < 40) {{ {BARRIER} }} else\n {{ {BARRIER} }}", "BarrierFault", "waits at line"),
        ("out[at + 1] = 1;", "IllegalAddress", "writes 4 bytes at byte 1280 of out"),
        ("out[at] = in[at - 1];", "IllegalAddress", "reads 4 bytes at byte -4 of in"),
        ("((device float *)in)[at] = 1;", "IllegalAddress", "which is only read"),
        ("out[at / 2] = 1;", "RaceFault", "of out"),
        ("out[i] = in[at];", "RaceFault", "which thread"),
        ("out[at] = out[at ^ 1];", "RaceFault", "of out"),
        ("out[at] = 7 / (i - 3);", "UndefinedFault", "a quotient by zero"),
        ("out[at] = 7 % (i - 3);", "UndefinedFault", "a quotient by zero"),
        ("out[at] = 1 << i;", "UndefinedFault", "a shift by the width or more"),
        ("out[at] = (int)(in[at] * 1e9f);", "UndefinedFault", "a float that does not fit"),
        ("out[at] = 2147483647 - 9 + i;", "UndefinedFault", "a sum that does not fit"),
        ("out[at] = ((device float4 *)(in + i % 8))->x;", "UndefinedFault", "a misaligned access"),
        (
            "float4 v = *(const device float4 *)(in + i / 4 + 2); out[at] = v.x;",
            *("UndefinedFault", "a misaligned access"),
        ),
        (
            "if (i == 3) *(device float2 *)(out + at) = float2(1);",
            *("UndefinedFault", "a misaligned access"),
        ),
        ("threadgroup float t[64]; t[i + 1] = 1;", "UndefinedFault", "an index outside"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_is_found(body: str, fault: str, words: str) -> None:
    from emulation.faults import Fault  # noqa: PLC0415

    with pytest.raises(Fault, match=words) as found:
        ran(body)
    assert type(found.value).__name__ == fault


def test_two_groups_may_write_the_same_value_to_one_place() -> None:
    """Plans move the last tile back so that it fits, and compute what it shares twice."""
    assert ran("out[i] = in[i];")[:64].tolist() == list(range(64))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "out[at] = 1.0;\n  double x = 1;",
            "program_source:8:3: error: attempt to use a poisoned identifier",
        ),
        ("outt[at] = 1;", "program_source:7:3: error: use of undeclared identifier 'outt'"),
        ("in[at] = 1;", "error: cannot assign to variable 'in'|read-only|const"),
        ("out[at] = as_type<float>((ushort)1);", "as_type needs types of one size"),
        ("half a = 1.0h; bfloat b = (bfloat)a;", "deleted"),
    ],
)
def test_what_is_no_msl_is_refused_with_its_line(body: str, words: str) -> None:
    from shader.compiler import CompileFailure  # noqa: PLC0415

    with pytest.raises(CompileFailure, match=words):
        ran(body)


def test_bfloat_is_of_language_3_1() -> None:
    from shader.compiler import CompileFailure, compiled  # noqa: PLC0415

    source = FRAME.format(body="out[at] = (float)bfloat(in[at]);")
    compiled(source, (3, 1))
    with pytest.raises(CompileFailure, match="bfloat"):
        compiled(source, (3, 0))


def test_halves_and_bfloats_round_to_the_nearest_even() -> None:
    body = "out[at] = (float)(half)(2048.0f + in[at]);"
    expected = (2048 + numpy.arange(GROUPS * 64, dtype="f")).astype("e").astype("f")
    assert ran(body).tolist() == expected.tolist()
    body = "out[at] = (float)bfloat(256.0f + in[at]);"
    torch = pytest.importorskip("torch")
    values = torch.arange(GROUPS * 64) + 256.0
    assert ran(body).tolist() == values.bfloat16().float().tolist()


def test_a_half_is_rounded_after_each_operation() -> None:
    body = "half a = (half)in[at]; out[at] = (float)(a * (half)1.5f + (half)0.25f - a * a);"
    a = numpy.arange(GROUPS * 64).astype("e")
    with numpy.errstate(over="ignore", invalid="ignore"):
        expected = (a * numpy.float16(1.5) + numpy.float16(0.25) - a * a).astype("f")
    numpy.testing.assert_array_equal(ran(body), expected)


def test_a_fused_product_of_halves_is_rounded_once() -> None:
    """Also where the exact sum lies so near to the middle of two halves that a float is there."""
    a = numpy.arange(GROUPS * 64, dtype="f").astype("e")
    b, c = numpy.float16(1 + 2**-10), numpy.float16(-(2**-24))
    body = "out[at] = (float)fma((half)in[at], (half)0x1.004p0f, (half)-0x1p-24f);"
    expected = (a.astype("d") * float(b) + float(c)).astype("e").astype("f")
    twice = (a.astype("f") * numpy.float32(b) + numpy.float32(c)).astype("e").astype("f")

    assert ran(body).tolist() == expected.tolist()
    assert (expected != twice).any()


def test_lanes_of_a_simd_group() -> None:
    body = """float whole = simd_sum(in[at]);
  float other = simd_shuffle_xor(in[at], 1);
  out[at] = whole + 1000 * other;"""
    x = numpy.arange(GROUPS * 64.0).reshape(-1, 32)
    expected = x.sum(1, keepdims=True) + 1000 * x[:, numpy.arange(32) ^ 1]
    assert ran(body).tolist() == expected.ravel().tolist()


MATRIX_FRAME = """\
#include <metal_stdlib>
using namespace metal;
kernel void k(device float *out [[buffer(0)]], const device float *in [[buffer(1)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_ [[thread_position_in_threadgroup]]) {
  int i = thread_.x, at = group.x * 64 + i / 32 * 32;
  simdgroup_float8x8 a, b, c = simdgroup_float8x8(1);
  a.thread_elements()[0] = in[at + i % 32]; a.thread_elements()[1] = 1;
  b.thread_elements()[0] = i % 32 == 5 ? 2 : 0; b.thread_elements()[1] = 0;
  BODY
  out[group.x * 64 + i] = c.thread_elements()[0] + 1000 * c.thread_elements()[1];
}
"""
PRODUCT = "simdgroup_multiply_accumulate(c, a, b, c);"


def test_matrices_of_a_simd_group() -> None:
    """Lane 5 holds row 2, column 2: b has its 2 there, so column 2 of the sum is a's, doubled."""
    found = ran("", MATRIX_FRAME.replace("BODY", PRODUCT)).reshape(-1, 32)
    lanes = numpy.arange(32)
    rows = lanes // 16 * 4 + lanes // 2 % 4
    holds_column = (lanes // 8 % 2 == 0) & (lanes % 2 == 1)
    of_row = rows // 4 * 16 + rows % 4 * 2 + 1  # the lane with columns 2 and 3 of a row
    given = numpy.arange(GROUPS * 64).reshape(-1, 32)
    expected = 1001 + numpy.where(holds_column, 2 * given[:, of_row], 0)
    assert found.tolist() == expected.tolist()


def test_matrices_are_loaded_and_stored_where_lanes_hold_them() -> None:
    """A lane's elements of a matrix with 16 elements a row are those of the units' maps."""
    frame = MATRIX_FRAME[: MATRIX_FRAME.index("  out[")] + "}\n"
    body = """simdgroup_load(a, in, 16);
  out[group.x * 64 + i] = a.thread_elements()[0] * 1000 + a.thread_elements()[1];"""
    lane = numpy.arange(32)
    row, column = (lane // 4 & 4) + lane // 2 % 4, (lane // 4 & 2) * 2 + lane % 2 * 2
    place = row * 16 + column
    assert ran("", frame.replace("BODY", body))[:32].tolist() == (place * 1001 + 1).tolist()
    body = """if (i < 32) {
    simdgroup_load(a, in + group.x * 64);
    a.thread_elements() = a.thread_elements() + a.thread_elements();
    simdgroup_store(a, out + group.x * 64);
  }"""
    expected = 2 * numpy.arange(GROUPS * 64)
    assert ran("", frame.replace("BODY", body)).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"if (i < 40) {{ {PRODUCT} }}", "by a part of a SIMD group|waits at a barrier"),
        (f"if (i == 3) return; {PRODUCT}", "by a part of a SIMD group"),
        ("if (i == 3) return; simdgroup_load(a, in);", "a load of a matrix by a part"),
    ],
)
def test_a_product_by_some_lanes_is_found(body: str, words: str) -> None:
    from emulation.faults import Fault  # noqa: PLC0415

    with pytest.raises(Fault, match=words):
        ran("", MATRIX_FRAME.replace("BODY", body))


def test_elements_that_nobody_has_set_are_no_numbers() -> None:
    source = MATRIX_FRAME.replace("BODY", PRODUCT).replace("a.thread_elements()[1] = 1;", "")
    assert numpy.isnan(ran("", source)).all()


@pytest.mark.parametrize("kind", ["simdgroup_bfloat8x8", "simdgroup_matrix<float, 16, 8>"])
def test_matrices_that_the_language_has_not_are_refused(kind: str) -> None:
    from shader.compiler import CompileFailure, compiled  # noqa: PLC0415

    with pytest.raises(CompileFailure, match=r"simdgroup_bfloat8x8|are 8 by 8"):
        compiled(MATRIX_FRAME.replace("BODY", f"{kind} other;"), (3, 0))


def test_other_inputs_of_a_kernel() -> None:
    source = """#include <metal_stdlib>
using namespace metal;
kernel void k(device uint *out [[buffer(0)]], constant long &scale [[buffer(2)]],
    uint at [[thread_position_in_grid]], uint count [[threads_per_grid]],
    ushort i [[thread_index_in_threadgroup]], uint2 size [[threads_per_threadgroup]]) {
  out[at] = at * (uint)scale + count + i + size.x;
}
"""
    at = numpy.arange(GROUPS * 64)
    found = ran("", source, "If")
    assert found.tolist() == (at * 3 + GROUPS * 64 + at % 64 + 64).tolist()
