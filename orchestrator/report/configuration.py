"""The configurations of the results of a report, and their differences. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult, ServerProvenance
from orchestrator.checkpoints.verify import FROM_RECEIPT
from orchestrator.core.text import objects_in
from orchestrator.engine.options import SUBJECTS
from orchestrator.engine.serving import recorded_facts
from orchestrator.plan.diff import Difference, differences, flatten
from orchestrator.report.compare import UNKNOWN_LAYOUT, Comparison, engine_name

_TIERS: Final = "cache_tiers"
# Groups of differing values, the most important first, by patterns of keys. A wildcard's value is shown with its name.
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Prompts sent as": ("prompts_sent_as",),
    "Model": ("model.name", "endpoint.model"),
    "Hardware": ("hardware", "hardware.name", "hardware.gpus"),
    "Layout": ("layout", "layout.*", "replicas*"),
    "Engine": ("endpoint.engine", "engine.version"),
    "Image": ("image", "engine.image"),
    "Kernel tables": ("patched.*moe-table",),
    "Cache tiers": (_TIERS,),
    "Quantization": ("model.quantization", *(f"flags.{subject}" for subject in SUBJECTS["quantization"])),
    "Speculation": ("endpoint.speculative", *(f"flags.{subject}" for subject in SUBJECTS["speculation"])),
}
_SHOWN: Final = 5  # rows; the others are folded
_DIGEST: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}")
# Keys that are derived from other keys of a plan.
DERIVED: Final = (
    "host_cache_bytes",
    "description",
    "warnings",
    "nondeterministic",
    "wrong_answers",
    "model.questions",
    "model.architecture",
    "layout.dp_option",
)
# Keys that do not affect a measurement: names, ports, sources and the prompt seed.
_NAMES: Final = frozenset({"profile", "server.port", "workload.description", "workload.source", "workload.seed"})
_RATES: Final = ("workload.request_rates", "workload.ramp")
_SENDING: Final = (
    "input_tokens",
    "output_tokens",
    "cache_hit_rate",
    "num_prefixes",
    "prompts",
    "text_file",
    "load",
    "arrivals",
)
_SESSIONS: Final = ("sessions", "requests", "warmup_requests", "max_context", "max_think_time_s", "duration_s")
_WEIGHTS: Final = "checkpoint"  # the preflight check of the checkpoint
_HOST_CHECKS: Final = ("gpus", "driver", "interpreter", _WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One property of all results, in their order; "" if unknown."""

    name: str
    values: tuple[str, ...]


def differing(comparisons: tuple[Comparison, ...]) -> tuple[Difference, ...]:
    """Return the differences between the results: plan, workload, host, image and reported endpoint properties.

    If an endpoint has no plan, the settings of the other plans are counted but not listed: they may not differ.
    """
    planned = [comparison.result.run.provenance.plan is not None for comparison in comparisons]
    if len({*planned}) <= 1:
        return differences([compared_settings(comparison) for comparison in comparisons])
    sides = [_reported_settings(comparison) for comparison in comparisons]
    shared = set.intersection(*({*side} for side in sides)) | {"hardware", "layout"}
    shared_values = [{key: value for key, value in side.items() if key in shared} for side in sides]
    counts = [
        sum(key.startswith(("flags.", "env.")) for key in compared_settings(comparison)) for comparison in comparisons
    ]
    counted = [f"{count} known" if own else "unknown" for count, own in zip(counts, planned, strict=True)]
    return differences([{**side, "settings": count} for side, count in zip(shared_values, counted, strict=True)])


def grouped(entries: Sequence[Difference]) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Return the most important groups of differences, one row each, and the rest if there are too many to show."""
    groups: dict[str, list[tuple[str, Difference]]] = {name: [] for name in _GROUPS}
    for entry in entries:
        matches = ((name, pat) for name, pats in _GROUPS.items() for pat in pats if fnmatchcase(entry.key, pat))
        if (match := next(matches, None)) is not None:
            groups[match[0]].append(("" if match[1] == entry.key else f"{entry.key.rpartition('.')[2]} ", entry))
    first = {name: members for name, members in groups.items() if members}
    first = dict(islice(first.items(), _SHOWN))
    keys = {member.key for members in first.values() for _, member in members}
    rows = tuple(Difference(key=name, values=_side_texts(members)) for name, members in first.items())
    remaining = tuple(item for item in entries if item.key not in keys)
    return (rows, remaining) if len(rows) + len(remaining) > _SHOWN else ((*rows, *remaining), ())


def _side_texts(members: Sequence[tuple[str, Difference]]) -> tuple[str, ...]:
    sides = range(len(members[0][1].values))
    texts = (", ".join(f"{name}{member.values[at]}" for name, member in members if member.values[at]) for at in sides)
    return tuple(_DIGEST.sub(r"\1…", text) for text in texts)


def compared_settings(comparison: Comparison) -> dict[str, str]:
    """Return the configuration of a result without the keys that are derived or do not affect a measurement."""
    if comparison.result.run.provenance.plan is None:
        return _reported_settings(comparison)
    return _telling(configuration_of(comparison.result))


def _telling(values: Mapping[str, str]) -> dict[str, str]:
    names = (*DERIVED, *_NAMES)
    return {key: value for key, value in values.items() if not key.startswith(names) and not key.endswith(".reason")}


def _reported_settings(comparison: Comparison) -> dict[str, str]:
    """Return the properties that a result's endpoint reports, its workload, and its layout and hardware if known."""
    values = _telling(flat_known({**_endpoint(comparison.result), "workload": comparison.result.run.workload}))
    values["prompts_sent_as"] = comparison.result.run.endpoint.prompts_as
    if comparison.result.run.client is not None:
        values["load_client"] = comparison.result.run.client
    values |= {"hardware": comparison.system} if comparison.result.run.provenance.gpu else {}
    return values | ({"layout": comparison.layout} if comparison.layout != UNKNOWN_LAYOUT else {})


