"""Compare the flag tables and the rendered commands with the argument parsers of their sglang versions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch_forks import Program, run_forked
from wheels import unpacked, wheel

from orchestrator.core.catalog import Catalog
from orchestrator.core.paths import Home, data_root
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.planner import flag_tables
from orchestrator.planner.planning import load, profile_names, render_artifacts

pytestmark = [pytest.mark.engine, pytest.mark.wheels]

FLAGS = data_root() / "profiles/engines/flags"
VERSIONS = sorted(path.stem for path in FLAGS.glob("*.json"))
PROFILES = profile_names(Catalog.shipped())
COMMANDS = [(name, ()) for name in PROFILES]
COMMANDS += [("mi355x-tp8", ("flags.cuda-graph-bs-decode=[1,2,4]", "flags.context-length=4096"))]
COMMANDS += [(name, ("engine=sglang-0.5.16-rocm",)) for name in PROFILES if name.endswith("-july")]
OLD_OPTION = ("--model-path", "m", "--nsa-prefill-backend", "tilelang")

# Importing a parser takes seconds, so that one process answers everything about a version.
PARSER_PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from generate import metrics, options, server_parser, write

class RejectedError(Exception):
    pass

def reject(message):
    raise RejectedError(message)

def verdict(argv):
    try:
        parser.parse_args(argv)
    except RejectedError as error:
        return str(error)
    return "accepted"

parser = server_parser(Path(sys.argv[2]))
parser.error = reject
commands = json.load(sys.stdin)
root = Path(sys.argv[2])
table = write(sys.argv[3], {"flags": options(parser), "metrics": metrics(root)})
print(json.dumps({"table": table, "verdicts": [verdict(argv) for argv in commands]}))
"""


@dataclass(frozen=True)
class Answers:
    """The flag table of a version's parser, and its verdict on every command that names this version."""

    table: str
    verdicts: dict[tuple[str, ...], str]


def command(profile: str, overrides: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the sglang version of a profile's plan and the arguments of its server."""
    plan = load(profile, overrides=overrides).plan
    rendered = render_artifacts(plan)
    argv = next(iter(rendered.replicas), rendered).command.argv  # a replicated server's own command starts the gateway
    return plan.engine.version, argv[argv.index("sglang.launch_server") + 1 :]


@pytest.fixture(scope="module")
def ask(cpu_environment: Venv) -> Callable[[str], Answers]:
    commands_of: dict[str, list[tuple[str, ...]]] = {version: [OLD_OPTION] for version in VERSIONS}
    for version, argv in (command(*case) for case in COMMANDS):
        commands_of[version].append(argv)
    programs = {
        version: Program(
            program=PARSER_PROGRAM, argv=(str(FLAGS), str(unpacked(version)), version), stdin=json.dumps(commands)
        )
        for version, commands in commands_of.items()
    }
    results = run_forked(cpu_environment.python, programs)

    def answers(version: str) -> Answers:
        result = results[version]
        assert result.returncode == 0, result.stderr
        answer = json.loads(result.stdout.splitlines()[-1])
        return Answers(answer["table"], dict(zip(commands_of[version], answer["verdicts"], strict=True)))

    return answers


@pytest.mark.parametrize("version", VERSIONS)
def test_flag_table_matches_parser(version: str, ask: Callable[[str], Answers]) -> None:
    assert ask(version).table == (FLAGS / f"{version}.json").read_text()


@pytest.mark.slow
def test_generated_flag_table_matches_shipped_one(
    cpu_environment: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flag_tables, "fetch_wheel", lambda version, _: wheel(version))
    package = unpacked("0.5.16") / "sglang"  # with its compiled files
    monkeypatch.setattr(flag_tables, "unpack_package", lambda _, folder: (folder / "sglang").symlink_to(package))
    path = flag_tables.write_flag_table("0.5.16", Home(tmp_path), python=cpu_environment.python)
    assert path.read_text() == (FLAGS / "0.5.16.json").read_text()


@pytest.mark.parametrize(("profile", "overrides"), COMMANDS)
def test_rendered_command_is_accepted(profile: str, overrides: Sequence[str], ask: Callable[[str], Answers]) -> None:
    version, argv = command(profile, overrides)

    assert ask(version).verdicts[argv] == "accepted"


def test_option_of_different_version_is_rejected(ask: Callable[[str], Answers]) -> None:
    assert ask("0.5.16").verdicts[OLD_OPTION] == "accepted"
    assert "unrecognized arguments: --nsa-prefill-backend" in ask("0.5.23").verdicts[OLD_OPTION]
