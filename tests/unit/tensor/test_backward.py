"""`backward` where the graph is hardly there."""

import copy
from collections.abc import Callable

import pytest
import torch

from tinycore import Context, Tensor, TinyJit
from tinycore.errors import GradientError
from tinycore.nn.optim import SGD


def test_sum_of_one_element_has_a_gradient() -> None:
    x = Tensor([3.0], requires_grad=True)
    x.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [1.0]


def test_realized_result_has_lost_its_graph() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    loss = (x * x).sum().realize()

    with pytest.raises(GradientError, match="its graph is gone"):
        loss.backward()


def test_op_without_a_derivative_says_so() -> None:
    x = Tensor([3.5], requires_grad=True)
    remainder = Tensor.from_uop(x.uop % x.uop)

    with pytest.raises(GradientError, match="FLOORMOD of floats has no derivative"):
        remainder.backward()


# --- leaves that are views


@pytest.mark.parametrize(
    "view",
    [
        Tensor.detach,
        lambda x: x[1:],
        lambda x: x[1].detach(),
        lambda x: (x * 1).detach(),
        lambda x: x + 1,
        lambda x: (x * 2).contiguous(),
        lambda x: x.exp()[1:],
        lambda x: x.sum(1),
    ],
)
def test_equal_values_of_which_one_asks_for_a_gradient_are_not_one(
    view: Callable[[Tensor], Tensor],
) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    first, second = view(x).requires_grad_(), view(x).requires_grad_()

    (first * view(x) * 2 + second * 3).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == (view(x) * 2).tolist()
    assert second.grad.tolist() == second.const_like(3).tolist()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: Tensor(x, requires_grad=True),
        lambda x: x.reshape(1, 2).requires_grad_(),
        lambda x: Tensor(x * 1, requires_grad=True),
    ],
)
def test_equal_views_of_all_of_some_memory_have_the_gradients_of_their_own_uses(
    view: Callable[[Tensor], Tensor],
) -> None:
    x = Tensor([3.0, 4.0]).realize()
    first, second = view(x), view(x)

    (first * 2 + second * 3 + x.reshape(first.shape) * 5 + x * 7).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == first.const_like(2).tolist()
    assert second.grad.tolist() == second.const_like(3).tolist()
    x[0] = 9.0
    assert first.flatten()[0].item() in (9.0, 3.0)


def test_a_parameter_made_of_a_parameter_is_another_one() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    y = Tensor(x, requires_grad=True)
    z = Tensor(x, dtype="float64", requires_grad=True)

    (x * 2 + y * 3 + z.float() * 4).sum().backward()

    gradients = [t.grad.tolist() for t in (x, y, z) if t.grad is not None]
    assert gradients == [[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]


def test_an_attribute_asks_as_the_method_does() -> None:
    x = Tensor([3.0, 4.0]).realize()
    first, second = x + 1, x + 1
    first.requires_grad = second.requires_grad = True

    (first * 2 + second * 3).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])
    with pytest.raises(GradientError, match="only float tensors have gradients"):
        Tensor([1]).requires_grad = True


def test_a_copy_of_a_parameter_is_another_one() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    y, z = copy.copy(x), copy.deepcopy(x)
    before = z * 5

    z.assign(z * 2)
    (x * 2 + y * 3 + before + z).sum().backward()

    gradients = [t.grad.tolist() for t in (x, y, z) if t.grad is not None]
    assert gradients == [[2.0, 2.0], [3.0, 3.0], [6.0, 6.0]]


def test_a_view_made_before_its_tensor_asks_for_a_gradient_leads_to_it() -> None:
    x = Tensor([3.0, 4.0]).realize()
    view = x.reshape(2, 1)

    x.requires_grad_()
    (view * 2).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_parameters_made_of_each_other_are_three() -> None:
    x = Tensor([3.0, 4.0])
    first = Tensor(x, requires_grad=True)
    second = Tensor(first, requires_grad=True)

    (x * 2 + first * 3 + second * 4).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([3.0, 3.0], [4.0, 4.0])


def test_a_value_that_was_realized_beside_an_equal_one_may_ask_alone() -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf, other = x * 2, x * 2
    leaf.realize()

    leaf.requires_grad_()
    (leaf * 2 + other * 3).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 2.0]


def test_a_leaf_whose_former_graph_is_kept_counts_once() -> None:
    x = Tensor([2.0, 4.0]).realize()
    other = x.clone()
    x.assign(other)
    x.tolist()
    leaf = (other * 1.0).requires_grad_()

    (leaf * leaf + other + x.clone()).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [4.0, 8.0]


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.reshape(2, 1).reshape(2)])
def test_a_leaf_that_is_written_through_a_view_keeps_earlier_uses(
    make: Callable[[Tensor], Tensor],
) -> None:
    leaf = make(Tensor([3.0, 4.0])).requires_grad_()
    before, view = leaf * 5, leaf.reshape(-1, 1).reshape(-1)

    view.assign(before.detach())
    (leaf * 2 + before).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [7.0, 7.0]


