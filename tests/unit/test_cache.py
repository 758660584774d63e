"""The on-disk cache: what it keeps, damage, many processes, its size, and unusable folders."""

import os
import random
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tinycore import cache
from tinycore._folders import Folder
from tinycore.cache import DiskCache
from tinycore.config import Context
from tinycore.errors import CacheError, SettingError

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
    disk.limit_bytes = 1_000_000
    for number in range(9):
        disk.put("kernel", f"key {number}", bytes(100_000))
        age = time.time() - 10_000 + number
        newest = max(disk.entries(), key=lambda entry: entry[1].st_mtime)[0]
        os.utime(newest, (age, age))
    assert disk.get("kernel", "key 0") == bytes(100_000)  # used again, so no longer the oldest

    disk.put("kernel", "key 9", bytes(100_000))

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


def bytes_below(folder: Path) -> int:
    """Bytes that a folder takes on the disk, as `du` tells them."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.mark.skipif(os.name != "posix", reason="blocks are POSIX")
def test_many_tiny_entries_stay_below_the_limit_on_the_disk(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache", MIB)
    for number in range(500):
        disk.put(("kernel", "plan")[number % 2], f"key {number}", bytes(60))

    assert bytes_below(disk.folder) <= 1.1 * MIB


def test_a_sweep_leaves_what_is_not_its_own(disk: DiskCache, tmp_path: Path) -> None:
    disk.put("kernel", "key", b"content")
    entry = only_file(disk)
    foreign = [
        tmp_path / "outside",
        disk.folder / "id_rsa",
        disk.folder / ".ssh" / "id_rsa",
        disk.folder / "objects" / "3f" / ("a" * 38),  # git names its objects so
        disk.folder / "kernel-notes",
        disk.folder / "kernel" / ".writing-notes",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100_000))
        os.utime(path, (0, 0))
    links = [disk.folder / f"kernel-{'b' * 40}", disk.folder / ".writing-link"]
    for link in links:
        link.symlink_to(tmp_path / "outside")
    (disk.folder / "linked").symlink_to(disk.folder / "kernel")
    os.utime(disk.folder / ".swept", (0, 0))

    DiskCache(disk.folder, 1000).put("kernel", "other", bytes(100))

    assert not entry.exists()
    assert all(path.exists() for path in (*foreign, *links))


def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that are gone through from now on."""
    swept: list[Path] = []

    def files(folder: Folder) -> tuple[()]:
        swept.append(folder.path)
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

    monkeypatch.setattr("os.replace", refuse)  # the superuser may write anywhere

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


POSIX = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")
ROOT_ONLY = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)


@POSIX
def test_what_is_made_is_the_users_alone_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DiskCache(tmp_path / "a/b/cache", MIB).put("kernel", "key", b"content")
    finally:
        os.umask(before)

    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "a").rglob("*"))


@POSIX
def test_an_entry_that_others_may_replace_is_not_read(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"machine code")
    only_file(disk).chmod(0o777)

    assert DiskCache(disk.folder, MIB).get("kernel", "key") is None


@POSIX
def test_an_entry_that_is_a_pipe_or_a_link_is_a_miss(disk: DiskCache, tmp_path: Path) -> None:
    disk.put("kernel", "key", b"content")
    entry = only_file(disk)
    entry.rename(tmp_path / "moved")

    entry.symlink_to(tmp_path / "moved")
    assert disk.get("kernel", "key") is None
    entry.unlink()
    os.mkfifo(entry)
    assert disk.get("kernel", "key") is None


@POSIX
def test_a_parent_that_every_user_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    disk = DiskCache(parent / "own" / "cache", MIB)
    disk.put("kernel", "key", b"machine code")
    parent.chmod(0o777)

    message = warning_of(DiskCache(disk.folder, MIB))

    assert f"({parent} is on the way to it, and every user may write to it)" in message
    parent.chmod(0o1777)  # as /tmp: what is there belongs to who made it
    assert DiskCache(disk.folder, MIB).get("kernel", "key") == b"machine code"


@ROOT_ONLY
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "home").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home")
    disk = DiskCache(link / "cache", MIB)
    disk.put("kernel", "key", b"content")
    assert any((tmp_path / "home/cache").iterdir())  # the user's own link is followed

    os.lchown(link, 1717, -1)

    message = warning_of(DiskCache(disk.folder, MIB))
    assert f"{link} is a link of another user, number 1717" in message


