"""`deploy up`, `status`, `logs`, `smoke`, `down`: the life of a server."""

import sys
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.options import (
    AcceptUntuned,
    AtOnceOption,
    HostOption,
    ImageOption,
    Json,
    NameArgument,
    OnOption,
    ProfileOrRunArgument,
    RevisionOption,
    SetOption,
    TargetArgument,
    complete_names,
    overridden,
    require_kind,
    run_names,
    server_names,
)
from orchestrator.cli.typer_app import SERVE, add
from orchestrator.core.console import note, print_data, print_json, say, terminal_width
from orchestrator.core.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.servers.start.launch import UpResult

StrictKernels: TypeAlias = Annotated[bool, typer.Option("--strict-kernels", help="fail on an untuned MoE kernel")]
ReplaceOption: TypeAlias = Annotated[
    bool, typer.Option("--replace", help="stop a server of that name first; several replicas one by one")
]
OnlyOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="of several replicas, replace only so many, to look at them")
]
LeastGsm8kOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SCORE", help="of several replicas, replace the next when one has scored this"),
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="give up after this long; default: when the start makes no progress"),
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    add(app, up, restart, rollback, status, top, ask, logs, smoke, down, section=SERVE)


def up(
    *,
    profile: ProfileOrRunArgument = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="an earlier start once more, by its own plan", autocompletion=run_names
        ),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="what PROFILE.lock.yaml, or the lock given as PROFILE, holds; or nothing")
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="the server's name; default: the profile's")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be started, and stop")] = False,
    replace: ReplaceOption = False,
    only: OnlyOption = None,
    least_gsm8k: LeastGsm8kOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave a failed server running, to look at it")] = False,
    stage: Annotated[bool, typer.Option("--stage/--no-stage", help="download a missing checkpoint, or refuse")] = True,
    accept_untuned: AcceptUntuned = False,
    strict_kernels: StrictKernels = False,
    timeout: TimeoutOption = None,
    revision: RevisionOption = None,
    image: ImageOption = None,
    host: HostOption = None,
    at_once: AtOnceOption = 2,  # noqa: ARG001 - read where a command is run on each of several hosts
    on: OnOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Bring a profile's server up: stage, build, start, wait, prove. Steps already done are skipped."""
    from orchestrator.core.paths import Home
    from orchestrator.servers.rollback import decided_before
    from orchestrator.servers.start.request import UpRequest
    from orchestrator.servers.start.up import preview, up

    home = Home.from_environment()
    request = UpRequest(
        profile=profile or "",
        name=name,
        overrides=overridden(set_, revision=revision, on=on),
        host=host,
        image=image,
        replace=replace,
        only=only,
        least_gsm8k=least_gsm8k,
        keep=keep,
        stage=stage,
        accept_untuned=accept_untuned,
        strict_kernels=strict_kernels,
        timeout=timeout,
    )
    request = decided_before(request, home, run=from_, locked=locked)
    if dry_run:
        would = preview(request, home)
        print_data(would.files)
        say(would.steps)
        return
    _say_up(up(request, home), json=json)


def restart(name: NameArgument, *, json: Json = False) -> None:
    """Start a server again as it last came up. One that runs is stopped first."""
    from orchestrator.core.paths import Home
    from orchestrator.servers.restart import restart

    _say_up(restart(name, Home.from_environment()), json=json)


def rollback(name: NameArgument, *, json: Json = False) -> None:
    """Bring back the last proven start, with its own plan. If the newest is proven, the one of another plan."""
    from orchestrator.core.paths import Home
    from orchestrator.servers.rollback import rollback

    _say_up(rollback(name, Home.from_environment()), json=json)


def _say_up(done: "UpResult", *, json: bool) -> None:
    if json:
        print_json(done.to_dict())
        return
    handle, already = done.handle, "already " if done.smoke is None else ""
    if done.smoke is not None:
        say(done.smoke.to_table(width=terminal_width(sys.stderr)))
    where = f"{handle.service}, where it runs" if handle.service else handle.url
    say(f"`{handle.name}` is {already}up at {where}")
    if handle.forward:
        note(f"`{handle.forward}` leads there from this machine")


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="one server; default: all", autocompletion=server_names)
    ] = None,
    *,
    health: Annotated[bool, typer.Option("--health", help="ask every server to generate a token")] = False,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Show what runs. A named server must also be healthy; with --health, all are asked."""
    from orchestrator.core.paths import Home
    from orchestrator.runtimes.base import Status
    from orchestrator.servers.servers import open_servers
    from orchestrator.servers.status import require_well, status_table, statuses

    with open_servers(Home.from_environment(), host) as servers:
        if name is not None:
            servers.open(name)
        found = statuses(servers, name, ask=health or name is not None)
        if json:
            print_json([server.to_dict() for server in found])
        elif found:
            print_data(status_table(found, width=terminal_width()))
        elif not servers.silent:
            say("nothing runs; `deploy profiles` lists what `deploy up PROFILE` can start")
        for server in found if name is not None else ():
            if server.restarts and server.health == "healthy" and server.detail:
                note(f"`{server.name}`: {server.detail}")
        for server in found if name is None else ():
            if server.status in {Status.PENDING, Status.UNKNOWN} or (server.health == "unhealthy" and server.detail):
                note(f"`{server.name}`: {server.detail}")
            elif server.status == Status.EXITED:
                note(f"`{server.name}`: {server.detail}; `deploy restart {server.name}` starts it anew")
        require_well(servers, found, named=name is not None)


def top(
    name: NameArgument,
    *,
    once: Annotated[bool, typer.Option("--once", help="print one frame, and stop")] = False,
    interval: Annotated[float, typer.Option(min=0.5, max=60, metavar="SECONDS", help="between two looks")] = 2.0,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Watch what a server does: load, latencies, cache, kernels, GPUs. Ctrl-C ends it."""
    from time import sleep

    from orchestrator.core.console import live_screen
    from orchestrator.core.paths import Home
    from orchestrator.servers.servers import open_servers
    from orchestrator.servers.top import Frame, TopView

    def show(frame: Frame) -> None:
        if json:
            print_json(frame.to_dict(), one_line=True)
        else:
            draw(frame.to_text(width=terminal_width()))

    with (
        open_servers(Home.from_environment(), host) as servers,
        closing(TopView(servers, name, host=host)) as view,
        nullcontext(print_data) if once or json else live_screen() as draw,
    ):
        frame = view.look()
        while not once:
            show(frame)
            sleep(interval)
            frame = view.look()
        sleep(interval)  # a rate takes two looks
        show(view.look())


