"""Seeded faults: the interface USB with one thing wrong at a time, which its tests must find.

    python plugins/tiny_amd/tests/usb_faults.py          all of them, two minutes
    python plugins/tiny_amd/tests/usb_faults.py 3 7      numbers 3 to 6

Each fault is a change of one text of the plugin, in a copy of it. The tests run on the copy; a
fault that passes them all is printed, and the status is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

from seeded_faults import Fault, Seeded

TESTS: Final = Path(__file__).parent
SOURCES: Final = TESTS.parent / "src/tiny_amd"
RUN: Final = (
    "test_usb.py",
    "test_usb_pcie.py",
    "test_am_discovery.py",
    "test_am_firmware.py",
    "test_usb_card.py",
)

FAULTS: Final[tuple[Fault, ...]] = (
    ("usb/transfers.py", "undo.callback(self.library.libusb_exit, context[0])", "pass"),
    (
        "usb/transfers.py",
        "undo.callback(library.libusb_release_interface, handle, INTERFACE)",
        "pass",
    ),
    ("usb/transfers.py", "devices[0], 1)", "devices[0], 0)"),
    ("usb/transfers.py", "found.sort(key=lambda entry: entry[0])", "found.reverse()"),
    ("usb/transfers.py", "if status == UsbCode.BUSY:", "if False:"),
    ("usb/transfers.py", "        self._verify_firmware(device)\n", ""),
    ("usb/transfers.py", "        self.reset_pipes()\n", ""),
    ("usb/transfers.py", "UsbCode.SUCCESS and done[0] == size", "UsbCode.SUCCESS"),
    ("usb/transfers.py", "        if count != size:\n", "        if count > size:\n"),
    ("usb/transfers.py", "        if count != len(content):\n", "        if False:\n"),
    ("usb/transfers.py", "            self.lost = f", "            lost = f"),
    ("usb/transfers.py", "if current[0] != CONFIGURATION:", "if False:"),
    ("usb/bridge.py", "POWER_MS: Final = 10_000", "POWER_MS: Final = 1_000"),
    ("usb/bridge.py", "USB3 if self.usb.is_super_speed else _READ_BYTES_USB2", "USB3"),
    (
        "usb/bridge.py",
        "_READ_BYTES_USB2, _READ_BYTES_USB3 = 64, 255",
        "_READ_BYTES_USB2, _READ_BYTES_USB3 = 64, 1024",
    ),
    ("usb/bridge.py", "BEHIND_BRIDGE if bus else 0", "BEHIND_BRIDGE"),
    ("usb/bridge.py", "value << 8 * shift & 0xFFFFFFFF", "value"),
    ("usb/bridge.py", "enables = ((1 << size) - 1) << shift", "enables = 0xF"),
    ("usb/bridge.py", "return word >> 8 * shift &", "return word &"),
    ("usb/bridge.py", "error if error in (1, 0xFF) else header >> 5", "error"),
    ("usb/bridge.py", "error if error in (1, 0xFF) else header >> 5", "header >> 5"),
    (
        "usb/bridge.py",
        "            if kind == Packet.MEMORY_WRITE:\n                return 0\n",
        "",
    ),
    ("usb/bridge.py", "error.status != CompletionStatus.RETRY or time", "time"),
    ("usb/bridge.py", "size // _WORD)", "size)"),
    ("usb/bridge.py", "self._start(Packet.MEMORY_READ, 2,", "self._start(Packet.MEMORY_READ, 1,"),
    (
        "usb/bridge.py",
        (
            "            # last packet it has not looked at: a harmless request lies between.\n"
            "            self.verify_link()\n"
        ),
        "",
    ),
    (
        "usb/bridge.py",
        "            found = self.usb.bulk_in(size)\n            self.verify_link()\n",
        "            found = self.usb.bulk_in(size)\n",
    ),
    ("usb/bridge.py", "            self._send(GUARD_SLOT, mark)\n", ""),
    ("usb/bridge.py", "self._sequence % 0xFFFFFFFF + 1", "self._sequence"),
    ("usb/bridge.py", "direction, slot | slots << 8", "direction, slot | 1 << 8"),
    ("usb/bridge.py", "sectors | direction, slot", "sectors, slot"),
    ("usb/pcie.py", "bus | bus + 1 << 8 | _LAST_BUS << 16", "bus | bus + 1 << 8"),
    ("usb/pcie.py", "bridge.config_write(bus, 0, _BUSES + 2, ports[-1] + 1, 1)", "pass"),
    ("usb/pcie.py", "    silence(bridge, card, len(ports))\n", ""),
    ("usb/pcie.py", "control & ~0x3F00 | sizes[-1] << 8", "control | sizes[-1] << 8"),
    ("usb/pcie.py", "offered >> n & 1 and 1 << n + 20", "1 << n + 20"),
    ("usb/pcie.py", "        near = aligned(near, _WINDOW_BYTES)\n", ""),
    ("usb/pcie.py", "at = far = aligned(far, bar.size)", "at = far"),
    (
        "usb/pcie.py",
        "        bridge.config_write(bus, 0, offset + 4, address >> 32)\n",
        "        pass\n",
    ),
    (
        "usb/pcie.py",
        "for bus in (*ports, card):\n        bridge.config_write(bus, 0, _COMMAND",
        "for bus in (card,):\n        bridge.config_write(bus, 0, _COMMAND",
    ),
    ("usb/pcie.py", "_DECODE_AND_MASTER: Final = 0x6", "_DECODE_AND_MASTER: Final = 0x2"),
    ("usb/pcie.py", "    verify_words(bridge)\n", ""),
    ("usb/bus.py", "if high == before:", "if True:"),
    ("usb/bus.py", "behind = self._read(end, last)", 'behind = b""'),
    (
        "usb/bus.py",
        "before = self._read(first * SLOT_BYTES, begin)",
        "before = bytes(begin % SLOT_BYTES)",
    ),
    ("usb/bus.py", "        view[0 : count * SLOT_BYTES] = bytes(count * SLOT_BYTES)\n", ""),
    ("usb/driver.py", "        self.vram.flush()\n\n    def set_word", "\n    def set_word"),
    ("usb/driver.py", "value)\n        self.vram.flush()\n", "value)\n"),
    (
        "usb/driver.py",
        "            running.vram.give_back(place, size)\n            raise",
        "            raise",
    ),
    (
        "usb/driver.py",
        "if is_visible and place + size > self.bus.bar_bytes[MEMORY_BAR]:",
        "if False:",
    ),
    ("usb/driver.py", "                self.usb_bus.free(place)\n", "                pass\n"),
    ("usb/driver.py", "            self.running.pages.map_system(address, memory.pages)\n", ""),
    (
        "usb/driver.py",
        "    except DeviceUnavailable:\n        bridge.usb.close()\n",
        "    except DeviceUnavailable:\n",
    ),
    (
        "usb/driver.py",
        "    except DeviceError as error:\n        bridge.usb.close()\n",
        "    except DeviceError as error:\n",
    ),
    ("windows.py", "start * _RING_WORD : part.stop", "start : part.stop"),
    ("windows.py", "        self._known = value\n", "        pass\n"),
    ("memory.py", "if place is Place.STAGING and isinstance", "if isinstance"),
    ("am/discovery.py", "2 * processors", "processors"),
    ("am/discovery.py", "{'Q' if is_wide else 'I'}", "I"),
    ("am/discovery.py", 'reader.verify_sum(start, size, checksum, "the list of blocks")', "pass"),
    ("am/firmware.py", "file.part(file.code_at + start, size)", "file.part(start, size)"),
    ("am/firmware.py", "file.part(file.code_at + code_size, data_size)", "file.sized(40, 44)"),
    ("am/firmware.py", "mec.word(52) | mec.word(56) << 32", "mec.word(52)"),
    ("am/firmware.py", "        file_of_crc.verify_crc()\n", "        pass\n"),
)

SEEDED: Final = Seeded(
    tests=TESTS,
    package=SOURCES,
    folder="",
    run=RUN,
    chosen="test",
    wait_ms=3000,
    faults=FAULTS,
)

if __name__ == "__main__":
    sys.exit(SEEDED.main(sys.argv[1:]))
