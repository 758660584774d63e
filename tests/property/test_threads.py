"""Functions that threads capture at the same time: a few here, any number by
`python -m tests.fuzz.threads`."""

from __future__ import annotations

import pytest

from tests.fuzz.threads import check, program_of_threads
from tinycore import Context


@pytest.mark.slow
def test_functions_that_threads_capture_at_the_same_time_are_right() -> None:
    with Context(DEV="PYTHON"):
        for seed in range(6):
            kind, message = check(program_of_threads(seed))
            assert not kind, f"seed {seed}: {kind}\n{message}"
