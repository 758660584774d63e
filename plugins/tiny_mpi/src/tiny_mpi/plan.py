"""Estimates of a training step of a decoder on many devices: time, memory, and bytes on each link.

Bytes are those that the schedules here send, tensor by tensor: they are checked against counts.
Times follow from them and from rates that are given; nothing is overlapped but the stages of a
pipeline and the links between them. They were compared with processes behind slowed links
(benchmarks/results/2026-11-29-plan.md), not with a cluster.
Operations follow Chowdhery et al., "PaLM" (2022), appendix B; activations Korthikanti et al.,
"Reducing activation recomputation in large transformer models" (2022), in float32, with the scores
of attention kept. The time of a message is that of Hockney, "The communication challenge for MPP"
(1994): a latency, and its bytes at the rate of the link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Decoder", "Estimate", "Machine", "Way", "estimate", "ways"]

BYTES: Final = 4
"""Size of an element: float32."""
SMALLEST_IN_SHARDS, FEWEST_IN_SHARDS = 1 << 18, 3
"""Elements and processes from which sums go in shards (the setting RING=1)."""
BUCKET_BYTES: Final = 1 << 14
"""Bytes that are sent as one message (the setting MPI_BUCKET)."""


@dataclass(frozen=True)
class Decoder:
    """A decoder with gated networks, and a batch of it: of sequences of `length` tokens."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    length: int
    batch: int

    @property
    def tensors(self) -> tuple[tuple[int, int], ...]:
        """Sizes of the parameters in elements, and how many there are of each."""
        square, wide = self.width * self.width, self.width * self.inner
        of_layers = [(square, 4), (wide, 3), (self.width, 2)]
        table = (self.vocabulary * self.width, 2)
        return (*[(size, n * self.layers) for size, n in of_layers], table, (self.width, 1))

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return sum(size * count for size, count in self.tensors)

    @property
    def operations(self) -> float:
        """Floating-point operations of a step, forward and backward."""
        tokens = self.batch * self.length
        used = self.parameters - self.vocabulary * self.width  # the embedding is looked up
        return tokens * (6 * used + 12 * self.layers * self.width * self.length)

    @property
    def activation_bytes(self) -> float:
        """Bytes that one layer keeps of one sequence for its gradient."""
        return 2 * self.length * (34 * self.width + 5 * self.heads * self.length)

    @property
    def border_bytes(self) -> int:
        """Bytes between two layers, of the whole batch."""
        return self.batch * self.length * self.width * BYTES


@dataclass(frozen=True)
class Machine:
    """Devices in nodes: their rates as measured, and those of the links."""

    devices: int
    operations_per_second: float
    """Rate of one device, as it is reached."""
    memory_bytes: float
    node: int
    """Devices in a node."""
    near_bytes_per_second: float
    """Rate of the links of a device to others of its node."""
    far_bytes_per_second: float
    """Rate of the links of a device to other nodes."""
    message_seconds: float = 0.0
    """Time that a message takes beside that of its bytes (the latency of Hockney's model)."""


@dataclass(frozen=True)
class Way:
    """A division of a step: `data * tensor * stages` devices, and a stage of ZeRO, 0 for none."""

    data: int = 1
    tensor: int = 1
    stages: int = 1
    zero: int = 0
    microbatches: int = 1


@dataclass(frozen=True)
class Estimate:
    """Cost of a step: bytes are those that one device sends, the most of any."""

    seconds: float
    memory_bytes: float
    data_bytes: float
    tensor_bytes: float
    stage_bytes: float


def sum_bytes(elements: float, count: int) -> float:
    """Bytes that each of `count` processes sends to add up a tensor over all."""
    if count >= FEWEST_IN_SHARDS and elements >= SMALLEST_IN_SHARDS:
        return shard_bytes(elements, count)
    return direct_bytes(elements, count)


def direct_bytes(elements: float, count: int) -> float:
    """Bytes that each sends where all send everything to all."""
    return (count - 1) * elements * BYTES


def shard_bytes(elements: float, count: int) -> float:
    """Bytes that each of `count` processes sends in a reduce-scatter and an all-gather."""
    return 2 * (count - 1) / count * elements * BYTES


