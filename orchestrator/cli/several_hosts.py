"""`--host` given more than once, or `--host @FILE`: the command runs once for each host.

`up` of a plan with several nodes runs once for all of them.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NoReturn

from orchestrator.cli.fanout import (
    FROM_FILE,
    HostResult,
    Node,
    outcome_table,
    parse_hosts,
    require_machine,
    run_on_hosts,
)
from orchestrator.cli.overrides import overridden
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import print_data, print_json, say, terminal_width
from orchestrator.core.errors import DeployError, HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.streams import ignore_sigpipe

if TYPE_CHECKING:
    from orchestrator.hosts.report import PreflightReport

SEVERAL: Final = frozenset({"up", "preflight", "stage", "build", "status", "smoke", "down", "diagnose", "prune"})
_READING: Final = frozenset({"preflight", "status", "diagnose"})  # those of `SEVERAL` that change nothing
_HOST: Final = "--host"
_OF_ALL: Final = ("--baseline", "--save-baseline")  # options for all hosts together


def split_hosts(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into the values of `--host` and all other words."""
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
    """Return whether the values name several hosts, or a file of hosts. Raises UsageError for an invalid one."""
    if len(hosts) > 1 or any(host.startswith(FROM_FILE) for host in hosts):
        return True
    for host in hosts:
        require_machine(host)
    return False


def nodes_of(verb: str, hosts: Sequence[str]) -> tuple[Node, ...]:
    """Return the hosts of the `--host` values. Raises UsageError, also for a command that accepts only one host."""
    nodes = parse_hosts(hosts)
    if len(nodes) > 1 and verb not in SEVERAL:
        known = ", ".join(sorted(SEVERAL))
        raise UsageError(f"`deploy {verb}` accepts one host", hint=f"commands that accept several: {known}")
    return nodes


def is_one_server(verb: str, params: Mapping[str, Any]) -> bool:
    """Return whether the hosts are the nodes of one server: `up` starts a plan with several nodes."""
    if verb != "up" or params["model"]:
        return False
    with suppress(DeployError):  # the command reports it
        return _planned_nodes(params) > 1
    return False


def _planned_nodes(params: Mapping[str, Any]) -> int:
    from orchestrator.planner.lock import lock_path, read_lock  # noqa: PLC0415 - most commands have no plan
    from orchestrator.planner.planning import read_profile  # noqa: PLC0415 - see above
    from orchestrator.runs.run_dir import require_plan  # noqa: PLC0415 - see above
    from orchestrator.servers.rollback import named_run  # noqa: PLC0415 - see above

    home, profile = Home.from_environment(), params["profile"]
    if params["from_"]:
        return require_plan(named_run(home, params["from_"]), profile).layout.nodes
    overrides = overridden(params["set_"], revision=params["revision"], runtime=params["runtime"])
    if params["locked"]:
        lock, _ = read_lock(lock_path(profile))
        profile, overrides = lock.profile, lock.overrides
    return read_profile(profile or "", overrides=overrides, catalog=Catalog.of(home)).profile.layout.nodes.value


def on_each(
    nodes: Sequence[Node], verb: str, args: Sequence[str], params: Mapping[str, Any], *, place: Callable[[str], int]
) -> NoReturn:
    """Run a command for each host, print the output of each, and exit with the highest exit code.

    `place` is the index of the word that names the server.
    """
    if verb not in _READING:
        ignore_sigpipe()  # it is unknown when the command on a host begins to change something
    words = _words(verb, args, params, place)
    results = run_on_hosts(nodes, words, parallel=params.get("parallel"))
    as_json = params.get("json")
    for each in () if as_json else results:
        for line in each.output.splitlines():
            print_data(f"{each.node.label}: {line}")
    report = _fabric(results, params) if verb == "preflight" else None
    if as_json:
        fabric = {"fabric": report.to_dict()} if report else {}
        print_json({**{each.node.label: _read(each.output) for each in results}, **fabric})
    elif report:
        print_data(report.to_text(width=terminal_width()))
    say(outcome_table(results, width=terminal_width(sys.stderr)))
    if report and not report.ready:
        sys.exit(max(HostError.exit_code, *(each.exit_code for each in results)))
    sys.exit(max(each.exit_code for each in results))


def _fabric(results: Sequence[HostResult], params: Mapping[str, Any]) -> "PreflightReport | None":
    """Return the report about the network between the hosts, if the plan needs one."""
    from orchestrator.cli.fabric import fabric_of_hosts  # noqa: PLC0415 - slow, and for one command

    busy = [each.node.label for each in results if _vram_in_use(each.output)]
    return fabric_of_hosts({each.node.label: each.node.url for each in results}, params, busy)


def _vram_in_use(output: str) -> bool:
    """Return whether the preflight report of a host, text or JSON, says that its VRAM is in use."""
    from orchestrator.hosts.gpu_checks import VRAM_IN_USE  # noqa: PLC0415 - for one command

    report = _read(output)
    if isinstance(report, dict):
        return any((each["check"], each["level"]) == (VRAM_IN_USE, "fail") for each in report.get("findings", ()))
    return re.search(rf"^fail +{VRAM_IN_USE} ", output, re.MULTILINE) is not None


def _words(
    verb: str, args: Sequence[str], params: Mapping[str, Any], place: Callable[[str], int]
) -> Callable[[Node], list[str]]:
    """Return the words of the command for one host: a server's name gets the label of the host."""
    if verb == "preflight":
        kept = [
            word
            for word, before in zip(args, ["", *args], strict=False)
            if not {word.partition("=")[0], before} & {*_OF_ALL}
        ]
        return lambda _: [verb, *kept]
    name = params.get("name") or params.get("target") or params.get("subject")
    if name and "://" in name:
        raise UsageError(f"`{name}` already names its host", hint="use `--host` with the name of a server")
    if verb == "up":
        profile = PurePath(params["profile"] or "server").name.removesuffix(".yaml")
        return lambda node: [verb, *args, "--name", f"{name or profile}-{node.label}"]
    if not name:
        return lambda _: [*verb.split(), *args]
    at = place(name)
    return lambda node: [*verb.split(), *args[:at], f"{name}-{node.label}", *args[at + 1 :]]


def _read(text: str) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON that a command printed; None if it failed before."""
    try:
        return json.loads(text)
    except ValueError:
        return None
