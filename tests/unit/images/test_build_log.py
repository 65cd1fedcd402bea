"""Test the parsing of build logs and the arguments of a build."""

from pathlib import Path

import pytest

from orchestrator.core.errors import BuildError
from orchestrator.images.build import BuildOptions, build_arguments, parse_patch_error, parse_step
from orchestrator.images.client import DockerCli

BUILDKIT = DockerCli(program="docker", version="28.2.2", builder="buildkit", host="unix:///var/run/docker.sock")
CLASSIC = DockerCli(program="docker", version="20.10.24", builder="classic", host="unix:///var/run/docker.sock")

FAILED_LOG = """\
#7 [3/3] RUN ["python3", "-B", "/opt/deploy/patches/apply_patches.py", "apply"]
#7 0.364 error: patch `guard` neither applies nor is present
#7 0.364   `copy.cuh` has no match for: ^#include
#7 0.364   upstream: sgl-project/sglang#29373
#7 ERROR: executor failed running [python3]: exit code: 1
------
 > [3/3] RUN ["python3", "-B", "/opt/deploy/patches/apply_patches.py", "apply"]:
"""


def options(**secrets: Path) -> BuildOptions:
    return BuildOptions(tag="deploy/p:1", no_cache=False, network=None, secrets=secrets)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("#5 [2/3] COPY patches /opt/deploy/patches", "[2/3] COPY patches /opt/deploy/patches"),
        ("Step 2/9 : COPY patches /opt/deploy/patches", "[2/9] COPY patches /opt/deploy/patches"),
        ("#5 [internal] load build definition from Dockerfile", None),
        ("#7 0.364 error: patch", None),
    ],
)
def test_steps_of_both_builders_are_parsed(line: str, step: str | None) -> None:
    assert parse_step(line) == step


def test_patch_error_is_found_in_buildkit_log() -> None:
    assert parse_patch_error(FAILED_LOG.splitlines()) == (
        "patch `guard` neither applies nor is present\n"
        "  `copy.cuh` has no match for: ^#include\n"
        "  upstream: sgl-project/sglang#29373"
    )


def test_patch_error_is_found_in_classic_builder_log() -> None:
    log = ["Step 3/3 : RUN", "error: patch `guard` neither", "  upstream: x", "The command 'python3' returned: 1"]

    assert parse_patch_error(log) == "patch `guard` neither\n  upstream: x"


def test_other_build_failure_is_not_a_patch_error() -> None:
    assert parse_patch_error(["#7 0.1 error: could not resolve host", "#7 ERROR: exit code: 1"]) is None


def test_build_secret_is_mounted_not_passed_as_argument(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("password")

    argv = build_arguments(BUILDKIT, options(pip=tmp_path / "pip.conf"), tag="t")

    assert argv == ["build", "--tag", "t", "--progress", "plain", "--secret", f"id=pip,src={tmp_path}/pip.conf", "-"]


def test_classic_builder_rejects_build_secrets(tmp_path: Path) -> None:
    assert build_arguments(CLASSIC, options(), tag="t") == ["build", "--tag", "t", "--force-rm", "-"]
    with pytest.raises(BuildError, match="does not support build secrets"):
        build_arguments(CLASSIC, options(pip=tmp_path), tag="t")
