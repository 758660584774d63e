"""`tinycore plan`: sizes that are known, bytes that are counted, and choices that make sense."""

from __future__ import annotations

import argparse

import pytest

from tiny_mpi.plan import Decoder, Machine, Way, estimate, sum_bytes, ways
from tiny_mpi.plan_command import add

LLAMA = Decoder(32, 4096, 11008, 32, 32000, 4096, 1024)
SMALL = Decoder(2, 32, 64, 4, 32, 16, 8)
"""The decoder of tests/programs/decoder.py."""
CARDS = Machine(1024, 4e14, 80e9, 8, 4.5e11, 5e10)


def machine(devices: int) -> Machine:
    return Machine(devices, 1e12, 1e12, devices, 1e10, 1e9)


def test_the_parameters_of_known_decoders() -> None:
    assert LLAMA.parameters == 6_738_415_616  # Llama 2 7B
    assert SMALL.parameters == 22_688


@pytest.mark.parametrize(
    ("way", "sent"),
    [
        (Way(data=2), (90_752, 0, 0)),
        (Way(data=4), (3 * 90_752, 0, 0)),
        (Way(data=2, zero=1), (90_752, 0, 0)),
        (Way(data=4, zero=2), (136_128, 0, 0)),
        (Way(tensor=2), (0, 131_072, 0)),
        (Way(stages=2, microbatches=4), (0, 0, 16_384)),
    ],
)
def test_bytes_are_those_that_test_decoder_counts(way: Way, sent: tuple[int, int, int]) -> None:
    devices = way.data * way.tensor * way.stages
    cost = estimate(SMALL, machine(devices), way)

    assert cost.data_bytes == sent[0]
    assert cost.stage_bytes == sent[2]
    if way.tensor > 1:
        assert cost.tensor_bytes == sent[1]


def test_large_sums_go_in_shards() -> None:
    assert sum_bytes(1 << 20, 4) == 2 * 3 / 4 * (1 << 20) * 4
    assert sum_bytes(1 << 10, 4) == 3 * (1 << 10) * 4
    assert sum_bytes(1 << 20, 1) == 0


def test_messages_take_time_beside_their_bytes() -> None:
    """Gradients of 90,752 bytes are 6 exchanges, with ZeRO parameters too, and the loss is one."""
    slow = Machine(4, 1e30, 1e12, 4, 1e30, 1e30, message_seconds=0.5)

    assert estimate(SMALL, slow, Way(data=4)).seconds == pytest.approx(7 * 0.5)
    assert estimate(SMALL, slow, Way(data=4, zero=1)).seconds == pytest.approx(13 * 0.5)
    assert estimate(SMALL, slow, Way(tensor=4)).seconds == pytest.approx(4 * 2 * 0.5)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 8, 64])
def test_a_pipeline_with_free_links_has_the_bubble_of_gpipe(stages: int, microbatches: int) -> None:
    free = Machine(stages, 1e12, 1e12, stages, 1e30, 1e30)
    each = LLAMA.operations / stages / 1e12

    found = estimate(LLAMA, free, Way(stages=stages, microbatches=microbatches)).seconds

    assert found == pytest.approx(each * (1 + (stages - 1) / microbatches))


def test_a_pipeline_waits_for_its_links() -> None:
    """Stages are stations: the first of four passes both links, the others wait for one."""
    slow = Machine(2, 1e30, 1e12, 2, 1e30, 1e30, message_seconds=0.5)

    found = estimate(SMALL, slow, Way(stages=2, microbatches=4)).seconds

    assert found == pytest.approx((2 + 3) * 0.5)


def test_rows_of_a_mesh_add_up_at_once() -> None:
    wide = Decoder(2, 1024, 4096, 8, 256, 16, 8)

    flat, mesh = (estimate(wide, machine(8), way) for way in (Way(data=8), Way(4, 2)))

    assert flat.data_bytes < 2 * wide.parameters * 4
    assert mesh.data_bytes == 3 * wide.parameters / 2 * 4


def test_one_device_sends_nothing_and_takes_the_time_of_its_operations() -> None:
    cost = estimate(SMALL, machine(1), Way())

    assert (cost.data_bytes, cost.tensor_bytes, cost.stage_bytes) == (0, 0, 0)
    assert cost.seconds == SMALL.operations / 1e12


def test_ways_use_all_devices_and_fit_the_decoder() -> None:
    found = list(ways(LLAMA, CARDS))

    assert found
    for way in found:
        assert way.data * way.tensor * way.stages == 1024
        assert 32 % way.tensor == 32 % way.stages == 1024 % (way.data * way.microbatches) == 0


def test_tensor_parallel_over_the_network_costs_more_than_in_a_node() -> None:
    near, far = (estimate(LLAMA, CARDS, Way(1024 // n, n, zero=1)) for n in (8, 16))

    assert far.seconds > 2 * near.seconds


@pytest.mark.parametrize(("memory", "status"), [("80e9", 0), ("1e6", 1)])
def test_the_command(memory: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    sizes = "--layers 32 --width 4096 --inner 11008 --heads 32 --vocabulary 32000 --length 2048"
    rates = f"--batch 512 --devices 1024 --node 8 --flops 4e14 --memory {memory}"
    chosen = parser.parse_args(f"plan {sizes} {rates} --near 4.5e11 --far 5e10".split())

    assert chosen.run(chosen) == status
    told = capsys.readouterr().out
    assert "6,738,415,616 parameters" in told
    assert ("  GB held  GB sent: data  tensor  stages\n" in told) == (status == 0)
