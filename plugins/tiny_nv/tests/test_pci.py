"""The interface PCI: what it finds, asks, does, refuses and gives back, on a bus in memory."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nv_pci_standin import ADDRESS, Chip, PciMachine
from rm_standin import Machine, Mistake
from rm_standin.cards import H200

from tiny_hcq import LinuxSystem, use_system
from tiny_nv import NV
from tiny_nv.nvk.device import NvDevice
from tiny_nv.pci import bring_up
from tiny_nv.pci.bus import TakenCard, cards_on_bus, device_files
from tiny_nv.pci.machine import holders, keep_text, lock_file
from tinycore.errors import DeviceUnavailable

TAKE = [f"drivers/nvidia/unbind {ADDRESS}", f"devices/{ADDRESS}/enable 1"]
GIVE_BACK = [f"drivers/nvidia/bind {ADDRESS}"]


@pytest.fixture
def consent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has named the card."""
    monkeypatch.setenv("NV_PCI_TAKE", ADDRESS)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what does not come."""
    monkeypatch.setattr(bring_up, "START_SECONDS", 0.01)


def refusal(machine: PciMachine, index: int = 0) -> str:
    """The error of an open of which nothing is left."""
    before = [chip.driver for chip in machine.chips]
    with use_system(machine), pytest.raises(DeviceUnavailable) as found:
        NvDevice(index, "PCI")
    assert [chip.driver for chip in machine.chips] == before
    assert not any(machine.files.values())
    assert not any(chip.mapped for chip in machine.chips)
    return str(found.value)


def test_cards_are_found_and_nothing_else() -> None:
    machine = PciMachine(Chip(), Chip(address="0000:41:00.0", driver=""))

    found = cards_on_bus(machine)

    assert [(card.address, card.driver) for card in found] == [
        (ADDRESS, "nvidia"),
        ("0000:41:00.0", ""),
    ]
    assert found[0].bar_bytes == (16 << 20, 256 << 20, 0, 32 << 20, 0, 128)
    assert found[0].bus_device_function == 0x100
    with use_system(machine):
        assert NV.interface_table["PCI"].count is not None
        assert bring_up.card_count() == 2
        assert not bring_up.obstacle()
    with use_system(PciMachine()):
        assert "no card of NVIDIA" in bring_up.obstacle()


def test_it_is_never_chosen_by_itself() -> None:
    assert NV.interface_table["NVK"].automatic
    assert not NV.interface_table["PCI"].automatic


def test_nothing_happens_before_the_card_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in ("", "1", "0000:02:00.0"):
        monkeypatch.setenv("NV_PCI_TAKE", named)
        machine = PciMachine(Chip())
        said = refusal(machine)
        assert "take it from its driver nvidia" in said
        assert "give it back to nvidia" in said
        assert f"NV_PCI_TAKE={ADDRESS}" in said
        assert not machine.written


def without_frts(**facts: Any) -> Chip:
    """A card of the chip of Ampere without FRTS data, which is inspected and given back."""
    chip = Chip(**facts)
    chip.set(0xA00, 0x17 << 24 | 0xA1000)
    return chip


def test_a_chip_without_frts_comes_as_far_as_is_known(consent: None) -> None:
    machine = PciMachine(without_frts())
    said = refusal(machine)
    assert "is ready (Ampere, 4,096 MiB)" in said
    assert "a chip without FRTS is not driven yet" in said
    assert machine.written == TAKE + GIVE_BACK


def test_a_card_of_nobody_is_left_as_it_was(consent: None) -> None:
    machine = PciMachine(without_frts(driver="", enabled=False))
    assert "is ready" in refusal(machine)
    assert not machine.chips[0].enabled


def test_a_running_processor_is_reset(consent: None) -> None:
    machine = PciMachine(without_frts(runs=True))
    assert "is ready" in refusal(machine)
    assert machine.written == [*TAKE, f"devices/{ADDRESS}/reset 1", *GIVE_BACK]


def test_a_card_that_is_not_ready(consent: None, soon: None) -> None:
    assert "register 0x118234 is 0x21" in refusal(PciMachine(Chip(starts=False)))
    endless = Chip(runs=True, ends_by_reset=False)
    assert "still runs after a reset" in refusal(PciMachine(endless))


def test_firmware_that_is_missing_is_named(consent: None) -> None:
    assert "ga102/gsp/booter_load-570.144.bin" in refusal(PciMachine(Chip(), firmware=False))
    said = refusal(PciMachine(Chip(0x18), firmware=False))
    assert "gh100/gsp/fmc-570.144.bin" in said
    assert "linux-firmware" in said


def test_a_card_that_does_not_answer(consent: None) -> None:
    chip = Chip()
    chip.set(0x0, 0xFFFFFFFF)
    assert "does not answer" in refusal(PciMachine(chip))
    unknown = Chip()
    unknown.set(0xA00, 0x16 << 24)
    assert "architecture 0x16" in refusal(PciMachine(unknown))


@pytest.mark.parametrize(
    ("end", "number", "said"),
    [
        ("nvidia/unbind", errno.EACCES, "needs root"),
        ("/enable", errno.EPERM, "needs root"),
        ("/config", errno.EACCES, "let address memory"),
        ("/resource0", errno.EACCES, "cannot be opened"),
        ("/resource0 mmap", errno.EPERM, "locked down"),
    ],
)
def test_what_the_system_refuses(consent: None, end: str, number: int, said: str) -> None:
    machine = PciMachine(Chip())
    machine.refused[end] = number
    assert said in refusal(machine)


def test_a_reset_that_there_is_not(consent: None) -> None:
    machine = PciMachine(Chip(runs=True))
    machine.refused["/reset"] = errno.ENOTTY
    assert "cannot be reset" in refusal(machine)


def test_a_driver_that_does_not_take_it_back(consent: None, soon: None) -> None:
    for chip in (Chip(starts=False), without_frts()):
        machine = PciMachine(chip)
        machine.refused["nvidia/bind"] = errno.EIO
        with (
            use_system(machine),
            pytest.raises(DeviceUnavailable, match=r"echo 0000:01.* > .*bind"),
        ):
            NvDevice(0, "PCI")
        assert not chip.mapped


def test_cards_there_are_not() -> None:
    assert "no PCI+NV:1; there are: card 0000:01:00.0" in refusal(PciMachine(Chip()), 1)


@pytest.mark.parametrize("file", ["/dev/nvidia3", "/dev/dri/card1"])
def test_a_card_that_programs_use_is_not_taken(consent: None, file: str) -> None:
    machine = PciMachine(Chip())
    machine.users[file] = ["812 (Xorg)", "999 (python)"]
    said = refusal(machine)
    assert "in use by 812 (Xorg), 999 (python)" in said
    assert "end them first" in said
    assert not machine.written


def test_without_a_number_all_cards_of_nvidia_count(consent: None) -> None:
    machine = PciMachine(Chip())
    texts = machine.texts

    def without() -> dict[str, str]:
        told = {path: text for path, text in texts().items() if "/information" not in path}
        return {**told, "/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": ""}

    machine.texts = without  # type: ignore[method-assign]
    machine.users["/dev/nvidia1"] = ["3 (x)"]
    assert "in use by 3 (x)" in refusal(machine)


def test_programs_of_another_driver_count_by_its_displays(consent: None) -> None:
    machine = PciMachine(Chip(driver="nouveau", starts=False))
    machine.users["/dev/nvidia0"] = ["3 (x)"]
    (card,) = cards_on_bus(machine)
    assert device_files(machine, card) == ["/dev/dri/card1"]


def test_a_card_that_another_process_has_taken(consent: None) -> None:
    machine = PciMachine(Chip(driver=""))
    machine.locked.add(f"/sys/bus/pci/devices/{ADDRESS}/enable")
    assert "another process uses PCI+NV" in refusal(machine)
    assert not machine.written


def killed_while_it_has(machine: PciMachine) -> None:
    """Take the card as a process does that is killed then: its files are closed."""
    (card,) = cards_on_bus(machine)
    TakenCard(machine, card)
    machine.files.clear()
    assert not machine.chips[0].driver


def test_the_next_process_gives_back_what_a_killed_one_had_taken(consent: None) -> None:
    machine = PciMachine(without_frts())
    killed_while_it_has(machine)

    with use_system(machine), pytest.raises(DeviceUnavailable, match="is ready"):
        NvDevice(0, "PCI")

    assert machine.chips[0].driver == "nvidia"
    assert [*machine.notes.values()] == [""]
    assert machine.written[-1:] == GIVE_BACK


def test_the_user_is_told_who_gets_the_card_of_a_killed_process() -> None:
    machine = PciMachine(Chip())
    killed_while_it_has(machine)
    assert "reset it, and give it back to nvidia" in refusal(machine)


@pytest.mark.parametrize("former", ["", "nouveau"])
def test_a_driver_that_there_is_no_more_gets_nothing(consent: None, former: str) -> None:
    machine = PciMachine(without_frts(driver=""))
    machine.notes[f"/run/tiny_nv-{ADDRESS}"] = former
    assert "is ready" in refusal(machine)


def test_a_card_is_taken_where_nothing_can_be_noted(consent: None) -> None:
    machine = PciMachine(without_frts())
    machine.refused[f"/run/tiny_nv-{ADDRESS}"] = errno.EROFS
    assert "is ready" in refusal(machine)
    assert machine.written == TAKE + GIVE_BACK


def test_linux_keeps_a_text(tmp_path: Path) -> None:
    path = str(tmp_path / "note")
    for text in ("nvidia", ""):
        keep_text(LinuxSystem(), path, text)
        assert LinuxSystem().read_text(path) == text


def test_linux_tells_who_has_a_file_open_or_mapped(tmp_path: Path) -> None:
    machine, path = LinuxSystem(), tmp_path / "file"
    path.write_bytes(bytes(4096))
    wanted = f"{os.getpid()} ("
    assert holders(machine, [str(path)]) == []
    with path.open("r+b") as file:
        assert holders(machine, [str(path)])[0].startswith(wanted)
        mapped = machine.map(0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert holders(machine, [str(path)])[0].startswith(wanted)
    machine.unmap(mapped, 4096)
    assert holders(machine, [str(path)]) == []


def test_linux_locks_a_file_until_it_is_closed(tmp_path: Path) -> None:
    machine, path = LinuxSystem(), tmp_path / "file"
    path.touch()
    first = lock_file(machine, str(path))
    with pytest.raises(BlockingIOError):
        lock_file(machine, str(path))
    machine.close(first)
    machine.close(lock_file(machine, str(path)))


def test_the_driver_of_nvidia_is_not_asked() -> None:
    machine = Machine((H200,))
    with use_system(machine), pytest.raises(DeviceUnavailable, match="no PCI\\+NV:0"):
        NvDevice(0, "PCI")
    assert not machine.requested


# --- what the stand-in punishes


def mapped(machine: PciMachine) -> None:
    file = machine.open(f"/sys/bus/pci/devices/{ADDRESS}/resource0")
    machine.map(0, 16 << 20, 3, 1, file, 0)


def given_while_mapped(machine: PciMachine) -> None:
    machine.chips[0].driver = ""
    mapped(machine)
    machine.write_text("/sys/bus/pci/drivers/nvidia/bind", ADDRESS)


def reset_of_a_driver(machine: PciMachine) -> None:
    machine.write_text(f"/sys/bus/pci/devices/{ADDRESS}/reset", "1")


@pytest.mark.parametrize("action", [mapped, given_while_mapped, reset_of_a_driver])
def test_mistakes_are_found(action: Callable[[PciMachine], None]) -> None:
    with pytest.raises(Mistake):
        action(PciMachine(Chip()))
