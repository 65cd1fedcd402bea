"""Client of the hub: the commit of a revision, and the files of a repository with their sizes."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import huggingface_hub  # lazy: names are imported at first use, which takes 0.5 s

from orchestrator.core.errors import CheckpointError, HostError
from orchestrator.core.safe_paths import (
    CheckpointFile,
    CommitHash,
    ContentHash,
    RepositoryId,
    UnsafeValueError,
    byte_count,
)
from orchestrator.core.secrets import Secret

if TYPE_CHECKING:
    from huggingface_hub.hf_api import HfApi, RepoFile, RepoFolder

_ABBREVIATED: Final = re.compile(r"[0-9a-f]{7,39}")  # commit
_FULL_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S: Final = 30.0  # for one response
_MAX_FILES: Final = 100_000  # per repository: the hub's recommended maximum


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A hub and a token; `endpoint` None is huggingface.co."""

    endpoint: str | None
    token: Secret | None


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """Size in bytes and content hash in hex: sha256 (git-lfs) or git's sha1."""

    size: int
    identity: ContentHash


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One commit of a repository: its files by path."""

    repository: RepositoryId
    commit: CommitHash
    files: Mapping[CheckpointFile, HubFile]
    gated: bool = False  # requires accepted terms and a token

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(file.size for file in self.files.values())

    @property
    def contents(self) -> dict[CheckpointFile, tuple[int, ContentHash]]:
        """Size and identity by path, as plain data."""
        return {path: (file.size, file.identity) for path, file in self.files.items()}


def list_files(repository: str, revision: str | None, hub: Hub) -> Listing:
    """List the files of a repository at a branch, tag or (abbreviated) commit.

    Raises CheckpointError if the repository is missing or not accessible; HostError for other failures, including a
    malformed response or an unsafe file name.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # otherwise it logs each retry
    # False, not None: None would use the token of `hf auth login`.
    api = huggingface_hub.HfApi(endpoint=hub.endpoint, token=hub.token.reveal() if hub.token else False)
    try:
        name = RepositoryId(repository)
    except UnsafeValueError as error:
        hint = "a repository is `org/name`, in a profile `model.checkpoint.path`; not a URL"
        raise CheckpointError(str(error), hint=hint) from error
    try:
        requested = _full_revision(api, name, revision)
        info = api.repo_info(name, revision=requested)
        commit = CommitHash(info.sha)
        if requested is not None and _FULL_COMMIT.fullmatch(requested) and commit != requested:
            raise UnsafeValueError(f"commit `{requested}` requested, `{commit}` returned")
        files = _files(api.list_repo_tree(name, recursive=True, revision=commit))
    except huggingface_hub.errors.GatedRepoError as error:
        hint = "accept its terms on the hub, then `export HF_TOKEN=…` with that account's token"
        raise CheckpointError(f"`{repository}` is gated and this token has no access", hint=hint) from error
    except huggingface_hub.errors.RevisionNotFoundError as error:
        hint = "correct the revision, in a profile `model.checkpoint.revision`"
        raise CheckpointError(f"`{repository}` has no revision `{revision}`", hint=hint) from error
    except huggingface_hub.errors.RepositoryNotFoundError as error:
        hint = "correct its name, in a profile `model.checkpoint.path`; a private repository needs `export HF_TOKEN=…`"
        raise CheckpointError(f"no repository `{repository}` found that this token can read", hint=hint) from error
    except (OSError, huggingface_hub.errors.HTTPError) as error:  # type: ignore[attr-defined]  # of httpx or httpx2, by version
        reason = str(error).partition("\n")[0] or type(error).__name__
        hint = (
            "try again; `HF_ENDPOINT` names a mirror; a local checkpoint is served with "
            "`--set model.checkpoint.source=local --set model.checkpoint.path=DIRECTORY`"
        )
        raise HostError(f"cannot reach the hub: {reason}", location=api.endpoint, hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # from unexpected JSON
        reason = str(error) if isinstance(error, UnsafeValueError) else "malformed response"
        hint = "`HF_ENDPOINT` names the hub: correct it, or unset it for huggingface.co"
        raise HostError(f"cannot use the hub: {reason}", location=api.endpoint, hint=hint) from error
    return Listing(repository=name, commit=commit, files=files, gated=bool(getattr(info, "gated", False)))


def _files(tree: "Iterable[RepoFile | RepoFolder]") -> dict[CheckpointFile, HubFile]:
    """Validate the hub's list of files. Raises UnsafeValueError."""
    files: dict[CheckpointFile, HubFile] = {}
    for number, entry in enumerate(tree):
        if number == _MAX_FILES:
            raise UnsafeValueError(f"more than {_MAX_FILES} files and folders listed")
        if isinstance(entry, huggingface_hub.RepoFile):
            identity = entry.lfs.sha256 if entry.lfs else entry.blob_id
            files[CheckpointFile(entry.path)] = HubFile(size=byte_count(entry.size), identity=ContentHash(identity))
    if not files:
        raise UnsafeValueError("no files listed")
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents}
    if both := sorted(folders & files.keys()):
        raise UnsafeValueError(f"`{both[0]}` listed as a file and as a folder")
    return files


def _full_revision(api: "HfApi", repository: str, revision: str | None) -> str | None:
    """Expand an abbreviated commit, which the hub does not accept; return other revisions unchanged."""
    if revision is None or not _ABBREVIATED.fullmatch(revision):
        return revision
    api.repo_info(repository)  # fails immediately if the hub is down; a list is retried for 23 s
    commits = [CommitHash(entry.commit_id) for entry in api.list_repo_commits(repository)]
    return next((commit for commit in commits if commit.startswith(revision)), revision)


def download_url(listing: Listing, hub: Hub) -> tuple[str, dict[str, str]]:
    """Return the base URL of the files, `<url>/<path>`, and the request headers for a plain client."""
    file = huggingface_hub.hf_hub_url(listing.repository, "x", revision=listing.commit, endpoint=hub.endpoint)
    token = hub.token.reveal() if hub.token else False
    headers = huggingface_hub.utils.build_hf_headers(token=token)  # type: ignore[attr-defined]
    return file.removesuffix("/x"), dict(headers)


class HubFiles:
    """The files of one commit of a repository."""

    headers_are_cheap = False

    def __init__(self, listing: Listing, hub: Hub) -> None:
        """Create a reader, without a request."""
        self.location = f"{listing.repository}@{listing.commit[:8]}"
        self.sizes: Mapping[CheckpointFile, int] = {name: file.size for name, file in listing.files.items()}
        self._address, self._headers = download_url(listing, hub)

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """Read up to `length` bytes of a file, then close the connection, as some stores ignore ranges."""
        import httpx  # noqa: PLC0415 - takes 0.2 s, and few commands need it

        headers = {**self._headers, "Range": f"bytes={begin}-{begin + length - 1}", "Accept-Encoding": "identity"}
        content, url = bytearray(), f"{self._address}/{name}"
        try:
            with httpx.stream("GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True) as response:
                response.raise_for_status()
                skip = begin if response.status_code == httpx.codes.OK else 0  # bytes before the requested ones
                for chunk in response.iter_raw():
                    content += chunk[skip:]
                    skip = max(skip - len(chunk), 0)
                    if len(content) >= length:
                        break
        except httpx.HTTPError as error:
            hint = "try again; `HF_ENDPOINT` names a mirror"
            raise HostError(f"cannot download `{name}`: {error}", location=self.location, hint=hint) from error
        return bytes(content[:length])
