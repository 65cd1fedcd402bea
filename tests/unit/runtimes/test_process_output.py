"""Output cut into lines, and the ways secrets take to a server."""

import json

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import UsageError
from orchestrator.core.secret import Secret
from orchestrator.engine.config_file import delivery
from orchestrator.runtimes.process.supervisor import LONGEST_LINE, split_lines

LOCKED = plan_of("cpu-tiny", "server.api_key_env=KEY")


def test_lines_are_whole_wherever_the_pieces_are_cut() -> None:
    pieces = [b"one\ntw", b"o\r\nth", b"ree", b"\n\n", b"10%\r20%\r", b"end"]

    assert list(split_lines(iter(pieces))) == [b"one", b"two", b"three", b"10%", b"20%", b"end"]


def test_line_without_end_is_cut_before_it_fills_the_memory() -> None:
    pieces = (b"x" * 65536 for _ in range(40))

    lines = list(split_lines(pieces))

    assert sum(map(len, lines)) == 40 * 65536
    assert max(map(len, lines)) <= LONGEST_LINE + 65536


def test_key_goes_into_a_config_file_and_the_rest_into_the_environment() -> None:
    ways = delivery({"KEY": Secret('a "quoted" key'), "HF_TOKEN": Secret("t")}, api_key_env="KEY")

    assert ways.config is not None
    assert json.loads(ways.config.reveal()) == {"api-key": 'a "quoted" key'}
    assert list(ways.env) == ["HF_TOKEN"]
    assert "quoted" not in repr(ways)


def test_without_a_key_there_is_no_config_file() -> None:
    ways = delivery({"HF_TOKEN": Secret("t")}, api_key_env=None)

    assert ways.config is None
    assert list(ways.env) == ["HF_TOKEN"]


def test_key_that_looks_like_an_option_is_refused_without_being_shown() -> None:
    with pytest.raises(UsageError) as raised:
        delivery({"KEY": Secret("--sk-123")}, api_key_env="KEY")

    assert "`KEY`" in raised.value.message
    assert "sk-123" not in raised.value.message
