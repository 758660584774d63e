"""Partial attention: queries over some of the keys, and the combination of such results.

Floor 5. Each part has the greatest score of a query, the total of exp(score - greatest), and the
values so weighed (M. Milakov & N. Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from tinycore.dtype import dtypes, least_upper_dtype
from tinycore.errors import ShapeError
from tinycore.tensor.checks import broadcast_shapes
from tinycore.tensor.composed import Composed
from tinycore.tensor.pixels import is_fixed
from tinycore.uop.node import UOp
from tinycore.uop.op import APPROXIMATE, Op
from tinycore.uop.size import greatest

LEAST_PART: Final = 64
"""Keys of a part, at least, where parts of them are seen at once."""

T = TypeVar("T", bound=Composed)


@dataclass(frozen=True)
class Seen(Generic[T]):
    """Partial attention over some keys: total of exp(score - top), and the values so weighed."""

    top: T
    """The greatest score; -inf where all are masked, and nothing is seen."""
    total: T
    weighed: T
    is_masked: bool

    def stored(self) -> Seen[T]:
        """The same in memory: weights that are not added up before they are needed are stored."""
        top, total, weighed = [t.contiguous() for t in (self.top, self.total, self.weighed)]
        return Seen(top, total, weighed, self.is_masked)

    def result(self, query: T, value: T) -> T:
        """The mean of the values; 0 where nothing is seen."""
        return self.mean().cast(least_upper_dtype(query.dtype, value.dtype))

    def mean(self) -> T:
        """The same in the type of sums."""
        # Dividing the weighed values is less work than dividing every weight. The total comes first
        # in the product, and so do the kernels that it needs: it ties each factor to its piece.
        return self.where_nothing(1, self.total).reciprocal() * self.weighed

    def logarithm(self) -> T:
        """log of the sum of exp(score); inf where nothing is seen, which makes every weight 0."""
        # The maximum second, as kernels come in the order of sources: it needs no weights, and
        # the scores of all pieces would wait for these.
        return self.where_nothing(math.inf, self.total.log() + self.top)

    def where_nothing(self, number: float, x: T) -> T:
        """A number for queries that see nothing, and what is given for others."""
        return self.total.eq(0).where(number, x) if self.is_masked else x


def combine_all(parts: Sequence[Seen[T]]) -> Seen[T]:
    """Attention over all pieces of the keys, combined from their partial results."""
    return (
        parts[0] if len(parts) == 1 else functools.reduce(combine_pair, [p.stored() for p in parts])
    )


def combine_parts(parts: Seen[T]) -> Seen[T]:
    """Attention over parts of the keys, along the axis before rows, combined: the mean of their
    results by their totals, as by a softmax, whose rows lie side by side in a kernel of its own."""
    logarithm = (parts.total.log() + parts.top).squeeze(-1).transpose(-2, -1).contiguous()
    top = logarithm.max(-1, keepdim=True)
    powers = (logarithm - finite(top)).exp()
    total = powers.sum(-1, keepdim=True)
    divisor = replace(parts, total=total).where_nothing(1, total)
    weights = (powers * divisor.reciprocal()).contiguous().transpose(-2, -1).unsqueeze(-1)
    is_seen = total.ne(0).cast(total.dtype) if parts.is_masked else total.const_like(1)
    weighed = (weights * parts.mean().contiguous()).sum(-3)
    return Seen(divisor.log() + finite(top), is_seen, weighed, parts.is_masked)


def combine_pair(seen: Seen[T], more: Seen[T]) -> Seen[T]:
    """Partial attention over some pieces of the keys and one more, as in online softmax.

    Not over all pieces at once: kernels run in the order of sources, and the maximum of all pieces
    would be a source of every factor. The scores of all pieces would then be alive at the same
    time.
    """
    top = seen.top.maximum(more.top)
    before, now = [(p.top - finite(top)).exp() for p in (seen, more)]
    total = seen.total * before + more.total * now
    weighed = seen.weighed * before + more.weighed * now
    return Seen(top, total, weighed, seen.is_masked or more.is_masked).stored()


def masked(scores: T, mask: T | int | None) -> T:
    """Scores less what a mask hides.

    A number is the position of the first query as seen from the first key.
    """
    if mask is None:
        return scores
    if isinstance(mask, int):
        mask = scores.const_like(True, dtypes.bool).tril(mask)
    return mask.where(scores, -math.inf) if mask.dtype is dtypes.bool else scores + mask


def approximate_exp(x: T) -> T:
    """exp of differences from a maximum, of which halves alone are made: a device may approximate
    it."""
    return x._from_node(UOp(Op.EXP, x.dtype, (x.uop,), APPROXIMATE))


def thinned(weights: T, kept: T | None, p: float) -> T:
    """Weights after dropout with probability p, which keeps some of them."""
    return weights if kept is None else kept.where(weights * (1 / (1 - p)), 0)


def part_of(mask: T | int | None, keys: slice) -> T | int | None:
    """The part of a mask for some keys; None if all queries see these."""
    if isinstance(mask, int):
        return None if mask >= keys.stop - 1 else mask - keys.start
    return None if mask is None else mask[..., keys]


def length_of_part(seen: int, parts: int) -> int:
    """Keys of each of some parts of all, at most; of a number that varies in whole blocks."""
    if is_fixed((seen,)) or parts == 1:
        return greatest(seen) // parts
    return LEAST_PART * -(-greatest(seen) // (LEAST_PART * parts))


def of_one_shape(
    query: T, key: T, value: T, mask: T | int | None
) -> tuple[T, T, T, T | int | None]:
    """Operands repeated along the axes before the last two, and a mask for each query and key."""
    given = [query, key, value, *([mask] if isinstance(mask, Composed) else ())]
    shape = broadcast_shapes("scaled_dot_product_attention", *(t.shape[:-2] for t in given))
    if isinstance(mask, Composed):
        mask = mask.expand(*shape, query.shape[-2], key.shape[-2])
    query, key, value = [t.expand(*shape, *t.shape[-2:]) for t in given[:3]]
    return query, key, value, mask


def check_shapes(query: Composed, key: Composed, value: Composed) -> None:
    """Raises ShapeError for queries, keys and values that do not belong together."""
    shapes = query.shape, key.shape, value.shape
    if (
        min(map(len, shapes)) < 2
        or shapes[0][-1] != shapes[1][-1]
        or shapes[1][-2] != shapes[2][-2]
    ):
        raise ShapeError(
            "scaled_dot_product_attention: queries (.., length, d), keys (.., seen, d) and values "
            f"(.., seen, e) do not fit, got shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )


def root(width: int) -> float:
    """Divisor of the scores; those of queries without numbers are 0 in any case."""
    return math.sqrt(width) or 1.0


def finite(top: T) -> T:
    """A maximum that can be subtracted: 0 in place of -inf, where all is masked."""
    return top.eq(-math.inf).where(0, top)


def turned(x: T) -> T:
    """The transposed matrices: `mT`, which a later file of Tensor adds, for the shapes checked
    here.
    """
    return x.transpose(-2, -1)
