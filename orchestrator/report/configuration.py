"""What ran on what, and what is not the same between the results of a report. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult, ServerProvenance
from orchestrator.checkpoints.verify import FROM_RECEIPT
from orchestrator.plan.diff import Difference, differences, flatten
from orchestrator.report.compare import Comparison

# Of a plan and a workload: names, places and the draw of random prompts, which say nothing of what was measured.
_NAMES: Final = frozenset(
    {"description", "profile", "server.port", "workload.description", "workload.source", "workload.seed"}
)
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
_WEIGHTS: Final = "checkpoint"  # the check of preflight that looks at it
_HOST_CHECKS: Final = ("gpus", "driver", "interpreter", _WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing about what was measured, of each result in turn; "" where it is not known."""

    name: str
    values: tuple[str, ...]


def differing(comparisons: tuple[Comparison, ...]) -> tuple[Difference, ...]:
    """What the results do not have in common: plan, workload, machine, image, and what the endpoint says of itself."""
    return differences([told(each) for each in comparisons])


def told(comparison: Comparison) -> dict[str, str]:
    """The configuration of a result without the names, places and draws that say nothing of what was measured."""
    return {key: value for key, value in configuration_of(comparison.result).items() if key not in _NAMES}


def same_configuration(comparison: Comparison) -> frozenset[tuple[str, str]] | None:
    """What two runs have to share to be two of one configuration; None where too little is known of the server.

    A server behind a URL may have been started anew with other options: only a `--label` of the user's tells.
    """
    run = comparison.result.run
    known = run.label or run.provenance.plan_digest
    if known is None:
        return None
    facts = ((key, value) for key, value in told(comparison).items() if not key.startswith(_RATES))
    return frozenset({("", known), ("workload", run.workload_name), *facts})


def same_load(one: Comparison, other: Comparison) -> bool:
    """Whether what was sent is of one kind, so that a change between them is one of the server."""
    sent = [[each.result.run.workload.get(key) for key in _SENDING] for each in (one, other)]
    return sent[0] == sent[1]


def configuration_of(result: BenchResult) -> dict[str, str]:
    """Everything that a result was measured with and on, by dotted key."""
    run = result.run
    stood = run.provenance
    more: dict[str, object] = {"workload": run.workload}
    if stood.plan is None:
        facts = run.endpoint
        more["endpoint"] = {
            "model": facts.served_model,
            "engine": f"{facts.engine or ''} {facts.engine_version or ''}".strip(),
            "replicas": facts.replicas,
            "context_length": facts.context_length,
            "page_size": facts.page_size,
            "speculative": facts.speculative,
        }
        more["hardware"] = {"name": stood.gpu, "gpus": stood.gpus}
    return {**started_with(stood), **flat_known(more)}


def started_with(stood: ServerProvenance) -> dict[str, str]:
    """What stood behind an endpoint, by dotted key: its plan, image, patches, weights and machine."""
    found = _found(stood.host)
    return flat_known(
        {
            **(stood.plan or {}),
            "image": stood.image_digest,
            "patched": _states(stood.patch_receipt),
            "weights": found.pop(_WEIGHTS, None),
            "host": found,
        }
    )


def flat_known(data: Mapping[str, object]) -> dict[str, str]:
    """The same by dotted key, without what is not known."""
    return {key: value for key, value in flatten(data).items() if value != "none"}


def _found(host: Mapping[str, object] | None) -> dict[str, str]:
    """What the checks before the start found of the machine, as far as it can make a difference."""
    findings = (host or {}).get("findings")
    found = [each for each in findings if isinstance(each, dict)] if isinstance(findings, list) else []
    told = {str(each["check"]): str(each.get("found", "")) for each in found if each.get("check") in _HOST_CHECKS}
    return {check: text.removesuffix(FROM_RECEIPT) for check, text in told.items()}


def _states(receipt: Mapping[str, object] | None) -> dict[str, str]:
    """What became of each patch, by its name."""
    patches = (receipt or {}).get("patches")
    found = [each for each in patches if isinstance(each, dict)] if isinstance(patches, list) else []
    return {str(each["id"]): str(each.get("state", "")) for each in found if "id" in each}


def facts_of(comparisons: tuple[Comparison, ...]) -> tuple[Fact, ...]:
    """What ran on what, and what was sent; a row that no result has anything for is left out."""
    rows = [dict(_facts(comparison)) for comparison in comparisons]
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value)
    return tuple(Fact(name=name, values=tuple(row.get(name, "") for row in rows)) for name in names)


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    run, stood = comparison.result.run, comparison.result.run.provenance
    plan = flatten(stood.plan or {})
    yield "Model", ", ".join(filter(None, (run.endpoint.served_model, plan.get("model.quantization"))))
    yield "Engine", f"{run.endpoint.engine or ''} {run.endpoint.engine_version or ''}".strip()
    yield "Hardware", comparison.system
    yield "Layout", comparison.layout
    yield "Speculation", run.endpoint.speculative or ""
    yield "Settings", ", ".join(_setting(key[6:], value) for key, value in plan.items() if key.startswith("flags."))
    yield "Load", load(comparison)
    yield "Requests", ", ".join(f"{point.requests:,} at {point.label}" for point in comparison.result.points)


def _setting(name: str, value: str) -> str:
    return name if value == "true" else f"{name} {value}"


def load(comparison: Comparison) -> str:
    """What was sent, from the result's own workload, as far as it says so."""
    workload = comparison.result.run.workload
    tokens_in, tokens_out, cached = (workload.get(key) for key in ("input_tokens", "output_tokens", "cache_hit_rate"))
    if not (isinstance(tokens_in, int) and isinstance(tokens_out, int)):
        return ""
    shared = (
        f", {metrics.share(cached)} of each prompt shared with others" if isinstance(cached, float) and cached else ""
    )
    return f"{tokens_in:,} tokens in, {tokens_out:,} out{shared}"
