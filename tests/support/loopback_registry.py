"""A registry of the tests' own on the loopback, which Docker takes without TLS."""

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of an empty registry that keeps its data below `folder`."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    config, address = folder / "registry.yml", f"127.0.0.1:{free_port()}"
    config.write_text(
        f"version: 0.1\nhttp: {{addr: {address}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}\n"
    )
    with subprocess.Popen(
        [program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            await_http(f"http://{address}/v2/", seconds=120)
            yield address
        finally:
            server.terminate()


def await_http(url: str, *, seconds: float) -> None:
    """Return when the URL answers with success."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=30):  # noqa: S310 - the URL is ours
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"{url} did not answer within {seconds} s")
