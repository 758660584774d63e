"""Entry point of the probing subprocess: `python -m tinycore.device.probe_process FACTS PATH`.

Floor 1. Imports `probing`.
"""

import sys

from tinycore.device.probing import answer_all

if __name__ == "__main__":
    answer_all(sys.argv[1], sys.argv[2])