def test_links_without_end_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert "Too many levels of symbolic links" in warning_of(DiskCache(tmp_path / "a/c", MIB))


@ROOT_ONLY
def test_a_group_may_write_on_the_way_if_the_user_is_alone_in_it(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    disk = DiskCache(tmp_path / "shared/cache", MIB)
    disk.put("kernel", "key", b"content")
    (tmp_path / "shared").chmod(0o775)
    assert DiskCache(disk.folder, MIB).get("kernel", "key") == b"content"

    os.chown(tmp_path / "shared", -1, 1717)

    assert "its group may write to it" in warning_of(DiskCache(disk.folder, MIB))


@ROOT_ONLY
@pytest.mark.parametrize("seed", range(40))
def test_a_folder_is_used_if_no_other_user_can_have_written_to_it(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    parts = [tmp_path.joinpath(*"abcd"[: depth + 1]) for depth in range(4)]
    parts[-1].mkdir(parents=True)
    owners = [choose.choice([0, 0, 0, 0, 1717]) for _ in parts]
    modes = [choose.choice([0o700, 0o755, 0o711, 0o1777, 0o777, 0o772]) for _ in parts]
    for part, owner, mode in zip(parts, owners, modes, strict=True):
        os.chown(part, owner, -1)
        part.chmod(mode)
    is_safe = [mode & 0o002 == 0 for mode in modes]
    sticky = [mode == 0o1777 for mode in modes[:-1]] + [False]
    wanted = not any(owners) and all(a or b for a, b in zip(is_safe, sticky, strict=True))

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        DiskCache(parts[-1], MIB).put("kernel", "key", b"content")

    assert any(parts[-1].iterdir()) == wanted


def test_a_folder_that_was_removed_is_made_anew(disk: DiskCache) -> None:
    disk.put("kernel", "key", b"content")
    shutil.rmtree(disk.folder)

    assert disk.get("kernel", "key") is None
    disk.put("kernel", "key", b"content")
    assert disk.get("kernel", "key") == b"content"


# The cache that the settings name


def test_a_folder_in_the_home_of_nobody_is_told() -> None:
    with (
        Context(CACHE_DIR="~nobody-of-this-name/x", CCACHE=1),
        pytest.raises(SettingError, match=r"CACHE_DIR=~nobody\S*: no home folder is known"),
    ):
        cache.get("kernel", "key")


def test_without_a_home_the_cache_is_not_in_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    assert "no home folder is known" in warning_of(DiskCache(Path("~/.cache/tinycore"), MIB))
    assert list(tmp_path.iterdir()) == []


def test_settings_name_the_folder(tmp_path: Path) -> None:
    with Context(CACHE_DIR=tmp_path, CCACHE=1):
        assert cache.cache_folder() == tmp_path / "cache-v2"
        cache.put("kernel", "key", b"content")
        assert cache.get("kernel", "key") == b"content"


def test_without_a_setting_it_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(CACHE_DIR=""):
        assert cache.cache_folder().parent.name.lower() in {"tinycore", "cache"}


def test_the_identity_of_a_file_follows_links_and_tells_its_versions_apart(tmp_path: Path) -> None:
    program, link = tmp_path / "compiler-19", tmp_path / "compiler"
    program.write_text("one")
    link.symlink_to(program)
    before = cache.file_identity(str(link))
    assert before == cache.file_identity(str(program)) != ""
    os.utime(program, ns=(1, 1))

    assert cache.file_identity(str(link)) != before
    assert cache.file_identity(str(tmp_path / "absent")) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="where loaded libraries are, Linux says")
def test_the_identity_of_a_library_is_that_of_the_file_that_was_loaded() -> None:
    assert "/libc.so.6 " in cache.file_identity("libc.so.6")
    assert cache.file_identity("libnothing_of_the_kind.so") == ""


def test_turned_off_it_neither_reads_nor_writes(tmp_path: Path) -> None:
    with Context(CACHE_DIR=tmp_path, CCACHE=0):
        cache.put("kernel", "key", b"content")
        assert cache.get("kernel", "key") is None
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":  # one of the processes of test_processes_share_a_folder
    work = {"read_and_write": read_and_write, "write_and_evict": write_and_evict}[sys.argv[1]]
    print(work(sys.argv[2], int(sys.argv[3])))
