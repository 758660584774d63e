"""Mesa's compiler of Adrenos, from the wheel `tinymesa`: a listing of NIR to machine code.

Mesa ends the process where an assertion fails, so this module is run as a process of its own, which
`ir3.py` starts, asks and replaces: `python -m tiny_qcom.mesa`. Structures are read and written by
their offsets in Mesa 25.2.7, which is the one version that the wheel is required in; names of
operations are looked up in the library's own tables.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from cffi import FFI

from tiny_qcom.code import Code, Image, Route
from tinycore.plugin import serve_questions

__all__ = ["Mesa", "Service"]

ffi: Final = FFI()
MESA_DECLARATIONS: Final = """
typedef struct { uint8_t bytes[40]; } builder;
void glsl_type_singleton_init_or_ref(void);
void *glsl_array_type(void *, unsigned, unsigned);
void *fd_dev_info_raw(void *);
void *ir3_compiler_create(void *, void *, void *, void *);
void *ir3_get_compiler_options(void *);
builder nir_builder_init_simple_shader(int, void *, const char *, ...);
void *nir_build_alu1(builder *, int, void *);
void *nir_build_alu2(builder *, int, void *, void *);
void *nir_build_alu3(builder *, int, void *, void *, void *);
void *nir_build_alu4(builder *, int, void *, void *, void *, void *);
void nir_builder_instr_insert(builder *, void *);
void nir_def_init(void *, void *, unsigned, unsigned);
void *nir_alu_instr_create(void *, int);
void *nir_load_const_instr_create(void *, unsigned, unsigned);
void *nir_undef_instr_create(void *, unsigned, unsigned);
void *nir_intrinsic_instr_create(void *, int);
void *nir_deref_instr_create(void *, int);
void *nir_jump_instr_create(void *, int);
void *nir_local_variable_create(void *, void *, const char *);
void *nir_push_if(builder *, void *);
void *nir_push_else(builder *, void *);
void nir_pop_if(builder *, void *);
void *nir_push_loop(builder *);
void nir_pop_loop(builder *, void *);
void *nir_if_phi(builder *, void *, void *);
void nir_validate_shader(void *, const char *);
bool ir3_nir_lower_io_vars_to_temporaries(void *);
void ir3_finalize_nir(void *, void *, void *);
void *ir3_shader_from_nir(void *, void *, void *, void *);
void *ir3_shader_get_variant(void *, void *, bool, bool, bool *);
void ir3_shader_destroy(void *);
void *fopen(const char *, const char *);
int fclose(void *);
void ir3_isa_disasm(const void *, int, void *, const void *);
"""

COMPUTE: Final = 5
"""gl_shader_stage."""
OPERATIONS: Final = 489, 56
INTRINSICS: Final = 732, 112
"""Entries of the tables of names, and their bytes."""
BASE, WRITE_MASK, RANGE_BASE, RANGE = 0, 1, 4, 5
IMAGE_DIMENSION, ACCESS, ALIGN, ALIGN_OFFSET = 14, 17, 20, 21
SOURCE_TYPE, DESTINATION_TYPE = 23, 24
SEMANTICS, MODES, MEMORY_SCOPE, EXECUTION_SCOPE = 37, 38, 39, 40
"""Indices of the constants of an intrinsic."""
PLANE_KIND: Final = 1
TEXEL_KIND: Final = 5
FLOAT_32: Final = 160
CAN_REORDER: Final = 64
WORKGROUP: Final = 4
ACQUIRE_RELEASE: Final = 3
MODE_TEMPORARY: Final = 1 << 18
MODE_SHARED: Final = 1 << 19
MODE_GLOBAL: Final = 1 << 20
DEREF_VARIABLE, DEREF_ARRAY = 0, 1
BREAK: Final = 2
LOOP_CONTROL: Final = 104
DONT_UNROLL: Final = 2
VARIES: Final = 1 << 5
"""In the facts of a shader: the threads of a group are the launch's to say."""
DRIVER_PARAMETERS: Final = 44 + 3 * 16
"""In the constant state: place and size of the parameters of a launch, in vectors."""
TYPES: Final = {
    1: "glsl_type_builtin_bool",
    32: "glsl_type_builtin_uint",
    64: "glsl_type_builtin_uint64_t",
}
"""Types of variables, by the width of their values."""
ARGUMENTS_PLACE: Final = 8
WIDE: Final = 32 | 64
"""Widths of integers that a shader is said to have, whatever it has: where there are no narrow ones
Mesa leaves its pass nir_opt_phi_precision out. That gives 16 bits to a constant that meets a byte
in a phi, on which the validation ends the process.
"""


