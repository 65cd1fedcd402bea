"""Test the parsing of an engine's verdicts on its arguments; the messages are from real versions."""

import json
from dataclasses import replace

import pytest

from orchestrator.engine.launch import PROFILE_KEYS, Launch, launch_argv
from orchestrator.engine.server_args import ArgumentQuestion, ArgumentRejection, read_verdicts, server_arguments

OPTIONS = (
    "tp-size",
    "dcp-size",
    "grpc-port",
    "enable-eplb",
    "retraction-policy",
    "tool-call-parser",
    "max-queued-requests",
)


def make_rejection(
    message: str, *, kind: str = "ValueError", line: str = "", options: tuple[str, ...] = ()
) -> ArgumentRejection:
    return ArgumentRejection(kind=kind, message=message, location="server_args.py:1", line=line, options=options)


@pytest.mark.parametrize(
    ("rejection", "expected"),
    [
        (make_rejection("AssertionError", line="assert self.ep_size > 1", options=("enable-eplb",)), ("enable-eplb",)),
        (
            make_rejection("argument --tool-call-parser: invalid choice: 'glm99' (choose from 'glm')", kind="argparse"),
            ("tool-call-parser",),
        ),
        (
            make_rejection("argument --tp-size/--tensor-parallel-size: invalid int value: 'x'", kind="argparse"),
            ("tp-size",),
        ),
        (
            make_rejection("unrecognized arguments: --dcp-size 0 --grpc-port 7", kind="argparse"),
            ("dcp-size", "grpc-port"),
        ),
        (make_rejection("ValueError: Decode context parallel size must be >= 1, but got dcp_size=0."), ("dcp-size",)),
        (make_rejection("AssertionError", line="assert self.max_queued_requests >= 1"), ("max-queued-requests",)),
        (make_rejection("ZeroDivisionError: integer modulo by zero", line="x % cfg.dcp_size"), ("dcp-size",)),
        (make_rejection("ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs"), ()),
        (make_rejection("it names dcp_size", options=("model-path",)), ("dcp-size",)),
    ],
)
def test_rejection_names_the_options_involved(rejection: ArgumentRejection, expected: tuple[str, ...]) -> None:
    assert rejection.rejected_options(OPTIONS) == expected


def test_assertion_without_message_shows_its_condition() -> None:
    without_message = make_rejection("AssertionError", kind="AssertionError", line="assert self.ep_size > 1")
    assert without_message.text == "`assert self.ep_size > 1` (server_args.py:1)"
    assert make_rejection("argument --x: bad", kind="argparse").text == "argument --x: bad"


def test_verdicts_are_read_from_the_last_line() -> None:
    verdicts = [
        {"accepted": "validated"},
        {"accepted": "parsed"},
        {"unchecked": "OSError: no draft model"},
        {
            "rejected": {
                "kind": "ValueError",
                "message": "no",
                "location": "a.py:1",
                "line": "x",
                "options": ["dcp-size"],
            }
        },
    ]
    parsed = read_verdicts("a line before\n" + json.dumps({"sglang": "0.5.16", "verdicts": verdicts}) + "\n")
    assert [(verdict.parsed_only, verdict.unchecked) for verdict in parsed[:3]] == [
        (False, ""),
        (True, ""),
        (False, "OSError: no draft model"),
    ]
    assert parsed[3].rejection is not None
    assert parsed[3].rejection.options == ("dcp-size",)


@pytest.mark.parametrize("output", ["", "Traceback", "{}", "[]", '{"verdicts": [{"rejected": {"kind": "x"}}]}'])
def test_invalid_verdict_output_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_verdicts(output)


def test_question_includes_model_files_if_available() -> None:
    def model_in_question(files: dict[str, str] | None) -> object:
        question = ArgumentQuestion(
            argv=(("--model-path", "m"),),
            platform="rocm",
            arch="gfx950",
            gpus=8,
            vram_bytes=1,
            compute_units=256,
            model="glm",
            files=files,
            rdma=False,
        )
        return json.loads(question.to_json())["model"]

    assert model_in_question(None) is None
    assert model_in_question({"config.json": "{}"}) == {"name": "glm", "files": {"config.json": "{}"}}


def test_server_arguments_follow_the_module_name() -> None:
    argv = ("apptainer", "exec", "image", "python3", "-m", "sglang.launch_server", "--model-path", "m")
    assert server_arguments(argv) == ("--model-path", "m")


def test_every_generated_option_has_a_profile_key() -> None:
    launch = Launch(
        model_path="m",
        served_name="s",
        host="h",
        port=1,
        tp=2,
        dp=2,
        ep=2,
        dp_attention=True,
        flags=[("device", ["cpu"])],
        nodes=2,
    )
    lines = [launch_argv(replace(launch, dp_option=option), python="p") for option in ("dp-size", "attn-dp-size")]
    options = {word.removeprefix("--") for line in lines for word in line if word.startswith("--")}
    assert options == {*PROFILE_KEYS, "device"}
