"""Single nodes computed on the host by `onnx.reference`: shapes, axes, strings, small constants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from tiny_onnx.values import Data

__all__ = ["evaluated"]

REPEATS: Final = ("max_skip_count", "ngram_indexes")
"""Attributes of TfIdfVectorizer that say how long its reference runs, whatever the input."""
MOST_REPEATS: Final = 1 << 20


def evaluated(node: NodeProto, arrays: Sequence[Data], version: int) -> list[Data] | None:
    """The outputs of a node for its inputs in order, None where the reference cannot compute it."""
    numbers = (n for each in node.attribute if each.name in REPEATS for n in (each.i, *each.ints))
    if max(numbers, default=0) > MOST_REPEATS:
        return None
    try:
        evaluator = _evaluator(node.SerializeToString(), node.domain, version)
        given = {
            name: each
            for name, each in zip(node.input, arrays, strict=True)
            if name and each is not None
        }
        with numpy.errstate(all="ignore"):
            outputs = evaluator.run(None, given)
    except Exception:
        return None
    if not all(isinstance(each, numpy.ndarray | numpy.generic) for each in outputs):
        return None
    return [numpy.asarray(each) for each in outputs]


@lru_cache(4096)
def _evaluator(node: bytes, domain: str, version: int) -> ReferenceEvaluator:
    return ReferenceEvaluator(NodeProto.FromString(node), opsets={domain: version, "": version})
