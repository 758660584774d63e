"""Commands of a card's channels: compute, and copies.

A kernel is launched by its descriptor, which lies beside its arguments. Launches that follow each
other name the next one in their descriptors, and signals after them stand there too, so that the
channel is told of the first alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from tiny_hcq import HCQArgsState, HCQBuffer, HCQProgram, HWQueue, Number, SignalPlace, Symbol
from tiny_nv.nvk import methods, qmd
from tiny_nv.nvk.channel import LARGEST_ENTRY, Channel
from tiny_nv.nvk.program import NvArguments, NvProgram, Patch
from tinycore.errors import ArgumentError

if TYPE_CHECKING:
    from tiny_nv.nvk.device import NvDevice

__all__ = ["ComputeQueue", "CopyQueue"]

_WORD_BYTES: Final = 4
_NOTHING: Final[Mapping[Symbol, int]] = MappingProxyType({})


class NvQueue(HWQueue):
    """Command recording common to compute and copy queues."""

    FORMAT: ClassVar[Literal["I", "Q"]] = "I"

    def __init__(self, device: NvDevice, channel: Channel) -> None:
        super().__init__()
        self.device = device
        self.channel = channel
        self.bound: HCQBuffer | None = None
        self._entries: list[tuple[int, int]] = []
        """Addresses and lengths of commands that are bound, by entries of the ring."""
        self.options = device.options

    def __del__(self) -> None:
        bound = getattr(self, "bound", None)
        if bound is not None:
            self.device.discard(bound, None)

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Go on when the signal is at least at `value`."""
        return self.append(*methods.wait_at_least(signal.address, value))

    def interrupt(self) -> Self:
        """Wake who sleeps, after all before this is done."""
        return self.append(*methods.interrupt())

    # --- submission

    def bind_words(self) -> memoryview | None:
        """The commands in memory that the card reads."""
        if not len(self.words):
            return None
        self.bound = self.device.allocator.alloc_visible(len(self.words) * _WORD_BYTES)
        assert self.bound.view is not None
        words = self.bound.view.cast("I")
        words[:] = memoryview(self.words)
        self._entries = self._entries_of(self.bound, words)
        return words

    def submit_words(self) -> None:
        """Let the channel execute the commands."""
        if not self.words:
            return
        channel = self.channel
        with channel.lock:
            entries = self._entries
            if self.bound is None:
                words = memoryview(self.words)
                entries = self._entries_of(self._lend(words), words)
            channel.wait_for_room(len(entries), self.device.rest)
            for address, count in entries:
                channel.submit(address, count)
            channel.ring_doorbell()

    def _entries_of(self, memory: HCQBuffer, words: memoryview) -> list[tuple[int, int]]:
        """Addresses and lengths of the ring's entries for commands in memory."""
        base = memory.address
        runs = self.whole_commands(words, LARGEST_ENTRY, methods.length_of)
        return [(base + start * _WORD_BYTES, count) for start, count in runs]

    def _lend(self, words: memoryview) -> HCQBuffer:
        """A copy of the words, which lasts until they are executed."""
        memory = self.device.commands[self.channel].take(len(words) * _WORD_BYTES)
        assert memory.view is not None
        memory.view.cast("I")[:] = words
        return memory


class ComputeQueue(NvQueue):
    """Commands of the engine that computes."""

    GRID_WORDS = True

    def __init__(self, device: NvDevice, channel: Channel) -> None:
        super().__init__(device, channel)
        self.last: NvArguments | None = None
        """The launch after which nothing else has been asked for."""
        self.kept: list[NvArguments] = []
        """References to the memory that descriptors address, which must outlive the commands."""
        self._inline: list[tuple[int, NvArguments]] = []
        """Launches whose descriptors are among the commands, and from which word on."""
        self._patches: dict[Symbol, list[Callable[[int], None]]] = {}

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Go on when the signal is at least at `value`."""
        self.last = None
        return super().wait(signal, value)

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set the signal: by the last launch where it can, else by the channel."""
        if self.options.sleeps:
            self.last = None
            return self.append(*methods.release(signal.address, value)).interrupt()
        if self.last is not None and self.last.releases < qmd.RELEASES:
            return self._note(self.last.release(signal.address, value))
        self.last = None
        return self.append(*methods.release(signal.address, value))

    def timestamp(self, signal: SignalPlace) -> Self:
        """Note the card's clock; the signal's value becomes 0."""
        if self.last is not None and self.last.releases < qmd.RELEASES:
            return self._note(self.last.release(signal.address, 0, timed=True))
        self.last = None
        return self.append(*methods.release_time(signal.address))

    def memory_barrier(self) -> Self:
        """See what others have written; a launch after a launch does so by itself."""
        return self if self.last is not None else self.append(*methods.INVALIDATE)

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        """Launch a kernel when all before it has ended."""
        assert isinstance(program, NvProgram)
        assert isinstance(args_state, NvArguments)
        self.kept.append(args_state)
        self._note(args_state.begin(grid, block))
        if self.last is not None:
            self.last.follow_by(args_state)
        else:
            self._launch(args_state)
        self.last = args_state
        return self

    def _launch(self, arguments: NvArguments) -> None:
        """Launch when all kernels before have ended."""
        self.append(*methods.wait_for_idle())
        size = len(arguments.descriptor)
        if not self.options.inline_descriptors:
            self.append(*methods.schedule(arguments.address))
            return
        self.append(*methods.launch_inline(arguments.address, size))
        self._inline.append((len(self.words) - size // _WORD_BYTES, arguments))

    def _note(self, patches: list[Patch]) -> Self:
        for symbol, change in patches:
            self._patches.setdefault(symbol, []).append(change)
        return self

    def submit(self, known: Mapping[Symbol, int] = _NOTHING) -> Self:
        """Submit, with numbers for the symbols in commands and in descriptors."""
        for symbol, changes in self._patches.items():
            if symbol not in known:
                raise ArgumentError(f"a queue is submitted without a number for {symbol}")
            for change in changes:
                change(known[symbol])
        for start, arguments in self._inline:  # as later commands and this submission made them
            content = arguments.descriptor.cast("I")
            for index, word in enumerate(content, start):
                self.words[index] = word
        return super().submit(known)


class CopyQueue(NvQueue):
    """Commands of an engine that copies."""

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set the signal when all copies before are done."""
        self.append(*methods.copy_release(signal.address, value))
        return self.interrupt() if self.options.sleeps else self

    def timestamp(self, signal: SignalPlace) -> Self:
        """Note the card's clock; the signal's value becomes 0."""
        return self.append(*methods.copy_release(signal.address, 0, timed=True))

    def copy(self, dst: Number, src: Number, size: int) -> Self:
        """Copy bytes."""
        return self.append(*methods.copy(dst, src, size))
