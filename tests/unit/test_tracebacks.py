"""Tracebacks of mistakes: the caller's lines, and of tinycore one frame at most."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy
import pytest

import tinycore
from tinycore import Context, Device, Tensor, TinyJit, Variable, linalg, nn
from tinycore import array_api as xp
from tinycore._tracebacks import FAULTS, shown_at_caller
from tinycore.config import settings
from tinycore.errors import ShapeError, TinycoreError, VerifyError, package
from tinycore.nn import optim, state
from tinycore.tensor import graph

make: Any = Tensor
"""Type checkers know better than to make these mistakes."""
layers: Any = nn
named: Any = xp
function: Any = tinycore.function
optimizers: Any = optim


class Things:
    """Operands of the table's mistakes."""

    def __init__(self, folder: Path) -> None:
        self.x: Any = Tensor.ones(2, 3)
        self.parameter: Any = Tensor.ones(4)
        self.missing = str(folder / "missing.safetensors")
        self.broken = str(folder / "broken")
        Path(self.broken).write_bytes(b"neither of these formats")


def run_twice(function: Any, *arguments: Any) -> None:
    for _ in range(2):
        function(*arguments)


def without_gradient(t: Things) -> None:
    optimizers.SGD([t.parameter]).step()


def stepped(t: Things) -> Any:
    optimizer = optimizers.SGD([t.parameter])
    optimizer.lr = "fast"


