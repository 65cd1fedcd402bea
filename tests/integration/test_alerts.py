"""Test the rules of `deploy monitoring` with promtool: each fault fires its own alert and no other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_samples import HOST_PATH, MONITORED
from prometheus import firing, missing, monitoring_request, promtool

from orchestrator.core.paths import Home
from orchestrator.monitoring.files import monitoring_files
from orchestrator.monitoring.request import monitored

pytestmark = missing
NAME = "mi355x-tp4dp2"  # two ranks, speculative decoding; workload: 60 % shared prompts, TTFT limit 5 s
SERVER = f'server="{NAME}"'
ZERO = "0x240"

# An hour of two busy ranks, scraped every 15 s.
BUSY = {
    f'up{{{SERVER},job="deploy"}}': "1x240",
    **{f'sglang:num_running_reqs{{{SERVER},dp_rank="{rank}"}}': "24x240" for rank in (0, 1)},
    **{f'sglang:num_queue_reqs{{{SERVER},dp_rank="{rank}"}}': "0 3 1 0 2 9 4 0 0 1 " * 24 for rank in (0, 1)},
    **{f'sglang:realtime_tokens_total{{{SERVER},dp_rank="{rank}",mode="decode"}}': "0+9000x240" for rank in (0, 1)},
    **{f'sglang:num_used_tokens{{{SERVER},dp_rank="{rank}"}}': "970x240" for rank in (0, 1)},
    **{f'sglang:max_total_num_tokens{{{SERVER},dp_rank="{rank}"}}': "1000x240" for rank in (0, 1)},
    f'sglang:http_requests_active{{{SERVER},method="POST",endpoint="/generate"}}': "48x240",
    f"sglang:num_requests_total{{{SERVER}}}": "0+36x240",
    f"sglang:prompt_tokens_total{{{SERVER}}}": "0+720000x240",
    f'sglang:cached_tokens_total{{{SERVER},cache_source="device"}}': "0+400000x240",
    f"sglang:generation_tokens_total{{{SERVER}}}": "0+36036x240",
    f"sglang:spec_verify_calls_total{{{SERVER}}}": "0+12000x240",
    f'sglang:time_to_first_token_seconds_bucket{{{SERVER},le="4"}}': "0+35x240",
    f'sglang:time_to_first_token_seconds_bucket{{{SERVER},le="8"}}': "0+36x240",
    f'sglang:time_to_first_token_seconds_bucket{{{SERVER},le="+Inf"}}': "0+36x240",
    f'gpu_used_vram{{{SERVER},gpu_id="0"}}': "250000x240",
    f'gpu_total_vram{{{SERVER},gpu_id="0"}}': "294912x240",
}
QUEUE = f'sglang:num_queue_reqs{{{SERVER},dp_rank="0"}}'
RANK = f'sglang:realtime_tokens_total{{{SERVER},dp_rank="1",mode="decode"}}'


def rank_series(name: str, values: str) -> dict[str, str]:
    return {series: values for series in BUSY if series.startswith(f"sglang:{name}{{")}


IDLE = BUSY | {series: ZERO for series in BUSY if series.startswith("sglang:") and "max_total" not in series}
FAULTS = {
    "server down": ({f'up{{{SERVER},job="deploy"}}': "1x40 0x200"}, "12m", "DeployServerDown"),
    "server pod gone": (dict.fromkeys(BUSY, "1x40 _x200"), "20m", "DeployServerDown"),
    "rank dies with requests in flight": ({RANK: "0+9000x40 360000x200"}, "17m", "DeployRankDead"),
    "rank never starts": ({RANK: "_x240"}, "10m", "DeployRankDead"),
    "rank dies and its requests hang": (
        {RANK: "0+9000x40 360000x200", **rank_series("num_running_reqs", "24x40 0x200")},
        "17m",
        "DeployRankDead",
    ),
    "no rank ever computes": (
        {**rank_series("realtime_tokens_total", "_x240"), **rank_series("num_running_reqs", "_x240")},
        "10m",
        "DeployRankDead",
    ),
    "all ranks hang": (
        rank_series("realtime_tokens_total", "0+9000x40 360000x200"),
        "17m",
        "DeployRankDead",
    ),
    "server restarts repeatedly": (
        {f'up{{{SERVER},job="deploy"}}': "1x40 0x3 1x40 0x3 1x153"},
        "25m",
        "DeployServerFlapping",
    ),
    "load exceeds capacity": (
        {QUEUE: "0+1x240", **rank_series("num_used_tokens", "400x240")},
        "16m",
        "DeployQueueGrowing",
    ),
    "requests wait for KV cache": ({QUEUE: "5x240"}, "15m", "DeployKvCacheFull"),
    "VRAM full": ({f'gpu_used_vram{{{SERVER},gpu_id="0"}}': "294000x240"}, "10m", "DeployVramFull"),
    "TTFT high": (
        {f'sglang:time_to_first_token_seconds_bucket{{{SERVER},le="4"}}': "0+18x240"},
        "12m",
        "DeployTtftHigh",
    ),
    "cache hit rate low": (
        rank_series("cached_tokens_total", "0+300000x240"),
        "25m",
        "DeployCacheHitRateLow",
    ),
    "no cache hits": (rank_series("cached_tokens_total", "_x240"), "25m", "DeployCacheHitRateLow"),
    "drafts rejected": (rank_series("spec_verify_calls_total", "0+36000x240"), "25m", "DeployAcceptLengthLow"),
    "no drafts": (rank_series("spec_verify_calls_total", "_x240"), "25m", "DeployAcceptLengthLow"),
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metrics")
    request = monitoring_request(profile=NAME, gpu_exporter="node:5000")
    for file in monitoring_files(monitored(request, Home(folder))):
        (folder / file.path).write_bytes(file.content)
    return folder / f"{NAME}.rules.yml"


def test_promtool_accepts_rules_and_configuration(rules: Path) -> None:
    assert "25 rules found" in promtool("check", "rules", rules)
    assert "is valid" in (checked := promtool("check", "config", rules.with_name("prometheus.yml")))
    assert f"{NAME}.rules.yml" in checked


LONG = BUSY | {  # one rank writes two long answers, streamed or not; the other is idle
    RANK: "9000x240",
    **dict(zip(rank_series("num_running_reqs", ""), ("2x240", ZERO), strict=True)),
    f'sglang:http_requests_active{{{SERVER},method="POST",endpoint="/generate"}}': "2x240",
}


@pytest.mark.parametrize("series", [BUSY, IDLE, LONG], ids=["busy", "idle", "one rank busy"])
def test_no_alert_fires_for_healthy_server(rules: Path, series: dict[str, str]) -> None:
    firing(rules, series, after=("1m", "12m", "35m", "59m"), alerts=())


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fires_only_its_alert(rules: Path, fault: str) -> None:
    series, after, alert = FAULTS[fault]
    firing(rules, BUSY | series, after=(after,), alerts=(alert,))


def alert_names(rules: Path) -> set[str]:
    return {line.split()[-1] for line in rules.read_text().splitlines() if "- alert:" in line}


def test_every_alert_is_covered_by_a_fault(rules: Path, replica_rules: Path) -> None:
    assert alert_names(rules) == {alert for _, _, alert in FAULTS.values()}
    assert alert_names(replica_rules) - alert_names(rules) == set().union(
        *(alerts for _, _, alerts in REPLICA_FAULTS.values())
    ) - alert_names(rules)


REPLICATED = "mi355x-tp4x2"  # two servers of one rank each behind a gateway
UP, GATEWAY = (f'up{{server="{REPLICATED}",job="deploy{of}' for of in ('",replica="replica-%d"}', '-gateway"}'))


def replica_series(number: int) -> dict[str, str]:
    """Return an hour of series of one busy replica."""
    labels = f'server="{REPLICATED}",replica="replica-{number}"'
    series = {name: values for name, values in BUSY.items() if name.startswith("sglang:") and 'dp_rank="1"' not in name}
    return {UP % number: "1x240", **{name.replace(SERVER, labels): values for name, values in series.items()}}


def health(number: int) -> str:
    return f'smg_worker_health{{server="{REPLICATED}",worker="http://127.0.0.1:{number}"}}'


def responses(code: int) -> str:
    return f'smg_http_responses_total{{server="{REPLICATED}",path="/v1/completions",status_code="{code}"}}'


PAIR = {
    **replica_series(1),
    **replica_series(2),
    GATEWAY: "1x240",
    health(1): "1x240",
    health(2): "1x240",
    responses(200): "0+72x240",
    f'smg_http_responses_total{{server="{REPLICATED}",path="/readiness",status_code="503"}}': "0+72x240",
}
REPLICA_DOWN = {health(2): "1x40 0x200", **dict.fromkeys(replica_series(2), "1x40 _x200")}
REPLICA_FAULTS = {
    "replica down": (REPLICA_DOWN | {UP % 2: "1x40 0x200"}, "17m", {"DeployReplicaDown"}),
    "replica pod gone": (REPLICA_DOWN | {UP % 2: "1x40 _x200"}, "17m", {"DeployReplicaDown"}),
    "both replicas down": (
        {UP % 1: "1x40 0x200", UP % 2: "1x40 0x200", health(1): "0x240"},
        "14m",
        {"DeployServerDown"},
    ),
    "no replica ever scraped": ({UP % 1: "_x240", UP % 2: "_x240"}, "14m", {"DeployServerDown"}),
    "gateway down": ({GATEWAY: "1x40 0x200"}, "14m", {"DeployGatewayDown"}),
    "gateway never scraped": ({GATEWAY: "_x240"}, "14m", {"DeployGatewayDown"}),
    "replica unhealthy at the gateway": ({health(2): "1x40 0x200"}, "14m", {"DeployReplicaNotRouted"}),
    "gateway returns errors": ({responses(502): "0+1x240"}, "14m", {"DeployGatewayErrors"}),
    "rank of one replica dies": (
        {name: "0+9000x40 360000x200" for name in replica_series(2) if "realtime" in name},
        "17m",
        {"DeployRankDead"},
    ),
}


@pytest.fixture(scope="module")
def replica_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicas")
    for file in monitoring_files(monitored(monitoring_request(profile=REPLICATED), Home(folder))):
        (folder / file.path).write_bytes(file.content)
    assert "42 rules found" in promtool("check", "rules", folder / f"{REPLICATED}.rules.yml")
    return folder / f"{REPLICATED}.rules.yml"


def test_no_alert_fires_for_healthy_replicas(replica_rules: Path) -> None:
    firing(replica_rules, PAIR, after=("1m", "12m", "30m"), alerts=())


@pytest.mark.parametrize("fault", REPLICA_FAULTS)
def test_replica_and_gateway_faults_fire_only_their_alerts(replica_rules: Path, fault: str) -> None:
    series, after, alerts = REPLICA_FAULTS[fault]
    firing(replica_rules, PAIR | series, after=(after,), alerts=sorted(alerts))


SCALED = "mi355x-tp4x2"  # its autoscaler keeps at least three replicas, whatever `replicas` is
AUTOSCALING = (
    "runtime=kubernetes",
    "engine.image=a/b:1",
    HOST_PATH,
    MONITORED,
    "kubernetes.autoscaling.max=8",
    "kubernetes.autoscaling.prometheus=http://prometheus:9090",
    "kubernetes.autoscaling.start_seconds=300",
    "kubernetes.autoscaling.growth_rps_per_minute=1",
    "kubernetes.autoscaling.replica_rps=4",
)


@dataclass(frozen=True)
class Autoscaled:
    """The rules of an autoscaled server and the relabelings of its PodMonitor."""

    rules: Path
    relabelings: list[dict[str, Any]]

    def pod(self, number: int, **changed: str) -> dict[str, str]:
        """Return an hour of series that Prometheus stores for one pod, busy except for `changed`."""
        meta_labels = {
            "__meta_kubernetes_pod_name": f"{SCALED}--replica-5d8f-{number}",
            "__meta_kubernetes_pod_label_deploy_unit": "replica",
        }
        labels = {
            relabeling["targetLabel"]: meta_labels[relabeling["sourceLabels"][0]]
            if "sourceLabels" in relabeling
            else relabeling["replacement"]
            for relabeling in self.relabelings
        }
        label_set = ",".join(f'{label}="{value}"' for label, value in labels.items())
        values = {
            name.replace(SERVER, label_set): changed.get(name.removeprefix("sglang:").split("{")[0], values)
            for name, values in BUSY.items()
            if name.startswith("sglang:") and 'dp_rank="1"' not in name
        }
        return {f"up{{{label_set}}}": "1x240", **values}

    def firing(self, *pods: dict[str, str], alerts: tuple[str, ...], running: int) -> None:
        """Fail unless exactly these alerts fire after 17 minutes and `running` requests are recorded."""
        answering = {health(number): "1x240" for number in range(sum("1x240" in pod.values() for pod in pods))}
        gateway = {GATEWAY: "1x240", responses(200): "0+72x240", **answering}
        series = {name: values for pod in (gateway, *pods) for name, values in pod.items()}
        recorded = {"sum(deploy:requests_running:sum)": running}
        firing(self.rules, series, after=("17m",), alerts=alerts, values=recorded)


@pytest.fixture(scope="module")
def autoscaled(tmp_path_factory: pytest.TempPathFactory) -> Autoscaled:
    folder = tmp_path_factory.mktemp("autoscaled")
    request = monitoring_request(profile=SCALED, overrides=AUTOSCALING)
    files = {file.path: file.content for file in monitoring_files(monitored(request, Home(folder)))}
    monitor, _, rules = yaml.safe_load_all(files[f"{SCALED}.monitor.yml"])
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump(rules["spec"]))
    return Autoscaled(path, monitor["spec"]["podMetricsEndpoints"][0]["relabelings"])


HUNG = {"realtime_tokens_total": "0+9000x40 360000x200"}


def test_pods_of_one_deployment_are_counted_separately(autoscaled: Autoscaled) -> None:
    pods = [autoscaled.pod(number) for number in range(3)]
    autoscaled.firing(*pods, alerts=(), running=72)


def test_hung_pod_of_a_deployment_fires_alert(autoscaled: Autoscaled) -> None:
    pods = [autoscaled.pod(1), autoscaled.pod(2), autoscaled.pod(3, **HUNG)]
    autoscaled.firing(*pods, alerts=("DeployRankDead",), running=72)


def test_starting_pod_added_by_autoscaler_fires_no_alert(autoscaled: Autoscaled) -> None:
    added = {name: "0x240" for name in autoscaled.pod(4) if name.startswith("up{")}
    autoscaled.firing(*(autoscaled.pod(number) for number in range(3)), added, alerts=(), running=72)


@pytest.mark.parametrize("up", ["0x240", "_x240"])
def test_fewer_pods_than_autoscaler_minimum_fire_alert(autoscaled: Autoscaled, up: str) -> None:
    missing_pod = {name: up for name in autoscaled.pod(3) if name.startswith("up{")}
    autoscaled.firing(autoscaled.pod(1), autoscaled.pod(2), missing_pod, alerts=("DeployReplicaDown",), running=48)


def test_autoscaler_minimum_of_one_has_no_replica_alert(tmp_path: Path) -> None:
    """`DeployServerDown` already fires if no replica answers."""
    settings = (*AUTOSCALING, "kubernetes.autoscaling.growth_rps_per_minute=0")
    files = monitoring_files(monitored(monitoring_request(profile=SCALED, overrides=settings), Home(tmp_path)))
    text = next(file.content for file in files if file.path.endswith(".monitor.yml")).decode()
    assert ("DeployServerDown" in text, "DeployReplicaDown" in text) == (True, False)
