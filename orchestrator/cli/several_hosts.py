"""`--host` more than once, or `--host @FILE`: the same command on several machines."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NoReturn

from orchestrator.cli.overrides import overridden
from orchestrator.core.console import print_data, print_json, say, terminal_width
from orchestrator.core.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cli.fanout import HostResult, Node

SEVERAL: Final = frozenset(
    {"up", "preflight", "stage", "build", "status", "smoke", "down", "diagnose", "prune", "cache ls", "cache clear"}
)
_HOST: Final = "--host"


def split_hosts(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of `--host`, and the other words."""
    hosts, others, words = list[str](), list[str](), iter(args)
    for word in words:
        if word == "--":
            others += [word, *words]
        elif word == _HOST:
            value = next(words, None)
            (others if value is None else hosts).append(word if value is None else value)
        elif word.startswith(f"{_HOST}="):
            hosts.append(word.partition("=")[2])
        else:
            others.append(word)
    return hosts, others


def several_hosts(hosts: Sequence[str]) -> bool:
    """Whether these are several machines, or a file of them. Raises UsageError for one that is none."""
    if len(hosts) > 1 or any(host.startswith("@") for host in hosts):
        return True
    if hosts:
        from orchestrator.cli.fanout import require_machine

        require_machine(hosts[0])
    return False


def nodes_of(verb: str, hosts: Sequence[str]) -> "tuple[Node, ...]":
    """The machines that these name. Raises UsageError, also for a command that works on one at a time."""
    from orchestrator.cli.fanout import parse_hosts

    nodes = parse_hosts(hosts)
    if len(nodes) > 1 and verb not in SEVERAL:
        known = ", ".join(sorted(SEVERAL))
        raise UsageError(f"`deploy {verb}` works on one machine at a time", hint=f"these take several: {known}")
    return nodes


def on_each(
    nodes: "Sequence[Node]", verb: str, args: Sequence[str], params: Mapping[str, Any], *, place: Callable[[str], int]
) -> NoReturn:
    """Run a command on each machine, show what became of it, and exit with the code of the first that failed.

    `place` says which of the words names the server.
    """
    from orchestrator.cli.fanout import outcome_table, run_on_hosts

    as_json = bool(params.get("json"))
    failed: list[HostResult] = []
    left = list(nodes)
    for phase, at_once in _before(verb, params, host=nodes[0].url):
        results = run_on_hosts(left, lambda _, words=phase: words, at_once=at_once)  # type: ignore[misc]
        failed += [each for each in results if each.code]
        left = [each.node for each in results if not each.code]
    words = _words(verb, args, params, place)
    results = run_on_hosts(left, words, at_once=params.get("at_once"))
    everything = sorted((*failed, *results), key=lambda each: nodes.index(each.node))
    if verb == "status":
        _show_status(everything, as_json=as_json)
    elif as_json:
        print_json({each.node.label: _read(each.output) for each in everything})
    else:
        for each in everything:
            for line in each.output.splitlines():
                print_data(f"{each.node.label}: {line}")
    say(outcome_table(everything, width=terminal_width(sys.stderr)))
    sys.exit(next((each.code if each.code > 0 else 1 for each in everything if each.code), 0))


def _before(verb: str, params: Mapping[str, Any], *, host: str) -> list[tuple[list[str], int]]:
    """What goes before an `up`, at most so many at a time: the network bears no more, and starts need none of it.

    Raises UsageError, once for all machines, for a runtime that reaches no other than this one.
    """
    if verb != "up" or params["from_"] or params["locked"] or params["dry_run"]:
        return []
    from orchestrator.core.paths import Home
    from orchestrator.planner.planning import load
    from orchestrator.runtimes import runtime_class
    from orchestrator.servers.start.host import host_ref

    overrides = overridden(params["set_"], revision=params["revision"], on=params["on"])
    plan = load(params["profile"] or "", overrides=overrides).plan
    host_ref(plan.runtime, Home.from_environment(), host)
    planned = [params["profile"], *(word for override in overrides for word in ("--set", override))]
    phases = [["stage", *planned]] if params["stage"] and plan.model.source.kind == "hub" else []
    if runtime_class(plan.runtime).contained and not params["image"]:
        phases.append(["build", *planned, *(["--accept-untuned"] if params["accept_untuned"] else [])])
    return [(phase, params["at_once"]) for phase in phases]


def _words(
    verb: str, args: Sequence[str], params: Mapping[str, Any], place: Callable[[str], int]
) -> "Callable[[Node], list[str]]":
    """The command's words for a machine: a server's name is its own there."""
    name = params.get("name") or params.get("target") or params.get("subject")
    if name and "://" in name:
        raise UsageError(f"`{name}` says where it is by itself", hint="`--host` is for a server's name")
    if verb == "up":
        profile = PurePath(params["profile"] or "server").name.removesuffix(".yaml")
        return lambda node: [verb, *args, "--name", f"{name or profile}-{node.label}"]
    if verb == "status" and not params["json"]:
        args = [*args, "--json"]
    if not name:
        return lambda _: [*verb.split(), *args]
    at = place(name)
    return lambda node: [*verb.split(), *args[:at], f"{name}-{node.label}", *args[at + 1 :]]


def _show_status(results: "Sequence[HostResult]", *, as_json: bool) -> None:
    """All servers of all machines in one table."""
    from orchestrator.servers.status import ServerStatus, status_table

    told = {each.node.label: _read(each.output) for each in results}
    if as_json:
        print_json(told)
        return
    servers = {server["name"]: label for label, found in told.items() for server in found or ()}
    if servers:
        found = [ServerStatus.from_dict(server) for each in told.values() for server in each or ()]
        print_data(status_table(found, nodes=servers, width=terminal_width()))
    elif not any(each.code for each in results):
        say("nothing runs there")


def _read(text: str) -> Any:  # noqa: ANN401 - JSON
    """What a command printed as JSON, None where it failed before."""
    try:
        return json.loads(text)
    except ValueError:
        return None
