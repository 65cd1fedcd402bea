"""Add a pip with the gateway's packages to a fake engine image, because test containers have no package index.

The packages are downloaded once, from the pinned list, into `~/.cache/deploy-tests/gateway`.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pip
import pytest
from rocm_image import add_file, debian_python

from orchestrator.core.paths import data_root
from orchestrator.engine.gateway import REQUIREMENTS

_LIST = data_root() / "images" / REQUIREMENTS
_WHEELS = Path.home() / ".cache/deploy-tests/gateway"
_DOCKERFILE = "FROM {base}\nCOPY usr /usr\nCOPY etc /etc\nCOPY wheels /opt/wheels\nRUN chmod +x /usr/local/bin/pip\n"


def with_pip(base: str, *, docker: str = "docker") -> str:
    """Return the tag of `base` with this Python's pip; the image is built once (10 s)."""
    wheels = _gateway_wheels()
    text = f"{base}\n{_LIST.read_text()}\n{_DOCKERFILE}"
    tag = f"deploy-fake/pip:{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if subprocess.run([docker, "image", "inspect", tag], capture_output=True, check=False).returncode == 0:
        return tag
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        add_file(tar, "Dockerfile", _DOCKERFILE.format(base=base).encode())
        add_file(tar, "usr/local/bin/pip", b'#!/bin/sh\nexec python3 -m pip "$@"\n')
        add_file(tar, "etc/pip.conf", b"[global]\nno-index = true\nfind-links = /opt/wheels\n")
        tar.add(Path(pip.__file__).parent, arcname=f"usr/local/lib/{debian_python()}/dist-packages/pip")
        tar.add(wheels, arcname="wheels")
    subprocess.run([docker, "build", "--tag", tag, "-"], input=context.getvalue(), capture_output=True, check=True)
    return tag


def _gateway_wheels() -> Path:
    folder = _WHEELS / hashlib.sha256(_LIST.read_bytes()).hexdigest()[:12]
    if not folder.is_dir():
        made = folder.with_suffix(".new")
        argv = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run(
            [*argv, "--dest", made, "--requirement", _LIST], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"the gateway's packages are not to be had: {done.stderr.strip().splitlines()[-1]}")
        made.rename(folder)
    return folder
