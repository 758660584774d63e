"""The text form of graphs: parsing to the identical nodes.

Floor 1. Text comes from anywhere: it is parsed, never evaluated, and what does not fit raises
FileFormatError with the number of the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from tinycore.dtype import DType, PointerDType, Space, dtypes, image
from tinycore.errors import FileFormatError
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.text import Fields, argument_types, dtype_text

MAX_DEPTH: Final = 64
"""Greatest depth of tuples in an argument."""
MAX_LANES: Final = 1 << 16
CHANNEL_DTYPES: Final = (dtypes.float16, dtypes.float32)
"""Types that images hold."""


def from_text(text: str) -> UOp:
    """The node of the last line. Raises FileFormatError for text that is no graph."""
    program = program_from_text(text)
    if not program:
        raise FileFormatError("graph text: there is no node in it")
    return program[-1]


def program_from_text(text: str) -> tuple[UOp, ...]:
    """The nodes of all lines, or those that the last line returns. Raises FileFormatError."""
    nodes: dict[str, UOp] = {}
    returned: tuple[UOp, ...] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        reader = Reader(line, number, nodes)
        if reader.at_end():
            continue
        if returned is not None:
            reader.fail("nothing may follow `return`")
        if reader.accept("return"):
            returned = tuple(reader.references(""))
        else:
            reader.statement()
        if not reader.at_end():
            reader.fail(f"unexpected {reader.peek()!r}")
    return tuple(nodes.values()) if returned is None else returned


TOKEN: Final = re.compile(
    r"""\s*(?: (?P<token> %\d+ | "(?:[^"\\]|\\.)*"
        | [-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|inf|nan)(?!\w) | \w+ | [=\[\](),.])
        | (?P<bad>\S) )""",
    re.VERBOSE | re.ASCII,
)
NUMBER: Final = re.compile(r"[-+]?(?:\d|inf$|nan$)")
LITERALS: Final = {"None": None, "True": True, "False": False}
SPACES: Final[dict[str, Space]] = {"global": "global", "local": "local", "register": "register"}


class Reader:
    """One line of text as tokens, with an empty one at its end, and the nodes that lines before it
    defined.
    """

    def __init__(self, line: str, number: int, nodes: dict[str, UOp]) -> None:
        self.number = number
        self.nodes = nodes
        self.tokens: list[str] = []
        self.place = 0
        content = line if '"' in line else line.split("#", 1)[0]
        # The pattern matches any character that is no space.
        for token, bad in TOKEN.findall(content.rstrip()):
            if bad == "#":
                break
            if bad:
                self.fail(f"unexpected {bad!r}")
            self.tokens.append(token)
        self.tokens.append("")

    def fail(self, problem: str) -> NoReturn:
        """Raise FileFormatError for this line."""
        raise FileFormatError(f"graph text, line {self.number}: {problem}")

    def at_end(self) -> bool:
        """True if the line is used up."""
        return not self.tokens[self.place]

    def peek(self) -> str:
        """The next token, empty at the end."""
        return self.tokens[self.place]

    def next(self, wanted: str) -> str:
        """The next token; `wanted` says what should be there."""
        found = self.tokens[self.place]
        if not found:
            self.fail(f"the line ends where {wanted} should be")
        self.place += 1
        return found

    def accept(self, token: str) -> bool:
        """Skip the next token if it is this one."""
        found = self.tokens[self.place] == token
        self.place += found
        return found

    def expect(self, token: str) -> None:
        """Skip the next token, which must be this one."""
        found = self.next(repr(token))
        if found != token:
            self.fail(f"{token!r} should be where {found!r} is")

    def statement(self) -> None:
        """`%3 = ADD index [arg] (%1, %2)`."""
        name = self.next("a node such as %0")
        if not name.startswith("%"):
            self.fail(f"a node such as %0 should be where {name!r} is")
        if name in self.nodes:
            self.fail(f"{name} is defined twice")
        self.expect("=")
        op = self.member(Op, self.next("an op"))
        dtype = self.dtype()
        argument = None
        if self.accept("["):
            argument = self.argument(0)
            self.expect("]")
        sources = self.references(")") if self.accept("(") else ()
        src = tuple(sources)
        if op.arity not in (-1, len(src)):
            self.fail(f"{op.name} takes {op.arity} sources, here are {len(src)}")
        try:
            self.nodes[name] = UOp(op, dtype, src, argument)
        except TypeError:
            self.fail(f"the argument of {name} cannot be part of a node")

    def member(self, enumeration: type[Any], name: str) -> Any:
        """A member of Op, AxisKind or Part."""
        if name not in enumeration.__members__:
            self.fail(f"no {enumeration.__name__} is named {name!r}")
        return enumeration[name]

    def reference(self) -> UOp:
        """A node defined before."""
        name = self.next("a node such as %0")
        if name not in self.nodes:
            self.fail(f"{name!r} is no node of an earlier line")
        return self.nodes[name]

    def references(self, end: str) -> Iterable[UOp]:
        """Nodes with commas between them, up to `end`."""
        found: list[UOp] = []
        while not (self.accept(end) if end else self.at_end()):
            if found:
                self.expect(",")
            found.append(self.reference())
        return found

    def dtype(self) -> DType:
        """`float32.vec(4).ptr(16, local)`."""
        name = self.next("a dtype")
        if name not in dtypes.by_name:
            self.fail(f"no dtype is named {name!r}")
        dtype = dtypes.by_name[name]
        while self.accept("."):
            form = self.next("vec, ptr or image")
            self.expect("(")
            size = self.integer()
            if form == "vec" and 0 < size <= MAX_LANES and not isinstance(dtype, PointerDType):
                dtype = dtype.vec(size)
            elif form == "ptr" and not isinstance(dtype, PointerDType):
                space = self.next("a memory space") if self.accept(",") else "global"
                if space not in SPACES:
                    self.fail(f"no memory space is named {space!r}")
                dtype = dtype.ptr(size, SPACES[space])
            elif form == "image" and dtype in CHANNEL_DTYPES:
                self.expect(",")
                dtype = self.image(dtype, size)
            else:
                self.fail(f"{form}({size}) of {dtype_text(dtype)} is no dtype")
            self.expect(")")
        return dtype

    def image(self, base: DType, height: int) -> DType:
        """The rest of `float32.image(height, width`."""
        width = self.integer()
        if min(height, width) < 1:
            self.fail(f"there is no image of {height} rows of {width} pixels")
        return image(base, (height, width))

    def integer(self) -> int:
        """A whole number."""
        value = self.number_from(self.next("a whole number"))
        if not isinstance(value, int):
            self.fail(f"a whole number should be where {value!r} is")
        return value

    def number_from(self, token: str) -> int | float:
        """An int or a float from its token."""
        if not NUMBER.match(token):
            self.fail(f"a number should be where {token!r} is")
        try:
            whole = token.lstrip("+-").isdigit()
            return int(token) if whole else float(token)
        except ValueError:
            self.fail(f"{token[:40]!r} is no number that fits")

    def argument(self, depth: int) -> Any:
        """An argument, as `argument_text` printed it."""
        if depth > MAX_DEPTH:
            self.fail(f"an argument nested deeper than {MAX_DEPTH}")
        token = self.peek()
        if token.startswith("%"):
            return self.reference()
        self.next("an argument")
        if token == "(":
            return self.items(depth)
        if token.startswith('"'):
            return self.string(token)
        if token in LITERALS:
            return LITERALS[token]
        if NUMBER.match(token):
            return self.number_from(token)
        return self.named_argument(token, depth)

    def named_argument(self, token: str, depth: int) -> Any:
        """An argument that starts with a name: `Op.ADD`, `dtypes.float32`, `Axis(...)`."""
        if token == "dtypes":
            self.expect(".")
            return self.dtype()
        for enumeration in (Op, AxisKind, Part):
            if token == enumeration.__name__:
                self.expect(".")
                return self.member(enumeration, self.next("a name"))
        if token not in argument_types:
            self.fail(f"no argument type is named {token!r}")
        self.expect("(")
        fields = self.items(depth)
        try:
            return argument_types[token][0](*fields)
        except (TypeError, ValueError) as error:
            self.fail(f"{token} cannot be made of {len(fields)} such fields: {error}")

    def items(self, depth: int) -> Fields:
        """Arguments with commas between them, up to the closing parenthesis."""
        found: list[Any] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
                if self.accept(")"):
                    break
            found.append(self.argument(depth + 1))
        return tuple(found)

    def string(self, token: str) -> str:
        """A quoted string, as JSON writes it."""
        try:
            return str(json.loads(token))
        except ValueError:
            self.fail(f"{token[:40]} is no string")
