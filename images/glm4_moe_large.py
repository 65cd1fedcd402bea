"""Make the checkpoint of `glm4_moe_mtp.py` with twice the layers and twice the experts: 23 GB, for several GPUs.

Run with the engine's Python: `python glm4_moe_large.py DIRECTORY`.
"""

import sys
from pathlib import Path

from glm4_moe_mtp import LARGE, write

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: glm4_moe_large.py DIRECTORY")
    write(Path(sys.argv[1]).absolute(), size=LARGE)
