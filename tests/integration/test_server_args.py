"""What a plan refuses of flags, against the real `ServerArgs` of three versions.

Wrong values are set on `mi355x-tp8`; the engine reads a config of GLM-5.2's shape on a machine told to have MI355X.
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
Ask = Callable[[str, str], dict[str, str]]  # version and platform, to the verdict of each profile and setting

# What the plan refuses as the engine does: most of it is for the parser.
REFUSED = (
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
# What the engine takes, and this tool does not.
STRICTER = {
    "mem-fraction-static=0": "nothing is left for weights and cache",
    "mem-fraction-static=1": "nothing is left for activations",
    "mem-fraction-static=1.5": "no GPU has one and a half times its memory",
    "mem-fraction-static=-0.5": "no GPU has less than nothing",
    "mem-fraction-static=nan": "nothing compares with it",
    "max-running-requests=0": "a server that takes no request",
    "max-running-requests=-5": "a pool of -5",
    "max-total-tokens=-1": "a pool of -1",
    "context-length=-1": "no prompt fits",
    "page-size=7": "DSA sets 64 and does not say so",
    "page-size=0": "DSA sets 64 and does not say so",
    "pp-size=0": "no rank is started",
    "nnodes=2": "the second node is waited for",
    "node-rank=1": "the first node is waited for",
    "base-gpu-id=4": "GPUs 8 to 11 do not exist",
    "gpu-id-step=2": "GPUs 8 to 14 do not exist",
    "speculative-num-draft-tokens=9": "the engine makes it 6",
    "speculative-num-steps=-1": "no draft is made",
    "cuda-graph-max-bs-decode=-1": "no graph is captured",
    "watchdog-timeout=-1": "it fires at once",
    "speculative-algorithm=eagle": "upper case is what the other rules know it by",
    "speculative-algorithm=EAGLE3": "the MTP layer is no EAGLE3 draft",
    "speculative-algorithm=STANDALONE": "no draft model is named",
    "nccl-port=70000": "there is no such port",
    "hicache-size=-1": "a pool of -1",
    "disaggregation-mode=prefill": "half a server",
    "config=more.yaml": "options that nobody here has looked at",
}
RIGHT = (
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
SETTINGS = (*REFUSED, *STRICTER, *RIGHT)


@pytest.fixture(scope="module")
def ask(cpu_environment: Venv, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """What each engine says of all that is asked of it here: importing it takes seconds."""
    folders = {"cpu": tiny_model, **{platform: tmp_path_factory.mktemp(platform) for platform in ("rocm", "cuda")}}
    model_in(folders["rocm"])
    model_in(folders["cuda"], quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    asked = {(version, "rocm"): wrong(folders["rocm"]) for version in VERSIONS}
    for (version, platform), profiles in engines().items():
        shipped = {profile: command(profile, folders[platform]) for profile in profiles}
        asked[version, platform] = {**asked.get((version, platform), {}), **shipped}
    programs = {
        (version, platform): Program(
            program=str(SCRIPT), argv=(str(unpacked(version)), platform), stdin=json.dumps([*commands.values()])
        )
        for (version, platform), commands in asked.items()
    }
    ended = run_forked(cpu_environment.python, programs)

    def help_of(version: str, platform: str) -> dict[str, str]:
        answered = ended[version, platform]
        assert answered.returncode == 0, answered.stderr[-2000:]
        return dict(zip(asked[version, platform], json.loads(answered.stdout.splitlines()[-1]), strict=True))

    return help_of


def wrong(model: Path) -> dict[str, tuple[str, ...]]:
    """A command that is right, by the name "", and one with each setting, by that."""
    base = command("mi355x-tp8", model)
    return {"": base, **{setting: with_setting(base, setting) for setting in SETTINGS}}


def overrides_of(setting: str) -> list[str]:
    return [f"flags.{one}" for one in setting.split(" & ")]


def ours(setting: str, *overrides: str) -> str:
    """The first of what a plan says of a setting."""
    try:
        load("mi355x-tp8", overrides=[*overrides, *overrides_of(setting)])
    except ProfileError as error:
        return error.problems_or_self()[0].message
    return "accepted"


def shown(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    yield "setting | engine | plan"
    yield from (" | ".join(row) for row in rows)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_wrong_value_is_rejected_by_plan_or_engine(version: str, ask: Ask) -> None:
    verdicts = ask(version, "rocm")
    rows = [(setting, verdicts[setting], ours(setting, *VERSIONS[version])) for setting in SETTINGS]
    print("\n".join(shown(rows)))

    assert verdicts[""] == "accepted"
    assert not [row for row in rows if row[0] in {*REFUSED, *STRICTER} and row[2] == "accepted"]
    assert not [row for row in rows if row[0] in RIGHT and row[1:] != ("accepted", "accepted")]
    if version == "0.5.14":
        assert not [row for row in rows if row[0] in REFUSED and row[1] == "accepted"]
        assert not [row for row in rows if row[0] in STRICTER and row[1] != "accepted" and "config=" not in row[0]]


# Their flags name what their own config.json has: MXFP8, and a DSpark draft inside the checkpoint.
OTHER_CONFIG = ("minimax-m3-tp8", "deepseek-v4.1-flash-tp2")


@cache
def engines() -> dict[tuple[str, str], list[str]]:
    """The shipped profiles by version and platform of their engine: one process answers for all of them."""
    found: dict[tuple[str, str], list[str]] = {}
    for profile in profile_names(Catalog.shipped()):
        engine = load(profile).plan.engine
        found.setdefault((engine.version, engine.platform), []).append(profile)
    return found


def test_shipped_profiles_are_accepted_by_their_engines(ask: Ask) -> None:
    verdicts = {
        profile: ask(version, platform)[profile]
        for (version, platform), profiles in engines().items()
        for profile in profiles
        if not profile.endswith(OTHER_CONFIG)
    }
    assert verdicts == dict.fromkeys(verdicts, "accepted")
