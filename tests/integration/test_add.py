"""Test `deploy add` with a directory, with a hub, and with the checkpoint that real sglang serves."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from config_samples import GLM_52, KIMI_K2, write_config, write_public
from loopback_hub import COMMIT, Hub, serve
from ports import free_port
from typer.testing import CliRunner
from waits import TIMEOUT

from orchestrator.cli.main import app
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import CheckpointError, HostError
from orchestrator.core.paths import Home
from orchestrator.core.validation import read_model
from orchestrator.planner.add.model import add_model
from orchestrator.profiles.schema import ModelFile

TERABYTE = 1_000_000_000_000
REPOSITORY = "zai-org/GLM-5.2-FP8"
WITH_COST = """
import atexit, re, time
from orchestrator.cli.main import main
peak = lambda: re.search("VmHWM: *(.*) kB", open("/proc/self/status").read().replace("\\t", " "))[1]
atexit.register(lambda: print(time.process_time(), peak()))
main()
"""


def written_model(home: Path, name: str) -> ModelFile:
    return read_model(home / f"profiles/models/{name}.yaml", ModelFile, name)


def test_suggested_next_commands_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_public(tmp_path / "Llama-3.3-70B-Instruct", "Llama-3.3-70B-Instruct")
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(app, ["add", "model", str(checkpoint)])
    assert "config.json: num_hidden_layers" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "next: `deploy add profile --model llama-3.3-70b-instruct --hardware HARDWARE`"
    )
    for expected in ("the fewest GPUs whose cache holds 131,072 tokens", "estimate"):
        following = done.stderr.splitlines()[-1].partition("`deploy ")[2].rstrip("`").replace("HARDWARE", "mi355x")
        done = CliRunner().invoke(app, shlex.split(following))
        assert done.exit_code == 0, done.stderr
        assert expected in done.stdout
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert [warning.partition(",")[0] for warning in warnings] == ["warning: not pinned"]  # the engine's image


def test_adding_terabyte_checkpoint_reads_only_headers(tmp_path: Path) -> None:
    checkpoint = write_config(tmp_path / "large", KIMI_K2, weights=TERABYTE, shards=40, experts=48)
    argv = [sys.executable, "-c", WITH_COST, "add", "model", str(checkpoint)]
    env = {**os.environ, "DEPLOY_HOME": str(tmp_path / "home")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert written_model(tmp_path / "home", "large").weights_size == TERABYTE
    seconds, kibibytes = done.stdout.split()[-2:]
    assert float(seconds) < 10
    assert int(kibibytes) * 1024 < 200_000_000


def test_hub_repository_is_described_from_few_headers(tmp_path: Path) -> None:
    """Only the first layer of each kind and the draft layer are read, from fewer than 10 of 40 files."""
    config = {**GLM_52, "hidden_size": 64, "quantization_config": {"quant_method": "fp8"}}
    token = "open-sesame"
    source = write_config(tmp_path / "source", config, weights=60_000_000, shards=40)
    with serve(Hub(repository=REPOSITORY, directory=source, token=token)) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token}
        add_model(REPOSITORY, Home(tmp_path), name="own", environ=environ)
        with pytest.raises(CheckpointError, match="is gated and this token has no access"):
            add_model(REPOSITORY, Home(tmp_path), name="other", environ={"HF_ENDPOINT": hub.url})
        with pytest.raises(CheckpointError, match="no repository `nobody/nothing`"):
            add_model("nobody/nothing", Home(tmp_path), environ=environ)
    entry = written_model(tmp_path, "own")
    assert (entry.checkpoint.source, entry.checkpoint.path, entry.checkpoint.revision) == ("hub", REPOSITORY, COMMIT)
    assert (entry.weights_size, entry.layers, entry.mtp_layer) == (60_000_000, 78, 78)
    assert entry.gated
    assert entry.mtp_weights_size == (576 + 128 + 256 + 1) * 64 * 2
    requested = {name for name in hub.sent if name.endswith(".safetensors")}
    assert 0 < len(requested) < 10, requested


def test_unreachable_hub_hints_at_local_directory(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot reach the hub") as caught:
        add_model(REPOSITORY, Home(tmp_path), name="own", environ={"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"})
    assert "name a directory" in caught.value.hint


@pytest.mark.engine
def test_added_tiny_model_matches_shipped_catalog_entry(tiny_model: Path, tmp_path: Path) -> None:
    add_model(str(tiny_model), Home(tmp_path), name="own", environ={})
    added = written_model(tmp_path, "own")
    shipped = read_model(Catalog.shipped().path(EntryKind.MODEL, "tiny"), ModelFile, "")
    keys = ("quantization", "context_length", "layers", "attention_heads", "kv_heads", "moe", "kv_cache", "mtp_layer")
    for key in keys:
        assert getattr(added, key) == getattr(shipped, key), key
    assert added.weights_size == (tiny_model / "model.safetensors").stat().st_size
