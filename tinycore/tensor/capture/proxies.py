"""Argument proxies (tracers) of a capture; arguments that no replay could rebind are rejected.

Floor 5. Tensors stand for the arguments of the call. A proxy shows the memory of its argument
through another BUFFER node (a tracer, in terms of JAX), so that a launch tells whether the function
reached that memory through the argument or in another way.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from tinycore.device.buffer import Buffer
from tinycore.engine.run import Recording
from tinycore.engine.transactions import base_buffer
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.schedule.kernel import memory_of
from tinycore.tensor.aliases import VIEW_OPS, buffers_below, is_realized, parts_of
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import end_at, ended_at, ended_below, present
from tinycore.tensor.capture.arguments import Arguments, attributes_beside, rebuilt
from tinycore.tensor.capture.change_sets import ChangeSet
from tinycore.tensor.storage.change_tracking import change_sets, changed_elsewhere
from tinycore.tensor.storage.liveness import publish, while_walking
from tinycore.tensor.storage.realization import compute, readers
from tinycore.tensor.storage.storage import Storage, waiting_storages
from tinycore.tensor.tensor import Tensor
from tinycore.uop.bindings import Naming, exchanging
from tinycore.uop.movement import base_of, source_below
from tinycore.uop.node import UOp, made_anew
from tinycore.uop.op import Op
from tinycore.uop.size import Size


class ArgumentProxies:
    """Proxies of all tensors among the arguments of a call."""

    def __init__(self, given: Arguments, are_used: bool = True) -> None:
        self.given, self.are_used = given, are_used
        """The function gets the arguments themselves where proxies are not used."""
        self.nodes = {n: made_anew(n) for n in given.nodes if are_used}
        for node, buffer in zip(self.nodes.values(), given.buffers, strict=are_used):
            buffers[node] = buffer.view(buffer.size)
        self.back = {new: old for old, new in self.nodes.items()}
        for old, new in self.nodes.items():
            ended = ended_below([old])
            beside = [self.nodes[n] for n in present(ended) if n in self.nodes]
            end_at(new, ended | versions.references(beside))
        self.number = {new: place for place, new in enumerate(self.back)}
        self.buffers = tuple([buffers[n] for n in self.back]) if are_used else given.buffers
        self.made: dict[int, Tensor] = {}

    @property
    def tensors(self) -> list[Tensor]:
        """The proxies that were handed out."""
        return list(self.made.values())

    def substitute_in(self, arguments: Any) -> Any:
        """The same arguments with proxies of the tensors, and Sizes by the names of the capture."""
        if self.are_used:
            arguments = rebuilt(arguments, Tensor, self.tensor)
        naming = self.given.naming
        return arguments if naming is None else rebuilt(arguments, Size, naming.held)

    def tensor(self, original: Tensor) -> Tensor:
        """The proxy of a tensor."""
        if id(original) not in self.made:
            tensor = type(original)._from_node(original.uop.substitute(self.nodes))
            tensor._requires_grad = original._requires_grad
            for name, value in attributes_beside(original):
                setattr(tensor, name, value)
            self.made[id(original)] = tensor
            if original.grad is not None:
                tensor._grad = self.tensor(original.grad)
        return self.made[id(original)]

    def gradient_of(self, original: Tensor) -> Tensor | None:
        """The proxy of a tensor's gradient."""
        return None if original.grad is None else self.made.get(id(original.grad))

    @while_walking
    def restore(self, change_set: ChangeSet) -> None:
        """Make what the function has made or changed show the memory of the arguments again instead
        of the proxies'.
        """
        storages = {t._view.storage for t in change_set.touched()} if self.back else ()
        new = {s: s.value.substitute(self.back) for s in storages}
        publish({s: value for s, value in new.items() if value is not s.value}, {})
        shown = {m for s in storages for m in buffers_below(s.value) if ended_at(m)}
        for memory in shown | change_set.origins.keys():
            ended = change_set.origins.get(memory, ended_at(memory))
            given = [self.back[n] for n in present(ended) if n in self.back]
            end_at(versions.current(self.back.get(memory, memory)), ended | ended_below(given))

    def write_back(self) -> None:
        """Copy changes of proxies to their arguments, if the capture failed.

        The proxies show the memory of the arguments again.
        """
        changed = []
        for tensor in self.given.tensors:
            new = self.made.get(id(tensor))
            if new is None:
                continue
            if new.grad is not self.gradient_of(tensor):
                tensor.grad = new.grad
            if new.uop is not tensor.uop:
                changed.append((tensor, new))
        if changed:
            Tensor.realize(*(new for _, new in changed))
        for tensor, new in changed:
            if new.uop is not tensor.uop:
                tensor.replace(new)

    def wrong(self, recording: Recording) -> Iterator[str]:
        """Arguments that were also reached in another way, replaced, or given a gradient."""
        used = {b for item in recording.items for b in item.bufs}
        for path, original in self.given.named_tensors:
            tensor, below = self.made[id(original)], buffers_below(original.uop)
            place = path.removeprefix("argument ")
            if used.intersection(map(buffer_of, below)):
                yield (
                    f"was given as argument {place} what it also reaches in another way (a "
                    "closure, a global, an attribute); a replay with another argument would mix "
                    "them up. Let it reach the tensor in one way only, or pass a copy (clone)"
                )
            nodes = [self.nodes[b] for b in below]
            is_same = tensor.uop is original.uop.substitute(self.nodes)  # also without elements
            if not is_same and not (is_realized(tensor.uop) and buffers_below(tensor.uop) == nodes):
                yield (
                    f"replaced its argument {place} by another tensor, where a replay could "
                    "only write to memory; use assign, or return the new one"
                )
            both = (attributes_beside(found) for found in (tensor, original))
            now, before = ([(name, id(value)) for name, value in found] for found in both)
            if now != before:
                yield (
                    f"set an attribute of its argument {place}, which a replay would not do; "
                    "return the value, or set it outside"
                )
            if tensor.grad is not self.gradient_of(original):
                yield (
                    f"gave its argument {place} a gradient, which a replay could not; "
                    "return the gradient (Tensor.gradient), or keep the parameter outside"
                )


