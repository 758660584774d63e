"""Every optimizer walks as torch's does, or as its paper says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.nn import formulas
from tests.unit.tensor.helpers import TOLERANCES, numbers
from tinycore import Context, Tensor, TinyJit, dtypes, nn
from tinycore.dtype import DType
from tinycore.errors import ArgumentError, ArgumentTypeError, GradientError
from tinycore.nn.optim import LAMB, LARS, SGD, Adam, AdamW, Muon, Optimizer, OptimizerGroup
from tinycore.nn.state import get_state_dict

WEIGHT, BIAS = numbers(4, 3, seed=7), numbers(3, seed=8)
INPUTS = numbers(5, 6, 4, seed=9)
JORDAN = (3.4445, -4.775, 2.0315)

Make = Callable[[list[Tensor]], Optimizer]


def walked(make: Make, dtype: DType, captured: bool = False) -> list[Any]:
    params = [Tensor(array, dtype=dtype) for array in (WEIGHT, BIAS)]
    optimizer = make(params)

    @Context(TRAINING=1)
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ params[0] + params[1]).square().mean().backward()
        return loss.realize(*optimizer.schedule_step())

    run = TinyJit(step) if captured else step
    for x in INPUTS:
        run(Tensor(x, dtype=dtype))
    return [param.numpy() for param in params]


def walked_by_torch(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> list[Any]:
    params = [torch.tensor(array, requires_grad=True) for array in (WEIGHT, BIAS)]
    optimizer = make(params)
    for x in INPUTS:
        optimizer.zero_grad()
        loss = (torch.tensor(x) @ params[0] + params[1]).square().mean()
        torch.autograd.backward(loss)  # `loss.backward` has no types
        optimizer.step()
    return [param.detach().numpy() for param in params]


PAIRS: dict[str, tuple[Any, Any]] = {
    "sgd": (lambda p: SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        lambda p: SGD(p, 0.1, 0.9, 0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda p: SGD(p, 0.1, 0.9, 0.1, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "classic": (
        lambda p: SGD(p, 0.1, 0.9, classic=True),  # the same while the rate stays the same
        lambda p: torch.optim.SGD(p, 0.1, 0.9),
    ),
    "fused": (
        lambda p: SGD(p, 0.1, 0.9, 0.01, fused=True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ),
    "adam": (lambda p: Adam(p, 0.05), lambda p: torch.optim.Adam(p, 0.05)),
    "adam fused": (lambda p: Adam(p, 0.05, fused=True), lambda p: torch.optim.Adam(p, 0.05)),
    "adamw": (
        lambda p: AdamW(p, 0.05, 0.8, 0.95, 1e-6, 0.1),
        lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.95), 1e-6, 0.1),
    ),
    "betas": (
        lambda p: AdamW(p, 0.05, betas=(0.8, 0.95)),
        lambda p: torch.optim.AdamW(p, 0.05, betas=(0.8, 0.95)),
    ),
    "lamb as adam": (
        lambda p: LAMB(p, 0.05, 0.8, 0.95, 1e-6, 0.1, adam=True, fused=True),
        lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.95), 1e-6, 0.1),
    ),
    "lars as sgd": (
        lambda p: LARS(p, 0.1, 0.9, 0.01, tcoef=0.0),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ),
    "group": (
        lambda p: OptimizerGroup(Adam(p[:1], 0.05), SGD(p[1:], 0.1)),
        lambda p: TorchGroup(torch.optim.Adam(p[:1], 0.05), torch.optim.SGD(p[1:], 0.1)),
    ),
}


class TorchGroup:
    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


@pytest.mark.parametrize("name", PAIRS)
def test_five_steps_end_where_torch_ends(name: str) -> None:
    ours, theirs = PAIRS[name]
    expected = walked_by_torch(theirs)

    for dtype in (dtypes.float32, dtypes.float64):
        for found, wanted in zip(walked(ours, dtype), expected, strict=True):
            assert_near(found, wanted, dtype)


def assert_near(found: Any, expected: Any, dtype: DType) -> None:
    """Five steps of rounding apart; Adam in float32 loses 14 bits in 1 - b2 at its first step."""
    relative, absolute = TOLERANCES[dtype]
    assert found.dtype == dtype.name
    numpy.testing.assert_allclose(found, expected, 5 * relative, 5 * absolute)


@pytest.mark.parametrize("name", ["nesterov", "adamw"])
def test_captured_steps_end_there_too(name: str) -> None:
    ours, theirs = PAIRS[name]

    for found, wanted in zip(
        walked(ours, dtypes.float32, captured=True), walked_by_torch(theirs), strict=True
    ):
        assert_near(found, wanted, dtypes.float32)


# --- against the papers

SHAPES = {"tall": (5, 2), "filters": (4, 2, 3, 1), "vector": (6,)}
FORMULAS: dict[str, tuple[Any, Any]] = {
    "lars": (
        lambda p: LARS(p, 10.0, 0.9, 0.1),
        lambda w, g: formulas.lars(w, g, 10.0, 0.9, 0.1, 0.001),
    ),
    "lars, nesterov": (
        lambda p: LARS(p, 10.0, 0.9, 0.1, nesterov=True, tcoef=0.002),
        lambda w, g: formulas.lars(w, g, 10.0, 0.9, 0.1, 0.002, nesterov=True),
    ),
    "lars, rate outside": (
        lambda p: LARS(p, 10.0, 0.5, 0.1, classic=False),
        lambda w, g: formulas.lars(w, g, 10.0, 0.5, 0.1, 0.001, rate_in_velocity=False),
    ),
    "lars, decay outside": (
        lambda p: LARS(p, 0.5, 0.5, 0.1, pre_wd=False),
        lambda w, g: formulas.lars(w, g, 0.5, 0.5, 0.1, 0.001, decay_in_velocity=False),
    ),
    "lamb": (
        lambda p: LAMB(p, 0.1, 0.9, 0.99, 1e-6, 0.05),
        lambda w, g: formulas.lamb(w, g, 0.1, 0.9, 0.99, 1e-6, 0.05),
    ),
    "muon": (
        lambda p: Muon(p, 0.1),
        lambda w, g: formulas.muon(w, g, 0.1, 0.95, 0.1, 5, JORDAN),
    ),
    "muon, other polynomial": (
        lambda p: Muon(p, 0.1, 0.9, 0.0, 3, (2.0, -1.5, 0.5), nesterov=False),
        lambda w, g: formulas.muon(w, g, 0.1, 0.9, 0.0, 3, (2.0, -1.5, 0.5), nesterov=False),
    ),
}


def stepped(make: Make, start: Any, gradients: Any, dtype: DType) -> Any:
    """The parameter after steps with the given gradients."""
    param = Tensor(start, dtype=dtype)
    optimizer = make([param])
    with Context(TRAINING=1):
        for gradient in gradients:
            param.grad = Tensor(gradient, dtype=dtype)
            optimizer.step()
    return param.numpy()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_muon_takes_any_shape_as_a_matrix(shape: tuple[int, ...]) -> None:
    start, gradients = numbers(*shape), numbers(2, *shape, seed=1)
    expected = formulas.muon(start, gradients, 0.1, 0.95, 0.1, 5, JORDAN)

    found = stepped(lambda p: Muon(p, 0.1), start, gradients, dtypes.float32)

    # five iterations magnify rounding by up to 3.4445**5, about 500
    numpy.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("name", FORMULAS)
def test_four_steps_end_where_the_paper_ends(name: str) -> None:
    make, formula = FORMULAS[name]
    start, gradients = numbers(3, 4), numbers(4, 3, 4, seed=1)

    found = stepped(make, start, gradients, dtypes.float64)

    numpy.testing.assert_allclose(found, formula(start, gradients), 1e-6, 1e-7)
    assert abs(found - start).max() > 1e-3


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_parameter_of_zeros_is_trusted_as_it_is(name: str) -> None:
    make, formula = FORMULAS[name]
    start, gradients = numpy.zeros((2, 3)), numbers(2, 2, 3, seed=1)

    found = stepped(make, start, gradients, dtypes.float64)

    numpy.testing.assert_allclose(found, formula(start, gradients), 1e-9)


@pytest.mark.parametrize("name", ["lars", "lamb", "muon"])
def test_a_gradient_of_zeros_leaves_numbers(name: str) -> None:
    make, formula = FORMULAS[name]
    start, gradients = numbers(2, 3), numpy.zeros((2, 2, 3))

    found = stepped(make, start, gradients, dtypes.float64)

    numpy.testing.assert_allclose(found, formula(start, gradients), 1e-6)


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(6, 2), (2, 6)], ids=["tall", "wide"])
def test_muon_ends_near_the_one_of_torch(adjust: Any, shape: tuple[int, int]) -> None:
    start, gradients = numbers(*shape), numbers(4, *shape, seed=1)
    theirs = torch.tensor(start, requires_grad=True)
    optimizer: Any = torch.optim.Muon([theirs], 0.1, adjust_lr_fn=adjust)
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient)
        optimizer.step()
    rows, columns = shape
    scales = {"original": max(1, rows / columns) ** 0.5, "match_rms_adamw": 0.2 * 6**0.5}

    found = stepped(lambda p: Muon(p, 0.1, adjust_lr_fn=adjust), start, gradients, dtypes.float64)

    exact = formulas.muon(start, gradients, 0.1, 0.95, 0.1, 5, JORDAN, scale=scales[adjust])
    numpy.testing.assert_allclose(found, exact, 1e-6, 1e-6)
    # torch iterates in bfloat16, of 8 bits: each of 4 steps is off by up to 5 % of 0.1
    numpy.testing.assert_allclose(found, theirs.detach().numpy(), atol=4 * 0.1 * 0.05 * 1.8)


def trained_once(optimizer: Optimizer, *params: Tensor) -> None:
    with Context(TRAINING=1):
        sum((param.square().sum() for param in params), Tensor(0.0)).backward()
        optimizer.step()


def test_the_learning_rate_can_be_assigned() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param], lr=100.0)

    optimizer.lr.assign([0.25])
    trained_once(optimizer, param)

    assert param.tolist() == [0.5]


def test_half_precision_parameters_keep_their_dtype_and_float32_state() -> None:
    param = Tensor([1.0, 2.0]).half()
    optimizer = Adam([param], lr=0.5)

    trained_once(optimizer, param)

    assert param.dtype is dtypes.float16
    assert optimizer.m[0].dtype is dtypes.float32
    assert param.tolist() == [0.5, 1.5]


def test_a_tensor_given_twice_is_stepped_once() -> None:
    param = Tensor([1.0])
    optimizer = SGD([param, param], lr=0.25)

    trained_once(optimizer, param)

    assert param.tolist() == [0.5]


def test_what_is_no_parameter_is_kept_beside() -> None:
    param, statistic = Tensor([1.0]), Tensor([2.0]).is_param_(False)

    optimizer = SGD([param, statistic])

    assert optimizer.params == [param]
    assert optimizer.buffers == [statistic]


def test_schedule_step_returns_what_to_realize() -> None:
    param, statistic = Tensor([1.0]), Tensor([2.0]).is_param_(False)
    optimizer = Adam([param, statistic])
    with Context(TRAINING=1):
        param.square().sum().backward()
        returned = {id(tensor) for tensor in optimizer.schedule_step()}

    state = [optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v]
    assert returned == {id(tensor) for tensor in [param, statistic, *state]}


def test_zero_grad_may_keep_zeros() -> None:
    trained, other = Tensor([1.0, 2.0]), Tensor([3.0])
    trained.grad = Tensor([0.5, 0.5])

    OptimizerGroup(SGD([trained]), SGD([other])).zero_grad(set_to_none=False)

    assert trained.grad.tolist() == [0.0, 0.0]
    assert other.grad is None


def test_zero_grad_forgets() -> None:
    param = Tensor([1.0])
    param.square().sum().backward()

    SGD([param]).zero_grad()

    assert param.grad is None


def test_a_group_shows_its_members() -> None:
    first, second = SGD([Tensor([1.0])]), Adam([Tensor([2.0])])

    group = OptimizerGroup(first, second)

    assert group[1] is second
    assert group.params == [*first.params, *second.params]


def test_state_has_names() -> None:
    names = set(get_state_dict(Adam([Tensor([1.0])])))

    assert names == {"lr", "b1_t", "b2_t", "m.0", "v.0"}


def test_a_checkpoint_of_a_model_and_its_optimizer_holds_the_weights_once() -> None:
    model = [nn.Linear(2, 3), nn.BatchNorm(3)]
    optimizer = OptimizerGroup(SGD(nn.state.get_parameters(model), momentum=0.9))

    state = get_state_dict({"model": model, "optimizer": optimizer})

    assert len({id(tensor) for tensor in state.values()}) == len(state)
    assert sorted(name for name in state if name.startswith("optimizer")) == [
        *[f"optimizer.optimizers.0.b.{n}" for n in range(4)],
        "optimizer.optimizers.0.lr",
    ]


def test_fused_state_is_one_tensor() -> None:
    optimizer = Adam([Tensor.ones(2, 3), Tensor.ones(4)], fused=True)

    assert [tensor.shape for tensor in (*optimizer.m, *optimizer.v)] == [(10,), (10,)]


def test_a_stopped_step_changes_nothing() -> None:
    param = Tensor([1.0, 2.0])
    optimizer = AdamW([param], lr=0.5)
    all_of_it = {"param": param, "optimizer": optimizer}
    before = {name: tensor.tolist() for name, tensor in get_state_dict(all_of_it).items()}
    with Context(TRAINING=1):
        param.grad = Tensor([numpy.nan, numpy.inf])
        Tensor.realize(*optimizer.schedule_step(proceed=Tensor([False])))

    assert {n: tensor.tolist() for n, tensor in get_state_dict(all_of_it).items()} == before


# --- what is refused


def test_nothing_to_optimize() -> None:
    with pytest.raises(ArgumentError, match="at least one parameter"):
        SGD([])
    with pytest.raises(ArgumentError, match="requires_grad of all 1 tensors given is False"):
        SGD([Tensor([1.0]).is_param_(False)])


def test_layers_that_no_optimizer_has_taken_are_selected_by_is_param() -> None:
    weights = nn.state.get_parameters(nn.Linear(2, 2))

    assert len(SGD([weight for weight in weights if weight.is_param]).params) == 2
    with pytest.raises(ArgumentError, match="Select those to train by `is_param`"):
        SGD([weight for weight in nn.state.get_parameters(nn.Linear(2, 2)) if weight.requires_grad])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: SGD(p, lr=-1.0), "SGD: lr cannot be negative, got -1.0"),
        (lambda p: SGD(p, momentum=-0.5), "SGD: momentum cannot be negative, got -0.5"),
        (lambda p: SGD(p, weight_decay=numpy.nan), "weight_decay cannot be negative, got nan"),
        (lambda p: LAMB(p, betas=(0.9, 1.5)), r"LAMB: b2 lies in \[0, 1\), got 1.5"),
        (lambda p: AdamW(p, b1=1.0), r"AdamW: b1 lies in \[0, 1\), got 1.0"),
        (lambda p: Adam(p, b2=-0.1), r"Adam: b2 lies in \[0, 1\), got -0.1"),
        (lambda p: LAMB(p, eps=-1e-8), "LAMB: eps cannot be negative, got -1e-08"),
        (lambda p: LARS(p, tcoef=-1.0), "LARS: tcoef cannot be negative, got -1.0"),
        (lambda p: Muon(p, fused=True), "Muon treats each parameter by itself; leave out fused"),
        (lambda p: LARS(p, fused=True), "LARS treats each parameter by itself; leave out fused"),
        (lambda p: LAMB(p, fused=True), "LAMB treats each parameter by itself; leave out fused"),
        (lambda p: Muon(p, adjust_lr_fn="x"), "'original', 'match_rms_adamw', not 'x'"),
        (lambda p: OptimizerGroup(), "a group needs at least one optimizer"),
        (lambda p: OptimizerGroup(SGD(p), Adam(p[:1])), "in more than one optimizer of the group"),
    ],
)
def test_arguments_out_of_range(make: Make, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make([Tensor([1.0])])


def test_a_step_outside_training() -> None:
    with Context(TRAINING=0), pytest.raises(GradientError, match=r"with Context\(TRAINING=1\):"):
        SGD([Tensor([1.0])]).step()


def test_a_step_without_a_gradient() -> None:
    with (
        Context(TRAINING=1),
        pytest.raises(GradientError, match=r"parameter 0 of 1, of shape \(2,\)"),
    ):
        SGD([Tensor([1.0, 2.0])]).step()


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_parameters_without_a_gradient_are_left_as_they_are(name: str) -> None:
    ours, theirs = PAIRS[name]
    first, idle, last = Tensor([1.0, 2.0]), Tensor([3.0]), Tensor([[4.0]])
    optimizer = ours([first, idle, last])
    expected = [torch.tensor(t.tolist(), requires_grad=True) for t in (first, idle, last)]
    walker = theirs(expected)
    for _ in range(3):
        optimizer.zero_grad()
        walker.zero_grad()
        torch.autograd.backward((expected[0] * expected[0]).sum() * expected[2].sum())
        walker.step()
        with Context(TRAINING=1):
            ((first * first).sum() * last.sum()).backward()
            optimizer.step()

    for found, wanted in zip((first, idle, last), expected, strict=True):
        assert_near(found.numpy(), wanted.detach().numpy(), dtypes.float32)


def test_fused_parameters_all_need_a_gradient() -> None:
    first, idle = Tensor([1.0]), Tensor([3.0])
    optimizer = SGD([first, idle], fused=True)
    (first * 2).sum().backward()
    with Context(TRAINING=1), pytest.raises(GradientError, match=r"parameter 1 of 2.*fused=True"):
        optimizer.step()


def test_betas_are_two_numbers() -> None:
    options: Any = {"betas": 0.9}
    with pytest.raises(ArgumentTypeError, match=r"Adam: betas are two numbers, got 0\.9"):
        Adam([Tensor([1.0])], **options)


def test_inputs_get_no_gradient_once_an_optimizer_says_what_is_trained() -> None:
    x, weight = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    SGD([weight], lr=0.1)
    (x * weight).sum().backward()

    assert x.grad is None
    assert weight.grad is not None


def test_parameters_that_are_the_gradients_of_each_other_step_at_once() -> None:
    first, second = Tensor([1.0]), Tensor([2.0])
    optimizer = SGD([first, second], lr=0.5)
    with Context(TRAINING=1):
        (first * second).sum().backward()
        optimizer.step()

    assert [first.tolist(), second.tolist()] == [[0.0], [1.5]]


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        (lambda: nn.Linear(2, 2), {}, "SGD: params is of type Linear; .*get_parameters"),
        (lambda: Tensor([1.0]), {}, r"SGD: params is of type Tensor; .*\[tensor\]"),
        (lambda: [1.0], {}, "parameter 0 is 1.0 of type float"),
        (lambda: [{"params": []}], {}, r"parameter 0 is a dict.*OptimizerGroup\(SGD\(first, lr"),
        (lambda: [Tensor([1.0])], {"lr": "0.1"}, "lr is '0.1' of type str; it must be a number"),
    ],
)
def test_what_is_no_parameter_or_rate_is_told(params: Any, options: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        nn.optim.SGD(params(), **options)


def test_a_rate_may_be_set_to_a_number() -> None:
    weight = Tensor([1.0], requires_grad=True)
    optimizer: Any = nn.optim.SGD([weight], lr=0.1)
    rate = optimizer.lr

    optimizer.lr = 0.5
    (weight * 2).sum().backward()
    with Tensor.train():
        optimizer.step()

    assert optimizer.lr is rate
    assert weight.item() == 0.0
    with pytest.raises(ArgumentTypeError, match="lr is 'fast'"):
        optimizer.lr = "fast"


def test_names_of_torchs_optimizers_are_answered() -> None:
    optimizer: Any = nn.optim.SGD([Tensor([1.0])])

    with pytest.raises(AttributeError, match=r"no 'param_groups'; here it is optimizer\.lr"):
        _ = optimizer.param_groups


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_step_that_fails_half_way_changes_nothing(
    lazy: bool, scaled: bool, scheduled: bool
) -> None:
    """The second optimizer finds no gradient when the first has written all of its down."""
    first, second = (Tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    if lazy:
        first = (Tensor([0.5, 1.0]).realize() * 2).requires_grad_()
    else:
        first.realize()
    view = first.detach()[1:]
    group = OptimizerGroup(Adam([first], lr=0.5), SGD([second], lr=0.5, momentum=0.5))
    scaler = nn.optim.GradScaler(init_scale=1.0)

    def step() -> None:
        if scheduled:
            Tensor.realize(*(scaler.schedule_step(group) if scaled else group.schedule_step()))
        elif scaled:
            scaler.step(group)
        else:
            group.step()

    state = nn.state.get_parameters(group)
    (first * first).sum().backward()
    before = [t.tolist() for t in state if t is not first]

    with Context(TRAINING=1):
        with pytest.raises(GradientError, match="no gradient"):
            step()

        assert (first.tolist(), view.tolist()) == ([1.0, 2.0], [2.0])
        assert [t.tolist() for t in state if t is not first] == before
        (first * second).sum().backward()
        assert second.grad is not None
        assert second.grad.tolist() == [1.0, 2.0]
        step()
        assert first.tolist() == pytest.approx([0.5, 1.5], abs=1e-3)
        assert view.tolist() == pytest.approx([1.5], abs=1e-3)
        assert second.tolist() == [0.5, 1.0]


def test_a_rate_may_be_a_tensor_of_one_element() -> None:
    weight, rate = Tensor([1.0, 2.0], requires_grad=True), Tensor(0.5)
    optimizer = SGD([weight], lr=rate)
    rate += 1  # its number is taken when the optimizer is made
    _ = (weight * weight).sum().backward()
    with Tensor.train():
        optimizer.step()

    assert weight.tolist() == [0.0, 0.0]
    assert optimizer.initial_lr == 0.5
    with pytest.raises(ArgumentError, match=r"SGD: lr is one number, got shape \(2,\)"):
        SGD([weight], lr=Tensor([0.1, 0.2]))


@pytest.mark.parametrize(
    "make", [lambda p, at: LAMB(p, 0.1, device=at), lambda p, at: Adam(p, 0.1, device=at)]
)
def test_the_state_may_lie_on_another_device(
    make: Callable[[list[Tensor], str | None], Optimizer],
) -> None:
    found = []
    for device in ("PYTHON:1", None):
        weight = Tensor(WEIGHT, device="PYTHON", requires_grad=True)
        optimizer = make([weight], device)
        for _ in range(2):
            optimizer.zero_grad()
            weight.square().sum().backward()
            with Tensor.train():
                optimizer.step()
        assert weight.device == "PYTHON"
        found.append(weight.numpy())

    numpy.testing.assert_allclose(found[0], found[1], rtol=1e-6)
