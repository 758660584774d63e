"""A graph over several devices becomes a graph for each, with the copies it needs and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.schedule.graphs import assign, expand, kernels, matmul, permute, reshape, total
from tinycore import Context
from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError
from tinycore.schedule import kernelize
from tinycore.schedule.collectives import concatenate, copy_to
from tinycore.schedule.kernel import Kernel
from tinycore.schedule.retention import Realized
from tinycore.schedule.shard import ShardedGraph, axis_of
from tinycore.uop.movement import axis_reshaped, base_of
from tinycore.uop.node import Skew, UOp, unique
from tinycore.uop.op import Op, Scatter
from tinycore.uop.parse import from_text
from tinycore.uop.shape import DeviceLike, Shape
from tinycore.uop.text import to_text
from tinycore.uop.verify import verify

NAMES = ("PYTHON", "PYTHON:1", "PYTHON:2", "PYTHON:3")


def device(name: DeviceLike) -> UOp:
    return UOp(Op.DEVICE, dtypes.void, (), name)


def memory(shape: Shape, name: str) -> UOp:
    size = 1
    for n in shape:
        size *= n
    return reshape(UOp(Op.BUFFER, dtypes.float32, (device(name), unique()), size), shape)


def spread(shape: Shape, axis: int | None, count: int = 2) -> UOp:
    """Memory on several devices, seen as one tensor of a shape."""
    part = tuple(n // count if a == axis else n for a, n in enumerate(shape))
    parts = tuple(memory(part, name) for name in NAMES[:count])
    return UOp(Op.MULTI, dtypes.float32, parts, axis)


def copies(*roots: UOp) -> list[tuple[str, str, int]]:
    """From where to where the graph of some roots copies how many elements."""
    computed = [UOp(Op.CONTIGUOUS, root.dtype, (root,)) for root in roots]
    cut = kernelize(ShardedGraph(computed).parts)
    found = []
    for node in UOp.sink(*cut.values()).toposort():
        if node.op is Op.KERNEL and node.arg.ast.op is Op.COPY:
            target, source = node.src[:2]
            found.append((source.single_device, target.single_device, target.shape[0]))
    return found


def test_graph_on_one_device_stays_as_it_is() -> None:
    x = memory((4,), "PYTHON")
    graph = ShardedGraph([x + x])

    assert graph.parts == [x + x]
    assert graph.unshard({}) == {}


def test_shape_and_device_are_those_of_the_whole() -> None:
    x = spread((4, 6), 1)

    assert x.shape == (4, 6)
    assert x.device == ("PYTHON", "PYTHON:1")
    assert spread((4, 6), None).shape == (4, 6)


def test_text_of_several_devices_parses_back() -> None:
    x = spread((4, 6), 1) + spread((4, 6), None)

    assert from_text(to_text(x)) is x


def test_each_device_does_its_part() -> None:
    x, y = spread((4, 6), 0), spread((4, 6), 0)

    parts = ShardedGraph([x * y]).parts

    assert parts == [a * b for a, b in zip(x.src, y.src, strict=True)]
    verify(parts, "tensor")


def test_replicas_are_cut_without_a_copy() -> None:
    assert copies(spread((4, 6), 0) + spread((4, 6), None)) == []
    assert axis_of(spread((4, 6), None) + spread((4, 6), 1)) == 1


def test_other_layout_costs_what_others_need() -> None:
    x, y = spread((4, 6), 0), spread((4, 6), 1)

    assert copies(x + y) == [("PYTHON:1", "PYTHON", 6), ("PYTHON", "PYTHON:1", 6)]


KEPT = [
    ("permute", lambda x: permute(x, 1, 0, 2), 0, 1),
    ("merge", lambda x: reshape(x, (32, 6)), 0, 0),
    ("split", lambda x: reshape(x, (2, 4, 4, 6)), 0, 0),
    ("merge behind", lambda x: reshape(x, (8, 24)), 1, 1),
    ("sum beside", lambda x: total(x, 1), 0, 0),
    ("pad beside", lambda x: UOp(Op.PAD, x.dtype, (x,), ((0, 0), (1, 2), (0, 0))), 0, 0),
    ("shrink beside", lambda x: UOp(Op.SHRINK, x.dtype, (x,), ((0, 8), (1, 2), (0, 6))), 0, 0),
    ("flip beside", lambda x: UOp(Op.FLIP, x.dtype, (x,), (False, True, False)), 0, 0),
    ("windows beside", lambda x: UOp(Op.SKEW, x.dtype, (x,), Skew(1, 2, 1, 1, 2)), 0, 0),
    ("contiguous", lambda x: UOp(Op.CONTIGUOUS, x.dtype, (x,)), 2, 2),
]
"""Ops that need no copy, and the axis of the parts before and after."""


@pytest.mark.parametrize(("name", "op", "axis", "after"), KEPT, ids=[case[0] for case in KEPT])
def test_parts_stay_where_they_are(name: str, op: object, axis: int, after: int) -> None:
    node = op(spread((8, 4, 6), axis))  # type: ignore[operator]

    assert axis_of(node) == after
    assert copies(node) == []
    assert [p.device for p in ShardedGraph([node]).parts] == list(NAMES[:2])


@pytest.mark.parametrize(
    ("old", "new", "axis", "after"),
    [
        ((4, 6), (24,), 0, 0),
        ((4, 6), (24,), 1, None),
        ((24,), (4, 6), 0, 0),
        ((3, 8), (3, 2, 4), 1, 1),
        ((3, 8), (3, 1, 8), 1, 2),
        ((4, 6), (1, 4, 6, 1), 0, 1),
        ((6,), (3, 2), 0, None),
        ((4, 6), (8, 3), 0, 0),
        ((5, 6), (30,), 0, 0),
    ],
)
def test_axis_of_parts_after_a_reshape(
    old: Shape, new: Shape, axis: int, after: int | None
) -> None:
    assert axis_reshaped(old, new, axis, 2) == after


def test_reshape_that_mixes_parts_lays_them_out_anew() -> None:
    flat = reshape(spread((4, 6), 1), (24,))

    assert axis_of(flat) == 0
    assert [size for _, _, size in copies(flat)] == [6, 6]


def test_reshapes_in_a_row_are_one() -> None:
    x = spread((4, 6), 1)

    assert copies(UOp(Op.RESHAPE, x.dtype, (reshape(x, (24,)),), (4, 2, 3))) == []


def test_small_box_is_gathered_from_the_parts_it_touches() -> None:
    x = spread((8, 4), 0, 4)
    box = UOp(Op.SHRINK, x.dtype, (x,), ((2, 4), (0, 3)))

    assert sorted(copies(box)) == [("PYTHON:1", name, 6) for name in (NAMES[0], *NAMES[2:])]


def test_flip_along_the_parts_exchanges_them() -> None:
    x = spread((8,), 0)

    assert copies(UOp(Op.FLIP, x.dtype, (x,), (True,))) == [
        ("PYTHON:1", "PYTHON", 4), ("PYTHON", "PYTHON:1", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 4])
def test_sum_over_parts_is_sent_by_each_to_each(count: int) -> None:
    found = copies(total(spread((12, 5), 0, count), 0))

    assert len(found) == count * (count - 1)
    assert {size for _, _, size in found} == {5}


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("size", [24, 23])
def test_large_sum_sends_an_nth_at_a_time(count: int, size: int) -> None:
    with Context(RING=2):
        found = copies(total(spread((12, size), 0, count), 0))

    assert len(found) == 2 * count * (count - 1)
    assert {size for _, _, size in found} == {-(-size // count)}


@pytest.mark.parametrize(
    ("count", "size", "ring", "expected"),
    [(4, 1 << 18, 1, 24), (4, 1 << 17, 1, 12), (2, 1 << 18, 1, 2), (4, 1 << 18, 0, 12)],
)
def test_shards_are_for_many_devices_and_large_tensors(
    count: int, size: int, ring: int, expected: int
) -> None:
    with Context(RING=ring):
        assert len(copies(total(spread((4, size), 0, count), 0))) == expected


SHARDED_USES = [
    ("as it is", lambda g: g),
    ("arithmetic", lambda g: g * g + g),
    ("permuted", lambda g: permute(permute(g, 1, 0) + permute(g, 1, 0), 1, 0)),
    ("reshaped", lambda g: reshape(reshape(g, (12, 3, 2)) + reshape(g, (12, 3, 2)), (12, 6))),
]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(("name", "use"), SHARDED_USES, ids=[case[0] for case in SHARDED_USES])
def test_sum_of_which_shards_are_used_is_sent_in_shards(
    name: str, use: Callable[[UOp], UOp], count: int
) -> None:
    state = spread((12, 6), 0, count)
    g = reshape(total(spread((count, 12, 6), 0, count), 0), (12, 6))

    found = copies(assign(state, state + use(g)))

    assert len(found) == count * (count - 1)
    assert {size for _, _, size in found} == {72 // count}


def test_sum_that_is_used_as_a_whole_too_is_sent_once_and_whole() -> None:
    state, whole = spread((12, 6), 0), spread((12, 6), None)
    g = reshape(total(spread((2, 12, 6), 0), 0), (12, 6))

    found = copies(assign(state, state + g), assign(whole, whole + g))

    assert [size for _, _, size in found] == [72, 72]


def test_norm_of_a_sum_is_that_of_its_shards() -> None:
    state = spread((12, 6), 0)
    g = reshape(total(spread((2, 12, 6), 0), 0), (12, 6))
    norm = expand(total(g * g, 0, 1), (12, 6))

    found = copies(assign(state, state + g * norm))

    assert sorted(size for _, _, size in found) == [1, 1, 36, 36]


def test_sum_that_is_cut_for_each_device_is_sent_in_shards() -> None:
    g = reshape(total(spread((2, 12, 6), 0), 0), (12, 6))
    parts = [UOp(Op.SHRINK, g.dtype, (g,), ((6 * k, 6 * k + 6), (0, 6))) for k in (0, 1)]
    moved = [UOp(Op.COPY, g.dtype, (p, device(d))) for p, d in zip(parts, NAMES[:2], strict=True)]

    found = copies(UOp(Op.MULTI, g.dtype, tuple(moved), 0))

    assert [size for _, _, size in found] == [36, 36]


def test_product_of_a_batch_and_replicated_weights_needs_no_copy() -> None:
    product = matmul(spread((8, 6), 0), spread((6, 4), None))

    assert axis_of(product) == 0
    assert copies(product) == []


def test_product_over_the_parts_adds_once() -> None:
    product = matmul(spread((8, 6), 1), spread((6, 4), 0))

    assert axis_of(product) is None
    assert [size for _, _, size in copies(product)] == [32, 32]


def test_rows_of_a_table_in_parts() -> None:
    index = spread((5,), None).cast(dtypes.int32)
    table = spread((100, 4), 0)
    rows = UOp(Op.GATHER, table.dtype, (table, index))
    beside = UOp(Op.GATHER, table.dtype, (spread((100, 4), 1), index))

    assert [size for _, _, size in copies(rows)] == [20, 20]
    assert axis_of(beside) == 1
    assert copies(beside) == []


def test_scatter_into_parts_of_a_table_needs_no_copy() -> None:
    table, rows = spread((100, 4), 0), spread((5, 4), None)
    index = rows.cast(dtypes.int32)
    changed = UOp(Op.SCATTER, table.dtype, (table, index, rows), Scatter(Op.ADD, 0))

    assert axis_of(changed) == 0
    assert copies(assign(table, changed)) == []


def test_insert_beside_the_parts_is_done_in_place() -> None:
    x, value = spread((8, 6), 0), spread((8, 2), 0)
    view = UOp(Op.SHRINK, x.dtype, (x,), ((0, 8), (1, 3)))
    parts = ShardedGraph([assign(x, UOp(Op.INSERT, x.dtype, (x, view, value)))]).parts

    assert [part.src[1].src[0] for part in parts] == list(x.src)
    assert len(kernels(*parts)) == 2


def test_insert_across_the_parts_writes_those_it_touches() -> None:
    x, value = spread((8, 6), 0, 4), spread((3, 6), None, 4)
    view = UOp(Op.SHRINK, x.dtype, (x,), ((3, 6), (0, 6)))
    changed = assign(x, UOp(Op.INSERT, x.dtype, (x, view, value)))
    parts = ShardedGraph([changed]).parts

    assert [part.op for part in parts] == [Op.RESHAPE, Op.ASSIGN, Op.ASSIGN, Op.RESHAPE]
    assert [part.src[1].op for part in parts[1:3]] == [Op.INSERT, Op.SHRINK]
    assert len(kernels(*parts)) == 2
    assert ShardedGraph([changed]).unshard(dict(zip(parts, x.src, strict=True)))[changed] is x


def test_copy_to_a_group_keeps_parts() -> None:
    to = device(("PYTHON:2", "PYTHON:3"))
    x = spread((8,), 0)
    moved = UOp(Op.COPY, x.dtype, (x, to))

    assert axis_of(moved) == 0
    assert copies(moved) == [("PYTHON", "PYTHON:2", 4), ("PYTHON:1", "PYTHON:3", 4)]


def test_copy_to_one_device_takes_the_replica_there() -> None:
    x = spread((8,), None)

    assert copies(UOp(Op.COPY, x.dtype, (x, device("PYTHON:1")))) == []
    assert copies(UOp(Op.COPY, x.dtype, (x, device("PYTHON:3")))) == [("PYTHON", "PYTHON:3", 8)]


def test_constant_is_made_where_it_is_wanted() -> None:
    one = UOp(Op.CONST, dtypes.float32, (device("PYTHON"),), 1.0)
    ones = expand(reshape(one, (1,)), (4,))

    assert copy_to(ones, "PYTHON:1").device == "PYTHON:1"
    assert not any(n.op is Op.COPY for n in copy_to(ones, "PYTHON:1").toposort())


def test_joined_parts_have_the_sizes_together() -> None:
    parts = [memory((2, 3), "PYTHON"), memory((5, 3), "PYTHON"), memory((1, 3), "PYTHON")]

    assert concatenate(parts, 0).shape == (8, 3)
    verify(concatenate(parts, 0), "tensor")


def test_what_rearranges_memory_goes_on_doing_so() -> None:
    x = spread((4, 6), 1)
    written = assign(x, x + x)
    view = permute(written, 1, 0)
    graph = ShardedGraph([view])

    found = graph.unshard(dict(zip(graph.parts, x.src, strict=True)))

    assert found[written] is x
    assert found[view] is permute(x, 1, 0)


def test_a_view_of_memory_written_twice_shows_that_memory() -> None:
    x, value = spread((8, 6), 0, 4), spread((2, 2, 3), None, 4)
    whole = reshape(assign(x, x + x), (8, 2, 3))
    rows = UOp(Op.SHRINK, x.dtype, (whole,), ((2, 4), (0, 2), (0, 3)))
    part = assign(whole, UOp(Op.INSERT, x.dtype, (whole, rows, value)))
    view = permute(part, 2, 1, 0)

    found = kernelize([view], lambda _, memory: Realized({view: memory[view]}, {}))[view]

    buffers = [n for n in found.toposort() if n.op is Op.BUFFER]
    assert {base_of(shard) for shard in x.src} <= set(buffers)
    assert found.shape == (3, 2, 8)


def test_gathered_shards_are_joined_once_for_all_that_read_them() -> None:
    x = spread((8, 6), 0)
    near = UOp(Op.COPY, x.dtype, (x, device("PYTHON")))
    roots = [UOp(Op.CONTIGUOUS, x.dtype, (r,)) for r in (total(near, 1), permute(near, 1, 0))]

    copy, joined, *readers = kernels(*ShardedGraph(roots).parts)

    assert copy.arg.name == "copy"
    assert joined.arg.slots == 3  # the result, and two shards
    assert [reader.arg.slots for reader in readers] == [2, 2]


def test_kernel_of_ones_own_is_refused() -> None:
    kernel = UOp(Op.CUSTOM, dtypes.void, (spread((4,), 0),), Kernel(UOp.sink()))
    out = assign(spread((4,), 0), kernel)

    with pytest.raises(UnsupportedError, match=r"on \('PYTHON', 'PYTHON:1'\): move them with .to"):
        ShardedGraph([out])
