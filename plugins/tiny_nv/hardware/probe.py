"""Calls of NVIDIA's kernel driver, one by one, as rows of a page: what each returned.

No step stops those after it: one whose input is missing says so. The steps open a client of their
own first, then a card as the plugin opens it, its channels, a semaphore, a copy, and at last the
device NV with a kernel that does nothing and one that stores.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tiny_hcq import address_of, bytes_at, fence, system
from tiny_nv.nvk import methods
from tiny_nv.nvk.card import USERMODE_BYTES, Card, Driver
from tiny_nv.nvk.channel import Channel, ChannelGroup
from tiny_nv.nvk.classes import FIRST_OF_BAR1, STATUSES, USERMODES, Class, Control, Escape, Uvm
from tiny_nv.nvk.layouts import Layouts, layouts_of
from tiny_nv.nvk.mapping import ADDRESS_BYTES, FIRST_ADDRESS, DmaMapping
from tiny_nv.nvk.rm import CardInfo, ResourceManager
from tiny_nv.nvk.uvm import UnifiedMemory
from tinycore import Device
from tinycore.plugin import ProgramInfo

__all__ = ["rows"]

WAIT_SECONDS: Final = 5.0
COPIED_BYTES: Final = 4096
STRUCTURES: Final[Mapping[int, str]] = {
    Escape.RM_ALLOC_MEMORY: "NVOS02",
    Escape.RM_FREE: "NVOS00",
    Escape.RM_CONTROL: "NVOS54",
    Escape.RM_ALLOC: "NVOS21",
    Escape.RM_MAP_MEMORY: "NVOS33",
    Escape.RM_UNMAP_MEMORY: "NVOS34",
    Escape.RM_MAP_MEMORY_DMA: "NVOS46",
    Escape.RM_UNMAP_MEMORY_DMA: "NVOS47",
}
"""Structures of requests to nvidiactl or nvidia0 that have a status."""
UVM_STRUCTURES: Final[Mapping[int, str]] = {
    Uvm.INITIALIZE: "uvm_initialize",
    Uvm.MM_INITIALIZE: "uvm_mm_initialize",
    Uvm.REGISTER_GPU: "uvm_register_gpu",
    Uvm.UNREGISTER_GPU: "uvm_unregister_gpu",
    Uvm.REGISTER_GPU_VASPACE: "uvm_register_gpu_vaspace",
    Uvm.UNREGISTER_GPU_VASPACE: "uvm_unregister_gpu",
    Uvm.REGISTER_CHANNEL: "uvm_register_channel",
    Uvm.UNREGISTER_CHANNEL: "uvm_unregister_channel",
    Uvm.CREATE_EXTERNAL_RANGE: "uvm_create_external_range",
    Uvm.MAP_EXTERNAL_ALLOCATION: "uvm_map_external",
    Uvm.UNMAP_EXTERNAL: "uvm_unmap_external",
    Uvm.ENABLE_PEER_ACCESS: "uvm_enable_peer",
    Uvm.FREE: "uvm_free",
}
CLASS_PLACE, COMMAND_PLACE = 12, 8
MEMORY_VIRTUAL: Final = 0x70
BUILD_VERSION: Final = 0x13E
BUILD_VERSION_BYTES: Final = 1032
SOURCES: Final = {
    "NVRTC": """\
extern "C" __global__ void nothing_(unsigned int *out) {}
extern "C" __global__ void store_(unsigned int *out) { out[threadIdx.x] = 1000 + threadIdx.x; }
""",
    "PTX": """\
