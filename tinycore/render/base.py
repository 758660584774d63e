"""The interface of renderers: `Limits`, `LinearKernel`, and `Renderer`.

Floor 2. In: a tuple of UOps in order (see `LinearKernel`). Out: source text for one compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from math import inf
from typing import ClassVar, Final, cast

from tinycore._deferred import Deferred
from tinycore.device.extent import Extent
from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.errors import PluginError, UnsupportedError
from tinycore.uop.instruction import Effect, Instruction
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, AxisKind, Op
from tinycore.uop.pattern import RuleSet

Dims = tuple[int, int, int]

STREAM: Final = "stream"
"""The `arg` of a non-temporal STORE, which should not fill the caches."""

EARLY: Final = "early"
"""The `arg` of a GROUP of fills of shared memory before a loop, for the first of its steps."""

LATE: Final = "late"
"""The `arg` of a GROUP of fills for a later step of their loop, and of its STOREs: no step of the
loop reads them before, and they are done at the end of theirs."""

SHARED_ALIGNMENT: Final = 16
"""The alignment in bytes of every array in workgroup memory: that of the widest vector access."""


@dataclass(frozen=True)
class Limits:
    """Capabilities of a device, as far as plans depend on them.

    A device with a `grid` runs outputs as threads of a grid; one without runs loops.
    """

    vector_bytes: int = 0
    """The widest SIMD register, or the widest vector worth loading at once. 0: scalars only, one
    element per load, which costs a device with vectors most of its rate."""
    vector_registers: int = 16
    """Vector registers of a thread, which the accumulators and operands of a tile share."""
    pair_bytes: int = 0
    """The widest vectors of int16 that DOT multiplies, from 16 bytes on; 0: there is no DOT."""
    threads: int = 1
    """Threads that keep the device busy; without a grid, those that share a kernel's loops."""
    grid: Dims | None = None
    """The most groups per axis; None: the device runs loops."""
    grid_varies: bool = False
    """True if a launch has the groups that `ProgramInfo.groups` gives for its values. If not, loops
    of symbolic length are loops of threads."""
    parallel_varies: bool = False
    """True if threads share the steps that `ProgramInfo.steps` gives for the values of a launch. If
    not, they share loops of fixed length only."""
    block: Dims = (1, 1, 1)
    """The most threads in a group per axis."""
    block_threads: int = 1
    """The most threads in a group."""
    block_wanted: int = 1
    """Threads that a group should have; 1 where groups of one thread run as well."""
    shared_bytes: int = 0
    """Memory that the threads of a group can share; 0: they share nothing."""
    shared_is_near: bool = True
    """True if memory that a group shares is nearer to its threads than buffers are; not where a
    processor has both in the same caches."""
    subgroup: int = 1
    """Threads of a group that run in lockstep and hold the operands of matrix units together:
    those with neighboring numbers, axis 0 counting first. 1: there are none."""
    shuffles: tuple[DType, ...] = ()
    """Types whose values the lanes of a subgroup exchange by an instruction (SHUFFLE). Threads of a
    subgroup then add up sums that they share without shared memory and barriers."""
    matrix: tuple[MatrixUnit, ...] = ()
    """The matrix instructions of the device, the best first; MATRIX has one of them for `arg`."""
    buffers: int | None = None
    """The most buffers a kernel may take; None: as many as there are."""
    image: tuple[int, int] | None = None
    """Columns and rows of the largest image; None: the device has none."""
    cache_bytes: int = 256 << 10
    """The second cache, the nearest that holds more than a tile."""
    access_alignment: int = 1
    """The alignment in bytes that vector accesses need, up to their own width: 16 if float4 must be
    at a multiple of 16 bytes, 1 if elements may be anywhere."""
    buffers_aligned: bool = True
    """True if every buffer starts at a multiple of `access_alignment`. The engine sets it to False
    for launches on views that start anywhere, for which it lowers a kernel again."""
    units: int = 0
    """Compute units (multiprocessors, cores) that groups are spread over; 0: it is not stated."""
    unit_threads: int = 0
    """The most threads that a unit has at once; 0: it is not stated."""
    unit_registers: int = 0
    """Registers of 4 bytes that the threads of a unit share; 0: it is not stated."""
    unit_shared_bytes: int = 0
    """Shared memory of a unit, divided among its resident groups; 0: it is not stated."""
    thread_registers: int = 0
    """The most registers of 4 bytes that a thread has; 0: it is not stated."""
    l2_bytes: int = 0
    """Bytes of the cache that all units share; 0: it is not stated."""
    l2_rate: float = 0.0
    """Bytes per clock that each unit gets from that cache when all read; 0: it is not stated."""
    stream_bytes: int = 0
    """Bytes of the last cache. Larger arrays are written by non-temporal stores (STREAM is the
    `arg` of the STORE), and the next of their rows is prefetched where rows are read several times
    (the `arg` of a LOAD, bytes ahead). 0: the device has no such stores."""
    strategies: tuple[Deferred, ...] = ()
    """Strategies of the plugin, for what this hardware alone has: functions of a `KernelFacts` and
    of these limits that yield `Proposal`s (`tinycore.tiling`). Theirs go before the core's."""
    layout: Deferred | None = None
    """Function of the `Operand`s and `ProductLoops` of a sum of products (`tinycore.tiling`), its
    multiply-adds and these limits that gives copies of operands in another layout, by operand.
    None: those for matrix units are as `copies_for_units` has them, others stay as they are."""
    fills: Deferred | None = None
    """Function of a `Filling` (`tinycore.tiling`), fills of shared memory ahead of a loop's steps,
    that gives what the hardware does in their place, by fill; {} where threads have to fill."""
    copies: Deferred | None = None
    """Function of a kernel after its values are lowered that gives it with copies to shared memory
    behind the threads' backs, for STOREs in GROUPs of `arg` EARLY and LATE; None: there are none,
    and threads hold what they load for a later step until they have computed."""

    def __post_init__(self) -> None:
        for name, kind, is_valid in LIMIT_RULES:
            if not is_valid(value := getattr(self, name)):
                raise PluginError(f"Limits: {name} must be {kind}, not {value!r}")

    @property
    def loops_vary(self) -> bool:
        """True if plans may cut loops of symbolic length: a processor runs loops of any length."""
        return self.grid_varies or self.grid is None

    @property
    def sums_are_shared(self) -> bool:
        """True if a sum shared by the threads of a group is faster.

        Not where a processor runs threads without vectors in turn, each up to a barrier: sums of
        rows, of columns and of 200,000 elements then take 2.0, 2.6 and 8 times as long by Mesa's
        llvmpipe. With vectors of 16 bytes softmax takes 2.3 times as long by PoCL if they are not.
        """
        return self.shared_is_near or self.vector_bytes > 0

    def unevenness(self, groups: int) -> float:
        """Wave quantization: the work of the unit with most groups, as a multiple of the average.

        1 where units are not stated.
        """
        return -(-groups // self.units) * self.units / groups if self.units else 1.0


def is_whole(value: object, least: int = 0) -> bool:
    """True for an int from `least` on, which True is not."""
    return type(value) is int and value >= least


def are_whole(value: object, count: int) -> bool:
    """True for a tuple of `count` positive ints."""
    is_tuple = isinstance(value, tuple) and len(value) == count
    return is_tuple and all(is_whole(one, 1) for one in cast("tuple[object, ...]", value))


KINDS_OF_LIMITS: Final[dict[str, tuple[str, Callable[[object], bool]]]] = {
    "bool": ("True or False", lambda x: isinstance(x, bool)),
    "float": ("a finite number from 0 on", lambda x: type(x) in (int, float) and 0 <= x < inf),  # type: ignore[operator]
    "Dims": ("three positive ints", lambda x: are_whole(x, 3)),
    "Dims | None": ("three positive ints, or None", lambda x: x is None or are_whole(x, 3)),
    "int | None": ("a positive int, or None", lambda x: x is None or is_whole(x, 1)),
    "tuple[int, int] | None": (
        "two positive ints, or None",
        lambda x: x is None or are_whole(x, 2),
    ),
    "tuple[DType, ...]": ("a tuple of dtypes", lambda x: all_are(x, DType)),
    "tuple[Deferred, ...]": ("a tuple of deferred(...)", lambda x: all_are(x, Deferred)),
    "Deferred | None": ("deferred(...), or None", lambda x: x is None or isinstance(x, Deferred)),
    "tuple[MatrixUnit, ...]": ("a tuple of MatrixUnit", lambda x: all_are(x, MatrixUnit)),
}
"""Conditions of fields of Limits, in words and as functions, by annotation."""


def all_are(value: object, kind: type) -> bool:
    """True for a tuple of objects of a class."""
    return isinstance(value, tuple) and all(isinstance(one, kind) for one in value)


def rules_of_limits() -> Iterator[tuple[str, str, Callable[[object], bool]]]:
    """For each field its name, what it must be, and whether a value is that.

    Whole numbers may be 0 where the default is, which says that a device has none of it.
    """
    for each in fields(Limits):
        if each.type == "int":
            least = min(1, cast("int", each.default))
            yield each.name, f"an int from {least} on", partial(is_whole, least=least)
        else:
            yield each.name, *KINDS_OF_LIMITS[str(each.type)]


LIMIT_RULES: Final = tuple(rules_of_limits())


@dataclass(frozen=True)
class LinearKernel:
    """A kernel as renderers get it: its name, and its nodes in execution order."""

    name: str
    uops: tuple[UOp, ...]
    given: tuple[str, ...] | None = None
    """Names of the variables for the launch, in their order; None: those of the kernel."""
    sizes: Mapping[str, Extent] = field(default_factory=dict)
    """Sizes of the launch that depend on variables: those of a SPECIAL by its name, whose size in
    `uops` is the greatest, and that of the PARALLEL range as `parallel`."""

    @cached_property
    def buffers(self) -> tuple[UOp, ...]:
        """The DEFINE_GLOBAL nodes, by slot."""
        return tuple(
            sorted((u for u in self.uops if u.op is Op.DEFINE_GLOBAL), key=lambda u: u.arg)
        )

    @cached_property
    def variables(self) -> tuple[UOp, ...]:
        """The DEFINE_VAR nodes, by name."""
        return tuple(
            sorted((u for u in self.uops if u.op is Op.DEFINE_VAR), key=lambda u: u.arg[0])
        )

    @property
    def values(self) -> tuple[str, ...]:
        """The names under which a launch gives the variables."""
        return tuple([v.arg[0] for v in self.variables]) if self.given is None else self.given

    @cached_property
    def parallel(self) -> int:
        """The greatest extent of the PARALLEL range, 1 where there is none."""
        for u in self.uops:
            if u.op is Op.RANGE and u.arg.kind is AxisKind.PARALLEL:
                return u.extent
        return 1

    def launch(self, prefix: str) -> Dims:
        """The sizes of SPECIAL `prefix`0, 1 and 2 (`grid` or `block`), 1 where there is none."""
        sizes = {u.arg: int(u.src[0].arg) for u in self.uops if u.op is Op.SPECIAL}
        x, y, z = (sizes.get(f"{prefix}{axis}", 1) for axis in range(3))
        return x, y, z

    @cached_property
    def shared_layout(self) -> Mapping[UOp, int]:
        """The first byte of each DEFINE_LOCAL in workgroup memory, aligned."""
        layout: dict[UOp, int] = {}
        end = 0
        for array in self._shared_arrays:
            alignment = self.alignments.get(array, SHARED_ALIGNMENT)
            layout[array] = start = -(-end // alignment) * alignment
            end = start + array_bytes(array)
        return layout

    @cached_property
    def alignments(self) -> Mapping[UOp, int]:
        """Alignment of the arrays that an Effect reads or writes by itself.

        All others have SHARED_ALIGNMENT.
        """
        found: dict[UOp, int] = {}
        for u in self.uops:
            if isinstance(u.arg, Effect) and u.arg.alignment:
                array = pointer_of(u.src[0])
                found[array] = max(u.arg.alignment, found.get(array, SHARED_ALIGNMENT))
        return found

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """Effects of instructions of a plugin, each once, in order."""
        return tuple(dict.fromkeys(u.arg for u in self.uops if isinstance(u.arg, Effect)))

    @property
    def shared_alignment(self) -> int:
        """Alignment of workgroup memory."""
        return max([SHARED_ALIGNMENT, *self.alignments.values()])

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of workgroup memory, the gaps between aligned arrays included."""
        ends = (start + array_bytes(array) for array, start in self.shared_layout.items())
        return max(ends, default=0)

    @property
    def _shared_arrays(self) -> list[UOp]:
        return sorted((u for u in self.uops if u.op is Op.DEFINE_LOCAL), key=lambda u: u.arg)

    @cached_property
    def index_bits(self) -> int:
        """The width of integers, 32 or 64, that hold every counter and address of the kernel."""
        most = dtypes.max(dtypes.int32)
        sizes = [u.dtype.size for u in self.buffers if isinstance(u.dtype, PointerDType)]
        places = (u.bounds for u in self.uops if u.dtype.scalar() is dtypes.index)
        fits = all(-most <= low and high <= most for low, high in places)
        return 32 if fits and max(sizes, default=0) <= most else 64

    @cached_property
    def streams(self) -> bool:
        """True if a STORE is non-temporal: it bypasses the caches."""
        return any(u.op is Op.STORE and u.arg == STREAM for u in self.uops)

    @cached_property
    def written(self) -> frozenset[int]:
        """The slots that a STORE goes to."""
        targets = (pointer_of(u.src[0]) for u in self.uops if u.op is Op.STORE)
        return frozenset(t.arg for t in targets if t.op is Op.DEFINE_GLOBAL)


def value_names(count: int) -> tuple[str, ...]:
    """Names of a kernel's variables in generated code, in the order of their own names."""
    width = len(str(count - 1))  # so that the order of the text is that of the numbers
    return tuple([f"value{place:0{width}}" for place in range(count)])


def array_bytes(array: UOp) -> int:
    """The size of a DEFINE_LOCAL."""
    assert isinstance(array.dtype, PointerDType)
    return array.dtype.size * array.dtype.base.size_bytes


def pointer_of(index: UOp) -> UOp:
    """The DEFINE_* node that an INDEX or PIXEL (or a pointer behind AFTERs) points into."""
    node = index
    while node.op in INSIDE_MEMORY:
        node = node.src[0]
    return node


INSIDE_MEMORY: Final = frozenset({Op.INDEX, Op.AFTER, Op.PIXEL})


@dataclass(frozen=True)
class Renderer:
    """Turns linear kernels into source for one compiler. Subclasses are families, then dialects."""

    limits: Limits = field(default_factory=Limits)

    name: ClassVar[str] = "renderer"
    native_ops: ClassVar[frozenset[Op]] = ALU
    """Arithmetic that the language has; missing ops are lowered to these."""
    native_types: ClassVar[Mapping[Op, frozenset[DType]]] = {}
    """Types for which the language has an op of `native_ops`, if not for all types. For others the
    op is lowered as if it were missing; half-precision floats are computed in float32."""
    approximate: ClassVar[frozenset[Op]] = frozenset()
    """Arithmetic of float32 for which the language has only an approximate instruction, wrong in
    the last bits. Only nodes with the `arg` APPROXIMATE use it."""
    emulated: ClassVar[frozenset[DType]] = frozenset()
    """Types the language can only store; their values are computed in float32."""
    converts: ClassVar[frozenset[DType]] = frozenset()
    """Emulated types for which the language has CASTs to float32 and back, and nothing else."""
    vector_ops: ClassVar[bool] = True
    """True if the language computes with vectors. If it only loads and stores them, arithmetic is
    lowered to lanes."""
    rules: ClassVar[Mapping[str, RuleSet]] = {}
    """Rules of the dialect that run before a pass of lowering, by the pass's name; those that put
    in instructions run before "tidy"."""
    instructions: ClassVar[Mapping[Instruction, str]] = {}
    """Expressions of the plugin's own instructions, in terms of {0}, {1} and so on."""
    lacking: ClassVar[frozenset[DType]] = frozenset()
    """Types that the language lacks; kernels with them are refused."""

    def render(self, kernel: LinearKernel) -> str:
        """The source text of a kernel."""
        raise NotImplementedError(f"{type(self).__name__}, a renderer, lacks render()")

    def lacks(self, op: Op, dtype: DType) -> bool:
        """True if arithmetic on operands of a type is lowered to other ops or types."""
        types = self.native_types.get(op)
        return op not in self.native_ops or (types is not None and dtype.scalar() not in types)

    def instruction(self, u: UOp, operands: Sequence[str]) -> str:
        """The expression of an INSTRUCTION. Raises UnsupportedError for another dialect's."""
        if u.arg not in self.instructions:
            raise UnsupportedError(f"{self.name} has no instruction {u.arg.name}")
        return self.instructions[u.arg].format(*operands)

    def refusal(self, op: Op) -> UnsupportedError:
        """The error for arithmetic that this language lacks, and that was not lowered."""
        return UnsupportedError(
            f"{self.name} has no words for {op.name}. Add it to LOWERINGS in lower/math.py, or to "
            f"the tables and `native_ops` of {type(self).__name__}."
        )


def two_at_most(
    parts: Sequence[str], lanes: int, join: Callable[[str, str, int], str]
) -> tuple[list[str], int]:
    """Vectors of `lanes` lanes, joined in pairs until at most two are left, as a shuffle takes.

    Returns them with their lanes. `join` gets two vectors, and the lanes of both together.
    """
    found = list(parts)
    while len(found) > 2:
        found += found[-1:] * (len(found) % 2)
        lanes *= 2
        found = [join(*pair, lanes) for pair in zip(found[::2], found[1::2], strict=True)]
    return found, lanes
