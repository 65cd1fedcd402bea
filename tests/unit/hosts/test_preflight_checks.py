"""Test the preflight findings and hints on recorded hosts."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from host_samples import READY_DOCKER, docker_answering, runner_of, sections
from plan_samples import plan_of

from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError, HostError, Problem
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import CheckContext, DiskNeed, HostAccess
from orchestrator.hosts.gpu_checks import carries, image_toolkit
from orchestrator.hosts.host_state import HostState
from orchestrator.hosts.report import Finding, Level, PreflightReport
from orchestrator.hosts.system_checks import ports
from orchestrator.plan.plan import Plan
from orchestrator.runtimes import runtime_class

GIB = 1 << 30


def report_of(
    node: str,
    plan: Plan | None = None,
    *,
    spaces: tuple[DiskNeed, ...] = (),
    docker: Callable[[Sequence[str]], CompletedProgram] = READY_DOCKER,
    checkpoint: Callable[[], tuple[str, int]] | None = None,
    environ: Mapping[str, str] = {"PATH": os.defpath},
    **changed: str,
) -> PreflightReport:
    plan = plan or plan_of("mi355x-tp8")
    kind = runtime_class(plan.runtime)
    access = HostAccess(
        runner=runner_of(sections(node, **changed), docker=docker),
        environ=environ,
        spaces=spaces,
        checkpoint=checkpoint,
        in_container=kind.in_container,
    )
    return preflight(plan, access, kind.checks)


def finding_of(report: PreflightReport, check: str) -> Finding:
    (finding,) = (item for item in report.findings if item.check == check)
    return finding


def problems_in(report: PreflightReport) -> set[str]:
    return {item.check for item in report.findings if item.level is not Level.INFO}


def test_port_used_by_own_server_hints_at_down() -> None:
    plan = plan_of("cpu-tiny", "server.port=30010")
    inode = "41234"
    line = f"   0: 0100007F:753A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1"

    def runner(argv: Sequence[str]) -> CompletedProgram:
        files = {
            "/proc/net/tcp": line,
            "/proc/48213/cmdline": "\0".join(["/opt/env/bin/python3", "-m", *["word"] * 40]),
        }
        text = "/proc/48213/fd/7\n" if argv[0] == "find" else files[argv[1]]
        return CompletedProgram(argv=tuple(argv), code=0, stdout=text, stderr="")

    def port_finding(server_on: Callable[[int], str | None]) -> Finding:
        access = HostAccess(
            runner=runner, environ={}, spaces=(), checkpoint=None, in_container=False, server_on=server_on
        )
        host_state = cast("HostState", SimpleNamespace(listening=frozenset({30010})))
        (finding,) = ports(CheckContext(plan=plan, host_state=host_state, access=access))
        return finding

    own = port_finding(lambda port: "owl" if port == 30010 else None)
    assert (own.value, own.hint) == ("in use by your server `owl`", "`deploy down owl`, or `--set server.port=30011`")
    other = port_finding(lambda _port: None)
    assert other.hint == "`kill 48213`, or `--set server.port=30011`"
    assert re.fullmatch(r"in use by python3 -m( word)+ … \(pid 48213\)", other.value)
    assert len(other.value) < 90


def meminfo(available: int, *nodes: int) -> dict[str, str]:
    """Return the memory of the host and its NUMA nodes in GiB; half of a node's is free, half is page cache."""
    parts = (("MemTotal", 20), ("MemFree", 19), ("FilePages", 19))
    lines = [f"Node {node} {key}:   {size << bits} kB" for node, size in enumerate(nodes) for key, bits in parts]
    host = f"MemTotal:   {3000 << 20} kB\nMemAvailable:   {available << 20} kB\n"
    return {"memory": host, "numa_memory": "\n".join(lines)}


@pytest.mark.parametrize(
    ("memory", "flags", "check", "level", "value"),
    [
        (meminfo(2000, 1000, 1000), (), "host memory", Level.INFO, "2000.0 GiB available"),
        (meminfo(1650), (), "host memory", Level.FAIL, "1650.0 GiB available"),  # 8 × 206 GiB, plus 10 GiB of reserve
        (meminfo(2000, 1300, 700), (), "NUMA memory", Level.WARN, "700.0 GiB on NUMA node 1"),
        (meminfo(2000, 1000, 0, 1000), (), "host memory", Level.INFO, "2000.0 GiB available"),  # a node without memory
        (
            meminfo(2000, 1300, 700),
            ("flags.numa-node=[0,0,0,0,1,1,1,1]",),
            "NUMA memory",
            Level.FAIL,
            "700.0 GiB on NU",
        ),
    ],
)
def test_host_memory_is_checked_against_cache_tier(
    memory: dict[str, str], flags: tuple[str, ...], check: str, level: Level, value: str
) -> None:
    report = report_of("mi355x-healthy", plan_of("mi355x-tp4dp2-tiers", *flags), **memory)
    finding = finding_of(report, check)
    assert (finding.level, finding.value.startswith(value)) == (level, True), finding
    assert check == "NUMA memory" or finding.needed == "1658.4 GiB: 8 x 206.1 GiB"
    assert "NUMA memory" in problems_in(report) or level is not Level.WARN
    assert "host memory" not in {item.check for item in report_of("mi355x-healthy", **memory).findings}


