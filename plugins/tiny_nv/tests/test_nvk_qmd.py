"""Launch descriptors: where their fields lie, and what a launch writes into them."""

from __future__ import annotations

import pytest
from nvk_headers import PAGE, qmd_rows, qmd_spans

from tiny_nv.nvk import qmd
from tiny_nv.nvk.qmd import BYTES, FIELDS, Launch, descriptor, put, put_release, read

LAUNCH = Launch(
    arch="sm_90",
    sm_version=0x900,
    address=0x123_4567_8900,
    code_bytes=4096,
    registers=40,
    barriers=2,
    shared_bytes=1024 + 5000,
    local_bytes=0x2C0,
    grid=(100_000, 7, 3),
    block=(128, 2, 1),
    cluster=None,
    constants={3: (0x20_0000_0100, 64)},
    parameter_bytes=0x228,
)
PLACES = {
    3: {
        "GRID_WIDTH": (384, 32),
        "REGISTER_COUNT": (648, 9),
        "CONSTANT_BUFFER_ADDR_LOWER": (1024, 32),
        "PROGRAM_ADDRESS_UPPER": (1568, 17),
        "RELEASE_PAYLOAD_LOWER": (832, 32),
        "DEPENDENT_QMD_POINTER": (480, 32),
    },
    4: {
        "GRID_WIDTH": (1024, 32),
        "REGISTER_COUNT": (1200, 9),
        "CONSTANT_BUFFER_ADDR_LOWER": (1536, 32),
        "PROGRAM_ADDRESS_UPPER": (1248, 25),
        "RELEASE_PAYLOAD_LOWER": (704, 32),
        "DEPENDENT_QMD_POINTER": (448, 32),
    },
    5: {
        "GRID_WIDTH": (1248, 32),
        "REGISTER_COUNT": (1128, 9),
        "CONSTANT_BUFFER_ADDR_LOWER": (1344, 32),
        "PROGRAM_ADDRESS_UPPER": (1056, 21),
        "RELEASE_PAYLOAD_LOWER": (544, 32),
        "DEPENDENT_QMD_POINTER": (384, 32),
    },
}
"""First bit and bits, as the class headers have them; those of grids and constants are also what
Mesa's compiler answers.
"""


def number(content: bytes, first: int, bits: int) -> int:
    """Bits of a descriptor, without the table."""
    return int.from_bytes(content, "little") >> first & (1 << bits) - 1


@pytest.mark.parametrize("version", BYTES)
def test_no_two_fields_share_a_bit(version: int) -> None:
    used: dict[int, str] = {}
    for name, places in FIELDS.items():
        if version not in places:
            continue
        high, low, offsets = places[version]
        for offset in offsets:
            for bit in range(low + offset, high + offset + 1):
                assert bit not in used, f"{name} and {used[bit]}"
                used[bit] = name
    assert max(used) < 8 * BYTES[version]


@pytest.mark.parametrize("version", BYTES)
def test_fields_are_where_the_headers_have_them(version: int) -> None:
    for name, (first, bits) in PLACES[version].items():
        content = bytearray(BYTES[version])
        put(memoryview(content), version, name, (1 << bits) - 1)

        assert int.from_bytes(content, "little") == ((1 << bits) - 1) << first, name


@pytest.mark.parametrize("version", BYTES)
def test_a_field_takes_no_more_than_its_bits(version: int) -> None:
    content = bytearray(b"\xff" * BYTES[version])

    put(memoryview(content), version, "GRID_HEIGHT", 5)

    assert read(bytes(content), version, "GRID_HEIGHT") == 5
    assert content.count(0xFF) == BYTES[version] - 2
    with pytest.raises(ValueError, match="GRID_HEIGHT"):
        put(memoryview(content), version, "GRID_HEIGHT", 1 << 16)


