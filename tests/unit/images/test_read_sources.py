"""Test images/read_sources.py: which lines of a file are certainly active, and which are possibly active."""

from pathlib import Path

import pytest
from read_sources import Reading, SourceError, canonical, match, preprocessed


def active_lines(text: str, **macros: str | None) -> tuple[list[str], list[str]]:
    """Return the certain and the possible lines of a file with USE_ROCM and other macros."""
    reading = preprocessed(text, {"USE_ROCM": "1", **macros})
    assert len({part.count("\n") for part in (text, *reading[:3])}) == 1, "line numbers must not change"
    return reading.certain.split(), reading.possible.split()


@pytest.mark.parametrize(
    ("condition", "active"),
    [
        ("#ifdef USE_ROCM", True),
        ("#ifndef USE_ROCM", False),
        ("#if defined(USE_ROCM)", True),
        ("#if !defined USE_ROCM", False),
        ("#if USE_ROCM == 1 && !0", True),
        ("#if defined(USE_ROCM) || UNKNOWN(3)", True),
        ("#if !defined(USE_ROCM) && UNKNOWN", False),
        ("#if !USE_ROCM == 0", True),
        ("#if 0x10u + 2L * 3 >= 22", True),
        ("  #  ifdef /* here */ USE_ROCM // and so on", True),
        ("#if defined(USE_\\\nROCM)", True),
        ("#if true", True),
        ("#if false", False),
        ("#ifdef UNKNOWN", None),
        ("#if UNKNOWN > 2", None),
        ("#if defined(UNKNOWN) && defined(USE_ROCM)", None),
        ("#if __has_include(<hip/hip_runtime.h>)", None),
        ("#if USE_ROCM ? 0 : 1", None),
    ],
)
def test_preprocessor_conditions_are_evaluated_if_decidable(condition: str, active: bool | None) -> None:
    certain, possible = active_lines(f"{condition}\nthen\n#else\nelse\n#endif\n")

    assert ("then" in certain, "else" in certain) == (active is True, active is False)
    assert ("then" in possible, "else" in possible) == (active is not False, active is not True)


def test_only_first_true_branch_is_active() -> None:
    text = "#if 0\na\n#elif defined(USE_ROCM)\nb\n#elif 1\nc\n#else\nd\n#endif\n"

    assert active_lines(text) == (["b"], ["b"])


def test_branches_after_undecidable_one_are_possible() -> None:
    text = "#ifdef UNKNOWN\na\n#elif 1\nb\n#else\nc\n#endif\n"

    assert active_lines(text) == ([], ["a", "b"])


def test_known_condition_inside_undecidable_branch_is_decided() -> None:
    assert active_lines("#ifdef UNKNOWN\n#ifdef USE_ROCM\na\n#else\nb\n#endif\n#endif\n") == ([], ["a"])


def test_macros_defined_in_file_are_used() -> None:
    """The example is the top-k kernel of 0.5.23, `topk_impl.cuh`."""
    text = "#if !defined(USE_ROCM)\n#define CLUSTER (ARCH >= 900)\n#else\n#define CLUSTER false\n#endif\n"

    assert active_lines(f"{text}#if CLUSTER\n#include <cooperative_groups.h>\n#endif\n") == ([], [])
    assert active_lines(f"{text}#undef CLUSTER\n#ifdef CLUSTER\nx\n#endif\n") == ([], [])
    assert active_lines("#ifdef UNKNOWN\n#define CLUSTER 1\n#endif\n#if CLUSTER\nx\n#endif\n") == ([], ["x"])


def test_include_guard_is_active() -> None:
    text = "#ifndef FILE_H\n#define FILE_H\nx\n#endif\n"

    assert active_lines(text) == (["x"], ["x"])
    assert active_lines(f"/* a\n * license\n */\n#pragma once\n\n{text}")[0][-1] == "x"


def test_comments_and_strings_are_distinguished() -> None:
    text = '// #if 0\n/* #if 0\n*/ a\nconst char* s = "/*"; b // "\nR"(\n// c\n)"\n\'"\' /* " */ d\n'

    assert [word for word in "abcd" if word in active_lines(text)[0]] == ["a", "b", "c", "d"]


def test_includes_are_normalized() -> None:
    text = '#  include<a.h>\n#include   "b.h"  // b\n#define HEADER <c.h>\n#include HEADER\n'

    assert preprocessed(text, {}).certain.split("\n")[:4] == ["#include <a.h>", '#include "b.h"', "", "#include <c.h>"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n#ifdef USE_ROCM\n", "line 2: a condition without `#endif`"),
        ("#endif\n", "line 1: `#endif` without its `#if`"),
        ("#if 1\n#else\n#else\n#endif\n", "line 3: `#else` without its `#if`"),
        ("#ifdef USE_ROCM\n#error not here\n#endif\n", "line 2: #error not here"),
        ("/* for ever\n", "unterminated comment"),
    ],
)
def test_invalid_preprocessor_input_is_rejected(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        preprocessed(text, {"USE_ROCM": "1"})


def test_python_is_matched_independent_of_formatting() -> None:
    first = 'if a in ["b",\n  "c",  # "d"\n]:\n    x = "y"\n'
    second = "\n\nif (a in ['b', 'c']): x = 'y'\n"

    assert canonical(first).certain == canonical(second).certain == "if a in ['b', 'c']:\n    x = 'y'"
    assert (canonical(first).lines, canonical(second).lines) == ({1: 1, 2: 4}, {1: 3, 2: 3})


def test_python_evidence_has_statement_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('# x = 1\nif a in [\n    "b",\n]:\n    x = (\n        1)\n')

    assert match(tmp_path, {"file": "a.py", "match": r"'b'\]:\n +x = 1"}) == "a.py:5: x = 1"


def test_invalid_python_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nif:\n")

    with pytest.raises(SourceError, match=r"a.py` cannot be compiled: .*line 2"):
        match(tmp_path, {"file": "a.py", "match": "x = 1"})


def test_left_out_text_must_exist_but_be_inactive(tmp_path: Path) -> None:
    pattern = {"file": "a.cuh", "defines": ["USE_ROCM"], "inactive_match": "^x"}

    def match_in(text: str) -> str | None:
        (tmp_path / "a.cuh").write_text(text)
        return match(tmp_path, pattern)

    assert match_in("#ifndef USE_ROCM\nx\n#endif\n") == "a.cuh:2: x (left out)"
    assert match_in("#ifdef UNKNOWN\nx\n#endif\n") is None
    assert match_in("// no such line\n") is None


def test_plain_text_is_unchanged() -> None:
    assert preprocessed("a\nb\n", {}) == Reading("a\nb\n", "a\nb\n", "a\nb\n", {})
