"""The text of a function in a C-like language, under construction.

Floor 2. Holds names, lines, and what must be defined before the kernel; `cstyle.py` decides what to
write.
"""

from __future__ import annotations

from typing import Final, Protocol

from tinycore.dtype import DType
from tinycore.render.base import LinearKernel
from tinycore.render.inline import inlinable
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

INLINE_COLUMNS: Final = 72
"""Longer expressions get a name even when they are used once."""


class Language(Protocol):
    """The syntax that a writer needs of its renderer."""

    @property
    def declaration(self) -> str:
        """The template of a variable with its value."""

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type."""


class Writer:
    """The text of one kernel while it grows: lines, names, and definitions needed before it."""

    def __init__(self, language: Language, kernel: LinearKernel) -> None:
        self.language = language
        self.kernel = kernel
        self.inline = inlinable(kernel.uops)
        self.place = 0
        """Index of the kernel's node that is being written."""
        self.texts: dict[UOp, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.definitions: dict[str, None] = {}
        """Type definitions and helper functions, in the order in which they were first needed."""
        self.taken: dict[str, int] = {}
        self.types: dict[DType, str] = {}
        """The names of types that were needed so far."""

    def define(self, text: str) -> None:
        """Put `text` before the kernel, once."""
        self.definitions.setdefault(text)

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def type(self, dtype: DType) -> str:
        """The name of a type, defined if it needs a definition."""
        if (name := self.types.get(dtype)) is None:
            name = self.types[dtype] = self.language.type_name(dtype, self)
        return name

    def fresh(self, prefix: str) -> str:
        """A name that nothing else has: the prefix with the next number."""
        number = self.taken.get(prefix, 0)
        self.taken[prefix] = number + 1
        return f"{prefix}{number}"

    def unique(self, name: str) -> str:
        """The name itself, or with a suffix if it is in use."""
        number = self.taken.get(name, 0)
        self.taken[name] = number + 1
        return f"{name}_{number}" if number else name

    def __getitem__(self, u: UOp) -> str:
        return self.texts[u]

    def value(self, u: UOp, text: str) -> None:
        """Define `u` as the value `text`: under a name, or inlined where it is used."""
        if self.place in self.inline and len(text) <= INLINE_COLUMNS:
            self.texts[u] = text
            return
        name = self.texts[u] = self.fresh(name_prefix(u))
        self.declare(u.dtype, name, unwrapped(text))

    def declare(self, dtype: DType, name: str, text: str) -> None:
        """A local variable with its value."""
        template = self.language.declaration
        self.line(template.format(type=self.type(dtype), name=name, value=text))


def name_prefix(u: UOp) -> str:
    """Prefix of a value's name, by the kind of the value."""
    if u.op is Op.LOAD:
        return "val"
    if u.dtype.count > 1:
        return "vec"
    return {"index": "idx", "bool": "is"}.get(u.dtype.kind, "alu")


def unwrapped(text: str) -> str:
    """The text without parentheses around the whole of it.

    Those of `({ statements })` and of `(a, b)` are no mere grouping, and stay.
    """
    if not (text.startswith("(") and text.endswith(")")) or text.startswith("({"):
        return text
    inner = text[1:-1]
    if "(" not in inner and ")" not in inner:
        return text if "," in inner else inner
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
        if char == "," and depth == 1:
            return text
    return text
