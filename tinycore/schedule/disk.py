"""The disk cache of compiled schedules: later processes skip scheduling.

Floor 3. The key is the canonical graph as text, the limits of its devices, the settings that
matter, and a stamp of the code. An entry is text as well, parsed and never evaluated: memory and
kernels as graphs, and a line of JSON that says how they belong together. Nodes of the canonical
graph are referred to by their position in a topological order of it, which its text determines: of
the tensor graph behind it the key knows nothing.
See docs/floors/schedule.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from tinycore import cache
from tinycore._deferred import deferred
from tinycore._stamp import ABOVE_TENSOR, decisive_settings, stamp, stamp_of_modules
from tinycore.config import settings
from tinycore.device.registry import Device
from tinycore.errors import FileFormatError, PluginError, TinycoreError
from tinycore.schedule.canonical import CanonicalGraph, mark
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel
from tinycore.schedule.limits import elsewhere, limits_of
from tinycore.trace import PassTrace, Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import names_of
from tinycore.uop.text import to_text

program_from_text: Final[Callable[[str], tuple[UOp, ...]]] = deferred(
    "tinycore.uop.parse:program_from_text"
)

trace: Final = Trace("schedule")
trace_passes: Final = PassTrace("passes")
"""Trace of scheduling; asking for it turns the disk cache off."""

SCHEDULES: Final = "recipe"
"""The table of the disk cache, under its first name."""
FEWEST_NODES: Final = 64
"""Nodes of a graph from which reading a file takes less time than scheduling."""

Parts = tuple[tuple[Step, ...], tuple[UOp, ...], dict[UOp, UOp], dict[UOp, UOp]]
"""Steps and memory of a schedule, its results, and the values that memory may cache."""


def schedule_key(canonical: CanonicalGraph, policy: Callable[..., Any]) -> str | None:
    """Everything that a schedule depends on; None for one that is not cached on disk."""
    if (
        not settings.CCACHE
        or settings.VERIFY
        or trace.on
        or trace_passes.on
        or elsewhere.get() is not None
    ):
        return None
    if len(canonical.nodes) < FEWEST_NODES:
        return None
    try:
        about = [facts_of(name) for name in devices_of(canonical.sink)]
        text = to_text(canonical.sink)
    except TinycoreError:  # a device that is not here, an argument without text
        return None
    about.append(f"{policy.__module__}.{policy.__qualname__}")
    return "\n".join([stamp(ABOVE_TENSOR), *decisive_settings(), *about, text])


def facts_of(device: str) -> str:
    """All that a schedule depends on of a device. Raises DeviceError as `Device` does, and
    PluginError for a layout whose code has no file."""
    limits = limits_of(device)
    code: str | None = ""
    if limits.layout is not None and (code := stamp_of_modules(limits.layout.modules)) is None:
        raise PluginError(f"{limits.layout!r} is in a module that has no file")
    return f"{device} {'image' if Device[device].has('image') else ''} {limits!r} {code}"


@lru_cache(1024)
def devices_of(sink: UOp) -> tuple[str, ...]:
    """The devices that are named in a graph."""
    named = (n for n in sink.toposort() if n.op is Op.DEVICE)
    return tuple(sorted({name for n in named for name in names_of(n.arg)}))


def find(key: str, canonical: CanonicalGraph) -> Parts | None:
    """The schedule that any process compiled for a canonical graph; None if there is none."""
    content = cache.get(SCHEDULES, key)
    if content is None:
        return None
    try:
        return from_entry(content.decode(), canonical)
    except (ValueError, LookupError, TypeError, AttributeError, FileFormatError):
        return None  # intact, as its checksum says, but of no known layout


def put(key: str, canonical: CanonicalGraph, parts: Parts) -> None:
    """Store a schedule for later processes, unless it has no text."""
    try:
        content = to_entry(canonical, parts)
    except FileFormatError:
        return
    cache.put(SCHEDULES, key, content.encode())


def to_entry(canonical: CanonicalGraph, parts: Parts) -> str:
    """A schedule as text."""
    steps, memory, results, cached = parts
    given = len(canonical.memory)
    counted = dict(zip(fresh(memory[given:]), map(mark, itertools.count(given)), strict=False))
    nodes = [*(s.kernel for s in steps), *memory[given:], *results.values(), *cached.values()]
    everything = UOp.sink(*nodes).substitute(counted)
    numbers = {node: number for number, node in enumerate(canonical.sink.toposort())}
    header = {
        "places": [step.places for step in steps],
        "memory": len(memory) - given,
        "results": [numbers[node] for node in results],
        "cached": [numbers[node] for node in cached],
    }
    return f"{json.dumps(header)}\n{to_text(everything)}"


def from_entry(text: str, canonical: CanonicalGraph) -> Parts:
    """A schedule from its text. Raises the errors of parsing malformed text."""
    head, _, graph = text.partition("\n")
    header = json.loads(head)
    nodes = program_from_text(graph)[-1].src
    places, count, numbers = header["places"], header["memory"], header["results"]
    results = len(numbers)
    numbers += header["cached"]
    if len(nodes) != len(places) + count + len(numbers):
        raise ValueError(f"{len(nodes)} nodes where {header} asks for others")
    kernels, rest = nodes[: len(places)], nodes[len(places) :]
    memory = (*(canonical.nodes[node] for node in canonical.memory), *rest[:count])
    steps = tuple(step_of(k, p, len(memory)) for k, p in zip(kernels, places, strict=True))
    known = canonical.sink.toposort()
    pairs = [(known[n], m) for n, m in zip(numbers, rest[count:], strict=True)]
    return steps, memory, dict(pairs[:results]), dict(pairs[results:])


def step_of(kernel: UOp, places: list[int], memory: int) -> Step:
    """The step of a kernel. Raises ValueError where it does not fit."""
    found = kernel.arg
    if not isinstance(found, Kernel) or found.slots != len(places):
        raise ValueError(f"{kernel!r} does not take {len(places)} buffers")
    if not all(0 <= place < memory for place in places):
        raise ValueError(f"{places} is not in {memory} pieces of memory")
    return Step(found.ast, tuple(places), found.metadata, kernel)


def fresh(memory: Sequence[UOp]) -> list[UOp]:
    """The UNIQUEs of new memory, which differ between processes."""
    below = UOp.sink(*memory).toposort()
    return [n for n in below if n.op is Op.UNIQUE and type(n.arg) is int and n.arg >= 0]
