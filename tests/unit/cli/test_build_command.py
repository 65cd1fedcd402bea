"""`deploy build`: the image it makes is the one that `deploy up` starts."""

from pathlib import Path

import pytest
from kernel_samples import FUSED_TP8, HEADER, every_bucket, line

from orchestrator.cli.images import build
from orchestrator.cli.profiles import render
from orchestrator.cli.serve import up
from orchestrator.commands.planning import load
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.images import BuiltImage, ImageReceipt
from orchestrator.kernels.disk.store import Store
from orchestrator.plan import Plan


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of the test's own, and a Docker engine that finds every image that is asked of it."""

    def found(_docker: object, _engine: object, _context: object, options: object) -> BuiltImage:
        receipt = ImageReceipt(python="3.10", sources=(), patches=())
        tag = options.tag  # type: ignore[attr-defined]
        return BuiltImage(tag=tag, image_id="sha256:1", receipt=receipt, built=False, builder="classic", seconds=0.0)

    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("orchestrator.images.find_docker", lambda: None)
    monkeypatch.setattr("orchestrator.images.build.ensure_image", found)
    monkeypatch.setattr("orchestrator.commands.prepare.make_table", lambda *_, **__: False)
    for asking in ("environment", "steps"):
        monkeypatch.setattr(f"orchestrator.commands.{asking}.local_config", lambda _: None)
    return Home(tmp_path / "home")


def test_build_and_up_make_one_image(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without a table that `deploy kernels table` built: the tag is the digest of what goes in."""
    tags = []
    for _ in range(2):
        build("mi355x-tp8")
        tags.append(capsys.readouterr().out.strip())
        up(profile="mi355x-tp8", dry_run=True, accept_untuned=True)
        assert f" {tags[-1]} " in capsys.readouterr().out.replace("\n", " ")
        plan = load("mi355x-tp8").plan
        Store.of(home, plan).write(plan, every_bucket(FUSED_TP8))
    assert tags[0] != tags[1]


def test_build_makes_the_table_that_up_would_make(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that CI built without one would be refused on the node, or serve with kernels chosen by heuristics."""
    build("mi355x-tp8", base_image="mine:1")
    without = capsys.readouterr().out
    asked = []

    def make_table(plan: Plan, at: Home, _place: object, *, accept_untuned: bool) -> bool:
        asked.append((plan.engine.image, accept_untuned))
        Store.of(at, plan).write(plan, every_bucket(FUSED_TP8))
        return True

    monkeypatch.setattr("orchestrator.commands.prepare.make_table", make_table)
    build("mi355x-tp8", base_image="mine:1")
    made = capsys.readouterr().out
    assert asked == [("mine:1", False)]
    monkeypatch.setattr("orchestrator.commands.prepare.make_table", lambda *_, **__: False)
    build("mi355x-tp8", base_image="mine:1")
    assert capsys.readouterr().out == made != without


def test_a_table_that_is_given_takes_the_place_of_the_built_one(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "tuned.csv"
    given.write_text(f"{HEADER}\n{line(16)}\n")
    build("mi355x-tp8", give=[f"moe-table={given}"])
    without = capsys.readouterr().out
    plan = load("mi355x-tp8").plan
    Store.of(home, plan).write(plan, every_bucket(FUSED_TP8))
    build("mi355x-tp8", give=[f"moe-table={given}"])
    assert capsys.readouterr().out == without


def test_render_knows_only_what_it_is_given(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render(profile="mi355x-tp8")
    bare = capsys.readouterr().out
    plan = load("mi355x-tp8").plan
    table = Store.of(home, plan).write(plan, every_bucket(FUSED_TP8))
    render(profile="mi355x-tp8")
    assert capsys.readouterr().out == bare
    render(profile="mi355x-tp8", output=tmp_path / "out", give=[f"moe-table={table}"])
    build("mi355x-tp8")
    assert capsys.readouterr().out.strip() in (tmp_path / "out" / "docker-run.sh").read_text()


def test_a_dry_run_of_a_process_refuses_a_far_host_as_the_start_would() -> None:
    """It used to print the command for this machine, whatever was named."""
    with pytest.raises(UsageError, match=r"the process runtime runs on this machine, not on `ssh://node`"):
        up(profile="cpu-tiny", dry_run=True, host="ssh://node")


def test_a_file_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`--give moe-table=…` needs the path of a file"):
        render(profile="mi355x-tp8", give=[f"moe-table={tmp_path / 'none.csv'}"])
