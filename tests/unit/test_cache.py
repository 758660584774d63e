"""The on-disk cache: what it keeps, damage, many processes, its size, and unusable folders."""

import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tinycore import cache
from tinycore.cache import DiskCache
from tinycore.config import Context
from tinycore.errors import CacheError

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", 64 * MIB)


def only_file(disk: DiskCache) -> Path:
    (found,) = disk.entries()
    return found[0]


# Keeping


def test_what_was_put_is_found(disk: DiskCache) -> None:
    assert disk.get("kernel", "key") is None
    disk.put("kernel", "key", b"content")
    assert disk.get("kernel", "key") == b"content"


def test_text_and_its_bytes_are_one_key(disk: DiskCache) -> None:
    disk.put("kernel", "schlüssel", b"")
    assert disk.get("kernel", "schlüssel".encode()) == b""


def test_tables_are_apart(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"content")
    assert disk.get("search", "key") is None


def test_a_later_put_replaces(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"old")
    disk.put("kernel", "key", b"new")
    assert disk.get("kernel", "key") == b"new"


def test_another_process_finds_it(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"content")
    assert DiskCache(disk.folder, MIB).get("kernel", "key") == b"content"


def test_a_table_is_a_plain_word(disk: DiskCache) -> None:
    with pytest.raises(CacheError, match=r"named by a plain word, not '\.\./up'"):
        disk.put("../up", "key", b"")


def test_the_folder_is_ours_alone(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"content")
    assert os.name != "posix" or disk.folder.stat().st_mode & 0o777 == 0o700


# Damage


@pytest.mark.parametrize("length", [0, 1, 8, 20, 28, 30])
def test_a_truncated_entry_is_discarded(disk: DiskCache, length: int) -> None:
    disk.put("kernel", "key", b"content")
    path = only_file(disk)
    path.write_bytes(path.read_bytes()[:length])

    assert disk.get("kernel", "key") is None
    assert not path.exists()
    disk.put("kernel", "key", b"content")
    assert disk.get("kernel", "key") == b"content"


@pytest.mark.parametrize("position", [0, 7, 8, 27, 28, 34])
def test_one_flipped_bit_anywhere_is_found(disk: DiskCache, position: int) -> None:
    disk.put("kernel", "key", b"content")
    path = only_file(disk)
    entry = bytearray(path.read_bytes())
    entry[position] ^= 1
    path.write_bytes(entry)

    assert disk.get("kernel", "key") is None


def test_an_entry_under_another_name_is_not_believed(disk: DiskCache) -> None:
    disk.put("kernel", "one", b"content of one")
    first = only_file(disk)
    disk.put("kernel", "two", b"content of two")
    (second,) = {path for path, _ in disk.entries()} - {first}
    second.write_bytes(first.read_bytes())

    assert disk.get("kernel", "two") is None


def test_a_folder_where_an_entry_should_be_is_a_miss(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"content")
    path = only_file(disk)
    path.unlink()
    path.mkdir()

    assert disk.get("kernel", "key") is None


# Many processes


def content_of(number: int) -> bytes:
    return random.Random(number).randbytes(3000 + 700 * number)


def read_and_write(folder: str, seed: int) -> int:
    """Work on keys that every other process works on too; return how many reads were wrong."""
    disk = DiskCache(Path(folder), 64 * MIB)
    choose = random.Random(seed)
    wrong = 0
    for _ in range(300):
        number = choose.randrange(12)
        if choose.random() < 0.5:
            disk.put("kernel", f"key {number}", content_of(number))
        else:
            wrong += disk.get("kernel", f"key {number}") not in {None, content_of(number)}
    return wrong


def write_and_evict(folder: str, seed: int) -> int:
    """Fill a cache that is too small for all, so that processes remove what others read."""
    disk = DiskCache(Path(folder), 40_000)
    choose = random.Random(seed)
    wrong = 0
    for _ in range(200):
        number = choose.randrange(12)
        disk.put("kernel", f"key {number}", content_of(number))
        wrong += disk.get("kernel", f"key {number}") not in {None, content_of(number)}
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("work", ["read_and_write", "write_and_evict"])
def test_processes_share_a_folder(tmp_path: Path, work: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, work, tmp_path / "cache", str(seed)], stdout=subprocess.PIPE
        )
        for seed in range(4)
    ]

    wrong = [process.communicate(timeout=120)[0] for process in processes]

    assert wrong == [b"0\n"] * 4
    assert not list((tmp_path / "cache").rglob(".writing-*"))


# Size


def test_the_entries_unused_for_longest_go_first(disk: DiskCache) -> None:
    disk.limit_bytes = 10_000
    for number in range(9):
        disk.put("kernel", f"key {number}", bytes(1000))
        age = time.time() - 10_000 + number
        newest = max(disk.entries(), key=lambda entry: entry[1].st_mtime)[0]
        os.utime(newest, (age, age))
    assert disk.get("kernel", "key 0") == bytes(1000)  # used again, so no longer the oldest

    disk.put("kernel", "key 9", bytes(1000))

    found = [number for number in range(10) if disk.get("kernel", f"key {number}") is not None]
    assert found == [0, 4, 5, 6, 7, 8, 9]


