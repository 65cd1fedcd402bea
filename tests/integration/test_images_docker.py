"""Run `deploy build` on a real Docker engine, on a fake ROCm image with the sources of sglang 0.5.14."""

import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import slow_build
from command_line import CommandLine
from kernel_samples import FUSED_TP8, HEADER, UNFUSED_TP8, line
from rocm_image import COMMIT, ENGINE_PACKAGES, PACKAGE, base_image, packages_of
from slow_build import with_step
from waits import TIMEOUT, wait_for
from wheels import read, wheel

from orchestrator.core.errors import BuildError, HostError, KernelsError, PatchError
from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.images.build import BuildOptions, build_image, ensure_image, tag_image
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.images.config import docker_config
from orchestrator.images.patch_check import SourceChecker
from orchestrator.images.prebuilt import PrebuiltImage, inspect_prebuilt, pull_prebuilt, require_matches_plan
from orchestrator.images.receipt import labels, read_receipt
from orchestrator.images.registry import Registry
from orchestrator.kernels.plan_coverage import compute_coverage
from orchestrator.plan.facts import Facts
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.planner.prebuilt import fetch_image, require_table, rows_in
from orchestrator.planner.source import profile_source
from orchestrator.runtimes.base import HostRef
from orchestrator.servers.start.prepare import base_overrides

pytestmark = [pytest.mark.docker, pytest.mark.wheels]

CUH = "jit_kernel/csrc/elementwise/fused_metadata_copy.cuh"
GUARD = "rocm-cuda-runtime-guard"
TOPK = (
    "srt/layers/attention/dsa/dsa_topk_backend.py",
    "jit_kernel/include/sgl_kernel/deepseek_v4/topk_impl.cuh",
)


@pytest.fixture(scope="module")
def docker() -> DockerCli:
    try:
        return find_docker()
    except HostError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def base(docker: DockerCli) -> str:
    return base_image(wheel("0.5.14"), docker=docker.program)


@pytest.fixture(scope="module")
def image(base: str) -> str:
    """Return the patched image of `mi355x-tp8-july`, built with the command line."""
    done = deploy("build", "--profile", "mi355x-tp8-july", "--base-image", base, "--no-cache", "--allow-untuned")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def no_unfinished_builds(docker: DockerCli) -> Iterator[None]:
    """Check that no image without a receipt and no container remains; those of parallel tests go away."""

    def unfinished() -> str:
        images = docker.run("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
        unverified = [name for name in images if "-unverified" in name]
        return " ".join(unverified) + docker.run("ps", "--all", "--filter", "name=deploy-run", "--quiet").stdout

    yield
    wait_for(lambda: not unfinished())


def deploy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return CommandLine(Home.from_environment()).run(*arguments)


def test_receipt_lists_sources_and_patches(docker: DockerCli, image: str) -> None:
    receipt = read_receipt(docker, image)
    sources = receipt.sources

    assert receipt.state(GUARD) == "applied"
    assert receipt.state("mtp-shared-expert-exclude") == "applied at startup"
    assert receipt.state("aiter-fp4-moe-table") == "needed"
    assert sources["sglang"] is not None
    assert (sources["sglang"].version, sources["sglang"].commit) == ("0.5.14", COMMIT)
    guard = next(record for record in receipt.patches if record.id == GUARD)
    assert [file.path for file in guard.files] == [f"{PACKAGE}/{CUH}"]


def test_patched_file_matches_its_receipt(docker: DockerCli, image: str) -> None:
    guard = next(record for record in read_receipt(docker, image).patches if record.id == GUARD)

    inside = docker.run("run", "--rm", "--network", "none", "--entrypoint", "sha256sum", image, f"{PACKAGE}/{CUH}")

    assert inside.stdout.split()[0] == guard.files[0].after != guard.files[0].before


def test_added_layers_are_under_one_megabyte(docker: DockerCli, base: str, image: str) -> None:
    sizes = docker.run("image", "inspect", "--format", "{{.Size}}", base, image).stdout.split()

    assert 0 < int(sizes[1]) - int(sizes[0]) < 1_000_000


def test_unchanged_image_is_not_rebuilt(image: str, base: str, tmp_path: Path) -> None:
    metadata = tmp_path / "metadata.json"

    words = ("--base-image", base, "--allow-untuned", "--metadata-file", str(metadata))
    done = deploy("build", "--profile", "mi355x-tp8-july", *words)

    assert done.stdout.strip() == image
    assert json.loads(metadata.read_text())["built"] is False


def test_closed_pipe_ends_build_only_before_tagging(docker: DockerCli, image: str, base: str) -> None:
    """The image exists already, so that its second tag is the first change."""
    tag = f"deploy-test/reader:{os.getpid()}"
    words = ("build", "mi355x-tp8-july", "--base-image", base, "--allow-untuned", "--tag", tag)
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "orchestrator", *words]
    try:
        assert subprocess.run(argv, stdout=writer, stderr=writer, check=False).returncode == 141
        assert not docker.run("image", "inspect", tag).ok
        assert subprocess.run(argv, stdout=writer, stderr=subprocess.DEVNULL, check=False).returncode == 12
        assert docker.run("image", "inspect", "--format", "{{.RepoTags}}", image).stdout.count(tag) == 1
    finally:
        os.close(writer)
        docker.run("rmi", tag)