def same_configuration(comparison: Comparison) -> frozenset[tuple[str, str]] | None:
    """Return a key that is equal for runs of one configuration; None if too little is known about the server.

    A server known only by URL may have been restarted with other options, so its key requires a `--label`.
    """
    run = comparison.result.run
    identity = run.label or run.provenance.plan_digest
    if identity is None:
        return None
    facts = ((key, value) for key, value in compared_settings(comparison).items() if not key.startswith(_RATES))
    return frozenset({("", identity), ("workload", run.workload_name), ("hardware", comparison.system), *facts})


def same_load(one: Comparison, other: Comparison) -> bool:
    """Return whether two results have the same load, so that a change between them is due to the server."""
    return _sent(one) == _sent(other)


def _sent(comparison: Comparison) -> list[object]:
    run = comparison.result.run
    keys = (*_SENDING, *_SESSIONS) if run.trace_sha256 or run.workload.get("sessions") else _SENDING
    return [run.client, run.trace_sha256, *map(run.workload.get, keys)]


def configuration_of(result: BenchResult) -> dict[str, str]:
    """Return the configuration of a result by dotted key: server, host and workload."""
    run = result.run
    extra: dict[str, object] = {"workload": run.workload, "prompts_sent_as": run.endpoint.prompts_as}
    if run.provenance.plan is None:
        extra |= _endpoint(result) | {"hardware": {"name": run.provenance.gpu, "gpus": run.provenance.gpus}}
    return {**started_with(run.provenance), **flat_known(extra)}


def _endpoint(result: BenchResult) -> dict[str, object]:
    facts = result.run.endpoint
    return {
        "endpoint": {
            "model": facts.served_model,
            "engine": engine_name(result),
            "dp_ranks": facts.dp_ranks,
            "context_length": facts.context_length,
            "page_size": facts.page_size,
            "speculative": facts.speculative,
        }
    }


def started_with(provenance: ServerProvenance) -> dict[str, str]:
    """Return the configuration of a server by dotted key: plan, image, patches, checkpoint and host."""
    findings = _host_findings(provenance.host)
    return flat_known(
        {
            **(provenance.plan or {}),
            _TIERS: tiers_of(provenance),
            "image": provenance.image_digest,
            "patched": _states(provenance.patch_receipt),
            "weights": findings.pop(_WEIGHTS, None),
            "host": findings,
        }
    )


def tiers_of(provenance: ServerProvenance) -> str | None:
    """Describe the cache tiers behind the device's KV cache; None if there are none."""
    facts = recorded_facts(provenance.plan or {})
    return facts.tiers.describe() if facts and facts.tiers else None


def flat_known(data: Mapping[str, object]) -> dict[str, str]:
    """Flatten nested data to dotted keys, without unknown values."""
    return {key: value for key, value in flatten(data).items() if value != "none"}


def _host_findings(host: Mapping[str, object] | None) -> dict[str, str]:
    """Return the preflight findings that can affect a measurement, by check."""
    findings = [item for item in objects_in(host, "findings") if item.get("check") in _HOST_CHECKS]
    values = {str(item["check"]): str(item.get("value", "")) for item in findings}
    return {check: text.removesuffix(FROM_RECEIPT) for check, text in values.items()}


def _states(receipt: Mapping[str, object] | None) -> dict[str, str]:
    return {str(item["id"]): str(item.get("state", "")) for item in objects_in(receipt, "patches") if "id" in item}


def facts_of(comparisons: tuple[Comparison, ...]) -> tuple[Fact, ...]:
    """Return the table of model, engine, hardware, settings and load; rows without any value are omitted."""
    rows = [dict(_facts(comparison)) for comparison in comparisons]
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value)
    return tuple(Fact(name=name, values=tuple(row.get(name, "") for row in rows)) for name in names)


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    run, provenance = comparison.result.run, comparison.result.run.provenance
    plan = flatten(provenance.plan or {})
    yield "Model", ", ".join(filter(None, (run.endpoint.served_model, plan.get("model.quantization"))))
    yield "Engine", engine_name(comparison.result)
    yield "Hardware", comparison.system
    yield "Layout", "" if comparison.layout == UNKNOWN_LAYOUT else comparison.layout
    yield "Cache tiers", tiers_of(provenance) or ""
    yield "Speculation", run.endpoint.speculative or ""
    yield "Settings", ", ".join(_setting(key[6:], value) for key, value in plan.items() if key.startswith("flags."))
    yield "Load", load(comparison)
    yield "Requests", ", ".join(f"{point.requests:,} at {point.label}" for point in comparison.result.points)


def _setting(name: str, value: str) -> str:
    return name if value == "true" else f"{name} {value}"


def load(comparison: Comparison) -> str:
    """Describe the load of a result from its workload; "" if the workload has neither token counts nor sessions."""
    workload = comparison.result.run.workload
    if workload.get("trace") or workload.get("sessions"):
        return f"sessions of {workload['trace']}" if workload.get("trace") else "synthetic sessions"
    tokens_in, tokens_out, cached = (workload.get(key) for key in ("input_tokens", "output_tokens", "cache_hit_rate"))
    if not (isinstance(tokens_in, int) and isinstance(tokens_out, int)):
        return ""
    shared = (
        f", {metrics.share(cached)} of each prompt shared with others" if isinstance(cached, float) and cached else ""
    )
    return f"{tokens_in:,} tokens in, {tokens_out:,} out{shared}"
