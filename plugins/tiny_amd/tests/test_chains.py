"""Attention as one kernel by WMMA and MFMA: on cards that the emulator plays, against NumPy.

RDNA4 and CDNA3 compute transposed products, whose sums are an operand as they are; of RDNA3 the
halves of a wave exchange what they hold of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy
import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI31, NAVI48
from matrix_programs import TOLERANCES, MatrixPrograms, for_few_threads, noted
from simulated_amd import backend_of
from tensor_programs import TensorPrograms, numbers

from tiny_amd.arch import ARCHS
from tiny_amd.llvm import LlvmCompiler
from tinycore import Context, Tensor, Variable, dtypes
from tinycore.dtype import DType
from tinycore.plugin import register, unregister

NARROW: Final = [dtypes.half, dtypes.bfloat16]
NAMES: Final = {"gfx1100": ".wmma.", "gfx1201": ".wmma.", "gfx942": ".mfma."}
CARDS: Final = dict(zip(NAMES, (NAVI31, NAVI48, MI300), strict=True))

each_narrow = pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module", params=CARDS)
def programs(request: pytest.FixtureRequest) -> Iterator[MatrixPrograms]:
    """Programs on a card that few threads keep busy."""
    register(for_few_threads(backend_of(Machine((CARDS[request.param],)))))
    names = dict.fromkeys(NARROW, NAMES[request.param])
    with Context(DEV="AMD"):
        yield MatrixPrograms(TensorPrograms("AMD"), names, dict.fromkeys(NARROW, dtypes.float32))
    unregister("AMD")


@pytest.mark.sample(9)
@each_narrow
@pytest.mark.parametrize(("keys", "width"), [(64, 32), (40, 32), (40, 40)])
def test_attention_is_one_kernel(
    dtype: DType, keys: int, width: int, programs: MatrixPrograms
) -> None:
    with noted() as sources:
        programs.attends(dtype, sources, keys, width)


@pytest.mark.sample(3)
def test_attention_over_a_number_of_keys_known_at_launch_is_one_program(
    programs: MatrixPrograms,
) -> None:
    given = [programs.tensor(numbers(2, 72, 32, seed=seed), dtypes.half) for seed in range(3)]
    query, key, value = (x.float().numpy().astype("d") for x in given)
    with noted() as sources:
        for length in (40, 72, 9):
            n = Variable("length", 1, 72).bind(length)
            q, k, v = (x[:, :n] for x in given)
            found = q.scaled_dot_product_attention(k, v, is_causal=True)
            scores = query[:, :length] @ key[:, :length].transpose(0, 2, 1) / numpy.sqrt(32)
            scores = numpy.where(numpy.tril(numpy.ones((length, length))), scores, -numpy.inf)
            weights = numpy.exp(scores - scores.max(-1, keepdims=True))
            expected = weights / weights.sum(-1, keepdims=True) @ value[:, :length]
            programs.programs.close(found.float(), expected, 3 * TOLERANCES[dtypes.half])

    assert sources.count(programs.names[dtypes.half]) == 1


@pytest.mark.slow
@each_narrow
def test_gradients_of_attention_are_kernels_without_scores_in_memory(
    dtype: DType, programs: MatrixPrograms
) -> None:
    values = [numbers(1, 528, 16, seed=seed) for seed in range(4)]
    given = [programs.tensor(x, dtype) for x in values]
    query, key, value, slope = (x.float().numpy().astype("d") for x in given)
    leaves = [x.requires_grad_() for x in given[:3]]
    with noted() as sources:
        result = leaves[0].scaled_dot_product_attention(leaves[1], leaves[2])
        (result * given[3]).sum().backward()
        found = [leaf.grad for leaf in leaves]
        Tensor.realize(*(x for x in found if x is not None))
    scores = query @ key.transpose(0, 2, 1) / 4
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    slopes = slope @ value.transpose(0, 2, 1)
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True)) / 4
    of_key, of_value = (x.transpose(0, 2, 1) for x in (slopes, weights))
    expected = (slopes @ key, of_key @ query, of_value @ slope)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours is not None
        programs.programs.close(ours.float(), theirs, 8 * TOLERANCES[dtype])
    assert sources.count(programs.names[dtype]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "width"), [("gfx950", 64), ("gfx950", 128), ("gfx1201", 192), ("gfx1201", 256)]
)
def test_such_attention_is_one_kernel_without_scratch(arch: str, width: int) -> None:
    with Context(DEV=f"NULL:LLVM:{arch}"), noted() as sources:
        given = (Tensor.empty(1, 64, 1000, width, dtype=dtypes.half).realize() for _ in range(3))
        query, key, value = given
        query.scaled_dot_product_attention(key, value, is_causal=True).realize()

    (source,) = sources.texts
    assert ".wmma." in source or ".mfma.f32.16x16x16" in source
    stated = dict(re.findall(r"\.(\w+):\s+(\d+)", LlvmCompiler(arch).assembly(source)))
    assert stated["private_segment_fixed_size"] == stated["vgpr_spill_count"] == "0"


DISTINCT: Final = {
    (facts.matrix, facts.thread_registers): name for name, facts in ARCHS.items() if facts.matrix
}
"""One architecture of those whose matrix instructions and registers are the same."""


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "turn"), [(n, i % 2) for i, n in enumerate(DISTINCT.values())])
def test_attention_of_each_architecture_compiles_without_scratch(arch: str, turn: int) -> None:
    """Each type and each width of heads, which pair otherwise on every other architecture."""
    for dtype, width in zip(NARROW, (128, 64) if turn else (64, 128), strict=True):
        with Context(DEV=f"NULL:LLVM:{arch}"), noted() as sources:
            given = [Tensor.empty(2, 8, 1024, width, dtype=dtype).realize() for _ in range(4)]
            leaves = [x.requires_grad_() for x in given[:3]]
            result = leaves[0].scaled_dot_product_attention(leaves[1], leaves[2])
            (result * given[3]).sum().backward()
            Tensor.realize(result, *(x.grad for x in leaves if x.grad is not None))
        products = [text for text in sources.texts if ".wmma." in text or ".mfma." in text]
        assert products
        for source in products:
            assembly = LlvmCompiler(arch).assembly(source)
            stated = dict(re.findall(r"\.(\w+):\s+(\d+)", assembly))
            assert stated["private_segment_fixed_size"] == stated["vgpr_spill_count"] == "0"
