"""`tinycore serve`, a process of its own with a real decoder: many clients, and signals."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_models

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}
FREE = {"status": "ok", "waiting": 0, "running": 0}


class Process:
    """The command, on a port that was free."""

    def __init__(self, model: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [sys.executable, "-m", "tinycore", "serve", str(model), "--port", str(self.port)]
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True
        )
        end = time.monotonic() + 120
        while self.ask("GET", "/health") is None:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body and json.dumps(body), JSON)
            return json.loads(connection.getresponse().read())
        except OSError:
            return None
        finally:
            connection.close()

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    config = tiny_models.config_of("llama")
    weights = tiny_models.weights_of(config)
    process = Process(tiny_models.write_gguf(tmp_path / "tiny.gguf", config, weights, "Q8_0"))
    yield process
    process.process.kill()
    process.process.communicate()


def test_many_clients_then_a_signal_in_the_middle_of_a_stream(process: Process) -> None:
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 0}
    drawn = {"prompt": "hello", "max_tokens": 20, "temperature": 1.5, "seed": 4}

    def text(each: dict[str, Any]) -> str:
        answer = process.ask("POST", "/v1/completions", each)
        return str(answer["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(text, [body, drawn] * 8))
    assert len(set(texts[::2])) == 1
    assert len(set(texts[1::2])) == 1

    said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    talk = process.ask("POST", "/v1/chat/completions", said)
    assert talk["usage"]["completion_tokens"] <= 3

    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)
    endless = body | {"max_tokens": 480, "stream": True, "temperature": 1, "seed": 1}
    connection.request("POST", "/v1/completions", json.dumps(endless), JSON)
    assert connection.getresponse().read(30).startswith(b"data: ")
    assert process.end(signal.SIGTERM) in (0, -signal.SIGTERM)


def memory(process: Process) -> int:
    """Resident bytes of the server."""
    pages = Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def rude(process: Process, number: int) -> None:
    """A client that breaks off, sends rubbish, reads slowly, or asks as it should."""
    body = json.dumps({"prompt": f"hello {number}", "max_tokens": 12, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", process.port), 60) as client:
        kind = number % 5
        if kind == 0:
            client.sendall(whole)  # and away
        elif kind == 1:
            client.sendall(whole[: len(whole) // 2])
        elif kind == 2:
            client.sendall(b"\0\xff rubbish \r\n\r\n")
            client.recv(1000)
        else:
            client.sendall(whole.replace(b"Host", b"Connection: close\r\nHost"))
            content = b""
            while part := client.recv(64 if kind == 3 else 65536):
                content += part
                if kind == 3 and len(content) < 500:
                    time.sleep(0.01)
            assert content.rstrip().endswith(b"0") or b"429" in content, content[-200:]


def test_nothing_hangs_or_grows_beside_rude_clients(process: Process) -> None:
    expected = {"prompt": "hello", "max_tokens": 8, "temperature": 1, "seed": 3}
    before = process.ask("POST", "/v1/completions", expected)["choices"]
    sizes = []
    for turn in range(4):
        with ThreadPoolExecutor(64) as pool:
            list(
                pool.map(lambda number: rude(process, number), range(turn * 160, turn * 160 + 160))
            )
        end = time.monotonic() + 60
        while (found := process.ask("GET", "/health")) != FREE:
            assert time.monotonic() < end, found
            time.sleep(0.05)
        sizes.append(memory(process))
    assert process.ask("POST", "/v1/completions", expected)["choices"] == before
    assert max(sizes[2:]) < sizes[1] + (8 << 20)

    with ThreadPoolExecutor(16) as pool:  # a kill in the middle of work leaves nobody waiting
        asked = [pool.submit(rude, process, 4) for _ in range(16)]
        time.sleep(0.1)
        process.end(signal.SIGKILL)
        for each in asked:
            each.exception(30)


def test_messages_that_nobody_reads_do_not_stop_it(process: Process) -> None:
    for _ in range(1800):  # each leaves a line, and a pipe takes 64 KiB
        with socket.create_connection(("127.0.0.1", process.port), 30) as client:
            client.sendall(b"\0\xff rubbish \r\n\r\n")
            client.recv(1000)
    assert process.ask("GET", "/health") == FREE
    assert process.end(signal.SIGTERM) in (0, -signal.SIGTERM)


def test_an_interrupt_from_the_keyboard_ends_it(process: Process) -> None:
    assert process.end(signal.SIGINT) in (0, 130, -signal.SIGINT)
