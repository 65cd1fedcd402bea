"""`deploy up` and `deploy render` report all problems of a profile's runtime together."""

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator.cli.overrides import name_options
from orchestrator.cli.render import command as render
from orchestrator.cli.up import command as up
from orchestrator.core.errors import HostError, ProfileError, UsageError
from orchestrator.servers.start import plans


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    monkeypatch.delenv("OWL_KEY", raising=False)


def test_kubernetes_problems_are_reported_together() -> None:
    with pytest.raises(ProfileError) as caught:
        up(profile="mi355x-tp8", runtime="kubernetes", set_=["server.api_key_env=OWL_KEY"], host=["ssh://node"])
    assert [problem.message for problem in caught.value.problems] == [
        "no checkpoint location is set for the pods",
        "the image that `deploy` builds is in no registry",
        "cannot use `--host` with kubernetes: the cluster chooses the node",
        "`OWL_KEY` is not set: the plan reads the API key from this variable",
    ]


def test_leader_worker_set_is_rendered_but_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["layout.nodes=2", "layout.tp=16", "kubernetes.weights.pvc=c", "kubernetes.image_pull_policy=Never"]
    render(profile="mi355x-tp8", runtime="kubernetes", set_=[*settings, "server.allow_unauthenticated=true"])
    assert "kind: LeaderWorkerSet" in capsys.readouterr().out
    for more in ([], ["server.allow_unauthenticated=true"]):
        with pytest.raises(ProfileError) as caught:
            up(profile="mi355x-tp8", runtime="kubernetes", set_=[*settings, *more], dry_run=True)
        messages = [problem.message for problem in caught.value.problems]
        assert messages[-1] == "`up` cannot start a LeaderWorkerSet (a server on several nodes)"
        assert len(messages) == 1 + (not more)


def test_restricted_pods_need_gpu_groups() -> None:
    settings = ["kubernetes.weights.pvc=c", "kubernetes.pod_security=restricted"]
    with pytest.raises(ProfileError) as caught:
        render(profile="mi355x-tp8", runtime="kubernetes", image="me/x@sha256:" + "a" * 64, set_=settings)
    (problem,) = caught.value.problems
    assert problem.message == "as user 1000, the server cannot open /dev/kfd and /dev/dri/renderD* of the node"
    assert "kubernetes.supplemental_groups" in problem.hint


def test_hint_names_the_given_option() -> None:
    """`--set runtime` has no effect together with `--runtime`."""
    with pytest.raises(ProfileError) as caught:
        up(profile="mi355x-tp8", runtime="process", dry_run=True)
    for runtime_option, option in (("process", "`--runtime docker`"), (None, "`--set runtime=docker`")):
        error = copy(caught.value)
        name_options(error, revision=None, runtime=runtime_option)
        assert option in error.problems[0].hint


def test_render_reports_kubernetes_problems_together() -> None:
    with pytest.raises(ProfileError) as caught:
        render(profile="mi355x-tp8", runtime="kubernetes", set_=["layout.tp=16"])
    assert [problem.message for problem in caught.value.problems] == [
        "tp 16 needs 16 GPUs; the node has 8",
        "no checkpoint location is set for the pods",
        "the image that `deploy` builds is in no registry",
    ]


@pytest.mark.parametrize("command", [up, render])
def test_missing_image_digest_is_reported_with_other_problems(
    command: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_known_image", lambda *_, **__: None)  # its registry does not answer
    with pytest.raises(ProfileError) as caught:
        command(
            profile="mi355x-tp8-july", runtime="kubernetes", image="me/x:1", set_=["kubernetes.service_type=NodePort"]
        )
    assert {problem.message for problem in caught.value.problems} == {
        "no checkpoint location is set for the pods",
        "a Service of type NodePort exposes the server outside the cluster without an API key",
        "`me/x:1` has no registry digest; a cluster needs the image by digest",
        "patch `mtp-shared-expert-exclude` changes the checkpoint's config.json, which is in the cluster",
    }


def test_profile_problems_precede_docker_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_docker(_: str | None = None) -> NoReturn:
        raise HostError("no Docker daemon answers")

    monkeypatch.setattr(plans, "find_docker", find_docker)
    with pytest.raises(ProfileError) as caught:
        up(profile="mi355x-tp8", image="me/x:1", set_=["layout.tp=16", "server.api_key_env=OWL_KEY"])
    assert [problem.message for problem in caught.value.problems] == [
        "tp 16 needs 16 GPUs; the node has 8",
        "`OWL_KEY` is not set: the plan reads the API key from this variable",
    ]
    with pytest.raises(HostError, match="no Docker daemon answers"):
        up(profile="mi355x-tp8", image="me/x:1")


def test_slurm_problems_are_reported_together() -> None:
    with pytest.raises(ProfileError) as caught:
        up(profile="mi355x-tp8", runtime="slurm", image="me/x:1")
    assert [problem.message for problem in caught.value.problems] == [
        "on Slurm this engine needs a Python interpreter on the nodes, or a container",
        "on Slurm the server is open to the cluster's network and has no API key",
        "the slurm runtime uses no image",
    ]


def test_multi_node_container_problems_are_reported_together() -> None:
    settings = ["slurm.container=pyxis", "layout.nodes=2", "server.api_key_env=OWL_KEY"]
    with pytest.raises(ProfileError) as caught:
        up(profile="mi355x-tp8", runtime="slurm", set_=settings)
    assert [problem.message for problem in caught.value.problems] == [
        "cannot start a server on several nodes with pyxis: it needs the job step that starts each rank",
        "`pyxis` needs an image",
        "`OWL_KEY` is not set: the plan reads the API key from this variable",
    ]


def test_single_problem_keeps_its_message() -> None:
    with pytest.raises(UsageError, match="`OWL_KEY` is not set"):
        up(profile="cpu-tiny", set_=["server.api_key_env=OWL_KEY"])
    with pytest.raises(ProfileError, match="cannot plan profile `cpu-tiny`"):
        up(profile="cpu-tiny", runtime="slurm")
