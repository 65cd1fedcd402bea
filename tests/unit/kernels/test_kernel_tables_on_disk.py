"""Test kernel tables on disk: table files, the pinned download, the kernel names, checkpoint configs and the store."""

import hashlib
import json
import os
from pathlib import Path

import httpx
import pytest
from kernel_samples import CONFIG, FUSED_TP8, HEADER, STAGE1_KW, UNFUSED_TP8, every_bucket, glm_plan, line, rows

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import CheckpointError, DeployError, KernelsError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.kernels.coverage import uses_tuned_table
from orchestrator.kernels.disk import upstream
from orchestrator.kernels.disk.experts import read_experts
from orchestrator.kernels.disk.files import companion, read_tables
from orchestrator.kernels.disk.pins import PinnedFile, read_pins
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.disk.upstream import upstream_file
from orchestrator.kernels.plan_coverage import RowSources, compute_coverage
from orchestrator.kernels.plan_table import build_table
from orchestrator.kernels.rows import RowOrigin
from orchestrator.kernels.table import NameVerdict
from orchestrator.planner.planning import load, profile_names, render_artifacts
from orchestrator.planner.source import profile_source


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    return path


def serving(content: bytes, urls: list[str]) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(200, content=content)

    return httpx.MockTransport(handle)


def pin(content: bytes) -> PinnedFile:
    return PinnedFile(
        commit="45458be7280c",
        path="configs/glm5.csv",
        url="https://example.org/{commit}/{path}",
        sha256=hashlib.sha256(content).hexdigest(),
    )


def test_problems_of_all_tables_are_reported_together(tmp_path: Path) -> None:
    first = table(tmp_path / "a.csv", line(16), line(32).replace(",6144,", ",wide,"))
    second = table(tmp_path / "b.csv", line(64) + ",more")
    with pytest.raises(KernelsError) as caught:
        read_tables([first, second, tmp_path / "none.csv"])
    assert [problem.location for problem in caught.value.problems] == [
        f"{first}:3",
        f"{second}:2",
        str(tmp_path / "none.csv"),
    ]


def test_table_file_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    atomic_write(path, "old\n")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\udcff")
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_upstream_file_is_downloaded_once(tmp_path: Path) -> None:
    urls: list[str] = []
    for _ in range(2):
        path = upstream_file(pin(b"rows"), tmp_path, transport=serving(b"rows", urls))
    assert path.read_bytes() == b"rows"
    assert urls == ["https://example.org/45458be7280c/configs/glm5.csv"]


def test_download_with_wrong_checksum_is_discarded(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, match="checksum"):
        upstream_file(pin(b"rows"), tmp_path, transport=serving(b"<html>sign in</html>", []))
    assert not list(tmp_path.iterdir())


def test_oversized_download_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_MAX_BYTES", 3)
    with pytest.raises(KernelsError, match="the response has more than"):
        upstream_file(pin(b"rows"), tmp_path, transport=serving(b"rows", []))


def test_cached_table_with_wrong_checksum_is_downloaded_again(tmp_path: Path) -> None:
    (tmp_path / "45458be7280c-glm5.csv").write_bytes(b"cut o")
    assert upstream_file(pin(b"rows"), tmp_path, transport=serving(b"rows", [])).read_bytes() == b"rows"


def test_download_error_hints_at_local_path(tmp_path: Path) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route", request=request)

    with pytest.raises(KernelsError) as caught:
        upstream_file(pin(b"rows"), tmp_path, transport=httpx.MockTransport(fail))
    assert str(tmp_path / "45458be7280c-glm5.csv") in caught.value.hint


def test_shipped_kernel_names_distinguish_aiter_pins() -> None:
    pins = read_pins()
    older, newer = pins.names_of("7d604afe"), pins.names_of("9127c94a18e4398e1eba91f6639e910f0994ad02")
    assert older is not None
    assert newer is not None
    assert older.check(STAGE1_KW, FUSED_TP8) is NameVerdict.UNKNOWN_KERNEL
    assert newer.check(STAGE1_KW, FUSED_TP8) is NameVerdict.KNOWN
    assert pins.names_of("c16d44b93a528b2a4bfd6d8d3409116d465872a9") is None
    assert pins.names_of(None) is None


