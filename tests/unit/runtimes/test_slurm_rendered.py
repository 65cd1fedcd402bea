"""The job of a plan, and the rules for plans on Slurm."""

import json
import re
from pathlib import Path

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, render_artifacts, rendered_files
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.slurm import job
from orchestrator.runtimes.slurm.arguments import argument_files

KEYED = ("runtime=slurm", "server.api_key_env=THE_KEY")
NODE = (*KEYED, "engine.python=/shared/bin/python3")
DIRECT = ("flags.hicache-io-backend=direct", "flags.hicache-mem-layout=page_first_direct")


def plan_on_slurm(profile: str, *settings: str) -> Plan:
    return load(profile, overrides=settings).plan


def script(profile: str, *settings: str) -> str:
    artifacts = render_artifacts(plan_on_slurm(profile, *settings))
    return next(file.content.decode() for file in rendered_files(artifacts, "glm") if file.path == "job.sh")


def problems(profile: str, *settings: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ProfileError) as caught:
        load(profile, overrides=settings)
    return [(problem.message, problem.location, problem.hint) for problem in caught.value.problems_or_self()]


def test_job_requests_resources_of_plan() -> None:
    settings = (
        *NODE,
        "slurm.partition=mi355",
        "slurm.account=team",
        "slurm.qos=long",
        "slurm.time_limit=2-00:00:00",
        "slurm.gpu_type=mi355x",
        "slurm.requeue=true",
        "slurm.signal_before_end=300",
        "slurm.sbatch_options=[--constraint=gfx950, --nice]",
    )
    lines = script("mi355x-tp4dp2", *settings).splitlines()
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        "--constraint=gfx950",
        "--nice",
        "--job-name=glm",
        "--nodes=1",
        "--ntasks=1",
        "--partition=mi355",
        "--account=team",
        "--qos=long",
        "--time=2-00:00:00",
        "--gres=gpu:mi355x:8",
        "--exclusive",
        "--mem=0",
        "--signal=B:TERM@300",
        "--requeue",
    ]
    assert lines[-1] == 'exec "$1" -P -m orchestrator.runtimes.slurm.job "$2"'


def test_gateway_job_requests_no_gpus() -> None:
    settings = (
        *NODE,
        "slurm.partition=mi355",
        "slurm.gateway_partition=cpu",
        "slurm.sbatch_options=[--constraint=gfx950]",
    )
    artifacts = render_artifacts(plan_on_slurm("mi355x-tp4x2", *settings))
    texts = {file.path: file.content.decode() for file in rendered_files(artifacts, "glm")}
    options = {
        path: {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")}
        for path, text in texts.items()
        if path.endswith("job.sh")
    }
    assert options.keys() == {"job.sh", "replica-1/job.sh", "replica-2/job.sh"}
    assert {"--partition=cpu", "--cpus-per-task=2", "--mem=2G"} <= options["job.sh"]
    assert not any(option.startswith(("--gres", "--exclusive", "--constraint")) for option in options["job.sh"])
    assert {"--partition=mi355", "--gres=gpu:4", "--constraint=gfx950"} <= options["replica-2/job.sh"]
    names = [option for path in sorted(options) for option in options[path] if option.startswith("--job-name")]
    assert names == ["--job-name=glm-gateway", "--job-name=glm-1", "--job-name=glm-2"]
    assert '--worker-urls "${REPLICA_1:?' in texts["gateway.sh"]
    assert "--host 0.0.0.0" in texts["gateway.sh"]


def test_prefill_and_decode_jobs_are_passed_to_gateway() -> None:
    settings = (*KEYED, "layout.prefill.replicas=2", "server.port=21000")
    artifacts = render_artifacts(plan_on_slurm("cpu-tiny-1p1d", *settings))
    texts = {file.path: file.content.decode() for file in rendered_files(artifacts, "roles")}
    scripts = [path for path in texts if path.endswith("job.sh")]
    names = {path: re.findall("--job-name=(.*)", texts[path]) for path in scripts}
    assert names == {
        "job.sh": ["roles-gateway"],
        **{f"{unit}/job.sh": [f"roles-{unit}"] for unit in ("prefill-1", "prefill-2", "decode-1")},
    }
    lines = re.findall(r"--(?:prefill|decode) .*", re.sub(r'"\$\{(\w+):[^}]*\}"', r"\1", texts["gateway.sh"]))
    workers = [line.removesuffix(" \\") for line in lines]
    assert workers == ["--prefill REPLICA_1 21024", "--prefill REPLICA_2 21048", "--decode REPLICA_3"]
    assert "http://NODE:21016, the node of decode-1 (squeue)" in texts["job.sh"]


def test_unset_slurm_options_are_omitted() -> None:
    text = script("cpu-tiny", *KEYED, "slurm.exclusive=false")
    for option in ("partition", "account", "qos", "time", "gres", "exclusive", "mem"):
        assert f"--{option}" not in text
    assert "#SBATCH --no-requeue" in text
    assert "--gres=gpu:4\n" in script("mi355x-tp8", *NODE, "layout.tp=4")


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ((), ("--exclusive", "--mem=0")),
        (("layout.tp=4",), ("--cpus-per-task=40", "--mem=510420M")),  # 4 × 20 GB, 16 GiB of shm, 438 GB of weights
        (("layout.tp=4", "slurm.exclusive=true"), ("--exclusive", "--mem=0")),
        (("layout.tp=4", "flags.base-gpu-id=4"), ("--exclusive", "--mem=0")),
        (("layout.tp=4", "slurm.sbatch_options=[--mem-per-gpu=90G]"), ("--cpus-per-task=40", "--mem-per-gpu=90G")),
        (("slurm.exclusive=false",), ("--cpus-per-task=80", "--mem=586714M")),
        (
            ("layout.tp=4", "flags.enable-hierarchical-cache=true", "flags.hicache-size=180", *DIRECT),
            ("--cpus-per-task=40", "--mem=1354422M"),
        ),
    ],
)
def test_partial_node_job_requests_its_share(settings: tuple[str, ...], options: tuple[str, ...]) -> None:
    text = script("mi355x-tp8", *NODE, *settings)
    requested = re.findall(r"^#SBATCH (--(?:exclusive|cpus|mem).*)$", text, re.MULTILINE)
    assert sorted(requested) == sorted(options)


