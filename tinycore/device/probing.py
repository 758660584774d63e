"""Probes of the installed backends, run in an isolated subprocess and cached.

Floor 1. Imports `isolated`, `cache`, `discovery`. A plugin may hang, crash or end the process that
asks it, and a driver may print to it: so the automatic choice imports no plugin but the one it
takes. Answers are kept in the disk cache with what they depend on: the plugins' own files, the
variables that their settings are read from, and what each backend says in `Backend.driver`.
See docs/decisions/0004-device-choice.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tinycore import cache
from tinycore._deferred import deferred
from tinycore._stamp import ABOVE_ENGINE, stamp
from tinycore.config import settings
from tinycore.device.backend import API_VERSION
from tinycore.device.discovery import Candidate, State
from tinycore.trace import Trace

if TYPE_CHECKING:
    from tinycore.device.isolated import Ended, Row

trace: Final = Trace("device")
run_isolated: Final[Callable[..., Generator[Row, None, Ended]]] = deferred(
    "tinycore.device.isolated:run_isolated"
)
"""A process whose answers are remembered needs no `subprocess`."""

ANSWER_SECONDS: Final = 20.0
"""Seconds in which a plugin must answer, with its imports, on a busy machine."""
SLOW_START: Final = 3
"""Factor of that time for a process that did not even start in time."""
REMEMBERED_SECONDS: Final = 3600.0
"""Seconds for which an answer without stated dependences, or a missing one, is valid."""
ANSWERS_TABLE: Final = "devices"
CHILD: Final = "tinycore.device.probe_process"
VARIABLES: Final = ("$PATH", "$LD_LIBRARY_PATH")
"""Variables that any plugin's answer depends on, in addition to its own files."""
HIDING: Final = "VISIBLE_DEVICES"
"""The end of the names of variables by which drivers hide devices."""


@dataclass(frozen=True)
class Answer:
    """The answer of one backend's probe of this machine."""

    name: str
    state: str
    reason: str = ""
    priority: int = 0
    driver: tuple[str, ...] | None = None
    """Files and variables it depends on; None if the backend does not state them."""
    lost: bool = False
    """True if the subprocess that was to give it ended or was killed."""
    variables: tuple[str, ...] = ()
    """The variables of the backend's settings, written as in `driver`."""

    @property
    def is_ready(self) -> bool:
        """True if the device can be opened, as far as that is known without doing it."""
        return self.state == State.READY.value

    @property
    def is_broken(self) -> bool:
        """True if the plugin is at fault, not the machine: its user should be told."""
        return self.lost or self.state in (State.IMPORT_FAILED.value, State.INCOMPATIBLE.value)


def answer_of(claim: Candidate, interface: str = "") -> Answer:
    """Answer of a backend, computed in this process, about the interface named or about all."""
    claim.check(interface)
    driver: tuple[str, ...] | None = None
    if claim.backend is not None and claim.backend.driver is not None:
        with suppress(Exception):
            driver = tuple(map(str, claim.backend.driver()))
    state = State.READY if claim.state is State.OPEN else claim.state
    variables = variables_of(claim)
    return Answer(
        claim.name, state.value, claim.reason, claim.priority, driver, variables=variables
    )


def variables_of(claim: Candidate) -> tuple[str, ...]:
    """The variables of the environment that a backend's settings are read from."""
    table: Any = None
    if claim.backend is not None and claim.backend.settings is not None:
        with suppress(Exception):
            table = claim.backend.settings()
    return () if table is None else tuple([f"${v}" for s in table.table() for v in s.variables])


def answers_of(claims: Sequence[Candidate]) -> list[Answer]:
    """Answers of several backends, from the cache or from a subprocess."""
    if not claims:
        return []
    if getattr(sys, "frozen", False) or not sys.executable:  # there is no Python to start
        return [answer_of(claim) for claim in claims]
    key = answers_key(claims)
    if (found := recalled(key)) is not None:
        return found
    try:
        asked = probe_isolated(claims)
    except OSError as error:  # a sandbox may allow no second process
        trace(f"plugins are asked in this process: {error}")
        return [answer_of(claim) for claim in claims]
    remember(key, asked)
    return asked


# --- in the other process


def probe_isolated(claims: Sequence[Candidate]) -> list[Answer]:
    """Answers of backends, probed one by one in a subprocess that is restarted after crashes."""
    found: dict[str, Answer] = {}
    seconds = ANSWER_SECONDS
    while left := [claim for claim in claims if claim.name not in found]:
        asked, ended = _probe_in_turn(left, seconds, found)
        if ended is None:
            break
        if not asked and ended.status is None and seconds == ANSWER_SECONDS:
            seconds *= SLOW_START  # the machine is busy, and no plugin is at fault
            continue
        if not asked:
            raise OSError(f"the process that asks plugins did not start: {ended.manner}")
        lost = asked
        reason = f"asked for its devices: {ended.manner}"
        found[lost] = Answer(lost, State.NO_HARDWARE.value, reason, lost=True)
    return [found[claim.name] for claim in claims]


