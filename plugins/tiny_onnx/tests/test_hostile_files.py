"""A model file is untrusted input: what is wrong in it ends in an error that says so."""

from __future__ import annotations

import copy
import os
import random
import resource
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import backend_cases
import numpy
import onnx
import pytest
from graphs import BOOL, INT64, model, value
from onnx import TensorProto, helper, numpy_helper

from tiny_onnx import OnnxRunner, run
from tinycore import Tensor
from tinycore.errors import FileFormatError, TinycoreError, UnsupportedError


def outside(path: Path, **entries: str) -> Path:
    """A model whose weight lies where the entries say."""
    weight = TensorProto(
        name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    for key, text in entries.items():
        weight.external_data.add(key=key, value=text)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "graph", [value("x", [4])], [value("y", [4])], [weight])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_weights_beside_the_model_are_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(numpy.arange(6, dtype=numpy.float32).tobytes())
    path = outside(tmp_path / "m.onnx", location="weights.bin", offset="8", length="16")
    y = OnnxRunner(path)(x=numpy.zeros(4, "float32"))["y"]
    assert numpy.asarray(y).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "", "."])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    os.symlink(tmp_path / "secret", folder / "link")
    with pytest.raises(FileFormatError, match=r"outside of the model's folder|no file"):
        OnnxRunner(outside(folder / "m.onnx", location=location))


@pytest.mark.parametrize(
    "entries", [{"offset": "-4"}, {"offset": "8"}, {"length": "12"}, {"offset": "a"}]
)
def test_weights_beyond_the_end_of_their_file_are_refused(
    tmp_path: Path, entries: dict[str, str]
) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(16))
    with pytest.raises(FileFormatError, match="weight 'w'"):
        OnnxRunner(outside(tmp_path / "m.onnx", location="weights.bin", **entries))


def test_a_weight_whose_bytes_do_not_fill_its_shape_is_refused() -> None:
    proto = model([], [], [], {"w": numpy.zeros(4, "float32")})
    proto.graph.initializer[0].dims[0] = 2**40
    with pytest.raises(FileFormatError, match=r"weight 'w' of shape \[1099511627776\]"):
        OnnxRunner(proto)
    proto.graph.initializer[0].dims[0] = -1
    with pytest.raises(FileFormatError, match="negative shape"):
        OnnxRunner(proto)


def test_functions_that_call_themselves_are_refused() -> None:
    body = helper.make_function(
        "own", "Again", ["a"], ["b"], [helper.make_node("Again", ["a"], ["b"], domain="own")],
        [helper.make_opsetid("own", 1)],
    )  # fmt: skip
    node = helper.make_node("Again", ["x"], ["y"], domain="own")
    proto = model([node], [value("x", [1])], [value("y", [1])], functions=[body])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(FileFormatError, match="nests more than"):
        OnnxRunner(proto)(x=numpy.zeros(1, "float32"))


def test_a_name_that_nothing_computes_is_refused() -> None:
    proto = model([helper.make_node("Neg", ["z"], ["y"])], [value("x", [1])], [value("y", [1])])
    with pytest.raises(FileFormatError, match="nothing computes 'z'"):
        OnnxRunner(proto)(x=numpy.zeros(1, "float32"))


def test_complex_numbers_are_refused_by_name() -> None:
    proto = model([], [], [], {"w": numpy.zeros(1, "complex64")})
    with pytest.raises(UnsupportedError, match="element type 14"):
        OnnxRunner(proto)


def damaged(content: bytes, seed: int) -> bytes:
    """A file with bytes changed, cut out or put in."""
    draw = random.Random(seed)
    result = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(result))
        match draw.randrange(3):
            case 0:
                result[place] = draw.randrange(256)
            case 1:
                del result[place : place + draw.randint(1, 8)]
            case _:
                result[place:place] = draw.randbytes(draw.randint(1, 8))
    return bytes(result)


