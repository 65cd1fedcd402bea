"""Rules that reject a plan, each with a location and a hint, applied to the shipped profiles."""

import pytest

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import DeployError, Problem, ProfileError
from orchestrator.core.origin import Origin
from orchestrator.planner.planning import load, profile_names


def problems_of(profile: str, *overrides: str) -> dict[str, Problem]:
    with pytest.raises(ProfileError) as caught:
        load(profile, overrides=overrides)
    return {problem.message: problem for problem in caught.value.problems}


@pytest.mark.parametrize("name", profile_names(Catalog.shipped()))
def test_every_shipped_profile_resolves_to_a_plan(name: str) -> None:
    plan = load(name).plan
    assert plan.profile == name
    assert plan.digest == load(name).plan.digest


@pytest.mark.parametrize("name", profile_names(Catalog.shipped()))
def test_every_shipped_value_has_an_origin(name: str) -> None:
    plan = load(name).plan
    assert all(item.origin is not Origin.USER for item in (*plan.flags, *plan.env))  # type: ignore[attr-defined]
    assert all(item.source for item in (*plan.flags, *plan.env) if item.origin is not Origin.INFERRED)  # type: ignore[attr-defined]


def test_only_quoted_values_are_marked_published() -> None:
    """wafer.ai/blog/glm52-amd gives two flags of its TP8 command; test_provenance.py has the quotes."""

    def published(name: str) -> set[str]:
        return {flag.name for flag in load(name).plan.flags if flag.origin is Origin.PUBLISHED}

    assert published("mi355x-tp8") == {"kv-cache-dtype", "enable-aiter-allreduce-fusion"}
    assert published("mi355x-tp4dp2") == published("b200-tp8") == set()


def test_all_problems_are_reported_with_locations() -> None:
    problems = problems_of(
        "mi355x-tp4dp2",
        "layout.tp=8",
        "flags.no-such-flag=1",
        "env.HF_TOKEN=x",
        "server.host=0.0.0.0",
        "runtime=process",
    )
    assert len(problems) == 5
    assert all(problem.location for problem in problems.values())


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        (["layout.tp=8"], "tp 8 x dp 2 needs 16 GPUs; the node has 8", "dp_attention"),
        (["layout.ep=3"], "ep 3 does not divide tp 4", ""),
        (["model.weights_size=4TB"], "they need 1000.0 GB per GPU at tp 4", "raise `layout.tp`"),
        (["engine=sglang-0.5.16-cu130"], "an engine for cuda does not run on amd hardware", "deploy profiles"),
        (["hardware.arch=gfx942"], "the image is compiled for gfx950; the GPUs are gfx942", ""),
        (["runtime=process"], "the process runtime needs an engine", "engine.python=python3"),
        (
            ["flags.nsa-prefil-backend=tilelang"],
            "sglang 0.5.16 has no option `--nsa-prefil-backend`",
            "nsa-prefill-backend",
        ),
        (["flags.trust-remote-code=1"], "`--trust-remote-code` of sglang 0.5.16 takes no value", ""),
        (["flags.kv-cache-dtype=true"], "`--kv-cache-dtype` of sglang 0.5.16 takes a value", ""),
        (["flags.kv-cache-dtype=fp8"], "does not take `fp8`", "fp8_e4m3"),
        (["flags.tp-size=4"], "`tp-size` cannot be set as a flag", "layout.tp"),
        (["flags.api-key=x"], "`api-key` cannot be set as a flag", "api_key_env"),
        (["env.MY_API_KEY=x"], "`MY_API_KEY` looks like a secret", "export it"),
        (["flags.admin-api-key=wJ4-zTq8"], "`admin-api-key` cannot be set as a flag", "api_key_env"),
        (["flags.ssl-keyfile-password=wJ4-zTq8"], "`ssl-keyfile-password` is a secret", "a file that only its user"),
        (
            ["env.HTTPS_PROXY=http://me:pa55@proxy:3128"],
            "the value of `HTTPS_PROXY` looks like a secret",
            "remove it",
        ),
        (["env.EXTRA=Bearer wJ4-zTq8"], "the value of `EXTRA` looks like a secret", "remove it"),
        (
            ['flags.json-model-override-args={"api_key": "wJ4-zTq8"}'],
            "the value of `json-model-override-args` looks like a secret",
            "remove it",
        ),
        (["server.host=0.0.0.0"], "other hosts can reach `0.0.0.0`", "api_key_env"),
        (["server.host=node"], "`node` is not an IP address", "127.0.0.1"),
        (["skip_patches=[rocm-guard]"], "no patch `rocm-guard`", "rocm-cuda-runtime-guard"),
        (["model.mtp_layer=null"], "speculation needs a draft", "speculative"),
        (["layout.tp=3"], "64 attention heads are not divisible by tp 3", ""),
        (
            ["layout.tp=6", "layout.dp=2", "layout.dp_attention=true"],
            "are not divisible by tp 6 over dp 2",
            "",
        ),
        (
            ["allow_known_issues=[dsa-dp-attention-hung]"],
            "no blocking known issue `dsa-dp-att",
            "`dsa-dp-attention-hang`?",
        ),
    ],
)
def test_rule_violation_has_message_and_hint(overrides: list[str], message: str, hint: str) -> None:
    problems = problems_of("mi355x-tp4dp2", *overrides)
    matching = [problem for text, problem in problems.items() if message in text]
    assert matching, problems
    assert hint in matching[0].hint
    assert matching[0].location
    assert not any("wJ4-zTq8" in f"{problem}" for problem in problems.values())


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("flags.nsa-prefill-backend=tilelang", "`dsa-prefill-backend`"),
        ("flags.cuda-graph-max-bs=80", "`cuda-graph-max-bs-decode`"),
    ],
)
def test_renamed_flag_hints_at_new_name(override: str, hint: str) -> None:
    problems = problems_of("mi355x-tp4dp2", "engine.version=0.5.23", override)
    assert any(hint in problem.hint for problem in problems.values())


