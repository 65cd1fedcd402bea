"""Options shared by several commands, and the completion of their values."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import ImageReference, UnsafeValueError
from orchestrator.runs.run_dir import known_names
from orchestrator.runtimes import REGISTRY

_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*")


def complete_names(kind: str) -> Callable[[str], list[str]]:
    """Complete the names of an `EntryKind`; none if the catalog is unreadable, because a shell shows no errors."""

    def offer(incomplete: str) -> list[str]:
        with suppress(Exception):
            return _words(Catalog.from_environment().names(EntryKind[kind]), incomplete)
        return []

    return offer


def entry_option(kind: str, *words: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002, ANN401 - typer's
    """Return the option `words`, which takes an entry of an `EntryKind`, with completion."""
    return typer.Option(*words, metavar=metavar or kind, help=help, autocompletion=complete_names(kind))


def server_names(incomplete: str) -> list[str]:
    """Complete the names of servers in this home; remote hosts are not queried."""
    with suppress(Exception):
        return _words(known_names(Home.from_environment()), incomplete)
    return []


def runtime_names(incomplete: str) -> list[str]:
    """Complete the names of runtimes."""
    return _words(REGISTRY, incomplete)


def sides_to_compare(incomplete: str) -> list[str]:
    """Complete profiles and servers."""
    return list(dict.fromkeys([*complete_names("PROFILE")(incomplete), *server_names(incomplete)]))


def image_name(text: str | None) -> str | None:
    """Check that an option is the name of an image, and return it. Raises UsageError."""
    if text is not None:
        try:
            ImageReference(text)
        except UnsafeValueError as error:
            raise UsageError(str(error)) from error
    return text


def _words(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names with this prefix that need no quoting in a shell."""
    return [name for name in names if name.startswith(incomplete) and _WORD.fullmatch(name)]


_PROFILE_ARGUMENT: Final[Any] = typer.Argument(
    metavar="PROFILE", help="profile name or file (also --profile or -p)", autocompletion=complete_names("PROFILE")
)
ProfileArgument: TypeAlias = Annotated[str, _PROFILE_ARGUMENT]
ProfileOrRunArgument: TypeAlias = Annotated[str | None, _PROFILE_ARGUMENT]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override a value, such as layout.tp=4 (may be repeated)"),
]
GpusOption: TypeAlias = Annotated[
    int | None, typer.Option("--gpus", metavar="N", min=1, help="GPUs to use; default: all of the node")
]
RuntimeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--runtime", metavar="RUNTIME", help="runtime to use, such as docker or process", autocompletion=runtime_names
    ),
]
ImageOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="IMAGE", callback=image_name, help="prebuilt image to start: NAME@sha256:… or NAME:TAG"),
]
RevisionOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--revision", metavar="REV", help="checkpoint revision: a commit, its first digits or main"),
]
InputOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE", help="patch input, such as moe-table=FILE (may be repeated)"),
]
NameArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="server name", autocompletion=server_names)
]
NameOrAllArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="NAME", help="server name; default: all", autocompletion=server_names)
]
TargetArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME|URL", help="server name or endpoint URL", autocompletion=server_names)
]
ApiKeyEnvOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="environment variable with the API key of a URL")
]
EngineOption: TypeAlias = Annotated[
    str | None, typer.Option("--engine", metavar="sglang|vllm|atom", help="engine behind a URL; default: detected")
]
WorkloadOption: TypeAlias = Annotated[
    str | None, entry_option("WORKLOAD", "--workload", "-w", help="workload name or file")
]
DrainOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--drain", metavar="SECONDS", min=0, help="wait for running requests; default: the plan's grace"),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]
AllowUntuned: TypeAlias = Annotated[
    bool, typer.Option("--allow-untuned", help="continue although the workload needs untuned MoE kernels")
]
PriceOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="[GPU=]USD", help="price per GPU hour; default: published TCO (may be repeated)"),
]
HostOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--host", metavar="URL|@FILE", help="ssh://user@node, or @FILE of hosts; default: DOCKER_HOST"),
]
HostsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--host", metavar="URL|@FILE", help="ssh://user@node (may be repeated), or @FILE; default: DOCKER_HOST"
    ),
]
ParallelOption: TypeAlias = Annotated[
    int, typer.Option(min=1, metavar="N", help="hosts that download at the same time")
]
StrictKernels: TypeAlias = Annotated[bool, typer.Option("--strict-kernels", help="fail on an untuned MoE kernel")]
RequestRateOption: TypeAlias = Annotated[
    str | None, typer.Option("--request-rate", metavar="RPS,RPS…", help="request rates to offer (requests/s)")
]


def require_kind(target: str, *, url: bool, of_url: Mapping[str, object], of_server: Mapping[str, object]) -> None:
    """Raise UsageError for options that do not apply to the target: a URL, or the name of a server."""
    if unfit := [f"`{option}`" for option, value in (of_server if url else of_url).items() if value]:
        owner, hint = ("servers that `deploy` started", "omit the option, or pass the NAME of a server")
        if not url:
            owner, hint = "URLs", f"omit it: the plan of `{target}` has the value"
        raise UsageError(f"{' and '.join(unfit)} {'is' if len(unfit) == 1 else 'are'} for {owner}", hint=hint)


def named_files(option: str, pairs: Sequence[str] | None) -> dict[str, Path]:
    """Parse `NAME=FILE` options. Raises UsageError for another form or a missing file."""
    files = {}
    for pair in pairs or ():
        name, equals, path = pair.partition("=")
        if not (name and equals and Path(path).is_file()):
            raise UsageError(f"`{option} {name}=…` needs the path of a file", hint=f"`{option} NAME=FILE`")
        files[name] = Path(path)
    return files


def read_rates(text: str | None, option: str = "--request-rate") -> tuple[float, ...] | None:
    """Parse rates such as `0.5,1,2.25`. Raises UsageError."""
    if text is None:
        return None
    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError as error:
        raise UsageError(f"`{option} {text}` is not a list of numbers", hint="write it as 0.5,1,2.25") from error
