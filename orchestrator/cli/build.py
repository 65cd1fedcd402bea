"""The command `deploy build`."""

from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import (
    AllowUntuned,
    HostOption,
    InputOption,
    Json,
    ParallelOption,
    ProfileArgument,
    SetOption,
    image_name,
    named_files,
)
from orchestrator.core.console import info, note, warn
from orchestrator.core.errors import UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.json_output import JsonOutput, fields_of
from orchestrator.core.paths import Home
from orchestrator.images.build import BuiltImage, build_image, push_image, tag_image
from orchestrator.images.client import find_docker
from orchestrator.images.patch_drift import unexpected_patches
from orchestrator.planner.planning import render_artifacts
from orchestrator.servers.start.argument_check import require_accepted_by_image
from orchestrator.servers.start.host import resolve_host_ref
from orchestrator.servers.start.kernels import image_with_kernels
from orchestrator.servers.start.prepare import plan_to_build

MetadataOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="write image, digest and receipt to FILE (JSON)")
]
TagOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME:TAG", callback=image_name, help="additional image name, such as registry/name:tag"),
]
SecretOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="ID=FILE", help="secret file for the build steps (may be repeated)")
]


@dataclass(frozen=True, kw_only=True)
class BuildOutput(BuiltImage):
    """An image; `pushed` is its digest in the registry, null if it was not pushed."""

    pushed: str | None


OUTPUT: Final = JsonOutput(BuildOutput)


def command(
    profile: ProfileArgument,
    *,
    set_: SetOption = None,
    base_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="base image: NAME:TAG or NAME:TAG@sha256:…")
    ] = None,
    input_: InputOption = None,
    allow_untuned: AllowUntuned = False,
    tag: TagOption = None,
    push: Annotated[bool, typer.Option("--push", help="push the image as the name of `--tag`")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="rebuild even if the image exists")] = False,
    network: Annotated[
        str | None, typer.Option(metavar="NETWORK", help="network of the build steps, such as host")
    ] = None,
    secret: SecretOption = None,
    metadata_file: MetadataOption = None,
    host: HostOption = None,
    parallel: ParallelOption = 2,  # noqa: ARG001 - read by the fan-out over hosts
    json: Json = False,
) -> None:
    """Build a patched image. Prints the name of the image, which `up` starts.

    The kernel table is built first, as by `up`. Then the image's own sglang checks the arguments.
    """
    if push and tag is None:
        raise UsageError("`--push` needs `--tag`", hint="for example `--tag registry/name:tag`")
    input_files = named_files("--input", input_)
    home = Home.from_environment()
    plan, inputs = plan_to_build(
        profile, set_ or (), home, base=base_image, input_paths=input_files, allow_untuned=allow_untuned, host=host
    )
    host_ref = resolve_host_ref(plan.runtime, home, host)
    artifacts, docker = render_artifacts(plan, inputs), find_docker(host_ref.remote or host)
    built = build_image(docker, artifacts, secrets=named_files("--secret", secret), network=network, no_cache=no_cache)
    require_accepted_by_image(artifacts, docker, built.image_id, host_ref, profile=profile, overrides=set_ or ())
    if plan.engine.compiled_kernels is not None:
        built = image_with_kernels(docker, built, plan, host_ref)
    if tag:
        tag_image(docker, built.tag, tag)
    digest = push_image(docker, tag) if push and tag else None
    metadata = BuildOutput(**fields_of(built), pushed=digest)
    if metadata_file:
        atomic_write(metadata_file, dumps(asdict(metadata), indent=2) + "\n")
    info(built.receipt.to_text())
    for difference in unexpected_patches(plan, built.receipt):
        warn(difference)
    note(f"{'built' if built.built else 'already built'} in {built.seconds:.1f} s")
    OUTPUT.show_or_print(metadata, lambda: digest or tag or built.tag, json=json)
