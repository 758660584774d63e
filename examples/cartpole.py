"""Train a small network to balance a pole on a cart: Q-learning with a replay buffer.

    python examples/cartpole.py

DQN (https://doi.org/10.1038/nature14236) learns the value of each action in each state. What
happened is kept in a buffer, and every step trains on a random batch of it: the value of an action
is its reward, and the best value that a slowly following copy of the network sees afterwards.
Several carts are driven at once. A move is worth more near the middle of the track, and a pole held
up for 500 moves is the best result. How close one comes depends on the seed, as it does in DQN.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy
from tqdm import trange

from tinycore import Tensor, TinyJit, nn

LONGEST = 500
"""Moves after which an episode ends, though the pole still stands."""
END = 2.4
"""Meters from the middle of the track to its ends."""
DISCOUNT = 0.99
"""Discount of the value of a state one move later."""
FOLLOW = 0.01
"""The share by which the copy's weights move towards the network's in each step."""


class Carts:
    """Carts with a pole each (Barto, Sutton and Anderson 1983): place, speed, angle, its speed."""

    def __init__(self, count: int, seed: int) -> None:
        self.numbers = numpy.random.default_rng(seed)
        self.states = self.fresh(count)
        self.moves = numpy.zeros(count, dtype=int)

    def fresh(self, count: int) -> numpy.ndarray:
        """States (count, 4) of poles that nearly stand still."""
        return self.numbers.uniform(-0.05, 0.05, (count, 4)).astype(numpy.float32)

    def move(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """Push left (0) or right (1) for 0.02 s: states after it, which fell, lengths of episodes.

        What fell, or stood for long enough, begins anew.
        """
        _, speed, angle, turning = self.states.T
        sine, cosine = numpy.sin(angle), numpy.cos(angle)
        # a cart of 1 kg, a pole of 0.1 kg and 1 m, a force of 10 N
        push = (20 * actions - 10 + 0.05 * turning**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        change = numpy.stack([speed, push - 0.05 * turn * cosine / 1.1, turning, turn], axis=1)
        after = (self.states + 0.02 * change).astype(numpy.float32)
        self.moves += 1
        fell = (abs(after[:, 0]) > END) | (abs(after[:, 2]) > numpy.radians(12))
        ended = fell | (self.moves == LONGEST)
        lengths = self.moves[ended]
        self.states, self.moves = after.copy(), numpy.where(ended, 0, self.moves)
        self.states[ended] = self.fresh(len(lengths))
        return after, fell, lengths


class Values:
    """States (N, 4) -> the value of each action (N, 2)."""

    def __init__(self, features: int) -> None:
        self.enter = nn.Linear(4, features)
        self.hidden = nn.Linear(features, features)
        self.leave = nn.Linear(features, 2)

    def __call__(self, states: Tensor) -> Tensor:
        """Two layers, and a number for each action."""
        seen = states * Tensor([1.0, 1.0, 10.0, 1.0])  # an angle is at most 0.2
        return self.leave(self.hidden(self.enter(seen).relu()).relu())


class Replay:
    """A ring of the newest moves, in rows: state, action, state after it, whether it fell."""

    def __init__(self, size: int) -> None:
        self.rows = numpy.zeros((size, 10), dtype=numpy.float32)
        self.written = 0

    def write(self, *columns: numpy.ndarray) -> None:
        """Keep a move of each cart, in place of the oldest."""
        new = numpy.column_stack(columns)
        self.rows[(self.written + numpy.arange(len(new))) % len(self.rows)] = new
        self.written += len(new)

    def drawn(self, count: int, numbers: numpy.random.Generator) -> Tensor:
        """A random batch (count, 10)."""
        return Tensor(self.rows[numbers.integers(0, min(self.written, len(self.rows)), count)])


def main() -> None:
    """Drive, and learn from it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--carts", type=int, default=8)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3, help="the learning rate")
    parser.add_argument("--replay", type=int, default=20000, help="moves to keep")
    parser.add_argument("--explore", type=float, default=0.3, help="share of the steps")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    Tensor.manual_seed(options.seed)
    carts, replay = Carts(options.carts, options.seed), Replay(options.replay)
    model, copy = Values(options.features), Values(options.features)
    nn.state.load_state_dict(copy, nn.state.get_state_dict(model), verbose=False)
    weights, followers = nn.state.get_parameters(model), nn.state.get_parameters(copy)
    optimizer = nn.optim.Adam(weights, lr=options.rate)

    @TinyJit
    @Tensor.train()
    def train_step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        states, actions, after, fell = rows.split([4, 1, 4, 1], dim=1)
        ahead = copy(after).max(1, keepdim=True).detach()
        reward = 1 - (after[:, :1] / END).square()  # the middle of the track is the best place
        target = (1 - fell) * (reward + DISCOUNT * ahead)
        loss = (model(states).gather(1, actions.cast("int32")) - target).square().mean().backward()
        changed = optimizer.schedule_step()
        for follower, weight in zip(followers, weights, strict=True):
            follower.assign(follower + FOLLOW * (weight - follower))
        return loss.realize(*changed, *followers)

    @TinyJit
    def best(states: Tensor) -> Tensor:
        return model(states).argmax(1)

    start, lengths = time.perf_counter(), []
    for step in (progress := trange(options.steps, disable=None)):
        explored = max(1 - step / (options.explore * options.steps), 0.02)
        random = carts.numbers.random(options.carts) < explored
        any_action = carts.numbers.integers(0, 2, options.carts)
        states = carts.states
        actions = numpy.where(random, any_action, best(Tensor(states)).numpy())
        after, fell, ended = carts.move(actions)
        replay.write(states, actions, after, fell)
        lengths.extend(ended)
        loss = train_step(replay.drawn(options.batch, carts.numbers)).item()
        progress.set_description(f"{numpy.mean(lengths[-20:] or [0]):3.0f} moves, loss {loss:7.3f}")
    seconds = time.perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s")
    print(f"{numpy.mean(lengths[:20]):.0f} moves of {LONGEST} at first")

    carts, lengths = Carts(options.carts, options.seed + 1), []
    while len(lengths) < options.carts:
        lengths.extend(carts.move(best(Tensor(carts.states)).numpy())[2])
    print(f"{numpy.mean(lengths):.0f} moves of {LONGEST} without exploring")
    print(f"its timeline: VIZ=2 python {sys.argv[0]}")


if __name__ == "__main__":
    main()