def test_public_address_needs_api_key_or_explicit_permission() -> None:
    assert (
        load("cpu-tiny", overrides=["server.host=0.0.0.0", "server.api_key_env=KEY"]).plan.server.api_key_env == "KEY"
    )
    assert load(
        "cpu-tiny", overrides=["server.host=0.0.0.0", "server.allow_unauthenticated=true"]
    ).plan.server.allow_unauthenticated


def test_localhost_resolves_to_loopback_address() -> None:
    """docker publishes `localhost:30000:30000` on every address."""
    plan = load("mi355x-tp8", overrides=["server.host=localhost"]).plan
    assert plan.server.host == "127.0.0.1"
    assert plan == load("mi355x-tp8", overrides=["server.host=127.0.0.1"]).plan


def test_hint_of_dp_attention_issue_allows_it() -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8-july", overrides=["layout.dp=8", "layout.dp_attention=true"])
    [problem] = caught.value.problems
    assert problem.message.startswith("known issue: ")
    allowance = problem.hint.rpartition("`--set ")[2].removesuffix("`")
    load("mi355x-tp8-july", overrides=["layout.dp=8", "layout.dp_attention=true", allowance])


@pytest.mark.parametrize("name", ["mi355x-tp8", "mi355x-tp4dp2"])
def test_newer_engine_changes_only_expected_patches(name: str) -> None:
    old, new = load(f"{name}-july").plan, load(name).plan
    assert old.flags == new.flags
    expected = [{patch.id for patch in plan.patches if patch.expected} for plan in (old, new)]
    assert expected[0] - expected[1] == {"mtp-shared-expert-exclude", "rocm-cuda-runtime-guard"}


@pytest.mark.parametrize(
    ("name", "message"), [("mi355x-tp4dp3", "no profile `mi355x-tp4dp3` found"), ("./missing.yaml", "no file")]
)
def test_missing_profile_is_reported_with_hint(name: str, message: str) -> None:
    with pytest.raises(DeployError, match=message) as caught:
        load(name)
    assert caught.value.hint


@pytest.mark.parametrize(("tp", "planned"), [(1, True), (2, True), (3, False), (4, True)])
def test_kv_heads_are_divided_or_replicated_over_tp(tp: int, planned: bool) -> None:
    """The tiny model has four attention heads and two KV heads, which four ranks replicate."""
    if planned:
        load("cpu-tiny", overrides=[f"layout.tp={tp}"])
    else:
        messages = problems_of("cpu-tiny", f"layout.tp={tp}")
        assert {
            "4 attention heads are not divisible by tp 3",
            "2 key and value heads are not divisible by tp 3",
        } <= set(messages)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "hfToken", "HFTOKEN", "API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "PASSWORD",
     "DB_PASSWD", "MY_SECRET", "API_KEY_2", "HUGGING_FACE_HUB_TOKEN", "AWS_ACCESS_KEY_ID", "GCP_CREDENTIALS",
     "SSH_PRIVATE_KEY", "DBPASSWORD"],
)  # fmt: skip
def test_secret_variable_names_are_rejected(name: str) -> None:
    assert any("looks like a secret" in message for message in problems_of("cpu-tiny", f"env.{name}=x"))


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "SGLANG_MAX_NEW_TOKENS", "DETOKENIZER_WORKERS", "KEYSPACE", "SECRETARY", "KEY"]
)
def test_similar_harmless_variable_names_are_accepted(name: str) -> None:
    assert any(variable.name == name for variable in load("cpu-tiny", overrides=[f"env.{name}=x"]).plan.env)


@pytest.mark.parametrize(
    ("profile", "settings", "message"),
    [
        (
            "mi355x-tp8-july",
            ["engine.version=0.5.16"],
            "version` is 0.5.16, but `engine.image` is for sglang 0.5.14",
        ),
        ("b200-tp8", ["engine.version=0.5.14"], "`engine.version` is 0.5.14, but `engine.image` is for sglang 0.5.16"),
        (
            "mi355x-tp8",
            ["engine.image=localhost:5000/lmsysorg/sglang:v0.5.15.post1-rocm720-mi35x"],
            "`engine.version` is 0.5.16, but `engine.image` is for sglang 0.5.15.post1",
        ),
        ("cpu-tiny", ["engine.version=0.5.16"], "`engine.requirements` is for sglang 0.5.14"),
    ],
)
def test_engine_version_must_match_its_image(profile: str, settings: list[str], message: str) -> None:
    matching = [problem for text, problem in problems_of(profile, *settings).items() if message in text]
    assert matching
    assert "`--set engine.version=" in matching[0].hint


@pytest.mark.parametrize("image", ["registry/team/server:v2.0.1", "lmsysorg/sglang:latest", "rocm/sglang-rocm:v0.5.16"])
def test_image_without_conflicting_version_is_accepted(image: str) -> None:
    assert load("mi355x-tp8", overrides=[f"engine.image={image}"]).plan.engine.image == image
