"""Models as programs: captures, inputs that choose them, control flow, mistakes of callers."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy
import onnx
import pytest
from graphs import BOOL, INT64, model, value
from onnx import TensorProto, helper

from tiny_onnx import OnnxRunner
from tinycore import GlobalCounters, Tensor
from tinycore.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError


def linear() -> onnx.ModelProto:
    weight = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["y"]),
    ]
    return model(nodes, [value("x", ["n", 3])], [value("y", ["n", 2])], {"w": weight})


def result(runner: OnnxRunner, **inputs: Any) -> Any:
    (output,) = runner(**inputs).values()
    assert isinstance(output, Tensor)
    return output.numpy()


def test_each_shape_is_captured_and_replayed_with_new_contents() -> None:
    runner = OnnxRunner(linear())
    weight = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    for seed in range(12):
        x = numpy.random.default_rng(seed).standard_normal((1 + seed % 2, 3)).astype("float32")
        numpy.testing.assert_allclose(result(runner, x=x), x @ weight.T, rtol=1e-6)
    assert len(runner.captures) == 2


def test_results_of_replays_are_kept_apart() -> None:
    runner = OnnxRunner(linear())
    kept = [runner(x=numpy.full((1, 3), number, "float32"))["y"] for number in range(6)]
    assert [each.tolist() for each in kept if isinstance(each, Tensor)] == [
        [[3.0 * number, 12.0 * number]] for number in range(6)
    ]


def test_results_that_are_inputs_are_kept_apart() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("Neg", ["x"], ["negative"]),
    ]
    outputs = [value(name, [2, 2]) for name in ("same", "turned", "negative")]
    runner = OnnxRunner(model(nodes, [value("x", [2, 2])], outputs))
    given = [numpy.arange(4, dtype="float32").reshape(2, 2) + number for number in range(6)]
    kept = [runner(x=x) for x in given]
    for x, found in zip(given, kept, strict=True):
        for name, wanted in (("same", x), ("turned", x.T), ("negative", -x)):
            assert numpy.asarray(found[name]).tolist() == wanted.tolist()


@pytest.mark.parametrize("shape", [[], [1], [2, 3]], ids=str)
def test_inputs_of_every_form_are_seen_by_each_replay(shape: list[int]) -> None:
    nodes = [
        helper.make_node("Mul", ["factor", "factor"], ["square"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    inputs = [value("x", [2, 3]), value("factor", shape)]
    outputs = [value("y", [2, 3]), value("square", shape)]
    runner = OnnxRunner(model(nodes, inputs, outputs))
    whole = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
    forms = (whole[:2, :3], whole[::2, ::2], whole.T[:2, :3], whole[1:3, 1:4].copy())
    for number in range(16):
        x, factor = forms[number % 4], numpy.full(shape, number, "float32")
        first = x if number % 3 else Tensor(x.copy())
        second = factor if number % 2 else Tensor(factor)
        found = runner(x=first, factor=second)
        assert numpy.asarray(found["y"]).tolist() == (number * x).tolist()
        assert numpy.asarray(found["square"]).tolist() == (factor * factor).tolist()


def test_threads_get_the_results_of_their_own_inputs() -> None:
    runner = OnnxRunner(linear())

    def wrong(number: int) -> int:
        x = numpy.full((1, 3), number, "float32")
        wanted = [[3.0 * number, 12.0 * number]]
        return sum(result(runner, x=x).tolist() != wanted for _ in range(60))

    assert wrong(1) == 0
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(wrong, range(6))) == [0] * 6


def test_threads_that_call_a_new_model_get_their_own_results() -> None:
    weight = numpy.random.default_rng(1).standard_normal((40, 40)).astype("float32")
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"]),
        helper.make_node("MatMul", ["turned", "w"], ["product"]),
        helper.make_node("Abs", ["product"], ["positive"]),
        helper.make_node("MatMul", ["x", "positive"], ["y"]),
    ]
    made = model(nodes, [value("x", ["n", 40])], [value("y", ["n", 40])], {"w": weight})
    positive = numpy.abs(weight.T @ weight)
    for _ in range(4):
        runner, begin = OnnxRunner(made), Barrier(4)

        def same(number: int, runner: OnnxRunner = runner, begin: Barrier = begin) -> bool:
            begin.wait()
            x = numpy.full((number + 1, 40), number, "float32")
            found = [result(runner, x=x) for _ in range(4)]
            return all(numpy.allclose(each, x @ positive, rtol=1e-3) for each in found)

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(same, range(4)))


def test_results_may_be_written_to() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["w"], ["weight"]),
        helper.make_node("Exp", ["w"], ["fixed"]),
        helper.make_node("Add", ["x", "fixed"], ["sum"]),
    ]
    wanted = {"same": 3, "weight": 0, "fixed": 1, "sum": 4}
    weight = numpy.zeros(2000, "float32")
    outputs = [value(name, [2000]) for name in wanted]
    runner = OnnxRunner(model(nodes, [value("x", [2000])], outputs, {"w": weight}))
    for _ in range(5):
        x = Tensor(numpy.full(2000, 3, "float32"))
        found: Any = runner(x=x)
        assert {name: each[0].item() for name, each in found.items()} == wanted
        for each in found.values():
            each.assign(each + 5).realize()
        assert x[0].item() == 3
        x.assign(x + 100).realize()
        assert found["same"][0].item() == 8


def test_a_sequence_is_not_taken_for_none() -> None:
    tensors = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    kind = helper.make_optional_type_proto(helper.make_sequence_type_proto(tensors))
    nodes = [
        helper.make_node("OptionalHasElement", ["s"], ["has"]),
        helper.make_node("Cast", ["has"], ["number"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "number"], ["y"]),
    ]
    inputs = [helper.make_value_info("s", kind), value("x", [2])]
    runner = OnnxRunner(model(nodes, inputs, [value("y", [2])]))
    x = numpy.zeros(2, "float32")
    for number in range(8):
        given = [x] if number > 4 else None
        assert result(runner, s=given, x=x).tolist() == [given is not None] * 2


@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0, 3.7])
def test_powers_of_a_constant_are_those_of_a_tensor(exponent: float) -> None:
    held = model(
        [helper.make_node("Pow", ["x", "e"], ["y"])],
        [value("x", [6])],
        [value("y", [6])],
        {"e": numpy.array(exponent, "float32")},
    )
    x = numpy.array([0.0, -0.0, 1.5, numpy.inf, -numpy.inf, numpy.nan], "float32")
    with numpy.errstate(all="ignore"):
        wanted = numpy.power(x, numpy.full(6, exponent, "float32"))
    numpy.testing.assert_allclose(result(OnnxRunner(held), x=x), wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT16, onnx.TensorProto.INT32, INT64])
def test_integers_to_powers_of_floats_lose_no_one(kind: int) -> None:
    nodes = [helper.make_node("Pow", ["x", "e"], ["y"])]
    ends = [value("x", [99], kind), value("e", [99])], [value("y", [99], kind)]
    runner = OnnxRunner(model(nodes, *ends))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    most = numpy.iinfo(dtype).max
    for exponent in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0):
        x = (numpy.arange(99) % int(min(most ** (1 / max(exponent, 1)), 99))).astype(dtype)
        wanted = [math.isqrt(int(each) ** int(2 * exponent)) for each in x]
        found = result(runner, x=x, e=numpy.full(99, exponent, "float32"))
        assert found.tolist() == wanted
    held = model(nodes, [value("x", [2], kind)], ends[1], {"e": numpy.array(7, "float32")})
    assert result(OnnxRunner(held), x=numpy.array([2, -3], dtype)).tolist() == [128, -2187]


@pytest.mark.parametrize("windows", [1, 4, 8, 9])
def test_a_convolution_with_few_windows_sums_the_same(windows: int) -> None:
    draw = numpy.random.default_rng(windows).standard_normal
    weight = draw((20, 7, 3)).astype("float32")
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 0])
    runner = OnnxRunner(
        model([node], [value("x", [1, 7, None])], [value("y", [1, 20, None])], {"w": weight})
    )
    for _ in range(4):
        x = draw((1, 7, 2 * windows)).astype("float32")
        padded = numpy.pad(x, ((0, 0), (0, 0), (1, 0)))
        seen = numpy.stack([padded[0, :, 2 * i : 2 * i + 3] for i in range(windows)])
        wanted = numpy.einsum("nck,ock->on", seen, weight)
        numpy.testing.assert_allclose(result(runner, x=x)[0], wanted, atol=1e-4)


def test_a_normalization_in_float16_has_room_for_its_means() -> None:
    names = ("scale", "bias", "mean", "variance")
    weights = {
        name: numpy.full(3, number, "float16")
        for name, number in zip(names, (1, 0, 1000, 1e-4), strict=True)
    }
    node = helper.make_node("BatchNormalization", ["x", *names], ["y"])
    half = onnx.TensorProto.FLOAT16
    ends = [value("x", [1, 3, 2], half)], [value("y", [1, 3, 2], half)]
    runner = OnnxRunner(model([node], *ends, weights))
    x = numpy.array([[[1000, 1001]] * 3], "float16")
    for _ in range(4):
        assert result(runner, x=x)[0].tolist() == [pytest.approx([0, 95.4], abs=0.2)] * 3


def deviation(x: Any) -> Any:
    return x.std(2, keepdims=True)


def length(x: Any) -> Any:
    return numpy.sqrt((x * x).sum(2, keepdims=True))


HALVES = [
    ("InstanceNormalization", 2, {}, lambda x: (x - x.mean(2, keepdims=True)) / deviation(x)),
    ("MeanVarianceNormalization", 0, {"axes": [2]},
     lambda x: (x - x.mean(2, keepdims=True)) / deviation(x)),
    ("LpNormalization", 0, {"axis": 2}, lambda x: x / length(x)),
    ("ReduceL2", 0, {"axes": [2]}, length),
    ("LpPool", 0, {"kernel_shape": [50]}, length),
    ("GlobalLpPool", 0, {}, length),
    ("ReduceLogSum", 0, {"axes": [2]}, lambda x: numpy.log(x.sum(2, keepdims=True))),
    ("LRN", 0, {"size": 1, "alpha": 1.0}, lambda x: x / (1 + x * x) ** 0.75),
    ("com.microsoft:SkipLayerNormalization", 1, {},
     lambda x: 2 * (x - x.mean(2, keepdims=True)) / deviation(2 * x)),
    ("com.microsoft:SkipSimplifiedLayerNormalization", 1, {},
     lambda x: 2 * x / numpy.sqrt((4 * x * x).mean(2, keepdims=True))),
]  # fmt: skip
"""Operators with sums of squares: scales, attributes, and what they compute."""


@pytest.mark.parametrize(("name", "scales", "attributes", "wanted"), HALVES)
def test_squares_of_float16_have_room(
    name: str, scales: int, attributes: dict[str, Any], wanted: Any
) -> None:
    half = onnx.TensorProto.FLOAT16
    domain, _, op = name.rpartition(":")
    x = (numpy.random.default_rng(0).standard_normal((2, 3, 50)) * 600 + 2000).astype("float16")
    names = ["x", *(["x"] if domain else []), *["scale", "bias"][:scales]]
    side = 50 if domain else 3
    weights = {"scale": numpy.ones(side, "float16"), "bias": numpy.zeros(side, "float16")}
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    ends = [value("x", [2, 3, 50], half)], [value("y", [2, 3, None], half)]
    made = model([node], *ends, dict([*weights.items()][:scales]))
    del made.opset_import[:]
    opset = 13 if op == "MeanVarianceNormalization" else 17
    made.opset_import.append(helper.make_opsetid("", opset))
    if domain:
        made.opset_import.append(helper.make_opsetid(domain, 1))
    found = result(OnnxRunner(made), x=x)
    assert found.dtype == numpy.float16
    numpy.testing.assert_allclose(found, wanted(x.astype("float64")), rtol=4e-3, atol=4e-3)


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    runner = OnnxRunner(linear())
    result(runner, x=numpy.ones((1, 3), "float32"))
    assert [node.op for node in runner.nodes] == ["MatMul"]
    assert set(runner.fixed) == {"wt"}


def test_shapes_are_computed_without_a_kernel() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"first": numpy.array([0]), "rest": numpy.array([-1])}
    runner = OnnxRunner(model(nodes, [value("x", ["n", 2, 3])], [value("y", ["n", None])], weights))
    GlobalCounters.reset()
    assert result(runner, x=numpy.zeros((4, 2, 3), "float32")).shape == (4, 6)
    assert GlobalCounters.kernel_count == 0


def branching() -> onnx.ModelProto:
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["t"])], "then", [], [value("t", [2])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "else", [], [value("e", [2])]
    )
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    return model([node], [value("x", [2]), value("flag", [], BOOL)], [value("y", [2])])


def test_a_flag_chooses_between_captures() -> None:
    runner = OnnxRunner(branching())
    for number in range(12):
        flag = bool(number % 3 == 0)
        x = numpy.array([number, 1], "float32")
        expected = x * 2 if flag else -x
        assert result(runner, x=x, flag=numpy.array(flag)).tolist() == expected.tolist()
        assert result(runner, x=Tensor(x), flag=Tensor([flag])[0]).tolist() == expected.tolist()
    assert runner.by_content == {"flag"}
    assert runner.is_captured

    runner, written, other = OnnxRunner(branching()), numpy.array(True), numpy.array(True)
    x = numpy.array([1, 2], "float32")
    for _ in range(3):  # captures are made of a content that the array had once
        for given in (other, written):
            assert result(runner, x=x, flag=given).tolist() == (x * 2 if given else -x).tolist()
        written[...] = False


def folding(body_of: str) -> tuple[onnx.ModelProto, numpy.ndarray]:
    """x times weights whose halves are swapped in a branch, alone or in a loop of three steps."""
    weights = numpy.random.default_rng(3).standard_normal((128, 64)).astype("float32")
    swap = [
        helper.make_node("Split", [body_of], ["low", "high"], axis=0, num_outputs=2),
        helper.make_node("Concat", ["high", "low"], ["swapped"], axis=0),
    ]
    then = helper.make_graph(swap, "then", [], [value("swapped", [128, 64])])
    other = helper.make_graph(
        [helper.make_node("Identity", [body_of], ["same"])], "else", [], [value("same", [128, 64])]
    )
    branch = helper.make_node("If", ["flag"], ["used"], then_branch=then, else_branch=other)
    nodes = [branch, helper.make_node("MatMul", ["x", "used"], ["y"])]
    held = {"w": weights}
    if body_of == "carried":
        body = helper.make_graph(
            [helper.make_node("Identity", ["going"], ["go"]), branch],
            "body",
            [value("i", [], INT64), value("going", [], BOOL), value("carried", [128, 64])],
            [value("go", [], BOOL), value("used", [128, 64])],
        )
        loop = helper.make_node("Loop", ["count", "", "w"], ["last"], body=body)
        nodes = [loop, helper.make_node("MatMul", ["x", "last"], ["y"])]
        held["count"] = numpy.array(3)
    given = [value("x", [1, 128]), value("flag", [], BOOL)]
    return model(nodes, given, [value("y", [1, 64])], held), weights


@pytest.mark.parametrize("body_of", ["w", "carried"])
def test_what_a_branch_computes_of_weights_is_kept_unless_a_loop_repeats_it(body_of: str) -> None:
    source, weights = folding(body_of)
    runner = OnnxRunner(source)
    for number in range(8):
        flag, x = number % 2 == 0, numpy.full((1, 128), number, "float32")
        used = numpy.roll(weights, 64, axis=0) if flag else weights
        x[:, :64] += 1

        found = result(runner, x=x, flag=numpy.array(flag))

        assert numpy.allclose(found, x @ used, atol=1e-3)
    assert bool(runner.folded) == (body_of == "w")
    kept = [each.data for values in runner.folded.values() for each in values]
    assert all(isinstance(each, Tensor) for each in kept)


def overridable(**more: Any) -> onnx.ModelProto:
    """x plus what a graph and its branch compute of weights, of which `v` and `w` are inputs."""
    then = helper.make_graph(
        [helper.make_node("Neg", ["w"], ["n"]), helper.make_node("Add", ["n", "k"], ["t"])],
        "then", [], [value("t", [3])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Mul", ["v", "k"], ["e"])], "else", [], [value("e", [3])]
    )
    nodes = [
        helper.make_node("If", ["flag"], ["b"], then_branch=then, else_branch=other),
        helper.make_node("Mul", ["v", "w"], ["vw"]),
        helper.make_node("Add", ["vw", "k"], ["sum"]),
        helper.make_node("Add", ["x", "sum"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["y"]),
    ]
    names = ("x", "v", "w")
    given = [*(value(name, [3]) for name in names), value("flag", [], BOOL)]
    weights = {name: numpy.arange(3, dtype="float32") + len(name) for name in ("v", "w", "k")}
    return model(nodes, given, [value("y", [3])], weights, **more)


@pytest.mark.parametrize("seed", range(4))
def test_weights_that_are_inputs_may_be_given_in_any_call(seed: int) -> None:
    draw, runner = numpy.random.default_rng(seed), OnnxRunner(overridable())
    default = numpy.arange(1, 4, dtype="float32")
    for _ in range(24):
        given = {name: draw.integers(-9, 9, 3).astype("float32") for name in ("x", "v", "w")}
        for name in ("v", "w"):
            if draw.integers(2):
                del given[name]
        v, w = given.get("v", default), given.get("w", default)
        flag = draw.integers(2) > 0

        found = result(runner, **given, flag=numpy.array(flag))

        branch = default - w if flag else v * default
        assert found.tolist() == (given["x"] + v * w + default + branch).tolist()


def test_weights_of_an_early_version_are_constants() -> None:
    runner = OnnxRunner(overridable(ir_version=3))
    x = numpy.zeros(3, "float32")

    assert result(runner, x=x, flag=numpy.array(True)).tolist() == [2, 6, 12]
    assert {node.op for node in runner.nodes} == {"If", "Add"}
    assert "sum" in runner.fixed
    with pytest.raises(ArgumentError, match=r"unknown: w\. Weights are constants before IR"):
        runner(x=x, flag=numpy.array(True), w=x)


def looping() -> onnx.ModelProto:
    """Doubles x while its sum is below a bound."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
            helper.make_node("Less", ["s", "bound"], ["go"]),
        ],
        "body",
        [value("i", [], INT64), value("c", [], BOOL), value("v", [2])],
        [value("go", [], BOOL), value("w", [2]), value("s", [])],
    )
    node = helper.make_node("Loop", ["", "begin", "x"], ["y", "sums"], body=body)
    return model(
        [node],
        [value("x", [2])],
        [value("y", [2]), value("sums", ["steps"])],
        {"begin": numpy.array(True), "bound": numpy.array(100, "float32")},
    )


