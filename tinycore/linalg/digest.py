"""Digests of bytes: Keccak, and a short fingerprint of any tensor.

Floor 6. FIPS 202 (SHA-3 Standard, 2015). The state is 25 words of 64 bits for each message, axes y
and x of size 5; a round is one kernel or two, the same for every round: its constant is read from
memory. Messages of one call run side by side, blocks of one message one after another.
"""

from __future__ import annotations

from typing import Final, Literal, Self, TypeVar

from tinycore._deferred import numpy
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.linalg.spectral import Spectral
from tinycore.tensor import graph
from tinycore.tensor.runtime import HostArray
from tinycore.uop.node import Skew

Algorithm = Literal["sha3_224", "sha3_256", "sha3_384", "sha3_512", "shake_128", "shake_256"]

ALGORITHMS: Final[dict[str, tuple[int, int]]] = {
    "sha3_224": (144, 0x06),
    "sha3_256": (136, 0x06),
    "sha3_384": (104, 0x06),
    "sha3_512": (72, 0x06),
    "shake_128": (168, 0x1F),
    "shake_256": (136, 0x1F),
}
"""Bytes of message in a block, and the byte that follows the message (FIPS 202, 6.1 and 6.2)."""

STATE_BYTES: Final = 200
KECCAK_ROUNDS: Final = 24

LEAF_BYTES: Final = 160
"""Bytes that one digest of the tree in `hash` covers: with its level they fill one block."""
DIGEST_BYTES: Final = 16
ROOT_LEVEL: Final = 0xFF
"""The level that marks the last digest of the tree."""


