"""What the hub says of a repository: the commit behind a revision, and every file with its size."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import HostError, WeightsError

FULL: Final = errno.ENOSPC  # exit code of a download that a full disk ended


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where to ask, and as whom: `endpoint` None is huggingface.co, `token` None is nobody."""

    endpoint: str | None
    token: str | None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One commit of a repository: sizes in bytes by path."""

    repository: str
    commit: str
    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(self.sizes.values())


def list_files(repository: str, revision: str | None, hub: Hub) -> Listing:
    """Look a repository up. Raises WeightsError for one that is not there or not open to us, HostError otherwise."""
    try:
        from huggingface_hub import HfApi, RepoFile, errors  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise HostError("staging needs huggingface_hub", hint="`pip install 'deploy-sglang[stage]'`") from error
    # False, not None: None would take the token that `hf auth login` left on this machine.
    api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
    try:
        commit = api.repo_info(repository, revision=revision).sha or ""
        tree = api.list_repo_tree(repository, recursive=True, revision=commit)
        sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
    except errors.GatedRepoError as error:
        hint = "accept its terms on the hub, then `export HF_TOKEN=…` of that account"
        raise WeightsError(f"`{repository}` is gated and not open to this token", hint=hint) from error
    except errors.RevisionNotFoundError as error:
        hint = "correct `model.origin.revision`"
        raise WeightsError(f"`{repository}` has no revision `{revision}`", hint=hint) from error
    except errors.RepositoryNotFoundError as error:
        hint = "correct `model.origin.location`; a private repository needs `export HF_TOKEN=…`"
        raise WeightsError(f"there is no repository `{repository}` that this token may read", hint=hint) from error
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # of httpx or httpx2, by version
        why = str(error).partition("\n")[0] or type(error).__name__
        raise HostError(f"the hub cannot be asked: {why}", hint="try again; `HF_ENDPOINT` names a mirror") from error
    return Listing(repository=repository, commit=commit, sizes=sizes)