@contextmanager
def naming_variables(given: Arguments, change_set: ChangeSet) -> Iterator[None]:
    """Inside, tensors show bound variables under the names that a captured function sees.

    Names that tell nothing of the numbers, so that captured launches serve all, and no variable
    that was bound elsewhere is taken for one of them.
    """
    naming = given.naming
    if naming is None:
        yield
        return
    try:
        for argument in given.tensors:
            argument._become(given.named(argument.uop))
        yield
    finally:
        name_back(naming, given, change_set)


@while_walking
def name_back(naming: Naming, given: Arguments, change_set: ChangeSet) -> None:
    """Show bound variables under their own names again, in arguments and in tensors that were made
    or changed.

    Other threads have other numbers under the same names.
    """
    own = [t for t in change_set.touched() if id(t) in change_set.changed]
    for tensor in (*given.tensors, *own):
        node = tensor.uop
        new = exchanging(node, naming.back)
        if new is not node and tensor.uop is node:
            tensor._become(new)


def finish_writes(reached: Iterable[Any]) -> None:
    """Do pending writes to memory, so that no capture records them as a part of its step.

    Those of this thread, and those to the tensors among `reached`, which the function may read. All
    others are left to the threads that recorded them, which may be about to record more. Gradients
    pass on through them.
    """
    compute(partial(pending_roots, {id(v) for v in reached if isinstance(v, Tensor)}))


def finish_reads(overwritten: Collection[Buffer]) -> None:
    """Compute what tensors still have to read from memory that is about to be overwritten.

    As before any write, gradients of these values pass on.
    """
    if overwritten and readers_of(overwritten):
        compute(partial(readers_of, overwritten))


@while_walking
def readers_of(overwritten: Container[Buffer]) -> list[UOp]:
    """The values of storages that are still to be computed from some memory; not views of it, nor
    what captures of other threads have recorded.
    """

    def is_overwritten(node: UOp) -> bool:
        memory = buffers.get(node) if node.op is Op.BUFFER else None
        return memory is not None and base_buffer(memory) in overwritten

    waiting = [s.root() for s in waiting_here() if not is_realized(s.value)]
    return readers(dict.fromkeys(waiting), is_overwritten)


@while_walking
def pending_roots(reached: set[int]) -> list[UOp]:
    """The values of storages with pending writes of this thread, or shown by tensors whose ids are
    among `reached`, unless the capture of another thread has recorded them.

    Not the storages: another thread may write to one again while this one waits for its turn.
    """
    found: dict[UOp, None] = {}
    own = get_ident()
    for storage in waiting_here():
        parts = map(base_of, parts_of(source_below(storage.value, VIEW_OPS)))
        threads = [getattr(w.arg, "thread", own) for w in parts if is_pending_write(w)]
        if threads and (own in threads or not reached.isdisjoint(storage.views)):
            found[storage.root()] = None
    return [*found]


def waiting_here() -> list[Storage]:
    """The storages that wait, but for those of captures of other threads."""
    others = changed_elsewhere() if change_sets else frozenset()
    return [s for s in waiting_storages() if s.views and others.isdisjoint(s.views)]


def is_pending_write(node: UOp) -> bool:
    """True if a node is memory that has content, and a write pending to replace it."""
    if node.op is not Op.ASSIGN:
        return False
    memory = buffers.get(memory_of(node))
    return memory is not None and memory.is_allocated
