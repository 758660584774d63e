"""The safetensors format: named arrays behind a JSON header, read without running anything.

Floor 6. Imports `dtype`, `errors` and NumPy.
A file is a 64-bit little-endian header length, the header, and one run of bytes that the arrays
cover without gap or overlap (https://github.com/huggingface/safetensors, "Format"). Opening it
reads the header only; an array is read when it is asked for.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import numpy

from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import ArgumentError, DTypeError, FileFormatError
from tinycore.nn.files.atomic import replacing_file
from tinycore.nn.files.source import Budget, PathLike, Source, reading, shown, verify_shape

__all__ = [
    "MAX_HEADER_BYTES",
    "SafetensorsFile",
    "TensorEntry",
    "read_index",
    "read_json",
    "write_safetensors",
]

Header = dict[str, Any]

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]

MAX_HEADER_BYTES: Final = 100_000_000
"""The greatest header that the format's own reader accepts."""

SCALES: Final = "F8_E8M0"
"""Powers of two, of OCP MX 1.0: scales of blocks. They are read as float32, which has them all."""

SAFETENSORS_DTYPES: Final[dict[str, DType]] = {
    "BOOL": dtypes.bool,
    "U8": dtypes.uint8,
    "I8": dtypes.int8,
    "U16": dtypes.uint16,
    "I16": dtypes.int16,
    "U32": dtypes.uint32,
    "I32": dtypes.int32,
    "U64": dtypes.uint64,
    "I64": dtypes.int64,
    "F8_E4M3": dtypes.fp8e4m3,
    "F8_E5M2": dtypes.fp8e5m2,
    "F8_E4M3FNUZ": dtypes.fp8e4m3fnuz,
    "F8_E5M2FNUZ": dtypes.fp8e5m2fnuz,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
"""The format's names of element types."""

OTHER_BITS: Final = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, SCALES: 8, "C64": 64}
"""Bits of the format's elements for which there is no dtype here."""

_KNOWN: Final = frozenset(SAFETENSORS_DTYPES)
_NAMES: Final = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
_METADATA: Final = "__metadata__"
_FIELDS: Final = {"dtype", "shape", "data_offsets"}
_LENGTH_BYTES: Final = 8
_ALIGNMENT_BYTES: Final = 64  # a cache line, and what the widest vector load may want


@dataclass(frozen=True)
class TensorEntry:
    """Place of one array: `start` and `stop` count bytes from the beginning of the data."""

    name: str
    kind: str
    """The format's name of its elements."""
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> DType | None:
        """The dtype of its elements; None where there is none here."""
        return dtypes.float32 if self.kind == SCALES else SAFETENSORS_DTYPES.get(self.kind)


