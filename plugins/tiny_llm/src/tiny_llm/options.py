"""Options that the commands share: the model, where to compute, how to draw tokens."""

from __future__ import annotations

import argparse
from typing import Any

from tiny_llm.sampling import Sampling
from tinycore import Context, Device
from tinycore.errors import ArgumentError

__all__ = [
    "add_model",
    "add_sampling",
    "add_speculation",
    "check_device",
    "chosen_device",
    "load",
    "sampling_of",
]


def add_model(command: argparse.ArgumentParser) -> None:
    """Options for the model, and the device that computes it."""
    command.add_argument("model", help="a GGUF file, or a folder with config.json and weights")
    command.add_argument(
        "--context", type=int, help="most tokens of a conversation; 4096 unless given"
    )
    command.add_argument("--device", help="where to compute, as DEV says it: CPU, CUDA ...")
    command.add_argument(
        "--cache", default="float16", choices=("float16", "bfloat16", "float32"),
        help="type of the cached keys and values, float16 unless given",
    )  # fmt: skip


def add_sampling(command: argparse.ArgumentParser) -> None:
    """Options for the choice of tokens."""
    plain = Sampling()
    for name, kind, text in (
        ("temperature", float, "0 always takes the likeliest token"),
        ("top-k", int, "sample from so many of the likeliest tokens (0: all)"),
        ("top-p", float, "sample from the fewest tokens whose probabilities add up to this"),
        ("min-p", float, "sample from tokens at least this likely, relative to the likeliest"),
        ("repetition", float, "divide the scores of recent tokens by this"),
    ):
        default = getattr(plain, name.replace("-", "_"))
        command.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text}; {default} unless given"
        )
    command.add_argument("--seed", type=int, help="draw the same text again")


def add_speculation(command: argparse.ArgumentParser) -> None:
    """Option of speculative decoding."""
    command.add_argument(
        "--speculate", action=argparse.BooleanOptionalAction, default=False,
        help="check several tokens at once where a text repeats what it has: the same text, sooner "
        "for code and quotations",
    )  # fmt: skip


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """The sampling that options ask for. Raises ArgumentError."""
    return Sampling(
        **{n: x for n, x in vars(arguments).items() if n in Sampling.__dataclass_fields__}
    )


def load(arguments: argparse.Namespace, lanes: int = 1) -> Any:
    """The model that options name, a LanguageModel that writes so many texts at once."""
    from tiny_llm.model import LanguageModel  # noqa: PLC0415  `--help` needs no tensors

    try:
        return LanguageModel.load(
            arguments.model, context=arguments.context, cache_dtype=arguments.cache, lanes=lanes
        )
    except OSError as error:
        raise ArgumentError(f"the model cannot be read: {error}") from error


def chosen_device(arguments: argparse.Namespace) -> Context:
    """Settings to compute on the device that options name, if they do."""
    return Context() if arguments.device is None else Context(DEV=arguments.device)


def check_device() -> None:
    """Raises ArgumentError where nothing is there to compute on but the interpreter."""
    if Device.DEFAULT == "PYTHON":
        raise ArgumentError(
            "only the interpreter PYTHON was found to compute on, which takes minutes for a token: "
            '`pip install "tinycore[cpu]"`'
        )
