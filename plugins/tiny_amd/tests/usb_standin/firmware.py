"""The bridge's firmware: vendor requests, PCIe packets, streams, and DMA to and from its SRAM.

From the public firmware's source as facts: what is answered, what is dropped, in which order
interrupts are looked at. A request returns bytes, a number of bytes taken, or an error of libusb.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from usb_standin.fabric import Completed, Fabric, Mistake

PIPE = -9
SLOT, SECTOR, SRAM = 16 << 10, 512, 512 << 10
LINK_STATE = 0xB450
UP, DOWN = 0x78, 0x00
POWER_MS = 2000
"""F3 may take so long."""


@dataclass
class Stream:
    """Effect of the next bulk transfer."""

    to_host: bool
    left: int
    """Bytes."""
    address: int = 0
    slot: int = -1
    """First slot of SRAM; -1 for a stream of PCIe packets."""


@dataclass
class Firmware:
    """A bridge with power."""

    fabric: Fabric
    super_speed: bool = True
    product: str = "custom v0.1"
    big_endian: bool = False
    """Older firmware."""
    lag: int = 0
    """Requests that pass until SRAM has what a bulk transfer brought."""
    training: int = 0
    """Times that the link's state is asked for until it is up."""
    leaves: bool = False
    """It comes back as another device after power was turned on."""
    has_card: bool = True
    statuses: list[tuple[int, int]] = field(default_factory=list)
    """Bytes 4 and 7 of completions to come, in place of the true ones."""

    def __post_init__(self) -> None:
        self.memory = bytearray(1 << 16)
        self.sram: bytearray | memoryview = bytearray(SRAM)
        self.state = DOWN
        self.trains = 0
        self.stream: Stream | None = None
        self.completion: bytes | None = None
        self.pending: list[tuple[int, int, bytes]] = []
        self.last_packet: tuple[int, bytes] | None = None
        self.requests: list[int] = []
        self.fabric.of_host = self.seen_by_card

    def seen_by_card(self, address: int) -> tuple[bytearray | memoryview, int] | None:
        """SRAM and 4 KiB of the chip's memory, at their addresses of the bus."""
        if 0x200000 <= address < 0x200000 + SRAM:
            return self.sram, address - 0x200000
        if 0x820000 <= address < 0x821000:
            return self.memory, 0xA000 + address - 0x820000
        return None

    def tick(self) -> None:
        """One more request: bytes arrive that were on their way."""
        arrived = [entry for entry in self.pending if entry[0] <= 0]
        self.pending = [(left - 1, at, content) for left, at, content in self.pending if left > 0]
        for _, at, content in arrived:
            self.sram[at : at + len(content)] = content

    # --- control transfers

    def control_in(self, request: int, value: int, index: int, size: int) -> bytes | int:
        self.tick()
        self.requests.append(request)
        if request == 0xE4:
            self.settle()
            if value == LINK_STATE and self.state == DOWN and self.trains:
                self.trains -= 1
                self.state = DOWN if self.trains else UP
            self.memory[LINK_STATE] = self.state
            most = 512 if self.super_speed else 64
            return bytes(self.memory[value : value + min(size, most)])
        if request == 0xF0:
            if size != 8:
                raise Mistake(f"a completion has 8 bytes, not {size}")
            if self.completion is None:
                raise Mistake("a completion is asked for, and no request is under way")
            found, self.completion = self.completion, None
            if self.statuses:
                header, error = self.statuses.pop(0)
                found = found[:4] + bytes([header, 4, 0, error])
            return found
        return PIPE

    def control_out(self, request: int, value: int, index: int, data: bytes, limit_ms: int) -> int:
        self.tick()
        self.requests.append(request)
        if request == 0xE5:
            self.settle()
            if index >> 8:
                raise Mistake("the high byte of the index chooses another bank")
            self.memory[value] = index & 0xFF
            return 0
        if request == 0xF0:
            if len(data) != 12:
                raise Mistake(f"a PCIe request has 12 bytes, not {len(data)}")
            self.packet(value & 0xFF, value >> 8, index, data)
            return 12
        if request == 0xF2:
            self.arm(value & 0x7FFF, bool(value >> 15), index & 0xFF, index >> 8 or 1)
            return 0
        if request == 0xF3:
            if limit_ms <= POWER_MS:
                raise Mistake(f"power takes {POWER_MS} ms, and is given {limit_ms}")
            self.power(on=bool(value & 1))
            return 0
        return PIPE

    def power(self, *, on: bool) -> None:
        self.state = DOWN
        self.fabric.reset()
        if on and self.has_card:
            self.trains = self.training
            self.state = DOWN if self.training else UP

    def settle(self) -> None:
        """The last packet of a stream of writes is looked at."""
        if self.last_packet is not None:
            address, content = self.last_packet
            self.last_packet = None
            self.put(address, content)

    def packet(self, kind: int, enables: int, mode: int, data: bytes) -> None:
        """F0: a request, or the beginning of a stream."""
        if self.last_packet is not None:
            # Control transfers are looked at before bulk ones, and this one ends the stream.
            self.last_packet = None
        if self.completion is not None:
            raise Mistake("a PCIe request follows one whose completion was not taken")
        if self.stream is not None:
            raise Mistake("a PCIe request ends a stream that was not done")
        address, word = int.from_bytes(data[:8], "little"), data[8:]
        if self.big_endian:
            word = word[::-1]
        if address & 3:
            raise Mistake(f"a packet addresses words, and {address:#x} is none")
        if mode:
            self.begin(mode, kind, enables, address, int.from_bytes(word, "little"))
            return
        if not enables or bin(enables).strip("0b").count("0"):
            raise Mistake(f"bytes {enables:#x} of a word")
        status, found = 0, b"\0\0\0\0"
        try:
            if self.state != UP:
                raise Completed(1)
            found = self.execute(kind, enables, address, word)
        except Completed as completed:
            status = completed.status
        if kind == 0x60:
            return
        error = 1 if status == 1 else 0
        if self.big_endian:
            found = found[::-1]
        header = 0 if error else status << 5
        self.completion = (b"\0" * 4 if error else found) + bytes([header, 4, 0, error])

    def execute(self, kind: int, enables: int, address: int, word: bytes) -> bytes:
        if kind in (0x04, 0x05, 0x44, 0x45):
            bus, device, number = address >> 24, address >> 19 & 31, address >> 16 & 7
            if (kind & 1) != (bus > 0):
                raise Mistake(f"type {kind & 1} of a configuration request for bus {bus}")
            value = int.from_bytes(word, "little") if kind & 0x40 else None
            found = self.fabric.configure(bus, device, number, address & 0xFFF, enables, value)
            return found.to_bytes(4, "little")
        if kind == 0x20:
            return self.fabric.read(address)
        if kind == 0x60:
            self.fabric.write(address, enables, word)
            return b""
        raise Mistake(f"a packet of type {kind:#x}")

    # --- bulk transfers

    def begin(self, mode: int, kind: int, enables: int, address: int, words: int) -> None:
        if (mode, kind) not in ((1, 0x60), (2, 0x20)):
            raise Mistake(f"a stream of mode {mode} with packets of type {kind:#x}")
        if enables != 0xF or not words:
            raise Mistake(f"a stream of {words} words with bytes {enables:#x}")
        self.stream = Stream(mode == 2, 4 * words, address)

    def arm(self, sectors: int, to_host: bool, slot: int, slots: int) -> None:
        if self.stream is not None:
            raise Mistake("SRAM is armed while a stream is not done")
        if not sectors or slots != -(-sectors * SECTOR // SLOT) or slot + slots > SRAM // SLOT:
            raise Mistake(f"{sectors} sectors in {slots} slots from {slot} on")
        self.stream = Stream(to_host, sectors * SECTOR, slot=slot)

    def bulk_out(self, content: bytes) -> int:
        """Number of bytes taken."""
        self.tick()
        stream = self.taken(to_host=False, size=len(content))
        if stream.slot >= 0:
            self.pending.append((self.lag, stream.slot * SLOT, content))
            if not self.lag:
                self.tick()
        else:
            packet = 1024 if self.super_speed else 512
            head = (len(content) - 1) // packet * packet
            self.put(stream.address, content[:head])
            self.last_packet = (stream.address + head, content[head:])
        return len(content)

    def bulk_in(self, size: int) -> bytes:
        self.tick()
        stream = self.taken(to_host=True, size=size)
        if stream.slot >= 0:
            return bytes(self.sram[stream.slot * SLOT :][:size])
        try:
            return self.fabric.read(stream.address, size)
        except Completed:
            return b"\xff" * size  # nobody tells

    def put(self, address: int, content: bytes) -> None:
        if content:
            self.fabric.write_words(address, content)

    def taken(self, *, to_host: bool, size: int) -> Stream:
        if self.stream is None:
            raise Mistake("a bulk transfer that nothing was armed for")
        stream, self.stream = self.stream, None
        if stream.to_host != to_host or stream.left != size:
            raise Mistake(f"{size} bytes, where {stream.left} in the other or this way were armed")
        return stream

    def clear(self) -> None:
        """A pipe is cleared: the stream is over."""
        self.stream = None
        self.last_packet = None