def test_realize_that_ends_the_gradient_of_what_a_leaf_shows_is_told() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    inner = x + 1
    leaf = Tensor(inner, requires_grad=True).realize()

    with pytest.raises(GradientError, match=r"realize\(\) ended the gradient"):
        (inner * x).sum().backward()
    (leaf * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 5.0]


def test_realize_of_a_value_that_asks_and_whose_gradient_flows_on_is_told() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    inner = (x * 2).requires_grad_().realize()

    with pytest.raises(GradientError, match=r"realize\(\) ended the gradient"):
        inner.sum().backward()
    fresh = (x * 2).realize().requires_grad_()
    (fresh * x).sum().backward()
    assert fresh.grad is not None
    assert fresh.grad.tolist() == [3.0, 4.0]


def test_a_parameter_computed_from_another_is_trained_for_many_steps() -> None:
    first = Tensor([3.0, 4.0]).realize()
    second = first * 2
    optimizer = SGD([first, second], lr=0.25)

    for _ in range(3):
        optimizer.zero_grad()
        with Context(TRAINING=1):
            (first * first + second * second).sum().backward()
            optimizer.step()

    assert first.tolist() != [3.0, 4.0]
    assert second.tolist() == [0.75, 1.0]


def test_a_detached_leaf_does_not_lead_to_the_tensor_that_it_shows() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    leaf = x.detach().requires_grad_()

    (leaf * x).sum().backward()

    assert leaf.grad is not None
    assert x.grad is not None
    assert leaf.grad.tolist() == [3.0, 4.0]
    assert x.grad.tolist() == [3.0, 4.0]


def test_a_part_of_a_leaf_that_asks_for_a_gradient_leads_to_the_leaf() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    part = x[1:].requires_grad_()

    (part * part).sum().backward()

    assert part.grad is not None
    assert x.grad is not None
    assert part.grad.tolist() == [8.0]
    assert x.grad.tolist() == [0.0, 8.0]


def test_a_detached_leaf_still_shows_what_is_written() -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf = x.detach().requires_grad_()

    x[0] = 7
    leaf[1:] = 9

    assert (x.tolist(), leaf.tolist()) == ([7.0, 9.0], [7.0, 9.0])
    leaf.square().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [14.0, 18.0]


def test_a_computed_leaf_is_trained_apart_from_an_equal_value() -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf, other = (x + 1).requires_grad_(), x + 1
    part = leaf[1:]
    optimizer = SGD([leaf], lr=1.0)

    for _ in range(3):
        optimizer.zero_grad()
        with Context(TRAINING=1):
            (leaf * other).sum().backward()
            optimizer.step()

    assert (leaf.tolist(), part.tolist()) == ([-8.0, -10.0], [-10.0])
    assert (other.tolist(), x.tolist()) == ([4.0, 5.0], [3.0, 4.0])


def test_a_computed_leaf_may_be_realized_before_its_gradient() -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf = (x + 1).requires_grad_()
    doubled = leaf * 2
    leaf.realize()

    (doubled * (x + 1) + leaf).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [9.0, 11.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + 1,
        lambda x: (x + 1).detach(),
        lambda x: x.reshape(1, 2)[0],
        lambda x: x.clone(),
        lambda x: x.clone()[:2],
    ],
)
@pytest.mark.parametrize(
    "write",
    [
        lambda leaf: leaf.assign(leaf * 2),
        lambda leaf: leaf.assign(leaf * 2).realize(),
        lambda leaf: leaf.realize().assign(leaf * 2),
        lambda leaf: leaf.mul_(2).mul_(2),
        lambda leaf: leaf[:1].assign(7.0),
        lambda leaf: leaf.contiguous(),
    ],
)
@pytest.mark.parametrize("view", [lambda leaf: leaf, lambda leaf: leaf[:1]])
def test_a_leaf_that_is_written_to_has_the_gradient_of_earlier_uses_too(
    make: Callable[[Tensor], Tensor],
    write: Callable[[Tensor], Tensor],
    view: Callable[[Tensor], Tensor],
) -> None:
    leaf = make(Tensor([3.0, 4.0]).realize()).requires_grad_()
    shown, before = view(leaf), leaf * 3

    write(leaf)
    (before + leaf).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [4.0, 4.0]
    assert shown[:1].tolist() == leaf[:1].tolist()


@pytest.mark.parametrize("place", [slice(None), slice(1)])
def test_what_is_written_to_a_computed_leaf_is_data(place: slice) -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf, weight = (x + 1).requires_grad_(), Tensor([1.0, 2.0]).requires_grad_()

    leaf[place] = weight[place] * 2
    (leaf * 3).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [3.0, 3.0]
    assert weight.grad is None


