"""Operators of com.microsoft whose results are floats, beside onnxruntime's on random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import onnx
import pytest
from graphs import INT64, model, value
from onnx import TensorProto, helper

from tiny_onnx import OnnxRunner
from tinycore import Tensor
from tinycore.errors import UnsupportedError

Arrays = dict[str, numpy.ndarray]


def node_model(
    op: str, given: Mapping[str, numpy.ndarray | None], outputs: int, **attributes: Any
) -> onnx.ModelProto:
    """A model of one node, whose first output has the dtype of its first input."""
    names = [name if array is not None else "" for name, array in given.items()]
    results = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    kinds = {
        name: helper.np_dtype_to_tensor_dtype(array.dtype)
        for name, array in given.items()
        if array is not None
    }
    inputs = [value(name, given[name].shape, kind) for name, kind in kinds.items()]  # type: ignore[union-attr]
    floats = [kind for kind in kinds.values() if kind in (TensorProto.FLOAT, TensorProto.FLOAT16)]
    ends = [helper.make_tensor_value_info(name, floats[0], None) for name in results]
    made = model([node], inputs, ends, ir_version=10)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def of_runtime(made: onnx.ModelProto, given: Arrays) -> list[numpy.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[numpy.ndarray] = session.run(None, given)
    return found


def of_runner(runner: OnnxRunner, given: Arrays) -> list[numpy.ndarray]:
    return [each.numpy() for each in runner(given).values() if isinstance(each, Tensor)]


ENDS, BEGINS = [2, 3], [1, 0]
PADDED = [[1, 1, 0], [1, 1, 1]]
EACH = [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 1], [0, 1, 1], [1, 1, 1]]]
BERT: dict[str, tuple[Any, ...]] = {"x": (2, 3, 8), "w": (8, 24), "b": (24,)}
SPLIT: dict[str, tuple[Any, ...]] = {"q": (2, 3, 8), "k": (2, 3, 8), "v": (2, 3, 8)}
FOUR = {"x": (2, 40), "w": b"\x06\x03\x08", "scale": (6, 3)}
TABLE = {"d": b"\x07\x14", "i": [[1, -1], [3, 9]], "scale": (7, 3)}
QUANTIZED: dict[str, Any] = {
    "x": b"\x02\x03\x08", "w": b"\x08\x18", "b": (24,), "xs": (), "ws": (),
}  # fmt: skip
BITS = {"bits": 4, "block_size": 16, "N": 6, "K": 40}

Case = tuple[str, dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "ends": ("Attention", {**BERT, "mask": ENDS}, {}),
    "begins": ("Attention", {**BERT, "mask": [*ENDS, *BEGINS]}, {"unidirectional": 1}),
    "padding-and-past": (
        "Attention",
        {**BERT, "mask": [[0, 1, *row] for row in PADDED], "past": (2, 2, 2, 2, 4)}, {},
    ),
    "mask-of-each": (
        "Attention", {**BERT, "mask": EACH, "none": None, "bias": (2, 2, 3, 3)}, {"scale": 0.3},
    ),
    "all-hidden": ("Attention", {**BERT, "mask": [[1, 1, 0], [0, 0, 0]]}, {}),
    "filter": ("Attention", {**BERT, "mask": PADDED}, {"mask_filter_value": -1.0}),
    "sizes": (
        "Attention", {"x": (2, 3, 8), "w": (8, 28), "b": (28,)}, {"qkv_hidden_sizes": [8, 8, 12]},
    ),
    "heads-earlier": (
        "MultiHeadAttention",
        {**SPLIT, "b": (24,), "mask": None, "bias": None, "pk": (2, 2, 2, 4), "pv": (2, 2, 2, 4)},
        {"unidirectional": 1},
    ),
    "heads-ends": ("MultiHeadAttention", {**SPLIT, "b": None, "mask": ENDS}, {}),
    "heads-padding": (
        "MultiHeadAttention", {**SPLIT, "b": (24,), "mask": PADDED}, {"mask_filter_value": -2.0},
    ),
    "heads-of-a-cache": (
        "MultiHeadAttention",
        {"q": (2, 3, 8), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4), "b": (24,)}, {},
    ),
    "batches": (
        "FusedMatMul", {"a": (3, 2, 4), "b": (4, 2, 5)}, {"transBatchA": 1, "transBatchB": 1},
    ),
    "batches-turned": (
        "FusedMatMul", {"a": (3, 2, 3), "b": (3, 2, 3)},
        {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "turned": ("TransposeMatMul", {"a": (2, 3, 4), "b": (2, 5, 4)}, {"transB": 1}),
    "bits-2": (
        "MatMulNBits", {"x": (2, 40), "w": b"\x06\x03\x04", "scale": (6, 3), "zero": b"\x06\x01"},
        {**BITS, "bits": 2},
    ),
    "bits-4": (
        "MatMulNBits",
        {**FOUR, "zero": b"\x06\x02", "g": None, "b": (6,)}, BITS,
    ),
    "bits-8": (
        "MatMulNBits", {"x": (2, 40), "w": b"\x06\x03\x10", "scale": (6, 3)}, {**BITS, "bits": 8},
    ),
    "bits-by-index": (
        "MatMulNBits",
        {**FOUR, "zero": (6, 3), "g": [2, 0, 1, 1] * 10}, BITS,
    ),
    "table-2": ("GatherBlockQuantized", {**TABLE, "d": b"\x07\x0a"}, {"bits": 2, "block_size": 16}),
    "table-4": (
        "GatherBlockQuantized", {**TABLE, "zero": b"\x07\x02"}, {"bits": 4, "block_size": 16},
    ),
    "table-8": (
        "GatherBlockQuantized", {**TABLE, "d": b"\x07\x28", "zero": b"\x07\x03"},
        {"bits": 8, "block_size": 16},
    ),
    "quantized-ends": ("QAttention", {**QUANTIZED, "mask": ENDS, "xz": b"", "wz": b""}, {}),
    "quantized-past": (
        "QAttention",
        {**QUANTIZED, "ws": (24,), "mask": [[0, 1, *row] for row in PADDED], "xz": None, "wz": b"",
         "past": (2, 2, 2, 2, 4)},
        {"unidirectional": 1},
    ),
}  # fmt: skip
"""Operators with inputs: shapes of random floats, int32 as lists, shapes of bytes as bytes."""


@pytest.mark.parametrize("name", CASES)
def test_a_result_is_that_of_onnxruntime(name: str) -> None:
    op, inputs, attributes = CASES[name]
    draw = numpy.random.default_rng(7)

    def array(given: Any) -> numpy.ndarray | None:
        if isinstance(given, bytes):
            return draw.integers(0, 256, list(given), dtype="uint8")
        if isinstance(given, tuple):
            numbers = draw.standard_normal(given)
            return numpy.asarray(numbers / 100 if op == "QAttention" else numbers, "float32")
        return None if given is None else numpy.array(given, "int32")

    arrays = {key: array(given) for key, given in inputs.items()}
    heads = {"num_heads": 2} if "Attention" in op else {}
    outputs = 2 if "past" in inputs else 3 if "pk" in inputs else 1
    made = node_model(op, arrays, outputs, **heads, **attributes)
    given = {key: each for key, each in arrays.items() if each is not None}
    # scores lose digits beside the -10,000 that hides a key
    bound = 5e-3 if name == "all-hidden" else 3e-5
    pairs = zip(of_runner(OnnxRunner(made), given), of_runtime(made, given), strict=True)
    for found, wanted in pairs:
        assert found.dtype == wanted.dtype
        numpy.testing.assert_allclose(found, wanted, rtol=1e-4, atol=bound)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4], ids=["signed", "unsigned"])
def test_a_table_of_halves_of_bytes_is_gathered_as_by_onnxruntime(kind: int) -> None:
    draw = numpy.random.default_rng(7)
    low = -8 if kind == TensorProto.INT4 else 0
    tensors = [
        helper.make_tensor(name, kind, shape, draw.integers(low, low + 16, shape).reshape(-1))
        for name, shape in (("d", (3, 7, 40)), ("zero", (3, 7, 3)))
    ]
    node = helper.make_node(
        "GatherBlockQuantized", ["d", "i", "scale", "zero"], ["y"], domain="com.microsoft",
        block_size=16, gather_axis=1, quantize_axis=2,
    )  # fmt: skip
    made = model(
        [node], [value("i", [2], INT64)], [value("y", [3, 2, 40])],
        {"scale": draw.standard_normal((3, 7, 3)).astype("float32")}, ir_version=10,
    )  # fmt: skip
    made.graph.initializer.extend(tensors)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    given = {"i": numpy.array([5, -7])}
    (wanted,), (found,) = of_runtime(made, given), of_runner(OnnxRunner(made), given)
    numpy.testing.assert_allclose(found, wanted, rtol=1e-6)


GROUPED: dict[str, dict[str, Any]] = {
    "prompt": {"rotary": 8},
    "prompt-packed": {"packed": True, "rotary": 16, "rotary_interleaved": 1},
    "prompt-ragged": {"batch": 3, "lengths": [3, 5, 1], "rows": 5, "rotary": 16},
    "prompt-in-buffer": {"batch": 2, "lengths": [2, 3], "rows": 3, "held": 9, "rotary": 8},
    "prompt-window": {"rows": 6, "local_window_size": 3, "smooth_softmax": 1},
    "prompt-places": {"batch": 2, "rows": 3, "rotary": 16, "places": [[4, 6, 5], [7, 9, 8]]},
    "prompt-both-ways": {"batch": 2, "lengths": [2, 4], "causal": 0},
    "decode": {"rows": 1, "past": 7, "rotary": 16, "rotary_interleaved": 1},
    "decode-ragged": {"batch": 3, "rows": 1, "past": 6, "lengths": [3, 7, 1], "rotary": 8},
    "decode-in-buffer": {"batch": 2, "rows": 1, "lengths": [3, 7], "held": 12, "packed": True},
    "decode-places": {"batch": 2, "rows": 1, "past": 3, "rotary": 8, "places": [[4], [9]]},
    "decode-bias": {"batch": 2, "rows": 1, "past": 3, "bias": (2, 4), "softcap": 2.0},
    "chunk": {"rows": 3, "past": 7, "rotary": 8, "local_window_size": 4, "scale": 0.7},
    "chunk-places": {"rows": 3, "past": 3, "rotary": 16, "places": [[4, 9, 2]]},
    "chunk-sinks": {"past": 3, "bias": (1, 1), "sinks": True, "smooth_softmax": 1},
    "chunk-padded": {
        "batch": 3, "rows": 3, "lengths": [9, 5, 4], "held": 12, "rotary": 16, "counts": [2, 3, 0],
        "local_window_size": 2,
    },
    "halves": {
        "dtype": "float16", "rows": 3, "past": 4, "rotary": 16, "softcap": 1.5, "sinks": True,
        "local_window_size": 3,
    },
}  # fmt: skip
"""Cases of GroupQueryAttention: its attributes, and the arguments of `grouped`."""


def grouped(
    draw: numpy.random.Generator,
    *,
    batch: int = 1,
    rows: int = 4,
    past: int = 0,
    held: int = 0,
    lengths: list[int] | None = None,
    counts: list[int] | None = None,
    packed: bool = False,
    rotary: int = 0,
    places: list[list[int]] | None = None,
    bias: tuple[int, int] | None = None,
    sinks: bool = False,
    dtype: str = "float32",
) -> dict[str, numpy.ndarray | None]:
    """Inputs of GroupQueryAttention with 4 heads of 32 features, whose keys and values are 2."""

    def numbers(*shape: int) -> numpy.ndarray:
        return draw.standard_normal(shape).astype(dtype)

    ends = numpy.array(lengths or [past + rows] * batch, "int32")
    total = int(ends.max())
    cache = (batch, 2, held or past, 32)
    return {
        "query": numbers(batch, rows, 256 if packed else 128),
        "key": None if packed else numbers(batch, rows, 64),
        "value": None if packed else numbers(batch, rows, 64),
        "past_key": numbers(*cache) if cache[2] else None,
        "past_value": numbers(*cache) if cache[2] else None,
        "seqlens_k": ends - 1,
        "total": numpy.array([total], "int32"),
        "cos": numbers(16, rotary) if rotary else None,
        "sin": numbers(16, rotary) if rotary else None,
        "places": None if places is None else numpy.array(places),
        "bias": numbers(bias[0], bias[1], rows, total) if bias else None,
        "sinks": numbers(4) if sinks else None,
        "key_scale": None,
        "value_scale": None,
        "query_norm": None,
        "key_norm": None,
        "counts": None if counts is None else numpy.array(counts, "int32"),
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", GROUPED)
def test_group_query_attention_is_that_of_onnxruntime(name: str) -> None:
    case = dict(GROUPED[name])
    stated = {key: case.pop(key) for key in [*case] if key not in (grouped.__kwdefaults__ or {})}
    inputs = grouped(numpy.random.default_rng(3), **case)
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int("rotary" in case), **stated}
    made = node_model("GroupQueryAttention", inputs, 3, **attributes)
    given = {key: array for key, array in inputs.items() if array is not None}
    wanted = of_runtime(made, given)
    runner = OnnxRunner(made)
    # what stands beyond the end of a sequence is not specified
    ends = given["seqlens_k"] + 1
    valid = given.get("counts", numpy.minimum(given["query"].shape[1], ends))
    for _ in range(3 if name == "chunk-padded" else 1):  # the third call is captured
        found = of_runner(runner, given)
        for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            for of_ours, of_theirs, end, count in zip(ours, theirs, ends, valid, strict=True):
                part = numpy.s_[:, :end] if place else numpy.s_[:count]
                numpy.testing.assert_allclose(
                    of_ours[part], of_theirs[part], atol=4e-3 if "dtype" in case else 2e-6
                )


def test_a_decoder_counts_its_rows_by_the_mask() -> None:
    """The graph around GroupQueryAttention that exporters write, with a cache that grows."""
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
        helper.make_node("Sub", ["sums", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["long"]),
        helper.make_node("Cast", ["long"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["x", "", "", "past_key", "past_value", "seqlens", "total", "cos", "sin"],
            ["y", "key", "value"],
            domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1,
        ),
    ]  # fmt: skip
    cache: list[int | str | None] = ["batch", 2, "past", 32]
    inputs = [
        value("x", ["batch", "rows", 256]), value("mask", ["batch", "all"], INT64),
        value("past_key", cache), value("past_value", cache),
    ]  # fmt: skip
    outputs = [value("y", ["batch", "rows", 128])]
    outputs += [value(name, ["batch", 2, "all", 32]) for name in ("key", "value")]
    draw = numpy.random.default_rng(5).standard_normal
    weights = {name: draw((16, 16)).astype("float32") for name in ("cos", "sin")}
    weights["one"] = numpy.array([1])
    made = model(nodes, inputs, outputs, weights, ir_version=10)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    x = draw((2, 6, 256)).astype("float32")
    mask = numpy.ones((2, 6), "int64")
    mask[1, 3] = 0  # the prompt of the second sequence is one shorter
    empty = numpy.zeros((2, 2, 0, 32), "float32")
    runner, caches, theirs = OnnxRunner(made), [empty, empty], [empty, empty]
    for begin, end in ((0, 4), (4, 5), (5, 6)):
        common = {"x": x[:, begin:end], "mask": mask[:, :end]}
        y, *caches = of_runner(runner, {**common, "past_key": caches[0], "past_value": caches[1]})
        wanted, *theirs = of_runtime(
            made, {**common, "past_key": theirs[0], "past_value": theirs[1]}
        )
        count = 3 if begin == 0 else end - begin
        numpy.testing.assert_allclose(y[0], wanted[0], atol=2e-6)
        numpy.testing.assert_allclose(y[1, :count], wanted[1, :count], atol=2e-6)
    assert runner.by_content == set()


def test_group_query_attention_refuses_what_it_has_not() -> None:
    inputs = grouped(numpy.random.default_rng(3))
    for name in ("query_norm", "key_scale"):
        made = node_model(
            "GroupQueryAttention", {**inputs, name: numpy.ones(32, "float32")}, 3,
            num_heads=4, kv_num_heads=2,
        )  # fmt: skip
        given = {k: array for k, array in inputs.items() if array is not None}
        with pytest.raises(UnsupportedError, match="GroupQueryAttention"):
            OnnxRunner(made)({**given, name: numpy.ones(32, "float32")})
