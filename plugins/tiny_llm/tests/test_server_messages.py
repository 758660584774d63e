"""Messages of a server, with readers that are slow, late or gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import pytest

from tiny_llm.messages import MOST_WAITING, Messages

Pipe = tuple[BinaryIO, Messages]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read, write = os.pipe()
    with open(read, "rb") as reader, open(write, "wb"):
        yield reader, Messages(write)


def test_a_message_is_there_at_once(pipe: Pipe) -> None:
    reader, stream = pipe
    for number in range(3):
        print("text", number, file=stream)
        assert os.read(reader.fileno(), 100) == b"text %d\n" % number
    assert stream.fileno() == stream.descriptor
    assert not any(each.name == "tiny-llm messages" for each in threading.enumerate())


def test_a_late_reader_gets_lines_in_order_and_the_number_of_those_lost(pipe: Pipe) -> None:
    reader, stream = pipe
    lines = [f"line {number} {'é' * 100}\n" for number in range(MOST_WAITING + 2000)]
    for line in lines:
        assert stream.write(line) == len(line)
    found: list[str] = []
    while not found or "lost" not in found[-1]:
        found.append(reader.readline().decode())
    kept = found[: found.index("\n")]
    assert kept == lines[: len(kept)]
    lost = len(lines) - len(kept)
    assert 0 < lost < len(lines) - MOST_WAITING
    assert found[-1] == f"(nobody read here: {lost} texts were lost)\n"

    stream.end()
    print("again", file=stream)
    assert reader.readline() == b"again\n"


def test_a_long_message_does_not_wait(pipe: Pipe) -> None:
    reader, stream = pipe
    text = "".join(map(str, range(100_000)))
    stream.write(text)
    stream.write("\nbehind it\n")
    assert reader.readline().decode() == text + "\n"
    assert reader.readline() == b"behind it\n"


def test_messages_of_threads_are_all_written(pipe: Pipe) -> None:
    reader, stream = pipe
    lines = [f"{number} {'x' * 2000}\n" for number in range(200)]
    threads = [
        threading.Thread(target=lambda part: [stream.write(line) for line in part], args=(part,))
        for part in (lines[:100], lines[100:])
    ]
    for thread in threads:
        thread.start()
    found = [reader.readline().decode() for _ in lines]
    assert [line for line in found if int(line.split()[0]) < 100] == lines[:100]
    assert sorted(found) == sorted(lines)


@pytest.mark.parametrize("is_full", [False, True], ids=["empty", "full"])
def test_a_reader_that_goes_away_stops_nothing(is_full: bool) -> None:
    read, write = os.pipe()
    stream = Messages(write)
    if is_full:
        stream.write("x" * (1 << 20))
    os.close(read)
    for _ in range(3 * MOST_WAITING):
        print("text", file=stream)
    stream.end()
    with suppress(OSError):
        os.close(write)


def test_a_descriptor_that_does_not_block_loses_nothing(pipe: Pipe) -> None:
    reader, stream = pipe
    os.set_blocking(stream.descriptor, False)
    text = "y" * (1 << 18) + "\n"
    stream.write(text)
    assert reader.readline().decode() == text


def test_the_last_words_before_a_signal_are_written() -> None:
    program = (
        "import signal, sys\nfrom tiny_llm.messages import unhurried\nwith unhurried():\n"
        "    print('last words', file=sys.stderr)\n    signal.raise_signal(signal.SIGTERM)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, check=False, text=True
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "last words\n")
