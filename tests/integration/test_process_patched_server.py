"""Tests that the processes of a server import the patched copy of the real package of sglang 0.5.14."""

import difflib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from cpu_server import CpuEngine
from plan_samples import plan_of
from ports import free_port
from waits import TIMEOUT

from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import run
from orchestrator.hosts.venvs import venv
from orchestrator.kernels.disk.store import Store
from orchestrator.runtimes.supervisor.patched import patched_copy
from orchestrator.runtimes.supervisor.prepare import source_patches

pytestmark = [pytest.mark.engine, pytest.mark.slow]

GUARD = "jit_kernel/csrc/elementwise/fused_metadata_copy.cuh"
VERIFY = "srt/speculative/eagle_utils.py"
MARKED = "srt/server_args.py"  # every process of a server imports it
ANCHOR = "logger = logging.getLogger(__name__)\n"
PRINT_PATHS = """\
import os
os.write(1, f"marked {os.getpid()} {__file__} {os.environ['AITER_CONFIG_FMOE']}\\n".encode())  # one write: whole lines
"""
PATCH_YAML = """\
id: marked
title: every process prints the path of the imported file
target: sglang
symptom: {log: [], effect: none}
upstream: {reference: example/marked#1, merged: null, released: null}
applies: {platforms: [cpu]}
detect:
  needed: [{file: srt/server_args.py, match: '^logger = '}]
  present: [{file: srt/server_args.py, match: '^os\\.write\\(1'}]
apply: {kind: diff, file: marked.patch}
verify: [{file: srt/server_args.py, match: '^os\\.write\\(1'}]
removed_when: never
"""
TABLE_YAML = """\
id: table
title: a table for the server
target: sglang
symptom: {log: [], effect: none}
upstream: {reference: example/table#1, merged: null, released: null}
applies: {platforms: [cpu]}
detect:
  needed: [{file: srt/server_args.py, match: '^logger = '}]
  present: []
apply:
  kind: file
  input: moe-table
  destination: /opt/deploy/tables/tuned_fmoe.csv
  env: [{name: AITER_CONFIG_FMOE, value: /opt/deploy/tables/tuned_fmoe.csv, origin: user, source: the test}]
verify: []
removed_when: never
"""
# Prints which files a spawned process would import; sglang spawns its schedulers.
CHILD = """\
import importlib.metadata, importlib.util, json, multiprocessing, pathlib

def report(queue):
    sglang = pathlib.Path(importlib.util.find_spec("sglang").origin)
    queue.put({
        "sglang": str(sglang),
        "verify": (sglang.parent / "srt/speculative/eagle_utils.py").read_text(),
        "header": (sglang.parent.resolve() / "jit_kernel/csrc/elementwise/fused_metadata_copy.cuh").read_text(),
        "version": importlib.metadata.version("sglang"),
        "torch": importlib.util.find_spec("torch").origin,
    })

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    child = spawn.Process(target=report, args=(queue,))
    child.start()
    print(json.dumps(queue.get(timeout=300)))
    child.join()
"""


@pytest.fixture
def package(cpu_environment: venv.Venv) -> Path:
    return next(cpu_environment.python.parents[1].glob("lib/python3*/site-packages/sglang"))


