"""Problems of a profile, each with its file and line."""

import os
from pathlib import Path

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.validation import read_file
from orchestrator.planner.planning import load

GOOD = """\
hardware: cpu
model: tiny
engine: sglang-0.5.14-cpu
runtime: process
layout: {tp: 1}
"""


def problems_of(tmp_path: Path, text: str) -> dict[str, tuple[str, str]]:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load(str(path))
    problems = {
        problem.message: (problem.location.removeprefix(f"{path}:"), problem.hint) for problem in caught.value.problems
    }
    return problems or {caught.value.message: (caught.value.location.removeprefix(f"{path}:"), caught.value.hint)}


def test_values_of_own_profile_have_user_origin(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "flags: {max-total-tokens: 1024, context-length: 1024}\n")
    flag = next(flag for flag in load(str(path)).plan.flags if flag.name == "max-total-tokens")
    assert (flag.values, flag.origin) == (("1024",), "user")


def test_unknown_keys_suggest_closest_keys(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD + "serve: {}\nserver: {prot: 1}\n") == {
        "unknown key `serve`": ("6", "did you mean `server`?"),
        "unknown key `server.prot`": ("7", "did you mean `port`?"),
    }


def test_unknown_key_does_not_hide_other_problems() -> None:
    settings = ["no.such=key", "model.layrs=3", "layout.tp=8", "flags.nsa-prefil-backend=tilelang"]
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp4dp2", overrides=settings)
    assert [(problem.message, problem.location) for problem in caught.value.problems] == [
        ("unknown key `model.layrs`", "--set model.layrs"),
        ("unknown key `no`", "--set no.such"),
        ("tp 8 x dp 2 needs 16 GPUs; the node has 8", "--set layout.tp"),
        ("sglang 0.5.16 has no option `--nsa-prefil-backend`", "--set flags.nsa-prefil-backend"),
    ]
    with pytest.raises(ProfileError) as caught:
        load("cpu-tiny", overrides=["no.such=key", "server.port=http"])
    assert len(caught.value.problems) == 2


def test_wrong_type_error_names_expected_type(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, GOOD + "server:\n  port: http\n  host: 12\ntimeouts: 3\ndescription: [a]\n")
    assert problems == {
        "`server.port` must be a whole number, found `http`": ("7", ""),
        "`server.host` must be text, found 12": ("8", ""),
        "`timeouts` must be a mapping, found 3": ("9", ""),
        "`description` must be text, found ['a']": ("10", ""),
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.checkpoint.path=relative/x", "expected an absolute path: a server is started in another directory"),
        ("model.checkpoint.path=./x", "expected an absolute path: a server is started in another directory"),
        ("model.weights_size=0", "`model.weights_size`: should be greater than or equal to 1, found 0"),
        ("model.served_name=ti\u200bny", "a text of one line cannot contain '\\u200b'"),
        ("hardware.gpu_product=MI\ufeff355X", "a text of one line cannot contain '\\ufeff'"),
        ("model.served_name=ti\u3164ny", "a text of one line cannot contain '\u3164'"),
        ("model.served_name=ti\ufe0fny", "a text of one line cannot contain '\ufe0f'"),
        ("model.served_name=ti\U000e0041ny", "a text of one line cannot contain '\\U000e0041'"),
        ("engine.image=UPPER/Repo:tag", "`UPPER/Repo:tag` is not the name of an image"),
        ("engine.image=a/../b", "`a/../b` is not the name of an image"),
    ],
)
def test_unusable_value_is_rejected(setting: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("cpu-tiny", overrides=["model.checkpoint.source=local", "model.checkpoint.path=/x", setting])
    (problem,) = caught.value.problems
    assert message in problem.message


def test_missing_entry_is_reported(tmp_path: Path) -> None:
    assert "`engine` must name a file, found nothing" in problems_of(tmp_path, GOOD.replace("engine:", "motor:"))


def test_nonexistent_entries_are_reported_with_suggestions(tmp_path: Path) -> None:
    text = GOOD.replace("cpu\n", "cpo\n", 1).replace("tiny", "tyni")
    assert problems_of(tmp_path, text) == {
        "no hardware `cpo` found": ("1", "did you mean `cpu`?"),
        "no model `tyni` found": ("2", "did you mean `tiny`?"),
    }


def test_published_value_without_source_is_rejected(tmp_path: Path) -> None:
    text = GOOD + "flags:\n  device: {value: cpu, origin: published}\n"
    [(message, (line, _))] = problems_of(tmp_path, text).items()
    assert "names its source" in message
    assert line == "7"


def test_decimal_and_binary_size_units_are_parsed() -> None:
    assert load("mi355x-tp8").plan.hardware.vram_bytes == 288 * 1024**3
    assert load("mi325x-tp8").plan.model.weight_bytes == 756 * 1000**3


@pytest.mark.timeout(30)  # opening a FIFO may block forever
@pytest.mark.parametrize("endless", ["fifo", "zero"])
def test_endless_file_is_rejected(tmp_path: Path, endless: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware/odd.yaml").symlink_to(tmp_path / endless)
    with pytest.raises(ProfileError, match=r"cannot read `.*`: not a file"):
        read_file(tmp_path / "hardware/odd.yaml", "odd.yaml")


def test_file_with_invalid_encoding_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"description: \xe4\n")
    with pytest.raises(ProfileError, match="cannot read"):
        load(str(path))
