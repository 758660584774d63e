"""OpenAI's API over HTTP, for one model: completions, chat, streams, and a page to talk.

Everything a client sends has a limit: the size and the time of a body, the tokens and the seconds
of an answer, the requests that wait. A client that goes away ends its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tiny_llm.requests import Asked, BadRequest, parsed
from tiny_llm.text import Piece
from tiny_llm.worker import Job, QueueFull, Worker, Writer, Writing
from tinycore.errors import ArgumentError

__all__ = ["Limits", "application"]

REASONS: Final = {"stop": "stop", "length": "length", "context": "length", "ended": "length"}
"""The reason of an end as OpenAI names it."""
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
PAGE_FILES: Final = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}


@dataclass(frozen=True)
class Limits:
    """Bounds of what a client may ask for."""

    body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    tokens: int = 4096
    seconds: float = 600.0
    waiting: int = 32


def application(
    model: Writer,
    writing: Writing,
    limits: Limits | None = None,
    *,
    hosts: list[str] | None = None,
    key: str | None = None,
) -> Starlette:
    """The ASGI application, over a model and its texts in progress.

    `hosts`, if given, are those that a Host header may name: a page of another site, whose name was
    made to point here, is refused. `key` is asked of clients.
    """
    server = Server(model, writing, limits or Limits(), key)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.worker.close)

    pages = [Route(path, server.page, methods=["GET"]) for path in PAGE_FILES]
    routes = [
        *pages,
        Route("/health", server.health, methods=["GET"]),
        Route("/v1/models", server.models, methods=["GET"]),
        Route("/v1/models/{name:path}", server.model_of_name, methods=["GET"]),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=guards if hosts else [],
        exception_handlers={404: no_such_path, 405: no_such_path},
    )


async def no_such_path(request: Request, error: Exception) -> Response:
    """The answer to a path or method that is not there."""
    status = getattr(error, "status_code", 404)
    return failure(f"{request.method} {request.url.path} is not served", status)


def failure(
    message: str, status: int, field: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in OpenAI's form."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": field, "code": None}
    return JSONResponse({"error": error}, status, headers)


class Server:
    """The endpoints, over one worker."""

    def __init__(self, model: Writer, writing: Writing, limits: Limits, key: str | None) -> None:
        self.model, self.limits, self.key = model, limits, key
        self.worker = Worker(writing, limits.waiting)
        self.began = int(time.time())

    # --- what is there

    async def page(self, request: Request) -> Response:
        """The chat page."""
        name, kind = PAGE_FILES[request.url.path]
        text = (files("tiny_llm") / "page" / name).read_text("utf-8")
        headers = {"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(text, media_type=kind, headers=headers)

    async def health(self, request: Request) -> Response:
        """The numbers of requests that wait, and of texts that are written."""
        counts = {"waiting": self.worker.waiting, "running": self.worker.running}
        return JSONResponse({"status": "ok", **counts})

    async def models(self, request: Request) -> Response:
        """The one model."""
        return self.refused(request) or JSONResponse({"object": "list", "data": [self.entry()]})

    async def model_of_name(self, request: Request) -> Response:
        """The model, if the path names it."""
        name = request.path_params["name"]
        found: Response = JSONResponse(self.entry())
        if name != self.model.name:
            found = failure(f"there is no model {name!r:.100}; {self.model.name} is served", 404)
        return self.refused(request) or found

    def entry(self) -> dict[str, Any]:
        """The model, as a list of models shows it."""
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.began,
            "owned_by": "tinycore",
            "context_length": self.model.context,
        }

    def refused(self, request: Request) -> Response | None:
        """The answer to a client without the key; None if it may go on."""
        if self.key is None:
            return None
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode("latin-1"), self.key.encode()):
            return None
        return failure("the API key is missing or wrong", 401)

    # --- texts

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self.answered(request, is_chat=False)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self.answered(request, is_chat=True)

    async def answered(self, request: Request, is_chat: bool) -> Response:
        """The answer to a request for a text, in one piece or as a stream of events."""
        if refused := self.refused(request):
            return refused
        try:
            asked = parsed(await self.body(request), is_chat)
            job = await self.submitted(asked)
        except BadRequest as error:
            return failure(str(error), error.status, error.field)
        except QueueFull as error:
            return failure(str(error), 429, headers={"Retry-After": "5"})
        except ArgumentError as error:
            return failure(str(error), 400)
        except ClientDisconnect:
            return Response(status_code=400)
        answer = Answer(self.model.name, is_chat)
        if asked.stream:
            return Stream(job, answer, asked.with_usage)
        return await self.whole(request, job, answer)

    async def body(self, request: Request) -> bytes:
        """The body of a request. Raises BadRequest for one too large, too slow, or of no JSON."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # what a form of another site could send is not taken
            raise BadRequest("Content-Type must be application/json", status=415)
        content = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    content += part
                    if len(content) > self.limits.body_bytes:
                        raise BadRequest(
                            f"the body has more than {self.limits.body_bytes} bytes", status=413
                        )
        except TimeoutError as error:
            raise BadRequest("the body came too slowly", status=408) from error
        return bytes(content)

    async def submitted(self, asked: Asked) -> Job:
        """The job of a request. Raises BadRequest or QueueFull."""
        ids = await asyncio.to_thread(self.model.prompt, asked.given)
        if not ids:
            raise BadRequest("the prompt has no tokens", "prompt")
        if len(ids) > self.model.context:
            raise BadRequest(
                f"the prompt has {len(ids)} tokens; the context takes {self.model.context}"
            )
        limits = self.limits
        limit = min(asked.limit or limits.tokens, limits.tokens)
        loop = asyncio.get_running_loop()
        job = Job(ids, asked.sampling, limit, asked.stop, limits.seconds, loop)
        self.worker.submit(job)
        return job

    async def whole(self, request: Request, job: Job, answer: Answer) -> Response:
        """The answer in one piece; the job ends where the client goes away."""
        gone = asyncio.create_task(disconnected(request))
        reading = asyncio.create_task(collected(job))
        try:
            await asyncio.wait({gone, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return Response(status_code=499)  # nobody reads it
            text, last = reading.result()
            return JSONResponse(answer.whole(text, last))
        except ArgumentError as error:
            return failure(str(error), 400)
        except Exception as error:
            return failure(f"generating failed: {type(error).__name__}", 500)
        finally:
            job.cancel()
            for task in (gone, reading):
                task.cancel()
            await asyncio.gather(gone, reading, return_exceptions=True)


class Stream(StreamingResponse):
    """A stream of events, whose job ends with it: also where no event was ever asked for."""

    def __init__(self, job: Job, answer: Answer, with_usage: bool) -> None:
        self.job = job
        super().__init__(
            events(job, answer, with_usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.job.cancel()


async def disconnected(request: Request) -> None:
    """Ends when the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def collected(job: Job) -> tuple[str, Piece]:
    """The text of a job, and its last piece."""
    texts = []
    async for piece in job.pieces():
        texts.append(piece.text)
        last = piece
    return "".join(texts), last


async def events(job: Job, answer: Answer, with_usage: bool) -> AsyncIterator[str]:
    """Server-sent events: a chunk for each piece, the usage if asked for, and [DONE]."""
    try:
        if answer.is_chat:
            yield event(answer.chunk({"role": "assistant", "content": ""}))
        async for piece in job.pieces():
            if piece.text:
                yield event(answer.text_chunk(piece.text))
            if piece.reason is not None:
                yield event(answer.last_chunk(piece))
                if with_usage:
                    yield event(answer.usage_chunk(piece))
    except Exception as error:
        text = str(error) if isinstance(error, ArgumentError) else type(error).__name__
        yield event({"error": {"message": f"generating failed: {text}", "type": "server_error"}})
    yield "data: [DONE]\n\n"


def event(data: dict[str, Any]) -> str:
    """One event."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


class Answer:
    """The objects of OpenAI's API for one text."""

    def __init__(self, model: str, is_chat: bool) -> None:
        self.is_chat = is_chat
        word = "chatcmpl" if is_chat else "cmpl"
        self.head = {"id": f"{word}-{uuid.uuid4().hex}", "created": int(time.time())}
        self.head |= {"model": model}
        self.kind = "chat.completion" if is_chat else "text_completion"

    def whole(self, text: str, last: Piece) -> dict[str, Any]:
        """The answer in one piece."""
        said = (
            {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        )
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self.reason(last)}
        return {**self.head, "object": self.kind, "choices": [choice], **self.usage(last)}

    def chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        """A part of a talk."""
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self.head, "object": "chat.completion.chunk", "choices": [choice]}

    def text_chunk(self, text: str, reason: str | None = None) -> dict[str, Any]:
        """A part of the text."""
        if self.is_chat:
            return self.chunk({"content": text} if text else {}, reason)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {**self.head, "object": self.kind, "choices": [choice]}

    def last_chunk(self, last: Piece) -> dict[str, Any]:
        """The part that says why the text ended."""
        return self.text_chunk("", self.reason(last)) | {"tinycore": {"reason": last.reason}}

    def usage_chunk(self, last: Piece) -> dict[str, Any]:
        """The part without text that has the usage."""
        return {**self.text_chunk(""), "choices": [], **self.usage(last)}

    def reason(self, last: Piece) -> str:
        """The reason of the end, as OpenAI names it."""
        return REASONS[last.reason or "stop"]

    def usage(self, last: Piece) -> dict[str, Any]:
        """The numbers of tokens."""
        speed = last.speed
        assert speed is not None
        usage = {
            "prompt_tokens": speed.prompt,
            "completion_tokens": speed.generated,
            "total_tokens": speed.prompt + speed.generated,
            "prompt_tokens_details": {"cached_tokens": speed.reused},
        }
        return {"usage": usage, "tinycore": {"reason": last.reason}}
