"""Renderers of C-like languages, from tables that dialects override.

Floor 2. A dialect states differences: type names, an expression template per op, the words for
memory spaces and barriers, the signature. A method is overridden only where no template can say it.
What C leaves undefined, and what its functions of the name mean otherwise, is no default: quotients
by zero, shifts by the width and more, and floats that fit no integer get a guard (`guards.py`)
unless a dialect lists the op in `defined`; MAX and MIN, whose functions lose NaN in most languages,
are lowered to comparisons unless a dialect adds them to its tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from tinycore.dtype import DType, PointerDType, Scalar, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel, Renderer, pointer_of
from tinycore.render.c_tables import C_EXPRESSIONS, C_SUFFIXES, C_TYPES
from tinycore.render.facts import (
    RANGE_LETTERS,
    is_constant,
    is_negative_index,
    is_register,
    is_safe_division,
    is_safe_shift,
    is_vector_access,
    wraps_as,
)
from tinycore.render.guards import UNDEFINED_IN_C, conversion, division
from tinycore.render.literals import as_stored, shortest
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.instruction import Effect
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, BOOL_ARITHMETIC, SHIFTS, Op

__all__ = ["CStyle"]

SUM_OPS: Final = frozenset({Op.ADD, Op.SUB, Op.MUL})
"""Ops that mean the same as a summand without their parentheses."""
TEMPLATE_OPS: Final = ALU - {Op.CAST, Op.BITCAST}
"""Ops that are written by a template."""
VALUE_OPS: Final = ALU | {Op.EXTRACT, Op.VECTORIZE}
"""Ops whose text is an expression."""
INTEGERS: Final = frozenset({"int", "uint", "index"})


class MatrixCall(NamedTuple):
    """The code of a MATRIX by one unit, whose fragments are vectors."""

    expression: str
    """The template of the sum: {0} and {1} are multiplied, {2} is added."""
    definition: str = ""
    """Code before the kernel."""


class CStyle(Renderer):
    """C and similar languages."""

    types: ClassVar[Mapping[DType, str]] = C_TYPES
    wide_index: ClassVar[str] = ""
    """The type of counters and addresses in kernels that need 64 bits for them; the empty text
    where that of `types` holds them all."""
    suffixes: ClassVar[Mapping[DType, str]] = C_SUFFIXES
    """Suffixes of literals."""
    vector_type: ClassVar[str] = "{scalar}{count}"
    spaces: ClassVar[Mapping[str, str]] = {"global": "", "local": "", "register": ""}
    """The words in front of a pointer's or an array's type."""
    restrict: ClassVar[str] = "restrict "
    stores_bytes: ClassVar[bool] = False
    """True if a bool is a byte in memory, of which any but 0 is true."""
    builtins: ClassVar[Mapping[str, str]] = {}
    """The expression for SPECIAL `grid` and `block`; {0} is the axis as a digit, {xyz} as a letter.
    """
    barrier: ClassVar[str] = ""
    declaration: ClassVar[str] = "{type} {name} = {value};"
    register_declaration: ClassVar[str] = "{type} {name};"
    array_declaration: ClassVar[str] = "{space}{type} {name}[{size}];"
    shared_array: ClassVar[str] = ""
    """An array at byte {offset} of memory that is sized at the launch, in kernels whose arrays in
    local memory are larger than `static_shared_bytes` together."""
    static_shared_bytes: ClassVar[int] = 48 << 10
    """The most local memory that arrays of a fixed size may take, where there is `shared_array`."""
    loop: ClassVar[str] = "for ({type} {name} = {start}; {name} < {end}; {name}++) {{"
    infinity: ClassVar[str] = "INFINITY"
    nan: ClassVar[str] = "NAN"
    splat: ClassVar[str] = "({type})({0})"
    """One value in every lane; empty where a language has no words for it but `vector`."""
    vector: ClassVar[str] = "({type})({lanes})"
    cast_template: ClassVar[str] = "({type}){0}"
    bitcast_template: ClassVar[str] = "as_{type}({0})"
    logical_not: ClassVar[str] = "!{0}"
    vector_load: ClassVar[str] = "*({space}{type}*)({pointer})"
    """Contiguous lanes in memory; {pointer} is the address of the first, {count} how many."""
    vector_store: ClassVar[str] = "*({space}{type}*)({pointer}) = {value};"

    pixel_load: ClassVar[str] = ""
    """The pixel of {image} at {column} and {row}; empty in languages without images."""
    pixel_store: ClassVar[str] = ""

    matrix: ClassVar[Mapping[str, MatrixCall]] = {}
    """The matrix instructions of the language, by the name of the unit in `Limits.matrix`."""
    shuffle: ClassVar[str] = ""
    """The {value} of the lane whose number is this one's XOR {mask}; for those languages whose
    devices state `Limits.shuffles`."""
    expressions: ClassVar[Mapping[Op, str]] = C_EXPRESSIONS
    reserved: ClassVar[frozenset[str]] = frozenset()
    """Words of the language that a variable may be called, and must not be here."""
    native_ops: ClassVar[frozenset[Op]] = frozenset(C_EXPRESSIONS) | {Op.CAST, Op.BITCAST}
    """A dialect that adds an expression adds its op."""
    defined: ClassVar[frozenset[Op]] = frozenset()
    """Ops of UNDEFINED_IN_C whose expressions mean, for all operands, what docs/numerics.md says,
    or which the dialect guards itself in `alu` and `cast`."""
    function: ClassVar[str] = "static inline {type} {name}({parameters}) {{ {body} }}"
    """A helper function in front of the kernel."""

    def render(self, kernel: LinearKernel) -> str:
        """The source text of a kernel."""
        writer = Writer(self, kernel)
        writer.taken.update(dict.fromkeys(self.reserved, 1))
        self.write_body(writer)
        return self.assemble(writer)

    def write_body(self, writer: Writer, written: Callable[[UOp, int], bool] | None = None) -> None:
        """Write every node, but for those of which `written`, given their places, is true."""
        write, uops = self.write, writer.kernel.uops
        for writer.place, u in enumerate(uops):
            if written is None or not written(u, writer.place):
                write(u, writer)

    # --- the frame around the body

    def assemble(self, writer: Writer) -> str:
        """Definitions, signature and body as one text."""
        head, signature = self.head(writer), self.signature(writer)  # both may add definitions
        before = (*self.prelude(), *writer.definitions, f"{signature} {{")
        return "\n".join((*before, *head, *writer.lines, "}")) + "\n"

    def prelude(self) -> Sequence[str]:
        """Lines in front of every kernel."""
        return ()

    def signature(self, writer: Writer) -> str:
        """The head of the function, without the brace."""
        return f"void {writer.kernel.name}({', '.join(self.parameters(writer))})"

    def head(self, writer: Writer) -> list[str]:
        """Lines at the start of the body."""
        return []

    def parameters(self, writer: Writer) -> list[str]:
        """The buffers by slot, then the variables by name."""
        kernel = writer.kernel
        buffers = [self.parameter(u, writer) for u in kernel.buffers]
        return buffers + [f"{writer.type(u.dtype)} {writer[u]}" for u in kernel.variables]

    def slots(self, writer: Writer, unused: str) -> list[str]:
        """The buffers by slot, with a parameter `unused` for each slot that is not read."""
        found = {u.arg: u for u in writer.kernel.buffers}
        return [
            self.parameter(found[slot], writer) if slot in found else unused.format(slot)
            for slot in range(max(found, default=-1) + 1)
        ]

    def parameter(self, buffer: UOp, writer: Writer) -> str:
        """The declaration of a buffer as a parameter."""
        return f"{self.pointer_type(buffer, writer)}{self.restrict}{writer[buffer]}"

    def pointer_type(self, buffer: UOp, writer: Writer) -> str:
        """The type of a buffer parameter, const where nothing is stored."""
        assert isinstance(buffer.dtype, PointerDType)
        const = "" if buffer.arg in writer.kernel.written else "const "
        scalar = self.storage_type(buffer.dtype.base.scalar(), writer)
        return f"{const}{self.spaces['global']}{scalar} *"

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type in this language."""
        if dtype is dtypes.index and self.wide_index and writer.kernel.index_bits == 64:
            return self.wide_index
        if dtype.count == 1:
            return self.types[dtype]
        scalar = self.type_name(dtype.scalar(), writer)
        return self.vector_type.format(scalar=scalar, count=dtype.count)

    def storage_type(self, dtype: DType, writer: Writer) -> str:
        """The name of a type in memory."""
        if self.stores_bytes and dtype.kind == "bool":
            dtype = dtypes.uint8.vec(dtype.count)
        return self.type_name(dtype, writer)

    def constant(self, dtype: DType, value: Scalar) -> str:
        """A literal of exactly this value."""
        if dtype.kind == "bool":
            return str(int(bool(value)))
        if dtype.kind == "float":
            return self.float_constant(dtype, float(value))
        number, suffix = int(value), self.suffixes.get(dtype, "")
        if dtype.kind != "uint" and number == dtypes.min(dtype) and dtype.itemsize >= 4:
            return f"(-{-number - 1}{suffix} - 1)"  # the literal alone would be too large
        return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"

    def float_constant(self, dtype: DType, value: float) -> str:
        """The shortest decimal literal that reads back as the value."""
        if math.isnan(value):
            return self.nan
        rounded = as_stored(dtype, value)
        if math.isinf(rounded):
            return self.infinity if rounded > 0 else f"(-{self.infinity})"
        text = shortest(dtype, rounded) + self.suffixes.get(dtype, "")
        return f"({text})" if text.startswith("-") else text

    # --- one node

    def write(self, u: UOp, writer: Writer) -> None:
        """Write the text of one node."""
        if u.op in VALUE_OPS:  # most are: without this they fail each case below
            return writer.value(u, self.expression(u, writer))
        match u.op:
            case Op.CONST:
                writer.texts[u] = self.constant(u.dtype, u.arg)
            case Op.INDEX:
                writer.texts[u] = self.element(u, writer)
            case Op.LOAD:
                self.write_load(u, writer)
            case Op.STORE:
                self.write_store(u, writer)
            case Op.DEFINE_GLOBAL:
                writer.texts[u] = writer.unique(f"data{u.arg}")
            case Op.DEFINE_VAR:
                writer.texts[u] = writer.unique(u.arg[0])
            case Op.DEFINE_REG | Op.DEFINE_LOCAL:
                self.write_memory(u, writer)
            case Op.SPECIAL:
                axis = u.arg[-1]
                text = self.builtins[u.arg[:-1]].format(axis, xyz="xyz"[int(axis)])
                writer.texts[u] = u.arg
                writer.declare(u.dtype, u.arg, text)
            case Op.RANGE:
                self.write_range(u, writer)
            case Op.END:
                writer.depth -= 1
                writer.line("}")
            case Op.PIXEL:
                writer.texts[u] = ""  # its LOAD or STORE names the image
            case Op.BARRIER:
                self.write_barrier(u, writer)
            case Op.INSTRUCTION if u.dtype is dtypes.void:
                self.write_effect(u, writer)
            case Op.AFTER:
                writer.texts[u] = writer.texts.get(u.src[0], "")
            case Op.SINK | Op.GROUP:
                return None
            case _:
                writer.value(u, self.expression(u, writer))
        return None

    def write_barrier(self, u: UOp, writer: Writer) -> None:
        """A barrier of the threads of a workgroup, where the language has any."""
        if self.barrier:
            writer.line(self.barrier)

    def write_memory(self, u: UOp, writer: Writer) -> None:
        """A register, named, or an array in local memory."""
        assert isinstance(u.dtype, PointerDType)
        local = u.op is Op.DEFINE_LOCAL
        name = writer.texts[u] = writer.unique(f"{'temp' if local else 'acc'}{u.arg}")
        if u.dtype.size == 1 and not local:
            template = self.register_declaration
            writer.line(template.format(type=writer.type(u.dtype.base), name=name))
            return
        template, space = self.array_declaration, self.spaces[u.dtype.space]
        kind = self.storage_type(u.dtype.base.scalar(), writer)
        size = u.dtype.size * u.dtype.base.count
        offset = 0
        if u.op is Op.DEFINE_LOCAL and self.has_dynamic_shared(writer.kernel):
            template, offset = self.shared_array, writer.kernel.shared_layout[u]
        writer.line(template.format(space=space, type=kind, name=name, size=size, offset=offset))

    def has_dynamic_shared(self, kernel: LinearKernel) -> bool:
        """True if the local memory of a kernel is sized at its launch."""
        return bool(self.shared_array) and kernel.shared_bytes > self.static_shared_bytes

    def write_range(self, u: UOp, writer: Writer) -> None:
        """The head of a loop."""
        letter = RANGE_LETTERS.get(u.arg.kind, "i")
        name = writer.texts[u] = writer.unique(letter + "_".join(map(str, u.arg.number)))
        start, end = self.extent(u, writer)
        writer.line(self.loop.format(type=writer.type(u.dtype), name=name, start=start, end=end))
        writer.depth += 1

    def extent(self, u: UOp, writer: Writer) -> tuple[str, str]:
        """Start and end of a loop."""
        return "0", writer[u.src[0]]

    def element(self, u: UOp, writer: Writer) -> str:
        """The memory that an INDEX names: a register, or an element of an array."""
        pointer = pointer_of(u)
        if is_register(pointer):
            return writer[pointer]
        return f"{writer[pointer]}[{unwrapped(writer[u.src[1]])}]"

    def lanes(self, template: str, u: UOp, dtype: DType, writer: Writer, value: str = "") -> str:
        """A template for the lanes of `dtype` in memory that start at an INDEX."""
        pointer = pointer_of(u)
        assert isinstance(pointer.dtype, PointerDType)
        index = u.src[1]
        at = writer[index]
        if index.op in SUM_OPS:  # others may bind less tightly than the sum they become part of
            at = unwrapped(at)
        at = "" if index.op is Op.CONST and index.arg == 0 else f" + {at}"
        return template.format(
            space=self.spaces[pointer.dtype.space],
            type=self.storage_type(dtype, writer),
            pointer=f"{writer[pointer]}{at}",
            count=dtype.count,
            value=value,
        )

    def write_load(self, u: UOp, writer: Writer) -> None:
        """The value at an INDEX, or the alternative where its gate is false."""
        index = u.src[0]
        if index.op is Op.PIXEL:
            writer.value(u, self.pixel(self.pixel_load, index, writer))
            return
        text = writer[index]
        if is_vector_access(index, u.dtype):
            text = self.lanes(self.load_template(u, writer), index, u.dtype, writer)
        text = self.loaded(u, text, writer)
        if len(index.src) == 3:
            other = writer[u.src[1]] if len(u.src) > 1 else self.zero(u.dtype, writer)
            text = f"{writer[index.src[2]]} ? {text} : {other}"
        writer.value(u, text)

    def loaded(self, u: UOp, text: str, writer: Writer) -> str:
        """The value of a loaded element."""
        is_bool = self.stores_bytes and u.dtype is dtypes.bool
        is_byte = is_bool and pointer_of(u.src[0]).op is not Op.DEFINE_REG
        return f"({text} != 0)" if is_byte else text

    def stored(self, u: UOp, text: str, writer: Writer) -> str:
        """A value as it is written to memory."""
        return text

    def zero(self, dtype: DType, writer: Writer) -> str:
        """Zero in every lane."""
        return self.repeated(self.constant(dtype.scalar(), 0), dtype, writer)

    def repeated(self, text: str, dtype: DType, writer: Writer) -> str:
        """A literal or name in every lane of a type."""
        if dtype.count == 1:
            return text
        lanes = ", ".join((text,) * dtype.count)
        return (self.splat or self.vector).format(text, type=writer.type(dtype), lanes=lanes)

    def write_store(self, u: UOp, writer: Writer) -> None:
        """Write a value at an INDEX, where its gate holds."""
        index, value = u.src
        stored = self.stored(u, unwrapped(writer[value]), writer)
        text = f"{writer[index]} = {stored};"
        gate = index.src[3:] if index.op is Op.PIXEL else index.src[2:]
        if index.op is Op.PIXEL:
            text = self.pixel(self.pixel_store, index, writer, stored)
        elif is_vector_access(index, value.dtype):
            template = self.store_template(u, writer)
            text = self.lanes(template, index, value.dtype, writer, stored)
        if gate:
            text = f"if ({unwrapped(writer[gate[0]])}) {{ {text} }}"
        writer.line(text)

    def write_effect(self, u: UOp, writer: Writer) -> None:
        """Write what an Effect does. Raises UnsupportedError for another dialect's."""
        raise UnsupportedError(f"{self.name} has no instruction {type(u.arg).__name__}")

    def read_effect(self, u: UOp, writer: Writer) -> str:
        """The expression of what an Effect reads. Raises UnsupportedError for another dialect's."""
        raise UnsupportedError(f"{self.name} has no instruction {type(u.arg).__name__}")

    def load_template(self, u: UOp, writer: Writer) -> str:
        """The template of a LOAD of lanes."""
        return self.vector_load

    def store_template(self, u: UOp, writer: Writer) -> str:
        """The template of a STORE of lanes."""
        return self.vector_store

    def pixel(self, template: str, u: UOp, writer: Writer, value: str = "") -> str:
        """A pixel read, or written. Raises UnsupportedError in languages without images."""
        if not template:
            raise self.refusal(u.op)
        image, column, row = (unwrapped(writer[s]) for s in u.src[:3])
        return template.format(image=image, column=column, row=row, value=value)

    # --- expressions

    def expression(self, u: UOp, writer: Writer) -> str:
        """The value of a node that computes."""
        if u.op in TEMPLATE_OPS:
            return self.alu(u, [writer[s] for s in u.src], writer)
        match u.op:
            case Op.CAST:
                return self.cast(u, writer)
            case Op.BITCAST:
                return self.bitcast(u, writer)
            case Op.VECTORIZE:
                return self.vectorize(u, writer)
            case Op.EXTRACT:
                return self.extract(u, writer)
            case Op.DOT:
                return self.dot(u, writer)
            case Op.INSTRUCTION if isinstance(u.arg, Effect):
                return self.read_effect(u, writer)
            case Op.INSTRUCTION:
                return self.instruction(u, [writer[s] for s in u.src])
            case Op.MATRIX:
                return self.matrix_sum(u, writer)
            case Op.SHUFFLE:
                return self.exchanged(u, writer)
            case _:
                return self.alu(u, [writer[s] for s in u.src], writer)

    def template(self, u: UOp) -> str:
        """The expression template of a node."""
        op = BOOL_ARITHMETIC.get(u.op, u.op) if u.dtype.kind == "bool" else u.op
        if op is Op.CMPNE and u.dtype is dtypes.bool and is_constant(u.src[1], True):
            return self.logical_not
        if op not in self.expressions:
            raise self.refusal(op)
        return self.expressions[op]

    def alu(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic, by its template; integers wrap, and undefined behavior of C is guarded."""
        if u.op in UNDEFINED_IN_C and u.op not in self.defined:
            if u.op in SHIFTS:
                operands = [operands[0], self.shift_amount(u, operands[1], writer)]
            elif not is_safe_division(u):
                name = division(u.op, u.dtype, writer, self)
                return f"{name}({', '.join(map(unwrapped, operands))})"
        wide = wraps_as(u)
        template = self.template(u)
        operands = self.typed_index(u, operands, writer)
        if u.op is Op.ADD and is_negative_index(u.src[1]):
            return f"({operands[0]} - {self.constant(u.dtype, -u.src[1].arg)})"
        if wide is None:
            kind = writer.type(u.dtype)
            one = self.constant(u.dtype.scalar(), 1) if "{one}" in template else ""
            return template.format(*operands, type=kind, one=one)
        unsigned = [self.convert(wide, x, writer) for x in operands]
        return self.convert(u.dtype, template.format(*unsigned, type=writer.type(wide)), writer)

    def shift_amount(self, u: UOp, amount: str, writer: Writer) -> str:
        """The amount of a shift modulo the width."""
        if is_safe_shift(u):
            return amount
        width = self.constant(u.dtype.scalar(), u.dtype.bits - 1)
        return f"({amount} & {self.repeated(width, u.dtype, writer)})"

    def typed_index(self, u: UOp, operands: Sequence[str], writer: Writer) -> Sequence[str]:
        """Operands of index math, one of them of the index type: literals alone would be int."""
        if u.dtype.kind != "index":
            return operands
        first = 1 if u.op is Op.WHERE else 0
        deciding = u.src[first : first + 1] if u.op in SHIFTS else u.src[first:]
        if any(s.op is not Op.CONST for s in deciding):
            return operands
        typed = self.convert(u.dtype, operands[first], writer)
        return [*operands[:first], typed, *operands[first + 1 :]]

    def convert(self, dtype: DType, text: str, writer: Writer) -> str:
        """The text reinterpreted between integers that wrap."""
        return self.cast_template.format(text, type=writer.type(dtype))

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted; where C leaves that undefined, or casts no vectors, by a function."""
        source, text = u.src[0].dtype, writer[u.src[0]]
        if Op.CAST not in self.defined and (
            u.dtype.count > 1 or (source.kind == "float" and u.dtype.kind in INTEGERS)
        ):
            return f"{conversion(u.dtype, source, writer, self)}({unwrapped(text)})"
        if u.dtype.kind == "bool":
            return f"({text} != 0)"
        return self.cast_template.format(text, type=writer.type(u.dtype))

    def bitcast(self, u: UOp, writer: Writer) -> str:
        """The same bits as another type."""
        return self.bitcast_template.format(writer[u.src[0]], type=writer.type(u.dtype))

    def vectorize(self, u: UOp, writer: Writer) -> str:
        """Lanes as a vector: a splat where they are all the same node."""
        if len(set(u.src)) == 1:
            return self.repeated(unwrapped(writer[u.src[0]]), u.dtype, writer)
        kind = writer.type(u.dtype)
        lanes = ", ".join(unwrapped(writer[s]) for s in u.src)
        return self.vector.format(type=kind, lanes=lanes)

    def dot(self, u: UOp, writer: Writer) -> str:
        """Products of neighboring lanes, if `Limits.pair_bytes` is not 0."""
        raise self.refusal(u.op)

    def matrix_sum(self, u: UOp, writer: Writer) -> str:
        """A product of fragments added to one, as `matrix` has it for the unit."""
        if u.arg.name not in self.matrix:
            raise self.refusal(u.op)
        call = self.matrix[u.arg.name]
        if call.definition:
            writer.define(call.definition)
        operands = (unwrapped(writer[s]) for s in u.src)
        return call.expression.format(*operands, type=writer.type(u.dtype))

    def exchanged(self, u: UOp, writer: Writer) -> str:
        """The value of another lane, as `shuffle` has it."""
        if not self.shuffle:
            raise self.refusal(u.op)
        return self.shuffle.format(value=unwrapped(writer[u.src[0]]), mask=u.arg)

    def extract(self, u: UOp, writer: Writer) -> str:
        """Some lanes of one or more vectors."""
        sources = [writer[s] for s in u.src]
        named = [s if s.isidentifier() else f"({unwrapped(s)})" for s in sources]
        count = u.src[0].dtype.count
        lanes = ", ".join(f"{named[lane // count]}[{lane % count}]" for lane in u.arg)
        if u.dtype.count == 1:
            return lanes
        return self.vector.format(type=writer.type(u.dtype), lanes=lanes)