def test_a_loop_until_a_computed_condition_is_built_at_each_call() -> None:
    runner = OnnxRunner(looping())
    for number in (1, 2, 5, 30, 1, 1):
        expected = numpy.array([number, 1], "float32")
        sums: list[float] = []
        while not sums or sums[-1] < 100:
            expected = expected * 2
            sums.append(expected.sum())
        found = runner(x=numpy.array([number, 1], "float32"))
        y, s = found["y"], found["sums"]
        assert isinstance(y, Tensor)
        assert isinstance(s, Tensor)
        assert (y.tolist(), s.tolist()) == (expected.tolist(), sums)


def test_a_function_of_the_model_takes_attributes_from_its_call() -> None:
    body = helper.make_function(
        "own",
        "Scaled",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["k"]),
            helper.make_node("Mul", ["a", "k"], ["b"]),
        ],
        [helper.make_opsetid("", 21)],
        ["factor"],
    )
    reference = onnx.AttributeProto(
        name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT
    )
    body.node[0].attribute.append(reference)
    nodes = [
        helper.make_node("Scaled", ["x"], ["h"], domain="own", factor=3.0),
        helper.make_node("Scaled", ["h"], ["y"], domain="own", factor=5.0),
    ]
    proto = model(nodes, [value("x", [2])], [value("y", [2])], functions=[body])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    runner = OnnxRunner(proto)
    for _ in range(4):
        assert result(runner, x=numpy.array([1, 2], "float32")).tolist() == [15, 30]


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ({}, ArgumentError, "missing: x"),
        ({"x": numpy.zeros((1, 3), "float32"), "z": 1}, ArgumentError, "unknown: z"),
        ({"x": numpy.zeros((1, 3), "float64")}, DTypeError, "is float32, not float64"),
        ({"x": numpy.zeros((1, 4), "float32")}, ShapeError, "nx3, not of shape 1x4"),
        ({"x": numpy.zeros(3, "float32")}, ShapeError, "not of shape 3"),
    ],
)
def test_inputs_that_the_model_does_not_take(
    inputs: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        OnnxRunner(linear())(inputs)


@pytest.mark.parametrize("given", [[1.5], [2, 2.5], [float("inf"), 0]], ids=str)
def test_numbers_are_not_rounded_to_those_of_the_model(given: Any) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    runner = OnnxRunner(model([node], [value("x", ["n"], INT64)], [value("y", ["n"], INT64)]))
    assert result(runner, x=[1, 2.0]).tolist() == [-1, -2]
    with pytest.raises(ArgumentError, match="x"):
        runner(x=given)


def test_sides_of_one_name_are_alike() -> None:
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=1)
    proto = model([node], [value("a", ["n", 1]), value("b", ["n", 2])], [value("y", ["n", 3])])
    with pytest.raises(ShapeError, match="side 'n' is 2 in input 'a' and 3 in 'b'"):
        OnnxRunner(proto)(a=numpy.zeros((2, 1), "float32"), b=numpy.zeros((3, 2), "float32"))