def test_cache_tier_of_single_role_is_counted() -> None:
    """Only the prefill role has a tier; the plan's own value is 0."""
    flags = ("layout.prefill.flags.enable-hierarchical-cache=true", "layout.prefill.flags.hicache-size=500")
    plan = plan_of("mi355x-1p1d", *flags, "engine=sglang-0.5.20-rocm")
    assert finding_of(report_of("mi355x-healthy", plan, **meminfo(2000)), "host memory").level is Level.FAIL


def test_healthy_node_passes_preflight() -> None:
    report = report_of("mi355x-healthy")
    assert problems_in(report) == set()
    assert finding_of(report, "gpu arch").value == "8 x gfx950"
    assert finding_of(report, "vram").value == "8 x 288.0 GiB"
    report.require()


def test_vram_in_use_lists_gpus_and_shares() -> None:
    finding = finding_of(report_of("mi355x-half-drained"), "vram in use")
    assert finding.level is Level.FAIL
    assert finding.value.startswith("gpu 4 41%, gpu 5 41%, gpu 6 41%, gpu 7 41%; used by no visible process")


def test_process_using_vram_is_named_with_kill_hint() -> None:
    finding = finding_of(report_of("mi355x-held"), "vram in use")
    assert "python3 (pid 48213, gpu 2, 243.9 GiB)" in finding.value
    assert "`kill 48213`" in finding.hint


def test_busy_gpus_outside_the_plan_are_ignored() -> None:
    plan = plan_of("mi355x-tp8")
    four = replace(plan, layout=replace(plan.layout, tp=4))
    assert finding_of(report_of("mi355x-half-drained", four), "vram in use").level is Level.INFO
    assert finding_of(report_of("mi355x-half-drained", plan), "vram in use").level is Level.FAIL


def test_missing_gpu_fails_preflight() -> None:
    finding = finding_of(report_of("mi355x-gpu-missing"), "gpus")
    assert finding.level is Level.FAIL
    assert finding.hint.endswith("; or `deploy up --model amd/GLM-5.2-MXFP4` proposes a profile for this host's GPUs")
    plan = plan_of("mi355x-tp8")
    four = replace(plan, layout=replace(plan.layout, tp=4))
    partial = finding_of(report_of("mi355x-gpu-missing", four), "gpus")
    assert partial.level is Level.WARN
    assert "`--set hardware.gpus=7`" in partial.hint


def test_wrong_gpu_model_fails_preflight() -> None:
    plan = plan_of("mi355x-tp8")
    two = replace(plan, layout=replace(plan.layout, tp=2))
    report = report_of("mi300x-rocm-6.2", two)
    assert finding_of(report, "gpu arch").level is Level.FAIL
    assert finding_of(report, "gpu arch").value == "2 x gfx942"
    assert finding_of(report, "compute units").value == "2 x 304"
    assert finding_of(report, "vram").level is Level.FAIL


def test_truncated_tool_output_is_not_reported_as_no_gpus() -> None:
    report = report_of("mi355x-truncated")
    assert finding_of(report, "gpus").level is Level.FAIL
    assert "`amd-smi static` printed no JSON" in finding_of(report, "gpu tool").value
    assert finding_of(report, "gpu tool").hint == "run the GPU tool by hand and read its output"


def test_host_without_matching_gpus_fails_preflight() -> None:
    nvidia = report_of("h200-idle")
    assert finding_of(nvidia, "gpus").value == "no AMD GPU (1 of NVIDIA)"
    with pytest.raises(HostError) as caught:
        nvidia.require()
    assert caught.value.exit_code == 4
    assert "gpus: no AMD GPU" in caught.value.problems[0].message


def test_cpu_plan_skips_gpu_checks() -> None:
    report = report_of("h200-idle", plan_of("cpu-tiny"))
    assert report.ready
    assert finding_of(report, "gpus").value == "not queried"


