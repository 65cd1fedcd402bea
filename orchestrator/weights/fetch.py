"""The download itself, a program of its own: `python -m orchestrator.weights.fetch`, with the listing on stdin.

A process can be ended at any byte, and what has arrived is kept: every file grows as a part below `.parts/<commit>` and
takes its place when it is whole. (huggingface_hub's own `snapshot_download` begins a file anew since its PR 4228; its
`http_get`, used here, resumes.) The last line on stderr says what went wrong; exit code 28 is a full disk.
"""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2, by version
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # no other public way to them

from orchestrator.weights.fetch_there import fetch_all, is_full
from orchestrator.weights.hub import FULL, Listing


def fetch(listing: Listing, directory: Path) -> None:
    """Fetch every file that is not here yet. Raises OSError and what huggingface_hub raises."""
    fetch_all(listing.contents, listing.commit, directory, lambda name, part: _fetch_one(listing, name, part))


def _fetch_one(listing: Listing, name: str, part: Path) -> None:
    token = os.environ.get("HF_TOKEN") or False
    url = hf_hub_url(listing.repository, name, revision=listing.commit)
    location = get_hf_file_metadata(url, token=token, retry_on_errors=True).location
    headers = build_hf_headers(token=token)
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # a store that is not the hub has its own signature in the address
    size = listing.files[name].size
    with part.open("ab") as file:
        if file.tell() > size:
            file.truncate(0)
        http_get(location, file, resume_size=file.tell(), headers=headers, expected_size=size)


def main(directory: Path, listing: str) -> int:
    """Fetch what a listing, as JSON, names; the exit code."""
    try:
        fetch(Listing.from_json(listing), directory)
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        sys.stderr.write(f"\n{' '.join(str(error).split()) or type(error).__name__}\n")
        return FULL if is_full(error) else 1
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.stdin.read())
    sys.stderr.flush()
    os._exit(code)  # without waiting for the downloads that are still under way
