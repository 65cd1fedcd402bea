"""Tests of `deploy quantize`, with a fake Quark that writes the same bytes as the real one."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from quantizing import Quantizing
from quark_source import FAKE_QUARK, REAL_FILES, fake_quark_home, files_digest, write_source

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.polling import poll_until
from orchestrator.images.client import DockerCli


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a source checkpoint, and with a home whose environment has only the fake Quark."""
    directory = tmp_path_factory.mktemp("quantize")
    write_source(directory / "tiny")
    fake_quark_home(directory / "home")
    return directory


@pytest.mark.parametrize("recipe", REAL_FILES)
def test_every_recipe_produces_same_bytes_as_quark(directory: Path, recipe: str) -> None:
    quantizing = Quantizing(directory, recipe, recipe=recipe)
    code, output = quantizing.end()
    assert code == 0, output
    assert files_digest(quantizing.target) == REAL_FILES[recipe]
    assert f"`{quantizing.target}` is complete: 5 shards, " in output
    assert f"next: `deploy add profile --model {recipe} --hardware HARDWARE`" in output
    assert "# Of the source" not in (quantizing.target / "README.md").read_text()
    assert {path.stat().st_mode & 0o777 for path in quantizing.target.iterdir()} == {0o644}
    receipt = json.loads(quantizing.target.with_name(f"{recipe}.receipt.json").read_text())
    assert (receipt["shards"], receipt["mtp_layer"], receipt["location"]) == (5, 4, str(quantizing.target))
    assert Catalog((directory / "home",)).find(EntryKind.MODEL, recipe), "the catalog lacks the model"
    assert not quantizing.target.with_name(f"{recipe}.quantizing").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_quantization_resumes_with_same_bytes(directory: Path, how: signal.Signals) -> None:
    target = f"killed-{how.name.lower()}"
    killed = Quantizing(directory, target, "--workers", "2", does="sleep 0.4")
    killed.wait_for_shards(1)
    assert len(killed.workers()) == 2
    os.kill(killed.process.pid, how)
    code, output = killed.end()
    poll_until(lambda workers: not workers, killed.workers, timeout=10, interval=0.05)
    assert not killed.workers(), "a worker is still running"
    assert code == (-9 if how is signal.SIGKILL else 130)
    finished = {path.name: path.stat().st_mtime_ns for path in killed.shards()}
    assert 1 <= len(finished) < 5
    if how is not signal.SIGKILL:
        assert f"{len(finished)} of 5 shards are done and saved" in output
    assert not killed.target.exists()

    again = Quantizing(directory, target)
    code, output = again.end()
    assert code == 0, output
    assert f"{len(finished)} of 5 shards are done" in output
    assert files_digest(again.target) == REAL_FILES["glm-5.2-amd"]
    assert {name: (again.target / name).stat().st_mtime_ns for name in finished} == finished, "a shard was rewritten"


def test_failed_worker_ends_others_and_keeps_finished_shards(directory: Path) -> None:
    shard = "model-00005-of-00005.safetensors"
    failed = Quantizing(directory, "failed", "--workers", "1", does=f"fail {shard}")
    code, output = failed.end()
    assert code == 5
    assert "RuntimeError: the fake Quark was told to fail" in output
    assert "4 of 5 shards are done and saved" in output
    assert not failed.workers()

    code, output = Quantizing(directory, "failed", recipe="glm-5.2-quark").end()
    assert (code, "cannot resume this quantization: it was started with another source, recipe or Quark" in output) == (
        2,
        True,
    ), output
    assert len(failed.shards()) == 4


def test_output_not_matching_recipe_is_rejected(directory: Path) -> None:
    """The quantizer may omit tensors without an error."""
    shard = "model-00002-of-00005.safetensors"
    wrong = Quantizing(directory, "wrong", does=f"skip {shard}")
    code, output = wrong.end()
    assert code == 5
    assert f"`{shard}` has 1 tensors that differ" in output
    assert not wrong.target.exists()


@pytest.fixture
def quark_image(docker_daemon: DockerCli, docker_image: str, tmp_path: Path) -> Iterator[str]:
    """Build an image whose Python has the fake Quark."""
    tag, context = f"deploy-fake/quark:{os.getpid()}", tmp_path / "context"
    shutil.copytree(FAKE_QUARK, context)
    for folder in ("numpy", "numpy.libs"):
        shutil.copytree(Path(np.__file__).parents[1] / folder, context / folder)
    (tmp_path / "Dockerfile").write_text(f"FROM {docker_image}\nCOPY . /usr/lib/python3/dist-packages/\n")
    build = ["build", "--quiet", "--tag", tag, "--file", str(tmp_path / "Dockerfile"), str(context)]
    docker(docker_daemon, *build)
    yield tag
    docker(docker_daemon, "rmi", "--force", tag)


def docker(daemon: DockerCli, *words: str) -> str:
    return subprocess.run([daemon.program, *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.docker
def test_quantization_in_image_resumes_without_leftover_container(
    directory: Path, quark_image: str, docker_daemon: DockerCli
) -> None:
    killed = Quantizing(directory, "in-image", "--profile", "cpu-tiny", "--image", quark_image)
    killed.wait_for_shards(1, interval=0.01)
    killed.process.kill()
    assert killed.end()[0] == -signal.SIGKILL
    list_containers = ["ps", "--all", "--quiet", "--filter", f"name=deploy-quantize-{killed.process.pid}"]
    containers = poll_until(
        lambda output: not output, lambda: docker(docker_daemon, *list_containers), timeout=20, interval=0.1
    )
    assert not containers
    finished = len(killed.shards())
    assert 1 <= finished < 5

    code, output = Quantizing(directory, "in-image", "--profile", "cpu-tiny", "--image", quark_image).end()
    assert code == 0, output
    assert f"{finished} of 5 shards are done" in output
    assert f"note: amd-quark 0.13 of `{quark_image}`" in output
    assert files_digest(killed.target) == REAL_FILES["glm-5.2-amd"]
