"""SGLang's gateway, smg: how it is started, asked and opened.

It stands before several equal servers and has one URL. Its `/health` answers 200 without a single server behind it, so
that `READINESS` is what counts (smg 1.13.0, model_gateway/src/server.rs). It hands on what a client presents as its key
and gives its own only where a client presents none (model_gateway/src/routers/header_utils.rs), so that servers behind
it have the clients' key: a second one of its own (`tenant_api_keys`) lets clients in, and is handed on as well, which
sglang answers with 401 (tried with 1.13.0). No option of its command line takes that key without showing it:
images/launch_gateway.py reads it from a file, as sglang does with `--config`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.core.errors import Problem
from orchestrator.core.suggest import closest_match
from orchestrator.engine.flags import FlagSpec, FlagValue, value_problems
from orchestrator.engine.responses import Json, UnexpectedResponseError

VERSION: Final = "1.13.0"
REQUIREMENTS: Final = f"smg-{VERSION}.txt"  # of the environment it runs in, below images/
LAUNCHER: Final = "launch_gateway.py"  # below images/
IMAGE_DIR: Final = "/opt/deploy/gateway"  # where an image has the launcher, and the packages in a folder beside it
IN_IMAGE_PACKAGES: Final = f"{IMAGE_DIR}/packages"
LIVENESS: Final = "/liveness"  # 200 as long as it runs; asks for no key
READINESS: Final = "/readiness"  # 200 with a server that answers, 503 without; asks for no key
WORKERS: Final = "/workers"  # the servers behind it: GET, POST, and PATCH and DELETE of one; asks for its control key
CONTROL_KEY: Final = "GATEWAY_CONTROL_KEY"  # among the secrets of a start; no variable of any process


# Decided by other parts of a profile, or of the start.
_RESERVED: Final[Mapping[str, str]] = {
    "host": "server.host",
    "port": "server.port",
    "api-key": "server.api_key_env",
    "worker-urls": "replicas",
    "prometheus-port": "server.port",
    **dict.fromkeys(
        ("service-discovery", "selector", "service-discovery-port", "service-discovery-namespace"), "runtime"
    ),
    "prometheus-host": "server.host",
    "shutdown-grace-period-secs": "timeouts.termination_grace",
}


def _takes(
    kind: Literal["int", "float"] | None = None,
    *,
    choices: tuple[str, ...] = (),
    several: bool = False,
    value: bool = True,
) -> FlagSpec:
    """An option of smg as its own argparse defines it (bindings/python/src/smg/router_args.py)."""
    return FlagSpec(
        takes_value=value,
        several=several,
        optional=False,
        type=kind,
        choices=choices,
        deprecated=False,
        successor="",
        same_as=None,
    )


OPTIONS: Final[Mapping[str, FlagSpec]] = {
    "policy": _takes(choices=("cache_aware", "round_robin", "random", "power_of_two")),
    **{name: _takes("float") for name in ("cache-threshold", "balance-rel-threshold", "retry-backoff-multiplier")},
    "retry-jitter-factor": _takes("float"),
    **{name: _takes(value=False) for name in ("disable-retries", "disable-circuit-breaker")},
    "log-level": _takes(choices=("debug", "info", "warn", "error")),
    **{name: _takes(several=True) for name in ("cors-allowed-origins", "request-id-headers")},
    **dict.fromkeys(
        (
            "balance-abs-threshold", "eviction-interval-secs", "max-tree-size", "max-payload-size",
            "request-timeout-secs", "max-concurrent-requests", "queue-size", "queue-timeout-secs",
            "rate-limit-tokens-per-second", "retry-max-retries", "retry-initial-backoff-ms", "retry-max-backoff-ms",
            "cb-failure-threshold", "cb-success-threshold", "cb-timeout-duration-secs", "cb-window-duration-secs",
            "health-failure-threshold", "health-success-threshold", "health-check-timeout-secs",
            "health-check-interval-secs",
        ),
        _takes("int"),
    ),
}  # fmt: skip
# What is said where a profile does not, each with its reason.
DEFAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "policy": ("cache_aware", "a prefix is computed by one replica, and found there again"),
    "health-check-interval-secs": ("1", "with smg's 60 a dead replica is noticed after a minute"),
    "health-check-timeout-secs": ("25", "sglang answers a health request within 20 s, behind a long prefill"),
    "health-failure-threshold": ("2", "one may meet a moment without memory or a port; a dead replica fails both"),
    "health-success-threshold": ("1", "sglang has generated a token when it says that it is healthy"),
}


def gateway_problems(name: str, value: FlagValue, where: str) -> Iterator[Problem]:
    """What smg's own parser would refuse, and what another part of the profile decides."""
    if name in _RESERVED:
        yield Problem(f"`gateway.{name}` is not set", where, f"it follows from `{_RESERVED[name]}`: set that")
    elif (spec := OPTIONS.get(name)) is None:
        near = closest_match(name, OPTIONS)
        hint = f"did you mean `{near}`?" if near else f"one of {', '.join(f'`{each}`' for each in sorted(OPTIONS))}"
        yield Problem(f"the gateway has no option `{name}`", where, hint)
    else:
        yield from value_problems(f"`--{name}` of the gateway", value, spec, where)


