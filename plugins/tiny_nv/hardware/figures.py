"""Figures of CUDA on the card at hand, beside torch in the same process, as rows of a table.

Where torch with CUDA is installed, both compute on the same memory, results are compared, and a
column says how many times as fast as torch tinycore is. A time is the median of five rounds; a
round asks for a step so many times that it takes a few hundredths of a second, and waits once.
"""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy

from tinycore import Context, Device, Tensor, TinyJit
from tinycore.dtype import dtypes

try:
    import torch

    HAS_TORCH = torch.cuda.is_available()
except ImportError:
    torch, HAS_TORCH = None, False  # type: ignore[assignment]

NAME: Final = "CUDA"
ROUNDS: Final = 5
LAYERS: Final = 4
"""Layers of the network that decodes a token."""
HEAD_SIZE: Final = 64
KINDS: Final = {"f32": "float32", "tf32": "float32", "f16": "float16", "bf16": "bfloat16"}
TOLERANCES: Final = {"f32": 1e-4, "tf32": 2e-3, "f16": 5e-3, "bf16": 2e-2}
"""Relative errors in the 2-norm up to which a result is right."""


@dataclass(frozen=True)
class Case:
    """One line of the table: a step for tinycore and one for torch, on the same inputs."""

    group: str
    label: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    work: float
    """Operations, or bytes to read and write."""
    unit: str = "TFLOP/s"
    graphed: bool = False
    """True if torch replays it as a CUDA graph; tinycore always does."""


