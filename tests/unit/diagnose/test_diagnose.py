"""Test log diagnosis: causes before symptoms, evidence with line numbers, bounded memory."""

import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.core.text import line_shapes
from orchestrator.diagnose.match import _Search, _SignatureState, diagnose
from orchestrator.diagnose.report import TAIL_LINES
from orchestrator.diagnose.signatures import MEANING, Effect, LinePattern, load_catalog

LOGS = Path(__file__).with_name("logs")


def lines_of(name: str) -> list[str]:
    return (LOGS / name).read_text(encoding="utf-8").splitlines()


def test_cause_is_listed_before_its_symptoms() -> None:
    diagnosis = diagnose(lines_of("truncated-weights/match-real-0.5.14.log"))
    assert [match.id for match in diagnosis.matches] == [
        "truncated-weights",
        "scheduler-exception",
        "child-died",
    ]
    assert diagnosis.cause is diagnosis.matches[0]
    assert diagnosis.matches[1].evidence[0].line < diagnosis.matches[0].evidence[0].line  # the symptom is logged first


def test_vllm_log_gets_only_engine_neutral_diagnosis() -> None:
    started = "(EngineCore_DP0 pid=1) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'"
    memory = "(Worker pid=2) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    flag = "vllm: error: unrecognized arguments: --mem-fraction-static"  # a signature of sglang
    cause = diagnose([started, flag, memory]).cause
    assert cause is not None
    assert (cause.id, "mem-fraction" in cause.hint) == ("gpu-out-of-memory", False)
    unexplained = diagnose([started, flag])
    assert [match.id for match in unexplained.matches] == ["other-engine"]
    assert "no known cause of a failure; the last 2 of 2 lines:" in unexplained.to_text()
    hints = [rule.other_engine_hint or rule.hint for rule in load_catalog() if rule.other_engine_hint is not None]
    assert len(hints) == 15
    assert not [hint for hint in hints if "deploy" in hint or "`--" in hint or "flags." in hint]


def test_symptoms_are_brief_when_cause_is_known() -> None:
    text = diagnose(lines_of("no-weights/match-real-0.5.14.log")).to_text()
    assert text.count("hint: ") == 1
    assert "symptom: scheduler-exception\n  line " in text


def test_output_explains_each_effect_term() -> None:
    *_, last = diagnose(lines_of("no-weights/match-real-0.5.14.log")).to_text().splitlines()
    assert re.findall("`(.+?)`: ", last) == ["fatal", "symptom"]
    assert "the first one is the most likely" in last
    assert (
        "`degraded`: the server runs with this fault"
        in diagnose(lines_of("cuda-runtime-header/match-fallback.log")).to_text()
    )
    page = (Path(__file__).parents[3] / "docs/how-to/operate.md").read_text(encoding="utf-8")
    assert MEANING.keys() == {*Effect}
    assert [meaning for meaning in MEANING.values() if meaning not in " ".join(page.split())] == []


def test_earlier_cause_comes_first() -> None:
    full, memory = "OSError: [Errno 28] No space left on device: '/root/x'", "RuntimeError: No HIP GPUs are available"
    first = diagnose([memory, full]).cause
    assert first is not None
    assert first.id == "no-gpu"


def test_evidence_has_line_numbers_and_context() -> None:
    cause = diagnose(["", *lines_of("quark-mtp-mismatch/match-shared-expert.log")]).cause
    assert cause is not None
    assert [(line.line, line.text.split(",")[0]) for line in cause.evidence] == [
        (7, 'File "/sgl-workspace/sglang/python/sglang/srt/models/deepseek_nextn.py"'),
        (11, "AssertionError"),
    ]


def test_context_must_be_close_to_the_match() -> None:
    frame = '  File "deepseek_nextn.py", line 401, in load_weights'
    assert diagnose([frame, *[""] * 60, "AssertionError"]).cause is not None
    assert diagnose([frame, *[""] * 90, "AssertionError"]).cause is None


