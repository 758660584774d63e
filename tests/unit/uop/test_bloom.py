"""Bloom filters of graphs: a root above a node is always a candidate, others rarely are."""

from __future__ import annotations

from random import Random

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp, candidates_above
from tinycore.uop.op import Op


def test_roots_above_a_node_are_candidates() -> None:
    random = Random(1)
    nodes = [UOp.variable(f"v{n}", 0, 9) for n in range(20)]
    for _ in range(400):
        nodes.append(random.choice(nodes).alu(Op.ADD, random.choice(nodes)))

    for node in random.sample(nodes, 40):
        above = [root for root in nodes if node in root.toposort()]
        assert set(above) <= set(candidates_above(nodes, [node]))


def test_graphs_that_share_their_constants_alone_are_told_apart() -> None:
    number = UOp.const(dtypes.float32, 2.0)
    leaves = [UOp.variable(f"p{n}", 0, 9).cast(dtypes.float32) for n in range(400)]
    roots = [leaf * number + number for leaf in leaves]

    found = [len(candidates_above(roots, [root])) for root in roots]

    assert sum(found) < 2 * len(roots)


def test_few_graphs_are_all_candidates() -> None:
    roots = [UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)]

    assert candidates_above(roots, roots[:1]) is roots
