"""The GGUF format: metadata and named tensors of quantized blocks, read without running anything.

Floor 6. Imports `errors` and NumPy.
A file is the magic, a version, typed metadata, the name, axes, type and offset of each tensor, and
their bytes, which begin at multiples of an alignment
(https://github.com/ggml-org/ggml, "GGUF"). Numbers are little-endian. Opening it
reads what stands before the bytes; those are read when they are asked for. What its blocks mean is
in `nn/blocks.py`.
A model may lie in several parts, each a file with some of its tensors; metadata is in the first.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import numpy

from tinycore.errors import FileFormatError
from tinycore.nn.files.source import Budget, PathLike, Source, shown, verify_shape

__all__ = ["GgufFile", "GgufTensor", "parts_of_model"]

Array = numpy.ndarray[Any, numpy.dtype[Any]]

GGUF_MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
"""Versions read: 1 had lengths of 32 bits, and was in use for weeks."""
UNSTATED_ALIGNMENT: Final = 32
"""Alignment of tensors in files that state none."""
GGML_AXES: Final = 4
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

    def __init__(self, source: Source, blocks: Mapping[int, tuple[int, int]]) -> None:
        self.source, self.place, self.blocks = source, source.place, blocks
        reader = Reader(source)
        tensors, entries = reader.beginning()
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = reader.text("a key")
            if key in self.metadata:
                reader.refuse(f"the key {shown(key)} occurs twice")
            self.metadata[key] = reader.value(reader.number("I"), shown(key))
        self.tensors = {t.name: t for t in (reader.tensor() for _ in range(tensors))}
        if len(self.tensors) != tensors:
            reader.refuse("two tensors have one name")
        alignment = self.metadata.get("general.alignment", UNSTATED_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
            reader.refuse(f"general.alignment is {shown(alignment)}, no multiple of 8")
        self.data_start = -(-reader.position // alignment) * alignment
        for tensor in self.tensors.values():
            self.verify(tensor, alignment)
        self.verify_apart()

    @classmethod
    def open(cls, path: PathLike, blocks: Mapping[int, tuple[int, int]]) -> GgufFile:
        """Open a file, which stays open as long as this object lives, or to the end of a `with`."""
        return cls(Source.open(path), blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.source.close()

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
        if stop > self.source.size:
            raise FileFormatError(
                f"{what} ends at byte {stop}; the file has {self.source.size} bytes."
            )

    def size_of(self, tensor: GgufTensor) -> int:
        """Bytes of a tensor; 0 for one of a type that is not read."""
        elements, size = self.blocks.get(tensor.kind, (1, 0))
        return math.prod(tensor.shape) // elements * size

    def verify_apart(self) -> None:
        """Raises FileFormatError for tensors that share bytes, and for too many tensors."""
        end, before = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda t: t.offset):
            size = self.size_of(tensor)
            if tensor.offset < end and size:
                raise FileFormatError(
                    f"{self.place}: tensor {shown(tensor.name)} at {tensor.offset} overlaps "
                    f"{shown(before)}, which ends at {end}."
                )
            end, before = max(end, tensor.offset + size), tensor.name
        budget = Budget(self.source.size, self.place)
        budget.spend("tensors", len(self.tensors))
        quantized = [t for t in self.tensors.values() if self.blocks.get(t.kind, (1, 0))[0] > 1]
        budget.spend("quantized tensors", len(quantized))

    def blocks_of(self, name: str) -> Array:
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
        found = self.source.array(numpy.dtype(numpy.uint8), count * size, start)
        return found.reshape(count, size)


def parts_of_model(
    path: PathLike, blocks: Mapping[int, tuple[int, int]], parts: ExitStack
) -> list[GgufFile]:
    """The checked files of a model, one of which is at `path`; the first holds its metadata.

    They are open as long as `parts` is. Raises FileFormatError when they do not fit together, and
    as `GgufFile.open` does.
    """
    path = Path(path)
    given = parts.enter_context(GgufFile.open(path, blocks))
    if (count := given.parts) == 1:
        return [given]
    name = PART.fullmatch(path.name)
    if name is None or int(name["parts"]) != count:
        raise FileFormatError(
            f"{path}: a part of a model in {count} files; name it "
            f"NAME-00001-of-{count:05d}.gguf, and the others alike, to be found."
        )
    found = []
    for number in range(1, count + 1):
        beside = path.with_name(f"{name['model']}-{number:05d}-of-{count:05d}.gguf")
        part = given if beside == path else parts.enter_context(GgufFile.open(beside, blocks))
        found.append(part)
    verify_parts(found, count, path)
    return found


def verify_parts(parts: list[GgufFile], count: int, path: Path) -> None:
    """Raises FileFormatError when the files of a model do not fit together."""
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


class Reader:
    """A place in the bytes of a file, which moves as values are read."""

    def __init__(self, source: Source) -> None:
        self.stream, self.size, self.place = source.stream(), source.size, source.place
        self.position = 0

    def refuse(self, why: str) -> NoReturn:
        """Raises FileFormatError with the file and the position."""
        raise FileFormatError(f"{self.place}, before byte {self.position}: {why}.")

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        left = self.size - self.position
        found = self.stream.read(count * (count <= left))
        if len(found) < count:
            self.refuse(f"{what} takes {count} bytes; {left} are left")
        self.position += count
        return found

    def number(self, letter: str) -> Any:
        """The next number, of a type of `struct`."""
        form = f"<{letter}"
        return struct.unpack(form, self.take(struct.calcsize(form), "a number"))[0]

    def text(self, what: str) -> str:
        """The next string: its length, and so many bytes of UTF-8."""
        content = self.take(self.number("Q"), what)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{self.place}: {what} is no UTF-8: {error}") from error

    def beginning(self) -> tuple[int, int]:
        """The numbers of tensors and of metadata. Raises FileFormatError for another format."""
        if self.take(4, "the magic") != GGUF_MAGIC:
            self.refuse(f"a GGUF file begins with {GGUF_MAGIC!r}")
        version = self.number("I")
        if version not in VERSIONS:
            big = version.to_bytes(4, "little") in [v.to_bytes(4, "big") for v in VERSIONS]
            more = ", of a big-endian machine" if big else ""
            self.refuse(
                f"version {version} of GGUF{more}; {VERSIONS[0]} and {VERSIONS[1]} are read"
            )
        return self.number("Q"), self.number("Q")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """The next value of metadata; `what` is its key, as errors show it."""
        if letter := METADATA_NUMBERS.get(kind):
            return self.number(letter)
        if kind == STRING:
            return self.text(what)
        if kind != ARRAY or depth == MOST_NESTED:
            self.refuse(f"the value of {what} has type {kind}, nested {depth} deep")
        inner, count = self.number("I"), self.number("Q")
        if (least := LEAST_ITEM_BYTES.get(inner)) is None:
            self.refuse(f"the array {what} has items of type {inner}")
        if count * least > self.size - self.position:
            self.refuse(f"the array {what} has {count} items, more than bytes are left for")
        if letter := METADATA_NUMBERS.get(inner):
            content = self.take(count * least, "an array")
            form = "<u1" if letter == "?" else f"<{letter}"
            array: Array = numpy.frombuffer(content, form)
            return python_numbers(array != 0 if letter == "?" else array)
        return [self.value(inner, what, depth + 1) for _ in range(count)]

    def tensor(self) -> GgufTensor:
        """The next entry of a tensor. Axes are written innermost first."""
        name = self.text("the name of a tensor")
        axes = self.number("I")
        if axes > GGML_AXES:
            self.refuse(f"tensor {shown(name)} has {axes} axes; ggml has at most {GGML_AXES}")
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        if math.prod(shape) > self.size * 8:
            self.refuse(
                f"tensor {shown(name)} of shape {shape} has more elements than the file bits"
            )
        verify_shape(shape, 8, f"{self.place}: tensor {shown(name)}")
        return GgufTensor(name, shape, self.number("I"), self.number("Q"))


def python_numbers(array: Array) -> list[Any]:
    """The numbers of an array as Python has them; equal ones of one or two bytes are one object.

    An object takes 28 bytes, so that small numbers would take 36 times the memory of the file.
    """
    if array.dtype.itemsize > 2:
        return list(array.tolist())
    distinct, places = numpy.unique(array, return_inverse=True)
    return list(map(distinct.tolist().__getitem__, places))
