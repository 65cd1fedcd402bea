"""SGLang's gateway, smg: launch line, API paths and keys.

A gateway accepts requests at one URL and routes them to equal replicas. `READINESS` tells whether the gateway can
accept requests: `/health` answers 200 even without a worker (smg 1.13.0, model_gateway/src/server.rs).

The replicas and the clients use the same API key. The gateway forwards the client's key, and sends its own only if the
client sends none (model_gateway/src/routers/header_utils.rs). It would also forward a separate client key
(`tenant_api_keys`), and sglang would answer 401 (tried with 1.13.0). Every command line option of smg for the key shows
it, so images/launch_gateway.py reads it from a file, as sglang does with `--config`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.core.suggest import closest_match
from orchestrator.engine.disaggregation import ROLES
from orchestrator.engine.flags import FlagSpec, FlagValue, value_problems
from orchestrator.engine.responses import Json, UnexpectedResponseError

VERSION: Final = "1.13.0"
REQUIREMENTS: Final = f"smg-{VERSION}.txt"  # requirements of the gateway's Python environment, below images/
LAUNCHER: Final = "launch_gateway.py"  # below images/
IMAGE_DIR: Final = "/opt/deploy/gateway"  # directory of the launcher in an image
IN_IMAGE_PACKAGES: Final = f"{IMAGE_DIR}/packages"
LIVENESS: Final = "/liveness"  # 200 while the gateway runs; needs no key
READINESS: Final = "/readiness"  # 200 with at least one healthy worker, else 503; needs no key
GENERATION: Final = "/health_generate"  # in disaggregation mode: a token from a selected pair; needs no key
WORKERS: Final = "/workers"  # GET, POST; PATCH and DELETE for a single worker; needs the control key
# Names a request's session; with `policy: consistent_hashing` a session stays on one replica (smg 1.13.0).
SESSION_HEADER: Final = "x-smg-routing-key"


# Options derived from other keys of a profile, or from the runtime.
_RESERVED: Final[Mapping[str, str]] = {
    "host": "server.host",
    "port": "server.port",
    "api-key": "server.api_key_env",
    "worker-urls": "replicas",
    **dict.fromkeys(("pd-disaggregation", "prefill", "decode"), "layout.prefill` and `layout.decode"),
    "prometheus-port": "server.port",
    **dict.fromkeys(
        (
            "service-discovery",
            "selector",
            "prefill-selector",
            "decode-selector",
            "service-discovery-port",
            "service-discovery-namespace",
        ),
        "runtime",
    ),
    "prometheus-host": "server.host",
    "shutdown-grace-period-secs": "timeouts.termination_grace",
}


POLICIES: Final = ("cache_aware", "round_robin", "random", "power_of_two", "prefix_hash", "consistent_hashing")
# From smg's argparse parser (bindings/python/src/smg/router_args.py).
OPTIONS: Final[Mapping[str, FlagSpec]] = {
    "policy": FlagSpec(choices=POLICIES),
    **{f"{role}-policy": FlagSpec(choices=POLICIES) for role in ("prefill", "decode")},
    **dict.fromkeys(("cache-threshold", "balance-rel-threshold"), FlagSpec(type="float")),
    **dict.fromkeys(("retry-backoff-multiplier", "retry-jitter-factor"), FlagSpec(type="float")),
    **dict.fromkeys(("disable-retries", "disable-circuit-breaker"), FlagSpec(takes_value=False)),
    "log-level": FlagSpec(choices=("debug", "info", "warn", "error")),
    **dict.fromkeys(("cors-allowed-origins", "request-id-headers"), FlagSpec(multiple=True)),
    **dict.fromkeys(
        (
            "balance-abs-threshold", "eviction-interval-secs", "max-tree-size", "max-payload-size",
            "request-timeout-secs", "max-concurrent-requests", "queue-size", "queue-timeout-secs",
            "rate-limit-tokens-per-second", "retry-max-retries", "retry-initial-backoff-ms", "retry-max-backoff-ms",
            "cb-failure-threshold", "cb-success-threshold", "cb-timeout-duration-secs", "cb-window-duration-secs",
            "health-failure-threshold", "health-success-threshold", "health-check-timeout-secs",
            "health-check-interval-secs",
        ),
        FlagSpec(type="int"),
    ),
}  # fmt: skip
# Default values for a profile, each with its reason.
DEFAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "policy": ("cache_aware", "requests with the same prefix go to the replica that has it in its cache"),
    "health-check-interval-secs": ("1", "with smg's 60 the gateway detects a dead replica after a minute"),
    "health-check-timeout-secs": ("25", "sglang answers a health request within 20 s, even during a long prefill"),
    "health-failure-threshold": ("2", "one probe may fail for lack of memory or ports; a dead replica fails twice"),
    "health-success-threshold": ("1", "sglang reports healthy only after it has generated a token"),
}


def gateway_problems(name: str, value: FlagValue, location: str) -> Iterator[Problem]:
    """Yield the problems of a gateway option: set by another key of the profile, unknown, or an invalid value."""
    if name in _RESERVED:
        yield Problem(f"`gateway.{name}` cannot be set", location, f"set `{_RESERVED[name]}` instead")
    elif (spec := OPTIONS.get(name)) is None:
        closest = closest_match(name, OPTIONS)
        options = ", ".join(f"`{option}`" for option in sorted(OPTIONS))
        hint = f"did you mean `{closest}`?" if closest else f"one of {options}"
        yield Problem(f"the gateway has no option `{name}`", location, hint)
    else:
        yield from value_problems(f"`--{name}` of the gateway", value, spec, location)


@dataclass(frozen=True, kw_only=True)
class PodDiscovery:
    """The pods that a gateway uses as workers: namespace, labels and port.

    The gateway needs permission to get, list and watch pods. It adds a pod when it becomes ready, and removes it when
    it no longer is (smg, model_gateway/src/service_discovery.rs).
    """

    namespace: str
    labels: Mapping[str, Mapping[str, str]]  # by role; "" for equal servers
    port: int  # for pods without `pod_annotations`


def pod_annotations(port: int, bootstrap_port: int | None) -> dict[str, str]:
    """Return the annotations of a prefill or decode pod that tell a gateway its ports."""
    bootstrap = {} if bootstrap_port is None else {"sglang.ai/bootstrap-port": str(bootstrap_port)}
    return {"smg.ai/worker-ports": str(port), **bootstrap}


@dataclass(frozen=True, kw_only=True)
class GatewayLaunch:
    """The launch parameters of a gateway."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int
    workers: Sequence[str]  # options that name its workers; empty if the gateway discovers pods
    grace: int  # seconds for running requests after SIGTERM
    options: Iterable[Sequence[str]]
    pods: PodDiscovery | None = None


