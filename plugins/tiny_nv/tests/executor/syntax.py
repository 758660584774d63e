"""Parse PTX text into functions, variables and instructions.

Grammar: PTX ISA 9.0, chapters 4 (syntax), 5 (state spaces) and 11 (directives). Names in nested
braces hide those outside; each register gets a number that is its own in the whole function.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Final

from emulation.faults import SyntaxFault

WIDTHS: Final = {
    **{f"{kind}{bits}": bits // 8 for kind in "bsu" for bits in (8, 16, 32, 64, 128)},
    "f16": 2,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "f32": 4,
    "f64": 8,
    "tf32": 4,
    "pred": 1,
    "e4m3": 1,
    "e5m2": 1,
    "e4m3x2": 2,
    "e5m2x2": 2,
    "u16x2": 4,
    "s16x2": 4,
}
"""Bytes of each fundamental and alternate type."""

TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?)
    |(?P<string>"[^"]*")
    |(?P<name>[%$_a-zA-Z.][\w$.%]*(?:::[\w$.]+)*)
    |(?P<mark>[{}()\[\],;:@!|<>=+\-*])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A word of the text, and its line."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Register:
    """A register: its number in the function, its bytes, whether it is a predicate."""

    name: str
    number: int
    width: int
    is_predicate: bool = False


@dataclass(frozen=True)
class Immediate:
    """A constant: an integer, or a float with the bytes it was written with (0 for decimal)."""

    value: int | float


@dataclass(frozen=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, or the name of a parameter or label."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a register, a symbol, or nothing. Coordinates follow for tensors."""

    base: Register | Symbol | None
    offset: int
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """{a, b, ...}"""

    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Negated:
    """!predicate, as an operand."""

    register: Register


@dataclass(frozen=True)
class Sink:
    """_: a result that nobody wants."""


@dataclass(frozen=True)
class Pair:
    """p|q: two destinations."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Special | Symbol | Address | Vector | Negated | Sink | Pair


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode with modifiers, operands, guard."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    is_negated: bool
    line: int

    @property
    def types(self) -> list[str]:
        """The types among the modifiers, in order."""
        return [modifier for modifier in self.modifiers if modifier in WIDTHS]

    def __str__(self) -> str:
        guard = "" if self.guard is None else f"@{'!' * self.is_negated}{self.guard.name} "
        return f"line {self.line}: {guard}{'.'.join((self.opcode, *self.modifiers))}"


@dataclass
class Variable:
    """A variable of a state space; `count` is None for one whose size the launch decides."""

    name: str
    space: str
    alignment: int
    size: int | None
    data: bytes = b""


@dataclass
class Parameter:
    """A kernel parameter, at its offset in the parameter buffer."""

    name: str
    offset: int
    size: int


@dataclass
class Function:
    """A kernel: its parameters, variables, instructions and labels."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def parameter_bytes(self) -> int:
        """The length of the parameter buffer."""
        return max((p.offset + p.size for p in self.parameters), default=0)


@dataclass
class Module:
    """A translation unit."""

    version: str = ""
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)


def tokens_of(text: str) -> list[Token]:
    """The words of a text; comments and space are left out."""
    found, place, line = [], 0, 1
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise SyntaxFault(f"line {line}: {text[place : place + 20]!r} is no PTX")
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match.group(), line))
        line += match.group().count("\n")
        place = match.end()
    return found


