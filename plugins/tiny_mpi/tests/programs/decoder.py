"""Train a small decoder on as many processes as there are, and print its losses and bytes sent.

    mpiexec -n 2 python decoder.py tensor 4

The first word says what is spread over processes, the second is the number of steps. On a mesh, two
rows of processes share the batch, and the processes of a row share layers. The variable
DECODER_SIZES has other sizes as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy

import tiny_mpi
from tiny_mpi import gathered
from tinycore import Tensor, TinyJit, nn
from tinycore.groups import group

RANKS = tiny_mpi.ranks()
WAY, STEPS = sys.argv[1], int(sys.argv[2])
IN_PARTS = WAY in {"zero3", "mesh-zero3"}
MESH = tiny_mpi.mesh(2, len(RANKS) // 2) if WAY.startswith("mesh") else None
SIZES = {
    "vocabulary": 32,
    "width": 32,
    "heads": 4,
    "inner": 64,
    "layers": 2,
    "batch": 8,
    "length": 16,
}
SIZES |= json.loads(os.environ.get("DECODER_SIZES", "{}"))
VOCABULARY, WIDTH, HEADS, INNER, LAYERS, BATCH, LENGTH = SIZES.values()
MICROBATCHES = 4
EPSILON = 1e-4
"""Far above the rounding of gradients, some 1e-8: below it, AdamW makes a whole step of a gradient
that is zero but for rounding, up or down as the number of processes has it."""
STAGES = [RANKS[number * len(RANKS) // LAYERS] for number in range(LAYERS)]


class Layer:
    """Attention and a gated network, each of normalized inputs and added to them."""

    def __init__(self) -> None:
        self.norm_attention, self.norm_network = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """(N, LENGTH, WIDTH) -> the same."""
        y = self.norm_attention(x)
        heads = [
            part(y).reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        attended = heads[0].scaled_dot_product_attention(heads[1], heads[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(-1, LENGTH, WIDTH))
        y = self.norm_network(x)
        return x + self.down(self.gate(y).silu() * self.up(y))


class Decoder:
    """A decoder of tokens."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = [Layer() for _ in range(LAYERS)]
        self.norm = nn.RMSNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def loss(self, tokens: Tensor) -> Tensor:
        """(N, LENGTH + 1) -> the mean loss of each next token."""
        x = gathered(self.embedding, MESH)(tokens[:, :-1])
        for layer in self.layers:
            x = (gathered(layer, MESH) if IN_PARTS else layer)(x)
        scores = gathered(self.scores, MESH)(gathered(self.norm, MESH)(x))
        return scores.sparse_categorical_crossentropy(tokens[:, 1:])


def tensor_axis(name: str) -> int | None:
    """Column, then row: heads and inner features in parts (Megatron-LM)."""
    part = name.split(".")[-2]
    return {"query": 0, "key": 0, "value": 0, "out": 1, "gate": 0, "up": 0, "down": 1}.get(part)


def pipelined(model: Decoder, tokens: Tensor) -> Tensor:
    """The loss with layers in stages, on the last device; all parts of the batch are on the way."""
    parts = [part.to(STAGES[0]) for part in tokens.chunk(MICROBATCHES)]
    values = [model.embedding(part[:, :-1]) for part in parts]
    for layer, device in zip(model.layers, STAGES, strict=True):
        values = [layer(x.to(device)).contiguous() for x in values]
    losses = [
        model.scores(model.norm(x)).sparse_categorical_crossentropy(part[:, 1:].to(STAGES[-1]))
        for x, part in zip(values, parts, strict=True)
    ]
    return Tensor.stack(*losses).mean()


def in_stages(model: Decoder) -> None:
    """Put each layer on the device of its stage, the scores with the last."""
    parts: list[Any] = [model.embedding, *model.layers, (model.norm, model.scores)]
    for part, device in zip(parts, [STAGES[0], *STAGES, STAGES[-1]], strict=True):
        for parameter in nn.state.get_parameters(part):
            parameter.to_(device)


def begun() -> tuple[Decoder, nn.optim.OptimizerGroup]:
    """The model and its optimizers, spread as asked."""
    Tensor.manual_seed(0)
    model = Decoder()
    if WAY == "pipeline":
        in_stages(model)
    else:
        for name, parameter in nn.state.get_state_dict(model).items():
            along = tensor_axis(name)
            axis = {"tensor": along, "zero3": 0}.get(WAY)
            axes = int(along == 0) if IN_PARTS else None, along  # in parts along two axes
            parameter.shard_(MESH or RANKS, axis=axes if MESH else axis)
    parameters = nn.state.get_parameters(model)
    Tensor.realize(*parameters)  # their layout stays what it is now
    optimizers = [
        nn.optim.AdamW([p for p in parameters if p.devices == place], lr=0.01, eps=EPSILON)
        for place in dict.fromkeys(parameter.devices for parameter in parameters)
    ]
    if WAY in {"zero1", "zero2"}:
        for state in [*optimizers[0].m, *optimizers[0].v]:
            state.shard_(RANKS, axis=0).realize()
    return model, nn.optim.OptimizerGroup(*optimizers)


def main() -> None:
    """Train."""
    model, optimizer = begun()

    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = pipelined(model, tokens) if WAY == "pipeline" else model.loss(tokens)
        loss.backward()
        if WAY == "zero2":
            for parameter in optimizer.params:
                if parameter.grad is not None:
                    parameter.grad.shard_(RANKS, axis=0)
        optimizer.step()
        return loss.realize()

    captured = TinyJit(step)
    numbers = numpy.random.default_rng(0)
    losses, sent, messages, times = [], 0, 0, []
    processes: Any = group()

    def total(counter: str) -> int:
        return int(sum(getattr(processes, counter, {}).values()))

    with Tensor.train():
        for _ in range(STEPS):
            content = numbers.integers(0, VOCABULARY, (BATCH, LENGTH + 1)) // 2 * 2
            tokens = Tensor(content.astype(numpy.int32))
            if WAY == "pipeline":
                tokens = tokens.to(STAGES[0])
            elif MESH:
                tokens = tokens.shard(MESH, axis=(0, None))
            else:
                tokens = tokens.shard(RANKS, axis=None if WAY == "tensor" else 0)
            tokens = tokens.realize()
            before = total("sent_bytes"), total("sent_messages")
            processes.barrier()
            began = time.perf_counter()
            loss = captured(tokens)
            processes.barrier()
            times.append(time.perf_counter() - began)
            sent, messages = total("sent_bytes") - before[0], total("sent_messages") - before[1]
            losses.append(loss.item())
    told = processes.all_gather(numpy.array(losses))
    assert (told == told[0]).all(), told
    all_sent = processes.all_gather(numpy.array(sent)).tolist()
    parameters = sum(int(parameter.numel()) for parameter in optimizer.params)
    if processes.rank == 0:
        found = {"losses": losses, "sent": all_sent, "messages": messages, "parameters": parameters}
        sys.stdout.write(json.dumps(found | {"seconds": times}) + "\n")  # in one piece


main()
