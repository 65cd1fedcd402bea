"""The Kubernetes objects of a server; complete files are in tests/golden/kubernetes."""

import itertools
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_samples import HOST_PATH, IMAGE, MONITORED, all_objects, cluster_plan, manifest_texts, objects, pod
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.errors import ProfileError
from orchestrator.core.origin import Origin
from orchestrator.core.paths import data_root
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.engine import drain, first_sample, liveness
from orchestrator.plan.plan import NAME, EnvVar
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.kubernetes import manifests
from orchestrator.runtimes.kubernetes.checks import cluster_findings
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.manifests import _quoted
from orchestrator.runtimes.kubernetes.probes import hang_seconds, startup_limit
from orchestrator.runtimes.kubernetes.record import object_name

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
GLM = "mi355x-tp4dp2"
LOCAL = ("model.checkpoint.source=local", "model.checkpoint.path=/data/own", "model.checkpoint.revision=null")


def container(profile: str, *overrides: str) -> dict[str, Any]:
    (result,) = pod(cluster_plan(profile, HOST_PATH, *overrides))["containers"]
    assert isinstance(result, dict)
    return result


WORDS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=16)
NAMES = st.lists(st.tuples(WORDS, st.sampled_from("._-")), min_size=1, max_size=8).map(
    lambda pieces: "".join(itertools.chain(*pieces))[:63].rstrip("._-")
)


@given(NAMES)
def test_every_server_name_yields_valid_object_name(name: str) -> None:
    assert NAME.fullmatch(name)
    result = object_name(name)
    assert DNS_LABEL.fullmatch(result)
    assert len(f"{result}--replica-99") <= 63


def test_similar_server_names_yield_distinct_object_names() -> None:
    alike = ("glm-5-2", "glm-5.2", "glm_5.2", "glm-5_2", f"glm-{'5' * 59}", f"glm-{'5' * 58}2")
    assert len({object_name(name) for name in alike}) == len(alike)


def test_every_object_and_pod_carries_the_record() -> None:
    plan = cluster_plan("cpu-tiny", HOST_PATH)
    by_kind = objects(plan, "boxed")
    for metadata in [obj["metadata"] for obj in (*by_kind.values(), by_kind["Deployment"]["spec"]["template"])]:
        assert metadata["labels"]["deploy.name"] == "boxed"
        assert metadata["annotations"]["deploy.plan"] == plan.digest
        assert metadata["annotations"]["deploy.profile"] == "cpu-tiny"


