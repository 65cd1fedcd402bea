"""The ways secrets take to a server."""

import json

from orchestrator.core.secret import Secret
from orchestrator.engine.launch import delivery


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
