"""PTX, NVIDIA's assembly for all of its cards, from linear UOps: registers, predicates, memory.

A kernel takes the addresses of its buffers by slot, then the variables by name, 8 bytes each:

    .visible .entry NAME_(.param .u64 data0, ..., .param .u64 n)

Every lane of a value has a register of its own, or is an immediate, so that vectors exist in memory
alone. Integers of 8 and 16 bits live in registers of 32, extended by their sign or by zeros; a bool
is a predicate, and a byte in memory. A half is computed by instructions of its own; bfloat16 and
the fp8s are integers in memory and float32 between.

NVIDIA, "PTX ISA", version 8.0. What it leaves undefined is defined as docs/numerics.md says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_nv.matrix import (
    INSTRUCTIONS,
    WARPGROUP,
    descriptor_bits,
    is_written_by_threads,
    products_begun_together,
)
from tiny_nv.program import entry_name
from tinycore.dtype import DType, PointerDType, Scalar, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel, Renderer, pointer_of
from tinycore.render.facts import BOOL_ARITHMETIC, is_register, is_safe_division, is_safe_shift
from tinycore.render.literals import as_stored
from tinycore.uop.matrix import MatrixDescriptor
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPARISON, SHIFTS, Op

__all__ = ["Ptx", "version_of"]

STATIC_SHARED_BYTES: Final = 48 << 10
"""Shared memory beyond which a kernel's is sized at its launch."""
VECTOR_BYTES: Final = 16
WORD_BYTES: Final = 4
ACCESS_LANES: Final = 4
"""Most registers that one instruction loads or stores: cards before Blackwell move 16 bytes."""
INT_MIN: Final = -(1 << 31)
LONG_MIN: Final = -(1 << 63)
SIGN: Final = str(1 << 63)

Lanes = tuple[str, ...]
"""The registers or immediates of a value, one for each lane."""


@dataclass(frozen=True)
class Kind:
    """Registers of a type's values: the letters of their names, and the types in instructions."""

    register: str
    declared: str
    bits: str
    """As bits: b32."""
    arithmetic: str
    """As numbers: s32."""
    memory: str
    """In memory: u8."""


FLOAT: Final = Kind("%f", ".f32", "b32", "f32", "f32")
DOUBLE: Final = Kind("%d", ".f64", "b64", "f64", "f64")
HALF: Final = Kind("%h", ".b16", "b16", "f16", "b16")
PREDICATE: Final = Kind("%p", ".pred", "pred", "pred", "u8")
INT: Final = Kind("%r", ".b32", "b32", "s32", "s32")
UINT: Final = Kind("%r", ".b32", "b32", "u32", "u32")
LONG: Final = Kind("%q", ".b64", "b64", "s64", "s64")
ULONG: Final = Kind("%q", ".b64", "b64", "u64", "u64")
KINDS: Final[Mapping[DType, Kind]] = {
    dtypes.bool: PREDICATE,
    dtypes.int8: Kind("%r", ".b32", "b32", "s32", "s8"),
    dtypes.uint8: Kind("%r", ".b32", "b32", "u32", "u8"),
    dtypes.int16: Kind("%r", ".b32", "b32", "s32", "s16"),
    dtypes.uint16: Kind("%r", ".b32", "b32", "u32", "u16"),
    dtypes.int32: INT,
    dtypes.uint32: UINT,
    dtypes.int64: LONG,
    dtypes.uint64: ULONG,
    dtypes.float16: HALF,
    dtypes.float32: FLOAT,
    dtypes.float64: DOUBLE,
}

FLOAT_OPERATIONS: Final = {
    Op.ADD: "add",
    Op.SUB: "sub",
    Op.MUL: "mul",
    Op.FDIV: "div.rn",
    Op.RECIPROCAL: "rcp.rn",
    Op.SQRT: "sqrt.rn",
    Op.NEG: "neg",
    Op.MULACC: "fma.rn",
    Op.MAX: "max.NaN",
    Op.MIN: "min.NaN",
}
"""Sums and products without a rounding mode, which may be fused."""
INTEGER_OPERATIONS: Final = {
    Op.ADD: "add",
    Op.SUB: "sub",
    Op.MUL: "mul.lo",
    Op.NEG: "neg",
    Op.MULACC: "mad.lo",
    Op.MAX: "max",
    Op.MIN: "min",
    Op.IDIV: "div",
    Op.MOD: "rem",
    Op.SHR: "shr",
}
BIT_OPERATIONS: Final = {Op.AND: "and", Op.OR: "or", Op.XOR: "xor", Op.SHL: "shl"}
COMPARISONS: Final = {Op.CMPLT: "lt", Op.CMPEQ: "eq", Op.CMPNE: "ne"}
WRAPPING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MULACC, Op.SHL, Op.IDIV, Op.MOD})
"""Ops whose result may leave the range of a narrow integer."""
THROUGH_FLOAT: Final = frozenset({Op.FDIV, Op.RECIPROCAL, Op.SQRT})
"""Ops without an instruction for halves."""


