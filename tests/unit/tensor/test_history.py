"""Gradients through writes in place are those of torch, whether a value was read or not."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy
import pytest
import torch

from tests.fuzz.programs.draw import Draw
from tinycore import Context, Tensor, TinyJit
from tinycore.errors import GradientError
from tinycore.nn.optim import SGD
from tinycore.tensor import graph
from tinycore.tensor.autograd import grad, history, versions
from tinycore.tensor.autograd.grad import ended_at, passes_gradient, sources_at
from tinycore.tensor.autograd.history import facts_of
from tinycore.tensor.autograd.versions import made_of
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

KINDS: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: Tensor.zeros(3),
    "memory": lambda: Tensor.zeros(3).contiguous().realize(),
    "empty": lambda: Tensor.empty(3),
    "list": lambda: Tensor([0.0, 0.0, 0.0]),
    "clone": lambda: Tensor.zeros(3).clone(),
    "lazy": lambda: Tensor([1.0, 1.0, 1.0]).realize() * 2,
}
READS: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda x: None,
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "another": lambda x: (x + 1).realize(),
}


def refused_after(read: str, match: str = "written to in place") -> AbstractContextManager[object]:
    """Expect a refusal, unless nothing was read: what a derivative needs is computed then before
    the write that waits.
    """
    return nullcontext() if read == "nothing" else pytest.raises(GradientError, match=match)


def walked(node: UOp) -> set[UOp]:
    """The BUFFERs of floats, and the identities of tensors, that a gradient of a node goes to, by a
    walk of its own."""
    below, stack = {node}, [node]
    while stack:
        above = stack.pop()
        sources = above.src[above.op is Op.ASSIGN :] if passes_gradient(above) else ()
        stack += {*sources} - below
        below.update(sources)
    owned = {graph.identity(n.arg) for n in below if n.op is Op.OWN}
    return {memory for n in below for memory in sources_at(n)} | owned


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", KINDS)
def test_reading_never_changes_a_gradient(kind: str, read: str) -> None:
    w, out = Tensor([2.0], requires_grad=True).realize(), KINDS[kind]()
    for i in range(3):
        out[i] = w.reshape(()) * (i + 1)
        READS[read](out)
    loss = out.sum() + w.sum()
    READS[read](loss)

    loss.backward()

    assert w.grad is not None
    assert w.grad.tolist() == [7.0]


@pytest.mark.parametrize("read", READS)
def test_what_was_assigned_passes_gradients_on(read: str) -> None:
    x, buffer = Tensor([2.0, 3.0], requires_grad=True), Tensor.zeros(2).contiguous().realize()

    buffer.assign(x * x)
    loss = (buffer * buffer).sum()
    READS[read](loss)
    READS[read](buffer)
    loss.backward()

    assert x.grad is not None
    assert x.grad.tolist() == [32.0, 108.0]
    assert loss.gradient(x)[0].tolist() == [32.0, 108.0]


@pytest.mark.parametrize("read", READS)
def test_a_derivative_of_what_was_overwritten_is_refused(read: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    y = x * x
    x.assign(Tensor([5.0, 6.0]))
    READS[read](x)

    with refused_after(read, r"before it was written to in place.*clone"):
        y.sum().backward()
        assert x.tolist() == [5.0, 6.0]
        assert numbers(x.grad) == [2.0, 4.0]
    assert y.tolist() == [1.0, 4.0]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_computed_before_a_write_and_lives_is_what_a_derivative_needs(
    kind: str, read: str
) -> None:
    w, memory = Tensor([3.0, 4.0, 5.0], requires_grad=True), KINDS[kind]()
    value = memory + 2
    memory *= 0.5
    READS[read](memory)

    (w * value.detach()).sum().backward()

    assert w.grad is not None
    assert w.grad.tolist() == value.tolist()


def test_what_was_computed_before_a_write_that_waits_needs_no_tensor() -> None:
    w, memory = Tensor([3.0, 4.0], requires_grad=True), Tensor([1.0, 2.0]).realize()
    loss = (w * (memory * 2).exp().detach()).sum() + (w * (memory + 1)).sum()
    memory *= 0.5

    loss.backward()

    assert w.grad is not None
    assert memory.tolist() == [0.5, 1.0]
    assert w.grad.tolist() == pytest.approx([2 + 7.389056, 3 + 54.59815])


@pytest.mark.parametrize("read", READS)
def test_memory_that_is_overwritten_soon_is_such_a_value(read: str) -> None:
    w, memory = Tensor([3.0, 4.0], requires_grad=True), Tensor([1.0, 2.0]).realize()
    loss = (w * memory.flip(0)).sum()
    memory *= 0.5
    READS[read](memory)

    with refused_after(read, "keep what was computed from them in a tensor"):
        loss.backward()
        assert memory.tolist() == [0.5, 1.0]
        assert numbers(w.grad) == [2.0, 1.0]


@pytest.mark.parametrize("read", READS)
def test_a_derivative_that_needs_no_former_content_is_right(read: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    y = x * 3
    x.assign(Tensor([5.0, 6.0]))
    READS[read](x)

    (y.sum() + (x * x).sum()).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [13.0, 15.0]


@pytest.mark.parametrize("read", READS)
def test_content_that_was_overwritten_between_is_refused(read: str) -> None:
    w, out = Tensor([2.0, 3.0], requires_grad=True), Tensor.zeros(2).contiguous().realize()
    out.assign(w * 2)
    READS[read](out)
    squares = (out * out).sum()
    out.assign(w)
    READS[read](out)

    with refused_after(read):
        squares.backward()
        assert out.tolist() == [2.0, 3.0]
        assert numbers(w.grad) == [16.0, 24.0]


def test_what_is_written_to_a_parameter_is_data() -> None:
    w, x = Tensor([2.0], requires_grad=True), Tensor([3.0], requires_grad=True)
    for _ in range(2):
        w.assign(w * x)
        (w * w).sum().backward()

    assert w.tolist() == [18.0]
    assert w.grad is not None
    assert w.grad.tolist() == [2 * 6.0 + 2 * 18.0]
    assert x.grad is None


def test_realize_that_ends_a_gradient_is_told() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    y = (w * 2).realize()
    z = (y + w).realize()

    for loss in (y.sum(), (y * w).sum(), z.sum()):
        with pytest.raises(GradientError, match=r"realize\(\) ended the gradient .*detach"):
            loss.backward()
    with pytest.raises(GradientError, match=r"realize\(\) ended"):
        y.sum().gradient(w)
    detached = (w * 2).detach().realize()
    (detached * w).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 4.0]


def test_a_write_that_another_thread_did_meanwhile_is_not_done_again() -> None:
    memory = Tensor([1.0]).realize()
    memory.assign(memory * 2)
    found = memory.uop  # by a thread in the midst of `memory + 1`
    memory.realize()
    later = Tensor.from_uop(found) + 1

    assert later.tolist() == [3.0]
    assert memory.tolist() == [2.0]


def test_equal_writes_are_done_each_time() -> None:
    memory, nodes = Tensor([5.0]).realize(), []
    for number in range(3):
        memory.zero_()
        nodes.append(memory.uop)
        assert memory.tolist() == [0.0]
        memory += number
        memory.realize()

    assert memory.tolist() == [2.0]
    assert len({*nodes}) == 3  # a write is told from an equal one


@pytest.mark.parametrize("of", [lambda y: y * 3, Tensor.clone, lambda y: y[0:1] + 1])
def test_realize_that_ended_a_gradient_is_told_below_what_asks(
    of: Callable[[Tensor], Tensor],
) -> None:
    x = Tensor([2.0, 3.0], requires_grad=True).realize()
    realized = (x * 2).realize()
    value = of(realized).requires_grad_()

    with pytest.raises(GradientError, match="ended the gradient"):
        value.sum().backward()

    detached = of(realized.detach()).requires_grad_()
    detached.sum().backward()
    assert detached.grad is not None
    assert x.grad is None


@pytest.mark.parametrize("on_several", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_a_write_to_a_leaf_is_data_whatever_its_memory_came_from(
    on_several: bool, computed: bool
) -> None:
    device = Tensor([0.0]).device
    group = (f"{device}:0", f"{device}:1") if on_several else device
    x = Tensor([3.0, -2.0]).shard(group, None)
    x = (x * 1 if computed else x).realize()
    value, leaf = x.clone().requires_grad_(), x.clone().requires_grad_()
    leaf[0:1] = value[0:1] * 2

    (value * value + leaf * 2).sum().backward()

    assert value.grad is not None
    assert value.grad.tolist() == [6.0, -4.0]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 2.0]
    realized = (x * 2).realize()
    with pytest.raises(GradientError, match=r"ended the gradient|asked for a gradient when"):
        realized.clone().requires_grad_().sum().gradient(x)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_copy_that_asks_passes_on_to_what_a_leaf_was_between_two_writes(writes: int) -> None:
    x, w = Tensor([-1.0, 2.0]).realize(), Tensor([2.0, -2.0], requires_grad=True)
    w.assign(x * 2)
    product = x * w
    for _ in range(writes):
        w.assign(w.detach() * 3)
    w.realize()

    (w + product.clone().requires_grad_()).sum().backward()

    assert w.grad is not None
    assert w.grad.tolist() == [0.0, 3.0]


def test_kernelize_that_ends_a_gradient_is_told() -> None:
    w, memory = Tensor([1.0, 2.0], requires_grad=True).realize(), Tensor([0.0, 0.0]).realize()
    y = (w * 2).kernelize()
    memory.assign(w * 3)
    memory.kernelize()

    for loss in (y.sum(), (memory * w).sum(), y.reshape(2, 1).sum()):
        with pytest.raises(GradientError, match=r"realize\(\) ended the gradient .*kernelize"):
            loss.backward()
    with pytest.raises(GradientError, match=r"realize\(\) ended"):
        y.sum().gradient(w)
    with pytest.raises(GradientError, match=r"realize\(\) ended"):
        (y.realize() * 2).sum().backward()


def test_a_parameter_that_is_kernelized_keeps_its_gradient() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    w.assign(w * 2).kernelize()

    (w * 3).sum().backward()

    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 3.0]
    assert w.tolist() == [2.0, 4.0]


def test_realize_that_ended_a_gradient_is_told_after_a_write_that_reads_what_was_realized() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    y = (w * 2).realize()
    w.assign(y.detach() * 0.5)

    with pytest.raises(GradientError, match=r"realize\(\) ended the gradient"):
        (w * w + y).sum().backward()


@pytest.mark.parametrize("reads", [True, False])
def test_a_leaf_that_is_written_twice_around_a_write_that_reads_it_is_told(reads: bool) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    x = Tensor([3.0, 4.0]).realize()
    w.assign(w.detach() * 0.5)
    x.mul_(w)
    if not reads:
        x.realize()
    w.assign(x.detach() * 0.5)
    loss = (w * w + x).sum()
    if reads:
        loss.tolist()

    with pytest.raises(GradientError):
        loss.backward()


def test_realize_of_what_is_said_to_want_no_gradient_ends_it() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    y = w * 2
    y.requires_grad = False
    y.realize()

    (y * w).sum().backward()

    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 4.0]


def test_no_gradient_flows_to_what_is_written_through_a_detached_view() -> None:
    w = Tensor([3.0, 5.0], requires_grad=True).realize()
    for x in (Tensor([1.0, 2.0]).realize(), Tensor([1.0, 2.0]).realize() * 1):
        x.detach().assign(w * 2)
        x.detach()[1:].assign(w[1:] * 4)

        (x * w).sum().backward()

        assert x.tolist() == [6.0, 20.0]
        assert w.grad is not None
        assert w.grad.tolist() == [6.0, 20.0]
        w.grad = None


def test_none_flows_there_when_nothing_else_shows_the_detached_memory_as_after_a_replay() -> None:
    w = Tensor([3.0, 5.0], requires_grad=True).realize()

    def doubled(x: Tensor) -> Tensor:
        return (x * 2).detach().realize()

    captured = TinyJit(doubled)
    for function in (doubled, captured, captured, captured, captured):
        x = function(Tensor([1.0, 2.0]).realize()).assign(w * 2)

        (x * w).sum().backward()

        assert x.tolist() == [6.0, 10.0]
        assert w.grad is not None
        assert w.grad.tolist() == [6.0, 10.0]
        w.grad = None


def test_a_counter_that_is_read_keeps_nothing() -> None:
    count = Tensor([0.0]).realize()
    gc.collect()
    before = len(history.kept)
    for number in range(3):
        count += 1
        assert count.item() == number + 1
    assert len(history.kept) == before


@pytest.mark.slow
def test_what_is_kept_goes_with_its_memory() -> None:
    gc.collect()
    before = len(history.kept)
    x, out = Tensor([1.0, 2.0]).realize(), Tensor.zeros(2).contiguous().realize()
    for number in range(4):
        out.assign(out * 2 + x * number)
        out.tolist()
    assert len(history.kept) > before

    del x, out
    gc.collect()
    assert len(history.kept) == before


def test_what_is_kept_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinycore.tensor.autograd.history.MOST_HISTORY_NODES", 60)
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    out = Tensor.zeros(2).contiguous().realize()
    for number in range(20):
        out.assign(out + x * number)
        out.tolist()

    with pytest.raises(GradientError, match="realize"):
        out.sum().backward()


# --- what it costs


def test_writes_leave_no_reshapes_behind() -> None:
    x = Tensor.ones(4, 6).contiguous().realize()
    views = [x.reshape(8, 3), x.permute(1, 0), x[1:, 2:], x.flatten()[::2]]

    sizes = []
    for _ in range(4):
        x.assign(x + 1).realize()
        views[0][1:3] += 1
        Tensor.realize(x, *views)
        sizes.append([len(t.uop.toposort()) for t in (x, *views)])

    assert sizes[1] == sizes[2] == sizes[3]
    assert views[1].tolist() == [list(row) for row in zip(*x.tolist(), strict=True)]


def test_a_write_that_is_done_is_not_waited_for_by_who_refers_to_its_node() -> None:
    w = Tensor.ones(2, 2)
    nodes = []
    for _ in range(3):
        w.assign(w.detach() * 2)
        nodes += w.uop.toposort()
        w.realize()

    assert history.done(nodes).keys() == {n for n in nodes if n.op is Op.ASSIGN}
    assert w.tolist() == [[8.0, 8.0], [8.0, 8.0]]


@pytest.mark.slow
def test_graphs_that_one_run_leaves_share_their_nodes() -> None:
    gc.collect()
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
    hidden = x
    for _ in range(30):
        hidden = (hidden * x).exp()
    others = [(hidden * n).sum() for n in range(20)]
    before = set(history.kept)

    x.assign(x.detach() + 1).realize()

    found = {m: made for m in history.kept if m not in before and (made := made_of(m)) is not None}
    assert len(found) == 21
    assert {made.size for made in found.values()} < set(range(20, 300))
    memory = weakref.WeakSet(found)
    del others, hidden, found, made
    gc.collect()
    assert not memory


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", ["a copy", "a tensor that lives"])
def test_what_was_computed_before_a_write_serves_derivatives(way: str, read: str) -> None:
    w, x = Tensor([2.0, 3.0], requires_grad=True), Tensor([1.0, 4.0]).realize()
    y = x * 2 if way == "a tensor that lives" else None
    loss = ((x.clone() * 2 if y is None else y) * w).sum()
    x += 100
    READS[read](x)

    loss.backward()

    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 8.0]
    assert loss.item() == 28.0


@pytest.mark.parametrize("read", READS)
def test_what_was_written_and_overwritten_again_is_refused(read: str) -> None:
    w, x = Tensor([2.0, 3.0], requires_grad=True), Tensor([1.0, 4.0]).realize()
    x[0:1] += w[0:1]
    x.assign(x * x)
    READS[read](x)

    with refused_after(read):
        x.sum().backward()
        assert x.tolist() == [9.0, 16.0]
        assert numbers(w.grad) == [6.0, 0.0]


def test_what_was_written_and_overwritten_in_another_shape_is_refused() -> None:
    w, x = Tensor([2.0, 3.0], requires_grad=True), Tensor([1.0, 4.0]).realize()
    column = x.reshape(2, 1)
    x.assign(x * 2)
    product = w * x
    column.assign(column * 3)
    x.realize()

    with pytest.raises(GradientError, match="written to in place"):
        product.sum().backward()


@pytest.mark.parametrize("read", READS)
def test_squares_of_what_was_written_and_is_zero_now_are_refused(read: str) -> None:
    w, x = Tensor([2.0, 3.0], requires_grad=True), Tensor([1.0, 4.0]).realize()
    x.add_(w)
    squares = (x * x).sum()
    x.zero_()
    READS[read](squares)
    READS[read](x)

    with refused_after(read):
        squares.backward()
        assert x.tolist() == [0.0, 0.0]
        assert numbers(w.grad) == [6.0, 14.0]
    assert squares.item() == 58.0


def test_runs_that_leave_no_graph_leave_no_group() -> None:
    x = Tensor([1, 2, 3]).realize()
    gc.collect()
    before = len(history.kept)

    for _ in range(4):
        y = x * 2  # waits for the content that the write overwrites
        x.assign(x + 1).realize()

    assert y.tolist() == [8, 10, 12]
    assert len(history.kept) == before


def numbers(gradient: Tensor | None) -> Any:
    """A gradient that there is, as numbers."""
    assert gradient is not None
    return gradient.tolist()


@pytest.mark.parametrize("read", READS)
def test_what_was_computed_between_two_writes_to_a_leaf_has_its_gradient_or_is_refused(
    read: str,
) -> None:
    w = Tensor([0.5, -1.0, 2.0], requires_grad=True).realize()
    x = Tensor([1.5, 1.0, -0.5]).realize()
    w.assign(x * 0.5)
    sums, squares = w + 1, (w + 1) * (w + 1)
    w.assign(x * 0.25)
    READS[read](w)

    sums.sum().backward()
    assert numbers(w.grad) == [1.0, 1.0, 1.0]
    w.grad = None
    with suppress(GradientError):
        squares.sum().backward()
        assert numbers(w.grad) == [3.5, 3.0, 1.5]


def test_a_value_that_no_tensor_holds_is_not_kept_across_a_computed_write() -> None:
    w, m = Tensor([2.0], requires_grad=True), Tensor([1.0]).realize()
    kept = Tensor([1.0]).realize()
    value = kept.exp()
    loss, sound = (w * m.exp()).sum(), (w * value).sum()
    m *= 0.5
    kept *= 0.5
    assert (m.tolist(), kept.tolist()) == ([0.5], [0.5])

    with pytest.raises(GradientError, match="clone"):
        loss.backward()
    numpy.testing.assert_allclose(loss.item(), 2 * math.e, rtol=1e-6)
    numpy.testing.assert_allclose(sound.gradient(w)[0].tolist(), [math.e], rtol=1e-6)


def test_the_last_gradients_of_training_steps_are_kept_and_no_others() -> None:
    gc.collect()
    before = len(history.kept)
    w, x = Tensor([0.5, -1.0], requires_grad=True).realize(), Tensor([2.0, 3.0]).realize()
    optimizer = SGD([w], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (w * w * x).sum().backward()
        with Context(TRAINING=1):
            loss.realize(*optimizer.schedule_step())

    assert w.grad is not None
    assert base_of(w.grad.uop) in history.kept
    gc.collect()
    assert len(history.kept) == before + 1
    assert w.tolist() == [-0.5, 8.0]


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_graph_that_is_made_late_reads_what_its_run_computed(is_dropped: bool) -> None:
    w, x = Tensor([2.0, 3.0], requires_grad=True).realize(), Tensor([1.0, 2.0]).realize()
    inner = x + w
    outer = inner * inner
    x.assign(x + 4).realize()  # both are computed from the content that this overwrites
    if is_dropped:
        del inner
    x.assign(x + 1).realize()

    outer.sum().backward()

    assert numbers(w.grad) == [6.0, 10.0]


def test_values_that_live_keep_their_gradients_over_many_writes() -> None:
    w, x = Tensor([1.0, 2.0], requires_grad=True).realize(), Tensor([1.0, 1.0]).realize()
    squares = []
    for _ in range(20):
        sums = x + w
        squares.append(sums * sums)
        x.assign(x + 1).realize()

    for count in (0, 19):
        w.grad = None
        squares[count].sum().backward()
        assert numbers(w.grad) == [4.0 + 2 * count, 6.0 + 2 * count]
    assert squares[0].tolist() == [4.0, 9.0]


def test_memory_whose_graph_was_not_made_is_given_back() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    gc.collect()
    before = len(history.kept)
    inner = x + 1
    outer = inner * inner
    x.assign(x * 3).realize()
    assert len(history.kept) == before + 2
    memory = weakref.ref(base_of(inner.uop))

    del outer, inner
    gc.collect()

    assert memory() is None
    assert len(history.kept) == before


def test_sources_that_graphs_carry_are_those_below_them() -> None:
    cache = Tensor.zeros(4, 3).contiguous().realize()
    x, w = Tensor.ones(1, 2).contiguous().realize(), Tensor.ones(2, 3).contiguous().realize()

    for row in range(3):
        cache[row : row + 1].assign(x @ w * (row + 1))
        (cache * 2).sum().realize()

    kept = [made for memory in list(history.kept) if (made := made_of(memory)) is not None]
    assert len(kept) >= 3
    for made in kept:
        assert set(made.sources) == walked(made.node)


def test_sources_known_from_a_run_of_the_same_form_are_those_of_a_walk() -> None:
    first, second = (Tensor.zeros(4).contiguous().realize() for _ in range(2))
    weight = Tensor([2.0], requires_grad=True)
    asking = (weight * 3).requires_grad_()

    for _ in range(4):
        first.assign(first * 0.5 + asking)
        second.assign(second * 0.25 + first.detach() * weight)
        (second + first).sum().item()

    kept = [made for memory in list(history.kept) if (made := made_of(memory)) is not None]
    assert len(kept) >= 6
    for made in kept:
        assert set(made.sources) == walked(made.node)


@pytest.mark.parametrize("copied", [copy.deepcopy, Tensor.clone])
@pytest.mark.parametrize("read", READS)
def test_a_leaf_over_what_a_run_computed_has_the_gradient_of_all_its_uses(
    read: str, copied: Callable[[Tensor], Tensor]
) -> None:
    source = copied(Tensor([2.0, -3.0], requires_grad=True))
    leaf = (source * source).requires_grad_()
    written = Tensor([1.0, 1.0, 1.0]).realize() * 2
    written[0:1] = leaf.sum()
    part = Tensor(written[1:], requires_grad=True)
    READS[read](part)  # which computes the copy, and leaves the graph of a write

    (written.sum() + (leaf * leaf).sum()).backward()

    assert numbers(leaf.grad) == [9.0, 19.0]


def test_gradients_flow_through_writes_of_several_runs() -> None:
    first, second = (Tensor.zeros(4).contiguous().realize() for _ in range(2))
    weight = Tensor([2.0], requires_grad=True)
    for _ in range(3):
        first.assign(first * 0.5 + weight)
        second.assign(second * 0.5 + first * 3)
        (second + first).sum().item()

    second.sum().backward()

    assert weight.grad is not None
    assert weight.grad.item() == 4 * 3 * (0.25 * 1 + 0.5 * 1.5 + 1.75)


@pytest.mark.parametrize("of", [Tensor.clone, lambda x: x.shard(("PYTHON:1", "PYTHON:2"), 0)])
@pytest.mark.parametrize("change", [lambda x: x * 0.5, lambda x: (x * 0.5).detach()])
@pytest.mark.parametrize("when", ["waits", "done"])
def test_gradients_go_to_earlier_uses_of_what_a_write_changed(
    of: Callable[[Tensor], Tensor], change: Callable[[Tensor], Tensor], when: str
) -> None:
    x = of(Tensor([1.0, 2.0], requires_grad=True).realize()).realize()
    product = x * of(Tensor([4.0, 5.0]))
    x.assign(change(x))
    if when == "done":
        x.realize()

    assert product.sum().gradient(x)[0].tolist() == [4.0, 5.0]


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "copy": Tensor.clone,
    "copy of a copy": lambda x: x.clone().clone(),
    "parts": lambda x: x.shard(("PYTHON:1", "PYTHON:2"), 0),
    "copies on devices": lambda x: x.shard(("PYTHON:1", "PYTHON:2")),
}


@pytest.mark.parametrize("of", PLACES)
@pytest.mark.parametrize("change", [lambda x: x * 0.5, lambda x: (x * 0.5).detach()])
@pytest.mark.parametrize("when", ["wait", "done"])
def test_gradients_go_to_uses_between_two_writes(
    of: str, change: Callable[[Tensor], Tensor], when: str
) -> None:
    x = PLACES[of](Tensor([1.0, 2.0], requires_grad=True)).realize()
    products = []
    for _ in range(2):
        x.assign(change(x))
        if when == "done":
            x.realize()
        products.append(x * 3)

    for product in products:
        assert product.sum().gradient(x)[0].tolist() == [3.0, 3.0]


USES: list[Callable[[Any], Any]] = [
    lambda x: x.sum() * 3,
    lambda x: (x * 5).sum(),
    lambda x: x[0:2].sum() * 7,
    lambda x: x.reshape(2, 2)[1].sum() + x.sum(),
]
CHANGES: list[Callable[[Any, Any], Any]] = [
    lambda x, other: x * 0.5,
    lambda x, other: x + other,
    lambda x, other: (x * 0.5).detach(),
    lambda x, other: other * 2,
]


QUIET: list[Callable[[Any], Any]] = [lambda x: x * 2, lambda x: x + 1, lambda x: x.detach() * 0.5]


@pytest.mark.parametrize("of", PLACES)
@pytest.mark.parametrize("seed", range(12))
def test_random_uses_between_writes_have_the_gradients_of_torch(of: str, seed: int) -> None:
    """Uses of one tensor on any devices; writes wait, or are done when it is read or realized."""
    draw = Draw(seed)
    start = [1.0, 2.0, -3.0, 4.0]
    x, other = (PLACES[of](Tensor(start, requires_grad=True)).realize() for _ in range(2))
    peer, peer_other = (torch.tensor(start, requires_grad=True) for _ in range(2))
    total, peer_total = (other * 2).sum(), (peer_other * 2).sum()
    for _ in range(draw.between(4, 9)):
        use, change = draw.pick(USES), draw.pick(CHANGES)
        if draw.chance(0.5):
            total, peer_total = total + use(x), peer_total + use(peer)
        elif of == "plain" and draw.chance(0.5):  # elsewhere, that is a computed value
            quiet = draw.pick(QUIET)
            x.requires_grad = False
            x.assign(quiet(x))
            x.requires_grad = True
            with torch.no_grad():
                peer.copy_(quiet(peer))
        else:
            x.assign(change(x, other))
            with torch.no_grad():
                peer.copy_(change(peer, peer_other))
        reads: list[Callable[[], object]] = [x.realize, x.tolist, total.item]
        if draw.chance(0.5):
            draw.pick(reads)()

    assert total.item() == pytest.approx(peer_total.item())
    found = total.gradient(x, other)
    expected = torch.autograd.grad(
        peer_total, (peer, peer_other), allow_unused=True, materialize_grads=True
    )
    assert [g.tolist() for g in found] == [g.tolist() for g in expected]


def test_a_write_on_several_devices_is_done_as_a_whole() -> None:
    x = PLACES["parts"](Tensor([1.0, 2.0, -3.0, 4.0], requires_grad=True)).realize()
    x.assign(x.detach() * 2)
    total = x[0:2].sum() * 7
    total.item()  # which needs one part of the write alone
    x.assign(x.detach() * 2)

    assert total.gradient(x)[0].tolist() == [7.0, 7.0, 0.0, 0.0]


@pytest.mark.parametrize("of", [name for name in PLACES if name != "plain"])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
@pytest.mark.parametrize("when", ["waits", "done"])
def test_realize_that_ended_a_gradient_is_told_after_a_write(
    of: str, shape: tuple[int, ...], when: str
) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = PLACES[of](x).reshape(shape).realize()
    y.assign(y * 0.5)
    if when == "done":
        y.realize()

    with pytest.raises(GradientError, match="ended the gradient"):
        y.sum().gradient(x)


@pytest.mark.parametrize("place", [lambda x: x, lambda x: x[0:2], Tensor.detach])
@pytest.mark.parametrize("form", ["itself", "an equal value"])
def test_a_computed_value_that_is_overwritten_by_itself_has_no_earlier_uses(
    place: Callable[[Tensor], Tensor], form: str
) -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = (x * 2).requires_grad_()
    total = (y * 5).sum()

    value = place(y)
    value.assign(value if form == "itself" else value * 1)
    (total + (y * 3).sum()).backward()

    assert y.grad is not None
    assert y.grad.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("when", ["waits", "done"])
def test_earlier_uses_of_a_computed_value_are_those_of_no_later_one(when: str) -> None:
    x = Tensor([3.0], requires_grad=True)
    y = (x * 2).requires_grad_()
    part = y[0:1]
    before = y * 5
    y.assign(y * 0.5)
    if when == "done":
        y.realize()

    before.sum().backward()
    assert y.grad is None
    assert x.grad is not None
    assert x.grad.tolist() == [10.0]

    assert part.sum().gradient(y)[0].tolist() == [1.0]  # which shows the later one


@pytest.mark.parametrize("read", READS)
def test_a_write_to_a_tensor_in_a_shape_counts_once(read: str) -> None:
    x = Tensor([2.0, 0.0, 1.0, -2.0], requires_grad=True).realize()
    x *= 0.5
    rows = x.reshape(2, 2)
    READS[read](rows)

    ((x * x).sum() + rows[1:].sum() * 3).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 4.0, 1.0]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("amount", [None, 3.0])
def test_what_was_written_while_nobody_asked_is_data_to_who_asks_again(
    read: str, amount: float | None
) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    before = x * 5
    x.requires_grad = False
    x.assign(x * 2 + (0 if amount is None else Tensor([amount, amount]).realize()))
    READS[read](x)
    x.requires_grad = True

    (x * 3 + before).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("axis", [None, 0])
def test_realize_that_ended_a_gradient_below_memory_on_several_devices_is_told(
    axis: int | None,
) -> None:
    devices = "PYTHON:1", "PYTHON:2"
    x, y = (Tensor([v, 2.0]).shard(devices, axis=axis).realize() for v in (1.0, 3.0))
    product = x * y
    y.assign(y * 3).realize()  # the product is computed before, and knows by what
    doubled = (product * 2).realize()

    for value in (doubled, (product * 2).realize() + doubled):
        with pytest.raises(GradientError, match="ended the gradient"):
            value.sum().gradient(x)


def test_a_loop_of_realized_steps_notes_living_memory_only() -> None:
    x = first = Tensor([1.0, 2.0], requires_grad=True).realize()
    for _ in range(300):
        x = (x + 1).realize()

    assert len(ended_at(base_of(x.uop))) < 100  # not one more for each step
    with pytest.raises(GradientError, match="ended the gradient"):
        (x.sum() + first.sum()).backward()


def test_equal_tensors_with_gradients_of_their_own_are_told_apart_after_a_write() -> None:
    x, out = (
        Tensor([1.0, 2.0], requires_grad=True).realize(),
        Tensor.zeros(2).contiguous().realize(),
    )
    first, second = x * 2, x * 2
    first.requires_grad_()
    second.requires_grad_()
    out.assign(out + first * 3 + second * 5)
    assert out.tolist() == [16.0, 32.0]

    out.sum().backward()

    assert (numbers(first.grad), numbers(second.grad)) == ([3.0, 3.0], [5.0, 5.0])


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_what_a_captured_function_overwrites_is_no_content_of_kept_graphs(calls: int) -> None:
    w, m = Tensor([3.0, 4.0]).realize(), Tensor([1.0, 2.0]).realize().requires_grad_()
    product = w * m
    m.assign(m.detach() * 2).realize()
    step = TinyJit(lambda x: w.assign(w + x).realize())

    for _ in range(calls):
        step(Tensor([1.0, 2.0]).realize())

    with pytest.raises(GradientError, match="written to in place"):
        product.sum().backward()


def test_a_captured_function_that_ends_a_gradient_is_told() -> None:
    w = Tensor([3.0, 4.0]).realize().requires_grad_()
    before = w * 5
    step = TinyJit(lambda x: w.assign(w.detach() * x).realize())
    apply = TinyJit(lambda x: (w * x).realize())

    result = apply(Tensor([1.0, 2.0]).realize())
    with pytest.raises(GradientError, match="ended the gradient"):
        (result + w).sum().backward()
    step(Tensor([1.0, 2.0]).realize())
    (before + w).sum().backward()  # which is computed before the function runs
    assert numbers(w.grad) == [6.0, 6.0]


def test_a_detached_tensor_that_is_realized_does_not_end_what_it_shows() -> None:
    x = Tensor([3.0, -1.0]).realize()
    leaf = (x * 2).requires_grad_()
    first, second = (x * leaf.sum()).requires_grad_(), (x * leaf.sum()).requires_grad_()
    second[0:1] = first[0:1]

    second.detach().requires_grad_().realize()
    (second * 3).sum().backward()

    gradients = [t.grad.tolist() for t in (leaf, first, second) if t.grad is not None]
    assert gradients == [[6.0, 6.0], [3.0, 0.0], [3.0, 3.0]]


def test_reading_does_not_end_the_gradient_of_a_value_of_a_leaf_made_of_numbers() -> None:
    x = Tensor([-2.0, 2.5])
    leaf = (x.detach() * x).requires_grad_()
    x.assign(leaf * 2)
    other = (x + 1).requires_grad_()

    slopes = (other * other).sum().gradient(other, leaf)
    assert [slope.tolist() for slope in slopes] == [[18.0, 27.0], [36.0, 54.0]]
    (x * 5 + other).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [12.0, 12.0]


def test_a_value_that_asks_and_is_computed_beside_a_write_has_a_gradient() -> None:
    x = Tensor([2.5, -2.0]).realize().requires_grad_()
    inner = (x * 3).requires_grad_()
    outer = (inner + x).requires_grad_()

    x.assign(Tensor([1.0, 1.0])).realize()
    (outer * 4).sum().backward()

    gradients = [t.grad.tolist() for t in (x, inner, outer) if t.grad is not None]
    assert gradients == [[16.0, 16.0], [4.0, 4.0], [4.0, 4.0]]


def test_a_copy_of_an_equal_value_keeps_it_after_the_other_was_written_to() -> None:
    x = Tensor([3.0]).realize()
    source = Tensor([2.0]).realize()
    x.assign(source + 0)
    source *= 0.5
    first = x * x
    (source * source).numpy()  # computes the write to x, and `first`
    second = x * x
    copy = second.clone()
    first.assign(first * 2)
    y = (copy + 1).requires_grad_()
    first.sum().item()

    ((y * y).sum() + second.sum() + first.sum()).backward()

    assert y.grad is not None
    assert y.grad.tolist() == [10.0]


def test_a_capture_ends_no_gradient_through_writes_that_waited() -> None:
    x = Tensor([2.0]).realize()
    scaled, y = (x * 3).requires_grad_(), Tensor([5.0]).realize()
    y.assign(scaled)
    TinyJit(lambda a: (a * 2).realize())(Tensor([1.0]).realize())

    (y * 3).sum().backward()

    assert scaled.grad is not None
    assert scaled.grad.tolist() == [3.0]


@pytest.mark.parametrize("realize", [False, True])
def test_what_was_overwritten_ends_no_gradient(realize: bool) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    q = (w * 3).realize()
    q.assign(Tensor.ones(2))
    if realize:
        q.realize()

    (q * w).sum().backward()

    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("realize", [False, True])
def test_what_was_overwritten_in_part_ends_a_gradient(realize: bool) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    q = (w * 3).realize()
    q[0] = 1.0
    if realize:
        q.realize()

    with pytest.raises(GradientError, match=r"realize\(\) ended"):
        (q * w).sum().backward()


def squares() -> Tensor:
    return Tensor([1.0, 2.0]).realize() ** 2


LATE: dict[str, Callable[[], Tensor]] = {
    "computed": squares,
    "of no floats": lambda: Tensor([1, 2]).realize().float() * 2,
    "of nothing": lambda: Tensor.rand(2),
    "a copy": lambda: Tensor([1.0, 2.0]).realize().clone(),
    "a part": lambda: squares()[:1],
    "on devices": lambda: squares().shard(("PYTHON:1", "PYTHON:2"), 0),
    "of what asks": lambda: Tensor([1.0, 2.0], requires_grad=True) * 3,
}


@pytest.mark.parametrize("made", LATE.values(), ids=LATE)
@pytest.mark.parametrize("way", ["later", "in one run", "first", "by a write", "through a value"])
def test_realize_that_ended_a_gradient_is_told_when_what_asks_has_memory_of_its_own(
    made: Callable[[], Tensor], way: str
) -> None:
    a = made().requires_grad_()
    b = (a * 2).requires_grad_()
    if way == "in one run":
        Tensor.realize(b, a)
    elif way == "by a write":
        b.realize()
        a[0] = 5
        a.realize()
    elif way == "through a value":
        value = a * 3
        value.tolist()  # whose memory knows its graph
        b = (value * 2).requires_grad_().realize()
        a.realize()
    else:
        Tensor.realize(*[a, b][:: 1 if way == "first" else -1][:1])
        Tensor.realize(a, b)

    with pytest.raises(GradientError, match=r"realize\(\) ended"):
        b.sum().backward()
    with pytest.raises(GradientError, match=r"realize\(\) ended"):
        b.sum().gradient(a)
    assert a.grad is None


def test_realize_that_ended_a_gradient_in_a_capture_is_told_whoever_got_memory_first() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        a = (x * x).requires_grad_()
        b = (a * 2).requires_grad_().realize()
        a.realize()
        with pytest.raises(GradientError, match=r"realize\(\) ended"):
            b.sum().backward()
        return b

    for number in range(3):
        assert step(Tensor([1.0, number]).realize()).tolist() == [2.0, 2.0 * number**2]


def test_realize_that_ended_a_gradient_of_other_tensors_is_told_to_none_beside() -> None:
    a = squares().requires_grad_()
    part = a[:1].requires_grad_()
    b = (a * 2).requires_grad_().realize()
    c = a.detach() * part
    Tensor.realize(a, part)
    a.requires_grad_(False)
    (b.sum() + c.sum()).backward()

    assert part.grad is not None
    assert part.grad.tolist() == [5.0]


def was_read(x: Tensor) -> Tensor:
    """A tensor whose value was read, and is held by its node."""
    x.tolist()
    return x


PLAIN: dict[str, Callable[[], Tensor]] = {
    "of memory": lambda: Tensor([1.0, 2.0]).realize() * 3,
    "of random numbers": lambda: Tensor.rand(2),
    "of what waits": lambda: Tensor([1.0, 2.0]) * 3,
    "a shape": lambda: (Tensor([1.0, 2.0]).realize() * 3).reshape(2, 1),
    "a part": lambda: (Tensor([1.0, 2.0, 3.0]).realize() * 3)[1:],
}
REALIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda y: (y * 2).realize(),
    "a part": lambda y: (y[:1] * 2).realize(),
    "kernels": lambda y: (y * 2).kernelize(),
    "a write": lambda y: Tensor.zeros(*y.shape).contiguous().realize().assign(y * 2).realize(),
    "a later value": lambda y: ((y * 2).realize() * 3).realize(),
    "read later": lambda y: (y * 2).realize() * 3,
    "below what was read": lambda y: (was_read(y + 1) * 2).realize(),
}


@pytest.mark.parametrize("use", REALIZED)
@pytest.mark.parametrize("made", PLAIN)
def test_realize_that_ended_a_gradient_is_told_for_a_plain_value_that_gets_memory_later(
    made: str, use: str
) -> None:
    y = PLAIN[made]()
    c = REALIZED[use](y)
    beside = (y.detach() * 2).realize()
    y.realize()

    with pytest.raises(GradientError, match="realize"):
        c.sum().gradient(y)
    assert not beside.sum().gradient(y)[0].numpy().any()


def test_realize_of_a_value_and_what_it_was_computed_from_is_told() -> None:
    y = Tensor([1.0, 2.0]).realize() * 3
    c, other = y * 2, Tensor([1.0, 2.0]).realize() * 4
    Tensor.realize(c, y, other)

    with pytest.raises(GradientError, match="realize"):
        c.sum().gradient(y)
    assert other.sum().gradient(y)[0].tolist() == [0, 0]


def test_a_gradient_through_a_write_that_was_read_reaches_a_value_with_memory_of_its_own() -> None:
    memory, y = Tensor.zeros(2).contiguous().realize(), Tensor([1.0, 2.0]).realize() * 3
    memory.assign(y * 2)
    memory.tolist()
    y.realize()

    assert memory.sum().gradient(y)[0].tolist() == [2, 2]


@pytest.mark.parametrize("realizes", [False, True])
def test_a_gradient_that_ends_at_a_leaf_is_told_whether_that_is_memory(realizes: bool) -> None:
    x = Tensor([3.0, 4.0]).realize()
    y = (x * 2).requires_grad_()
    if realizes:
        y.realize()

    with pytest.raises(GradientError, match="ends at a tensor"):
        (y * 2).sum().gradient(x)
    (y * 2).sum().backward()
    assert [g if g is None else g.tolist() for g in (x.grad, y.grad)] == [None, [2, 2]]


@pytest.mark.parametrize("is_viewed", [False, True])
def test_a_tensor_that_asks_again_has_the_gradient_of_its_earlier_uses(is_viewed: bool) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    before = (x * 3).sum()
    view = x[:] if is_viewed else None
    x.requires_grad = False
    x.requires_grad = True
    (before + (x * x).sum()).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [5.0, 7.0]
    assert view is None or view.grad is None


def test_a_tensor_that_never_asked_has_the_gradient_of_its_later_uses() -> None:
    x = Tensor([1.0, 2.0], requires_grad=False)
    view = x[:]
    before = (view * 3).sum()
    x.requires_grad = True
    (before + (x * x).sum()).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]


def test_the_facts_of_many_values_take_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[UOp] = []

    def counted(node: UOp) -> bool:
        asked.append(node)
        return passes_gradient(node)

    monkeypatch.setattr(grad, "passes_gradient", counted)

    def questions(count: int) -> int:
        values = [Tensor([1.0, 2.0]).realize()]
        for number in range(count):
            values.append(values[-1] * 2 + number)
        asked.clear()
        facts_of(tuple(value.uop for value in values))
        return len(asked)

    assert questions(40) <= 5 * questions(10)


@pytest.mark.parametrize("made", [Tensor.ones, lambda n: Tensor.full((n,), 1.0).contiguous()])
def test_a_parameter_that_waits_to_be_filled_gets_its_gradient(made: Any) -> None:
    x = Tensor([0.0, -2.0, 4.0]).realize()
    before = x[:1] + 1
    x[:1].add_(2)
    parameter = made(1).requires_grad_()
    product = parameter * before.detach()
    x.numpy()  # computes what reads x before the write

    assert product.sum().gradient(parameter)[0].tolist() == [1.0]


@pytest.mark.parametrize("has_view", [False, True])
def test_uses_before_a_write_count_when_a_tensor_asks_anew(has_view: bool) -> None:
    x = Tensor([1.0, -2.0]).realize().requires_grad_()
    used = x * x
    view = x[:] if has_view else None

    x.requires_grad = False
    x.assign(x * 2)
    x.requires_grad = True
    ((used * 3).sum() + x.sum()).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [7.0, -11.0]
    assert view is None or view.tolist() == [2.0, -4.0]


@pytest.mark.parametrize("is_alive", [False, True])
def test_a_realized_reshape_is_computed_from_no_other_tensor_of_its_value(is_alive: bool) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    other = x * 2 if is_alive else None
    y = (x * 2).reshape(2, 2).realize()

    assert (y * 3).sum().gradient(y)[0].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with pytest.raises(GradientError, match="realize"):
        y.sum().gradient(x)
    y.requires_grad_()
    (y * y).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [[4.0, 8.0], [12.0, 16.0]]
    assert other is None or other.tolist() == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("is_done", [False, True])
def test_gradients_that_end_behind_written_memory_are_refused_to_it(is_done: bool) -> None:
    x, y = (Tensor([1.0, 2.0]).realize() for _ in range(2))
    y.assign((x * 2).realize())
    if is_done:
        y.tolist()
    z = (y * 3).realize()

    for target in (x, y):
        with pytest.raises(GradientError, match="realize"):
            z.sum().gradient(target)
    assert (z * 5).sum().gradient(z)[0].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("which", ["slice", "permute", "flip", "reshape"])
@pytest.mark.parametrize("is_view_named", [False, True])
def test_a_gradient_ends_at_written_memory_whichever_view_is_realized(
    which: str, is_view_named: bool
) -> None:
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "slice": lambda t: t[1:3],
        "permute": lambda t: t.reshape(2, 2).permute(1, 0),
        "flip": lambda t: t.flip(0),
        "reshape": lambda t: t.reshape(2, 2),
    }
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    whole = x.square()
    view = views[which](whole)
    view.assign(view * 3)

    (view if is_view_named else whole).realize()

    for shown in (whole, view):
        with pytest.raises(GradientError, match="realize"):
            shown.sum().gradient(x)


@pytest.mark.parametrize("is_read", [False, True])
def test_reading_keeps_the_gradient_to_a_value_of_detached_memory(is_read: bool) -> None:
    memory = Tensor([1.0, 2.0]).realize()
    detached = memory.detach()
    double = detached * 2
    square = double * double
    memory.assign(double + 1)
    if is_read:  # which computes all three
        detached.tolist()

    assert (square * 3).sum().gradient(double)[0].tolist() == [12.0, 24.0]
    if is_read:
        with pytest.raises(GradientError, match="ended"):
            memory.sum().gradient(double)
    else:
        assert memory.sum().gradient(double)[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("is_read", [False, True])
def test_reading_a_loss_that_does_a_write_changes_no_gradient(is_read: bool) -> None:
    memory, computed = Tensor([1.0, 1.0, 1.0]).realize(), Tensor([1.0, 1.0, 1.0]).sin().realize()
    losses = []
    for x in (memory, computed):
        before = x * 2
        part = x.detach()[1:] if x is memory else x[1:]
        part.assign(part * 3)
        losses.append((x * 5).sum() + (before * 7).sum())
        if is_read:
            losses[-1].item()

    assert losses[0].gradient(memory)[0].tolist() == [5.0, 5.0, 5.0]
    assert losses[1].gradient(computed)[0].tolist() == [5.0, 5.0, 5.0]
    assert (losses[0] + memory.sum()).gradient(memory)[0].tolist() == [6.0, 6.0, 6.0]


def test_a_step_looks_at_the_graphs_of_no_former_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is written in a loop knows all steps before; each is gone through once."""
    seen: list[UOp] = []

    def noted(node: UOp) -> bool:
        seen.append(node)
        return passes_gradient(node)

    monkeypatch.setattr(grad, "passes_gradient", noted)
    monkeypatch.setattr(versions, "values", {})  # none of other tests
    cache, x = Tensor.zeros(3, 2).contiguous().realize(), Tensor([1.0, 2.0]).realize()
    counts = []
    for step in range(9):
        seen.clear()
        place = step % 3
        cache[place : place + 1] = (x * step + cache.sum(0)).exp().log().reshape(1, 2)
        (cache.sum() * 2).realize()
        counts.append(len(seen))

    assert counts[3:] == counts[3:4] * 6, counts