@dataclass(frozen=True, kw_only=True)
class PodDiscovery:
    """Which pods of a namespace are servers, by their labels, and on which port; it needs to get, list and watch them.

    A pod is taken once it is ready, and left out when it is not any more (smg, model_gateway/src/service_discovery.rs).
    """

    namespace: str
    labels: Mapping[str, str]
    port: int


@dataclass(frozen=True, kw_only=True)
class GatewayLaunch:
    """One start of the gateway. `servers` are base URLs, `options` argvs of single options, `grace` is seconds."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int
    servers: Sequence[str]  # none where it finds them
    grace: int  # for running requests, after SIGTERM
    options: Iterable[Sequence[str]]
    pods: PodDiscovery | None = None


def gateway_argv(launch: GatewayLaunch, *, python: str, launcher: str = LAUNCHER) -> tuple[str, ...]:
    """The whole command line."""
    argv = [python, launcher, "--host", launch.host, "--port", str(launch.port)]
    if launch.pods is None:
        argv += ["--worker-urls", *launch.servers]
    else:
        argv += ["--service-discovery", "--service-discovery-namespace", launch.pods.namespace]
        argv += ["--service-discovery-port", str(launch.pods.port)]
        argv += ["--selector", *(f"{label}={value}" for label, value in launch.pods.labels.items())]
    argv += ["--prometheus-host", launch.metrics_host, "--prometheus-port", str(launch.metrics_port)]
    argv += ["--shutdown-grace-period-secs", str(launch.grace)]
    return (*argv, *(word for option in launch.options for word in option))


def read_readiness(answer: Json) -> int:
    """How many servers answer, as the gateway counts them; 0 where it says none."""
    count = answer.get("healthy_workers")
    return count if isinstance(count, int) else 0


@dataclass(frozen=True, kw_only=True)
class GatewayWorker:
    """A server behind the gateway, as the gateway knows it.

    One that is taken away is `draining` first, is sent nothing new, and goes after a fixed time, whatever it still has
    to answer (smg, model_gateway/src/workflow/steps/local/drain_workers.rs; seen of 1.13.0).
    """

    identity: str
    url: str
    ready: bool
    requests: int  # that it has not answered


def parse_workers(answer: Json) -> tuple[GatewayWorker, ...]:
    """The servers behind the gateway. Raises OddAnswerError."""
    try:
        return tuple(
            GatewayWorker(
                identity=str(each["id"]),
                url=str(each["url"]),
                ready=each["status"] == "ready",
                requests=int(each["load"]),
            )
            for each in answer["workers"]
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnexpectedResponseError(f"`{WORKERS}` does not list servers as expected: {error!r}") from error
