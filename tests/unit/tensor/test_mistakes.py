"""Mistakes raise at the call: a class of `tinycore.errors`, naming the operation and the values.

Types of arguments are refused by the annotations of every public method, whatever it is. The table
below holds the mistakes in values: shapes, axes, sizes, ranges, words, dtypes and devices.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy
import pytest

from tinycore.dtype import dtypes
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
    UnknownDevice,
)
from tinycore.helpers import GlobalCounters
from tinycore.tensor import Tensor
from tinycore.tensor.capture.jit import TinyJit
from tinycore.tensor.signatures import ANYTHING, TOLD_AS, Contract
from tinycore.uop.op import Op

Mistake = tuple[str, Callable[["Operands"], Any], type[Exception], str]


class Operands:
    """Operands of the table's mistakes."""

    def __init__(self) -> None:
        self.x: Any = Tensor.ones(2, 3)
        self.ints = self.x.cast(dtypes.int32)
        self.bools = self.x.cast(dtypes.bool)
        self.vector: Any = Tensor.ones(3)
        self.scalar: Any = Tensor(1.0)
        self.empty: Any = Tensor.zeros(0, 3)
        self.image: Any = Tensor.ones(1, 2, 4, 4)
        self.kernel: Any = Tensor.ones(3, 2, 2, 2)
        self.far: Any = Tensor.ones(2, 3, device=f"{self.x.devices[0].partition(':')[0]}:1")


make: Any = Tensor
jit: Any = TinyJit
put = setattr
"""Type checkers know better than to make these mistakes."""

