"""The conformance suite: everything that tinycore promises of a device, and expects of it.

The author of a backend writes one file:

    from tiny_testing.suite import *

    DEVICE = "TOY"
    SKIPS = Skips(float64="the language has no 64-bit floats")

and runs it by `pytest -p tiny_testing.plugin`, or the same without pytest by `tinycore
conformance TOY`. A capability that the backend declares is a claim to prove; see `judge.py`.
"""

from __future__ import annotations

from tiny_testing.suite.case import CASES, Level, NotApplicable
from tiny_testing.suite.contract import *  # noqa: F403
from tiny_testing.suite.exchange import *  # noqa: F403
from tiny_testing.suite.images import *  # noqa: F403
from tiny_testing.suite.judge import Skips
from tiny_testing.suite.kernels import *  # noqa: F403
from tiny_testing.suite.lanes import *  # noqa: F403
from tiny_testing.suite.memory import *  # noqa: F403
from tiny_testing.suite.models import *  # noqa: F403
from tiny_testing.suite.operations import *  # noqa: F403
from tiny_testing.suite.order import *  # noqa: F403
from tiny_testing.suite.performance import *  # noqa: F403
from tiny_testing.suite.queues import *  # noqa: F403
from tiny_testing.suite.scratch import *  # noqa: F403
from tiny_testing.suite.shared import *  # noqa: F403
from tiny_testing.suite.subject import Subject
from tiny_testing.suite.tensors import *  # noqa: F403
from tiny_testing.suite.units import *  # noqa: F403
from tiny_testing.suite.varying import *  # noqa: F403

__all__ = ["Level", "NotApplicable", "Skips", "Subject", *CASES]  # noqa: PLE0604
