"""A model file is untrusted input: what is wrong in it ends in an error that says so."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy
import onnx
import pytest
from graphs import model, value
from onnx import TensorProto, helper, numpy_helper

from tiny_onnx import OnnxRunner
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