@pytest.mark.parametrize("container", ["none", "apptainer", "pyxis"])
def test_script_lists_required_variables(container: str) -> None:
    settings = KEYED if container == "none" else (*KEYED, f"slurm.container={container}", "slurm.image=/i.sif")
    artifacts = render_artifacts(plan_on_slurm("cpu-tiny", *settings, "replicas=2"))
    texts = {file.path: file.content.decode() for file in rendered_files(artifacts, "two")}
    needed = {path: re.findall(r"^#   ([A-Z_0-9]+) ", texts[path], re.MULTILINE) for path in texts}
    assert needed["job.sh"] == ["PATH", "REPLICA_1", "REPLICA_2", "API_KEY_FILE"]
    python = ["PATH"] if container == "none" else []
    assert needed["replica-2/job.sh"] == ["DEPLOY_HOME", *python, "API_KEY_FILE"]
    mounts = {"none": "", "apptainer": 'APPTAINER_BIND="$PWD', "pyxis": 'PYXIS_CONTAINER_MOUNTS="$PWD:$PWD"'}
    assert mounts[container] in texts["replica-2/server.sh"]


@pytest.mark.parametrize(
    ("container", "mounts", "argv"),
    [
        ("apptainer", """APPTAINER_BIND="$PWD",/data/own"${""", "--bind {home},/data/own"),
        (
            "pyxis",
            """MOUNTS="$PWD:$PWD",/data/own:/data/own PYXIS""",
            "--container-mounts={home}:{home},/data/own:/data/own",
        ),
    ],
)
def test_local_checkpoint_is_mounted_in_container(container: str, mounts: str, argv: str, tmp_path: Path) -> None:
    local = ("model.checkpoint.source=local", "model.checkpoint.path=/data/own", "model.checkpoint.revision=null")
    plan = plan_on_slurm("mi355x-tp8", *KEYED, *local, f"slurm.container={container}", "slurm.image=/i.sif")
    artifacts = render_artifacts(plan)
    texts = {file.path: file.content.decode() for file in rendered_files(artifacts, "own")}
    assert mounts in texts["server.sh"]
    assert "all nodes share; so is /data/own, the checkpoint" in texts["job.sh"]
    prepared = runtime_class("slurm").prepare(artifacts, HostRef(home=Home(tmp_path)))
    assert argv.format(home=tmp_path) in " ".join(prepared.artifacts.command.argv)


def test_slurm_server_listens_on_all_interfaces() -> None:
    argv = render_artifacts(plan_on_slurm("cpu-tiny", *KEYED)).command.argv
    assert argv[argv.index("--host") + 1] == "0.0.0.0"


def test_other_runtimes_ignore_slurm_settings() -> None:
    assert plan_on_slurm("cpu-tiny", "slurm.partition=x").slurm is None


@pytest.mark.parametrize(
    ("container", "first"),
    [
        ("apptainer", ("apptainer", "exec", "--rocm", "--bind", "{home}", "--pwd", "{home}", "/i.sif", "python3")),
        (
            "pyxis",
            (
                *("srun", "--mpi=none", "--kill-on-bad-exit=1", "--container-image=/i.sif"),
                *("--container-mounts={home}:{home}", "--container-workdir={home}", "python3"),
            ),
        ),
    ],
)
def test_container_runs_same_launch_line(tmp_path: Path, container: str, first: tuple[str, ...]) -> None:
    artifacts = render_artifacts(
        plan_on_slurm("mi355x-tp8", *KEYED, f"slurm.container={container}", "slurm.image=/i.sif")
    )
    prepared = runtime_class("slurm").prepare(artifacts, HostRef(home=Home(tmp_path)))
    argv = prepared.artifacts.command.argv
    assert argv[: len(first)] == tuple(word.format(home=tmp_path) for word in first)
    assert argv[-1] == render_artifacts(plan_on_slurm("mi355x-tp8", *NODE)).command.argv[-1]