def test_what_is_larger_than_the_cache_is_not_kept(disk: DiskCache) -> None:
    disk.limit_bytes = 1000
    disk.put("kernel", "key", bytes(2000))
    assert disk.entries() == []


def test_files_left_by_a_killed_process_are_removed(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"content")
    left, fresh = (only_file(disk).parent / f".writing-{word}" for word in ("left", "fresh"))
    left.write_bytes(b"half an ent")
    fresh.write_bytes(b"half an ent")
    os.utime(left, (0, 0))
    os.utime(disk.folder / ".swept", (0, 0))  # an hour after the last sweep, and longer

    DiskCache(disk.folder, MIB).put("kernel", "other", b"content")

    assert not left.exists()
    assert fresh.exists()


def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that are gone through from now on."""
    swept: list[Path] = []

    def files(folder: Path) -> tuple[()]:
        swept.append(folder)
        return ()

    monkeypatch.setattr(cache, "_files", files)
    return swept


def test_a_process_goes_through_the_entries_once_an_hour(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = sweeps(monkeypatch)
    disk.put("kernel", "key", b"content")
    assert swept == [disk.folder]

    for number in range(3):  # processes that start soon after
        DiskCache(disk.folder, 64 * MIB).put("kernel", f"key {number}", b"content")
    assert swept == [disk.folder]

    hour = time.time() - 3700
    os.utime(disk.folder / ".swept", (hour, hour))
    DiskCache(disk.folder, 64 * MIB).put("kernel", "key", b"content")
    assert swept == [disk.folder] * 2


def test_a_process_that_writes_much_goes_through_the_entries(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.put("kernel", "key", b"content")
    swept = sweeps(monkeypatch)
    for number in range(5):
        disk.put("kernel", f"key {number}", bytes(MIB))

    assert swept == [disk.folder]


# Folders that cannot be used


def warning_of(disk: DiskCache) -> str:
    """The one warning that using this cache over and over gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            disk.put("kernel", "key", b"content")
            assert disk.get("kernel", "key") is None
    (found,) = caught
    return str(found.message)


def test_a_file_in_the_folders_place_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    folder = tmp_path / "taken" / "cache"

    message = warning_of(DiskCache(folder, MIB))

    assert message == (
        f"the on-disk cache in {folder} cannot be used (Not a directory), so kernels are compiled "
        "again in every run. Set CACHE_DIR to a folder of your own, or CCACHE=0."
    )


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
def test_an_unwritable_folder_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)  # the superuser may write anywhere

    assert "cannot be used (Permission denied)" in warning_of(DiskCache(tmp_path / "c", MIB))


def test_a_full_disk_costs_one_warning(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)

    assert "cannot be used (No space left on device)" in warning_of(disk)
    assert disk.entries() == []


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
def test_a_folder_that_anyone_may_write_to_is_not_trusted(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"machine code")
    disk.folder.chmod(0o777)

    assert "every user may write to it" in warning_of(DiskCache(disk.folder, MIB))
    disk.folder.chmod(0o775)
    assert "its group may write to it" in warning_of(DiskCache(disk.folder, MIB))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_folder_that_cannot_be_made_is_told() -> None:
    assert "cannot be used" in warning_of(DiskCache(Path("/proc/nope/cache"), MIB))


@pytest.mark.skipif(os.name != "posix", reason="ownership is POSIX")
def test_a_folder_of_another_user_is_not_trusted(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.put("kernel", "key", b"machine code")
    if os.geteuid() == 0:
        os.chown(disk.folder, 1717, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 1717)

    assert "it belongs to another user" in warning_of(DiskCache(disk.folder, MIB))


# The cache that the settings name


def test_settings_name_the_folder(tmp_path: Path) -> None:
    with Context(CACHE_DIR=tmp_path, CCACHE=1):
        assert cache.cache_folder() == tmp_path / "cache-v1"
        cache.put("kernel", "key", b"content")
        assert cache.get("kernel", "key") == b"content"


def test_without_a_setting_it_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(CACHE_DIR=""):
        assert cache.cache_folder().parent.name.lower() in {"tinycore", "cache"}


def test_turned_off_it_neither_reads_nor_writes(tmp_path: Path) -> None:
    with Context(CACHE_DIR=tmp_path, CCACHE=0):
        cache.put("kernel", "key", b"content")
        assert cache.get("kernel", "key") is None
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":  # one of the processes of test_processes_share_a_folder
    work = {"read_and_write": read_and_write, "write_and_evict": write_and_evict}[sys.argv[1]]
    print(work(sys.argv[2], int(sys.argv[3])))
