"""Train a small decoder of tiny_llm on several processes, in one of four ways.

    mpiexec -n 2 python examples/parallel_decoder.py data
    mpiexec -n 2 python examples/parallel_decoder.py tensor
    mpiexec -n 2 python examples/parallel_decoder.py pipeline
    mpiexec -n 4 python examples/parallel_decoder.py mesh

Each way is a function of a few lines. All print the losses of one process, to rounding:
`python examples/parallel_decoder.py one`. It needs `pip install "tinycore[cpu,mpi,llm]"`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy

import tiny_mpi
from tiny_llm.decoder import Decoder, Layer
from tiny_llm.description import Attention, Description, Rotation
from tiny_llm.packing import DenseMatrix, dense
from tinycore import Tensor, nn
from tinycore.groups import group

RANKS = tiny_mpi.ranks()
WIDTH, INNER, HEADS, VOCABULARY, LAYERS = 32, 64, 4, 48, 2
SEQUENCES, LENGTH, STEPS = 4, 16, 4


def new_decoder() -> Decoder:
    """A decoder like Llama, with random weights, the same in each process."""
    numbers = numpy.random.default_rng(0)

    def matrix(rows: int, columns: int) -> DenseMatrix:
        drawn = numbers.standard_normal((rows, columns)) / columns**0.5
        return dense(drawn.astype(numpy.float32), RANKS[0])

    def ones() -> Tensor:
        return Tensor.ones(WIDTH, device=RANKS[0])

    head = WIDTH // HEADS
    attention = Attention(HEADS, HEADS, head, Rotation(1e4, head), head**-0.5)
    layers = [
        Layer(
            into_attention=tuple([matrix(WIDTH, WIDTH) for _ in range(3)]),
            out_of_attention=matrix(WIDTH, WIDTH),
            norm_attention=ones(),
            norm_network=ones(),
            into_network=(matrix(INNER, WIDTH), matrix(INNER, WIDTH)),
            out_of_network=matrix(WIDTH, INNER),
        )
        for _ in range(LAYERS)
    ]
    about = Description("llama", LAYERS, WIDTH, INNER, VOCABULARY, LENGTH, attention, 1e-5)
    return Decoder(about, matrix(VOCABULARY, WIDTH), layers, ones(), matrix(VOCABULARY, WIDTH))


def loss_of(decoder: Decoder, tokens: Tensor) -> Tensor:
    """The mean loss of each next token of one sequence (LENGTH + 1,)."""
    scores = decoder(tokens[:-1].unsqueeze(0))
    return scores.sparse_categorical_crossentropy(tokens[1:].to(scores.device))


# --- the ways: each spreads the weights, and returns the loss of some sequences

Loss = Callable[[list[Tensor]], Tensor]
DeviceLike = str | tuple[str, ...]


def data_parallel(decoder: Decoder) -> Loss:
    """Every process has all weights, and its share of the sequences."""
    for weight in nn.state.get_parameters(vars(decoder)):
        weight.shard_(RANKS)
    return loss_in_copies(decoder, RANKS)


def tensor_parallel(decoder: Decoder, ranks: tuple[str, ...] = RANKS) -> Loss:
    """Every process has some heads, and some of the inner features, of each layer."""
    for weight in nn.state.get_parameters(vars(decoder)):
        weight.shard_(ranks)
    for layer in decoder.layers:
        for weight in nn.state.get_parameters((layer.into_attention, layer.into_network)):
            weight.shard_(ranks, axis=0)
        for weight in nn.state.get_parameters((layer.out_of_attention, layer.out_of_network)):
            weight.shard_(ranks, axis=1)
    return lambda sequences: mean([loss_of(decoder, t.shard(ranks)) for t in sequences])


def mesh_parallel(decoder: Decoder) -> Loss:
    """Both: tensor parallel in each of two rows of processes, which share the sequences.

    The weights are those of the first row. The second gets them in each step, part by part, and
    sends their gradients back.
    """
    rows = [RANKS[: len(RANKS) // 2], RANKS[len(RANKS) // 2 :]]
    tensor_parallel(decoder, rows[0])
    return loss_in_copies(decoder, rows)


def loss_in_copies(decoder: Decoder, homes: Sequence[DeviceLike]) -> Loss:
    """The mean loss of sequences that are shared by copies of the decoder."""

    def loss(sequences: list[Tensor]) -> Tensor:
        copies = {home: moved(decoder, home) for home in homes}
        shares = [homes[number * len(homes) // SEQUENCES] for number in range(SEQUENCES)]
        pairs = zip(shares, sequences, strict=True)
        return mean([loss_of(copies[home], tokens.to(home)) for home, tokens in pairs])

    return loss


def pipeline_parallel(decoder: Decoder) -> Loss:
    """Every process has some layers; sequences go through them one behind another."""
    for number, layer in enumerate(decoder.layers):
        for weight in nn.state.get_parameters(layer):
            weight.to_(RANKS[number * len(RANKS) // LAYERS])
    for weight in nn.state.get_parameters((decoder.norm, decoder.output)):
        weight.to_(RANKS[-1])
    return lambda sequences: mean([loss_of(decoder, t.to(RANKS[0])) for t in sequences])


WAYS = {
    "one": pipeline_parallel,
    "data": data_parallel,
    "tensor": tensor_parallel,
    "pipeline": pipeline_parallel,
    "mesh": mesh_parallel,
}


def mean(losses: list[Tensor]) -> Tensor:
    """The mean, where the first loss is."""
    return Tensor.stack(*[loss.to(losses[0].device) for loss in losses]).mean()


def moved(value: Any, home: DeviceLike) -> Any:
    """The same nest of objects, with tensors on a device, or spread over some."""
    if isinstance(value, Tensor):
        return value.to(home)
    if isinstance(value, list | tuple):
        return type(value)(moved(each, home) for each in value)
    if isinstance(value, Decoder):
        parts = (value.embedding, value.layers, value.norm, value.output)
        return Decoder(value.about, *(moved(part, home) for part in parts))
    if isinstance(value, DenseMatrix | Layer):
        found = [moved(getattr(value, each.name), home) for each in fields(value)]
        return type(value)(*found)
    return value


def main() -> None:
    """Train, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("way", choices=WAYS)
    way = WAYS[parser.parse_args().way]

    decoder = new_decoder()
    loss_of_batch = way(decoder)
    weights = nn.state.get_parameters(vars(decoder))
    Tensor.realize(*weights)
    places = dict.fromkeys((weight.devices, weight.sharded_axis) for weight in weights)
    optimizer = nn.optim.OptimizerGroup(
        *[
            nn.optim.SGD([w for w in weights if (w.devices, w.sharded_axis) == place], lr=0.5)
            for place in places
        ]
    )
    losses = []
    with Tensor.train():
        for step in range(STEPS):
            numbers = numpy.random.default_rng(step)
            drawn = numbers.integers(0, VOCABULARY, (SEQUENCES, LENGTH + 1)) // 2 * 2
            sequences = [Tensor(row.astype(numpy.int32), device=RANKS[0]) for row in drawn]
            optimizer.zero_grad()
            loss = loss_of_batch(sequences).backward()
            optimizer.step()
            losses.append(round(loss.item(), 5))
    if group().rank == 0:
        print(losses)


main()
