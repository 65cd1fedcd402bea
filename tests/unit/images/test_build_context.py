"""Test that the same plan and sources yield the same build context."""

import dataclasses
import re
from dataclasses import replace
from hashlib import sha256

import pytest

from orchestrator.core.errors import BuildError
from orchestrator.images.build import archive
from orchestrator.images.sources import image_sources
from orchestrator.plan.facts import Facts
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, read_profile
from orchestrator.render.artifacts import BuildContext
from orchestrator.render.dockerfile import base_reference, build_context, repository

TABLE = b"gfx,cu_num\n"
DIGEST = "sha256:" + "b4" * 32


def plan(*overrides: str, table: bytes | None = None) -> Plan:
    inputs = {"moe-table": sha256(table).hexdigest()} if table else {}
    return read_profile("mi355x-tp8", overrides=overrides).build(Facts(inputs=inputs))


def context(plan_: Plan, **inputs: bytes) -> BuildContext:
    return build_context(plan_, image_sources(plan_, inputs={"moe-table": inputs["table"]} if inputs else {}))


def dockerfile(built: BuildContext) -> str:
    return next(file.content.decode() for file in built.files if file.path == "Dockerfile")


def test_equal_plans_yield_identical_archives() -> None:
    assert archive(context(plan())) == archive(context(plan()))
    assert context(plan()).digest == context(plan()).digest


def test_build_context_contains_only_required_files() -> None:
    assert [file.path for file in context(plan()).files] == [
        "Dockerfile",
        "patches/apply_patches.py",
        "patches/manifest.json",
        "patches/read_sources.py",
    ]


def test_base_image_is_referenced_by_known_digest() -> None:
    engine = replace(plan().engine, image="host:5000/rocm/sgl:v1", image_digest=DIGEST)

    assert base_reference(engine) == f"host:5000/rocm/sgl@{DIGEST}"
    assert base_reference(replace(engine, image_digest=None)) == "host:5000/rocm/sgl:v1"
    with pytest.raises(BuildError, match="names no base image"):
        base_reference(replace(engine, image=None))


@pytest.mark.parametrize("name", ["sgl", "rocm/sgl", "host:5000/sgl", "host:5000/a/b"])
def test_repository_distinguishes_tag_from_port(name: str) -> None:
    assert repository(f"{name}:v1") == repository(name) == name


def test_kernel_table_is_copied_and_set_for_aiter() -> None:
    with_table = context(plan(table=TABLE), table=TABLE)

    assert "tables/moe-table" in [file.path for file in with_table.files]
    assert "COPY tables/moe-table /opt/deploy/tables/tuned_fmoe.csv" in dockerfile(with_table)
    assert 'ENV AITER_CONFIG_FMOE="/opt/deploy/tables/tuned_fmoe.csv"' in dockerfile(with_table)
    assert "AITER_CONFIG_FMOE" not in dockerfile(context(plan()))


def test_dockerfile_starts_with_published_fixes() -> None:
    text = dockerfile(context(plan()))
    fixes = [line for line in text.splitlines() if line.startswith("# wafer.ai/blog/glm52-amd, fix ")]

    assert [line.rpartition(" of 3, ")[2] for line in fixes] == [
        "MTP exclude list",
        "`#ifdef USE_ROCM` guard",
        "tuned aiter MoE table",
    ]
    steps = re.findall(r'^RUN .*"apply", "([a-z0-9-]+)"', text, re.MULTILINE)
    assert steps[:3] == ["mtp-shared-expert-exclude", "rocm-cuda-runtime-guard", "aiter-fp4-moe-table"]
    assert {*steps} == {use.id for use in plan().patches}


def test_dockerfile_step_explains_its_patch() -> None:
    new = dockerfile(context(plan()))
    assert "# State after this step: upstream by its version 0.5.16" in new
    old = dockerfile(context(load("mi355x-tp8-july").plan))
    assert "# State after this step: applied or upstream" in old
    assert "# State after this step: applied at startup or upstream" in old


def test_labels_name_each_patch_and_its_state() -> None:
    """A plain `docker build` adds no receipt, so the labels contain only what is known before the build."""
    new = dockerfile(context(plan(table=TABLE), table=TABLE))
    old = dockerfile(context(load("mi355x-tp8-july").plan))
    table = "deploy.patch.aiter-fp4-moe-table="
    assert f'{table}"table, sha256 {sha256(TABLE).hexdigest()} (wafer.ai/blog/glm52-amd, fix 3 of 3, tuned' in new
    assert f'{table}"needed: no moe-table (wafer.ai' in old
    guard, exclude = (f"deploy.patch.{name}=" for name in ("rocm-cuda-runtime-guard", "mtp-shared-expert-exclude"))
    assert f'{guard}"upstream by its version 0.5.16 (wafer.ai' in new
    assert f'{guard}"applied or upstream (wafer.ai' in old
    assert f'{exclude}"applied at startup or upstream (wafer.ai' in old
    assert new.count("; see /opt/deploy/receipt.json") == len(plan().patches)


def test_build_without_required_table_fails_with_command() -> None:
    without_table, with_table = context(plan()), context(plan(table=TABLE), table=TABLE)

    assert (without_table.missing_inputs, with_table.missing_inputs) == (("aiter-fp4-moe-table",), ())
    assert "This step stops the build;" in dockerfile(without_table)
    assert "ARG ALLOW_UNTUNED=" in dockerfile(without_table)
    assert "ALLOW_UNTUNED" not in dockerfile(with_table)
    assert f"# State after this step: table, sha256 {sha256(TABLE).hexdigest()}" in dockerfile(with_table)


def test_table_recorded_in_plan_must_be_provided() -> None:
    with pytest.raises(BuildError, match="which the plan has"):
        context(plan(table=TABLE))


def test_image_digest_depends_on_kernel_table() -> None:
    other = b"gfx,cu_num\ngfx950,256\n"

    assert context(plan(table=TABLE), table=TABLE).digest != context(plan(table=other), table=other).digest


@pytest.mark.parametrize(
    "template",
    [
        "RUN {{ no_such_name }}",
        "RUN {{ ''.__class__.__mro__[1].__subclasses__() }}",
        "RUN {{ plan.to_json.__globals__.__builtins__.open('/etc/passwd').read() }}",
        "RUN {{ range(10000000) | list }}",
        "{% include '/etc/passwd' %}",
        "{{ plan.flags.__class__ }}{% for %}",
    ],
)
def test_template_is_sandboxed_to_the_plan(template: str) -> None:
    sources = dataclasses.replace(image_sources(plan()), template="FROM {{ base }}\n" + template)

    with pytest.raises(BuildError, match="template `sglang-rocm` cannot be rendered"):
        build_context(plan(), sources)
