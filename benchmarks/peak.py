"""Peak memory of a training step: what its plan says, what we take, and what torch takes.

    python -m benchmarks.peak [mlp] [cnn] [cnn-512] [transformer]

Each figure is the median of three processes: the most resident memory in five steps of Adam beyond
what was resident before there were any tensors. The plan is the most in use on the device at
one time: weights, their state, inputs, and the block of temporary values. Linux only.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy

_ROOT: Final = Path(__file__).resolve().parent.parent
_STEPS: Final = 5
_RUNS: Final = 3
_BATCH, _LENGTH, _WIDTH, _HEADS, _LAYERS, _WORDS = 4, 512, 256, 8, 4, 1000
_MB: Final = 1 << 20
PEERS: Final = ("tinycore", "tinycore-jit", "torch")

Array = numpy.ndarray[Any, numpy.dtype[Any]]
Step = Callable[[], Any]


def resident(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def forget_peak() -> None:
    """Count the most resident memory from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


# --- what is trained


def arrays(model: str) -> tuple[Array, Array, list[Array]]:
    """Inputs, labels and weights."""
    generator = numpy.random.default_rng(0)

    def floats(*shape: int) -> Array:
        return (generator.random(shape, numpy.float32) - numpy.float32(0.5)) / 20

    def labels(limit: int, *shape: int) -> Array:
        return generator.integers(0, limit, shape).astype(numpy.int32)

    if model == "mlp":
        weights = [floats(784, 2048), floats(2048, 2048), floats(2048, 10)]
        return floats(4096, 784), labels(10, 4096), weights
    if model.startswith("cnn"):
        batch = 512 if model == "cnn-512" else 128
        shapes = [(32, 1, 5, 5), (32, 32, 5, 5), (64, 32, 3, 3), (64, 64, 3, 3), (576, 10)]
        return floats(batch, 1, 28, 28), labels(10, batch), [floats(*shape) for shape in shapes]
    widths = [(3 * _WIDTH,), (_WIDTH,), (4 * _WIDTH,)]
    layer = [*[(_WIDTH, *w) for w in widths], (4 * _WIDTH, _WIDTH)]
    shapes = [(_WORDS, _WIDTH), (_LENGTH, _WIDTH), *layer * _LAYERS, (_WIDTH, _WORDS)]
    words = labels(_WORDS, _BATCH, _LENGTH)
    return words, labels(_WORDS, _BATCH * _LENGTH), [floats(*shape) for shape in shapes]


def mlp(_: Any, x: Any, w: list[Any]) -> Any:
    """Three linear maps."""
    return ((x @ w[0]).relu() @ w[1]).relu() @ w[2]


def cnn(functions: Any, x: Any, w: list[Any]) -> Any:
    """Four convolutions and a linear map."""
    conv, pool = functions.conv, functions.pool
    x = pool(conv(conv(x, w[0]).relu(), w[1]).relu())
    x = pool(conv(conv(x, w[2]).relu(), w[3]).relu())
    return x.flatten(1) @ w[4]


