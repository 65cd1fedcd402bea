"""What starts have made and later ones take, whichever runtime made it."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.console import note
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes import REGISTRY, open_runtime, runtime_class
from orchestrator.runtimes.base import Cache


def caches(home: Home, host: str | None) -> tuple[Cache, ...]:
    """The caches of this home and of its Docker host; with `host`, those of that machine alone.

    Raises HostError where a runtime does not answer, unless another one has caches: a pod has no daemon.
    """
    found: list[Cache] = []
    silent: dict[str, HostError] = {}
    for name in REGISTRY:
        if host is None or runtime_class(name).supports_ssh:
            try:
                found += open_runtime(name, home, host).caches()
            except HostError as error:
                silent[name] = error
    for name, why in silent.items():
        if not found:
            raise why
        note(f"cannot query {name}: {why.message}")
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PrunedCache:
    """A cache; `kept` says why it stays, "" where it goes."""

    cache: Cache
    kept: str

    def to_dict(self) -> dict[str, object]:
        """As plain JSON-able data."""
        return {**self.cache.to_dict(), "kept": self.kept}


def prune_caches(home: Home, host: str | None, *, dry_run: bool) -> tuple[PrunedCache, ...]:
    """Remove the caches that no server uses, or with `dry_run` say which would go. Raises HostError as `caches`."""
    return tuple(PrunedCache(cache=cache, kept=_prune(cache, dry_run=dry_run)) for cache in caches(home, host))


def _prune(cache: Cache, *, dry_run: bool) -> str:
    """Remove it; why it stays, "" where it goes."""
    if (dry_run and not cache.used_by) or (not dry_run and cache.remove()):
        return ""
    return f"used by `{'`, `'.join(cache.used_by)}`" if cache.used_by else "it is in use"


def caches_text(found: Sequence[PrunedCache], *, dry_run: bool) -> str:
    """What went, what stayed and why, and how much that is."""
    gone = [each.cache for each in found if not each.kept]
    lines = [f"`{each.cache.place}` stays: {each.kept}; {_about(each.cache)}" for each in found if each.kept]
    lines += [f"{'would remove' if dry_run else 'removed'} `{cache.place}`: {_about(cache)}" for cache in gone]
    count = "1 cache" if len(gone) == 1 else f"{len(gone)} caches"
    return "\n".join([*lines, f"{count}, {sum(cache.size for cache in gone):,} bytes"])


def _about(cache: Cache) -> str:
    return f"{cache.kind} for {' '.join(filter(None, cache.made_for.values()))}, {cache.size:,} bytes"
