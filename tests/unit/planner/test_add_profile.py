"""`deploy add profile`: the smallest layout that fits, with reasons, or why no layout fits."""

from dataclasses import replace
from pathlib import Path

import pytest
from config_samples import PUBLIC as PUBLIC_CHECKPOINTS
from config_samples import write_config, write_public

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.planner.add.model import add_model
from orchestrator.planner.add.profile import ProfileRequest, Proposal, propose_profile, write_proposal
from orchestrator.planner.planning import load

PUBLIC = ("GLM-5.2-FP8", "GLM-4.7-Flash", "Kimi-K2-Instruct", "gpt-oss-120b", "Llama-3.3-70B-Instruct")


@pytest.fixture(scope="module")
def home_with_models(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return a home with added models."""
    folder = tmp_path_factory.mktemp("known")
    home = Home(folder / "home")
    for name in PUBLIC:
        add_model(str(write_public(folder / name, name)), home, name=f"own-{name.lower()}", environ={})
    return home


@pytest.fixture
def home(home_with_models: Home, tmp_path: Path) -> Home:
    """Return a home of one test with the same models."""
    (tmp_path / "home/profiles").mkdir(parents=True)
    (tmp_path / "home/profiles/models").symlink_to(home_with_models.root / "profiles/models")
    return Home(tmp_path / "home")


def propose(home: Home, model: str, hardware: str, name: str | None = None, **more: str | int) -> Proposal:
    request = replace(ProfileRequest(model=f"own-{model}", hardware=hardware), **more)  # type: ignore[arg-type]
    return propose_profile(request, home, name=name)


def reason_of(proposal: Proposal, key: str) -> str:
    return next(choice.reason for choice in proposal.choices if choice.key == key)


def test_smallest_layout_holding_full_context_is_chosen(home: Home) -> None:
    proposal = propose(home, "glm-5.2-fp8", "mi355x")
    assert (proposal.valid.profile.layout.tp.value, proposal.valid.profile.layout.dp.value) == (4, 2)
    assert "they need 378.0 GB per GPU" in reason_of(proposal, "tp 2")


def test_remaining_gpus_become_data_parallel_replicas(home: Home) -> None:
    layout = propose(home, "kimi-k2-instruct", "mi355x").valid.profile.layout
    assert (layout.tp.value, layout.dp.value) == (4, 2)
    layout = propose(home, "llama-3.3-70b-instruct", "mi355x").valid.profile.layout
    assert (layout.tp.value, layout.dp.value) == (1, 8)


def test_max_context_sets_context_length(home: Home) -> None:
    proposal = propose(home, "glm-5.2-fp8", "mi355x", max_context=131072)
    assert proposal.valid.profile.layout.tp.value == 4
    assert proposal.valid.profile.flags["context-length"].value == 131072


def test_written_profile_plans_without_capacity_warnings(home: Home) -> None:
    """The memory fraction is safe, and all requests that may run fit at once."""
    proposal = propose(home, "glm-4.7-flash", "h200", workload="random-4k-256")
    assert {choice.key for choice in proposal.choices} >= {"flags.reasoning-parser", "flags.tool-call-parser"}
    write_proposal(proposal, home)
    loaded = load(proposal.name, catalog=Catalog.of(home))
    assert not [warning for warning in loaded.plan.warnings if warning.id.startswith("capacity")]
    assert {setting.origin for setting in loaded.profile.flags.values() if setting.note} == {"inferred"}
    capacity = loaded.capacity
    assert capacity.memory is not None
    assert capacity.memory.fraction == capacity.memory.safe_fraction
    assert capacity.load_fit is not None
    assert capacity.load_fit.running is not None
    assert capacity.load_fit.running <= (capacity.load_fit.concurrent or 0)
    for key, setting in loaded.profile.flags.items():
        assert setting.note or setting.source, key


def test_oversized_model_error_lists_every_layout(home: Home) -> None:
    with pytest.raises(ProfileError, match="`own-kimi-k2-instruct` does not fit on `h200`") as caught:
        propose(home, "kimi-k2-instruct", "h200")
    messages = [problem.message for problem in caught.value.problems]
    assert [line.partition(":")[0] for line in messages] == ["tp 1", "tp 2", "tp 4", "tp 8"]
    assert messages[3] == "tp 8: 128.8 GB of weights a GPU leave a cache of 69,434 tokens; a request may have 131,072"
    context = int(caught.value.hint.split("--max-context ")[1].split("`")[0])
    assert propose(home, "kimi-k2-instruct", "h200", max_context=context).valid.profile.layout.tp.value == 8
    with pytest.raises(ProfileError):
        propose(home, "kimi-k2-instruct", "h200", max_context=context + 1)


def test_layout_with_indivisible_heads_is_rejected(tmp_path: Path) -> None:
    """The model has 20 heads and weights that only eight GPUs can hold."""
    home = Home(tmp_path / "home")
    checkpoint = write_config(tmp_path / "wide", PUBLIC_CHECKPOINTS["GLM-4.7-Flash"].config, weights=900_000_000_000)
    add_model(str(checkpoint), home, name="own-wide", environ={})
    with pytest.raises(ProfileError, match="does not fit") as caught:
        propose(home, "wide", "h200")
    assert caught.value.problems[-1].message == "tp 8: 20 attention heads are not divisible by tp 8"


def test_only_suitable_settings_of_base_are_inherited(home: Home) -> None:
    proposal = propose(home, "glm-4.7-flash", "mi355x", base="mi355x-tp4dp2")
    flags = proposal.valid.profile.flags
    assert flags["kv-cache-dtype"].note == "from `mi355x-tp4dp2`"
    assert "speculative-algorithm" in flags
    assert not any(flag.startswith("dsa-") for flag in flags)
    assert reason_of(proposal, "flags.dsa-prefill-backend") == "the model has no sparse attention"
    assert proposal.valid.profile.env["SGLANG_TIMEOUT_KEEP_ALIVE"].value == "900"
    assert proposal.valid.profile.workload == "wafer-20k-1k"
    assert flags["reasoning-parser"].source == "sglang cookbook GLM-4.7-Flash.mdx"  # the model's own
    plain = propose(home, "llama-3.3-70b-instruct", "mi355x", base="mi355x-tp4dp2")
    assert reason_of(plain, "flags.speculative-algorithm") == "the checkpoint has no MTP layer"
    assert "SGLANG_USE_AITER" not in [key for section, _, key in _settings(plain.text) if section == "env"]


def _settings(text: str) -> list[tuple[str, str, str]]:
    section, settings = "", []
    for line in text.splitlines():
        key = line.strip().partition(":")[0]
        section = key if not line.startswith(" ") else section
        settings.append((section, "", key))
    return settings


def test_unknown_kv_cache_is_not_guessed(home: Home, tmp_path: Path) -> None:
    linear = {"architectures": ["Qwen3NextForCausalLM"], "moe_intermediate_size": 2880}
    checkpoint = write_public(tmp_path / "linear", "gpt-oss-120b", **linear)
    model = add_model(str(checkpoint), home, name="own-linear", environ={})
    assert (
        "# `Qwen3NextForCausalLM` has layers that config.json does not describe: no `linear_key_head_dim`"
        in model.path.read_text()
    )
    proposal = propose(home, "linear", "h200")
    assert proposal.valid.profile.layout.tp.value == 1
    assert "has no `kv_cache`" in reason_of(proposal, "layout.tp")


def test_cpu_profile_inherits_memory_settings_of_base(home: Home) -> None:
    proposal = propose(home, "llama-3.3-70b-instruct", "cpu", base="cpu-tiny", max_context=32768)
    flags = proposal.valid.profile.flags
    assert flags["max-total-tokens"].value == 65536
    assert flags["mem-fraction-static"].note == "from `cpu-tiny`"
    assert proposal.valid.profile.runtime == "process"
    assert "GPU" not in proposal.valid.profile.description


def test_cpu_cache_is_limited_to_one_request(home: Home) -> None:
    """sglang 0.5.14 takes all memory of the machine for the cache and is killed."""
    proposal = propose(home, "llama-3.3-70b-instruct", "cpu")
    assert proposal.valid.profile.flags["max-total-tokens"].value == 131072
    assert reason_of(proposal, "flags.max-total-tokens").startswith(
        "one request of full length; sglang would take all memory"
    )
    short = propose(home, "llama-3.3-70b-instruct", "cpu", name="short", max_context=32768)
    assert short.valid.profile.flags["max-total-tokens"].value == 32768


def test_model_specific_image_is_used_only_for_its_model(home: Home) -> None:
    for base in (None, "b200-glm-5.3-flash-tp8"):
        request = ProfileRequest(model="glm-5.3-flash-fp8", hardware="b200", base=base)
        assert engine_of(propose_profile(request, home, name="flash")) == "sglang-0.5.20-cu130-glm-5.3-flash"
    assert engine_of(propose(home, "llama-3.3-70b-instruct", "b200")) == "sglang-0.5.16-cu130"


def test_model_specific_image_matches_facts_not_name(home: Home) -> None:
    shipped = Catalog.of(home).path(EntryKind.MODEL, "glm-5.3-flash-fp8").read_text()
    folder = home.root / "profiles" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own-owl.yaml").write_text(shipped)
    (folder / "own-glm-5.3-flash-owl.yaml").write_text(shipped.replace("routed_experts: 288", "routed_experts: 280"))
    assert engine_of(propose(home, "owl", "b200")) == "sglang-0.5.20-cu130-glm-5.3-flash"
    assert engine_of(propose(home, "glm-5.3-flash-owl", "b200")) == "sglang-0.5.16-cu130"


def test_engine_of_base_takes_precedence(home: Home) -> None:
    older = propose(home, "llama-3.3-70b-instruct", "b200", base="b200-tp8", name="one")
    assert engine_of(older) == "sglang-0.5.16-cu130"
    flash = propose(home, "llama-3.3-70b-instruct", "b200", base="b200-glm-5.3-flash-tp8", name="two")
    assert engine_of(flash) == "sglang-0.5.20-cu130-glm-5.3-flash"


def engine_of(proposal: Proposal) -> str:
    return proposal.valid.composed.names["engine"]


def test_newest_suitable_engine_is_the_default(home: Home) -> None:
    catalog = Catalog.of(home)
    newest = max(
        (tuple(map(int, name.split("-")[1].split("."))), name)
        for name in catalog.names(EntryKind.ENGINE)
        if name.endswith("-rocm") and "image:" in catalog.path(EntryKind.ENGINE, name).read_text()
    )[1]
    assert engine_of(propose(home, "glm-4.7-flash", "mi355x")) == newest
    assert engine_of(propose(home, "glm-4.7-flash", "mi355x", engine="sglang-0.5.14-rocm")) == "sglang-0.5.14-rocm"
    assert engine_of(propose(home, "glm-4.7-flash", "mi355x", base="mi355x-tp8-july")) == "sglang-0.5.14-rocm"
    assert engine_of(propose(home, "glm-4.7-flash", "mi300x")).endswith(
        "mi30x"
    )  # the newest is compiled for other GPUs
    assert engine_of(propose(home, "glm-4.7-flash", "mi300x", base="mi355x-tp4dp2")).endswith("mi30x")


def test_engine_for_other_vendor_is_reported_once(home: Home) -> None:
    with pytest.raises(ProfileError, match=r"cannot plan a profile of `own-glm-.*` on `mi355x`") as caught:
        propose(home, "glm-4.7-flash", "mi355x", engine="sglang-0.5.16-cu130")
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].message == "an engine for cuda does not run on amd hardware"


def test_quantization_unsupported_by_hardware_is_rejected(home: Home) -> None:
    with pytest.raises(ProfileError) as caught:
        propose_profile(ProfileRequest(model="glm-5.2-nvfp4", hardware="mi300x"), home, name=None)
    assert any(
        "`modelopt_fp4 quantization is currently not supported in ROCm`" in problem.message
        for problem in caught.value.problems
    )


@pytest.mark.parametrize("option", ["model", "hardware", "engine", "base", "workload"])
def test_missing_catalog_entry_is_rejected(option: str, home: Home) -> None:
    request = replace(
        ProfileRequest(model="own-glm-4.7-flash", hardware="h200"),
        **{option: {"hardware": "h20", "model": "own-glm-4.7-flas", "workload": "smoke-tin"}.get(option, "cpu-tin")},
    )
    with pytest.raises(ProfileError, match="no "):
        propose_profile(request, home, name=None)


def test_profile_of_some_gpus_shares_its_slurm_node(home: Home) -> None:
    """The profile uses all GPUs of its `hardware`, so a replica with one GPU once took a node of eight."""
    for gpus, exclusive in ((1, False), (8, None)):
        request = ProfileRequest(model="own-glm-4.7-flash", hardware="mi355x", gpus=gpus)
        assert propose_profile(request, home, name=f"some-{gpus}").valid.profile.slurm.exclusive is exclusive


def test_existing_profile_is_not_overwritten(home: Home) -> None:
    write_proposal(propose(home, "glm-4.7-flash", "h200"), home)
    with pytest.raises(UsageError, match=r"profile `h200-own-glm-4\.7-flash` exists"):
        propose(home, "glm-4.7-flash", "h200")
    with pytest.raises(UsageError, match="profile `cpu-tiny` exists"):
        propose(home, "glm-4.7-flash", "h200", name="cpu-tiny")
    with pytest.raises(UsageError, match="invalid profile name `No`"):
        propose(home, "glm-4.7-flash", "h200", name="No")