def number_of(text: str) -> int | float:
    """The value of a literal."""
    if text[:2] in ("0f", "0F"):
        return float(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if text[:2] in ("0d", "0D"):
        return float(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    text = text.rstrip("U")
    if "." in text:
        return float(text)
    if len(text) > 1 and text[0] == "0" and text[1].isdigit():
        return int(text, 8)
    return int(text, 0)


class Parser:
    """One pass over the words of a module."""

    def __init__(self, text: str) -> None:
        self.words = tokens_of(text)
        self.place = 0
        self.module = Module()
        self.function = Function("")
        self.scopes: list[dict[str, Register]] = []

    # --- words

    def peek(self) -> str:
        """The next word; empty at the end."""
        return self.words[self.place].text if self.place < len(self.words) else ""

    def take(self) -> Token:
        """The next word, gone past."""
        if self.place >= len(self.words):
            raise SyntaxFault("the text ends in the middle of a statement")
        self.place += 1
        return self.words[self.place - 1]

    def expect(self, text: str) -> None:
        """Go past a word that must come now."""
        if (word := self.take()).text != text:
            raise SyntaxFault(f"line {word.line}: {text!r} was expected, not {word.text!r}")

    def accept(self, text: str) -> bool:
        """Go past a word if it comes now."""
        if self.peek() == text:
            self.place += 1
            return True
        return False

    def integer(self) -> int:
        """A literal integer."""
        sign = -1 if self.accept("-") else 1
        word = self.take()
        value = number_of(word.text)
        if not isinstance(value, int):
            raise SyntaxFault(f"line {word.line}: {word.text} is no integer")
        return sign * value

    def until_semicolon(self) -> None:
        """Go past a statement that has no meaning here."""
        while self.take().text != ";":
            pass

    # --- module

    def parse(self) -> Module:
        """The whole module."""
        while self.peek():
            self.top_level()
        return self.module

    def top_level(self) -> None:
        """A directive, a variable or a function."""
        word = self.take()
        match word.text:
            case ".version":
                self.module.version = self.take().text
            case ".target":
                self.module.target = self.take().text
                while self.accept(","):
                    self.take()
            case ".address_size":
                self.take()
            case ".file":
                while self.words[self.place].line == word.line:
                    self.place += 1
            case ".visible" | ".extern" | ".weak" | ".common":
                pass
            case ".entry":
                self.entry()
            case ".global" | ".const" | ".shared":
                self.module.variables += self.variables(word.text[1:])
            case _:
                raise SyntaxFault(f"line {word.line}: {word.text!r} is not known here")

    def variables(self, space: str) -> list[Variable]:
        """Variables declared in one statement, the name of the space gone past."""
        alignment, width, found = 0, 0, []
        while self.peek().startswith("."):
            word = self.take()
            if word.text == ".align":
                alignment = self.integer()
            elif word.text[1:] in WIDTHS:
                width = WIDTHS[word.text[1:]]
            elif word.text in (".v2", ".v4"):
                raise SyntaxFault(f"line {word.line}: variables of vector type are not supported")
        while True:
            name = self.take().text
            size: int | None = width
            while self.accept("["):
                size = None if self.peek() == "]" or size is None else size * self.integer()
                self.expect("]")
            data = self.initializer(width) if self.accept("=") else b""
            found.append(Variable(name, space, alignment or width, size, data))
            if not self.accept(","):
                break
        self.expect(";")
        return found

    def initializer(self, width: int) -> bytes:
        """The bytes of { numbers } or of one number."""
        values = []
        if self.accept("{"):
            while not self.accept("}"):
                values.append(self.literal())
                self.accept(",")
        else:
            values.append(self.literal())
        pack = {4: "<f", 8: "<d"}
        return b"".join(
            struct.pack(pack[width], v)
            if isinstance(v, float)
            else (v % 2 ** (8 * width)).to_bytes(width, "little")
            for v in values
        )

    def literal(self) -> int | float:
        """A number with its sign."""
        sign = -1 if self.accept("-") else 1
        return sign * number_of(self.take().text)

    def entry(self) -> None:
        """A kernel, `.entry` gone past."""
        self.function = function = Function(self.take().text)
        self.module.functions[function.name] = function
        if self.accept("("):
            while not self.accept(")"):
                self.parameter()
                self.accept(",")
        while self.peek().startswith("."):
            name = self.take().text[1:]
            values = []
            while self.words[self.place].kind == "number":
                values.append(self.integer())
                if not self.accept(","):
                    break
            function.directives[name] = tuple(values)
        if self.accept(";"):
            return
        self.expect("{")
        self.scopes = [{}]
        self.block()

    def parameter(self) -> None:
        """One `.param` of a kernel."""
        self.expect(".param")
        alignment, width = 0, 0
        while self.peek().startswith("."):
            word = self.take().text
            if word == ".align":
                alignment = self.integer()
            elif word == ".ptr":
                while self.peek() in (".global", ".shared", ".const", ".local"):
                    self.take()
                if self.accept(".align"):
                    self.integer()
            elif word[1:] in WIDTHS:
                width = WIDTHS[word[1:]]
        name, size = self.take().text, width
        if self.accept("["):
            size = width * self.integer()
            self.expect("]")
        alignment = alignment or width
        offset = -(-self.function.parameter_bytes // alignment) * alignment
        self.function.parameters.append(Parameter(name, offset, size))

    # --- the body of a function

    def block(self) -> None:
        """Statements until the closing brace, the opening one gone past."""
        while not self.accept("}"):
            self.statement()

    def statement(self) -> None:
        """A directive, a label, a nested block or an instruction."""
        word = self.words[self.place]
        following = self.words[self.place + 1].text if self.place + 1 < len(self.words) else ""
        if self.accept("{"):
            self.scopes.append({})
            self.block()
            self.scopes.pop()
        elif word.text == ".reg":
            self.place += 1
            self.registers()
        elif word.text in (".shared", ".local", ".global", ".const"):
            self.place += 1
            self.function.variables += self.variables(word.text[1:])
        elif word.text == ".loc":
            while self.words[self.place].line == word.line:
                self.place += 1
        elif word.text in (".pragma", ".branchtargets") or (
            word.text.startswith(".") and word.text[1:] in ("maxntid", "reqntid", "minnctapersm")
        ):
            self.until_semicolon()
        elif word.kind == "name" and following == ":":
            self.place += 2
            self.function.labels[word.text] = len(self.function.instructions)
        else:
            self.instruction()

    def registers(self) -> None:
        """Registers declared in one statement, `.reg` gone past."""
        kind = self.take().text[1:]
        if kind not in WIDTHS:
            raise SyntaxFault(f"registers of type .{kind} are not supported")
        while True:
            name = self.take().text
            names = [name]
            if self.accept("<"):
                names = [f"{name}{i}" for i in range(self.integer())]
                self.expect(">")
            for each in names:
                number = len(self.function.registers)
                register = Register(each, number, WIDTHS[kind], kind == "pred")
                self.function.registers.append(register)
                self.scopes[-1][each] = register
            if not self.accept(","):
                break
        self.expect(";")

    def instruction(self) -> None:
        """An instruction with its guard."""
        guard, is_negated = None, False
        if self.accept("@"):
            is_negated = self.accept("!")
            found = self.register(self.take().text)
            if found is None or not found.is_predicate:
                raise SyntaxFault(f"line {self.words[self.place].line}: the guard is no predicate")
            guard = found
        word = self.take()
        opcode, *modifiers = word.text.split(".")
        operands = []
        while not self.accept(";"):
            operands.append(self.operand())
            if not self.accept(","):
                self.expect(";")
                break
        self.function.instructions.append(
            Instruction(opcode, tuple(modifiers), tuple(operands), guard, is_negated, word.line)
        )

    def register(self, name: str) -> Register | None:
        """The innermost register of a name."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def operand(self) -> Operand:
        """One operand."""
        if self.accept("{"):
            parts = []
            while not self.accept("}"):
                parts.append(self.operand())
                self.accept(",")
            return Vector(tuple(parts))
        if self.accept("["):
            return self.address()
        if self.accept("!"):
            register = self.register(self.take().text)
            if register is None:
                raise SyntaxFault("'!' stands before something that is no predicate")
            return Negated(register)
        if self.peek() == "-" or self.words[self.place].kind == "number":
            return Immediate(self.literal())
        first = self.named()
        return Pair(first, self.named()) if self.accept("|") else first

    def named(self) -> Operand:
        """A register, special register, symbol or sink."""
        name = self.take().text
        if name == "_":
            return Sink()
        if (register := self.register(name)) is not None:
            return register
        if name.startswith("%") or name == "WARP_SZ":
            return Immediate(32) if name == "WARP_SZ" else Special(name[1:])
        if self.accept("+"):
            return Symbol(name, self.integer())
        return Symbol(name)

    def address(self) -> Address:
        """An address, the opening bracket gone past."""
        base: Register | Symbol | None = None
        offset = 0
        if self.words[self.place].kind == "number":
            offset = self.integer()
        else:
            name = self.take().text
            base = self.register(name) or Symbol(name)
            if self.accept("+") or self.peek() == "-":
                offset = self.integer()
        coordinates: tuple[Operand, ...] = ()
        if self.accept(","):
            operand = self.operand()
            coordinates = operand.parts if isinstance(operand, Vector) else (operand,)
        self.expect("]")
        return Address(base, offset, coordinates)


def parse(text: str) -> Module:
    """The module that a text declares. Raises SyntaxFault."""
    return Parser(text).parse()