MISTAKES: dict[str, Callable[[Things], Any]] = {
    # shapes
    "operator": lambda t: t.x @ t.x,
    "reflected operator": lambda t: numpy.ones((5, 5)) + t.x,
    "method": lambda t: t.x.reshape(4),
    "keyword": lambda t: t.x.reshape(shape=(4,)),
    "static method": lambda t: make.stack([]),
    "class method": lambda t: make.zeros(-1),
    "in place": lambda t: t.x.assign(make.ones(7)),
    "composed method": lambda t: t.x.conv2d(make.ones(7)),
    "method without arguments": lambda t: t.x.item(),
    "property": lambda t: t.parameter.mT,
    "truth": lambda t: bool(t.x),
    "number": lambda t: float(t.x),
    "iteration": lambda t: list(make(1.0)),
    "length": lambda t: len(make(1.0)),
    "loss": lambda t: t.x.cross_entropy(make.ones(9)),
    "gradient": lambda t: t.x.backward(),
    "no gradient": lambda t: make.ones(2).sum().gradient(make.ones(2).cast("int32")),
    "linear algebra": lambda t: t.x.det(),
    "function of linear algebra": lambda t: linalg.qr(t.parameter),
    # dtypes
    "dtype": lambda t: t.x.cast("floot32"),
    "data": lambda t: make("text"),
    "ragged data": lambda t: make([[1, 2], [3]]),
    "bits of floats": lambda t: t.x & t.x,
    "assigned mode": lambda t: setattr(make, "training", "perhaps"),
    "address": lambda t: make.from_blob("x", 3),
    "memory of another library": lambda t: tinycore.from_dlpack(3),
    # arguments
    "unknown argument": lambda t: t.x.sum(axes_of=3),
    "too many arguments": lambda t: t.x.relu(3),
    "too many checked arguments": lambda t: t.x.softmax(1, 2, 3, 4, 5),
    "unknown name": lambda t: t.x.reshpae(6),
    "name of another library": lambda t: t.x.cuda(),
    "name of the package": lambda t: tinycore.foo,
    "name of nn": lambda t: layers.Lienar(2, 3),
    # indices
    "index": lambda t: t.x[5],
    "index of a kind": lambda t: t.x[1.5],
    "assigned item": lambda t: t.x.__setitem__(0, make.ones(7)),
    "axis": lambda t: t.x.sum(4),
    # devices, settings
    "device": lambda t: t.x.to("GRU"),
    "device of a new tensor": lambda t: make.ones(2, device="GRU:1").realize(),
    "lookup of a device": lambda t: Device["GRU"],
    "number of a device": lambda t: Device.canonicalize("CPU:notanumber"),
    "default device": lambda t: setattr(Device, "DEFAULT", "CPU::::::"),
    "canonical device": lambda t: Device.canonicalize("GRU"),
    "setting": lambda t: Context(DEBGU=1),
    "value of a setting": lambda t: Context(BEAM="much"),
    "assigned setting": lambda t: setattr(settings, "NOOPT", "perhaps"),
    "variable": lambda t: Variable("i", 3, 1),
    "bound variable": lambda t: Variable("i", 1, 3).bind(9),
    # layers
    "layer": lambda t: layers.Linear("x", 3),
    "layer without sizes": lambda t: layers.Linear(),
    "input of a layer": lambda t: layers.Linear(4, 3)(t.x),
    "input that is no tensor": lambda t: layers.Linear(4, 3)(numpy.ones((2, 4))),
    "convolution": lambda t: layers.Conv2d(3, 4, -1),
    "input of a convolution": lambda t: layers.Conv2d(3, 4, 3)(t.x),
    "normalization": lambda t: layers.BatchNorm(4)(t.x),
    "groups": lambda t: layers.GroupNorm(3, 4),
    "embedding": lambda t: layers.Embedding(3, 4)(t.x),
    "recurrent": lambda t: layers.LSTM(4, 4)(t.x),
    "heads": lambda t: layers.MultiHeadAttention(5, 2),
    "input of heads": lambda t: layers.MultiHeadAttention(4, 2)(t.x),
    "layers in a row": lambda t: t.x.sequential([layers.Linear(3, 4), layers.Linear(3, 4)]),
    # optimizers
    "optimizer of nothing": lambda t: optimizers.SGD([]),
    "rate": lambda t: optimizers.Adam([t.parameter], lr=-1),
    "weight": lambda t: optimizers.AdamW([t.parameter], b1=2.0),
    "optimizer of a tensor": lambda t: optimizers.Adam(t.parameter),
    "step without gradients": without_gradient,
    "assigned rate": stepped,
    "name of an optimizer": lambda t: optimizers.Adam([t.parameter]).state_dict,
    "schedule": lambda t: optimizers.lr_scheduler.StepLR(optimizers.SGD([t.parameter]), 0),
    "clipping": lambda t: optimizers.clip_grad_norm_([t.parameter], -1.0),
    "scaler": lambda t: optimizers.GradScaler(init_scale=-1),
    # files
    "missing file": lambda t: state.safe_load(t.missing),
    "broken file": lambda t: state.safe_load(t.broken),
    "broken torch file": lambda t: state.torch_load(t.broken),
    "broken gguf file": lambda t: state.gguf_load(make(Path(t.broken))),
    "broken numpy file": lambda t: state.numpy_load(t.broken),
    "broken archive": lambda t: state.tar_extract(t.broken),
    "broken zip": lambda t: state.zip_extract(t.broken),
    "missing checkpoint": lambda t: state.load_checkpoint(t.missing, layers.Linear(2, 2)),
    "folder that is not there": lambda t: state.safe_save({"x": t.x}, f"{t.missing}/a/b"),
    "state": lambda t: state.load_state_dict(layers.Linear(2, 2), {"weight": t.x}),
    "shape of a state": lambda t: state.load_state_dict(
        layers.Linear(3, 2, bias=False), {"weight": make.ones(7)}
    ),
    "data set": lambda t: nn.datasets.mnist(t.missing),
    "file of a tensor": lambda t: make(Path(t.missing)),
    # functions of the program
    "captured function": lambda t: run_twice(TinyJit(lambda x: 3), t.x),
    "captured argument": lambda t: run_twice(TinyJit(lambda x: x), object()),
    "captured generator": lambda t: TinyJit(lambda: iter([t.x]))(),
    "function": lambda t: tinycore.function(lambda x: 3)(t.x),
    # the array API
    "array function": lambda t: xp.reshape(t.x, (4,)),
    "array argument": lambda t: named.add("a", t.x),
    "array dtype": lambda t: xp.bitwise_and(t.x, t.x),
    "array linear algebra": lambda t: xp.linalg.cholesky(t.parameter),
    "array name": lambda t: xp.einsum,
}


