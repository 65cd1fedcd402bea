"""`deploy build`, `deploy inspect`, `deploy matrix`, `deploy patches list|check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.options import (
    AtOnceOption,
    GiveOption,
    HostOption,
    Json,
    ProfileArgument,
    SetOption,
    image_name,
    named_files,
)
from orchestrator.cli.typer_app import LOOK_UP, PREPARE, add, below
from orchestrator.core.console import note, print_data, print_json, say, table, terminal_width, warn
from orchestrator.core.errors import PatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.images.build import BuiltImage
    from orchestrator.images.patch_check import PatchState
    from orchestrator.images.receipt import ImageReceipt
    from orchestrator.plan.plan import Plan


MetadataOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="write the image, its digest and its receipt to FILE as JSON")
]
TagOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:TAG", callback=image_name, help="an additional name for the image, such as registry/name:tag"
    ),
]
SecretOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="ID=FILE", help="a file that build steps can mount; may be repeated")
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    add(app, build, matrix, section=PREPARE)
    add(app, inspect, section=LOOK_UP)
    group = below(app, "patches", section=LOOK_UP, text="The ledger of patches, and which of them sources need.")
    add(group, list_patches, name="list")
    add(group, check_patches, name="check")


def build(
    profile: ProfileArgument,
    *,
    set_: SetOption = None,
    base_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="build on this image: NAME:TAG, NAME:TAG@sha256:…")
    ] = None,
    give: GiveOption = None,
    accept_untuned: Annotated[
        bool, typer.Option("--accept-untuned", help="build even if no table of tuned kernels can be made")
    ] = False,
    tag: TagOption = None,
    push: Annotated[bool, typer.Option("--push", help="push the image under the name of `--tag`")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="rebuild, even if the image exists")] = False,
    network: Annotated[
        str | None, typer.Option(metavar="NETWORK", help="network for the build steps, such as `host`")
    ] = None,
    secret: SecretOption = None,
    metadata_file: MetadataOption = None,
    host: HostOption = None,
    at_once: AtOnceOption = 2,  # noqa: ARG001 - read where a command is run on each of several hosts
    json: Json = False,
) -> None:
    """Build a profile's image and prove the patches in it. It is the image that `up` starts; prints its name.

    The table of tuned kernels is made before, as `up` would, and the sglang in the image checks the arguments after.
    """
    from dataclasses import asdict

    from orchestrator.core.paths import Home
    from orchestrator.images.build import build_image, push_image, tag_image, write_metadata
    from orchestrator.images.client import find_docker
    from orchestrator.planner.planning import render_artifacts
    from orchestrator.servers.start.argument_check import require_accepted_by_image
    from orchestrator.servers.start.host import host_ref
    from orchestrator.servers.start.prepare import plan_to_build

    if push and tag is None:
        raise UsageError("`--push` needs a name to push", hint="give one with `--tag registry/name:tag`")
    given = named_files("--give", give)
    home = Home.from_environment()
    plan, inputs = plan_to_build(
        profile, set_ or (), home, base=base_image, given=given, accept_untuned=accept_untuned, host=host
    )
    place = host_ref(plan.runtime, home, host)
    artifacts, docker = render_artifacts(plan, inputs), find_docker(place.far or host)
    built = build_image(docker, artifacts, secrets=named_files("--secret", secret), network=network, no_cache=no_cache)
    require_accepted_by_image(artifacts, docker, built.image_id, place, profile=profile, overrides=set_ or ())
    if tag:
        tag_image(docker, built.tag, tag)
    digest = push_image(docker, tag) if push and tag else None
    metadata = {**asdict(built), "pushed": digest}
    if metadata_file:
        write_metadata(metadata_file, metadata)
    _show_built(built, plan)
    if json:
        print_json(metadata)
    else:
        print_data(digest or tag or built.tag)


def _show_built(built: "BuiltImage", plan: "Plan") -> None:
    from orchestrator.images.patch_drift import unexpected_patches

    say(_summary(built.receipt))
    for difference in unexpected_patches(plan, built.receipt):
        warn(difference)
    note(f"{'built' if built.built else 'already built'} in {built.seconds:.1f} s")


def inspect(
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE|DIR",
            help="an image that `deploy build` made, or a base image; here or in its registry; or a checkpoint",
        ),
    ],
    *,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Show what an image or a checkpoint holds. An image need not have been pulled.

    Of an image its environment, which every container of it starts with, its sources and the state of each patch, with
    evidence and hashes. Of a checkpoint how its tensors are stored, and whether its config says so: exit code 4 if not.
    """
    from dataclasses import asdict

    if Path(image).is_dir():
        _inspect_checkpoint(Path(image), json=json)
        return

    from orchestrator.core.paths import Home
    from orchestrator.images.receipt import receipt_in
    from orchestrator.images.registry import Registry
    from orchestrator.planner.image_env import asked_config

    config = asked_config(image, Home.from_environment(), Registry(), host)
    receipt = receipt_in(config.labels, image)
    if json:
        found = asdict(receipt) if receipt else {}
        print_json({**found, "digest": config.digest or None, "environment": config.engine_env})
        return
    print_data(table(["variable", "value"], config.engine_env.items(), width=terminal_width()))
    if receipt is None:
        note(f"`{image}` has no receipt: only images that `deploy build` made have one")
        return
    print_data("\n" + _summary(receipt))
    for record in receipt.patches:
        print_data(f"\n{record.id}: {record.state} ({record.upstream})\n  {record.title}")
        for line in record.evidence:
            print_data(f"  {line}")
        for file in record.files:
            print_data(f"  {file.path}\n    sha256 {file.before or '(none)'} -> {file.after}")


