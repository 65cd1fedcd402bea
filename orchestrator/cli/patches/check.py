"""The command `deploy patches check`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import HostOption, Json, image_name
from orchestrator.core.console import print_data, table, terminal_width
from orchestrator.core.errors import PatchError, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.images.client import find_docker
from orchestrator.images.patch_check import CONFLICT, PatchState, SourceChecker, fetch_wheel

OUTPUT: Final = JsonOutput(tuple[PatchState, ...])


def command(
    *,
    wheel: Annotated[str | None, typer.Option(metavar="VERSION|FILE", help="sglang version or wheel file")] = None,
    source: Annotated[Path | None, typer.Option(metavar="DIR", help="checkout or installed package")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", callback=image_name, help="image on the Docker host")
    ] = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Check which patches a source tree needs. Shows the deciding line; exits with 5 on a conflict."""
    if sum(choice is not None for choice in (wheel, source, image)) != 1:
        raise UsageError("no sources given", hint="one of `--wheel VERSION`, `--source DIR`, `--image IMAGE`")
    if host is not None and image is None:
        raise UsageError("`--host` needs `--image`", hint="add `--image IMAGE`, or run the command on that host")
    states = _states(wheel=wheel, source=source, image=image, host=host)
    if json:
        OUTPUT.show(tuple(states))
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
            f"patches conflict with the sources: {', '.join(f'`{name}`' for name in conflicts)}",
            hint="no image can be built; fix the patch, or skip it with `skip_patches` in the profile",
        )


def _rows(found: PatchState) -> Iterator[list[str]]:
    """Yield one row for each line of evidence; only the first has the name."""
    first, *others = "\n".join(found.evidence).splitlines()
    yield [found.id, found.state, first]
    yield from (["", "", line] for line in others)


def _states(*, wheel: str | None, source: Path | None, image: str | None, host: str | None) -> Sequence[PatchState]:
    checker = SourceChecker.of_ledger()
    if wheel is not None:
        path = Path(wheel) if wheel.endswith(".whl") else fetch_wheel(wheel, Home.from_environment().root / "wheels")
        return checker.check_wheel(path)
    if source is not None:
        return checker.check_directory(source)
    return checker.check_image(find_docker(host), image or "")