def transformer(functions: Any, x: Any, w: list[Any]) -> Any:
    """Four layers of attention and two linear maps over 512 words."""
    x = functions.embedding(x, w[0]) + w[1]
    for layer in range(_LAYERS):
        mix, out, wide, narrow = w[2 + 4 * layer : 6 + 4 * layer]
        mixed = (functions.norm(x) @ mix).reshape(_BATCH, _LENGTH, 3, _HEADS, _WIDTH // _HEADS)
        q, k, v = (mixed[:, :, i].transpose(1, 2) for i in range(3))
        seen = functions.attention(q, k, v).transpose(1, 2).reshape(_BATCH, _LENGTH, _WIDTH)
        x = x + seen @ out
        x = x + functions.gelu(functions.norm(x) @ wide) @ narrow
    return (functions.norm(x) @ w[-1]).reshape(_BATCH * _LENGTH, _WORDS)


MODELS: Final[dict[str, Callable[..., Any]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "cnn-512": cnn,
    "transformer": transformer,
}


# --- who trains it


def step_tiny(model: str, jit: bool) -> tuple[Step, Callable[[], int]]:
    """A step, and what its plan says once it was run."""
    from tinycore import Context, GlobalCounters, Tensor, TinyJit, nn  # noqa: PLC0415

    class Functions:
        conv = staticmethod(lambda x, w: x.conv2d(w))
        pool = staticmethod(lambda x: x.max_pool2d((2, 2)))
        norm = staticmethod(lambda x: x.layernorm())
        gelu = staticmethod(lambda x: x.gelu())

        @staticmethod
        def embedding(x: Any, w: Any) -> Any:
            lookup.weight = w
            return lookup(x)

        @staticmethod
        def attention(q: Any, k: Any, v: Any) -> Any:
            return q.scaled_dot_product_attention(k, v, is_causal=True)

    inputs, targets, values = arrays(model)
    lookup: Any = nn.Embedding(_WORDS, _WIDTH)
    ones = Tensor.ones(4, 4).contiguous()
    (ones @ ones).sum().item()  # opens the device
    del ones
    forget_peak()
    base = resident("VmRSS")
    GlobalCounters.reset()
    x, y = Tensor(inputs).realize(), Tensor(targets).realize()
    weights = [Tensor(value).realize().is_param_() for value in values]
    optimizer = nn.optim.Adam(weights, lr=1e-3)

    def step() -> Any:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = MODELS[model](Functions, x, weights).sparse_categorical_crossentropy(y)
            return loss.backward().realize(*optimizer.schedule_step())

    run = TinyJit(step) if jit else step
    return lambda: (run().item(), base)[1], lambda: GlobalCounters.mem_peak


def step_torch(model: str) -> Step:
    """The same in torch."""
    import torch  # noqa: PLC0415

    function = torch.nn.functional

    class Functions:
        conv = staticmethod(torch.conv2d)
        pool = staticmethod(lambda x: function.max_pool2d(x, 2))
        norm = staticmethod(lambda x: function.layer_norm(x, (_WIDTH,)))
        gelu = staticmethod(function.gelu)
        embedding = staticmethod(function.embedding)

        @staticmethod
        def attention(q: Any, k: Any, v: Any) -> Any:
            return function.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    inputs, targets, values = arrays(model)
    (torch.ones(4, 4) @ torch.ones(4, 4)).sum().item()
    forget_peak()
    base = resident("VmRSS")
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets).long()
    x = x.long() if model == "transformer" else x
    weights = [torch.from_numpy(value.copy()).requires_grad_() for value in values]
    optimizer = torch.optim.Adam(weights, lr=1e-3)

    def step() -> Any:
        optimizer.zero_grad()
        loss: Any = function.cross_entropy(MODELS[model](Functions, x, weights), y)
        loss.backward()
        optimizer.step()
        return (loss.item(), base)[1]

    return step


def measure(peer: str, model: str) -> dict[str, int]:
    """In a process of its own: the peak of some steps beyond the base, and the plan, in bytes."""
    plan: Callable[[], int] = int
    if peer == "torch":
        step = step_torch(model)
    else:
        step, plan = step_tiny(model, peer == "tinycore-jit")
    base = [step() for _ in range(_STEPS)][-1]
    return {"peak": resident("VmHWM") - base, "plan": plan()}


def measured(peer: str, model: str) -> dict[str, float] | None:
    """The median figures of a peer; None where it is not there or fails."""
    command = (sys.executable, "-m", "benchmarks.peak", peer, model)
    found = []
    for _ in range(_RUNS):
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        found.append(json.loads(done.stdout))
    return {name: statistics.median([run[name] for run in found]) for name in found[0]}


def table(models: Iterable[str] = MODELS) -> str:
    """The rows of all models, in Markdown."""
    head = (
        "peak memory, MB",
        "plan",
        "tinycore",
        "/ plan",
        "tinycore-jit",
        "torch",
        "ours / torch",
    )
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for model in models:
        found = {peer: measured(peer, model) for peer in PEERS}
        ours, theirs = found["tinycore"], found["torch"]
        told = [f"{f['peak'] / _MB:.0f}" if f else "" for f in map(found.get, PEERS)]
        plan = f"{ours['plan'] / _MB:.0f}" if ours else ""
        to_plan = f"{ours['peak'] / ours['plan']:.2f}" if ours else ""
        to_torch = f"{ours['peak'] / theirs['peak']:.2f}" if ours and theirs else ""
        cells = (model, plan, told[0], to_plan, told[1], told[2], to_torch)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The table of the models that are named, or of all; of a peer and a model, its figures."""
    words = sys.argv[1:]
    if words and words[0] in PEERS:
        print(json.dumps(measure(words[0], words[1])))
    else:
        print(table(words or MODELS), end="")


if __name__ == "__main__":
    main()