def _inspect_checkpoint(directory: Path, *, json: bool) -> None:
    from orchestrator.checkpoints.view import view_checkpoint

    view = view_checkpoint(directory.absolute())
    if json:
        print_json(view.to_dict())
    else:
        print_data(view.to_text(width=terminal_width()))
    for difference in view.differences:
        if not difference.fatal or difference.sglang:
            warn(difference.message, hint=difference.hint)
    view.require()


def matrix() -> None:
    """Print the profiles with an image as a GitHub Actions matrix, with the disk space of each build in GiB."""
    from orchestrator.images.base import IMAGE_BYTES
    from orchestrator.planner.planning import usable_plans
    from orchestrator.runtimes import runtime_class

    entries = [
        {
            "profile": plan.profile,
            "engine": plan.engine.name,
            "base": plan.engine.image,
            "disk_gib": IMAGE_BYTES >> 30,
        }
        for plan in usable_plans()
        if runtime_class(plan.runtime).contained
    ]
    print_json({"include": entries})


def list_patches(*, json: Json = False) -> None:
    """List every patch: what it repairs, and where the fix comes from."""
    from orchestrator.patches.ledger import read_ledger

    ledger = read_ledger()
    if json:
        print_json([patch.model_dump(mode="json") for patch in ledger])
        return
    rows = [[p.id, p.apply.kind, p.applies.engine or "every", p.upstream.reference, p.title] for p in ledger]
    print_data(table(["patch", "kind", "sglang", "upstream", "what it does"], rows, width=terminal_width()))


def check_patches(
    *,
    wheel: Annotated[
        str | None, typer.Option(metavar="VERSION|FILE", help="a version of sglang, or a wheel file")
    ] = None,
    source: Annotated[Path | None, typer.Option(metavar="DIR", help="a checkout, or an installed package")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", callback=image_name, help="an image on the Docker host")
    ] = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Tell from their content which patches sources need. Shows the deciding line; exit code 5 on a conflict."""
    from dataclasses import asdict

    from orchestrator.images.patch_check import CONFLICT

    if sum(choice is not None for choice in (wheel, source, image)) != 1:
        raise UsageError("say what to look at", hint="one of `--wheel VERSION`, `--source DIR`, `--image IMAGE`")
    if host is not None and image is None:
        raise UsageError("`--host` is for `--image`", hint="a wheel and a directory lie on this machine")
    states = _states(wheel=wheel, source=source, image=image, host=host)
    if json:
        print_json([asdict(state) for state in states])
    else:
        print_data(
            table(
                ["patch", "state", "evidence"],
                [row for found in states for row in _rows(found)],
                width=terminal_width(),
            )
        )
    if conflicts := [found.id for found in states if found.state == CONFLICT]:
        raise PatchError(
            f"patches that these sources neither need nor have: {', '.join(f'`{name}`' for name in conflicts)}",
            hint="no image is built from them; fix the patch, or leave it out with `without_patches` in the profile",
        )


def _rows(found: "PatchState") -> "Iterator[list[str]]":
    """One row a line of evidence, named once."""
    first, *others = "\n".join(found.evidence).splitlines()
    yield [found.id, found.state, first]
    yield from (["", "", line] for line in others)


def _states(*, wheel: str | None, source: Path | None, image: str | None, host: str | None) -> "Sequence[PatchState]":
    from orchestrator.core.paths import Home
    from orchestrator.images.client import find_docker
    from orchestrator.images.patch_check import SourceChecker, fetch_wheel

    checker = SourceChecker.of_ledger()
    if wheel is not None:
        path = Path(wheel) if wheel.endswith(".whl") else fetch_wheel(wheel, Home.from_environment().root / "wheels")
        return checker.check_wheel(path)
    if source is not None:
        return checker.check_directory(source)
    return checker.check_image(find_docker(host), image or "")


def _summary(receipt: "ImageReceipt") -> str:
    """The receipt in a table: sources first, then one line a patch."""
    rows = [
        [name, source.version or "unknown", (source.commit or "unknown")[:12], source.root]
        if source
        else [name, "not in this image", "", ""]
        for name, source in receipt.sources
    ]
    patches = [[record.id, record.state, record.upstream] for record in receipt.patches]
    shown = table(["sources", "version", "commit", "place"], rows)
    return shown + "\n\n" + table(["patch", "state", "upstream"], patches) if patches else shown