class SafetensorsFile(Mapping[str, Array]):
    """A checked file: a mapping from name to a read-only array.

    bfloat16 and fp8 appear as the unsigned integers they are stored as; `entries` has the true
    dtype. `header` is the parsed JSON, `metadata` its free text, `data_start` where the data begin.
    Raises FileFormatError, naming the place and what is wrong there, before any array is given out,
    and for an array of elements that have no dtype here when it is asked for.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.header, self.data_start = _header(source)
        self.metadata, self.entries = _checked(
            self.header, source.size - self.data_start, source.place
        )
        budget = Budget(source.size, source.place)
        budget.spend("tensors", len(self.entries))

    @classmethod
    def open(cls, path: PathLike) -> SafetensorsFile:
        """Open a file, which stays open as long as this object lives, or to the end of a `with`."""
        return cls(Source.open(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.source.close()

    def __getitem__(self, name: str) -> Array:
        entry = self.entries[name]
        count, start = math.prod(entry.shape), self.data_start + entry.start
        if entry.kind == SCALES:
            return _powers(self.source.array(numpy.dtype("u1"), count, start)).reshape(entry.shape)
        if entry.dtype is None:
            raise FileFormatError(f"{self.source.place}: {stated_array(entry)}, which is not read")
        stored = to_numpy_dtype(entry.dtype).newbyteorder("<")
        return self.source.array(stored, count, start).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def stated_array(entry: TensorEntry) -> str:
    """Description of an array that is not read."""
    return f"tensor {shown(entry.name)} of {shown(entry.kind)} and shape {shown(entry.shape)}"


def _powers(stored: Array) -> Array:
    """The powers of two of F8_E8M0: exponents around 127, and 255 for NaN."""
    table = numpy.full(256, numpy.nan, numpy.float32)
    table[:255] = numpy.ldexp(numpy.float32(1), numpy.arange(255) - 127)
    found: Array = table[stored]
    return found


def read_json(path: PathLike) -> Header:
    """The object in a JSON file. Raises FileFormatError for anything else."""
    with Source.open(path) as source, reading(source.place, "JSON"):
        found = json.loads(source.bytes(0, source.size))
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: no JSON object")
    return found


def read_index(path: PathLike) -> dict[str, str]:
    """The name of the file of each tensor of a model in several files, by the name of the tensor.

    An index is JSON: `weight_map` gives the name of a file beside it for each tensor. Raises
    FileFormatError for anything else, and for names of files elsewhere.
    """
    index = read_json(path)
    places = index.get("weight_map")
    if not isinstance(places, dict):
        raise FileFormatError(f"{path}: an index of files of a model has a `weight_map`.")
    for name, place in places.items():
        is_name = isinstance(place, str) and place and place.isprintable()
        if not is_name or {*place} & {"/", "\\"}:
            raise FileFormatError(
                f"{path}: tensor {shown(name)} is in {shown(place)}, no name of a file beside it."
            )
    return places


def _header(source: Source) -> tuple[Header, int]:
    """The parsed header, and where the data after it starts."""
    place, size = source.place, source.size
    if size < _LENGTH_BYTES:
        raise FileFormatError(
            f"{place}: {size} bytes cannot hold a header length of {_LENGTH_BYTES} bytes."
        )
    (length,) = struct.unpack("<Q", source.bytes(0, _LENGTH_BYTES))
    if length > MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{place}: a header of {length} bytes is over the limit of {MAX_HEADER_BYTES}."
        )
    if length > size - _LENGTH_BYTES:
        raise FileFormatError(
            f"{place}: the header claims {length} bytes; only {size - _LENGTH_BYTES} follow."
        )
    return _parsed(source.bytes(_LENGTH_BYTES, length), place), _LENGTH_BYTES + length


def _parsed(text: bytes, place: str) -> Header:
    """The JSON of a header."""
    if not text.startswith(b"{"):
        raise FileFormatError(f"{place}: the header starts with {text[:1]!r} instead of b'{{'.")
    try:
        header: Header = json.loads(
            text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{place}: the header is no valid JSON: {error}") from error
    return header


def _checked(
    header: Header, data_bytes: int, place: str
) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """The metadata and the entries of a header, before so many bytes of data."""
    metadata = _metadata(header.get(_METADATA, {}), place)
    entries = [_entry(*item, place) for item in header.items() if item[0] != _METADATA]
    _check_coverage(entries, data_bytes, place)
    return metadata, {entry.name: entry for entry in entries}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Header:
    found: Header = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {shown(name)} appears twice")
        found[name] = value
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _metadata(found: object, place: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise FileFormatError(f"{place}: {_METADATA} must map strings to strings.")
    return found


def _entry(name: str, fields: object, place: str) -> TensorEntry:
    """One array's place, each field checked for itself and the size against the shape."""
    place = f"{place}: tensor {shown(name)}"
    if not isinstance(fields, dict) or set(fields) != _FIELDS:
        raise FileFormatError(f"{place} needs exactly the fields {', '.join(sorted(_FIELDS))}.")
    kind, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(kind, str):
        raise FileFormatError(f"{place} has the dtype {shown(kind)}, which is no text.")
    if not _are_counts(shape):
        raise FileFormatError(
            f"{place} has the shape {shown(shape)}; sizes are integers from 0 on."
        )
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileFormatError(
            f"{place} has the data_offsets {shown(offsets)}; [start, stop] belongs."
        )
    entry = TensorEntry(name, kind, tuple(shape), *offsets)
    verify_shape(entry.shape, entry.dtype.itemsize if entry.dtype else 8, place)
    bits = 8 * SAFETENSORS_DTYPES[kind].itemsize if kind in _KNOWN else OTHER_BITS.get(kind)
    if bits is not None and math.prod(shape) * bits != 8 * (entry.stop - entry.start):
        raise FileFormatError(
            f"{place} takes {math.prod(shape) * bits / 8:.16g} bytes as {kind} of {shown(shape)}, "
            f"but its data_offsets {shown(offsets)} span {entry.stop - entry.start}."
        )
    return entry


