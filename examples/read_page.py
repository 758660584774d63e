"""Read a printed page with PP-OCR: where the lines are, then what they say.

    python examples/read_page.py page.png --picture lines.png

Two ONNX files: one marks the pixels of text, whose clusters are lines; the other reads a line, a
character or none for each of its narrow columns. The picture shows the lines that were found.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

import numpy
from PIL import Image, ImageDraw
from tqdm import tqdm
from weights import file_of

from tiny_onnx import OnnxRunner

PACKAGE, FOLDER = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models"
FINDER = "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"
READER = "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"
LEAST, GROWTH = 0.3, 1.6
"""Chance that counts as text; and marks are thinner than lines: the area that surrounds them,
as a share of their own, over their border."""
HEIGHT, STEP = 48, 160
"""Height of a line that is read; the width of the widest is rounded up to this."""

Box = tuple[int, int, int, int]


def pixels_of(image: Image.Image, mean: tuple, spread: tuple) -> numpy.ndarray:
    """Colors, blue first, around 0: (1, 3, height, width)."""
    colors = (numpy.asarray(image, numpy.float32)[..., ::-1] / 255 - mean) / spread
    return colors.transpose(2, 0, 1)[None].astype(numpy.float32)


def lines_of(model: OnnxRunner, page: Image.Image) -> list[Box]:
    """The boxes of lines, from the top: left, top, right, bottom."""
    scale = max(1, 736 / min(page.size))  # small pages are enlarged
    size = [round(side * scale / 32) * 32 for side in page.size]
    given = pixels_of(page.resize(size), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    (chances,) = model(x=given).values()
    across, down = page.width / size[0], page.height / size[1]
    found = []
    for left, top, right, bottom in clusters(chances.numpy()[0, 0] > LEAST):
        wide, high = right - left, bottom - top
        if min(wide, high) >= 3:
            more = GROWTH * wide * high / (2 * (wide + high))
            sides = ((left - more) * across, (top - more) * down,
                     (right + more) * across, (bottom + more) * down)  # fmt: skip
            found.append(tuple(max(0, round(side)) for side in sides))
    return sorted(found, key=lambda box: (box[1] + box[3], box[0]))


def clusters(is_marked: numpy.ndarray) -> list[Box]:
    """The boxes around marks that touch: runs of each row, joined with those of the row above."""
    boxes: dict[int, list[int]] = {}
    owner: dict[int, int] = {}

    def root(number: int) -> int:
        while owner[number] != number:
            number = owner[number]
        return number

    above: list[tuple[int, int, int]] = []
    for row, marks in enumerate(is_marked):
        edges = numpy.flatnonzero(numpy.diff(numpy.concatenate([[0], marks, [0]])))
        runs = []
        for first, last in edges.reshape(-1, 2).tolist():
            number = len(owner)
            owner[number], boxes[number] = number, [first, row, last, row + 1]
            for begin, end, other in above:
                if begin < last and first < end and (to := root(other)) != (new := root(number)):
                    owner[new], gone = to, boxes.pop(new)
                    kept = boxes[to]
                    boxes[to] = [min(kept[0], gone[0]), min(kept[1], gone[1]),
                                 max(kept[2], gone[2]), max(kept[3], gone[3])]  # fmt: skip
            runs.append((first, last, number))
        above = runs
    return [tuple(box) for box in boxes.values()]


def resized(line: Image.Image) -> Image.Image:
    """A line of the height that is read."""
    width = max(8, round(HEIGHT * line.width / line.height))
    return line.resize((width, HEIGHT), Image.Resampling.BILINEAR)


def text_of(model: OnnxRunner, characters: list[str], line: Image.Image, width: int) -> str:
    """Text of a line, padded to a width: characters that follow another one, or none."""
    given = numpy.zeros((1, 3, HEIGHT, width), numpy.float32)
    given[..., : line.width] = pixels_of(line, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    (chances,) = model(x=given).values()
    best = chances.numpy()[0].argmax(-1)
    kept = best[(best > 0) & (best != numpy.concatenate([[0], best[:-1]]))]
    return "".join(characters[place] for place in kept).strip()


def main() -> None:
    """Find the lines, read each, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="an image of printed text, upright")
    parser.add_argument("--picture", type=Path, help="PNG to write")
    options = parser.parse_args()

    finder = OnnxRunner(file_of(PACKAGE, f"{FOLDER}/ch_PP-OCRv4_det_infer.onnx", FINDER))
    reader = OnnxRunner(file_of(PACKAGE, f"{FOLDER}/ch_PP-OCRv4_rec_infer.onnx", READER))
    characters = ["", *reader.model.metadata["character"].splitlines(), " "]
    with Image.open(options.page) as file:
        page = file.convert("RGB")
    start = time.perf_counter()
    boxes = lines_of(finder, page)
    lines = [resized(page.crop(box)) for box in boxes]
    width = -(-max((line.width for line in lines), default=1) // STEP) * STEP  # one capture for all
    texts = [
        text_of(reader, characters, line, width) for line in tqdm(lines, unit="line", disable=None)
    ]
    seconds = time.perf_counter() - start
    print(*texts, sep="\n")
    print(f"{len(texts)} lines in {seconds:.1f} s")
    if options.picture:
        draw = ImageDraw.Draw(page)
        for box in boxes:
            draw.rectangle(box, outline="red")
        page.save(options.picture)
        print(f"see {options.picture}")
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


if __name__ == "__main__":
    main()
