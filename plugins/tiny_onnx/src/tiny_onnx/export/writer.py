"""Nodes and constants of an ONNX graph under construction, typed as runtimes have kernels for.

The standard admits more element types than runtimes implement. What an operator lacks is computed
in the next wider type and cast back, which changes no bit of integers, as those wrap alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy
import onnx
from onnx import helper

from tiny_onnx.element_types import ELEMENTS, held_as
from tinycore.dtype import DType, Scalar, dtypes
from tinycore.errors import UnsupportedError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Size, is_size

__all__ = ["Side", "Sides", "Writer", "array_of", "number_of"]

Side = int | Size
Sides = tuple[Side, ...]
"""Lengths of axes; a Size is known when the model runs."""

FLOATS: Final = frozenset({dtypes.float32, dtypes.float64, dtypes.float16})
WIDE_TYPES: Final = frozenset({*FLOATS, dtypes.int32, dtypes.int64})
ARITHMETIC_TYPES: Final = frozenset(
    {
        *WIDE_TYPES,
        dtypes.int8,
        dtypes.int16,
        dtypes.uint8,
        dtypes.uint16,
        dtypes.uint32,
        dtypes.uint64,
    }
)
CHOSEN: Final = ARITHMETIC_TYPES - {dtypes.int16, dtypes.uint16, dtypes.uint64}
FOLDED: Final = frozenset({*WIDE_TYPES, dtypes.int8, dtypes.uint8})
PRODUCTS: Final = frozenset({*WIDE_TYPES, dtypes.uint32, dtypes.uint64})
SIGNED: Final = frozenset({*WIDE_TYPES, dtypes.int8, dtypes.int16})
UNSIGNED: Final = frozenset({dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64})
SINGLE: Final = frozenset({dtypes.float32, dtypes.float16})

KERNELS: Final[Mapping[str, frozenset[DType]]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Less", "LessOrEqual"), ARITHMETIC_TYPES),
    **dict.fromkeys(("Max", "Min"), ARITHMETIC_TYPES - {dtypes.int16, dtypes.uint16}),
    **dict.fromkeys(("Reciprocal", "Sqrt", "Exp", "Log", "Sin", "Floor", "Ceil"), FLOATS),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), ARITHMETIC_TYPES - FLOATS),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "CumSum"), WIDE_TYPES),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), FOLDED),
    "BitShift": UNSIGNED,
    "Conv": SINGLE,
    "Equal": ARITHMETIC_TYPES | {dtypes.bool},
    "Expand": ARITHMETIC_TYPES | {dtypes.bool},
    "MatMul": PRODUCTS,
    "MaxPool": FLOATS | {dtypes.int8, dtypes.uint8},
    "Neg": SIGNED,
    "Pad": ARITHMETIC_TYPES - {dtypes.int16, dtypes.uint16} | {dtypes.bool},
    "Pow": FLOATS,
    "ScatterElements": ARITHMETIC_TYPES,
    "Where": CHOSEN,
}
"""Element types for which onnxruntime's CPU provider has kernels, of operators that lack some."""

WIDER: Final[Mapping[DType, DType]] = {
    **dict.fromkeys((dtypes.bool, dtypes.int8, dtypes.int16), dtypes.int32),
    **dict.fromkeys((dtypes.uint8, dtypes.uint16), dtypes.int32),
    **dict.fromkeys((dtypes.uint32, dtypes.uint64), dtypes.int64),
    **dict.fromkeys((dtypes.bfloat16, *dtypes.fp8s), dtypes.float32),
    dtypes.float16: dtypes.float32,
}
SINCE: Final[Mapping[str, int]] = {"BitCast": 26}
"""First versions of the standard with operators that are younger than FIRST_VERSION."""
FIRST_VERSION: Final = 18
"""The version with bitwise operators, and with the axes of reductions as inputs."""
SIZE_OPS: Final[Mapping[Op, str]] = {
    Op.ADD: "Add", Op.SUB: "Sub", Op.MUL: "Mul", Op.MAX: "Max", Op.MIN: "Min",
}  # fmt: skip


def number_of(dtype: DType) -> int:
    """The number of an element type in ONNX. Raises UnsupportedError for one it lacks."""
    for number, element in ELEMENTS.items():
        if element is NAMED.get(dtype):
            return number
    raise UnsupportedError(f"ONNX has no element type for {dtype!r}")


NAMED: Final = {
    element.tensor: held_as(element.tensor)
    for element in ELEMENTS.values()
    if element.tensor is not None
}


def array_of(value: Any, dtype: DType) -> numpy.ndarray[Any, Any]:
    """An array in the element type of a dtype."""
    return numpy.asarray(value).astype(NAMED[dtype].array)


