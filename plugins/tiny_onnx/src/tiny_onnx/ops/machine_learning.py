"""The operators of ai.onnx.ml: linear models and scalers on the device, the rest on the host."""

from __future__ import annotations

import numpy

from tiny_onnx.call import Call
from tiny_onnx.ops.detection import on_host
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor, dtypes

MACHINE_LEARNING = "ai.onnx.ml"
OF_LABELS = (
    "ArrayFeatureExtractor", "CategoryMapper", "DictVectorizer", "FeatureVectorizer", "Imputer",
    "LabelEncoder", "LinearClassifier", "OneHotEncoder", "SVMClassifier", "SVMRegressor",
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap", "CastMap",
)  # fmt: skip
"""Operators of labels, strings, maps and trees."""


operator(*OF_LABELS, domain=MACHINE_LEARNING)(on_host)


def vector(call: Call, name: str, default: float) -> Tensor:
    """An attribute that is a list of numbers."""
    return Tensor(numpy.array(call.get(name, [default]), numpy.float32), device=call.run.device)


@operator("Scaler", domain=MACHINE_LEARNING)
def scaler(call: Call) -> Data:
    """(x - offset) * scale by feature."""
    x = call.tensor(0).cast(dtypes.float32)
    return (x - vector(call, "offset", 0)) * vector(call, "scale", 1)


@operator("Binarizer", domain=MACHINE_LEARNING)
def binarizer(call: Call) -> Data:
    """1 above a threshold, else 0."""
    x = call.tensor(0)
    return (x > call.real("threshold", 0.0)).cast(x.dtype)


@operator("Normalizer", domain=MACHINE_LEARNING)
def normalizer(call: Call) -> Data:
    """Rows divided by their maximum, 1-norm or 2-norm."""
    x = call.tensor(0).cast(dtypes.float32)
    kind = call.get("norm", "MAX")
    if kind == "MAX":
        size = x.abs().max(-1, keepdim=True)
    elif kind == "L1":
        size = x.abs().sum(-1, keepdim=True)
    else:
        size = x.square().sum(-1, keepdim=True).sqrt()
    return (size == 0).where(x, x / size)


@operator("LinearRegressor", domain=MACHINE_LEARNING)
def linear_regressor(call: Call) -> Data:
    """x @ coefficients.T + intercepts."""
    x = call.tensor(0).cast(dtypes.float32)
    weights = vector(call, "coefficients", 0).reshape(int(call.get("targets", 1)), -1)
    result = x.matmul(weights.transpose())
    if "intercepts" in call.attributes:
        result = result + vector(call, "intercepts", 0)
    if call.get("post_transform", "NONE") != "NONE":
        raise call.unsupported(f"post_transform {call.get('post_transform')!r} of regressors.")
    return result
