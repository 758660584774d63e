"""PTX, NVIDIA's assembly for all of its cards, from linear UOps: frame, memory, matrices.

A kernel takes the addresses of its buffers by slot, then the variables by name, 8 bytes each:

    .visible .entry NAME_(.param .u64 data0, ..., .param .u64 n)

Every lane of a value has a register of its own, or is an immediate, so that vectors exist in memory
alone. Integers of 8 and 16 bits live in registers of 32, extended by their sign or by zeros; a bool
is a predicate, and a byte in memory. A half is computed by instructions of its own; bfloat16 and
the fp8s are integers in memory and float32 between.

NVIDIA, "PTX ISA", version 8.0. What it leaves undefined is defined as docs/numerics.md says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_nv.async_copies import AsyncCopy, CommitGroup, WaitGroup
from tiny_nv.matrix import INSTRUCTIONS
from tiny_nv.operand_loads import MatrixDescriptor, MatrixLoad
from tiny_nv.phases import Phases, TensorCopy, WaitPhase, cluster_of, maps_of
from tiny_nv.product_groups import product_groups, products_in_flight, sum_registers, waits_before
from tiny_nv.program import entry_name
from tiny_nv.ptx_text import (
    ACCESS_LANES,
    HALF,
    INT,
    LONG,
    PREDICATE,
    UINT,
    ULONG,
    WORD_BYTES,
    Kind,
    Lanes,
    Text,
    braced,
    by_access,
    later,
    operand,
    vector,
    zero_of,
)
from tiny_nv.ptx_values import APPROXIMATE_OPS, NATIVE_OPS, NATIVE_TYPES, chosen, computed
from tiny_nv.warpgroup import (
    COMMIT,
    FENCE,
    WAIT,
    WARPGROUP,
    cluster_barrier,
    descriptor_bits,
    is_new_sum,
    is_written_by_threads,
)
from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.render.base import LinearKernel, Renderer, pointer_of
from tinycore.render.facts import is_register
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["Ptx", "version_of"]

STATIC_SHARED_BYTES: Final = 48 << 10
"""Shared memory beyond which a kernel's is sized at its launch."""
VECTOR_BYTES: Final = 16


