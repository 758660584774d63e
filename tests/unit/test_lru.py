"""`Lru`: the bound, the order in which entries go, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tinycore._lru import Lru


def test_the_least_recently_used_entry_goes_first() -> None:
    table: Lru[str, int] = Lru(2)
    table.keep("a", 1)
    table.keep("b", 2)

    assert table.find("a") == 1
    table.keep("c", 3)

    assert list(table) == ["a", "c"]


def test_what_is_not_there_is_none() -> None:
    assert Lru[str, int](2).find("a") is None


def test_an_entry_kept_again_is_one_entry() -> None:
    table: Lru[str, int] = Lru(2)
    table.keep("a", 1)
    table.keep("a", 2)

    assert table == {"a": 2}


def test_unwanted_entries_are_dropped() -> None:
    table: Lru[int, str] = Lru(4)
    for key in range(4):
        table.keep(key, str(key))

    table.drop(lambda key: key % 2 == 0)

    assert table == {1: "1", 3: "3"}


def test_the_version_changes_where_entries_may_be_gone() -> None:
    table: Lru[int, str] = Lru(4)
    table.keep(1, "a")
    before = table.version
    table.find(1)
    table.keep(2, "b")
    assert table.version == before

    table.drop(lambda key: key == 1)
    dropped = table.version
    table.clear()

    assert table == {}
    assert len({before, dropped, table.version, Lru[int, str](4).version}) == 4


def test_many_threads_leave_as_many_entries_as_fit() -> None:
    table: Lru[int, int] = Lru(8)

    def use(number: int) -> None:
        for key in range(64):
            table.keep(key * number % 32, key)
            table.find(key % 32)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(1, 17)))

    assert len(table) == 8
