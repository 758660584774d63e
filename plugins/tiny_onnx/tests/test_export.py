"""Exported functions and layers: equal results here, by onnxruntime, and read back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tiny_onnx import OnnxRunner, export
from tinycore import Tensor, TinyJit, Variable, nn
from tinycore.cli.main import main
from tinycore.errors import ArgumentError, UnsupportedError


def runtime(model: onnx.ModelProto | str) -> Callable[[dict[str, Any]], list[Any]]:
    """onnxruntime's function of a model; that of `onnx.reference` where it is not installed."""
    try:
        import onnxruntime  # noqa: PLC0415
    except ImportError:
        evaluator: Any = ReferenceEvaluator(model)
    else:
        content = model if isinstance(model, str) else model.SerializeToString()
        evaluator = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda given: [*evaluator.run(None, given)]


def check(
    function: Callable[..., Any], *calls: tuple[Tensor, ...], limit: float = 1e-5, **options: Any
) -> onnx.ModelProto:
    """Export with the first arguments, and compare all results; returns the model."""
    model = export(function, calls[0], **options)
    onnx.checker.check_model(model, full_check=True)
    names = [given.name for given in model.graph.input]
    other, again = runtime(model), OnnxRunner(model)
    for call in calls:
        found = function(*call)
        expected = [x.numpy() for x in ([found] if isinstance(found, Tensor) else found)]
        given = dict(zip(names, [x.numpy() for x in call], strict=True))
        for results in (other(given), [x.numpy() for x in again(given).values()]):  # type: ignore[union-attr]
            for result, wanted in zip(results, expected, strict=True):
                assert result.dtype == wanted.dtype
                numpy.testing.assert_allclose(result, wanted, rtol=limit, atol=limit)
    return model


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def draw(*shape: int) -> Tensor:
    return Tensor.rand(*shape).realize()


