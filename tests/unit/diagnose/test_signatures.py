"""Every signature against its collection: logs that must match, near misses that must not.

`logs/<id>/match-*.log` and `logs/<id>/near-*.log`, short ones in samples.yaml; `logs/none/` holds logs in which no
failure can be read; field.yaml and unseen.yaml hold snippets of public reports. Files with `real` in their names were
written by a real sglang of that version on CPU (paths and the argparse usage shortened); the others repeat wordings of
public reports.
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
FIELD, LATER = (yaml.safe_load(LOGS.with_name(name).read_text())["snippets"] for name in ("field.yaml", "unseen.yaml"))


@cache
def found_in(path: Path) -> frozenset[str]:
    diagnosis = diagnose(path.read_text(encoding="utf-8").splitlines())
    return frozenset(match.id for match in diagnosis.matches)


def causes_in(path: Path) -> frozenset[str]:
    return frozenset(name for name in found_in(path) if BY_ID[name].effect is not Effect.SYMPTOM)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", [p for p in FILES if p.stem.startswith("match")], ids=name_of)
def test_matching_log_is_recognized(path: Path) -> None:
    assert path.parent.name in found_in(path)


@pytest.mark.parametrize("path", [p for p in FILES if p.stem.startswith("near")], ids=name_of)
def test_near_miss_log_does_not_match(path: Path) -> None:
    assert path.parent.name not in found_in(path)


@pytest.mark.parametrize("path", sorted(LOGS.glob("none/*.log")), ids=name_of)
def test_a_log_without_a_failure_has_no_matches(path: Path) -> None:
    assert found_in(path) == set()


@pytest.mark.parametrize("name", BY_ID)
def test_each_signature_has_both_kinds_of_logs(name: str) -> None:
    kinds = {path.stem.split("-")[0] for path in (LOGS / name).glob("*.log")}
    assert kinds | set(SAMPLES.get(name, ())) == {"match", "near"}


@pytest.mark.parametrize("name", SAMPLES)
def test_short_log_is_distinguished_from_near_miss(name: str) -> None:
    logs = (SAMPLES[name][kind].splitlines() for kind in ("match", "near"))
    match, near = ({found.id for found in diagnose(log).matches} for log in logs)
    assert name in match
    assert name not in near
    causes = {found for found in match if BY_ID[found].effect is not Effect.SYMPTOM}
    assert causes <= {name}


def verdict(snippet: Mapping[str, str]) -> str:
    """Right: the truth is the cause; or no cause is named, and it is `none` or among the rest. Wrong: another cause."""
    diagnosis = diagnose(snippet["log"].splitlines())
    if diagnosis.cause is not None:
        return "right" if diagnosis.cause.id == snippet["truth"] else "wrong"
    found = {match.id for match in diagnosis.matches}
    return "right" if snippet["truth"] in {*found, "none"} else "missed"


def test_snippets_of_public_reports_are_diagnosed() -> None:
    assert len(FIELD) == 29
    assert [(snippet["source"], verdict(snippet)) for snippet in FIELD if verdict(snippet) != "right"] == []


def test_snippets_collected_after_the_signatures_have_no_wrong_cause() -> None:
    found = [verdict(snippet) for snippet in LATER]
    assert found.count("wrong") == 0
    assert found.count("right") >= 46


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
    """(is it there, is it found): each log asked for its own signature, and for every other cause, which is not there.

    Near misses may hold another failure, and consequences follow from any: neither is counted as a mistake.
    """
    for path in FILES:
        own, is_match = path.parent.name, path.stem.startswith("match")
        if own in BY_ID:
            yield is_match, own in found_in(path)
        if is_match or own not in BY_ID:
            yield from ((False, True) for _ in causes_in(path) - {own})


def test_precision_and_recall_over_the_collection(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = list(verdicts())
    true = sum(is_there and found for is_there, found in pairs)
    false = sum(found and not is_there for is_there, found in pairs)
    missed = sum(is_there and not found for is_there, found in pairs)
    precision, recall = true / (true + false), true / (true + missed)
    with capsys.disabled():
        print(
            f"\ndiagnosis: {len(BY_ID)} signatures, {len(FILES)} logs ({sum('real' in p.stem for p in FILES)} real), "
            f"precision {precision:.3f}, recall {recall:.3f}"
        )
    assert (precision, recall) == (1.0, 1.0)