@pytest.fixture
def home(tmp_path: Path, cpu_engine: CpuEngine) -> Home:
    """Return a new home that shares the environments and the checkpoint of the engine's home."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.environments.symlink_to(cpu_engine.home.environments)
    home.models.symlink_to(cpu_engine.home.models)
    return home


def test_child_process_finds_patched_files(cpu_environment: venv.Venv, package: Path, tmp_path: Path) -> None:
    before = {name: (package / name).read_bytes() for name in (GUARD, VERIFY)}
    python = str(cpu_environment.python)
    plan = plan_of("mi355x-tp8-july", "runtime=process", f"engine.python={python}")

    copy = patched_copy(python, source_patches(plan, {}), Home(tmp_path).packages)

    assert {record.id: record.state for record in copy.receipt.patches} == {
        "aiter-fp4-moe-table": "not applicable",
        "dsa-topk-v2-off": "not applicable",
        "eagle-verify-broadcast": "applied",
        "mtp-shared-expert-exclude": "applied at startup",
        "rocm-cuda-runtime-guard": "applied",
    }
    assert copy.receipt.sources["sglang"].version == "0.5.14"  # type: ignore[union-attr]
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    env = {"PYTHONPATH": copy.python_path, "TORCHDYNAMO_DISABLE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    done = run([python, "-P", str(script)], env=env, timeout=TIMEOUT)
    assert done.ok, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["sglang"] == f"{copy.python_path}/sglang/__init__.py"
    assert report["verify"].count("tp_group.broadcast(predict, src=0)") == 2
    assert "#ifdef USE_ROCM\n#include <hip/hip_runtime.h>" in report["header"]
    assert report["version"] == "0.5.14"
    assert report["torch"].startswith(str(package.parent))  # all other packages are the installed ones
    assert {name: (package / name).read_bytes() for name in before} == before


@pytest.fixture
def marked(home: Home, package: Path) -> Iterator[CommandLine]:
    """Return `deploy` with two additional patches, one of them a table; stop its server after the test."""
    text = (package / MARKED).read_text()
    assert text.count(ANCHOR) == 1
    lines = (content.splitlines(keepends=True) for content in (text, text.replace(ANCHOR, ANCHOR + PRINT_PATHS)))
    diff = "".join(difflib.unified_diff(*lines, f"a/{MARKED}", f"b/{MARKED}"))  # type: ignore[call-arg]
    for name, files in {
        "marked": {"patch.yaml": PATCH_YAML, "marked.patch": diff},
        "table": {"patch.yaml": TABLE_YAML},
    }.items():
        (home.root / "patches" / name).mkdir(parents=True)
        for file, content in files.items():
            (home.root / "patches" / name / file).write_text(content)
    plan = plan_of("cpu-tiny")
    table = Store.of(home, plan).table(plan)
    table.parent.mkdir(parents=True)
    table.write_text("rows\n")
    command = CommandLine(home, {"SPAWNED_RANKS": "1"})  # not forked: every rank imports sglang itself
    yield command
    command.run("down", "marked")


def test_every_server_process_uses_patched_copy(marked: CommandLine, package: Path) -> None:
    before = (package / MARKED).read_bytes()
    argv = ["up", "--profile", "cpu-tiny", "--name", "marked", "--set", f"server.port={free_port()}"]
    argv += ["--set", "timeouts.termination_grace=2", "--json"]
    dry_run = marked.run(*argv, "--dry-run")
    assert "#   marked" in dry_run.stdout

    done = marked.run(*argv)
    assert done.returncode == 0, done.stderr
    run_dir = Path(json.loads(done.stdout)["run_dir"])
    [copy] = [path for path in marked.home.packages.iterdir() if path.is_dir()]

    printed = re.findall(r"^marked (\d+) (\S+) (\S+)$", (run_dir / "server.log").read_text(), re.MULTILINE)
    assert {file for _, file, _ in printed} == {f"{copy}/python/sglang/{MARKED}"}
    assert [Path(table).read_text() for table in {table for _, _, table in printed}] == ["rows\n"]
    running = [Path("/proc", pid, "cmdline") for pid, _, _ in printed if Path("/proc", pid).exists()]
    cmdlines = " ".join(path.read_bytes().replace(b"\0", b" ").decode() for path in running)
    assert all(name in cmdlines for name in ("launch_server", "sglang::scheduler", "sglang::detokenizer")), cmdlines

    receipt = json.loads((run_dir / "patches.json").read_text())
    assert {patch["id"]: patch["state"] for patch in receipt["patches"]} == {"marked": "applied", "table": "applied"}
    assert str(copy) in (run_dir / "server.sh").read_text()
    assert (package / MARKED).read_bytes() == before

    again = marked.run(*argv)
    assert json.loads(again.stdout)["already_up"], again.stderr
    with marked.running(*argv, "--replace") as replacing:
        replacing.wait_for(f"patched sglang found at {copy}")  # the rest is the same as in the first start
        code, output = replacing.end(signal.SIGINT)
    assert code == 130, output
