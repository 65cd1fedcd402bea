"""Test commands with several `--host` options: the hosts, the commands they run and the combined output."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.fanout import HostResult, Node, parse_hosts
from orchestrator.cli.main import app
from orchestrator.cli.multi_host import split_hosts
from orchestrator.core.errors import UsageError
from orchestrator.hosts.gpu_checks import VRAM_IN_USE
from orchestrator.hosts.report import PreflightReport, fail, info


def test_host_file_yields_hosts_with_valid_labels(tmp_path: Path) -> None:
    inventory = tmp_path / "nodes"
    inventory.write_text("# the rack\nssh://root@GPU_1.example:22\n\nssh://gpu-2:2222  # the new one\n")
    nodes = parse_hosts([f"@{inventory}", "ssh://[fe80::1]"])
    assert [(node.url, node.label) for node in nodes] == [
        ("ssh://root@GPU_1.example:22", "gpu-1-example"),
        ("ssh://gpu-2:2222", "gpu-2-2222"),
        ("ssh://[fe80::1]", "fe80-1"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*: No such file"),
        (b"\xff\xfe", "cannot read .*: not a text file"),
        (b"# nobody\n", "no host found in"),
        (b"ssh://a\nb\n", "`b` is not the URL of a host"),
        (b"ssh://a\nssh://root@A\n", "`ssh://a` and `ssh://root@A` have the same label `a`"),
    ],
)
def test_invalid_host_file_is_rejected(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        parse_hosts([f"@{path}"])


@pytest.mark.parametrize(
    ("word", "suggested"),
    [
        ("n1", "ssh://n1"),
        ("root@n1:2222", "ssh://root@n1:2222"),
        ("shh://n1", "ssh://n1"),
        ("gopher://n1", "ssh://n1"),
        ("/var/run/docker.sock", "unix:///var/run/docker.sock"),
    ],
)
def test_invalid_host_url_suggests_correct_one(word: str, suggested: str) -> None:
    for words in ([word], ["ssh://a", word]):
        with pytest.raises(UsageError, match="is not the URL of a host") as error:
            parse_hosts(words)
        assert error.value.hint == f"did you mean `{suggested}`?"
    for verb in ("status", "up cpu-tiny"):
        with pytest.raises(UsageError, match="is not the URL of a host"):  # no host is contacted
            app([*verb.split(), "--host", word], standalone_mode=False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the arguments for each host; the second host fails with 4, the third is killed."""
    calls_: list[list[str]] = []

    def run_on_hosts(
        nodes: Sequence[Node], words: Callable[[Node], Sequence[str]], *, parallel: int | None
    ) -> tuple[HostResult, ...]:
        calls_.extend([*words(node)] for node in nodes)
        calls_.append([f"at once: {parallel}"])
        results = zip(nodes, (0, 4, -9), ('{"name": "x"}\nline\n', "[1]", ""), strict=False)
        return tuple(HostResult(node=node, code=code, output=text, seconds=0.0) for node, code, text in results)

    monkeypatch.setattr("orchestrator.cli.multi_host.run_on_hosts", run_on_hosts)
    return calls_


@pytest.mark.usefixtures("calls")
def test_network_check_error_is_reported_as_finding() -> None:
    result = CliRunner().invoke(app, ["preflight", "no-such-profile", *TWO_HOSTS, "--json"])
    report = json.loads(result.stdout)
    assert {*report} == {"a", "b", "fabric"}
    [finding] = report["fabric"]["findings"]
    assert (finding["check"], finding["level"]) == ("fabric", "fail")
    assert "no-such-profile" in finding["value"]
    assert finding["hint"]
    assert result.exit_code == 4


