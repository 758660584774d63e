"""Non-temporal stores: those that fill lines of large arrays nobody reads here."""

from __future__ import annotations

import pytest

from tiny_testing.kernels import element, elementwise, load, store
from tinycore.dtype import DType, dtypes
from tinycore.lower.hints import mark_nontemporal
from tinycore.render.base import STREAM, Limits, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

SINGLE = dtypes.float32
WIDE = SINGLE.vec(8)
LIMITS = Limits(vector_bytes=32, stream_bytes=256)


def streams(kernel: UOp, limits: Limits = LIMITS) -> set[int]:
    """The slots that are stored past the caches."""
    stores = [n for n in mark_nontemporal(kernel, limits).toposort() if n.op is Op.STORE]
    return {pointer_of(n.src[0]).arg for n in stores if n.arg == STREAM}


def rows(place: UOp, *loops: UOp, value: UOp | None = None, size: int = 4096) -> UOp:
    """A kernel that stores eight lanes at a place in each step of some loops."""
    lanes = UOp.const(WIDE, 1.0) if value is None else value
    change = store(element(0, SINGLE, size, place), lanes)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, *loops)))


@pytest.mark.parametrize("dtype", [SINGLE, dtypes.int8, dtypes.float64])
def test_a_large_result_goes_past_the_caches(dtype: DType) -> None:
    large, small = 256 // dtype.itemsize, 128 // dtype.itemsize

    assert streams(elementwise(lambda a: [a + a], [dtype], large, 16)) == {0}
    assert streams(elementwise(lambda a: [a + a], [dtype], small, 16)) == set()
    assert streams(elementwise(lambda a: [a + a], [dtype], large, 16), Limits()) == set()


def test_scalars_and_bools_do_not() -> None:
    assert streams(elementwise(lambda a: [a + a], [SINGLE], 512)) == set()
    assert streams(elementwise(lambda a: [a < a], [SINGLE], 512, 16)) == set()


def test_what_is_read_again_stays() -> None:
    i = UOp.range(64, 0)
    own = load(element(0, SINGLE, 4096, i * 8), WIDE)

    assert streams(rows(i * 8, i)) == {0}
    assert streams(rows(i * 8, i, value=own)) == set()


def test_one_result_may_be_stored_before_another() -> None:
    i, j = UOp.range(64, 0), UOp.range(64, 1)
    first = store(element(0, SINGLE, 4096, i * 8), UOp.const(WIDE, 1.0))
    done = UOp(Op.END, dtypes.void, (first, i))
    array = UOp(Op.DEFINE_GLOBAL, SINGLE.ptr(4096), (), 1)
    later = UOp(Op.AFTER, array.dtype, (array, done))
    second = store(UOp(Op.INDEX, array.dtype, (later, j * 8)), UOp.const(WIDE, 2.0))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (second, j)))

    assert streams(kernel) == {0, 1}
    assert sum(n.op is Op.STORE for n in mark_nontemporal(kernel, LIMITS).toposort()) == 2


def test_lines_are_filled_without_gaps() -> None:
    i, j = UOp.range(64, 0), UOp.range(8, 1)

    assert streams(rows(i * 64 + j * 8, i, j)) == {0}
    assert streams(rows(i * 8 + j * 512, i, j)) == set()
    assert streams(rows(i * 16, i)) == set()
    assert streams(rows(i // 2 * 8, i)) == set()


def test_the_last_vector_may_lie_back() -> None:
    i = UOp.range(64, 0)

    assert streams(rows((i * 8).minimum(UOp.index(503)), i)) == {0}


@pytest.mark.parametrize(("count", "found"), [(4, {0}), (8, set())])
def test_few_lines_are_filled_at_a_time(count: int, found: set[int]) -> None:
    i = UOp.range(64, 0)
    places = [element(0, SINGLE, 1 << 20, i * 8 + row * 4096) for row in range(count)]
    body = UOp(Op.GROUP, dtypes.void, tuple(store(p, UOp.const(WIDE, 1.0)) for p in places))

    assert streams(UOp.sink(UOp(Op.END, dtypes.void, (body, i)))) == found


def test_many_whole_lines_are_stored_at_a_time() -> None:
    i, wide = UOp.range(64, 0), SINGLE.vec(16)
    places = [element(0, SINGLE, 1 << 20, i * 16 + row * 4096) for row in range(16)]
    body = UOp(Op.GROUP, dtypes.void, tuple(store(p, UOp.const(wide, 1.0)) for p in places))

    assert streams(UOp.sink(UOp(Op.END, dtypes.void, (body, i)))) == {0}


def test_vectors_side_by_side_are_one_line() -> None:
    i = UOp.range(16, 0)
    places = [element(0, SINGLE, 1 << 20, i * 64 + part * 8) for part in range(8)]
    body = UOp(Op.GROUP, dtypes.void, tuple(store(p, UOp.const(WIDE, 1.0)) for p in places))

    assert streams(UOp.sink(UOp(Op.END, dtypes.void, (body, i)))) == {0}


def test_a_gate_keeps_a_store_in_the_caches() -> None:
    i = UOp.range(64, 0)
    place = element(0, SINGLE, 4096, i * 8, i < 3)
    change = store(place, UOp.const(WIDE, 1.0))

    assert streams(UOp.sink(UOp(Op.END, dtypes.void, (change, i)))) == set()