def raised(mistake: Callable[[Things], Any], things: Things) -> Exception:
    try:
        mistake(things)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture
def things(tmp_path: Path) -> Things:
    return Things(tmp_path)


def names(error: BaseException) -> list[str]:
    """The functions in a traceback; those of tinycore have its name before theirs."""
    return [
        f"tinycore {frame.f_code.co_name}" if package(frame) == "tinycore" else frame.f_code.co_name
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_at_the_line_of_the_caller(name: str, things: Things) -> None:
    error = raised(MISTAKES[name], things)

    ours = [frame.startswith("tinycore ") for frame in names(error)]
    shown = "".join(traceback.format_exception(error))
    assert sum(ours) <= 1, shown
    assert not any(ours[:-1]), shown
    last = traceback.extract_tb(error.__traceback__)[-1 - ours[-1]]
    assert last.filename == __file__, shown


# What stays


def test_debug_shows_all_frames(things: Things) -> None:
    with Context(DEBUG=1):
        shown = names(raised(MISTAKES["method"], things))

    assert shown[-1] == "tinycore reshape"


def test_a_fault_of_ours_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    fault: dict[str, Any] = {"__name__": "tinycore.faulty"}
    exec("def fail(*_):\n    raise KeyError('a fault')", fault)
    monkeypatch.setattr(graph, "broadcast_to", fault["fail"])

    with pytest.raises(KeyError) as caught:
        Tensor.ones(3).expand(2, 3)

    assert "tinycore expand" in names(caught.value)
    assert names(caught.value)[-1] == "tinycore fail"


@pytest.mark.parametrize("cls", FAULTS)
def test_an_error_that_is_a_fault_shows_all_frames(cls: type[TinycoreError]) -> None:
    @shown_at_caller
    def public() -> None:
        hidden()

    def hidden() -> None:
        raise cls("not of the caller")

    with pytest.raises(cls) as caught:
        public()

    assert names(caught.value)[-1] == "hidden"


# Functions of the program


def outer_function(x: Any) -> Any:
    return inner_function(x)


def inner_function(x: Any) -> Any:
    return x.reshape(7)


def failing_function(x: Any) -> Any:
    raise LookupError("of the program")


def second_call(x: Any, function: Any) -> None:
    calls = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        calls.append(x)
        return (x + 1).realize() if len(calls) < 2 else function(x)

    step(x)
    step(x)


class Model:
    """A program's class, whose captured method calls a function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    @TinyJit
    def step(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x)
        return result


def captured_method(x: Any, function: Any) -> None:
    model = Model(function)
    model.step(x)


def differentiated(x: Any, function: Any) -> None:
    custom = tinycore.function(lambda y: y * 2, grad_fxn=lambda gradient, call: function(x))
    custom(x).sum().backward()


CALLBACKS: dict[str, Callable[[Any, Any], Any]] = {
    "captured": lambda x, f: TinyJit(f)(x),
    "captured at the second call": second_call,
    "method": captured_method,
    "training": lambda x, f: Tensor.train()(f)(x),
    "settings": lambda x, f: Context(NOOPT=1)(f)(x),
    "function": lambda x, f: function(f)(x),
    "gradient": differentiated,
    "layer": lambda x, f: x.sequential([f]),
    "kernel": lambda x, f: x.contiguous().custom_kernel(fxn=lambda out: f(x)),
    "schedule of rates": lambda x, f: optimizers.lr_scheduler.LambdaLR(
        optimizers.SGD([Tensor.ones(2)]), lambda epoch: f(x)
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_all_frames_of_a_function_of_the_program_are_shown(name: str, things: Things) -> None:
    with pytest.raises(ShapeError, match="reshape") as mistake:
        CALLBACKS[name](things.x, outer_function)
    with pytest.raises(LookupError) as other:
        CALLBACKS[name](things.x, failing_function)

    assert names(mistake.value)[-2:] == ["outer_function", "inner_function"]
    assert names(other.value)[-1] == "failing_function"
    for error in (mistake.value, other.value):
        assert sum(frame.startswith("tinycore ") for frame in names(error)) <= 1


def test_an_error_that_the_program_was_handling_is_shown_with_the_new_one(things: Things) -> None:
    def handle() -> None:
        try:
            failing_function(things.x)
        except LookupError:
            things.x.reshape(7)

    with pytest.raises(ShapeError) as caught:
        handle()

    context = caught.value.__context__
    assert isinstance(context, LookupError)
    assert names(context) == ["handle", "failing_function"]
    assert "During handling" in "".join(traceback.format_exception(caught.value))


def test_a_fault_that_the_program_handles_keeps_its_frames(things: Things) -> None:
    ours: dict[str, Any] = {"__name__": "tinycore.faulty", "error": VerifyError("a fault")}
    exec("def fail():\n    raise error", ours)
    with pytest.raises(VerifyError) as fault:
        ours["fail"]()

    def handle() -> None:
        try:
            raise fault.value
        except VerifyError:
            things.x.reshape(7)

    with pytest.raises(ShapeError) as caught:
        handle()

    assert caught.value.__context__ is fault.value
    assert names(fault.value)[-1] == "tinycore fail"


def test_an_error_of_the_program_is_not_asked_for_its_text() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise AttributeError("it has none")

    def fail(x: Tensor) -> Tensor:
        raise Odd

    with pytest.raises(Odd):
        TinyJit(fail)(Tensor.ones(2))


# What else a program sees of functions and methods


@pytest.mark.parametrize("module", [xp, xp.linalg, nn, optim, state, nn.datasets])
def test_functions_are_pickled_by_the_module_that_shows_them(module: Any) -> None:
    for name in module.__all__:
        if callable(found := getattr(module, name)):
            assert pickle.loads(pickle.dumps(found)) is found


def test_a_method_is_found_by_the_order_of_the_classes_of_a_program() -> None:
    class Counting(optim.Optimizer):
        def step(self) -> Any:
            return "counted"

    class Both(optim.Adam, Counting):
        pass

    assert "step" not in vars(optim.Adam)
    assert Both([Tensor.ones(2)]).step() == "counted"


def test_what_led_to_a_mistake_shows_no_frames_of_ours(things: Things) -> None:
    error = raised(MISTAKES["broken zip"], things)

    assert isinstance(error.__cause__, zipfile.BadZipFile)
    assert names(error.__cause__) == []


# Where tracebacks are shown

PROGRAM: Final = """\
from tinycore import Tensor

def step(x):
    return x.reshape(7)

step(Tensor.ones(2, 3))
"""
SHOWN: Final = re.compile(r"line 6.*line 4,? in step\W.*return x\.reshape\(7\)", re.DOTALL)


def shown_by(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode
    return done.stdout + done.stderr


def test_a_script_shows_the_lines_of_the_program_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)

    shown = shown_by(str(script))

    assert SHOWN.search(shown)
    assert "signatures" not in shown


def test_a_thread_shows_the_lines_of_the_program_alone(things: Things) -> None:
    kept: list[BaseException] = []

    def work() -> None:
        try:
            outer_function(things.x)
        except ShapeError as error:
            kept.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert names(kept[0]) == ["work", "outer_function", "inner_function"]


@pytest.mark.slow
def test_ipython_shows_the_lines_of_the_program_alone(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)

    shown = shown_by("-m", "IPython", "--colors=NoColor", str(script))

    assert "return x.reshape(7)" in shown
    assert "signatures" not in shown


@pytest.mark.slow
def test_pytest_shows_the_lines_of_the_program_alone(tmp_path: Path) -> None:
    script = tmp_path / "test_train.py"
    script.write_text(PROGRAM.replace("\nstep(", "\ndef test_it():\n    step("))

    shown = shown_by("-m", "pytest", "-q", "-p", "no:cacheprovider", str(script))

    assert "return x.reshape(7)" in shown
    assert "signatures" not in shown