def _probe_in_turn(
    claims: Sequence[Candidate], seconds: float, found: dict[str, Answer]
) -> tuple[str, Ended | None]:
    """Add the answers of one subprocess; returns the backend it probed last, and how it ended,
    None if it gave all answers.
    """
    facts = [[c.name, c.reference, c.distribution, c.version] for c in claims]
    rows = run_isolated([CHILD, json.dumps(facts), json.dumps(sys.path)], seconds)
    asked, count = "", len(found) + len(claims)
    while True:
        try:
            row: Row = next(rows)
        except StopIteration as end:
            return asked, end.value
        if "asking" in row:
            asked = row["asking"]
        elif "answer" in row:
            answer = read(row["answer"])
            found[answer.name] = answer
            if len(found) == count:  # a plugin's thread or child may keep the process
                rows.close()
                return asked, None


def answer_all(facts: str, path: str) -> None:
    """Body of the subprocess: probe each backend, announcing which is next."""
    sys.path[:] = json.loads(path)
    for name, reference, distribution, version in json.loads(facts):
        _say({"asking": name})
        _say({"answer": asdict(answer_of(Candidate(name, reference, distribution, version)))})


def _say(row: Row) -> None:
    print(f"\n{json.dumps(row)}", flush=True)  # a driver may have left a line unfinished


def read(row: dict[str, Any]) -> Answer:
    """An answer as JSON brought it."""
    driver = row["driver"]
    told = {"driver": None if driver is None else tuple(driver)}
    return Answer(**row | told | {"variables": tuple(row["variables"])})


# --- what is remembered


_memories: Final[dict[str, Memory]] = {}
"""Answers in this process, by key: asked once, also where nothing is kept on disk."""


@dataclass(frozen=True)
class Memory:
    """Answers, their time, and the state of each dependence at that time."""

    answers: list[dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
    lasting: bool = False


def answers_key(claims: Iterable[Candidate]) -> str:
    """Everything that determines the answers but the machine: this Python and all code."""
    parts: list[object] = [sys.executable, sys.version, sys.path, API_VERSION, platform.node()]
    parts += [
        sys.platform,
        stamp(ABOVE_ENGINE),
        settings.DEV,
        *(os.environ.get(v[1:]) for v in VARIABLES),
        *sorted(pair for pair in os.environ.items() if pair[0].endswith(HIDING)),
    ]
    for claim in claims:
        parts += [claim.name, claim.reference, claim.distribution, claim.version]
        parts.append(files_of(claim.reference.partition(":")[0]))
    return json.dumps(parts)


def files_of(module: str) -> list[tuple[str, object]]:
    """The files of a plugin's package, which is not imported for it."""
    name = module.partition(".")[0]
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            files = origin.parent.rglob("*.py") if origin.stem == "__init__" else (origin,)
            return [(str(file), fact_of(str(file))) for file in sorted(files)]
    return []


def fact_of(thing: str) -> object:
    """State of a file or folder, or of a variable such as "$PATH"; None if there is none."""
    if thing.startswith("$"):
        return os.environ.get(thing[1:])
    try:
        found = os.stat(thing)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def recalled(key: str) -> list[Answer] | None:
    """Cached answers whose dependences are unchanged."""
    memory = _memories.get(key)
    if memory is None:
        content = cache.get(ANSWERS_TABLE, key)
        if content is None:
            return None
        memory = Memory(**json.loads(content))
    age = time.time() - memory.time
    if not (memory.lasting or 0 <= age < REMEMBERED_SECONDS):
        return None
    if any(fact_of(thing) != fact for thing, fact in memory.facts.items()):
        return None
    _memories[key] = memory
    trace("the answers of plugins are remembered")
    return [read(row) for row in memory.answers]


def remember(key: str, answers: Sequence[Answer]) -> None:
    """Keep answers for later processes."""
    things = {t for answer in answers for t in (*(answer.driver or ()), *answer.variables)}
    facts = {thing: fact_of(thing) for thing in sorted(things)}
    lasting = all(a.driver is not None and not a.lost for a in answers)
    memory = Memory([asdict(a) for a in answers], facts, time.time(), lasting)
    _memories[key] = memory
    cache.put(ANSWERS_TABLE, key, json.dumps(asdict(memory)).encode())
