"""`deploy quantize` end to end, with Quark's stand-in, whose bytes are real Quark's: made, killed, taken up again."""

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
from quark_source import REAL_FILES, STAND_IN, files_digest, stand_in_home, write_source

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.polling import poll_until
from orchestrator.images.client import DockerCli


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and a home with an environment of nothing."""
    place = tmp_path_factory.mktemp("quantize")
    write_source(place / "tiny")
    stand_in_home(place / "home")
    return place


@pytest.mark.parametrize("recipe", REAL_FILES)
def test_every_recipe_produces_same_bytes_as_quark(place: Path, recipe: str) -> None:
    quantizing = Quantizing(place, recipe, recipe=recipe)
    code, said = quantizing.end()
    assert code == 0, said
    assert files_digest(quantizing.target) == REAL_FILES[recipe]
    assert f"`{quantizing.target}` is complete: 5 shards, " in said
    assert f"next: `deploy add profile --model {recipe} --hardware HARDWARE`" in said
    assert "# Of the source" not in (quantizing.target / "README.md").read_text()
    assert {path.stat().st_mode & 0o777 for path in quantizing.target.iterdir()} == {0o644}
    receipt = json.loads(quantizing.target.with_name(f"{recipe}.receipt.json").read_text())
    assert (receipt["shards"], receipt["mtp_layer"], receipt["location"]) == (5, 4, str(quantizing.target))
    assert Catalog((place / "home",)).find(EntryKind.MODEL, recipe), "a model's file"
    assert not quantizing.target.with_name(f"{recipe}.quantizing").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_quantization_resumes_with_same_bytes(place: Path, how: signal.Signals) -> None:
    target = f"killed-{how.name.lower()}"
    cut = Quantizing(place, target, "--workers", "2", does="sleep 0.4")
    cut.wait_for_shards(1)
    assert len(cut.workers()) == 2
    os.kill(cut.process.pid, how)
    code, said = cut.end()
    poll_until(lambda left: not left, cut.workers, timeout=10, interval=0.05)
    assert not cut.workers(), "a worker lives on"
    assert code == (-9 if how is signal.SIGKILL else 130)
    kept = {path.name: path.stat().st_mtime_ns for path in cut.shards()}
    assert 1 <= len(kept) < 5
    if how is not signal.SIGKILL:
        assert f"{len(kept)} of 5 shards are done and saved" in said
    assert not cut.target.exists()

    again = Quantizing(place, target)
    code, said = again.end()
    assert code == 0, said
    assert f"{len(kept)} of 5 shards are done" in said
    assert files_digest(again.target) == REAL_FILES["glm-5.2-amd"]
    assert {name: (again.target / name).stat().st_mtime_ns for name in kept} == kept, "made once"


def test_failed_worker_ends_others_and_keeps_finished_shards(place: Path) -> None:
    shard = "model-00005-of-00005.safetensors"
    failed = Quantizing(place, "failed", "--workers", "1", does=f"fail {shard}")
    code, said = failed.end()
    assert code == 5
    assert "RuntimeError: the stand-in was told to fail" in said
    assert "4 of 5 shards are done and saved" in said
    assert not failed.workers()

    code, said = Quantizing(place, "failed", recipe="glm-5.2-quark").end()
    assert (code, "cannot resume this quantization: it was started with another source, recipe or Quark" in said) == (
        2,
        True,
    ), said
    assert len(failed.shards()) == 4


def test_output_not_matching_recipe_is_rejected(place: Path) -> None:
    """As where the tool that quantizes leaves out what it should write, without a word."""
    shard = "model-00002-of-00005.safetensors"
    wrong = Quantizing(place, "wrong", does=f"skip {shard}")
    code, said = wrong.end()
    assert code == 5
    assert f"`{shard}` has 1 tensors that differ" in said
    assert not wrong.target.exists()


@pytest.fixture
def quark_image(docker_daemon: DockerCli, docker_image: str, tmp_path: Path) -> Iterator[str]:
    """An image whose Python has the stand-in."""
    tag, context = f"deploy-standin/quark:{os.getpid()}", tmp_path / "context"
    shutil.copytree(STAND_IN, context)
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
    place: Path, quark_image: str, docker_daemon: DockerCli
) -> None:
    cut = Quantizing(place, "in-image", "--profile", "cpu-tiny", "--image", quark_image)
    cut.wait_for_shards(1, interval=0.01)
    cut.process.kill()
    assert cut.end()[0] == -signal.SIGKILL
    named = ["ps", "--all", "--quiet", "--filter", f"name=deploy-quantize-{cut.process.pid}"]
    assert not poll_until(lambda left: not left, lambda: docker(docker_daemon, *named), timeout=20, interval=0.1)
    kept = len(cut.shards())
    assert 1 <= kept < 5

    code, said = Quantizing(place, "in-image", "--profile", "cpu-tiny", "--image", quark_image).end()
    assert code == 0, said
    assert f"{kept} of 5 shards are done" in said
    assert f"note: amd-quark 0.13 of `{quark_image}`" in said
    assert files_digest(cut.target) == REAL_FILES["glm-5.2-amd"]
