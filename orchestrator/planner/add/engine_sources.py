"""The sources of an engine's facts: a release of sglang on the package index, or an image on the Docker host."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import ClassVar, TypeAlias

from orchestrator.core.errors import BuildError, Problem, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.yaml_document import Data
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.images.config import ImageConfig, docker_config
from orchestrator.images.facts import ImageFacts, copy_from_image, read_facts
from orchestrator.images.patch_check import PatchState, SourceChecker, fetch_wheel, wheel_version
from orchestrator.kernels.disk.image import ImageTables, read_image
from orchestrator.planner.flag_tables import is_version, unpack_package
from orchestrator.profiles.layers import Override
from orchestrator.profiles.yaml_writer import YamlLine


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """The input of `deploy add engine`: a version of sglang or an image, and the user's values."""

    source: str  # a version without the leading `v`, or an image
    name: str | None = None
    overrides: Sequence[str] = ()
    wheel: Path | None = None  # wheel of that version; downloaded by default
    python: Path | None = None  # Python with sglang's dependencies; a managed environment by default
    host: str | None = None  # Docker host of the image
    replace: bool = False
    dry_run: bool = False


def engine_source(request: EngineRequest, home: Home) -> "EngineSource":
    """Return the requested source, still unread. Raises UsageError for options that do not apply to it."""
    version = request.source.removeprefix("v")
    if not is_version(version):
        if request.wheel is not None:
            hint = "omit `--wheel`, or pass a version such as 0.5.17"
            raise UsageError(f"`--wheel` needs a version; `{request.source}` is an image", hint=hint)
        return _Image(request)
    if request.host is not None:
        raise UsageError("`--host` needs an image", hint=f"the wheel of {version} is read on this host")
    for override in map(Override.parse, request.overrides):
        if override.path == ("version",) and override.value != version:
            hint = f"`deploy add engine {override.value}` reads that wheel"
            raise UsageError(f"`version` is {override.value}, but the wheel has version {version}", hint=hint)
    return _Release(replace(request, source=version), home)


@dataclass
class _Release:
    """A release of sglang on the package index. Its platform is unknown: all platforms share one wheel."""

    request: EngineRequest
    home: Home

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"sglang {self.request.source}"

    @property
    def read(self) -> str:
        """A description of the source."""
        return f"its wheel, {self.name}"

    @cached_property
    def wheel(self) -> Path:
        wheel = self.request.wheel or fetch_wheel(self.request.source, self.home.root / "wheels")
        if (version := wheel_version(wheel)) != self.request.source:
            mismatch = f"has version {version}" if version else "has no version"
            raise UsageError(
                f"`{wheel}` {mismatch}, not {self.request.source}",
                hint="pass the wheel's version: `deploy add engine VERSION`",
            )
        return wheel

    def lines(self) -> Iterator[YamlLine]:
        """Yield the known facts, each with its source."""
        version = wheel_version(self.wheel)  # first, because other queries need the version
        yield YamlLine(path=("source",), value=f"sglang wheel {version}")
        yield YamlLine(path=("version",), value=version, comment="sglang/_version.py in its wheel")

    def missing_facts(self) -> Mapping[str, Problem]:
        """Return a problem for each missing fact, by key, with the option that sets it."""
        message = "cannot read `platform`: all platforms have the same wheel"
        return {"platform": Problem(message, self.name, "`--set platform=rocm`, `cuda` or `cpu`")}

    def patches(self, checker: SourceChecker) -> tuple[PatchState, ...]:
        """Return the state of each patch for these sources."""
        return checker.check_wheel(self.wheel)

    def unpack(self, folder: Path) -> None:
        """Write the package `sglang` into a folder."""
        unpack_package(self.wheel, folder)

    def tables(self) -> ImageTables | None:
        """Return the tables of tuned kernels; None if there are none."""
        return None


@dataclass
class _Image:
    """An image on the Docker host."""

    request: EngineRequest
    read: ClassVar = "the image"

    @property
    def name(self) -> str:
        return self.request.source

    @cached_property
    def docker(self) -> DockerCli:
        return find_docker(self.request.host)

    @cached_property
    def config(self) -> ImageConfig:
        if (config := docker_config(self.docker, self.name)) is None:
            hint = f"`docker pull {self.name}`; write a version of sglang as 0.5.17"
            raise BuildError(f"no image `{self.name}` found on this Docker host", hint=hint)
        return config

    @cached_property
    def facts(self) -> ImageFacts:
        return read_facts(self.docker, self.config.reference)

    @property
    def image(self) -> str:
        """The name of the image without a digest."""
        return self.name.partition("@")[0]

    @property
    def version(self) -> str | None:
        """The release of the sources; None if they are unreleased or have no version."""
        version = self.facts.sglang.version
        return version if version is not None and is_version(version) else None

    def lines(self) -> Iterator[YamlLine]:
        facts, digest = self.facts, self.name.partition("@")[2] or self.config.digest
        package = facts.sglang.root
        values: list[tuple[str, Data, str]] = [
            ("source", "the image on the Docker host", ""),
            ("version", self.version, f"{package}/_version.py"),
            ("platform", facts.platform, facts.platform_evidence),
            ("image", self.image, "as requested"),
            ("image_digest", digest or None, "the registry's, as recorded on the Docker host"),
            ("source_dir", package, "location of sglang in its Python"),
        ]
        if facts.aiter is not None:
            root = str(PurePosixPath(facts.aiter.root).parent)
            values.append(("aiter_dir", root, "location of aiter in its Python"))
            values.append(("aiter_commit", facts.aiter.commit, f"{root}: the HEAD of git"))
        return (
            YamlLine(path=(key,), value=value, comment=comment) for key, value, comment in values if value is not None
        )

    def missing_facts(self) -> Mapping[str, Problem]:
        missing = dict[str, Problem]()
        if self.version is None:
            message = f"cannot read `version`: its sources are of version `{self.facts.sglang.version or 'unknown'}`"
            hint = "give the release with the same options: `--set version=0.5.20`"
            missing["version"] = Problem(message, self.name, hint)
        if self.facts.platform is None:
            message = (
                f"cannot read `platform`: its torch names none ({self.facts.platform_evidence or 'no torch found'})"
            )
            missing["platform"] = Problem(message, self.name, "`--set platform=rocm`, `cuda` or `cpu`")
        return missing

    def patches(self, checker: SourceChecker) -> tuple[PatchState, ...]:
        return checker.check_image(self.docker, self.config.reference)

    def unpack(self, folder: Path) -> None:
        copy_from_image(self.docker, self.config.reference, self.facts.sglang.root, folder)

    def tables(self) -> ImageTables | None:
        if self.facts.aiter is None:
            return None
        root = str(PurePosixPath(self.facts.aiter.root).parent)
        tables = read_image(self.config.reference, root, self.request.host)
        prefix = f"{self.image} ({tables.digest[:19]}) "
        return replace(tables, rows=tuple(replace(row, location=prefix + row.location) for row in tables.rows))


EngineSource: TypeAlias = _Release | _Image