def test_nvidia_node_is_checked() -> None:
    plan = plan_of("b200-tp8")
    one = replace(
        plan,
        layout=replace(plan.layout, tp=1),
        hardware=replace(plan.hardware, gpus=1, arch="sm90", vram_bytes=140 * GIB),
        engine=replace(plan.engine, image_digest=None),
    )
    assert problems_in(report_of("h200-idle", one)) == set()
    assert finding_of(report_of("h200-idle", one), "driver").needed == "CUDA 13.0 in the image"
    assert "python3 (pid 412, gpu 0, 40.6 GiB)" in finding_of(report_of("h200-held", one), "vram in use").value
    output = "0, GPU-0, NVIDIA H200, [N/A], 143771, 0, 580.159.04\n"
    unreported = finding_of(report_of("h200-idle", one, nvidia_gpus=output), "gpu arch")
    assert (unreported.level, unreported.value) == (Level.WARN, "1 x not reported")
    assert "nvidia-smi" in unreported.hint
    assert "amd" not in unreported.hint


@pytest.mark.parametrize(
    ("section", "text", "check", "hint"),
    [
        ("numa_balancing", "1\n", "numa balancing", "echo 0 | sudo tee /proc/sys/kernel/numa_balancing"),
        ("kernel_options", "root=/dev/sda1 iommu=pt\n", "kernel options", "pci=realloc=off"),
        ("devices", "", "devices", "sudo modprobe amdgpu"),
        ("shm", "F B U A C M\ntmpfs 65536 0 65536 0% /dev/shm\n", "shared memory", "remount,size=16G"),
        ("cpus_allowed", "Cpus_allowed_list:\t64-127\n", "cpu affinity", "SGLANG_SET_CPU_AFFINITY=0"),
    ],
)
def test_host_setting_problem_has_a_hint(section: str, text: str, check: str, hint: str) -> None:
    report = report_of("mi355x-healthy", **{section: text})
    assert problems_in(report) == {check}
    assert hint in finding_of(report, check).hint


def test_process_runtime_needs_device_access_and_memlock() -> None:
    plan = plan_of("mi355x-tp8", runtime="process")
    devices = "/dev/kfd 109 render closed\n/dev/dri/renderD128 109 render closed\n"
    report = report_of("mi355x-healthy", plan, devices=devices, memlock="8192\n", user="1000\namd\n")
    assert "`sudo usermod -aG render amd`" in finding_of(report, "device access").hint
    assert finding_of(report, "memlock").level is Level.WARN
    assert problems_in(report_of("mi355x-healthy", plan)) == set()


def test_disk_needs_are_summed_per_file_system() -> None:
    disk = "F B U A C M\n/dev/nvme0n1 500000000 0 {} 0% /\n"
    spaces = (
        DiskNeed(purpose="weights", directory="/a", size=408 * GIB),
        DiskNeed(purpose="image", directory="/b", size=64 * GIB),
    )
    node = {**sections("mi355x-healthy"), "disk /a": disk.format(450 << 20), "disk /b": disk.format(450 << 20)}
    access = HostAccess(runner=runner_of(node), environ={}, spaces=spaces, checkpoint=None, in_container=True)
    finding = finding_of(preflight(plan_of("mi355x-tp8"), access), "disk")
    assert (finding.level, finding.value) == (Level.FAIL, "450.0 GiB free on /")
    assert finding.needed == "472.0 GiB for weights and image"


def test_occupied_port_fails_with_free_port_hint() -> None:
    line = "   0: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 640 1\n"
    table = "  sl\n" + line.format(30000) + line.format(30001)
    finding = finding_of(report_of("mi355x-healthy", sockets=table), "port 30000")
    assert finding.level is Level.FAIL
    assert "`--set server.port=30002`" in finding.hint


def test_missing_image_fails() -> None:
    plan = plan_of("mi355x-tp8")
    pinned = replace(plan, engine=replace(plan.engine, image_digest="sha256:" + "a" * 64))
    for missing in (plan, pinned):
        assert finding_of(report_of("mi355x-healthy", missing, docker=docker_answering()), "image").level is Level.FAIL
    assert finding_of(report_of("mi355x-healthy", pinned), "image").level is Level.INFO


def test_registry_that_cannot_be_queried_is_warned_of() -> None:
    docker = docker_answering(missing="dial tcp: lookup hub: no such host")
    finding = finding_of(report_of("mi355x-healthy", plan_of("mi355x-tp8"), docker=docker), "image")
    assert (finding.level, finding.value) == (Level.WARN, "cannot query the registry: no such host")


