"""Train a small transformer to write strings of symbols backwards.

    python examples/transformer.py
    DEV=CL python examples/transformer.py --steps 100

The model sees a string and then a mark, and has to predict what follows: the string in reverse.
Guessing among 10 symbols gives a loss of ln 10 = 2.303. Only attention to the right position does
better: strings are drawn anew at every step, so there is nothing to memorize.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tqdm import trange

from tinycore import Tensor, TinyJit, nn

SYMBOLS = 10
MARK = SYMBOLS
"""The token after which the string is said backwards."""


class Block:
    """Attention to what came before, then layers for each place alone: x (N, L, E) -> the same."""

    def __init__(self, features: int, heads: int) -> None:
        self.attention = nn.MultiHeadAttention(features, heads)
        self.before_attention = nn.LayerNorm(features)
        self.before_layers = nn.LayerNorm(features)
        self.wide = nn.Linear(features, 4 * features)
        self.narrow = nn.Linear(4 * features, features)

    def __call__(self, x: Tensor) -> Tensor:
        """Both add to what was there."""
        x = x + self.attention(self.before_attention(x), is_causal=True)
        return x + self.narrow(self.wide(self.before_layers(x)).gelu())


class Transformer:
    """Tokens (N, L) -> the scores of the token that follows each (N, L, SYMBOLS)."""

    def __init__(self, places: int, features: int, heads: int, blocks: int) -> None:
        self.token = nn.Embedding(SYMBOLS + 1, features)
        self.place = nn.Embedding(places, features)
        self.blocks: list[Callable[[Tensor], Tensor]] = [
            Block(features, heads) for _ in range(blocks)
        ]
        self.norm = nn.LayerNorm(features)
        self.scores = nn.Linear(features, SYMBOLS)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Every token is known by itself and by its place."""
        places = Tensor.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.place(places)
        return self.scores(self.norm(x.sequential(self.blocks)))


def drawn(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Strings with their mark and the answer but for its end; and the answers (count, length)."""
    strings = Tensor.randint(count, length, high=SYMBOLS)
    answers = strings.flip(1)
    mark = Tensor.full((count, 1), MARK, dtype=strings.dtype)
    return Tensor.cat(strings, mark, answers[:, :-1], dim=1), answers


def main() -> None:
    """Train, then ask for strings that were not seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=8, help="symbols in a string")
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--rate", type=float, default=0.01, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    Tensor.manual_seed(options.seed)
    model = Transformer(2 * options.length, options.features, options.heads, options.blocks)
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=options.rate)

    @TinyJit
    @Tensor.train()
    def train_step() -> Tensor:
        optimizer.zero_grad()
        tokens, answers = drawn(options.batch, options.length)
        scores = model(tokens)[:, options.length :]
        loss = scores.flatten(0, 1).sparse_categorical_crossentropy(answers.flatten()).backward()
        return loss.realize(*optimizer.schedule_step())

    start, losses = time.perf_counter(), []
    for _ in (progress := trange(options.steps, disable=None)):
        losses.append(train_step().item())
        progress.set_description(f"loss {losses[-1]:5.3f}")
    seconds = time.perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s, loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    tokens, answers = drawn(256, options.length)
    said = model(tokens)[:, options.length :].argmax(-1)
    right = (said == answers).float().mean()
    Tensor.realize(tokens, said, right)
    print(f"{right.item():.1%} of the symbols of unseen strings are right, such as")
    for string, answer in zip(tokens[:3].tolist(), said[:3].tolist(), strict=True):
        print(f"  {' '.join(map(str, string[: options.length]))} -> {' '.join(map(str, answer))}")
    print(f"its timeline: VIZ=2 python {sys.argv[0]}")


if __name__ == "__main__":
    main()
