"""Test how secrets reach a server: by config file or by environment."""

import json

from orchestrator.core.secrets import Secret
from orchestrator.engine.launch import CONTROL_KEY, split_secrets


def test_api_key_goes_into_config_other_secrets_into_environment() -> None:
    delivery = split_secrets({"KEY": Secret('a "quoted" key'), "HF_TOKEN": Secret("t")}, api_key_env="KEY")

    assert delivery.config is not None
    assert json.loads(delivery.config.reveal()) == {"api-key": 'a "quoted" key'}
    assert list(delivery.env) == ["HF_TOKEN"]
    assert "quoted" not in repr(delivery)


def test_no_config_file_without_api_key() -> None:
    delivery = split_secrets({"HF_TOKEN": Secret("t")}, api_key_env=None)

    assert delivery.config is None
    assert list(delivery.env) == ["HF_TOKEN"]


def test_control_key_goes_into_config_file() -> None:
    both = split_secrets({"KEY": Secret("of-clients"), CONTROL_KEY: Secret("of-control")}, api_key_env="KEY")
    assert both.config is not None
    assert json.loads(both.config.reveal()) == {"api-key": "of-clients", "control-key": "of-control"}
    control_only = split_secrets({CONTROL_KEY: Secret("of-control")}, api_key_env=None)
    assert control_only.config is not None
    assert json.loads(control_only.config.reveal()) == {"control-key": "of-control"}
    assert both.env == control_only.env == {}
