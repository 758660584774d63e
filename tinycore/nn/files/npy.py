"""NumPy's files: `.npy` with one array, and `.npz`, a ZIP archive of them.

Floor 6. Imports `errors` and NumPy.
NumPy parses the header, which is a Python literal, and no more: how many bytes there must be is
compared here before memory is taken for them, and arrays of objects, which are pickles, are not
read (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy

from tinycore.errors import FileFormatError
from tinycore.nn.files.archives import zip_members
from tinycore.nn.files.source import Source, reading, shown, verify_shape

__all__ = ["NPY_MAGIC", "read_npy", "read_npz"]

Array = numpy.ndarray[Any, numpy.dtype[Any]]

NPY_MAGIC: Final = b"\x93NUMPY"
HEADERS: Final = {
    (1, 0): numpy.lib.format.read_array_header_1_0,
    (2, 0): numpy.lib.format.read_array_header_2_0,
}
"""Readers of headers by version; version 3 is for names of fields."""
NUMBER_KINDS: Final = "biufc"
SUFFIX: Final = ".npy"


def read_npy(source: Source) -> Array:
    """The array in a file, in native byte order. Raises FileFormatError where it breaks the format,
    and for arrays of anything but numbers.
    """
    with reading(source.place, "file of NumPy"):
        stream = source.stream()
        version = numpy.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise FileFormatError(f"version {version} of the format; 1.0 and 2.0 are read")
        shape, is_fortran, dtype = HEADERS[version](stream)
        if dtype.kind not in NUMBER_KINDS:
            raise FileFormatError(f"an array of {shown(str(dtype))}; arrays of numbers are read")
        if any(type(size) is not int or size < 0 for size in shape):
            raise FileFormatError(f"the array has the shape {shown(shape)}")
        verify_shape(shape, dtype.itemsize, "the array")
        count, start = math.prod(shape), stream.tell()
        if start + count * dtype.itemsize != source.size:
            raise FileFormatError(
                f"the array of {dtype} and shape {shown(shape)} takes {count * dtype.itemsize} "
                f"bytes; {source.size - start} follow the header"
            )
        flat = source.array(dtype, count, start).astype(dtype.newbyteorder("="), copy=False)
        return flat.reshape(shape, order="F" if is_fortran else "C")


def read_npz(source: Source) -> Iterator[tuple[str, Array | FileFormatError]]:
    """The arrays in an archive by name, or the reason why one is not read.

    Raises FileFormatError for what is no archive.
    """
    for name, content in zip_members(source):
        try:
            array = read_npy(Source(memoryview(content), f"{source.place}: member {shown(name)}"))
        except FileFormatError as error:
            yield name.removesuffix(SUFFIX), error
        else:
            yield name.removesuffix(SUFFIX), array
