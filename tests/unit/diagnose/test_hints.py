"""Test that the commands in diagnosis hints exist."""

import re

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.command_hints import expand_commands, set_invocation
from orchestrator.diagnose.signatures import Signature, load_catalog

COMMAND = re.compile(r"`deploy ([a-z]+(?: [a-z]+)?)")


@pytest.mark.parametrize("signature", load_catalog(), ids=lambda signature: signature.id)
def test_every_command_in_a_hint_exists(signature: Signature) -> None:
    for command in COMMAND.findall(signature.hint):
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, f"no `deploy {command}`"


@pytest.mark.parametrize("signature", load_catalog(), ids=lambda signature: signature.id)
def test_hint_commands_are_expanded_with_profile_and_overrides(signature: Signature) -> None:
    set_invocation("./night-owl.yaml", ["layout.tp=2", "flags.x=a b"], None)
    hint = expand_commands(signature.hint)

    assert not re.search(r"\b(PROFILE|P|NAME)\b", hint)
    count = hint.count("./night-owl.yaml --set layout.tp=2 --set 'flags.x=a b'")
    assert count == len(re.findall(r"\bPROFILE\b", signature.hint))
