"""Models as C: what the library computes, from C's side and from Python's, and what it refuses."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

from tiny_cpu import export as exported
from tiny_cpu.amx import units_of
from tiny_cpu.arch import Arch
from tiny_cpu.clang import is_clang_installed
from tinycore import Context, Tensor, dtypes, nn
from tinycore.cli.export import export
from tinycore.errors import ArgumentError, CompilerUnavailable, UnsupportedError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_clang_installed(), reason="C is written for clang"),
    pytest.mark.skipif(sys.platform != "linux", reason="libraries are ELF files"),
]
Inputs = Mapping[str, Tensor]


class Net:
    """Two layers."""

    def __init__(self) -> None:
        Tensor.manual_seed(7)
        self.first, self.last = nn.Linear(64, 96), nn.Linear(96, 8)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


def written(folder: Path, function: Callable[..., Any], inputs: Inputs, arch: str = "") -> Path:
    """The folder of an exported model."""
    with Context(DEV="CPU"):
        export(function, inputs, "CPU", folder, arch)
    return folder


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Context(DEV="CPU"):
        x = Tensor.rand(32, 64)
    return written(tmp_path_factory.mktemp("net") / "model", Net(), {"x": x})


def opened(folder: Path, threads: int = 0) -> Any:
    """The model, by the loader beside it."""
    facts: dict[str, Any] = {"__name__": "model", "__file__": str(folder / "model.py")}
    exec(compile((folder / "model.py").read_text(), str(folder / "model.py"), "exec"), facts)
    return facts["Model"](folder, threads)


def compared(folder: Path) -> subprocess.CompletedProcess[str]:
    """`python model.py`, with nothing installed."""
    command = [sys.executable, "-I", "-S", str(folder / "model.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_example_is_computed_without_any_package(net: Path) -> None:
    done = compared(net)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "output [32, 8] float32: at most 0 apart, ok\n"


@pytest.mark.parametrize("threads", [1, 3])
def test_other_inputs_are_computed_as_here(net: Path, threads: int) -> None:
    """On threads of a new process, since the first model of a process decides how many."""
    code = (
        f"import sys, numpy; sys.path.insert(0, {str(net)!r}); from model import Model\n"
        f"m = Model(threads={threads}); x = numpy.load(sys.argv[1])\n"
        "for _ in range(50): y = m(x=x)['output']\n"
        "numpy.save(sys.argv[2], y)"
    )
    x = numpy.random.default_rng(1).standard_normal((32, 64)).astype("float32")
    given, got = net / "x.npy", net / "y.npy"
    numpy.save(given, x)
    subprocess.run([sys.executable, "-c", code, str(given), str(got)], check=True, timeout=120)
    with Context(DEV="CPU", TRAINING=0):
        want = Net()(Tensor(x)).numpy()
    assert numpy.abs(numpy.load(got) - want).max() < 1e-5


def test_every_dtype_is_given_and_returned(tmp_path: Path) -> None:
    names = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
    raw = "bfloat16 fp8e4m3 fp8e5m2".split()
    with Context(DEV="CPU"):
        inputs = {
            f"x{name}": Tensor([0, 1, 3], dtype=getattr(dtypes, name)) for name in names + raw
        }
        scalar = {"number": Tensor(2.0)}

    def doubled(**given: Tensor) -> dict[str, Tensor]:
        return {f"y{name}": x + x for name, x in given.items()}

    def model(*given: Tensor) -> dict[str, Tensor]:
        return doubled(**dict(zip([*inputs, *scalar], given, strict=True)))

    folder = written(tmp_path / "model", model, inputs | scalar)
    assert compared(folder).stdout.count(", ok\n") == len(inputs) + 1
    given = {f"x{name}": numpy.array([0, 1, 3], dtype=name) for name in names}
    given |= {f"x{name}": inputs[f"x{name}"].bitcast(dtypes.uint8).numpy() for name in raw[1:]}
    given["xbfloat16"] = inputs["xbfloat16"].bitcast(dtypes.uint16).numpy()
    got = opened(folder)(**given, number=2.0)
    for name in names:
        want = numpy.array([0, 1, 3], dtype=name) + numpy.array([0, 1, 3], dtype=name)
        assert got[f"yx{name}"].dtype == want.dtype
        assert got[f"yx{name}"].tolist() == want.tolist()
    assert got["ynumber"].shape == ()
    assert float(got["ynumber"]) == 4.0


def test_products_by_tiles_of_amx(tmp_path: Path) -> None:
    if not units_of(Arch.parse("")):
        pytest.skip("the processor has no AMX")
    with Context(DEV="CPU"):
        Tensor.manual_seed(2)
        a, b = (Tensor.rand(128, 128).cast(dtypes.bfloat16).realize() for _ in range(2))
    folder = written(tmp_path / "model", lambda x: x @ b, {"x": a})
    assert "#define TILES" in (folder / "model.c").read_text()
    assert compared(folder).returncode == 0


def test_retrained_weights_take_the_place_of_the_old_ones(net: Path, tmp_path: Path) -> None:
    folder = copied(net, tmp_path)
    with Context(DEV="CPU"):
        state = nn.state.safe_load(folder / "weights.safetensors")
        changed = {name: (x * 2).realize() for name, x in state.items()}
        nn.state.safe_save(changed, folder / "weights.safetensors")
    x = numpy.ones((32, 64), "float32")
    other = opened(folder)(x=x)["output"]
    assert numpy.abs(other - opened(net)(x=x)["output"]).max() > 0.01


def copied(net: Path, folder: Path) -> Path:
    for name in ("libmodel.so", "model.py", "weights.safetensors", "example.safetensors"):
        (folder / name).write_bytes((net / name).read_bytes())
    return folder


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda whole: whole[:-1], "its size is another"),
        (lambda whole: whole + b"\0", "its size is another"),
        (lambda whole: whole[:40], "names, shapes or types differ"),
        (lambda whole: b"", "names, shapes or types differ"),
        (lambda whole: whole.replace(b"first", b"worst"), "names, shapes or types differ"),
        (None, "cannot be opened"),
    ],
    ids=["short", "long", "header only", "empty", "other names", "absent"],
)
def test_weights_of_something_else_are_refused(
    net: Path, tmp_path: Path, damage: Callable[[bytes], bytes] | None, complaint: str
) -> None:
    folder = copied(net, tmp_path)
    weights = folder / "weights.safetensors"
    if damage is None:
        weights.unlink()
    else:
        weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(OSError, match=complaint):
        opened(folder)


def test_wrong_calls_from_python(net: Path) -> None:
    model = opened(net)
    with pytest.raises(TypeError, match="takes x, not y"):
        model(y=1)
    with pytest.raises(ValueError, match=r"shape \(32, 64\), not \(3,\)"):
        model(x=[1, 2, 3])


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with Context(DEV="CPU"):
        x = Tensor([1, 2], dtype=dtypes.uint8).realize()
    model = opened(written(tmp_path / "model", lambda x: x + 1, {"x": x}))
    assert model(x=[254, 0])["output"].tolist() == [255, 1]
    for wrong in ([256, 0], [1.5, 0], [-1, 0]):
        with pytest.raises(ValueError, match="x is uint8"):
            model(x=wrong)


def side_by_side(work: Callable[[Any], None], given: Sequence[Any]) -> None:
    """Call a function with each of some arguments, each in a thread of its own."""
    with ThreadPoolExecutor(len(given)) as pool:
        for done in [pool.submit(work, argument) for argument in given]:
            done.result()


def test_two_models_and_several_threads_of_one_process(net: Path, tmp_path: Path) -> None:
    with Context(DEV="CPU"):
        x = Tensor.rand(16, 16).realize()
    other = opened(written(tmp_path / "model", lambda x: (x @ x).softmax(1), {"x": x}))
    models, wrong = [opened(net), opened(net), other], []

    def work(model: Any) -> None:
        shape = model.inputs["x"].shape
        first = None
        for _ in range(30):
            got = model(x=numpy.full(shape, 0.5, "float32"))["output"]
            first = got if first is None else first
            wrong.extend([] if numpy.array_equal(got, first) else [got])

    side_by_side(work, models)
    assert not wrong


def test_threads_take_turns_with_one_model(net: Path) -> None:
    model, wrong = opened(net), []
    inputs = [numpy.full((32, 64), number, "float32") for number in range(2)]
    expected = [model(x=x)["output"] for x in inputs]

    def work(number: int) -> None:
        for _ in range(200):
            got = model(x=inputs[number])["output"]
            wrong.extend([] if numpy.array_equal(got, expected[number]) else [got])

    side_by_side(work, range(2))
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_until_no_model_runs(net: Path) -> None:
    model, done = opened(net), threading.Event()
    x = numpy.full((32, 64), 0.5, "float32")
    expected = model(x=x)["output"]

    def busy() -> None:
        while not done.is_set():
            model(x=x)

    runner = threading.Thread(target=busy)
    runner.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if numpy.array_equal(model(x=x)["output"], expected) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        runner.join()


def test_state_stays_from_run_to_run(tmp_path: Path) -> None:
    with Context(DEV="CPU"):
        total, x = Tensor([0.0]).realize(), Tensor([1.0]).realize()

    def model(x: Tensor) -> Tensor:
        before = total + 0
        total.assign(total + x)
        return before

    found = opened(written(tmp_path / "model", model, {"x": x}))
    assert [found(x=[x])["output"].item() for x in (1.0, 2.0, 4.0, 8.0)] == [0.0, 1.0, 3.0, 7.0]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("x", "of an input and of an output"), ("a\0b", "no text of C"), (1, "no text of C")],
)
def test_names_that_are_none_in_c_are_refused(tmp_path: Path, name: Any, complaint: str) -> None:
    with Context(DEV="CPU"):
        x = Tensor.rand(4).realize()
    with pytest.raises(ArgumentError, match=complaint):
        written(tmp_path / "model", lambda x: {name: x + 1}, {"x": x})


def test_names_are_text(tmp_path: Path) -> None:
    """Outputs may have any; a quote or a line's end is no code."""
    name = 'é"; int x[1 << 30]; //\\\n?'
    with Context(DEV="CPU"):
        x = Tensor.rand(4).realize()
    folder = written(tmp_path / "model", lambda x: {name: x + 1}, {"self": x})
    assert [*opened(folder)(self=[0.0] * 4)] == [name]