class Writer:
    """The nodes, constants and inputs of a graph. Values are known by their names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, numpy.ndarray[Any, Any]] = {}
        self.known: dict[Any, str] = {}
        """Names of constants by content, and of nodes by operator, inputs and attributes."""
        self.taken: set[str] = set()
        self.dimensions: dict[str, Callable[[], str]] = {}
        """Writers of the number that a variable holds, as int64 of shape ()."""
        self.version = FIRST_VERSION

    # --- names and constants

    def name(self, wanted: str) -> str:
        """A name that no value has."""
        found, number = wanted, 1
        while found in self.taken:
            found, number = f"{wanted}_{number}", number + 1
        self.taken.add(found)
        return found

    def constant(self, value: Any, dtype: DType = dtypes.int64) -> str:
        """A small constant, one for all equal ones."""
        array = array_of(value, dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = self.name(f"constant_{len(self.constants)}")
            self.constants[self.known[key]] = array
        return self.known[key]

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The output of a node; equal nodes are one."""
        key = (op, inputs, repr(sorted(attributes.items())))
        if key not in self.known:
            self.version = max(self.version, SINCE.get(op, 0))
            output = self.known[key] = self.name(f"{op.lower()}_{len(self.nodes)}")
            self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return self.known[key]

    # --- operators by dtype

    def computed(
        self, op: str, dtype: DType, *inputs: str, others: Sequence[str] = (), **attributes: Any
    ) -> str:
        """An operator on inputs of a dtype, in a wider one where it has no kernel; `others` are
        inputs of another type after them.
        """
        wide = dtype
        while wide not in KERNELS.get(op, {wide}):
            if wide not in WIDER:
                raise UnsupportedError(f"operator {op} of ONNX has no kernel for {dtype!r}")
            wide = WIDER[wide]
        given = [self.cast(each, dtype, wide) for each in inputs]
        return self.cast(self.add(op, *given, *others, **attributes), wide, dtype)

    def compared(self, op: str, dtype: DType, *inputs: str) -> str:
        """A comparison, whose result is bool."""
        wide = dtype if dtype in KERNELS[op] else WIDER[dtype]
        return self.add(op, *[self.cast(each, dtype, wide) for each in inputs])

    def cast(self, value: str, before: DType, after: DType) -> str:
        """A value converted to another dtype."""
        return value if before is after else self.add("Cast", value, to=number_of(after))

    def where(self, mask: str, dtype: DType, yes: str, no: str) -> str:
        """Elements of `yes` where a mask holds, else of `no`."""
        wide = dtype if dtype in CHOSEN else WIDER[dtype]
        chosen = self.add("Where", mask, self.cast(yes, dtype, wide), self.cast(no, dtype, wide))
        return self.cast(chosen, wide, dtype)

    def number(self, value: Scalar, dtype: DType) -> str:
        """One number of shape ()."""
        return self.constant(value, dtype)

    # --- sizes

    def size(self, side: Side) -> str:
        """A length as int64 of shape ()."""
        if not is_size(side):
            return self.constant(side)
        written: dict[UOp, str] = {}
        for node in side.expression.toposort():
            written[node] = self.part_of_size(node, [written[s] for s in node.src if s in written])
        return written[side.expression]

    def part_of_size(self, node: UOp, sources: list[str]) -> str:
        """One node of the expression of a Size."""
        if node.op is Op.CONST:
            return self.constant(node.arg)
        if node.op is Op.DEFINE_VAR and node.arg[0] in self.dimensions:
            return self.dimensions[node.arg[0]]()
        if node.op in SIZE_OPS:
            return self.add(SIZE_OPS[node.op], *sources)
        if node.op in (Op.FLOORDIV, Op.IDIV):  # sizes and their divisors are not negative
            return self.add("Div", *sources)
        if node.op in (Op.FLOORMOD, Op.MOD):
            return self.add("Mod", *sources)
        raise UnsupportedError(f"a size is computed by {node.op.name}, which is not exported")

    def sizes(self, sides: Sequence[Side]) -> str:
        """Several lengths as one int64 vector."""
        if not any(map(is_size, sides)):
            return self.constant(numpy.array(sides, numpy.int64))
        axis = self.constant([0])
        parts = [self.add("Unsqueeze", self.size(side), axis) for side in sides]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def product(self, sides: Sequence[Side]) -> Side:
        """The number of elements of a shape."""
        return math.prod(sides)

    def reshaped(self, value: str, before: Sides, after: Sides) -> str:
        """A value in another shape."""
        if before == after:
            return value
        unknown = [axis for axis, side in enumerate(after) if is_size(side)]
        if any(not is_size(side) and side == 0 for side in after):  # else 0 means: as before
            return self.add("Reshape", value, self.sizes(after), allowzero=1)
        if len(unknown) == 1:  # the only one that follows from the others
            after = tuple([-1 if is_size(side) else side for side in after])
        return self.add("Reshape", value, self.sizes(after))

    def counted(self, size: Side, dtype: DType = dtypes.int64) -> str:
        """0, 1, ... up to a length."""
        if not is_size(size):
            return self.constant([*range(size)], dtype)
        found = self.add("Range", self.constant(0), self.size(size), self.constant(1))
        return self.cast(found, dtypes.int64, dtype)

    def expanded(self, value: str, dtype: DType, before: Sides, after: Sides) -> str:
        """Axes of length 1 repeated."""
        if before == after:
            return value
        if any(not is_size(side) and side == 0 for side in after):  # no 1 becomes 0 by Expand
            zeros = self.add("ConstantOfShape", self.sizes(after))
            return self.cast(zeros, dtypes.float32, dtype)
        return self.computed("Expand", dtype, value, others=[self.sizes(after)])

    # --- the end

    def used(self, outputs: Sequence[str]) -> list[onnx.NodeProto]:
        """The nodes that some values are computed from; constants that none of them reads go."""
        wanted, found = set(outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                found.append(node)
                wanted.update(node.input)
        self.constants = {name: a for name, a in self.constants.items() if name in wanted}
        return found[::-1]
