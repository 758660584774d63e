"""A schedule in which memory is a parameter, and the table of those made lately.

Floor 3. Cutting a graph into kernels takes a thousand times as long as looking it up. So it is done
for the form of the graph (`form.py`), and what comes out is kept: which kernels to launch, each
with the numbers of the memory in its slots; which memory to make; what the nodes that now are
memory give way to. See docs/decisions/0025-schedule-cache.md.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from tinycore._collector import without_collecting
from tinycore._locks import lock
from tinycore.config import settings
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.render.base import Limits
from tinycore.schedule import kept
from tinycore.schedule.form import Form
from tinycore.schedule.kernel import image_of, memory_of
from tinycore.schedule.kernelize import kernelize
from tinycore.schedule.memory import Life, largest_live, pack
from tinycore.schedule.multi import PerDevice
from tinycore.schedule.order import ScheduleItem, buffer_of, buffers, kernels_below, new_memory
from tinycore.schedule.overwrite import Overwrite, overwrites, overwriting
from tinycore.schedule.results import HeldValue, Keep, Replacements, alone_in
from tinycore.schedule.sooner import sooner
from tinycore.schedule.step import Step
from tinycore.schedule.target import elsewhere
from tinycore.schedule.together import in_strips
from tinycore.trace import Trace
from tinycore.uop.bindings import exchanging
from tinycore.uop.node import UOp, made_anew
from tinycore.uop.op import Op

trace = Trace("layout")

LEAST_BYTES: Final = 64 << 10
"""The size of a block from which a result may be written over what its kernel reads."""
LEAST_GAIN: Final = 1 / 32
"""The part of a block that this must save: what overwrites is one kernel more to be compiled."""


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
    held: Replacements = field(default_factory=dict)
    """What new memory may hold that is used for nothing else, likewise."""
    layouts: dict[frozenset[UOp], Layout] = field(default_factory=dict)
    kinds: dict[int, Buffer] = field(default_factory=dict)
    """New memory by number, never allocated, to make more like it."""

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The numbers of the parameters that the steps touch."""
        found = {place for step in self.steps for place in step.places}
        return tuple(sorted(place for place in found if place < self.parameters))

    def like(self, place: int) -> Buffer:
        """New memory in the place of that with a number."""
        if (kind := self.kinds.get(place)) is None:
            kind = self.kinds[place] = new_memory(self.memory[place])
        return Buffer.like(kind)

    @cached_property
    def lives(self) -> dict[int, Life]:
        """From which step to which new memory is in use, by number."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for place in step.places:
                first.setdefault(place, number)
                last[place] = number
        new = [place for place in first if place >= self.parameters]
        return {p: Life(size_bytes(self.memory[p]), first[p], last[p]) for p in new}

    @cached_property
    def reads(self) -> dict[UOp, tuple[int, ...]]:
        """The numbers of the parameters that each value was computed from which may be held."""
        masks = {self.memory[number]: 1 << number for number in range(self.parameters)}
        for node in self.form.toposort():
            mask = masks.get(node, 0)
            for source in node.src:
                mask |= masks[source]
            masks[node] = mask
        numbers = range(self.parameters)
        return {n: tuple([k for k in numbers if masks[n] >> k & 1]) for n in self.held}

    def layout(self, others: Sequence[UOp], form: Form) -> Layout:
        """Where new memory lies, if of the nodes with memory only some are asked for.

        These are the roots, all writes, and what other graphs that live on meet first on the way
        down. A write gives way to its memory even if no other graph has it: the one that is read
        stays, and must not write once more. Below what is held the others go on, likewise.
        """
        asked = frozenset((*self.form.src, *(form.forms[node] for node in form.assigned)))
        if others:
            stops = set(form.roots) | {n for n, f in form.forms.items() if f in self.results}
            holds = {n for n, f in form.forms.items() if f in self.held} if self.held else set()
            first = stops | holds | form.held.keys()
            met = UOp.sink(*others).toposort(lambda n: n not in first)
            holding = [n for n in met if n in holds or n in form.held]
            asked |= {form.forms[n] for n in holding if n in holds}
            if holding:
                met += UOp.sink(*holding).toposort(lambda n: n not in stops)
            asked |= {form.forms[n] for n in met if n in stops}
        if (found := self.layouts.get(asked)) is None:
            found = self.layouts[asked] = laid_out(self, asked)
        return found


@dataclass(frozen=True)
class Layout:
    """Where the new memory of a recipe lies: on its own where it lasts or is an image, else in a
    block.
    """

    results: Replacements
    held: Replacements
    lasting: tuple[int, ...]
    blocks: tuple[Block, ...]
    steps: tuple[Step, ...]
    """Those of the recipe, some of which overwrite what they read."""


class Block(NamedTuple):
    """Memory of one device that intermediate results share: their numbers and offsets."""

    device: str
    size_bytes: int
    places: tuple[tuple[int, int], ...]
    live_bytes: int
    """The most that live at once."""
    overwrites: tuple[Overwrite, ...]
    holder: Mapping[int, int]
    """What else has memory in it: results in place of a value that has a place."""


def laid_out(recipe: Recipe, asked: Collection[UOp]) -> Layout:
    """The layout of new memory if some nodes are asked for."""
    results = {node: memory for node, memory in recipe.results.items() if node in asked}
    held = {node: memory for node, memory in recipe.held.items() if node in asked}
    shown = set(UOp.sink(*results.values(), *held.values()).toposort())
    new = range(recipe.parameters, len(recipe.memory))
    images = {place for place in new if image_of(recipe.memory[place]) is not None}
    lasting = tuple([place for place in new if place in images or recipe.memory[place] in shown])
    passing = defaultdict(list)
    for place in recipe.lives.keys() - set(lasting):
        passing[recipe.memory[place].device].append(place)
    blocks = [block_of(device, sorted(found), recipe) for device, found in passing.items()]
    steps = list(recipe.steps)
    for block in blocks:
        for number, dying, made in block.overwrites:
            steps[number] = overwriting(steps[number], dying, made)
        if trace.on:
            tell(block, recipe)
    return Layout(results, held, lasting, tuple(blocks), tuple(steps))


def block_of(device: str, places: Sequence[int], recipe: Recipe) -> Block:
    """The block of a device, with results in place of other values if that makes it smaller."""
    lives = {place: recipe.lives[place] for place in places}
    plain = block_over(device, lives, {}, ())
    large = plain.live_bytes >= LEAST_BYTES
    found = overwrites(recipe.steps, recipe.memory, lives) if large else []
    if not found:
        return plain
    holder: dict[int, int] = {}
    for _, dying, made in sorted(found):
        holder[made] = holder.get(dying, dying)
    block = block_over(device, lives, holder, found)
    return block if block.size_bytes <= plain.size_bytes * (1 - LEAST_GAIN) else plain


def block_over(
    device: str, lives: Mapping[int, Life], holder: Mapping[int, int], found: Sequence[Overwrite]
) -> Block:
    """A block in which some values have the memory of their `holder`."""
    whole = {place: life for place, life in lives.items() if place not in holder}
    for place, first in holder.items():
        last = max(whole[first].last, lives[place].last)
        whole[first] = whole[first]._replace(last=last)
    packed = pack(list(whole.values()))
    where = dict(zip(whole, packed.offsets, strict=True))
    live = largest_live(list(whole.values()))
    return Block(device, packed.size_bytes, tuple(where.items()), live, tuple(found), dict(holder))


def tell(block: Block, recipe: Recipe) -> None:
    """A line of DEBUG on a new layout."""
    values = len(block.places) + len(block.holder)
    apart = sum(recipe.lives[place].size_bytes for place in (*dict(block.places), *block.holder))
    trace(
        f"{block.device:<8} {values} intermediate results in {block.size_bytes:,} B, "
        f"{block.live_bytes:,} B live at once, {apart:,} B if they shared none, "
        f"{len(block.holder)} in place of another"
    )


def size_bytes(buffer: UOp) -> int:
    """Bytes of a BUFFER."""
    return int(buffer.shape[0]) * buffer.dtype.itemsize


class Prepared:
    """One use of a recipe: the memory by number, and the nodes that stand for it.

    Without a layout all memory is on its own, for those who want to look at it afterwards.
    """

    def __init__(self, recipe: Recipe, form: Form, layout: Layout | None = None) -> None:
        self.recipe = recipe
        self.form = form
        self.nodes: Replacements = dict(zip(recipe.memory, form.memory, strict=False))
        self.memory: dict[int, Buffer] = {n: buffer_of(form.memory[n]) for n in recipe.used}
        self.passing: list[Buffer] = []
        self.lasting: list[tuple[weakref.ref[UOp], Buffer]] = []
        everything = range(recipe.parameters, len(recipe.memory))
        self.shown = recipe.results if layout is None else layout.results
        self.holds = {} if layout is None else layout.held
        self.steps = recipe.steps if layout is None else layout.steps
        for place in everything if layout is None else layout.lasting:
            self.enter(place)
        for block in () if layout is None else layout.blocks:
            self.share(block)

    def enter(self, place: int) -> None:
        """Make memory that lasts, and its node."""
        node = self.recipe.memory[place]
        self.nodes[node] = new = made_anew(node)
        buffers[new] = self.memory[place] = self.recipe.like(place)
        self.lasting.append((weakref.ref(new), self.memory[place]))

    def share(self, block: Block) -> None:
        """Make the memory of intermediate results."""
        whole = Buffer(block.device, block.size_bytes, dtypes.uint8)
        for place, offset in block.places:
            node = self.recipe.memory[place]
            view = whole.view(node.shape[0], node.dtype, offset)
            self.memory[place] = view
            self.passing.append(view)
        for made, place in block.holder.items():
            self.memory[made] = self.memory[place]

    def items(self) -> list[ScheduleItem]:
        """The launches, on this memory."""
        memory = self.memory
        return [
            ScheduleItem(ast, tuple([memory[p] for p in places]), metadata, kernel)
            for ast, places, metadata, kernel in self.steps
        ]

    def kernels(self) -> tuple[UOp, ...]:
        """The KERNEL of each launch, over nodes of this memory."""
        return UOp.sink(*[step.kernel for step in self.recipe.steps]).substitute(self.nodes).src

    def results(self) -> Replacements:
        """What gives way to memory, and that memory."""
        actual = self.form.nodes
        return {actual[old]: self.over(new) for old, new in self.shown.items() if old in actual}

    def held(self) -> list[HeldValue]:
        """What stays in the graph, and the memory that holds its value."""
        actual, reads = self.form.nodes, self.recipe.reads if self.holds else {}
        return [
            HeldValue(actual[old], self.over(new), tuple([self.form.memory[k] for k in reads[old]]))
            for old, new in self.holds.items()
            if old in actual
        ]

    def over(self, memory: UOp) -> UOp:
        """A node over memory as it stands in the form, over the memory itself."""
        if memory.op is Op.RESHAPE and (found := self.nodes.get(memory.src[0])) is not None:
            return memory.with_src((found,))
        found = memory.substitute(self.nodes)
        return exchanging(found, self.form.naming.back) if self.form.values else found


Key = tuple[UOp, Keep, int, Limits | None]

recipes: dict[Key, Recipe] = {}
MOST_RECIPES: Final = 1024
"""How many are kept; the one unused longest goes."""
table = lock()
"""Held to look a recipe up, never while one is made."""


def recipe_for(form: Form, keep: Keep, lasting: bool = False) -> Recipe:
    """The recipe of a form: looked up, or made and kept; a `lasting` one also on disk."""
    key = form.sink, keep, settings.RING, elsewhere.get()
    with table:
        if (found := recipes.pop(key, None)) is not None:
            recipes[key] = found
            return found
    with without_collecting:
        made = kept_or_made(form, keep) if lasting else make(form, keep)
    with table:
        recipes[key] = made
        if len(recipes) > MOST_RECIPES:
            del recipes[next(iter(recipes))]
    return made


def kept_or_made(form: Form, keep: Keep) -> Recipe:
    """A recipe from disk, else a new one, which goes there."""
    key = kept.key_of(form, keep)
    if key is not None and (found := kept.find(key, form)) is not None:
        steps, memory, results, held = found
        return Recipe(form.sink, steps, memory, len(form.memory), results, held)
    made = make(form, keep)
    if key is not None:
        kept.put(key, form, (made.steps, made.memory, made.results, made.held))
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
    given, held = keep(roots, graph.together(done | memory))
    results = {old: new for old, new in given.items() if old in form.nodes}
    numbers = {form.forms[node]: number for number, node in enumerate(form.memory)}
    shown = UOp.sink(*results.values()).toposort()
    for node in (*shown, *(n for k in kernels for n in k.src[: k.arg.slots])):
        if (found := memory_of(node)).op in (Op.BUFFER, Op.BUFFER_VIEW):
            numbers.setdefault(found, len(numbers))
    steps = []
    for kernel in kernels:
        slots = kernel.src[: kernel.arg.slots]
        places = tuple([numbers[memory_of(slot)] for slot in slots])
        steps.append(Step(kernel.arg.ast, places, kernel.arg.metadata, kernel))
    lasting = frozenset(numbers[m] for n in shown if (m := memory_of(n)) in numbers)
    ordered = sooner(steps, tuple(numbers), len(form.memory), lasting)
    together = in_strips(ordered, tuple(numbers), len(form.memory), lasting)
    filled = {place for step in together for place in step.places if place >= len(form.memory)}
    free = {memory for memory, place in numbers.items() if place in filled - lasting}
    alone = {n: m for n, m in alone_in(held, free).items() if n in form.nodes}
    return Recipe(form.sink, tuple(together), tuple(numbers), len(form.memory), results, alone)
