"""A hostile hub chooses neither which files are written nor which are removed."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import write_checkpoint
from command_line import CommandLine
from hostile_values import COMMITS, CONTENTS, NAMES, SIZES
from loopback_hub import COMMIT, Hub, serve
from loopback_ssh import needs_sshd, ssh_server
from waits import TIMEOUT

from orchestrator.checkpoints.hub import Hub as HubClient
from orchestrator.checkpoints.hub import list_files
from orchestrator.checkpoints.remote_download import remote_program
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home

REPOSITORY = "amd/GLM-5.2-MXFP4"
BLOB = "0" * 40
SECOND = "model-00002-of-00003.safetensors"


def entry(path: object = "x.json", size: object = 5, oid: object = BLOB) -> dict[str, object]:
    return {"type": "file", "path": path, "size": size, "oid": oid}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("hub") / "glm", size=100_000, layers=4, mtp_layer=78)


@pytest.fixture(scope="module")
def shared(checkpoint: Path) -> Iterator[Hub]:
    with serve(Hub(repository=REPOSITORY, directory=checkpoint)) as running:
        yield running


@pytest.fixture
def hub(shared: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Return the shared hub; reset its behavior after each test."""
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    yield shared
    shared.sha, shared.more, shared.answers = COMMIT, [], {}
    shared.sent.clear()


def short(value: object) -> str:
    return ascii(value)[:30]


def assert_rejected(hub: Hub, *words: str) -> None:
    with pytest.raises(HostError) as caught:
        list_files(REPOSITORY, "main", HubClient(endpoint=hub.url, token=None))
    message = caught.value.message
    assert message.isprintable()
    assert all(word in message for word in words), message
    assert caught.value.hint


@pytest.mark.parametrize("sha", COMMITS, ids=short)
def test_invalid_commit_is_rejected(hub: Hub, sha: object) -> None:
    hub.sha = sha
    assert_rejected(hub, "cannot use the hub", "is not a commit")


@pytest.mark.parametrize("name", NAMES, ids=short)
def test_invalid_file_name_is_rejected(hub: Hub, name: object) -> None:
    hub.more = [entry(path=name)]
    assert_rejected(hub, "cannot use the hub")


@pytest.mark.parametrize("size", SIZES, ids=short)
def test_invalid_file_size_is_rejected(hub: Hub, size: object) -> None:
    hub.more = [entry(size=size)]
    assert_rejected(hub, "cannot use the hub", "is not a size in bytes")


@pytest.mark.parametrize("oid", CONTENTS, ids=short)
def test_invalid_content_hash_is_rejected(hub: Hub, oid: object) -> None:
    hub.more = [entry(oid=oid)]
    assert_rejected(hub, "cannot use the hub", "is not a sha1 or sha256")


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b/c", "a"), ("config.json/x",)], ids=short)
def test_path_listed_as_file_and_folder_is_rejected(hub: Hub, names: tuple[str, ...]) -> None:
    """This was once reported as an interrupted download, with the hint to run the command again."""
    hub.more = [entry(path=name) for name in names]
    assert_rejected(hub, "cannot use the hub", "as a file and as a folder")


@pytest.mark.parametrize(
    "answer",
    [
        b"<!doctype html><title>sign in</title>",
        *(b"", b"\xff\xfe", b"{", b"[" * 100_000, b"null", b"5", b'"x"', b"[]", b"{}"),
        *([None], [5], ["x"], [[]], [{}], [{"type": "file"}], [{"type": "file", "path": "x"}]),
        [{"type": "file", "path": "x", "size": 5}],
        [{**entry(), "lfs": 5}],
        [{**entry(), "lfs": {}}],
        [{**entry(), "lfs": {"size": 5, "oid": "../x", "pointerSize": 1}}],
        *({"error": "x"}, {"sha": None}, {"id": 5, "sha": [COMMIT]}, [entry(), entry("../x")]),
    ],
    ids=short,
)
@pytest.mark.parametrize("end", [f"/tree/{COMMIT}", "/revision/main"])
def test_malformed_hub_response_is_a_host_error(hub: Hub, answer: object, end: str) -> None:
    hub.answers = {end: answer}
    assert_rejected(hub, "the hub: ")


def test_response_for_different_commit_is_rejected(hub: Hub) -> None:
    hub.sha = "f" * 40
    hub.answers = {f"/revision/{COMMIT}": {"id": REPOSITORY, "sha": "f" * 40, "siblings": []}}
    with pytest.raises(HostError, match="requested"):
        list_files(REPOSITORY, COMMIT, HubClient(endpoint=hub.url, token=None))