def exchanges(decoder: Decoder, way: Way) -> float:
    """Exchanges in a step that a process waits for one after another.

    Messages of one exchange, with all others at once, travel together, and small tensors in one.
    """
    gathers = 2 if way.zero else 1  # of gradients, and of parameters
    data = messages(decoder, way) * gathers + 1 if way.data > 1 else 0  # and of the loss
    return data + (4 * decoder.layers / way.stages if way.tensor > 1 else 0)


def messages(decoder: Decoder, way: Way) -> int:
    """Messages with all parameters of a process: large tensors alone, small ones in buckets."""
    sent = [(size * BYTES / way.tensor, count / way.stages) for size, count in decoder.tensors]
    alone = sum(count for size, count in sent if size >= BUCKET_BYTES)
    rest = sum(size * count for size, count in sent if size < BUCKET_BYTES)
    return math.ceil(alone) + math.ceil(rest / BUCKET_BYTES)


def pipeline_seconds(decoder: Decoder, machine: Machine, way: Way) -> float:
    """Time of the computation, of microbatches that go through stages and the links between them.

    Stages and links are stations of a line: the first microbatch passes all of them, forward and
    back, and the others follow in the time of the slowest. The last stage computes the gradients
    of one before it has the next, so that both directions of links are used at once (the order of
    Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021).
    """
    work = decoder.operations / machine.devices / machine.operations_per_second / way.microbatches
    link = 0.0
    if way.stages > 1:
        sent = decoder.border_bytes / way.data / way.microbatches
        link = machine.message_seconds + sent / rate(machine, machine.devices)
    first = way.stages * work + 2 * (way.stages - 1) * link
    return first + (way.microbatches - 1) * max(work, link)


def estimate(decoder: Decoder, machine: Machine, way: Way) -> Estimate:
    """The cost of a step."""
    share = way.tensor * way.stages
    local = [(size / way.tensor, count / way.stages) for size, count in decoder.tensors]
    summed = direct_bytes if way.tensor > 1 else sum_bytes  # on a mesh never in shards
    data_bytes = sum(summed(size, way.data) * count for size, count in local)
    if way.zero:  # gradients are scattered, parameters gathered
        data_bytes = shard_bytes(decoder.parameters / share, way.data)
    border = decoder.border_bytes / way.data
    tensor_bytes = 4 * decoder.layers / way.stages * sum_bytes(border / BYTES, way.tensor)
    stage_bytes = border * min(2, way.stages - 1)  # the inner stages send both ways

    bubble = (way.stages - 1) / way.microbatches
    seconds = pipeline_seconds(decoder, machine, way)
    seconds += exchanges(decoder, way) * machine.message_seconds
    seconds += tensor_bytes / rate(machine, way.tensor) * (1 + bubble)
    seconds += data_bytes / rate(machine, way.tensor * way.data)
    return Estimate(
        seconds, memory_bytes(decoder, way), float(data_bytes), float(tensor_bytes), stage_bytes
    )


def rate(machine: Machine, across: int) -> float:
    """Bytes a second between devices, of which `across` neighbors take part."""
    near = across <= machine.node
    return machine.near_bytes_per_second if near else machine.far_bytes_per_second


def memory_bytes(decoder: Decoder, way: Way) -> float:
    """Bytes on a device: parameters, gradients, two moments of Adam, and activations.

    In stages the activations of all microbatches are kept. With ZeRO 3 parameters are gathered for
    the whole step, so that it saves the memory between steps alone.
    """
    own = decoder.parameters / way.tensor / way.stages * BYTES
    moments = 2 * own / (way.data if way.zero else 1)
    gradients = own / (way.data if way.zero >= 2 else 1)
    kept = decoder.layers / way.stages * decoder.batch / way.data * decoder.activation_bytes
    return own + gradients + moments + kept / way.tensor


def ways(decoder: Decoder, machine: Machine) -> Iterator[Way]:
    """All divisions that fit the numbers of layers, heads and sequences."""
    for tensor in divisors(machine.devices):
        for stages in divisors(machine.devices // tensor):
            data = machine.devices // tensor // stages
            whole = decoder.heads % tensor == 0 and decoder.layers % stages == 0
            if not whole or decoder.batch % data:
                continue
            each = decoder.batch // data
            parts = divisors(each) if stages > 1 else [1]
            for microbatches in parts:
                for zero in (0, 1, 2) if data > 1 else (0,):
                    yield Way(data, tensor, stages, zero, microbatches)


def divisors(number: int) -> list[int]:
    """All divisors, the smallest first."""
    return [one for one in range(1, number + 1) if number % one == 0]
