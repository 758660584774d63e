"""The verifier: the graphs that are legal at each stage, stated as checks.

Floor 1. Stages: "tensor" (what the frontend builds), "kernel" (what the scheduler hands to
lowering), "lowered" (after the passes of lowering, before linearization) and "linear" (a list in
the order in which renderers print it). A check looks at one node and returns what is wrong with it,
or None. `linear` has, beside those, an order to keep, which `scopes.py` checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from tinycore.dtype import DType, ImageDType, PointerDType, dtypes
from tinycore.errors import ArgumentError
from tinycore.uop import verify_tensor  # noqa: F401  it adds its checks
from tinycore.uop.instruction import Effect, Instruction
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp, as_scalar
from tinycore.uop.op import (
    ALU,
    ANY,
    CLOSERS,
    DIVISIONS,
    RECURRENCES,
    REDUCTIONS,
    SHIFTS,
    AxisKind,
    Op,
)
from tinycore.uop.stages import (
    EVERYWHERE,
    IN_KERNELS,
    LAUNCH_NAMES,
    LEGAL,
    LOOPS,
    STAGES,
    Stage,
    check,
    checks,
)
from tinycore.uop.text import inline
from tinycore.uop.verify_linear import check_order, illegal

Fault = str | None
"""The text of a violation; None if a node is right."""

__all__ = ["Stage", "verify"]

FLOAT_ONLY_OPS: Final = (
    frozenset({Op.RECIPROCAL, Op.SQRT, Op.EXP2, Op.LOG2, Op.EXP, Op.LOG, Op.SIN, Op.TRUNC})
) | {Op.FDIV}
INTEGER_OPS: Final = DIVISIONS | SHIFTS
BIT_OPS: Final = frozenset({Op.AND, Op.OR, Op.XOR})
ADDRESS_OPS: Final = (Op.INDEX, Op.PIXEL)
"""Ops of addresses that are read or written."""


def verify(
    graph: UOp | Sequence[UOp], stage: Stage, native_ops: frozenset[Op] = EVERYWHERE
) -> None:
    """Raise VerifyError, with the node and the reason, unless the graph is legal at `stage`.

    A sequence is a program: at stage "linear" all its nodes, in order; else the roots of a graph.
    `native_ops` is the arithmetic of the renderer, to which "linear" is limited.
    """
    if stage not in STAGES:
        raise ArgumentError(f"no stage is named {stage!r}. Stages: {', '.join(STAGES)}.")
    program = (graph,) if isinstance(graph, UOp) else tuple(graph)
    if stage == "linear":
        check_order(program)
        nodes: Iterable[UOp] = program
    else:
        nodes = UOp.sink(*program).toposort()[:-1]
    legal, by_op = LEGAL[stage], checks[stage]
    if stage == "linear":
        legal = (legal - ALU) | native_ops
    for node in nodes:
        if node.op not in legal:
            raise illegal(stage, node, f"{node.op.name} does not occur at this stage")
        for function in by_op[node.op]:
            if (problem := function(node)) is not None:
                raise illegal(stage, node, problem)


# --- every stage: arity, dtypes, constants


@check(Op)
def has_its_sources(node: UOp) -> Fault:
    """The row of the op table says how many sources there are."""
    if node.op.arity in (ANY, len(node.src)):
        return None
    return f"{node.op.name} takes {node.op.arity} sources, here are {len(node.src)}"


@check(ALU)
def has_its_dtype(node: UOp) -> Fault:
    """The row of the op table says which dtype follows from the sources."""
    expected = node.op.dtype_rule(node.src)
    if expected is None or expected is node.dtype:
        return None
    return f"the sources imply {expected!r}, the node says {node.dtype!r}"


@check(ALU - {Op.WHERE, Op.CAST, Op.BITCAST})
def operands_agree(node: UOp) -> Fault:
    """Arithmetic needs operands of one dtype."""
    if len({s.dtype for s in node.src}) == 1:
        return None
    return f"operands of different dtypes: {', '.join(repr(s.dtype) for s in node.src)}"


@check([Op.WHERE])
def choices_agree(node: UOp) -> Fault:
    """WHERE needs a bool and two values of one dtype."""
    condition, yes, no = node.src
    wanted = dtypes.bool.vec(yes.dtype.count)
    if condition.dtype not in (dtypes.bool, wanted):  # one condition may decide over all lanes
        return f"the condition is {condition.dtype!r}, it should be {wanted!r}"
    return None if yes.dtype is no.dtype else f"choices of {yes.dtype!r} and {no.dtype!r}"


@check([Op.CAST, Op.BITCAST])
def conversion_fits(node: UOp) -> Fault:
    """Conversions keep the number of lanes, BITCAST the width too."""
    source = node.src[0].dtype
    if source.count != node.dtype.count:
        return f"{source.count} lanes become {node.dtype.count}"
    if node.op is Op.BITCAST and source.itemsize != node.dtype.itemsize:
        return f"{source!r} and {node.dtype!r} differ in width"
    return None


@check(FLOAT_ONLY_OPS | INTEGER_OPS | BIT_OPS | {Op.NEG, Op.THREEFRY})
def dtype_has_op(node: UOp) -> Fault:
    """Some ops are for floats only, some for integers, and bool has no sign."""
    kind = node.dtype.kind
    if node.op in FLOAT_ONLY_OPS and kind != "float":
        return f"{node.op.name} is for floats, not {node.dtype!r}"
    if node.op in INTEGER_OPS and kind not in ("int", "uint", "index"):
        return f"{node.op.name} is for integers, not {node.dtype!r}"
    if node.op in BIT_OPS and kind == "float":
        return f"{node.op.name} is for integers and bool, not {node.dtype!r}"
    if node.op is Op.NEG and kind == "bool":
        return "NEG is not for bool; use CMPNE with True"
    if node.op is Op.THREEFRY and node.dtype.scalar() is not dtypes.uint64:
        return f"THREEFRY is for uint64, not {node.dtype!r}"
    return None


@check([Op.CONST])
def constant_fits(node: UOp) -> Fault:
    """A constant is a scalar, and a Python value that its dtype holds."""
    if node.dtype.count != 1 or isinstance(node.dtype, PointerDType):
        return f"a CONST of {node.dtype!r}; vectors are VECTORIZE of equal CONSTs"
    if isinstance(node.arg, bool | int | float):
        if isinstance(node.arg, float) and not math.isfinite(node.arg):
            fits = node.dtype.kind == "float"
        else:
            fits = as_scalar(node.arg, node.dtype) == node.arg
        return None if fits else f"{node.arg!r} is no value of {node.dtype!r}"
    return f"{node.arg!r} is no bool, int or float"


# --- kernels


@check([Op.CONST], IN_KERNELS)
def constant_is_bare(node: UOp) -> Fault:
    """Only tensor graphs say on which device a constant is."""
    return "a CONST in a kernel has no sources" if node.src else None


@check([Op.DEFINE_GLOBAL, Op.DEFINE_LOCAL, Op.DEFINE_REG], IN_KERNELS)
def defines_memory(node: UOp) -> Fault:
    """Memory is defined as a pointer into its own space, with a number."""
    spaces = {Op.DEFINE_GLOBAL: "global", Op.DEFINE_LOCAL: "local", Op.DEFINE_REG: "register"}
    space = spaces[node.op]
    if not isinstance(node.dtype, PointerDType) or node.dtype.space != space:
        return f"the dtype is {node.dtype!r}, it should be a pointer in {space} memory"
    return None if isinstance(node.arg, int) else f"the number is {node.arg!r}"


@check([Op.RANGE, Op.SPECIAL], IN_KERNELS)
def counts_with_index(node: UOp) -> Fault:
    """Counters and their ends are of dtype index."""
    wrong = next((u for u in (node, node.src[0]) if u.dtype is not dtypes.index), None)
    return None if wrong is None else f"counters are of dtypes.index, not {wrong.dtype!r}"


@check([Op.SPECIAL], IN_KERNELS)
def is_launched(node: UOp) -> Fault:
    """A launch index is one of three per prefix, and its size is known when the launch is made."""
    if node.arg not in LAUNCH_NAMES:
        return f"a SPECIAL is one of {', '.join(sorted(LAUNCH_NAMES))}, not {node.arg!r}"
    size = node.src[0]
    if size.op is Op.CONST and size.arg > 0:
        return None
    return f"the size of a SPECIAL is a positive constant, not {inline(size)}"


@check([Op.RANGE], ["linear"])
def is_a_loop(node: UOp) -> Fault:
    """Before rendering, every other kind of axis has become something else."""
    return None if node.arg.kind in LOOPS else f"an axis of kind {node.arg.kind.name} is no loop"


@check([Op.INDEX], IN_KERNELS)
def indexes_memory(node: UOp) -> Fault:
    """INDEX has a pointer, an index that may be inside of it, and perhaps a gate."""
    if len(node.src) not in (2, 3):
        return f"INDEX takes a pointer, an index and at most a gate, here are {len(node.src)}"
    pointer, place = node.src[:2]
    if not isinstance(pointer.dtype, PointerDType):
        return f"{pointer.dtype!r} is no pointer"
    if place.dtype is not dtypes.index:
        return f"the index is of {place.dtype!r}, it should be dtypes.index"
    if len(node.src) == 3:
        gate = node.src[2].dtype
        return None if gate is dtypes.bool else f"the gate is of {gate!r}, it should be dtypes.bool"
    if place.vmin >= pointer.dtype.size or place.vmax < 0:
        return f"index {place.vmin}..{place.vmax} is outside of {pointer.dtype.size} elements"
    return None


@check([Op.LOAD], IN_KERNELS)
def loads_from_index(node: UOp) -> Fault:
    """LOAD reads an INDEX; where that has a gate, it says what to yield instead."""
    if not 1 <= len(node.src) <= 2 or node.src[0].op not in ADDRESS_OPS:
        return "LOAD takes an INDEX, and an alternative if that has a gate"
    if node.src[0].op is Op.PIXEL:
        return moves_a_pixel(node, node) or (
            "a PIXEL outside of the image is zero, and needs no gate"
            if node.src[0].src[3:]
            else None
        )
    gated = len(node.src[0].src) == 3
    if gated != (len(node.src) == 2):
        return "a gated LOAD needs an alternative" if gated else "an alternative without a gate"
    if gated and node.src[1].dtype is not node.dtype:
        return f"the alternative is of {node.src[1].dtype!r}, the LOAD of {node.dtype!r}"
    return moves_elements(node, node)


@check([Op.STORE], IN_KERNELS)
def stores_to_index(node: UOp) -> Fault:
    """STORE writes a value at an INDEX."""
    if node.src[0].op not in ADDRESS_OPS:
        return f"STORE writes at an INDEX, not {node.src[0].op.name}"
    if node.src[0].op is Op.PIXEL:
        return moves_a_pixel(node, node.src[1])
    return moves_elements(node, node.src[1])


@check([Op.INDEX], ["lowered", "linear"])
def indexes_no_image(node: UOp) -> Fault:
    """Lowering has made columns and rows of places in an image."""
    return "an image is read by PIXEL" if isinstance(node.src[0].dtype, ImageDType) else None


@check([Op.PIXEL], IN_KERNELS)
def names_a_pixel(node: UOp) -> Fault:
    """PIXEL has an image, a column, a row, and for a STORE perhaps a gate."""
    if len(node.src) not in (3, 4):
        return f"PIXEL takes an image, a column, a row and at most a gate, here are {len(node.src)}"
    if not isinstance(node.src[0].dtype, ImageDType):
        return f"{node.src[0].dtype!r} is no image"
    wrong = next((s for s in node.src[1:3] if s.dtype is not dtypes.index), None)
    if wrong is not None:
        return f"a coordinate is of {wrong.dtype!r}, it should be dtypes.index"
    gate = [s.dtype for s in node.src[3:]]
    return None if gate in ([], [dtypes.bool]) else f"the gate is of {gate[0]!r}"


def moves_a_pixel(node: UOp, value: UOp) -> Fault:
    """Kernels see a pixel as four float32, whatever the image keeps."""
    wanted = dtypes.float32.vec(ImageDType.CHANNELS)
    return None if value.dtype is wanted else f"a pixel is {wanted!r}, the value is {value.dtype!r}"


def moves_elements(node: UOp, value: UOp) -> Fault:
    """Memory holds scalars or vectors of one type; a vector access covers whole scalars."""
    base = node.src[0].dtype.base if isinstance(node.src[0].dtype, PointerDType) else None
    if base is not None and value.dtype in (base, base.scalar().vec(value.dtype.count)):
        return None
    return f"the memory holds {base!r}, the value is {value.dtype!r}"


@check(CLOSERS, IN_KERNELS)
def closes_ranges(node: UOp) -> Fault:
    """REDUCE and END are over loops that the value need not depend on."""
    wrong = next((s for s in node.src[1:] if s.op is not Op.RANGE), None)
    if wrong is not None:
        return f"{node.op.name} is over RANGEs, not {wrong.op.name}"
    if len(set(node.src[1:])) != len(node.src) - 1:
        return f"{node.op.name} closes a RANGE twice"
    if node.op is Op.REDUCE and node.arg not in REDUCTIONS:
        return f"{node.arg!r} is no reduction"
    return None


@check([Op.SCAN], IN_KERNELS)
def scans_in_order(node: UOp) -> Fault:
    """SCAN goes through the steps of a loop that happen in order."""
    counter = node.src[1]
    if counter.op is not Op.RANGE or counter.arg.kind is not AxisKind.ORDERED:
        return f"SCAN is over an ORDERED RANGE, not {counter!r}"
    return None if node.arg in REDUCTIONS else f"{node.arg!r} is no reduction"


@check(RECURRENCES, IN_KERNELS)
def recurs_in_order(node: UOp) -> Fault:
    """A recurrence goes through the steps of a loop that happen in order, and keeps its dtype."""
    start, following, counter = node.src
    if counter.op is not Op.RANGE or counter.arg.kind is not AxisKind.ORDERED:
        return f"{node.op.name} is over an ORDERED RANGE, not {counter!r}"
    if start.dtype is not following.dtype:
        return f"it starts as {start.dtype!r} and becomes {following.dtype!r}"
    return None


@check([Op.VECTORIZE], IN_KERNELS)
def makes_lanes(node: UOp) -> Fault:
    """VECTORIZE has a scalar for every lane."""
    lanes = {s.dtype for s in node.src}
    if node.dtype.count == len(node.src) and lanes == {node.dtype.scalar()}:
        return None
    return f"{len(node.src)} lanes of {', '.join(map(repr, lanes))} are no {node.dtype!r}"


@check([Op.EXTRACT], IN_KERNELS)
def takes_lanes(node: UOp) -> Fault:
    """EXTRACT takes lanes that are there."""
    source, count = node.src[0].dtype, sum(s.dtype.count for s in node.src)
    inside = isinstance(node.arg, tuple) and all(0 <= lane < count for lane in node.arg)
    alike = all(s.dtype is source for s in node.src)
    if inside and alike and node.dtype is source.scalar().vec(len(node.arg)):
        return None
    return f"lanes {node.arg} of {len(node.src)} {source!r} are no {node.dtype!r}"


@check([Op.DOT], ["lowered", "linear"])
def folds_pairs(node: UOp) -> Fault:
    """DOT makes int32 of twice as many int16."""
    a, b = (s.dtype for s in node.src)
    if a is b is dtypes.int16.vec(2 * node.dtype.count) and node.dtype.scalar() is dtypes.int32:
        return None
    return f"products of {a!r} and {b!r} are no {node.dtype!r}"


@check([Op.INSTRUCTION], ["lowered", "linear"])
def suits_instruction(node: UOp) -> Fault:
    """INSTRUCTION has the operands and the result that its Instruction states, scalars; one that
    acts on memory is as its Effect says."""
    if isinstance(node.arg, Effect):
        return node.arg.problem(node)
    if not isinstance(node.arg, Instruction):
        return f"INSTRUCTION takes an Instruction or an Effect, not {node.arg!r}"
    wanted = [*node.arg.operands, node.arg.result]
    found = [*(s.dtype for s in node.src), node.dtype]
    return None if found == wanted else f"{node.arg.name} is of {wanted}, not of {found}"


@check([Op.MATRIX], ["lowered", "linear"])
def multiplies_fragments(node: UOp) -> Fault:
    """MATRIX has what each lane holds of three matrices, as its unit says.

    What it multiplies may be unsigned integers with the bits of a type that a target only stores.
    """
    if not isinstance(node.arg, MatrixUnit) or len(node.src) != 3:
        return f"MATRIX takes a MatrixUnit and 3 fragments, here are {len(node.src)}"
    wanted = [node.arg.fragment(name).vector for name in ("a", "b", "out", "out")]
    found = [*(s.dtype for s in node.src), node.dtype]
    if all(map(holds, found, wanted)) and wanted[2:] == found[2:]:
        return None
    return f"{node.arg.name} makes {wanted[3]!r} of {wanted[:3]}, not {found[3]!r} of {found[:3]}"


@check([Op.SHUFFLE], ["lowered", "linear"])
def exchanges_lanes(node: UOp) -> Fault:
    """SHUFFLE has the distance of two lanes for `arg`."""
    if isinstance(node.arg, int) and node.arg > 0:
        return None
    return f"SHUFFLE takes a positive mask of bits, not {node.arg!r}"


def holds(found: DType, wanted: DType) -> bool:
    """True if values of a type are those wanted, or unsigned integers with their bits."""
    is_bits = found.kind == "uint" and found.itemsize == wanted.itemsize
    return found is wanted or (is_bits and found.count == wanted.count)


@check([Op.SINK], ["kernel", "lowered"])
def closes_everything(node: UOp) -> Fault:
    """Every loop of a kernel is closed."""
    open_loops = [inline(r) for r in node.ranges if r.arg.kind in LOOPS]
    return f"loops are still open: {', '.join(sorted(open_loops))}" if open_loops else None