class Text:
    """The text of one kernel while it grows: registers, labels, lines and where values are."""

    def __init__(self, kernel: LinearKernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.values: dict[UOp, Lanes] = {}
        self.arrays: list[str] = []
        """Declarations of local memory."""
        self.loops: list[tuple[str, str, str, bool]] = []
        """Label, counter, end and whether the end is tested first, of each open loop."""
        self.addresses: list[dict[tuple[UOp, UOp], str]] = [{}]
        """Addresses that were computed in each open loop, to be used again inside of it."""
        self.labels = 0
        self.multiplied = {n for u in kernel.uops if u.op is Op.MATRIX for n in factors_of(u)}
        """Factors of matrix instructions, which are held in registers of 32 bits."""
        self.packed: dict[Lanes, str] = {}
        """Words that were loaded, by their lanes."""

    def register(self, kind: Kind) -> str:
        """A new register."""
        key = (kind.register, kind.declared)
        number = self.counts.get(key, 0)
        self.counts[key] = number + 1
        return f"{kind.register}{number}"

    def put(self, text: str) -> None:
        """Add an instruction."""
        self.lines.append(f"  {text};")

    def new(self, kind: Kind, instruction: str, *operands: str) -> str:
        """The register that an instruction writes."""
        target = self.register(kind)
        self.put(f"{instruction} {', '.join((target, *operands))}")
        return target

    def label(self) -> str:
        """A new place to branch to."""
        self.labels += 1
        return f"L{self.labels}"


@dataclass(frozen=True)
class Ptx(Renderer):
    """PTX for one architecture."""

    arch: str = "sm_80"

    name: ClassVar[str] = "PTX"
    vector_ops: ClassVar[bool] = False
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    native_ops: ClassVar[frozenset[Op]] = frozenset(
        {*FLOAT_OPERATIONS, *INTEGER_OPERATIONS, *BIT_OPERATIONS, *COMPARISONS}
        | {Op.TRUNC, Op.WHERE, Op.CAST, Op.BITCAST}
    )

    # --- the frame

    def render(self, kernel: LinearKernel) -> str:
        """The source text of a kernel."""
        text = Text(kernel)
        for u in kernel.uops:
            self.write(u, text)
        x, y, z = kernel.launch("block")
        slots = range(max((u.arg for u in kernel.buffers), default=-1) + 1)
        names = [*(f"data{i}" for i in slots), *(variable_of(u) for u in kernel.variables)]
        parameters = [f"  .param .u64 {name}" for name in names]
        parameters += [f"  .param .align 64 .b8 map{i}[128]" for i in range(len(kernel.maps))]
        registers = [f"  .reg {d} {r}<{n}>;" for (r, d), n in sorted(text.counts.items())]
        dynamic = kernel.shared_bytes > STATIC_SHARED_BYTES
        size = "" if dynamic else str(kernel.shared_bytes)
        shared = f".shared .align {kernel.shared_alignment} .b8 shared[{size}];"
        lines = [
            f".version {self.version(kernel)}",
            f".target {self.arch}",
            ".address_size 64",
            *([f".extern {shared}"] if dynamic else []),
            f".visible .entry {entry_name(kernel.name)}(",
            ",\n".join(parameters),
            f") .maxntid {x}, {y}, {z} {{",
            *([f"  {shared}"] if kernel.shared_bytes and not dynamic else []),
            *text.arrays,
            *registers,
            *text.lines,
            "  ret;",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def version(self, kernel: LinearKernel) -> str:
        """The PTX ISA that a kernel needs."""
        names = [u.arg.name for u in kernel.uops if u.op is Op.MATRIX]
        needed = [INSTRUCTIONS[name].version for name in names if name in INSTRUCTIONS]
        return max([version_of(self.arch), *needed])

    def kind(self, dtype: DType, text: Text) -> Kind:
        """Registers of a scalar type's values."""
        scalar = dtype.scalar()
        if scalar is dtypes.index:
            return INT if text.kernel.index_bits == 32 else LONG
        if scalar not in KINDS:
            raise UnsupportedError(f"PTX has no registers for {scalar!r}; cast to float32")
        return KINDS[scalar]

    # --- one node

    def write(self, u: UOp, text: Text) -> None:
        """Add what one node stands for."""
        match u.op:
            case Op.DEFINE_GLOBAL:
                raw = text.new(ULONG, "ld.param.u64", f"[data{u.arg}]")
                text.values[u] = (text.new(ULONG, "cvta.to.global.u64", raw),)
            case Op.DEFINE_VAR:
                self.write_variable(u, text)
            case Op.DEFINE_LOCAL:
                base = text.new(UINT, "mov.u32", "shared")
                start = text.kernel.shared_layout[u]
                text.values[u] = (text.new(UINT, "add.u32", base, str(start)) if start else base,)
            case Op.DEFINE_REG:
                self.write_registers(u, text)
            case Op.SPECIAL:
                self.write_special(u, text)
            case Op.CONST:
                text.values[u] = (self.constant(u.dtype, u.arg, text),)
            case Op.RANGE:
                self.open_loop(u, text)
            case Op.END:
                self.close_loop(text)
            case Op.LOAD:
                self.write_load(u, text)
            case Op.STORE:
                self.write_store(u, text)
            case Op.BARRIER:
                if is_written_by_threads(text.kernel):  # matrix units see what was stored
                    text.put("fence.proxy.async.shared::cta")
                text.put("bar.sync 0")
            case Op.VECTORIZE:
                text.values[u] = tuple(text.values[s][0] for s in u.src)
            case Op.EXTRACT:
                count = u.src[0].dtype.count
                lanes = (text.values[u.src[lane // count]][lane % count] for lane in u.arg)
                text.values[u] = tuple(lanes)
            case Op.MATRIX if u.arg.name in WARPGROUP:
                self.write_warpgroup_matrix(u, text)
            case Op.MATRIX:
                self.write_matrix(u, text)
            case Op.MATRIX_LOAD if isinstance(u.arg, MatrixDescriptor):
                self.write_descriptor(u, text)
            case Op.MATRIX_LOAD:
                self.write_matrix_load(u, text)
            case Op.SHUFFLE:
                self.write_shuffle(u, text)
            case Op.ASYNC_COPY:
                self.write_async_copy(u, text)
            case Op.PHASES | Op.TENSOR_COPY:
                self.write_phase(u, text)
            case Op.WAIT_PHASE:
                self.write_wait_phase(u, text)
            case Op.COMMIT:
                text.put("cp.async.commit_group")
            case Op.WAIT:
                text.put(f"cp.async.wait_group {u.arg}")
            case Op.INDEX | Op.SINK | Op.GROUP | Op.AFTER:
                return
            case _:
                text.values[u] = (self.computed(u, text),)

    def write_variable(self, u: UOp, text: Text) -> None:
        """A number that is given at the launch."""
        raw = text.new(ULONG, "ld.param.u64", f"[{variable_of(u)}]")
        kind = self.kind(u.dtype, text)
        text.values[u] = (raw if kind.bits == "b64" else text.new(kind, "cvt.u32.u64", raw),)

    def write_special(self, u: UOp, text: Text) -> None:
        """The number of a block, or of a thread in it."""
        name = {"grid": "ctaid", "block": "tid"}[u.arg[:-1]]
        found = text.new(UINT, "mov.u32", f"%{name}.{'xyz'[int(u.arg[-1])]}")
        wide = self.kind(u.dtype, text).bits == "b64"
        text.values[u] = (text.new(LONG, "cvt.u64.u32", found) if wide else found,)

    def write_registers(self, u: UOp, text: Text) -> None:
        """A variable is registers; an array of a thread is local memory."""
        assert isinstance(u.dtype, PointerDType)
        base = u.dtype.base
        if is_register(u):
            kind = self.kind(base, text)
            text.values[u] = tuple(text.register(kind) for _ in range(base.count))
            return
        name, size = f"array{u.arg}", u.dtype.size * base.count * base.scalar().itemsize
        text.arrays.append(f"  .local .align {VECTOR_BYTES} .b8 {name}[{size}];")
        text.values[u] = (text.new(ULONG, "mov.u64", name),)

    def constant(self, dtype: DType, value: Scalar, text: Text) -> str:
        """An immediate; halves and predicates have none, and get a register."""
        if dtype is dtypes.bool:
            return text.new(PREDICATE, "setp.ne.u32", str(int(bool(value))), "0")
        if dtype is dtypes.float32:
            return f"0f{struct.pack('>f', as_stored(dtype, float(value))).hex()}"
        if dtype is dtypes.float64:
            return f"0d{struct.pack('>d', float(value)).hex()}"
        if dtype is dtypes.float16:
            bits = struct.pack(">e", as_stored(dtype, float(value))).hex()
            return text.new(HALF, "mov.b16", f"0x{bits}")
        return str(int(value))

    # --- loops

    def open_loop(self, u: UOp, text: Text) -> None:
        """The head of a loop, which tests its end there only if it may have no steps."""
        kind = self.kind(u.dtype, text)
        (end,) = text.values[u.src[0]]
        counter = text.new(kind, f"mov.{kind.bits}", "0")
        label = text.label()
        tests_first = u.src[0].bounds[0] < 1
        text.lines.append(f"{label}:")
        if tests_first:
            done = text.new(PREDICATE, f"setp.ge.{kind.arithmetic}", counter, end)
            text.put(f"@{done} bra {label}_end")
        text.values[u] = (counter,)
        text.loops.append((label, counter, end, tests_first))
        text.addresses.append({})

    def close_loop(self, text: Text) -> None:
        """The end of the innermost loop."""
        label, counter, end, tests_first = text.loops.pop()
        text.addresses.pop()
        size = "s64" if counter.startswith(LONG.register) else "s32"
        text.put(f"add.{size} {counter}, {counter}, 1")
        if tests_first:
            text.put(f"bra {label}")
            text.lines.append(f"{label}_end:")
        else:
            more = text.new(PREDICATE, f"setp.lt.{size}", counter, end)
            text.put(f"@{more} bra {label}")

    # --- memory

    def address(self, index: UOp, text: Text) -> str:
        """Memory operand of an INDEX."""
        pointer, place = pointer_of(index), index.src[1]
        assert isinstance(pointer.dtype, PointerDType)
        size = pointer.dtype.base.scalar().itemsize
        offset = 0
        if place.op is Op.CONST:
            return operand(text.values[pointer][0], place.arg * size)
        if place.op is Op.ADD and place.src[1].op is Op.CONST:
            place, offset = place.src[0], place.src[1].arg * size
            if not -(1 << 31) <= offset < 1 << 31:
                place, offset = index.src[1], 0
        for known in reversed(text.addresses):
            if (found := known.get((pointer, place))) is not None:
                return operand(found, offset)
        (base,), (number,) = text.values[pointer], text.values[place]
        is_wide = text.kernel.index_bits == 64
        if pointer.op is Op.DEFINE_LOCAL:
            if is_wide:
                number = text.new(INT, "cvt.u32.u64", number)
            made = text.new(UINT, "mad.lo.s32", number, str(size), base)
        else:
            instruction = "mad.lo.s64" if is_wide else "mad.wide.s32"
            made = text.new(ULONG, instruction, number, str(size), base)
        text.addresses[-1][pointer, place] = made
        return operand(made, offset)

    @staticmethod
    def space(pointer: UOp, text: Text) -> str:
        """The state space of memory, with the cache for what is never written."""
        if pointer.op is Op.DEFINE_LOCAL:
            return "shared"
        return "global" if pointer.op is Op.DEFINE_GLOBAL else "local"

    def write_load(self, u: UOp, text: Text) -> None:
        """Load at an INDEX, or the alternative if its gate is false."""
        index = u.src[0]
        pointer, kind = pointer_of(index), self.kind(u.dtype, text)
        if is_register(pointer):
            lanes = (text.new(kind, f"mov.{kind.bits}", r) for r in text.values[pointer])
            text.values[u] = tuple(lanes)
            return
        gate = text.values[index.src[2]][0] if len(index.src) == 3 else ""
        others = text.values[u.src[1]] if len(u.src) > 1 else ()
        zero = self.constant(u.dtype.scalar(), 0, text) if gate and not others else ""
        where = self.space(pointer, text)
        read_only = where == "global" and pointer.arg not in text.kernel.written
        instruction = f"ld.{where}{'.nc' if read_only else ''}"
        place = self.address(index, text)
        if u in text.multiplied and not gate and is_packed(u.dtype):
            text.values[u] = self.packed(instruction, place, kind, u.dtype, text)
            return
        found = self.loaded(instruction, place, kind, u.dtype, gate, text)
        if gate:
            others = others or (zero,) * len(found)
            found = tuple(
                self.chosen(kind, gate, a, b, text) for a, b in zip(found, others, strict=True)
            )
        text.values[u] = found

    def loaded(
        self, instruction: str, place: str, kind: Kind, dtype: DType, gate: str, text: Text
    ) -> Lanes:
        """Lanes from memory, as many at once as one instruction takes; garbage behind a gate."""
        guard = f"@{gate} " if gate else ""
        count, size = dtype.count, dtype.scalar().itemsize
        if count > ACCESS_LANES:  # PTX has vectors of at most four: words, which are taken apart
            words = self.words(instruction, place, count * size // WORD_BYTES, guard, text)
            return tuple(lane for word in words for lane in self.apart(word, kind, size, text))
        held = UINT if kind is PREDICATE else kind
        targets = [text.register(held) for _ in range(count)]
        if gate:
            for target in targets:
                text.put(f"mov.{held.bits} {target}, {zero_of(held)}")
        text.put(f"{guard}{instruction}{vector(count)}.{kind.memory} {braced(targets)}, {place}")
        if kind is PREDICATE:
            return tuple(text.new(PREDICATE, "setp.ne.u32", t, "0") for t in targets)
        return tuple(targets)

    def packed(self, instruction: str, place: str, kind: Kind, dtype: DType, text: Text) -> Lanes:
        """Lanes from memory, whose words are kept for a matrix instruction."""
        words = self.words(instruction, place, dtype.size_bytes // WORD_BYTES, "", text)
        return self.held_as_words(words, kind, dtype.scalar().itemsize, text)

    def held_as_words(self, words: list[str], kind: Kind, size: int, text: Text) -> Lanes:
        """The lanes of words that are kept for a matrix instruction."""
        if size == WORD_BYTES:
            return tuple(text.new(kind, "mov.b32", word) for word in words)
        parts = [tuple(self.apart(word, kind, size, text)) for word in words]
        text.packed.update(zip(parts, words, strict=True))
        return tuple(lane for part in parts for lane in part)

    @staticmethod
    def words(instruction: str, place: str, count: int, guard: str, text: Text) -> list[str]:
        """Words of 4 bytes from memory."""
        targets = [text.register(UINT) for _ in range(count)]
        if guard:
            for target in targets:
                text.put(f"mov.b32 {target}, 0")
        for at, part in by_access(targets):
            text.put(
                f"{guard}{instruction}{vector(len(part))}.b32 {braced(part)}, {later(place, at)}"
            )
        return targets

    @staticmethod
    def apart(word: str, kind: Kind, size: int, text: Text) -> list[str]:
        """The lanes of a word."""
        if kind is HALF:
            pair = [text.register(HALF) for _ in range(2)]
            text.put(f"mov.b32 {braced(pair)}, {word}")
            return pair
        instruction = "bfe.s32" if kind.arithmetic == "s32" else "bfe.u32"
        bits = 8 * size
        parts = range(0, 32, bits)
        lanes = [text.new(UINT, instruction, word, str(at), str(bits)) for at in parts]
        if kind is PREDICATE:
            return [text.new(PREDICATE, "setp.ne.u32", lane, "0") for lane in lanes]
        return lanes

    def write_store(self, u: UOp, text: Text) -> None:
        """Write a value at an INDEX, where its gate holds."""
        index, value = u.src
        pointer, lanes = pointer_of(index), text.values[value]
        kind = self.kind(value.dtype, text)
        if is_register(pointer):
            for target, lane in zip(text.values[pointer], lanes, strict=True):
                text.put(f"mov.{kind.bits} {target}, {lane}")
            return
        guard = f"@{text.values[index.src[2]][0]} " if len(index.src) == 3 else ""
        where, place = self.space(pointer, text), self.address(index, text)
        if kind is PREDICATE:
            lanes = tuple(text.new(UINT, "selp.u32", "1", "0", lane) for lane in lanes)
        size, memory = value.dtype.scalar().itemsize, kind.memory
        if len(lanes) > ACCESS_LANES:
            per_word = WORD_BYTES // size
            starts = range(0, len(lanes), per_word)
            lanes = tuple(
                self.together(lanes[i : i + per_word], kind, 8 * size, text) for i in starts
            )
            memory = "b32"
        for at, part in by_access(lanes):
            access = f"{vector(len(part))}.{memory} {later(place, at)}, {braced(part)}"
            text.put(f"{guard}st.{where}{access}")

    def write_async_copy(self, u: UOp, text: Text) -> None:
        """Begin to copy from a buffer to shared memory; zeros where nothing is read."""
        to, origin = u.src
        assert isinstance(to.dtype, PointerDType)
        size = u.arg * to.dtype.base.itemsize
        guard = f"@{text.values[to.src[2]][0]} " if len(to.src) == 3 else ""
        cache = "cg" if size == VECTOR_BYTES else "ca"
        operands = [self.address(to, text), self.address(origin, text), str(size)]
        if len(origin.src) == 3:
            (gate,) = text.values[origin.src[2]]
            operands.append(text.new(UINT, "selp.u32", str(size), "0", gate))
        text.put(f"{guard}cp.async.{cache}.shared.global {', '.join(operands)}")

    def write_phase(self, u: UOp, text: Text) -> None:
        """A barrier of phases, or a copy of a box in one of them: what one thread does."""
        gate = u.src[0].src[2:]
        guard = f"@{text.values[gate[0]][0]} " if gate else ""
        if u.op is Op.PHASES:
            barrier = self.address(u.src[0], text)
            text.put(f"{guard}mbarrier.init.shared::cta.b64 {barrier}, {u.arg}")
            text.put("fence.mbarrier_init.release.cluster")
            return
        to, signal, _, *coordinates = u.src
        place, barrier = self.address(to, text), self.address(signal, text)
        source = text.new(ULONG, "mov.b64", f"map{text.kernel.maps.index(u.arg)}")
        source = text.new(ULONG, "cvta.param.u64", source)
        numbers = ", ".join(self.coordinate(c, text) for c in coordinates)
        text.put(
            f"{guard}mbarrier.arrive.expect_tx.shared::cta.b64 _, {barrier}, {u.arg.box_bytes}"
        )
        text.put(
            f"{guard}cp.async.bulk.tensor.{len(coordinates)}d.shared::cluster.global."
            f"mbarrier::complete_tx::bytes {place}, [{source}, {{{numbers}}}], {barrier}"
        )

    def coordinate(self, u: UOp, text: Text) -> str:
        """A coordinate of a box, in a register of 32 bits."""
        (value,) = text.values[u]
        if self.kind(u.dtype, text).bits == "b64" and value.startswith("%"):
            return text.new(INT, "cvt.u32.u64", value)
        return self.held(INT, value, text)

    def write_wait_phase(self, u: UOp, text: Text) -> None:
        """A wait for a phase of a barrier, by its parity."""
        barrier, parity = self.address(u.src[0], text), self.coordinate(u.src[1], text)
        label = text.label()
        text.lines.append(f"{label}:")
        operands = f"{barrier}, {parity}"
        ended = text.register(PREDICATE)
        text.put(f"mbarrier.try_wait.parity.shared::cta.b64 {ended}, {operands}")
        text.put(f"@!{ended} bra {label}")

    @staticmethod
    def together(lanes: Lanes, kind: Kind, bits: int, text: Text) -> str:
        """The word of some lanes."""
        if kind is HALF:
            return text.new(UINT, "mov.b32", braced(lanes))
        word = lanes[0] if lanes[0].startswith("%") else text.new(UINT, "mov.b32", lanes[0])
        word = text.new(UINT, "and.b32", word, str((1 << bits) - 1))
        for number, lane in enumerate(lanes[1:], 1):
            word = text.new(UINT, "bfi.b32", lane, word, str(number * bits), str(bits))
        return word

    # --- matrix instructions

    def write_matrix(self, u: UOp, text: Text) -> None:
        """A product of fragments, added to one."""
        instruction = INSTRUCTIONS[u.arg.name]
        left, right = (braced(self.fragment(s, text)) for s in u.src[:2])
        total = text.values[u.src[2]]
        kind = self.kind(u.dtype, text)
        targets = [text.register(kind) for _ in total]
        held = braced([self.held(kind, lane, text) for lane in total])
        text.put(f"{instruction.name} {braced(targets)}, {left}, {right}, {held}")
        text.values[u] = tuple(targets)

    def write_descriptor(self, u: UOp, text: Text) -> None:
        """Write the descriptor of an operand in shared memory, in a register for all lanes."""
        base, _, offset = self.address(u.src[0], text).strip("[]").partition("+")
        place = text.new(UINT, "add.u32", base, offset) if offset else base
        place = text.new(UINT, "bfe.u32", place, "4", "14")  # bits 17 to 4
        wide = text.new(ULONG, "cvt.u64.u32", place)
        found = text.new(ULONG, "or.b64", wide, str(descriptor_bits(u.arg)))
        text.values[u] = (found,) * u.dtype.count

    def write_warpgroup_matrix(self, u: UOp, text: Text) -> None:
        """Products of operands in shared memory, added to a fragment: one, or a row of them."""
        products = products_begun_together(text.kernel.uops).get(u)
        if products is None:  # the last of its row has it
            return
        instruction = WARPGROUP[u.arg.name]
        kind = self.kind(u.dtype, text)
        total = text.values[products[0].src[2]]
        sums = [text.new(kind, f"mov.{kind.bits}", lane) for lane in total]
        adds = text.new(PREDICATE, "setp.ne.u32", "1", "0")
        before, *behind = instruction.lines
        text.put(before)
        for product in products:
            left, right = (text.values[s][0] for s in product.src[:2])
            operands = f"{braced(sums)}, {left}, {right}, {adds}{instruction.factors}"
            text.put(f"{instruction.name} {operands}")
        for line in behind:
            text.put(line)
        text.values[u] = tuple(sums)

    def write_matrix_load(self, u: UOp, text: Text) -> None:
        """Tiles of shared memory, a row of which each lane names."""
        words = [text.register(UINT) for _ in range(u.dtype.size_bytes // WORD_BYTES)]
        turned = ".trans" if u.arg.is_turned else ""
        place = self.address(u.src[0], text)
        instruction = f"ldmatrix.sync.aligned.m8n8.x{len(words)}{turned}.shared.b16"
        text.put(f"{instruction} {{{', '.join(words)}}}, {place}")
        kind, size = self.kind(u.dtype, text), u.dtype.scalar().itemsize
        text.values[u] = self.held_as_words(words, kind, size, text)

    def write_shuffle(self, u: UOp, text: Text) -> None:
        """The word of the lane whose number is this one's XOR the mask."""
        kind, (value,) = self.kind(u.dtype, text), text.values[u.src[0]]
        operands = (self.held(kind, value, text), str(u.arg), "31", "0xffffffff")
        text.values[u] = (text.new(kind, "shfl.sync.bfly.b32", *operands),)

    def fragment(self, value: UOp, text: Text) -> list[str]:
        """The words of what a lane holds of an operand."""
        lanes, kind = text.values[value], self.kind(value.dtype, text)
        size = value.dtype.scalar().itemsize
        if size == WORD_BYTES:
            return [text.new(UINT, "cvt.rna.tf32.f32", lane) for lane in lanes]
        per_word = WORD_BYTES // size
        parts = [lanes[i : i + per_word] for i in range(0, len(lanes), per_word)]
        return [
            text.packed.get(part) or self.together(part, kind, 8 * size, text) for part in parts
        ]

    @staticmethod
    def held(kind: Kind, lane: str, text: Text) -> str:
        """A lane in a register: operands in braces are no immediates."""
        return lane if lane.startswith("%") else text.new(kind, f"mov.{kind.bits}", lane)

    # --- values

    def computed(self, u: UOp, text: Text) -> str:
        """The register of what a node computes."""
        operands = [text.values[s][0] for s in u.src]
        if u.op is Op.CAST:
            return self.cast(u.dtype, u.src[0].dtype, operands[0], text)
        if u.op is Op.BITCAST:
            return self.bitcast(u.dtype, u.src[0].dtype, operands[0], text)
        if u.op is Op.WHERE:
            kind = self.kind(u.dtype, text)
            gate, yes, no = operands
            return self.chosen(kind, gate, yes, no, text)
        if u.op in COMPARISON:
            return self.compared(u, operands, text)
        if u.dtype is dtypes.bool:
            return self.logic(BOOL_ARITHMETIC.get(u.op, u.op), operands, text)
        if u.dtype.kind == "float":
            return self.float_value(u.op, self.kind(u.dtype, text), operands, text)
        return self.integer_value(u, operands, text)

    def chosen(self, kind: Kind, gate: str, a: str, b: str, text: Text) -> str:
        """a where a predicate holds, else b."""
        if kind is not PREDICATE:
            return text.new(kind, f"selp.{kind.bits}", a, b, gate)
        yes = text.new(PREDICATE, "and.pred", gate, a)
        no = text.new(PREDICATE, "and.pred", text.new(PREDICATE, "not.pred", gate), b)
        return text.new(PREDICATE, "or.pred", yes, no)

    @staticmethod
    def logic(op: Op, operands: list[str], text: Text) -> str:
        """AND, OR and XOR of predicates."""
        return text.new(PREDICATE, f"{BIT_OPERATIONS[op]}.pred", *operands)

    def compared(self, u: UOp, operands: list[str], text: Text) -> str:
        """A comparison, as a predicate; NaN differs from all."""
        kind = self.kind(u.src[0].dtype, text)
        if kind is PREDICATE:
            return self.compared_predicates(u.op, operands, text)
        word = COMPARISONS[u.op]
        if u.op is Op.CMPNE and u.src[0].dtype.kind == "float":
            word = "neu"
        return text.new(PREDICATE, f"setp.{word}.{kind.arithmetic}", *operands)

    @staticmethod
    def compared_predicates(op: Op, operands: list[str], text: Text) -> str:
        """A comparison of predicates, of which false is the lesser."""
        a, b = operands
        if op is Op.CMPLT:
            return text.new(PREDICATE, "and.pred", text.new(PREDICATE, "not.pred", a), b)
        differ = text.new(PREDICATE, "xor.pred", a, b)
        return differ if op is Op.CMPNE else text.new(PREDICATE, "not.pred", differ)

    def float_value(self, op: Op, kind: Kind, operands: list[str], text: Text) -> str:
        """Arithmetic of floats."""
        if kind is HALF and (op in THROUGH_FLOAT or op is Op.TRUNC):
            wide = [text.new(FLOAT, "cvt.f32.f16", x) for x in operands]
            return text.new(HALF, "cvt.rn.f16.f32", self.float_value(op, FLOAT, wide, text))
        if op is Op.TRUNC:
            return text.new(kind, f"cvt.rzi.{kind.arithmetic}.{kind.arithmetic}", *operands)
        if kind is DOUBLE and op in (Op.MAX, Op.MIN):
            return self.extreme(op, operands, text)
        return text.new(kind, f"{FLOAT_OPERATIONS[op]}.{kind.arithmetic}", *operands)

    @staticmethod
    def extreme(op: Op, operands: list[str], text: Text) -> str:
        """The greater or the lesser of two doubles; NaN if either is."""
        a, b = operands
        word = "lt" if op is Op.MAX else "gt"
        second = text.new(PREDICATE, f"setp.{word}.f64", a, b)
        is_nan = text.new(PREDICATE, "setp.nan.f64", b, b)
        return text.new(DOUBLE, "selp.f64", b, a, text.new(PREDICATE, "or.pred", second, is_nan))

    def integer_value(self, u: UOp, operands: list[str], text: Text) -> str:
        """Arithmetic of integers, which wraps; what narrow ones become is cut to their width."""
        kind = self.kind(u.dtype, text)
        if u.op in SHIFTS:
            operands[1] = self.shift(u, operands[1], text)
        if u.op in (Op.IDIV, Op.MOD) and is_split_of_bits(u):
            by = int(u.src[1].arg)
            if u.op is Op.MOD:
                return text.new(kind, f"and.{kind.bits}", operands[0], str(by - 1))
            return text.new(kind, f"shr.u{kind.bits[1:]}", operands[0], str(by.bit_length() - 1))
        if u.op in (Op.IDIV, Op.MOD) and not is_safe_division(u):
            found = self.quotient(u, kind, operands, text)
        elif u.op in BIT_OPERATIONS:
            found = text.new(kind, f"{BIT_OPERATIONS[u.op]}.{kind.bits}", *operands)
        elif u.op in INTEGER_OPERATIONS:
            word = "s64" if kind.bits == "b64" else "s32"
            name = word if u.op is Op.NEG else kind.arithmetic
            found = text.new(kind, f"{INTEGER_OPERATIONS[u.op]}.{name}", *operands)
        else:
            raise self.refusal(u.op)
        return self.cut(u.dtype, found, text) if u.op in WRAPPING else found

    def shift(self, u: UOp, amount: str, text: Text) -> str:
        """By how much to shift, as the 32 bits that PTX wants, modulo the width."""
        if self.kind(u.src[1].dtype, text).bits == "b64" and amount.startswith("%"):
            amount = text.new(UINT, "cvt.u32.u64", amount)
        if is_safe_shift(u):
            return amount
        return text.new(UINT, "and.b32", amount, str(u.dtype.bits - 1))

    def quotient(self, u: UOp, kind: Kind, operands: list[str], text: Text) -> str:
        """a / b or a % b where b may be 0, which gives 0, or -1, whose quotient wraps."""
        a, b = operands
        none = text.new(PREDICATE, f"setp.eq.{kind.arithmetic}", b, "0")
        safe = text.new(kind, f"selp.{kind.bits}", "1", b, none)
        word = INTEGER_OPERATIONS[u.op]
        if kind.arithmetic[0] == "u":
            found = text.new(kind, f"{word}.{kind.arithmetic}", a, safe)
            return text.new(kind, f"selp.{kind.bits}", "0", found, none)
        minus = text.new(PREDICATE, f"setp.eq.{kind.arithmetic}", b, "-1")
        safe = text.new(kind, f"selp.{kind.bits}", "1", safe, minus)
        found = text.new(kind, f"{word}.{kind.arithmetic}", a, safe)
        other = "0"
        if u.op is Op.IDIV:
            other = text.new(kind, f"neg.{kind.arithmetic}", a)
        found = text.new(kind, f"selp.{kind.bits}", other, found, minus)
        return text.new(kind, f"selp.{kind.bits}", "0", found, none)

    @staticmethod
    def cut(dtype: DType, value: str, text: Text) -> str:
        """The low bits of a register, extended again, for types narrower than it."""
        if dtype.kind not in ("int", "uint") or dtype.itemsize >= WORD_BYTES:
            return value
        if dtype.kind == "uint":
            return text.new(UINT, "and.b32", value, str((1 << dtype.bits) - 1))
        return text.new(INT, "bfe.s32", value, "0", str(dtype.bits))

    # --- conversions

    def cast(self, target: DType, source: DType, value: str, text: Text) -> str:
        """A value of another type."""
        to, of = self.kind(target, text), self.kind(source, text)
        if target is source:
            return value
        if to is PREDICATE:
            return self.is_not_zero(of, source, value, text)
        if of is PREDICATE:
            number = text.new(UINT, "selp.u32", "1", "0", value)
            return self.cast(target, dtypes.uint32, number, text)
        if source.kind == "float":
            if target.kind == "float":
                return self.float_to_float(to, of, value, text)
            return self.truncated(target, of, value, text)
        if target.kind == "float":
            through = FLOAT if to is HALF else to
            found = text.new(through, f"cvt.rn.{through.arithmetic}.{of.arithmetic}", value)
            return text.new(HALF, "cvt.rn.f16.f32", found) if to is HALF else found
        return self.resized(target, to, of, value, text)

    def is_not_zero(self, of: Kind, source: DType, value: str, text: Text) -> str:
        """A number as a predicate; NaN is true."""
        word = "neu" if source.kind == "float" else "ne"
        zero = self.constant(source.scalar(), 0, text)
        return text.new(PREDICATE, f"setp.{word}.{of.arithmetic}", value, zero)

    @staticmethod
    def float_to_float(to: Kind, of: Kind, value: str, text: Text) -> str:
        """A float of another width; from double to half by way of float."""
        if of is DOUBLE and to is HALF:
            value, of = text.new(FLOAT, "cvt.rn.f32.f64", value), FLOAT
        if of is HALF and to is DOUBLE:
            value, of = text.new(FLOAT, "cvt.f32.f16", value), FLOAT
        narrower = int(to.bits[1:]) < int(of.bits[1:])
        rounding = ".rn" if narrower else ""
        return text.new(to, f"cvt{rounding}.{to.arithmetic}.{of.arithmetic}", value)

    def resized(self, target: DType, to: Kind, of: Kind, value: str, text: Text) -> str:
        """An integer of another width."""
        if to.bits == "b64":
            if of.bits == "b64":
                return value
            return text.new(
                to, f"cvt.{'s64' if of.arithmetic == 's32' else 'u64'}.{of.arithmetic}", value
            )
        if of.bits == "b64":
            value = text.new(to, "cvt.u32.u64", value)
        return self.cut(target, value, text)

    def truncated(self, target: DType, of: Kind, value: str, text: Text) -> str:
        """A float as an integer: what does not fit, and NaN, is the least int32, or for wide types
        the least int64, cut to the width.
        """
        if of is HALF:
            value, of = text.new(FLOAT, "cvt.f32.f16", value), FLOAT
        to = self.kind(target, text)
        if target is dtypes.uint64:
            return self.truncated_unsigned(of, value, text)
        if target.itemsize == 8 or target in (dtypes.uint32, dtypes.index):
            found = self.in_range(of, value, LONG, text)
            return found if to.bits == "b64" else text.new(to, "cvt.u32.u64", found)
        return self.cut(target, self.in_range(of, value, INT, text), text)

    def in_range(self, of: Kind, value: str, to: Kind, text: Text) -> str:
        """A float as a signed integer, the least one where it does not fit."""
        bits = int(to.bits[1:])
        is_exact = of is DOUBLE and bits == 32
        low = -(2.0 ** (bits - 1)) - (1 if is_exact else 0)
        above = "gt" if is_exact else "ge"
        fits = text.new(PREDICATE, f"setp.{above}.{of.arithmetic}", value, self.real(of, low, text))
        below = self.real(of, 2.0 ** (bits - 1), text)
        fits = text.new(
            PREDICATE,
            "and.pred",
            fits,
            text.new(PREDICATE, f"setp.lt.{of.arithmetic}", value, below),
        )
        found = text.new(to, f"cvt.rzi.{to.arithmetic}.{of.arithmetic}", value)
        least = str(INT_MIN if bits == 32 else LONG_MIN)
        return text.new(to, f"selp.{to.bits}", found, least, fits)

    def truncated_unsigned(self, of: Kind, value: str, text: Text) -> str:
        """A float as uint64: as int64 below 2**63, above it less 2**63 with the highest bit set."""
        half_way, end = (self.real(of, 2.0**power, text) for power in (63, 64))
        small = self.in_range(of, value, LONG, text)
        less = text.new(of, f"sub.{of.arithmetic}", value, half_way)
        large = text.new(LONG, "xor.b64", self.in_range(of, less, LONG, text), SIGN)
        fits = text.new(PREDICATE, f"setp.lt.{of.arithmetic}", value, end)
        large = text.new(LONG, "selp.b64", large, SIGN, fits)
        is_small = text.new(PREDICATE, f"setp.lt.{of.arithmetic}", value, half_way)
        return text.new(ULONG, "selp.b64", small, large, is_small)

    def real(self, kind: Kind, value: float, text: Text) -> str:
        """A float as an immediate."""
        return self.constant(dtypes.float64 if kind is DOUBLE else dtypes.float32, value, text)

    def bitcast(self, target: DType, source: DType, value: str, text: Text) -> str:
        """The same bits as another type of the same width."""
        to, of = self.kind(target, text), self.kind(source, text)
        if to is PREDICATE or of is PREDICATE:
            return self.cast(target, source, value, text)
        if to is HALF:
            return text.new(HALF, "cvt.u16.u32", value) if of is not HALF else value
        if of is HALF:
            kinds = "s32.s16" if to.arithmetic == "s32" else "u32.u16"
            return text.new(to, f"cvt.{kinds}", value)
        if to.register == of.register:
            return self.cut(target, value, text)
        return text.new(to, f"mov.{to.bits}", value)


# --- words


def variable_of(u: UOp) -> str:
    """Name of a variable's parameter."""
    return f"value_{u.arg[0]}"


def factors_of(matrix: UOp) -> list[UOp]:
    """Factors of a MATRIX, with the vectors and elements that they are assembled from."""
    together = (Op.MATRIX, Op.VECTORIZE, Op.EXTRACT)
    return UOp.sink(*matrix.src[:2]).toposort(lambda n: n.op in together or n.op is Op.SINK)


def is_split_of_bits(u: UOp) -> bool:
    """True for a quotient or remainder by a power of two of what is never negative.

    ptxas does not know the signs, and makes several instructions of rem.s32.
    """
    value, by = u.src
    known = by.op is Op.CONST and by.arg > 0 and not by.arg & (by.arg - 1)
    return known and value.bounds[0] >= 0


def is_packed(dtype: DType) -> bool:
    """Packed vector: lanes narrower than a word that fill whole words."""
    return dtype.scalar().itemsize < WORD_BYTES and not dtype.size_bytes % WORD_BYTES


def version_of(arch: str) -> str:
    """The PTX ISA that knows an architecture."""
    return "8.0" if target_number(arch) <= 90 else "8.7"


def target_number(arch: str) -> int:
    """90 for sm_90 and sm_90a."""
    return int("".join(c for c in arch if c.isdigit()))


def operand(base: str, offset: int) -> str:
    """A memory operand."""
    return f"[{base}+{offset}]" if offset else f"[{base}]"


def by_access(words: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Registers by the instruction that moves them, with its place in bytes: four at most."""
    for first in range(0, len(words), ACCESS_LANES):
        yield first * WORD_BYTES, words[first : first + ACCESS_LANES]


def later(place: str, offset: int) -> str:
    """A memory operand some bytes behind another."""
    if not offset:
        return place
    base, _, before = place.strip("[]").partition("+")
    return operand(base, int(before or 0) + offset)


def vector(count: int) -> str:
    """The word for so many lanes at once."""
    return f".v{count}" if count > 1 else ""


def braced(registers: Sequence[str]) -> str:
    """Registers as one operand."""
    return registers[0] if len(registers) == 1 else f"{{{', '.join(registers)}}}"


def zero_of(kind: Kind) -> str:
    """Zero as an immediate for mov."""
    return {"f32": "0f00000000", "f64": "0d0000000000000000"}.get(kind.arithmetic, "0")