def cases(by: int) -> Iterator[Case]:
    """All lines, in the order of the page; sizes are divided by `by`, as far as they can be."""

    def cut(size: int) -> int:
        return max(size // by, min(size, 16))

    for kind in KINDS:
        for n in map(cut, (1024, 2048, 4096, 8192)):
            yield matmul(f"{n} x {n} x {n}", kind, n, n, n)
    n = cut(4096)
    for rows in (1, 16, 64):
        yield matmul(f"{rows} x {n} x {n}", "bf16", rows, n, n)
    n, many = cut(512), cut(64)
    batch = ((many, n, n), (many, n, n))
    for kind in ("f32", "bf16"):
        yield Case("matmul", f"{many} of {n} x {n} x {n}", kind, batch, mul, mul, 2 * many * n**3)
    yield from moving(cut(8192), cut(4096))
    c, side, few = cut(128), cut(56), cut(32)
    image = ((few, c, side, side), (c, c, 3, 3))
    flops = 2 * few * c * side * side * c * 9
    for kind in ("f32", "bf16"):
        yield Case("conv 3x3", f"{few} x {c} x {side}^2, {c}", kind, image, conv, their_conv, flops)
    length, size = cut(2048), cut(64)
    heads = ((4, 16 // min(by, 8), length, size),) * 3
    flops = 4 * heads[0][0] * heads[0][1] * length * length * size
    label = " x ".join(map(str, heads[0]))
    for kind in ("f32", "bf16"):
        yield Case("attention", label, kind, heads, attention, their_attention, flops)
        gradient = (attention_gradient, their_gradient, 3.5 * flops)
        yield Case("attention", f"{label}, with gradient", kind, (*heads, heads[0]), *gradient)
    width, held = cut(2048), cut(1024)
    layers = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    decoded = ((1, width), *(((held, width),) * 2 + layers) * LAYERS)
    moved = 2.0 * sum(math.prod(shape) for shape in decoded)
    label = f"{LAYERS} layers of {width}, {held} tokens before"
    yield Case("decode", label, "bf16", decoded, decode, their_decode, moved, "GB/s", graphed=True)
    yield Case(
        "launches", "100 kernels, one graph", "f32", ((16,),), tiny, tiny, 100, "M/s", graphed=True
    )


def moving(n: int, width: int) -> Iterator[Case]:
    """Lines whose work is to read and write memory."""
    square, rows, line = ((n, n),), ((2 * n, width),), ((n * n,),)
    for kind in ("f32", "bf16"):
        moved = 2 * n * n * (4 if kind == "f32" else 2)
        for group, label, shapes, ours, theirs, amount in (
            ("elementwise", "relu(x * 2 + 1) * x", line, chain, chain, moved),
            ("softmax", "rows", square, ours_softmax, softmax, moved),
            ("layernorm", "rows", rows, ours_norm, norm, moved * 2 * width // n),
            ("sum", "all", line, total, total, moved // 2),
            ("sum", "rows", square, rows_of, rows_of, moved // 2),
            ("sum", "columns", square, columns_of, columns_of, moved // 2),
            ("copy", "transposed", square, turned, their_turned, moved),
        ):
            text = f"{label}, {' x '.join(map(str, shapes[0]))}"
            yield Case(group, text, kind, shapes, ours, theirs, amount, "GB/s")


def matmul(label: str, kind: str, m: int, k: int, n: int) -> Case:
    """A product of matrices."""
    return Case("matmul", label, kind, ((m, k), (k, n)), mul, mul, 2 * m * k * n)


def mul(a: Any, b: Any) -> Any:
    """A product."""
    return a @ b


def chain(x: Any) -> Any:
    """Three operations fused to one kernel."""
    return (x * 2 + 1).relu() * x


def ours_softmax(x: Any) -> Any:
    """Softmax of rows."""
    return x.softmax(-1)


def softmax(x: Any) -> Any:
    """The same in torch."""
    return torch.softmax(x, -1)


def ours_norm(x: Any) -> Any:
    """Rows less their mean, by their deviation."""
    return x.layernorm()


def norm(x: Any) -> Any:
    """The same in torch."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def total(x: Any) -> Any:
    """The sum of all."""
    return x.sum()


def rows_of(x: Any) -> Any:
    """The sum of each row."""
    return x.sum(1)


def columns_of(x: Any) -> Any:
    """The sum of each column."""
    return x.sum(0)


def turned(x: Any) -> Any:
    """A transposed copy."""
    return x.transpose(0, 1).contiguous()


def their_turned(x: Any) -> Any:
    """The same in torch."""
    return x.t().contiguous()


def conv(x: Any, w: Any) -> Any:
    """Windows of 3 x 3 with a border."""
    return x.conv2d(w, padding=1)


def their_conv(x: Any, w: Any) -> Any:
    """The same in torch."""
    return torch.nn.functional.conv2d(x, w, padding=1)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention of all to all."""
    return q.scaled_dot_product_attention(k, v)


def their_attention(q: Any, k: Any, v: Any) -> Any:
    """The same in torch."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def attention_gradient(q: Any, k: Any, v: Any, g: Any) -> Any:
    """Attention, and from a gradient of its result those of the operands, added up."""
    leaves = [x.detach().requires_grad_(True) for x in (q, k, v)]
    (attention(*leaves) * g).sum().backward()
    first, second, third = [leaf.grad for leaf in leaves]
    return first + second + third


def their_gradient(q: Any, k: Any, v: Any, g: Any) -> Any:
    """The same in torch."""
    leaves = [x.detach().requires_grad_(True) for x in (q, k, v)]
    first, second, third = torch.autograd.grad(their_attention(*leaves), leaves, g)
    return first + second + third


def decode(x: Any, *given: Any) -> Any:
    """One token (1, E) through layers whose keys and values (T, E) are held."""
    for start in range(0, len(given), 6):
        x = layer(x, *given[start : start + 6], attention, ours_norm, lambda y: y.gelu())
    return x


def their_decode(x: Any, *given: Any) -> Any:
    """The same in torch."""
    for start in range(0, len(given), 6):
        functions = (their_attention, norm, torch.nn.functional.gelu)
        x = layer(x, *given[start : start + 6], *functions)
    return x


def layer(
    x: Any, keys: Any, values: Any, qkv: Any, out: Any, wide: Any, narrow: Any, *functions: Any
) -> Any:
    """A layer of a transformer, for the last token."""
    attend, normal, activation = functions
    width = x.shape[-1]
    heads = max(width // HEAD_SIZE, 1)

    def split(y: Any) -> Any:
        return y.reshape(1, -1, heads, width // heads).transpose(1, 2)

    scale = width**-0.5  # weights are drawn from a normal distribution
    mixed = (normal(x) @ qkv) * scale
    query = split(mixed[:, :width])
    found = attend(query, split(keys), split(values)).transpose(1, 2).reshape(1, width)
    x = x + (found @ out) * scale
    return x + (activation((normal(x) @ wide) * scale) @ narrow) * (scale / 2)


def tiny(x: Any) -> Any:
    """Many launches that do next to nothing."""
    for _ in range(100):
        x = (x + 1).contiguous()
    return x


# --- one case


def tensors(case: Case) -> tuple[list[Any], list[Any]]:
    """The inputs of a case for tinycore and for torch: the same memory where there are both."""
    generator = numpy.random.default_rng(0)
    dtype = getattr(dtypes, KINDS[case.kind])
    if not HAS_TORCH:
        arrays = [generator.standard_normal(s, "f") for s in case.shapes]
        return [Tensor(a, device=NAME).cast(dtype).realize() for a in arrays], []
    torch.manual_seed(0)
    theirs = [
        torch.randn(s, device="cuda", dtype=getattr(torch, KINDS[case.kind])) for s in case.shapes
    ]
    ours = [
        Tensor.from_blob(t.data_ptr(), tuple(t.shape), dtype=dtype, device=NAME) for t in theirs
    ]
    return ours, theirs


def seconds_of(step: Callable[[], object], wait: Callable[[], object], aim: float) -> float:
    """The median time of a step, asked for several times in a row."""
    for _ in range(2):
        step()
    wait()
    began = time.perf_counter()
    step()
    wait()
    times = max(1, min(1000, int(aim / max(time.perf_counter() - began, 1e-7))))
    rounds = []
    for _ in range(ROUNDS if aim else 1):
        began = time.perf_counter()
        for _ in range(times):
            step()
        wait()
        rounds.append((time.perf_counter() - began) / times)
    return statistics.median(rounds)


def graphed(step: Callable[[], object]) -> Callable[[], object]:
    """A step of torch as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@contextmanager
def rounding(is_tf32: bool) -> Iterator[None]:
    """Let products of float32 round their operands to tf32, here and in torch."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn) if HAS_TORCH else ()
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = is_tf32
    try:
        with Context(ALLOW_TF32=int(is_tf32)):
            yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.allow_tf32 = was


def line_of(case: Case, aim: float) -> str:
    """A line of the table."""
    with rounding(case.kind == "tf32"):
        return measured(case, aim)


def measured(case: Case, aim: float) -> str:
    """Time a case, and compare its result."""
    ours, theirs = tensors(case)
    jitted = TinyJit(lambda *inputs: case.ours(*inputs).realize())
    began = time.perf_counter()
    result = jitted(*ours)
    result.numpy() if result.nbytes() < 1 << 20 else Device[NAME].synchronize()
    first = time.perf_counter() - began
    error = error_of(case, result, theirs) if theirs else math.nan
    mine = seconds_of(lambda: jitted(*ours), Device[NAME].synchronize, aim)
    cells = [case.group, case.label, case.kind, f"{mine * 1e6:,.1f}", rate(case, mine)]
    if theirs:
        step = lambda: case.theirs(*theirs)  # noqa: E731
        run = graphed(step) if case.graphed else step
        other = seconds_of(run, torch.cuda.synchronize, aim)
        cells += [f"{other * 1e6:,.1f}", rate(case, other), f"{other / mine:.2f}"]
    else:
        cells += ["-", "-", "-"]
    right = not error > TOLERANCES[case.kind]
    cells += [f"{error:.1e}" if right else f"**{error:.1e}**", f"{first:.2f}"]
    return f"| {' | '.join(cells)} |"


def error_of(case: Case, result: Any, theirs: list[Any]) -> float:
    """Relative error in the 2-norm of a result, against torch's in float32."""
    with rounding(False):
        exact = case.theirs(*[t.float() for t in theirs]).float()
    found = torch.from_numpy(result.cast(dtypes.float32).numpy()).to("cuda").reshape(exact.shape)
    return float((found - exact).norm() / exact.norm().clamp_min(1e-30))


def rate(case: Case, seconds: float) -> str:
    """Work per second in the case's unit."""
    scale = {"TFLOP/s": 1e12, "GB/s": 1e9, "M/s": 1e6}[case.unit]
    return f"{case.work / seconds / scale:,.1f} {case.unit}"


# --- the table

HEAD: Final = """\
| what | size | type | tinycore, us | rate | torch, us | rate | times torch | error | first, s |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|"""


def about() -> str:
    """The card, the compiler and torch."""
    info = Device[NAME].runtime.info  # type: ignore[attr-defined]
    theirs = f"torch {torch.__version__}" if HAS_TORCH else "no torch"
    driver = ".".join(map(str, info.driver))
    return (
        f"{info.name} ({info.arch}, {info.units} multiprocessors, {info.memory_bytes >> 30} GiB), "
        f"driver of CUDA {driver}; {Device[NAME].toolchain.compiler.key}; {theirs}. The error is "
        "that of tinycore's result against float32, the last column the seconds of its first call, "
        "with compiling."
    )


def rows(by: int, aim: float, wanted: list[str]) -> Iterator[str]:
    """The table, row by row; a case that fails is a row that says why."""
    yield about() + "\n\n" + HEAD
    for case in cases(by):
        if wanted and case.group not in wanted:
            continue
        try:
            yield line_of(case, aim)
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")
            yield f"| {case.group} | {case.label} | {case.kind} | **failed** | {text} |"
