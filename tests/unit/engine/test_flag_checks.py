"""Test that a plan rejects values and combinations which parse but do not work.

tests/integration/test_server_args.py compares these rejections with the engine's own verdicts.
"""

import pytest

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.engine.serving import serving_facts
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load


def problems(*settings: str, profile: str = "mi355x-tp8") -> tuple[Problem, ...]:
    with pytest.raises(ProfileError) as caught:
        load(profile, overrides=settings)
    return caught.value.problems


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("mem-fraction-static=0", "takes a number above 0 and below 1, found `0`", ""),
        ("mem-fraction-static=1.5", "takes a number above 0 and below 1, found `1.5`", ""),
        ("max-running-requests=-5", "takes a number of at least 1, found `-5`", ""),
        ("page-size=16", "uses pages of 64 tokens", "remove `page-size`"),
        ("speculative-num-draft-tokens=9", "sglang verifies steps + 1 = 6 tokens, not 9", "set it to 6"),
        ("context-length=2000000", "is longer than the model's 1048576", ""),
        ("nnodes=2", "`nnodes` cannot be set as a flag", "set `layout.nodes` instead"),
        ("help=true", "has no option `--help`", ""),
        ("speculative-algorithm=STANDALONE", "needs a draft model", "is `EAGLE`"),
        ("speculative-algorithm=[a,b]", "of sglang 0.5.16 takes one value, found `['a', 'b']`", ""),
        ("disaggregation-mode=prefill", "cannot be set as a flag", "`layout.prefill` and `layout.decode`"),
        ("cuda-graph-max-bs-decode=1e308", "takes a whole number, found `1e308`", ""),
        ("load-format=dummy", "uses random weights", "remove `load-format`"),
        ("grpc-mode=true", "has no HTTP API", "remove `grpc-mode`"),
        ("is-embedding=true", "the server generates no text", "remove `is-embedding`"),
        ("delete-ckpt-after-loading=true", "deletes the checkpoint", "remove `delete-ckpt-after-loading`"),
        ("skip-tokenizer-init=true", "accepts and returns only token ids", "remove `skip-tokenizer-init`"),
        ("attention-backend=trtllm_mla", "has no kernels for rocm", "remove `attention-backend`"),
        ("moe-runner-backend=flashinfer_cutlass", "has no kernels for rocm", "remove `moe-runner-backend`"),
        ("config=more.yaml", "cannot be set as a flag", "`flags`"),
    ],
)
def test_invalid_option_value_is_rejected(setting: str, message: str, hint: str) -> None:
    matching = [problem for problem in problems(f"flags.{setting}") if message in problem.message]
    assert matching, setting
    assert hint in matching[0].hint
    assert matching[0].location == f"--set flags.{setting.partition('=')[0]}"


@pytest.mark.parametrize("name", ["pp-size", "pipeline-parallel-size"])
def test_pipeline_stages_need_gpus_under_either_name(name: str) -> None:
    messages = [problem.message for problem in problems(f"flags.{name}=2")]
    assert "tp 8 x pp 2 needs 16 GPUs; the node has 8" in messages


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["flags.base-gpu-id=4"], "tp 8, from GPU 4 in steps of 1, needs 12 GPUs; the node has 8"),
        (["flags.gpu-id-step=2"], "tp 8, from GPU 0 in steps of 2, needs 15 GPUs; the node has 8"),
    ],
)
def test_ranks_must_fit_on_existing_gpus(settings: list[str], message: str) -> None:
    assert message in [problem.message for problem in problems(*settings)]
    assert load("mi355x-tp8-july", overrides=[*settings, "layout.tp=4"]).plan.layout.tp == 4


def test_colon_in_name_and_high_port_are_rejected() -> None:
    rejected = problems("model.served_name=a:b", "server.port=60000", profile="mi355x-tp8-july")
    messages = [problem.message for problem in rejected]
    assert messages == [
        "`a:b` has a colon, which separates model and adapter in sglang",
        "port 60000 is too high: sglang 0.5.14 checks 70000 too, which is above 65535",
    ]
    assert load("mi355x-tp8", overrides=["server.port=60000"]).plan.server.port == 60000


@pytest.mark.parametrize("notation", [".8", "8e-1", "0.80"])
def test_number_is_parsed_in_any_notation(notation: str) -> None:
    with pytest.raises(ProfileError, match="cannot plan profile") as caught:
        load("mi355x-tp8-july", overrides=[f"flags.mem-fraction-static={notation}", "model.weights_size=2TB"])
    (problem,) = caught.value.problems
    assert problem.message == (
        "the weights leave no room for a cache: they need 250.0 GB per GPU at tp 8; sglang may use 245.9 GB, 0.8 of "
        "the 307 GB free of 309"
    )


def patch_ids(plan: Plan) -> set[str]:
    return {patch.id for patch in plan.patches}


@pytest.mark.parametrize("name", ["cuda-graph-max-bs", "nsa-decode-backend"])
def test_deprecated_option_names_its_successor(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    successor = {"cuda-graph-max-bs": "cuda-graph-max-bs-decode", "nsa-decode-backend": "dsa-decode-backend"}[name]
    value = {"cuda-graph-max-bs": "16", "nsa-decode-backend": "tilelang"}[name]
    load("mi355x-tp8-july", overrides=[f"flags.{name}={value}"])
    assert f"`--{name}` is deprecated in sglang 0.5.14: use `{successor}`" in capsys.readouterr().err


def test_speculation_defaults_match_sglang() -> None:
    """Source: `_auto_choose_speculative_params` in srt/arg_groups/speculative_hook.py of sglang 0.5.14, 0.5.16 and
    0.5.23.
    """

    def speculation(**flags: str) -> tuple[int, int, int] | None:
        options = {f"speculative-{name.replace('_', '-')}": value for name, value in flags.items()}
        facts = serving_facts(options, context_length=1, platform="rocm", sparse_attention=False)
        return facts.drafts and (facts.drafts.steps, facts.drafts.topk, facts.drafts.tokens)

    assert speculation(num_steps="5") is None
    assert speculation(algorithm="EAGLE") == (3, 1, 4)
    assert speculation(algorithm="EAGLE", num_steps="5") == (5, 1, 6)
    defaults = [f"flags.speculative-{name}=null" for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert "mtp-shared-expert-exclude" in patch_ids(load("mi355x-tp8-july", overrides=defaults).plan)
