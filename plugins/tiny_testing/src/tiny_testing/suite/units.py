"""Level 2: subgroups: values that lanes exchange, and matrix units with what lanes hold of them.

A product is given to each unit that the limits state, whatever a plan would choose. One of
the operands is the identity first, so that a wrong map of lanes is told by the operand it is of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy

from tiny_testing.kernels import element, load, product_of_types, store
from tiny_testing.suite.case import Level, NotApplicable, Variant, case
from tiny_testing.suite.kernels import in_line, integers, loaded, results
from tiny_testing.suite.subject import Array, Subject
from tinycore.config import Context
from tinycore.dtype import DType, dtypes, float_layout
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.bind import Bind
from tinycore.lower.steps.tensorize import Tensorize
from tinycore.render.base import LinearKernel
from tinycore.uop.host_bytes import decode, encode
from tinycore.uop.instruction import Instruction
from tinycore.uop.matrix import MatrixUnit, OperandLoad
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind, Op

__all__ = [
    "test_lanes_exchange_values",
    "test_matrix_units_load_operands",
    "test_matrix_units_multiply",
    "test_own_instructions_compute_what_they_mean",
]

EXCHANGED: Final = (dtypes.float32, dtypes.int32, dtypes.uint32)
"""Types whose values lanes may exchange."""
ROWS, COLUMNS, INNER = (0,), (1,), (2,)
"""The loops of the kernel."""
SAMPLES: Final = 256
"""Results of an instruction that are compared."""
SCALE: Final = 0.5
"""Distance of neighboring operands."""
TILES: Final = (2, 3, 2)
"""Steps of a unit along its rows, sums and columns."""


@case(Level.COMPUTE)
def test_matrix_units_multiply(subject: Subject) -> None:
    """Each matrix unit multiplies as NumPy does: every lane holds what its maps say.

    But for those whose operands are read in shared memory alone, which the next trial proves.
    """
    units = [u for u in subject.limits.matrix if not u.is_described]
    if not units:
        raise NotApplicable("its limits state no matrix units")
    with Context(ALLOW_TF32=1):  # for units that round their operands
        for unit in units:
            check_unit(subject, unit)


@case(Level.COMPUTE)
def test_matrix_units_load_operands(subject: Subject) -> None:
    """Operands that a subgroup loads by tiles are those of shared memory, by rows and turned."""
    # One that takes sums as they are is for chains of products, which no product here is.
    given = (unit for unit in subject.limits.matrix if unit.load)
    units = [unit for unit in given if not unit.is_described or unit.load_of("a")]
    if not units:
        raise NotApplicable("its limits state no matrix unit with a load by tiles")
    with Context(ALLOW_TF32=1):
        for unit in units:
            rows, inner, columns = 4 * unit.m, 4 * unit.k, 4 * unit.n
            left = integers(rows * inner).reshape(rows, inner) % 3 - 1
            right = integers(inner * columns, 1).reshape(inner, columns) % 3 - 1
            is_turned = lies_along_sum(unit)
            linear = staged(subject, unit, (rows, inner, columns), is_turned)
            is_loaded = any(isinstance(n.arg, OperandLoad) for n in linear.uops)
            assert is_loaded, f"no plan loads operands of {unit.name} by {unit.load}"
            found = computed(subject, unit, linear, left, right, is_turned)
            wrong = numpy.argwhere(found != left @ right)
            assert not len(wrong), (
                f"{len(wrong)} of {found.size} sums of {unit.name} are wrong, with operands loaded "
                f"by {unit.load}; row {wrong[0][0]}, column {wrong[0][1]} is "
                f"{found[tuple(wrong[0])]} instead of {(left @ right)[tuple(wrong[0])]}"
            )


@case(Level.COMPUTE, over=[Variant(d.name, d) for d in EXCHANGED])
def test_lanes_exchange_values(subject: Subject, dtype: DType) -> None:
    """A lane of a subgroup gets the value of the lane whose number differs in some bits."""
    limits = subject.limits
    if dtype not in limits.shuffles:
        raise NotApplicable("its limits state no shuffles of the type")
    threads = min(2 * limits.subgroup, limits.block_threads)
    groups = 3
    x = integers(groups * threads).astype(dtype.name)
    lane = UOp(Op.SPECIAL, dtypes.index, (UOp.index(threads),), "block0")
    place = UOp(Op.SPECIAL, dtypes.index, (UOp.index(groups),), "grid0") * threads + lane
    bits = [1 << bit for bit in range(limits.subgroup.bit_length() - 1)]
    for mask in (*bits, sum(bits)):
        target, source = (UOp(Op.DEFINE_GLOBAL, dtype.ptr(len(x)), (), slot) for slot in (0, 1))
        value = UOp(Op.LOAD, dtype, (UOp(Op.INDEX, source.dtype, (source, place)),))
        other = UOp(Op.SHUFFLE, dtype, (value,), mask)
        index = UOp(Op.INDEX, target.dtype, (target, place))
        root = UOp(Op.STORE, dtypes.void, (index, other))
        program = loaded(subject, tuple(root.toposort()), 2, "exchange")
        found = results(subject, program, [numpy.zeros_like(x), x])[0]
        expected = x.reshape(groups, -1)[:, numpy.arange(threads) ^ mask].reshape(-1)
        wrong = numpy.flatnonzero(found != expected)
        assert not len(wrong), (
            f"{len(wrong)} of {len(x)} values are wrong where lanes ask those whose "
            f"numbers differ in the bits of {mask}; that of thread {wrong[0] % threads} is "
            f"{found[wrong[0]]} instead of {expected[wrong[0]]}"
        )


@case(Level.COMPUTE)
def test_own_instructions_compute_what_they_mean(subject: Subject) -> None:
    """Each instruction of the plugin makes of values what its meaning does, in NumPy."""
    instructions = subject.toolchain.renderer.instructions
    if not instructions:
        raise NotApplicable("its renderer has no instructions of its own")
    for instruction in instructions:
        values = [
            encode(integers(SAMPLES, seed) % 251 * SCALE, kind)
            for seed, kind in enumerate(instruction.operands)
        ]
        given = [
            decode(array, kind) for array, kind in zip(values, instruction.operands, strict=True)
        ]
        target = encode(numpy.full(SAMPLES, 77), instruction.result)
        program = loaded(subject, by_instruction(instruction), len(values) + 1, "own")
        found = decode(results(subject, program, [target, *values])[0], instruction.result)
        meant = numpy.asarray(instruction.function(*given))
        expected = decode(encode(meant, instruction.result), instruction.result)
        is_right = numpy.isclose(found, expected, tolerance(instruction.result), equal_nan=True)
        wrong = numpy.flatnonzero(~is_right)
        assert not len(wrong), (
            f"{len(wrong)} of {SAMPLES} results of {instruction.name} are wrong: of "
            f"{[array[wrong[0]] for array in given]} it makes {found[wrong[0]]} instead of "
            f"{expected[wrong[0]]}"
        )


def by_instruction(instruction: Instruction) -> tuple[UOp, ...]:
    """A program in which one thread computes each result by an instruction."""
    counter = UOp(Op.RANGE, dtypes.index, (UOp.index(SAMPLES),), Axis((0,), AxisKind.LOOP))
    sources = tuple(
        load(element(slot, kind, SAMPLES, counter), kind)
        for slot, kind in enumerate(instruction.operands, 1)
    )
    value = UOp(Op.INSTRUCTION, instruction.result, sources, instruction)
    stored = store(element(0, instruction.result, SAMPLES, counter), value)
    return in_line(UOp(Op.END, dtypes.void, (stored, counter)))


def tolerance(dtype: DType) -> float:
    """Relative error of a few last bits; 0 of integers."""
    return 2.0 ** (2 - float_layout(dtype).mantissa_bits) if dtype.kind == "float" else 0.0


def lies_along_sum(unit: MatrixUnit) -> bool:
    """True if a unit reads the second operand in shared memory along the sum alone."""
    by = unit.load
    return by is not None and by.is_described and by.turned_bytes != unit.b.itemsize


def staged(
    subject: Subject, unit: MatrixUnit, size: tuple[int, int, int], is_turned: bool
) -> LinearKernel:
    """A product planned for a unit, with its operands in shared memory."""
    few = replace(subject.limits, matrix=(unit,), threads=1, units=0)
    limits = replace(few, block_wanted=unit.threads)
    kernel = product_of_types(*size, unit.a, unit.b, unit.out, is_turned)
    return lower(kernel, subject.toolchain.renderer, "by_tiles", plan_for(kernel, limits))


def check_unit(subject: Subject, unit: MatrixUnit) -> None:
    """Compare the products of a unit with NumPy's, first those with an identity."""
    rows, inner, columns = (
        tiles * size for tiles, size in zip(TILES, (unit.m, unit.k, unit.n), strict=True)
    )
    least_a, least_b = (0 if dtypes.is_unsigned(dtype) else -1 for dtype in (unit.a, unit.b))
    left = integers(rows * inner).reshape(rows, inner) % 3 + least_a
    right = integers(inner * columns, 1).reshape(inner, columns) % 3 + least_b
    operands = {
        "a (or of the sum)": (left, numpy.eye(inner, columns, dtype=numpy.int32)),
        "b (or of the sum)": (numpy.eye(rows, inner, dtype=numpy.int32), right),
        "both operands": (left, right),
    }
    for name, (a, b) in operands.items():
        found = multiplied(subject, unit, a, b)
        wrong = numpy.argwhere(found != a @ b)
        assert not len(wrong), (
            f"{unit.name} multiplies wrongly, with the map of {name} to look at: {len(wrong)} of "
            f"{found.size} sums differ; row {wrong[0][0]}, column {wrong[0][1]} is "
            f"{found[tuple(wrong[0])]} instead of {(a @ b)[tuple(wrong[0])]}"
        )


