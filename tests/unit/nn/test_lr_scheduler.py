"""Learning rates follow torch's over whole trajectories, eager and captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tinycore import Context, Tensor, TinyJit, dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.nn.optim import SGD, Adam, OptimizerGroup, lr_scheduler
from tinycore.nn.state import get_state_dict, load_state_dict

ours: Any = lr_scheduler  # as what a wrong argument has no type for
theirs = torch.optim.lr_scheduler

Make = Callable[[Any, Any], Any]
BASE = 0.5

SCHEDULES: dict[str, tuple[int, Make]] = {
    "step": (12, lambda m, o: m.StepLR(o, 3, 0.5)),
    "step by the default": (25, lambda m, o: m.StepLR(o, 7)),
    "milestones": (10, lambda m, o: m.MultiStepLR(o, [2, 5, 5, 8], 0.3)),
    "exponential": (10, lambda m, o: m.ExponentialLR(o, 0.9)),
    "linear": (8, lambda m, o: m.LinearLR(o)),
    "warmup": (8, lambda m, o: m.LinearLR(o, 0.01, 1.0, 6)),
    "cooldown": (8, lambda m, o: m.LinearLR(o, 1.0, 0.25, 6)),
    "cosine": (10, lambda m, o: m.CosineAnnealingLR(o, 10)),
    "cosine down and up": (26, lambda m, o: m.CosineAnnealingLR(o, 10, 0.05)),
    "one cycle": (19, lambda m, o: m.OneCycleLR(o, 2.0, 20, cycle_momentum=False)),
    "one cycle in three": (
        20,
        lambda m, o: m.OneCycleLR(o, 2.0, 21, three_phase=True, cycle_momentum=False),
    ),
    "one cycle of lines": (
        17,
        lambda m, o: m.OneCycleLR(
            o,
            2.0,
            18,
            pct_start=0.45,
            anneal_strategy="linear",
            div_factor=10.0,
            final_div_factor=100.0,
            cycle_momentum=False,
        ),
    ),
    "warmup, then cosine": (
        14,
        lambda m, o: m.SequentialLR(
            o, [m.LinearLR(o, 0.1, 1.0, 4), m.CosineAnnealingLR(o, 10)], [4]
        ),
    ),
    "three after another": (
        14,
        lambda m, o: m.SequentialLR(
            o, [m.LinearLR(o, 0.1, 1.0, 4), m.ExponentialLR(o, 0.5), m.StepLR(o, 2, 0.3)], [3, 8]
        ),
    ),
    "function": (6, lambda m, o: m.LambdaLR(o, lambda count: 1 / (count + 1))),
}


class Without:
    """Our schedulers, called with an argument that only torch's have."""

    def __getattr__(self, name: str) -> Any:
        def made(*args: Any, cycle_momentum: bool = False, **options: Any) -> Any:
            return getattr(ours, name)(*args, **options)

        return made