.version 7.8
.target ARCH
.address_size 64
.visible .entry nothing_(.param .u64 out) { ret; }
.visible .entry store_(.param .u64 out) {
  .reg .b64 %d<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %d0, [out];
  mov.u32 %r0, %tid.x;
  add.u32 %r1, %r0, 1000;
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d2, %d0, %d1;
  st.global.u32 [%d2], %r1;
  ret;
}
""",
}
"""Two kernels in the language of each renderer; names of kernels end so."""
THREADS: Final = 32


class Recorder:
    """The machine, and what each of its answers was."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.answers: list[str] = []
        self.layouts: Layouts = layouts_of(580)
        """Structures of the driver's branch, once it has told that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def open(self, path: str) -> int:
        """Open a file."""
        try:
            file: int = self.machine.open(path)
        except OSError as error:
            self.answers.append(f"open {path}: {error.strerror}")
            raise
        self.answers.append(f"open {path}: ok")
        return file

    def map(self, *arguments: int) -> int:
        """Map a file."""
        try:
            found: int = self.machine.map(*arguments)
        except OSError as error:
            self.answers.append(f"mmap {arguments[1]:,} bytes: {error.strerror}")
            raise
        self.answers.append(f"mmap {arguments[1]:,} bytes: {found:#x}")
        return found

    def ioctl(self, file: int, request: int, argument: int) -> int:
        """Ask a driver."""
        failed: int = self.machine.ioctl(file, request, argument)
        name, place = described(request, argument, self.layouts)
        answer = f"errno {failed}" if failed else "ok"
        if not failed and place is not None:
            status = int.from_bytes(bytes_at(argument + place, 4), "little")
            answer = f"{STATUSES.get(status, '')} {status:#x}".strip() if status else "ok"
        self.answers.append(f"{name}: {answer}")
        return failed


def described(request: int, argument: int, layouts: Layouts) -> tuple[str, int | None]:
    """Name of a request, and where its status is."""
    escape = request & 0xFF

    def word(place: int) -> int:
        return int.from_bytes(bytes_at(argument + place, 4), "little")

    if request in set(Uvm):
        structure = UVM_STRUCTURES.get(request)
        place = layouts[structure].fields["rmStatus"][0] if structure else None
        return f"UVM_{Uvm(request).name}", place
    if escape not in set(Escape):
        return f"request {request:#x}", None
    name = Escape(escape).name
    if escape in (Escape.RM_ALLOC, Escape.RM_ALLOC_MEMORY):
        name += f" {word(CLASS_PLACE):#x}"
    if escape == Escape.RM_CONTROL:
        name += f" {word(COMMAND_PLACE):#x}"
    structure = STRUCTURES.get(escape)
    return name, layouts[structure].fields["status"][0] if structure else None


class Probe:
    """The steps, and what they have found for those after them."""

    rm: ResourceManager
    info: CardInfo
    device: int
    subdevice: int
    classes: frozenset[int]
    va_space: int
    uuid: bytes
    card: Card
    group: ChannelGroup
    store_binary: bytes

    def __init__(self) -> None:
        self.machine: Any = Recorder(system())

    def __str__(self) -> str:
        return "a card"

    # --- a client of its own

    def guest(self) -> str:
        """The machine"""
        nodes = [name for name in self.machine.names("/dev") if name.startswith("nvidia")]
        version = self.machine.read_text("/proc/driver/nvidia/version").partition("\n")[0]
        kernel = self.machine.read_text("/proc/version").strip()
        return f"{platform.platform()}; {kernel}; {', '.join(nodes)}; {version}"

    def client(self) -> str:
        """nvidiactl, the driver's version, a root"""
        self.rm = ResourceManager(self.machine)
        self.machine.layouts = self.rm.layouts
        return f"version {self.rm.version}, root {self.rm.root:#x}"

    def list_cards(self) -> str:
        """The list of cards"""
        found = sorted(self.rm.cards(), key=lambda info: info.minor)
        self.info = found[0]
        return ", ".join(
            f"{card.node} at {card.bus}, device {card.pci_device:#x}, BAR1 {card.memory_bytes:,}"
            for card in found
        )

    def open_card(self) -> str:
        """The card's file, registered"""
        file = self.machine.open(self.info.node)
        self.rm.register(file)
        return "registered"

    def make_device(self) -> str:
        """A device and its part"""
        rm = self.rm
        asked = rm.record("id_info", gpuId=self.info.gpu_id)
        found = rm.control(rm.root, Control.GPU_GET_ID_INFO_V2, asked)
        instance = found.number("deviceInstance")
        record = rm.record("device", deviceId=instance, hClientShare=rm.root)
        self.device = rm.alloc(rm.root, Class.NV01_DEVICE_0, record, what="a device")
        subdevice = rm.record("subdevice")
        self.subdevice = rm.alloc(self.device, Class.NV20_SUBDEVICE_0, subdevice, what="its part")
        return f"instance {instance}"

    def list_classes(self) -> str:
        """The list of classes"""
        asked = self.rm.record("class_list")
        self.rm.control(self.device, Control.GET_CLASSLIST, asked)
        found = bytearray(4 * asked.number("numClasses"))
        asked.put("classList", address_of(found))
        self.rm.control(self.device, Control.GET_CLASSLIST, asked)
        self.classes = frozenset(memoryview(found).cast("I"))
        return " ".join(f"{number:x}" for number in sorted(self.classes))

    def map_doorbells(self) -> str:
        """Pages of doorbells: each class, with and without BAR1"""
        known = [number for number in USERMODES if number in self.classes]
        pages = [(number, False) for number in known]
        pages += [(number, True) for number in known if number >= FIRST_OF_BAR1]
        return ", ".join(
            f"{number:x}{' by BAR1' if by_bar1 else ''} {self._page(number, by_bar1)}"
            for number, by_bar1 in pages
        )

    def _page(self, number: int, by_bar1: bool) -> str:
        rm = self.rm
        params = rm.record("usermode", bBar1Mapping=1) if by_bar1 else None
        try:
            page = rm.alloc(self.subdevice, number, params, what="a page of doorbells")
            at = rm.map(self.subdevice, page, USERMODE_BYTES, self.info.node, write_only=by_bar1)
            rm.machine.unmap(at, USERMODE_BYTES)
            rm.free(page)
        except Exception as error:
            return f"refused: {error}"
        return "mapped"

    def make_space(self) -> str:
        """An address space whose pages nvidia-uvm owns, and the card's UUID"""
        rm = self.rm
        record = rm.record("va_space", vaBase=FIRST_ADDRESS, vaSize=ADDRESS_BYTES, flags=0x48)
        self.va_space = rm.alloc(self.device, Class.FERMI_VASPACE_A, record, what="a space")
        identity = rm.record("gid_info", flags=2, length=16)
        rm.control(self.subdevice, Control.GET_GID_INFO, identity)
        self.uuid = identity.content("uuid")
        return self.uuid.hex()

    def unify(self) -> str:
        """nvidia-uvm: begin, register the card and its space, and take both back"""
        uvm = UnifiedMemory(self.rm)
        try:
            uvm.register_gpu(self.uuid)
            uvm.register_va_space(self.uuid, self.va_space)
            uvm.unregister(self.uuid)
        finally:
            uvm.close()
        return "registered"

    def ask_what_sandboxes_refuse(self) -> str:
        """Refusals of gVisor: RM_MAP_MEMORY_DMA, class 0x70, control 0x13e; refused is no fault"""
        rm = self.rm
        told = []

        def map_dma() -> None:
            space: Any = self
            DmaMapping(rm).map(1 << 32, 4096, self.device, [space])

        def alloc_virtual() -> None:
            number: Any = MEMORY_VIRTUAL
            rm.alloc(self.device, number, what="virtual memory")

        def build_version() -> None:
            content = bytearray(BUILD_VERSION_BYTES)
            record = rm.record(
                "NVOS54",
                hClient=rm.root,
                hObject=rm.root,
                cmd=BUILD_VERSION,
                params=address_of(content),
                paramsSize=len(content),
            )
            rm.request(Escape.RM_CONTROL, record, "the driver's build")
            rm.verify(record, "the driver's build")

        for attempt in (map_dma, alloc_virtual, build_version):
            try:
                attempt()
                told.append(f"{attempt.__name__}: taken")
            except Exception as error:
                told.append(f"{attempt.__name__}: {error}")
        return "; ".join(told)

    def end_client(self) -> str:
        """The end of the client"""
        self.rm.close()
        return "closed"

    # --- as the plugin does it

    def open_as_the_plugin(self) -> str:
        """The card as the plugin opens it"""
        driver = Driver(self.machine)
        self.card = card = driver.open(driver.infos()[0])
        units = card.units
        return (
            f"{card.generation.name}, SM version {units.sm_version:#x} ({card.arch}), channel "
            f"{card.channel_class:x}, copies {card.copy_class:x}, {units}, memory by "
            f"{type(driver.mapping).__name__}"
        )

    def allocate(self) -> str:
        """Memory: of the system, of the card, and the host's own pages, mapped for the card"""
        card, told = self.card, []
        for size, is_system in ((4096, True), (2 << 20, False)):
            made = card.allocate(size, is_system=is_system, is_visible=True)
            content = bytes_at(made.host, 64)
            content[:] = bytes(range(64))
            holds = bytes(content) == bytes(range(64))
            told.append(
                f"{size:,} bytes at {made.address:#x}, {'hold' if holds else 'LOSE'} values"
            )
            content.release()
            card.free(made)
        pages = self.machine.machine.map(0, 4096, 3, 0x22, -1, 0)
        pinned = card.pin(pages, 4096)
        told.append(f"pinned at {pinned.address:#x}")
        card.free(pinned)
        self.machine.machine.unmap(pages, 4096)
        return ", ".join(told)

    def make_channels(self) -> str:
        """A group of channels: one that computes, one that copies"""
        self.group = group = ChannelGroup(self.card)
        return f"tokens {group.compute.token:#x} and {group.copies.token:#x}"

    def signal(self) -> str:
        """A semaphore alone: the first sign of life"""
        return self._pushed(self.group.compute, lambda at: methods.release(at, 77), 77)

    def copy(self) -> str:
        """A copy of 4 KiB"""
        card = self.card
        source, target = (card.allocate(COPIED_BYTES, is_visible=True) for _ in range(2))
        expected = bytes(range(256)) * (COPIED_BYTES // 256)
        bytes_at(source.host, COPIED_BYTES)[:] = expected
        bytes_at(target.host, COPIED_BYTES)[:] = bytes(COPIED_BYTES)

        def words(at: int) -> tuple[Any, ...]:
            begin = methods.set_object(methods.COPY, card.copy_class)
            moved = methods.copy(target.address, source.address, COPIED_BYTES)
            return (*begin, *moved, *methods.copy_release(at, 78))

        told = self._pushed(self.group.copies, words, 78)
        assert bytes(bytes_at(target.host, COPIED_BYTES)) == expected, f"{told}; WRONG bytes arrive"
        card.free(source)
        card.free(target)
        return f"{told}; all bytes arrive"

    def _pushed(
        self, channel: Channel, words_at: Callable[[int], tuple[Any, ...]], value: int
    ) -> str:
        """Have a channel execute words that set a value, and wait for it."""
        memory = self.card.allocate(4096, is_visible=True)
        content = bytes_at(memory.host, 4096).cast("I")
        content[:] = memoryview(bytes(4096)).cast("I")
        words = words_at(memory.address)
        content[64 : 64 + len(words)] = memoryview(bytearray(4 * len(words))).cast("I")
        for place, word in enumerate(words):
            content[64 + place] = int(word)
        with channel.lock:
            channel.submit(memory.address + 256, len(words))
            fence()
            channel.ring_doorbell()
        began = time.perf_counter()
        play = getattr(self.machine.machine, "pump", None)  # of a stand-in
        while content[0] != value and time.perf_counter() - began < WAIT_SECONDS:
            if play is not None:
                play()
        taken = time.perf_counter() - began
        state = f"{channel.state()}, error {self.group.error:#x}"
        assert content[0] == value, f"NO SIGNAL within {WAIT_SECONDS:.0f} s; {state}"
        content.release()
        self.card.free(memory)
        return f"signalled after {taken * 1e6:,.0f} us; {state}"

    def end_card(self) -> str:
        """The end of the channels and of the card"""
        self.group.close()
        self.card.close()
        return "closed"

    # --- the device

    def open_device(self) -> str:
        """The device NV"""
        runtime: Any = Device["NV"].runtime
        return f"{runtime.arch}, {Device['NV'].toolchain.compiler.key}"

    def launch_nothing(self) -> str:
        """A kernel that does nothing"""
        self._launched("nothing")
        return "ended"

    def launch_store(self) -> str:
        """A kernel that stores"""
        found = self._launched("store")
        assert found == [*range(1000, 1000 + THREADS)], f"WRONG values {found}"
        return "stored what it should"

    def _launched(self, name: str) -> list[int]:
        runtime: Any = Device["NV"].runtime
        toolchain = Device["NV"].toolchain
        source = SOURCES[toolchain.name].replace("ARCH", runtime.arch)
        binary = toolchain.compiler.compile(source)
        info = ProgramInfo(name, 1, block=(THREADS, 1, 1), written=frozenset({0}))
        program = runtime.load(binary, info)
        memory = runtime.allocator.alloc(4 * THREADS)
        runtime.allocator.write(memory, memoryview(bytes(4 * THREADS)))
        program([memory], [], wait=True)
        content = bytearray(4 * THREADS)
        runtime.allocator.read(memoryview(content), memory)
        runtime.allocator.free(memory)
        return memoryview(content).cast("I").tolist()


STEPS: Final = (
    *(Probe.guest, Probe.client, Probe.list_cards, Probe.open_card, Probe.make_device),
    *(Probe.list_classes, Probe.map_doorbells, Probe.make_space, Probe.unify),
    *(Probe.ask_what_sandboxes_refuse, Probe.end_client, Probe.open_as_the_plugin),
    *(Probe.allocate, Probe.make_channels, Probe.signal, Probe.copy, Probe.end_card),
    *(Probe.open_device, Probe.launch_nothing, Probe.launch_store),
)


def rows() -> Iterator[str]:
    """A row for each step: what was tried, what came of it, and every answer of the machine."""
    probe = Probe()
    for step in STEPS:
        about = (step.__doc__ or step.__name__).strip()
        probe.machine.answers.clear()
        try:
            result = step(probe)
        except AttributeError as error:
            result = f"**not tried**: {error}"
        except Exception as error:
            result = f"**failed**: {type(error).__name__}: {error}"
        answers = "; ".join(probe.machine.answers)
        cells = [about, *(text.replace("\n", " ").replace("|", "/") for text in (result, answers))]
        yield f"| {' | '.join(cells)} |"
