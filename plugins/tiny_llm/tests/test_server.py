"""The server over real HTTP on loopback, with a model that counts: answers, limits, ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvicorn

from tiny_llm import Piece, Speed
from tiny_llm.server import Limits, application
from tiny_llm.text import Options
from tinycore.errors import ArgumentError

JSON = {"Content-Type": "application/json"}


class Counted:
    """A text of `Counter`."""

    def __init__(self, ids: list[int], options: Options) -> None:
        self.ids, self.options, self.count = ids, options, 0

    def piece(self) -> Piece:
        """The next number, or the end."""
        reason = "stop" if self.count == self.ids[0] else None
        if self.options.limit is not None and self.count >= self.options.limit:
            reason = "length"
        if self.options.until():
            reason = "ended"
        if reason is not None:
            return Piece("", None, reason, Speed(len(self.ids), 1, 0.1, self.count, 0.1))
        self.count += 1
        return Piece(f"{self.count - 1} ", self.count - 1)


class Counter:
    """A model that writes "0 1 2 ...", as slowly as it is told, up to the first of the prompt."""

    name, context = "counter", 1000

    def __init__(self, places: int = 1) -> None:
        self.pause = 0.0
        self.places = places
        self.texts: list[Counted] = []
        self.started = threading.Event()
        self.most = 0
        """The most texts that there were at the same time."""
        self.left: list[str] = []
        """Reasons of the ends of all texts."""

    def prompt(self, given: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> list[int]:
        if isinstance(given, str):
            return [ord(letter) for letter in given]
        return [each if isinstance(each, int) else len(str(each)) for each in given]

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, ids: Sequence[int], options: Options) -> Counted | None:
        if ids[0] == ord("!"):
            raise ArgumentError("no exclamations")
        if len(self.texts) == self.places:
            return None
        self.texts.append(Counted(list(ids), options))
        self.most = max(self.most, len(self.texts))
        return self.texts[-1]

    def drop(self, text: Counted) -> None:
        self.texts.remove(text)

    def step(self) -> Iterator[tuple[Counted, Piece]]:
        if self.texts:
            self.started.set()
        time.sleep(self.pause)
        for text in list(self.texts):
            if text.ids[0] == ord("?"):
                raise ZeroDivisionError
            piece = text.piece()
            if piece.reason is not None:
                self.left.append(piece.reason)
                self.drop(text)
            yield text, piece


class Running:
    """A server in a thread, on a port of its own."""

    def __init__(self, model: Counter, limits: Limits, **options: Any) -> None:
        config = uvicorn.Config(
            application(model, model, limits, **options),
            host="127.0.0.1",
            port=0,
            log_level="error",
            timeout_graceful_shutdown=1,
        )
        self.model, self.server = model, uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] = JSON
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content, dict(headers))
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    def post(self, path: str, body: Any) -> Any:
        status, content = self.ask(path, body)
        assert status == 200, content
        return json.loads(content)


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    running = Running(Counter(4), Limits(body_bytes=20_000, tokens=50), hosts=["127.0.0.1"])
    yield running
    running.stop()


@contextlib.contextmanager
def served(limits: Limits | None = None, **options: Any) -> Iterator[Running]:
    running = Running(Counter(), limits or Limits(), **options)
    yield running
    running.stop()


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["text"])


def test_a_completion(shared: Running) -> None:
    answer = shared.post("/v1/completions", {"prompt": [4], "max_tokens": 9})

    assert text_of(answer) == "0 1 2 3 "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["object"] == "text_completion"
    usage = answer["usage"]
    assert usage.pop("prompt_tokens_details") == {"cached_tokens": 1}
    assert usage == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


def test_a_talk(shared: Running) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    answer = shared.post("/v1/chat/completions", {"messages": said, "max_completion_tokens": 3})

    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "0 1 2 "}
    assert choice["finish_reason"] == "length"


def test_a_stream_is_chunks_then_usage_then_done(shared: Running) -> None:
    body = {"prompt": [2], "stream": True, "stream_options": {"include_usage": True}}
    status, content = shared.ask("/v1/completions", body)

    *events, done = content.decode().strip().split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert status == 200
    assert done == "data: [DONE]"
    assert "".join(text_of(chunk) for chunk in chunks[:-1]) == "0 1 "
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_what_is_there(shared: Running) -> None:
    assert json.loads(shared.ask("/v1/models")[1])["data"][0]["id"] == "counter"
    assert shared.ask("/v1/models/counter")[0] == 200
    assert shared.ask("/v1/models/other")[0] == 404
    for path in ("/", "/page.js", "/page.css", "/health"):
        assert shared.ask(path)[0] == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "no JSON"),
        (b"[" * 15_000, "no JSON"),
        (b'{"prompt": "x", "temperature": NaN}', "no JSON"),
        ([], "no JSON object"),
        ({}, "prompt must be"),
        ({"prompt": ["a", "b"]}, "prompt must be"),
        ({"prompt": [1.5]}, "prompt must be"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": "x" * 1001}, "1001 tokens; the context takes 1000"),
        ({"prompt": "x", "n": 2}, "n is not supported"),
        ({"prompt": "x", "logprobs": 5}, "logprobs is not supported"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be 1 or more"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens must be of type int"),
        ({"prompt": "x", "temperature": -1}, "temperature must be from 0 to 100"),
        ({"prompt": "x", "temperature": 10**400}, "temperature must be of type float"),
        ({"prompt": "x", "seed": -1}, "seed must be from 0"),
        ({"prompt": "x", "top_p": "1"}, "top_p must be of type float"),
        ({"prompt": "x", "stop": ["a"] * 17}, "stop takes at most 16"),
        ({"prompt": "x", "stop": [1]}, "stop must be"),
        ({"prompt": "x", "stream": "yes"}, "stream must be of type bool"),
        ({"prompt": "!"}, "no exclamations"),
    ],
    ids=str,
)
def test_a_broken_request_is_explained(body: Any, said: str, shared: Running) -> None:
    status, content = shared.ask("/v1/completions", body)

    assert status == 400
    assert said in json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [None, [], "hello", [{"role": "robot", "content": "x"}], [{"role": "user", "content": 3}], [7]],
    ids=str,
)
def test_broken_messages_are_explained(messages: Any, shared: Running) -> None:
    status, content = shared.ask("/v1/chat/completions", {"messages": messages})

    assert status == 400
    assert json.loads(content)["error"]["param"] == "messages"


def test_bodies_have_limits(shared: Running) -> None:
    assert shared.ask("/v1/completions", b"x" * 20_001)[0] == 413
    assert shared.ask("/v1/completions", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert shared.ask("/v1/nothing")[0] == 404
    assert shared.ask("/v1/completions")[0] == 405


def test_a_name_of_another_site_is_refused(shared: Running) -> None:
    assert shared.ask("/v1/models", headers={"Host": "evil.example"})[0] == 400


def test_an_error_of_the_model_ends_the_texts_of_that_step_alone(shared: Running) -> None:
    assert shared.ask("/v1/completions", {"prompt": "?"})[0] == 500
    assert b"error" in shared.ask("/v1/completions", {"prompt": "?", "stream": True})[1]
    assert text_of(shared.post("/v1/completions", {"prompt": [1]})) == "0 "


def test_answers_are_no_longer_than_the_server_says(shared: Running) -> None:
    answer = shared.post("/v1/completions", {"prompt": [99], "max_tokens": 99})

    assert answer["usage"]["completion_tokens"] == 50


def test_many_clients_get_their_own_answers(shared: Running) -> None:
    def asked(number: int) -> bool:
        stream = bool(number % 2)
        status, content = shared.ask(
            "/v1/completions", {"prompt": [number], "max_tokens": 40, "stream": stream}
        )
        if status == 429:  # the queue was full, as it says
            time.sleep(0.05)
            return asked(number)
        expected = "".join(f"{n} " for n in range(number))
        if not stream:
            return text_of(json.loads(content)) == expected
        events = content.decode().strip().split("\n\n")[:-1]
        return "".join(text_of(json.loads(event[6:])) for event in events) == expected

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(asked, [1 + n % 32 for n in range(192)]))


def test_a_key_is_asked_for() -> None:
    with served(key="secret") as running:
        assert running.ask("/v1/models")[0] == 401
        assert running.ask("/v1/models/another")[0] == 401  # not which one there is
        assert running.ask("/v1/completions", {"prompt": [1]})[0] == 401
        allowed = {**JSON, "Authorization": "Bearer secret"}
        assert running.ask("/v1/completions", {"prompt": [1]}, allowed)[0] == 200


def test_a_key_may_have_any_letters() -> None:
    with served(key="schlüssel") as running:
        given = "Bearer schlüssel".encode().decode("latin-1")  # as curl sends it
        assert running.ask("/v1/models", None, {"Authorization": given})[0] == 200


def test_a_slow_body_is_left() -> None:
    with (
        served(Limits(body_seconds=0.2)) as running,
        socket.create_connection(("127.0.0.1", running.port), 10) as client,
    ):
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())

        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_a_full_queue_and_late_answers_are_told() -> None:
    with served(Limits(waiting=1, seconds=0.3)) as running:
        running.model.pause = 0.05
        with ThreadPoolExecutor(6) as pool:
            body = {"prompt": [900], "max_tokens": 900}
            found = list(pool.map(lambda _: running.ask("/v1/completions", body), range(6)))

        statuses = [status for status, _ in found]
        assert statuses.count(429) >= 3
        answers = [json.loads(content) for status, content in found if status == 200]
        assert answers
        assert {answer["tinycore"]["reason"] for answer in answers} == {"ended"}
        assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"length"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_ends_its_text(stream: bool) -> None:
    with served() as running:
        running.model.pause = 0.01
        body = json.dumps({"prompt": [900], "max_tokens": 900, "stream": stream}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", running.port), 10) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert running.model.started.wait(10)
        begun = time.monotonic()
        while not running.model.left and time.monotonic() < begun + 60:
            time.sleep(0.01)

        assert running.model.left == ["ended"]
        running.model.pause = 0
        assert text_of(running.post("/v1/completions", {"prompt": [2]})) == "0 1 "


def test_texts_are_written_side_by_side_and_a_place_is_freed_for_the_next() -> None:
    running = Running(Counter(3), Limits(waiting=2, seconds=30))
    running.model.pause = 0.01
    body = {"prompt": [900], "max_tokens": 900, "stream": True}
    clients = []
    for count in range(1, 6):  # three are written, two wait
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
        client.request("POST", "/v1/completions", json.dumps(body), JSON)
        clients.append(client)
        while sum(json.loads(running.ask("/health")[1])[n] for n in ("waiting", "running")) < count:
            time.sleep(0.01)
    assert running.ask("/v1/completions", body)[0] == 429
    for client in clients[1:4]:  # two that are written, and one that waits
        client.sock.shutdown(socket.SHUT_RDWR)
        client.close()
    assert text_of(running.post("/v1/completions", {"prompt": [2], "max_tokens": 2})) == "0 1 "
    for client in clients:
        client.close()
    running.stop()
    assert running.model.most == 3
    assert not running.model.texts


def test_the_server_stops_beside_a_running_answer() -> None:
    running = Running(Counter(), Limits())
    running.model.pause = 0.02
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            running.ask, "/v1/completions", {"prompt": [900], "max_tokens": 900, "stream": True}
        )
        assert running.model.started.wait(10)
        running.stop()
        with contextlib.suppress(http.client.HTTPException, OSError):
            asked.result(10)

    assert running.model.left == ["ended"]
