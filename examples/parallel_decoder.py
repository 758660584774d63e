"""Train a small decoder of tiny_llm on several processes, in one of five ways.

    mpiexec -n 2 python examples/parallel_decoder.py data
    mpiexec -n 2 python examples/parallel_decoder.py zero
    mpiexec -n 2 python examples/parallel_decoder.py tensor
    mpiexec -n 2 python examples/parallel_decoder.py pipeline
    mpiexec -n 4 python examples/parallel_decoder.py mesh

Each way is a function of a few lines. All print the losses of one process, to rounding:
`python examples/parallel_decoder.py one`. It needs `pip install "tinycore[cpu,mpi,llm]"`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

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
    """The mean loss of each next token of sequences (n, LENGTH + 1)."""
    scores = decoder(tokens[:, :-1])
    return scores.sparse_categorical_crossentropy(tokens[:, 1:].flatten().to(scores.device))


# --- the ways: each spreads the weights, and returns the loss of some sequences

Loss = Callable[[Tensor], Tensor]


def data_parallel(decoder: Decoder) -> Loss:
    """Every process has all weights, and its share of the sequences."""
    for weight in weights_of(decoder):
        weight.shard_(RANKS)
    return lambda tokens: loss_of(decoder, tokens.shard(RANKS, axis=0))


def zero(decoder: Decoder) -> Loss:
    """Every process has its part of each weight and of the optimizer's state (ZeRO 3, FSDP)."""
    for weight in weights_of(decoder):
        weight.shard_(RANKS, axis=0)
    return lambda tokens: loss_of(tiny_mpi.gathered(decoder), tokens.shard(RANKS, axis=0))


def tensor_parallel(decoder: Decoder) -> Loss:
    """Every process has some heads, and some of the inner features, of each layer."""
    for weight, axis in tensor_axes(decoder):
        weight.shard_(RANKS, axis=axis)
    return lambda tokens: loss_of(decoder, tokens.shard(RANKS))


def mesh_parallel(decoder: Decoder) -> Loss:
    """Two rows of processes share the sequences, and the processes of a row the layers."""
    rows = tiny_mpi.mesh(2, len(RANKS) // 2)
    for weight, axis in tensor_axes(decoder):
        weight.shard_(rows, axis=(None, axis))
    return lambda tokens: loss_of(decoder, tokens.shard(rows, axis=(0, None)))


def pipeline_parallel(decoder: Decoder) -> Loss:
    """Every process has some layers; sequences go through them one behind another."""
    for number, layer in enumerate(decoder.layers):
        for weight in nn.state.get_parameters(layer):
            weight.to_(RANKS[number * len(RANKS) // LAYERS])
    for weight in nn.state.get_parameters((decoder.norm, decoder.output)):
        weight.to_(RANKS[-1])
    return lambda tokens: mean([loss_of(decoder, part.to(RANKS[0])) for part in tokens.split(1)])


WAYS = {
    "one": pipeline_parallel,
    "data": data_parallel,
    "zero": zero,
    "tensor": tensor_parallel,
    "pipeline": pipeline_parallel,
    "mesh": mesh_parallel,
}


def weights_of(decoder: Decoder) -> list[Tensor]:
    """All weights."""
    return nn.state.get_parameters(vars(decoder))


def tensor_axes(decoder: Decoder) -> list[tuple[Tensor, int | None]]:
    """All weights, and the axis along which heads or inner features lie (as in Megatron-LM)."""
    axes: dict[int, int] = {}
    for layer in decoder.layers:
        for matrix in (*layer.into_attention, *layer.into_network):
            axes |= {id(weight): 0 for weight in nn.state.get_parameters(matrix)}
        for weight in nn.state.get_parameters((layer.out_of_attention, layer.out_of_network)):
            axes[id(weight)] = 1
    return [(weight, axes.get(id(weight))) for weight in weights_of(decoder)]


def mean(losses: list[Tensor]) -> Tensor:
    """The mean, where the first loss is."""
    return Tensor.stack(*[loss.to(losses[0].device) for loss in losses]).mean()


def main() -> None:
    """Train, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("way", choices=WAYS)
    name = parser.parse_args().way
    way = WAYS[name]

    decoder = new_decoder()
    loss_of_batch = way(decoder)
    weights = weights_of(decoder)
    Tensor.realize(*weights)
    optimizer = nn.optim.OptimizerGroup(
        *[
            nn.optim.SGD([weight for weight in weights if weight.device == device], lr=0.5)
            for device in dict.fromkeys(weight.device for weight in weights)
        ]
    )
    losses = []
    with Tensor.train():
        for step in range(STEPS):
            numbers = numpy.random.default_rng(step)
            drawn = numbers.integers(0, VOCABULARY, (SEQUENCES, LENGTH + 1)) // 2 * 2
            tokens = Tensor(drawn.astype(numpy.int32), device=RANKS[0])
            optimizer.zero_grad()
            loss = loss_of_batch(tokens).backward()
            optimizer.step()
            losses.append(round(loss.item(), 5))
    if group().rank == 0:
        print(losses)
        print(f"its timeline: VIZ=1 mpiexec -n {group().size} python {sys.argv[0]} {name}")


main()
