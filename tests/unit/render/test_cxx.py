"""The family of C++, seen through a dialect that adds nothing to it."""

from __future__ import annotations

import pytest

from tiny_testing.kernels import element, load, store
from tinycore.dtype import DType, dtypes
from tinycore.render.base import LinearKernel
from tinycore.render.cxx import CXX_WORDS, Cxx
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def rendered(*roots: UOp) -> str:
    return Cxx().render(LinearKernel("test", tuple(UOp.sink(*roots).toposort()[:-1])))


def stored_expression(value: UOp) -> str:
    """The expression that a store of a number writes."""
    text = rendered(store(element(0, value.dtype, 64, UOp.index(0)), value))
    return text.splitlines()[-2].split(" = ")[1].removesuffix(";")


def operand(slot: int, dtype: DType) -> UOp:
    return load(element(slot, dtype.scalar(), 64, UOp.index(2)), dtype)


def test_every_slot_has_a_parameter() -> None:
    text = rendered(store(element(2, dtypes.int64, 64, UOp.index(0)), operand(0, dtypes.int64)))

    assert text.startswith(
        "void test(const long long *__restrict__ data0, void *unused1, "
        "long long *__restrict__ data2) {\n"
    )


def test_variables_are_wide_parameters() -> None:
    n = UOp.variable("n", 1, 9)
    text = rendered(store(element(0, dtypes.float32, 64, n), UOp.const(dtypes.float32, 1.0)))

    assert "float *__restrict__ data0, long long n_) {\n  const int n = n_;\n" in text


def test_bool_is_a_byte_in_memory() -> None:
    text = rendered(store(element(0, dtypes.bool, 64, UOp.index(0)), operand(1, dtypes.bool)))

    assert "unsigned char *__restrict__ data0, const unsigned char *__restrict__ data1" in text
    assert "data0[0] = data1[2] != 0;" in text


def test_load_behind_a_gate_is_a_value() -> None:
    n = UOp.variable("n", 0, 9)
    gated = load(element(1, dtypes.float32, 64, n, gate=n < 5), dtypes.float32)

    change = store(element(0, dtypes.float32, 64, UOp.index(0)), gated)

    assert "= (n < 5) ? (float)data1[n] : 0.0f;" in rendered(change)


def test_vectors_are_structs_of_lanes() -> None:
    kind = dtypes.float32.vec(4)
    change = store(element(0, dtypes.float32, 64, UOp.index(4)), operand(1, kind))
    lane = UOp(Op.EXTRACT, dtypes.float32, (operand(1, kind),), (3,))

    assert "store<vec<float, 4>>(data0 + 4, load<vec<float, 4>>(data1 + 2));" in rendered(change)
    assert stored_expression(lane) == "load<vec<float, 4>>(data1 + 2).v[3]"


def test_narrow_lanes_are_converted() -> None:
    lanes = (operand(1, dtypes.int8), operand(2, dtypes.int8))
    made = UOp(Op.VECTORIZE, dtypes.int8.vec(2), lanes)
    text = rendered(store(element(0, dtypes.int8, 64, UOp.index(0)), made))

    assert "vec<signed char, 2>{{(signed char)data1[2], (signed char)data2[2]}}" in text


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (dtypes.float16, "as<half>((unsigned short)0x7c00)"),
        (dtypes.float32, "as<float>(0x7f800000u)"),
        (dtypes.float64, "as<double>(0x7ff0000000000000ull)"),
    ],
)
def test_infinity_is_its_bits(dtype: DType, text: str) -> None:
    assert stored_expression(UOp.const(dtype, float("inf"))) == text


def test_words_of_the_language_are_not_names() -> None:
    assert {"template", "typename", "nullptr"} < CXX_WORDS < Cxx.reserved