@pytest.mark.parametrize("version", BYTES)
def test_a_launch_says_what_the_kernel_is(version: int) -> None:
    content = descriptor(version, LAUNCH)

    def field(name: str, index: int = 0) -> int:
        return read(bytes(content), version, name, index)

    assert len(content) == BYTES[version]
    assert field("MAJOR_VERSION") == version
    assert (field("GRID_WIDTH"), field("GRID_HEIGHT"), field("GRID_DEPTH")) == LAUNCH.grid
    assert tuple(field(f"CTA_THREAD_DIMENSION{axis}") for axis in range(3)) == LAUNCH.block
    assert (field("REGISTER_COUNT"), field("BARRIER_COUNT")) == (40, 2)
    assert field("SASS_VERSION") == 0x90
    assert field("SHARED_MEMORY_SIZE") == 6144 >> {3: 0, 4: 0, 5: 7}[version]
    assert field("MIN_SM_CONFIG_SHARED_MEM_SIZE") == 8 // 4 + 1
    assert field("MAX_SM_CONFIG_SHARED_MEM_SIZE") == 0x3A
    assert field("SHADER_LOCAL_MEMORY_HIGH_SIZE") == 0x2C0 >> {3: 0, 4: 0, 5: 4}[version]
    address = field("PROGRAM_ADDRESS_LOWER") | field("PROGRAM_ADDRESS_UPPER") << 32
    assert address == LAUNCH.address >> {3: 0, 4: 0, 5: 4}[version]
    bank = field("CONSTANT_BUFFER_ADDR_LOWER", 3) | field("CONSTANT_BUFFER_ADDR_UPPER", 3) << 32
    assert bank == 0x20_0000_0100 >> {3: 0, 4: 6, 5: 6}[version]
    assert [field("CONSTANT_BUFFER_VALID", n) for n in range(5)] == [1, 0, 0, 1, 0]
    assert field("CONSTANT_BUFFER_SIZE", 0) == 0x230 // 16


@pytest.mark.parametrize(("arch", "most"), [("sm_80", 0x2A), ("sm_86", 0x1A), ("sm_120", 0x1A)])
def test_the_architecture_decides_the_sizes_of_shared_memory(arch: str, most: int) -> None:
    content = descriptor(3, LAUNCH.__class__(**{**vars(LAUNCH), "arch": arch}))

    assert read(content, 3, "MAX_SM_CONFIG_SHARED_MEM_SIZE") == most


def test_clusters_are_a_kind_of_launch_of_their_own() -> None:
    content = descriptor(4, LAUNCH.__class__(**{**vars(LAUNCH), "cluster": (2, 1, 1)}))

    assert read(content, 4, "QMD_TYPE") == 3
    assert read(content, 4, "GPC_CGA_WIDTH") == 2
    assert read(descriptor(4, LAUNCH), 4, "QMD_TYPE") == 2


@pytest.mark.parametrize("version", BYTES)
@pytest.mark.parametrize("index", range(3))
def test_a_release_is_one_of_three(version: int, index: int) -> None:
    content = bytearray(BYTES[version])

    put_release(memoryview(content), version, index, 0x12_3456_7890, 1 << 40 | 7, timed=False)

    enabled = [read(bytes(content), version, "RELEASE_ENABLE", n) for n in range(qmd.RELEASES)]
    assert enabled == [int(n == index) for n in range(qmd.RELEASES)]
    assert read(bytes(content), version, "RELEASE_ADDRESS_LOWER", index) == 0x3456_7890
    assert read(bytes(content), version, "RELEASE_ADDRESS_UPPER", index) == 0x12
    assert read(bytes(content), version, "RELEASE_PAYLOAD_LOWER", index) == 7
    assert read(bytes(content), version, "RELEASE_PAYLOAD_UPPER", index) == 1 << 8
    assert read(bytes(content), version, "RELEASE_STRUCTURE_SIZE", index) == 2


def test_fields_are_those_of_the_headers() -> None:
    part = PAGE.read_text("utf-8").partition("## Launch")[2]
    rows = [line for line in part.splitlines() if line.startswith("| ")][2:]

    assert qmd_rows(qmd_spans()) == rows
