"""A private registry on loopback, where Docker does not need TLS."""

import hashlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run an empty registry with its data below `folder`; yield its address."""
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


def push(registry: str, name: str, *, config: bytes, kind: str, layers: Sequence[bytes] = ()) -> str:
    """Push an image or an artifact of the OCI image specification 1.1; return its name with the digest.

    `kind` is the media type of the configuration.
    """

    def send(method: str, url: str, body: bytes, kind: str) -> str:
        request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the registry is ours
            return str(answer.headers.get("Location", ""))

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        location = send("POST", f"http://{registry}/v2/{name}/blobs/uploads/", b"", kind)
        send("PUT", f"{location}{'&' if '?' in location else '?'}digest={digest}", data, "application/octet-stream")
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    manifest_kind = "application/vnd.oci.image.manifest.v1+json"
    layer_kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    fields = {"schemaVersion": 2, "mediaType": manifest_kind, "config": blob(config, kind)}
    manifest = json.dumps({**fields, "layers": [blob(layer, layer_kind) for layer in layers]}).encode()
    send("PUT", f"http://{registry}/v2/{name}/manifests/1", manifest, manifest_kind)
    return f"{registry}/{name}@sha256:{hashlib.sha256(manifest).hexdigest()}"


def await_http(url: str, *, seconds: float) -> None:
    """Wait until the URL responds successfully."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=30):  # noqa: S310 - the URL is ours
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"{url} did not answer within {seconds} s")
