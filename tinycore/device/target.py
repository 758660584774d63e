"""The wanted device: the text of `DEV`, and the older spellings of the same.

Floor 1. Imports `config` and `errors`. In: text. Out: `Target`s, nothing of which is looked up yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NoReturn

from tinycore._tracebacks import shown_at_caller
from tinycore.config import settings
from tinycore.errors import SettingError

GRAMMAR: Final = "[INTERFACE[:IDX]+]DEVICE[:INDEX][:RENDERER[:ARCH]], several separated by ;"
EXAMPLES: Final = "CPU, CPU:1, CPU:LLVM, CPU:LLVM:x86_64,znver2,-avx512f"

_WORD: Final = re.compile(r"[A-Z][A-Z0-9]*")
_VISIBLE: Final = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_KNOWN_SETTINGS: Final = frozenset(row.name for row in settings)


@dataclass(frozen=True)
class Target:
    """A device as the user requested it; empty fields are chosen automatically."""

    device: str
    index: int = 0
    renderer: str = ""
    arch: str = ""
    interface: str = ""
    visible: tuple[int, ...] = ()
    """The device numbers of the interface that may be used, in this order; all when empty."""

    @property
    def name(self) -> str:
        """The device as tensors name it: CPU, or CPU:1."""
        return f"{self.device}:{self.index}" if self.index else self.device

    def completed_by(self, other: Target) -> Target:
        """This target, with the interface and the renderer of another where it names none."""
        return replace(
            self,
            interface=self.interface or other.interface,
            renderer=self.renderer or other.renderer,
        )

    def __str__(self) -> str:
        visible = ":" + ",".join(map(str, self.visible)) if self.visible else ""
        before = f"{self.interface}{visible}+" if self.interface or visible else ""
        after = f":{self.renderer}" if self.renderer or self.arch else ""
        return before + self.name + after + (f":{self.arch}" if self.arch else "")


@lru_cache(maxsize=256)
def default_of(text: str) -> str:
    """The name of the device that the text of DEV names first. Raises SettingError."""
    return parse_targets(text)[0].name


@lru_cache(maxsize=256)
@shown_at_caller
def parse_targets(text: str) -> tuple[Target, ...]:
    """The devices that the text of DEV names, the default first; none for an empty text.

    Raises SettingError saying what is wrong and what the form is.
    """
    if not text.strip():
        return ()
    targets = tuple(_parse_target(part.strip(), text) for part in text.split(";"))
    names = [target.device for target in targets]
    for name in names:
        if names.count(name) > 1:
            _refuse(text, f"{name} is named twice")
    return targets


def _parse_target(part: str, text: str) -> Target:
    if not part:
        _refuse(text, "a device is missing beside ';'")
    before, plus, rest = part.partition("+")
    if not plus or before.count(":") > 1:  # a plus after two colons is a part of ARCH
        plus, rest = "", part
    interface, visible = _parse_interface(before, text) if plus else ("", ())
    device, *fields = rest.split(":")
    if "+" in device:
        _refuse(text, "there is more than one '+'")
    device = _word(device, "a device", text)
    index = 0
    if fields and fields[0].isdigit():
        index = int(fields.pop(0))
    if len(fields) > 2:
        _refuse(text, f"{rest!r} has more than DEVICE, RENDERER and ARCH")
    renderer, arch = (*fields, "", "")[:2]
    renderer = _word(renderer, "a renderer", text) if renderer else ""
    return Target(device, index, renderer, arch.strip(), interface, visible)


def _parse_interface(before: str, text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, numbers = before.partition(":")
    if colon and not _VISIBLE.fullmatch(numbers):
        _refuse(text, f"{numbers!r} is no list of device numbers such as 0,2 or 1-3")
    interface = _word(name, "an interface", text) if name or not colon else ""
    visible: list[int] = []
    for item in numbers.split(",") if numbers else ():
        first, _, last = item.partition("-")
        visible += range(int(first), int(last or first) + 1)
    return interface, tuple(dict.fromkeys(visible))


def _word(text: str, what: str, whole: str) -> str:
    word = text.strip().upper()
    if not word:
        _refuse(whole, f"{what} is missing")
    if not _WORD.fullmatch(word):
        _refuse(whole, f"{text!r} is no name of {what}")
    return word


def _refuse(text: str, problem: str) -> NoReturn:
    raise SettingError(
        f"DEV={text} is not understood: {problem}. The form is {GRAMMAR}. Examples: {EXAMPLES}."
    )


@shown_at_caller
def device_and_index(name: str) -> tuple[str, int]:
    """The backend's name and the number in a device name such as CPU or cpu:1.

    Raises SettingError when it is no device name.
    """
    device, colon, number = name.strip().partition(":")
    word = device.upper()
    if not _WORD.fullmatch(word) or (colon and not number.isdigit()):
        renderer = " A renderer is chosen by DEV, not in the name." if colon and word else ""
        raise SettingError(
            f"{name!r} is no device. Devices are named as in CPU or CPU:1.{renderer}"
        )
    return word, int(number or 0)


def older_spellings(
    installed: Collection[str], is_renderer: Callable[[str, str], bool]
) -> tuple[Target, ...]:
    """The targets that variables such as CPU=1, CPU_LLVM=1 or CPU_IFACE=X name, the default first.

    Any installed backend's name may stand for CPU. NAME_WORD=1 counts only where WORD is a renderer
    of NAME: `is_renderer` is asked, so that the variables of other programs and plugins are left
    alone.

    Raises SettingError when two of them choose a device.
    """
    variables = sorted((key, value.strip()) for key, value in os.environ.items())
    chosen = [name for name, value in variables if value == "1" and name in installed]
    if len(chosen) > 1:
        raise SettingError(
            f"{' and '.join(f'{name}=1' for name in chosen)} each choose a device. Keep one of "
            f"them, or set DEV={';'.join(chosen)}, whose first is the default."
        )
    targets = {name: Target(name) for name in chosen}
    details = {target.device: target for target in older_details(installed, is_renderer)}
    return tuple((targets | details).values())


def older_details(
    installed: Collection[str], is_renderer: Callable[[str, str], bool]
) -> tuple[Target, ...]:
    """The interfaces and renderers that variables such as CPU_LLVM=1 or CPU_IFACE=X name."""
    targets: dict[str, Target] = {}
    for key, value in sorted(os.environ.items()):
        device, _, word = key.partition("_")
        if device not in installed or key in _KNOWN_SETTINGS or not word:
            continue
        value = value.strip()
        target = targets.get(device, Target(device))
        if word == "IFACE" and value:
            targets[device] = replace(target, interface=value.upper())
        elif value == "1" and is_renderer(device, word):
            targets[device] = replace(target, renderer=word)
    return tuple(targets.values())


@cache
def older_names() -> dict[str, tuple[str, ...]]:
    """The devices of `older_names.txt`, each with its renderers."""
    return {name: tuple(rest) for name, *rest in older_lines() if "->" not in rest}


@cache
def renamed_devices() -> dict[str, str]:
    """Names in `older_names.txt` that DEV spells otherwise, with that spelling."""
    return {name: rest[-1] for name, *rest in older_lines() if "->" in rest}


def older_lines() -> list[list[str]]:
    """The words of each line of `older_names.txt`."""
    lines = Path(__file__).with_name("older_names.txt").read_text("utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def ignored_older_spellings() -> dict[str, str]:
    """Variables of renamed devices that are set, with what DEV is to be instead."""
    return {
        name: spelling
        for name, spelling in renamed_devices().items()
        if os.environ.get(name, "").strip() == "1"
    }


def absent_older_spelling(installed: Collection[str]) -> tuple[str, str]:
    """The variable that chooses a device which is not installed, and the device; "" for none.

    Only what programs are known to have used counts, so that other programs' variables do not.
    """
    for key, value in sorted(os.environ.items()):
        name, _, word = key.partition("_")
        if name in installed or key in _KNOWN_SETTINGS or name not in older_names():
            continue
        if word == "IFACE" and value.strip():
            return key, name
        if value.strip() == "1" and (not word or word in older_names()[name]):
            return key, name
    return "", ""


def target_for(name: str, targets: Iterable[Target]) -> Target:
    """The requested target of the backend `name`."""
    return next((target for target in targets if target.device == name), Target(name))
