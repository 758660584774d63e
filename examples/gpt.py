"""Train a small GPT on the characters of a text, from scratch, and let it continue the text.

    python examples/gpt.py docs/*.md
    python examples/gpt.py shakespeare.txt --steps 5000 --blocks 6 --features 384

The last tenth of the text is held out: the loss there says what was learned, rather than
remembered, and the sample continues its beginning. Guessing among C characters costs ln C.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy
from tqdm import trange

from tinycore import Tensor, TinyJit, nn
from tinycore.nn.optim.lr_scheduler import CosineAnnealingLR


class Block:
    """Attention to what came before, then layers for each place alone: x (N, L, E) -> the same."""

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        self.attention = nn.MultiHeadAttention(features, heads, dropout=dropout)
        self.before_attention = nn.LayerNorm(features)
        self.before_layers = nn.LayerNorm(features)
        self.wide = nn.Linear(features, 4 * features)
        self.narrow = nn.Linear(4 * features, features)
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: Tensor) -> Tensor:
        """Both add to what was there."""
        x = x + self.dropout(self.attention(self.before_attention(x), is_causal=True))
        return x + self.dropout(self.narrow(self.wide(self.before_layers(x)).gelu()))


class Gpt:
    """Tokens (N, L) -> the scores of the token that follows each (N, L, tokens)."""

    def __init__(self, tokens: int, options: argparse.Namespace) -> None:
        features = options.features
        self.token = nn.Embedding(tokens, features)
        self.place = nn.Embedding(options.context, features)
        self.blocks = [
            Block(features, options.heads, options.dropout) for _ in range(options.blocks)
        ]
        self.norm = nn.LayerNorm(features)
        self.scores = nn.Linear(features, tokens)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Every token is known by itself and by its place."""
        x = self.token(tokens) + self.place(Tensor.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))

    def loss(self, text: Tensor, starts: Tensor, length: int) -> Tensor:
        """The mean loss of each next token, of the excerpts that begin at `starts` (N,)."""
        excerpts = text[starts.unsqueeze(1) + Tensor.arange(length + 1)]
        scores = self(excerpts[:, :-1]).flatten(0, 1)
        return scores.sparse_categorical_crossentropy(excerpts[:, 1:].flatten())


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", nargs="+", type=Path, help="files in UTF-8, read as one")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--features", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--sample", type=int, default=300, help="characters to write at the end")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train, test on what was held out, and write."""
    options = parsed()
    text = "\n".join(path.read_text(encoding="utf-8") for path in options.text)
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    encoded = numpy.array([numbers[character] for character in text], dtype=numpy.int32)
    held_out = len(text) // 10
    if held_out <= options.context:
        sys.exit(f"{len(text)} characters are too few: needs {10 * (options.context + 1)} of them")
    train, test = Tensor(encoded[:-held_out]), Tensor(encoded[-held_out:])

    Tensor.manual_seed(options.seed)
    model = Gpt(len(characters), options)
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=options.rate)
    schedule = CosineAnnealingLR(optimizer, options.steps)

    @TinyJit
    @Tensor.train()
    def train_step() -> Tensor:
        optimizer.zero_grad()
        starts = Tensor.randint(options.batch, high=train.shape[0] - options.context)
        loss = model.loss(train, starts, options.context).backward()
        return loss.realize(*optimizer.schedule_step(), *schedule.schedule_step())

    @TinyJit
    def shifted(window: Tensor) -> Tensor:
        weights = (model(window)[:, -1] / options.temperature).softmax()
        return Tensor.cat(window[:, 1:], weights.multinomial().cast(window.dtype), dim=1)

    start = time.perf_counter()
    for _ in (progress := trange(options.steps, disable=None)):
        progress.set_description(f"loss {train_step().item():5.3f}")
    seconds = time.perf_counter() - start

    starts = Tensor.arange(0, held_out - options.context, options.context)
    loss = model.loss(test, starts, options.context).item()
    guessed = numpy.log(len(characters))
    print(f"{options.steps} steps in {seconds:.1f} s; held out: loss {guessed:.3f} -> {loss:.3f}")

    window = test[: options.context].unsqueeze(0).contiguous()
    written = window[0].tolist()
    for _ in trange(options.sample, desc="writing", leave=False, disable=None):
        window = shifted(window)
        written.append(window[0, -1].item())
    print("".join(characters[number] for number in written))
    print(f"its timeline: VIZ=2 python {sys.argv[0]} {options.text[0]}")


if __name__ == "__main__":
    main()
