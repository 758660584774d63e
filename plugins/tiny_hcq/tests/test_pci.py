"""Functions on the PCI bus: their listing from sysfs, and their binding to drivers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import cast

import pytest

from tiny_hcq import LinuxSystem, PciFunction, System, pci_functions, write_text
from tiny_testing.standin import StandInFiles

DEVICES, DRIVERS = "/sys/bus/pci/devices", "/sys/bus/pci/drivers"
FOLDER = f"{DEVICES}/0001:03:1f.2"
CARD = PciFunction("0001:03:1f.2", 0x1AE0, 0x42, "toy", ((0x1000, 0x100), *[(0, 0)] * 5))


class Machine(StandInFiles):
    """A machine with a card, its sound, a bridge, and a file that is no function."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, str]] = []
        self.refusal: OSError | None = None
        self.facts = {
            f"{FOLDER}/vendor": "0x1ae0\n",
            f"{FOLDER}/device": "0x0042\n",
            f"{FOLDER}/class": "0x030200\n",
            f"{FOLDER}/subsystem_vendor": "0x1043\n",
            f"{FOLDER}/subsystem_device": "0x14c3\n",
            f"{FOLDER}/revision": "0xa1\n",
            f"{FOLDER}/enable": "2\n",
            f"{FOLDER}/resource": "0x1000 0x10ff 0x40200\n" + "0x0 0x0 0x0\n" * 12,
            f"{DEVICES}/0001:03:1f.3/vendor": "0x1ae0\n",
            f"{DEVICES}/0001:03:1f.3/class": "0x040300\n",
            f"{DEVICES}/0000:00:00.0/vendor": "0x8086\n",
            f"{DEVICES}/0000:00:00.0/class": "0x030000\n",
            f"{DEVICES}/card0/vendor": "0x1ae0\n",
            f"{DRIVERS}/other/bind": "",
            f"{DRIVERS}/toy/0001:03:1f.2/vendor": "0x1ae0\n",
        }

    def texts(self) -> dict[str, str]:
        return self.facts

    def write_text(self, path: str, text: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.written.append((path, text))


@pytest.fixture
def machine() -> Machine:
    return Machine()


def as_system(machine: Machine) -> System:
    return cast("System", machine)


def test_functions_of_a_vendor_and_of_classes_are_listed(machine: Machine) -> None:
    (found,) = pci_functions(as_system(machine), 0x1AE0, (3,))

    assert str(found) == "card 0001:03:1f.2 (1ae0:0042)"
    assert found.driver == "toy"
    assert found.bars == CARD.bars
    assert found.bar_bytes == (0x100, 0, 0, 0, 0, 0)
    assert (found.subsystem, found.revision) == (0x14C31043, 0xA1)
    assert found.bus_device_function == 1 << 32 | 0x03FA
    assert found.is_enabled(as_system(machine))
    assert not machine.written


def test_a_function_without_resources_or_a_driver_has_neither(machine: Machine) -> None:
    machine.missing = {f"{FOLDER}/resource", f"{DRIVERS}/toy/0001:03:1f.2/vendor"}

    (found,) = pci_functions(as_system(machine), 0x1AE0, {3})

    assert found.bar_bytes == (0, 0, 0, 0, 0, 0)
    assert found.driver == ""


def test_a_function_is_taken_from_its_driver_and_enabled(machine: Machine) -> None:
    CARD.unbind(as_system(machine))
    CARD.enable(as_system(machine))
    CARD.reset(as_system(machine))

    assert machine.written == [
        (f"{DRIVERS}/toy/unbind", CARD.address),
        (f"{FOLDER}/enable", "1"),
        (f"{FOLDER}/reset", "1"),
    ]


def test_a_function_is_bound_again_where_it_is_not(machine: Machine) -> None:
    assert CARD.give_back(as_system(machine), "toy", enabled=True) == ""
    assert not machine.written

    assert CARD.give_back(as_system(machine), "other", enabled=True) == ""
    assert machine.written == [(f"{DRIVERS}/other/bind", CARD.address)]


def test_a_function_without_a_driver_is_as_enabled_as_before(machine: Machine) -> None:
    assert CARD.give_back(as_system(machine), "", enabled=True) == ""
    assert not machine.written

    assert CARD.give_back(as_system(machine), "", enabled=False) == ""
    assert machine.written == [(f"{FOLDER}/enable", "0")]


def test_a_driver_that_refuses_is_reported_with_the_command(machine: Machine) -> None:
    machine.refusal = OSError(errno.EIO, "no")

    left = CARD.give_back(as_system(machine), "other", enabled=True)

    assert f"`echo {CARD.address} > {DRIVERS}/other/bind` as root" in left
    assert CARD.give_back(as_system(machine), "", enabled=False) == ""


def test_a_file_is_written_in_place_and_never_made(tmp_path: Path) -> None:
    file = tmp_path / "enable"
    file.write_text("0")

    write_text(LinuxSystem(), str(file), "1")

    assert file.read_text() == "1"
    with pytest.raises(FileNotFoundError):
        write_text(LinuxSystem(), str(tmp_path / "bind"), "1")
