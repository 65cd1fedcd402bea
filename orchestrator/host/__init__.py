"""The machine a server runs on: its GPUs, devices, limits, CPUs, disks and ports.

What tells one vendor's GPUs from another's is imported by name: `host.gpus`.
"""

from orchestrator.host.checks import preflight
from orchestrator.host.daemon import docker_endpoint, far_machine
from orchestrator.host.drain import wait_for_vram
from orchestrator.host.gpu_checks import VRAM_IN_USE, carries
from orchestrator.host.ports import plan_ports, port_holder
from orchestrator.host.report import Finding, Level, PreflightReport, fail, info, warn
from orchestrator.host.ssh import FarHost, Tunnel, over_ssh, start_over_ssh
from orchestrator.host.subject import Access, Check, Space, Subject
from orchestrator.host.survey import Runner, local

__all__ = [
    "VRAM_IN_USE",
    "Access",
    "Check",
    "FarHost",
    "Finding",
    "Level",
    "PreflightReport",
    "Runner",
    "Space",
    "Subject",
    "Tunnel",
    "carries",
    "docker_endpoint",
    "fail",
    "far_machine",
    "info",
    "local",
    "over_ssh",
    "plan_ports",
    "port_holder",
    "preflight",
    "start_over_ssh",
    "wait_for_vram",
    "warn",
]
