"""Test image configs from a registry without a pull, and the errors of a registry."""

import gzip
import hashlib
import json
import time
from collections.abc import Callable

import httpx
import pytest

from orchestrator.core.errors import BuildError
from orchestrator.images.registry import Registry

INT8 = "ROCM_QUICK_REDUCE_QUANTIZATION=INT8"
BLOB = json.dumps({"config": {"Env": ["PATH=/bin", INT8], "Labels": {"a": "b"}}}).encode()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


MANIFEST = json.dumps({"config": {"digest": digest(BLOB)}}).encode()
INDEX = json.dumps(
    {
        "manifests": [
            {"digest": digest(b"arm"), "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": digest(MANIFEST), "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    }
).encode()


def registry(respond: Callable[[httpx.Request], httpx.Response], *, timeout: float = 5.0) -> Registry:
    return Registry(timeout=timeout, transport=httpx.MockTransport(respond))


def docker_registry(
    urls: list[str], *, top: bytes = INDEX, config: bytes = BLOB
) -> Callable[[httpx.Request], httpx.Response]:
    """Return the responses of Docker's own registry, which issues a token to everyone; `urls` collects the URLs."""

    def respond(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        if request.url.host == "auth.example":
            return httpx.Response(200, json={"token": "public"})
        if request.headers.get("Authorization") != "Bearer public":
            challenge = 'Bearer realm="https://auth.example/token",service="s",scope="repository:a/b:pull"'
            return httpx.Response(401, headers={"WWW-Authenticate": challenge})
        if "/blobs/" in request.url.path:
            return httpx.Response(200, content=config)
        return httpx.Response(200, content=top if request.url.path.endswith("/v1") else MANIFEST)

    return respond


def test_image_config_is_read_with_token_authentication() -> None:
    urls: list[str] = []
    config = registry(docker_registry(urls)).config("a/b:v1")
    assert config.engine_env == {"ROCM_QUICK_REDUCE_QUANTIZATION": "INT8"}
    assert (config.labels, config.digest) == ({"a": "b"}, digest(INDEX))
    assert urls[0] == "https://registry-1.docker.io/v2/a/b/manifests/v1"
    assert urls[1] == "https://auth.example/token?service=s&scope=repository%3Aa%2Fb%3Apull"
    assert urls[-1].endswith(f"/blobs/{digest(BLOB)}")


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("ubuntu", "https://registry-1.docker.io/v2/library/ubuntu/manifests/latest"),
        ("ghcr.io/me/x:1", "https://ghcr.io/v2/me/x/manifests/1"),
        ("localhost:5000/x:1", "http://localhost:5000/v2/x/manifests/1"),
        ("node:5000/x:1", "https://node:5000/v2/x/manifests/1"),
        (f"a/b:v1@{digest(MANIFEST)}", f"https://registry-1.docker.io/v2/a/b/manifests/{digest(MANIFEST)}"),
    ],
)
def test_registry_address_is_resolved_like_docker(reference: str, address: str) -> None:
    urls: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(200, content=BLOB if "/blobs/" in request.url.path else MANIFEST)

    registry(respond).config(reference)
    assert urls[0] == address


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (lambda _: httpx.Response(404), "404 Not Found"),
        (
            lambda _: httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'}),
            "the registry requires a login",
        ),
        (
            lambda _: httpx.Response(401, headers={"WWW-Authenticate": 'Bearer realm="http://elsewhere/token"'}),
            "the registry requires a login",
        ),
        (lambda _: httpx.Response(200, content=b"<html>"), "unexpected response"),
        (lambda _: httpx.Response(200, json={"manifests": [1]}), "unexpected response"),
        (lambda _: httpx.Response(200, json={"manifests": []}), "no variant for linux/amd64"),
        (lambda _: httpx.Response(200, content=b"x" * (9 << 20)), "the response has more than 8 MiB"),
        (
            lambda _: httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=gzip.compress(b"{}")),
            "an encoding that was not requested",
        ),
        (docker_registry([], config=BLOB + b" "), "the content does not match its digest"),
    ],
)
def test_invalid_registry_response_hints_at_docker_pull(
    respond: Callable[[httpx.Request], httpx.Response], reason: str
) -> None:
    with pytest.raises(BuildError) as caught:
        registry(respond).config("a/b:v1")
    assert reason in caught.value.message
    assert "`docker pull a/b:v1` first" in caught.value.hint


def test_slow_registry_response_times_out() -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        time.sleep(0.2)
        return httpx.Response(200, content=MANIFEST)

    with pytest.raises(BuildError, match=r"no complete response within 0\.05 s"):
        registry(respond, timeout=0.05).config("a/b:v1")


def test_invalid_image_name_is_rejected_without_request() -> None:
    with pytest.raises(BuildError, match="is not the name of an image"):
        registry(docker_registry([])).config("UPPER case")
