"""The LLVM family: constants that are exact, and names of types and intrinsics."""

from __future__ import annotations

import math

import pytest

from tiny_testing.kernels import element, load, store
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel
from tinycore.render.llvm import Llvm
from tinycore.render.llvm_types import constant, storage_name, suffix, type_name, zero
from tinycore.render.llvm_writer import Writer
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.verify import BIT_OPS, INTEGER_OPS

ALU_OPS = [op for op in Op if op in ALU]


def kernel_of(op: Op, dtype: DType) -> LinearKernel:
    """One operation on the elements of as many buffers as it has operands."""
    count = max(op.arity, 1)
    operands = [load(element(i, dtype, 4, UOp.index(0)), dtype) for i in range(1, count + 1)]
    if op is Op.WHERE:
        operands[0] = operands[0].alu(Op.CMPNE, operands[1])
    if op in (Op.CAST, Op.BITCAST):
        value = UOp(op, dtypes.uint32, tuple(operands))
    else:
        value = operands[0].alu(op, *operands[1:])
    change = store(element(0, value.dtype, 4, UOp.index(0)), value)
    return LinearKernel("test", tuple(UOp.sink(change).toposort()[:-1]))


class Dialect(Llvm):
    """The body alone."""

    name = "IR"

    def assemble(self, writer: Writer) -> str:
        return "\n".join(writer.lines)


@pytest.mark.parametrize("op", [op for op in ALU_OPS if op in Llvm.native_ops])
def test_native_arithmetic_is_written(op: Op) -> None:
    dtype = dtypes.int32 if op in INTEGER_OPS | BIT_OPS else dtypes.float32

    assert "store" in Dialect().render(kernel_of(op, dtype))


@pytest.mark.parametrize("op", [op for op in ALU_OPS if op not in Llvm.native_ops])
def test_other_arithmetic_is_refused(op: Op) -> None:
    with pytest.raises(
        UnsupportedError, match=f"IR has no words for {op.name}. Add it to LOWERINGS"
    ):
        Dialect().render(kernel_of(op, dtypes.float32))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (dtypes.index, "i64"),
        (dtypes.bool, "i1"),
        (dtypes.uint16, "i16"),
        (dtypes.float16, "half"),
        (dtypes.float32.vec(8), "<8 x float>"),
        (dtypes.bool.vec(4), "<4 x i1>"),
    ],
)
def test_type_of_a_value(dtype: DType, name: str) -> None:
    assert type_name(dtype) == name


def test_bool_is_a_byte_in_memory() -> None:
    assert storage_name(dtypes.bool.vec(4)) == "<4 x i8>"


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.float32, 1.0, "1.0"),
        (dtypes.float32, -0.0, "-0.0"),
        (dtypes.float32, 0.1, "0x3FB99999A0000000"),
        (dtypes.float64, 0.1, "0x3FB999999999999A"),
        (dtypes.float32, math.inf, "0x7FF0000000000000"),
        (dtypes.float32, 1e39, "0x7FF0000000000000"),
        (dtypes.float16, 0.1, "0xH2E66"),
        (dtypes.bool, True, "true"),
        (dtypes.int8, -128, "-128"),
    ],
)
def test_literal_stands_for_its_value(dtype: DType, value: float, text: str) -> None:
    assert constant(dtype, value) == text


def test_zero_of_a_vector() -> None:
    assert zero(dtypes.float32.vec(4)) == "zeroinitializer"


def test_name_of_an_intrinsic_ends_in_its_type() -> None:
    assert suffix(dtypes.float64.vec(4)) == "v4f64"
