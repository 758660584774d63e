"""The op table: every kind of node, one row each.

Floor 1. A row says how many sources a node has, which dtype it gets from them, and what it means.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from tinycore.dtype import DType, Scalar, dtypes

if TYPE_CHECKING:
    from tinycore.uop.node import UOp

Sources: TypeAlias = "tuple[UOp, ...]"

Handler = TypeVar("Handler")
DTypeRule = Callable[[tuple["UOp", ...]], DType | None]

ANY: Final = -1
"""Arity of an op that takes any number of sources."""


def given(src: Sources) -> DType | None:
    """The dtype is not implied by the sources; the builder states it."""
    return None


def first(src: Sources) -> DType | None:
    """The dtype of the first source."""
    return src[0].dtype


def second(src: Sources) -> DType | None:
    """The dtype of the second source."""
    return src[1].dtype


def boolean(src: Sources) -> DType | None:
    """Bool, with as many lanes as the first source."""
    return dtypes.bool.vec(src[0].dtype.count)


def nothing(src: Sources) -> DType | None:
    """The node has no value."""
    return dtypes.void


@enum.unique
class Op(enum.Enum):
    """Every node kind: source count, dtype rule, meaning."""

    # --- where data lives
    DEVICE = 0, nothing, "the device named by `arg`"
    UNIQUE = 0, nothing, "a number that makes one buffer differ from every other"
    BUFFER = 2, given, "memory of `arg` elements, or for the image `arg`; on DEVICE, UNIQUE"
    BUFFER_VIEW = 1, given, "`arg` = (size, offset) elements inside a BUFFER"
    COPY = 2, first, "the value, on the device of the second source"
    MULTI = ANY, first, "parts on several devices, side by side along axis `arg`; None: all alike"
    ASSIGN = (
        2,
        first,
        "the memory of the first source after the second is written there; `arg`: Write",
    )
    KERNEL = ANY, nothing, "one launch; sources: its buffers, outputs first; `arg` is a Kernel"
    CUSTOM = ANY, nothing, "a launch that a user wrote; sources: a tensor per slot; `arg`: Kernel"
    BIND = 1, given, "the Size `arg`, known at launch, as a number on the DEVICE of the source"

    # --- the tensor graph: shape and identity
    CONTIGUOUS = 1, first, "the same value in memory of its own, in the image `arg` if it is one"
    DETACH = 1, first, "the same value, through which no gradient flows"
    OWN = 1, first, "the same value, of one tensor: the number `arg` tells it from equal ones"
    CONTIGUOUS_BACKWARD = 1, first, "the same value; its gradient is made contiguous"
    CALL = ANY, first, "the first source; its gradient for the others is what `arg`(g, node) gives"
    VALUE = 1, first, "the same value, and no view: writing to one does not show in the other"
    RESHAPE = 1, first, "the same elements in row-major order under shape `arg`"
    EXPAND = 1, first, "axes of size 1 repeated to the sizes in `arg`"
    PERMUTE = 1, first, "axes reordered: result axis i is source axis `arg[i]`"
    PAD = 1, first, "zeros around: `arg` = ((before, after), ...) per axis"
    SHRINK = 1, first, "a box: `arg` = ((start, stop), ...) per axis"
    FLIP = 1, first, "axes reversed where `arg[i]` is true"
    SKEW = 1, first, "`arg` is a Skew: y[o, k] = x[o*stride + k*dilation, k]"
    UNSKEW = 1, first, "`arg` is a Skew: y[i, k] = x[(i - k*dilation)/stride, k], or 0"
    REDUCE_AXIS = 1, first, "`arg` = (op, axes): those axes folded by op to size 1"
    SCAN_AXIS = 1, first, "`arg` = (op, axis): each element folded by op with those before it"
    MERGE_AXIS = 2, second, "the second source in the order of the first's runs; `arg` is a Merge"
    GATHER = 2, first, "rows x[index] of the first axis; 0 where index is out of range"
    SCATTER = 3, first, "y = x, then y[index[i], j] op= rows[i, j], i in order; `arg` is a Scatter"
    INSERT = 3, first, "x with the third source where the second, a view of x, shows it"

    # --- constants and variables
    CONST = ANY, given, "the Python scalar in `arg`; in a tensor graph its source is the DEVICE"
    ARANGE = 1, given, "0, 1, ... `arg` - 1 on the DEVICE of the source"
    DEFINE_VAR = 0, given, "an integer given at launch; `arg` = (name, least, greatest)"

    # --- arithmetic: unary
    CAST = 1, given, "the value converted; float to integer truncates, to bool is x != 0"
    BITCAST = 1, given, "the same bits as another type of the same width"
    NEG = 1, first, "-a"
    RECIPROCAL = 1, first, "1 / a"
    SQRT = 1, first, "the square root"
    EXP2 = 1, first, "2 ** a"
    LOG2 = 1, first, "the logarithm to base 2"
    EXP = 1, first, "e ** a"
    LOG = 1, first, "the natural logarithm"
    SIN = 1, first, "the sine of a in radians"
    TRUNC = 1, first, "a rounded toward zero"

    # --- arithmetic: binary
    ADD = 2, first, "a + b; integers wrap"
    SUB = 2, first, "a - b; integers wrap"
    MUL = 2, first, "a * b; integers wrap"
    FDIV = 2, first, "a / b of floats"
    IDIV = 2, first, "a / b rounded toward zero; 0 where b == 0, undefined for index"
    MOD = 2, first, "a - b * (a IDIV b), signed as a; 0 where b == 0, undefined for index"
    FLOORDIV = 2, first, "floor(a / b); 0 where b == 0, undefined for index"
    FLOORMOD = 2, first, "a - b * floor(a / b), signed as b; 0 where b == 0, undefined for index"
    MAX = 2, first, "the greater; NaN if either is NaN"
    MIN = 2, first, "the lesser; NaN if either is NaN"
    CMPLT = 2, boolean, "a < b"
    CMPNE = 2, boolean, "a != b"
    CMPEQ = 2, boolean, "a == b"
    AND = 2, first, "bitwise and; logical on bool"
    OR = 2, first, "bitwise or; logical on bool"
    XOR = 2, first, "bitwise exclusive or; logical on bool"
    SHL = 2, first, "a shifted left by b bits; b counts modulo the width"
    SHR = 2, first, "a shifted right by b bits modulo the width, arithmetic for signed a"
    THREEFRY = 2, first, "64 random bits from (counter, key): Threefry-2x32, 20 rounds"

    # --- arithmetic: ternary
    WHERE = 3, second, "b if a else c; both may be evaluated"
    MULACC = 3, first, "a * b + c, rounded once or twice"

    # --- the kernel: memory and lanes
    DEFINE_GLOBAL = 0, given, "the buffer in slot `arg`"
    DEFINE_LOCAL = 0, given, "memory shared by a workgroup (or a thread's scratch), number `arg`"
    DEFINE_REG = 0, given, "registers of one thread, number `arg`"
    INDEX = ANY, first, "the element of a pointer at an index, where the optional gate holds"
    PIXEL = ANY, first, "the pixel of an image at a column and a row, where the gate holds"
    LOAD = ANY, given, "the value at an INDEX; where its gate is false, the second source"
    STORE = 2, nothing, "write the second source at an INDEX"
    VECTORIZE = ANY, given, "the sources as lanes of one vector"
    EXTRACT = ANY, given, "the lanes numbered in `arg` of the sources, laid side by side"
    DOT = 2, given, "neighboring lanes multiplied and added, wider: a[2i]*b[2i] + a[2i+1]*b[2i+1]"
    INSTRUCTION = ANY, given, "what the Instruction `arg` of a plugin makes of lanes; or its Effect"
    MATRIX = ANY, given, "a @ b + c by the MatrixUnit `arg`, each source what a lane holds of it"
    SHUFFLE = 1, first, "the value of the lane of the subgroup whose number is this one's XOR `arg`"

    # --- the kernel: control
    SPECIAL = 1, given, "the index `arg` (grid0, block0, ...) of this thread, below the source"
    RANGE = 1, given, "counts from 0 below the source; `arg` is an Axis"
    REDUCE = ANY, first, "the sources that are no RANGE, folded by op `arg` over the RANGEs"
    SCAN = 2, first, "the first source folded by op `arg` over the steps so far of the RANGE"
    RECUR = 3, first, "STATE `arg` in a step of the RANGE: source 0, then source 1 of the last step"
    ITERATE = 3, first, "STATE `arg` after the RANGE: source 0, then source 1 in every step"
    STATE = 0, given, "what the RECUR or ITERATE around it, of this `arg`, has in a step"
    END = ANY, nothing, "the first source done for every step of the ranges that follow"
    AFTER = ANY, first, "the first source, once the others are done"
    BARRIER = (
        ANY,
        nothing,
        "every thread of the workgroup has done the sources, but for MATRIXes of `arg` steps",
    )
    GROUP = ANY, nothing, "all sources done"
    SINK = ANY, nothing, "the root of a graph"

    # Enum hashes the name in Python, which is slow inside the rewriter.
    __hash__ = object.__hash__

    def __init__(self, arity: int, dtype_rule: DTypeRule, doc: str) -> None:
        self.arity = arity
        self.dtype_rule = dtype_rule
        self.__doc__ = doc

    def __repr__(self) -> str:
        return f"Op.{self.name}"

    def __reduce_ex__(self, protocol: object) -> tuple[object, tuple[object, ...]]:
        return getattr, (Op, self.name)


class AxisKind(enum.Enum):
    """Kind of a RANGE: the loop, thread index or vector that it becomes on the device."""

    LOOP = "loop"  # a plain loop over outputs
    REDUCE = "reduce"  # a plain loop over what is summed away
    ORDERED = "ordered"  # a plain loop whose steps must happen in order
    PARALLEL = "parallel"  # iterations shared out among threads of a CPU
    GRID = "grid"  # a workgroup index
    BLOCK = "block"  # a thread index inside a workgroup
    LANE = "lane"  # a thread index that counts first: neighbors are lanes of a subgroup
    FRAGMENT = "fragment"  # an axis of a matrix whose elements the lanes of a subgroup hold
    GROUP = "group"  # a reduction shared by the threads of a workgroup
    FILL = "fill"  # a fill of shared memory, its steps dealt out to the threads of a workgroup
    UNROLL = "unroll"  # written out
    PARTIAL = "partial"  # written out, each step of a reduction with an accumulator of its own
    VECTOR = "vector"  # lanes of a vector
    PAIR = "pair"  # two steps of a sum, or of a fill, that are neighboring lanes

    __hash__ = object.__hash__


class Part(enum.IntEnum):
    """Role of a loop in its path: the last number, after that of the loop it was made from.

    A part differs from every number: the copy (7, Part.COPY) is no inner loop of a split (7, 4).
    """

    SHARED_PASS = 3  # one of several passes over the same counters
    COPY = 4  # inside of a body that was copied
    TAIL_COPY = 5  # inside of the tail of a split, whose twin is inside of the main loop
    FILL = 6  # fills a staged array, whose number follows
    HELD = 7  # clears (0) or updates (1) sums that are held in an array
    SHARE = 8  # the steps of a cooperative fill that one thread does
    PAIRED = 9  # a vector loop whose lanes are pairs
    UNIT = 11  # of a matrix unit: its lanes, their elements, rows, columns and steps by number
    TURN = 12  # over neighboring elements of what a lane holds of a matrix
    FOLD = 10  # folds what the threads of a group left in shared memory
    AHEAD = 13  # fills a copy of a staged array before the loop whose step it is for
    ONLINE = 14  # one pass over several folds that depend on each other

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = int.__hash__


class Scatter(NamedTuple):
    """Mode of SCATTER: elements are folded by `op` into those present (None: replace them)."""

    op: Op | None
    axis: int


class Write(NamedTuple):
    """Identity of an ASSIGN: its `number` tells it from a write of the same content, `thread` is
    that which recorded it. `mark` is a property of the content, which is all that remains in a
    canonical graph.
    """

    number: int
    mark: str | None
    thread: int


class Merge(NamedTuple):
    """Mode of MERGE_AXIS: runs of `run` elements merge in pairs, of which the first `kept` stay.

    The last axis of the result is cut into rows of `piece` elements, each merged by itself.
    """

    run: int
    kept: int
    piece: int


class Ahead(NamedTuple):
    """The `arg` of a STORE into one of `copies` arrays that the steps of a loop use in turn."""

    copies: int


def ops_named(names: str) -> frozenset[Op]:
    """The ops of some names."""
    return frozenset(map(Op.__getitem__, names.split()))


MOVEMENT: Final = ops_named("RESHAPE EXPAND PERMUTE PAD SHRINK FLIP SKEW UNSKEW")
SAME_VALUE: Final = ops_named("DETACH OWN CONTIGUOUS_BACKWARD CALL")
"""Ops that concern gradients and change neither a value nor its place."""
PARTIAL_WRITES: Final = ops_named("SCATTER INSERT")
"""Ops that change some elements of their first source, in its memory or in a copy."""
UNARY: Final = ops_named("CAST BITCAST NEG RECIPROCAL SQRT EXP2 LOG2 EXP LOG SIN TRUNC")
COMPARISON: Final = ops_named("CMPLT CMPNE CMPEQ")
DIVISIONS: Final = ops_named("IDIV MOD FLOORDIV FLOORMOD")
"""Division ops of integers."""
SHIFTS: Final = ops_named("SHL SHR")
BOOL_ARITHMETIC: Final = {Op.ADD: Op.OR, Op.MUL: Op.AND, Op.MAX: Op.OR, Op.MIN: Op.AND}
"""Ops that have the meaning of arithmetic between bools."""
BINARY: Final = (
    DIVISIONS | SHIFTS | COMPARISON | ops_named("ADD SUB MUL FDIV MAX MIN AND OR XOR THREEFRY")
)
TERNARY: Final = ops_named("WHERE MULACC")
ALU: Final = UNARY | BINARY | TERNARY
COMMUTATIVE: Final = ops_named("ADD MUL MAX MIN CMPNE CMPEQ AND OR XOR")
TRANSCENDENTAL: Final = ops_named("EXP2 LOG2 EXP LOG SIN")
CLOSERS: Final = ops_named("END REDUCE")
"""Ops that close the loops among their sources after the first."""
COMPOUND: Final = ops_named("END GROUP SINK")
"""Statements made of statements: a walk through them finds STOREs, but not stored values."""
APPROXIMATE: Final = "approximate"
"""The `arg` of an EXP or EXP2 of float32 whose result may be wrong in its last bits, and 0 where it
is smaller than normal numbers: what is computed from it is rounded to a half type."""
RECURRENCES: Final = ops_named("RECUR ITERATE")
REDUCTIONS: Final = ops_named("ADD MUL MAX MIN")


def registers(table: dict[Op, Handler]) -> Callable[..., Callable[[Handler], Handler]]:
    """A decorator factory: `@rule(Op.ADD, Op.SUB)` enters a function into a table by op."""

    def rule(*ops: Op) -> Callable[[Handler], Handler]:
        def register(function: Handler) -> Handler:
            table.update(dict.fromkeys(ops, function))
            return function

        return register

    return rule


def neutral_element(op: Op, dtype: DType) -> Scalar:
    """The neutral element of one of REDUCTIONS."""
    lane = dtype.scalar()
    return {Op.ADD: 0, Op.MUL: 1, Op.MAX: dtypes.min(lane), Op.MIN: dtypes.max(lane)}[op]
