"""Caches that starts fill and later starts reuse, across all runtimes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.core.console import note
from orchestrator.core.errors import HostError, KernelsError
from orchestrator.core.files import remove_file
from orchestrator.core.paths import Home
from orchestrator.kernels.disk.archive import SUFFIX, read_archive
from orchestrator.runtimes import REGISTRY, open_runtime, runtime_class
from orchestrator.runtimes.base import Cache


def caches(home: Home, host: str | None) -> tuple[Cache, ...]:
    """Return the caches of this home and of its Docker host; with `host`, only the caches of that host.

    Raises HostError if a runtime does not answer, unless another runtime has caches: a rented pod has no Docker daemon.
    """
    caches_found: list[Cache] = []
    failures: dict[str, HostError] = {}
    for name in REGISTRY:
        if host is None or runtime_class(name).supports_ssh:
            try:
                caches_found += open_runtime(name, home, host).caches()
            except HostError as error:
                failures[name] = error
    if host is None:
        caches_found += _archives(home.compiled_kernels)
    for name, reason in failures.items():
        if not caches_found:
            raise reason
        note(f"cannot query {name}: {reason.message}")
    return tuple(caches_found)


def _archives(folder: Path) -> Iterator[Cache]:
    """Yield the archives of compiled kernels, which the next start would unpack again."""
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        try:
            receipt = read_archive(path).receipt
            build = {name: value for name, value in receipt.engine.items() if name in {"image", "sglang"}}
            made_for = {"gfx": receipt.arch, **build}
        except KernelsError:
            made_for = {"receipt": "damaged"}
        yield Cache(
            kind="archive of compiled kernels",
            location=str(path),
            requirements=made_for,
            size=path.stat().st_size,
            used_by=(),
            remove=partial(_remove, path),
        )


def _remove(path: Path) -> bool:
    remove_file(path)
    return True


@dataclass(frozen=True, kw_only=True)
class PrunedCache(Cache):
    """A cache of `size` bytes; `keep_reason` is the reason to keep it, "" if it is removed."""

    keep_reason: str


def prune_caches(home: Home, host: str | None, *, dry_run: bool) -> tuple[PrunedCache, ...]:
    """Remove the caches that no server uses; with `dry_run`, only return them. Raises HostError as `caches` does."""
    return tuple(PrunedCache(**vars(cache), keep_reason=_prune(cache, dry_run=dry_run)) for cache in caches(home, host))


def _prune(cache: Cache, *, dry_run: bool) -> str:
    """Remove a cache. Return the reason if it is kept, "" if it is removed."""
    if (dry_run and not cache.used_by) or (not dry_run and cache.remove()):
        return ""
    return f"used by `{'`, `'.join(cache.used_by)}`" if cache.used_by else "in use"


def caches_text(pruned: Sequence[PrunedCache], *, dry_run: bool) -> str:
    """Return the removed and the kept caches with reasons and total sizes, as text."""
    gone = [item for item in pruned if not item.keep_reason]
    lines = [f"`{item.location}` is kept: {item.keep_reason}; {_describe(item)}" for item in pruned if item.keep_reason]
    lines += [f"{'would remove' if dry_run else 'removed'} `{cache.location}`: {_describe(cache)}" for cache in gone]
    count = "1 cache" if len(gone) == 1 else f"{len(gone)} caches"
    return "\n".join([*lines, f"{count}, {sum(cache.size for cache in gone):,} bytes"])


def _describe(cache: Cache) -> str:
    return f"{cache.kind} for {' '.join(filter(None, cache.requirements.values()))}, {cache.size:,} bytes"
