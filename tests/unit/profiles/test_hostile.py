"""Any file and any `--set` value results in a plan or an error: quickly, and never in a traceback."""

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.errors import DeployError, ProfileError
from orchestrator.core.yaml_document import read_document
from orchestrator.planner.planning import load, render_artifacts, rendered_files

GOOD = "hardware: cpu\nmodel: tiny\nengine: sglang-0.5.14-cpu\nruntime: process\nlayout: {tp: 1}\n"


def error_of(tmp_path: Path, text: str) -> ProfileError:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load(str(path))
    return caught.value


@pytest.mark.parametrize(
    "override",
    [
        "server.port=3_",
        "server.port=1__0",
        "server.port=" + "9" * 5000,
        "flags.max-total-tokens=abc",
        "flags.mem-fraction-static=nan",
        "flags.mem-fraction-static=inf",
        "flags.mem-fraction-static=" + "9" * 400 + ".0",
        "model.weights_size=" + "9" * 400 + "TiB",
        "timeouts.progress_deadline=99999999999999999999",
        "flags.tokenizer-path=--trust-remote-code",
        "description=two\nlines",
        "description=\udcff",
        "env.A=two\nlines",
        "env.A B=1",
        "env.A.value=[1,2]",
        "hardware=../hardware/cpu",
        "model=" + "m" * 5000,
        "engine.version=../../x",
        "a." * 30_000 + "b=1",
        "layout.tp.value.x=1",
        "layout=1",
        "flags=1",
        "flags.preferred-sampling-params=" + "[" * 10_000,
    ],
)
def test_invalid_override_is_rejected(override: str) -> None:
    with pytest.raises(ProfileError):
        load("cpu-tiny", overrides=[override])


def test_invalid_speculative_steps_are_rejected() -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=["flags.speculative-num-steps=abc"])
    [problem] = caught.value.problems
    assert problem.message == "`--speculative-num-steps` of sglang 0.5.16 takes a whole number, found `abc`"
    assert problem.location == "--set flags.speculative-num-steps"


