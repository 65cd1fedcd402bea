"""`deploy monitoring`: the server, the expected values, and rules skipped for metrics that sglang does not export."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cluster_samples import CASES, MONITORED, all_objects, cluster_plan, objects
from run_samples import past_run

from orchestrator.cli.main import app
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import DeployError, ProfileError, StartError, UsageError
from orchestrator.core.paths import Home, data_root
from orchestrator.engine.flags import read_flags
from orchestrator.engine.metrics import Metric
from orchestrator.monitoring.files import monitoring_files, skipped_rules
from orchestrator.monitoring.request import MonitoringRequest, monitored
from orchestrator.monitoring.series import Expected, MonitoredServer, rendered

EMPTY_REQUEST = MonitoringRequest(
    name=None, profile=None, overrides=(), workload=None, expected=(), target=None, gpu_exporter=None
)

SLURM = ("runtime=slurm", "server.api_key_env=OWL_KEY")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def of_profile(home: Home, **settings: object) -> MonitoredServer:
    return monitored(replace(EMPTY_REQUEST, **{"profile": "mi355x-tp4dp2", **settings}), home)  # type: ignore[arg-type]


def alerts(server: MonitoredServer) -> dict[str, dict[str, object]]:
    texts = {file.path: file.content for file in monitoring_files(server)}
    groups = yaml.safe_load(texts[f"{server.name}.rules.yml"])["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


# without those of vLLM and those restricted to one label
SGLANG_METRICS = {metric for metric in Metric if metric.startswith("sglang:") and "{" not in metric}


@pytest.mark.parametrize("version", Catalog.shipped().names(EntryKind.FLAGS))
def test_every_version_exports_the_required_metrics(version: str) -> None:
    assert (read_flags(version, Catalog.shipped()).metrics or set()) >= SGLANG_METRICS


def test_rules_use_only_metrics_of_every_version(home: Home) -> None:
    for profile in ("mi355x-tp4dp2", "mi355x-tp4x2"):
        text = rendered("rules.yaml.j2", of_profile(home, profile=profile))
        used = {name.removesuffix("_bucket") for name in re.findall(r"sglang:\w+", text)}
        assert used == SGLANG_METRICS - {Metric.E2E}


def test_alert_threshold_comes_from_workload(home: Home) -> None:
    server = of_profile(home)
    assert server.expected == {
        "ttft_p95_s": Expected(value=5.0, source="`slo.ttft_p95_s` of workload `wafer-20k-1k`"),
        "cache_hit_rate": Expected(value=0.6, source="`cache_hit_rate` of workload `wafer-20k-1k`"),
    }
    alert = alerts(server)["DeployTtftHigh"]
    assert str(alert["expr"]).endswith(" > 5")
    assert alert["annotations"]["limit"] == "5 s: `slo.ttft_p95_s` of workload `wafer-20k-1k`"  # type: ignore[index]
    assert of_profile(home, workload="single-stream-10k-1.5k").expected.keys() == {"ttft_p95_s"}


def test_explicit_expectation_overrides_workload(home: Home) -> None:
    server = of_profile(home, expected=("cache_hit_rate=0.9", "accept_length=3.6"))
    assert str(alerts(server)["DeployCacheHitRateLow"]["expr"]).endswith("< 0.72")
    assert str(alerts(server)["DeployAcceptLengthLow"]["expr"]).endswith("< 2.88")
    assert server.expected["cache_hit_rate"].source == "`--expect cache_hit_rate=0.9`"
    assert not any("Accept" in text for text in skipped_rules(server))


@pytest.mark.parametrize(
    "pair", ["cache_hit_rate=1.5", "cache_hit_rate=", "accept_length=1", "ttft=3", "ttft_p95_s=nan", "x"]
)
def test_invalid_expectation_is_rejected(home: Home, pair: str) -> None:
    with pytest.raises(UsageError):
        of_profile(home, expected=(pair,))


def test_rules_for_missing_metrics_are_skipped_and_reported(home: Home) -> None:
    server = of_profile(home)
    server = replace(server, exported=server.exported - {Metric.CACHED_TOKENS})
    assert "DeployCacheHitRateLow" not in alerts(server)
    assert alerts(server).keys() == alerts(of_profile(home)).keys() - {"DeployCacheHitRateLow"}
    assert "prefix_cache_hit" not in monitoring_files(server)[0].content.decode()
    skipped = list(skipped_rules(server))
    version = server.plan.engine.version
    assert f"no deploy:prefix_cache_hit:rate5m: sglang {version} has no `sglang:cached_tokens_total`" in skipped
    assert "no alert DeployCacheHitRateLow: deploy:prefix_cache_hit:rate5m is not recorded" in skipped


def test_started_server_is_monitored_by_its_plan(home: Home) -> None:
    past_run(home, 1, "server.port=31999")
    server = monitored(replace(EMPTY_REQUEST, name="owl"), home)
    assert (server.name, server.targets, server.plan.server.port) == ("owl", ("127.0.0.1:31999",), 31999)
    assert server.expected["cache_hit_rate"].source == "`cache_hit_rate` of workload `smoke-tiny`"
    past_run(home, 2, "workload=null")
    server = monitored(replace(EMPTY_REQUEST, name="owl"), home)
    assert any("no alert DeployTtftHigh: no expected value" in text for text in skipped_rules(server))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, UsageError, "no server specified"),
        ({"name": "owls"}, StartError, "no previous run of `owls`"),
        ({"name": "../owl"}, UsageError, "is not a valid server name"),
        ({"name": "owl", "profile": "cpu-tiny"}, UsageError, "never started"),
        ({"profile": "cpu-tiny", "overrides": ("flags.enable-metrics=false",)}, UsageError, "exports no metrics"),
        (
            {"profile": "cpu-tiny", "overrides": SLURM},
            UsageError,
            "the address of `cpu-tiny` in its cluster is unknown",
        ),
        ({"profile": "cpu-tiny", "target": "http://x:1"}, UsageError, "is not an address"),
        ({"profile": "cpu-tiny", "gpu_exporter": "x"}, UsageError, "is not an address"),
        (
            {"profile": "cpu-tiny", "overrides": ("replicas=2",), "target": "x:1"},
            UsageError,
            "`cpu-tiny` has 2 replicas",
        ),
    ],
)
def test_unmonitorable_server_is_rejected(
    home: Home, settings: dict[str, object], error: type[DeployError], message: str
) -> None:
    past_run(home, 1)
    with pytest.raises(error, match=message):
        monitored(replace(EMPTY_REQUEST, **settings), home)  # type: ignore[arg-type]


def test_cluster_server_uses_the_given_target(home: Home) -> None:
    request = replace(EMPTY_REQUEST, profile="cpu-tiny", overrides=SLURM, target="n0:30010")
    assert monitored(request, home).targets == ("n0:30010",)


def test_replicas_and_gateway_are_scraped_separately(home: Home) -> None:
    server = of_profile(home, profile="mi355x-tp4x2", gpu_exporter="node:5000")
    files = {file.path: file.content for file in monitoring_files(server)}
    targets = yaml.safe_load(files["mi355x-tp4x2.targets.yml"])
    gateway = server.plan.gateway
    assert gateway is not None
    assert [(group["targets"], group["labels"].get("replica"), group["labels"].get("job")) for group in targets] == [
        ([f"127.0.0.1:{gateway.ports[0]}"], "replica-1", None),
        ([f"127.0.0.1:{gateway.ports[1]}"], "replica-2", None),
        ([f"127.0.0.1:{gateway.metrics_port}"], None, "deploy-gateway"),
        (["node:5000"], None, "deploy-gpus"),
    ]
    assert (
        files["prometheus.yml"]
        == {file.path: file.content for file in monitoring_files(of_profile(home))}["prometheus.yml"]
    )
    assert alerts(server).keys() - alerts(of_profile(home, gpu_exporter="x:1")).keys() == {
        "DeployReplicaDown", "DeployGatewayDown", "DeployReplicaNotRouted", "DeployGatewayErrors",
    }  # fmt: skip


# Fields that the CRDs of prometheus-operator 0.93.0 allow (example/prometheus-operator-crd, both v1).
RELABELING = {"action", "modulus", "regex", "replacement", "separator", "sourceLabels", "targetLabel"}
ENDPOINT = {
    "authorization", "basicAuth", "bearerTokenSecret", "enableHttp2", "filterRunning", "followRedirects", "honorLabels",
    "honorTimestamps", "interval", "metricRelabelings", "oauth2", "params", "path", "port", "portNumber", "proxyUrl",
    "relabelings", "scheme", "scrapeTimeout", "targetPort", "tlsConfig", "trackTimestampsStaleness",
}  # fmt: skip
GROUP = {"interval", "labels", "limit", "name", "partial_response_strategy", "query_offset", "rules"}
RULE = {"alert", "annotations", "expr", "for", "keep_firing_for", "labels", "record"}
DURATION = re.compile(r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$")


def in_cluster(home: Home, **more: object) -> tuple[MonitoredServer, dict[str, str]]:
    """Return a server planned for a cluster and its monitoring files."""
    settings = ("runtime=kubernetes", "kubernetes.weights.pvc=models", "kubernetes.namespace=serving")
    server = of_profile(home, overrides=settings, **more)
    return server, {file.path: file.content.decode() for file in monitoring_files(server)}


def test_cluster_monitoring_uses_prometheus_operator_objects(home: Home) -> None:
    server, files = in_cluster(home)
    assert sorted(files) == ["mi355x-tp4dp2.dashboard.json", "mi355x-tp4dp2.monitor.yml"]
    monitor, rules = yaml.safe_load_all(files["mi355x-tp4dp2.monitor.yml"])
    for obj in (monitor, rules):
        assert obj["apiVersion"] == "monitoring.coreos.com/v1"
        assert (obj["metadata"]["name"], obj["metadata"]["namespace"]) == ("mi355x-tp4dp2", "serving")
        assert obj["metadata"].keys() <= {"name", "namespace", "labels"}
    assert monitor["spec"].keys() == {"selector", "podMetricsEndpoints"}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.keys() <= ENDPOINT
    assert all(
        relabeling.keys() <= RELABELING for relabeling in (*endpoint["relabelings"], *endpoint["metricRelabelings"])
    )
    assert {"targetLabel": "server", "replacement": server.name} in endpoint["relabelings"], (
        "every rule selects this label"
    )
    assert {"targetLabel": "job", "replacement": "deploy"} in endpoint["relabelings"]
    assert rules["kind"] == "PrometheusRule"
    for group in rules["spec"]["groups"]:
        assert group.keys() <= GROUP
        for rule in group["rules"]:
            assert rule.keys() <= RULE
            assert ("alert" in rule) != ("record" in rule)
            assert all(DURATION.match(rule.get(key, "0s")) for key in ("for", "keep_firing_for"))


def test_pod_monitor_matches_pod_labels_and_port(home: Home) -> None:
    _, files = in_cluster(home)
    monitor = next(iter(yaml.safe_load_all(files["mi355x-tp4dp2.monitor.yml"])))
    plan = cluster_plan("mi355x-tp4dp2", "kubernetes.weights.pvc=models", "kubernetes.namespace=serving")
    template = objects(plan)["Deployment"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (server,) = template["spec"]["containers"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in server["ports"]}


def test_pod_monitor_selects_and_labels_replicas(home: Home) -> None:
    settings = ("runtime=kubernetes", *CASES["mi355x-tp4x2"])
    server = of_profile(home, profile="mi355x-tp4x2", overrides=settings)
    text = next(file.content for file in monitoring_files(server) if file.path.endswith(".monitor.yml"))
    monitor, gateway, rules = yaml.safe_load_all(text)
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    rendered = all_objects(cluster_plan("mi355x-tp4x2", *CASES["mi355x-tp4x2"]))
    pods = [obj["spec"]["template"] for obj in rendered if obj["kind"] == "Deployment"]
    selected = [pod["metadata"]["labels"] for pod in pods if selector <= pod["metadata"]["labels"].items()]
    assert [labels["deploy.unit"] for labels in selected] == ["replica-1", "replica-2"]
    (gateway_pod,) = (pod for pod in pods if pod["metadata"]["labels"]["deploy.unit"] == "gateway")
    assert gateway["spec"]["selector"]["matchLabels"].items() <= gateway_pod["metadata"]["labels"].items()
    (endpoint,) = gateway["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in gateway_pod["spec"]["containers"][0]["ports"]}
    assert {"targetLabel": "job", "replacement": "deploy-gateway"} in endpoint["relabelings"]
    assert "DeployGatewayDown" in {rule.get("alert") for group in rules["spec"]["groups"] for rule in group["rules"]}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert {"sourceLabels": ["__meta_kubernetes_pod_label_deploy_unit"], "targetLabel": "replica"} in endpoint[
        "relabelings"
    ]


def test_unscrapable_gateway_metrics_have_no_alerts(home: Home) -> None:
    settings = ("runtime=kubernetes", *(word for word in CASES["mi355x-tp4x2"] if word != MONITORED))
    server = of_profile(home, profile="mi355x-tp4x2", overrides=settings)
    assert any("see `kubernetes.allowed_scrapers`" in text for text in skipped_rules(server))
    text = next(file.content for file in monitoring_files(server) if file.path.endswith(".monitor.yml")).decode()
    assert ("DeployReplicaDown" in text, "DeployGateway" in text, text.count("kind: PodMonitor")) == (True, False, 1)


def test_operator_and_standalone_rules_are_identical(home: Home) -> None:
    _, files = in_cluster(home, target="node:30000")
    assert {"prometheus.yml", "mi355x-tp4dp2.targets.yml", "mi355x-tp4dp2.monitor.yml"} <= set(files)
    _, rules = yaml.safe_load_all(files["mi355x-tp4dp2.monitor.yml"])
    assert rules["spec"] == yaml.safe_load(files["mi355x-tp4dp2.rules.yml"])


def test_flag_table_without_metrics_hints_at_add_engine(home: Home) -> None:
    version = "0.5.14"
    table = json.loads((data_root() / f"profiles/engines/flags/{version}.json").read_text())
    own = home.root / f"profiles/engines/flags/{version}.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({key: value for key, value in table.items() if key != "metrics"}))
    with pytest.raises(ProfileError, match="has no metrics") as caught:
        monitored(replace(EMPTY_REQUEST, profile="cpu-tiny"), home)
    assert caught.value.hint == f"`deploy add engine {version} --flags-only` recreates it"


def test_command_writes_files_and_reports_skipped_rules(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(home.root))
    words = ["monitoring", "-p", "cpu-tiny", "--workload", "smoke-tiny", "--output", str(tmp_path / "out"), "--json"]
    app(words, standalone_mode=False)
    written = json.loads(capsys.readouterr().out)
    assert [Path(file).name for file in written["files"]] == [
        "cpu-tiny.dashboard.json", "cpu-tiny.rules.yml", "cpu-tiny.targets.yml", "prometheus.yml",
    ]  # fmt: skip
    assert all(Path(file).is_file() for file in written["files"])
    assert "only the log" in written["skipped"][-1]


def test_two_servers_share_one_prometheus_configuration(home: Home) -> None:
    with_gpus = of_profile(home, gpu_exporter="node:5000")
    one, other = (
        {file.path: file.content for file in monitoring_files(served)}
        for served in (with_gpus, of_profile(home, profile="cpu-tiny"))
    )
    assert one.keys() & other.keys() == {"prometheus.yml"}
    assert one["prometheus.yml"] == other["prometheus.yml"]
    targets = yaml.safe_load(one["mi355x-tp4dp2.targets.yml"])
    assert [(group["targets"], group["labels"].get("job")) for group in targets] == [
        ([*with_gpus.targets], None), (["node:5000"], "deploy-gpus"),
    ]  # fmt: skip