def optimizer(base: float = BASE, dtype: Any = dtypes.float64) -> SGD:
    return SGD([Tensor([1.0], dtype=dtype)], lr=base)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def trajectory_of_torch(make: Make, steps: int) -> list[float]:
    their_optimizer = torch.optim.SGD([torch.ones(1)], BASE)
    scheduler = make(theirs, their_optimizer)
    rates = [their_optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        scheduler.step()
        rates.append(their_optimizer.param_groups[0]["lr"])
    return [float(rate) for rate in rates]


def trajectory(make: Make, steps: int, dtype: Any, captured: bool) -> list[float]:
    our_optimizer = optimizer(dtype=dtype)
    scheduler = make(Without(), our_optimizer)
    rates = [our_optimizer.lr.item()]
    step = TinyJit(scheduler.step) if captured else scheduler.step
    for _ in range(steps):
        step()
        rates.append(our_optimizer.lr.item())
    return rates


@pytest.mark.sample(8)
@pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_rate_is_that_of_torch(name: str) -> None:
    steps, make = SCHEDULES[name]
    expected = trajectory_of_torch(make, steps)

    for dtype, relative in ((dtypes.float64, 1e-9), (dtypes.float32, 2e-6)):
        found = trajectory(make, steps, dtype, captured=True)
        numpy.testing.assert_allclose(found, expected, relative, 1e-16, err_msg=f"{dtype!r}")


def test_a_step_by_hand_is_the_captured_one() -> None:
    steps, make = SCHEDULES["warmup, then cosine"]

    by_hand, replayed = (trajectory(make, steps, dtypes.float32, c) for c in (False, True))

    assert by_hand == replayed


def test_one_cycle_stays_where_it_ends() -> None:
    used = optimizer()
    scheduler = ours.OneCycleLR(used, 1.0, 5)
    for _ in range(9):
        scheduler.step()

    assert used.lr.item() == pytest.approx(1.0 / 25 / 1e4)


PLATEAUS: dict[str, dict[str, Any]] = {
    "min": {"patience": 2, "factor": 0.5},
    "max": {"mode": "max", "patience": 1, "factor": 0.1},
    "absolute": {"threshold_mode": "abs", "threshold": 0.2, "patience": 1, "factor": 0.3},
    "greatest, absolute": {
        "mode": "max",
        "threshold_mode": "abs",
        "threshold": 0.2,
        "patience": 0,
        "factor": 0.7,
    },
    "cooldown": {"cooldown": 3, "patience": 1, "factor": 0.5},
    "least rate": {"min_lr": 0.2, "patience": 0, "factor": 0.5},
    "least change": {"eps": 0.1, "patience": 0, "factor": 0.5},
}


@pytest.mark.parametrize("options", PLATEAUS.values(), ids=PLATEAUS)
def test_a_plateau_is_seen_where_torch_sees_it(options: dict[str, Any]) -> None:
    drawn = numpy.random.default_rng(5).uniform(0.5, 1.5, 25)
    results = (drawn + numpy.linspace(1, 0, 25)).astype(numpy.float32)
    used, their_optimizer = optimizer(), torch.optim.SGD([torch.ones(1)], BASE)
    scheduler = ours.ReduceLROnPlateau(used, **options)
    expected = theirs.ReduceLROnPlateau(their_optimizer, **options)
    step = TinyJit(scheduler.step)

    for result in results:
        step(Tensor(numpy.array([result])))
        expected.step(float(result))
        assert used.lr.item() == pytest.approx(their_optimizer.param_groups[0]["lr"], 1e-12)

    assert used.lr.item() < BASE


def test_a_plateau_takes_plain_numbers_too() -> None:
    used = optimizer()
    scheduler = ours.ReduceLROnPlateau(used, patience=0, factor=0.5)

    for result in (1.0, 1.0, 0.5, 2.0):
        scheduler.step(result)

    assert used.lr.item() == BASE / 4


def test_a_captured_training_step_reads_the_rate_of_the_scheduler() -> None:
    param = Tensor([0.0])
    used = SGD([param], lr=1.0)
    scheduler = ours.StepLR(used, 2, 0.5)

    @TinyJit
    @Context(TRAINING=1)
    def step() -> None:
        used.zero_grad()
        param.sum().backward()
        used.step()

    places = []
    for _ in range(6):
        step()
        scheduler.step()  # between the replays
        places.append(param.item())

    assert places == [-1.0, -2.0, -2.5, -3.0, -3.25, -3.5]


def test_every_rate_of_a_group_is_scheduled_from_where_it_began() -> None:
    group = OptimizerGroup(
        SGD([Tensor([1.0])], lr=1.0), OptimizerGroup(Adam([Tensor([1.0])], lr=0.5))
    )
    scheduler = ours.ExponentialLR(group, 0.5)
    scheduler.step()

    assert [rate.item() for rate in group.rates] == [0.5, 0.25]


def test_state_is_the_count_and_the_rates() -> None:
    used = optimizer()
    parts = [ours.LinearLR(used), ours.StepLR(used, 2)]

    scheduler = ours.SequentialLR(used, parts, [3])

    assert set(get_state_dict(scheduler)) == {"count", "rates.0"}
    assert set(get_state_dict(ours.ReduceLROnPlateau(used))) == {
        "best",
        "bad",
        "resting",
        "rates.0",
    }


def test_a_loaded_scheduler_goes_on() -> None:
    steps, make = SCHEDULES["cosine"]
    whole = trajectory(make, steps, dtypes.float32, captured=False)
    first = make(ours, optimizer(dtype=dtypes.float32))
    for _ in range(4):
        first.step()

    used = optimizer(dtype=dtypes.float32)
    second = make(ours, used)
    load_state_dict(second, get_state_dict(first), verbose=False)
    second.step()

    assert used.lr.item() == whole[5]


def test_a_loaded_plateau_goes_on() -> None:
    first, second = optimizer(), optimizer()
    before = ours.ReduceLROnPlateau(first, patience=1, cooldown=1)
    for result in (1.0, 2.0):
        before.step(result)

    after = ours.ReduceLROnPlateau(second, patience=1, cooldown=1)
    load_state_dict(after, get_state_dict(before), verbose=False)
    for result in (2.0, 0.5, 2.0, 2.0):
        before.step(result)
        after.step(result)
        assert get_values(after) == get_values(before)

    assert second.lr.item() == first.lr.item() < BASE / 50


def get_values(scheduler: object) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in get_state_dict(scheduler).items()}