def at(pointer: Any, offset: int, kind: str) -> Any:
    """The field of a structure at an offset, as a pointer to it."""
    return ffi.cast(f"{kind} *", ffi.cast("char *", pointer) + offset)


class Mesa:
    """The library, loaded, with a compiler for each chip that was asked for."""

    def __init__(self, path: str) -> None:
        ffi.cdef(MESA_DECLARATIONS)
        for name in (*TYPES.values(), "nir_op_infos", "nir_intrinsic_infos"):
            ffi.cdef(f"extern const char {name}[];")
        self.lib: Any = ffi.dlopen(path)
        self.lib.glsl_type_singleton_init_or_ref()
        self.chips: dict[tuple[int, int], tuple[Any, Any]] = {}

    def names(self, table: Any, count: int, size: int) -> dict[str, int]:
        """Operations of a table, by name."""
        entries = ffi.cast("char *", table)
        found = (ffi.cast("char **", entries + size * n)[0] for n in range(count))
        return {ffi.string(name).decode(): n for n, name in enumerate(found) if name}

    @cached_property
    def operations(self) -> dict[str, int]:
        """Arithmetic, by name."""
        return self.names(self.lib.nir_op_infos, *OPERATIONS)

    @cached_property
    def intrinsics(self) -> dict[str, int]:
        """Everything else that is computed, by name."""
        return self.names(self.lib.nir_intrinsic_infos, *INTRINSICS)

    def compiler(self, gpu: int, chip_id: int) -> tuple[Any, Any]:
        """The compiler of a chip, and what must live as long as it."""
        key = gpu, chip_id
        if key not in self.chips:
            identity = ffi.new("uint64_t[2]", [gpu, chip_id])
            options = ffi.new("uint8_t[32]")
            options[1] = 1  # no cache
            info = self.lib.fd_dev_info_raw(identity)
            if info == ffi.NULL:
                raise ValueError(f"Mesa knows no chip {chip_id:#x}")
            made = self.lib.ir3_compiler_create(ffi.NULL, identity, info, options)
            at(made, 409, "uint8_t")[0] = 0  # no preamble: launches support none
            self.chips[key] = made, (identity, options, info)
        return self.chips[key]

    def disassemble(self, machine: bytes, gpu: int) -> str:
        """The text of machine code."""
        options = ffi.new("uint8_t[80]")
        at(options, 0, "uint32_t")[0] = gpu
        with tempfile.NamedTemporaryFile("r") as text:
            file = self.lib.fopen(text.name.encode(), b"w")
            self.lib.ir3_isa_disasm(machine, len(machine), file, options)
            self.lib.fclose(file)
            return text.read()

    def compile(self, listing: str, gpu: int, chip_id: int) -> Code:
        """The machine code of a listing; without unrolled loops, if registers hold that alone."""
        code = self.replayed(listing, gpu, chip_id)
        if not code.private_bytes:
            return code
        rolled = self.replayed(listing, gpu, chip_id, unrolls=False)
        return min(code, rolled, key=lambda made: made.private_bytes)

    def replayed(self, listing: str, gpu: int, chip_id: int, unrolls: bool = True) -> Code:
        """The machine code of a listing, of whose loops Mesa may unroll some."""
        compiler, _ = self.compiler(gpu, chip_id)
        replay = Replay(self, compiler, unrolls)
        for line in listing.splitlines():
            replay.line(line.split())
        return replay.finish()


