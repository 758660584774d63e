"""Chat template: messages as the text that a model was trained on, by the template in its file.

Templates are programs in Jinja, and come with untrusted files: they run in a sandbox that lets
nothing in or out, with a limit of lines, of characters, and of the sizes of numbers and strings.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tiny_llm.tokenizer import Tokenizer
from tinycore.errors import ArgumentError, FileFormatError

__all__ = ["ChatTemplate"]

MOST_LINES: Final = 1_000_000
"""Lines of compiled templates that run for one text; a long talk takes some thousands."""
MOST_CHARACTERS: Final = 16_000_000
MOST_PRODUCT: Final = 256_000_000
"""The greatest product of the sizes of what a function is given."""
SURROUNDINGS: Final = (jinja2.Environment, Context, nodes.EvalContext)
"""Types of the first arguments of filters, which Jinja adds."""
CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPEN, CLOSE = "\ue000", "\ue001"
"""Around the number of a control token that a message spells: it stays text."""


class Generator(CodeGenerator):
    """Compiler of templates, for which `~` is a method of the environment, and so has a limit."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  Jinja's name
        """Write the parts as arguments of `joined`."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, where no operation has a result of any size."""

    code_generator_class = Generator
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Sums within the limit, and other operations on small numbers alone."""
        small = all(isinstance(x, int | float) and abs(x) < 1 << 32 for x in (left, right))
        if operator == "+":
            weigh(left, right)
        elif not small or (operator == "**" and abs(right) > 64):
            raise jinja2.exceptions.SecurityError(f"{operator} of what is no small number")
        return super().call_binop(context, operator, left, right)

    def joined(self, parts: tuple[Any, ...]) -> str:
        """The texts of values, one after another."""
        weigh(*parts)
        return "".join(map(str, parts))

    def call(self, context: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        """A call whose result cannot be large: a method multiplies its text by its arguments."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str | list | tuple | dict):
            limit_product(owner, *arguments, *options.values())
        return super().call(context, function, *arguments, **options)


def weigh(*values: Any) -> int:
    """The characters and items of values, and of what is in them. Raises TooLong beyond a limit."""
    total, left = 0, list(values)
    while left:
        value = left.pop()
        total += len(value) if isinstance(value, str | bytes) else 1
        if isinstance(value, int) and not isinstance(value, bool):
            total += value.bit_length() // 3
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            left += value
        if total > MOST_CHARACTERS:
            raise TooLong
    return total


def limit_product(*arguments: Any) -> None:
    """Raises TooLong where a function could multiply its arguments to what has no limit."""
    first, *others = [
        abs(each) if isinstance(each, int) and not isinstance(each, bool) else weigh(each)
        for each in arguments
    ] or [0]
    if first * max(others, default=1) > MOST_PRODUCT:
        raise TooLong


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that weighs its arguments before it runs."""

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        plain = [each for each in arguments if not isinstance(each, SURROUNDINGS)]
        limit_product(*plain, *options.values())
        return function(*arguments, **options)

    return checked


def shown(value: Any) -> Any:
    """A value that is written to the text: within the limit."""
    weigh(value)
    return value


class TooLong(Exception):
    """Raised inside of a template that runs too long."""


class ChatTemplate:
    """Messages to text. Raises FileFormatError for a template that cannot be compiled."""

    def __init__(self, source: str, tokenizer: Tokenizer, place: str) -> None:
        self.place, self.tokenizer = place, tokenizer
        sandbox = Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=shown,
        )
        for name in ("center", "format", "wordwrap", "pprint", "urlize", "batch", "slice"):
            del sandbox.filters[name]
        sandbox.filters["tojson"] = to_json
        sandbox.filters = {name: limited(found) for name, found in sandbox.filters.items()}
        sandbox.globals["raise_exception"] = refuse
        sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:100])
        for name in ("lipsum", "cycler", "joiner"):
            sandbox.globals.pop(name, None)
        try:
            self.template = sandbox.from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise FileFormatError(f"{place}: its chat template: {error}") from error

    def tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a talk, up to where the model is to answer.

        Control tokens come from the template alone: what a message spells is text.
        """
        controls = sorted(self.tokenizer.specials, key=len, reverse=True)

        def hidden(text: str) -> str:
            text = text.replace(OPEN, "").replace(CLOSE, "")
            for number, control in enumerate(controls):
                if control in text:
                    text = text.replace(control, f"{OPEN}{number}{CLOSE}")
            return text

        safe = [
            {k: hidden(v) if isinstance(v, str) else v for k, v in message.items()}
            for message in messages
        ]
        ids: list[int] = []
        for number, part in enumerate(self.text(safe).split(OPEN)):
            rest = part
            if number:
                which, _, rest = part.partition(CLOSE)
                ids += self.tokenizer.encode(controls[int(which)], False, with_bos=False)
            ids += self.tokenizer.encode(rest, with_bos=not number) if rest or not number else []
        return ids

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a talk. Raises ArgumentError where the template refuses it."""
        bos = self.tokenizer.bos
        ends = sorted(self.tokenizer.ends)
        names = {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": "" if bos is None else self.tokenizer.text_of(bos),
            "eos_token": self.tokenizer.text_of(ends[0]) if ends else "",
        }
        try:
            with bounded():
                text, pieces = 0, []
                for piece in self.template.generate(**names):
                    text += len(piece)
                    if text > MOST_CHARACTERS:
                        raise TooLong
                    pieces.append(piece)
        except TooLong as error:
            raise FileFormatError(f"{self.place}: its chat template does not end") from error
        except jinja2.TemplateError as error:
            raise ArgumentError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:
            raise FileFormatError(
                f"{self.place}: its chat template raises {type(error).__name__}: {error}"
            ) from error
        return "".join(pieces)


class bounded:  # noqa: N801  a context manager reads as a word
    """At most MOST_LINES lines of templates run inside of it, by the tracing of this thread."""

    def __enter__(self) -> None:
        self.left, self.before = MOST_LINES, sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise TooLong
        return self._trace


def refuse(message: Any = "") -> NoReturn:
    """`raise_exception` of templates."""
    raise jinja2.TemplateError(str(message)[:200])


def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON without escapes for HTML."""
    return json.dumps(value, indent=indent and min(int(indent), 8), ensure_ascii=False)
