"""The tests that the security policy names exist."""

import re

from orchestrator.core.paths import data_root

ROOT = data_root()


def test_every_test_named_in_security_policy_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / ".github/SECURITY.md").read_text()))
    defined = {
        name
        for path in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 25
    assert named <= defined


def test_threat_model_states_worst_case_of_each_party() -> None:
    model = (ROOT / ".github/SECURITY.md").read_text().partition("## Threat model")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.+\|$", model, re.MULTILINE)
    ]
    parties = {row[0]: row[1] for row in rows[2:]}
    for party in ("hub", "registry", "package index", "launcher", "remote host", "endpoint", "results file"):
        assert [worst for name, worst in parties.items() if name.startswith(party) and worst], party
    assert len(model.split()) < 500
