"""The command `deploy show`."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from pydantic import computed_field

from orchestrator.bench.cache_forecast import load_reuse
from orchestrator.bench.workload import Workload, load_workload
from orchestrator.cli.options import Json, ProfileArgument, RuntimeOption, SetOption, WorkloadOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.console import note, print_data, terminal_width
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput, fields_of
from orchestrator.core.paths import Home
from orchestrator.images.config import ImageConfig
from orchestrator.kernels.plan_coverage import report_coverage, warn_untuned
from orchestrator.plan.capacity import DEFAULT_WORKLOAD, Capacity, Load
from orchestrator.plan.plan import Plan
from orchestrator.plan.tier_outlook import PUBLISHED, TierCosts, TierOutlook, tier_outlook
from orchestrator.planner.capacity import capacity_table, warn_capacity
from orchestrator.planner.explain import Explained, explained, explained_text
from orchestrator.planner.plan_warnings import image_config, note_environment
from orchestrator.planner.planning import LoadedProfile, load
from orchestrator.planner.summary import plan_summary


@dataclass(frozen=True, kw_only=True)
class PlanOutput(Plan):
    """A plan and its digest."""

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorators of a property
    @property
    def digest(self) -> str:
        """The sha256 of the plan, in hex."""
        return super().digest


@dataclass(frozen=True, kw_only=True)
class CapacityOutput(Capacity):
    """With `--capacity`: what fits; `context` is the longest request in tokens. `unknown` says why a value is null."""

    profile: str
    outlook: TierOutlook | None  # None: the size of the cache is unknown


OUTPUT: Final = JsonOutput[PlanOutput | CapacityOutput | tuple[Explained, ...]](
    PlanOutput, CapacityOutput, tuple[Explained, ...]
)


def command(
    profile: ProfileArgument,
    *,
    explain: Annotated[bool, typer.Option("--explain", help="show each value with its origin, file and line")] = False,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="show what fits: weights, KV cache tokens, concurrent requests")
    ] = False,
    workload: WorkloadOption = None,
    tier_costs: Annotated[
        str | None,
        typer.Option(
            "--tier-costs",
            metavar="RETRIEVE,STORE,RECOMPUTE",
            help="costs of cache tiers for `--capacity` (µs per token)",
        ),
    ] = None,
    input_tokens: Annotated[
        int | None,
        typer.Option("--input-tokens", min=1, metavar="TOKENS", help="prompt length to check with `--capacity`"),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option("--output-tokens", min=1, metavar="TOKENS", help="output length to check with `--capacity`"),
    ] = None,
    runtime: RuntimeOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Show the plan that a profile resolves to."""
    if (input_tokens is None) != (output_tokens is None):
        raise UsageError(
            "`--input-tokens` and `--output-tokens` require each other",
            hint="`--input-tokens 2000 --output-tokens 300`",
        )
    loaded = load(profile, overrides=overridden(set_, runtime=runtime))
    if capacity or input_tokens:
        requests = _requests(loaded, input_tokens, output_tokens)
        planned, tiers = loaded.capacity_for(requests), loaded.plan.serving.tiers
        outlook = _outlook(loaded, planned, workload, tier_costs)
        warn_capacity(loaded.plan)
        output = CapacityOutput(profile=loaded.plan.profile, outlook=outlook, **fields_of(planned))
        storage = tiers.storage if tiers else None
        OUTPUT.show_or_print(output, lambda: capacity_table(planned, storage=storage, outlook=outlook), json=json)
        return
    home = Home.from_environment()
    image = image_config(loaded.plan)
    if not explain and not json:
        print_data(_summary(loaded, home, image))
        return
    report_coverage(loaded.plan, home)
    warn_untuned(loaded.plan, home)
    note_environment(loaded.plan, image)
    if not loaded.plan.model.questions:
        note(f"model `{loaded.plan.model.name}` has no questions: the smoke test does not check answers")
    if not explain:
        OUTPUT.show(PlanOutput(**fields_of(loaded.plan)))
        return
    rows = explained(loaded)
    OUTPUT.show_or_print(rows, lambda: explained_text(rows, width=terminal_width()), json=json)


def _outlook(loaded: LoadedProfile, planned: Capacity, workload: str | None, costs: str | None) -> TierOutlook | None:
    name = workload or loaded.profile.workload or DEFAULT_WORKLOAD
    reuse = load_reuse(name, loaded.catalog, page=planned.cache.page if planned.cache else 1, caches=planned.dp_ranks)
    return tier_outlook(planned, reuse, PUBLISHED if costs is None else _costs(costs))


def _requests(loaded: LoadedProfile, input_tokens: int | None, output_tokens: int | None) -> Load | None:
    if input_tokens is None or output_tokens is None:
        return loaded.displayed_load
    return Load(
        name=f"{input_tokens:,} in, {output_tokens:,} out", input_tokens=input_tokens, output_tokens=output_tokens
    )


def _costs(text: str) -> TierCosts:
    if not re.fullmatch(r"(\d{1,9}(\.\d{1,9})?(,(?=\d)|$)){3}", text):
        hint = "three numbers of microseconds: `--tier-costs 60,150,71`"
        raise UsageError(f"`--tier-costs {text}` is not RETRIEVE,STORE,RECOMPUTE", hint=hint)
    retrieve, store, recompute = map(float, text.split(","))
    return TierCosts(retrieve=retrieve, store=store, recompute=recompute, source="as given")


def _summary(loaded: LoadedProfile, home: Home, image: ImageConfig | None) -> str:
    """Return the summary, with the workload that `bench` uses and its limits."""
    chosen = loaded.profile.workload
    workload = load_workload(chosen or DEFAULT_WORKLOAD, catalog=loaded.catalog)
    name = chosen or f"{DEFAULT_WORKLOAD} (the default of `bench`)"
    return plan_summary(loaded.plan, home, workload=_workload_text(name, workload), image=image, width=terminal_width())


def _workload_text(name: str, workload: Workload) -> str:
    share, slo = workload.cache_hit_rate, workload.slo
    cached = f", {share:.0%} of each prompt from cache" if share else ""
    limits = f"TTFT p95 at most {slo.ttft_p95_s:g} s, {slo.success_share:.0%} succeed"
    if workload.has_sessions:
        return f"{name}: {workload.description or 'sessions'}; SLO: {limits}"
    return f"{name}: {workload.input_tokens:,} tokens in, {workload.output_tokens:,} out{cached}; SLO: {limits}"