@pytest.mark.parametrize("as_json", [True, False])
def test_host_with_vram_in_use_is_not_benchmarked(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = PreflightReport(
        profile="owl", findings=(info("gpus", "8"), fail(VRAM_IN_USE, "gpu 2 85%", "at most 10%", ""))
    )
    free = PreflightReport(profile="owl", findings=(info("gpus", "8"), info(VRAM_IN_USE, "at most 0% a GPU")))

    def run_on_hosts(nodes: Sequence[Node], *_: object, **__: object) -> tuple[HostResult, ...]:
        texts = [json.dumps(report.to_dict()) if as_json else report.to_text() for report in (used, free)]
        return tuple(
            HostResult(node=node, code=4, output=text, seconds=0.0) for node, text in zip(nodes, texts, strict=True)
        )

    measured_hosts = list[object]()

    def preflight_fabric(*words: object) -> PreflightReport:
        measured_hosts.append(words[-1])
        return free

    monkeypatch.setattr("orchestrator.cli.multi_host.run_on_hosts", run_on_hosts)
    monkeypatch.setattr("orchestrator.cli.fabric.ssh_nodes", list)
    monkeypatch.setattr("orchestrator.cli.fabric.preflight_fabric", preflight_fabric)
    words = ["preflight", "mi355x-tp4dp2", "--save-baseline", str(tmp_path / "baseline.json"), *TWO_HOSTS]
    result = CliRunner().invoke(app, [*words, *(["--json"] if as_json else [])])
    assert measured_hosts == [["a"]], result.output


TWO_HOSTS = ("--host", "ssh://a", "--host", "ssh://b")


@pytest.mark.parametrize("verb", ["status", "smoke", "down", "diagnose", "prune"])
def test_server_name_has_host_suffix_on_each_host(verb: str, calls: list[list[str]]) -> None:
    """`diagnose` once queried each host for the name without the suffix, which no host has."""
    CliRunner().invoke(app, [verb, "owl", *TWO_HOSTS])
    assert calls[:2] == [[verb, "owl-a"], [verb, "owl-b"]]


def test_option_value_is_not_mistaken_for_server_name(calls: list[list[str]]) -> None:
    CliRunner().invoke(app, ["smoke", *TWO_HOSTS, "--profile", "owl", "owl", "--json"])
    assert calls[0] == ["smoke", "--profile", "owl", "owl-a", "--json"]


@pytest.mark.parametrize(
    ("line", "name"), [("up -p owl", "owl"), ("up ./my/owl.yaml", "owl"), ("up owl --name barn", "barn")]
)
def test_started_server_is_named_after_its_host(line: str, name: str, calls: list[list[str]]) -> None:
    CliRunner().invoke(app, [*line.split(), *TWO_HOSTS])
    assert [words[-2:] for words in calls[:2]] == [["--name", f"{name}-a"], ["--name", f"{name}-b"]]


@pytest.mark.parametrize(
    ("line", "parallel"), [("stage owl", 2), ("build owl --parallel 5", 5), ("status", None), ("up owl", None)]
)
def test_downloads_run_on_few_hosts_in_parallel(line: str, parallel: int | None, calls: list[list[str]]) -> None:
    CliRunner().invoke(app, [*line.split(), *TWO_HOSTS])
    assert calls[-1] == [f"at once: {parallel}"]


@pytest.mark.usefixtures("calls")
def test_worst_exit_code_wins_and_lines_name_host() -> None:
    result = CliRunner().invoke(app, ["status", *TWO_HOSTS])
    assert (result.exit_code, result.stdout) == (4, 'a: {"name": "x"}\na: line\nb: [1]\n')
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["node", "a", "b"]
    assert CliRunner().invoke(app, ["status", *TWO_HOSTS, "--host", "ssh://c"]).exit_code == 137


@pytest.mark.usefixtures("calls")
def test_json_output_is_one_document_for_all_hosts() -> None:
    result = CliRunner().invoke(app, ["status", *TWO_HOSTS, "--json"])
    assert json.loads(result.stdout) == {"a": None, "b": [1]}  # the output of `a` is not JSON


def test_single_host_command_rejects_several_hosts(calls: list[list[str]]) -> None:
    with pytest.raises(UsageError, match="`deploy kernels build` accepts one host"):
        app(["kernels", "build", "owl", *TWO_HOSTS], prog_name="deploy", standalone_mode=False)
    assert calls == []


def test_host_options_are_extracted_before_double_dash() -> None:
    words = ["cpu-tiny", "--host", "ssh://a", "--json", "--host=ssh://b", "--", "--host", "c"]
    assert split_hosts(words) == (["ssh://a", "ssh://b"], ["cpu-tiny", "--json", "--", "--host", "c"])
    assert split_hosts(["status", "--host"]) == ([], ["status", "--host"])
