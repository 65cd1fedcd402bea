"""The download itself, a program of its own: `python -m orchestrator.checkpoint.fetch REPOSITORY COMMIT DIRECTORY`.

huggingface_hub waits for the files in flight before it lets an exception out; a process can be ended at any byte, and
what has arrived is resumed. Endpoint and token come by environment (HF_ENDPOINT, HF_TOKEN). The last line on stderr
says what went wrong; exit code 28 is a full disk.
"""

import ctypes
import errno
import os
import signal
import sys

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2, by version

from orchestrator.checkpoint.hub import FULL


def main(repository: str, commit: str, directory: str) -> int:
    """Download everything; the exit code."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the command that started us
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN") or False)
    try:
        api.snapshot_download(repository, revision=commit, local_dir=directory)
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        sys.stderr.write(f"\n{' '.join(str(error).split()) or type(error).__name__}\n")
        return FULL if _full(error) else 1
    return 0


def _full(error: BaseException | None) -> bool:
    """Whether a full disk or quota is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
