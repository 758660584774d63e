"""Losses of classification."""

from __future__ import annotations

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor


def picked(call: Call, log_probability: Tensor) -> Data:
    """The negative log likelihood of each label, weighted, and reduced as the node says."""
    target = call.tensor(1)
    ignored = call.get("ignore_index", None)
    counts = None if ignored is None else (target != ignored)
    safe = target if counts is None else counts.where(target, 0)
    loss = -log_probability.gather(1, safe.unsqueeze(1)).squeeze(1)
    weight = None
    if call.has(2):
        weight = call.tensor(2).index_select(0, safe.reshape(-1)).reshape(*target.shape)
    if counts is not None:
        weight = counts.cast(loss.dtype) * (1 if weight is None else weight)
    if weight is not None:
        loss = loss * weight
    match call.get("reduction", "mean"):
        case "none":
            return loss
        case "sum":
            return loss.sum()
    return loss.mean() if weight is None else loss.sum() / weight.sum()


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(call: Call) -> Data:
    """The loss of log probabilities against labels."""
    return picked(call, call.tensor(0))


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(call: Call) -> tuple[Data, ...]:
    """The loss of scores against labels, and their log probabilities."""
    log_probability = call.tensor(0).log_softmax(1)
    return picked(call, log_probability), log_probability
