"""`deploy add model`: the written entry equals the shipped entries and can be planned."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from config_samples import GLM_52, LLAMA_33_70B, QUARK_MXFP4, write_config, write_public
from quark_samples import Tiny, write_tiny

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import CheckpointError, ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.validation import read_model
from orchestrator.planner.add.file import EntryOutput
from orchestrator.planner.add.model import add_model
from orchestrator.profiles.schema import ModelFile


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def add(directory: Path, home: Home, *overrides: str, **more: str | bool) -> EntryOutput:
    return add_model(str(directory), home, overrides=overrides, environ={}, **more)  # type: ignore[arg-type]


def read_entry(output: EntryOutput) -> ModelFile:
    return read_model(output.path, ModelFile, output.path.name)


def problems_of(directory: Path, home: Home, *overrides: str) -> Sequence[str]:
    with pytest.raises(ProfileError) as caught:
        add(directory, home, *overrides)
    assert not (home.root / "profiles").exists(), "an entry was written"
    return [f"{problem.message} | {problem.hint}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("shipped", "quantized"),
    [
        ("glm-5.2-fp8", {"quant_method": "fp8"}),
        ("glm-5.2-mxfp4", QUARK_MXFP4),
        ("glm-5.2-nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    ],
)
def test_facts_equal_those_of_shipped_entry(
    shipped: str, quantized: dict[str, object], home: Home, tmp_path: Path
) -> None:
    """The checkpoint location, questions and other flags are the choice of an author and not compared."""
    expected = read_model(Catalog.shipped().path(EntryKind.MODEL, shipped), ModelFile, shipped)
    config = {**GLM_52, "quantization_config": quantized}
    entry = read_entry(add(write_config(tmp_path / "checkpoint", config, weights=expected.weights_size), home))
    for key in ModelFile.model_fields:
        if key not in {
            "checkpoint",
            "source",
            "served_name",
            "questions",
            "flags",
            "env",
            "mtp_weights_size",
            "accept_lengths",
        }:
            assert getattr(entry, key) == getattr(expected, key), key
    for flag in ("reasoning-parser", "tool-call-parser"):
        assert entry.flags[flag].value == expected.flags[flag].value


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a short directory path, since a long one wraps its line."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


def test_written_file_comments_each_fact_with_its_source(home: Home, short_path: Path) -> None:
    output = add(write_public(short_path / "GLM-4.7-Flash", "GLM-4.7-Flash"), home)
    assert (output.name, output.path) == ("glm-4.7-flash", home.root / "profiles/models/glm-4.7-flash.yaml")
    assert (
        output.path.read_text().splitlines()
        == f"""\
# yaml-language-server: $schema=../model.schema.json
# glm-4.7-flash, as `deploy add model` read its checkpoint. The comment after each fact is its source.
source: config.json and safetensors headers of the checkpoint
checkpoint: {{source: local, path: {short_path}/GLM-4.7-Flash}}
served_name: glm-4.7-flash  # the name of this file; change it with `--set`
weights_size: 62500000000  # bytes of 4 files that model.safetensors.index.json names
architecture: Glm4MoeLiteForCausalLM  # config.json: architectures
quantization: bf16  # config.json: dtype
context_length: 202752  # config.json: max_position_embeddings
layers: 47  # config.json: num_hidden_layers
attention_heads: 20  # config.json: num_attention_heads
mtp_layer: 47  # config.json: num_nextn_predict_layers; tensors found
mtp_weights_size: 2625536  # tensors of `layers.47.`, by the headers of the safetensors files
moe:
  hidden_size: 2048  # config.json: hidden_size
  intermediate_size: 1536  # config.json: moe_intermediate_size
  routed_experts: 64  # config.json: n_routed_experts
  shared_experts: 1  # config.json: n_shared_experts
  experts_per_token: 4  # config.json: num_experts_per_tok
kv_cache:
  kv_lora_rank: 512  # config.json: kv_lora_rank
  qk_rope_head_dim: 64  # config.json: qk_rope_head_dim
