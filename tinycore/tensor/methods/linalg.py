"""Matrix products and einsum.

Floor 5. A product is a broadcast multiplication and a sum. `dtype` is the type the sum is
accumulated in; the result has the operands' common dtype, or `dtype` when that is given.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from tinycore.config import settings
from tinycore.dtype import DType, DTypeLike, dtypes, least_upper_dtype, to_dtype
from tinycore.errors import ArgumentError, ArgumentTypeError, ShapeError
from tinycore.tensor.checks import broadcast_shapes, same_device, same_size
from tinycore.tensor.methods.operands import operators
from tinycore.tensor.methods.pixels import product_operands
from tinycore.tensor.methods.sorting import Sorting
from tinycore.tensor.methods.templates import templated


class Linalg(Sorting):
    """Matrix products, and methods based on them."""

    __slots__ = ()

    @templated
    def dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """The matrix product by NumPy's rules.

        (.., m, k) and (.., k, n) -> (.., m, n); a single axis stands for a row on the left and a
        column on the right. Leading axes are broadcast. Raises ShapeError when the inner sizes
        differ.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> x.dot(Tensor([[1, 0], [1, 1]])).tolist(), x.dot(Tensor([1, 1])).tolist()
        ([[3, 2], [7, 4]], [3, 7])
        >>> Tensor.zeros(5, 1, 2, 3).dot(Tensor.zeros(4, 3, 2)).shape
        (5, 4, 2, 2)
        """
        if self.ndim == 0 or w.ndim == 0:
            raise ShapeError(
                f"dot: both operands need an axis, got shapes {self.shape} and {w.shape}"
            )
        same_device("dot", [self.device, w.device])
        inner = w.shape[-2] if w.ndim > 1 else w.shape[-1]
        same_size("dot", "the inner sizes", self.shape[-1], inner, self.shape, w.shape)
        leading = broadcast_shapes("dot", self.shape[:-2], w.shape[:-2])
        if self.ndim == 1 < w.ndim:
            return self.unsqueeze(0).dot(w, dtype).squeeze(-2)
        x = self
        if settings.IMAGE:
            columns = w.shape[1:][-1:]
            x, w = product_operands((x, w), (*leading, *x.shape[-2:], *columns))
        if w.ndim == 1:
            return x._product_sum([w], [-1], dtype)
        return x.unsqueeze(-2)._product_sum([w.transpose(-1, -2).unsqueeze(-3)], [-1], dtype)

    def _product_sum(
        self, factors: Sequence[Self], axes: Sequence[int], dtype: DTypeLike | None
    ) -> Self:
        """The broadcast product with all factors, summed over some of its axes.

        Every product of tensors goes through here, where the dtype of accumulation is decided.
        """
        common = least_upper_dtype(self.dtype, *[w.dtype for w in factors])
        wide = accumulator(common) if dtype is None else to_dtype(dtype)
        product = self.cast(wide).uprod(*[w.cast(wide) for w in factors])
        if wide is dtypes.bool:
            return product.any(axes)
        return product.sum(axes, dtype=wide).cast(common if dtype is None else wide)

    def matmul(self, x: Self, reverse: bool = False, dtype: DTypeLike | None = None) -> Self:
        """`dot`, or with operands exchanged.

        >>> x, y = Tensor([[1, 2], [3, 4]]), Tensor([[0, 1], [1, 0]])
        >>> x.matmul(y).tolist(), x.matmul(y, reverse=True).tolist(), (x @ y).tolist()
        ([[2, 1], [4, 3]], [[3, 4], [1, 2]], [[2, 1], [4, 3]])
        """
        return x.dot(self, dtype) if reverse else self.dot(x, dtype)

    __matmul__, __rmatmul__ = operators(matmul)

    @templated
    def linear(
        self, weight: Self, bias: Self | None = None, dtype: DTypeLike | None = None
    ) -> Self:
        """x @ weight + bias; a weight of one axis multiplies element by element.

        >>> weight, bias = Tensor([[1, 0, 1], [0, 1, 1]]), Tensor([10, 20, 30])
        >>> Tensor([1, 2]).linear(weight, bias).tolist()
        [11, 22, 33]
        """
        if dtype is not None:
            target = to_dtype(dtype)
            return self.cast(target).linear(
                weight.cast(target), None if bias is None else bias.cast(target)
            )
        x = self * weight if weight.ndim == 1 else self.dot(weight)
        return x if bias is None else x + bias

    def sequential(self, ll: Sequence[Any]) -> Self:
        """The functions applied one after another.

        Raises ArgumentTypeError for what is no function. `Any`, as a list of layers and functions
        is a `list[object]` to type checkers.

        >>> Tensor([-1.0, 4.0]).sequential([Tensor.relu, lambda x: x + 1]).tolist()
        [1.0, 5.0]
        """
        for number, function in enumerate(ll):
            if not callable(function):
                raise ArgumentTypeError(
                    f"sequential: ll[{number}] is {function!r} of type {type(function).__name__}; "
                    "it must be a function"
                )
        x = self
        for function in ll:
            x = function(x)
        return x

    @classmethod
    def einsum(
        cls, formula: str, *operands: Self | Sequence[Self], dtype: DTypeLike | None = None
    ) -> Self:
        """Einstein's sum: letters name axes, those that the result does not name are summed.

        "ij,jk->ik" is the matrix product; "..." stands for axes to broadcast; without an arrow the
        letters that occur once stay, in alphabetical order. Raises ArgumentError for a malformed
        formula, ShapeError when a letter has two sizes.

        Operands are multiplied from left to right; what is summed away does not wait for operands
        with further letters.

        >>> x, y = Tensor([[1, 2], [3, 4]]), Tensor([[1, 1], [0, 1]])
        >>> Tensor.einsum("ij,jk->ik", x, y).tolist(), Tensor.einsum("ii", x).item()
        ([[1, 3], [3, 7]], 5)
        >>> Tensor.einsum("...ij->...ji", Tensor.zeros(5, 2, 3)).shape
        (5, 3, 2)
        """
        tensors: list[Self] = [
            x for each in operands for x in ([each] if isinstance(each, cls) else each)
        ]
        inputs, output = letters_of(formula, [t.ndim for t in tensors])
        same_device("einsum", [t.device for t in tensors])
        named = [diagonal_of(t, letters) for t, letters in zip(tensors, inputs, strict=True)]
        sizes: dict[str, int] = {}
        for x, letters in named:
            note_sizes(formula, letters, x, sizes)
        # as in a product of matrices: batch, rows, columns, steps
        everything = sorted(sizes, key=lambda c: (c not in output, [c not in n for n in inputs]))
        common = least_upper_dtype(*[t.dtype for t in tensors])
        wide = accumulator(common) if dtype is None else to_dtype(dtype)
        total = contracted([x for x, _ in named], [n for _, n in named], everything, output, wide)
        inside = [c for c in everything if c in output]
        result = total.permute([inside.index(c) for c in output])
        return result.cast(common if dtype is None else wide)

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes split, merged and reordered as in einops: "b (h w) c -> b c h w" with h=2.

        Raises ArgumentError for a malformed formula, ShapeError when sizes do not fit.

        >>> x = Tensor.arange(8).reshape(1, 4, 2)
        >>> x.rearrange("b (h w) c -> b c h w", h=2).tolist()
        [[[[0, 2], [4, 6]], [[1, 3], [5, 7]]]]
        """
        left, right = grouped(formula, self.ndim)
        split, names = ([n for group in side for n in group if n != "1"] for side in (left, right))
        if sorted(names) != sorted(set(split)) or len(split) != len(names):
            raise ArgumentError(f"rearrange: both sides of {formula!r} must name the same axes")
        if missing := sizes.keys() - {name for group in left for name in group}:
            raise ArgumentError(f"rearrange: {formula!r} has no axis {', '.join(sorted(missing))}")
        for group, size in zip(left, self.shape, strict=True):
            known = math.prod(sizes.get(name, 1) for name in group)
            unknown = [name for name in group if name not in sizes and name != "1"]
            fits = known == size if not unknown else known > 0 and size % known == 0
            if len(unknown) > 1 or not fits:
                raise ShapeError(
                    f"rearrange: {formula!r} does not fit shape {self.shape} with {sizes}"
                )
            sizes |= dict.fromkeys(unknown, size // known)
        x = self.reshape([sizes[name] for name in split]).permute(
            [split.index(name) for name in names]
        )
        return x.reshape(
            [math.prod(sizes[name] for name in group if name != "1") for group in right]
        )


AnyTensor = TypeVar("AnyTensor", bound=Linalg)


def accumulator(dtype: DType) -> DType:
    """The type products are summed in: float32 for narrow floats, where each product is exact."""
    return dtypes.float32 if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype


def contracted(
    tensors: Sequence[AnyTensor],
    letters: Sequence[str],
    everything: Sequence[str],
    output: str,
    wide: DType,
) -> AnyTensor:
    """The product of named tensors, with the axes of `everything` that the output has."""
    aligned = [
        x.permute([names.index(c) for c in everything if c in names]).reshape(
            [x.shape[names.index(c)] if c in names else 1 for c in everything]
        )
        for x, names in zip(tensors, letters, strict=True)
    ]

    def folded(factors: list[AnyTensor], gone: set[str], last: bool = False) -> AnyTensor:
        axes = [i for i, c in enumerate(everything) if c in gone]
        shape = [max(f.shape[i] for f in factors) for i in range(len(everything))]
        empty = [i for i in range(len(everything)) if any(f.shape[i] == 0 for f in factors)]
        kept = [1 if i in axes else 0 if i in empty else n for i, n in enumerate(shape)]
        kept = [n for c, n in zip(everything, kept, strict=True) if c in output] if last else kept
        return factors[0]._product_sum(factors[1:], axes, wide).reshape(kept)

    factors, seen = aligned[:1], set(letters[0])
    for number in range(1, len(aligned)):
        done = seen.difference(output, *letters[number:])
        if done and not seen.issuperset(letters[number]):
            factors, seen = [folded(factors, done)], seen - done
        factors.append(aligned[number])
        seen |= set(letters[number])
    return folded(factors, seen.difference(output), last=True)


def letters_of(formula: str, ranks: list[int]) -> tuple[list[str], str]:
    """The letters of every operand and of the result, ellipses spelled out in capital letters."""
    text = formula.replace(" ", "")
    sides = text.split("->")
    inputs = sides[0].split(",")
    terms = [term.replace("...", "", 1) for term in [*inputs, *sides[1:]]]
    if len(sides) > 2 or len(inputs) != len(ranks) or not re.fullmatch("[a-zA-Z]*", "".join(terms)):
        raise ArgumentError(f"einsum: {formula!r} does not describe {len(ranks)} operands")
    spare = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in text]
    hidden = [
        rank - len(letters.replace("...", "")) if "..." in letters else 0
        for letters, rank in zip(inputs, ranks, strict=True)
    ]
    most = max(hidden, default=0)
    dots = "".join(spare[:most])
    spelled = [
        letters.replace("...", dots[most - count :])
        for letters, count in zip(inputs, hidden, strict=True)
    ]
    for letters, rank in zip(spelled, ranks, strict=True):
        if len(letters) != rank:
            raise ShapeError(
                f"einsum: {formula!r} names {len(letters)} axes of an operand with {rank}"
            )
    if len(sides) == 2:
        output = sides[1].replace("...", dots)
    else:
        joined = "".join(inputs).replace(".", "")
        output = dots + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    if len(set(output)) != len(output) or set(output) - set("".join(spelled)):
        raise ArgumentError(
            f"einsum: the result of {formula!r} repeats a letter or names an unknown one"
        )
    return spelled, output