# --- what is refused


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda o: ours.StepLR(o, 0), "StepLR: step_size must be a positive integer, got 0"),
        (lambda o: ours.ExponentialLR(o, 0.0), "a factor is positive and finite, got 0.0"),
        (lambda o: ours.LinearLR(o, total_iters=0), "total_iters must be a positive integer"),
        (lambda o: ours.LinearLR(o, -0.5), "start_factor cannot be negative, got -0.5"),
        (lambda o: ours.CosineAnnealingLR(o, -1), "T_max must be a positive integer, got -1"),
        (lambda o: ours.OneCycleLR(o, 1.0, 9, 1.5), r"pct_start lies in \[0, 1\], got 1.5"),
        (
            lambda o: ours.OneCycleLR(o, 1.0, 9, anneal_strategy="exp"),
            "'cos' or 'linear', not 'exp'",
        ),
        (lambda o: ours.LambdaLR(o, lambda _: 0.5), "lr_lambda computes a tensor, got 0.5"),
        (lambda o: ours.ReduceLROnPlateau(o, factor=1.0), r"factor lies in \(0, 1\), got 1.0"),
        (lambda o: ours.ReduceLROnPlateau(o, mode="best"), "got 'best' and 'rel'"),
        (
            lambda o: ours.SequentialLR(o, [ours.StepLR(o, 1)], [2]),
            "1 schedulers need 0 milestones, got 1",
        ),
        (
            lambda o: ours.SequentialLR(o, [ours.StepLR(o, 1)] * 3, [4, 4]),
            r"milestones must rise from 1, got \[4, 4\]",
        ),
        (
            lambda o: ours.SequentialLR(o, [ours.StepLR(optimizer(), 1), ours.StepLR(o, 1)], [4]),
            "scheduler 0 was made for another optimizer",
        ),
        (
            lambda o: ours.SequentialLR(o, [ours.StepLR(o, 1), ours.ReduceLROnPlateau(o)], [4]),
            "scheduler 1 is a ReduceLROnPlateau, whose rate is no function of the count",
        ),
    ],
)
def test_arguments_out_of_range(make: Callable[[Any], object], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make(optimizer())


def test_a_result_that_is_no_number() -> None:
    scheduler = ours.ReduceLROnPlateau(optimizer())

    with pytest.raises(ShapeError, match=r"a result is one number, got \(2,\)"):
        scheduler.step(Tensor([1.0, 2.0]))


def test_a_step_that_fails_between_two_rates_changes_none() -> None:
    optimizers = [SGD([Tensor([1.0]).realize()], lr=lr) for lr in (1.0, 0.5)]
    rule = lr_scheduler.ExponentialLR(OptimizerGroup(*optimizers), gamma=0.5)
    find, calls = rule.rate, iter([True, False])

    def found(*arguments: Any) -> Tensor:
        if not next(calls, True):
            raise KeyboardInterrupt
        return find(*arguments)

    rule.rate = found  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        rule.step()

    assert [t.tolist() for t in (rule.count, *rule.rates)] == [[0], [1.0], [0.5]]
    rule.step()
    assert [t.tolist() for t in (rule.count, *rule.rates)] == [[1], [0.5], [0.25]]
