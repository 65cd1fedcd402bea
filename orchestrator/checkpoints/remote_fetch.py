"""Download program: run here as a module, or sent as text to a remote host and run there with `python3 -c`.

It needs Python 3.8, the standard library, and `core/safe_paths.py`, which is sent too. The first line of stdin is the
request as JSON, with the token, which therefore appears in no command line or file. Each line of stdout is a message:

    {"nothing": …}                           no such directory, and nothing to download
    {"room": {"missing": …, "free": …}}      not enough disk space, nothing downloaded
    {"done": …}                              bytes on disk, every second
    {"error": …, "full": …}                  the failure
    {"receipt": …}                           the receipt as text, if nothing is to be downloaded
    {"file": …, "size": …, "time": …, "data": …}     each file at the end, with the data to verify it
    {"end": true}

The second line of stdin is the receipt, saved next to the checkpoint. With `here` in the request, no file and no
receipt are sent. A killed download resumes at any byte: files grow below `.parts/<commit>` and are moved when complete.
(huggingface_hub's `snapshot_download` restarts a file since its PR 4228.)
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import http.client
import json
import os
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.safe_paths import (
    CheckpointFile,
    CommitHash,
    ContentHash,
    RelativePath,
    UnsafeValueError,
    atomic_write,
    byte_count,
    join,
    move,
    open_to_append,
    path_named_in,
    remove_tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PARTIAL_FILES = RelativePath(".parts")  # below a checkpoint: partial files, and the record of complete files
_RECORD = RelativePath(".parts/fetched")  # a line for each downloaded file, see `_line`
_WORKERS = 8
_CHUNK_BYTES = 1 << 20
_MAX_FAILURES = 3  # consecutive failures without progress
_MAX_SENT_BYTES = 64 << 20  # per file sent completely; a tokenizer has 20 MB
_TICK = 1.0
_RETRYABLE = (408, 425, 429)  # besides 5xx
_OUTPUT_LOCK = threading.Lock()


def fetch_all(
    files: Mapping[CheckpointFile, tuple[int, ContentHash]],
    commit: CommitHash,
    directory: Path,
    fetch_one: Callable[[CheckpointFile, Path], None],
) -> None:
    """Download every missing file; `files` has sizes and content hashes, `fetch_one` downloads to a partial file.

    Raises RuntimeError if another download runs in this directory, UnsafeValueError for a link to the outside, and the
    errors of `fetch_one`.
    """
    parts = directory / PARTIAL_FILES
    parts.mkdir(parents=True, exist_ok=True)
    with open_to_append(join(directory, _RECORD)) as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RuntimeError("another `deploy stage` is running in this directory") from error
        record.seek(0)
        fetched = frozenset(record.read().decode(errors="replace").split("\n"))
        missing = [name for name in files if not _is_complete(files[name], directory, name, fetched)]
        pool = ThreadPoolExecutor(_WORKERS)
        jobs = {pool.submit(_fetch, name, commit, directory, fetch_one): name for name in missing}
        for job in as_completed(jobs):
            job.result()
            record.write((_line(files[jobs[job]][1], directory, jobs[job]) + "\n").encode())
            record.flush()
    remove_tree(parts / commit, within=parts)


def arrived_bytes(files: Mapping[CheckpointFile, tuple[int, ContentHash]], commit: CommitHash, directory: Path) -> int:
    """Return the bytes on disk, of complete and partial files."""
    return sum(
        size if _size(directory / name) == size else _size(directory / _partial_path(name, commit))
        for name, (size, _) in files.items()
    )


def _partial_path(name: CheckpointFile, commit: CommitHash) -> RelativePath:
    return RelativePath(f"{PARTIAL_FILES}/{commit}/{name}.part")


def is_full(error: BaseException | None) -> bool:
    """Return whether a full disk or quota caused the error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _fetch(
    name: CheckpointFile, commit: CommitHash, directory: Path, fetch_one: Callable[[CheckpointFile, Path], None]
) -> None:
    partial_file, target = join(directory, _partial_path(name, commit)), join(directory, name)
    partial_file.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    fetch_one(name, partial_file)
    move(partial_file, target)


def _is_complete(file: tuple[int, ContentHash], directory: Path, name: CheckpointFile, fetched: frozenset[str]) -> bool:
    """Return whether a file equals the hub's; hash an unrecorded or modified file."""
    path, (size, identity) = join(directory, name), file
    if not path.is_file() or path.stat().st_size != size:
        return False
    return _line(identity, directory, name) in fetched or _identity(path, size, large=len(identity) == 64) == identity


