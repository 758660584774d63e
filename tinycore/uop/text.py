"""The text form of graphs: printing.

Floor 1. One line per node, sources before users: `%3 = ADD index (%1, %2)`. An argument stands in
brackets after the dtype: `%0 = CONST float32 [-0.0]`. What is printed is read back by `parse.py` as
the identical nodes, so tests, bug reports and goldens can be text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from tinycore._deferred import deferred
from tinycore.dtype import DType, ImageDType, PointerDType
from tinycore.errors import FileFormatError
from tinycore.uop import node as node_module
from tinycore.uop.instruction import Instruction
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import Axis, Skew, UOp
from tinycore.uop.op import Ahead, AxisKind, Merge, Op, Part, Scatter, Write

quoted: Final = deferred("json:dumps")

Fields = tuple[Any, ...]
argument_types: Final[dict[str, tuple[type, Callable[[Any], Fields]]]] = {}


def field_values(value: Any) -> Fields:
    """The fields of a named tuple or of a dataclass, in order."""
    if isinstance(value, tuple):
        return tuple(value)
    return tuple([getattr(value, field.name) for field in fields(value)])


def register_argument(cls: type, to_fields: Callable[[Any], Fields] = field_values) -> None:
    """Let nodes that have a `cls` as argument be printed and parsed, as `Name(field, ...)`.

    `to_fields` gives a tuple of what arguments may hold: None, bool, int, float, str, Op, AxisKind,
    Part, DType, UOp, tuples of these and registered classes; `cls(*fields)` builds it anew.
    """
    argument_types[cls.__name__] = cls, to_fields


for kind in (
    Axis,
    Skew,
    Scatter,
    Merge,
    Write,
    Ahead,
    MatrixUnit,
    Instruction,
):
    register_argument(kind)


# --- printing


def to_text(roots: UOp | Sequence[UOp], notes: Mapping[UOp, str] | None = None) -> str:
    """The graph below a root, or a program: the nodes of a sequence in their order.

    The sources of a program that are not in it are printed before their first user, and a last
    line `return %1, ...` then says what the program was. The line of a node that has one of
    the `notes` ends with it, behind a `#`.
    """
    notes = notes or {}
    program = (roots,) if isinstance(roots, UOp) else tuple(roots)
    numbers: dict[UOp, int] = {}
    lines: list[str] = []
    for root in program:
        for u in with_sources(root, numbers):
            numbers[u] = len(numbers)
            note = f"  # {notes[u]}" if u in notes else ""
            lines.append(f"%{numbers[u]} = {line_of(u, numbers)}{note}")
    if not isinstance(roots, UOp) and list(numbers) != list(program):
        lines.append(f"return {', '.join(f'%{numbers[u]}' for u in program)}".rstrip())
    return "\n".join(lines) + "\n"


def with_sources(root: UOp, known: dict[UOp, int]) -> Iterator[UOp]:
    """The nodes below a root that are not known yet, sources and nodes in arguments first."""
    order: dict[UOp, None] = {}
    stack = [(root, False)]
    while stack:
        u, ready = stack.pop()
        if u in known or u in order:
            continue
        if ready:
            order[u] = None
            continue
        stack.append((u, True))
        stack += [(s, False) for s in (*reversed(u.src), *nodes_in(u.arg))]
    yield from order


def nodes_in(value: Any) -> Iterator[UOp]:
    """The nodes inside an argument."""
    if isinstance(value, UOp):
        yield value
    elif (entry := argument_types.get(type(value).__name__)) and type(value) is entry[0]:
        for field in entry[1](value):
            yield from nodes_in(field)
    elif type(value) is tuple:
        for item in value:
            yield from nodes_in(item)


def line_of(u: UOp, numbers: dict[UOp, int]) -> str:
    """A node, without its own number."""
    parts = [u.op.name, dtype_text(u.dtype)]
    if u.arg is not None:
        parts.append(f"[{argument_text(u.arg, numbers)}]")
    if u.src:
        parts.append(f"({', '.join(f'%{numbers[s]}' for s in u.src)})")
    return " ".join(parts)


def dtype_text(dtype: DType) -> str:
    """A dtype as the text form writes it: `float32.vec(4).ptr(16, local)`."""
    if isinstance(dtype, ImageDType):
        return f"{dtype_text(dtype.base)}.image({dtype.height}, {dtype.width})"
    if isinstance(dtype, PointerDType):
        space = "" if dtype.space == "global" else f", {dtype.space}"
        return f"{dtype_text(dtype.base)}.ptr({dtype.size}{space})"
    return dtype.name if dtype.count == 1 else f"{dtype.name}.vec({dtype.count})"


def argument_text(value: Any, numbers: dict[UOp, int]) -> str:
    """An argument as text."""
    if isinstance(value, Op | AxisKind | Part):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return str(quoted(value))
    if isinstance(value, DType):
        return f"dtypes.{dtype_text(value)}"
    if isinstance(value, UOp):
        return f"%{numbers[value]}"
    name = type(value).__name__
    if name in argument_types and type(value) is argument_types[name][0]:
        fields = argument_types[name][1](value)
        return f"{name}({', '.join(argument_text(item, numbers) for item in fields)})"
    if type(value) is tuple:
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(argument_text(item, numbers) for item in value)}{comma})"
    raise FileFormatError(
        f"an argument of type {name!r} has no text form. Call register_argument({name}, ...)."
    )


# --- one line, for messages


SIGNS: Final = {
    Op.ADD: "+",
    Op.SUB: "-",
    Op.MUL: "*",
    Op.FDIV: "/",
    Op.FLOORDIV: "//",
    Op.FLOORMOD: "%",
    Op.CMPLT: "<",
    Op.CMPNE: "!=",
    Op.CMPEQ: "==",
    Op.AND: "&",
    Op.OR: "|",
    Op.XOR: "^",
    Op.SHL: "<<",
    Op.SHR: ">>",
}


def inline(u: UOp, depth: int = 6) -> str:
    """A node as an expression on one line, cut off below `depth`; for messages, not for parsing."""
    if u.op is Op.CONST:
        return str(u.arg)
    if u.op is Op.DEFINE_VAR:
        return str(u.arg[0])
    if u.op is Op.RANGE:
        return "r" + "_".join(map(str, u.arg.number))
    if depth == 0:
        return "..."
    parts = [inline(s, depth - 1) for s in u.src]
    if u.op in SIGNS:
        return f"({f' {SIGNS[u.op]} '.join(parts)})"
    if u.op is Op.CAST:
        return f"{dtype_text(u.dtype)}({parts[0]})"
    argument = "" if u.arg is None else f"[{u.arg}]"
    return f"{u.op.name}{argument}({', '.join(parts)})" if parts else u.op.name + argument


node_module.printer = to_text