def test_classic_builder_produces_same_receipt(docker: DockerCli, base: str, image: str) -> None:
    classic = dataclasses.replace(docker, builder="classic")
    replaced = docker.run("image", "inspect", "--format", "{{.Id}}", image).stdout.strip()
    plan = load("mi355x-tp8-july", overrides=base_overrides(base)).plan

    built = build_image(classic, render_artifacts(plan), no_cache=True)

    assert (built.built, built.tag, built.builder) == (True, image, "classic")
    assert built.receipt == read_receipt(docker, image)
    assert not docker.run("image", "inspect", replaced).ok, "the replaced image must not remain untagged"


@pytest.mark.slow
def test_fix_in_newer_sources_is_detected_as_upstream(docker: DockerCli) -> None:
    """The image has version 0.5.14 and a file from 0.5.15.post1, as a dated image may."""
    dated = base_image(wheel("0.5.14"), replaced={CUH: read("0.5.15.post1", CUH).encode()}, docker=docker.program)

    built = build_image(docker, render_artifacts(load("mi355x-tp8-july", overrides=base_overrides(dated)).plan))

    guard = next(record for record in built.receipt.patches if record.id == GUARD)
    assert (guard.state, guard.files) == ("upstream", ())
    assert guard.evidence == (f"{CUH}:41: #include <hip/hip_runtime.h>",)


@pytest.mark.slow
def test_newer_sources_get_patches_of_next_release(docker: DockerCli) -> None:
    """The image has version 0.5.14 and the top-k kernel that 0.5.15 enables by default, as a dated image may."""
    newer = {name: read("0.5.15.post1", name).encode() for name in TOPK}
    dated = base_image(wheel("0.5.14"), replaced=newer, docker=docker.program)

    built = build_image(docker, render_artifacts(load("mi355x-tp8-july", overrides=base_overrides(dated)).plan))

    assert built.receipt.state("dsa-topk-v2-off") == "applied at startup"
    assert built.receipt.state(GUARD) == "applied"


def test_base_image_of_different_release_is_rejected(docker: DockerCli) -> None:
    other = base_image(wheel("0.5.15.post1"), docker=docker.program)

    with pytest.raises(BuildError, match=r"contains sglang 0\.5\.15\.post1; the engine names 0\.5\.14") as caught:
        build_image(docker, render_artifacts(load("mi355x-tp8-july", overrides=base_overrides(other)).plan))

    assert "`--set engine.version=0.5.15.post1`" in caught.value.hint


def test_patched_base_image_keeps_its_patch_records(docker: DockerCli, image: str) -> None:
    """The receipt on a patched base image keeps the file, with its hashes before and after the patch."""
    ours = next(record for record in read_receipt(docker, image).patches if record.id == GUARD)

    rebuilt = build_image(
        docker, render_artifacts(load("mi355x-tp8-july", overrides=base_overrides(image)).plan), no_cache=True
    )

    docker.run("image", "rm", rebuilt.tag)
    guard = next(record for record in rebuilt.receipt.patches if record.id == GUARD)
    assert (guard.state, guard.files) == ("applied", ours.files)
    checked = {state.id: state.state for state in SourceChecker.of_ledger().check_image(docker, image)}
    assert checked[GUARD] == "applied"


