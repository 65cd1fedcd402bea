"""Every claim of the security policy names a test that there is."""

import re

from orchestrator.core.paths import data_root

ROOT = data_root()


def test_each_test_that_the_policy_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / ".github/SECURITY.md").read_text()))
    defined = {
        name
        for path in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 25
    assert named <= defined
