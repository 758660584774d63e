"""Two tensors are the same memory only where one is a view of the other."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import numpy
import pytest

from tinycore.errors import AliasError
from tinycore.tensor import Tensor
from tinycore.tensor.storage import storage
from tinycore.uop.node import UOp


def test_equal_computations_realized_together_stay_apart() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    a, b = x + 1, x + 1
    assert a.uop is b.uop

    a.realize(b)
    a[0] = 7

    assert a.tolist() == [7, 3, 4]
    assert b.tolist() == [2, 3, 4]


def test_equal_computations_of_which_one_was_realized_stay_apart() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    a, b = x + 1, x + 1

    a.realize()
    a.assign(a * 2)

    assert a.tolist() == [4, 6, 8]
    assert b.tolist() == [2, 3, 4]


def test_equal_computations_stay_apart_when_one_is_read() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    a, b = x + 1, x + 1

    assert a.tolist() == [2, 3, 4]
    a.realize()[1] = 0

    assert (a + 0).tolist() == [2, 0, 4]
    assert b.tolist() == [2, 3, 4]


def test_one_tensor_given_twice_is_one_memory() -> None:
    a = Tensor([1.0, 2.0]).realize() + 1

    a.realize(a)
    before = a.uop
    a.realize(a)

    assert a.uop is before


def test_a_view_shows_what_is_written_through_another() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    a, b = x.permute(1, 0), x.permute(1, 0)

    a.realize(b)
    x[0, 1] = 9

    assert a.tolist() == b.tolist() == [[1, 3], [9, 4]]


def test_an_assignment_computed_along_with_another_result_happens_once() -> None:
    total = Tensor.zeros(3).contiguous().realize()

    for number in range(1, 4):
        total.assign(total + 1)
        (total * 2).realize()
        assert total.tolist() == [number] * 3


def test_a_write_that_forces_another_lets_readers_of_both_see_what_was_there() -> None:
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    old = x + 1

    x.assign(y)
    y.assign(Tensor([5.0, 6.0])).realize()

    assert old.tolist() == [2, 3]
    assert x.tolist() == [3, 4]
    assert y.tolist() == [5, 6]


def test_an_index_of_an_index_writes_through() -> None:
    x = Tensor.zeros(3, 3).realize()

    x[0][1] = 5
    x[1:].permute(1, 0)[2] = Tensor([7.0, 8.0])

    assert x.tolist() == [[0, 5, 0], [0, 0, 7], [0, 0, 8]]


def test_a_write_to_a_part_of_a_lazy_tensor_shows_in_it() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize() * 2

    row = x[0]
    row[1] = 9
    x[1:].assign(Tensor([[7.0, 8.0]]))

    assert row.tolist() == [2, 9]
    assert x.tolist() == [[2, 9], [7, 8]]


def test_a_row_picked_by_a_tensor_is_a_copy() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()

    rows = x[Tensor([0])]
    rows[0, 0] = 9

    assert rows.tolist() == [[9, 2]]
    assert x.tolist() == [[1, 2], [3, 4]]


def test_a_view_realized_before_its_memory_was_written_stays_a_view() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    turned = x.T

    x.assign(x + 1)
    turned.realize()
    x.assign(x + 1).realize()

    assert turned.tolist() == x.T.tolist() == [[3, 5], [4, 6]]


def test_a_copy_keeps_its_gradient_when_something_made_of_it_is_computed() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x.clone()

    (y * y).realize()

    assert (y * 3).sum().gradient(x)[0].tolist() == [3, 3]


def test_a_copy_and_its_views_are_written_together_before_they_are_computed() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    y = x.clone()
    turned, row = y.T, y[0]

    y[1, 0] = 7
    row[1] = 8
    turned[0, 0] = 9

    assert y.tolist() == [[9, 8], [7, 4]]
    assert turned.tolist() == [[9, 7], [8, 4]]
    assert row.tolist() == [9, 8]
    assert x.tolist() == [[1, 2], [3, 4]]


def test_a_copy_that_is_overwritten_whole_takes_its_views_along() -> None:
    y = Tensor([1.0, 2.0, 3.0]).realize().clone()
    part = y[1:]

    y.assign(Tensor([4.0, 5.0, 6.0]))
    y[2] = 0

    assert y.tolist() == [4, 5, 0]
    assert part.tolist() == [5, 0]


@pytest.mark.parametrize("realized", [False, True])
def test_views_of_what_is_not_computed_yet_are_views(realized: bool) -> None:
    y = Tensor([1.0, 2.0, 3.0, 4.0]).realize() + 1
    if realized:
        y.realize()

    square, part = y.reshape(2, 2), y[1:3]
    square[0, 0] = 99
    y[2] = 55

    assert y.tolist() == [99, 3, 55, 5]
    assert square.tolist() == [[99, 3], [55, 5]]
    assert part.tolist() == [3, 55]


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(4),
    "permute": lambda x: x.permute(1, 0),
    "detach": lambda x: x.detach(),
    "flip": lambda x: x.flip(0),
    "part": lambda x: x[:, 1:],
    "steps": lambda x: x.reshape(4)[::3],
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(1)[1],
    "squeeze": lambda x: x.reshape(2, 1, 2).squeeze(1)[0],
    "the same": lambda x: x.contiguous()[1].view(2),
    "a tensor of it": Tensor,
}


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_view_and_what_it_shows_are_written_together(way: str, realized: bool) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize() * 2
    if realized:
        x.realize()
    view = WAYS[way](x)

    view[...] = 7.0
    flat = x.reshape(4).tolist()
    assert view.reshape(-1).tolist() == [7.0] * view.numel()
    assert flat.count(7.0) == view.numel()
    assert sorted({*flat, 2.0, 4.0, 6.0, 8.0} - {7.0}) == [2.0, 4.0, 6.0, 8.0]

    x[...] = 0.5
    assert view.reshape(-1).tolist() == [0.5] * view.numel()


def test_views_stay_together_when_one_of_them_is_realized() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize() + 1
    row, column = x[1], x.T[0]

    row.realize()
    row[0] = 9
    column[0] = 8

    assert x.tolist() == [[8, 3], [9, 5]]
    assert row.tolist() == [9, 5]
    assert column.tolist() == [8, 9]


def test_views_outlive_what_they_show() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize() * 2
    first, second = x.reshape(2, 2), x[2:]
    del x

    second[0] = 9

    assert first.tolist() == [[2, 4], [9, 8]]


def test_equal_computations_have_views_of_their_own() -> None:
    x = Tensor([1.0, 2.0]).realize()
    a, b = x + 1, x + 1
    of_a, of_b = a.reshape(2, 1), b.reshape(2, 1)

    of_a.realize()
    a[0] = 7
    of_b[1] = 5

    assert (a.tolist(), of_a.tolist()) == ([7, 3], [[7], [3]])
    assert (b.tolist(), of_b.tolist()) == ([2, 5], [[2], [5]])


def test_a_view_that_is_realized_leaves_equal_computations_alone() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    a, b = x * 2, x * 2

    a.reshape(4).realize()
    a[0] = 5

    assert a.tolist() == [[5, 5], [6, 8]]
    assert b.tolist() == [[2, 4], [6, 8]]


def test_what_was_padded_keeps_the_value_when_its_source_becomes_memory() -> None:
    x = Tensor([1.0, 2.0]).realize() + 1
    padded = x.pad((1, 1))

    x.realize()
    x[0] = 9

    assert padded.tolist() == [0, 2, 3, 0]


def test_what_was_read_before_a_write_keeps_its_value() -> None:
    x = Tensor([1.0, 2.0]).realize() + 1
    view = x.reshape(2, 1)
    before = view * 10

    x[0] = 9

    assert before.tolist() == [[20], [30]]
    assert view.tolist() == [[9], [3]]


def test_a_tensor_that_is_replaced_is_a_view_of_the_other() -> None:
    x, y = Tensor([1.0, 2.0]).realize() + 1, Tensor([3.0, 4.0]).realize() + 1
    old = x.reshape(2, 1)

    x.replace(y)
    y[0] = 9

    assert x.tolist() == [9, 5]
    assert old.tolist() == [[2], [3]]


@pytest.mark.parametrize("realized", [False, True])
def test_elements_that_are_shown_twice_cannot_be_written(realized: bool) -> None:
    x = Tensor([1.0, 2.0]).realize() * 2
    if realized:
        x.realize()
    wide, windows = x.expand(3, 2), x.unfold(0, 1, 1).expand(2, 2)

    with pytest.raises(AliasError, match=r"made by expand shows elements more than once.*clone"):
        wide[0, 0] = 1
    with pytest.raises(AliasError):
        windows.assign(windows + 1)
    x[0] = 5
    assert wide.tolist() == [[5, 4]] * 3


def test_a_bitcast_cannot_be_written_before_it_is_memory() -> None:
    x = Tensor([1.0, 2.0]).realize()
    bits = x.bitcast("int32")

    with pytest.raises(AliasError, match=r"a bitcast of dtypes.float32 .* x.assign\(new.bitcast"):
        bits.assign(bits + 1)
    with pytest.raises(AliasError):
        bits.reshape(1, 2)[0, 1] = 0
    bits.clone()[0] = 7
    bits.realize()[0] = 7

    assert bits.tolist()[0] == 7
    assert x.tolist() == [1, 2]


def test_many_views_that_are_gone_are_forgotten() -> None:
    x = Tensor([1.0, 2.0]).realize() + 1
    views = [x.reshape(2, 1) for _ in range(3)]
    for _ in range(200):
        x.reshape(1, 2)

    assert len(x._view.storage.views) == 4
    assert x._view.storage.tensors() == [x, *views]


def test_a_diagonal_of_any_matrix_is_a_view() -> None:
    for rows, columns in ((3, 3), (2, 5), (5, 2), (1, 4), (0, 3)):
        for offset in (-2, -1, 0, 1, 3):
            data = numpy.arange(rows * columns, dtype=numpy.float32).reshape(rows, columns)
            x = Tensor(data)
            diagonal = x.diagonal(offset)
            assert diagonal.tolist() == numpy.diagonal(data, offset).tolist()
            diagonal.assign(diagonal + 100)
            number = max(0, min(rows - max(0, -offset), columns - max(0, offset)))
            places = numpy.arange(number)
            data[places + max(0, -offset), places + max(0, offset)] += 100
            assert x.tolist() == data.tolist()


def test_a_tensor_that_leaves_and_comes_back_is_written_once() -> None:
    x = Tensor([1.0, 2.0]).realize() + 1
    same = Tensor(x)
    x.replace(Tensor([0.0, 0.0]))
    x.replace(same)

    x.assign(x * 2)
    x += x

    assert x.tolist() == same.tolist() == [8, 12]


@pytest.mark.parametrize("source", ["view", "result"])
def test_a_write_of_which_only_the_tensor_that_is_read_knows_is_done_once(source: str) -> None:
    """The memory that is written has no other tensor left; reading must not write it again."""

    def shifted() -> Tensor:
        x = Tensor([9.0, 1.0, 2.0, 3.0, 9.0]).realize()[1:4]
        x[1:3].assign(x[0:2])
        return x if source == "view" else x * 1

    y = shifted()

    assert [y.tolist() for _ in range(3)] == [[1.0, 1.0, 2.0]] * 3


def test_a_write_by_a_tensor_that_is_gone_keeps_its_gradient() -> None:
    w, x = Tensor([1.0, 2.0], requires_grad=True), Tensor([1.0, 1.0]).realize()
    x.assign(x + w * 2)
    y = x * 3
    del x

    assert y.tolist() == [9.0, 15.0]
    y.sum().backward()

    assert w.grad is not None
    assert w.grad.tolist() == [6.0, 6.0]
    assert y.tolist() == [9.0, 15.0]


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda x: x.detach(),
    "reshape": lambda x: x.reshape(2, 2),
    "part": lambda x: x[1:],
    "flip": lambda x: x.flip(0),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("start", ["memory", "copy", "result"])
def test_equal_views_that_are_realized_together_stay_views(start: str, move: str) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    x = x.clone() if start == "copy" else x + 0 if start == "result" else x
    a, b = MOVES[move](x), MOVES[move](x)

    Tensor.realize(a, b)
    b += 1

    expected = MOVES[move](Tensor([1.0, 2.0, 3.0, 4.0])) + 1
    assert a.tolist() == b.tolist() == expected.tolist()
    assert MOVES[move](x).tolist() == expected.tolist()


def test_a_part_of_a_copy_that_is_realized_stays_a_part_of_it() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).clone()
    row = x[0]

    row.realize()
    row += 10
    x[0, 1] = 7

    assert x.tolist() == [[11.0, 7.0], [3.0, 4.0]]
    assert row.tolist() == [11.0, 7.0]


def test_a_copy_that_was_written_to_is_contiguous() -> None:
    x = Tensor([1.0, 2.0]).clone()
    column = x.reshape(2, 1)
    column += 1

    assert x.contiguous() is x


def test_what_reads_memory_is_kernelized_before_what_overwrites_it() -> None:
    x = Tensor([1.0, 2.0]).realize()
    before = x * 10
    x[0] = 7

    x.kernelize()

    assert x.tolist() == [7.0, 2.0]
    assert before.tolist() == [10.0, 20.0]


@pytest.mark.parametrize("lazy", [False, True])
def test_expanded_memory_is_not_assigned_to_itself(lazy: bool) -> None:
    x = Tensor([1.0, 2.0]).realize()
    x = x + 1 if lazy else x

    with pytest.raises(AliasError, match="made by expand shows elements more than once"):
        x.expand(3, 2).assign(x)
    with pytest.raises(AliasError, match="made by expand"):
        x.expand(3, 2).copy_(x)
    assert x.assign(x) is x


@pytest.mark.parametrize("is_memory", [True, False])
@pytest.mark.parametrize("read", [Tensor.tolist, lambda y: (y + 1).tolist(), lambda y: None])
def test_a_detached_tensor_that_was_read_and_realized_is_a_view_still(
    read: Callable[[Tensor], object], is_memory: bool
) -> None:
    x = Tensor([[2.0, 9.0, 1.0], [1.0, 3.0, 8.0]]) * 1
    if is_memory:
        x.realize()
    y = x.detach()
    read(y)
    y.realize()

    y += 1
    y.diagonal().assign(0.0)

    assert x.tolist() == [[0.0, 10.0, 2.0], [2.0, 0.0, 9.0]]
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize("is_dropped", [True, False])
@pytest.mark.parametrize("is_memory", [True, False])
@pytest.mark.parametrize(
    "view", [lambda x: x.unfold(0, 2, 1), lambda x: x.expand(3, 4), lambda x: x.unfold(0, 2, 1)[1]]
)
def test_writes_to_repeated_elements_are_refused_whoever_else_shows_them(
    view: Callable[[Tensor], Tensor], is_memory: bool, is_dropped: bool
) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]) * 2
    if is_memory:
        x.realize()
    y = view(x)
    if is_dropped:
        del x

    with pytest.raises(AliasError, match="elements more than once"):
        y += 1


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_detached_tensor_that_a_run_read_elements_of_is_a_view_still(dtype: str) -> None:
    x = Tensor([-2, -1, 5], dtype=dtype).realize()
    y = x.detach()
    x[x > 0] = 0

    assert y[Tensor([2, 0])].realize().tolist() == [0, -2]

    y -= 1
    assert x.tolist() == [-3, -2, -1]


def test_repeated_elements_stay_so_when_a_write_makes_them_computed() -> None:
    x = Tensor([[1.0, 2.0, 3.0]]).realize()
    y = (x + 1).unfold(1, 2, 1)
    x.assign(x * 2).realize()

    assert y.tolist() == [[[2.0, 3.0], [3.0, 4.0]]]
    with pytest.raises(AliasError, match="elements more than once"):
        y.assign(0.0)


def test_a_view_that_is_replaced_by_itself_or_by_another_is_a_view_still() -> None:
    x = Tensor([1.0, 2.0, 3.0]) * 2
    y, z = x.permute(0), x.reshape(3)

    y.replace(y)
    y += 1
    z.replace(y)
    z += 1

    assert x.tolist() == [4.0, 6.0, 8.0]


@pytest.mark.parametrize("is_filled", [True, False])
@pytest.mark.parametrize(
    "view",
    [lambda x: x[:, :2], lambda x: x.permute(1, 0), lambda x: x.flip(0)],
    ids=["shrunk", "permuted", "flipped"],
)
@pytest.mark.parametrize(
    "reader",
    [
        lambda y: y[Tensor([0, 1])],
        lambda y: y.sort(0)[0],
        lambda y: y.to("PYTHON:1"),
        lambda y: y.cumsum(0),
    ],
    ids=["gather", "sort", "copy", "cumsum"],
)
def test_a_view_that_is_realized_with_what_reads_it_is_a_view_still(
    reader: Callable[[Tensor], Tensor], view: Callable[[Tensor], Tensor], is_filled: bool
) -> None:
    memory = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize()
    x = Tensor.full((2, 3), 7.0) if is_filled else memory.assign(memory + 1)
    y = view(x)
    z = reader(y)
    Tensor.realize(y, z)

    y[0, 0] = 50

    assert (x.numpy() == 50).sum() == 1
    assert (z.numpy() == 50).sum() == 0


def test_repeated_elements_that_are_realized_with_what_reads_them_stay_so() -> None:
    y = Tensor.full((2, 3), 7.0).expand(2, 2, 3)
    Tensor.realize(y, y[Tensor([0, 1])])

    with pytest.raises(AliasError, match="elements more than once"):
        y[:, 0] = 2.0


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
@pytest.mark.parametrize("turned", [True, False])
def test_a_copy_that_a_view_wrote_to_is_shared_still_after_its_old_content_was_read(
    turned: bool, dtype: str
) -> None:
    x = Tensor([[5, 0, 3], [1, 4, 1], [4, 3, 7]], dtype=dtype).clone()
    y = x.permute(1, 0) if turned else x.flip(0)
    total = y.flatten().sum()
    y[0:2, 1:3] = total - total
    assert total.item() == 28

    y += 1

    numbers = numpy.array([[5, 0, 3], [1, 4, 1], [4, 3, 7]])
    shown = numbers.T if turned else numbers[::-1]
    shown[0:2, 1:3] = 0
    shown += 1
    assert x.tolist() == numbers.tolist()


def test_a_view_that_is_made_while_another_thread_writes_shows_the_same_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    found = storage.movement_above

    def write_meanwhile(node: UOp, base: UOp) -> list[UOp] | None:
        steps = found(node, base)
        monkeypatch.undo()
        thread = Thread(target=x.assign, args=(Tensor([5.0, 6.0, 7.0, 8.0]),))
        thread.start()
        thread.join()
        return steps

    monkeypatch.setattr(storage, "movement_above", write_meanwhile)
    view = x[1:3]

    assert view.tolist() == [6, 7]
    x.assign(x * 2)
    assert view.tolist() == [12, 14]