class Replay:
    """One shader while it is built, line by line."""

    def __init__(self, mesa: Mesa, compiler: Any, unrolls: bool = True) -> None:
        self.mesa, self.lib, self.compiler = mesa, mesa.lib, compiler
        self.unrolls = unrolls
        options = self.lib.ir3_get_compiler_options(compiler)
        made = self.lib.nir_builder_init_simple_shader(COMPUTE, options, b"kernel")
        self.builder = ffi.new("builder *", made)
        at(self.builder, 16, "uint8_t")[0] = 1  # exact: half-way roundings stay
        self.shader = at(self.builder, 24, "void *")[0]
        self.implementation = at(self.builder, 32, "void *")[0]
        self.info(305, "uint8_t")[0] = WIDE  # see there
        self.values: dict[str, Any] = {}
        self.variables: dict[str, tuple[Any, Any, int, int]] = {}
        self.name = ""
        self.argument_bytes = 0
        self.images: list[tuple[int, str]] = []

    def line(self, words: list[str]) -> None:
        """Replay a line."""
        if len(words) > 2 and words[1] == "=":
            name, _, verb, *operands = words
            self.values[name] = self.value(verb, operands)
        else:
            HANDLERS[words[0]](self, *words[1:])

    def value(self, verb: str, operands: list[str]) -> Any:
        """Result of an instruction."""
        if verb in PRODUCERS:
            return PRODUCERS[verb](self, *operands)
        build = getattr(self.lib, f"nir_build_alu{len(operands)}")
        sources = [self.values[name] for name in operands]
        return build(self.builder, self.mesa.operations[verb], *sources)

    # --- the frame

    def kernel(self, name: str) -> None:
        self.name = name

    def info(self, offset: int, kind: str) -> Any:
        """A field of the shader's facts."""
        return at(self.shader, 48 + offset, kind)

    def block(self, *sizes: str) -> None:
        """Threads of a group on each axis; `varies` where a launch says how many."""
        if sizes == ("varies",):
            self.info(307, "uint8_t")[0] |= VARIES
            return
        for axis, size in enumerate(sizes):
            self.info(280 + 2 * axis, "uint16_t")[0] = int(size)

    def shared(self, size: str) -> None:
        self.info(268, "uint32_t")[0] = int(size)

    def arguments(self, size: str) -> None:
        self.argument_bytes = int(size)
        self.info(54, "uint8_t")[0] = 1

    def image(self, number: str, slot: str, how: str) -> None:
        self.images.append((int(slot), how))
        self.info(57, "uint8_t")[0] = int(number) + 1

    # --- instructions

    def constant(self, bits: str | int, number: str | int) -> Any:
        """A literal."""
        value = int(number, 0) if isinstance(number, str) else number
        made = self.lib.nir_load_const_instr_create(self.shader, 1, int(bits))
        at(made, 64, "uint64_t")[0] = value
        self.lib.nir_builder_instr_insert(self.builder, made)
        return ffi.cast("void *", ffi.cast("char *", made) + 32)

    def intrinsic(
        self,
        name: str,
        sources: list[Any],
        facts: dict[int, int],
        result: tuple[int, int] | None = None,
        components: int = 0,
    ) -> Any:
        """An intrinsic; `result` are its components and their width."""
        number = self.mesa.intrinsics[name]
        made = self.lib.nir_intrinsic_instr_create(self.shader, number)
        at(made, 72, "uint8_t")[0] = components
        for position, source in enumerate(sources):
            at(made, 120 + 32 * position + 24, "void *")[0] = source
        entry = ffi.cast("uint8_t *", self.mesa.lib.nir_intrinsic_infos) + INTRINSICS[1] * number
        for index, value in facts.items():
            slot = entry[33 + index]
            if not slot:
                raise ValueError(f"{name} has no constant {index}")
            at(made, 76 + 4 * (slot - 1), "int32_t")[0] = value
        definition = ffi.cast("void *", ffi.cast("char *", made) + 40)
        if result is not None:
            self.lib.nir_def_init(made, definition, *result)
        self.lib.nir_builder_instr_insert(self.builder, made)
        return definition

    def argument(self, bits: str, offset: str) -> Any:
        """Argument of a launch: 8 bytes, of which 32 bits or all are used."""
        facts = {ACCESS: 0, ALIGN: 8, ALIGN_OFFSET: 0, RANGE_BASE: 0, RANGE: self.argument_bytes}
        sources = [self.constant(32, 0), self.constant(32, offset)]
        return self.intrinsic("load_ubo", sources, facts, (1, int(bits)), 1)

    def group(self, axis: str) -> Any:
        return self.lane_of(self.intrinsic("load_workgroup_id", [], {}, (3, 32)), int(axis))

    def thread(self, axis: str) -> Any:
        made = self.intrinsic("load_local_invocation_id", [], {}, (3, 32))
        return self.lane_of(made, int(axis))

    def size(self, axis: str) -> Any:
        """Threads of a group on an axis, as the launch says."""
        return self.lane_of(self.intrinsic("load_workgroup_size", [], {}, (3, 32)), int(axis))

    def lane(self, name: str, lane: str) -> Any:
        return self.lane_of(self.values[name], int(lane))

    def lane_of(self, value: Any, lane: int) -> Any:
        """One component of a vector."""
        made = self.lib.nir_alu_instr_create(self.shader, self.mesa.operations["mov"])
        bits = at(value, 29, "uint8_t")[0]
        at(made, 72 + 24, "void *")[0] = value
        at(made, 72 + 32, "uint8_t")[0] = lane
        definition = ffi.cast("void *", ffi.cast("char *", made) + 40)
        self.lib.nir_def_init(made, definition, 1, bits)
        self.lib.nir_builder_instr_insert(self.builder, made)
        return definition

    def vector(self, parts: list[Any]) -> Any:
        """Scalars side by side."""
        if len(parts) == 1:
            return parts[0]
        build = getattr(self.lib, f"nir_build_alu{len(parts)}")
        return build(self.builder, self.mesa.operations[f"vec{len(parts)}"], *parts)

    def load(self, space: str, bits: str, count: str, align: str, place: str) -> Any:
        """Components from memory."""
        facts = {ALIGN: int(align), ALIGN_OFFSET: 0}
        name = {"shared": "load_shared", "global": "load_global", "constant": "load_global"}[space]
        facts |= {BASE: 0} if space == "shared" else {ACCESS: 0}
        if space == "constant":
            facts[ACCESS] = CAN_REORDER
        return self.intrinsic(
            name, [self.values[place]], facts, (int(count), int(bits)), int(count)
        )

    def store(self, space: str, bits: str, count: str, align: str, *names: str) -> None:
        """Components to memory."""
        *parts, place = (self.values[name] for name in names)
        mask = {WRITE_MASK: (1 << int(count)) - 1, ALIGN: int(align), ALIGN_OFFSET: 0}
        mask |= {BASE: 0} if space == "shared" else {ACCESS: 0}
        sources = [self.vector(parts), place]
        self.intrinsic(f"store_{space}", sources, mask, None, int(count))

    def barrier(self) -> None:
        """All threads of a group meet, and see what each has stored."""
        facts = {EXECUTION_SCOPE: WORKGROUP, MEMORY_SCOPE: WORKGROUP}
        facts |= {SEMANTICS: ACQUIRE_RELEASE, MODES: MODE_SHARED | MODE_GLOBAL}
        self.intrinsic("barrier", [], facts)

    # --- images

    def pixel(self, number: str, column: str, row: str) -> Any:
        """Four floats of a pixel."""
        facts = {IMAGE_DIMENSION: PLANE_KIND, ACCESS: CAN_REORDER, DESTINATION_TYPE: FLOAT_32}
        sources = [self.constant(32, number), self.place(column, row), self.nothing()]
        sources.append(self.constant(32, 0))
        return self.intrinsic("image_load", sources, facts, (4, 32), 4)

    def texel(self, number: str, place: str) -> Any:
        """Four floats of a buffer."""
        facts = {IMAGE_DIMENSION: TEXEL_KIND, ACCESS: CAN_REORDER, DESTINATION_TYPE: FLOAT_32}
        zero = self.constant(32, 0)
        sources = [self.constant(32, number), self.vector([self.values[place], zero, zero, zero])]
        sources += [self.nothing(), zero]
        return self.intrinsic("image_load", sources, facts, (4, 32), 4)

    def draw(self, number: str, column: str, row: str, *names: str) -> None:
        """Four floats to a pixel."""
        facts = {IMAGE_DIMENSION: PLANE_KIND, ACCESS: 0, SOURCE_TYPE: FLOAT_32}
        value = self.vector([self.values[name] for name in names])
        sources = [self.constant(32, number), self.place(column, row), self.nothing(), value]
        self.intrinsic("image_store", [*sources, self.constant(32, 0)], facts, None, 4)

    def place(self, column: str, row: str) -> Any:
        """Coordinates as four components."""
        zero = self.constant(32, 0)
        return self.vector([self.values[column], self.values[row], zero, zero])

    def nothing(self) -> Any:
        """An undefined number."""
        made = self.lib.nir_undef_instr_create(self.shader, 1, 32)
        self.lib.nir_builder_instr_insert(self.builder, made)
        return ffi.cast("void *", ffi.cast("char *", made) + 32)

    # --- variables

    def variable(self, name: str, bits: str, count: str) -> None:
        """A variable of a thread, or an array."""
        element = ffi.cast("void *", getattr(self.lib, TYPES[int(bits)]))
        kind = self.lib.glsl_array_type(element, int(count), 0) if int(count) > 1 else element
        made = self.lib.nir_local_variable_create(self.implementation, kind, name.encode())
        self.variables[name] = made, kind, int(bits), int(count)

    def reference(self, name: str, index: str = "") -> Any:
        """A reference to a variable, or to an element of an array."""
        made, kind, bits, count = self.variables[name]
        whole = self.lib.nir_deref_instr_create(self.shader, DEREF_VARIABLE)
        at(whole, 48, "void *")[0] = made
        found = self.put_reference(whole, kind)
        if count == 1:
            return found
        part = self.lib.nir_deref_instr_create(self.shader, DEREF_ARRAY)
        at(part, 48 + 24, "void *")[0] = found
        at(part, 80 + 24, "void *")[0] = self.values[index]
        return self.put_reference(part, ffi.cast("void *", getattr(self.lib, TYPES[bits])))

    def put_reference(self, made: Any, kind: Any) -> Any:
        at(made, 36, "uint32_t")[0] = MODE_TEMPORARY
        at(made, 40, "void *")[0] = kind
        definition = ffi.cast("void *", ffi.cast("char *", made) + 120)
        self.lib.nir_def_init(made, definition, 1, 32)
        self.lib.nir_builder_instr_insert(self.builder, made)
        return definition

    def get(self, name: str, index: str = "") -> Any:
        """The value of a variable."""
        bits = self.variables[name][2]
        return self.intrinsic(
            "load_deref", [self.reference(name, index)], {ACCESS: 0}, (1, bits), 1
        )

    def set(self, name: str, value: str, index: str = "") -> None:
        """Give a variable a value."""
        sources = [self.reference(name, index), self.values[value]]
        self.intrinsic("store_deref", sources, {ACCESS: 0, WRITE_MASK: 1}, None, 1)

    # --- control flow

    def push_if(self, gate: str) -> None:
        self.lib.nir_push_if(self.builder, self.values[gate])

    def push_else(self) -> None:
        self.lib.nir_push_else(self.builder, ffi.NULL)

    def pop_if(self) -> None:
        self.lib.nir_pop_if(self.builder, ffi.NULL)

    def phi(self, yes: str, no: str) -> Any:
        """Phi of the two values of the preceding branch."""
        return self.lib.nir_if_phi(self.builder, self.values[yes], self.values[no])

    def push_loop(self) -> None:
        made = self.lib.nir_push_loop(self.builder)
        if not self.unrolls:
            at(made, LOOP_CONTROL, "uint32_t")[0] = DONT_UNROLL

    def pop_loop(self) -> None:
        self.lib.nir_pop_loop(self.builder, ffi.NULL)

    def leave(self) -> None:
        """Leave the innermost loop."""
        made = self.lib.nir_jump_instr_create(self.shader, BREAK)
        self.lib.nir_builder_instr_insert(self.builder, made)

    # --- the end

    def finish(self) -> Code:
        """Compile, and read what a launch needs."""
        lib, shader = self.lib, self.shader
        lib.nir_validate_shader(shader, b"a listing of tinycore")
        lib.ir3_nir_lower_io_vars_to_temporaries(shader)
        lib.ir3_finalize_nir(self.compiler, ffi.new("uint8_t[4]"), shader)
        options, key = ffi.new("uint8_t[228]"), ffi.new("uint8_t[80]")
        made = lib.ir3_shader_from_nir(self.compiler, shader, options, ffi.NULL)
        created = ffi.new("bool *")
        variant = lib.ir3_shader_get_variant(made, key, False, False, created)
        if variant == ffi.NULL:
            raise ValueError("Mesa made no variant: the kernel needs too many registers")
        try:
            return self.read(variant)
        finally:
            lib.ir3_shader_destroy(made)

    def read(self, variant: Any) -> Code:
        """The code of a variant, and its needs."""

        def word(offset: int, kind: str = "uint32_t") -> int:
            return int(at(variant, offset, kind)[0])

        size = word(224)
        machine = bytes(ffi.buffer(at(variant, 192, "char *")[0], size))
        state = at(variant, 200, "void *")[0]
        places = self.argument_places(state)
        constants = self.immediates(variant, state)
        images = self.image_order(variant)
        return Code(
            self.name,
            Route.IR3,
            machine,
            arguments=places,
            constants=constants,
            constant_bytes=word(576) * 16,
            full_registers=word(248, "int8_t") + 1,
            half_registers=word(249, "int8_t") + 1,
            merged=bool(word(1243, "uint8_t")),
            branch_stack=min(word(564), 63),
            private_bytes=word(580),
            shared_bytes=word(588),
            group_register=word(1484 + 12),
            thread_register=word(1484 + 8),
            images=images,
            samplers=sum(how != Image.WRITTEN for _, how in images),
            launch_parameters=self.parameters_place(state),
        )

    def argument_places(self, state: Any) -> tuple[int, ...]:
        """Offset of each argument in the constant file; -1 if it is not read."""
        count = int(at(state, 384 + 1024, "uint32_t")[0])
        ranges = []
        for number in range(count):
            start = 384 + 32 * number
            block = int(at(state, start + 8, "uint32_t")[0])
            offset, first, last = (int(at(state, start + n, "uint32_t")[0]) for n in (16, 20, 24))
            if block == 0:
                ranges.append((first, last, offset))
            else:
                raise ValueError(f"the kernel reads from uniform buffer {block}")
        places = []
        for place in range(0, self.argument_bytes, ARGUMENTS_PLACE):
            found = [
                offset + place - first for first, last, offset in ranges if first <= place < last
            ]
            places.append(found[0] if found else -1)
        return tuple(places)

    def immediates(self, variant: Any, state: Any) -> tuple[tuple[int, bytes], ...]:
        """Numbers that the compiler keeps in the constant file."""
        count = int(at(variant, 208, "uint32_t")[0])
        if not count:
            return ()
        start = int(at(state, 44 + 192, "uint32_t")[0]) * 16
        return ((start, bytes(ffi.buffer(at(variant, 216, "void *")[0], count * 4))),)

    def parameters_place(self, state: Any) -> int:
        """Offset of the parameters of the launch in the constant file; -1 if none is read."""
        start, vectors = (int(at(state, DRIVER_PARAMETERS + n, "uint32_t")[0]) for n in (0, 4))
        return start * 16 if vectors else -1

    def image_order(self, variant: Any) -> tuple[tuple[int, str], ...]:
        """Slots of images: those that are read in the order of textures, then what is written."""
        written = [image for image in self.images if image[1] == Image.WRITTEN]
        if self.images[: len(written)] != written:
            raise ValueError("images that are written must come first: stores count only these")
        mapping = at(variant, 1124, "uint8_t")
        read = []
        for texture in range(int(mapping[96])):
            number = int(mapping[64 + texture])
            if number & 0x80:
                raise ValueError("a texture stands for a buffer")
            read.append(self.images[number])
        return (*read, *written)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "kernel": Replay.kernel,
    "block": Replay.block,
    "shared": Replay.shared,
    "arguments": Replay.arguments,
    "image": Replay.image,
    "store": Replay.store,
    "draw": Replay.draw,
    "barrier": Replay.barrier,
    "variable": Replay.variable,
    "set": Replay.set,
    "if": Replay.push_if,
    "else": Replay.push_else,
    "endif": Replay.pop_if,
    "loop": Replay.push_loop,
    "endloop": Replay.pop_loop,
    "break": Replay.leave,
}
PRODUCERS: Final[dict[str, Callable[..., Any]]] = {
    "const": Replay.constant,
    "argument": Replay.argument,
    "group": Replay.group,
    "thread": Replay.thread,
    "size": Replay.size,
    "lane": Replay.lane,
    "load": Replay.load,
    "pixel": Replay.pixel,
    "texel": Replay.texel,
    "get": Replay.get,
    "phi": Replay.phi,
}


class Service:
    """Answers questions of `ir3.py`: [verb, gpu, chip number, text], and the verb is "compile",
    with a listing, or "disassemble", with code in hexadecimal digits.

    An answer is the text of an error, "" where there is none, and the result.
    """

    def __init__(self, path: str) -> None:
        self.mesa = Mesa(path)

    def answer(self, question: tuple[str, int, int, str]) -> tuple[str, bytes]:
        """The answer to a question, whatever goes wrong."""
        verb, gpu, chip_id, text = question
        try:
            if verb == "compile":
                return "", self.mesa.compile(text, gpu, chip_id).pack()
            return "", self.mesa.disassemble(bytes.fromhex(text), gpu).encode()
        except Exception:
            return traceback.format_exc(), b""


if __name__ == "__main__":
    serve_questions(Service(sys.argv[1]).answer)