def stage(hub: Hub, home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    deploy = CommandLine(Home(home / "here"), {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf")})
    return deploy.run("stage", "--profile", "mi355x-tp8", "--dir", str(home / "models/glm"), *words)


@pytest.fixture(scope="module")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ssh")
    with (
        pytest.MonkeyPatch.context() as patch,
        ssh_server(folder, deploy_home=folder / "home", monkeypatch=patch) as url,
    ):
        yield url


@pytest.fixture(params=["local", pytest.param("ssh", marks=needs_sshd)])
def options(request: pytest.FixtureRequest) -> list[str]:
    """Return the options of a command that stages on this machine or over ssh."""
    return ["--host", request.getfixturevalue("remote_host")] if request.param == "ssh" else []


def unrelated_files(folder: Path) -> dict[Path, bytes]:
    """Create unrelated files, next to the checkpoint and elsewhere."""
    files = (folder / "some/dir/kept", folder / "models/other/model.safetensors", folder / "models/glm/own.txt")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"kept")
    return {file: file.read_bytes() for file in files}


@pytest.mark.parametrize("sha", ["{tmp}/some/dir", "../..", ".."])
def test_commit_name_cannot_remove_a_directory(hub: Hub, tmp_path: Path, options: list[str], sha: str) -> None:
    before = unrelated_files(tmp_path)
    hub.sha = sha.format(tmp=tmp_path)
    done = stage(hub, tmp_path, "--revision", "main", *options)
    assert (done.returncode, "is not a commit" in done.stderr) == (4, True), done.stderr
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize("name", ["{tmp}/some/dir/x.json", "../other/x.json", ".parts/fetched"])
def test_file_name_cannot_escape_checkpoint(hub: Hub, tmp_path: Path, options: list[str], name: str) -> None:
    before = unrelated_files(tmp_path)
    hub.more = [entry(path=name.format(tmp=tmp_path), size=(hub.directory / "config.json").stat().st_size)]
    done = stage(hub, tmp_path, *options)
    assert (done.returncode, "cannot use the file name" in done.stderr) == (4, True), done.stderr
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == before, "nothing is written and nothing is removed"


@pytest.mark.parametrize(
    "link", [".parts", "sub", ".parts/" + COMMIT, ".parts/fetched", f".parts/{COMMIT}/config.json.part"]
)
def test_symlink_in_checkpoint_is_not_followed(hub: Hub, tmp_path: Path, options: list[str], link: str) -> None:
    before = unrelated_files(tmp_path)
    at = tmp_path / "models/glm" / link
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(tmp_path / ("some/dir/kept" if link.endswith(("part", "fetched")) else "some/dir"))
    hub.more = [entry(path="sub/x.json", size=(hub.directory / "config.json").stat().st_size)]
    done = stage(hub, tmp_path, *options)
    assert done.returncode == 4, done.stderr
    assert "internal error" not in done.stderr
    assert {file: file.read_bytes() for file in before} == before
    assert [path.name for path in (tmp_path / "some/dir").iterdir()] == ["kept"]


def test_symlinked_file_is_replaced_and_its_target_kept(hub: Hub, tmp_path: Path, options: list[str]) -> None:
    before = unrelated_files(tmp_path)
    (tmp_path / "models/glm/config.json").symlink_to(tmp_path / "some/dir/kept")
    done = stage(hub, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in before} == before
    assert (tmp_path / "models/glm/config.json").read_bytes() == (hub.directory / "config.json").read_bytes()


@pytest.mark.parametrize("repository", ["https://huggingface.co/amd/GLM-5.2-MXFP4", "a/b/c", "amd/GLM 5", " "])
def test_invalid_repository_name_is_a_profile_error(
    hub: Hub, tmp_path: Path, options: list[str], repository: str
) -> None:
    done = stage(hub, tmp_path, "--set", f"model.checkpoint.path={repository}", *options)
    assert done.returncode == 3, done.stderr
    assert "write `org/name`" in done.stderr


# Loads the program once and runs it in a fork for each line: starting it is slow.
LINE_BY_LINE = """
import os, sys
names = {{"__name__": "loaded"}}
exec({program!r}, names)
for line in sys.stdin.buffer.readlines():
    if not (child := os.fork()):
        request = os.memfd_create("request")
        os.write(request, line)
        os.lseek(request, 0, os.SEEK_SET)
        os.dup2(request, 0)
        sys.stdin = open(0)
        names["main"]()
    os.waitpid(child, 0)
    os.write(1, b"\\n")
"""


def run_remote_program(remote_host: str, requests: list[dict[str, object]]) -> list[list[dict[str, Any]]]:
    """Return the answers of the remote program to requests that this tool would never send."""
    host, port = remote_host.removeprefix("ssh://").split(":")
    *python, program = remote_program()
    argv = ["ssh", "-p", port, host, shlex.join([*python, LINE_BY_LINE.format(program=program)])]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.stderr == ""
    blocks = done.stdout.removesuffix("\n\n").split("\n\n")
    return [[json.loads(line) for line in block.splitlines()] for block in blocks]


@pytest.mark.slow
@needs_sshd
@pytest.mark.parametrize(
    ("key", "values"), [("commit", COMMITS), ("file", NAMES), ("size", SIZES), ("identity", CONTENTS)]
)
def test_remote_download_program_validates_its_requests(
    remote_host: str, tmp_path: Path, key: str, values: tuple[object, ...]
) -> None:
    """Anybody with a connection can call the program, so that it must not rely on local checks."""
    before = unrelated_files(tmp_path)
    base = {"directory": str(tmp_path / "models/glm"), "address": "http://127.0.0.1:9", "headers": {}}
    candidates = [value for value in values if key != "file" or isinstance(value, str)]  # JSON keys are strings
    files = ({"size": 5, "identity": BLOB, "file": "x.json", "commit": COMMIT} | {key: value} for value in candidates)
    requests: list[dict[str, object]] = [
        {**base, "files": {str(f["file"]): [f["size"], f["identity"]]}, "commit": f["commit"]} for f in files
    ]
    answers = run_remote_program(remote_host, requests)
    reasons = [answer[0].get("error", "") if len(answer) == 1 else "" for answer in answers]
    words = ("is not a", "cannot use the file name")
    passed = [value for value, reason in zip(candidates, reasons, strict=True) if not any(map(reason.count, words))]
    assert passed == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_response_longer_than_announced_is_aborted(hub: Hub, tmp_path: Path, options: list[str]) -> None:
    hub.more = [entry(path="long.json", size=1000, oid=BLOB)]
    hub.answers = {"/long.json": bytes(5_000_000)}
    done = stage(hub, tmp_path, *options)
    assert done.returncode == 4
    assert max(path.stat().st_size for path in tmp_path.rglob("long.json*")) <= 1001