VALUES: list[Mistake] = [
    # --- making a tensor
    ("Tensor", lambda t: make([[1, 2], [3]]), ShapeError, r"ragged.*\(2,\).*\(1,\)"),
    ("Tensor", lambda t: make([numpy.ones(2), numpy.ones(3)]), ShapeError, "of several shapes"),
    ("Tensor", lambda t: make([t, t]), DTypeError, "`stack` makes one tensor of several"),
    ("Tensor", lambda t: make([numpy.ones((2, 3)), t]), DTypeError, "`stack` makes one tensor"),
    ("Tensor", lambda t: make(1j), DTypeError, "complex"),
    ("Tensor", lambda t: make([1j, 2]), DTypeError, "complex"),
    ("Tensor", lambda t: make(numpy.ones(2, complex)), DTypeError, "complex128"),
    ("Tensor", lambda t: make("text"), DTypeError, "str"),
    ("Tensor", lambda t: make(["a"]), DTypeError, "str"),
    ("Tensor", lambda t: make(["a"], dtype="int32"), DTypeError, "str"),
    ("Tensor", lambda t: make([None]), DTypeError, "NoneType"),
    ("Tensor", lambda t: make({1: 2}), DTypeError, "dict"),
    ("Tensor", lambda t: make(datetime.date(2020, 1, 1)), DTypeError, "date"),
    ("Tensor", lambda t: make(numpy.array(["a"])), DTypeError, "str32"),
    ("Tensor", lambda t: make(numpy.array([object()])), DTypeError, "object"),
    ("Tensor", lambda t: make(numpy.array([1], "datetime64[s]")), DTypeError, "datetime64"),
    ("Tensor", lambda t: make(1.0, dtype="complex64"), DTypeError, "'complex64'.*float32"),
    ("Tensor", lambda t: make(2**63), ArgumentError, "9223372036854775808 does not fit .*int64"),
    (
        "Tensor",
        lambda t: make([0, -(2**70)]),
        ArgumentError,
        "-11805916.* does not fit",
    ),
    ("Tensor", lambda t: make(10**400, dtype="float32"), ArgumentError, "greater than any"),
    ("Tensor", lambda t: make(math.nan, dtype="int32"), ArgumentError, "nan is no integer"),
    ("Tensor", lambda t: make([1, math.inf], dtype="int8"), ArgumentError, "inf is no integer"),
    ("full", lambda t: make.full((2,), 2**64), ArgumentError, "18446744073709551616 does not fit"),
    ("full", lambda t: make.full((2,), math.nan, "int32"), ArgumentError, "nan"),
    ("full", lambda t: make.full((-2,), 1), ShapeError, "-2"),
    ("zeros", lambda t: make.zeros(2, -1), ShapeError, r"\(2, -1\)"),
    ("arange", lambda t: make.arange(0, 5, 0), ArgumentError, "step from 0 to 5"),
    ("arange", lambda t: make.arange(math.inf), ArgumentError, "inf"),
    ("arange", lambda t: make.arange(0, 5, math.nan), ArgumentError, "nan"),
    (
        "arange",
        lambda t: make.arange(2**63, 2**63 + 2),
        ArgumentError,
        "9223372036854775808 does not",
    ),
    ("linspace", lambda t: make.linspace(0, 1, -1), ArgumentError, "-1"),
    ("eye", lambda t: make.eye(2, -1), ShapeError, r"\(2, -1\)"),
    ("rand", lambda t: make.rand(2, dtype="int32"), DTypeError, "int32"),
    ("randn", lambda t: make.randn(2, dtype="int32"), DTypeError, "int32"),
    ("normal", lambda t: make.normal(2, std=-1), ArgumentError, "-1"),
    ("randint", lambda t: make.randint(2, low=5, high=5), ArgumentError, "5 and 5"),
    ("randint", lambda t: make.randint(2, high=1000, dtype="int8"), ArgumentError, "1000"),
    ("randint", lambda t: make.randint(2, dtype="float32"), DTypeError, "float32"),
    ("multinomial", lambda t: t.image.multinomial(), ShapeError, r"\(1, 2, 4, 4\)"),
    ("multinomial", lambda t: t.x.multinomial(5), ArgumentError, "5 of 3"),
    ("dropout", lambda t: t.x.dropout(2.0), ArgumentError, "2.0"),
    ("dropout", lambda t: t.x.dropout(math.nan), ArgumentError, "nan"),
    # --- shapes and order
    ("reshape", lambda t: t.x.reshape(4, 2), ShapeError, r"\(2, 3\) has 6 .*\[4, 2\]"),
    ("reshape", lambda t: t.x.reshape(-1, -1), ShapeError, r"\[-1, -1\]"),
    ("reshape", lambda t: t.x.reshape(-2, -3), ShapeError, r"\[-2, -3\]"),
    ("view", lambda t: t.x.view(5), ShapeError, r"\(2, 3\)"),
    ("flatten", lambda t: t.x.flatten(2), IndexRangeError, "axis 2"),
    ("unflatten", lambda t: t.x.unflatten(1, (2, 2)), ShapeError, r"2, 2"),
    ("squeeze", lambda t: t.x.squeeze(2), IndexRangeError, "axis 2"),
    ("unsqueeze", lambda t: t.x.unsqueeze(4), IndexRangeError, "axis 4"),
    ("expand", lambda t: t.x.expand(4, 3), ShapeError, r"\(2, 3\).*\(4, 3\)"),
    ("expand", lambda t: t.x.expand(2), ShapeError, r"\(2, 3\).*\(2,\)"),
    ("permute", lambda t: t.x.permute(0, 0), ShapeError, r"\(0, 0\).*\(2, 3\)"),
    ("permute", lambda t: t.x.permute(0, 2), IndexRangeError, "axis 2"),
    ("transpose", lambda t: t.x.transpose(0, 2), IndexRangeError, "axis 2"),
    ("flip", lambda t: t.x.flip(0, 0), ArgumentError, r"\(0, 0\)"),
    ("shrink", lambda t: t.x.shrink([(0, 1)]), ShapeError, r"1 ranges.*\(2, 3\)"),
    ("shrink", lambda t: t.x.shrink([(0, 1), (0, 4)]), ShapeError, r"\(0, 4\).*\(2, 3\)"),
    ("shrink", lambda t: t.x.shrink([(0, 1, 2), None]), ArgumentTypeError, r"\(0, 1, 2\)"),
    ("unfold", lambda t: t.x.unfold(0, 3, 1), ShapeError, r"3 every 1.*\(2, 3\)"),
    ("unfold", lambda t: t.x.unfold(0, 1, 0), ShapeError, "1 every 0"),
    ("repeat", lambda t: t.x.repeat(-1, 2), ShapeError, r"\(-1, 2\)"),
    ("meshgrid", lambda t: t.vector.meshgrid(indexing="z"), ArgumentError, "'z'"),
    ("diagonal", lambda t: t.x.diagonal(0, 0, 0), ArgumentError, r"\(2, 3\)"),
    ("roll", lambda t: t.x.roll((1, 2), (0,)), ArgumentError, r"\(1, 2\)"),
    ("pad", lambda t: t.x.pad((1,)), ShapeError, r"1 amounts.*\(2, 3\)"),
    ("pad", lambda t: t.x.pad(((1, 1, 1), None)), ArgumentTypeError, r"\(1, 1, 1\)"),
    ("pad", lambda t: t.x.pad((1, 1), mode="foo"), ArgumentError, "'foo'"),
    ("pad", lambda t: t.x.pad((3, 3), mode="reflect"), ShapeError, r"\(3, 3\).*\(2, 3\)"),
    ("pad_to", lambda t: t.x.pad_to(1, 1), ShapeError, r"\(2, 3\).*\(1, 1\)"),
    ("cat", lambda t: t.x.cat(make.ones(3, 2)), ShapeError, r"\(2, 3\) and \(3, 2\)"),
    ("cat", lambda t: t.x.cat(t.x, dim=2), IndexRangeError, "axis 2"),
    ("cat", lambda t: make.cat([]), ArgumentError, r"at least one tensor, got \[\]"),
    ("cat", lambda t: t.x.cat(t.far), DeviceError, ":1"),
    ("cat", lambda t: t.scalar.cat(t.scalar), ShapeError, r"\(\)"),
    ("stack", lambda t: make.stack([]), ArgumentError, r"at least one tensor, got \[\]"),
    ("stack", lambda t: t.x.stack(t.vector), ShapeError, r"\(2, 3\) and \(3,\)"),
    ("split", lambda t: t.x.split(0), ArgumentError, "got 0"),
    ("split", lambda t: t.x.split([1, 2]), ShapeError, r"\[1, 2\].*\(2, 3\)"),
    ("chunk", lambda t: t.x.chunk(-1), ArgumentError, "-1"),
    # --- one element at a time
    ("add", lambda t: t.x + make.ones(4), ShapeError, r"\(2, 3\) and \(4,\)"),
    ("add", lambda t: t.x + 1j, DTypeError, "1j.*Complex"),
    ("add", lambda t: 1j + t.x, DTypeError, "1j.*Complex"),
    ("mul", lambda t: t.x * numpy.ones(3, complex), DTypeError, "Complex"),
    ("mul", lambda t: t.x * t.far, DeviceError, ":1"),
    ("add", lambda t: t.x + 10**400, ArgumentError, "greater than any float"),
    ("eq", lambda t: t.x == 1j, DTypeError, "complex"),
    ("eq", lambda t: t.x == make.ones(4), ShapeError, r"\(2, 3\) and \(4,\)"),
    ("sub", lambda t: t.bools - t.bools, DTypeError, "bools"),
    ("mod", lambda t: t.bools % t.bools, DTypeError, "bools"),
    ("fmod", lambda t: t.bools.fmod(t.bools), DTypeError, "bools"),
    ("idiv", lambda t: t.bools // t.bools, DTypeError, "bools"),
    ("div", lambda t: t.x.div(2, rounding_mode="up"), ArgumentError, "'up'"),
    ("pow", lambda t: t.ints**-1, ArgumentError, "-1"),
    ("bitwise_and", lambda t: t.x & t.x, DTypeError, "float32"),
    ("lshift", lambda t: t.bools << t.bools, DTypeError, "bool"),
    ("where", lambda t: t.x.where(1, 2), DTypeError, "float32"),
    ("masked_fill", lambda t: t.x.masked_fill(t.x, 1), DTypeError, "float32"),
    ("clamp", lambda t: t.x.clamp(), ArgumentError, "min_"),
    ("gelu", lambda t: t.x.gelu("foo"), ArgumentError, "'foo'"),
    ("celu", lambda t: t.x.celu(0), ArgumentError, "alpha"),
    ("alu", lambda t: t.x.alu(Op.ADD, t.vector), ShapeError, r"\(2, 3\) and \(3,\)"),
    ("alu", lambda t: t.x.alu(Op.ADD), ArgumentError, "2 operands, got 1"),
    ("cast", lambda t: t.x.cast("foo"), DTypeError, "'foo'.*float32"),
    ("bitcast", lambda t: t.x.bitcast("bool"), DTypeError, "bool"),
    ("const_like", lambda t: t.ints.const_like(math.nan), ArgumentError, "nan"),
    # --- folding and order
    ("sum", lambda t: t.x.sum(2), IndexRangeError, r"axis 2"),
    ("sum", lambda t: t.x.sum((0, -2)), ArgumentError, r"\(0, -2\)"),
    ("sum", lambda t: t.x.sum(True), ArgumentTypeError, "True"),
    ("max", lambda t: t.empty.max(0), ShapeError, r"no elements.*\(0, 3\)"),
    ("argmax", lambda t: t.empty.argmax(), ShapeError, "no elements"),
    ("softmax", lambda t: t.empty.softmax(5), IndexRangeError, "axis 5"),
    ("softmax", lambda t: t.x.softmax(dtype="int32"), DTypeError, "int32"),
    ("log_softmax", lambda t: t.x.log_softmax(dtype="int32"), DTypeError, "int32"),
    ("cumsum", lambda t: t.x.cumsum(2), IndexRangeError, "axis 2"),
    ("sort", lambda t: t.x.sort(2), IndexRangeError, "axis 2"),
    ("topk", lambda t: t.x.topk(4), ArgumentError, r"4 .*\(2, 3\)"),
    ("masked_select", lambda t: t.x.masked_select(t.x), DTypeError, "float32"),
    ("nonzero", lambda t: t.x.nonzero(size=-1), ArgumentError, "-1"),
    # --- indices
    ("index", lambda t: t.x[5], IndexRangeError, r"5 .*\(2, 3\)"),
    ("index", lambda t: t.x[0, 0, 0], IndexRangeError, r"3 entries.*\(2, 3\)"),
    ("index", lambda t: t.x[1.5], ArgumentError, "1.5"),
    ("index", lambda t: t.x[t.x], DTypeError, "float32"),
    ("index", lambda t: t.x[..., ...], IndexRangeError, "ellipsis"),
    ("setitem", lambda t: t.x.__setitem__(0, make.ones(4)), ShapeError, r"\(4,\)"),
    ("setitem", lambda t: t.x.__setitem__(0, t.far[0].clone()), DeviceError, ":1"),
    ("gather", lambda t: t.x.gather(0, t.x), DTypeError, "float32"),
    ("gather", lambda t: t.x.gather(2, t.ints), IndexRangeError, "axis 2"),
    ("gather", lambda t: t.x.gather(0, make([0])), ShapeError, r"\(1,\).*\(2, 3\)"),
    ("gather", lambda t: t.x.gather(0, t.far.cast("int32")), DeviceError, ":1"),
    ("scatter", lambda t: t.x.scatter(0, t.ints, t.x, "foo"), ArgumentError, "'foo'"),
    ("one_hot", lambda t: t.x.one_hot(3), DTypeError, "float32"),
    ("one_hot", lambda t: t.ints.one_hot(-1), ArgumentError, "-1"),
    ("tril", lambda t: t.vector.tril(), ShapeError, r"\(3,\)"),
    # --- products and windows
    ("matmul", lambda t: t.x @ t.x, ShapeError, r"3 and 2.*\(2, 3\) and \(2, 3\)"),
    ("matmul", lambda t: t.x @ t.scalar, ShapeError, r"\(2, 3\) and \(\)"),
    ("dot", lambda t: t.x.dot(t.far.T), DeviceError, ":1"),
    ("linear", lambda t: t.x.linear(t.x), ShapeError, "3 and 2"),
    ("einsum", lambda t: make.einsum("ij,jk->ik", t.x), ArgumentError, "1 operands"),
    ("einsum", lambda t: make.einsum("ij", t.vector), ShapeError, "2 axes"),
    ("rearrange", lambda t: t.x.rearrange("a b -> a"), ArgumentError, "a b -> a"),
    ("rearrange", lambda t: t.x.rearrange("a b -> b a", z=2), ArgumentError, "z"),
    ("conv2d", lambda t: t.image.conv2d(make.ones(3, 3, 2, 2)), ShapeError, r"3 and 2"),
    ("conv2d", lambda t: t.image.conv2d(make.ones(3, 2, 5, 5)), ShapeError, r"5, 5"),
    ("conv2d", lambda t: t.image.conv2d(t.kernel, groups=0), ShapeError, "0 groups"),
    ("conv2d", lambda t: t.image.conv2d(t.kernel, stride=0), ArgumentError, "0, 0"),
    ("conv2d", lambda t: t.x.conv2d(t.kernel), ShapeError, r"\(2, 3\).*\(3, 2, 2, 2\)"),
    (
        "conv_transpose2d",
        lambda t: t.image.conv_transpose2d(make.ones(2, 3, 2, 2), stride=0),
        ArgumentError,
        "0, 0",
    ),
    ("avg_pool2d", lambda t: t.image.avg_pool2d(5), ShapeError, r"5, 5"),
    ("max_pool2d", lambda t: t.image.max_pool2d(2, 0, ceil_mode=True), ArgumentError, "0, 0"),
    ("max_pool2d", lambda t: t.image.max_pool2d(()), ShapeError, "0 axes"),
    ("interpolate", lambda t: t.image.interpolate((2,), "cubic"), ArgumentError, "'cubic'"),
    ("layernorm", lambda t: t.x.layernorm(7), IndexRangeError, "axis 7"),
    # --- losses
    ("cross_entropy", lambda t: t.x.cross_entropy(make([1, 2, 0])), ShapeError, r"\(2, 3\)"),
    ("cross_entropy", lambda t: t.x.cross_entropy(make([1.0, 2])), DTypeError, "float32"),
    ("cross_entropy", lambda t: t.scalar.cross_entropy(make(1)), ShapeError, r"\(\)"),
    ("nll_loss", lambda t: t.x.nll_loss(make([1, 2]), None, None, "foo"), ArgumentError, "foo"),
    (
        "scaled_dot_product_attention",
        lambda t: t.ints.scaled_dot_product_attention(t.ints, t.ints),
        DTypeError,
        "int32",
    ),
    (
        "scaled_dot_product_attention",
        lambda t: t.x.scaled_dot_product_attention(t.x, t.x, enable_gqa=True),
        ShapeError,
        r"\(2, 3\)",
    ),
    # --- computing, writing, differentiating
    ("item", lambda t: t.x.item(), ShapeError, r"\(2, 3\)"),
    ("len", lambda t: len(t.scalar), ArgumentTypeError, r"\(\)"),
    ("to", lambda t: t.x.to("NOPE"), UnknownDevice, "'NOPE'"),
    ("assign", lambda t: t.x.assign(make.ones(4)), ShapeError, r"\(2, 3\) and \(4,\)"),
    ("assign", lambda t: t.x.assign(t.ints), DTypeError, "int32.*float32"),
    ("assign", lambda t: t.x.assign(t.far.clone()), DeviceError, ":1"),
    ("replace", lambda t: t.x.replace(t.vector), ShapeError, r"\(3,\).*\(2, 3\)"),
    ("backward", lambda t: t.x.backward(), GradientError, r"\(2, 3\)"),
    ("gradient", lambda t: t.x.sum().gradient(t.ints), GradientError, "int32"),
    ("requires_grad", lambda t: t.ints.requires_grad_(), GradientError, "int32"),
    ("requires_grad", lambda t: put(t.x, "requires_grad", "x"), ArgumentTypeError, "'x'.* a bool"),
    ("is_param", lambda t: put(t.x, "is_param", None), ArgumentTypeError, "None.* a bool"),
    ("grad", lambda t: put(t.x, "grad", t.vector), GradientError, r"\(2, 3\).*\(3,\)"),
    ("grad", lambda t: put(t.x, "grad", t.x.half()), GradientError, r"float32.*float16.*cast"),
    ("grad", lambda t: put(t.x, "grad", t.far), GradientError, ":1.*move"),
    ("grad", lambda t: put(t.x, "grad", 3), ArgumentTypeError, "3 of type int.* Tensor or None"),
    ("TinyJit", lambda t: jit(3), ArgumentTypeError, "3 is no function"),
    ("TinyJit", lambda t: jit(classmethod(print)), ArgumentTypeError, "above @TinyJit"),
]


def mistake_name(value: object) -> str | None:
    return value if isinstance(value, str) else None


@pytest.mark.parametrize(("name", "call", "error", "pattern"), VALUES, ids=mistake_name)
def test_a_mistake_in_a_value_is_told_at_the_call(
    name: str, call: Callable[[Operands], Any], error: type[Exception], pattern: str
) -> None:
    operands, kernels = Operands(), GlobalCounters.kernel_count

    with pytest.raises(error, match=rf"(?s){pattern}") as caught:
        call(operands)

    if not isinstance(caught.value, DeviceError):
        assert name in str(caught.value)
    assert GlobalCounters.kernel_count == kernels
    assert any("test_mistakes.py:" in note for note in caught.value.__notes__)


# Types: every annotated parameter of every public method refuses what it does not name


class Strange:
    """An argument of a type that no method takes."""


def annotated_parameters() -> list[tuple[str, str]]:
    """(method, parameter) of all that refuse something."""
    found = []
    for name in sorted(set(dir(Tensor)) - {"from_uop"}):
        member = next(vars(link)[name] for link in Tensor.__mro__ if name in vars(link))
        function = getattr(member, "__wrapped__", None) or getattr(
            getattr(member, "__func__", None), "__wrapped__", None
        )
        if name.startswith("_") or not isinstance(function, FunctionType):
            continue
        accepted = Contract(name, function, Tensor.__mro__[-2]).parameters
        found += [(name, p) for p, a in accepted.items() if a is not ANYTHING and p != "self"]
    return found


PARAMETERS = annotated_parameters()

BEFORE: dict[str, tuple[Any, ...]] = {"alu": (Op.ADD,), "broadcasted": ("add",), "einsum": ("ij",)}
"""Arguments before a parameter that takes all further arguments."""


def test_most_methods_are_held_to_their_annotations() -> None:
    assert len({name for name, _ in PARAMETERS}) > 150
    assert ("conv2d", "stride") in PARAMETERS
    assert ("sum", "axis") in PARAMETERS


@pytest.mark.parametrize("method", sorted({name for name, _ in PARAMETERS}))
def test_every_parameter_refuses_a_strange_type(method: str) -> None:
    x = Tensor.ones(2, 3)
    function = getattr(x, method)
    for _, parameter in (pair for pair in PARAMETERS if pair[0] == method):
        contract = Contract(method, getattr(function, "__wrapped__", function), type(x))
        star, before = parameter in contract.repeated, BEFORE.get(method, ())
        with pytest.raises(
            (ArgumentTypeError, DTypeError), match=rf"^{method}: {parameter} is <.*Strange"
        ):
            function(*before, Strange()) if star else function(**{parameter: Strange()})


@pytest.mark.parametrize("operator", sorted(set(TOLD_AS) - {"__init__", "__getitem__"}))
def test_every_operator_names_its_operation(operator: str) -> None:
    x = Tensor.ones(2, 3)
    method = getattr(x, operator, None)
    if method is None or operator in ("__eq__", "__ne__", "__setitem__"):
        return
    with pytest.raises(ArgumentTypeError, match=re.escape(f"{TOLD_AS[operator]}: x is 'a'")):
        method("a")


def test_only_what_is_known_to_be_comparable_is_refused_by_equality() -> None:
    x: Any = Tensor.ones(2, 3)

    assert (x == "a") is False
    assert (x != None) is True  # noqa: E711
    assert (x == numpy.ones(3)).tolist() == [[True] * 3] * 2


def test_numbers_of_numpy_stand_for_numbers() -> None:
    x: Any = Tensor.ones(2, 3)

    assert x.sum(numpy.int64(1)).shape == (2,)
    assert x.reshape((numpy.int32(3), 2)).shape == (3, 2)
    assert x.sum(numpy.array([0, 1])).shape == ()
    assert (x + numpy.float64(1)).dtype is dtypes.float32
    assert x.leaky_relu(numpy.float32(0.5)).shape == (2, 3)
    assert x.sum(0, keepdim=numpy.True_).shape == (1, 3)


def test_what_a_method_finds_wrong_is_told_as_the_operation_that_was_called() -> None:
    with pytest.raises(IndexRangeError, match=r"^layernorm: mean: axis 7"):
        Tensor.ones(2, 3).layernorm(7)
    with pytest.raises(ShapeError, match=r"^view: reshape: "):
        Tensor.ones(2, 3).view(5)


@pytest.mark.parametrize("flag", [0, 1, numpy.False_, numpy.True_])
def test_a_number_that_says_whether_a_gradient_is_wanted_is_kept_as_a_bool(flag: Any) -> None:
    x = Tensor([1.0])
    x.requires_grad = flag

    assert x.requires_grad is bool(flag)
    assert x.is_param is bool(flag)  # 0 was not False, and so an optimizer trained it
