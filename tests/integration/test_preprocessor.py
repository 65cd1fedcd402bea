"""Tests that images/read_sources.py selects the same lines as the real preprocessor, whatever unknown macros are."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_sources import SourceError, preprocessed

from tests.unit.patches.test_guard_forms import FORMS

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"), pytest.mark.slow]


def preprocessor_words(text: str, *options: str) -> list[str] | None:
    """Return the words of the real preprocessor's output, None after an error; `#include` is replaced by INCLUDED."""
    without_includes = text.replace("#include", "INCLUDED")
    argv = ["g++", "-E", "-P", "-x", "c++", "-std=c++20", *options, "-"]
    done = subprocess.run(argv, input=without_includes, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None


def our_words(text: str) -> tuple[set[str], set[str]] | None:
    """Return the words that are certainly active with USE_ROCM, and all that may be; None for a rejected text."""
    try:
        reading = preprocessed(text, {"USE_ROCM": "1"})
    except SourceError:
        return None
    return set(reading.certain.split()), set(reading.possible.split())


@pytest.mark.parametrize("form", FORMS)
def test_state_of_every_guard_form_matches_real_preprocessor(form: str) -> None:
    text, state = FORMS[form]
    output = preprocessor_words(text, "-DUSE_ROCM")

    works = output is not None and "<hip/hip_runtime.h>" in output and "<cuda_runtime.h>" not in output
    if form == "for another macro":
        assert not works
    assert works == (state in {"upstream", "applied"})


ATOMS = st.sampled_from(
    [
        "USE_ROCM",
        "defined(USE_ROCM)",
        "defined OTHER",
        "OTHER",
        "LATER",
        "defined(LATER)",
        "0",
        "1",
        "2u",
        "true",
        "false",
    ]
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        inner.map("!{}".format),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(["&&", "||", "==", "!=", "<", ">=", "+", "*"]), inner).map(" ".join),
    ),
    max_leaves=5,
)
CONDITIONS = st.one_of(
    EXPRESSIONS.map("#if {}".format),
    st.sampled_from(["#ifdef USE_ROCM", "#ifndef USE_ROCM", "#ifdef OTHER", "# ifndef LATER", "#ifdef /* 1 */ LATER"]),
)
LINES = st.one_of(
    CONDITIONS,
    EXPRESSIONS.map("#elif {}".format),
    st.sampled_from(["#else", "#endif", "#endif // done", "#define LATER 1", "#define LATER 0", "#undef LATER"]),
    st.sampled_from(["/* #if 1", "*/", "// #else \\", '"/*"', "word", "#define LATER \\\n 2"]),
)
BALANCED = st.recursive(
    st.lists(LINES.filter(lambda line: not line.lstrip("/* ").startswith(("#if", "# if", "#el", "#end"))), max_size=2),
    lambda inner: st.tuples(
        CONDITIONS, inner, st.one_of(EXPRESSIONS.map("#elif {}".format), st.just("#else")), inner
    ).map(lambda parts: [parts[0], *parts[1], parts[2], *parts[3], "#endif"]),
    max_leaves=6,
)


@given(st.one_of(BALANCED, st.lists(LINES, max_size=8)))
@settings(max_examples=150)
def test_active_lines_match_real_preprocessor(lines: list[str]) -> None:
    """A header may define OTHER: certain lines must be active with and without it, and active lines possible."""
    text = "".join(f"{line}\nmark{number}\n" for number, line in enumerate(lines))
    selected = our_words(text)
    outcomes = [preprocessor_words(text, "-DUSE_ROCM", *options) for options in ((), ("-DOTHER=1",), ("-DOTHER=0",))]

    if selected is None:
        assert None in outcomes, "rejected, although the preprocessor accepts it"
        return
    certain, possible = selected
    for outcome in outcomes:
        if outcome is not None:
            marks = {word for word in outcome if word.startswith("mark")}
            assert {word for word in certain if word.startswith("mark")} <= marks <= possible


def test_inlined_image_program_runs_standalone(tmp_path: Path) -> None:
    """`check_image` runs it with an image's Python, which lacks this package."""
    from orchestrator.images.patch_check import SourceChecker, inline_modules

    program = inline_modules(*SourceChecker.of_ledger().programs)
    argv = [sys.executable, "-I", "-S", "-c", program, "check", "--manifest", "-"]

    done = subprocess.run(argv, input="[]", capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout.strip() == "[]"
