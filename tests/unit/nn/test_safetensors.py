"""The safetensors reader checks everything before it gives out an array."""

from __future__ import annotations

import json
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tinycore import Context, Tensor
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, FileFormatError
from tinycore.nn.files import (
    Opaque,
    SafetensorsFile,
    Source,
    read_idx,
    write_idx,
    write_safetensors,
)
from tinycore.nn.state import (
    gguf_load,
    safe_load,
    safe_load_metadata,
    safe_save,
    tar_extract,
    torch_load,
    zip_extract,
)


def packed(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def opened(content: bytes) -> SafetensorsFile:
    return SafetensorsFile(Source(memoryview(content), "model.safetensors"))


def test_an_array_is_where_the_header_says() -> None:
    file = opened(packed({"w": entry("U8", (2, 2), (0, 4))}, b"\1\2\3\4"))

    assert file["w"].tolist() == [[1, 2], [3, 4]]
    assert list(file) == ["w"]


def test_elements_are_little_endian() -> None:
    file = opened(packed({"w": entry("I16", (2,), (0, 4))}, b"\1\0\0\1"))

    assert file["w"].tolist() == [1, 256]


def test_arrays_lie_in_the_file_and_cannot_be_written(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m", {"w": numpy.ones(5, numpy.float32)})

    array = SafetensorsFile.open(tmp_path / "m")["w"]

    assert array.base is not None
    assert not array.flags.writeable


def test_an_empty_file_of_tensors_is_allowed() -> None:
    assert len(opened(packed({}))) == 0


def test_zero_sized_and_scalar_tensors_are_allowed() -> None:
    header = {"none": entry("F32", (0, 3), (4, 4)), "one": entry("F32", (), (0, 4))}

    file = opened(packed(header, struct.pack("<f", 2.5)))

    assert file["none"].shape == (0, 3)
    assert file["one"] == 2.5


def test_a_header_may_end_in_spaces() -> None:
    assert (
        opened(packed(b'{"w":' + json.dumps(entry()).encode() + b"}   ", bytes(4)))["w"].size == 4
    )


def test_metadata_is_text_by_name() -> None:
    assert opened(packed({"__metadata__": {"format": "pt"}})).metadata == {"format": "pt"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes cannot hold a header length"),
        (b"1234567", "7 bytes cannot hold a header length"),
        (struct.pack("<Q", 3) + b"{}", "the header claims 3 bytes; only 2 follow"),
        (struct.pack("<Q", 2**63) + b"{}", "is over the limit of 100000000"),
        (packed(b" {}"), "the header starts with b' '"),
        (packed(b""), "the header starts with b''"),
        (packed(b"{"), "the header is no valid JSON"),
        (packed(b'{"a":' * 20_000 + b"{" + b"}" * 20_001), "the header is no valid JSON"),
        (packed(b'{"a\xff":1}'), "the header is no valid JSON"),
        (packed(b'{"__metadata__":{"a":NaN}}'), "NaN is no JSON"),
        (packed(b'{"a":1,"a":1}'), "the key 'a' appears twice"),
        (packed({"__metadata__": {"a": 1}}), "__metadata__ must map strings to strings"),
        (packed({"__metadata__": []}), "__metadata__ must map strings to strings"),
        (packed({"w": [1]}), "tensor 'w' needs exactly the fields data_offsets, dtype, shape"),
        (packed({"w": {"dtype": "U8", "shape": []}}), "needs exactly the fields"),
        (packed({"w": entry() | {"strides": []}}, bytes(4)), "needs exactly the fields"),
        (packed({"w": entry("C64")}, bytes(4)), r"takes 32 bytes as C64 of \[4\], but"),
        (packed({"w": entry(["U8"])}, bytes(4)), r"has the dtype \['U8'\], which is no text"),
        (packed({"w": entry(shape=4)}, bytes(4)), "has the shape 4"),
        (packed({"w": entry(shape=(-4,))}, bytes(4)), r"has the shape \[-4\]"),
        (packed({"w": entry(shape=(4.0,))}, bytes(4)), r"has the shape \[4.0\]"),
        (packed({"w": entry(shape=(True,), offsets=(0, 1))}, b"1"), r"has the shape \[True\]"),
        (packed({"w": entry(shape=(1,) * 33, offsets=(0, 1))}, b"1"), "has 33 axes; the limit is"),
        (packed({"w": entry(shape=(2**40, 2**40))}, bytes(4)), "whose size overflows"),
        (packed({"w": entry(shape=(0, 2**62, 4), offsets=(0, 0))}), "whose size overflows"),
        (packed({"w": entry("F64", (0, 2**61), (0, 0))}), "whose size overflows"),
        (packed({"w": entry(offsets=(0,))}, bytes(4)), r"has the data_offsets \[0\]"),
        (packed({"w": entry(offsets=(4, 0))}, bytes(4)), r"has the data_offsets \[4, 0\]"),
        (packed({"w": entry(offsets=(-4, 0))}, bytes(4)), r"has the data_offsets \[-4, 0\]"),
        (packed({"w": entry(offsets=(0, 3))}, bytes(3)), r"takes 4 bytes as U8 of \[4\], but"),
        (packed({"w": entry()}, bytes(3)), "the tensors take 4 bytes, but 3 follow"),
        (packed({"w": entry()}, bytes(5)), "the tensors take 4 bytes, but 5 follow"),
        (packed({"w": entry(offsets=(1, 5))}, bytes(5)), "leaves a hole before it: 0 belongs"),
        (packed({"a": entry(), "b": entry(offsets=(2, 6))}, bytes(6)), "'b' starts at byte 2"),
        (packed({"a": entry(), "b": entry()}, bytes(4)), "overlaps what is before it"),
        (packed({"a": entry(), "b": entry(offsets=(8, 12))}, bytes(12)), "leaves a hole"),
    ],
)
def test_malformed_files_say_where(content: bytes, said: str) -> None:
    with pytest.raises(FileFormatError, match=said) as caught:
        opened(content)

    assert str(caught.value).startswith("model.safetensors: ")


def test_an_empty_file_on_disk_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "m").touch()

    with pytest.raises(FileFormatError, match="0 bytes cannot hold"):
        SafetensorsFile.open(tmp_path / "m")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_still_consistent(data: st.DataObject) -> None:
    good = packed({"a": entry(), "b": entry("F16", (2, 1), (4, 8))}, bytes(range(8)))
    position = data.draw(st.integers(0, len(good) - 1))
    damaged = bytearray(good)
    damaged[position] = data.draw(st.integers(0, 255))

    try:
        file = opened(bytes(damaged[: data.draw(st.integers(0, len(good)))]))
    except FileFormatError:
        return
    assert sum(found.stop - found.start for found in file.entries.values()) == 8
    for name, found in file.entries.items():
        assert found.dtype is None or file[name].shape == found.shape


