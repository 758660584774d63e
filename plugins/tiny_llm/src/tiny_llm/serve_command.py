"""`tinycore serve MODEL`: OpenAI's API for one model, and a page to talk with it."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from pathlib import Path

import uvicorn

from tiny_llm.messages import unhurried
from tiny_llm.options import add_model, add_speculation, check_device, chosen_device, load
from tiny_llm.server import Limits, application
from tinycore.cli.options import Commands, subcommand
from tinycore.errors import ArgumentError

__all__ = ["add", "run"]

EPILOG = """\
examples:
  tinycore serve SmolLM2-135M-Instruct.Q4_1.gguf
  curl http://127.0.0.1:8080/v1/chat/completions -H "Content-Type: application/json" \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'

Programs written for OpenAI's API take http://127.0.0.1:8080/v1 as their base URL. The server
listens on this machine alone unless --host says otherwise; then give --key-file, too.
"""
AT_ONCE = 4
MOST_OPEN = 512
"""Connections at once; a waiting request holds one."""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    usual = Limits()
    command = subcommand(
        commands,
        run,
        "serve",
        "serve a language model to programs, as OpenAI's API",
        "Serve a language model to programs by OpenAI's API, with a page to chat.",
        EPILOG,
    )
    add_model(command)
    add_speculation(command)
    command.add_argument("--host", default="127.0.0.1", help="address, 127.0.0.1 unless given")
    command.add_argument("--port", type=int, default=8080, help="port, 8080 unless given")
    command.add_argument("--key-file", type=Path, help="a file with the key that clients must send")
    command.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name by which clients may reach the server, beside its address",
    )  # fmt: skip
    for name, text in (
        ("tokens", "most tokens of an answer"),
        ("seconds", "most seconds of an answer"),
        ("waiting", "most requests that wait"),
    ):
        default = getattr(usual, name)
        command.add_argument(
            f"--most-{name}", type=type(default), default=default,
            help=f"{text}, {default:g} unless given",
        )  # fmt: skip
    command.add_argument(
        "--at-once", type=int, default=AT_ONCE, metavar="N",
        help=f"texts that are written at the same time, {AT_ONCE} unless given; each has memory "
        "for a whole context",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Load the model, and serve until a signal comes."""
    with unhurried(), chosen_device(arguments):
        return _serve(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    limits = Limits(
        tokens=arguments.most_tokens,
        seconds=arguments.most_seconds,
        waiting=arguments.most_waiting,
    )
    if min(limits.tokens, limits.seconds, limits.waiting) <= 0:
        raise ArgumentError("limits must be greater than 0")
    key = _key(arguments.key_file)
    check_device()
    from tiny_llm.batch import Batch  # noqa: PLC0415  `--help` needs no tensors

    model = load(arguments, arguments.at_once)
    writing = Batch(model, arguments.speculate)
    app = application(model, writing, limits, hosts=_hosts(arguments), key=key)
    if not is_loopback(arguments.host) and key is None:
        print("tinycore: anyone who reaches this address can use the model", file=sys.stderr)
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_OPEN,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        server_header=False,
    )
    where = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"{model.name} at http://{where}:{arguments.port}; Ctrl-C ends", file=sys.stderr)
    server = uvicorn.Server(config)
    server.run()
    return 0 if server.started else 1


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text("utf-8").strip()
    except OSError as error:
        raise ArgumentError(f"the key cannot be read: {error}") from error
    if not key:
        raise ArgumentError(f"{path} has no key in it")
    return key


def _hosts(arguments: argparse.Namespace) -> list[str] | None:
    """Names that requests may use; None for all, where the address is not this machine's alone."""
    if not is_loopback(arguments.host) and not arguments.allow_host:
        return None
    return ["localhost", "127.0.0.1", "[::1]", arguments.host, *arguments.allow_host]


def is_loopback(host: str) -> bool:
    """True if only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
