"""Test every signature against logs that must match and near misses that must not.

The logs are `logs/<id>/match-*.log` and `logs/<id>/near-*.log`; short ones are in samples.yaml. `logs/none/` contains
logs without a failure; field.yaml and unseen.yaml contain snippets of public reports. A real sglang of that version on
CPU wrote the files with `real` in their names (paths and argparse usage are shortened); the other files repeat wordings
of public reports.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

from orchestrator.diagnose.match import diagnose
from orchestrator.diagnose.signatures import Effect, load_catalog

LOGS = Path(__file__).with_name("logs")
BY_ID = {signature.id: signature for signature in load_catalog()}
FILES = sorted(LOGS.glob("*/*.log"))
SAMPLES: dict[str, dict[str, str]] = yaml.safe_load(LOGS.with_name("samples.yaml").read_text())
FIELD, UNSEEN = (yaml.safe_load(LOGS.with_name(name).read_text())["snippets"] for name in ("field.yaml", "unseen.yaml"))


@cache
def matches_in(path: Path) -> frozenset[str]:
    diagnosis = diagnose(path.read_text(encoding="utf-8").splitlines())
    return frozenset(match.id for match in diagnosis.matches)


def causes_in(path: Path) -> frozenset[str]:
    return frozenset(name for name in matches_in(path) if BY_ID[name].effect is not Effect.SYMPTOM)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", [p for p in FILES if p.stem.startswith("match")], ids=name_of)
def test_matching_log_is_recognized(path: Path) -> None:
    assert path.parent.name in matches_in(path)


@pytest.mark.parametrize("path", [p for p in FILES if p.stem.startswith("near")], ids=name_of)
def test_near_miss_log_does_not_match(path: Path) -> None:
    assert path.parent.name not in matches_in(path)


@pytest.mark.parametrize("path", sorted(LOGS.glob("none/*.log")), ids=name_of)
def test_a_log_without_a_failure_has_no_matches(path: Path) -> None:
    assert matches_in(path) == set()


@pytest.mark.parametrize("name", BY_ID)
def test_each_signature_has_both_kinds_of_logs(name: str) -> None:
    kinds = {path.stem.split("-")[0] for path in (LOGS / name).glob("*.log")}
    assert kinds | set(SAMPLES.get(name, ())) == {"match", "near"}


@pytest.mark.parametrize("name", SAMPLES)
def test_short_log_is_distinguished_from_near_miss(name: str) -> None:
    logs = (SAMPLES[name][kind].splitlines() for kind in ("match", "near"))
    matching, near = ({match.id for match in diagnose(log).matches} for log in logs)
    assert name in matching
    assert name not in near
    causes = {cause for cause in matching if BY_ID[cause].effect is not Effect.SYMPTOM}
    assert causes <= {name}


def verdict(snippet: Mapping[str, str]) -> str:
    """Return `right` if the true cause is named first, or if no cause is named and the truth is `none` or among the
    matches.
    """
    diagnosis = diagnose(snippet["log"].splitlines())
    if diagnosis.cause is not None:
        return "right" if diagnosis.cause.id == snippet["truth"] else "wrong"
    matches = {match.id for match in diagnosis.matches}
    return "right" if snippet["truth"] in {*matches, "none"} else "missed"


def test_snippets_of_public_reports_are_diagnosed() -> None:
    assert len(FIELD) == 29
    assert [(snippet["source"], verdict(snippet)) for snippet in FIELD if verdict(snippet) != "right"] == []


def test_snippets_collected_after_the_signatures_have_no_wrong_cause() -> None:
    verdicts_ = [verdict(snippet) for snippet in UNSEEN]
    assert verdicts_.count("wrong") == 0
    assert verdicts_.count("right") >= 46


def test_a_capture_race_is_not_blamed_on_aiter() -> None:
    [cause] = {
        match.cause
        for snippet in FIELD
        for match in diagnose(snippet["log"].splitlines()).matches
        if match.id == "graph-invalidated"
    }
    assert "HIP runtime of ROCm up to 7.2.0" in cause
    assert "aiter" not in cause


def test_every_log_belongs_to_an_existing_signature() -> None:
    assert {path.name for path in LOGS.iterdir()} - {"none"} | set(SAMPLES) == set(BY_ID)


def verdicts() -> Iterator[tuple[bool, bool]]:
    """Yield (is expected, is matched) for each log and its own signature, and for each other cause that matches.

    Near misses may contain another failure, and symptoms follow from any failure: neither counts as a mistake.
    """
    for path in FILES:
        expected_id, is_match = path.parent.name, path.stem.startswith("match")
        if expected_id in BY_ID:
            yield is_match, expected_id in matches_in(path)
        if is_match or expected_id not in BY_ID:
            yield from ((False, True) for _ in causes_in(path) - {expected_id})


def test_precision_and_recall_over_the_collection(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = list(verdicts())
    true = sum(expected and matched for expected, matched in pairs)
    false = sum(matched and not expected for expected, matched in pairs)
    missed = sum(expected and not matched for expected, matched in pairs)
    precision, recall = true / (true + false), true / (true + missed)
    with capsys.disabled():
        print(
            f"\ndiagnosis: {len(BY_ID)} signatures, {len(FILES)} logs ({sum('real' in p.stem for p in FILES)} real), "
            f"precision {precision:.3f}, recall {recall:.3f}"
        )
    assert (precision, recall) == (1.0, 1.0)