def test_order_is_kept_and_arrays_are_aligned(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "b": numpy.arange(3, dtype=numpy.uint8),
        "a": numpy.arange(2, dtype=numpy.float64),
    }

    write_safetensors(tmp_path / "m", arrays, {"made": "here"})
    file = SafetensorsFile.open(tmp_path / "m")

    assert list(file) == ["b", "a"]
    assert all(numpy.array_equal(file[name], arrays[name]) for name in arrays)
    assert file["a"].ctypes.data % 8 == 0
    assert file.metadata == {"made": "here"}


def test_bfloat16_is_written_from_its_bits(tmp_path: Path) -> None:
    bits = numpy.array([0x3F80], numpy.uint16)

    write_safetensors(tmp_path / "m", {"w": bits}, true_dtypes={"w": dtypes.bfloat16})
    file = SafetensorsFile.open(tmp_path / "m")

    assert file.entries["w"].dtype is dtypes.bfloat16
    assert file["w"].tolist() == [0x3F80]


def test_a_transposed_array_is_written_row_by_row(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m", {"w": numpy.arange(6).reshape(2, 3).T})

    assert SafetensorsFile.open(tmp_path / "m")["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m", {"w": numpy.ones(2)})

    with pytest.raises(DTypeError, match="tensor 'c' is stored as 'complex64'"):
        write_safetensors(tmp_path / "m", {"w": numpy.zeros(2), "c": numpy.zeros(1, "complex64")})

    assert SafetensorsFile.open(tmp_path / "m")["w"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["m"]


def test_a_link_stays_a_link_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")

    write_safetensors(tmp_path / "link", {})

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_a_dtype_that_contradicts_the_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="stored as 'float32' and said to be 'bfloat16'"):
        write_safetensors(
            tmp_path / "m", {"w": numpy.ones(1, "float32")}, true_dtypes={"w": dtypes.bfloat16}
        )


def test_the_reserved_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="__metadata__"):
        write_safetensors(tmp_path / "m", {"__metadata__": numpy.ones(1)})


NAMES = st.one_of(
    st.text(max_size=6), st.sampled_from(["__metadata__", "dtype", "a" * 5000, 3, b"x"])
)
VALUES = st.one_of(
    st.text(max_size=6), st.none(), st.integers(), st.floats(), st.binary(max_size=2),
    st.lists(st.integers(), max_size=2), st.just({1, 2}), st.dictionaries(NAMES, st.floats()),
)  # fmt: skip
STORED = [*dtypes.fp8s, *(dtypes.by_name[name] for name in (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
))]  # fmt: skip
TENSORS = st.tuples(st.lists(st.integers(0, 3), max_size=5), st.sampled_from(STORED))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, TENSORS, max_size=4), st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_is_saved_is_loaded_or_refused_before(
    tmp_path_factory: pytest.TempPathFactory, drawn: dict[Any, Any], metadata: dict[Any, Any]
) -> None:
    path = tmp_path_factory.mktemp("saved") / "file.safetensors"
    with Context(DEV="PYTHON"):
        tensors = {n: Tensor.ones(*shape).cast(dtype) for n, (shape, dtype) in drawn.items()}
        try:
            safe_save(tensors, path, metadata)
        except (ArgumentError, DTypeError):
            assert not path.exists()
            return
        loaded = safe_load(path)

        assert [*loaded] == [*tensors]
        for name, tensor in tensors.items():
            assert (loaded[name].shape, loaded[name].dtype) == (tensor.shape, tensor.dtype)
            assert loaded[name].tolist() == tensor.tolist()
        header = safe_load_metadata(path)[2]
        texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in metadata.items()}
        assert header.get("__metadata__", {}) == texts


