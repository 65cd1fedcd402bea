"""A fake `sh` that makes preflight see a node with eight MI355X, and runs all other commands unchanged.

This file is the program of that `sh`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "samples"))
_LIVE = ("sockets", "user")  # sections with this machine's values
_DISK = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/nvme0n1 30000000000 0 30000000000 0% /\n"


def path_of_ready_node(folder: Path) -> str:
    """Write that `sh` into `folder`; return a PATH with it."""
    folder.mkdir()
    shell = folder / "sh"
    shell.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    shell.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def main(words: list[str]) -> int:
    """Print a survey with recorded sections instead of this machine's; run any other command."""
    if r"\036" not in words[-1]:
        os.execv("/bin/sh", ["sh", *words])  # noqa: S606
    from host_samples import sections

    node = sections("mi355x-healthy")
    done = subprocess.run(["/bin/sh", *words], capture_output=True, text=True, check=False)
    for name, text, code in re.findall(r"\x1e([^\n]*)\n([^\x1e\x1f]*)\x1f(\d+)", done.stdout):
        output = _DISK if name.startswith("disk ") else node.get(name) if name not in _LIVE else None
        print(f"\x1e{name}\n{text if output is None else output}\x1f{code if output is None else 0}", end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
