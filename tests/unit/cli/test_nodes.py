"""Several machines by `--host`: which they are, and what their servers are called."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.cli.fanout import HostResult, Node, parse_hosts
from orchestrator.cli.main import app
from orchestrator.cli.several_hosts import split_hosts
from orchestrator.core.errors import UsageError


def test_a_file_has_a_machine_on_each_line_and_labels_are_fit_for_a_servers_name(tmp_path: Path) -> None:
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
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "cannot be read: it is no text"),
        (b"# nobody\n", "names no machine"),
        (b"ssh://a\nb\n", "`b` does not say how that machine is reached"),
        (b"ssh://a\nssh://root@A\n", "`ssh://a` and `ssh://root@A` are both `a`"),
    ],
)
def test_what_cannot_be_an_inventory_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        parse_hosts([f"@{path}"])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("n1", "ssh://n1"),
        ("root@n1:2222", "ssh://root@n1:2222"),
        ("shh://n1", "ssh://n1"),
        ("gopher://n1", "ssh://n1"),
        ("/var/run/docker.sock", "unix:///var/run/docker.sock"),
    ],
)
def test_what_does_not_say_how_a_machine_is_reached_is_refused_with_what_does(word: str, meant: str) -> None:
    for words in ([word], ["ssh://a", word]):
        with pytest.raises(UsageError, match="does not say how that machine is reached") as refused:
            parse_hosts(words)
        assert refused.value.hint == f"did you mean `{meant}`?"
    for verb in ("status", "up cpu-tiny"):
        with pytest.raises(UsageError, match=r"does not say how"):  # nobody is asked
            app([*verb.split(), "--host", word], standalone_mode=False)


@pytest.mark.parametrize("verb", ["status", "smoke", "down", "diagnose", "prune"])
def test_a_servers_name_is_its_own_on_each_machine(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`diagnose` asked each machine for a server of the name that none of them has."""
    asked: list[Sequence[str]] = []

    def keep(nodes: Sequence[Node], words: Callable[[Node], Sequence[str]], **_: object) -> tuple[HostResult, ...]:
        asked.extend(words(node) for node in nodes)
        return ()

    monkeypatch.setattr("orchestrator.cli.fanout.run_on_hosts", keep)
    with pytest.raises(SystemExit):
        app([verb, "owl", "--host", "ssh://a", "--host", "ssh://b"], prog_name="deploy", standalone_mode=False)
    assert [words[1] for words in asked] == ["owl-a", "owl-b"]


def test_a_profile_of_this_machine_alone_is_refused_before_another_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.fanout.run_on_hosts", lambda *_, **__: pytest.fail("a machine was asked"))
    with pytest.raises(UsageError, match="the process runtime runs on this machine, not on `ssh://a`"):
        app(["up", "cpu-tiny", "--host", "ssh://a", "--host", "ssh://b"], prog_name="deploy", standalone_mode=False)


def test_hosts_are_taken_out_of_the_words_and_nothing_behind_two_dashes() -> None:
    words = ["cpu-tiny", "--host", "ssh://a", "--json", "--host=ssh://b", "--", "--host", "c"]
    assert split_hosts(words) == (["ssh://a", "ssh://b"], ["cpu-tiny", "--json", "--", "--host", "c"])
    assert split_hosts(["status", "--host"]) == ([], ["status", "--host"])
