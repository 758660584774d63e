"""Loss functions.

Floor 5. `reduction` is "mean", "sum" or "none". Class scores have their classes on axis 1 (or the
only axis), labels are integers with one axis less, or probabilities of the scores' shape.
"""

# ruff: noqa: N803, N806  `Y` is what tinygrad\'s users call labels

from __future__ import annotations

from typing import Literal, Self

from tinycore.dtype import dtypes, least_upper_dtype, sum_acc_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor.checks import floating_dtype, integer_dtype
from tinycore.tensor.methods.templates import templated
from tinycore.tensor.methods.windows import Windows
from tinycore.uop.node import UOp
from tinycore.uop.shape import Shape

Reduction = Literal["mean", "sum", "none"]


class Losses(Windows):
    """Loss functions: one number for the error of a prediction."""

    __slots__ = ()

    def _reduced(self, reduction: Reduction) -> Self:
        """The mean, the sum, or all of it. Raises ArgumentError for another word."""
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f"reduction {reduction!r} is none of 'mean', 'sum', 'none'")
        return self if reduction == "none" else self.mean() if reduction == "mean" else self.sum()

    def _averaged(self, weight: Self) -> Self:
        """The sum of all over their weight, in at least float32: a sum of float16 overflows."""
        wide = self.cast(sum_acc_dtype(self.dtype))
        return (wide.sum() / weight.cast(wide.dtype)).cast(self.dtype)

    def binary_crossentropy(self, Y: Self, reduction: Reduction = "mean") -> Self:
        """-Y log(p) - (1 - Y) log(1 - p) of probabilities p; logarithms stop at -100.

        `reduction` is "mean", "sum" or "none". Raises ArgumentError for another, DTypeError for p
        that are no floats.

        >>> p = Tensor([0.5, 0.25])
        >>> p.binary_crossentropy(Tensor([1.0, 0.0]), "none").numpy().round(4)
        array([0.6931, 0.2877], dtype=float32)
        """
        floating_dtype("binary_crossentropy", self.dtype)
        p, truth = self._broadcasted("binary_crossentropy", Y)
        hit, miss = p.log().clamp(min_=-100.0), (1 - p).log().clamp(min_=-100.0)
        loss = -truth * hit - (1 - truth) * miss
        return loss._called(slopes_of_binary_crossentropy, p, truth)._reduced(reduction)

    @templated
    def binary_crossentropy_logits(
        self, Y: Self, reduction: Reduction = "mean", pos_weight: Self | None = None
    ) -> Self:
        """`binary_crossentropy` of sigmoid(a), without overflow; `pos_weight` multiplies Y log(p).

        >>> scores, truth = Tensor([0.0, -1000.0]), Tensor([1.0, 1.0])
        >>> scores.binary_crossentropy_logits(truth, "none").numpy().round(4)
        array([6.931e-01, 1.000e+03], dtype=float32)
        """
        floating_dtype("binary_crossentropy_logits", self.dtype)
        Y = Y._as_float()
        weight = Y if pos_weight is None else Y * pos_weight
        return (-(weight * self.logsigmoid()) - (1 - Y) * (-self).logsigmoid())._reduced(reduction)

    @templated
    def sparse_categorical_crossentropy(
        self,
        Y: Self,
        ignore_index: int = -1,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Self:
        """Cross-entropy of scores (.., classes) with integer labels (..).

        Labels equal to `ignore_index` do not count. Smoothing mixes in a uniform distribution.
        Raises ShapeError when they do not fit, DTypeError for labels that are no integers,
        ArgumentError for smoothing outside [0, 1].

        >>> scores = Tensor([[0.0, 0.0], [9.0, 1.0]])
        >>> round(scores.sparse_categorical_crossentropy(Tensor([1, -1])).item(), 4)
        0.6931
        """
        integer_dtype("sparse_categorical_crossentropy", Y.dtype, "label")
        if Y.shape != self.shape[:-1]:
            raise ShapeError(
                f"sparse_categorical_crossentropy: labels {Y.shape} do not fit scores {self.shape}"
            )
        check_smoothing(label_smoothing)
        logs, axis = self.log_softmax(), self.ndim - 1
        return logs._at_labels(Y, axis, None, ignore_index, reduction, label_smoothing)

    @templated
    def cross_entropy(
        self,
        Y: Self,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        weight: Self | None = None,
    ) -> Self:
        """Cross-entropy of scores (N, C, ...) with labels (N, ...) or probabilities (N, C, ...).

        Labels equal to `ignore_index` do not count. Any other label that names no class adds 0, but
        counts in the mean. `weight` (C,) weighs classes; the mean of labels is then over their
        weights. Raises ShapeError when they do not fit, ArgumentError for smoothing outside [0, 1].

        >>> scores = Tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> scores.cross_entropy(Tensor([1, 0]), "none").numpy().round(4)
        array([0.6931, 0.3133], dtype=float32)
        >>> scores.cross_entropy(Tensor([[0.5, 0.5], [0.5, 0.5]]), "none").numpy().round(4)
        array([0.6931, 0.8133], dtype=float32)
        """
        check_smoothing(label_smoothing)
        scores_with_classes("cross_entropy", self.shape)
        axis = 0 if self.ndim == 1 else 1
        labels = Y.ndim < self.ndim
        if labels:
            integer_dtype("cross_entropy", Y.dtype, "label")
        if Y.shape != (self.shape[:axis] + self.shape[axis + 1 :] if labels else self.shape):
            raise ShapeError(
                f"cross_entropy: labels of shape {Y.shape} do not fit scores of shape {self.shape}"
            )
        logs, classes = self.log_softmax(axis), self.shape[axis]
        own = None if weight is None else logs._along_classes("cross_entropy", weight, axis)
        if labels:
            return logs._at_labels(Y, axis, own, ignore_index, reduction, label_smoothing)
        if label_smoothing:
            Y = Y * (1 - label_smoothing) + label_smoothing / max(1, classes)
        return (-((logs if own is None else logs * own) * Y).sum(axis))._reduced(reduction)

    def _along_classes(self, name: str, weight: Self, axis: int) -> Self:
        """The weight of each class, along the axis of classes. Raises ShapeError."""
        classes = self.shape[axis]
        if weight.shape != (classes,):
            raise ShapeError(
                f"{name}: weight has shape {weight.shape}, not {(classes,)}, one a class"
            )
        return weight.reshape([classes if a == axis else 1 for a in range(self.ndim)])

    def _at_labels(
        self,
        Y: Self,
        axis: int,
        own: Self | None,
        ignore_index: int | None,
        reduction: Reduction,
        label_smoothing: float = 0.0,
    ) -> Self:
        """Losses by log-probabilities at labels, the classes weighed by `own` as in torch."""
        # selected, as a product with 0 would be NaN where a class has the score -inf
        hot = Y._hot(self.shape[axis]).movedim(-1, axis)
        weighed = self if own is None else self * own
        picked = hot.where(weighed, 0).sum(axis)
        if label_smoothing:
            picked = picked * (1 - label_smoothing) + weighed.mean(axis) * label_smoothing
        counted = Y.const_like(True, dtypes.bool) if ignore_index is None else Y.ne(ignore_index)
        loss = counted.where(-picked, 0)
        if reduction != "mean":
            return loss._reduced(reduction)
        if own is None:
            return loss._averaged(counted.sum())
        shares = counted.where(hot.where(own, 0).sum(axis), 0)
        return loss._averaged(shares.cast(sum_acc_dtype(shares.dtype)).sum())

    def nll_loss(
        self,
        Y: Self,
        weight: Self | None = None,
        ignore_index: int | None = -100,
        reduction: Reduction = "mean",
    ) -> Self:
        """-a[.., label, ..] of log-probabilities (N, C, ...) and labels (N, ...).

        Elements are weighted by class. The mean is over the weights that count: not those of labels
        equal to `ignore_index`. Raises ShapeError when they do not fit.

        >>> logs = Tensor([[-1.0, -2.0], [-3.0, -4.0]])
        >>> labels = Tensor([1, 0])
        >>> logs.nll_loss(labels).item(), logs.nll_loss(labels, ignore_index=0).item()
        (2.5, 2.0)
        """
        integer_dtype("nll_loss", Y.dtype, "label")
        scores_with_classes("nll_loss", self.shape)
        axis = 0 if self.ndim == 1 else 1
        if Y.shape != self.shape[:axis] + self.shape[axis + 1 :]:
            raise ShapeError(
                f"nll_loss: labels of shape {Y.shape} do not fit scores of shape {self.shape}"
            )
        own = None if weight is None else self._along_classes("nll_loss", weight, axis)
        return self._as_float()._at_labels(Y, axis, own, ignore_index, reduction)


def slopes_of_binary_crossentropy(g: UOp, call: UOp) -> list[Losses]:
    """(p - Y) / (p (1 - p)) of p, whose divisor is at least 1e-12, and log(1 - p) - log(p) of Y."""
    wide = least_upper_dtype(call.dtype, dtypes.float32)  # float16 holds no 1e-12
    p, truth, slope = (Losses._from_node(n).cast(wide) for n in (*call.src[1:], g))
    of_p = slope * (p - truth) / (p * (1 - p)).clamp(min_=1e-12)
    of_truth = slope * ((1 - p).log().clamp(min_=-100.0) - p.log().clamp(min_=-100.0))
    return [of_p.cast(call.dtype), of_truth.cast(call.dtype)]


def scores_with_classes(name: str, shape: Shape) -> None:
    """Raises ShapeError for scores without an axis of classes."""
    if not shape:
        raise ShapeError(f"{name}: scores of shape () have no axis of classes")


def check_smoothing(label_smoothing: float) -> None:
    """Raises ArgumentError outside [0, 1]."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
