"""Dot products of halves, bytes and half bytes on the emulator of three families, beside NumPy.

LLVM has calls for them; what `DEV=AMD` compiles has none, see `tiny_amd.llvm.FEATURES`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy
import pytest

pytest.importorskip("llvmlite")

from ir_programs import COUNT, SEED, numbers, on_card, statement
from listings import DECODERS

Array = numpy.ndarray[Any, Any]

PARTS: Final = """%xh = bitcast i32 %x to <2 x i16>
%yh = bitcast i32 %y to <2 x i16>
%xf = bitcast i32 %x to <2 x half>
%yf = bitcast i32 %y to <2 x half>
%xb = bitcast i32 %x to <2 x bfloat>
%yb = bitcast i32 %y to <2 x bfloat>
%zf = bitcast i32 %z to float
"""
WORDS: Final = "i32 %x, i32 %y, i32 %z, i1 CLAMP"
HALVES: Final = "<2 x i16> %xh, <2 x i16> %yh, i32 %z, i1 CLAMP"
MIXED: Final = "i1 true, i32 %x, i1 false, i32 %y, i32 %z, i1 CLAMP"
RDNA: Final = ("gfx1100", "gfx1201")
DOTS: Final = {
    "sdot4": (WORDS, 8, (True, True), tuple(DECODERS)),
    "udot4": (WORDS, 8, (False, False), tuple(DECODERS)),
    "sdot8": (WORDS, 4, (True, True), tuple(DECODERS)),
    "udot8": (WORDS, 4, (False, False), tuple(DECODERS)),
    "sdot2": (HALVES, 16, (True, True), ("gfx942",)),
    "udot2": (HALVES, 16, (False, False), ("gfx942",)),
    "sudot4": (MIXED, 8, (True, False), RDNA),
    "sudot8": (MIXED, 4, (True, False), RDNA),
}
"""LLVM's calls for dot products of whole numbers: arguments, bits of a part, signs, cards."""


def dotted(name: str, arguments: str, result: str) -> str:
    """A function that calls a dot product; all three of its arguments are words."""
    kinds = re.sub(r" %\w+| true| false", "", arguments)
    call = f"{result} @llvm.amdgcn.{name}"
    text = f"{PARTS}%v = call {call}({arguments})\n%r = bitcast {result} %v to i32"
    return f"declare {call}({kinds})\n{statement(text, 'i32', ['i32'] * 3)}"


def parts(words: Array, bits: int, is_signed: bool) -> Array:
    """The numbers that words are made of, a row each."""
    found = words.astype(numpy.int64)[None] >> numpy.arange(0, 32, bits)[:, None] & (1 << bits) - 1
    return found - ((found >> bits - 1) << bits) if is_signed else found


@pytest.mark.parametrize("saturates", [False, True], ids=["wraps", "saturates"])
@pytest.mark.parametrize(
    ("name", "arch"), [(name, arch) for name, (*_, archs) in DOTS.items() for arch in archs]
)
def test_dot_products_of_whole_numbers(name: str, arch: str, saturates: bool) -> None:
    arguments, bits, (first, second), _ = DOTS[name]
    arguments = arguments.replace("CLAMP", str(saturates).lower())
    generator = numpy.random.default_rng(SEED)
    x, y, z = (generator.permutation(numbers("i32", generator)) for _ in range(3))
    given = dotted(name, arguments, "i32"), "i32", ["i32"] * 3
    found, emulator = on_card(*given, x, y, z, arch=arch)

    is_signed = first or second
    added = z.view(numpy.int32) if is_signed else z
    wanted = (parts(x, bits, first) * parts(y, bits, second)).sum(0) + added
    if saturates:
        bounds = numpy.iinfo(numpy.int32 if is_signed else numpy.uint32)
        wanted = wanted.clip(bounds.min, bounds.max)
    assert found.tolist() == (wanted & 0xFFFFFFFF).tolist()
    assert any(name.startswith("v_dot") for name in emulator.executed)


@pytest.mark.parametrize(
    ("name", "kind", "arch"),
    [
        *(("fdot2", "f", arch) for arch in DECODERS),
        *(("fdot2.f32.bf16", "b", arch) for arch in RDNA),
    ],
)
def test_dot_products_of_floats(name: str, kind: str, arch: str) -> None:
    """Products are exact in single precision; how the sum of three is rounded is the card's."""
    generator = numpy.random.default_rng(SEED)
    values = [generator.standard_normal((COUNT, 2)).astype(numpy.float32) for _ in range(2)]
    words: list[Array]
    exact: list[Array]
    if kind == "b":
        words = [v.view(numpy.uint32) >> 16 for v in values]
        exact = [(w << 16).view(numpy.float32) for w in words]
        words = [w[:, 0] | w[:, 1] << 16 for w in words]
    else:
        halves = [v.astype(numpy.float16) for v in values]
        words, exact = [h.view(numpy.uint32)[:, 0] for h in halves], halves
    z = generator.standard_normal(COUNT).astype(numpy.float32)
    word = {"f": "half", "b": "bfloat"}[kind]
    arguments = f"<2 x {word}> %x{kind}, <2 x {word}> %y{kind}, float %zf, i1 false"
    given = dotted(name, arguments, "float"), "i32", ["i32"] * 3
    found, emulator = on_card(*given, *words, z.view(numpy.uint32), arch=arch)

    wanted = (exact[0].astype("d") * exact[1].astype("d")).sum(1) + z
    numpy.testing.assert_allclose(found.view(numpy.float32), wanted, rtol=1e-5, atol=1e-6)
    assert any(name.startswith("v_dot") for name in emulator.executed)