@pytest.mark.slow
def test_concurrent_builds_of_one_tag_do_not_interfere(docker: DockerCli, base: str) -> None:
    """The quick build ends and cleans up while the slow one is between its two builds."""
    engine = load("mi355x-tp8-july", overrides=base_overrides(base)).plan.engine
    options = BuildOptions(tag="deploy-test/twice:1", no_cache=True, network=None, secrets={})

    def built(wait: int) -> str:
        return ensure_image(docker, engine, with_step(f"RUN sleep {wait}", base), options).image_id

    with ThreadPoolExecutor() as pool:
        image_ids = list(pool.map(built, (1, 2, 3, 4)))

    tagged = docker.run("image", "inspect", "--format", "{{.Id}}", options.tag).stdout.strip()
    docker.run("image", "rm", "--force", options.tag, *image_ids)
    assert tagged in image_ids


def test_patch_that_does_not_apply_fails_the_build(docker: DockerCli) -> None:
    changed = read("0.5.14", CUH).replace("#include <algorithm>", "#include <vector>")
    base = base_image(wheel("0.5.14"), replaced={CUH: changed.encode()}, docker=docker.program)

    with pytest.raises(PatchError) as caught:
        build_image(docker, render_artifacts(load("mi355x-tp8-july", overrides=base_overrides(base)).plan))

    assert f"patch `{GUARD}` neither applies nor is present" in caught.value.details
    assert f"{PACKAGE}/{CUH}" in caught.value.details
    assert "    | #include <algorithm>  // for std::min\n    | #include <cuda_runtime.h>" in caught.value.details
    assert "upstream: sgl-project/sglang#29373" in caught.value.details


def test_missing_base_image_is_reported_before_building() -> None:
    done = deploy("build", "--profile", "mi355x-tp8-july", "--base-image", "127.0.0.1:9/no/such:tag")

    assert done.returncode == BuildError.exit_code
    assert "base image `127.0.0.1:9/no/such:tag`" in done.stderr
    assert "building `deploy/" not in done.stderr


def test_moved_base_tag_is_an_error(docker: DockerCli, base: str) -> None:
    moving = "deploy-fake/moving:latest"
    tag_image(docker, base, moving)
    plan = load("mi355x-tp4dp2-july", overrides=base_overrides(moving)).plan
    build_image(docker, render_artifacts(plan), no_cache=True)  # an earlier run may have built one on another base
    tag_image(docker, base_image(wheel("0.5.14"), replaced={"newer.py": b"#"}, docker=docker.program), moving)

    with pytest.raises(BuildError, match=r"was built on another base image: the tag `.*` has moved"):
        build_image(docker, render_artifacts(plan))


def test_build_secret_is_not_in_layers_or_history(docker: DockerCli, base: str, tmp_path: Path) -> None:
    if docker.builder != "buildkit":
        pytest.skip("only BuildKit has secrets")
    secret = "swordfish-98c1d2"
    (tmp_path / "token").write_text(secret)
    context = with_step("RUN --mount=type=secret,id=token sh -c 'wc -c < /run/secrets/token > /seen'", base)
    options = BuildOptions(
        tag="deploy-test/secret:1", no_cache=True, network=None, secrets={"token": tmp_path / "token"}
    )

    ensure_image(docker, load("mi355x-tp8-july", overrides=base_overrides(base)).plan.engine, context, options)

    seen = docker.run("run", "--rm", "--entrypoint", "cat", options.tag, "/seen")
    history = docker.run("history", "--no-trunc", options.tag).stdout
    saved = subprocess.run([docker.program, "save", options.tag], capture_output=True, check=True).stdout
    docker.run("image", "rm", options.tag)
    assert int(seen.stdout) == len(secret)
    assert secret not in history
    assert secret.encode() not in saved