def test_elements_without_a_dtype_leave_the_others(tmp_path: Path) -> None:
    header = {
        "scales": entry("F8_E8M0", (4,), (0, 4)),
        "complex": entry("C64", (1,), (4, 12)),
        "new": entry("I4", (3,), (12, 14)),
        "w": entry("U8", (2,), (14, 16)),
    }
    (tmp_path / "m").write_bytes(packed(header, bytes([0, 127, 254, 255]) + bytes(10) + b"\1\2"))

    found: dict[str, Any] = safe_load(tmp_path / "m")

    scales = found["scales"].tolist()
    assert scales[:3] == [2.0**-127, 1.0, 2.0**127]
    assert numpy.isnan(scales[3])
    assert found["w"].tolist() == [1, 2]
    assert repr(found["complex"]) == "<tensor 'complex' of 'C64' and shape (1,), not loaded>"
    assert isinstance(found["new"], Opaque)


UNREADABLE: dict[str, tuple[dict[Any, Any], dict[Any, Any], str]] = {
    "axes": ({"w": numpy.zeros((1,) * 33)}, {}, "has 33 axes"),
    "name": ({"a\ud800": numpy.zeros(1)}, {}, "no valid Unicode"),
    "number": ({3: numpy.zeros(1)}, {}, "names things by text, not by 3"),
    "metadata": ({}, {4: "x"}, "names things by text, not by 4"),
    "header": ({}, {"x": "a" * 100_000_001}, "is over 100000000"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_would_be_refused_is_not_written(tmp_path: Path, case: str) -> None:
    arrays, metadata, told = UNREADABLE[case]
    with pytest.raises(ArgumentError, match=told):
        write_safetensors(tmp_path / "m", arrays, metadata)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_files_are_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    else:
        target = Path("/dev/full")
    before = target.stat()

    for write in (
        partial(write_safetensors, target, {"w": numpy.ones(1)}),
        partial(write_idx, target, numpy.ones(1, "f4")),
    ):
        with pytest.raises((ArgumentError, IsADirectoryError), match=r"no regular file|directory"):
            write()

    assert (target.stat().st_mode, target.stat().st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "x" if kind == "pipe" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(target)

    for load in (safe_load, torch_load, gguf_load, tar_extract, zip_extract, read_idx):
        with pytest.raises(FileFormatError, match="no regular file"):
            load(target)


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m", {"w": numpy.ones(1 << 20)})
    with SafetensorsFile.open(tmp_path / "m") as file:
        os.truncate(tmp_path / "m", 1 << 16)
        with pytest.raises(FileFormatError, match="Another program writes to it"):
            file["w"]


def sharded(folder: Path, weight_map: object) -> Path:
    """A model of two files, and an index of it."""
    write_safetensors(folder / "a.safetensors", {"x": numpy.arange(3.0), "z": numpy.ones(1)})
    write_safetensors(folder / "b.safetensors", {"y": numpy.arange(2)})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}))
    return index


def test_an_index_reads_the_files_beside_it(tmp_path: Path) -> None:
    places = {"y": "b.safetensors", "x": "a.safetensors", "z": "a.safetensors"}

    tensors = safe_load(sharded(tmp_path, places))

    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "y": [0, 1], "x": [0.0, 1.0, 2.0], "z": [1.0],
    }  # fmt: skip
    assert list(tensors) == list(places)


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        (None, "has a `weight_map`"),
        ([], "has a `weight_map`"),
        ({"x": "../a.safetensors"}, "tensor 'x' is in '../a.safetensors', no name of a file"),
        ({"x": "..\\a.safetensors"}, "no name of a file"),
        ({"x": ""}, "no name of a file"),
        ({"x": "\ud800"}, "no name of a file"),
        ({"x": 3}, "tensor 'x' is in 3, no name of a file"),
        ({"x": "b.safetensors"}, "tensor 'x' is not in 'b.safetensors'"),
    ],
)
def test_a_damaged_index_says_what_is_wrong(tmp_path: Path, weight_map: object, said: str) -> None:
    with pytest.raises(FileFormatError) as raised:
        safe_load(sharded(tmp_path, weight_map))
    assert said in str(raised.value)


def test_an_index_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(b"{" * 100_000)
    with pytest.raises(FileFormatError, match="no JSON"):
        safe_load(tmp_path / "model.safetensors.index.json")
