"""Costs of asking, in Python: a plain call, a replay, a step of an optimizer, a new process.

Each is a process of its own that prints seconds. Calls that take microseconds are the least of
many, so that they say what our code does and not what else the machine did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.case import StartCase

__all__ = ["CASES"]

_MODULES: Final = ("tinycore", "tinygrad")
_HEAD: Final = """\
from benchmarks.clock import seconds
from {module} import Tensor, TinyJit, nn
"""
_LEAST: Final = """\
def least(call, count):
    best = 1e9
    for _ in range(count):
        start = seconds()
        call()
        best = min(best, seconds() - start)
    return best
"""
_TENSORS: Final = "a, b, c = (Tensor.rand(16).realize() for _ in range(3))\n"
_OF_THREE: Final = "lambda: (a + b * c).realize()"

_PLAIN: Final = f"{_HEAD}{_LEAST}{_TENSORS}print(least(lambda: (a + 1).realize(), 2000))\n"
_PLAIN_OF_THREE: Final = f"{_HEAD}{_LEAST}{_TENSORS}print(least({_OF_THREE}, 2000))\n"
_REPLAY_OF_ONE: Final = f"""\
{_HEAD}{_LEAST}{_TENSORS}
one = TinyJit(lambda a, b, c: (a + b * c).realize())
for _ in range(4):
    one(a, b, c)
print(least(lambda: one(a, b, c), 5000))
"""
_REPLAY_OF_MANY: Final = f"""\
{_HEAD}{_LEAST}
@TinyJit
def many(x):
    for _ in range(100):
        x = (x + 1).realize()
    return x
x = Tensor.rand(256).realize()
for _ in range(4):
    many(x)
print(least(lambda: many(x), 5000))
"""

_ADAM: Final = f"""\
{_HEAD}
layers = [nn.Linear(32, 32) for _ in range(75)]
weights = nn.state.get_parameters(layers)
x = Tensor.rand(1, 32).realize()
Tensor.realize(*weights)
optimizer = nn.optim.Adam(weights)
with Tensor.train():
    for _ in range(4):
        optimizer.zero_grad()
        x.sequential(layers).sum().backward()
        start = seconds()
        updates = optimizer.schedule_step()
        built = seconds()
        Tensor.realize(*updates)
        done = seconds()
print({{part}})
"""

_TRANSFORMER: Final = """\
from benchmarks.clock import seconds
start = seconds()
from {module} import Tensor, TinyJit, nn
width, heads, length = 64, 4, 16
def layer():
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    return [nn.LayerNorm(width), *(nn.Linear(*s) for s in shapes), nn.LayerNorm(width)]
x = Tensor.ones(2, length, width)
for first, mix, out, wide, narrow, second in [layer() for _ in range(6)]:
    parts = mix(first(x)).reshape(2, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    seen = parts[0].scaled_dot_product_attention(parts[1], parts[2])
    x = x + out(seen.transpose(1, 2).reshape(2, length, width))
    x = x + narrow(wide(second(x)).gelu())
result = x.square().mean().item()
assert result > 0, result
print(seconds() - start)
"""
_RESNET: Final = """\
from benchmarks.clock import seconds
start = seconds()
from {module} import Tensor, nn
def unit(given, made, stride=1):
    conv = nn.Conv2d(given, made, 3, padding=1, stride=stride)
    return conv, nn.BatchNorm2d(made)
def through(unit, x):
    return unit[1](unit[0](x))
x = through(unit(3, 8), Tensor.ones(2, 3, 16, 16)).relu()
given = 8
for made, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1)):
    y = through(unit(made, made), through(unit(given, made, stride), x).relu())
    x = (y + x if made == given else y).relu()
    given = made
result = x.mean().item()
assert result >= 0, result
print(seconds() - start)
"""


def _scripts(text: str, **more: str) -> Mapping[str, str]:
    return {module: text.format(module=module, **more) for module in _MODULES}


def _adam(part: str) -> Mapping[str, str]:
    """Ours only: what others do when a step is built, and what when it is realized, differs."""
    return {"tinycore": _ADAM.format(module="tinycore", part=part)}


CASES: Final = (
    StartCase("plain call, x + 1", _scripts(_PLAIN), by_default=False),
    StartCase("plain call, a + b * c", _scripts(_PLAIN_OF_THREE), by_default=False),
    StartCase("replay of one kernel", _scripts(_REPLAY_OF_ONE), by_default=False),
    StartCase("replay of 100 kernels", _scripts(_REPLAY_OF_MANY), by_default=False),
    StartCase(
        "Adam over 75 layers, built", _adam("built - start"), by_default=False
    ),
    StartCase(
        "Adam over 75 layers, realized", _adam("done - built"), by_default=False
    ),
    *(
        StartCase(f"import + {what}, {caches}", _scripts(text), caches == "no caches",
                  by_default=False)
        for what, text in (("transformer of 6 layers", _TRANSFORMER),
                           ("ResNet of 13 convolutions", _RESNET))
        for caches in ("no caches", "disk cache")
    ),
)  # fmt: skip
