"""The conformance suite: everything that tinycore promises of a device, and expects of it.

Floor 6. The author of a backend writes one file:

    from tinycore.testing.suite import *

    DEVICE = "TOY"
    SKIPS = Skips(float64="the language has no 64-bit floats")

and runs it by `pytest -p tinycore.testing.plugin`, or the same without pytest by `tinycore
conformance TOY`. A capability that the backend declares is a claim to prove; see `judge.py`.
"""

from __future__ import annotations

from tinycore.testing.suite.case import CASES, Level, NotApplicable
from tinycore.testing.suite.contract import *  # noqa: F403
from tinycore.testing.suite.exchange import *  # noqa: F403
from tinycore.testing.suite.images import *  # noqa: F403
from tinycore.testing.suite.judge import Skips
from tinycore.testing.suite.kernels import *  # noqa: F403
from tinycore.testing.suite.lanes import *  # noqa: F403
from tinycore.testing.suite.memory import *  # noqa: F403
from tinycore.testing.suite.models import *  # noqa: F403
from tinycore.testing.suite.operations import *  # noqa: F403
from tinycore.testing.suite.order import *  # noqa: F403
from tinycore.testing.suite.performance import *  # noqa: F403
from tinycore.testing.suite.queues import *  # noqa: F403
from tinycore.testing.suite.scratch import *  # noqa: F403
from tinycore.testing.suite.shared import *  # noqa: F403
from tinycore.testing.suite.subject import Subject
from tinycore.testing.suite.tensors import *  # noqa: F403
from tinycore.testing.suite.units import *  # noqa: F403
from tinycore.testing.suite.varying import *  # noqa: F403

__all__ = ["Level", "NotApplicable", "Skips", "Subject", *CASES]  # noqa: PLE0604
