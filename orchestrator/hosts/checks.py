"""Preflight: checks whether a host is ready for a plan. Each check yields findings, with a hint for each problem."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from orchestrator.hosts import fabric, gpu_checks, system_checks
from orchestrator.hosts.context import Check, CheckContext, HostAccess
from orchestrator.hosts.gpus import ALL_SECTIONS
from orchestrator.hosts.host_state import read_host_state
from orchestrator.hosts.report import PreflightReport
from orchestrator.hosts.survey import HOST_SECTIONS, survey
from orchestrator.plan.plan import Plan

# Checks of the host where the server runs.
SERVING_CHECKS: Final[Sequence[Check]] = (
    gpu_checks.gpus_present,
    gpu_checks.gpu_arch,
    gpu_checks.compute_units,
    gpu_checks.vram_size,
    gpu_checks.vram_use,
    gpu_checks.driver,
    system_checks.devices,
    fabric.gid_of_transfer,
    system_checks.memory,
    system_checks.shared_memory,
    system_checks.host_memory,
    system_checks.numa_balancing,
    system_checks.kernel_options,
    system_checks.cpu_affinity,
    system_checks.ports,
)
# Checks that also apply to a server on another host. The disk is that of the server.
CONTROL_CHECKS: Final[Sequence[Check]] = (system_checks.disk_space, system_checks.checkpoint, system_checks.api_key)


def preflight(plan: Plan, access: HostAccess, more: Sequence[Check] = (), *, local: bool = True) -> PreflightReport:
    """Survey a host once, run all checks on the result, and return the report.

    `more` holds the additional checks of the plan's runtime. Without `local`, the server runs on another host, and the
    checks of GPUs, devices and ports are skipped. A failed check does not raise. Raises HostError if the survey fails.
    """
    directories = [space.directory for space in access.spaces]
    gpus = ALL_SECTIONS if local and plan.hardware.vendor != "cpu" else {}
    sections = survey(access.runner, {**gpus, **HOST_SECTIONS}, directories=directories)
    context = CheckContext(plan=plan, host_state=read_host_state(sections), access=access)
    checks = (*(SERVING_CHECKS if local else ()), *CONTROL_CHECKS, *more)
    findings = chain.from_iterable(check(context) for check in checks)
    return PreflightReport(profile=plan.profile, findings=tuple(findings))
