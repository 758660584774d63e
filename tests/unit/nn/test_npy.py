"""NumPy's files are read as NumPy reads them, without its pickles."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Tensor
from tinycore.errors import FileFormatError
from tinycore.nn.state import Opaque, numpy_load

ARRAYS: dict[str, Any] = {
    "rows": numpy.arange(6.0).reshape(2, 3),
    "columns": numpy.arange(6, dtype=numpy.int16).reshape(2, 3).T,
    "big-endian": numpy.arange(3, dtype=">i4"),
    "half": numpy.array([0.5, -1.5], numpy.float16),
    "number": numpy.array(7, numpy.uint8),
    "flags": numpy.array([True, False]),
    "none": numpy.zeros((0, 4), numpy.int64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_a_tensor(tmp_path: Path, name: str) -> None:
    numpy.save(tmp_path / "x.npy", ARRAYS[name])

    found = numpy_load(tmp_path / "x.npy")

    assert found.dtype.name == ARRAYS[name].dtype.name
    numpy.testing.assert_array_equal(found.numpy(), ARRAYS[name])


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_an_archive_is_tensors_by_name(tmp_path: Path, save: Any) -> None:
    objects = numpy.array([{}], object)
    save(tmp_path / "x.npz", **ARRAYS, complex=numpy.array([1j]), objects=objects)

    found = numpy_load(Tensor((tmp_path / "x.npz").read_bytes()))

    assert list(found) == [*ARRAYS, "complex", "objects"]
    for name, array in ARRAYS.items():
        numpy.testing.assert_array_equal(found[name].numpy(), array)
    assert repr(found["complex"]) == "<array 'complex' of complex128, not loaded>"
    assert isinstance(found["objects"], Opaque)


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


GOOD = saved(numpy.arange(3.0))
DAMAGED = {
    "other": (b"no array", "no ZIP archive"),
    "nothing": (b"", "no ZIP archive"),
    "cut": (GOOD[:-1], "takes 24 bytes; 23 follow the header"),
    "long": (GOOD + b"\0", "takes 24 bytes; 25 follow the header"),
    "header": (GOOD[:20], "no file of NumPy"),
    "version": (GOOD[:6] + b"\3" + GOOD[7:], r"version \(3, 0\) of the format"),
    "huge": (GOOD.replace(b"(3,)", b"(9999999999999999999999,)"), "overflows|no file of NumPy"),
    "negative": (GOOD.replace(b"(3,)", b"(-3,)"), r"has the shape \(-3,\)|takes"),
    "objects": (saved(numpy.array([{}], object)), "an array of 'object'"),
    "records": (saved(numpy.zeros(2, "i4,f4")), "arrays of numbers are read"),
    "complex": (saved(numpy.array([1j])), "an array of complex128, no dtype here"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    content, told = DAMAGED[name]
    (tmp_path / "x.npy").write_bytes(content)

    with pytest.raises(FileFormatError, match=told):
        numpy_load(tmp_path / "x.npy")
