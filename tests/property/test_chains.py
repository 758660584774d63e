"""Random chains of products on limits of real cards: what is fused as a chain is planned as one.

The scheduler and the plan take the same answer (`render/chains.py`): a fused kernel that is planned
otherwise would compute the first product again for each column of the second one.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

import pytest

from tinycore import Context, Device, Tensor
from tinycore.dtype import DType, dtypes
from tinycore.errors import CompilerUnavailable, SettingError, UnknownDevice
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.chain import Chain
from tinycore.render.base import Limits
from tinycore.render.chains import units_of
from tinycore.schedule.access import Launch
from tinycore.schedule.product_chains import ProductChain
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

CARDS: Final = (
    *("NVRTC:sm_90a", "NVRTC:sm_80", "LLVM:gfx1100", "LLVM:gfx942", "LLVM:gfx950"),
    *("LLVM:gfx1201", "MSL:apple9"),
)
PROGRAMS: Final = 24
LENGTHS: Final = (1, 4, 33, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096)
WIDTHS: Final = (16, 32, 64, 64, 80, 96, 128, 128, 160, 192, 256)


def limits_of(card: str) -> Limits:
    """The limits of a card, for which kernels are planned without it."""
    with Context(DEV=f"NULL:{card}"):
        try:
            limits: Limits = Device["NULL"].toolchain.renderer.limits
        except (CompilerUnavailable, SettingError, UnknownDevice) as error:
            pytest.skip(str(error))
    return limits


def memory(*shape: int, dtype: DType) -> Tensor:
    """A tensor that nothing computes."""
    return Tensor.empty(*shape, dtype=dtype)


def stored(random: Random, dtype: DType, *shape: int) -> Tensor:
    """A tensor in memory whose axes lie in one of several orders."""
    *outer, rows, width = shape
    match random.randrange(4):
        case 0 if len(outer) == 2:
            return memory(outer[0], rows, outer[1], width, dtype=dtype).transpose(1, 2)
        case 1:
            return memory(*outer, width, rows, dtype=dtype).transpose(-1, -2)
        case 2:
            return memory(*outer, rows, 2 * width, dtype=dtype)[..., :width]
    return memory(*shape, dtype=dtype)


def attention(random: Random, dtype: DType) -> list[Tensor]:
    """Attention with masks, of heads that share keys or do not, and some of its gradients."""
    batch, heads = random.choice((1, 2, 4)), random.choice((1, 4, 8, 16, 32, 64))
    groups = random.choice((heads, heads, max(heads // 4, 1), 1))
    length, seen = random.choice(LENGTHS), random.choice(LENGTHS[2:])
    width = random.choice(WIDTHS)
    columns = random.choice((width, width, width, *WIDTHS))
    query = stored(random, dtype, batch, heads, length, width)
    key = stored(random, dtype, batch, groups, seen, width)
    value = stored(random, dtype, batch, groups, seen, columns)
    mask = random.choice((None, None, (length, seen), (batch, 1, length, seen)))
    kind = random.choice((dtypes.bool, dtypes.float32))
    given = None if mask is None else memory(*mask, dtype=kind)
    is_causal = mask is None and random.random() < 0.4
    leaves = [x.requires_grad_() for x in (query, key, value)] if random.random() < 0.4 else []
    result = query.scaled_dot_product_attention(
        key, value, given, is_causal=is_causal, enable_gqa=groups < heads
    )
    if leaves:
        (result * memory(*result.shape, dtype=dtype)).sum().backward()
    results = [result, *(x.grad for x in leaves if x.grad is not None)]
    if random.random() < 0.5:
        results[0] = result.transpose(1, 2).reshape(batch, length, heads * columns).contiguous()
    return results


def products(random: Random, dtype: DType) -> list[Tensor]:
    """Two products with something between them, of which one batch shares what another has."""
    heads, rows = random.choice((8, 64, 132)), random.choice((64, 100, 256, 1024))
    between, width = random.choice((64, 100, 512)), random.choice((16, 64, 128))
    one, other = (random.choice((heads, heads, 1)) for _ in range(2))
    a, b = memory(one, rows, width, dtype=dtype), memory(one, width, between, dtype=dtype)
    scores = a.expand(heads, rows, width).matmul(b, dtype=dtypes.float32)
    match random.randrange(4):
        case 0:
            made = scores.softmax(-1)
        case 1:
            made = scores.relu()
        case 2:
            made = (scores - scores.max(-1, keepdim=True)).exp()
        case _:
            made = scores / scores.sum(-1, keepdim=True)
    columns = random.choice((64, 128, 512))
    value = memory(other, between, columns, dtype=dtype).expand(heads, between, columns)
    return [made.cast(dtype).matmul(value, dtype=dtypes.float32)]


def by_hand(random: Random, dtype: DType) -> list[Tensor]:
    """Attention written out: weights are divided by their total, and then weigh values."""
    batch, heads = random.choice((1, 2, 4)), random.choice((1, 4, 8, 16, 32, 64))
    length, seen = random.choice(LENGTHS), random.choice(LENGTHS[2:])
    width, columns = random.choice(WIDTHS), random.choice(WIDTHS)
    wide = random.choice((None, dtypes.float32))
    query = stored(random, dtype, batch, heads, length, width).requires_grad_()
    key, value = (stored(random, dtype, batch, heads, seen, n) for n in (width, columns))
    scores = query.matmul(key.transpose(-2, -1), dtype=wide) / width**0.5
    match random.randrange(4):
        case 0:
            scores = scores.masked_fill(memory(1, 1, length, seen, dtype=dtypes.bool), -math.inf)
        case 1:
            visible = Tensor.ones(length, seen, dtype=dtypes.bool).tril()
            scores = visible.where(scores, -math.inf)
        case 2:
            scores = scores + memory(batch, 1, length, seen, dtype=scores.dtype)
    weights = scores.softmax(-1).cast(dtype)
    if random.random() < 0.3:
        weights = weights.dropout(0.1)
    result = weights.matmul(value, dtype=random.choice((None, dtypes.float32)))
    results = [result]
    if random.random() < 0.3:
        (result * memory(*result.shape, dtype=result.dtype)).sum().backward()
        results += [] if query.grad is None else [query.grad]
    if random.random() < 0.5:
        results[0] = result.transpose(1, 2).reshape(batch, length, heads * columns).contiguous()
    return results


def made_as_chains(monkeypatch: pytest.MonkeyPatch) -> list[UOp]:
    """A list to which each kernel is added that a chain makes."""
    made: list[UOp] = []
    chained = ProductChain.chained

    def noted(chain: ProductChain, whole: Launch) -> Launch | str:
        found = chained(chain, whole)
        made.extend([] if isinstance(found, str) else [found.ast])
        return found

    monkeypatch.setattr(ProductChain, "chained", noted)
    return made


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("card", CARDS)
def test_what_is_fused_as_a_chain_is_planned_as_one(
    card: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, random = limits_of(card), Random(f"{card} {seed}")
    kinds = list(dict.fromkeys(u.a for u in units_of(limits) if dtypes.is_float(u.a)))
    made = made_as_chains(monkeypatch)
    with Context(DEV=f"NULL:{card}", CCACHE=0, TRAINING=1):
        program = random.choice((attention, attention, products, by_hand, by_hand))
        items = Tensor.schedule(*program(random, random.choice(kinds)))

    for kernel in {item.ast for item in items if item.ast.op is not Op.COPY}.intersection(made):
        assert any(isinstance(step, Chain) for step in plan_for(kernel, limits))