def rotations() -> HostArray:
    """Bits by which word [y, x] is rotated: t*(t+1)/2 along the path of 3.2.2."""
    table = numpy.zeros((5, 5), numpy.uint64)
    x, y = 1, 0
    for t in range(24):
        table[y, x] = (t + 1) * (t + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return table


def round_constants() -> list[int]:
    """Round constants, added to word [0, 0]: bits 2**j - 1 of the shift register of 3.2.5."""
    register, constants = 1, []
    for _ in range(KECCAK_ROUNDS):
        word = 0
        for j in range(7):
            word |= (register & 1) << ((1 << j) - 1)
            register = register << 1 ^ (0x171 if register & 0x80 else 0)
        constants.append(word)
    return constants


class Digest(Spectral):
    """Bytes that stand for all others."""

    __slots__ = ()

    def keccak(self, cfg: Algorithm | tuple[int, int] = "sha3_256") -> Self:
        """The digest of the bytes along the last axis: (.., n) -> (.., digest bytes) of uint8.

        `cfg` names an algorithm of FIPS 202, or is (bytes of a block, byte after the message), with
        a digest of half of what a block leaves of 200 bytes. SHAKE128 gives 16 bytes and SHAKE256
        32. Takes 24 rounds for every block of the last axis: split long messages, or use `hash`.
        Raises ArgumentError for an unknown algorithm, ShapeError for a tensor with no axes.

        >>> bytes(Tensor(b"abc").keccak("sha3_256").tolist()).hex()[:16]
        '3a985da74fe225b2'
        """
        if self.ndim == 0:
            raise ShapeError("keccak: a message is along the last axis, got shape ()")
        rate, suffix = parameters(cfg)
        message = last_bytes(self)
        outer, size = message.shape[:-1], message.shape[-1]
        width = (STATE_BYTES - rate) // 2
        if 0 in outer:
            return message.const_like(0)[..., :1].expand((*outer, width))
        tail = numpy.zeros(rate - size % rate, numpy.uint8)
        tail[0] = suffix
        tail[-1] |= 0x80
        ending = of_host(message, tail).expand((*outer, len(tail)))
        padded = message.cat(ending, dim=-1) if size else ending
        words = padded.reshape((-1, padded.shape[-1] // rate, rate)).bitcast(dtypes.uint64)
        state = absorbed(words)
        return state.bitcast(dtypes.uint8)[:, :width].reshape((*outer, width))

    def hash(self) -> Self:
        """A fingerprint of all bytes, row by row: uint8 of shape (16,).

        A tree of SHAKE128, so that pieces are digested side by side: level 0 are the bytes in
        pieces of 160, each followed by its level as one byte; the next level are their digests of
        16 bytes, and so on until one is left. The result is the digest of that, the number of
        bytes (8, least significant first) and the byte 255. Zeros fill the last piece of a level.
        Shape and dtype do not count.

        >>> Tensor([1.0, 2.0]).hash().shape, Tensor([1.0, 2.0]).hash().dtype
        ((16,), dtypes.uint8)
        """
        level, pieces = 0, last_bytes(self.flatten())
        length = pieces.shape[0]
        while level == 0 or pieces.shape[0] > DIGEST_BYTES:
            count = max(1, -(-pieces.shape[0] // LEAF_BYTES))
            rows = pieces.pad_to(count * LEAF_BYTES).reshape((count, LEAF_BYTES))
            mark = rows.const_like(level)[:, :1]
            pieces = rows.cat(mark, dim=-1).keccak("shake_128").flatten().contiguous()
            level += 1
        ending = numpy.frombuffer(length.to_bytes(8, "little") + bytes([ROOT_LEVEL]), numpy.uint8)
        return pieces.cat(of_host(self, ending)).keccak("shake_128")


AnyTensor = TypeVar("AnyTensor", bound=Digest)


def last_bytes(x: AnyTensor) -> AnyTensor:
    """The bytes along the last axis."""
    if not x.numel():
        shape = (*x.shape[:-1], x.shape[-1] * x.element_size())
        return x.zeros(*shape, dtype=dtypes.uint8, device=x.device, buffer=False)
    return (x.cast(dtypes.uint8) if x.dtype is dtypes.bool else x).bitcast(dtypes.uint8)


def of_host(x: AnyTensor, array: HostArray) -> AnyTensor:
    """An array on the device of a tensor."""
    return type(x)(array, x.device)


def parameters(cfg: str | tuple[int, int]) -> tuple[int, int]:
    """(bytes of a block, byte after the message). Raises ArgumentError."""
    if isinstance(cfg, str):
        if cfg not in ALGORITHMS:
            raise ArgumentError(f"keccak: {cfg!r} is none of {', '.join(ALGORITHMS)}")
        return ALGORITHMS[cfg]
    rate, suffix = cfg
    if rate % 8 or not 72 <= rate < STATE_BYTES or not 0 < suffix < 128:
        raise ArgumentError(
            f"keccak: needs (bytes of a block, byte after the message) with a multiple of 8 in "
            f"[72, 192] and a byte in [1, 127], got {cfg}"
        )
    return rate, suffix


def absorbed(words: AnyTensor) -> AnyTensor:
    """The states after all blocks: (messages, blocks, words of a block) -> (messages, 25)."""
    messages, blocks, _ = words.shape
    turns = of_host(words, rotations())
    constants = [of_host(words, numpy.array([n], numpy.uint64)) for n in round_constants()]
    state = None
    for block in range(blocks):
        added = words[:, block, :].pad_to((messages, 25))
        state = added if state is None else state ^ added
        state = state.reshape((messages, 5, 5)).contiguous()
        for constant in constants:
            state = keccak_round(state, turns, constant).contiguous()
        state = state.reshape((messages, 25))
    assert state is not None
    return state


def keccak_round(state: AnyTensor, turns: AnyTensor, constant: AnyTensor) -> AnyTensor:
    """The five steps of 3.2, in their order, on states with axes (message, y, x)."""
    parity = folded_rows(state).contiguous()
    state = state ^ around(parity, 4) ^ rotated(around(parity, 1), parity.const_like(1))
    state = permuted(rotated(state, turns))
    state = state ^ (~around(state, 1) & around(state, 2))
    return state ^ constant.reshape((1, 1, 1)).pad_to((1, 5, 5))


def folded_rows(state: AnyTensor) -> AnyTensor:
    """Every column of words folded by exclusive or: (n, 5, 5) -> (n, 1, 5)."""
    total = state[:, :1]
    for y in range(1, 5):
        total = total ^ state[:, y : y + 1]
    return total


def around(x: AnyTensor, places: int) -> AnyTensor:
    """The last axis rotated to the left by some places, modulo its size 5."""
    return x.repeat((1, 1, 2))[..., places : places + 5]


def rotated(x: AnyTensor, turns: AnyTensor) -> AnyTensor:
    """Bits rotated to the left."""
    return (x << turns) | (x >> ((64 - turns) & 63))


def permuted(x: AnyTensor) -> AnyTensor:
    """Word [y, x] is what [x, x + 3y modulo 5] was: one sheared reading of a repeated axis."""
    wide = x.repeat((1, 1, 4))
    return x._from_node(graph.skew(wide.uop, Skew(2, 1, 3, 1, 5))).transpose(1, 2)
