"""The IDX reader takes what the format says and nothing else."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy
import pytest

from tinycore.errors import DTypeError, FileFormatError, ShapeError
from tinycore.nn.files import read_idx, write_idx

IMAGES = numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4)


def stored(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def header(code: int, *sizes: int) -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, code, len(sizes), *sizes)


def test_the_layout_is_big_endian_sizes_then_rows(tmp_path: Path) -> None:
    path = stored(tmp_path / "x", header(0x08, 2, 3, 4) + bytes(range(24)))

    assert numpy.array_equal(read_idx(path), IMAGES)


def test_wider_elements_come_back_in_native_order(tmp_path: Path) -> None:
    path = stored(tmp_path / "x", header(0x0B, 2) + b"\x01\x02\xff\xfe")

    read = read_idx(path)

    assert read.tolist() == [258, -2]
    assert read.dtype == numpy.int16


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = stored(tmp_path / "no-suffix", gzip.compress(header(0x08, 1) + b"\x07"))

    assert read_idx(path).tolist() == [7]


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
def test_what_is_written_is_read(tmp_path: Path, name: str, dtype: str) -> None:
    array = numpy.arange(12).reshape(3, 4).astype(dtype)

    write_idx(tmp_path / name, array)

    assert numpy.array_equal(read_idx(tmp_path / name), array)
    assert read_idx(tmp_path / name).dtype == array.dtype


def test_the_same_array_gives_the_same_bytes(tmp_path: Path) -> None:
    write_idx(tmp_path / "a.gz", IMAGES)
    write_idx(tmp_path / "b.gz", IMAGES)

    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_an_array_without_elements_is_no_error(tmp_path: Path) -> None:
    write_idx(tmp_path / "x", numpy.zeros((0, 5), numpy.uint8))

    assert read_idx(tmp_path / "x").shape == (0, 5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "ends within the magic number: 0 of 4 bytes"),
        (b"\0\0\x08", "ends within the magic number: 3 of 4 bytes"),
        (b"PK\x03\x04" + bytes(20), "not an IDX file: it starts with 50 4b 03 04"),
        (b"\0\1\x08\x01" + bytes(20), "not an IDX file"),
        (header(0x0A, 1) + b"\0", "not an IDX file"),
        (header(0x08, 1, 2)[:10], "ends within the sizes of 2 axes: 6 of 8 bytes"),
        (header(0x08, 5) + b"1234", r"\(5,\) elements of uint8: 4 of 5 bytes"),
        (header(0x0C, 2) + bytes(7), r"\(2,\) elements of int32: 7 of 8 bytes"),
        (header(0x08, 2) + b"123", r"bytes follow the \(2,\) elements"),
        (header(0x08, 0xFFFF) + bytes(9), "elements of uint8: 9 of"),
        (header(0x08, 0xFFFFFFFF) + bytes(9), "more than the .* unpacked bytes"),
        (header(0x08, *[0xFFFFFFFF] * 6) + bytes(9), "whose size overflows"),
        (header(0x08, *[1] * 200) + b"\0", "200 axes; the limit is 32"),
        (header(0x08, 0, *[0xFFFFFFFF] * 3), "whose size overflows"),
        (gzip.compress(header(0x08, 9) + bytes(9), mtime=0)[:-12], "the gzip stream is damaged"),
        (b"\x1f\x8b\x08" + bytes(40), "damaged|not an IDX|ends within"),
    ],
)
def test_malformed_files_say_where(tmp_path: Path, content: bytes, said: str) -> None:
    path = stored(tmp_path / "digits", content)

    with pytest.raises(FileFormatError, match=said) as caught:
        read_idx(path)

    assert str(path) in str(caught.value)


def test_a_type_that_idx_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="IDX has no element type 'uint64'"):
        write_idx(tmp_path / "x", numpy.zeros(3, numpy.uint64))


def test_axes_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    long = numpy.broadcast_to(numpy.uint8(0), (1 << 32,))

    with pytest.raises(ShapeError, match="less than 2"):
        write_idx(tmp_path / "x", long)
