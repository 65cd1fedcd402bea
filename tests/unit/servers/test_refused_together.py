"""`deploy up` and `deploy render` name everything that a profile's runtime refuses at once."""

from pathlib import Path

import pytest

from orchestrator.cli.render import command as render
from orchestrator.cli.up import command as up
from orchestrator.core.errors import ProfileError, UsageError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    monkeypatch.delenv("OWL_KEY", raising=False)


def test_a_cluster_without_checkpoint_image_and_key() -> None:
    with pytest.raises(ProfileError) as refused:
        up(profile="mi355x-tp8", runtime="kubernetes", set_=["server.api_key_env=OWL_KEY"], host="ssh://node")
    assert [problem.message for problem in refused.value.problems] == [
        "no checkpoint location is set for the pods",
        "the image that `deploy` builds is in no registry",
        "`--host` is not for kubernetes: its cluster chooses the node",
        "`OWL_KEY` is not set; the plan takes the API key from it",
    ]


def test_the_files_of_a_cluster() -> None:
    with pytest.raises(ProfileError) as refused:
        render(profile="mi355x-tp8", runtime="kubernetes", set_=["layout.tp=16"])
    assert [problem.message for problem in refused.value.problems] == [
        "tp 16 needs 16 GPUs; the node has 8",
        "no checkpoint location is set for the pods",
        "the image that `deploy` builds is in no registry",
    ]


def test_one_refusal_keeps_its_own_words() -> None:
    with pytest.raises(UsageError, match="`OWL_KEY` is not set"):
        up(profile="cpu-tiny", set_=["server.api_key_env=OWL_KEY"])
    with pytest.raises(ProfileError, match="cannot plan profile `cpu-tiny`"):
        up(profile="cpu-tiny", runtime="slurm")
