"""Rules for plans of the process runtime, and preflight checks for their host."""

from collections.abc import Iterator
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.gpus.inventory import gib
from orchestrator.hosts.report import Finding, fail, info_if, warn
from orchestrator.plan.placement import replicas_join_no_gateway, runs_on_one_node
from orchestrator.plan.rules import RuleContext
from orchestrator.runtimes.supervisor.interpreter import compiler, interpreter


def has_interpreter(context: RuleContext) -> Iterator[Problem]:
    """Check that the engine has an interpreter, or a requirements file to install one."""
    engine = context.profile.engine
    if engine.requirements is None and engine.python is None:
        message = "the process runtime needs an engine with a requirement file or an interpreter"
        hint = "in a container that has sglang, `--set engine.python=python3`; otherwise `--set runtime=docker`"
        yield Problem(message, context.location("engine"), hint)


def device_access(context: CheckContext) -> Iterator[Finding]:
    """Check that this user may open the GPU devices."""
    if context.plan.hardware.vendor != "amd":
        return
    if closed := [device for device in context.host_state.devices if not device.open]:
        user = context.host_state.user
        groups = ",".join(sorted({device.group for device in closed}))
        hint = f"`sudo usermod -aG {groups} {user}`, then log in again"
        yield fail("device access", f"{closed[0].path} is not accessible to {user}", "read and write", hint)


def locked_memory(context: CheckContext) -> Iterator[Finding]:
    """Check the limit of locked memory, for ROCm and RCCL (ROCR-Runtime #313); a container has its own ulimits."""
    limit = context.host_state.memlock
    if context.plan.hardware.vendor == "cpu" or limit is None:
        return
    unlimited = limit == float("inf")
    hint = f"`echo '{context.host_state.user} - memlock unlimited' | sudo tee -a /etc/security/limits.conf`"
    value = "unlimited" if unlimited else gib(limit)
    yield info_if(unlimited, warn, "memlock", value, "unlimited", f"{hint}, then log in again")


RULES: Final = (has_interpreter, runs_on_one_node, replicas_join_no_gateway)
CHECKS: Final = (device_access, locked_memory, interpreter, compiler)
