"""Costs of Python in plain calls, writes and replays, in two trees by turns.

    python -m benchmarks.python_cost BEFORE AFTER [--only PATTERN] [--seconds S]

Each tree is a checkout that is imported from where it lies, in a process of its own. A row has the
bytecodes of one call, which no other work on the machine changes, and the least processor time of
the thread in turns of 2 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any, Final

Call = Callable[[], Any]
TURN_SECONDS: Final = 0.002
ROUNDS_AT_ONCE: Final = 10
WARM_CALLS: Final = 6


def plain_call(tiny: Any) -> Call:
    """One kernel, without TinyJit."""
    x = tiny.Tensor.ones(256).contiguous().realize()

    def call() -> Any:
        return (x + 1).realize()

    return call


def relu_graph(tiny: Any) -> Call:
    """The nodes of an activation, which nobody computes."""
    x = tiny.Tensor.ones(256).contiguous().realize()
    relu: Call = x.relu
    return relu


def beside_many(tiny: Any) -> Call:
    """A gradient while a thousand other tensors live."""
    others = [tiny.Tensor.ones(4).contiguous().realize() for _ in range(1000)]
    w = tiny.Tensor.ones(256, requires_grad=True).contiguous().realize()

    def call() -> Any:
        w.grad = None
        return (w * 2).sum().backward(), others

    return call


def assign(tiny: Any) -> Call:
    """A write to a whole tensor."""
    x = tiny.Tensor.ones(256).contiguous().realize()
    return lambda: x.assign(x * 1.0).realize()


def setitem(tiny: Any) -> Call:
    """A write to a slice."""
    x = tiny.Tensor.ones(256).contiguous().realize()
    y = tiny.Tensor.ones(1).contiguous().realize()

    def call() -> Any:
        x[3:4] = y
        return x.realize()

    return call


def replay_of(kernels: int) -> Callable[[Any], Call]:
    """A replay of a chain."""

    def case(tiny: Any) -> Call:
        x = tiny.Tensor.ones(256).contiguous().realize()

        def chain(x: Any) -> Any:
            for _ in range(kernels):
                x = (x + 1).realize()
            return x

        jitted = tiny.TinyJit(chain)
        return lambda: jitted(x)

    return case


def loop(tiny: Any) -> Call:
    """A replay on the result of the one before, as in a loop of steps."""
    step = tiny.TinyJit(lambda x: (x * 2).realize())
    state = [tiny.Tensor.ones(16, 16).contiguous().realize()]

    def call() -> Any:
        state[0] = step(state[0])
        return state[0]

    return call


def mlp(tiny: Any, jit: bool) -> Call:
    """A training step of a small MLP, its gradients left for the caller."""
    tiny.Tensor.manual_seed(0)
    first, second = tiny.Tensor.randn(32, 32).is_param_(), tiny.Tensor.randn(32, 10).is_param_()
    optimizer = tiny.nn.optim.Adam([first, second], lr=0.01)
    x = tiny.Tensor.ones(16, 32).contiguous().realize()
    labels = tiny.Tensor.zeros(16, dtype="int32").contiguous().realize()

    def step(x: Any, labels: Any) -> Any:
        with tiny.Context(TRAINING=1):
            optimizer.zero_grad()
            loss = ((x @ first).relu() @ second).sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step())

    called = tiny.TinyJit(step) if jit else step
    return lambda: called(x, labels)


def lstm(tiny: Any) -> Call:
    """A recurrent layer over 100 steps in a loop of Python, one graph."""
    cell = tiny.nn.LSTMCell(32, 32)
    steps = tiny.Tensor.ones(100, 4, 32).contiguous().realize()

    def call() -> Any:
        state = None
        for number in range(100):
            state = cell(steps[number], state)
        return state[0].realize()

    return call


def small_tensors(tiny: Any) -> Call:
    """A loop over small tensors that computes each one."""
    rows = tiny.Tensor.ones(8, 16).contiguous().realize()
    weight = tiny.Tensor.ones(16, 16).contiguous().realize()

    def call() -> Any:
        return [(rows[number] @ weight).tanh().sum().realize() for number in range(8)]

    return call


def cnn(tiny: Any) -> Call:
    """A training step of a small CNN."""
    nn = tiny.nn
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.Conv2d(4, 8, 3), nn.Linear(8 * 4 * 4, 10)]
    x = tiny.Tensor.ones(4, 1, 12, 12).contiguous().realize()
    labels = tiny.Tensor.zeros(4, dtype="int32").contiguous().realize()
    optimizer = nn.optim.SGD(nn.state.get_parameters(layers), lr=0.01)

    def call() -> Any:
        with tiny.Context(TRAINING=1):
            optimizer.zero_grad()
            y = layers[1](layers[0](x)).relu()
            y = layers[2](y).relu().avg_pool2d().flatten(1)
            loss = layers[3](y).sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step())

    return call


def adam(tiny: Any, jit: bool) -> Call:
    """An Adam step of 26 parameters."""
    parameters = [tiny.Tensor.ones(4, 4).contiguous().realize() for _ in range(26)]
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = tiny.nn.optim.Adam(parameters, lr=0.01)

    def step() -> Any:
        with tiny.Context(TRAINING=1):
            optimizer.zero_grad()
            loss = sum([(p * p).sum() for p in parameters[1:]], (parameters[0] ** 2).sum())
            return loss.backward().realize(*optimizer.schedule_step())

    return tiny.TinyJit(step) if jit else step


def benchmark(name: str, jit: bool) -> Callable[[Any], Call]:
    """A case of the benchmarks, as they call it."""

    def case(_: Any) -> Call:
        from benchmarks.cases import find_case  # noqa: PLC0415  those of the tree
        from benchmarks.peers import PEERS  # noqa: PLC0415
        from benchmarks.worker import Work  # noqa: PLC0415

        found: Any = find_case(name)
        return Work(found, PEERS["tinycore-jit" if jit else "tinycore"]()).call

    return case


CASES: Final[dict[str, Callable[[Any], Call]]] = {
    "plain call, x + 1": plain_call,
    "`x.relu()`, not computed": relu_graph,
    "gradient beside 1,000 tensors": beside_many,
    "`x.assign(x * 1.0).realize()`": assign,
    "`x[3:4] = y; x.realize()`": setitem,
    "replay of one kernel": replay_of(1),
    "replay of 100 kernels": replay_of(100),
    "replay on the last result": loop,
    "100 tiny kernels by TinyJit": benchmark("100 tiny kernels", True),
    "tiny MLP step, replay": lambda tiny: mlp(tiny, True),
    "tiny MLP training step by TinyJit": benchmark("tiny MLP training step", True),
    "Adam replay of 26 parameters": lambda tiny: adam(tiny, True),
    "tiny MLP step, plain": lambda tiny: mlp(tiny, False),
    "Adam step of 26 parameters, plain": lambda tiny: adam(tiny, False),
    "training step of a small CNN, plain": cnn,
    "LSTM of 100 steps, plain": lstm,
    "8 small tensors computed in a loop": small_tensors,
    "decode of 12 layers, plain": benchmark("transformer decode, 12 layers of 256", False),
}


# --- the process of one tree


def bytecodes(call: Call) -> int:
    """Bytecodes that this thread executes in a call."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    call()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def turn(call: Call) -> float:
    """The least seconds of a call in some turns."""
    least = float("inf")
    for _ in range(ROUNDS_AT_ONCE):
        calls, began = 0, time.thread_time()
        while (took := time.thread_time() - began) < TURN_SECONDS:
            call()
            calls += 1
        least = min(least, took / max(calls, 1))
    return least


