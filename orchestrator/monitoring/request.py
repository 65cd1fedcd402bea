"""The request of `deploy monitoring`, resolved to a server with targets and expected values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator.bench.workload import load_workload
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import note
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.suggest import did_you_mean
from orchestrator.engine.flags import read_flags
from orchestrator.engine.options import Meaning
from orchestrator.monitoring.series import ACCEPT_LENGTH, CACHE_HIT_RATE, EXPECTED, TTFT_P95, Expected, MonitoredServer
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import LOOPBACK
from orchestrator.planner.planning import LoadedProfile, load, read_profile
from orchestrator.runs.run_dir import RunDir, latest_run, not_started, require_name, require_plan
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import PodTargets
from orchestrator.servers.run_history import read_request


@dataclass(frozen=True, kw_only=True)
class MonitoringRequest:
    """The server to monitor, and its expected values."""

    name: str | None  # name of a started server; None: a server of `profile`
    profile: str | None
    overrides: tuple[str, ...]
    workload: str | None  # None: the workload of the profile
    expected: tuple[str, ...]  # KEY=VALUE
    target: str | None  # HOST:PORT; None: the address on its own host
    gpu_exporter: str | None


def monitored(request: MonitoringRequest, home: Home) -> MonitoredServer:
    """Resolve the server to monitor. Raises UsageError, StartError and ProfileError."""
    catalog = Catalog.of(home)
    expected = _parse_expected(request.expected)
    if request.name is None:
        if request.profile is None:
            raise UsageError(
                "no server specified", hint="name a server, as listed by `deploy status`, or use `--profile`"
            )
        loaded = load(request.profile, overrides=request.overrides, catalog=catalog)
        name, plan, workload = loaded.plan.profile, loaded.plan, loaded.profile.workload
    else:
        name, (plan, workload) = request.name, _started(request, home, catalog)
    if not plan.serving.metrics:
        hint = f"enable them with `--set flags.{Meaning.METRICS}=true`"
        raise UsageError(f"`{name}` exports no metrics", hint=hint)
    table = read_flags(plan.engine.version, catalog)
    if table.metrics is None:
        version = plan.engine.version
        hint = f"`deploy add engine {version} --flags-only` recreates it"
        raise ProfileError(f"the flag table for sglang {version} has no metrics", hint=hint)
    pods, targets, gateway_target = _reached(request, plan, name)
    return MonitoredServer(
        name=name,
        plan=plan,
        targets=targets,
        gateway_target=gateway_target,
        pods=pods,
        gpu_target=_address("--gpu-exporter", request.gpu_exporter),
        exported=table.metrics,
        expected={**_of_workload(request.workload or workload, catalog), **expected},
    )


def _reached(
    request: MonitoringRequest, plan: Plan, name: str
) -> tuple[PodTargets | None, tuple[str, ...], str | None]:
    """Return the pod labels or the addresses of the replicas, and the address of the gateway. Raises UsageError."""
    kind = runtime_class(plan.runtime)
    pods = kind.monitoring_targets(plan, name)
    if plan.gateway is not None and not kind.is_local and pods is None:
        reason = f"`{name}` has {plan.replicas} replicas on nodes that its runtime chose"
        raise UsageError(reason, hint=f"`deploy status {name} --json` lists their addresses; scrape these")
    if request.target is None and not kind.is_local and pods is None:
        hint = "set the address of its node or Service with `--target HOST:PORT`"
        raise UsageError(f"the address of `{name}` in its cluster is unknown", hint=hint)
    if pods is not None and request.gpu_exporter is not None:
        hint = "omit it: the Prometheus of a cluster scrapes the exporter with a monitor of its own"
        raise UsageError(f"`--gpu-exporter` cannot be used for `{name}`, which runs in a cluster", hint=hint)
    if plan.gateway is None:
        target = _address("--target", request.target)
        return pods, ((target,) if target else () if pods else (urlsplit(plan.server.url).netloc,)), None
    if request.target is not None:
        reason = "which only its gateway reaches" if pods else "which listen only on their host"
        hint = "omit it: the operator finds the pods" if pods else "omit it, and run Prometheus on that host"
        raise UsageError(f"`--target` is one address, and `{name}` has {plan.replicas} replicas, {reason}", hint=hint)
    if pods is not None:
        return pods, (), None
    targets = tuple(urlsplit(replica_plan.server.url).netloc for replica_plan in plan.servers.values())
    return None, targets, f"{LOOPBACK}:{plan.gateway.metrics_port}"


def _started(request: MonitoringRequest, home: Home, catalog: Catalog) -> tuple[Plan, str | None]:
    """Return the plan of the last run of a server, and the workload of its profile. Raises UsageError, StartError."""
    name = request.name or ""
    if request.profile or request.overrides:
        raise UsageError("`--profile` and `--set` are only for servers that never started", hint="omit the name")
    require_name(name)
    run = latest_run(home, name)
    if run is None:
        raise not_started(home, name, hint="`--profile PROFILE` takes a profile")
    plan = require_plan(run, name)
    valid = None if request.workload else _profile_of_run(run, catalog)
    return plan, valid.profile.workload if valid else None


def _profile_of_run(run: RunDir, catalog: Catalog) -> LoadedProfile | None:
    """Return the profile of a run; None, with a note, if the profile is no longer valid."""
    up_request = read_request(run)
    try:
        return read_profile(up_request.profile, overrides=up_request.overrides, catalog=catalog) if up_request else None
    except ProfileError as error:
        note(f"no alert limits from a workload: {error.problems_or_self()[0].message}")
        return None


def _of_workload(name: str | None, catalog: Catalog) -> Mapping[str, Expected]:
    """Return the expected values of a workload: the TTFT p95 limit, and the cache hit rate unless it is 0."""
    if name is None:
        return {}
    load = load_workload(name, catalog=catalog)
    expected = {TTFT_P95: Expected(value=load.slo.ttft_p95_s, source=f"`slo.{TTFT_P95}` of workload `{name}`")}
    if (rate := load.cache_hit_rate) > 0:
        expected[CACHE_HIT_RATE] = Expected(value=rate, source=f"`cache_hit_rate` of workload `{name}`")
    return expected


def _parse_expected(pairs: Sequence[str]) -> dict[str, Expected]:
    """Parse `--expect KEY=VALUE` options. Raises UsageError for an unknown key or a value out of range."""
    expected = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if key not in EXPECTED:
            raise UsageError(f"`{key}` is not a key of `--expect`", hint=did_you_mean(key, EXPECTED))
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        minimum, maximum = {CACHE_HIT_RATE: (0.0, 1.0), ACCEPT_LENGTH: (1.0, 100.0)}.get(key, (0.0, 86_400.0))
        if not minimum < value <= maximum:
            raise UsageError(f"`--expect {pair}`: expected a number above {minimum:g}, up to {maximum:g}")
        expected[key] = Expected(value=value, source=f"`--expect {key}={value:g}`")
    return expected


def _address(option: str, text: str | None) -> str | None:
    """Validate a `host:port`; None stays None. Raises UsageError for anything else."""
    if text is None:
        return None
    try:
        split = urlsplit(f"//{text}")
        is_valid = split.netloc == text and split.hostname and split.port and "@" not in text and text.isprintable()
    except ValueError:
        is_valid = None
    if not is_valid or not set(text).isdisjoint(" \"'\\{}"):
        raise UsageError(f"`{option} {text}` is not an address", hint="use HOST:PORT, without a scheme")
    return text
