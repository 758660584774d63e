"""The pause of the cycle collector."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from tinycore._collector import without_collecting


def test_the_last_to_leave_turns_it_on_again() -> None:
    assert gc.isenabled()
    with without_collecting:
        with without_collecting:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_turns_it_on_again() -> None:
    with pytest.raises(ZeroDivisionError), without_collecting:
        _ = 1 / 0
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with without_collecting:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_leave_it_off_for_one_another() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_collecting:
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    with without_collecting:
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_collects_again() -> None:
    with without_collecting:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() and not without_collecting.inside else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
