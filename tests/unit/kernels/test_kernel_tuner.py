"""Test the tuner's command and the rows accepted from its output."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kernel_samples import HEADER, STAGE1, STAGE1_KW, STAGE2, UNFUSED_TP8, glm_plan, line, rows

from orchestrator.kernels.disk.pins import read_pins
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.disk.tuner import TIME_LIMIT, TunerTimeouts, TuningJob, check_rows, tune, tuner_command
from orchestrator.kernels.keys import Key
from orchestrator.kernels.rows import RowOrigin

KEYS = tuple(row.key for row in rows([line(16), line(32)]))
SOURCE = RowProvenance(host="h", image="sha256:1", aiter_commit="9127c94a", date="2026-11-20T00:00:00Z")


def job(folder: Path, keys: tuple[Key, ...] = KEYS, commit: str = "9127c94a") -> TuningJob:
    return TuningJob(
        argv=("tuner",),
        keys=keys,
        names=read_pins().names_of(commit),
        folder=folder,
        limits=TunerTimeouts(total=10, shutdown=1, poll=0.1, grace=1),
    )


def runner_writing(*lines: str, error: str = "") -> Callable[..., str]:
    """Return a TunerRunner that writes these rows to the tuner's output file."""

    def run(_argv: Sequence[str], *, log: Path, finished: Callable[[], bool], **_: TunerTimeouts) -> str:
        (log.parent / "tuned.csv").write_text("\n".join((HEADER, *lines)) + "\n")
        finished()
        return error

    return run


def test_tuner_container_gets_server_devices_and_volume(
    tmp_path: Path,
) -> None:
    ids = {"video": "44"}  # the host has no group `render`
    argv = tuner_command(glm_plan(), image="rocm:1", folder=tmp_path, container="deploy-tune-glm", group=ids.get)
    assert argv == (
        *("docker", "run", "--rm", "--init", "--name", "deploy-tune-glm", "--volume", f"{tmp_path}:/tuning"),
        *("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "44"),
        *("--ipc", "host", "--shm-size", str(16 << 30), "--ulimit", "memlock=-1:-1"),
        *("--security-opt", "seccomp=unconfined", "--cap-add", "SYS_PTRACE", "rocm:1"),
        *("python3", "/sgl-workspace/aiter/csrc/ck_gemm_moe_2stages_codegen/gemm_moe_tune.py"),
        *("-i", "/tuning/untuned.csv", "-o", "/tuning/tuned.csv", "-o2", "/tuning/profile.csv"),
        *("--mp", "8", "--batch", "8", "--shape_grouped", "--timeout", "1800"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(64), "another key"),
        (line(16, shape=UNFUSED_TP8), "another key"),
        (line(16, us="nan"), "no time measured: `us` is `nan`"),
        (line(16, us="-1"), "no time measured: `us` is `-1`"),
        (line(16).replace(",0.9%,", ",11.0%,"), "`err1` is `11.0%`"),
        (line(16).replace(",1.5%,", ",0.5,"), "`err2` is `0.5`"),
        (line(16).replace(",1.5%,", ",,"), "`err2` is ``"),
        (line(16, kernels=("", STAGE2)), "no kernel name"),
        (line(16, kernels=("flydsl_moe1_afp4_wfp4_bf16_t1x1x1", STAGE2)), "unknown kernel"),
    ],
)
def test_invalid_tuned_row_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    valid, problems = check_rows(rows([text, line(32)]), job(tmp_path))
    assert [row.key.token for row in valid] == [32]
    assert message in problems[0].message


def test_error_ratio_is_parsed_in_both_notations(tmp_path: Path) -> None:
    valid, _ = check_rows(rows([line(16).replace(",0.9%,", ",0.009,")]), job(tmp_path))
    assert len(valid) == 1


def test_duplicate_rows_are_both_rejected(tmp_path: Path) -> None:
    duplicates = rows([line(16), line(16, us="9"), line(32), line(32, tag="flydsl_fallback")])
    valid, problems = check_rows(duplicates, job(tmp_path))
    assert [(row.key.token, row.tag) for row in valid] == [(32, ""), (32, "flydsl_fallback")]
    assert [problem.message for problem in problems] == ["duplicate rows for the key"] * 2


def test_kernel_names_are_checked_against_image_aiter(tmp_path: Path) -> None:
    tuned_rows = rows([line(16, kernels=(STAGE1_KW, STAGE2))])
    assert len(check_rows(tuned_rows, job(tmp_path, commit="9127c94a"))[0]) == 1
    assert len(check_rows(tuned_rows, job(tmp_path, commit="7d604afe"))[0]) == 0


def test_completed_tuning_is_stored_with_provenance(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    store = Store(tmp_path / "store")
    run = runner_writing(line(16), line(32))
    tuned = tune(
        job(tmp_path), run=run, store=store, provenance=SOURCE, progress=lambda done, of: progress.append((done, of))
    )
    assert (tuned.remaining, tuned.problems, progress) == ((), (), [(2, 2)])
    assert {(row.origin, row.location) for row in store.measured_rows()} == {(RowOrigin.MEASURED, str(SOURCE))}
    assert (tmp_path / "untuned.csv").read_text().count("\n") == 3


def test_missing_row_is_reported_despite_success(tmp_path: Path) -> None:
    tuned = tune(job(tmp_path), run=runner_writing(line(16)), store=Store(tmp_path / "store"), provenance=SOURCE)
    assert [key.token for key in tuned.remaining] == [32]
    [problem] = tuned.problems
    assert problem.message == "the tuner ended without a row for 1 keys"
    assert problem.location == str(tmp_path / "tuner.log")


@pytest.mark.parametrize(
    ("error", "hint"), [("exit code 1", ""), (TIME_LIMIT, "run the same command again to continue")]
)
def test_tuner_failure_is_reported(tmp_path: Path, error: str, hint: str) -> None:
    failed = tune(job(tmp_path), run=runner_writing(error=error), store=Store(tmp_path / "a"), provenance=SOURCE)
    assert [(problem.message, problem.hint) for problem in failed.problems] == [(error, hint)]


def test_interrupted_tuning_keeps_finished_rows(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def write_and_interrupt(argv: Sequence[str], *, log: Path, finished: Callable[[], bool], **_: TunerTimeouts) -> str:
        runner_writing(line(16))(argv, log=log, finished=finished)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(job(tmp_path), run=write_and_interrupt, store=store, provenance=SOURCE)
    assert [row.key.token for row in store.measured_rows()] == [16]


def test_rows_of_killed_run_are_recovered(tmp_path: Path) -> None:
    (tmp_path / "tuned.csv").write_text(f"{HEADER}\n{line(16)}\n{line(32)[:40]}")
    tuned = tune(job(tmp_path), run=runner_writing(line(32)), store=Store(tmp_path / "store"), provenance=SOURCE)
    assert tuned.remaining == ()
    assert (tmp_path / "untuned.csv").read_text().splitlines()[1].startswith("32,6144,")
    assert STAGE1 in (tmp_path / "store" / "measured.csv").read_text()
