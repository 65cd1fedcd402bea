"""Errors for old key names suggest the new names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from orchestrator.bench.published import WorkloadShape
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import ProfileError
from orchestrator.core.validation import RENAMED_KEYS, read_model, validation_problems
from orchestrator.experiments.sweep.space import SpaceFile
from orchestrator.kernels.disk import pins
from orchestrator.patches.schema import Patch
from orchestrator.plan.known_issues import KnownIssues
from orchestrator.planner.planning import load
from orchestrator.profiles.schema import EngineFile, HardwareFile, ModelFile, Profile

FILES = (
    Profile, HardwareFile, ModelFile, EngineFile, Workload, WorkloadShape, KnownIssues, Patch, SpaceFile, pins.Pins
)  # fmt: skip


def models(annotation: object, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Yield a model and all models in its fields, each once."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation, seen)
    for argument in getattr(annotation, "__args__", ()):
        yield from models(argument, seen)


ALL_MODELS = tuple(model for file in FILES for model in models(file, set()))


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items(), ids=list(RENAMED_KEYS))
def test_old_key_in_file_suggests_new_key(old: str, new: str) -> None:
    owners = {model for model in ALL_MODELS if new in model.model_fields and old not in model.model_fields}
    assert owners, f"no file has a key `{new}`"
    for owner in owners:
        with pytest.raises(ValueError, match="Extra inputs") as caught:
            owner.model_validate({old: None})
        problems = validation_problems(caught.value, data={old: None}, kind=owner)  # type: ignore[arg-type]
        assert f"did you mean `{new}`?" in [problem.hint for problem in problems], owner


@pytest.mark.parametrize(
    ("setting", "new"),
    [
        ("waiting.silence=3", "timeouts"),
        ("timeouts.silence=3", "progress_deadline"),
        ("model.weights=1GB", "weights_size"),
        ("kubernetes.image_on_node=true", "image_pull_policy"),
        ("slurm.time=30", "time_limit"),
        ("accept_known_bad=[x]", "allow_known_issues"),
    ],
)
def test_old_key_in_set_suggests_new_key(setting: str, new: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("cpu-tiny", overrides=[setting])
    assert f"did you mean `{new}`?" in [problem.hint for problem in caught.value.problems]


def test_mistyped_key_suggests_closest_key(tmp_path: Path) -> None:
    path = tmp_path / "load.yaml"
    path.write_text("input_tokens: 8\noutput_tokens: 8\nseedd: 1\nkind: x\nconcurrency: 1\nload: closed\n")
    with pytest.raises(ProfileError) as caught:
        read_model(path, Workload, "load.yaml")
    assert [problem.hint for problem in caught.value.problems if "seedd" in problem.message] == ["did you mean `seed`?"]