def test_slurm_server_requires_api_key_unless_allowed() -> None:
    [(message, location, hint)] = problems("cpu-tiny", "runtime=slurm")
    assert message == "on Slurm the server is open to the cluster's network and has no API key"
    assert location == "--set runtime"
    assert "server.allow_unauthenticated=true" in hint
    assert plan_on_slurm("cpu-tiny", "runtime=slurm", "server.allow_unauthenticated=true").slurm is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["server.host=10.1.2.3"], "`10.1.2.3` may not be an address of the job's node"),
        (["slurm.sbatch_options=[--output=x]"], "cannot set `--output`: `deploy` sets it"),
        (["slurm.sbatch_options=[--gres=gpu:1]"], "cannot set `--gres`: `deploy` sets it"),
        (["slurm.sbatch_options=[--ntasks-per-node=2]"], "cannot set `--ntasks-per-node`: `deploy` sets it"),
        (["slurm.sbatch_options=[--arr=1-4]"], "cannot set `--array`: `deploy` sets it"),  # an abbreviation
        (["slurm.sbatch_options=[--test-only]"], "cannot set `--test-only`: `deploy` sets it"),
        (
            ["slurm.sbatch_options=[--comment=sk-abcdefghijklmnopqrstuvwxyz0123]"],
            "cannot set `--comment`: `deploy` sets it",
        ),
        (["slurm.sbatch_options=[--mail-user=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH]"], "looks like a secret"),
        (["slurm.container=pyxis"], "`pyxis` needs an image"),
        (["slurm.image=/i.sif"], "`slurm.image` needs `slurm.container`"),
        (["slurm.time_limit=soon"], "`slurm.time_limit` has an invalid format, found `soon`"),
        (["slurm.sbatch_options=[-p]"], "`slurm.sbatch_options.0` has an invalid format, found `-p`"),
    ],
)
def test_invalid_slurm_settings_are_rejected_with_location(settings: list[str], message: str) -> None:
    result = problems("cpu-tiny", *KEYED, *settings)
    assert any(message in problem[0] and problem[1] for problem in result), result


def test_invalid_time_limit_hints_at_format() -> None:
    [(_, _, hint)] = problems("cpu-tiny", *KEYED, "slurm.time_limit=2d")
    assert "such as 8:00:00 or 7-00:00:00" in hint


def test_engine_without_interpreter_needs_a_container() -> None:
    [(message, location, hint)] = problems("mi355x-tp8", *KEYED)
    assert "needs a Python interpreter on the nodes, or a container" in message
    assert location == "profiles/mi355x-tp8.yaml:7"
    assert "slurm.container" in hint


def test_job_waits_for_vram_of_allocated_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has four of eight GPUs and uses their numbers on the node."""
    plan = plan_on_slurm("mi355x-tp8", *NODE, "layout.tp=4")
    (tmp_path / "plan.json").write_text(plan.to_json())
    waited: list[object] = []
    monkeypatch.setattr("orchestrator.hosts.vram.wait_for_vram_release", lambda _, *, gpus: waited.append(gpus))
    monkeypatch.setenv("SLURM_JOB_GPUS", "4,5,6,7")
    job._wait_for_vram(tmp_path)
    monkeypatch.delenv("SLURM_JOB_GPUS")
    job._wait_for_vram(tmp_path)
    assert waited == [[4, 5, 6, 7], [0, 1, 2, 3]]


def test_start_file_is_kept_only_for_requeue(tmp_path: Path) -> None:
    request = {
        **dict.fromkeys(("run_dir", "cwd", "name", "profile", "plan_digest", "token", "record"), "x"),
        "argv": ["a"],
        "env": {},
        "secret_env": {},
        "config": None,
        "secrets": ["s"],
        "url": "http://127.0.0.1:30000",
    }
    for requeue in (True, False):
        (tmp_path / "job-start.json").write_text(job.start_file(request, requeue=requeue))
        consumed = job._consume_request(tmp_path)
        assert (consumed.argv, consumed.record, consumed.url.endswith(":30000")) == (("a",), "job.json", True)
        assert (tmp_path / "job-start.json").exists() == requeue
    assert json.loads(job.start_file(request, requeue=True))["keep"] is True


def test_job_without_container_checks_no_arguments() -> None:
    """`up` has already checked the arguments with the same interpreter."""
    assert argument_files(render_artifacts(plan_on_slurm("cpu-tiny", *KEYED))) == {}