def gateway_argv(launch: GatewayLaunch, *, python: str, launcher: str) -> tuple[str, ...]:
    """Return a gateway's command line."""
    argv = [python, launcher, "--host", launch.host, "--port", str(launch.port)]
    if launch.pods is None:
        argv += launch.workers
    else:
        argv += ["--service-discovery", "--service-discovery-namespace", launch.pods.namespace]
        argv += ["--service-discovery-port", str(launch.pods.port)]
        argv += ["--pd-disaggregation"] if "" not in launch.pods.labels else []
        for role, labels in launch.pods.labels.items():
            option = f"--{role}-selector" if role else "--selector"
            argv += [option, *(f"{label}={value}" for label, value in labels.items())]
    argv += ["--prometheus-host", launch.metrics_host, "--prometheus-port", str(launch.metrics_port)]
    argv += ["--shutdown-grace-period-secs", str(launch.grace)]
    return (*argv, *(word for option in launch.options for word in option))


def read_readiness(answer: Json) -> int:
    """Return the number of healthy workers in a response to `READINESS`; 0 if it reports none."""
    count = answer.get("healthy_workers")
    return count if isinstance(count, int) else 0


@dataclass(frozen=True, kw_only=True)
class GatewayWorker:
    """A worker of the gateway.

    A removed worker drains first: it gets no new requests, and disappears after a fixed time, even if requests are
    still running (smg, model_gateway/src/workflow/steps/local/drain_workers.rs; seen with 1.13.0).
    """

    identity: str
    url: str
    ready: bool
    requests: int  # not yet answered
    role: str = ""  # prefill or decode, if disaggregated
    model: str = ""  # served name


def parse_workers(answer: Json) -> tuple[GatewayWorker, ...]:
    """Parse the workers of a gateway. Raises UnexpectedResponseError."""
    try:
        return tuple(
            GatewayWorker(
                identity=str(item["id"]),
                url=str(item["url"]),
                ready=item["status"] == "ready",
                requests=int(item["load"]),
                role=role if (role := item.get("worker_type")) in ROLES else "",
                model=str(item.get("model_id") or ""),
            )
            for item in answer["workers"]
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnexpectedResponseError(f"`{WORKERS}` does not list workers as expected: {error!r}") from error