def test_yaml_aliases_are_rejected_without_expansion(tmp_path: Path) -> None:
    assert error_of(tmp_path, GOOD.replace("{tp: 1}", "&x [*x]")).problems
    names = zip("abcdefgh", "bcdefghi", strict=True)
    rows = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in names]
    started = time.process_time()
    assert error_of(tmp_path, "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(rows)).problems
    assert time.process_time() - started < 5


def test_twenty_thousand_keys_are_read_quickly(tmp_path: Path) -> None:
    """Linear work takes 0.3 s of CPU time, quadratic work 11 s."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "env:\n" + "\n".join(f"  NO_{number}: {number}" for number in range(20_000)))
    started = time.process_time()
    assert len(load(str(path)).plan.env) > 20_000
    assert time.process_time() - started < 4


@pytest.mark.parametrize("section", ["flags", "server"])
def test_only_first_100_problems_are_reported(section: str, tmp_path: Path) -> None:
    """The search for the closest name takes a millisecond per key."""
    keys = "\n".join(f"  no-such-{number}: {number}" for number in range(20_000))
    started = time.process_time()
    problems = error_of(tmp_path, f"{GOOD}{section}:\n{keys}\n").problems
    assert time.process_time() - started < 15  # 20,000 searches take 20 s on an idle machine
    assert [problem.message for problem in problems[100:]] == ["only the first 100 problems are shown"]


STAIRS = "a:\n" + "".join(f"{' ' * step}b:\n" for step in range(1, 40))


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 50_000, "- " * 20_000, STAIRS])
def test_too_deep_nesting_is_rejected(text: str, tmp_path: Path) -> None:
    """PyYAML since 6.0.4 may reject the text before our own limit does."""
    assert re.search("nested deeper than|maximum nesting depth", error_of(tmp_path, text).message)


@pytest.mark.parametrize("text", [".nan", ".inf", "1e999", "9" * 400, "9" * 5000, "9" * 400 + ".5", "-" + "9" * 400])
def test_unsupported_numbers_are_read_as_text(text: str) -> None:
    assert read_document(f"key: {text}", "f.yaml").data == {"key": text}


def test_second_document_and_non_text_key_are_rejected(tmp_path: Path) -> None:
    messages = {problem.message for problem in error_of(tmp_path, GOOD + "? [a, b]\n: c\n---\nd: 1\n").problems}
    assert messages == {"a key must be text", "the file has a second document"}


def test_multiline_text_for_rendered_files_is_rejected(tmp_path: Path) -> None:
    text = GOOD + 'description: "fine\\nrm -rf /"\nenv: {A: {value: "1\\n2", origin: recipe, source: "x\\ny"}}\n'
    lines = {problem.location.rpartition(":")[2] for problem in error_of(tmp_path, text).problems}
    assert lines == {"6", "7"}


@pytest.mark.parametrize("escape", ["\\r", "\\0", "\\e", "\\x7f", "\\x9b", "\\u2028", "\\u202e", "\\u2066"])
@pytest.mark.parametrize(
    "line", ["description: '{}'", "'{}': 1", "server:\n  host: '{}'", "flags:\n  device: [a, '{}']"]
)
def test_control_characters_are_rejected_with_their_line(line: str, escape: str, tmp_path: Path) -> None:
    text = GOOD + line.format(f"a{escape}b").replace("'", '"') + "\n"
    (problem,) = error_of(tmp_path, text).problems
    assert problem.message.startswith("a text cannot contain")
    assert problem.location.endswith(f":{len(text.splitlines())}")


HOSTILE_TEXTS = ["--privileged", "a b", "a\nRUN touch /x", "a\\", "$(id)", "a;b", '"', ""]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize(
    "key", ["engine.image", "engine.source_dir", "engine.aiter_dir", "engine.requirements", "engine.dockerfile"]
)
def test_dockerfile_values_cannot_inject_instructions(key: str, text: str) -> None:
    with pytest.raises(DeployError):
        rendered_files(render_artifacts(load("mi355x-tp8", overrides=[f"{key}={text}"]).plan))


@pytest.mark.parametrize("key", ["devices", "groups", "security_opt", "cap_add"])
@pytest.mark.parametrize("text", ["--privileged", "a b", "a\tb"])
def test_container_settings_cannot_inject_docker_options(key: str, text: str) -> None:
    with pytest.raises(ProfileError):
        load("mi355x-tp8", overrides=[f"hardware.container.{key}=[{text}]"])


# Keys with the most checks, and values that users may mistype.
KEYS = st.sampled_from(
    ["flags.device", "flags.max-total-tokens", "flags.mem-fraction-static", "env.A", "layout.tp", "layout.dp_attention",
     "server.port", "server.host", "model.weights_size", "model.moe", "hardware.container.ulimits.x",
     "timeouts.progress_deadline", "skip_patches", "allow_known_issues", "description", "runtime", "engine.image",
     "hardware", "engine.version",
     "flags.speculative-num-steps", "flags.context-length", "flags.chunked-prefill-size", "layout", "flags", "env"]
)  # fmt: skip
LEAVES = st.sampled_from(["", "", ".value", ".origin", ".source", ".soft", ".x"])
VALUES = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.lists(st.text(max_size=3), max_size=3).map(lambda items: f"[{','.join(items)}]"),
    st.sampled_from(
        ["true", "false", "null", "[]", "[1,2]", "{}", "3_", "-1", "~", "1e5", "0x1", "128k", "=", "[null]"]
    ),
)


@given(st.lists(st.tuples(KEYS, LEAVES, VALUES).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}"), max_size=4))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_overrides_never_cause_a_traceback(overrides: list[str]) -> None:
    with suppress(DeployError):
        rendered_files(render_artifacts(load("mi355x-tp8", overrides=overrides).plan))


SECTIONS = st.sampled_from(["flags", "env", "layout", "server", "timeouts", "model", "allow_known_issues"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["*x", "&x", "!!int 1"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_any_text_is_a_document_or_an_error(text: str) -> None:
    with suppress(ProfileError):
        read_document(text, "f.yaml")


@given(section=SECTIONS, tree=TREES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_file_sections_never_cause_a_traceback(tmp_path: Path, section: str, tree: object) -> None:
    path = tmp_path / "mine.yaml"
    text = GOOD.replace("layout: {tp: 1}\n", "") if section == "layout" else GOOD
    path.write_text(text + f"{section}: {_flow(tree)}\n", encoding="utf-8", errors="replace")
    with suppress(DeployError):
        load(str(path))


def _flow(tree: object) -> str:
    """Return the tree in YAML flow style, with texts unquoted."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(_flow(item) for item in tree) + "]"
    return str(tree).lower() if isinstance(tree, bool) else "null" if tree is None else str(tree)
