"""Machine code as instructions: what Mesa's disassembler prints, read.

The disassembler decodes; what is read here is its text. An instruction that it does not know, or
that is written in a way that is not known here, is a fault that names its bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from emulation.faults import SyntaxFault

from tiny_qcom.chip import chip_of
from tiny_qcom.ir3 import Ir3Compiler

COMPONENTS: Final = "xyzw"
INSTRUCTION_BYTES: Final = 8
WORDS: Final = re.compile(r"^((?:\((?!neg|abs)[a-z0-9.]+\)\s*)*)([a-z0-9_.]+)\s*(.*)$")
OPERAND: Final = re.compile(
    r"^((?:\((?:neg|abs|absneg|r|last|ei|not)\))*)(h?)([rc])"
    r"(?:(\d+)\.([xyzw])|<a0\.x(?: ([+-]) (-?\d+))?>)$"
)

TABLE: Final = {
    "0.0": 0.0,
    "0.5": 0.5,
    "1.0": 1.0,
    "2.0": 2.0,
    "4.0": 4.0,
    "e": math.e,
    "pi": math.pi,
    "1/pi": 1 / math.pi,
    "log2(e)": math.log2(math.e),
    "1/log2(e)": math.log(2),
    "log2(10)": math.log2(10),
    "1/log2(10)": math.log10(2),
}
"""Literals of floats that instructions have room for."""


@dataclass(frozen=True)
class Operand:
    """A register, a constant or a literal, with what is done to it when it is read."""

    kind: str
    """r, hr, c, hc, p, a, literal, float, place or index."""
    number: int = 0
    """Component of a register or constant: four times the number of the vector, plus 0 to 3."""
    value: float = 0.0
    negated: bool = False
    absolute: bool = False
    repeats: bool = False
    inverted: bool = False
    relative: bool = False
    """True if the thread's a0.x is added to the number."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name, flags in front of it, and operands, the target first."""

    name: str
    flags: frozenset[str]
    repeat: int
    operands: tuple[Operand, ...]
    text: str


def operand(text: str, whole: str) -> Operand:
    """One operand."""
    text = text.strip()
    if found := OPERAND.match(text):
        flags, half, kind, number, component, sign, offset = found.groups()
        relative = number is None
        index = int(f"{sign}1") * int(offset) if sign else 0
        index = index if relative else int(number) * 4 + COMPONENTS.index(component)
        negated = "neg" in flags
        marks = (negated, "abs" in flags, "(r)" in flags, "not" in flags, relative)
        return Operand(half + kind, index, 0.0, *marks)
    if text == "a0.x":
        return Operand("a")
    if found := re.match(r"^(!?)p0\.([xyzw])$", text):
        return Operand("p", COMPONENTS.index(found[2]), negated=bool(found[1]))
    if found := re.match(r"^#?(-?\d+)$", text):
        return Operand("literal", value=int(found[1]))
    if found := re.match(r"^h\((-?\d+)\)$", text):
        return Operand("literal", value=int(found[1]))
    if found := re.match(r"^h?\((-?[0-9.]+(?:e[+-]?\d+)?)\)$", text):
        return Operand("float", value=float(found[1]))
    if (found := re.match(r"^((?:\((?:neg|abs)\))*)h?\((.+)\)$", text)) and found[2] in TABLE:
        return Operand("float", 0, TABLE[found[2]], "neg" in found[1], "abs" in found[1])
    if found := re.match(r"^(0x[0-9a-f]+)$", text):
        return Operand("literal", value=int(found[1], 16))
    if found := re.match(r"^[glp]\[(h?)r(\d+)\.([xyzw])(?:\+?(-?\d+))?\]$", text):
        index = int(found[2]) * 4 + COMPONENTS.index(found[3])
        return Operand("place", index, value=int(found[4] or 0))
    if found := re.match(r"^[st]#(\d+)$", text):
        return Operand("index", int(found[1]))
    raise SyntaxFault(f"the operand {text!r} of {whole!r} is not known")


def instruction(line: str) -> Instruction:
    """One line of the disassembly."""
    found = WORDS.match(line.strip())
    if found is None:
        raise SyntaxFault(f"{line!r} is no instruction that is known")
    head, name, rest = found.groups()
    flags = frozenset(re.findall(r"\(([a-z0-9.]+)\)", head))
    repeat = next((int(f[3:]) for f in flags if f.startswith("rpt")), 0)
    if name in ("isam", "stib.b.typed.2d.f32.4.imm") or name.startswith(("isam", "stib")):
        if written := re.match(r"^\([a-z0-9]+\)\(([xyzw]+)\)", rest):
            flags |= {f"writes {written[1]}"}
        rest = re.sub(r"^(\([a-z0-9]+\))+", "", rest)
    if name.startswith("cov") and (rounding := re.match(r"^\((even)\)", rest)):
        flags |= {rounding[1]}
        rest = rest[rounding.end() :]
    parts = [part for part in rest.split(",") if part.strip()]
    return Instruction(
        name, flags, repeat, tuple(operand(part, line) for part in parts), line.strip()
    )


@lru_cache(maxsize=512)
def program(machine: bytes) -> tuple[Instruction, ...]:
    """The instructions of a kernel, as far as its first `end` behind which only `nop` comes."""
    text = Ir3Compiler(chip_of("a630")).disassemble(machine)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) * INSTRUCTION_BYTES != len(machine):
        raise SyntaxFault(f"{len(machine)} bytes of code are {len(lines)} lines of text")
    found = []
    for number, line in enumerate(lines):
        try:
            found.append(instruction(line))
        except SyntaxFault as fault:
            start = number * INSTRUCTION_BYTES
            code = machine[start : start + INSTRUCTION_BYTES].hex()
            raise SyntaxFault(f"instruction {number}, bytes {code}: {fault}") from fault
    return tuple(found)