@pytest.mark.slow
def test_ctrl_c_during_build_leaves_no_image_or_container(docker: DockerCli, base: str) -> None:
    """Another process builds a step of ten minutes, and ends long before after a SIGINT."""
    argv = [sys.executable, slow_build.__file__, base]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any(slow_build.STEP in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    assert process.returncode != 0
    assert docker.run("images", "--quiet", "--filter", f"reference={slow_build.TAG}").stdout == ""
    wait_for(lambda: docker.run("ps", "--quiet", "--filter", f"ancestor={base}").stdout == "")


def test_pushed_image_is_pulled_with_same_digest(
    docker: DockerCli, base: str, image: str, registry: str, tmp_path: Path
) -> None:
    words = ("--base-image", base, "--allow-untuned", "--tag", f"{registry}/sglang:patched", "--push")
    done = deploy("build", "mi355x-tp8-july", *words, "--metadata-file", str(tmp_path / "image.json"))
    pushed = done.stdout.strip()
    assert json.loads((tmp_path / "image.json").read_text())["pushed"] == pushed, done.stderr

    docker.run("image", "rm", f"{registry}/sglang:patched")
    assert pull_prebuilt(docker, f"{registry}/sglang:patched@{pushed.partition('@')[2]}") == pushed
    assert read_receipt(docker, pushed) == read_receipt(docker, image)
    assert pull_prebuilt(docker, f"{registry}/sglang:patched") == pushed, "the registry resolves a tag"
    local = docker_config(docker, pushed)
    docker.run("image", "rm", pushed, f"{registry}/sglang:patched")
    assert local == Registry().config(pushed), "the registry returns the same configuration without a pull"
    report = deploy("inspect", f"{registry}/sglang:patched").stdout
    assert re.search(rf"^{GUARD} +applied ", report, re.MULTILINE)
    with pytest.raises(BuildError, match="does not exist in its registry"):
        pull_prebuilt(docker, f"{registry}/sglang:none")


def test_rendered_build_context_without_kernel_table_fails(docker: DockerCli, base: str, tmp_path: Path) -> None:
    """`docker build` itself builds the context, as in a CI job."""
    table = tmp_path / "table.csv"
    rows = (line(1 << exponent, shape=shape) for shape in (FUSED_TP8, UNFUSED_TP8) for exponent in range(18))
    table.write_text("\n".join([HEADER, *rows]) + "\n")
    words = ("render", "mi355x-tp8-july", "--set", f"engine.image={base}", "--output", str(tmp_path / "out"))
    tag = f"deploy-test/{tmp_path.name}"

    rendered = deploy(*words)
    assert "`docker build` of these files will fail: no file for patch `aiter-fp4-moe-table`" in rendered.stderr
    failed = docker.run("build", "--tag", tag, str(tmp_path / "out/image"))
    assert not failed.ok
    assert "`deploy kernels build mi355x-tp8-july` makes it" in failed.stdout + failed.stderr

    rendered = deploy(*words, "--input", f"moe-table={table}")
    assert rendered.returncode == 0, rendered.stderr
    assert "`docker build` of these files will fail" not in rendered.stderr
    built = docker.run("build", "--tag", tag, str(tmp_path / "out/image"))
    assert built.ok, built.stdout + built.stderr
    receipt = docker.run("run", "--rm", "--entrypoint", "cat", tag, "/opt/deploy/receipt.json").stdout
    labeled = labels(docker, tag) or {}
    docker.run("image", "rm", tag)
    states = {patch["id"]: patch["state"] for patch in json.loads(receipt)["patches"]}
    assert states["aiter-fp4-moe-table"] == states[GUARD] == "applied"
    assert states["mtp-shared-expert-exclude"] == "applied at startup"
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    reported = {name.removeprefix("deploy.patch."): text for name, text in labeled.items() if "deploy.patch" in name}
    assert reported.keys() == states.keys()
    assert reported["aiter-fp4-moe-table"].startswith(f"table, sha256 {digest}; fused 257/9: 17 tuned, 0 derived")
    for name in (GUARD, "mtp-shared-expert-exclude"):
        assert states[name] in reported[name].partition(" (")[0].split(" or ")


def test_prebuilt_image_is_planned_with_its_kernel_table(
    docker: DockerCli, base: str, image: str, tmp_path: Path
) -> None:
    """CI builds such an image; a server of this profile cannot start from an image without a table."""
    table = tmp_path / "table.csv"
    rows = (line(1 << exponent, shape=shape) for shape in (FUSED_TP8, UNFUSED_TP8) for exponent in range(18))
    table.write_text("\n".join([HEADER, *rows]) + "\n")
    words = ("--base-image", base, "--input", f"moe-table={table}")
    built = deploy("build", "--profile", "mi355x-tp8-july", *words)
    assert built.returncode == 0, built.stderr
    host_ref = HostRef(home=Home(tmp_path / "home"))

    def plan_for(name: str, *overrides: str) -> tuple[Plan, PrebuiltImage]:
        image = fetch_image(name, host_ref)
        facts = Facts(inputs=image.inputs, image=image.reference)
        plan = profile_source("mi355x-tp8-july", overrides, host_ref.home, image=name).build(facts)
        require_matches_plan(plan, image)
        return plan, image

    plan, prebuilt = plan_for(built.stdout.strip(), f"engine.image={base}")
    image_rows = rows_in(prebuilt, plan, host_ref, allow_untuned=False)

    [use] = [use for use in plan.patches if use.id == "aiter-fp4-moe-table"]
    assert use.input_sha256 == hashlib.sha256(table.read_bytes()).hexdigest()
    assert ("AITER_CONFIG_FMOE", "/opt/deploy/tables/tuned_fmoe.csv") in {(v.name, v.value) for v in plan.env}
    assert (
        plan.prebuilt_image
        == docker.run("image", "inspect", "--format", "{{.Id}}", built.stdout.strip()).stdout.strip()
    )
    assert [path.read_bytes() for path in image_rows.tables] == [table.read_bytes()]
    assert compute_coverage(plan, image_rows, host_ref.home).untuned_in_workload == ()
    assert render_artifacts(plan).build is None
    with pytest.raises(KernelsError, match="has no table of tuned kernels"):
        require_table(*plan_for(image, f"engine.image={base}")[::-1], allow_untuned=False)
    with pytest.raises(BuildError, match="does not match the plan of `mi355x-tp8-july`") as caught:
        plan_for(image)
    assert [problem.hint for problem in caught.value.problems] == [
        f"`--set engine.image={base}`, or an image built on this base"
    ]
    docker.run("image", "rm", built.stdout.strip())


def test_image_not_matching_its_receipt_is_rejected(docker: DockerCli, image: str) -> None:
    """The image was changed after its build, and its label was not."""
    dockerfile = f"FROM {image}\nRUN echo '#' >> {PACKAGE}/{CUH}\n"
    docker.run("build", "--tag", "deploy-test/changed:1", "-", stdin=dockerfile)
    with pytest.raises(PatchError, match="does not match its receipt"):
        inspect_prebuilt(docker, "deploy-test/changed:1")
    docker.run("image", "rm", "--force", "deploy-test/changed:1")


CHECK = """
import inspect, sglang, sglang.srt.speculative.eagle_utils as verify
print(sglang.__file__, inspect.getsource(verify.eagle_sample).count("tp_group.broadcast(predict, src=0)"))
"""


@pytest.mark.engine
def test_image_python_imports_patched_sources(docker: DockerCli, image: str, cpu_environment: Venv) -> None:
    """sglang comes from the image; the packages that it needs are mounted."""
    mount = f"{packages_of(cpu_environment.python)}:{ENGINE_PACKAGES}:ro"
    variables = ["--env", "SGLANG_USE_CPU_ENGINE=1", "--env", "TORCHDYNAMO_DISABLE=1"]
    done = docker.run("run", "--rm", "--network", "none", "--volume", mount, *variables, image, "python3", "-c", CHECK)
    assert done.ok, done.stderr
    assert done.stdout.splitlines()[-1] == f"{PACKAGE}/__init__.py 2"