@pytest.mark.parametrize("is_read", [False, True])
def test_uses_of_a_copy_count_once_though_what_made_it_was_read(is_read: bool) -> None:
    source, written = Tensor([2.5, -1.5]), Tensor([2.0, 0.0])
    written.assign(source * 2)
    shown = source.detach()
    source.assign(shown)
    copied = copy.deepcopy(written)
    if is_read:
        shown.tolist()

    (copied.requires_grad_() * 1).sum().backward()

    assert copied.grad is not None
    assert copied.grad.tolist() == [1.0, 1.0]


def test_what_asks_over_a_leaf_that_a_capture_overwrites_keeps_its_gradient() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    asking = (weight + weight[:]).requires_grad_()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.assign((weight * x).detach())
        return (weight * 1).realize()

    for _ in range(3):
        step(Tensor([2.0, 3.0]).realize())
    (asking * 4).sum().backward()  # which was without end: memory was made of itself

    assert asking.grad is not None
    assert weight.grad is not None
    assert (asking.grad.tolist(), weight.grad.tolist()) == ([4.0, 4.0], [8.0, 8.0])


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_views_of_views_that_ask_share_no_gradient_after_a_capture_does_the_write(
    shape: tuple[int, ...],
) -> None:
    """Each `reshape` that asks has its own uses, whichever of them is computed last."""
    memory, value = Tensor([1.5, 3.0, -1.0, -2.0]).realize(), Tensor([-0.5, 0.0]).realize()
    value.requires_grad_()
    memory[0:2] = value
    one = memory.reshape(4).requires_grad_()
    other = memory.reshape(4).requires_grad_()
    view = other.reshape(shape).requires_grad_()
    last = view.reshape(4).requires_grad_()
    loss = (other.sum() * 3).sum() + (one * 5).sum() + (view * 7).sum() + (last * 11).sum()
    read = TinyJit(lambda x: (x * one + 1).realize())
    read(Tensor([1.0, 2.0, 3.0, 4.0]).realize())

    loss.backward()

    found = [t.grad.tolist() for t in (one, other, last) if t.grad is not None]
    assert found == [[5.0] * 4, [21.0] * 4, [11.0] * 4]
    assert view.grad is not None
    assert view.grad.flatten().tolist() == [18.0] * 4
    assert value.grad is not None
    assert value.grad.tolist() == [26.0, 26.0]
