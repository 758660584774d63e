"""Files of firmware: which images they hold, and each way in which they can be missing or wrong."""

from __future__ import annotations

import lzma
import random
import struct
import zlib

import pytest
from files_alone import FilesAlone
from pci_standin.tables import firmware_files

from tiny_amd.am.firmware import Versions, read_firmware
from tinycore.errors import DeviceUnavailable

VERSIONS = Versions(mp0="13_0_0", mp1="13_0_0", sdma="6_0_0", gc="11_0_0")
FOLDER = "/lib/firmware/amdgpu"


class Machine(FilesAlone):
    """Files by path; the content of one that cannot be read is b"unreadable"."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files

    def device_files(self) -> set[str]:
        return set(self.files)

    def read_bytes(self, path: str) -> bytes:
        content = self.files[path]
        if content == b"unreadable":
            raise PermissionError(13, "Permission denied")
        return content


def read(files: dict[str, bytes]) -> object:
    return read_firmware(Machine(files), VERSIONS, "card")


def test_images_of_a_card_and_their_order() -> None:
    files = firmware_files()
    found = read_firmware(Machine(files), VERSIONS, "card")
    kinds = [image.kind for image in found.images]
    assert kinds == [18, 71, 72, 89, 94, 95, 96, 97, 68, 69, 26, 48, 25, 7, 8]
    assert [kind for kind, _ in found.sos] == [2, 1, 4, 3, 5, 6]
    assert found.mec_start == 0x7000000003000
    by_kind = {image.kind: image.content for image in found.images}
    mec, sdma = files[f"{FOLDER}/gc_11_0_0_mec.bin"], files[f"{FOLDER}/sdma_6_0_0.bin"]
    assert by_kind[89] == mec[256:768]
    assert all(by_kind[kind] == mec[768:] for kind in (94, 95, 96, 97))
    assert (by_kind[71], by_kind[72]) == (sdma[256:512], sdma[512:])
    assert by_kind[18] == files[f"{FOLDER}/smu_13_0_0.bin"][256 : 256 + 640]
    imu = files[f"{FOLDER}/gc_11_0_0_imu.bin"]
    assert (by_kind[68], by_kind[69]) == (imu[256:544], imu[544:])
    rlc = files[f"{FOLDER}/gc_11_0_0_rlc.bin"]
    parts = [by_kind[kind] for kind in (8, 26, 48, 25, 7)]
    assert b"".join(parts) == rlc[256:]
    assert [len(part) // 16 for part in parts] == [20, 7, 5, 9, 3]
    assert (
        b"".join(content for _, content in found.sos)
        == (files[f"{FOLDER}/psp_13_0_0_sos.bin"][256:])
    )


def test_files_may_be_packed_and_elsewhere() -> None:
    files = firmware_files()
    moved = {
        path.replace("/lib/", "/usr/lib/") + ".xz": lzma.compress(content)
        for path, content in files.items()
    }
    assert read(moved) == read(files)


def test_all_files_that_are_missing_are_named() -> None:
    files = firmware_files()
    del files[f"{FOLDER}/smu_13_0_0.bin"], files[f"{FOLDER}/gc_11_0_0_imu.bin"]
    with pytest.raises(
        DeviceUnavailable, match=r"missing: smu_13_0_0.bin, gc_11_0_0_imu.bin\."
    ) as e:
        read(files)
    assert "apt install firmware-amd-graphics" in str(e.value)
    assert "/usr/lib/firmware/amdgpu" in str(e.value)


def test_files_packed_with_zstd_are_named_with_what_unpacks_them() -> None:
    files = {f"{path}.zst": content for path, content in firmware_files().items()}
    with pytest.raises(DeviceUnavailable, match=r"sudo unzstd .*psp_13_0_0_sos.bin.zst"):
        read(files)


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("smu_13_0_0.bin", b"unreadable", "smu_13_0_0.bin cannot be read: .*Permission denied"),
        ("smu_13_0_0.bin", b"", "it has 0 bytes"),
        ("smu_13_0_0.bin", bytes(40), "it has 40 bytes and says 0"),
    ],
)
def test_a_file_that_cannot_be_read(path: str, content: bytes, why: str) -> None:
    with pytest.raises(DeviceUnavailable, match=why):
        read(firmware_files() | {f"{FOLDER}/{path}": content})


@pytest.mark.parametrize(
    ("name", "offset", "value", "why"),
    [
        ("psp_13_0_0_sos", 8, 1, "version 1.0, and 2 is known"),
        ("psp_13_0_0_sos", 32, 65, "it has 65 components"),
        ("psp_13_0_0_sos", 44, 1 << 30, "bytes at .* are not inside of it"),
        ("sdma_6_0_0", 8, 3, "version 3.0, and 2 is known"),
        ("sdma_6_0_0", 36, 1 << 20, "1,048,576 bytes at 0x100 are not inside"),
        ("gc_11_0_0_mec", 48, 1 << 20, "bytes at 0x100000 are not inside"),
        ("gc_11_0_0_imu", 8, 2, "version 2.0, and 1 is known"),
        ("gc_11_0_0_rlc", 184, 1 << 20, "bytes at 0x100000 are not inside"),
        ("smu_13_0_0", 20, 1 << 20, "bytes at 0x100 are not inside"),
        ("smu_13_0_0", 24, 16, "header has 44 bytes, and the code is at 16"),
        ("gc_11_0_0_mec", 300, 5, "its CRC is"),
    ],
)
def test_a_file_that_is_wrong(name: str, offset: int, value: int, why: str) -> None:
    files = firmware_files()
    path = f"{FOLDER}/{name}.bin"
    content = bytearray(files[path])
    struct.pack_into("<H" if offset == 8 else "<I", content, offset, value)
    if "CRC" not in why:
        struct.pack_into("<I", content, 28, zlib.crc32(content[32:]))
    with pytest.raises(DeviceUnavailable, match=f"firmware {name}.bin cannot be read: .*{why}"):
        read(files | {path: bytes(content)})


def test_damaged_files_raise_that_error_and_no_other() -> None:
    draw, files = random.Random(9), firmware_files()
    for _ in range(300):
        path = draw.choice(sorted(files))
        content = bytearray(files[path])
        content[draw.randrange(256)] = draw.randrange(256)
        try:
            read(files | {path: bytes(content[: draw.choice((len(content), 90))])})
        except DeviceUnavailable:
            continue
