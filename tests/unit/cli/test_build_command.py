"""Test that `deploy build` creates the image that `deploy up` starts."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from kernel_samples import FUSED_TP8, HEADER, UNFUSED_TP8, every_bucket, line
from typer.testing import CliRunner

from orchestrator.cli.build import command as build
from orchestrator.cli.main import app
from orchestrator.cli.render import command as render
from orchestrator.cli.up import command as up
from orchestrator.core.errors import HostError, KernelsError, UsageError
from orchestrator.core.paths import Home
from orchestrator.images.build import BuiltImage
from orchestrator.images.receipt import ImageReceipt
from orchestrator.kernels.disk.store import Store
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load

COMPLETE = [*every_bucket(FUSED_TP8), *every_bucket(UNFUSED_TP8)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Set a temporary home and a Docker engine that has every image; return the home."""

    def find_image(_docker: object, _engine: object, _context: object, options: object) -> BuiltImage:
        receipt = ImageReceipt(python="3.10", sources={}, patches=())
        tag = options.tag  # type: ignore[attr-defined]
        return BuiltImage(tag=tag, image_id="sha256:1", receipt=receipt, built=False, builder="classic", seconds=0.0)

    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("orchestrator.cli.build.find_docker", lambda _: None)
    monkeypatch.setattr("orchestrator.images.build.ensure_image", find_image)
    monkeypatch.setattr("orchestrator.cli.build.require_accepted_by_image", lambda *_, **__: None)
    monkeypatch.setattr("orchestrator.servers.start.prepare.make_table", lambda *_, **__: False)
    for module in ("plan_warnings", "estimate"):
        monkeypatch.setattr(f"orchestrator.planner.{module}.local_config", lambda _: None)
    return Home(tmp_path / "home")