flags:
  reasoning-parser: {{value: glm45, origin: recipe, source: sglang cookbook GLM-4.7-Flash.mdx}}
  tool-call-parser: {{value: glm47, origin: recipe, source: sglang cookbook GLM-4.7-Flash.mdx}}
""".splitlines()
    )


def test_missing_fact_is_requested_and_accepted_with_set(home: Home, tmp_path: Path) -> None:
    config = {
        key: value for key, value in LLAMA_33_70B.items() if key not in {"max_position_embeddings", "torch_dtype"}
    }
    folder = write_config(tmp_path / "llama", config)
    assert [line.partition("--set ")[2] for line in problems_of(folder, home)] == [
        "quantization=NAME`",
        "context_length=N`",
    ]
    output = add(folder, home, "context_length=8192", "quantization=bf16", "flags.reasoning-parser=qwen3")
    assert read_entry(output).context_length == 8192
    assert "context_length: 8192  # --set" in output.path.read_text()
    assert read_entry(output).flags["reasoning-parser"].origin == "user"


def test_unknown_architecture_needs_cache_facts_from_user(home: Home, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "own", {**LLAMA_33_70B, "architectures": ["OwnForCausalLM"]})
    (text,) = problems_of(folder, home)
    assert "unknown architecture `OwnForCausalLM`" in text
    assert read_entry(add(folder, home, "kv_cache=null")).kv_cache is None
    entry = read_entry(add(folder, home, "kv_cache.head_dim=128", replace=True))
    assert entry.kv_cache is not None
    assert entry.kv_cache.head_dim == 128


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("layer=80", "unknown key `layer` | did you mean `layers`?"),
        ("layers=many", "`layers` must be a whole number"),
        ("kv_cache.index_head_dim=128", "`index_head_dim`"),
    ],
)
def test_overrides_are_validated_like_file_content(override: str, message: str, home: Home, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "llama", LLAMA_33_70B)
    assert any(message in text for text in problems_of(folder, home, override)), problems_of(folder, home, override)


def test_existing_model_is_overwritten_only_with_replace(home: Home, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "llama", LLAMA_33_70B)
    output = add(folder, home)
    output.path.write_text("mine\n")
    with pytest.raises(UsageError, match="model `llama` exists") as caught:
        add(folder, home)
    assert "--replace" in caught.value.hint
    assert output.path.read_text() == "mine\n"
    assert read_entry(add(folder, home, replace=True)).layers == 80
    with pytest.raises(UsageError, match="model `tiny` exists") as caught:  # it would hide the shipped model
        add(folder, home, name="tiny")
    assert "--name NAME" in caught.value.hint


def test_invalid_model_name_hints_at_name_option(home: Home, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "a b\n# c", LLAMA_33_70B)
    with pytest.raises(UsageError, match=r"(?s)invalid model name") as caught:
        add(folder, home)
    assert "--name NAME" in caught.value.hint
    with pytest.raises(ProfileError, match="facts are missing"):  # the path, which has a line break, is not written
        add(folder, home, name="fine")


def test_invalid_checkpoint_location_is_rejected(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="needs a repository on the hub, not a directory"):
        add(tmp_path, home, revision="main")
    for location in ("no-such-directory", "a/b/c", str(tmp_path / "file")):
        with pytest.raises(UsageError, match="neither a directory nor the name of a repository"):
            add_model(location, home, environ={})
    with pytest.raises(CheckpointError, match=r"no `config\.json`"):
        add(tmp_path, home, name="empty")


def test_unloadable_checkpoint_tensors_produce_a_warning(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config leaves MXFP4 tensors unquantized; the facts of the entry are still correct."""
    config, header = Tiny().quantized("amd52")
    config["quantization_config"]["exclude"].append("model.layers.2.mlp.shared_experts.up_proj")
    output = add(write_tiny(tmp_path / "odd", config, header), home)
    assert read_entry(output).quantization == "quark-mxfp4"
    stderr = capsys.readouterr().err
    assert "1 tensor is stored as U8, but unquantized in `quantization_config`" in stderr
    assert "`model.layers.2.mlp.shared_experts.up_proj.weight`" in stderr
