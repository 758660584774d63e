"""GGUF files: every type of block beside the reader of ggml, and damaged files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Tensor, dtypes
from tinycore.errors import FileFormatError
from tinycore.nn.blocks import BLOCK_TYPES, codebook
from tinycore.nn.files import Opaque
from tinycore.nn.state import gguf_load

Array = numpy.ndarray[Any, numpy.dtype[Any]]


def text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def file_of(
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]], metadata: bytes = b"", keys: int = 0
) -> bytes:
    """A file of version 3: tensors by name, of shape, type and content."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), keys) + metadata
    data = b""
    for name, (shape, kind, content) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % 32) + data


def loaded(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return gguf_load(Tensor(numpy.frombuffer(content, numpy.uint8)))


def random_blocks(kind: int, count: int) -> Array:
    """Random bytes, in which halves are of moderate size, and exponents are all that there are."""
    random = numpy.random.default_rng(kind)
    name, _, size, _ = BLOCK_TYPES[kind]
    blocks = random.integers(0, 256, (count, size), dtype=numpy.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82),
              "Q3_K": (108,), "Q6_K": (208,), "MXFP4": (), "NVFP4": (), "TQ1_0": (52,),
              "TQ2_0": (64,), "IQ1_M": ()}  # fmt: skip
    for at in places.get(name, (0,)):
        halves = random.normal(size=(count, 1)).astype(numpy.float16)
        blocks[:, at : at + 2] = halves.view(numpy.uint8)
    if name == "IQ1_M":  # its scale lies in four nibbles; 0x3 in the highest keeps it moderate
        blocks[:, 55] = 0x30 | (blocks[:, 55] & 15)
    return blocks