class Cnn:
    """The convolutional network of examples/mnist.py, smaller."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 4, 5)
        self.norm = nn.BatchNorm(4)
        self.second = nn.Conv2d(4, 8, 3, padding=1)
        self.out = nn.Linear(8 * 6 * 6, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu().max_pool2d()
        x = self.second(x).relu().max_pool2d()
        return self.out(x.flatten(1))


def test_a_network_keeps_its_structure_and_the_names_of_its_weights() -> None:
    model = check(Cnn(), (draw(2, 1, 28, 28),), limit=1e-4)

    assert [operators(model).count(op) for op in ("Conv", "MaxPool", "MatMul")] == [2, 2, 1]
    names = {weight.name for weight in model.graph.initializer}
    assert {"first.weight", "first.bias", "norm.running_mean", "out.weight"} <= names
    assert [given.name for given in model.graph.input] == ["x"]


def test_an_axis_of_varying_length_serves_all_lengths() -> None:
    batches = [(draw(n, 1, 28, 28),) for n in (2, 1, 5)]
    model = check(Cnn(), *batches, limit=1e-4, dynamic_axes={"x": {0: "batch"}})

    (output,) = model.graph.output
    assert [d.dim_param or d.dim_value for d in output.type.tensor_type.shape.dim] == ["batch", 10]


def test_all_sides_of_a_picture_may_vary() -> None:
    pictures = [(draw(1, 3, *sides),) for sides in ((8, 8), (12, 9), (5, 30))]
    check(nn.Conv2d(3, 4, 3, padding=1), *pictures, dynamic_axes={"x": {2: "height", 3: "width"}})


def test_a_graph_for_one_length_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"n > 3, and here n=4"):
        export(lambda x: x if x.shape[0] > 3 else -x, draw(4), dynamic_axes={"x": {0: "n"}})


def test_attention_of_any_length_is_exported() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return Tensor.scaled_dot_product_attention(query, key, value, is_causal=True)

    calls = [tuple(draw(1, 2, n, 8) for _ in range(3)) for n in (4, 9)]
    for axis in (Variable("length", 1, 64), "length"):
        axes = {name: {2: axis} for name in ("query", "key", "value")}
        check(attention, *calls, dynamic_axes=axes)


def test_bounds_of_a_variable_decide() -> None:
    def cut(x: Tensor) -> Tensor:
        return x if x.shape[0] < 100 else -x

    check(cut, (draw(4),), (draw(9),), dynamic_axes={"x": {0: Variable("length", 1, 64)}})
    with pytest.raises(UnsupportedError, match="closer bounds"):
        export(cut, draw(4), dynamic_axes={"x": {0: "length"}})


def test_the_number_of_a_variable_is_an_input() -> None:
    place = Variable("place", 0, 4).bind(2)
    model = export(lambda x, place: x[place] * place, (draw(5, 3), place))

    given = {"x": numpy.arange(15, dtype="float32").reshape(5, 3), "place": numpy.array(3)}
    assert runtime(model)(given)[0].tolist() == [27.0, 30.0, 33.0]


def test_the_only_window_is_cut_out_where_it_has_one_element() -> None:
    check(lambda x: x.max_pool2d((1, 1), stride=3, return_indices=True)[1], (draw(1, 2, 3, 3),))


def test_an_axis_that_one_factor_of_a_product_has_alone_is_summed_once() -> None:
    check(lambda x, y: (x[..., None] * y).sum((0, 2)), (draw(2, 3, 4), draw(4, 5)))
    check(
        lambda x, w, g: (x.conv2d(w, groups=2, stride=2).mean(2) * g).sum().gradient(w)[0],
        (draw(2, 2, 6, 4), draw(4, 1, 3, 1), draw(2, 4, 2)),
    )


def test_a_captured_function_is_exported_through_its_realize() -> None:
    double = TinyJit(lambda x: (x * 2).realize())
    double(draw(3)), double(draw(3)), double(draw(3))

    check(double, (draw(3),))


def test_threads_export_beside_each_other() -> None:
    second = threading.Event()

    def double(x: Tensor) -> Tensor:
        second.wait(0.2)
        return (x * 2).realize()

    with ThreadPoolExecutor(2) as pool:
        models = [pool.submit(export, double, (draw(3),)) for _ in range(2)]
        time.sleep(0.1)
        second.set()
    assert [operators(each.result()) for each in models] == [["Mul", "Identity"]] * 2
    assert "realize" not in vars(Tensor)


def test_a_gradient_ends_where_the_function_realizes() -> None:
    def function(x: Tensor) -> Tensor:
        y = (x * 2).realize()
        (gradient,) = (y * (y * 3).realize().detach()).sum().gradient(y)
        return gradient

    check(function, (draw(3),))


def test_arguments_in_containers_have_the_names_of_their_paths() -> None:
    def total(parts: dict[str, Tensor], *, scale: Tensor) -> dict[str, Tensor]:
        return {"sum": (parts["a"] + parts["b"]) * scale, "a": parts["a"]}

    model = export(total, {"parts": {"a": draw(2), "b": draw(2)}, "scale": draw(1)})

    assert [x.name for x in model.graph.input] == ["parts.a", "parts.b", "scale"]
    assert [x.name for x in model.graph.output] == ["sum", "a"]


def test_a_write_to_an_argument_is_part_of_what_is_returned() -> None:
    def put(cache: Tensor, row: Tensor) -> Tensor:
        cache[1:2] = row
        return cache + 1

    model = export(put, (draw(3, 2), draw(1, 2)))
    given = {"cache": numpy.zeros((3, 2), "float32"), "row": numpy.ones((1, 2), "float32")}

    assert runtime(model)(given)[0].tolist() == [[1, 1], [2, 2], [1, 1]]


def test_a_write_to_the_state_is_refused_and_taken_back() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = Tensor.zeros(1).contiguous().realize()

        def __call__(self, x: Tensor) -> Tensor:
            self.count.assign(self.count + x)
            return self.count

    counter = Counter()
    with pytest.raises(ArgumentError, match="writes to count"):
        export(counter, draw(1))
    assert counter.count.tolist() == [0.0]


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x * x.sum().item(), ArgumentError, "asked for a number"),
        (lambda x: x + Tensor.rand(3), UnsupportedError, "draws random numbers"),
        (lambda x: x.reshape(1, 3).expand(600, 3).sort(0)[0], UnsupportedError, "MERGE_AXIS"),
        (lambda x: "text", Exception, "returned a str"),
    ],
)
def test_what_cannot_be_exported_is_named(
    function: Callable[[Tensor], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        export(function, draw(3))


def test_names_that_nothing_has_are_refused() -> None:
    with pytest.raises(ArgumentError, match="dynamic_axes names y; the inputs are x"):
        export(nn.Linear(2, 2), draw(1, 2), dynamic_axes={"y": {0: "n"}})
    with pytest.raises(ArgumentError, match="1 tensors have the names"):
        export(nn.Linear(2, 2), draw(1, 2), input_names=["a", "b"])


def test_integers_wrap_and_zeros_divide_to_zero() -> None:
    a = Tensor([7, -7, -(2**31), 5], dtype="int32")
    b = Tensor([0, 2, -1, -3], dtype="int32")

    check(lambda a, b: [a // b, a % b, (a * a).sum(), a.prod(), a >> (b & 3)], (a, b))


def test_sums_of_64_bits_are_exact() -> None:
    x = Tensor([2**62 + 1, 2**62, 3, 2**62], dtype="int64")

    check(lambda x: [x.sum(), (x | 1).prod()], (x,))


def test_weights_in_another_file_come_and_go_with_their_model(tmp_path: Path) -> None:
    path, layer = tmp_path / "model.onnx", nn.Linear(8, 4)
    x = draw(3, 8)
    for _ in range(2):  # the second replaces the first
        export(layer, x, path, external_data=True)
        assert len(list(tmp_path.iterdir())) == 2
    expected = layer(x).numpy()

    numpy.testing.assert_allclose(runtime(str(path))({"x": x.numpy()})[0], expected, rtol=1e-5)
    result = OnnxRunner(path)(x=x)["output"]
    assert isinstance(result, Tensor)
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)
    export(layer, x, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_an_export_that_fails_leaves_the_former_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, layer, x = tmp_path / "model.onnx", nn.Linear(8, 4), draw(3, 8)
    export(layer, x, path, external_data=True)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(onnx.ModelProto, "SerializeToString", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(layer, x, path, external_data=True)

    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def interrupted(model: onnx.ModelProto) -> bytes:
    raise KeyboardInterrupt


SCRIPT = """
from tinycore import Tensor, nn