def test_deployment_recreates_instead_of_surging() -> None:
    spec = objects(cluster_plan(GLM, HOST_PATH))["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert container(GLM)["resources"]["limits"]["amd.com/gpu"] == "8"


def test_every_container_has_resource_requests_and_limits() -> None:
    """Requests cover resident memory; limits also cover the 438 GB of weights while they are read."""
    pod_spec = pod(cluster_plan(GLM, HOST_PATH))
    requests, limits = {"cpu": "16", "memory": "62161Mi"}, {"cpu": "80", "memory": "586714Mi"}
    assert pod_spec["containers"][0]["resources"] == {"requests": requests, "limits": {**limits, "amd.com/gpu": "8"}}
    assert pod_spec["initContainers"][0]["resources"] == {"requests": requests, "limits": limits}
    for size in ("512Gi", "64G", "1.5T", "1024"):
        resources = container("cpu-tiny", "kubernetes.cpu=0.5", f"kubernetes.memory={size}")["resources"]
        assert resources == {"requests": {"cpu": "0.5", "memory": size}, "limits": {"cpu": "10", "memory": size}}
    for obj in all_objects(cluster_plan("mi355x-tp4x2", HOST_PATH)):
        for server in obj["spec"]["template"]["spec"]["containers"] if obj["kind"] == "Deployment" else ():
            assert {"cpu", "memory"} <= server["resources"]["requests"].keys() & server["resources"]["limits"].keys()


def test_gpu_count_includes_base_gpu_offset() -> None:
    server = container("mi355x-tp4dp2", "layout.dp=1", "flags.base-gpu-id=2")
    assert server["resources"]["limits"]["amd.com/gpu"] == "6"
    assert container("cpu-tiny")["resources"]["limits"].keys() == {"cpu", "memory"}


def test_startup_limit_scales_with_weights_size() -> None:
    plan = cluster_plan(GLM, HOST_PATH)
    assert startup_limit(plan) == 3601 + plan.timeouts.progress_deadline  # 438 GB in an hour
    tiny = cluster_plan("cpu-tiny", HOST_PATH)
    assert startup_limit(tiny) == 480 + tiny.timeouts.progress_deadline
    probe = container(GLM)["startupProbe"]
    assert isinstance(probe, dict)
    assert probe["periodSeconds"] * probe["failureThreshold"] >= startup_limit(plan)
    deadline = objects(plan)["Deployment"]["spec"]["progressDeadlineSeconds"]
    assert deadline > probe["periodSeconds"] * probe["failureThreshold"] + first_sample.SAMPLE_LIMIT


def test_probes_tolerate_long_prefills() -> None:
    plan, server = cluster_plan(GLM, HOST_PATH), container(GLM)
    for kind in ("readinessProbe", "livenessProbe"):
        probe = server[kind]
        assert isinstance(probe, dict)
        assert 20 < probe["timeoutSeconds"] <= probe["periodSeconds"] * probe["failureThreshold"]
    assert (
        probe["periodSeconds"] * (probe["failureThreshold"] - 1)
        == hang_seconds(plan)
        >= plan.restart_policy.unhealthy_after
    )


def test_liveness_probe_checks_each_rank_with_api_key() -> None:
    plan = cluster_plan(GLM, HOST_PATH, "server.api_key_env=SGLANG_KEY")
    pod_spec = pod(plan)
    command = pod_spec["containers"][0]["livenessProbe"]["exec"]["command"]
    assert command[-4:] == [str(plan.server.port), "2", "20", "/run/secrets/deploy/config.yaml"]
    (mount,) = [mount_ for mount_ in pod_spec["containers"][0]["volumeMounts"] if mount_["name"] == "life"]
    (volume,) = [volume_ for volume_ in pod_spec["volumes"] if volume_["name"] == "life"]
    program = objects(plan)["ConfigMap"]
    assert volume["configMap"]["name"] == program["metadata"]["name"]
    assert command[3] in {f"{mount['mountPath']}/{file}" for file in program["data"]}
    assert program["data"]["liveness.py"] == Path(liveness.__file__).read_text()
    assert container("cpu-tiny")["livenessProbe"]["exec"]["command"][-3:] == ["30010", "1", "20"]


def test_startup_probe_sends_a_first_sampled_request() -> None:
    plan = cluster_plan(GLM, HOST_PATH, "server.api_key_env=SGLANG_KEY")
    probe = pod(plan)["containers"][0]["startupProbe"]
    path, *words = probe["exec"]["command"][3:]
    assert words == [str(plan.server.port), "2", "/run/secrets/deploy/config.yaml"]
    assert path == "/run/deploy/first_sample.py"
    assert objects(plan)["ConfigMap"]["data"]["first_sample.py"] == Path(first_sample.__file__).read_text()
    assert probe["timeoutSeconds"] > first_sample.HEALTH_LIMIT + first_sample.SAMPLE_LIMIT


def test_termination_grace_covers_the_drain() -> None:
    """The hook waits for requests before SIGTERM; afterwards sglang checks every 5 s whether it is idle."""
    plan = cluster_plan(GLM, HOST_PATH, "server.api_key_env=SGLANG_KEY", "timeouts.termination_grace=70")
    assert pod(plan)["terminationGracePeriodSeconds"] == 100
    command = pod(plan)["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[3:] == ["/run/deploy/drain.py", str(plan.server.port), "70", "/run/secrets/deploy/config.yaml"]
    assert objects(plan)["ConfigMap"]["data"]["drain.py"] == Path(drain.__file__).read_text()


def test_pod_security_settings_come_from_hardware_entry() -> None:
    settings = ("kubernetes.supplemental_groups=[109,44]", "kubernetes.pod_security=privileged")
    pod_spec = pod(cluster_plan(GLM, HOST_PATH, *settings))
    assert pod_spec["securityContext"] == {"seccompProfile": {"type": "Unconfined"}, "supplementalGroups": [44, 109]}
    assert pod_spec["containers"][0]["securityContext"] == {"capabilities": {"add": ["SYS_PTRACE"]}}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(16 << 30)}} in pod_spec["volumes"]
    assert "privileged" not in str(pod_spec)


PVC = "kubernetes.weights.pvc=models"
LEVELS = ("privileged", "baseline", "restricted")