def test_an_unknown_operator_is_named() -> None:
    proto = model(
        [helper.make_node("Frobnicate", ["x"], ["y"], name="here")],
        [value("x", [1])],
        [value("y", [1])],
    )
    with pytest.raises(UnsupportedError, match="operator Frobnicate 'here' of version 21"):
        OnnxRunner(proto)(x=numpy.zeros(1, "float32"))


def test_numbers_and_lists_take_the_dtype_of_the_input() -> None:
    assert result(OnnxRunner(linear()), x=[[1, 2, 3]]).tolist() == [[8, 26]]


def test_it_says_what_it_takes_and_gives() -> None:
    runner = OnnxRunner(linear())
    assert repr(runner) == "OnnxRunner(x: float32 nx3 -> y: float32 nx2)"
    empty = runner.get_empty_input_data()["x"]
    assert (empty.shape, empty.dtype.name) == ((1, 3), "float32")


def test_it_is_where_users_of_tinygrad_look_for_it() -> None:
    from tinycore.nn.onnx import OnnxRunner as Found  # noqa: PLC0415

    assert Found is OnnxRunner


def test_loops_and_scans_of_no_steps_have_the_types_of_their_bodies() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["step"], ["s"], to=TensorProto.INT32),
            helper.make_node("Identity", ["x"], ["r"]),
            helper.make_node("Identity", ["on"], ["goes_on"]),
        ],
        "body",
        [value("step", [], INT64), value("on", [], BOOL)],
        [value("goes_on", [], BOOL), value("s", [], TensorProto.INT32), value("r", [2, 3])],
    )
    each = helper.make_graph(
        [helper.make_node("Neg", ["row"], ["z"])], "each", [value("row", [3])], [value("z", [3])]
    )
    nodes = [
        helper.make_node("Loop", ["count", ""], ["steps", "rows"], body=body),
        helper.make_node("Add", ["steps", "one"], ["more"]),  # of an equal type
        helper.make_node(
            "Scan", ["none"], ["last"], body=each, num_scan_inputs=1, scan_output_axes=[-1]
        ),
    ]
    results = [
        value("more", [None], TensorProto.INT32),
        value("rows", [None, 2, 3]),
        value("last", [3, None]),
    ]
    proto = model(
        nodes, [value("count", [], INT64), value("x", [2, 3]), value("none", [0, 3])], results,
        {"one": numpy.array([1], numpy.int32)},
    )  # fmt: skip
    given = {
        "count": numpy.array(0), "x": numpy.ones((2, 3), "float32"),
        "none": numpy.ones((0, 3), "float32"),
    }  # fmt: skip

    found = [numpy.asarray(each) for each in OnnxRunner(proto)(given).values()]

    assert [(each.shape, each.dtype.name) for each in found] == [
        ((0,), "int32"), ((0, 2, 3), "float32"), ((3, 0), "float32"),
    ]  # fmt: skip
