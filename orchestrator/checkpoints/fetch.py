"""Download program: `python -m orchestrator.checkpoints.fetch`, with the listing on stdin.

The process can be killed at any byte and resumes: every file grows as a part below `.parts/<commit>` and is moved when
it is complete. (huggingface_hub's `snapshot_download` restarts a file since its PR 4228; its `http_get`, used here,
resumes.) The last line on stderr is the error; exit code 28 is a full disk.
"""

import io
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2, by version
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # no other public way to them

from orchestrator.checkpoints.hub import DISK_FULL, Listing
from orchestrator.checkpoints.remote_fetch import fetch_all, is_full
from orchestrator.core.safe_paths import CheckpointFile, open_to_append
from orchestrator.core.streams import ignore_sigpipe, take_streams, write

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def fetch(listing: Listing, directory: Path) -> None:
    """Download every missing file. Raises OSError and the errors of huggingface_hub."""
    fetch_all(listing.contents, listing.commit, directory, lambda name, part: _fetch_one(listing, name, part))


def _fetch_one(listing: Listing, name: CheckpointFile, part: Path) -> None:
    token = os.environ.get("HF_TOKEN") or False
    url = hf_hub_url(listing.repository, name, revision=listing.commit)
    location = get_hf_file_metadata(url, token=token, retry_on_errors=True).location
    headers = build_hf_headers(token=token)
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # another store has its own signature in the URL
    size = listing.files[name].size
    with open_to_append(part) as file:
        if file.seek(0, os.SEEK_END) > size:
            file.truncate(0)
        start = file.seek(0, os.SEEK_END)
        http_get(location, _CappedFile(file, size), resume_size=start, headers=headers, expected_size=size)


class _CappedFile(io.BytesIO):
    """A file that accepts only the announced number of bytes: a response body may be endless."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self.tell, self.seek, self.truncate = file.tell, file.seek, file.truncate  # type: ignore[method-assign]

    def write(self, chunk: "ReadableBuffer") -> int:
        """Append to the file. Raises OSError beyond the announced size."""
        if self._file.tell() + len(memoryview(chunk)) > self._size:
            raise OSError(f"the hub sent more than the announced {self._size} bytes")
        return self._file.write(chunk)


def main(directory: Path, listing: str) -> int:
    """Download the files of a listing (JSON); return the exit code."""
    try:
        fetch(Listing.from_json(listing), directory)
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        write(sys.stderr, f"\n{' '.join(str(error).split()) or type(error).__name__}\n")
        return DISK_FULL if is_full(error) else 1
    return 0


if __name__ == "__main__":
    take_streams()
    ignore_sigpipe()
    code = main(Path(sys.argv[1]), sys.stdin.read())
    os._exit(code)  # without waiting for running downloads
