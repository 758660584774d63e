"""`tinycore run model.onnx`: inputs from files, outputs and times on the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy

from tiny_onnx.files import PICTURES, loaded
from tiny_onnx.runner import OnnxRunner
from tiny_onnx.values import Data
from tinycore import Device, Tensor
from tinycore.cli.options import Commands, subcommand
from tinycore.cli.tables import Table
from tinycore.errors import ArgumentError

__all__ = ["add", "run"]

FEW = 8
"""Elements up to which an output is printed whole."""
LEAST_CLASSES = 10
"""Elements from which on an output of rows is taken for scores of classes."""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "run",
        "run an ONNX model on files",
        "Run an ONNX model on files, and show its inputs, its outputs and the time.",
        """examples:
  tinycore run mobilenet.onnx                               what it takes and gives
  tinycore run mobilenet.onnx --input photo.png --labels imagenet.txt
  tinycore run vad.onnx --input x=speech.wav --input sr=16000 --input state=zeros
  tinycore run model.onnx --input x=array.npy --output y=result.npy --repeat 20""",
    )
    command.add_argument("model", type=Path, help="a file of the ONNX standard")
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="an input: .npy, a picture, .wav, .json, numbers as in [1, 2], or zeros; "
        "the name may be left out if there is one input",
    )
    command.add_argument(
        "--output", action="append", default=[], metavar="NAME=FILE.npy", help="save an output"
    )
    command.add_argument(
        "--scale",
        choices=("imagenet", "unit", "byte"),
        default="imagenet",
        help="range of pixels: normalized by ImageNet's statistics (the default), 0 to 1, 0 to 255",
    )
    command.add_argument("--labels", type=Path, help="a text file: the name of a class per line")
    command.add_argument("--repeat", type=int, default=3, help="runs that are timed (3)")
    command.add_argument("--device", help="the device, instead of DEV or the automatic choice")


def run(arguments: argparse.Namespace) -> int:
    """Run the model that the command line names, and print what comes out."""
    if not arguments.model.is_file():
        raise ArgumentError(f"{str(arguments.model)!r} is no file; give one of the ONNX standard")
    begun = perf_counter()
    model = OnnxRunner(arguments.model, arguments.device)
    print(f"{arguments.model.name}, loaded in {perf_counter() - begun:.2f} s")
    for word, described in (("takes", model.graph_inputs), ("gives", model.graph_outputs)):
        for name, each in described.items():
            print(f"  {word} {name}: {each}")
    if not arguments.input and model.graph_inputs:
        print("\nrun it on files by --input NAME=FILE; `tinycore run --help` shows how")
        return 0
    given = inputs(model, arguments.input, arguments.scale)
    results, first, times = timed(model, given, max(1, arguments.repeat))
    labels = arguments.labels.read_text(encoding="utf-8").splitlines() if arguments.labels else []
    print()
    for name, result in results.items():
        show(name, result, labels)
    print(
        f"\nfirst run {first:.2f} s (with compilation), then {median(times) * 1e3:.2f} ms "
        f"on {arguments.device or Device.DEFAULT}"
    )
    save(results, arguments.output)
    return 0


def inputs(model: OnnxRunner, words: list[str], scale: str) -> dict[str, Any]:
    """The inputs that the command line names. Raises ArgumentError for a name there is not."""
    result: dict[str, Any] = {}
    for word in words:
        name, found, file = word.partition("=")
        if not found or name not in model.graph_inputs:
            if found and Path(word).suffix.lower() not in PICTURES and len(model.graph_inputs) > 1:
                raise ArgumentError(
                    f"{name!r} is no input of the model: {', '.join(model.graph_inputs)}."
                )
            if len(model.graph_inputs) != 1:
                raise ArgumentError(
                    f"say which input {word!r} is, as in "
                    f"{next(iter(model.graph_inputs))}={word}: the model takes "
                    f"{', '.join(model.graph_inputs)}."
                )
            name, file = next(iter(model.graph_inputs)), word
        if name in result:
            raise ArgumentError(f"{name!r} is given twice.")
        result[name] = (
            model.get_empty_input_data()[name]
            if file == "zeros"
            else loaded(file, model.graph_inputs[name], scale)
        )
    return result


def timed(
    model: OnnxRunner, given: dict[str, Any], repeat: int
) -> tuple[dict[str, Data], float, list[float]]:
    """Results, seconds of the first run, and of each run when it is captured."""
    times = []
    for _ in range(repeat + 3):
        begun = perf_counter()
        results = model(given)
        for each in results.values():
            if isinstance(each, Tensor):
                each.realize().data()
        times.append(perf_counter() - begun)
    return results, times[0], times[3:]


def show(name: str, data: Data, labels: list[str]) -> None:
    """Print one output: its classes if it looks like scores of classes, else some elements."""
    if not isinstance(data, Tensor | numpy.ndarray):
        count = len(data) if isinstance(data, list) else 0
        print(f"{name}: a sequence of {count} values")
        return
    array = data.numpy() if isinstance(data, Tensor) else data
    shape = "x".join(map(str, array.shape)) or "one number"
    print(f"{name}: {array.dtype} {shape}")
    is_scores = array.ndim == 2 and len(array) <= FEW and array.shape[1] >= LEAST_CLASSES
    if is_scores and array.dtype.kind == "f":
        for row in array:
            classes(row, labels)
    elif array.size <= FEW:
        print(f"  {array.tolist()}")
    elif array.dtype.kind in "fiu":
        flat = ", ".join(f"{each:.5g}" for each in array.reshape(-1)[:FEW])
        numbers = array.astype(numpy.float64)
        print(f"  {flat}, ...; least {numbers.min():.5g}, mean {numbers.mean():.5g}, "
              f"greatest {numbers.max():.5g}")  # fmt: skip


def classes(row: numpy.ndarray, labels: list[str]) -> None:
    """Print the five likeliest classes with a bar each. Scores become probabilities by softmax."""
    scores = row.astype(numpy.float64)
    is_probability = scores.min() >= 0 and abs(scores.sum() - 1) < 1e-3
    if not is_probability:
        scores = numpy.exp(scores - scores.max())
        scores /= scores.sum()
    rows = []
    for place in numpy.argsort(-scores, kind="stable")[:5]:
        label = labels[place] if place < len(labels) else f"class {place}"
        rows.append((f"{scores[place]:.1%}", "█" * round(scores[place] * 30), label))
    Table(">share  <  <class", rows).show()


def save(results: dict[str, Data], words: list[str]) -> None:
    """Save the outputs that the command line names as arrays of NumPy."""
    for word in words:
        name, _, file = word.partition("=")
        if name not in results or not file:
            raise ArgumentError(f"--output takes NAME=FILE.npy, with a name of {list(results)}.")
        data = results[name]
        with open(file, "wb") as target:
            numpy.save(target, data.numpy() if isinstance(data, Tensor) else numpy.asarray(data))
        print(f"saved {name} to {file}")
