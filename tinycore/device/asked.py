"""The other process that `asking` starts: `python -m tinycore.device.asked FACTS PATH`.

Floor 1. Imports `asking`.
"""

import sys

from tinycore.device.asking import answer_all

if __name__ == "__main__":
    answer_all(sys.argv[1], sys.argv[2])