def test_leaves_that_take_over_equal_values_are_not_one() -> None:
    x = Tensor([3.0, 4.0]).realize()
    first, second = (x + 1).requires_grad_(), (x + 1).requires_grad_()

    first.assign(x * 2)
    second.assign(x * 2)
    (first * 2 + second * 3 + x * 2).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])


@pytest.mark.parametrize("part", [lambda x: x * 2, lambda x: x[1:]])
def test_a_target_behind_a_leaf_is_an_error(part: Callable[[Tensor], Tensor]) -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf = part(x).requires_grad_()

    with pytest.raises(GradientError, match="ends at a tensor of shape"):
        leaf.square().sum().gradient(x)
    (slope,) = x.detach().square().sum().gradient(x)
    assert slope.tolist() == [0.0, 0.0]


def test_the_gradient_of_what_replaces_a_parameter_flows_on() -> None:
    master = Tensor([3.0, 4.0])
    weight = Tensor([0.0, 0.0], requires_grad=True)

    weight.replace(master * 2)

    (slope,) = (weight * weight).sum().gradient(master)
    assert slope.tolist() == [24.0, 32.0]


def test_leaves_of_the_same_memory_are_not_one_after_they_are_realized() -> None:
    x = Tensor([3.0, 4.0]).realize()
    first, second = x.detach().requires_grad_(), x.detach().requires_grad_()

    first.realize()
    second.realize()
    (first * 2 + second * 3).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_a_leaf_on_several_devices_is_written_in_its_memory() -> None:
    devices = ("PYTHON:0", "PYTHON:1")
    leaf = (Tensor([3.0, 4.0], device="PYTHON") + 1).shard(devices).requires_grad_()

    leaf.assign(leaf * 2).realize()
    part = leaf[:1]
    leaf.assign(leaf * 2).realize()
    leaf.square().sum().backward()

    assert part.tolist() == [16.0]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [32.0, 40.0]


def test_a_value_whose_gradient_flows_on_is_no_leaf() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    inner = (x * 2).requires_grad_()

    inner.square().sum().backward()

    assert inner.grad is not None
    assert x.grad is not None
    assert inner.grad.tolist() == [12.0, 16.0]
    assert x.grad.tolist() == [24.0, 32.0]


@pytest.mark.parametrize(
    "make", [lambda x: x * 2, lambda x: x[1:], lambda x: x[:], lambda x: x.reshape(2, 1)]
)
@pytest.mark.parametrize("realized", [False, True])
def test_equal_values_that_ask_beside_what_they_are_computed_from_have_gradients_of_their_own(
    make: Callable[[Tensor], Tensor], realized: bool
) -> None:
    x = Tensor([3.0, 4.0]).requires_grad_()
    x = x.realize() if realized else x
    first, second, other = make(x).requires_grad_(), make(x).requires_grad_(), make(x)

    (first * 2 + second * 3 + other * 5 + make(x) * 7).sum().backward()

    expected = torch.tensor([3.0, 4.0], requires_grad=True)
    (make(expected) * 17).sum().backward()  # type: ignore[arg-type]
    assert first.grad is not None
    assert second.grad is not None
    assert x.grad is not None
    assert expected.grad is not None
    assert set(first.grad.flatten().tolist()) == {2.0}
    assert set(second.grad.flatten().tolist()) == {3.0}
    assert other.grad is None
    assert x.grad.tolist() == expected.grad.tolist()


def test_a_view_that_asks_beside_its_base_shows_and_makes_writes() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    part = x[1:].requires_grad_()

    part += 1
    x.assign(x * 2)

    assert (x.tolist(), part.tolist()) == ([6.0, 10.0], [10.0])
    (part * x).sum().backward()
    assert part.grad is not None
    assert x.grad is not None
    assert (part.grad.tolist(), x.grad.tolist()) == ([16.0], [10.0, 26.0])


def test_a_value_that_asks_twice_keeps_its_earlier_uses() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    inner = (x * 2).requires_grad_()
    before = inner * 3

    inner.requires_grad_(False).requires_grad_()
    (before + inner).sum().backward()

    assert inner.grad is not None
    assert inner.grad.tolist() == [4.0, 4.0]


def test_a_reshape_of_the_same_shape_that_asks_leaves_its_base_out() -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf = x.reshape(2).requires_grad_()

    (leaf * 3 + x * x).sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("make", [lambda x: x.clone(), lambda x: x + 1, lambda x: x.detach()])
