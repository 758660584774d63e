"""Messages of several arrays: their number, their order, and memory of those that come early."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import finished, output

from tiny_mpi.buckets import Buckets
from tiny_mpi.calls import Call
from tinycore.errors import GroupError
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
import pathlib, sys, time, numpy
from tinycore.groups import group
processes, told = group(), pathlib.Path(sys.argv[1])
if processes.rank == 0:
    processes.post(numpy.ones(3), 1)
    for _ in range(3000):  # it neither waits for the other process nor sends
        if told.exists():
            print("received meanwhile")
            break
        time.sleep(1e-2)
else:
    processes.recv(0)
    told.touch()
processes.barrier()
"""
LATE = """
import runpy, sys
from tiny_mpi import buckets
buckets.LONGEST_SECONDS = 60  # on a busy machine gradients are more than 2 ms apart
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
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

ENDS = """
import sys, threading, time, numpy
from tinycore.groups import group

class Request:  # one whose tests give other threads time
    def __init__(self, request):
        self.request, self.threads, self.left = request, 0, numbers.integers(2, 9)

    def Test(self):
        self.threads += 1
        assert self.threads == 1, "two threads test one request"
        inside.set()
        time.sleep(1e-3)
        self.left -= 1
        self.threads -= 1
        return self.left < 0 and self.request.Test()

class Comm:
    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Isend(self, *given):
        return Request(self.comm.Isend(*given))

processes, numbers, inside = group(), numpy.random.default_rng(int(sys.argv[1])), threading.Event()
count, pause = numbers.integers(2, 12), numbers.integers(4) * 1e-3
if processes.rank == 0:
    processes.comm = Comm(processes.comm)
    for number in range(count):
        processes.send(numpy.full(3, number), 1)
    processes.post(numpy.full(3, count), 1)
    inside.clear()
    assert inside.wait(10)
    time.sleep(pause)  # now it ends, while the timer sends
else:
    for number in range(count + 1):
        assert processes.recv(0)[0] == number
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


def test_who_empties_waits_for_what_another_thread_sends() -> None:
    began, goes_on, sent = threading.Event(), threading.Event(), Sent()

    def slowly(to: int, arrays: list[Array], call: Call) -> None:
        began.set()
        assert goes_on.wait(10)
        sent(to, arrays, call)

    buckets = Buckets(slowly)
    buckets.add(1, numpy.ones(1), Call("send"))
    buckets.empty_soon()
    assert began.wait(10)
    other = threading.Thread(target=buckets.empty)
    other.start()
    other.join(0.05)

    assert other.is_alive()
    goes_on.set()
    other.join(10)
    assert len(sent) == 1


def test_a_failure_of_the_timer_is_told_at_the_next_call() -> None:
    def fails(to: int, arrays: list[Array], call: Call) -> None:
        raise ValueError("the network is gone")

    buckets = Buckets(fails)
    buckets.add(1, numpy.ones(1), Call("send", peer=1))
    buckets.empty_soon()
    assert buckets.timer is not None
    buckets.timer.join(10)

    with pytest.raises(GroupError, match=r"send to 1 .*failed before: .*the network is gone"):
        buckets.add(1, numpy.ones(1), Call("send", peer=1))
    with pytest.raises(GroupError, match="the network is gone"):
        buckets.empty()


def test_threads_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets, made = Buckets(Sent()), []

    class Slow(threading.Thread):
        def __init__(self, **given: Any) -> None:
            time.sleep(0.02)  # others come meanwhile
            super().__init__(**given)
            made.append(self)

    others = [threading.Thread(target=buckets.empty_soon) for _ in range(4)]
    monkeypatch.setattr("tiny_mpi.buckets.threading.Thread", Slow)
    for other in others:
        other.start()
    for other in others:
        other.join(10)

    assert len(made) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_ends_loses_nothing(seed: int) -> None:
    result = finished(2, ENDS, str(seed), seconds=30)

    assert result.stdout.count("done") == 2, result.stderr
    assert "Error" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [0, 1000, 1 << 20])
def test_arrays_come_as_they_were_sent(bucket: int) -> None:
    assert output(2, RANDOM, MPI_BUCKET=str(bucket)).count("same") == 2


@pytest.mark.slow
def test_an_idle_process_keeps_nothing_back(tmp_path: Path) -> None:
    assert "received meanwhile" in output(2, IDLE, str(tmp_path / "told"))


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
        return json.loads(output(2, LATE, str(DECODER), way, "4", MPI_BUCKET=str(bucket)))

    one_by_one, bundled = trained(0), trained(1 << 20)

    assert one_by_one["messages"] == apart
    assert bundled["messages"] <= apart / 2
    assert bundled["sent"] == one_by_one["sent"]
    assert bundled["losses"] == one_by_one["losses"]
