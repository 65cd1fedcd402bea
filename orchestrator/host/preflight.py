"""Preflight: is this machine ready for this plan? Every check runs, and each says what was found and what mends it."""

from collections.abc import Sequence
from typing import Final

from orchestrator.host import gpu_checks, machine_checks
from orchestrator.host.machine import read_machine
from orchestrator.host.report import PreflightReport
from orchestrator.host.subject import Check, Probe, Subject
from orchestrator.host.survey import survey
from orchestrator.plan import Plan

CHECKS: Final[Sequence[Check]] = (
    gpu_checks.gpus_present,
    gpu_checks.gpu_arch,
    gpu_checks.compute_units,
    gpu_checks.vram_size,
    gpu_checks.vram_use,
    gpu_checks.driver,
    machine_checks.devices,
    machine_checks.locked_memory,
    machine_checks.shared_memory,
    machine_checks.numa_balancing,
    machine_checks.kernel_options,
    machine_checks.cpu_affinity,
    machine_checks.disk_space,
    machine_checks.ports,
    machine_checks.docker,
    machine_checks.image,
    machine_checks.checkpoint,
    machine_checks.api_key,
)


def preflight(plan: Plan, probe: Probe) -> PreflightReport:
    """Run every check against one look at the machine. Raises HostError only where it cannot be looked at."""
    directories = [space.directory for space in probe.spaces]
    look = survey(probe.runner, gpus=plan.hardware.vendor != "cpu", directories=directories)
    subject = Subject(plan=plan, machine=read_machine(look), probe=probe)
    return PreflightReport(
        profile=plan.profile, findings=tuple(finding for check in CHECKS for finding in check(subject))
    )