def test_a_value_of_what_a_leaf_was_before_a_write_leads_to_the_leaf(
    make: Callable[[Tensor], Tensor], realized: bool
) -> None:
    x = Tensor([3.0, 4.0]).realize()
    leaf = make(x).requires_grad_()
    before = leaf * 2

    leaf.assign(x)
    if realized:
        leaf.realize()
    inner = (before * 3).requires_grad_()
    (inner * 5 + leaf).sum().backward()

    assert inner.grad is not None
    assert leaf.grad is not None
    assert (inner.grad.tolist(), leaf.grad.tolist()) == ([5.0, 5.0], [31.0, 31.0])


@pytest.mark.parametrize("ask", [Tensor.requires_grad_, lambda x: x])
def test_a_value_that_asks_and_is_computed_beside_a_write_leads_on(
    ask: Callable[[Tensor], Tensor],
) -> None:
    x = Tensor([3.0, 4.0]).requires_grad_()
    inner = ask(x * 5)

    x[:1] = 7.0
    (x * x).sum().gradient(x)[0].realize()
    (inner * 3 + x).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [16.0, 16.0]


def test_a_view_that_asks_beside_its_base_keeps_uses_before_a_write() -> None:
    x = Tensor([3.0, 4.0]).realize().requires_grad_()
    view, other = x[:].requires_grad_(), x[:].requires_grad_()
    before = view * 2

    other += 1
    (before * 3 + view).sum().backward()

    assert view.grad is not None
    assert other.grad is None
    assert view.grad.tolist() == [7.0, 7.0]


def test_writes_to_a_value_that_asks_and_whose_gradient_flows_on_lead_on() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    inner = (x * x).requires_grad_()

    inner[:1] = x.sum()
    inner += inner
    inner.sum().backward()

    assert inner.grad is not None
    assert x.grad is not None
    assert (inner.grad.tolist(), x.grad.tolist()) == ([1.0, 1.0], [2.0, 18.0])


@pytest.mark.parametrize("asks", [False, True])
def test_equal_values_that_ask_keep_earlier_uses_after_they_are_computed(asks: bool) -> None:
    x = Tensor([3.0, 4.0]).realize().requires_grad_(asks)
    first, second = (x + 1).requires_grad_(), (x + 1).requires_grad_()
    uses = first * 2 + second * 3

    x.assign(x * 2).realize()
    (uses + first * 5 + second * 7).sum().backward()

    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([7.0, 7.0], [10.0, 10.0])


def test_reading_does_not_end_the_gradient_of_detached_leaves() -> None:
    x, y = (Tensor(row).detach().requires_grad_() for row in ([1.0, 2.0, 3.0], [5.0]))
    z = x * 2
    z[1:2] = y

    assert z.tolist() == [2.0, 5.0, 6.0]
    (z * 2).sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [4.0, 0.0, 4.0]
    assert y.grad.tolist() == [2.0]


def test_a_captured_step_serves_every_detached_leaf() -> None:
    def slope(x: Tensor) -> Tensor:
        return (x * x.detach()).sum().gradient(x)[0].realize()

    step = TinyJit(slope)
    leaves = [Tensor([float(i), 2.0]).realize().detach().requires_grad_() for i in range(4)]

    assert [step(leaf).tolist() for leaf in leaves] == [[float(i), 2.0] for i in range(4)]
    assert len(step.captures) == 1


def test_what_asks_is_data_though_a_leaf_was_computed_from_the_same_memory() -> None:
    memory, other = Tensor([3.0, 1.5]).realize(), Tensor([1.0, 2.0]).realize()
    leaf = (memory * 2).requires_grad_()
    ended = (memory * other).realize()  # its gradient would go to `memory`, which does not ask
    x = (other + ended).requires_grad_()
    y = Tensor([1.0, 1.0], requires_grad=True)

    x += y  # data, as x is a leaf
    ((x + leaf) * 3).sum().backward()

    assert x.grad is not None
    assert leaf.grad is not None
    assert x.grad.tolist() == leaf.grad.tolist() == [3.0, 3.0]
    assert y.grad is None


def test_a_leaf_over_memory_that_asks_anew_counts_no_uses_of_that_memory() -> None:
    memory, other = Tensor([-0.5, 3.0]).realize(), Tensor([0.5, 1.5]).realize()
    user = memory * other
    first, second = [Tensor(memory[:], requires_grad=True) for _ in range(2)]
    first *= 0.5  # which shows in all of them
    second.requires_grad = False
    second.requires_grad = True

    ((second * 4).sum() + (first * 2).sum() + user.sum()).backward()

    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == [2.0, 2.0]
    assert second.grad.tolist() == [4.0, 4.0]


def test_the_gradient_of_a_batch_of_one_times_a_vector() -> None:
    matrix, vector = Tensor([[[1.0, 2.0], [3.0, 4.0]]]), Tensor([5.0, 6.0])

    found = (matrix @ vector).sum().gradient(vector, matrix)

    assert [gradient.tolist() for gradient in found] == [[4.0, 6.0], [[[5.0, 6.0], [5.0, 6.0]]]]
