"""Meaning of DEV and of its older spellings, and the errors for a malformed one."""

from __future__ import annotations

import pytest

from tinycore.device.target import Target, device_and_index, older_spellings, parse_targets
from tinycore.errors import SettingError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("CPU", Target("CPU")),
        ("cpu", Target("CPU")),
        ("CPU:1", Target("CPU", index=1)),
        ("CPU:LLVM", Target("CPU", renderer="LLVM")),
        ("CPU:1:LLVM", Target("CPU", index=1, renderer="LLVM")),
        (
            "CPU:LLVM:x86_64,znver2,avx2,-avx512f",
            Target("CPU", renderer="LLVM", arch="x86_64,znver2,avx2,-avx512f"),
        ),
        ("CPU:LLVM:x86_64,+avx2", Target("CPU", renderer="LLVM", arch="x86_64,+avx2")),
        ("CPU::gfx1100", Target("CPU", arch="gfx1100")),
        ("CPU::", Target("CPU")),
        ("PCI+TOY", Target("TOY", interface="PCI")),
        ("pci:0,2+TOY:C", Target("TOY", renderer="C", interface="PCI", visible=(0, 2))),
        ("PCI:1-3+TOY", Target("TOY", interface="PCI", visible=(1, 2, 3))),
        (":3+TOY", Target("TOY", visible=(3,))),
    ],
)
def test_a_target_is_understood(text: str, target: Target) -> None:
    assert parse_targets(text) == (target,)


def test_several_devices_the_first_being_the_default() -> None:
    assert parse_targets("CPU:LLVM; PCI+TOY") == (
        Target("CPU", renderer="LLVM"),
        Target("TOY", interface="PCI"),
    )


def test_an_empty_text_names_nothing() -> None:
    assert parse_targets("  ") == ()


@pytest.mark.parametrize(
    "text", ["CPU", "CPU:1", "CPU:LLVM:x86_64,-avx2", "PCI:0,2+TOY:1:C", "CPU::znver2", ":3+TOY"]
)
def test_a_target_prints_as_it_is_written(text: str) -> None:
    assert str(parse_targets(text)[0]) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("CPU:LLVM:x86:more", "'CPU:LLVM:x86:more' has more than DEVICE, RENDERER and ARCH"),
        ("A+B+CPU", "there is more than one '+'"),
        ("+CPU", "an interface is missing"),
        ("PCI+", "a device is missing"),
        ("CPU;", "a device is missing beside ';'"),
        ("CPU;CPU:1", "CPU is named twice"),
        ("PCI:x+TOY", "'x' is no list of device numbers such as 0,2 or 1-3"),
        ("G P U", "'G P U' is no name of a device"),
        ("CPU:L-VM", "'L-VM' is no name of a renderer"),
        ("P/I+TOY", "'P/I' is no name of an interface"),
    ],
)
def test_a_malformed_text_is_told_with_the_form(text: str, problem: str) -> None:
    with pytest.raises(SettingError) as raised:
        parse_targets(text)

    assert str(raised.value) == (
        f"DEV={text} is not understood: {problem}. The form is "
        "[INTERFACE[:IDX]+]DEVICE[:INDEX][:RENDERER[:ARCH]], several separated by ;. "
        "Examples: CPU, CPU:1, CPU:LLVM, CPU:LLVM:x86_64,znver2,-avx512f."
    )


def test_device_names() -> None:
    assert device_and_index("CPU") == ("CPU", 0)
    assert device_and_index("cpu:12") == ("CPU", 12)


@pytest.mark.parametrize("name", ["", "CPU:", "CPU:-1", "a b", ":1"])
def test_what_is_no_device_name(name: str) -> None:
    with pytest.raises(SettingError, match=r"is no device. Devices are named as in CPU or CPU:1."):
        device_and_index(name)


def test_a_renderer_in_a_device_name_is_told() -> None:
    with pytest.raises(SettingError, match="A renderer is chosen by DEV, not in the name"):
        device_and_index("CPU:LLVM")


# The older spellings


def is_renderer(device: str, word: str) -> bool:
    return (device, word) in {("CPU", "LLVM"), ("TOY", "C")}


@pytest.mark.parametrize(
    ("environment", "targets"),
    [
        ({}, ()),
        ({"CPU": "1"}, (Target("CPU"),)),
        ({"CPU": "0"}, ()),
        ({"CPU": "/usr/bin"}, ()),
        ({"CPU_LLVM": "1"}, (Target("CPU", renderer="LLVM"),)),
        ({"TOY_IFACE": "pci"}, (Target("TOY", interface="PCI"),)),
        ({"CPU_LLVM": "1", "TOY_IFACE": "PCI", "TOY": "1"},
         (Target("TOY", interface="PCI"), Target("CPU", renderer="LLVM"))),
        ({"CPU_COUNT": "1"}, ()),
        ({"TOY_DEBUG": "1"}, ()),
        ({"GPU": "1"}, ()),
    ],
)  # fmt: skip
def test_an_older_spelling_means_the_same(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], targets: tuple[Target, ...]
) -> None:
    monkeypatch.setattr("os.environ", environment)

    assert older_spellings(["CPU", "TOY"], is_renderer) == targets


def test_two_older_spellings_contradict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"CPU": "1", "TOY": "1"})

    with pytest.raises(SettingError) as raised:
        older_spellings(["CPU", "TOY"], is_renderer)

    assert str(raised.value) == (
        "CPU=1 and TOY=1 each choose a device. Keep one of them, "
        "or set DEV=CPU;TOY, whose first is the default."
    )
