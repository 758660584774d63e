"""Find where somebody speaks in a recording, with silero's voice activity detector.

    python examples/voice.py speech.wav --picture speech.png

The model is an ONNX file: convolutions and an LSTM, whose state is handed from one frame of 32 ms
to the next. The picture shows the sound, and in color where there is speech.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
import wave
from pathlib import Path

import numpy
from PIL import Image, ImageDraw
from tqdm import tqdm
from weights import file_of

from tiny_onnx import OnnxRunner
from tinycore import Tensor

RATE, FRAME, BEFORE = 16000, 512, 64
"""Samples in a second, in a frame, and of the frame before that the model sees as well."""


def samples_of(path: Path) -> numpy.ndarray:
    """The samples of a WAV file of 16 bits, one channel and 16 kHz, from -1 to 1."""
    with wave.open(str(path)) as file:
        form = (file.getframerate(), file.getnchannels(), file.getsampwidth())
        if form != (RATE, 1, 2):
            raise SystemExit(f"{path} must have {RATE} Hz, one channel and 16 bits, not {form}")
        content = file.readframes(file.getnframes())
    return numpy.frombuffer(content, "<i2").astype(numpy.float32) / 32768


def chances_of(model: OnnxRunner, samples: numpy.ndarray) -> numpy.ndarray:
    """The chance of speech in each frame."""
    state, rate = Tensor.zeros(2, 1, 128), numpy.array(RATE)
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    before, found = numpy.zeros(BEFORE, numpy.float32), []
    for frame in tqdm(frames, disable=None):
        given = numpy.concatenate([before, frame])[None]
        results = model(input=given, state=state, sr=rate)
        state, before = results["stateN"], frame[-BEFORE:]
        found.append(results["output"].item())
    return numpy.array(found)


def spans_of(chances: numpy.ndarray, least: float, most_pause: int) -> list[tuple[int, int]]:
    """First and last frames of speech, where shorter pauses than this are no pauses."""
    spans: list[tuple[int, int]] = []
    for number in numpy.flatnonzero(chances > least).tolist():
        if spans and number - spans[-1][1] <= most_pause:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def write_picture(path: Path, samples: numpy.ndarray, chances: numpy.ndarray) -> None:
    """The loudness of each frame as a bar, from gray to green by its chance of speech."""
    loud = numpy.abs(samples[: len(chances) * FRAME].reshape(-1, FRAME)).max(1)
    image = Image.new("RGB", (4 * len(chances), 160), "white")
    draw = ImageDraw.Draw(image)
    for number, (height, chance) in enumerate(zip(loud / loud.max() * 76, chances, strict=True)):
        color = (int(200 * (1 - chance)), int(200 - 40 * chance), int(200 - 130 * chance))
        draw.rectangle((4 * number, 79 - height, 4 * number + 2, 80 + height), fill=color)
    image.save(path)


def main() -> None:
    """Run the model over a recording, and print when somebody speaks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recording", type=Path, help="a WAV file: 16 kHz, one channel, 16 bits")
    parser.add_argument("--least", type=float, default=0.5, help="chance that counts as speech")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds that part two spans")
    parser.add_argument("--picture", type=Path, help="PNG to write")
    options = parser.parse_args()

    model = OnnxRunner(
        file_of(
            "silero-vad==6.2.3",
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        )
    )
    samples, start = samples_of(options.recording), time.perf_counter()
    chances = chances_of(model, samples)
    seconds = time.perf_counter() - start
    for first, last in spans_of(chances, options.least, round(options.pause * RATE / FRAME)):
        print(f"speech from {first * FRAME / RATE:6.2f} s to {(last + 1) * FRAME / RATE:6.2f} s")
    print(f"{(chances > options.least).sum()} of {len(chances)} frames, in {seconds:.2f} s")
    if options.picture:
        write_picture(options.picture, samples, chances)
        print(f"see {options.picture}")
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


if __name__ == "__main__":
    main()