@dataclass(frozen=True)
class Ptx(Renderer):
    """PTX for one architecture."""

    arch: str = "sm_80"

    name: ClassVar[str] = "PTX"
    converts: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16})
    vector_ops: ClassVar[bool] = False
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    native_ops: ClassVar[frozenset[Op]] = NATIVE_OPS
    native_types: ClassVar[Mapping[Op, frozenset[DType]]] = NATIVE_TYPES
    approximate: ClassVar[frozenset[Op]] = APPROXIMATE_OPS

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
        parameters += [f"  .param .align 64 .b8 map{i}[128]" for i in range(len(maps_of(kernel)))]
        registers = [f"  .reg {d} {r}<{n}>;" for (r, d), n in sorted(text.counts.items())]
        groups = cluster_of(kernel)
        cluster = f".reqnctapercluster {groups}, 1, 1 " if groups > 1 else ""
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
            f") .maxntid {x}, {y}, {z} {cluster}{{",
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

    # --- one node

    def write(self, u: UOp, text: Text) -> None:
        """Add what one node stands for."""
        if found := waits_before(text.kernel.uops, False).get(u):
            text.put(f"{WAIT} {min(awaited.left for awaited in found)}")
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
                text.values[u] = (text.constant(u.dtype, u.arg),)
            case Op.RANGE:
                self.open_loop(u, text)
            case Op.END:
                self.close_loop(u, text)
            case Op.LOAD:
                self.write_load(u, text)
            case Op.STORE:
                self.write_store(u, text)
            case Op.BARRIER:
                if is_written_by_threads(text.kernel):  # matrix units see what was stored
                    text.put("fence.proxy.async.shared::cta")
                if (left := products_in_flight(text.kernel.uops).groups.get(u)) is not None:
                    text.put(f"{WAIT} {left}")
                shares = cluster_of(text.kernel) > 1
                barrier = cluster_barrier(text.kernel) if shares else ("bar.sync 0",)
                for line in barrier:
                    text.put(line)
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
            case Op.INSTRUCTION if isinstance(u.arg, MatrixDescriptor):
                self.write_descriptor(u, text)
            case Op.INSTRUCTION if isinstance(u.arg, MatrixLoad):
                self.write_matrix_load(u, text)
            case Op.SHUFFLE:
                self.write_shuffle(u, text)
            case Op.INSTRUCTION if isinstance(u.arg, AsyncCopy):
                self.write_async_copy(u, text)
            case Op.INSTRUCTION if isinstance(u.arg, CommitGroup):
                text.put("cp.async.commit_group")
            case Op.INSTRUCTION if isinstance(u.arg, WaitGroup):
                text.put(f"cp.async.wait_group {u.arg.left}")
            case Op.INSTRUCTION if isinstance(u.arg, Phases):
                self.write_phases(u, text)
            case Op.INSTRUCTION if isinstance(u.arg, TensorCopy):
                self.write_tensor_copy(u, text)
            case Op.INSTRUCTION if isinstance(u.arg, WaitPhase):
                self.write_wait_phase(u, text)
            case Op.INDEX | Op.SINK | Op.GROUP | Op.AFTER:
                return
            case _ if u.op not in NATIVE_OPS | APPROXIMATE_OPS:
                raise self.refusal(u.op)
            case _:
                text.values[u] = (computed(u, text),)

    def write_variable(self, u: UOp, text: Text) -> None:
        """A number that is given at the launch."""
        raw = text.new(ULONG, "ld.param.u64", f"[{variable_of(u)}]")
        kind = text.kind(u.dtype)
        text.values[u] = (raw if kind.bits == "b64" else text.new(kind, "cvt.u32.u64", raw),)

    def write_special(self, u: UOp, text: Text) -> None:
        """The number of a block, or of a thread in it."""
        name = {"grid": "ctaid", "block": "tid"}[u.arg[:-1]]
        found = text.new(UINT, "mov.u32", f"%{name}.{'xyz'[int(u.arg[-1])]}")
        wide = text.kind(u.dtype).bits == "b64"
        text.values[u] = (text.new(LONG, "cvt.u64.u32", found) if wide else found,)

    def write_registers(self, u: UOp, text: Text) -> None:
        """A variable is registers; an array of a thread is local memory."""
        assert isinstance(u.dtype, PointerDType)
        base = u.dtype.base
        if is_register(u):
            kind = text.kind(base)
            text.values[u] = tuple(text.register(kind) for _ in range(base.count))
            return
        name, size = f"array{u.arg}", u.dtype.size * base.count * base.scalar().itemsize
        text.arrays.append(f"  .local .align {VECTOR_BYTES} .b8 {name}[{size}];")
        text.values[u] = (text.new(ULONG, "mov.u64", name),)

    # --- loops

    def open_loop(self, u: UOp, text: Text) -> None:
        """The head of a loop, which tests its end there only if it may have no steps."""
        kind = text.kind(u.dtype)
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
        text.ranges.append(u)
        text.addresses.append({})

    def close_loop(self, u: UOp, text: Text) -> None:
        """The end of the innermost loop, behind which its products are complete."""
        label, counter, end, tests_first = text.loops.pop()
        text.ranges.pop()
        text.addresses.pop()
        size = "s64" if counter.startswith(LONG.register) else "s32"
        text.put(f"add.{size} {counter}, {counter}, 1")
        if tests_first:
            text.put(f"bra {label}")
            text.lines.append(f"{label}_end:")
        else:
            more = text.new(PREDICATE, f"setp.lt.{size}", counter, end)
            text.put(f"@{more} bra {label}")
        if u in products_in_flight(text.kernel.uops).ends:
            text.put(f"{WAIT} 0")

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
        pointer, kind = pointer_of(index), text.kind(u.dtype)
        if is_register(pointer):
            if text.ranges and (text.ranges[-1], u) in products_in_flight(text.kernel.uops).sums:
                text.values[u] = text.values[pointer]  # which products under way write
                return
            lanes = (text.new(kind, f"mov.{kind.bits}", r) for r in text.values[pointer])
            text.values[u] = tuple(lanes)
            return
        gate = text.values[index.src[2]][0] if len(index.src) == 3 else ""
        others = text.values[u.src[1]] if len(u.src) > 1 else ()
        zero = text.constant(u.dtype.scalar(), 0) if gate and not others else ""
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
                chosen(kind, gate, a, b, text) for a, b in zip(found, others, strict=True)
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
        kind = text.kind(value.dtype)
        if is_register(pointer):
            for target, lane in zip(text.values[pointer], lanes, strict=True):
                if target != lane:
                    text.put(f"mov.{kind.bits} {target}, {lane}")
            return
        guard = guard_of(index, text)
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
        size = u.arg.elements * to.dtype.base.itemsize
        guard = guard_of(to, text)
        cache = "cg" if size == VECTOR_BYTES else "ca"
        operands = [self.address(to, text), self.address(origin, text), str(size)]
        if len(origin.src) == 3:
            (gate,) = text.values[origin.src[2]]
            operands.append(text.new(UINT, "selp.u32", str(size), "0", gate))
        text.put(f"{guard}cp.async.{cache}.shared.global {', '.join(operands)}")

    def write_phases(self, u: UOp, text: Text) -> None:
        """A barrier of phases, which one thread begins."""
        guard, barrier = guard_of(u.src[0], text), self.address(u.src[0], text)
        text.put(f"{guard}mbarrier.init.shared::cta.b64 {barrier}, {u.arg.copies}")
        text.put("fence.mbarrier_init.release.cluster")

    def write_tensor_copy(self, u: UOp, text: Text) -> None:
        """A copy of a box, which one thread begins."""
        to, signal, _, *coordinates = u.src
        guard, found = guard_of(to, text), u.arg.map
        place, barrier = self.address(to, text), self.address(signal, text)
        source = text.new(ULONG, "mov.b64", f"map{maps_of(text.kernel).index(found)}")
        source = text.new(ULONG, "cvta.param.u64", source)
        numbers = ", ".join(self.coordinate(c, text) for c in coordinates)
        is_shared = u.arg.cluster > 1
        expects = guard_of(signal, text) if is_shared else guard
        text.put(
            f"{expects}mbarrier.arrive.expect_tx.shared::cta.b64 _, {barrier}, {found.box_bytes}"
        )
        to_all, mask = "", ""
        if is_shared:
            mask = f", {text.new(HALF, 'mov.b16', str((1 << u.arg.cluster) - 1))}"
            to_all = ".multicast::cluster"
        text.put(
            f"{guard}cp.async.bulk.tensor.{len(coordinates)}d.shared::cluster.global."
            f"mbarrier::complete_tx::bytes{to_all} {place}, [{source}, {{{numbers}}}], "
            f"{barrier}{mask}"
        )

    def coordinate(self, u: UOp, text: Text) -> str:
        """A coordinate of a box, in a register of 32 bits."""
        (value,) = text.values[u]
        if text.kind(u.dtype).bits == "b64" and value.startswith("%"):
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
        kind = text.kind(u.dtype)
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
        products = product_groups(text.kernel.uops).get(u)
        if products is None:  # the last of its row has it
            return
        instruction = WARPGROUP[u.arg.name]
        sums = list(text.values[products[0].src[2]])
        is_in_flight = u in products_in_flight(text.kernel.uops).products
        if not is_in_flight:
            sums = self.sums_of(u, products[0], text)
        adds = [text.new(PREDICATE, "setp.ne.u32", "1", "0")] * len(products) * instruction.steps
        if is_new_sum(products[0]):
            adds[0] = text.new(PREDICATE, "setp.ne.u32", "0", "0")
        given = [pair for product in products for pair in self.operands_of(product, text)]
        text.put(FENCE)
        for (left, right, factors), predicate in zip(given, adds, strict=True):
            operands = f"{braced(sums)}, {left}, {right}, {predicate}{factors}"
            text.put(f"{instruction.name} {operands}")
        text.put(COMMIT)
        text.values[u] = tuple(sums)

    def sums_of(self, last: UOp, first: UOp, text: Text) -> list[str]:
        """The registers in which a row of products is summed: those where its sum is stored, or its
        own."""
        kind, before = text.kind(last.dtype), text.values[first.src[2]]
        memory = sum_registers(text.kernel.uops).get(last)
        kept = () if memory is None else text.values[memory]
        sums = list(kept) or [text.register(kind) for _ in before]
        if not is_new_sum(first):
            for target, lane in zip(sums, before, strict=True):
                text.put(f"mov.{kind.bits} {target}, {lane}")
        return sums

    def operands_of(self, product: UOp, text: Text) -> Iterator[tuple[str, str, str]]:
        """Both operands of each instruction of a product, and what stands behind the predicate."""
        instruction = WARPGROUP[product.arg.name]
        factors = instruction.factors(product)
        count, advance = instruction.registers, instruction.advance(product)
        words = self.fragment(product.src[0], text) if count else []
        first = text.values[product.src[1]][0]
        for step in range(instruction.steps):
            own = words[step * count : (step + 1) * count]
            left = braced(own) if count else text.values[product.src[0]][0]
            further = str(step * advance)
            yield left, text.new(ULONG, "add.u64", first, further) if step else first, factors

    def write_matrix_load(self, u: UOp, text: Text) -> None:
        """Tiles of shared memory, a row of which each lane names."""
        words = [text.register(UINT) for _ in range(u.dtype.size_bytes // WORD_BYTES)]
        turned = ".trans" if u.arg.is_turned else ""
        place = self.address(u.src[0], text)
        instruction = f"ldmatrix.sync.aligned.m8n8.x{len(words)}{turned}.shared.b16"
        text.put(f"{instruction} {{{', '.join(words)}}}, {place}")
        kind, size = text.kind(u.dtype), u.dtype.scalar().itemsize
        text.values[u] = self.held_as_words(words, kind, size, text)

    def write_shuffle(self, u: UOp, text: Text) -> None:
        """The word of the lane whose number is this one's XOR the mask."""
        kind, (value,) = text.kind(u.dtype), text.values[u.src[0]]
        operands = (self.held(kind, value, text), str(u.arg), "31", "0xffffffff")
        text.values[u] = (text.new(kind, "shfl.sync.bfly.b32", *operands),)

    def fragment(self, value: UOp, text: Text) -> list[str]:
        """The words of what a lane holds of an operand."""
        lanes, kind = text.values[value], text.kind(value.dtype)
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


# --- words


def guard_of(index: UOp, text: Text) -> str:
    """The predicate of an instruction that the gate of an INDEX guards."""
    return f"@{text.values[index.src[2]][0]} " if len(index.src) == 3 else ""


def variable_of(u: UOp) -> str:
    """Name of a variable's parameter."""
    return f"value_{u.arg[0]}"


def is_packed(dtype: DType) -> bool:
    """Packed vector: lanes narrower than a word that fill whole words."""
    return dtype.scalar().itemsize < WORD_BYTES and not dtype.size_bytes % WORD_BYTES


def version_of(arch: str) -> str:
    """The PTX ISA that knows an architecture."""
    return "8.0" if target_number(arch) <= 90 else "8.7"


def target_number(arch: str) -> int:
    """90 for sm_90 and sm_90a."""
    return int("".join(c for c in arch if c.isdigit()))
