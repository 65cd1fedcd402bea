"""The configuration of an image in a registry, read without a pull: a few kB instead of many GB.

It does not log in, so a private image can be read only after a pull. The protocol is the OCI distribution specification
1.1; registry-1.docker.io serves names without a registry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from orchestrator.core.errors import BuildError, HostError
from orchestrator.core.http import Deadline, iter_capped
from orchestrator.core.imported import ImportedModule
from orchestrator.core.safe_paths import ImageReference, UnsafeValueError
from orchestrator.core.text import parse_json
from orchestrator.images.client import find_docker
from orchestrator.images.config import ImageConfig, docker_config

if TYPE_CHECKING:
    import httpx
else:  # it takes 25 ms to import, and commands that build plans import this module
    httpx = ImportedModule("httpx")

_HUB: Final = ("docker.io", "registry-1.docker.io")
_MAX_BYTES: Final = 8 << 20  # of a manifest or configuration; ROCm images have about 100 kB
_MAX_ARTIFACT_BYTES: Final = 1 << 30  # of a layer, in memory
_MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_PULL_HINT: Final = "`docker pull {}` first; for a private image, `docker login` before that"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry client; `timeout` limits a whole lookup, in seconds."""

    timeout: float = 20.0
    transport: httpx.BaseTransport | None = None

    def config(self, reference: str) -> ImageConfig:
        """Read the configuration of an image. Raises BuildError if that fails for any reason."""
        with self._repository(reference) as repository:
            return repository.config(reference)

    def artifact(self, reference: str) -> bytes:
        """Read the first layer of an artifact, which is named by its digest. Raises BuildError as `config`."""
        with self._repository(reference) as repository:
            return repository.artifact()

    @contextmanager
    def _repository(self, reference: str) -> Iterator[_Repository]:
        try:
            name = ImageReference(reference).parts
        except UnsafeValueError as error:
            raise BuildError(str(error)) from error
        deadline = Deadline(self.timeout)
        try:
            with (
                deadline,
                httpx.Client(transport=self.transport, follow_redirects=True, timeout=self.timeout) as client,
            ):
                yield _Repository(client, name, deadline)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            if deadline.reached:
                reason = f"no complete response within {self.timeout:g} s"
            raise _read_error(reference, reason) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _read_error(reference, "unexpected response") from error


def read_config(image: str, host: str | None = None) -> ImageConfig:
    """Return the configuration of an image from the Docker host, or else its registry. Raises BuildError.

    `host` is a remote Docker host.
    """
    try:
        config = docker_config(find_docker(host), image)
    except HostError:  # no Docker here
        config = None
    return config or Registry().config(image)


def _read_error(reference: str, reason: str) -> BuildError:
    return BuildError(f"cannot read `{reference}` from its registry: {reason}", hint=_PULL_HINT.format(reference))


@dataclass
class _Repository:
    """One lookup in a repository; `headers` holds the anonymous token after the first request."""

    client: httpx.Client
    name: Mapping[str, str | None]  # see `ImageReference.parts`
    deadline: Deadline
    headers: dict[str, str] = field(default_factory=dict)

    def config(self, reference: str) -> ImageConfig:
        content = self._manifest(self.name["digest"] or self.name["tag"] or "latest")
        manifest, digest = parse_json(content), _digest(content)
        if "manifests" in manifest:
            variant = next((entry for entry in manifest["manifests"] if _is_amd64(entry.get("platform", {}))), None)
            if variant is None:
                raise httpx.ProtocolError("the image has no variant for linux/amd64")
            manifest = parse_json(self._manifest(variant["digest"]))
        config = parse_json(self._get(f"blobs/{manifest['config']['digest']}", {}, manifest["config"]["digest"]))
        return ImageConfig.of(reference, digest, config["config"])

    def artifact(self) -> bytes:
        layer = parse_json(self._manifest(self.name["digest"] or ""))["layers"][0]["digest"]
        return self._get(f"blobs/{layer}", {}, layer, max_bytes=_MAX_ARTIFACT_BYTES)

    def _manifest(self, tag_or_digest: str) -> bytes:
        digest = tag_or_digest if tag_or_digest.startswith("sha256:") else None
        return self._get(f"manifests/{tag_or_digest}", {"Accept": ", ".join(_MANIFESTS)}, digest)

    def _get(self, path: str, headers: Mapping[str, str], digest: str | None, *, max_bytes: int = _MAX_BYTES) -> bytes:
        url = f"{self._base_url()}/{path}"
        response, content = self._read(url, {**headers, **self.headers}, max_bytes=max_bytes)
        if response.status_code == httpx.codes.UNAUTHORIZED and not self.headers:
            challenge = response.headers.get("WWW-Authenticate", "")
            self.headers = {"Authorization": f"{challenge.partition(' ')[0]} {self._token(challenge)}"}
            response, content = self._read(url, {**headers, **self.headers}, max_bytes=max_bytes)
        response.raise_for_status()
        if digest is not None and _digest(content) != digest:
            raise httpx.DecodingError("the content does not match its digest")
        return content

    def _token(self, challenge: str) -> str:
        """Request an anonymous token from the URL in the registry's challenge (WWW-Authenticate)."""
        parameters = dict(_CHALLENGE.findall(challenge))
        realm = parameters.pop("realm", "")
        if not challenge.lower().startswith("bearer") or not _is_safe(realm):
            raise httpx.ProtocolError("the registry requires a login")
        response, content = self._read(str(httpx.URL(realm, params=parameters)), {})
        response.raise_for_status()
        document = parse_json(content)
        return str(document.get("token") or document["access_token"])

    def _read(
        self, url: str, headers: Mapping[str, str], *, max_bytes: int = _MAX_BYTES
    ) -> tuple[httpx.Response, bytes]:
        """Read a response and its content, limited in size, and in time by the deadline."""
        headers, watch = {**headers, "Accept-Encoding": "identity"}, {"trace": self.deadline.watch}
        with self.client.stream("GET", url, headers=headers, extensions=watch) as response:
            content = b"".join(iter_capped(response, max_bytes))
        if self.deadline.reached:  # a response that was cut off may seem complete
            raise httpx.ReadTimeout("the response takes too long")
        return response, content

    def _base_url(self) -> str:
        host, path = self.name["host"] or _HUB[0], self.name["path"] or ""
        if host == _HUB[0]:
            return f"https://{_HUB[1]}/v2/{path if '/' in path else f'library/{path}'}"
        local = host.partition(":")[0] in {"localhost", "127.0.0.1"}  # docker, too, allows plain HTTP for these hosts
        return f"{'http' if local else 'https'}://{host}/v2/{path}"


def _is_amd64(platform: Mapping[str, str]) -> bool:
    return (platform.get("os"), platform.get("architecture")) == ("linux", "amd64")


def _is_safe(realm: str) -> bool:
    url = urlsplit(realm)
    return url.scheme == "https" or url.hostname in {"localhost", "127.0.0.1"}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