def test_results_that_differ_fail_the_command(net: Path, tmp_path: Path) -> None:
    folder = copied(net, tmp_path)
    example = (folder / "example.safetensors").read_bytes()
    (folder / "example.safetensors").write_bytes(example[:-4] + b"\0\0\x80\x7f")
    assert "inf apart, differs" in compared(folder).stdout
    with pytest.raises(UnsupportedError, match="computes something else"):
        exported.verify(folder)


def test_small_results_that_differ_are_told(tmp_path: Path) -> None:
    with Context(DEV="CPU"):
        x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    folder = written(tmp_path / "model", lambda x: x * 1e-6, {"x": x})
    assert compared(folder).returncode == 0
    example = (folder / "example.safetensors").read_bytes()
    (folder / "example.safetensors").write_bytes(example[:-4] + bytes(4))
    assert "4e-06 apart, differs" in compared(folder).stdout


def test_an_example_that_takes_too_long_is_told(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "SECONDS", 0.001)
    with pytest.raises(UnsupportedError, match=r"after 0\.001 seconds"):
        exported.verify(net)


def test_a_failed_export_leaves_the_earlier_one(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {place.name: place.read_bytes() for place in net.glob("*.*")}

    def refuse(folder: Path) -> None:
        raise UnsupportedError("no")

    monkeypatch.setattr(exported, "verify", refuse)
    with Context(DEV="CPU"), pytest.raises(UnsupportedError):
        export(Net(), {"x": Tensor.rand(32, 64)}, "CPU", net)
    assert {place.name: place.read_bytes() for place in net.glob("*.*")} == before


def test_another_processor_is_compiled_for_but_not_run(tmp_path: Path) -> None:
    with Context(DEV="CPU"):
        x = Tensor.rand(4).realize()
    folder = written(tmp_path / "model", lambda x: x + 1, {"x": x}, "x86_64,x86-64-v3")
    assert "for x86_64,x86-64-v3" in (about := (folder / "model.c").read_text())
    assert "clang -O2 -march=x86-64-v3" in about
    assert (folder / "libmodel.so").is_file()


def test_without_clang_or_linker_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(DEV="CPU"):
        x = Tensor.rand(4).realize()
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(exported, "zig", lambda: None)
    with pytest.raises(CompilerUnavailable, match="pip install ziglang"):
        written(tmp_path / "model", lambda x: x + 1, {"x": x})


def test_a_program_in_c_as_the_page_has_it(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/export.md"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not page.is_file() or compiler is None:
        pytest.skip("no compiler that has the headers of a system, or not the whole tree")
    python, program = (
        page.read_text("utf-8").split(f"```{language}\n")[1].split("```")[0]
        for language in ("python", "c")
    )
    made: dict[str, Any] = {}
    exec(python, made)  # digits.py
    with Context(DEV="CPU"):
        net, inputs = made["model"]()
        want = float(net(Tensor.full((1, 1, 8, 8), 0.5)).max().item())
        export(net, inputs, "CPU", tmp_path / "digits")
    main = (
        "\n#include <stdio.h>\nint main(void) { float image[64];"
        " for (int i = 0; i < 64; i++) image[i] = .5f;"
        ' for (int i = 0; i < 3; i++) printf("%.7g ", best(image)); }\n'
    )
    (tmp_path / "digits/main.c").write_text(program + main)
    build = [compiler, "main.c", "libmodel.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(build, cwd=tmp_path / "digits", check=True)
    done = subprocess.run(["./main"], cwd=tmp_path / "digits", check=True, capture_output=True)
    assert [float(word) for word in done.stdout.split()] == pytest.approx([want] * 3, rel=1e-5)


def test_only_the_interface_is_visible(net: Path) -> None:
    library = ctypes.CDLL(str(net / "libmodel.so"))
    assert hasattr(library, "model_open")
    assert not hasattr(library, "tc_pool_run_many")
    assert not hasattr(library, "k000_reduce")


def test_signals_reach_python_beside_its_threads(net: Path) -> None:
    """Threads of the pool that took a signal would leave the one of Python asleep."""
    code = (
        f"import os, signal, sys, time; sys.path.insert(0, {str(net)!r}); from model import Model\n"
        "m = Model(threads=4); signal.signal(signal.SIGALRM, lambda *_: sys.exit(5))\n"
        "signal.alarm(1); time.sleep(600)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert done.returncode == 5
