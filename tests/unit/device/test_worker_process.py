"""Worker processes: answers, and workers that crash, hang, answer nonsense or are forked."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tinycore.device import worker_process
from tinycore.plugin import WorkerLost, WorkerProcess

PROGRAM: Final = """
import os, sys, time
from tinycore.plugin import serve_questions

def answer(question):
    word, text = question
    if word == "die":
        print("out of words", file=sys.stderr)
        os.abort()
    if word == "leave":
        sys.exit(3)
    if word == "hang":
        time.sleep(60)
    if word == "long":
        return len(text), text.encode()
    if word == "environment":
        return os.environ.get(text), b""
    if word == "session":
        return os.getsid(0), b""
    if word == "tell":
        print(text * 100_000, "the end", file=sys.stderr)
        sys.exit(1)
    print("noise")
    os.write(1, b"more noise\\n")
    return [word, os.getpid()], text.encode()

serve_questions(answer)
"""
"""A worker whose first word says what it does."""
RAW: Final = """
import sys
for line in sys.stdin:
    sys.stdout.write({!r})
    sys.stdout.flush()
"""
"""A worker whose answers are a text."""

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes workers of programs, which end with the test."""
    made: list[WorkerProcess] = []

    def start(program: str = PROGRAM, **options: Any) -> WorkerProcess:
        made.append(WorkerProcess(("-c", program), **options))
        return made[-1]

    yield start
    for worker in made:
        worker.stop()


def test_answers_are_values_with_bytes_whatever_is_printed(start: Start) -> None:
    worker = start()
    assert worker.pid == 0
    for text in ("", "first", "second\n" * 1000, "\0\xff"):
        (word, pid), content = worker.ask(["echo", text])
        assert (word, content) == ("echo", text.encode())
        assert pid == worker.pid


def test_questions_and_answers_larger_than_a_pipe(start: Start) -> None:
    text = "0123456789" * 100_000
    assert start().ask(["long", text]) == (len(text), text.encode())


def test_variables_are_added_to_the_environment(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "here")
    worker = start(variables={"ADDED": "too"})
    assert worker.ask(["environment", "ADDED"]) == ("too", b"")
    assert worker.ask(["environment", "INHERITED"]) == ("here", b"")


def test_a_worker_that_crashes_is_lost_with_its_log_and_replaced(start: Start) -> None:
    worker = start()
    with pytest.raises(WorkerLost, match=r"^was ended by SIGABRT$") as raised:
        worker.ask(["die", ""])

    assert raised.value.log == "out of words\n"
    assert raised.value.last_line == "out of words"
    assert worker.pid == 0
    assert worker.ask(["echo", "next"])[1] == b"next"


def test_the_end_of_a_long_log_is_kept(start: Start) -> None:
    with pytest.raises(WorkerLost) as raised:
        start().ask(["tell", "0123456789"])

    assert len(raised.value.log) == worker_process.LOG_BYTES
    assert raised.value.log.endswith("6789 the end\n")


def test_an_interrupt_of_the_terminal_does_not_reach_it(start: Start) -> None:
    worker = start()
    session, _ = worker.ask(["session", ""])

    assert session == worker.pid


def test_modules_are_found_where_this_process_finds_them(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("WORD = 'found'\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    program = "from only_here import WORD\nfrom tinycore.plugin import serve_questions\n"

    found = start(program + "serve_questions(lambda question: (WORD, b''))").ask([])

    assert found == ("found", b"")


def test_a_worker_that_leaves_tells_its_status(start: Start) -> None:
    with pytest.raises(WorkerLost, match=r"^ended with status 3$") as raised:
        start().ask(["leave", ""])

    assert raised.value.last_line == ""


def test_a_program_that_never_answers(start: Start) -> None:
    with pytest.raises(WorkerLost, match="ended with status 1") as raised:
        start("raise SystemExit('no such card')").ask(["echo", ""])

    assert raised.value.last_line == "no such card"


def test_a_worker_that_was_killed_between_two_questions_is_replaced(start: Start) -> None:
    worker = start()
    worker.ask(["echo", ""])
    before = worker.pid
    os.kill(before, signal.SIGKILL)
    while worker.pid:
        pass

    assert worker.ask(["echo", "next"])[1] == b"next"
    assert worker.pid != before


def test_a_worker_that_hangs_is_killed_and_replaced(start: Start) -> None:
    worker = start()
    worker.ask(["echo", ""])
    with pytest.raises(WorkerLost, match=r"gave no answer within 0\.1 s and was killed"):
        worker.ask(["hang", ""], 0.1)

    assert worker.ask(["echo", "next"])[1] == b"next"


def test_a_worker_that_reads_no_more_is_killed(start: Start) -> None:
    """A question that a pipe does not hold would block for ever."""
    with pytest.raises(WorkerLost, match="gave no answer within"):
        start("import time; time.sleep(60)").ask("0" * 1_000_000, 0.1)


def test_a_worker_that_closes_its_output_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "END_SECONDS", 0.1)
    program = "import os, time; os.close(1); time.sleep(60)"
    with pytest.raises(WorkerLost, match=r"^closed its output$"):
        start(program).ask(["echo", ""])


@pytest.mark.parametrize(
    "answer", ["Hello\n", "[1]\n", "[1, 2, 3]\n", '["1", 2]\n', "{}\n", "[0, 2]\nmore", "7\n"]
)
def test_what_is_no_answer_is_an_error_and_not_taken_for_the_next(
    start: Start, answer: str
) -> None:
    worker = start(RAW.format(answer))
    with pytest.raises(WorkerLost, match="gave a malformed answer"):
        worker.ask(["echo", ""])
    assert worker.pid == 0


def test_an_interrupted_question_leaves_no_answer_for_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> bytes:
        raise KeyboardInterrupt

    worker = start()
    with monkeypatch.context() as patch:
        patch.setattr(worker_process, "_part", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.ask(["echo", "first"])

    assert worker.ask(["echo", "second"])[1] == b"second"


def test_a_forked_child_has_a_process_of_its_own(start: Start) -> None:
    worker = start()
    worker.ask(["echo", ""])
    before = worker.pid
    child = os.fork()
    if not child:  # nothing may return from here
        is_right = False
        try:
            is_right = worker.pid == 0 and worker.ask(["echo", "child"])[1] == b"child"
            worker.stop()
        finally:
            os._exit(0 if is_right else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert worker.ask(["echo", "parent"])[1] == b"parent"
    assert worker.pid == before


def test_a_worker_that_nobody_holds_ends(start: Start) -> None:
    worker = WorkerProcess(("-c", PROGRAM))
    worker.ask(["echo", ""])
    pid = worker.pid
    del worker
    gc.collect()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