def test_every_pin_of_a_shipped_engine_is_known() -> None:
    """A new image pin needs its kernel names, else only the image's own tables are used; two pins have none."""
    pins = read_pins()
    plans = [load(name).plan for name in profile_names()]
    unknown = {
        plan.engine.name for plan in plans if uses_tuned_table(plan) and not pins.names_of(plan.engine.aiter_commit)
    }
    assert unknown == {"sglang-0.5.20-rocm", "sglang-0.5.21-rocm724"}


def test_shipped_profiles_cover_both_layouts_and_keys(tmp_path: Path) -> None:
    plans = [plan for name in profile_names() if uses_tuned_table(plan := load(name).plan)]
    shapes = {
        (coverage.layout, key.shape.inter_dim, key.shape.expert, key.shape.topk)
        for coverage in (compute_coverage(plan, RowSources(), Home(tmp_path)) for plan in plans)
        for key in coverage.keys
    }
    assert {("TP8", 256, 257, 9), ("TP8", 256, 256, 8), ("TP4×DP2", 512, 257, 9), ("TP4×DP2", 512, 256, 8)} <= shapes


@pytest.mark.parametrize(("dtype", "expected"), [("BF16", "BF16"), ("U8", "U8")])
def test_expert_facts_are_read_from_checkpoint(tmp_path: Path, dtype: str, expected: str) -> None:
    template = "model.layers.{}.mlp.{}.gate_proj.weight"
    dtypes = {template.format(layer, part): "U8" for layer in (0, 1) for part in ("shared_experts", "experts.0")}
    dtypes[template.format(1, "shared_experts")] = dtype
    entries = {name: {"dtype": kind, "shape": [0], "data_offsets": [0, 0]} for name, kind in dtypes.items()}
    header = json.dumps(entries).encode()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files = dict.fromkeys(dtypes, "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    checkpoint = read_experts(Checkpoint.local(tmp_path))
    assert (checkpoint.moe.routed_experts, checkpoint.draft_layers, checkpoint.exclude) == (256, 1, ("lm_head",))
    assert (checkpoint.shared_dtype, checkpoint.routed_dtype) == (expected, "U8")


def test_expert_count_is_read_under_alternative_key(tmp_path: Path) -> None:
    names = {"n_routed_experts": "num_experts"}  # Qwen3-MoE
    config = {names.get(key, key): value for key, value in CONFIG.items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_experts(Checkpoint.local(tmp_path)).moe.routed_experts == 256


def test_config_without_routed_experts_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 128}))
    with pytest.raises(CheckpointError, match="n_routed_experts"):
        read_experts(Checkpoint.local(tmp_path))
    with pytest.raises(CheckpointError):
        Checkpoint.local(tmp_path / "nowhere")


