"""Make the checkpoint of `glm4_moe_mtp.py` with an MTP layer whose drafts are always wrong.

The check `speculative decoding` of the smoke test fails on it.

Run with the engine's Python: `python glm4_moe_wrong_mtp.py DIRECTORY`.
"""

import sys
from pathlib import Path

from glm4_moe_mtp import write

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: glm4_moe_wrong_mtp.py DIRECTORY")
    write(Path(sys.argv[1]).absolute(), right=False)
