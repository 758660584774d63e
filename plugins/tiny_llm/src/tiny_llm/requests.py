"""Requests of OpenAI's API, checked field by field: what is not supported is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tiny_llm.sampling import Sampling
from tinycore.errors import ArgumentError

__all__ = ["Asked", "BadRequest", "parsed"]

T = TypeVar("T")

MOST_STOPS: Final = 16
MOST_STOP_CHARACTERS: Final = 1000
MOST_MESSAGES: Final = 10_000
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
PLAIN: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
"""Fields that may only say what would be done without them."""


class BadRequest(ArgumentError):
    """Raised for a request that cannot be met; `field` names the one that is wrong."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field, self.status = field, status


@dataclass(frozen=True)
class Asked:
    """A request: what to continue, and how."""

    given: str | list[int] | list[dict[str, Any]]
    sampling: Sampling
    limit: int | None
    stop: tuple[str, ...]
    stream: bool
    with_usage: bool


def parsed(body: bytes, is_chat: bool) -> Asked:
    """The request in a body of JSON. Raises BadRequest."""
    try:
        stated = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(stated, dict):
        raise BadRequest("the body is no JSON object")
    for name, allowed in PLAIN.items():
        if stated.get(name) is not None and stated[name] not in allowed:
            raise BadRequest(f"{name} is not supported", name)
    options = field(stated, "stream_options", dict, {})
    limit = field(stated, "max_completion_tokens", int) or field(stated, "max_tokens", int)
    if limit is None and not is_chat and "max_tokens" not in stated:
        limit = 16  # as OpenAI's
    if limit is not None and limit < 1:
        raise BadRequest(f"max_tokens must be 1 or more, not {limit}", "max_tokens")
    return Asked(
        messages(stated) if is_chat else prompt(stated),
        sampling(stated),
        limit,
        stops(stated),
        field(stated, "stream", bool, False),
        field(options, "include_usage", bool, False),
    )


def refuse_constant(text: str) -> Any:
    """Raises ValueError for NaN and infinities, which JSON has not."""
    raise ValueError(f"{text} is no number of JSON")


def field(stated: Mapping[str, Any], name: str, kind: type[T], otherwise: Any = None) -> Any:
    """The value of a field, `otherwise` where it is absent or null. Raises BadRequest."""
    found = stated.get(name)
    if found is None:
        return otherwise
    if kind is float and isinstance(found, int) and not isinstance(found, bool):
        found = float(found) if abs(found) < 1 << 64 else found
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise BadRequest(f"{name} must be of type {kind.__name__}", name)
    return found


def sampling(stated: Mapping[str, Any]) -> Sampling:
    """The sampling: temperature 1 and no bounds unless given, as OpenAI's."""
    try:
        return Sampling(
            temperature=field(stated, "temperature", float, 1.0),
            top_k=field(stated, "top_k", int, 0),
            top_p=field(stated, "top_p", float, 1.0),
            min_p=field(stated, "min_p", float, 0.0),
            repetition=field(stated, "repetition_penalty", float, 1.0),
            seed=field(stated, "seed", int),
        )
    except BadRequest:
        raise
    except ArgumentError as error:
        raise BadRequest(str(error), str(error).partition(" ")[0]) from error


def stops(stated: Mapping[str, Any]) -> tuple[str, ...]:
    """The strings that end a text."""
    found = stated.get("stop")
    found = [found] if isinstance(found, str) else found or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadRequest("stop must be a string or a list of strings", "stop")
    if len(found) > MOST_STOPS or any(len(each) > MOST_STOP_CHARACTERS for each in found):
        raise BadRequest(
            f"stop takes at most {MOST_STOPS} strings of {MOST_STOP_CHARACTERS} characters", "stop"
        )
    return tuple(found)


def prompt(stated: Mapping[str, Any]) -> str | list[int]:
    """A text, or tokens."""
    found = stated.get("prompt")
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str | list):
        found = found[0]
    if isinstance(found, str):
        return found
    if isinstance(found, list) and found and all(type(each) is int for each in found):
        return found
    raise BadRequest("prompt must be a text, or a list of tokens; one for each request", "prompt")


def messages(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a talk, their contents as strings."""
    found = stated.get("messages")
    if not isinstance(found, list) or not 0 < len(found) <= MOST_MESSAGES:
        raise BadRequest(f"messages must be a list of 1 to {MOST_MESSAGES}", "messages")
    made = []
    for message in found:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise BadRequest(
                f"each of messages must be an object with a role of {', '.join(ROLES)}", "messages"
            )
        role = "system" if message["role"] == "developer" else message["role"]
        made.append({"role": role, "content": content(message.get("content"))})
    return made


def content(found: Any) -> str:
    """The text of a message: a string, or parts of type text."""
    if isinstance(found, str):
        return found
    if isinstance(found, Sequence) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in found
    ):
        return "".join(part["text"] for part in found)
    raise BadRequest("the content of a message must be a string, or parts of text", "messages")
