"""Dependences between kernel groups: levels give the answer of a search of everything."""

from __future__ import annotations

import random

import pytest

from tests.unit.schedule.graphs import assign, buffer, kernels, matmul
from tinycore.schedule.dependence import DependenceGraph, KernelGroup
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def searched(graph: DependenceGraph, later: KernelGroup, group: KernelGroup) -> bool:
    """True if a group waits for another, by looking at all that it waits for."""
    stack, seen = [later], set()
    while stack:
        found = stack.pop()
        if found is group:
            return True
        if id(found) not in seen:
            seen.add(id(found))
            stack += graph.predecessors(found)
    return False


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(20))
def test_levels_find_what_a_search_of_everything_finds(seed: int) -> None:
    chance = random.Random(seed)
    graph = DependenceGraph()
    nodes: list[UOp] = [buffer(4) for _ in range(3)]
    for number in range(40):
        needs = chance.sample(nodes, min(len(nodes), chance.randint(1, 3)))
        node = nodes[0] * float(number)
        if chance.random() < 0.3:
            node = assign(chance.choice(nodes[:3]), node)
        group = KernelGroup([node], dict.fromkeys(needs))
        homes = [d for d in graph.groups if not graph.depends([group], d)]
        waits = graph.predecessors(group)
        joined = [d for d in homes if d not in waits and not graph.depends(waits, d)]
        if joined and chance.random() < 0.3:
            graph.merge(chance.choice(joined), group)
        else:
            graph.add(group)
        nodes.append(node)

    for later in graph.groups:
        for group in graph.groups:
            assert graph.depends([later], group) == searched(graph, later, group)


def test_work_grows_with_the_number_of_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    whole = DependenceGraph.predecessors

    def counted(self: DependenceGraph, group: KernelGroup) -> list[KernelGroup]:
        looked_at.append(1)
        return whole(self, group)

    def chain(length: int) -> int:
        """Kernels in a chain, and one more beside each, which could share its loops."""
        looked_at.clear()
        x, weight, found = buffer(8, 8), buffer(8, 8), []
        for _ in range(length):
            x = UOp(Op.CONTIGUOUS, x.dtype, (matmul(x, weight),))
            found.append(x * weight)
        assert len(kernels(x, *found)) >= length
        return len(looked_at)

    monkeypatch.setattr(DependenceGraph, "predecessors", counted)
    short, long = chain(20), chain(80)

    assert long < 6 * short
