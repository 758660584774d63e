"""The safetensors format: named arrays behind a JSON header, read without running anything.

Floor 6. Imports `dtype`, `errors` and NumPy.
A file is a 64-bit little-endian header length, the header, and one run of bytes that the arrays
cover without gap or overlap (https://github.com/huggingface/safetensors, "Format"). The file is
mapped, so opening it reads the header only and an array costs memory when it is looked at.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import reprlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy

from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import ArgumentError, DTypeError, FileFormatError
from tinycore.nn.files.atomic import replacing_file

__all__ = [
    "MAX_HEADER_BYTES",
    "SafetensorsFile",
    "TensorEntry",
    "read_index",
    "write_safetensors",
]

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]

MAX_HEADER_BYTES: Final = 100_000_000
"""The greatest header that the format's own reader accepts."""

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

_NAMES: Final = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
_METADATA: Final = "__metadata__"
_FIELDS: Final = {"dtype", "shape", "data_offsets"}
_LENGTH_BYTES: Final = 8
_ALIGNMENT_BYTES: Final = 64  # a cache line, and what the widest vector load may want
_MAX_ELEMENTS: Final = 1 << 62
shown: Final = reprlib.repr  # what an untrusted file says may be as long as the file
_MAX_AXES: Final = 32  # what NumPy holds since its first version


@dataclass(frozen=True)
class TensorEntry:
    """Place of one array: `start` and `stop` count bytes from the beginning of the data."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile(Mapping[str, Array]):
    """A checked file: a mapping from name to a read-only array over the file's bytes.

    bfloat16 and fp8 appear as the unsigned integers they are stored as; `entries` has the true
    dtype. `header` is the parsed JSON, `metadata` its free text, `data_start` where the data begin.
    Raises FileFormatError, naming `place` and what is wrong there, before any array is given out.
    """

    def __init__(self, content: memoryview, place: str) -> None:
        self.content = content
        self.header, self.data_start = _header(content, place)
        self.metadata = _metadata(self.header.get(_METADATA, {}), place)
        parsed = [_entry(*item, place) for item in self.header.items() if item[0] != _METADATA]
        self.entries = {entry.name: entry for entry in parsed}
        _check_coverage(parsed, len(content) - self.data_start, place)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Map a file. It stays mapped for as long as this object or one of its arrays lives."""
        path = Path(path)
        with path.open("rb") as file:
            return cls(mapped(file.fileno(), path), str(path))

    def __getitem__(self, name: str) -> Array:
        entry = self.entries[name]
        stored = to_numpy_dtype(entry.dtype).newbyteorder("<")
        count = math.prod(entry.shape)
        array = numpy.frombuffer(self.content, stored, count, self.data_start + entry.start)
        return array.reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def read_index(path: str | os.PathLike[str]) -> dict[str, SafetensorsFile]:
    """The file of each tensor of a model in several files, by the name of the tensor.

    An index is JSON: `weight_map` gives the name of a file beside it for each tensor. Raises
    FileFormatError for anything else, for names of files elsewhere, and for tensors that are not
    in their file.
    """
    path = Path(path)
    try:
        index = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: no JSON: {error}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict):
        raise FileFormatError(f"{path}: an index of safetensors files has a `weight_map`.")
    for name, place in places.items():
        if not isinstance(place, str) or not place or {*place} & {"/", "\\", "\0"}:
            raise FileFormatError(
                f"{path}: tensor {shown(name)} is in {shown(place)}, no name of a file beside it."
            )
    files = {place: SafetensorsFile.open(path.with_name(place)) for place in {*places.values()}}
    if missing := [name for name, place in places.items() if name not in files[place]]:
        raise FileFormatError(
            f"{path}: tensor {shown(missing[0])} is not in {shown(places[missing[0]])}."
        )
    return {name: files[place] for name, place in places.items()}


def mapped(descriptor: int, path: Path) -> memoryview:
    """The bytes of an open file. Raises FileFormatError for an empty one."""
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        raise FileFormatError(f"{path}: the file is empty.")  # which cannot be mapped
    return memoryview(mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ))


def _header(content: memoryview, place: str) -> tuple[dict[str, Any], int]:
    """The parsed header, and where the data after it starts."""
    if len(content) < _LENGTH_BYTES:
        raise FileFormatError(
            f"{place}: {len(content)} bytes cannot hold a header length of {_LENGTH_BYTES} bytes."
        )
    (length,) = struct.unpack_from("<Q", content)
    if length > MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{place}: a header of {length} bytes is over the limit of {MAX_HEADER_BYTES}."
        )
    if length > len(content) - _LENGTH_BYTES:
        raise FileFormatError(
            f"{place}: the header claims {length} bytes; "
            f"only {len(content) - _LENGTH_BYTES} follow."
        )
    text = bytes(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    if not text.startswith(b"{"):
        raise FileFormatError(f"{place}: the header starts with {text[:1]!r} instead of b'{{'.")
    try:
        header = json.loads(
            text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{place}: the header is no valid JSON: {error}") from error
    return header, _LENGTH_BYTES + length


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
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
    dtype = SAFETENSORS_DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        raise FileFormatError(
            f"{place} has the unknown dtype {shown(fields['dtype'])}. "
            f"Known: {', '.join(SAFETENSORS_DTYPES)}."
        )
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _are_counts(shape):
        raise FileFormatError(
            f"{place} has the shape {shown(shape)}; sizes are integers from 0 on."
        )
    if len(shape) > _MAX_AXES:
        raise FileFormatError(f"{place} has {len(shape)} axes; the limit is {_MAX_AXES}.")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileFormatError(
            f"{place} has the data_offsets {shown(offsets)}; [start, stop] belongs."
        )
    start, stop = offsets
    if math.prod(size for size in shape if size) > _MAX_ELEMENTS:
        raise FileFormatError(f"{place} has the shape {shown(shape)}, whose size overflows.")
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes != stop - start:
        raise FileFormatError(
            f"{place} takes {size_bytes} bytes as {dtype.name}{tuple(shape)}, "
            f"but its data_offsets {shown(offsets)} span {stop - start}."
        )
    return TensorEntry(name, dtype, tuple(shape), start, stop)


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
    path: str | os.PathLike[str],
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
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT_BYTES)
    with replacing_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in stored:
            little = to_numpy_dtype(found[name]).newbyteorder("<")
            file.write(numpy.ascontiguousarray(arrays[name], little).data)


def _dtype_of(name: str, array: Array, true_dtypes: Mapping[str, DType]) -> DType:
    dtype = true_dtypes.get(name) or dtypes.by_name.get(array.dtype.name)
    if dtype not in _NAMES or to_numpy_dtype(dtype) != array.dtype.newbyteorder("="):
        raise DTypeError(
            f"tensor {name!r} is stored as {array.dtype.name!r}"
            + (f" and said to be {dtype.name!r}" if dtype else "")
            + f", for which safetensors has no type. It has: {', '.join(d.name for d in _NAMES)}."
        )
    return dtype
