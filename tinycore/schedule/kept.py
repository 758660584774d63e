"""Recipes kept on disk, so that a later process cuts no graph into kernels that was cut before.

Floor 3. The key is the form of the graph as text, what its devices say that kernels are cut by, the
settings that may matter, and a stamp of the code. What is kept is text as well, which is parsed and
never evaluated: memory and kernels as graphs, and a line of numbers that says how they belong
together. Nodes of the form itself are counted off, as the walk that found it met them.
See docs/decisions/0037-recipes-on-disk.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from tinycore import cache
from tinycore._deferred import deferred
from tinycore._stamp import decisive_settings, stamp
from tinycore.config import settings
from tinycore.dtype import dtypes
from tinycore.errors import FileFormatError, TinycoreError
from tinycore.schedule.form import Form
from tinycore.schedule.kernel import Kernel
from tinycore.schedule.step import Step
from tinycore.schedule.target import elsewhere, limits_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import names_of
from tinycore.uop.text import to_text

program_from_text: Final[Callable[[str], tuple[UOp, ...]]] = deferred(
    "tinycore.uop.parse:program_from_text"
)

RECIPES: Final = "recipe"
"""The table of the disk cache that they are in."""
SCHEDULING: Final = ("_dtype.py", "dtype.py", "render", "schedule", "tensor", "uop")
"""The parts of this package that make a recipe of a form."""
FEWEST_NODES: Final = 64
"""The size of a graph from which looking for a file takes less time than cutting it."""

Parts = tuple[tuple[Step, ...], tuple[UOp, ...], dict[UOp, UOp], dict[UOp, UOp]]
"""Steps and memory of a recipe, its results, and what memory may hold."""


def key_of(form: Form, keep: Callable[..., Any]) -> str | None:
    """Everything that a recipe depends on; None for one that is not kept on disk."""
    if not settings.CCACHE or settings.VERIFY or elsewhere.get() is not None:
        return None
    if len(form.forms) < FEWEST_NODES:
        return None
    try:
        about = [f"{name} {limits_of(name)!r}" for name in devices_of(form.forms.values())]
        text = to_text(form.sink)
    except TinycoreError:  # a device that is not here, an argument without text
        return None
    about += [f"{keep.__module__}.{keep.__qualname__}", f"RING={settings.RING}"]
    return "\n".join([stamp(SCHEDULING), *decisive_settings(), *about, text])


def devices_of(nodes: Iterable[UOp]) -> list[str]:
    """The devices that are named in a graph."""
    names = {name for n in nodes if n.op is Op.DEVICE for name in names_of(n.arg)}
    return sorted(names)


def find(key: str, form: Form) -> Parts | None:
    """The recipe that some process made for a form; None where there is none."""
    content = cache.get(RECIPES, key)
    if content is None:
        return None
    try:
        return parsed(content.decode(), form)
    except (ValueError, LookupError, TypeError, AttributeError, FileFormatError):
        return None  # whole, as its checksum says, and yet not what is written here


def put(key: str, form: Form, parts: Parts) -> None:
    """Keep a recipe for later processes, unless it has no text."""
    try:
        content = written(form, parts)
    except FileFormatError:
        return
    cache.put(RECIPES, key, content.encode())


def written(form: Form, parts: Parts) -> str:
    """A recipe as text."""
    steps, memory, results, held = parts
    given = len(form.memory)
    counted = dict(zip(fresh(memory[given:]), markers(given), strict=False))
    nodes = [*(s.kernel for s in steps), *memory[given:], *results.values(), *held.values()]
    everything = UOp.sink(*nodes).substitute(counted)
    numbers = {node: number for number, node in enumerate(form.forms.values())}
    told = {
        "places": [step.places for step in steps],
        "memory": len(memory) - given,
        "results": [numbers[node] for node in results],
        "held": [numbers[node] for node in held],
    }
    return f"{json.dumps(told)}\n{to_text(everything)}"


def parsed(text: str, form: Form) -> Parts:
    """A recipe from its text. Raises what reading a wrong text raises."""
    head, _, graph = text.partition("\n")
    told = json.loads(head)
    nodes = program_from_text(graph)[-1].src
    places, count, numbers = told["places"], told["memory"], told["results"]
    results = len(numbers)
    numbers += told["held"]
    if len(nodes) != len(places) + count + len(numbers):
        raise ValueError(f"{len(nodes)} nodes where {told} are told")
    kernels, rest = nodes[: len(places)], nodes[len(places) :]
    memory = (*(form.forms[node] for node in form.memory), *rest[:count])
    steps = tuple(step_of(k, p, len(memory)) for k, p in zip(kernels, places, strict=True))
    known = list(form.forms.values())
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
    """The UNIQUEs of new memory, which are other ones in each process."""
    below = UOp.sink(*memory).toposort()
    return [n for n in below if n.op is Op.UNIQUE and type(n.arg) is int and n.arg >= 0]


def markers(first: int) -> Iterator[UOp]:
    """UNIQUEs in their place: they go on where the parameters of the form end."""
    number = first
    while True:
        yield UOp(Op.UNIQUE, dtypes.void, (), -1 - number)
        number += 1
