"""NumPy's functions on tensors: `numpy.exp(x)` is `x.exp()`, `array + x` is a tensor.

Floor 5. A function that is listed here builds a graph as a method does. Any other is computed by
NumPy on arrays of the elements, and gives an array: a method of the same name may mean something
else (`nonzero`, `size`, `transpose`).
"""

from __future__ import annotations

from typing import Any, Final

from tinycore._deferred import numpy

UNARY_UFUNCS: Final = {
    "absolute": "abs",
    "fabs": "abs",
    "negative": "neg",
    "rint": "round",
    "invert": "bitwise_not",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    **{
        name: name
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sqrt square reciprocal sin cos tan sinh cosh tanh "
            "floor ceil trunc sign isnan isinf isfinite logical_not"
        ).split()
    },
}
"""Functions of one operand, and the methods that they are."""

BINARY_UFUNCS: Final = {
    "add": "__add__",
    "subtract": "__sub__",
    "multiply": "__mul__",
    "divide": "__truediv__",
    "true_divide": "__truediv__",
    "floor_divide": "__floordiv__",
    "remainder": "__mod__",
    "power": "__pow__",
    "float_power": "__pow__",
    "matmul": "__matmul__",
    "bitwise_and": "__and__",
    "bitwise_or": "__or__",
    "bitwise_xor": "__xor__",
    "left_shift": "__lshift__",
    "right_shift": "__rshift__",
    "less": "__lt__",
    "less_equal": "__le__",
    "greater": "__gt__",
    "greater_equal": "__ge__",
    "equal": "eq",
    "not_equal": "ne",
    "maximum": "maximum",
    "minimum": "minimum",
    "fmod": "fmod",
    "copysign": "copysign",
    "logaddexp": "logaddexp",
}
"""Functions of two operands, and the methods of the first that they are."""


METHOD_FUNCTIONS: Final = frozenset(
    (
        "all any amax amin argmax argmin clip flip max mean min ndim prod shape squeeze std sum var"
    ).split()
)
"""Other functions that read a tensor's attributes and methods, which mean the same there."""


def called(kind: type[Any], function: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Result of a function of NumPy that is not universal; arrays, unless it is a method.

    `_implementation` is the function without its dispatcher (NEP 18).
    """
    if function.__name__ in METHOD_FUNCTIONS:
        return function._implementation(*given, **named)
    return function(*as_arrays(given, kind), **as_arrays(named, kind))


def as_arrays(given: Any, kind: type[Any]) -> Any:
    """Arguments with an array in place of each tensor, also in lists, tuples and dicts."""
    if isinstance(given, kind):
        return given.numpy()
    if isinstance(given, list):
        return [as_arrays(item, kind) for item in given]
    if type(given) is tuple:
        return tuple([as_arrays(item, kind) for item in given])
    if isinstance(given, dict):
        return {name: as_arrays(item, kind) for name, item in given.items()}
    return given


def applied(tensor: Any, ufunc: Any, method: str, inputs: tuple[Any, ...], named: Any) -> Any:
    """Result of a universal function on operands of which one is a tensor."""
    name = {1: UNARY_UFUNCS, 2: BINARY_UFUNCS}.get(len(inputs), {}).get(ufunc.__name__)
    if name is None or method != "__call__" or named:
        arrays = [x.numpy() if isinstance(x, type(tensor)) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **named)
    operands = [
        type(tensor)(x, device=tensor.device) if isinstance(x, numpy.ndarray) else x for x in inputs
    ]
    if not isinstance(operands[0], type(tensor)):  # a number of NumPy before a tensor
        operands[0] = tensor.ufix(operands[0])
    return getattr(operands[0], name)(*operands[1:])