def test_measured_rows_keep_their_provenance(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = RowProvenance(host="a", image="sha256:1", aiter_commit="9127c94a", date="2026-11-20T00:00:00Z")
    second = RowProvenance(host="b", image="sha256:2", aiter_commit="9127c94a", date="2026-11-21T00:00:00Z")
    store.add(rows([line(16, us="20"), line(32, us="20")]), first)
    store.add(rows([line(16, us="30"), line(32, us="10"), line(64).replace("950,256", "942,304")]), second)
    stored = {(row.key.gfx, row.key.token): (row.origin, row.us, row.location) for row in store.measured_rows()}
    assert stored == {
        ("gfx950", 16): (RowOrigin.MEASURED, 20.0, str(first)),
        ("gfx950", 32): (RowOrigin.MEASURED, 10.0, str(second)),
        ("gfx942", 64): (RowOrigin.MEASURED, 50.5, str(second)),
    }


def test_table_is_built_without_modifying_input_files(tmp_path: Path) -> None:
    source = table(tmp_path / "image.csv", line(16), line(16, us="1"), line(32, shape=UNFUSED_TP8))
    before = source.read_bytes()
    home = Home(tmp_path / "home")
    built = build_table(glm_plan(), RowSources(tables=(source,)), home, upstream=False)
    assert source.read_bytes() == before
    assert (built.table.origins[RowOrigin.IMAGE], built.table.origins[RowOrigin.DERIVED]) == (2, 1)
    reread = read_tables([built.path])
    assert [row.origin for row in reread] == [row.origin for row in built.table.rows]
    assert "derived" in companion(built.path).read_text()
    assert "derived" not in built.path.read_text()
    assert compute_coverage(glm_plan(), RowSources(), home).tables == f"`{built.path}`"


def test_upstream_rows_record_commit_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream_table = table(tmp_path / "glm5.csv", line(16))
    monkeypatch.setattr("orchestrator.kernels.plan_table.upstream_file", lambda *_, **__: upstream_table)
    empty = table(tmp_path / "empty.csv")
    built = build_table(glm_plan(), RowSources(tables=(empty,)), Home(tmp_path / "home"), upstream=True)
    assert built.table.rows[0].location == "aiter 45458be7280c glm5_fp4_tuned_fmoe.csv:2"


def test_profile_without_mxfp4_experts_gets_no_table(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, match="does not use aiter's fused MXFP4 experts"):
        build_table(load("cpu-tiny").plan, RowSources(), Home(tmp_path), upstream=False)


def test_manually_edited_row_loses_its_origin(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(glm_plan(), every_bucket(FUSED_TP8))
    path.write_text(path.read_text().replace("gfx950,256,16,", "gfx950,256,131072,"))
    origins = {row.key.token: row.origin for row in read_tables([path])}
    assert (origins[131072], origins[32]) == (RowOrigin.FILE, RowOrigin.UPSTREAM)


def test_invalid_kernel_names_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "profiles" / "kernels").mkdir(parents=True)
    (tmp_path / "profiles" / "kernels" / "aiter.yaml").write_text("upstream: {commit: a}\nnames: []\n")
    with pytest.raises(DeployError) as caught:
        read_pins(Catalog((tmp_path,)))
    problem = next(item for item in caught.value.problems if "`upstream.sha256`" in item.message)
    assert problem.location == "profiles/kernels/aiter.yaml:1"


def test_built_table_is_copied_into_server_image(tmp_path: Path) -> None:
    home = Home(tmp_path)
    without_table, no_inputs = profile_source("mi355x-tp8", (), home).planned()
    assert no_inputs == {}
    path = Store.of(home, without_table).write(without_table, every_bucket(FUSED_TP8))
    plan, inputs = profile_source("mi355x-tp8", (), home).planned()
    artifacts = render_artifacts(plan, inputs)
    assert artifacts.build is not None
    assert path.read_bytes() in [file.content for file in artifacts.build.files]
    assert ("AITER_CONFIG_FMOE", "/opt/deploy/tables/tuned_fmoe.csv") in artifacts.command.env
    assert plan.digest != without_table.digest


def test_process_runtime_uses_table_next_to_sources(tmp_path: Path) -> None:
    """Outside an image, the variable must not name a path that exists only in the image."""
    home = Home(tmp_path)
    without_table, _ = profile_source("mi355x-tp8", (), home).planned()
    path = Store.of(home, without_table).write(without_table, every_bucket(FUSED_TP8))
    plan, inputs = profile_source("mi355x-tp8", ("runtime=process", "engine.python=python3"), home).planned()
    command = render_artifacts(plan, inputs).command
    assert list(inputs.values()) == [path.read_bytes()]
    assert "AITER_CONFIG_FMOE" not in dict(command.env)
    assert 'export AITER_CONFIG_FMOE="$PATCHED_SGLANG/tables/tuned_fmoe.csv"' in command.script


def test_staged_checkpoint_determines_kernel_key(tmp_path: Path) -> None:
    home, plan = Home(tmp_path), glm_plan()
    staged = home.models / plan.model.name
    staged.mkdir(parents=True)
    (staged / "config.json").write_text(json.dumps(CONFIG))
    assert compute_coverage(plan, RowSources(), home).fusion.fused is True


@pytest.mark.timeout(30)  # opening a FIFO may block forever
@pytest.mark.parametrize(
    ("endless", "message"),
    [("fifo", "not a file"), ("/dev/zero", "not a file"), ("line", "unterminated line")],
)
def test_endless_table_is_rejected(tmp_path: Path, endless: str, message: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "line").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(KernelsError) as caught:
        read_tables([tmp_path / endless])
    assert caught.value.problems[0].message == f"cannot read the table: {message}"


def test_images_with_unknown_aiter_share_no_table(tmp_path: Path) -> None:
    """A row names a kernel of one aiter, which another image may lack."""
    home = Home(tmp_path)
    folders = {Store.at(home, None, image).folder for image in ("mine:1", "mine:2", None)}
    assert len(folders) == 3
    assert Store.at(home, "abc", "mine:1") == Store.at(home, "abc", "mine:2")
