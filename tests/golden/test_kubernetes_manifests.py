"""Kubernetes manifests match golden files and the schemas of Kubernetes.

One case is saved as its differences from another. `UPDATE_GOLDEN=1 pytest tests/golden` writes the files.
"""

from pathlib import Path
from textwrap import indent

import kubernetes_validate
import pytest
import yaml
from cluster_samples import CASES, all_objects, check_object, cluster_plan, manifest_texts, objects
from golden_files import check_file, check_folder, differences

from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import data_root
from orchestrator.engine import drain, first_sample, liveness
from orchestrator.planner.planning import load, profile_names

FOLDER = Path(__file__).parent / "kubernetes"
VERSIONS = ("1.28", "1.32", "1.36")
# Programs in a ConfigMap of each case.
EMBEDDED = (liveness, drain, first_sample)
PROGRAMS = (data_root() / "images" / "check_server_args.py", *(Path(program.__file__) for program in EMBEDDED))
DIFFERENCES = {"b200-tp8": "mi355x-tp4dp2"}  # case -> base


def manifests(case: str) -> dict[str, str]:
    """Return the manifests of a case, with the name of each embedded program instead of its text."""
    texts = manifest_texts(cluster_plan(case, *CASES[case]))
    return {name: _without_programs(text) for name, text in texts.items()}


def _without_programs(text: str) -> str:
    for program in PROGRAMS:
        embedded = indent(program.read_text(), " " * 4)
        text = text.replace(embedded, f"    <{program.name}>\n")
    return text


@pytest.mark.parametrize("case", sorted(CASES.keys() - DIFFERENCES.keys()))
def test_manifests(case: str) -> None:
    check_folder(FOLDER / case, manifests(case))


@pytest.mark.parametrize(("case", "base"), DIFFERENCES.items())
def test_differences_from_base_case(case: str, base: str) -> None:
    check_file(FOLDER / f"{case}.diff", differences(manifests(base), manifests(case)))


def test_every_golden_manifest_belongs_to_a_case() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CASES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid_for_kubernetes_version(case: str, version: str) -> None:
    objs = all_objects(cluster_plan(case, *CASES[case]))
    assert {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"} <= {obj["kind"] for obj in objs}
    for obj in objs:
        check_object(obj, version)


def test_unknown_field_is_rejected() -> None:
    deployment = objects(cluster_plan("cpu-tiny", *CASES["cpu-tiny"]))["Deployment"]
    deployment["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        check_object(deployment, VERSIONS[0])


def test_shipped_profiles_render_valid_manifests() -> None:
    """Profiles without an image, with a patched checkpoint or with roles cannot run on Kubernetes."""
    plans = {name: load(name).plan for name in profile_names(Catalog.shipped())}
    fit = [name for name, plan in plans.items() if plan.engine.image and not overlay_path(plan) and not plan.roles]
    assert len(fit) > 30
    errors = {}
    for profile in fit:
        for obj in all_objects(cluster_plan(profile, *CASES["cpu-tiny"])):
            try:
                check_object(obj, VERSIONS[-1])
            except kubernetes_validate.ValidationError as error:
                errors[profile] = error
    assert not errors


def test_profile_patching_the_checkpoint_is_rejected() -> None:
    with pytest.raises(ProfileError, match="cannot plan") as raised:
        manifest_texts(cluster_plan("mi355x-tp4dp2-july", *CASES["cpu-tiny"]))
    assert "config.json" in raised.value.problems[0].message


def test_manifests_contain_no_yaml_anchors() -> None:
    """Anchors make a manifest hard to read."""
    for case, overrides in CASES.items():
        for text in manifest_texts(cluster_plan(case, *overrides)).values():
            tokens = yaml.scan(text)
            assert not [token for token in tokens if isinstance(token, yaml.AliasToken | yaml.AnchorToken)]
