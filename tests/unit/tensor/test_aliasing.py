"""Two tensors are the same memory only where one is a view of the other."""

from __future__ import annotations

from tinycore.tensor import Tensor


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
