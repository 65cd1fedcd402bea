"""The command `deploy patches check`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import HostOption, Json, image_name
from orchestrator.core.console import table, terminal_width
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
    OUTPUT.show_or_print(states, lambda: _table(states), json=json)
    if conflicts := [state.id for state in states if state.state == CONFLICT]:
        raise PatchError(
            f"patches conflict with the sources: {', '.join(f'`{name}`' for name in conflicts)}",
            hint="no image can be built; fix the patch, or skip it with `skip_patches` in the profile",
        )


def _table(states: Iterable[PatchState]) -> str:
    """Format the states; the name precedes only the first line of evidence."""
    rows = []
    for state in states:
        first, *more_lines = "\n".join(state.evidence).splitlines()
        rows += [[state.id, state.state, first], *(["", "", line] for line in more_lines)]
    return table(["patch", "state", "evidence"], rows, width=terminal_width())


def _states(*, wheel: str | None, source: Path | None, image: str | None, host: str | None) -> tuple[PatchState, ...]:
    checker = SourceChecker.of_ledger()
    if wheel is not None:
        path = Path(wheel) if wheel.endswith(".whl") else fetch_wheel(wheel, Home.from_environment().root / "wheels")
        return checker.check_wheel(path)
    if source is not None:
        return checker.check_directory(source)
    return checker.check_image(find_docker(host), image or "")
