"""The C family, seen through a dialect that is nothing but a table of differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from tests.unit.lower.matrices import MMA
from tiny_testing.kernels import element, load, store
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel
from tinycore.render.cstyle import CStyle, MatrixCall
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Dialect(CStyle):
    """A language for graphics cards, in the manner of OpenCL."""

    spaces: ClassVar[Mapping[str, str]] = {"global": "global ", "local": "local ", "register": ""}
    builtins: ClassVar[Mapping[str, str]] = {"grid": "group({0})", "block": "thread({0})"}
    barrier: ClassVar[str] = "barrier();"

    def signature(self, writer: Writer) -> str:
        return "kernel " + super().signature(writer)


def rendered(*uops: UOp) -> str:
    return Dialect().render(LinearKernel("test", uops))


def body(*uops: UOp) -> list[str]:
    return [line.strip() for line in rendered(*uops).splitlines()[1:-1]]


def in_order(*roots: UOp) -> tuple[UOp, ...]:
    return tuple(UOp.sink(*roots).toposort()[:-1])


def stored_expression(value: UOp) -> str:
    """The expression that a store of `value` writes."""
    scalar = value.dtype.scalar()
    place = element(0, scalar, 64, UOp.index(0))
    return body(*in_order(store(place, value)))[-1].split(" = ")[1].removesuffix(";")


def operand(slot: int, dtype: DType) -> UOp:
    return load(element(slot, dtype.scalar(), 64, UOp.index(2)), dtype)


def test_arithmetic_is_native_where_there_is_an_expression() -> None:
    assert CStyle.native_ops == {*CStyle.expressions, Op.CAST, Op.BITCAST}
    assert CStyle.native_ops.isdisjoint({Op.THREEFRY, Op.FLOORDIV, Op.SIN})


class WithUnit(Dialect):
    """The language with a matrix instruction."""

    matrix: ClassVar[Mapping[str, MatrixCall]] = {
        MMA.name: MatrixCall("mma<{type}>({0}, {1}, {2})", "// what mma is")
    }


def test_matrix_units_are_written_as_a_table_says() -> None:
    names = ("a", "b", "out")
    kinds = [MMA.fragment(name).vector for name in names]
    fragments = [operand(slot, kind) for slot, kind in enumerate(kinds)]
    nodes = in_order(UOp(Op.MATRIX, kinds[2], tuple(fragments), MMA))
    text = WithUnit().render(LinearKernel("test", nodes))

    assert text.startswith("// what mma is\nkernel void test(")
    assert "= mma<float4>(" in text
    with pytest.raises(UnsupportedError, match="no words for MATRIX"):
        rendered(*nodes)


def test_arithmetic_without_an_expression_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no words for SIN\. Add it to LOWERINGS"):
        stored_expression(operand(1, dtypes.float32).alu(Op.SIN))


def test_kernel_with_a_grid_is_whole() -> None:
    group = UOp(Op.SPECIAL, dtypes.index, (UOp.index(4),), "grid0")
    value = load(element(1, dtypes.float32, 4, group), dtypes.float32)
    change = store(element(0, dtypes.float32, 4, group), value * 2.0)

    assert rendered(*in_order(change)) == (
        "kernel void test(global float *restrict data0, const global float *restrict data1) {\n"
        "  int grid0 = group(0);\n"
        "  data0[grid0] = data1[grid0] * 2.0f;\n"
        "}\n"
    )


def test_local_memory_and_barrier() -> None:
    pointer = UOp(Op.DEFINE_LOCAL, dtypes.float32.ptr(16, "local"), (), 0)
    place = UOp(Op.INDEX, pointer.dtype, (pointer, UOp.index(3)))
    change = store(place, UOp.const(dtypes.float32, 1.0))
    barrier = UOp(Op.BARRIER, dtypes.void, (change,))

    assert body(*in_order(barrier)) == ["local float temp0[16];", "temp0[3] = 1.0f;", "barrier();"]


def test_vector_in_memory_starts_at_its_first_lane() -> None:
    value = operand(1, dtypes.float32.vec(4))

    assert stored_expression(value) == "*(global float4*)(data1 + 2)"


def test_splat_names_its_value_once() -> None:
    value = UOp(Op.VECTORIZE, dtypes.float32.vec(4), (UOp.const(dtypes.float32, 0.5),) * 4)

    assert stored_expression(value) == "(float4)(0.5f)"


def test_lane_of_a_vector() -> None:
    lane = UOp(Op.EXTRACT, dtypes.float32, (operand(1, dtypes.float32.vec(4)),), (3,))

    assert stored_expression(lane) == "(*(global float4*)(data1 + 2))[3]"


def test_signed_sum_wraps_by_way_of_unsigned() -> None:
    total = operand(1, dtypes.int32) + operand(2, dtypes.int32)

    assert stored_expression(total) == "(int)((unsigned int)data1[2] + (unsigned int)data2[2])"


def test_index_arithmetic_is_plain() -> None:
    n = UOp.variable("n", 0, 9)
    change = store(element(0, dtypes.float32, 64, n * 4 + 1), UOp.const(dtypes.float32, 0.0))

    assert body(*in_order(change)) == ["data0[(n * 4) + 1] = 0.0f;"]


def test_gated_load_has_an_alternative() -> None:
    n = UOp.variable("n", 0, 9)
    place = element(1, dtypes.float32, 64, n, gate=n < 5)
    value = load(place, dtypes.float32, UOp.const(dtypes.float32, 7.0))
    change = store(element(0, dtypes.float32, 64, n), value)

    assert body(*in_order(change))[0] == "float val0 = (n < 5) ? data1[n] : 7.0f;"


def test_gated_store_is_conditional() -> None:
    n = UOp.variable("n", 0, 9)
    place = element(0, dtypes.float32, 64, n, gate=n < 5)

    lines = body(*in_order(store(place, UOp.const(dtypes.float32, 1.0))))
    assert lines == ["if (n < 5) { data0[n] = 1.0f; }"]


def test_loops_nest_and_get_names_by_kind() -> None:
    outer, inner = UOp.range(4, 0), UOp.range(UOp.variable("n", 1, 8), (1, 2))
    place = element(0, dtypes.float32, 64, outer + inner)
    change = store(place, UOp.const(dtypes.float32, 1.0))
    inside = UOp(Op.END, dtypes.void, (change, inner))

    assert body(*in_order(UOp(Op.END, dtypes.void, (inside, outer)))) == [
        "for (int i0 = 0; i0 < 4; i0++) {",
        "for (int i1_2 = 0; i1_2 < n; i1_2++) {",
        "data0[i0 + i1_2] = 1.0f;",
        "}",
        "}",
    ]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.float32, 0.1, "0.1f"),
        (dtypes.float32, 1e10, "1e+10f"),
        (dtypes.float32, 3.0, "3.0f"),
        (dtypes.float32, -0.0, "(-0.0f)"),
        (dtypes.float32, 1e39, "INFINITY"),
        (dtypes.float32, -math.inf, "(-INFINITY)"),
        (dtypes.float32, math.nan, "NAN"),
        (dtypes.float64, 0.1, "0.1"),
        (dtypes.float16, 0.1, "0.1h"),
        (dtypes.int32, -(2**31), "(-2147483647 - 1)"),
        (dtypes.int64, -(2**63), "(-9223372036854775807l - 1)"),
        (dtypes.uint64, 2**64 - 1, "18446744073709551615ul"),
        (dtypes.int8, -5, "(-5)"),
        (dtypes.bool, True, "1"),
    ],
)
def test_literal_stands_for_its_value(dtype: DType, value: float, text: str) -> None:
    assert Dialect().constant(dtype, value) == text


@pytest.mark.parametrize(
    ("text", "result"),
    [("(a + b)", "a + b"), ("(a) + (b)", "(a) + (b)"), ("a", "a"), ("((a) + b)", "(a) + b")],
)
def test_outer_parentheses_are_dropped(text: str, result: str) -> None:
    assert unwrapped(text) == result


def shared(dtype: DType, size: int, number: int) -> UOp:
    return UOp(Op.DEFINE_LOCAL, dtype.ptr(size, "local"), (), number)


def test_arrays_in_shared_memory_are_laid_out_aligned() -> None:
    arrays = [shared(dtypes.uint8, 3, 0), shared(dtypes.float32, 4, 1), shared(dtypes.half, 1, 2)]
    kernel = LinearKernel("test", tuple(reversed(arrays)))

    assert kernel.shared_layout == dict(zip(arrays, (0, 16, 32), strict=True))
    assert kernel.shared_bytes == 34


class Launched(Dialect):
    """A dialect with letters for axes, arrays sized at the launch, and two widths of counters."""

    builtins: ClassVar[Mapping[str, str]] = {"grid": "blockIdx.{xyz}", "block": "thread{0}"}
    shared_array: ClassVar[str] = "{type} *{name} = ({type} *)(all + {offset});"
    static_shared_bytes: ClassVar[int] = 64
    wide_index: ClassVar[str] = "long"


def lines_of(*uops: UOp) -> list[str]:
    text = Launched().render(LinearKernel("test", uops))
    return [line.strip() for line in text.splitlines()[1:-1]]


def test_axes_of_a_launch_are_digits_or_letters() -> None:
    size = UOp.index(8)
    axes = [UOp(Op.SPECIAL, dtypes.index, (size,), name) for name in ("grid1", "block2")]
    assert lines_of(size, *axes) == ["int grid1 = blockIdx.y;", "int block2 = thread2;"]


def test_much_shared_memory_is_sized_at_the_launch() -> None:
    few = [shared(dtypes.float32, 4, number) for number in range(2)]
    many = [shared(dtypes.float32, 9, number) for number in range(2)]

    assert lines_of(*few) == ["local float temp0[4];", "local float temp1[4];"]
    assert lines_of(*many) == [
        "float *temp0 = (float *)(all + 0);",
        "float *temp1 = (float *)(all + 48);",
    ]


@pytest.mark.parametrize(("size", "name"), [(1 << 31, "int"), ((1 << 31) + 1, "long")])
def test_counters_are_as_wide_as_a_kernel_needs(size: int, name: str) -> None:
    end = UOp.index(size - 1)
    kernel = LinearKernel("test", (end, UOp(Op.SPECIAL, dtypes.index, (end,), "grid0")))

    assert kernel.index_bits == {"int": 32, "long": 64}[name]
    assert f"{name} grid0" in Launched().render(kernel)


def test_a_large_buffer_needs_wide_addresses() -> None:
    sizes = [(1 << 31) - 1, 1 << 31]
    buffers = [UOp(Op.DEFINE_GLOBAL, dtypes.int8.ptr(size), (), 0) for size in sizes]
    assert [LinearKernel("test", (b,)).index_bits for b in buffers] == [32, 64]


@pytest.mark.parametrize("text", ["({ int x = f(a); x; })", "(a, b)"])
def test_parentheses_that_mean_something_stay(text: str) -> None:
    assert unwrapped(text) == text


def test_statement_expression_keeps_its_parentheses() -> None:
    class Statements(Dialect):
        expressions: ClassVar[Mapping[Op, str]] = {
            **Dialect.expressions,
            Op.SQRT: "({{ float x = {0}; root(x); }})",
        }

    place = element(0, dtypes.float32, 64, UOp.index(0))
    root = operand(1, dtypes.float32).alu(Op.SQRT)
    text = Statements().render(LinearKernel("test", in_order(store(place, root))))

    assert "data0[0] = ({ float x = data1[2]; root(x); });" in text


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (lambda n: (n < 1).where(n * 8, UOp.index(2)), "data1 + ((n < 1) ? (n * 8) : 2)"),
        (lambda n: n << 3, "data1 + (n << 3)"),
        (lambda n: n & 12, "data1 + (n & 12)"),
        (lambda n: n * 8 + 4, "data1 + (n * 8) + 4"),
        (lambda n: n * 8, "data1 + n * 8"),
    ],
)
def test_index_in_an_address_binds_as_one(index: Callable[[UOp], UOp], text: str) -> None:
    n = UOp.variable("n", 0, 4)
    lanes = load(element(1, dtypes.float32, 64, index(n)), dtypes.float32.vec(4))

    assert stored_expression(lanes) == f"*(global float4*)({text})"


# --- what C leaves undefined


def test_greatest_and_least_are_not_taken_for_granted() -> None:
    assert CStyle.native_ops.isdisjoint({Op.MAX, Op.MIN})


@pytest.mark.parametrize("op", [Op.IDIV, Op.MOD])
def test_unknown_divisor_goes_through_a_guard(op: Op) -> None:
    quotient = operand(1, dtypes.int32).alu(op, operand(2, dtypes.int32))
    name = {Op.IDIV: "quotient_int32", Op.MOD: "remainder_int32"}[op]

    assert stored_expression(quotient) == f"{name}(data1[2], data2[2])"


def test_known_divisor_needs_no_guard() -> None:
    seven = UOp.const(dtypes.int32, 7)

    assert stored_expression(operand(1, dtypes.int32).alu(Op.IDIV, seven)) == "data1[2] / 7"


@pytest.mark.parametrize(("op", "sign"), [(Op.SHL, "<<"), (Op.SHR, ">>")])
def test_amount_of_a_shift_is_modulo_the_width(op: Op, sign: str) -> None:
    shifted = operand(1, dtypes.uint16).alu(op, operand(2, dtypes.uint16))

    text = rendered(*in_order(store(element(0, dtypes.uint16, 64, UOp.index(0)), shifted)))
    assert sign in text
    assert "(data2[2] & 15)" in text


def test_float_that_may_not_fit_goes_through_a_guard() -> None:
    cast = operand(1, dtypes.float32).cast(dtypes.uint8)

    assert stored_expression(cast) == "float32_to_uint8(data1[2])"


def test_cast_of_a_vector_is_no_reinterpretation() -> None:
    cast = operand(1, dtypes.int32.vec(4)).cast(dtypes.float32.vec(4))

    assert stored_expression(cast).startswith("int32x4_to_float32x4(")


def test_dialect_may_say_that_its_operators_are_defined() -> None:
    class Defined(Dialect):
        defined: ClassVar[frozenset[Op]] = frozenset({Op.IDIV, Op.SHR, Op.CAST})

    def written(value: UOp) -> str:
        place = element(0, value.dtype, 64, UOp.index(0))
        return Defined().render(LinearKernel("test", in_order(store(place, value))))

    a, b = operand(1, dtypes.int32), operand(2, dtypes.int32)
    assert "data0[0] = data1[2] / data2[2];" in written(a.alu(Op.IDIV, b))
    assert "data0[0] = data1[2] >> data2[2];" in written(a.alu(Op.SHR, b))
    assert "data0[0] = (int)data1[2];" in written(operand(1, dtypes.float32).cast(dtypes.int32))


def test_signed_fused_product_wraps_by_way_of_unsigned() -> None:
    a, b, c = (operand(slot, dtypes.int32) for slot in (1, 2, 3))

    place = element(0, dtypes.int32, 64, UOp.index(0))
    assert rendered(*in_order(store(place, a.alu(Op.MULACC, b, c)))).count("(unsigned int)") == 3
