"""The server of a profile's page: for this machine alone, and for those who know the token.

It listens on the loopback address. Every path begins with a token, drawn anew for each server, so
other users and pages of the browser get nothing; the name in `Host` must be that of the loopback,
so a foreign name that resolves to it gets nothing either. The page loads nothing from elsewhere,
which its Content-Security-Policy states, too.
"""

from __future__ import annotations

import json
import secrets
import sys
import webbrowser
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from tiny_viz.queries import Queries

__all__ = ["Server", "serve"]

ADDRESS: Final = "127.0.0.1"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
PAGES: Final = {"": "index.html"} | {
    name: name
    for name in (
        "app.js drawing.js timeline.js graph.js style.css vendor/uPlot.iife.min.js "
        "vendor/uPlot.min.css"
    ).split()
}
"""The files that are served, by their paths below the token."""


class Server(ThreadingHTTPServer):
    """Serves one profile."""

    daemon_threads = True

    def __init__(self, path: str | Path, port: int = 0) -> None:
        self.queries = Queries(path)
        self.token = secrets.token_urlsafe(24)
        super().__init__((ADDRESS, port), Handler)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of an error, but not of a browser that has left before it got its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Stop the server, and close the profile."""
        super().server_close()
        self.queries.close()


class Handler(BaseHTTPRequestHandler):
    """Answers requests."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "tiny-viz"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Send a file of the page, or what a query found."""
        port = self.server.server_address[1]
        is_local = self.headers.get("Host") in (f"{ADDRESS}:{port}", f"localhost:{port}")
        place, _, asked = self.path.partition("?")
        token, _, path = place.removeprefix("/").partition("/")
        knows = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not (is_local and knows):
            self.answer(HTTPStatus.FORBIDDEN)
        elif path in PAGES:
            name = PAGES[path]
            content = files("tiny_viz").joinpath("page", name).read_bytes()
            self.answer(HTTPStatus.OK, TYPES[Path(name).suffix], content)
        else:
            self.query(path, dict(parse_qsl(asked)))

    def query(self, path: str, given: Mapping[str, str]) -> None:
        """Send the result of a query as JSON."""
        name = path.removeprefix("api/")
        found = self.server.queries.known.get(name)
        if path == name or found is None:
            self.answer(HTTPStatus.NOT_FOUND)
            return
        try:
            status, result = HTTPStatus.OK, as_json(found(given))
        except Exception as error:  # a profile may come from anywhere, or be damaged
            about = f"{type(error).__name__}: {error}"
            status, result = HTTPStatus.BAD_REQUEST, as_json({"error": about})
        self.answer(status, "application/json", result)

    def answer(self, status: HTTPStatus, kind: str = "text/plain", content: bytes = b"") -> None:
        """Send a response."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  the name of the base
        """Log nothing: paths have the token."""


def as_json(result: Any) -> bytes:
    """A result in JSON, which has no infinity."""
    return json.dumps(result, separators=(",", ":"), allow_nan=False).encode()


def tell(line: str) -> None:
    """Print a line where messages go, at once: other servers print there, too."""
    sys.stderr.write(f"{line}\n")


def serve(path: str | Path, *, port: int = 0, opens: bool = True) -> None:
    """Serve the page of a profile until Ctrl-C. Raises FileFormatError for another file."""
    with Server(path, port) as server:
        tell(f"tinycore: {path} is shown at {server.address}")
        tell("tinycore: Ctrl-C ends it")
        if opens:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            tell("")
