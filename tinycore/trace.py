"""Trace channels: what tinycore reports of its work, on request.

Floor 0. Imports `config`, whose CHANNELS lists the channels.
`DEBUG=n` turns on every channel of level n and below, `TRACE=run,source` turns channels on by name.
Lines go to stderr, so that a program's own output stays clean: `DEBUG=2 tinycore devices --json`
still prints JSON. A line is the channel's name in eight columns and then the text, so `grep '^run'`
picks a channel; a body of several lines, such as source, follows as it is and can be copied.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from tinycore.config import CHANNELS, environment, in_force, settings
from tinycore.errors import SettingError

__all__ = ["CHANNELS", "PassTrace", "Trace", "ansilen", "ansistrip", "colored"]

_COLORS: Final = "black red green yellow blue magenta cyan white".split()
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")


class Trace:
    """One channel. Guard what is costly to format: `if trace.on: trace(f"...")`.

    A plugin's own channel has a dot in its name, `Trace("tiny_amd.ioctl")`, and is on by name only.
    """

    __slots__ = ("channel", "level")

    def __init__(self, channel: str) -> None:
        if channel not in CHANNELS and "." not in channel:
            known = ", ".join(CHANNELS)
            raise SettingError(
                f"no trace channel {channel!r}. Known: {known}; a plugin's has a dot."
            )
        self.channel = channel
        level = CHANNELS[channel][0] if channel in CHANNELS else 0
        self.level = level or sys.maxsize  # that of a channel that is on by name only

    @property
    def on(self) -> bool:
        """True if the channel is on."""
        values = in_force()  # asked in every launch, so without a call for each setting
        return values["DEBUG"] >= self.level or self.channel in values["TRACE"]

    def is_on(self, values: Mapping[str, Any]) -> bool:
        """`on` for settings that were read before."""
        return values["DEBUG"] >= self.level or self.channel in values["TRACE"]

    def __call__(self, line: str, body: str = "") -> None:
        """Print one line, then `body` as it is; nothing when the channel is off."""
        if not (self.on and sys.stderr):  # a program may have none
            return
        parts = [f"{self.colored(f'{self.channel:<8}', 'cyan')} {line}\n"]
        if body:
            parts.append(body if body.endswith("\n") else body + "\n")
        sys.stderr.write("".join(parts))  # one write, so that threads do not mix their lines
        sys.stderr.flush()

    def colored(self, text: str, color: str | None) -> str:
        """`text` in a color where this channel's lines are shown in color."""
        return colored(text, color, stream=sys.stderr)


class PassTrace(Trace):
    """The channel `passes`: graphs as they are after each pass.

    `TRACE=passes:NAME` prints those after passes, or of kernels, whose name contains NAME. A graph
    that a pass left as it was is not printed again.
    """

    __slots__ = ()

    @property
    def on(self) -> bool:
        """True if any graph is printed."""
        return any(word.partition(":")[0] == self.channel for word in in_force()["TRACE"])

    def after(self, step: str, text: str, before: str = "", kernel: str = "") -> str:
        """Print a graph as text after a pass; just a line if the text is that of `before` the pass.

        Returns the text if it was printed: it is `before` for the next pass.
        """
        words = [word.partition(":") for word in in_force()["TRACE"]]
        wanted = [name for channel, _, name in words if channel == self.channel]
        if not any(name in step or name in kernel for name in wanted):
            return ""
        is_same = text == before
        of = f" of {kernel}" if kernel else ""
        self(f"after {step}{of}{': as before' if is_same else ''}", "" if is_same else text)
        return text


def colored(
    text: str, color: str | None, background: bool = False, *, stream: TextIO | None = None
) -> str:
    """`text` in a color, "red", or bright, "RED"; unchanged when `color` is None.

    Also unchanged when `stream` (stdout unless told) is no terminal, or NO_COLOR is set.
    """
    stream = stream or sys.stdout
    is_plain = settings.NO_COLOR or environment("TERM") == "dumb"
    if color is None or is_plain or not (stream and stream.isatty()):
        return text
    code = 30 + _COLORS.index(color.lower()) + (60 if color.isupper() else 0)
    return f"\x1b[{code + (10 if background else 0)}m{text}\x1b[0m"


def ansistrip(text: str) -> str:
    """`text` without color codes."""
    return _ESCAPE.sub("", text)


def ansilen(text: str) -> int:
    """Width of `text` in columns, color codes apart."""
    return len(ansistrip(text))