UNKNOWN_TO_THE_READER = {"Q1_0", "Q8_K"}
QUANTIZED = [
    number
    for number, kind in BLOCK_TYPES.items()
    if kind.elements > 1 and kind.name not in UNKNOWN_TO_THE_READER
]


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda n: BLOCK_TYPES[n].name)
def test_blocks_are_read_as_ggml_reads_them(kind: int) -> None:
    gguf = pytest.importorskip("gguf")
    blocks = random_blocks(kind, 6)
    with numpy.errstate(over="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(kind))
    shape = (3, 2 * BLOCK_TYPES[kind].elements)

    _, tensors = loaded(file_of({"w": (shape, kind, blocks.tobytes())}))

    assert tensors["w"].dtype is dtypes.float32
    numpy.testing.assert_array_equal(tensors["w"].numpy(), expected.reshape(shape))


def test_sizes_are_those_of_ggml() -> None:
    gguf = pytest.importorskip("gguf")
    for number, kind in BLOCK_TYPES.items():
        of_ggml = gguf.GGMLQuantizationType(number)
        assert (of_ggml.name, *gguf.GGML_QUANT_SIZES[of_ggml]) == kind[:3]


def test_some_blocks_by_hand() -> None:
    scale = numpy.float16(0.5).tobytes()
    q4_0 = scale + bytes([0x80 | n for n in range(16)])
    q8_0 = scale + numpy.arange(-16, 16, dtype=numpy.int8).tobytes()
    _, tensors = loaded(file_of({"a": ((1, 32), 2, q4_0), "b": ((32,), 8, q8_0)}))

    assert tensors["a"].tolist() == [[(n - 8) / 2 for n in range(16)] + [0.0] * 16]
    assert tensors["b"].tolist() == [n / 2 for n in range(-16, 16)]


def test_the_bits_of_q1_0_are_signs_of_its_scale() -> None:
    block = numpy.float16(0.5).tobytes() + b"\x01\x80" + bytes(14)

    _, tensors = loaded(file_of({"a": ((128,), 41, block)}))

    assert [n for n, x in enumerate(tensors["a"].tolist()) if x == 0.5] == [0, 15]
    assert set(tensors["a"].tolist()) == {0.5, -0.5}


def test_the_bytes_of_q8_k_are_integers_of_its_scale() -> None:
    integers = numpy.arange(-128, 128, dtype=numpy.int8)
    block = numpy.float32(0.25).tobytes() + integers.tobytes() + bytes(range(32))

    _, tensors = loaded(file_of({"a": ((256,), 15, block)}))

    assert tensors["a"].tolist() == (integers * 0.25).tolist()


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_codebooks_are_those_of_ggml(name: str) -> None:
    quants = pytest.importorskip("gguf").quants
    kind = getattr(quants, name)
    kind.init_grid()

    numpy.testing.assert_array_equal(codebook(name), kind.grid.reshape(kind.grid_shape))


def parts_of(folder: Path, tensors: dict[str, Array], most: int) -> list[Path]:
    """The files of a model, as gguf's writer makes them, with at most so many tensors each."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama", split_max_tensors=most)
    writer.add_block_count(7)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


FIVE = {f"w{n}": numpy.full((2, 3), n, numpy.float32) for n in range(5)}


@pytest.mark.parametrize("given", [0, 2])
def test_any_part_of_a_model_stands_for_all(tmp_path: Path, given: int) -> None:
    paths = parts_of(tmp_path, FIVE, 2)
    assert [path.name for path in paths] == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]

    metadata, tensors = gguf_load(paths[given])

    assert metadata["llama.block_count"] == 7
    assert list(tensors) == list(FIVE)
    for name, array in FIVE.items():
        numpy.testing.assert_array_equal(tensors[name].numpy(), array)


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    first, second, third = parts_of(tmp_path, FIVE, 2)
    with pytest.raises(FileFormatError, match="one of 3 parts of a model"):
        loaded(first.read_bytes())
    kept = third.read_bytes()
    third.write_bytes(second.read_bytes())
    with pytest.raises(FileFormatError, match="states that it is part 1 of 3, counted from 0"):
        gguf_load(first)
    third.unlink()
    with pytest.raises(FileNotFoundError, match="00003-of-00003"):
        gguf_load(first)
    third.write_bytes(kept.replace(b"w4", b"w3"))
    with pytest.raises(FileFormatError, match="an earlier part has tensor 'w3'"):
        gguf_load(first)
    other = first.rename(tmp_path / "first.gguf")
    with pytest.raises(FileFormatError, match="name it NAME-00001-of-00003"):
        gguf_load(other)


PLAIN = ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("dtype", PLAIN)
def test_plain_numbers(dtype: str) -> None:
    number = {"float32": 0, "float16": 1, "float64": 28, "int8": 24, "int16": 25, "int32": 26,
              "int64": 27}[dtype]  # fmt: skip
    array = numpy.arange(-3, 3).reshape(2, 3).astype(dtype)

    _, tensors = loaded(file_of({"x": ((2, 3), number, array.tobytes())}))

    assert tensors["x"].dtype.name == dtype
    numpy.testing.assert_array_equal(tensors["x"].numpy(), array)


def entry(key: str, kind: int, content: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + content


def test_metadata_of_every_type(tmp_path: Path) -> None:
    values = [
        entry("general.architecture", 8, text("llama")),
        entry("big", 10, struct.pack("<Q", 1 << 60)),
        entry("flag", 7, b"\1"),
        entry("rate", 6, struct.pack("<f", 0.5)),
        entry("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("ß")),
        entry("numbers", 9, struct.pack("<IQ3i", 5, 3, -1, 0, 7)),
        entry("nested", 9, struct.pack("<IQIQI", 9, 1, 4, 1, 5)),
    ]
    path = tmp_path / "x.gguf"
    path.write_bytes(file_of({"one": ((1,), 0, struct.pack("<f", 2.5))}, b"".join(values), 7))

    metadata, tensors = gguf_load(path)

    assert metadata == {
        "general.architecture": "llama", "big": 1 << 60, "flag": True, "rate": 0.5,
        "words": ["a", "ß"], "numbers": [-1, 0, 7], "nested": [[5]],
    }  # fmt: skip
    assert tensors["one"].tolist() == [2.5]


def overlapping() -> bytes:
    """A file of two tensors with the same bytes."""
    content = file_of({"x": ((1,), 0, bytes(4)), "y": ((1,), 0, bytes(4))})
    at = content.index(text("y")) + len(text("y")) + 4 + 8 + 4
    return content[:at] + bytes(8) + content[at + 8 :]


def test_a_type_that_is_not_read_leaves_the_others() -> None:
    _, tensors = loaded(file_of({"x": ((32,), 9, bytes(40)), "y": ((1,), 24, b"\7")}))

    found: object = tensors["x"]
    assert isinstance(found, Opaque)
    assert repr(found) == "<tensor 'x' of type 9 of ggml and shape (32,), not loaded>"
    assert tensors["y"].tolist() == [7]


GOOD = file_of({"x": ((2, 32), 8, bytes(68))}, entry("k", 4, struct.pack("<I", 1)), 1)
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"GG", "the magic takes 4 bytes; 2 are left"),
    "other format": (lambda: b"PK\3\4" + GOOD[4:], "begins with b'GGUF'"),
    "old": (lambda: GOOD[:4] + struct.pack("<I", 1) + GOOD[8:], "version 1 of GGUF; 2 and 3"),
    "big-endian": (lambda: GOOD[:4] + struct.pack(">I", 3) + GOOD[8:], "big-endian machine"),
    "cut": (lambda: GOOD[:-8], "ends at byte"),
    "cut head": (lambda: GOOD[:40], "are left"),
    "many tensors": (lambda: GOOD[:8] + struct.pack("<Q", 1 << 60) + GOOD[16:], "takes"),
    "long key": (lambda: GOOD[:24] + struct.pack("<Q", 1 << 60) + GOOD[32:], "are left"),
    "type of metadata": (lambda: file_of({}, entry("k", 99, b""), 1), "has type 99"),
    "array": (
        lambda: file_of({}, entry("k", 9, struct.pack("<IQ", 4, 1 << 40)), 1),
        "more than bytes are left for",
    ),
    "items": (lambda: file_of({}, entry("k", 9, struct.pack("<IQ", 77, 1)), 1), "items of type 77"),
    "nesting": (
        lambda: file_of({}, entry("k", 9, struct.pack("<IQ", 9, 1) * 9), 1),
        "nested 4 deep",
    ),
    "keys": (lambda: file_of({}, entry("k", 7, b"\0") * 2, 2), "occurs twice"),
    "alignment": (
        lambda: file_of({}, entry("general.alignment", 4, struct.pack("<I", 12)), 1),
        "is 12, no multiple of 8",
    ),
    "rows": (lambda: file_of({"x": ((2, 31), 8, bytes(68))}), "has rows of 31"),
    "elements": (lambda: file_of({"x": ((1 << 40, 1 << 20), 0, b"")}), "more elements than"),
    "text": (lambda: file_of({}, struct.pack("<Q", 1) + b"\xff", 1), "is no UTF-8"),
    "overlap": (overlapping, "tensor 'y' at 0 overlaps 'x', which ends at 4"),
    "no axis": (lambda: file_of({"x": ((0, 1 << 61), 0, b"")}), "whose size overflows"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused(name: str) -> None:
    make, told = DAMAGED[name]
    with pytest.raises(FileFormatError, match=told):
        loaded(make())


def test_offsets_are_aligned() -> None:
    content = file_of({"x": ((1,), 0, struct.pack("<f", 1.0))})
    at = content.index(text("x")) + len(text("x")) + 4 + 8
    with pytest.raises(FileFormatError, match="no multiple of 32"):
        loaded(content[: at + 4] + struct.pack("<Q", 4) + content[at + 12 :] + bytes(32))