def test_build_and_up_use_same_image_tag(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """The tag is the digest of the inputs, with and without a table from `deploy kernels build`."""
    tags = []
    for _ in range(2):
        build("mi355x-tp8")
        tags.append(capsys.readouterr().out.strip())
        up(profile="mi355x-tp8", dry_run=True, allow_untuned=True, json=True)
        files = {file["path"]: file["content"] for file in json.loads(capsys.readouterr().out)["files"]}
        assert f" {tags[-1]} " in files["docker-run.sh"].replace("\n", " ")
        plan = load("mi355x-tp8").plan
        Store.of(home, plan).write(plan, COMPLETE)
    assert tags[0] != tags[1]


def test_build_creates_same_kernel_table_as_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the table, the node would reject an image from CI, or its server would choose kernels by heuristics."""
    build("mi355x-tp8", base_image="mine:1")
    without_table = capsys.readouterr().out
    requests = []

    def make_table(plan: Plan, at: Home, _directory: object, *, allow_untuned: bool) -> bool:
        requests.append((plan.engine.image, allow_untuned))
        Store.of(at, plan).write(plan, COMPLETE)
        return True

    monkeypatch.setattr("orchestrator.servers.start.prepare.make_table", make_table)
    build("mi355x-tp8", base_image="mine:1")
    with_table = capsys.readouterr().out
    assert requests == [("mine:1", False)]
    monkeypatch.setattr("orchestrator.servers.start.prepare.make_table", lambda *_, **__: False)
    build("mi355x-tp8", base_image="mine:1")
    assert capsys.readouterr().out == with_table != without_table


def test_explicit_kernel_table_overrides_built_one(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "tuned.csv"
    table.write_text(f"{HEADER}\n{line(16)}\n")
    build("mi355x-tp8", input_=[f"moe-table={table}"], allow_untuned=True)
    expected = capsys.readouterr().out
    plan = load("mi355x-tp8").plan
    Store.of(home, plan).write(plan, COMPLETE)
    build("mi355x-tp8", input_=[f"moe-table={table}"], allow_untuned=True)
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("exponents", [(), (4,), range(16)], ids=["no row", "one row", "one of two shapes"])
def test_kernel_table_without_workload_rows_is_rejected(
    home: Home, tmp_path: Path, exponents: Sequence[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Such an image would build, but its server would choose kernels by heuristics."""
    table, plan = tmp_path / "tuned.csv", load("mi355x-tp8").plan
    Store.of(home, plan).write(plan, every_bucket(FUSED_TP8))
    table.write_text("\n".join([HEADER, *(line(1 << exponent) for exponent in exponents)]) + "\n")
    for attempt in (
        lambda: render(profile="mi355x-tp8", input_=[f"moe-table={table}"], output=tmp_path / "out"),
        lambda: build("mi355x-tp8", input_=[f"moe-table={table}"]),
        lambda: render(profile="mi355x-tp8", output=tmp_path / "out"),
        lambda: build("mi355x-tp8"),
        lambda: up(profile="mi355x-tp8", dry_run=True, json=True),
    ):
        with pytest.raises(KernelsError, match="no tuned MoE kernel"):
            attempt()
    assert not (tmp_path / "out").exists()
    render(profile="mi355x-tp8", input_=[f"moe-table={table}"], output=tmp_path / "out", allow_untuned=True)
    assert "no tuned MoE kernel in the table" in capsys.readouterr().err


def test_render_uses_locally_built_kernel_table(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render(profile="mi355x-tp8")
    assert "`docker build` of these files will fail" in capsys.readouterr().err
    plan = load("mi355x-tp8").plan
    Store.of(home, plan).write(plan, COMPLETE)
    render(profile="mi355x-tp8", output=tmp_path / "out")
    assert "fused 257/9: 16 tuned" in (tmp_path / "out/image/Dockerfile").read_text()
    assert "stops" not in capsys.readouterr().err
    build("mi355x-tp8")
    assert capsys.readouterr().out.strip() in (tmp_path / "out" / "docker-run.sh").read_text()


def test_dry_run_of_process_runtime_rejects_remote_host() -> None:
    """The dry run once printed the command for the local host."""
    with pytest.raises(UsageError, match=r"the process runtime starts servers only on this host, not on `ssh://node`"):
        up(profile="cpu-tiny", dry_run=True, host=["ssh://node"])


def test_missing_input_file_is_rejected_early(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`--input moe-table=…` needs the path of a file"):
        render(profile="mi355x-tp8", input_=[f"moe-table={tmp_path / 'none.csv'}"])


def test_remote_image_commands_use_docker_of_that_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[object] = []

    def reject(*words: object, **_: object) -> None:
        hosts.extend(word for word in words if word == "ssh://me@node")
        raise HostError("rejected")

    for module in ("cli.build", "cli.patches.check", "images.registry", "kernels.disk.image"):
        monkeypatch.setattr(f"orchestrator.{module}.find_docker", reject)
    monkeypatch.setattr("orchestrator.images.registry.Registry.config", reject)
    for words in (
        ["build", "mi355x-tp8-july"],
        ["inspect", "mine:1"],
        ["patches", "check", "--image", "mine:1"],
        ["kernels", "coverage", "mi355x-tp8", "--image", "mine:1"],
        ["kernels", "build", "mi355x-tp8", "--image", "mine:1"],
    ):
        result = CliRunner().invoke(app, [*words, "--host", "ssh://me@node"])
        assert isinstance(result.exception, HostError), (words, result.exception)
    assert hosts == ["ssh://me@node"] * 5


@pytest.mark.parametrize(
    "words",
    [
        "patches check --wheel 0.5.16",
        "kernels coverage mi355x-tp8",
        "kernels build mi355x-tp8 --table x",
        "build cpu-tiny",
    ],
)
def test_host_option_without_effect_is_rejected(words: str) -> None:
    result = CliRunner().invoke(app, [*words.split(), "--host", "ssh://me@node"])
    assert isinstance(result.exception, UsageError)