def _identity(path: Path, size: int, *, large: bool) -> str:
    """Return the content hash in the hub's form: sha256 of a large file (git-lfs), git's sha1 of others."""
    digest = hashlib.sha256() if large else hashlib.sha1(f"blob {size}\0".encode())  # noqa: S324 - git's
    with path.open("rb") as content:
        for chunk in iter(lambda: content.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


def _line(identity: ContentHash, directory: Path, name: CheckpointFile) -> str:
    return f"{identity} {(directory / name).stat().st_mtime_ns} {name}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that sends no token to another host, as the URL is signed."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: ANN401
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            redirected.remove_header("Authorization")
        return redirected


def _download(url: str, headers: Mapping[str, str], partial_file: Path, size: int) -> None:
    """Complete a partial file; retry while bytes arrive. Raises OSError."""
    failures = 0
    while True:
        before = _size(partial_file)
        try:
            _append(url, headers, partial_file, size)
        except (OSError, http.client.HTTPException) as error:
            failures = 0 if _size(partial_file) > before else failures + 1
            permanent = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in _RETRYABLE
            if failures == _MAX_FAILURES or is_full(error) or permanent:
                raise
            time.sleep(failures)
        else:
            return


def _append(url: str, headers: Mapping[str, str], partial_file: Path, size: int) -> None:
    with open_to_append(partial_file) as file:
        if file.seek(0, os.SEEK_END) > size:
            file.truncate(0)
        start = file.seek(0, os.SEEK_END)
        if start == size:
            return
        ranged = {"Range": f"bytes={start}-"} if start else {}
        request = urllib.request.Request(url, headers={**headers, **ranged})  # noqa: S310 - the hub's address
        with urllib.request.build_opener(_Redirects).open(request, timeout=60) as response:
            if start and response.status != 206:  # the server ignored the range
                file.truncate(0)
                start = 0
            while chunk := response.read(min(_CHUNK_BYTES, size + 1 - start)):  # at most one byte too many
                start += file.write(chunk)
    if _size(partial_file) != size:
        raise OSError(f"{partial_file.stem} ended after {_size(partial_file)} of {size} bytes")


def _file_records(directory: Path) -> Iterator[dict[str, object]]:
    """Yield every file with the data to verify it: small files complete, weights as their header."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        try:
            name = CheckpointFile(path.relative_to(directory).as_posix())
        except UnsafeValueError:  # a partial file, or git's
            continue
        status = path.stat()
        with path.open("rb") as file:
            first = file.read(8)
            data = first + file.read(_sent_bytes(path, status.st_size, first) - 8)
        yield {
            "file": name,
            "size": status.st_size,
            "time": status.st_mtime_ns,
            "data": base64.b64encode(data).decode(),
        }


def _sent_bytes(path: Path, size: int, first: bytes) -> int:
    """Return the number of bytes of a file to send, at least 8."""
    if path.suffix == ".safetensors":
        return 8 + min(int.from_bytes(first, "little"), _MAX_SENT_BYTES)
    return max(size, 8) if size <= _MAX_SENT_BYTES else 8


def _send(**message: object) -> None:
    """Send a message; exit if the receiver is gone."""
    try:
        with _OUTPUT_LOCK:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()
    except OSError:
        os._exit(1)


def _deploy_home() -> Path:
    """Return `deploy`'s home on this host, like `orchestrator.core.paths`."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111
    return Path(os.environ.get("DEPLOY_HOME") or os.path.join(data, "deploy"))  # noqa: PTH118


def _receipt(directory: Path) -> Path:
    """Return the path of a checkpoint's receipt, like `receipt.py`."""
    return directory.with_name(directory.name + ".receipt.json")


def _stage(request: dict[str, Any], directory: Path) -> None:
    files = {CheckpointFile(name): (byte_count(size), ContentHash(h)) for name, (size, h) in request["files"].items()}
    commit = CommitHash(request["commit"])
    directory.mkdir(parents=True, exist_ok=True)
    missing = sum(size for size, _ in files.values()) - arrived_bytes(files, commit, directory)
    free = shutil.disk_usage(directory).free
    if missing > free:
        _send(room={"missing": missing, "free": free})
        os._exit(0)
    ended = threading.Event()

    def report_progress() -> None:
        while not ended.wait(_TICK):
            _send(done=arrived_bytes(files, commit, directory))

    def fetch_one(name: CheckpointFile, partial_file: Path) -> None:
        _download(f"{request['address']}/{urllib.parse.quote(name)}", request["headers"], partial_file, files[name][0])

    threading.Thread(target=report_progress, daemon=True).start()
    fetch_all(files, commit, directory, fetch_one)
    ended.set()
    _send(done=arrived_bytes(files, commit, directory))


def main() -> None:
    """Execute the request in the first line of stdin; save the receipt in the second."""
    request = json.loads(sys.stdin.readline())
    try:
        directory = path_named_in(_deploy_home(), request["directory"])
        if request["files"]:
            _stage(request, directory)
        elif not directory.is_dir():
            _send(nothing=str(directory))
            os._exit(0)
        elif _receipt(directory).is_file():
            _send(receipt=_receipt(directory).read_text())
        for record in () if request.get("here") else _file_records(directory):
            _send(**record)
        _send(end=True, directory=str(directory))
        if receipt := sys.stdin.readline():
            atomic_write(_receipt(directory), receipt)
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
        _send(error=" ".join(str(error).split()) or type(error).__name__, full=is_full(error))
    sys.stdout.flush()
    os._exit(0)  # without waiting for running downloads


if __name__ == "__main__":
    main()