def ask(
    name: NameArgument,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="what to complete")],
    *,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="at most this many tokens")] = 64,
    host: HostOption = None,
) -> None:
    """Stream one greedy completion of a running server."""
    from orchestrator.core.paths import Home
    from orchestrator.core.secrets import StreamRedactor
    from orchestrator.servers.ask import ask_server
    from orchestrator.servers.servers import open_servers

    with open_servers(Home.from_environment(), host) as servers:
        answer, pieces = StreamRedactor(), ask_server(servers, name, prompt, tokens=tokens)
        try:
            for piece in pieces:
                print_data(answer.feed(piece), end="")
        finally:
            print_data(answer.close(), end="")
    print_data("")


def logs(
    name: NameArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the server ends")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=1, metavar="N", help="only the last N")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="only what is younger: 5m, 2h, 14:05, 2026-11-22T14:05")
    ] = None,
    host: HostOption = None,
) -> None:
    """Show a server's log, secrets removed. If the server is gone, its last one."""
    from datetime import datetime

    from orchestrator.core.paths import Home
    from orchestrator.servers.logs import log_lines, parse_since
    from orchestrator.servers.servers import open_servers

    moment = parse_since(since, datetime.now().astimezone()) if since is not None else None
    shown = False
    with open_servers(Home.from_environment(), host) as servers:
        for line in log_lines(servers, name, follow=follow, last=lines, since=moment):
            print_data(line, colours=True)
            shown = True
    if moment is not None and not shown:
        note(f"nothing was written since {moment:%Y-%m-%d %H:%M:%S}, as far as the lines say when they were")


def smoke(
    target: TargetArgument,
    *,
    strict_kernels: StrictKernels = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="the profile that a URL's server should match; default: what it says it is",
            autocompletion=complete_names("PROFILE"),
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="the variable that holds a URL's key")
    ] = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Prove a running server with the smoke test of `up`. A missing feature turns a check red."""
    from orchestrator.bench.run import is_url
    from orchestrator.core.paths import Home
    from orchestrator.planner.planning import load
    from orchestrator.servers.servers import api_key, open_servers
    from orchestrator.servers.start.verify import smoke_server, smoke_url

    ours = {"--strict-kernels": strict_kernels, "--host": host}
    require_kind(
        target, url=is_url(target), of_url={"--against": against, "--api-key-env": api_key_env}, of_server=ours
    )
    if is_url(target):
        plan = load(against).plan if against else None
        report = smoke_url(target, plan=plan, key=api_key(api_key_env))
    else:
        with open_servers(Home.from_environment(), host) as servers:
            report = smoke_server(servers, target, strict_kernels=strict_kernels)
    if json:
        print_json(report.to_dict())
    else:
        print_data(report.to_table(width=terminal_width()))
    report.require()


def down(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="the server to stop", autocompletion=server_names)
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="stop every server that was started from this home")] = False,
    all_homes: Annotated[
        bool, typer.Option("--all-homes", help="stop those of other homes on this Docker too")
    ] = False,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Stop a server with everything it started. Returns when its ports and GPU memory are free."""
    from orchestrator.core.paths import Home
    from orchestrator.servers.down import down, down_all
    from orchestrator.servers.servers import open_servers

    if (name is None) != (all_ or all_homes):
        raise UsageError("name one server, or say `--all`", hint="`deploy status` lists them")
    ended: list[str] = []
    with open_servers(Home.from_environment(), host) as servers:
        try:
            if name is None:
                down_all(servers, host=host, everyones=all_homes, ended=ended.append)
            else:
                down(servers, name, host=host)
                say(f"`{name}` is down")
                ended.append(name)
        finally:
            if json:
                print_json({"down": ended})