def check_damaged(seeds: range) -> int:
    """Load and call damaged models; return how many were refused."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Reshape", ["r", "s"], ["y"]),
    ]
    weights = {
        "w": numpy.ones((2, 3), "float32"),
        "b": numpy.ones(2, "float32"),
        "s": numpy.array([-1]),
    }
    proto = model(nodes, [value("x", [1, 3])], [value("y", [2])], weights)
    content = proto.SerializeToString()
    refused = 0
    for seed in seeds:
        try:
            OnnxRunner(damaged(content, seed))(x=numpy.ones((1, 3), "float32"))
        except TinycoreError:
            refused += 1
    return refused


def test_damaged_files_end_in_errors_of_ours() -> None:
    assert check_damaged(range(60)) > 20


@pytest.mark.slow
def test_many_damaged_files_end_in_errors_of_ours() -> None:
    assert check_damaged(range(1000, 3000)) > 800


NUMBERS = (0, 1, -1, 2, 7, 1000, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 0.5, -1.5, 1e30,
           float("inf"), float("nan"))  # fmt: skip


def parts_of(message: Any) -> list[tuple[Any, Any]]:
    """All fields that are set in a message of protobuf, and in those inside, each with its own."""
    found = []
    for field, content in message.ListFields():
        found.append((message, field))
        for inner in content if field.is_repeated else [content]:
            found += parts_of(inner) if field.type == field.TYPE_MESSAGE else []
    return found


def other(draw: random.Random, field: Any, old: Any, names: list[str]) -> Any:
    """Another value of a field."""
    if isinstance(old, str):
        return draw.choice([*names, "", "nothing"])
    if isinstance(old, bytes):
        return draw.choice([b"", old[:-1], old + b"0", draw.randbytes(len(old))])
    if isinstance(old, float):
        return float(draw.choice(NUMBERS))
    return draw.choice([each for each in NUMBERS if isinstance(each, int)])


def damaged_message(proto: Any, draw: random.Random) -> None:
    """A field of a model lost, repeated, out of order, or with another value."""
    fields = parts_of(proto)
    names = [n.name for n, _ in fields if hasattr(n, "name")] + [
        name for node in proto.graph.node for name in (*node.input, *node.output, node.op_type)
    ]
    message, field = draw.choice(fields)
    with suppress(ValueError):  # a number that the field does not take
        if not field.is_repeated:
            if field.type == field.TYPE_MESSAGE or draw.random() < 0.2:
                message.ClearField(field.name)
            else:
                old = getattr(message, field.name)
                setattr(message, field.name, other(draw, field, old, names))
            return
        content = [copy.deepcopy(each) for each in getattr(message, field.name)]
        place = draw.randrange(len(content))
        match draw.randrange(4):
            case 0:
                del content[place]
            case 1:
                content.append(copy.deepcopy(content[place]))
            case 2:
                draw.shuffle(content)
            case _ if field.type != field.TYPE_MESSAGE:
                content[place] = other(draw, field, content[place], names)
        message.ClearField(field.name)
        getattr(message, field.name).extend(content)


def check_damaged_messages(seeds: range) -> Counter[str]:
    """Load and call operators whose messages are damaged; what became of them.

    Kernels are built where a value is read on the host, else left out: they take their time.
    """
    found: Counter[str] = Counter()
    by_operator: dict[str, list[Any]] = {}
    for case in backend_cases.operators().values():
        assert case.model is not None
        by_operator.setdefault(case.model.graph.node[-1].op_type, []).append(case)
    for seed in seeds:
        draw = random.Random(seed)
        case = draw.choice(by_operator[draw.choice(sorted(by_operator))])
        proto = copy.deepcopy(case.model)
        for _ in range(draw.randint(1, 3)):
            damaged_message(proto, draw)
        inputs = [
            numpy_helper.to_array(each) if isinstance(each, onnx.TensorProto) else each
            for each in case.data_sets[0][0]
        ]
        names = [each.name for each in case.model.graph.input]
        try:
            with patch.object(Tensor, "realize", lambda tensor, *others: tensor):
                OnnxRunner(proto)(dict(zip(names, inputs, strict=False)))
            found["ran"] += 1
        except TinycoreError as error:
            found[type(error).__name__] += 1
    return found


@pytest.mark.slow
def test_many_damaged_operators_end_in_errors_of_ours() -> None:
    found = check_damaged_messages(range(300))
    assert found["ran"] < 225
    assert found["FileFormatError"] > 10


TF_IDF = {
    "max_gram_length": 2, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF",
    "ngram_counts": [0, 1], "ngram_indexes": [0, 1], "pool_int64s": [2, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Range", [numpy.array(0.0), numpy.array(1e12), numpy.array(1.0)], {}),
        ("Tile", [numpy.ones(3), numpy.array([2**40])], {}),
        ("Expand", [numpy.ones(1), numpy.array([2**40])], {}),
        ("Pad", [numpy.ones(3), numpy.array([2**40, 0])], {}),
        ("HannWindow", [numpy.array(2**40)], {}),
        ("OneHot", [numpy.array([1]), numpy.array(2**40), numpy.array([0.0, 1.0])], {}),
        ("ConstantOfShape", [numpy.array([2**40])], {}),
        ("Resize", [numpy.ones((1, 1, 2, 2)), None, None, numpy.array([1, 1, 2**20, 2**20])], {}),
        ("RoiAlign", [numpy.ones((1, 1, 4, 4)), numpy.ones((1, 4)), numpy.array([0])],
         {"output_height": 2**31, "output_width": 2}),
        ("MaxRoiPool", [numpy.ones((1, 1, 4, 4)), numpy.ones((1, 5))],
         {"pooled_shape": [2**31, 2]}),
        ("AffineGrid", [numpy.ones((1, 2, 3)), numpy.array([1, 1, 2**14, 2**14])], {}),
        ("TfIdfVectorizer", [numpy.array([2, 3])], TF_IDF | {"ngram_indexes": [0, 2**31]}),
        ("TfIdfVectorizer", [numpy.array([2, 3])], TF_IDF | {"max_skip_count": 2**40}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_numbers_that_make_a_result_huge_take_no_memory(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    given = [f"w{place}" if each is not None else "" for place, each in enumerate(inputs)]
    weights = {
        name: each.astype("float32") if each.dtype.kind == "f" and op != "Range" else each
        for name, each in zip(given, inputs, strict=True)
        if name
    }
    node, result = helper.make_node(op, given, ["y"], **attributes), onnx.ValueInfoProto(name="y")
    runner = OnnxRunner(model([node], [], [result], weights))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TinycoreError):
        numpy.asarray(runner()["y"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_scan_over_more_inputs_than_there_are_takes_no_memory() -> None:
    body = helper.make_graph([], "body", [value("s", [])], [value("s", [])])
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=2**40)
    runner = OnnxRunner(model([node], [value("x", [2])], [value("y", [2])]))
    with pytest.raises(FileFormatError, match="a scan over 1099511627776 of 1 inputs"):
        runner(x=numpy.ones(2, "float32"))


def test_neighbors_beyond_all_channels_take_no_time() -> None:
    node = helper.make_node("LRN", ["x"], ["y"], size=2**40)
    runner = OnnxRunner(model([node], [value("x", [1, 3, 2])], [value("y", [1, 3, 2])]))
    x = numpy.ones((1, 3, 2), "float32")

    assert numpy.allclose(numpy.asarray(runner(x=x)["y"]), x)


def test_work_that_multiplies_itself_is_refused() -> None:
    """Functions that call the one before twice, and loops without an end."""
    opset = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"f{depth}", ["a"], ["c"],
            [helper.make_node("Neg", ["a"], ["c"])] if not depth else [
                helper.make_node(f"f{depth - 1}", ["a"], ["b"], domain="own"),
                helper.make_node(f"f{depth - 1}", ["b"], ["c"], domain="own"),
            ],
            opset,
        )
        for depth in range(40)
    ]  # fmt: skip
    node = helper.make_node("f39", ["x"], ["y"], domain="own")
    laughs = model([node], [value("x", [1])], [value("y", [1])], functions=functions)
    laughs.opset_import.append(opset[1])
    body = helper.make_graph(
        [], "body", [value("i", [], INT64), value("on", [], BOOL)], [value("on", [], BOOL)]
    )
    loop = helper.make_node("Loop", ["", "on"], [], body=body)
    endless = model([loop, helper.make_node("Neg", ["x"], ["y"])], [value("x", [1])],
                    [value("y", [1])], {"on": numpy.array(True)})  # fmt: skip
    with patch.object(run, "MOST_NODES", 3000):
        for proto in (laughs, endless):
            with pytest.raises(UnsupportedError, match="more than 3000 nodes"):
                OnnxRunner(proto)(x=numpy.ones(1, "float32"))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"not a model", bytes(100), b"\x80\x02]q\x00."):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"m\.onnx"):
            OnnxRunner(path)


def test_the_reader_takes_what_onnx_itself_has_loaded() -> None:
    array = numpy.arange(3, dtype=numpy.float32)
    proto = model(
        [helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(array))],
        [],
        [value("y", [3])],
    )
    for source in (
        proto,
        proto.SerializeToString(),
        onnx.load_from_string(proto.SerializeToString()),
    ):
        assert numpy.asarray(OnnxRunner(source)()["y"]).tolist() == [0, 1, 2]
