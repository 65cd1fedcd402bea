"""The command `deploy add engine`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.add.options import FactOption, NameOption, ReplaceOption
from orchestrator.cli.options import HostOption, Json
from orchestrator.core.console import info, note, print_data, table, terminal_width
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput, fields_of
from orchestrator.core.paths import Home
from orchestrator.images.patch_check import PatchState
from orchestrator.planner.add.engine import AddedEngine, OptionTable, ShippedTables, add_engine
from orchestrator.planner.add.engine_sources import EngineRequest
from orchestrator.planner.add.file import EntryOutput
from orchestrator.planner.flag_tables import write_flag_table


@dataclass(frozen=True, kw_only=True)
class EngineOutput(EntryOutput):
    """A new engine; `written` is false for a dry run."""

    options: OptionTable
    tuned_kernels: ShippedTables | None
    patches: tuple[PatchState, ...]
    written: bool


@dataclass(frozen=True, kw_only=True)
class WrittenFlagTable:
    """With `--flags-only`: the written flag table."""

    path: str


OUTPUT: Final = JsonOutput[EngineOutput | WrittenFlagTable](EngineOutput, WrittenFlagTable)


def command(
    source: Annotated[
        str, typer.Argument(metavar="VERSION|IMAGE", help="sglang version, such as 0.5.20, or a local image")
    ],
    *,
    name: NameOption = None,
    set_: FactOption = None,
    wheel: Annotated[Path | None, typer.Option(metavar="FILE", help="wheel of VERSION; default: downloaded")] = None,
    python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Python with sglang's dependencies; default: a managed environment"),
    ] = None,
    flags_only: Annotated[bool, typer.Option("--flags-only", help="write only the flag table of VERSION")] = False,
    host: HostOption = None,
    replace: ReplaceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the entry and stop")] = False,
    json: Json = False,
) -> None:
    """Write an engine's catalog entry from a wheel or image. It goes into `$DEPLOY_HOME/profiles/engines`.

    The flag table is written too, and the state of each patch is read from the sources. An image also gives its
    platform, its aiter and its tuned kernels. The error for a missing value names its key.
    """
    home = Home.from_environment()
    if flags_only:
        if name or set_ or host or replace or dry_run:
            raise UsageError("`--flags-only` allows only `--wheel` and `--python`", hint="omit the other options")
        path = str(write_flag_table(source, home, wheel=wheel, python=python))
        OUTPUT.show_or_print(WrittenFlagTable(path=path), lambda: path, json=json)
        return
    request = EngineRequest(
        source=source,
        name=name,
        overrides=set_ or (),
        wheel=wheel,
        python=python,
        host=host,
        replace=replace,
        dry_run=dry_run,
    )
    added = add_engine(request, home)
    if json:
        output = EngineOutput(
            **fields_of(added.file),
            options=added.options,
            tuned_kernels=added.tables,
            patches=added.patches,
            written=not dry_run,
        )
        OUTPUT.show(output)
    else:
        _show_engine(added, written=not dry_run)


def _show_engine(added: AddedEngine, *, written: bool) -> None:
    print_data(table(["key", "value", "from"], added.rows(), width=terminal_width()))
    for text in added.file.notes:
        note(text)
    if written:
        info(f"wrote {added.file.path}")
        info(f"next: `deploy show PROFILE --set engine={added.file.name}`")
    else:
        info(f"would write {added.file.path}")
