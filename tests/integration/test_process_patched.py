"""Tests of patched copies of an installed sglang: the installation stays unchanged, and no incomplete copy is left."""

import dataclasses
import json
import os
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import CommandLine
from plan_samples import plan_of
from waits import TIMEOUT

from orchestrator.core.errors import BuildError, KernelsError, PatchError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import run
from orchestrator.kernels import plan_table
from orchestrator.kernels.plan_coverage import RowSources
from orchestrator.plan.facts import Facts
from orchestrator.planner.planning import read_profile
from orchestrator.render.scripts import files
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor import patched
from orchestrator.runtimes.supervisor.prepare import prepare, rendered, source_patches
from orchestrator.servers.start.prepare import builtin_tables

GUARD = "jit_kernel/csrc/elementwise/fused_metadata_copy.cuh"
UNPATCHED = "#pragma once\n\n#include <algorithm>  // for std::min\n#include <cuda_runtime.h>\n\nint x;\n"
PLAN = plan_of("mi355x-tp8-july", "runtime=process", "engine.python=python3", "skip_patches=[eagle-verify-broadcast]")
BUILT = SimpleNamespace(path="", coverage=SimpleNamespace(summary=""))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an sglang and an aiter to which the patches apply, and add them to PYTHONPATH."""
    site = tmp_path / "site"
    texts = {
        "sglang/__init__.py": "",
        "sglang/_version.py": "__version__ = version = '0.5.14'\n",
        "sglang/srt/configs/model_config.py": "class Other:\n    pass\n",
        "sglang/srt/models/glm4_moe.py": "class GlmMoeDsaForCausalLMNextN:\n    pass\n",
        f"sglang/{GUARD}": UNPATCHED,
        "aiter/__init__.py": "",
        "aiter/jit/core.py": "path = os.getenv('AITER_CONFIG_FMOE')\n",
    }
    for name, text in texts.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def make_copy(home: Home, inputs: dict[str, bytes] | None = None) -> patched.PatchedCopy:
    return patched.patched_copy(sys.executable, source_patches(PLAN, inputs or {}), home.packages)


def test_python_imports_the_patched_copy(installed: Path, tmp_path: Path) -> None:
    home, before = Home(tmp_path / "home"), snapshot(installed)

    copy = make_copy(home)

    assert snapshot(installed) == before, "the installation was changed"
    assert {record.id: record.state for record in copy.receipt.patches} == {
        "aiter-fp4-moe-table": "needed",
        "dsa-topk-v2-off": "not applicable",
        "mtp-shared-expert-exclude": "upstream",
        "rocm-cuda-runtime-guard": "applied",
    }
    code = "import sglang, importlib.resources as r; print(sglang.__file__); print(r.files(sglang) / sys.argv[1])"
    path = f"{copy.python_path}{os.pathsep}{installed}"
    done = run([sys.executable, "-c", f"import sys; {code}", GUARD], env={"PYTHONPATH": path})
    imported, header = done.stdout.splitlines()
    assert Path(imported) == copy.folder / "python/sglang/__init__.py"
    assert "hip_runtime.h" in Path(header).read_text()
    assert Path(imported).stat().st_ino == (installed / "sglang/__init__.py").stat().st_ino  # a hard link
    assert [path.name for path in home.packages.iterdir() if path.is_dir()] == [copy.folder.name]


@pytest.mark.usefixtures("installed")
def test_existing_patched_copy_is_reused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    first = make_copy(home)
    before = snapshot(first.folder)

    second = make_copy(home)

    assert (first.made, second.made) == (True, False)
    assert second.receipt == first.receipt
    assert snapshot(first.folder) == before


@pytest.mark.usefixtures("installed")
def test_modified_patched_copy_is_rebuilt(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    header = make_copy(home).folder / "python/sglang" / GUARD
    header.write_text(UNPATCHED)

    assert make_copy(home).made
    assert "hip_runtime.h" in header.read_text()


def test_changed_sources_get_a_new_copy(installed: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    first = make_copy(home)
    version = installed / "sglang/_version.py"
    text = version.read_text()
    version.unlink()  # an installer also writes a new file: the copy has a hard link to the old one
    version.write_text(text.replace("0.5.14", "0.5.15"))

    second = make_copy(home)

    assert second.receipt.sources["sglang"].version == "0.5.15"  # type: ignore[union-attr]
    assert second.folder != first.folder


@pytest.mark.usefixtures("installed")
def test_concurrent_calls_create_one_copy(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    copies: list[patched.PatchedCopy] = []
    threads = [threading.Thread(target=lambda: copies.append(make_copy(home)), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)

    assert sorted(copy.made for copy in copies) == [False, False, True]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_copy_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    home = Home(tmp_path / "home")

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as context:
        context.setattr(patched, "_require_tables", fail)
        with pytest.raises(BuildError if isinstance(failure, OSError) else KeyboardInterrupt):
            make_copy(home)
    assert [path for path in home.packages.iterdir() if path.is_dir()] == []

    assert make_copy(home).made


def test_patch_conflict_shows_expected_context(installed: Path, tmp_path: Path) -> None:
    header = installed / "sglang" / GUARD
    header.write_text(UNPATCHED.replace("  // for std::min", ""))

    with pytest.raises(PatchError) as caught:
        make_copy(Home(tmp_path / "home"))

    assert "patch `rocm-cuda-runtime-guard` neither applies nor is present" in caught.value.details
    assert "expected near line" in caught.value.details
    assert "deploy patches check" in caught.value.hint


def test_kernel_table_without_aiter_is_rejected(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sglang").symlink_to(installed / "sglang")
    monkeypatch.setenv("PYTHONPATH", str(bare))

    with pytest.raises(PatchError, match="`aiter-fp4-moe-table` is not applicable") as caught:
        make_copy(Home(tmp_path / "home"), {"moe-table": b"gfx,cu_num\n"})

    assert "no sources of aiter found" in caught.value.details


def test_patch_to_aiter_is_rejected_without_changing_installation(installed: Path, tmp_path: Path) -> None:
    before, sources = snapshot(installed), source_patches(PLAN, {})
    patches = tuple(patch.model_copy(update={"target": "aiter"}) for patch in sources.patches)
    aiter_patches = dataclasses.replace(sources, patches=patches)

    with pytest.raises(PatchError, match="changes aiter, which the process runtime does not copy"):
        patched.patched_copy(sys.executable, aiter_patches, Home(tmp_path / "home").packages)

    assert snapshot(installed) == before


def test_interpreter_without_sglang_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(BuildError, match="has no sglang to patch"):
        make_copy(Home(tmp_path / "home"))


@pytest.mark.usefixtures("installed")
def test_files_are_copied_without_hard_link_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(patched.os, "link", fail)

    copy = make_copy(Home(tmp_path / "home"))

    assert (copy.folder / "python/sglang/__init__.py").is_file()


def test_server_uses_patched_copy_and_kernel_table(installed: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    overrides = ("runtime=process", f"engine.python={sys.executable}", "skip_patches=[eagle-verify-broadcast]")
    plan = read_profile("mi355x-tp8-july", overrides=overrides).build(Facts(inputs={"moe-table": "0" * 64}))

    prepared = prepare(rendered(plan, {"moe-table": b"gfx,cu_num\n"}), HostRef(home=home), home.packages)

    env = dict(prepared.artifacts.command.env)
    table = Path(env["AITER_CONFIG_FMOE"])
    assert table.read_bytes() == b"gfx,cu_num\n"
    assert table.is_relative_to(home.packages)
    assert env["PYTHONPATH"] == f"{table.parents[1] / 'python'}{os.pathsep}{installed}"
    [written] = [file for file in files(prepared.artifacts) if file.path == "server.sh"]
    shutil.rmtree(table.parents[1])
    script = tmp_path / "server.sh"
    script.write_bytes(written.content)
    result = run(["sh", str(script)], env={"DEPLOY_HOME": str(home.root)})
    assert (result.code, "the patched copy was deleted" in result.stderr) == (1, True)
    assert prepared.not_needed >= {"mtp-shared-expert-exclude"}  # the installed sources include this change
    record = json.loads(json.dumps(prepared.records["patches.json"]))
    assert {entry["id"]: entry["state"] for entry in record["patches"]}["aiter-fp4-moe-table"] == "applied"


def test_builtin_rows_come_from_interpreters_aiter(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod has no image to read the rows from; without them the server would lose the tuned rows of its aiter."""
    plan = plan_of("mi355x-tp8", "runtime=process", f"engine.python={sys.executable}")
    host_ref, received = HostRef(home=Home(tmp_path / "home")), list[RowSources]()
    monkeypatch.setattr(plan_table, "build_table", lambda _plan, rows, *_, **__: received.append(rows) or BUILT)
    with pytest.raises(KernelsError, match="has no aiter with tuned tables") as caught:
        plan_table.make_table(
            plan, host_ref.home, partial(builtin_tables, plan, host_ref.home, host_ref), allow_untuned=False
        )
    assert "--allow-untuned" in caught.value.hint

    configs = installed / "aiter/configs"
    (configs / "model_configs").mkdir(parents=True)
    tables = [configs / "tuned_fmoe.csv", configs / "model_configs/a8_tuned_fmoe.csv"]
    for path in (*tables, configs / "model_configs/a8_untuned_fmoe.csv", configs / "tuned_gemm.csv"):
        path.touch()
    assert plan_table.make_table(
        plan, host_ref.home, partial(builtin_tables, plan, host_ref.home, host_ref), allow_untuned=False
    )
    assert [rows.tables for rows in received] == [tuple(tables)]


