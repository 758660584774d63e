"""Settings: the environment, assignment, Context, messages, and the printed table."""

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tinycore import Tensor, _setting, config
from tinycore._processors import UNLIMITED, quota, usable_processors
from tinycore.cli.main import main
from tinycore.config import (
    OF_TINYGRAD,
    Context,
    PluginSettings,
    Settings,
    misspelt_variables,
    number,
    settings,
    settings_table,
    text,
)
from tinycore.errors import SettingError
from tinycore.plugin import API_VERSION, Backend, deferred, register, unregister


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings as at the start of a process whose environment sets none of them."""
    for entry in settings:
        for variable in entry.variables:
            monkeypatch.delenv(variable, raising=False)
    before = dict(_setting.process)
    _setting.process.clear()
    yield
    _setting.process.clear()
    _setting.process.update(before)


def in_new_process(program: str, **variables: str) -> str:
    kept = {name: text for name, text in os.environ.items() if name not in _setting.rows}
    command = [sys.executable, "-c", f"from tinycore.config import *\n{program}"]
    done = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


# Reading


def test_a_setting_has_its_default() -> None:
    assert settings.DEBUG == 0
    assert settings.LRU is True
    assert settings.TINYCORE_PLUGINS == ("auto",)


def test_the_environment_gives_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "2")
    monkeypatch.setenv("LRU", "0")
    monkeypatch.setenv("TRACE", "run, source")
    monkeypatch.setenv("DEFAULT_FLOAT", "HALF")

    assert settings.DEBUG == 2
    assert settings.LRU is False
    assert settings.TRACE == ("run", "source")
    assert settings.DEFAULT_FLOAT == "float16"


def test_the_prefixed_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "of another program")
    monkeypatch.setenv("TINYCORE_DEBUG", "1")

    assert settings.DEBUG == 1


def test_a_blank_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", " ")
    monkeypatch.setenv("TINYCORE_PLUGINS", "")

    assert settings.DEBUG == 0
    assert settings.TINYCORE_PLUGINS == ("auto",)


def test_no_color_is_on_with_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "0")

    assert settings.NO_COLOR is True


def test_importing_reads_nothing_from_the_environment() -> None:
    assert in_new_process("print('imported')", DEBUG="two") == "imported\n"


def test_a_row_compares_like_its_value() -> None:
    debug = Settings.DEBUG

    with Context(DEBUG=2):
        assert debug.value == 2
        assert debug >= 2
        assert not debug > 2
        assert debug == 2
        assert debug
        assert ["a", "b", "c"][debug] == "c"
        assert repr(debug) == "DEBUG=2"
    assert debug < 1
    assert debug <= 0


# Malformed values


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LRU", "maybe", "LRU=maybe is not understood; allowed is 0 or 1."),
        ("JIT", "3", "JIT=3 is not understood; allowed is a whole number from 0 to 2."),
        ("DEFAULT_INT", "uint8", "DEFAULT_INT=uint8 is not understood; allowed is one of int8,"),
        ("CACHE_SIZE", "0", "CACHE_SIZE=0 is not understood; allowed is a whole number from 1 up."),
    ],
)
def test_a_malformed_variable_names_itself_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SettingError) as caught:
        getattr(settings, name)

    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(
        f" If it belongs to another program, set TINYCORE_{name} as well."
    )


@pytest.mark.parametrize(
    ("name", "value", "default", "message"),
    [
        (
            "DEBUG",
            "true",
            0,
            "DEBUG=true is not understood; allowed is a whole number from 0 to 7.",
        ),
        ("DEBUG", "9", 0, "DEBUG=9 is not understood; allowed is a whole number from 0 to 7."),
        ("TRACE", "1", (), "TRACE=1 is not understood; allowed is words separated by commas, out"),
        ("TRACE", "run:x", (), "TRACE=run:x is not understood; allowed is words separated by"),
    ],
)
def test_a_variable_of_any_program_is_told_and_ignored(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, default: object, message: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.warns(UserWarning, match=f"^{message}.*set TINYCORE_{name} as well. It is ignored"):
        assert getattr(settings, name) == default

    monkeypatch.setenv(f"TINYCORE_{name}", value)
    _setting.process.pop(name, None)
    with pytest.raises(SettingError, match=f"^TINYCORE_{name}={value} is not understood"):
        getattr(settings, name)


def test_a_malformed_prefixed_variable_is_surely_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYCORE_STRICT", "very")

    with pytest.raises(SettingError, match=r"^TINYCORE_STRICT=very .*allowed is 0 or 1\."):
        _ = settings.TINYCORE_STRICT


def test_assignment_is_checked_too() -> None:
    with pytest.raises(SettingError, match=r"^DEBUG=1\.5 is not understood"):
        settings.DEBUG = 1.5
    with pytest.raises(SettingError, match=r"no setting is named 'DEBG'. Did you mean DEBUG\?"):
        settings.DEBG = 1


def test_the_table_tells_what_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU", "maybe")

    lines = settings_table().splitlines()

    assert any(line.startswith("LRU=maybe is not understood; allowed is 0 or 1.") for line in lines)
    assert any(line.startswith("NOOPT=False") for line in lines)


# Tables of plugins


class ToySettings(PluginSettings):
    """A table as a plugin states it."""

    TOY_QUEUES = number(2, "Queues that kernels are spread over", 1, 8)
    TOY_LIBRARY = text("", "The library of toys", "a file")


toy_settings = ToySettings()


def test_a_plugins_setting_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy_settings.TOY_QUEUES == 2
    monkeypatch.setenv("TOY_QUEUES", "5")
    assert toy_settings.TOY_QUEUES == 5
    with Context(TOY_QUEUES=7):
        assert toy_settings.TOY_QUEUES == 7
    toy_settings.TOY_QUEUES = 3
    assert toy_settings.TOY_QUEUES == 3


def test_a_plugins_setting_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_QUEUES", "9")
    with pytest.raises(SettingError, match=r"TOY_QUEUES=9 .* a whole number from 1 to 8\."):
        _ = toy_settings.TOY_QUEUES
    with pytest.raises(SettingError, match="TOY_QUEUES='many' is not understood"):
        Context(TOY_QUEUES="many")
    with pytest.raises(SettingError, match="is named 'TOY_QUEUE': TOY_QUEUES, TOY_LIBRARY"):
        toy_settings.TOY_QUEUE = 1


def test_a_misspelt_setting_of_a_plugin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_QUEUS", "4")
    assert misspelt_variables() == {"TOY_QUEUS": "TOY_QUEUES"}


def test_a_name_belongs_to_one_table() -> None:
    with pytest.raises(SettingError, match=r"a setting LRU, which is tinycore's own\. Begin"):
        type("Other", (PluginSettings,), {"LRU": number(1, "", 0)})
    with pytest.raises(SettingError, match=r"TOY_LIBRARY, which is that of .*ToySettings\. Begin"):
        type("Other", (PluginSettings,), {"TOY_LIBRARY": text("", "", "a file")})
    assert settings.LRU is True
    assert _setting.plugin_rows["TOY_LIBRARY"].owner.endswith("ToySettings")


def test_tables_of_backends_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> PluginSettings:
        raise RuntimeError("no table")

    stated: dict[str, Callable[[], PluginSettings]] = {"TOY": ToySettings, "ODD": broken}
    absent = deferred("tests.absent:nothing")
    backends = [
        Backend(name=name, api=API_VERSION, open=absent, renderers={"C": absent}, settings=table)
        for name, table in stated.items()
    ]
    monkeypatch.setenv("TOY_LIBRARY", "/toys.so")
    for backend in backends:
        register(backend)
    try:
        assert main(["settings"]) == 0
    finally:
        for name in stated:
            unregister(name)
    shown = capsys.readouterr().out
    assert "\nOf TOY:\nTOY_QUEUES=2  [default]\n    Queues that kernels are spread over. " in shown
    assert "TOY_LIBRARY=/toys.so  [from TOY_LIBRARY]" in shown
    assert "Of ODD:\n    its settings cannot be listed: RuntimeError: no table" in shown


# Context


def test_context_holds_for_its_block_only() -> None:
    with Context(DEBUG=2, NOOPT=1):
        assert (settings.DEBUG, settings.NOOPT) == (2, True)
        with Context(DEBUG=4):
            assert (settings.DEBUG, settings.NOOPT) == (4, True)
        assert settings.DEBUG == 2
    assert (settings.DEBUG, settings.NOOPT) == (0, False)


def test_context_ends_when_its_block_raises() -> None:
    with pytest.raises(KeyError), Context(DEBUG=2):
        raise KeyError
    assert settings.DEBUG == 0


@pytest.mark.parametrize("failing", [True, False], ids=["entered", "left"])
def test_context_ends_when_a_watcher_raises(monkeypatch: pytest.MonkeyPatch, failing: bool) -> None:
    def watch(value: int, is_entered: bool) -> None:
        if is_entered is failing:
            raise OSError("the disk is full")

    monkeypatch.setitem(config.watchers, "NOOPT", watch)
    with pytest.raises(OSError, match="full"), Context(DEBUG=2, NOOPT=1):
        pass
    assert (settings.DEBUG, settings.NOOPT) == (0, False)


def test_context_decorates_a_function_even_a_recursive_one() -> None:
    @Context(DEBUG=3)
    def depth(count: int) -> list[int]:
        return [settings.DEBUG, *(depth(count - 1) if count else [])]

    assert depth(2) == [3, 3, 3]
    assert settings.DEBUG == 0


def test_one_context_can_be_entered_again_inside_itself() -> None:
    context = Context(DEBUG=3)
    with context, context:
        assert settings.DEBUG == 3
    assert settings.DEBUG == 0


def test_context_is_not_seen_by_other_threads() -> None:
    seen = []
    with Context(DEBUG=5):
        thread = threading.Thread(target=lambda: seen.append(settings.DEBUG))
        thread.start()
        thread.join()
    assert seen == [0]


def test_context_is_not_seen_by_other_tasks() -> None:
    async def inside(ready: asyncio.Event) -> int:
        with Context(DEBUG=6):
            ready.set()
            await asyncio.sleep(0)
            return settings.DEBUG

    async def outside(ready: asyncio.Event) -> int:
        await ready.wait()
        return settings.DEBUG

    async def both() -> list[int]:
        ready = asyncio.Event()
        return list(await asyncio.gather(inside(ready), outside(ready)))

    assert asyncio.run(both()) == [6, 0]


def test_contexts_of_generators_that_end_in_any_order_leave_nothing() -> None:
    def values() -> Iterator[int]:
        with Context(DEBUG=2):
            yield settings.DEBUG
        yield settings.DEBUG

    first, second = values(), values()
    with Context(NOOPT=1):
        assert (next(first), next(second)) == (2, 2)
        settings.JIT = 2
        assert next(first) == 2  # the second one has not left its own
        assert settings.JIT == 2
        assert next(second) == 0
        assert (settings.DEBUG, settings.NOOPT, settings.JIT) == (0, True, 1)
    assert not settings.NOOPT


def test_one_context_may_be_entered_by_several_threads_and_twice() -> None:
    context, entered, left = Context(DEBUG=2), threading.Event(), threading.Event()
    seen: list[int] = []

    def work() -> None:
        with context:
            entered.set()
            assert left.wait(60)
            seen.append(settings.DEBUG)
        seen.append(settings.DEBUG)

    thread = threading.Thread(target=work)
    with context:
        thread.start()
        assert entered.wait(60)
        with context:
            pass
        assert settings.DEBUG == 2
    left.set()
    thread.join(60)

    assert settings.DEBUG == 0
    assert seen == [2, 0]


def test_an_asynchronous_generator_that_is_given_up_ends_without_an_error() -> None:
    ended: list[str] = []

    async def values() -> AsyncIterator[int]:
        try:
            with Context(DEBUG=2):
                yield 1
                yield 2
        finally:
            ended.append("ended")

    async def first() -> int:
        async for value in values():
            return value
        return 0

    assert asyncio.run(first()) == 1
    assert ended == ["ended"]
    assert settings.DEBUG == 0


@pytest.mark.parametrize("context", [Context(TRAINING=1), Tensor.train()])
def test_a_decorated_coroutine_has_the_settings_all_along(context: Any) -> None:
    async def work() -> bool:
        await asyncio.sleep(0)
        return settings.TRAINING

    async def both() -> list[bool]:
        trained = context(work)
        found = await asyncio.gather(trained(), trained())
        return [*found, settings.TRAINING]

    assert asyncio.run(both()) == [True, True, False]


@pytest.mark.parametrize("context", [Context(TRAINING=1), Tensor.train()])
def test_a_decorated_generator_is_refused(context: Any) -> None:
    def values() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (values, later):
        with pytest.raises(SettingError, match="is a generator"):
            context(function)


def test_assigning_inside_a_context_ends_with_it() -> None:
    with Context(NOOPT=1):
        settings.DEBUG = 2
        assert settings.DEBUG == 2
    assert settings.DEBUG == 0


def test_assigning_outside_a_context_holds_for_every_thread() -> None:
    settings.DEBUG = 2
    seen = []
    thread = threading.Thread(target=lambda: seen.append(settings.DEBUG))
    thread.start()
    thread.join()
    assert seen == [2]


def test_a_context_sees_later_assignments_to_what_it_does_not_set() -> None:
    with Context(NOOPT=1):
        thread = threading.Thread(target=lambda: setattr(settings, "DEBUG", 2))
        thread.start()
        thread.join()
        assert settings.DEBUG == 2


def test_context_refuses_unknown_names_and_values_at_once() -> None:
    with pytest.raises(SettingError, match=r"Did you mean NOOPT\?"):
        Context(NOOPTS=1)
    with pytest.raises(SettingError, match="`tinycore settings` lists them"):
        Context(WHATEVER=1)
    with pytest.raises(SettingError, match="DEBUG='loud' is not understood"):
        Context(DEBUG="loud")


# Misspelt variables


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("DEBGU", "DEBUG"),
        ("DEBUGG", "DEBUG"),
        ("NOOP", None),
        ("NOOOPT", "NOOPT"),
        ("TINYCORE_PLUGIN", "TINYCORE_PLUGINS"),
        ("TINYCORE_QWXK", ""),
        ("CCACHE_DIR", None),
        ("DEVX", None),
        ("EDITOR", None),
    ],
)
def test_a_misspelt_variable_is_told_from_a_foreign_one(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str | None
) -> None:
    monkeypatch.setenv(name, "1")

    assert misspelt_variables().get(name) == near


def test_misspelt_variables_warn_once_at_the_first_read() -> None:
    shown = in_new_process("settings.DEBUG; settings.JIT; settings.LRU", TINYCORE_DEBUGG="1")

    assert shown.count("UserWarning") == 1
    assert "no environment variable TINYCORE_DEBUGG; did you mean TINYCORE_DEBUG?" in shown


def test_settings_of_tinygrad_are_told_what_they_are_here() -> None:
    with pytest.raises(SettingError, match=r"no setting is named 'WINO'.*Here it is nothing: "):
        Context(WINO=1)
    with pytest.raises(SettingError, match=r"'SPLIT_REDUCEOP'.*Here it is nothing: "):
        Context(SPLIT_REDUCEOP=0)
    with pytest.raises(SettingError, match=r"'FUSE_OPTIM'.*Here it is the argument fused=True"):
        Context(FUSE_OPTIM=1)

    shown = in_new_process(
        "settings.DEBUG; settings.JIT", FUSE_OPTIM="1", WINO="0", PROFILE="1", SPEC="unit", TC="0"
    )

    assert shown.count("UserWarning") == 2
    assert "no environment variable PROFILE; here it is VIZ" in shown
    assert "no environment variable FUSE_OPTIM; here it is the argument fused=True" in shown
    assert not OF_TINYGRAD.keys() & {row.name for row in settings}


def test_ordinary_environments_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config._warn_about_misspelt_variables()


# The table


def test_the_table_prints_value_origin_meaning_and_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYCORE_JIT", "2")
    settings.NOOPT = True

    table = settings_table()

    assert "JIT=2  [from TINYCORE_JIT]\n" in table
    assert "NOOPT=True  [set by the program]\n" in table
    assert "DEBUG=0  [default]\n" in table
    assert "    Keep freed device memory for the next allocation of the same size." in table
    assert "Allowed: a whole number from 0 to 2." in table


def test_every_default_is_allowed_and_every_row_documented() -> None:
    for entry in settings:
        assert entry.checked(entry.default) == entry.default
        assert entry.doc
        assert not entry.doc.endswith(".")


# Processors


def test_cpu_count_is_what_was_set_else_what_may_be_used() -> None:
    assert config.cpu_count() == usable_processors() >= 1
    with Context(CPU_COUNT=3):
        assert config.cpu_count() == 3


def test_a_container_quota_is_rounded_up(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")

    assert quota(tmp_path) == 2


def test_an_older_container_quota_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")

    assert quota(tmp_path) == 1
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert quota(tmp_path) == UNLIMITED


def test_no_quota_or_an_odd_one_limits_nothing(tmp_path: Path) -> None:
    assert quota(tmp_path) == UNLIMITED
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert quota(tmp_path) == UNLIMITED
    (tmp_path / "cpu.max").write_text("nonsense\n")
    assert quota(tmp_path) == UNLIMITED