def test_image_that_is_here_by_its_digest_needs_no_registry() -> None:
    plan = plan_of("mi355x-tp8")
    pinned = replace(plan, engine=replace(plan.engine, image_digest="sha256:" + "a" * 64))
    offline = docker_answering(missing="lookup hub: no such host")

    def docker(argv: Sequence[str]) -> CompletedProgram:
        if "inspect" in argv and argv[-1].endswith("@sha256:" + "a" * 64):
            return CompletedProgram(argv=tuple(argv), code=0, stdout="[]", stderr="")
        return offline(argv)

    assert finding_of(report_of("mi355x-healthy", pinned, docker=docker), "image").level is Level.INFO


def test_incomplete_checkpoint_and_missing_token_are_reported() -> None:
    def fail() -> str:
        problems = [Problem(f"`model-{n}.safetensors` is missing") for n in range(5)]
        raise CheckpointError("the checkpoint is incomplete", problems=problems)

    plan = plan_of("mi355x-tp8")
    gated = replace(plan, model=replace(plan.model, gated=True))
    report = report_of("mi355x-healthy", gated, checkpoint=fail)
    assert finding_of(report, "checkpoint").value == "`model-0.safetensors` is missing, and 4 more"
    assert finding_of(report, "token").hint == "`export HF_TOKEN=…`"
    complete = report_of("mi355x-healthy", gated, checkpoint=lambda: ("92 shards", gated.model.weight_bytes))
    assert complete.ready


def test_missing_downloadable_checkpoint_is_only_a_warning() -> None:
    """Preflight of a new node runs before anything is downloaded to it."""

    def fail() -> str:
        raise CheckpointNotFoundError("no checkpoint of `glm-5.2-mxfp4` found")

    plan = plan_of("mi355x-tp8")
    fresh = finding_of(report_of("mi355x-healthy", plan, checkpoint=fail), "checkpoint")
    assert (fresh.level, fresh.value) == (Level.WARN, "not staged yet")
    assert fresh.hint == "`deploy stage PROFILE`"
    gated = replace(plan, model=replace(plan.model, gated=True))
    assert finding_of(report_of("mi355x-healthy", gated, checkpoint=fail), "token").level is Level.FAIL
    share = replace(plan, model=replace(plan.model, checkpoint=replace(plan.model.checkpoint, source="local")))
    unmounted = finding_of(report_of("mi355x-healthy", share, checkpoint=fail), "checkpoint")
    assert (unmounted.level, unmounted.value) == (Level.FAIL, "no checkpoint of `glm-5.2-mxfp4` found")


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, Level.FAIL),
        ({"SGLANG_KEY": "abc\n"}, Level.FAIL),
        ({"SGLANG_KEY": "-key-4711"}, Level.FAIL),
        ({"SGLANG_KEY": "key-4711\n"}, Level.INFO),
    ],
)
def test_named_api_key_variable_must_be_valid(environ: dict[str, str], level: Level) -> None:
    plan = plan_of("mi355x-tp8")
    keyed = replace(plan, server=replace(plan.server, api_key_env="SGLANG_KEY"))
    assert (
        finding_of(report_of("mi355x-healthy", keyed, environ={"PATH": os.defpath, **environ}), "api key").level
        is level
    )


@pytest.mark.parametrize(
    ("vendor", "host", "image", "runs"),
    [
        ("amd", "7.0.2", "7.2", True),
        ("amd", "6.3.1", "7.2", False),
        ("amd", "7.2.0", "6.3", True),
        ("amd", "7.14.0", "7.2", True),  # newer than any table, so not rejected
        ("nvidia", "13.0", "12.9", True),
        ("nvidia", "12.8", "13.0", False),
    ],
)
def test_driver_compatibility_with_image_toolkit(vendor: str, host: str, image: str, *, runs: bool) -> None:
    assert carries(vendor, host, image) is runs


def test_toolkit_version_is_read_from_image_tag() -> None:
    assert image_toolkit(plan_of("mi355x-tp8")) == "7.2"
    assert image_toolkit(plan_of("b200-tp8")) == "13.0"
    assert image_toolkit(plan_of("cpu-tiny")) is None


def test_report_text_and_dictionary_agree() -> None:
    report = report_of("mi355x-held")
    assert report.to_dict()["ready"] is False
    text = report.to_text()
    assert "fail  vram in use" in text
    assert "vram in use: stop them: `kill 48213`" in text


