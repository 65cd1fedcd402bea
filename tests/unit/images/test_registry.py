"""What a registry says of an image without a pull; and every way in which it does not."""

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


def registry(answer: Callable[[httpx.Request], httpx.Response], *, timeout: float = 5.0) -> Registry:
    """A registry that answers so."""
    return Registry(timeout=timeout, transport=httpx.MockTransport(answer))


def served(asked: list[str], *, top: bytes = INDEX, config: bytes = BLOB) -> Callable[[httpx.Request], httpx.Response]:
    """Docker's own registry, which hands everyone a token; `asked` takes each address."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.host == "auth.example":
            return httpx.Response(200, json={"token": "public"})
        if request.headers.get("Authorization") != "Bearer public":
            challenge = 'Bearer realm="https://auth.example/token",service="s",scope="repository:a/b:pull"'
            return httpx.Response(401, headers={"WWW-Authenticate": challenge})
        if "/blobs/" in request.url.path:
            return httpx.Response(200, content=config)
        return httpx.Response(200, content=top if request.url.path.endswith("/v1") else MANIFEST)

    return answer


def test_image_config_is_read_with_token_authentication() -> None:
    asked: list[str] = []
    found = registry(served(asked)).config("a/b:v1")
    assert found.engine_env == {"ROCM_QUICK_REDUCE_QUANTIZATION": "INT8"}
    assert (found.labels, found.digest) == ({"a": "b"}, digest(INDEX))
    assert asked[0] == "https://registry-1.docker.io/v2/a/b/manifests/v1"
    assert asked[1] == "https://auth.example/token?service=s&scope=repository%3Aa%2Fb%3Apull"
    assert asked[-1].endswith(f"/blobs/{digest(BLOB)}")


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
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=BLOB if "/blobs/" in request.url.path else MANIFEST)

    registry(answer).config(reference)
    assert asked[0] == address


@pytest.mark.parametrize(
    ("answer", "reason"),
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
        (served([], config=BLOB + b" "), "the content does not match its digest"),
    ],
)
def test_invalid_registry_response_hints_at_docker_pull(
    answer: Callable[[httpx.Request], httpx.Response], reason: str
) -> None:
    with pytest.raises(BuildError) as caught:
        registry(answer).config("a/b:v1")
    assert reason in caught.value.message
    assert "`docker pull a/b:v1` first" in caught.value.hint


def test_slow_registry_response_times_out() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        time.sleep(0.2)
        return httpx.Response(200, content=MANIFEST)

    with pytest.raises(BuildError, match=r"no complete response within 0\.05 s"):
        registry(answer, timeout=0.05).config("a/b:v1")


def test_invalid_image_name_is_rejected_without_request() -> None:
    with pytest.raises(BuildError, match="is not the name of an image"):
        registry(served([])).config("UPPER case")