def multiplied(subject: Subject, unit: MatrixUnit, a: Array, b: Array) -> Array:
    """Product of two matrices by a unit of the device."""
    (rows, inner), columns = a.shape, b.shape[1]
    step = Tensorize(*axes_of(unit), unit)
    launched = subject.limits.grid is not None
    binds = [
        Bind((*axis, 0), AxisKind.GRID)
        for axis in (step.m, step.n)
        if axis is not None and launched
    ]
    kernel = product_of_types(rows, inner, columns, unit.a, unit.b, unit.out)
    linear = lower(kernel, subject.toolchain.renderer, "by_unit", (step, *binds))
    assert any(node.op is Op.MATRIX for node in linear.uops), f"{unit.name} is not used"
    return computed(subject, unit, linear, a, b)


def computed(
    subject: Subject,
    unit: MatrixUnit,
    linear: LinearKernel,
    a: Array,
    b: Array,
    is_turned: bool = False,
) -> Array:
    """The product of two matrices by a kernel, to which the second may be given turned."""
    rows, columns = len(a), b.shape[1]
    given_b = b.T if is_turned else b
    program = loaded(subject, linear.uops, 3, linear.name)
    given = [
        encode(numbers.reshape(-1), dtype)
        for numbers, dtype in (
            (numpy.full((rows, columns), 77), unit.out),
            (a, unit.a),
            (given_b, unit.b),
        )
    ]
    return decode(results(subject, program, given)[0], unit.out).reshape(rows, columns)


def axes_of(unit: MatrixUnit) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int]]:
    """The loops that a unit takes: those along which it has more than one step."""
    return (ROWS if unit.m > 1 else None, COLUMNS if unit.n > 1 else None, INNER)