def test_unknown_failure_shows_last_lines() -> None:
    diagnosis = diagnose([f"line {number}" for number in range(100)])
    assert diagnosis.matches == ()
    assert diagnosis.to_text().splitlines()[0] == "no known signature; the last 40 of 100 lines:"
    assert diagnosis.to_text().splitlines()[-1] == "line 99"
    assert diagnosis.to_output(healthy=False, ended="").cause is None


def test_symptoms_alone_are_not_a_cause() -> None:
    text = diagnose(lines_of("scheduler-exception/match-unknown-error.log")).to_text()
    assert "no known cause of a failure; the last 3 of 3 lines:" in text
    assert text.endswith("ZeroDivisionError: division by zero")


def test_a_caught_failure_in_a_ready_server_is_reported_as_degraded() -> None:
    diagnosis = diagnose(lines_of("cuda-runtime-header/match-fallback.log"))
    assert diagnosis.cause is None
    assert len(diagnosis.degraded) == 1
    assert diagnosis.degraded[0].startswith("cuda-runtime-header: Warning: Multi-backend fused metadata copy")
    assert diagnosis.matches[0].count == 2


def test_text_from_requests_is_not_matched() -> None:
    assert diagnose(["Receive: obj=GenerateReqInput(text='RuntimeError: No HIP GPUs are available')"]).matches == ()
    assert diagnose(["server_args=ServerArgs(chat_template='OOMKilled')"]).matches == ()


def test_secrets_are_redacted_in_diagnosis() -> None:
    diagnosis = diagnose(["server_args=ServerArgs(api_key='sk-very-secret')", "OOMKilled api_key='sk-very-secret'"])
    assert "sk-very-secret" not in diagnosis.to_text() + str(diagnosis.to_output(healthy=False, ended=""))


def test_match_among_short_lines_has_correct_line_number() -> None:
    """Among many short lines, only those with a letter of a signature are examined."""
    lines = ["a", "", "b"] * 1000
    assert diagnose(lines) == replace(diagnose([]), lines=3000, tail=tuple(lines[-TAIL_LINES:]))
    cause = diagnose([*lines, "OOMKilled", *lines]).cause
    assert cause is not None
    assert [line.line for line in cause.evidence] == [3001]


def test_a_long_log_is_read_in_bounded_memory() -> None:
    def long_log() -> Iterator[str]:
        for number in range(50_000):
            yield f"[2026-07-02 10:14:31] Decode batch, #running-req: 16, #token: {number}, token usage: 0.10"
            if number % 100 == 0:
                yield "Warning: Multi-backend fused metadata copy kernel failed with error: x, falling back to loop."

    tracemalloc.start()
    diagnosis = diagnose(long_log())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert diagnosis.lines == 50_500
    assert diagnosis.matches[0].count == 500
    assert peak < 3_000_000  # of 5 MB of text


@pytest.mark.parametrize(
    "broken",
    [{"text": "abc"}, {"text": "long enough", "regex": "("}, {"text": "long enough", "pattern": "x"}],
    ids=["literal too short", "invalid regex", "unknown key"],
)
def test_invalid_line_pattern_is_rejected(broken: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        LinePattern.model_validate(broken)


def test_signature_ids_are_unique_and_cite_a_source() -> None:
    entries = load_catalog()
    assert len({entry.id for entry in entries}) == len(entries)
    assert all(entry.source for entry in entries)


SEARCH = _Search([_SignatureState(signature) for signature in load_catalog()])
LITERALS = sorted(SEARCH._watches)


@given(
    st.lists(
        st.sampled_from([*LITERALS, *(literal[1:] for literal in LITERALS), b"\n", b"0", b": ", b"\xe4"]), max_size=12
    )
)
def test_every_line_with_a_signature_literal_is_examined(pieces: list[bytes]) -> None:
    shapes = line_shapes(b"".join(pieces).decode(errors="surrogateescape"))
    expected = {shape for shape in shapes.split(b"\n") if any(literal in shape for literal in LITERALS)}
    assert {*SEARCH._concerned(shapes)} == expected
