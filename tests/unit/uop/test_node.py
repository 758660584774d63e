"""Nodes are interned, and held no longer than somebody needs them."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp, forget, made_anew, nodes, unique
from tinycore.uop.op import Op


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


def test_an_entry_that_died_makes_room_for_an_equal_node() -> None:
    first = UOp.index(123_459)
    (key,) = [key for key, reference in nodes.items() if reference() is first]
    dead = nodes[key]
    del first
    nodes[key] = dead  # as another thread sees it before the entry has gone

    second = UOp.index(123_459)

    assert UOp.index(123_459) is second
    forget(dead)
    assert nodes[key]() is second


def test_equal_nodes_that_several_threads_make_are_one() -> None:
    def make(number: int) -> UOp:
        node = UOp.variable("made by several", 0, number)
        for step in range(20):
            node = node * 3 + step
        return node

    with ThreadPoolExecutor(4) as pool:
        for number in range(1, 200):
            made = list(pool.map(make, [number] * 4))
            assert all(node is made[0] for node in made)


def test_nothing_is_walked_to_replace_nothing() -> None:
    node = UOp.variable("a", 0, 9) + 1

    assert node.substitute({}) is node


def test_what_is_below_a_sink_is_found_once_and_kept_by_no_circle() -> None:
    a = UOp.variable("a", 0, 9)
    sink = UOp.sink(a + 1, a * 2)
    first = sink.toposort()
    first.clear()

    assert sink.toposort()[-1] is sink
    gone = weakref.ref(sink)
    del sink
    assert gone() is None


def test_substitute_rebuilds_only_what_is_above_what_changes() -> None:
    a, b, c = (UOp.variable(name, 0, 9) for name in "abc")
    kept = b * 3

    found = UOp.sink(a + kept, kept).substitute({a: c})
    assert found.src == (c + kept, kept)
    assert (a + kept).substitute({a: c, kept: a}) is c + a  # what is put in is left as it is


def test_made_anew_is_unlike_all_others() -> None:
    device = UOp(Op.DEVICE, dtypes.void, (), "CPU")
    one = UOp(Op.BUFFER, dtypes.float32, (device, unique()), 4)
    other = made_anew(one)

    assert other is not one
    assert (other.dtype, other.arg, other.src[0]) == (one.dtype, one.arg, device)
    assert UOp(Op.BUFFER, dtypes.float32, other.src, 4) is other


def test_toposort_lists_what_it_does_not_enter() -> None:
    a, b = (UOp.variable(name, 0, 9) for name in "ab")
    inner = a * 2
    outer = inner + b
    sink = UOp.sink(outer)
    assert sink.toposort()[-1] is sink  # what is below is kept now

    assert outer.toposort(lambda n: n is not inner) == [inner, b, outer]
    assert sink.toposort(lambda n: n is not inner) == [inner, b, outer, sink]
    assert sink.toposort(lambda n: n is not sink) == [sink]


def test_toposort_enters_what_another_path_leads_to() -> None:
    a, b = (UOp.variable(name, 0, 9) for name in "ab")
    inner = a * 2
    outer = inner + a * b

    assert outer.toposort(lambda n: n is not inner) == [inner, *(a * b).toposort(), outer]


def test_substitute_keeps_what_it_does_not_enter() -> None:
    a, b = (UOp.variable(name, 0, 9) for name in "ab")
    inner = a * 2

    assert (inner + a).substitute({a: b}, lambda n: n is not inner) is inner + b
    assert (inner + b).substitute({a: b}, lambda n: n is not inner) is inner + b
