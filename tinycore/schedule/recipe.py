"""A schedule in which memory is a parameter, and the table of those made lately.

Floor 3. Cutting a graph into kernels takes a thousand times as long as looking it up. So it is done
for the form of the graph (`form.py`), and what comes out is kept: which kernels to launch, each
with the numbers of the memory in its slots; which memory to make; what the nodes that now are
memory give way to. See docs/decisions/0025-schedule-cache.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from tinycore.config import settings
from tinycore.device.buffer import Buffer
from tinycore.schedule.form import Form
from tinycore.schedule.kernel import slot_count
from tinycore.schedule.kernelize import kernelize, memory_of
from tinycore.schedule.multi import PerDevice
from tinycore.schedule.order import ScheduleItem, buffer_of, buffers, kernels_below
from tinycore.uop.bindings import holding
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op

Replacements = dict[UOp, UOp]
Keep = Callable[[list[UOp], Replacements], Replacements]
"""Which of the nodes that now are memory give way to it, given the roots and all such nodes.

It may look at the graph only: what it says of one is taken to hold for all of its form.
"""


class Step(NamedTuple):
    """One launch: what to compute, and the numbers of the memory for its slots, outputs first."""

    ast: UOp
    places: tuple[int, ...]
    metadata: tuple[str, ...]
    kernel: UOp


@dataclass(frozen=True)
class Recipe:
    """How to compute all graphs of one form. Memory is numbered: parameters first, then new."""

    form: UOp
    """The key it is found by; held, so that its nodes stay the same ones."""
    steps: tuple[Step, ...]
    memory: tuple[UOp, ...]
    """By number, BUFFERs and views as they stand in the form."""
    parameters: int
    results: Replacements
    """What gives way to memory, both as they stand in the form."""

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The numbers of the parameters that the steps touch."""
        found = {place for step in self.steps for place in step.places}
        return tuple(sorted(place for place in found if place < self.parameters))

    @cached_property
    def lasting(self) -> frozenset[int]:
        """The numbers of the new memory that results show."""
        shown = set(UOp.sink(*self.results.values()).toposort())
        new = range(self.parameters, len(self.memory))
        return frozenset(place for place in new if self.memory[place] in shown)


class Prepared:
    """One use of a recipe: the memory by number, and the nodes that stand for it."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        self.recipe = recipe
        self.form = form
        self.nodes: Replacements = dict(zip(recipe.memory, form.memory, strict=False))
        self.memory: dict[int, Buffer] = {n: buffer_of(form.memory[n]) for n in recipe.used}
        for place in range(recipe.parameters, len(recipe.memory)):
            node = recipe.memory[place]
            self.memory[place] = Buffer(node.device, node.arg, node.dtype)
            if place in recipe.lasting:
                self.enter(place)

    def enter(self, place: int) -> None:
        """Make the node of new memory."""
        node = self.recipe.memory[place]
        self.nodes[node] = new = node.with_src((node.src[0], unique()))
        buffers[new] = self.memory[place]

    def items(self) -> list[ScheduleItem]:
        """The launches, on this memory."""
        memory = self.memory
        return [
            ScheduleItem(ast, tuple([memory[p] for p in places]), metadata, kernel)
            for ast, places, metadata, kernel in self.recipe.steps
        ]

    def kernels(self) -> tuple[UOp, ...]:
        """The KERNEL of each launch, over nodes of this memory."""
        for place in range(self.recipe.parameters, len(self.recipe.memory)):
            if place not in self.recipe.lasting:
                self.enter(place)
        return UOp.sink(*[step.kernel for step in self.recipe.steps]).substitute(self.nodes).src

    def results(self) -> Replacements:
        """What gives way to memory, and that memory."""
        actual = self.form.nodes
        return {
            actual[old]: self.shown(new)
            for old, new in self.recipe.results.items()
            if old in actual
        }

    def shown(self, memory: UOp) -> UOp:
        """A node over memory as it stands in the form, over the memory itself."""
        if memory.op is Op.RESHAPE and (found := self.nodes.get(memory.src[0])) is not None:
            return memory.with_src((found,))
        found = memory.substitute(self.nodes)
        return holding(found, self.form.values) if self.form.values else found


Key = tuple[UOp, Keep, int]

recipes: dict[Key, Recipe] = {}
MOST_RECIPES: Final = 1024
"""How many are kept; the one unused longest goes."""
table = threading.Lock()
"""Held to look a recipe up, never while one is made."""


def recipe_for(form: Form, keep: Keep) -> Recipe:
    """The recipe of a form: looked up, or made and kept."""
    key = form.sink, keep, settings.RING
    with table:
        if (found := recipes.pop(key, None)) is not None:
            recipes[key] = found
            return found
    made = make(form, keep)
    with table:
        recipes[key] = made
        if len(recipes) > MOST_RECIPES:
            del recipes[next(iter(recipes))]
    return made


def make(form: Form, keep: Keep) -> Recipe:
    """Cut the form of a graph into kernels, and number the memory that they work on."""
    roots = list(form.sink.src)
    graph = PerDevice(roots)
    cut = kernelize(graph.parts)
    sink = UOp.sink(*graph.parts).substitute(cut)
    kernels = kernels_below(sink)
    ran = set(kernels)  # one kernel may have stored more than the roots
    stored = UOp.sink(sink, *cut.values()).toposort()
    done = {n: memory_of(n) for n in stored if n.op is Op.ASSIGN and n.src[1] in ran}
    memory = {node: found.substitute(done) for node, found in cut.items()}
    results = keep(roots, graph.together(done | memory))
    numbers = {form.forms[node]: number for number, node in enumerate(form.memory)}
    shown = UOp.sink(*results.values()).toposort()
    for node in (*shown, *(n for k in kernels for n in k.src[: slot_count(k.arg.ast)])):
        if (found := memory_of(node)).op in (Op.BUFFER, Op.BUFFER_VIEW):
            numbers.setdefault(found, len(numbers))
    steps = []
    for kernel in kernels:
        slots = kernel.src[: slot_count(kernel.arg.ast)]
        places = tuple([numbers[memory_of(slot)] for slot in slots])
        steps.append(Step(kernel.arg.ast, places, kernel.arg.metadata, kernel))
    return Recipe(form.sink, tuple(steps), tuple(numbers), len(form.memory), results)
