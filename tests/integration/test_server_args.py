"""Tests which values of flags a plan rejects, in comparison with the real `ServerArgs` of three versions of sglang.

The values are set on `mi355x-tp8`. sglang reads a config of GLM-5.2's shape, on a host with fake MI355X GPUs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from server_commands import command, model_in, with_setting
from torch_forks import Program, run_forked
from wheels import unpacked

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.planner.planning import load, profile_names

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "0.5.14": ("engine=sglang-0.5.14-rocm",),
    "0.5.16": ("engine=sglang-0.5.16-rocm",),
    "0.5.23": ("engine.version=0.5.23", "engine.image=lmsysorg/sglang:v0.5.23-rocm720-mi35x"),
}
SCRIPT = Path(__file__).parents[1] / "support" / "server_args.py"
GetVerdicts = Callable[[str, str], dict[str, str]]  # from version and platform to the verdict on each profile, setting

# Both the plan and sglang reject these, most of them in sglang's argument parser.
REJECTED = (
    "mem-fraction-static=80%",
    "mem-fraction-static=auto",
    "max-running-requests=many",
    "max-running-requests=1.5",
    "chunked-prefill-size=32k",
    "chunked-prefill-size=0x20000",
    "help=true",
    "no-such-option=1",
    "random-seed=x",
    "watchdog-timeout=ten",
    "nnodes=two",
    "nnodes=0",
    "nnodes=3",
    "pp-size=2",
    "pipeline-parallel-size=4",
    "kv-cache-dtype=fp8",
    "speculative-algorithm=MTP",
    "cuda-graph-bs-decode=[1,x]",
    "cuda-graph-bs-decode=1 2 4",
    "cuda-graph-bs-decode=[]",
    "kv-cache-dtype=[auto,auto]",
    "context-length=2000000",
    "schedule-policy=best",
    "preferred-sampling-params={bad",
    "dsa-prefill-backend=fa4",
    "attention-backend=flashy",
    "quantization=mxfp5",
    "dtype=float99",
    "load-balance-method=random",
    "tool-call-parser=glm99",
    "trust-remote-code=yes",
    "enable-metrics=1",
)
# sglang accepts these, and the plan rejects them for this reason.
STRICTER = {
    "mem-fraction-static=0": "no memory is left for weights and cache",
    "mem-fraction-static=1": "no memory is left for activations",
    "mem-fraction-static=1.5": "more than the memory of a GPU",
    "mem-fraction-static=-0.5": "less than no memory",
    "mem-fraction-static=nan": "not a number",
    "max-running-requests=0": "the server accepts no requests",
    "max-running-requests=-5": "a pool of negative size",
    "max-total-tokens=-1": "a pool of negative size",
    "context-length=-1": "no prompt fits",
    "page-size=7": "DSA silently uses 64",
    "page-size=0": "DSA silently uses 64",
    "pp-size=0": "no rank starts",
    "nnodes=2": "sglang waits for the second node",
    "node-rank=1": "sglang waits for the first node",
    "base-gpu-id=4": "GPUs 8 to 11 do not exist",
    "gpu-id-step=2": "GPUs 8 to 14 do not exist",
    "speculative-num-draft-tokens=9": "sglang changes it to 6",
    "speculative-num-steps=-1": "there are no drafts",
    "cuda-graph-max-bs-decode=-1": "no graph is captured",
    "watchdog-timeout=-1": "the watchdog fires immediately",
    "speculative-algorithm=eagle": "other rules expect upper case",
    "speculative-algorithm=EAGLE3": "the MTP layer is not an EAGLE3 draft model",
    "speculative-algorithm=STANDALONE": "the draft model is missing",
    "nccl-port=70000": "not a valid port",
    "hicache-size=-1": "a pool of negative size",
    "disaggregation-mode=prefill": "the decode server is missing",
    "config=more.yaml": "the plan does not check the options in the file",
}
ACCEPTED = (
    "mem-fraction-static=.80",
    "mem-fraction-static=8.0e-1",
    "speculative-algorithm=NEXTN",
    "speculative-num-steps=3 & speculative-num-draft-tokens=4",
    "context-length=524288",
    "chunked-prefill-size=-1",
    "cuda-graph-bs-decode=[1,2,4]",
    'preferred-sampling-params={"top_k": 1}',
    "kv-cache-dtype=bfloat16",
)
SETTINGS = (*REJECTED, *STRICTER, *ACCEPTED)


@pytest.fixture(scope="module")
def get_verdicts(cpu_environment: Venv, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> GetVerdicts:
    """Run all commands of a version and platform in one process, because the import of sglang takes seconds."""
    folders = {"cpu": tiny_model, **{platform: tmp_path_factory.mktemp(platform) for platform in ("rocm", "cuda")}}
    model_in(folders["rocm"])
    model_in(folders["cuda"], quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    commands = {(version, "rocm"): commands_with_settings(folders["rocm"]) for version in VERSIONS}
    for (version, platform), profiles in engines().items():
        shipped = {profile: command(profile, folders[platform]) for profile in profiles}
        commands[version, platform] = {**commands.get((version, platform), {}), **shipped}
    programs = {
        (version, platform): Program(
            program=str(SCRIPT), argv=(str(unpacked(version)), platform), stdin=json.dumps([*by_name.values()])
        )
        for (version, platform), by_name in commands.items()
    }
    results = run_forked(cpu_environment.python, programs)

    def verdicts(version: str, platform: str) -> dict[str, str]:
        result = results[version, platform]
        assert result.returncode == 0, result.stderr[-2000:]
        return dict(zip(commands[version, platform], json.loads(result.stdout.splitlines()[-1]), strict=True))

    return verdicts


def commands_with_settings(model: Path) -> dict[str, tuple[str, ...]]:
    """Return the correct command by the name "", and the command with each setting by that setting."""
    base = command("mi355x-tp8", model)
    return {"": base, **{setting: with_setting(base, setting) for setting in SETTINGS}}


def overrides_of(setting: str) -> list[str]:
    return [f"flags.{one}" for one in setting.split(" & ")]


def plan_verdict(setting: str, *overrides: str) -> str:
    """Return the first problem of a plan with the setting, or "accepted"."""
    try:
        load("mi355x-tp8", overrides=[*overrides, *overrides_of(setting)])
    except ProfileError as error:
        return error.problems_or_self()[0].message
    return "accepted"


def table_lines(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    yield "setting | engine | plan"
    yield from (" | ".join(row) for row in rows)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_wrong_value_is_rejected_by_plan_or_engine(version: str, get_verdicts: GetVerdicts) -> None:
    verdicts = get_verdicts(version, "rocm")
    rows = [(setting, verdicts[setting], plan_verdict(setting, *VERSIONS[version])) for setting in SETTINGS]
    print("\n".join(table_lines(rows)))

    assert verdicts[""] == "accepted"
    assert not [row for row in rows if row[0] in {*REJECTED, *STRICTER} and row[2] == "accepted"]
    assert not [row for row in rows if row[0] in ACCEPTED and row[1:] != ("accepted", "accepted")]
    if version == "0.5.14":
        assert not [row for row in rows if row[0] in REJECTED and row[1] == "accepted"]
        assert not [row for row in rows if row[0] in STRICTER and row[1] != "accepted" and "config=" not in row[0]]


# Their flags depend on the config.json of their own model: MXFP8, and a DSpark draft inside the checkpoint.
OTHER_CONFIG = ("minimax-m3-tp8", "deepseek-v4.1-flash-tp2")


@cache
def engines() -> dict[tuple[str, str], list[str]]:
    """Return the shipped profiles by version and platform of their engine."""
    profiles: dict[tuple[str, str], list[str]] = {}
    for profile in profile_names(Catalog.shipped()):
        engine = load(profile).plan.engine
        profiles.setdefault((engine.version, engine.platform), []).append(profile)
    return profiles


def test_shipped_profiles_are_accepted_by_their_engines(get_verdicts: GetVerdicts) -> None:
    verdicts = {
        profile: get_verdicts(version, platform)[profile]
        for (version, platform), profiles in engines().items()
        for profile in profiles
        if not profile.endswith(OTHER_CONFIG)
    }
    assert verdicts == dict.fromkeys(verdicts, "accepted")