def _are_counts(found: object) -> bool:
    return isinstance(found, list) and all(type(item) is int and item >= 0 for item in found)


def _check_coverage(entries: list[TensorEntry], size_bytes: int, place: str) -> None:
    """The arrays must cover the data from end to end, each byte once."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            fault = "overlaps what is before it" if entry.start < end else "leaves a hole before it"
            raise FileFormatError(
                f"{place}: tensor {shown(entry.name)} starts at byte {entry.start} of the data and "
                f"{fault}: {end} belongs there."
            )
        end = entry.stop
    if end != size_bytes:
        raise FileFormatError(
            f"{place}: the tensors take {end} bytes, but {size_bytes} follow the header."
        )


def write_safetensors(
    path: PathLike,
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
    *,
    true_dtypes: Mapping[str, DType] | None = None,
) -> None:
    """Write named arrays, which keep their order; the file appears whole or not at all.

    `true_dtypes` names the dtype of arrays that NumPy cannot: bfloat16 stored as uint16, fp8 as
    uint8. Wider elements are stored first, so that each array is aligned. Raises DTypeError for an
    array that the format has no type for, ArgumentError for a name it reserves.
    """
    if _METADATA in arrays:
        raise ArgumentError(f"no tensor can be named {_METADATA!r}: safetensors reserves the name")
    found = {name: _dtype_of(name, array, true_dtypes or {}) for name, array in arrays.items()}
    stored = sorted(arrays, key=lambda name: -found[name].itemsize)
    places: dict[str, list[int]] = {}
    end = 0
    for name in stored:
        places[name] = [end, end + arrays[name].size * found[name].itemsize]
        end = places[name][1]
    header: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    for name, array in arrays.items():
        fields = {"dtype": _NAMES[found[name]], "shape": list(array.shape)}
        header[name] = fields | {"data_offsets": places[name]}
    text = _encoded(header)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT_BYTES)
    _verify_readable(text, end)
    with replacing_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in stored:
            little = to_numpy_dtype(found[name]).newbyteorder("<")
            file.write(numpy.ascontiguousarray(arrays[name], little).data)


def _encoded(header: dict[str, object]) -> bytes:
    """The JSON of a header. Raises ArgumentError for names that are no text."""
    texts: list[object] = [*header, *cast(dict[object, object], header.get(_METADATA, {}))]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ArgumentError(f"safetensors names things by text, not by {shown(wrong[0])}")
    try:
        return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"a name or metadata that is no valid Unicode: {error}") from error


def _verify_readable(text: bytes, data_bytes: int) -> None:
    """Raises ArgumentError for what would be refused when it is loaded."""
    try:
        if len(text) > MAX_HEADER_BYTES:
            raise FileFormatError(f"a header of {len(text)} bytes is over {MAX_HEADER_BYTES}")
        _, entries = _checked(_parsed(text, "the file"), data_bytes, "the file")
        Budget(len(text) + data_bytes, "the file").spend("tensors", len(entries))
    except FileFormatError as error:
        raise ArgumentError(f"safetensors cannot hold this: {error}") from error


def _dtype_of(name: str, array: Array, true_dtypes: Mapping[str, DType]) -> DType:
    dtype = true_dtypes.get(name) or dtypes.by_name.get(array.dtype.name)
    if dtype not in _NAMES or to_numpy_dtype(dtype) != array.dtype.newbyteorder("="):
        raise DTypeError(
            f"tensor {name!r} is stored as {array.dtype.name!r}"
            + (f" and said to be {dtype.name!r}" if dtype else "")
            + f", for which safetensors has no type. It has: {', '.join(d.name for d in _NAMES)}."
        )
    return dtype
