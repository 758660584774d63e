"""Digests, compared with `hashlib`, an implementation of the same standard."""

from __future__ import annotations

import hashlib

import numpy
import pytest

from tests.unit.tensor.helpers import integers
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.linalg.digest import Algorithm
from tinycore.tensor import Tensor

pytestmark = pytest.mark.sample(2)

ALL_BYTES = bytes(range(256)) * 2
SIZES: dict[Algorithm, int] = {
    "sha3_224": 28,
    "sha3_256": 32,
    "sha3_384": 48,
    "sha3_512": 64,
    "shake_128": 16,
    "shake_256": 32,
}


def expected(name: Algorithm, message: bytes) -> bytes:
    """Digest by Python's own library."""
    if name == "shake_128":
        return hashlib.shake_128(message).digest(SIZES[name])
    if name == "shake_256":
        return hashlib.shake_256(message).digest(SIZES[name])
    return hashlib.new(name, message).digest()


def message_of(content: bytes) -> Tensor:
    """Bytes as a tensor, also none."""
    return Tensor(numpy.frombuffer(content, numpy.uint8))


def content_of(x: Tensor) -> bytes:
    """The bytes of a tensor."""
    return x.numpy().tobytes()


@pytest.mark.parametrize("length", [0, 135, 136, 137])
def test_lengths_around_a_block(length: int) -> None:
    message = ALL_BYTES[:length]

    assert content_of(message_of(message).keccak()) == expected("sha3_256", message)


@pytest.mark.parametrize("name", [name for name in SIZES if name != "sha3_256"])
def test_every_algorithm(name: Algorithm) -> None:
    digest = message_of(b"abc").keccak(name)

    assert (digest.dtype, digest.shape) == (dtypes.uint8, (SIZES[name],))
    assert content_of(digest) == expected(name, b"abc")


def test_messages_of_a_batch() -> None:
    rows = integers(2, 3, 5, low=0, high=256).astype(numpy.uint8)
    digests = Tensor(rows).keccak("sha3_224")

    assert digests.shape == (2, 3, 28)
    assert content_of(digests) == b"".join(
        expected("sha3_224", row.tobytes()) for row in rows.reshape(6, 5)
    )


def test_bytes_of_any_dtype_are_least_significant_first() -> None:
    x = integers(2, 3)

    assert content_of(Tensor(x).keccak()) == b"".join(
        expected("sha3_256", row.astype("<i4").tobytes()) for row in x
    )


def test_a_bool_is_a_byte() -> None:
    assert content_of(Tensor([True, False]).keccak()) == expected("sha3_256", b"\1\0")


def test_block_and_suffix_may_be_given() -> None:
    """The first Keccak, before the standard, ended messages with another byte."""
    known = "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"

    assert content_of(message_of(b"abc").keccak((136, 1))).hex() == known


def test_no_messages() -> None:
    assert Tensor.zeros(0, 4, dtype=dtypes.uint8).keccak().shape == (0, 32)


def tree(content: bytes) -> bytes:
    """The definition of `hash` in its docstring."""
    level, row = 0, content
    while level == 0 or len(row) > 16:
        row = row.ljust(-(-max(1, len(row)) // 160) * 160, b"\0")
        pieces = [row[i : i + 160] + bytes([level]) for i in range(0, len(row), 160)]
        row = b"".join(hashlib.shake_128(piece).digest(16) for piece in pieces)
        level += 1
    return hashlib.shake_128(row + len(content).to_bytes(8, "little") + b"\xff").digest(16)


@pytest.mark.parametrize("length", [0, 161])
def test_hash_is_that_of_a_tree(length: int) -> None:
    content = ALL_BYTES[:length]
    result = message_of(content).hash()

    assert (result.dtype, result.shape) == (dtypes.uint8, (16,))
    assert content_of(result) == tree(content)


def test_hash_is_of_all_bytes_row_by_row() -> None:
    x = integers(2, 3).astype(numpy.float32)

    assert content_of(Tensor(x).T.hash()) == tree(numpy.ascontiguousarray(x.T).tobytes())


def test_mistakes_are_told_at_the_call() -> None:
    with pytest.raises(ShapeError, match="keccak"):
        Tensor(3).keccak()
    with pytest.raises(ArgumentError, match="sha3_224, sha3_256"):
        Tensor([1]).keccak("md5")  # type: ignore[arg-type]
    for wrong in ((200, 6), (135, 6), (64, 6), (136, 0), (136, 128)):
        with pytest.raises(ArgumentError, match="multiple of 8"):
            Tensor([1]).keccak(wrong)
