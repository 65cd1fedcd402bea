"""An error for an unknown key suggests the nearest one."""

from pathlib import Path

import pytest

from orchestrator.bench.workload import Workload
from orchestrator.core.errors import ProfileError
from orchestrator.core.validation import read_model


def test_mistyped_key_suggests_closest_key(tmp_path: Path) -> None:
    path = tmp_path / "load.yaml"
    path.write_text("input_tokens: 8\noutput_tokens: 8\nseedd: 1\nkind: x\nconcurrency: 1\nload: closed\n")
    with pytest.raises(ProfileError) as caught:
        read_model(path, Workload, "load.yaml")
    assert [problem.hint for problem in caught.value.problems if "seedd" in problem.message] == ["did you mean `seed`?"]
