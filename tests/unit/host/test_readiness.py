"""What the workflow tells preflight: which machine it is, and what an image reference stands for."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from plan_samples import plan_of

from orchestrator.commands.readiness import far_host, image_digests, inspect_host
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.core.shell import Result
from orchestrator.host.subject import Probe
from orchestrator.host.survey import Runner

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def docker(answers: Mapping[str, tuple[int, str]]) -> Runner:
    def run(argv: Sequence[str]) -> Result:
        code, text = answers.get(argv[1], (1, ""))
        return Result(argv=tuple(argv), code=code, stdout=text if code == 0 else "", stderr=text if code else "")

    return run


def test_an_image_on_this_host_is_asked_before_its_registry() -> None:
    here = docker({"image": (0, json.dumps([f"lmsysorg/sglang@{A}"])), "manifest": (1, "must not be asked")})
    assert image_digests(here, "lmsysorg/sglang:x") == {A}
    assert image_digests(docker({"image": (0, "[]")}), "built:here") == {"built on this host"}


def test_an_image_in_its_registry_with_one_platform_or_more() -> None:
    one = json.dumps({"Descriptor": {"digest": A}})
    two = json.dumps([{"Descriptor": {"digest": A}}, {"Descriptor": {"digest": B}}])
    assert image_digests(docker({"manifest": (0, one)}), "x") == {A}
    assert image_digests(docker({"manifest": (0, two)}), "x") == {A, B}


def test_an_image_that_does_not_exist_and_a_registry_that_is_silent() -> None:
    assert image_digests(docker({"manifest": (1, "no such manifest: docker.io/x:y")}), "x:y") == frozenset()
    with pytest.raises(OSError, match="no such host"):
        image_digests(docker({"manifest": (1, "lookup registry-1.docker.io: no such host")}), "x:y")


def test_room_is_asked_for_what_is_still_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh node needs room for the whole checkpoint, one that was staged in part for the rest."""
    monkeypatch.setattr("orchestrator.commands.readiness.preflight", lambda _plan, probe: probe)
    plan, home = plan_of("mi355x-tp8", runtime="process"), Home(tmp_path)

    def room() -> list[tuple[str, int]]:
        probe = cast("Probe", inspect_host(plan, home, environ={}))
        return [(space.directory, space.size) for space in probe.spaces]

    staged = home.models / plan.model.name
    assert room() == [(str(staged), plan.model.weight_bytes)]
    staged.mkdir(parents=True)
    (staged / "model-00001-of-00092.safetensors").write_bytes(b"x" * 4096)
    assert room() == [(str(staged), plan.model.weight_bytes - 4096)]


def test_the_machine_is_where_docker_runs() -> None:
    container, process = plan_of("mi355x-tp8"), plan_of("mi355x-tp8", runtime="process")
    far = {"DOCKER_HOST": "ssh://node"}
    assert far_host(container, None, {}) is None
    assert far_host(container, None, {"DOCKER_HOST": "unix:///run/docker.sock"}) is None
    assert far_host(container, None, far) == "ssh://node"
    assert far_host(container, "ssh://other", far) == "ssh://other"
    assert far_host(process, None, far) is None
    with pytest.raises(UsageError, match="tcp://node:2375"):
        far_host(container, "tcp://node:2375", {})
