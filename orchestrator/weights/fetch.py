"""The download itself, a program of its own: `python -m orchestrator.weights.fetch`, with the listing on stdin.

A process can be ended at any byte, and what has arrived is kept: every file grows as a part below `.parts/<commit>` and
takes its place when it is whole. (huggingface_hub's own `snapshot_download` begins a file anew since its PR 4228; its
`http_get`, used here, resumes.) The last line on stderr says what went wrong; exit code 28 is a full disk.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2, by version
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # no other public way to them

from orchestrator.weights.hub import FULL, PARTS, HubFile, Listing

_WORKERS = 8
_RECORD = "fetched"  # below PARTS: a line for each file that was fetched, see `_line`
_PIECE = 1 << 22


def fetch(listing: Listing, directory: Path) -> None:
    """Fetch every file that is not here yet. Raises OSError and what huggingface_hub raises."""
    path = directory / PARTS / _RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", buffering=1) as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RuntimeError("another `deploy stage` is at work in this directory") from error
        record.seek(0)
        fetched = frozenset(record.read().splitlines())
        missing = [name for name in listing.files if not _is_here(listing.files[name], directory, name, fetched)]
        pool = ThreadPoolExecutor(_WORKERS)
        jobs = {pool.submit(_fetch_one, listing, name, directory): name for name in missing}
        for job in as_completed(jobs):
            job.result()
            record.write(_line(listing.files[jobs[job]], directory, jobs[job]) + "\n")
    shutil.rmtree(directory / PARTS / listing.commit, ignore_errors=True)


def _fetch_one(listing: Listing, name: str, directory: Path) -> None:
    token = os.environ.get("HF_TOKEN") or False
    url = hf_hub_url(listing.repository, name, revision=listing.commit)
    location = get_hf_file_metadata(url, token=token, retry_on_errors=True).location
    headers = build_hf_headers(token=token)
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # a store that is not the hub has its own signature in the address
    part, target = directory / PARTS / listing.commit / f"{name}.part", directory / name
    part.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    size = listing.files[name].size
    with part.open("ab") as file:
        if file.tell() > size:
            file.truncate(0)
        http_get(location, file, resume_size=file.tell(), headers=headers, expected_size=size)
    part.replace(target)


def _is_here(file: HubFile, directory: Path, name: str, fetched: frozenset[str]) -> bool:
    """Whether a file is the hub's: one that was not fetched, or changed since, is hashed; a size proves little."""
    path = directory / name
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return _line(file, directory, name) in fetched or _identity(path, file) == file.identity


def _identity(path: Path, file: HubFile) -> str:
    """What the hub knows a file by: the sha256 of a large one (git-lfs), git's own sha1 of any other."""
    large = len(file.identity) == 64
    digest = hashlib.sha256() if large else hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while piece := content.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _line(file: HubFile, directory: Path, name: str) -> str:
    return f"{file.identity} {(directory / name).stat().st_mtime_ns} {name}"


def main(directory: Path, listing: str) -> int:
    """Fetch what a listing, as JSON, names; the exit code."""
    try:
        fetch(Listing.from_json(listing), directory)
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
    code = main(Path(sys.argv[1]), sys.stdin.read())
    sys.stderr.flush()
    os._exit(code)  # without waiting for the downloads that are still under way
