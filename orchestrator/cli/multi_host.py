"""`--host` given more than once, or `--host @FILE`: the command runs once for each host.

`up` of a plan with several nodes runs once for all of them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Final, NoReturn

from orchestrator.cli.fanout import FROM_FILE, Node, outcome_table, parse_hosts, require_host_url, run_on_hosts
from orchestrator.core.console import info, print_data, print_json, terminal_width
from orchestrator.core.errors import DeployError, HostError, UsageError
from orchestrator.core.streams import ignore_sigpipe

MULTI_HOST_COMMANDS: Final = frozenset(
    {"up", "preflight", "stage", "build", "status", "smoke", "down", "diagnose", "prune"}
)
_READING: Final = frozenset({"preflight", "status", "diagnose"})  # commands that change nothing
_HOST: Final = "--host"
_OF_ALL: Final = ("--baseline", "--save-baseline")  # options for all hosts together


def split_hosts(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into the values of `--host` and all other words."""
    hosts, rest, words = list[str](), list[str](), iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == _HOST:
            value = next(words, None)
            (rest if value is None else hosts).append(word if value is None else value)
        elif word.startswith(f"{_HOST}="):
            hosts.append(word.partition("=")[2])
        else:
            rest.append(word)
    return hosts, rest


def is_multi_host(hosts: Sequence[str]) -> bool:
    """Return whether the values name several hosts, or a file of hosts. Raises UsageError for an invalid one."""
    if len(hosts) > 1 or any(host.startswith(FROM_FILE) for host in hosts):
        return True
    for host in hosts:
        require_host_url(host)
    return False


def accepted_nodes(verb: str, hosts: Sequence[str]) -> tuple[Node, ...]:
    """Return the hosts of the `--host` values. Raises UsageError, also for a command that accepts only one host."""
    nodes = parse_hosts(hosts)
    if len(nodes) > 1 and verb not in MULTI_HOST_COMMANDS:
        verbs = ", ".join(sorted(MULTI_HOST_COMMANDS))
        raise UsageError(f"`deploy {verb}` accepts one host", hint=f"commands that accept several: {verbs}")
    return nodes


def is_one_server(verb: str, params: Mapping[str, Any]) -> bool:
    """Return whether the hosts are the nodes of one server: for `up` of a plan with several nodes."""
    if verb != "up" or params["model"]:
        return False
    from orchestrator.cli.planned_nodes import planned_nodes  # noqa: PLC0415 - slow, and for one command

    with suppress(DeployError):  # the command reports it
        return planned_nodes(params) > 1
    return False


def on_all(
    nodes: Sequence[Node], verb: str, args: Sequence[str], params: Mapping[str, Any], *, location: Callable[[str], int]
) -> NoReturn:
    """Run a command for each host, print the output of each, and exit with the highest exit code.

    `location` returns the index of the word that names the server.
    """
    if verb not in _READING:
        ignore_sigpipe()  # the commands on the hosts may already be changing something
    words = _words(verb, args, params, location)
    results = run_on_hosts(nodes, words, parallel=params.get("parallel"))
    as_json = params.get("json")
    for item in () if as_json else results:
        for line in item.output.splitlines():
            print_data(f"{item.node.label}: {line}")
    report = None
    if verb == "preflight":
        from orchestrator.cli.fabric import fabric_of_hosts  # noqa: PLC0415 - slow, and for one command

        report = fabric_of_hosts(results, params)
    if as_json:
        fabric = {"fabric": report.to_dict()} if report else {}
        print_json({**{result.node.label: result.data for result in results}, **fabric})
    elif report:
        print_data(report.to_text(width=terminal_width()))
    info(outcome_table(results, width=terminal_width(sys.stderr)))
    if report and not report.ready:
        sys.exit(max(HostError.exit_code, *(result.exit_code for result in results)))
    sys.exit(max(result.exit_code for result in results))


def _words(
    verb: str, args: Sequence[str], params: Mapping[str, Any], location: Callable[[str], int]
) -> Callable[[Node], list[str]]:
    """Return a function from a host to the words of its command; a server's name gets the label of the host."""
    if verb == "preflight":
        options = [
            word
            for word, before in zip(args, ["", *args], strict=False)
            if not {word.partition("=")[0], before} & {*_OF_ALL}
        ]
        return lambda _: [verb, *options]
    name = params.get("name") or params.get("target") or params.get("subject")
    if name and "://" in name:
        raise UsageError(f"`{name}` already names its host", hint="use `--host` with the name of a server")
    if verb == "up":
        profile = PurePath(params["profile"] or "server").name.removesuffix(".yaml")
        return lambda node: [verb, *args, "--name", f"{name or profile}-{node.label}"]
    if not name:
        return lambda _: [*verb.split(), *args]
    at = location(name)
    return lambda node: [*verb.split(), *args[:at], f"{name}-{node.label}", *args[at + 1 :]]