def serve(name: str) -> None:
    """Set a case up, then answer each line by a turn."""
    import tinycore  # noqa: PLC0415  that of the tree

    call = CASES[name](tinycore)
    for _ in range(WARM_CALLS):
        call()
    print(json.dumps(bytecodes(call)), flush=True)
    for _ in sys.stdin:
        print(json.dumps(turn(call)), flush=True)


# --- the table


def process_of(tree: Path, name: str, caches: str) -> subprocess.Popen[str]:
    """A process that imports a tree."""
    paths = [tree, *sorted(tree.glob("plugins/*/src"))]
    own = Path(caches, tree.name)
    own.mkdir(exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "CACHE_DIR": str(own),
    }
    return subprocess.Popen(
        (sys.executable, "-P", __file__, "--serve", name),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=caches, text=True,
    )  # fmt: skip


def asked(process: subprocess.Popen[str]) -> float:
    """The next answer of a process."""
    assert process.stdin is not None and process.stdout is not None, "both are pipes"  # noqa: PT018
    process.stdin.write("\n")
    process.stdin.flush()
    return float(json.loads(process.stdout.readline()))


def row(name: str, trees: list[Path], seconds: float) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as caches:
        found = [process_of(tree.resolve(), name, caches) for tree in trees]
        try:
            counts = [int(json.loads(p.stdout.readline())) for p in found if p.stdout is not None]
            least = [float("inf")] * len(found)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for place, process in enumerate(found):
                    least[place] = min(least[place], asked(process))
        finally:
            for process in found:
                process.kill()
                process.wait()
    codes = f"{counts[0]:,} | {counts[1]:,} | {counts[1] / counts[0]:.2f}"
    before, after = (second * 1e6 for second in least)
    return f"| {name} | {codes} | {before:,.1f} | {after:,.1f} | {after / before:.2f} |"


def commit_of(tree: Path) -> str:
    """The commit that a tree shows."""
    command = ("git", "-C", str(tree), "describe", "--always", "--dirty")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Print the table, or serve."""
    parser = argparse.ArgumentParser(prog="benchmarks.python_cost", description=__doc__)
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE", help="before, then after")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--seconds", type=float, default=6.0, help="of turns, a case")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(given.serve)
    print("# What Python costs: two trees by turns\n")
    print(
        f"`python -m benchmarks.python_cost BEFORE AFTER --seconds {given.seconds:g}`: bytecodes of"
    )
    print("one call, and the least processor time of the thread in microseconds.\n")
    print(f"- before: {commit_of(given.trees[0])}; after: {commit_of(given.trees[1])}")
    print(f"- Python {platform.python_version()}, {os.cpu_count()} processors; {date.today()}\n")
    print("| case | bytecodes before | after | ratio | us before | after | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in CASES:
        if re.search(given.only, name):
            print(row(name, given.trees, given.seconds), flush=True)
    return None


if __name__ == "__main__":
    main()