def model():
    return nn.Linear(4, 2), {"features": Tensor.zeros(1, 4)}
"""


def test_the_command_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, path = tmp_path / "net.py", tmp_path / "net.onnx"
    script.write_text(SCRIPT)

    assert (
        main(["export-onnx", f"{script}:model", "-o", str(path), "--dynamic", "features:0=n"]) == 0
    )
    assert "from features to output" in capsys.readouterr().out
    assert repr(OnnxRunner(path)) == "OnnxRunner(features: float32 nx4 -> output: float32 nx2)"


def test_a_stored_argument_does_not_trouble_later_captures() -> None:
    kept = []

    def function(x: Tensor) -> Tensor:
        kept.append(x)
        return x + 1

    export(function, draw(3))
    double = TinyJit(lambda x: (x * 2).realize())
    assert [double(Tensor([n])).item() for n in range(4)] == [0, 2, 4, 6]


# --- real models


class Block:
    """A residual block of ResNet18 (He et al., 2015)."""

    def __init__(self, width: int, wider: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(width, wider, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(wider)
        self.down = (
            [nn.Conv2d(width, wider, 1, stride=stride, bias=False), nn.BatchNorm(wider)]
            if stride > 1
            else []
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + x.sequential(self.down)).relu()


class ResNet18:
    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm(64)
        widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.layers = [
            [Block(width, wider, stride), Block(wider, wider, 1)] for width, wider, stride in widths
        ]
        self.fc = nn.Linear(512, 1000)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu().max_pool2d(3, stride=2, padding=1)
        for layer in self.layers:
            x = x.sequential(layer)
        return self.fc(x.mean((2, 3)))


@pytest.mark.slow
def test_resnet18() -> None:
    model = check(ResNet18(), (draw(1, 3, 64, 64),), limit=1e-3)

    products = operators(model).count("Conv"), operators(model).count("MatMul")
    assert products == (17, 4)  # three of 1 x 1 with strides are products of matrices


class Transformer:
    """A block of a transformer, with the norm first."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (parts[:, :, n].transpose(1, 2) for n in range(3))
        seen = Tensor.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.up(self.norm2(x)).gelu())


@pytest.mark.slow
def test_a_transformer_of_any_length() -> None:
    calls = [(draw(1, n, 32),) for n in (6, 1, 17)]
    model = check(
        Transformer(32, 4), *calls, limit=1e-4, dynamic_axes={"x": {1: Variable("length", 1, 256)}}
    )

    assert operators(model).count("MatMul") == 6


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_step_of_a_language_model(family: str, tmp_path: Path) -> None:
    tiny_models = pytest.importorskip("tiny_models")
    from tiny_llm import LanguageModel  # noqa: PLC0415
    from tiny_llm.decoder import Cache  # noqa: PLC0415

    config = tiny_models.config_of(family)
    folder = tiny_models.write_folder(tmp_path / "folder", config, tiny_models.weights_of(config))
    model = LanguageModel.load(folder, cache_dtype="float32", context=64)
    ids = numpy.random.default_rng(7).integers(0, 256, 5)

    cache = Cache.empty(model.decoder.about, 64, "float32", None)

    def step(token: Tensor, start: Tensor, keys: list[Tensor], values: list[Tensor]) -> Any:
        kept = Cache(cache.lanes, cache.places, keys, values, cache.turns)
        scores = model.decoder(token, kept, start, reach=cache.places)
        return [scores, *keys, *values]

    token, start = Tensor([[1]], dtype="int32"), Tensor([0], dtype="int32")
    made = export(step, (token, start, cache.keys, cache.values), state=model.decoder)
    run, held = runtime(made), [x.numpy() for x in (*cache.keys, *cache.values)]
    names = [given.name for given in made.graph.input]
    for place, number in enumerate(ids):
        given = [numpy.array([[number]], "int32"), numpy.array([place], "int32"), *held]
        scores, *held = run(dict(zip(names, given, strict=True)))

    assert numpy.abs(scores[-1] - model.scores(ids.tolist())).max() < 1e-4


@pytest.mark.slow
def test_random_programs() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.fuzz.exports", "--count", "60", "--seed", "5000"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