def admitted(spec: dict[str, Any]) -> str:
    """Return the strictest Pod Security Standard that admits a pod, by the controls that a manifest can set."""
    security, volumes = spec.get("securityContext", {}), {key for volume_ in spec["volumes"] for key in volume_}
    contexts = [
        container_.get("securityContext", {}) for container_ in (*spec.get("initContainers", ()), *spec["containers"])
    ]
    profile = security.get("seccompProfile", {}).get("type")
    added = [capability for context in contexts for capability in context.get("capabilities", {}).get("add", ())]
    if added or "hostPath" in volumes or profile == "Unconfined" or spec.keys() & {"hostIPC", "hostNetwork", "hostPID"}:
        return "privileged"
    strict = security.get("runAsNonRoot") and security["runAsUser"] and profile == "RuntimeDefault"
    unprivileged = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return "restricted" if strict and all(context == unprivileged for context in contexts) else "baseline"


@pytest.mark.parametrize(
    ("profile", "settings", "level"),
    [
        ("cpu-tiny", (PVC,), "restricted"),
        ("b200-tp8", (PVC,), "restricted"),
        (GLM, (PVC,), "baseline"),
        (
            "mi355x-tp4x2",
            (PVC, "kubernetes.pod_security=restricted", "kubernetes.supplemental_groups=[109]"),
            "restricted",
        ),
        (GLM, (PVC, "kubernetes.pod_security=restricted", "kubernetes.supplemental_groups=[109]"), "restricted"),
        (GLM, (PVC, "kubernetes.pod_security=privileged"), "privileged"),
        ("cpu-tiny", (HOST_PATH,), "privileged"),
        ("b200-tp8", (*LOCAL,), "privileged"),
        ("b200-tp8", (*LOCAL, PVC), "restricted"),
    ],
)
def test_pods_meet_the_stated_pod_security_standard(profile: str, settings: tuple[str, ...], level: str) -> None:
    plan = cluster_plan(profile, *settings, "server.api_key_env=SGLANG_KEY")
    specs = [obj["spec"]["template"]["spec"] for obj in all_objects(plan) if obj["kind"] == "Deployment"]
    assert min(map(admitted, specs), key=LEVELS.index) == level
    text = manifest_texts(plan)["kubernetes.yaml"]
    assert f"# the namespace must admit the Pod Security Standard {level}: " in text
    for spec in specs:  # root owns the key file, and all containers of a pod run as one user
        [key] = [volume_["secret"]["defaultMode"] for volume_ in spec["volumes"] if volume_["name"] == "key"]
        assert key == (0o444 if "runAsUser" in spec.get("securityContext", {}) else 0o400)


@pytest.mark.parametrize(("enforced", "rejected"), [(None, False), ("baseline", False), ("restricted", True)])
def test_preflight_detects_too_strict_namespace(
    monkeypatch: pytest.MonkeyPatch, enforced: str | None, rejected: bool
) -> None:
    labels = {} if enforced is None else {"pod-security.kubernetes.io/enforce": enforced}
    response = {"metadata": {"labels": labels}, "items": [], "gitVersion": "v1.36.0"}
    result = CompletedProgram(argv=("kubectl",), code=0, stdout=json.dumps(response), stderr="")
    monkeypatch.setattr(Cluster, "ask", lambda *_, **__: result)
    findings = {finding.check: finding for finding in cluster_findings(cluster_plan(GLM, PVC))}
    assert ("pod security" in findings) is rejected
    if rejected:
        assert "kubectl --namespace default label namespace default" in findings["pod security"].hint


def test_api_key_is_mounted_from_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_KEY", "sk-5ecret-5ecret-5ecret")
    plan = cluster_plan("cpu-tiny", HOST_PATH, "server.api_key_env=SGLANG_KEY")
    pod_spec = pod(plan)
    (volume,) = [volume_ for volume_ in pod_spec["volumes"] if "secret" in volume_]
    assert volume["secret"]["secretName"] == "cpu-tiny-key"
    assert pod_spec["containers"][0]["args"][-2:] == ["--config", "/run/secrets/deploy/config.yaml"]
    text = manifest_texts(plan)["kubernetes.yaml"]
    assert "secretKeyRef" not in text
    assert "5ecret" not in text
    line = """printf '{"api-key": "%s"}\\n' "$SGLANG_KEY" | kubectl create secret generic cpu-tiny-key"""
    assert f"#   {line} --namespace default --from-file=config.yaml=/dev/stdin\n" in text


