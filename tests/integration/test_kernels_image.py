"""Read the tables of a real image through a real Docker engine, without starting a container."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from aiter_image import AITER, COMMIT, imported
from command_line import CommandLine
from docker.errors import DockerException
from kernel_samples import FUSED_TP8

from orchestrator.core.errors import BuildError, KernelsError
from orchestrator.core.paths import Home
from orchestrator.images.client import find_docker
from orchestrator.kernels.disk.files import read_tables
from orchestrator.kernels.disk.image import read_image
from orchestrator.kernels.rows import RowOrigin

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def engine() -> docker.DockerClient:
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    return client


@pytest.fixture
def image(engine: docker.DockerClient) -> Iterator[str]:
    with imported(engine) as name:
        yield name


def test_image_rows_digest_and_aiter_commit_are_read(engine: docker.DockerClient, image: str) -> None:
    tables = read_image(image, AITER)
    assert [(row.key.token, row.key.shape, row.origin) for row in tables.rows] == [
        (16, FUSED_TP8, RowOrigin.IMAGE),
        (32, FUSED_TP8, RowOrigin.IMAGE),
    ]
    assert (tables.files, tables.aiter_commit) == (2, COMMIT)
    assert tables.digest.startswith("sha256:")
    assert engine.containers.list(all=True, filters={"ancestor": image}) == []


def test_image_without_tables_and_missing_image_are_errors(engine: docker.DockerClient, image: str) -> None:
    with pytest.raises(KernelsError, match="no tuned fused-MoE table found"):
        read_image(image, "/opt/aiter")
    assert engine.containers.list(all=True, filters={"ancestor": image}) == []
    with pytest.raises(KernelsError) as caught:
        read_image("deploy-kernels-test:none", AITER)
    assert caught.value.hint.startswith("`docker pull deploy-kernels-test:none`")


def test_failed_copy_is_not_reported_as_missing_table(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "docker"
    failing_cp = '[ "$1" = cp ] && echo "no space left" >&2 && exit 1'
    client.write_text(f'#!/bin/sh\n{failing_cp}\nexec {find_docker().program} "$@"\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="cannot copy") as caught:
        read_image(image, AITER)
    assert caught.value.details == "no space left"


def test_symlinks_are_followed_only_inside_image(
    engine: docker.DockerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "tuned_fmoe.csv"
    outside.write_text("a file of this host")
    links = {
        "aiter/configs/model_configs/near_tuned_fmoe.csv": "../tuned_fmoe.csv",
        "aiter/configs/model_configs/far_tuned_fmoe.csv": str(outside),
        "aiter/configs/model_configs/round_tuned_fmoe.csv": "round_tuned_fmoe.csv",
        "linked/aiter/configs": f"{AITER}/aiter/configs",
        "linked/.git": f"{AITER}/.git",
    }
    with imported(engine, links) as name:
        for path in (AITER, f"{AITER}/linked"):
            tables = read_image(name, path)
            assert (tables.files, tables.aiter_commit) == (3, COMMIT)
            assert sorted(row.key.token for row in tables.rows) == [16, 16, 32]
            stderr = capsys.readouterr().err
            assert "`configs/model_configs/far_tuned_fmoe.csv` links to a file outside `aiter/configs`" in stderr
            assert "near_tuned_fmoe.csv" not in stderr


def test_git_file_yields_no_commit(engine: docker.DockerClient) -> None:
    links = {"of_submodule/.git": f"{AITER}/aiter/configs/tuned_fmoe.csv", "of_submodule/aiter": f"{AITER}/aiter"}
    with imported(engine, links) as name:
        assert read_image(name, f"{AITER}/of_submodule").aiter_commit is None


PINNED = ("--set", f"engine.image_digest=sha256:{'0' * 64}")


def build_table(image: str, home: Home, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `deploy kernels build` for a profile with this image, with the rows of the image only."""
    words = ("kernels", "build", "--profile", "mi355x-tp8", "--set", f"engine.image={image}")
    return CommandLine(home).run(*words, *more, "--no-upstream")


def test_profile_image_is_pulled_and_its_rows_used(
    engine: docker.DockerClient, image: str, registry: str, tmp_path: Path
) -> None:
    repository = f"{registry}/deploy-kernels-test"
    engine.images.get(image).tag(repository, "1")
    engine.images.push(repository, "1")
    engine.images.remove(f"{repository}:1")
    engine.images.remove(image)
    try:
        built = build_table(f"{repository}:1", Home(tmp_path / "home"))
        assert built.returncode == 0, built.stderr
        assert f"base image `{repository}:1` is missing on this Docker host; pulling it" in built.stderr
        assert "2 image" in built.stderr
        assert {row.key.token for row in read_tables([Path(built.stdout.strip())])} == {16, 32}
    finally:
        engine.images.remove(f"{repository}:1", force=True)


def test_unavailable_image_hints_at_table_option(engine: docker.DockerClient, registry: str, tmp_path: Path) -> None:
    assert engine.ping()
    result = build_table(f"{registry}/no-such:1", Home(tmp_path / "home"))
    assert result.returncode == 5
    assert f"`{registry}/no-such:1` does not exist in its registry" in result.stderr
    assert "or pass copies of its tables with `--table`" in result.stderr
    assert not (tmp_path / "home").exists()
