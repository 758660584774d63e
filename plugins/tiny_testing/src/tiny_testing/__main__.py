"""Test a device: `python -m tiny_testing --device CPU --level 2 --json out.json`.

The same as `tinycore conformance CPU`.
"""

from __future__ import annotations

import argparse
import sys

from tiny_testing.suite.command import add_options, run
from tinycore.errors import TinycoreError


def main() -> int:
    """Run the suite; 0 when the device conforms, 1 when not, 2 when it cannot be tested."""
    parser = argparse.ArgumentParser(prog="python -m tiny_testing", description=__doc__)
    parser.add_argument("--device", default="", help="as in DEV; the default device if not given")
    add_options(parser)
    try:
        return run(parser.parse_args())
    except TinycoreError as error:
        print(f"tiny_testing: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