def diagonal_of(x: AnyTensor, letters: str) -> tuple[AnyTensor, str]:
    """Repeated letters reduced to one each, by taking diagonals."""
    while len(set(letters)) != len(letters):
        letter = next(c for c in letters if letters.count(c) > 1)
        first, second = letters.index(letter), letters.rindex(letter)
        same_size("einsum", f"the sizes of {letter!r}", x.shape[first], x.shape[second], x.shape)
        x = x.diagonal(0, first, second)
        letters = "".join(c for i, c in enumerate(letters) if i not in (first, second)) + letter
    return x, letters


def note_sizes(formula: str, letters: str, x: Linalg, sizes: dict[str, int]) -> None:
    """Remember the size of every letter. Raises ShapeError when one has two (other than 1)."""
    for letter, size in zip(letters, x.shape, strict=True):
        known = sizes.setdefault(letter, size)
        if known != size and 1 not in (known, size):
            raise ShapeError(f"einsum: {letter!r} in {formula!r} has sizes {known} and {size}")
        sizes[letter] = max(known, size)


def tokens_of(formula: str, side: str) -> list[str]:
    """Names, 1s, ellipses and groups in parentheses. Raises ArgumentError for anything else."""
    tokens = re.findall(r"\([^()]*\)|\.\.\.|\w+|\S", side)
    names = " ".join(tokens).replace("(", " ").replace(")", " ").split()
    strange = [n for n in names if not (n.isidentifier() or n in ("1", "..."))]
    alone = [t for t in tokens if t in ("(", ")")]
    if strange or alone or names.count("...") > 1:
        raise ArgumentError(
            f"rearrange: {formula!r} is not made of names, 1, one '...' a side, and groups in "
            "parentheses"
        )
    return tokens


def grouped(formula: str, rank: int) -> tuple[list[list[str]], list[list[str]]]:
    """Both sides of a rearrange formula as lists of axis groups, an ellipsis spelled out."""
    sides = formula.replace("…", "...").split("->")
    if len(sides) != 2:
        raise ArgumentError(f"rearrange: {formula!r} has no single arrow")
    tokens = [tokens_of(formula, side) for side in sides]
    hidden = rank - len([t for t in tokens[0] if t != "..."])
    dots = [f"_{i}" for i in range(hidden)] if "..." in tokens[0] else []
    result = []
    for side in tokens:
        groups: list[list[str]] = []
        for token in side:
            if token == "...":
                groups += [[name] for name in dots]
            else:
                inner = token.strip("()").replace("...", " ".join(dots)).split()
                groups.append(inner if token.startswith("(") else [token])
        result.append(groups)
    if len(result[0]) != rank:
        raise ShapeError(
            f"rearrange: {formula!r} names {len(result[0])} axes of a tensor with {rank}"
        )
    return result[0], result[1]
