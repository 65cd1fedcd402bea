"""Test recipes: strict parsing, user recipes before shipped ones, and the shipped patterns."""

from pathlib import Path

import pytest
from quark_samples import RECIPES as SAMPLE_RECIPES

from orchestrator.checkpoints.quantize.recipe import load_recipe
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import Home

SHIPPED = Catalog.shipped()


def test_recipe_problem_has_line_number(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nsource: me\nmodel_types: []\nscheme: mxfp8\nexclud: [lm_head]\n")
    with pytest.raises(ProfileError) as caught:
        load_recipe(str(path), SHIPPED)
    problems = {(problem.location.rpartition(":")[2], problem.message.partition("`")[2].partition("`")[0], problem.hint)
            for problem in caught.value.problems}  # fmt: skip
    assert {("3", "model_types", ""), ("4", "scheme", ""), ("5", "exclud", "did you mean `exclude`?")} <= problems


def test_unknown_recipe_suggests_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("glm-5.2-amb", SHIPPED)
    assert "glm-5.2-amd" in caught.value.hint


def test_user_recipe_overrides_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "recipes" / "glm-5.2-amd.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("description: mine\nsource: me\nmodel_types: [glm_moe_dsa]\nscheme: mxfp4\nexclude: [lm_head]\n")
    assert load_recipe("glm-5.2-amd", Catalog.of(Home(tmp_path))).exclude == ["lm_head"]
    assert load_recipe("glm-5.2-amd", SHIPPED).exclude != ["lm_head"]


def test_shipped_recipes_match_verified_samples() -> None:
    """The tensors of the samples equal real Quark output by digest."""
    shipped = {"glm-5.2-amd": "amd52", "glm-5.2-quark": "default", "glm-5.2-routed": "wafer"}
    assert set(SHIPPED.names(EntryKind.RECIPE)) == {*shipped}
    for name, sample in shipped.items():
        assert tuple(load_recipe(name, SHIPPED).exclude) == SAMPLE_RECIPES[sample].exclude


def test_mtp_layer_follows_last_layer() -> None:
    assert load_recipe("glm-5.2-amd", SHIPPED).excluded(78)[-1] == "*layers.78.*"
