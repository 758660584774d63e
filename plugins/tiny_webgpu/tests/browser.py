"""Chromium without a window, opened on a folder: what a page told the server that it came from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120
QUIET = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--enable-unsafe-webgpu"),
)
SOFTWARE = ("--use-webgpu-adapter=swiftshader",)
"""The driver that Chromium brings along. WebGPU is there for pages of a server only, not of files.
"""
NO_ADAPTER = ("--disable-gpu", "--disable-software-rasterizer", "--use-webgpu-adapter=default")


def chromium() -> str:
    """The browser; TINY_WEBGPU_CHROMIUM names another one. Skips where there is none."""
    named = os.environ.get("TINY_WEBGPU_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: apt install chromium, or name one by TINY_WEBGPU_CHROMIUM")
    return found


class Server(SimpleHTTPRequestHandler):
    """A folder, and a place where pages tell how they fare."""

    told: Queue[Any]

    def do_POST(self) -> None:
        """Keep what a page tells."""
        size = int(self.headers["Content-Length"])
        self.told.put(json.loads(self.rfile.read(size)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name it has
        """Say nothing."""


def visit(folder: Path, page: str, *flags: str) -> Any:
    """Open a page of a folder, and return what it posts to its server."""
    browser = chromium()
    told: Queue[Any] = Queue()
    handler = type("Telling", (Server,), {"told": told})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/{page}"
    profile = folder / "profile"
    command = [browser, *QUIET, *flags, f"--user-data-dir={profile}", address]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return told.get(timeout=SECONDS)
    except Empty:
        pytest.fail(f"{page} told nothing in {SECONDS} s; {browser} ended: {running.poll()}")
    finally:
        running.terminate()
        running.wait(30)
        server.shutdown()
        server.server_close()