def test_network_policy_admits_only_labeled_clients() -> None:
    plan = cluster_plan("cpu-tiny", HOST_PATH, "kubernetes.allowed_clients=[team=ours]")
    (rule,) = objects(plan)["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"team": "ours"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": plan.server.port}]


def test_network_policy_admits_allowed_scrapers() -> None:
    clients, prometheus = objects(cluster_plan("cpu-tiny", HOST_PATH, MONITORED))["NetworkPolicy"]["spec"]["ingress"]
    labels = {"kubernetes.io/metadata.name": "monitoring"}
    assert prometheus == {"from": [{"namespaceSelector": {"matchLabels": labels}}], "ports": clients["ports"]}
    open_to_all = objects(
        cluster_plan("cpu-tiny", HOST_PATH, MONITORED, "kubernetes.service_type=NodePort", "server.api_key_env=KEY")
    )
    assert open_to_all["NetworkPolicy"]["spec"]["ingress"] == [{"ports": clients["ports"]}]


@pytest.mark.parametrize("message", ["[monitoring]", "[a=b c]", "[=b]", "monitoring", "{name: monitoring}", "[-a=b]"])
def test_invalid_namespace_label_is_rejected_at_its_line(tmp_path: Path, message: str) -> None:
    profile = tmp_path / "own.yaml"
    profile.write_text(f"extends: cpu-tiny\nkubernetes:\n  allowed_scrapers: {message}\n")
    with pytest.raises(ProfileError) as caught:
        load(str(profile))
    assert any(f"{profile}:3" in problem.location for problem in caught.value.problems_or_self())


def test_environment_values_are_escaped_for_kubernetes() -> None:
    plan = cluster_plan("cpu-tiny", HOST_PATH)
    variable = EnvVar(name="A", value="$(PATH) $$ $x", origin=Origin.USER, source="")
    env = pod(replace(plan, env=(variable,)))["containers"][0]["env"]
    assert {"name": "A", "value": "$$(PATH) $$$$ $$x"} in env


def test_checkpoint_is_checked_before_arguments() -> None:
    plan = cluster_plan(GLM, "kubernetes.weights.pvc=models", "kubernetes.namespace=serving")
    checkpoint_check, argument_check = pod(plan)["initContainers"]
    assert (checkpoint_check["name"], argument_check["name"]) == ("checkpoint", "arguments")
    assert checkpoint_check["command"][-2] == f"/models/{plan.model.name}/config.json"
    program = checkpoint_check["command"][-1]
    origin = f"copy `amd/GLM-5.2-MXFP4`, revision `{plan.model.checkpoint.revision}`, to its directory"
    assert origin in program
    assert origin in manifest_texts(plan)["kubernetes.yaml"].partition("---")[0]


def test_generated_checkpoint_must_be_copied_into_claim() -> None:
    (checkpoint_check, _) = pod(cluster_plan("cpu-tiny", "kubernetes.weights.pvc=models"))["initContainers"]
    assert "`deploy stage cpu-tiny` makes" in checkpoint_check["command"][-1]
    assert [entry["name"] for entry in pod(cluster_plan(GLM, HOST_PATH))["initContainers"]] == ["arguments"]


def test_local_checkpoint_volume_follows_settings() -> None:
    """A claim and a node directory were once ignored: the pods mounted the path of the operator's machine."""

    def models(*settings: str) -> dict[str, Any]:
        (volume,) = (
            volume_ for volume_ in pod(cluster_plan(GLM, *LOCAL, *settings))["volumes"] if volume_["name"] == "models"
        )
        return {key: value for key, value in volume.items() if key != "name"}

    assert models() == {"hostPath": {"path": "/data/own", "type": "Directory"}}
    assert models(HOST_PATH)["hostPath"]["path"] == HOST_PATH.partition("=")[2]
    assert models(PVC)["persistentVolumeClaim"]["claimName"] == PVC.partition("=")[2]
    (checkpoint_check, _) = pod(cluster_plan(GLM, *LOCAL, PVC))["initContainers"]
    assert "copy `/data/own` to its directory `glm-5.2-mxfp4`" in checkpoint_check["command"][-1]


