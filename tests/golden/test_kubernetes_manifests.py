"""Manifests for Kubernetes, and what Kubernetes' own schemas say of them.

Two profiles are kept whole, one as what differs from the first. `UPDATE_GOLDEN=1 pytest tests/golden` writes them.
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
# In a ConfigMap of each case.
CARRIED = (liveness, drain, first_sample)
PROGRAMS = (data_root() / "images" / "check_server_args.py", *(Path(program.__file__) for program in CARRIED))
DIFFERENCES = {"b200-tp8": "mi355x-tp4dp2"}  # a case, and the one that it is compared with


def manifests(case: str) -> dict[str, str]:
    """Its manifests, each program of this repository that they carry as its name alone."""
    texts = manifest_texts(cluster_plan(case, *CASES[case]))
    return {name: _without_programs(text) for name, text in texts.items()}


def _without_programs(text: str) -> str:
    for program in PROGRAMS:
        carried = indent(program.read_text(), " " * 4)
        text = text.replace(carried, f"    <{program.name}>\n")
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
    found = all_objects(cluster_plan(case, *CASES[case]))
    assert {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"} <= {obj["kind"] for obj in found}
    for obj in found:
        check_object(obj, version)


def test_unknown_field_is_rejected() -> None:
    """The schemas are strict: the test above can fail."""
    deployment = objects(cluster_plan("cpu-tiny", *CASES["cpu-tiny"]))["Deployment"]
    deployment["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        check_object(deployment, VERSIONS[0])


def test_shipped_profiles_render_valid_manifests() -> None:
    """Not those that run where no image is, whose checkpoint has to be patched, or whose servers have roles."""
    plans = {name: load(name).plan for name in profile_names(Catalog.shipped())}
    fit = [name for name, plan in plans.items() if plan.engine.image and not overlay_path(plan) and not plan.roles]
    assert len(fit) > 30
    faults = {}
    for profile in fit:
        for obj in all_objects(cluster_plan(profile, *CASES["cpu-tiny"])):
            try:
                check_object(obj, VERSIONS[-1])
            except kubernetes_validate.ValidationError as error:
                faults[profile] = error
    assert not faults


def test_profile_patching_the_checkpoint_is_rejected() -> None:
    with pytest.raises(ProfileError, match="cannot plan") as caught:
        manifest_texts(cluster_plan("mi355x-tp4dp2-july", *CASES["cpu-tiny"]))
    assert "config.json" in caught.value.problems[0].message


def test_manifests_contain_no_yaml_anchors() -> None:
    """kubectl expands anchors, and people who read a manifest do not."""
    for case, overrides in CASES.items():
        for text in manifest_texts(cluster_plan(case, *overrides)).values():
            tokens = yaml.scan(text)
            assert not [token for token in tokens if isinstance(token, yaml.AliasToken | yaml.AnchorToken)]
