"""The GGUF format: metadata and named tensors of quantized blocks, read without running anything.

Floor 6. Imports `errors` and NumPy.
A file is the magic, a version, typed metadata, the name, axes, type and offset of each tensor, and
their bytes, which begin at multiples of an alignment
(https://github.com/ggml-org/ggml, "GGUF"). Numbers are little-endian. The file is
mapped, so a tensor costs memory when it is looked at. What its blocks mean is in `nn/blocks.py`.
A model may lie in several parts, each a file with some of its tensors; metadata is in the first.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy

from tinycore.errors import FileFormatError
from tinycore.nn.files.safetensors import mapped, shown

__all__ = ["GgufFile", "GgufTensor", "parts_of_model"]

Bytes = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint8]]

GGUF_MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
"""Versions read: 1 had lengths of 32 bits, and was in use for weeks."""
UNSTATED_ALIGNMENT: Final = 32
"""Alignment of tensors in files that state none."""
MOST_AXES: Final = 4
"""The greatest number of axes of a tensor of ggml."""
MOST_NESTED: Final = 4
"""Arrays within arrays that are read."""
STRING: Final = 8
ARRAY: Final = 9
METADATA_NUMBERS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The types of metadata that are numbers, in the letters of `struct`."""
LEAST_ITEM_BYTES: Final = {STRING: 8, ARRAY: 12} | {
    kind: struct.calcsize(f"<{letter}") for kind, letter in METADATA_NUMBERS.items()
}
"""The fewest bytes that an item of each type of metadata takes."""
PART: Final = re.compile(r"(?P<model>.*)-(?P<number>\d{5})-of-(?P<parts>\d{5})\.gguf", re.DOTALL)
"""Names of the parts of a model, which count from 1."""


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as a file states it: `offset` counts bytes from the beginning of the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    """The number of its type in ggml."""
    offset: int


