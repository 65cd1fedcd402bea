"""Test the parsing of amd-smi and nvidia-smi output."""

import pytest
from host_samples import survey_of

from orchestrator.hosts.gpus.amd import read_amd
from orchestrator.hosts.gpus.inventory import GIB, MIB, GpuInventory, holders
from orchestrator.hosts.gpus.nvidia import read_nvidia
from orchestrator.hosts.survey import Section, Survey


def amd(node: str) -> GpuInventory:
    inventory = read_amd(survey_of(node))
    assert inventory is not None
    return inventory


def test_healthy_mi355x_node_is_parsed() -> None:
    node = amd("mi355x-healthy")
    assert (node.tool, node.driver, node.toolkit, node.errors) == ("amd-smi", "6.16.13", "7.2.0", ())
    assert [gpu.index for gpu in node.gpus] == list(range(8))
    first = node.gpus[0]
    assert (first.arch, first.compute_units, first.vram_bytes, first.vram_used) == (
        "gfx950", 256, 294896 * MIB, 283 * MIB,
    )  # fmt: skip
    assert node.processes == ()


def test_process_using_vram_is_listed_with_gpu() -> None:
    node = amd("mi355x-held")
    assert holders(node, [2]) == ("python3 (pid 48213, gpu 2, 243.9 GiB)",)
    assert holders(node, [0, 1]) == ()


def test_older_amd_smi_format_is_parsed() -> None:
    node = amd("mi300x-rocm-6.2")
    assert [(gpu.arch, gpu.vram_bytes, gpu.vram_used) for gpu in node.gpus] == [("gfx942", 196592 * MIB, 285 * MIB)] * 2
    assert [(p.pid, p.gpu, p.vram_bytes) for p in node.processes] == [(1177, 0, 512 * MIB)]


def test_text_before_json_is_skipped() -> None:
    assert amd("mi355x-warnings") == amd("mi355x-healthy")


def test_unreadable_tool_output_is_reported() -> None:
    node = amd("mi355x-truncated")
    assert node.gpus == ()
    assert len(node.errors) == 1
    assert node.errors[0].startswith("`amd-smi static` printed no JSON")
    assert "driver not initialized" in amd("mi355x-no-driver").errors[0]


def test_tool_timeout_is_reported() -> None:
    node = read_amd(Survey({"amd-smi static": Section(124, "")}))
    assert node is not None
    assert "`amd-smi static` did not respond within 30 s" in node.errors


@pytest.mark.parametrize("value", ['"N/A"', "null", '{"value": "N/A", "unit": "MB"}', "[]"])
def test_missing_gpu_values_are_unknown_not_zero(value: str) -> None:
    text = f'{{"gpu_data": [{{"gpu": 0, "asic": {value}, "vram": {{"size": {value}}}}}]}}'
    node = read_amd(Survey({"amd-smi static": Section(0, text)}))
    assert node is not None
    assert (node.gpus[0].arch, node.gpus[0].vram_bytes, node.gpus[0].used_share) == (None, None, None)


def test_idle_and_busy_h200_are_parsed() -> None:
    idle, busy = read_nvidia(survey_of("h200-idle")), read_nvidia(survey_of("h200-held"))
    assert idle is not None
    assert busy is not None
    assert (idle.driver, idle.toolkit, idle.gpus[0].arch) == ("580.159.04", "13.0", "sm90")
    assert idle.gpus[0].vram_bytes == 143771 * MIB
    assert (idle.gpus[0].used_share, idle.processes) == (0.0, ())
    assert round(busy.gpus[0].used_share or 0, 2) == 0.29
    assert holders(busy, [0]) == ("python3 (pid 412, gpu 0, 40.6 GiB)",)
    assert (busy.processes[0].vram_bytes or 0) > 40 * GIB


def test_nvidia_smi_without_driver_is_reported() -> None:
    message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    node = read_nvidia(Survey({"nvidia gpus": Section(9, message)}))
    assert node is not None
    assert node.gpus == ()
    assert "couldn't communicate" in node.errors[0]


def test_host_without_gpus_has_no_node() -> None:
    assert read_amd(Survey({})) is None
    assert read_nvidia(Survey({})) is None
