"""Messages of several arrays: their number, their order, and memory of those that come early."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import output

from tiny_mpi.buckets import Buckets
from tiny_mpi.calls import Call
from tinycore.groups import Array

DECODER = Path(__file__).parent / "programs" / "decoder.py"

RANDOM = """
import numpy, sys
from tinycore.groups import group
processes, peer = group(), 1 - group().rank
for seed in range(200):
    numbers = numpy.random.default_rng(seed)
    sizes = [tuple(numbers.integers(0, 60, numbers.integers(0, 4))) for _ in range(6)]
    kinds = [numpy.dtype(numbers.choice(["f4", "f8", "u1", "i2", "?"])) for _ in range(6)]
    sent = [numpy.asarray(numbers.random(s) * 9, k) for s, k in zip(sizes, kinds)]
    for x in sent:
        processes.post(x, peer) if numbers.integers(3) else processes.send(x, peer)
    for x in sent:
        found = processes.recv(peer)
        assert found.dtype == x.dtype and found.shape == x.shape, (found, x)
        numpy.testing.assert_array_equal(found, x)
assert processes.early_bytes == 0
print("same")
"""
IDLE = """
import time, numpy
from tinycore.groups import group
processes = group()
if processes.rank == 0:
    processes.post(numpy.ones(3), 1)
    time.sleep(3)  # it neither waits nor sends
else:
    began = time.perf_counter()
    processes.recv(0)
    print(time.perf_counter() - began)
processes.barrier()
"""
EARLY = """
import sys, numpy
from tinycore.groups import group
processes, peer = group(), 1 - group().rank
content, most = numpy.zeros(1 << 18, numpy.uint8), 0
for _ in range(40):
    processes.send(content, peer)
for left in range(40, 0, -1):
    processes.poll(peer, left)
    most = max(most, processes.early_bytes)
    processes.recv(peer)
sys.stdout.write(str(most) + chr(10))
"""
EACH_WAITS = """
import numpy
from tinycore.groups import group
from tiny_mpi import mpi_group
mpi_group.MOST_WAITING_BYTES = 1 << 16
processes, peer = group(), 1 - group().rank
processes.poll(peer, 40)
for _ in range(40):
    processes.send(numpy.zeros(1 << 15, numpy.uint8), peer)
for _ in range(40):
    processes.recv(peer)
print("done")
"""


class Sent(list[tuple[int, list[Array]]]):
    """The messages that were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def __call__(self, to: int, arrays: list[Array], call: Call) -> None:
        self.append((to, arrays))
        self.event.set()


def test_a_bucket_is_one_message_in_its_order() -> None:
    sent = Sent()
    buckets = Buckets(sent)
    first, second, other = (numpy.ones(n) for n in (1, 2, 3))

    assert buckets.add(1, first, Call("send")) == 8
    assert buckets.add(2, other, Call("send")) == 24
    assert buckets.add(1, second, Call("send")) == 24
    buckets.empty()
    buckets.empty()

    assert sent == [(1, [first, second]), (2, [other])]


def test_what_nobody_empties_is_sent_soon() -> None:
    sent = Sent()
    buckets = Buckets(sent)

    for number in range(2):
        sent.event.clear()
        buckets.add(1, numpy.ones(1), Call("send"))
        buckets.empty_soon()
        assert sent.event.wait(10)
        assert len(sent) == number + 1


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [0, 1000, 1 << 20])
def test_arrays_come_as_they_were_sent(bucket: int) -> None:
    assert output(2, RANDOM, MPI_BUCKET=str(bucket)).count("same") == 2


@pytest.mark.slow
def test_an_idle_process_keeps_nothing_back() -> None:
    assert float(output(2, IDLE)) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("early", [1 << 18, 1 << 20, 1 << 30])
def test_memory_of_what_comes_early_is_bounded(early: int) -> None:
    found = [int(line) for line in output(2, EARLY, MPI_EARLY=str(early)).split()]

    assert max(found) <= min(early + (1 << 18), 40 << 18)
    if early >= 40 << 18:
        assert max(found) > 1 << 18


@pytest.mark.slow
def test_processes_that_wait_to_send_receive_more() -> None:
    assert output(2, EACH_WAITS, MPI_EARLY="1").count("done") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("way", "apart"), [("data", 23), ("zero1", 44)])
def test_gradients_share_messages(way: str, apart: int) -> None:
    def trained(bucket: int) -> Any:
        return json.loads(output(2, DECODER, way, "4", MPI_BUCKET=str(bucket)))

    one_by_one, bundled = trained(0), trained(1 << 20)

    assert one_by_one["messages"] == apart
    assert bundled["messages"] <= apart / 2  # as many as fit into 2 ms
    assert bundled["sent"] == one_by_one["sent"]
    assert bundled["losses"] == one_by_one["losses"]
