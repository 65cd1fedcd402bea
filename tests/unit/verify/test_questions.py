"""Questions of the smoke test, their filler text, and the comparison of answers."""

from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import ProfileError
from orchestrator.core.origin import Origin
from orchestrator.core.paths import data_root
from orchestrator.plan.plan import SmokeQuestion
from orchestrator.planner.planning import load
from orchestrator.verify.client import filler, is_correct, prompt_of
from orchestrator.verify.target import target_of


def question(answer: str = "Paris", *, words: int = 0) -> SmokeQuestion:
    text = "{filler} Which city?" if words else "Which city?"
    return SmokeQuestion(prompt=text, expected=answer, filler_words=words, max_tokens=8, origin=Origin.USER, source="")


@pytest.mark.parametrize("words", [1, 12, 13, 14, 64, 131072])
def test_filler_has_requested_number_of_words(words: int) -> None:
    assert len(filler(words).split()) == words
    assert filler(words).startswith(filler(min(words, 12)))


def test_filler_replaces_its_placeholder() -> None:
    assert prompt_of(question(words=3)) == "On day 1 Which city?"
    assert prompt_of(question()) == "Which city?"


def test_filler_sentences_are_unique() -> None:
    sentences = filler(2600).split(". ")
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("answer", ["Paris", "paris", " Paris.\n", "PARIS ."])
def test_answer_ignores_case_whitespace_and_final_period(answer: str) -> None:
    assert is_correct(question(), answer)


@pytest.mark.parametrize("answer", ["", "Paris, of course", "The city is Paris.", "**Paris**", "Pari", "Paris.."])
def test_other_differences_make_an_answer_wrong(answer: str) -> None:
    assert not is_correct(question(), answer)


def words(profile: str, *overrides: str) -> list[int]:
    return [item.filler_words for item in plan_of(profile, *overrides).model.questions]


@pytest.mark.parametrize(
    ("profile", "overrides", "expected"),
    [
        ("mi355x-tp8", (), [0, 64, 131072]),
        ("mi355x-tp4dp2", (), [0, 64, 32768]),
        ("b200-tp8", (), [0, 64, 8192]),
        ("b200-tp8", ("flags.chunked-prefill-size=null",), [0, 64, 16384]),  # sglang's largest default
        ("b200-tp8", ("flags.chunked-prefill-size=-1",), [0, 64, 16384]),
        ("b200-tp8", ("flags.context-length=12000",), [0, 64, 4000]),  # three tokens per word
        ("cpu-tiny", (), [0, 64, 950]),
        ("cpu-tiny", ("flags.chunked-prefill-size=4096",), [0, 64, 950]),  # the answer depends on the length
        ("cpu-tiny", ("flags.context-length=1000",), [0, 64]),  # a question that does not fit is omitted
        ("cpu-tiny", ("model.questions=null",), []),
        ("h200-glm-mtp", (), []),
    ],
)
def test_filler_length_follows_prefill_chunk(profile: str, overrides: tuple[str, ...], expected: list[int]) -> None:
    assert words(profile, *overrides) == expected


def test_target_has_chunk_size_and_known_causes() -> None:
    target = target_of(plan_of("mi355x-tp8"), url="http://127.0.0.1:1", api_key=None)
    assert target.prefill_chunk == 131072
    causes = {cause.id for cause in target.wrong_answers}
    assert causes >= {"quick-reduce-int8", "exclude-list", "shared-expert-dropped", "sparse-top-k", "fp8-cache"}
    assert "blockscale-gemm" not in causes  # for fp8 checkpoints only
    assert [reason.id for reason in target.nondeterministic] == ["aiter-atomic-moe"]


def test_cpu_kernels_are_deterministic() -> None:
    target = target_of(plan_of("cpu-tiny"), url="http://127.0.0.1:1", api_key=None)
    assert target.nondeterministic == ()
    assert plan_of("mi355x-tp8", "model.moe=null").nondeterministic == ()  # only MoE kernels are nondeterministic
    assert target_of(plan_of("cpu-tiny", "flags.chunked-prefill-size=-1"), url="", api_key=None).prefill_chunk is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("filler_words: 64", "filler_words: a page", "expected `chunk`, or a number of words"),
        ("filler_words: 64", "filler_words: -1", "expected `chunk`, or a number of words"),
        ("    filler_words: 64\n", "", "`{filler}` and `filler_words` require each other"),
        ('"{filler} Where', '"Where', "`{filler}` and `filler_words` require each other"),
        ("tokens: 12", "tokens: 0", "greater than or equal to 1"),
        ("expected: quest", "expcted: quest", "expcted"),
    ],
)
def test_invalid_question_is_rejected_with_its_line(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (data_root() / "profiles" / "models" / "tiny.yaml").read_text()
    assert old in text
    folder = tmp_path / "profiles" / "models"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(text.replace(old, new, 1))
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    with pytest.raises(ProfileError) as caught:
        load("cpu-tiny")
    assert any(message in problem.message for problem in caught.value.problems)
    assert all("tiny.yaml:" in problem.location for problem in caught.value.problems)