@pytest.mark.usefixtures("installed")
def test_prune_keeps_patched_copies_in_use(tmp_path: Path) -> None:
    """No Docker engine runs, as on a pod."""
    home, plan = Home(tmp_path / "home"), plan_of("cpu-tiny")
    deploy = CommandLine(home, {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    copy = make_copy(home)
    run_dir = open_run(home, "sleeper", plan)
    run_dir.save("patches.json", dataclasses.asdict(copy.receipt))
    artifacts = rendered(plan, {})
    sleeping = dataclasses.replace(artifacts, command=dataclasses.replace(artifacts.command, argv=("sleep", "600")))
    runtime = ProcessRuntime(home)
    handle = runtime.start(sleeping, name="sleeper", run_dir=run_dir.path, secrets={})
    try:
        [known] = json.loads(deploy.run("prune", "--caches", "--json").stdout)["caches"]
        assert (known["location"], known["used_by"]) == (str(copy.folder), ["sleeper"])
        assert known["requirements"] == {"sglang": "0.5.14", "patches": "rocm-cuda-runtime-guard"}
        assert known["keep_reason"] == "used by `sleeper`"
        assert f"`{copy.folder}` is kept: used by `sleeper`" in deploy.run("prune", "--caches").stderr
        assert copy.folder.is_dir()
    finally:
        runtime.stop(handle, grace=0)
    assert f"would remove `{copy.folder}`" in deploy.run("prune", "--caches", "--dry-run").stderr
    assert copy.folder.is_dir()
    assert deploy.run("prune", "--caches").returncode == 0
    assert not copy.folder.exists()
    assert make_copy(home).made
