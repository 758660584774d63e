"""Nodes are interned, and held no longer than somebody needs them."""

from __future__ import annotations

from tinycore.uop.interning import forget, nodes
from tinycore.uop.node import UOp


def test_the_table_forgets_a_node_with_all_that_was_only_below_it() -> None:
    before = set(nodes)

    node = UOp.index(123_457)
    for step in range(20_000):  # deeper than any stack
        node = node + UOp.index(step)
    assert len(nodes) > len(before)
    del node

    assert set(nodes) - before == set()


def test_an_entry_that_a_newer_equal_node_took_over_stays() -> None:
    first = UOp.index(123_458)
    (key,) = [key for key, reference in nodes.items() if reference() is first]
    old = nodes.pop(key)
    second = UOp.index(123_458)
    assert second is not first

    forget(old)

    assert nodes[key]() is second