def test_unexpected_checkpoint_size_is_a_warning() -> None:
    plan = plan_of("mi355x-tp8")
    smaller = finding_of(
        report_of("mi355x-healthy", plan, checkpoint=lambda: ("80 shards, 380.0 GB", 380 * 10**9)), "checkpoint"
    )
    assert (smaller.level, smaller.value, smaller.needed) == (Level.WARN, "80 shards, 380.0 GB", "complete, 438.0 GB")
    assert "correct `weights_size`" in smaller.hint
    tiny = plan_of("cpu-tiny")  # 1 MB; the file is slightly smaller
    assert (
        finding_of(report_of("mi355x-healthy", tiny, checkpoint=lambda: ("1 shard", 878_000)), "checkpoint").level
        is Level.INFO
    )


def test_plan_with_base_gpu_checks_only_its_gpus() -> None:
    """The node's last four GPUs still have VRAM in use; only the plan on these GPUs fails."""
    second = plan_of("mi355x-tp8", "layout.tp=4", "flags.base-gpu-id=4", "hardware.gpus=8")
    assert list(second.gpus) == [4, 5, 6, 7]
    assert finding_of(report_of("mi355x-half-drained", second), "vram in use").level is Level.FAIL
    first = plan_of("mi355x-tp8", "layout.tp=4")
    assert finding_of(report_of("mi355x-half-drained", first), "vram in use").level is Level.INFO


def test_single_gpu_plan_needs_one_gpu() -> None:
    assert finding_of(report_of("h200-idle", plan_of("h200-tiny")), "gpus").level is Level.INFO


NIC = (
    "|0x1dd8|1.117.5-a-45|4: ACTIVE|400 Gb/sec (4X NDR)|Ethernet|gid_attrs/types/0:RoCE v2,gid_attrs/types/1:RoCE v2,"
    "gids/0:fe80:0000:0000:0000:0690:81ff:fe4a:72e2,gids/1:0000:0000:0000:0000:0000:ffff:c0a8:0101,"
)
PAIR = ("layout.prefill.tp=4", "layout.decode.tp=4", "layout.transfer.backend=mori")
DECODE_CACHE = "layout.decode.flags.disaggregation-decode-enable-radix-cache=true"


@pytest.mark.parametrize(
    ("nics", "inside", "level", "value"),
    [
        ("ionic_0 ionic_1", "ionic_0 ionic_1", Level.INFO, "ionic_0, ionic_1"),
        ("ionic_0 ionic_1", "ionic_0", Level.FAIL, "does not see ionic_1"),
        ("ionic_0", None, Level.INFO, "ionic_0; not compared: No such image"),
        ("", None, Level.FAIL, "no NIC"),
    ],
)
def test_image_must_see_host_rdma_devices(nics: str, inside: str | None, level: Level, value: str) -> None:
    """An image with another ABI of the NIC's driver has no RDMA device (sglang #33374)."""

    def docker(argv: Sequence[str]) -> CompletedProgram:
        if argv[-1] != "nics":
            return READY_DOCKER(argv)
        code = 0 if inside is not None else 125
        return CompletedProgram(argv=tuple(argv), code=code, stdout=inside or "", stderr="No such image")

    plan = plan_of("mi355x-tp8", *PAIR, "layout.transfer.network=ainic", DECODE_CACHE)
    rdma = "".join(f"{nic}{NIC}\n" for nic in nics.split())
    report = report_of("mi355x-healthy", plan, docker=docker, rdma=rdma)
    finding = finding_of(report, "rdma")
    assert finding.level is level
    assert value in finding.value
    assert [item.value for item in report.findings if item.check == "gid"] == ["index 1 on this host"] * bool(nics)


def test_rdma_is_checked_only_for_rdma_transfer() -> None:
    for transfer in ("", "mooncake over tcp"):
        plan = plan_of("mi355x-tp8", transfer=transfer)
        assert not [finding for finding in report_of("mi355x-healthy", plan).findings if finding.check == "rdma"]


@pytest.mark.parametrize(("weights", "level"), [(30 * GIB, Level.INFO), (50 * GIB, Level.WARN), (70 * GIB, Level.FAIL)])
def test_cpu_host_memory_is_checked_against_weights(weights: int, level: Level) -> None:
    plan = plan_of("cpu-tiny", f"model.weights_size={weights}")
    text = f"MemTotal: {64 << 20} kB\nMemAvailable: {40 << 20} kB\n"
    finding = finding_of(report_of("mi355x-healthy", plan, memory=text), "memory")
    assert (finding.level, finding.value) == (level, "40.0 GiB available of 64.0 GiB")
    assert finding.needed == f"{weights // GIB}.0 GiB for the weights"