@given(st.text(max_size=80))  # YAML forbids a key of more than 1,024 characters; an escaped one has up to 12
def test_quoted_values_survive_yaml(value: str) -> None:
    """YAML folds some line ends, and some Unicode line ends terminate a document."""
    assert yaml.safe_load(f"{{key: {_quoted([value, {value: value}])}}}") == {"key": [value, {value: value}]}


def test_undefined_template_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_of_unit", lambda *_: {})
    with pytest.raises(ValueError, match="is undefined"):
        manifest_texts(cluster_plan("cpu-tiny", HOST_PATH))


def test_arguments_are_checked_before_server_starts() -> None:
    """The check has the server's image, variables and arguments, but neither its GPUs nor its key."""
    plan = cluster_plan(GLM, HOST_PATH, "server.api_key_env=SGLANG_KEY")
    pod_spec, data = pod(plan), objects(plan)["ConfigMap"]["data"]
    (argument_check,), (server,) = pod_spec["initContainers"], pod_spec["containers"]
    assert (argument_check["image"], argument_check["env"]) == (server["image"], server["env"])
    assert "amd.com/gpu" not in argument_check["resources"]["limits"]
    assert [mount["name"] for mount in argument_check["volumeMounts"]] == ["models", "life"]
    program, question, arguments = argument_check["command"][2:]
    assert (program, arguments) == ("/run/deploy/check_server_args.py", "/dev/termination-log")
    question_data = json.loads(data[question.rpartition("/")[2]])
    (argv,) = question_data["argv"]
    assert argv == server["args"][server["args"].index("--model-path") : server["args"].index("--config")]
    assert (question_data["platform"], question_data["arch"], question_data["model"]) == ("rocm", "gfx950", None)
    assert data["check_server_args.py"] == (data_root() / "images" / "check_server_args.py").read_text()


@pytest.mark.parametrize(
    ("overrides", "image", "message"),
    [
        ((), None, "is in no registry"),
        ((), "registry.example/sglang:latest", "has no registry digest"),
        ((), f"sha256:{'0' * 64}", "has no registry digest"),
    ],
)
def test_image_without_registry_digest_is_rejected(overrides: tuple[str, ...], image: str | None, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        manifest_texts(cluster_plan("cpu-tiny", HOST_PATH, *overrides, image=image))
    (problem,) = caught.value.problems
    assert message in problem.message
    assert "--push" in problem.hint
    assert "image_pull_policy" in problem.hint


def test_node_local_image_is_never_pulled() -> None:
    (server,) = pod(cluster_plan("cpu-tiny", HOST_PATH, "kubernetes.image_pull_policy=Never", image=None))["containers"]
    assert server["imagePullPolicy"] == "Never"
    assert server["image"].startswith("deploy/cpu-tiny:")
    assert container("cpu-tiny")["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize(
    ("section", "line", "message"),
    [
        ("{}", 2, "no checkpoint location is set for the pods"),
        ("\n  service_type: LoadBalancer\n  weights: {pvc: models}", 3, "outside the cluster"),
        ("\n  weights: {pvc: models, host_path: /srv}", 3, "mutually exclusive"),
        ("\n  tolerations: [nonsense]", 3, "nonsense"),
        ("\n  namespace: Not.One", 3, "Not.One"),
    ],
)
def test_invalid_kubernetes_settings_are_rejected_with_their_line(
    section: str, line: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: cpu-tiny\nkubernetes: {section}\nruntime: kubernetes\n")
    with pytest.raises(ProfileError) as caught:
        load(str(file))
    assert any(
        message in problem.message and problem.location.endswith(f"mine.yaml:{line}")
        for problem in caught.value.problems
    )


def test_other_runtimes_ignore_kubernetes_settings() -> None:
    assert load("cpu-tiny", overrides=(HOST_PATH,)).plan.kubernetes is None


def test_build_is_rendered_without_registry() -> None:
    """`deploy build --push` pushes the image later."""
    assert render_artifacts(cluster_plan("cpu-tiny", HOST_PATH, image=None)).build is not None


def test_render_uses_the_given_image(tmp_path: Path) -> None:
    words = ["render", "cpu-tiny", "--runtime", "kubernetes", "--set", HOST_PATH, "--image", IMAGE, "--output"]
    result = CliRunner().invoke(app, [*words, str(tmp_path / "out")])
    assert result.exit_code == 0
    assert f"image: {IMAGE}" in (tmp_path / "out" / "kubernetes.yaml").read_text()
    assert not (tmp_path / "out" / "image").exists()
