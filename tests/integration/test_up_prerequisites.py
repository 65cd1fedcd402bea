"""Tests that `up` downloads a missing checkpoint and builds a missing table of tuned kernels, each once.

The image has sglang's sources and aiter's tables, but no package that sglang imports. Preflight sees a fake host with
the profile's GPUs; each `up` fails when Docker passes them to a container.
"""

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest
from aiter_image import AITER, FILES
from checkpoint_samples import write_checkpoint
from command_line import CommandLine
from engine_image import layered
from kernel_samples import FUSED_TP8, HEADER, WHOLE_CONFIG, line
from loopback_hub import Hub, serve
from ready_node import path_of_ready_node
from rocm_image import base_image
from wheels import wheel

from orchestrator.core.paths import Home, data_root
from orchestrator.images.client import DockerCli

pytestmark = [pytest.mark.docker, pytest.mark.wheels]
NO_GPU = "/dev/kfd"  # the missing device in Docker's error
NOT_READY = "error: the host is not ready for `mi355x-tp8`"
TABLE = "\n".join([HEADER, *(line(1 << exponent, shape=FUSED_TP8) for exponent in range(16))]) + "\n"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    source = write_checkpoint(tmp_path / "hub", size=100_000, layers=4, mtp_layer=78)
    (source / "config.json").write_text(json.dumps(WHOLE_CONFIG))
    with serve(Hub(repository="amd/GLM-5.2-MXFP4", directory=source)) as running:
        yield running


@pytest.fixture
def upstream() -> Iterator[str]:
    """Serve the kernel table of aiter's repository; return the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(TABLE.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def aiter_image(docker_daemon: DockerCli) -> Iterator[str]:
    base, name = base_image(wheel("0.5.16"), docker=docker_daemon.program), f"deploy-up-makes-{os.getpid()}:1"
    files = {f"{AITER}/{path}": text for path, text in FILES.items()}
    with (
        closing(docker.from_env(environment={"DOCKER_HOST": docker_daemon.host})) as engine,
        layered(engine, base, name, files) as image,
    ):
        yield image


@pytest.fixture
def deploy(tmp_path: Path, hub: Hub, upstream: str, aiter_image: str) -> CommandLine:
    home = Home(tmp_path / "home")
    pins = (data_root() / "profiles" / "kernels" / "aiter.yaml").read_text()
    pins = pins.replace("https://raw.githubusercontent.com/ROCm/aiter", upstream)
    old_line = next(row for row in pins.splitlines() if "sha256:" in row)
    (home.root / "profiles" / "kernels").mkdir(parents=True)
    pins = pins.replace(old_line, f"  sha256: {hashlib.sha256(TABLE.encode()).hexdigest()}")
    (home.root / "profiles" / "kernels" / "aiter.yaml").write_text(pins)
    unset = {name: "" for name in os.environ if name.startswith("HF_")}
    environ = {**unset, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "IMAGE": aiter_image}
    environ["PATH"] = path_of_ready_node(tmp_path / "node")
    return CommandLine(home, environ)


def up(deploy: CommandLine, *options: str) -> tuple[int, str]:
    image = ("--set", f"engine.image={deploy.environ['IMAGE']}")
    done = deploy.run("up", "--profile", "mi355x-tp8", *image, *options)
    return done.returncode, done.stderr


def test_missing_checkpoint_and_kernel_table_are_created_once(deploy: CommandLine, hub: Hub) -> None:
    code, output = up(deploy)
    assert (code, NO_GPU in output) == (4, True), output
    model = deploy.home.models / "glm-5.2-mxfp4"
    assert re.search(r"100% of [1-9][0-9.]* [kM]?B", output)
    assert (model / "model-00002-of-00003.safetensors").stat().st_size > 0
    [table] = deploy.home.kernels.glob("*/glm-5.2-mxfp4-gfx950-tp8.csv")
    assert f"tuned kernels {table}: TP8," in output
    sent, built = dict(hub.sent), table.stat().st_mtime_ns
    assert NO_GPU in up(deploy)[1]
    assert (hub.sent, table.stat().st_mtime_ns) == (sent, built)


def test_host_without_gpus_builds_and_downloads_nothing(deploy: CommandLine, hub: Hub) -> None:
    """`up` used to report missing GPUs only after the build and the download."""
    image = ("--set", f"engine.image={deploy.environ['IMAGE']}")
    done = deploy.run("up", "--profile", "mi355x-tp8", *image, PATH=os.environ["PATH"])
    assert (done.returncode, NOT_READY in done.stderr) == (4, True), done.stderr
    assert (hub.sent, deploy.home.models.exists(), "building" in done.stderr) == ({}, False, False)


@pytest.mark.slow
def test_next_up_resumes_interrupted_download(deploy: CommandLine, hub: Hub) -> None:
    hub.cuts["model-00002-of-00003.safetensors"] = 50_000
    code, output = up(deploy)
    assert (code, "the download failed" in output) == (4, True), output
    hub.cuts.clear()
    hub.down = False
    assert NO_GPU in up(deploy)[1]


def test_missing_checkpoint_is_rejected_without_staging(deploy: CommandLine, hub: Hub) -> None:
    code, output = up(deploy, "--no-stage")
    assert (code, hub.sent) == (4, {})
    assert "no checkpoint of `glm-5.2-mxfp4` found" in output


def test_untuned_kernels_are_rejected_before_download(deploy: CommandLine, hub: Hub) -> None:
    code, output = up(deploy, "--set", "engine.aiter_commit=7d604afe5fa7efba63c0dce323b95d9daf2db112")
    assert (code, hub.sent) == (9, {})
    assert "no tuned MoE kernel for batches of `mi355x-tp8`: 8, 32, 128 tokens" in output