class GgufFile:
    """A checked file: its metadata by key, and the bytes of its tensors by name.

    `blocks` gives the elements and the bytes of a block for the number of each type that can be
    read. Raises FileFormatError, naming `place` and what is wrong there, before any tensor is given
    out; for tensors of other types when they are asked for.
    """

    def __init__(
        self, content: memoryview, place: str, blocks: Mapping[int, tuple[int, int]]
    ) -> None:
        self.content, self.place, self.blocks = content, place, blocks
        reader = Reader(content, place)
        tensors, entries = reader.beginning()
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = reader.text("a key")
            if key in self.metadata:
                reader.refuse(f"the key {shown(key)} occurs twice")
            self.metadata[key] = reader.value(reader.number("I"), key)
        self.tensors = {t.name: t for t in (reader.tensor() for _ in range(tensors))}
        if len(self.tensors) != tensors:
            reader.refuse("two tensors have one name")
        alignment = self.metadata.get("general.alignment", UNSTATED_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
            reader.refuse(f"general.alignment is {shown(alignment)}, no multiple of 8")
        self.data_start = -(-reader.position // alignment) * alignment
        for tensor in self.tensors.values():
            self.verify(tensor, alignment)

    @classmethod
    def open(cls, path: str | os.PathLike[str], blocks: Mapping[int, tuple[int, int]]) -> GgufFile:
        """Map a file. It stays mapped for as long as this object or one of its arrays lives."""
        path = Path(path)
        with path.open("rb") as file:
            return cls(mapped(file.fileno(), path), str(path), blocks)

    @property
    def parts(self) -> int:
        """The number of files of the model that it is a part of."""
        count = self.metadata.get("split.count", 1)
        return count if isinstance(count, int) and count > 1 else 1

    def verify(self, tensor: GgufTensor, alignment: int) -> None:
        """Raises FileFormatError for a tensor that is not whole, or does not lie in the file."""
        what = f"{self.place}: tensor {shown(tensor.name)}"
        if tensor.offset % alignment:
            raise FileFormatError(f"{what} is at {tensor.offset}, no multiple of {alignment}.")
        if tensor.kind not in self.blocks:
            return
        elements, size = self.blocks[tensor.kind]
        row = tensor.shape[-1] if tensor.shape else 1
        if row % elements:
            raise FileFormatError(f"{what} has rows of {row}, which {elements} does not divide.")
        stop = self.data_start + tensor.offset + math.prod(tensor.shape) // elements * size
        if stop > len(self.content):
            raise FileFormatError(
                f"{what} ends at byte {stop}; the file has {len(self.content)} bytes."
            )

    def blocks_of(self, name: str) -> Bytes:
        """The blocks of a tensor, a row of bytes each. Raises FileFormatError for its type."""
        tensor = self.tensors[name]
        if tensor.kind not in self.blocks:
            raise FileFormatError(
                f"{self.place}: tensor {shown(name)} has type {tensor.kind} of ggml, which is not "
                f"read; types {', '.join(map(str, sorted(self.blocks)))} are"
            )
        elements, size = self.blocks[tensor.kind]
        count = math.prod(tensor.shape) // elements
        start = self.data_start + tensor.offset
        return numpy.frombuffer(self.content, numpy.uint8, count * size, start).reshape(count, size)


def parts_of_model(
    path: str | os.PathLike[str], blocks: Mapping[int, tuple[int, int]]
) -> list[GgufFile]:
    """The checked files of a model, one of which is at `path`; the first holds its metadata.

    Raises FileFormatError when parts do not fit together, and as `GgufFile.open` does.
    """
    path = Path(path)
    given = GgufFile.open(path, blocks)
    if (count := given.parts) == 1:
        return [given]
    name = PART.fullmatch(path.name)
    if name is None or int(name["parts"]) != count:
        raise FileFormatError(
            f"{path}: a part of a model in {count} files; name it "
            f"NAME-00001-of-{count:05d}.gguf, and the others alike, to be found."
        )
    names = [f"{name['model']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    parts = [given if n == path.name else GgufFile.open(path.with_name(n), blocks) for n in names]
    seen: set[str] = set()
    for number, part in enumerate(parts):
        stated = part.metadata.get("split.no"), part.metadata.get("split.count")
        if stated != (number, count):
            raise FileFormatError(
                f"{part.place}: states that it is part {stated[0]} of {stated[1]}, counted from 0; "
                f"part {number} of {count} has this name."
            )
        if twice := seen & part.tensors.keys():
            raise FileFormatError(f"{part.place}: an earlier part has tensor {shown(min(twice))}.")
        seen |= part.tensors.keys()
    total = parts[0].metadata.get("split.tensors.count", len(seen))
    if total != len(seen):
        raise FileFormatError(
            f"{path}: the parts hold {len(seen)} tensors; the first states {total}."
        )
    return parts


class Reader:
    """A place in the bytes of a file, which moves as values are read."""

    def __init__(self, content: memoryview, place: str) -> None:
        self.content, self.place, self.position = content, place, 0

    def refuse(self, why: str) -> NoReturn:
        """Raises FileFormatError with the file and the position."""
        raise FileFormatError(f"{self.place}, before byte {self.position}: {why}.")

    def take(self, count: int, what: str) -> memoryview:
        """The next bytes."""
        left = len(self.content) - self.position
        if count > left:
            self.refuse(f"{what} takes {count} bytes; {left} are left")
        self.position += count
        return self.content[self.position - count : self.position]

    def number(self, letter: str) -> Any:
        """The next number, of a type of `struct`."""
        form = struct.Struct(f"<{letter}")
        return form.unpack(self.take(form.size, "a number"))[0]

    def text(self, what: str) -> str:
        """The next string: its length, and so many bytes of UTF-8."""
        content = bytes(self.take(self.number("Q"), what))
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{self.place}: {what} is no UTF-8: {error}") from error

    def beginning(self) -> tuple[int, int]:
        """The numbers of tensors and of metadata. Raises FileFormatError for another format."""
        if bytes(self.take(4, "the magic")) != GGUF_MAGIC:
            self.refuse(f"a GGUF file begins with {GGUF_MAGIC!r}")
        version = self.number("I")
        if version not in VERSIONS:
            big = version.to_bytes(4, "little") in [v.to_bytes(4, "big") for v in VERSIONS]
            more = ", of a big-endian machine" if big else ""
            self.refuse(
                f"version {version} of GGUF{more}; {VERSIONS[0]} and {VERSIONS[1]} are read"
            )
        return self.number("Q"), self.number("Q")

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        """The next value of metadata."""
        if letter := METADATA_NUMBERS.get(kind):
            return self.number(letter)
        if kind == STRING:
            return self.text(f"the value of {shown(key)}")
        if kind != ARRAY or depth == MOST_NESTED:
            self.refuse(f"the value of {shown(key)} has type {kind}, nested {depth} deep")
        inner, count = self.number("I"), self.number("Q")
        if (least := LEAST_ITEM_BYTES.get(inner)) is None:
            self.refuse(f"the array {shown(key)} has items of type {inner}")
        if count * least > len(self.content) - self.position:
            self.refuse(f"the array {shown(key)} has {count} items, more than bytes are left for")
        if letter := METADATA_NUMBERS.get(inner):
            form = struct.Struct(f"<{count}{letter}")
            return list(form.unpack(self.take(form.size, "an array")))
        return [self.value(inner, key, depth + 1) for _ in range(count)]

    def tensor(self) -> GgufTensor:
        """The next entry of a tensor. Axes are written innermost first."""
        name = self.text("the name of a tensor")
        axes = self.number("I")
        if axes > MOST_AXES:
            self.refuse(f"tensor {shown(name)} has {axes} axes; ggml has at most {MOST_AXES}")
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        if math.prod(shape) > len(self.content) * 8:
            self.refuse(
                f"tensor {shown(name)} of shape {shape} has more elements than the file bits"
            )
        return GgufTensor(name, shape, self.number("I"), self.number("Q"))
