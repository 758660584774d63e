"""Tell the types of files by their bytes, with magika.

    python examples/file_types.py * --least 0.8

A network of one-dimensional convolutions, an ONNX file, sees the first and the last 1024 bytes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

import numpy
from tqdm import trange
from weights import file_of

from tiny_onnx import OnnxRunner

PACKAGE, FOLDER = "magika==1.0.3", "magika/models/standard_v3_3"
MODEL = "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"
ABOUT = "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db"
BATCH = 8


def features(path: Path, about: dict) -> numpy.ndarray:
    """The first and last bytes without the white space around them; 256 where there are none."""
    block, begin, end = about["block_size"], about["beg_size"], about["end_size"]
    row = numpy.full(begin + end, about["padding_token"], numpy.int32)
    with path.open("rb") as file:
        first = file.read(block).lstrip()[:begin]
        file.seek(max(0, path.stat().st_size - block))
        last = file.read(block).rstrip()[-end:]
    row[: len(first)] = list(first)
    row[len(row) - len(last) :] = list(last)
    return row


def main() -> None:
    """Print the type of each file, and how sure that is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--least", type=float, default=0, help="say unknown below this chance")
    options = parser.parse_args()

    model = OnnxRunner(file_of(PACKAGE, f"{FOLDER}/model.onnx", MODEL))
    about = json.loads(file_of(PACKAGE, f"{FOLDER}/config.min.json", ABOUT).read_text())
    files = [path for path in options.files if path.is_file()]
    start, lines = time.perf_counter(), []
    for first in trange(0, len(files), BATCH, disable=None):
        rows = [features(path, about) for path in files[first : first + BATCH]]
        rows += [rows[0]] * (BATCH - len(rows))  # all batches of one size need one capture
        (chances,) = model(bytes=numpy.stack(rows)).values()
        for path, chance in zip(files[first : first + BATCH], chances.numpy(), strict=False):
            name = about["target_labels_space"][chance.argmax()]
            name = name if chance.max() >= options.least else "unknown"
            lines.append(f"{name:14} {chance.max():6.1%}  {path}")
    seconds = time.perf_counter() - start
    print(*lines, sep="\n")
    print(f"{len(files)} files in {seconds:.2f} s")
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


if __name__ == "__main__":
    main()
