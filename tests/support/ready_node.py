"""A node of eight MI355X, as far as preflight looks: `sh` on a PATH tells of one, and runs everything else as it is.

Run as a program, this file is that `sh`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "samples"))
_LIVE = ("sockets", "user")  # sections that are this machine's own
_DISK = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/nvme0n1 30000000000 0 30000000000 0% /\n"


def path_of_ready_node(folder: Path) -> str:
    """The PATH with that `sh` in `folder`."""
    folder.mkdir()
    shell = folder / "sh"
    shell.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    shell.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def main(words: list[str]) -> int:
    """Print a survey with the recorded sections in place of this machine's; run anything else."""
    if r"\036" not in words[-1]:
        os.execv("/bin/sh", ["sh", *words])  # noqa: S606 - as it was asked for
    from machine_samples import sections

    node = sections("mi355x-healthy")
    done = subprocess.run(["/bin/sh", *words], capture_output=True, text=True, check=False)
    for name, text, code in re.findall(r"\x1e([^\n]*)\n([^\x1e\x1f]*)\x1f(\d+)", done.stdout):
        output = _DISK if name.startswith("disk ") else node.get(name) if name not in _LIVE else None
        print(f"\x1e{name}\n{text if output is None else output}\x1f{code if output is None else 0}", end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
