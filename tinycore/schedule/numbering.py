"""Numbering of memory: groups become launches over memory numbers.

Floor 3. Parameters, which exist before the launches, have the first numbers. The retention policy
(`retention.py`) says which nodes are replaced by memory, and which stay and are only cached in it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from tinycore.schedule.access import Launch
from tinycore.schedule.kernel import memory_of, with_shape
from tinycore.schedule.state import State
from tinycore.schedule.storage import is_stored
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def number_memory(state: State) -> State:
    """Memory gets numbers, groups become launches, and nodes give way to their memory."""
    groups, stored = state.groups, {}
    for old, new in state.rewritten.items():
        # A pass may compute a node in another shape; a RESHAPE of what is stored is no value.
        value = base_of(new)
        is_view = old.op is Op.RESHAPE and value is base_of(state.rewritten[old.src[0]])
        if value in state.storage.reasons and not is_view:
            stored[old] = with_shape(groups.output_memory(value), old.shape)
    below = UOp.sink(*state.sharded.parts).toposort()
    waiting = {n: memory_of(n) for n in below if n.op is Op.ASSIGN and is_stored(n)}
    kept = state.sharded.unshard(waiting | stored)
    given, cached = state.policy(list(state.roots), kept)
    results = {old: new for old, new in given.items() if old in state.known}
    order = groups.topological_order(state.storage.roots)
    nests = [(group, *groups.lower(group)) for group in order]
    pending = [n for n in below if n.op is Op.KERNEL]
    numbers = {node: number for number, node in enumerate(state.parameters)}
    asked = map(groups.output_memory, state.storage.roots)
    shown = UOp.sink(*results.values(), *asked).toposort()
    used = [n.src[: n.arg.slots] for n in pending] + [slots for _, _, slots in nests]
    for node in (*shown, *chain(*used)):
        if (found := memory_of(node)).op in (Op.BUFFER, Op.BUFFER_VIEW):
            numbers.setdefault(found, len(numbers))
    places = [tuple([numbers[memory_of(n)] for n in slots]) for slots in used]
    launches = [Launch(n.arg.ast, p, kernel=n) for n, p in zip(pending, places, strict=False)]
    for (group, ast, _), slots in zip(nests, places[len(pending) :], strict=True):
        launches.append(Launch(ast, slots, (group,)))
    return replace(
        state,
        stored=stored,
        memory=tuple(numbers),
        launches=tuple(launches),
        results=results,
        cached={old: new for old, new in cached.items() if old in state.known},
        persistent=frozenset(numbers[m] for n in shown if (m := memory_of(n)) in numbers),
    )
