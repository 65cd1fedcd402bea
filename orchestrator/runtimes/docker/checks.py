"""Preflight checks for a host that is to run a container."""

from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.context import CheckContext, DiskNeed
from orchestrator.hosts.report import Finding, fail, info, warn
from orchestrator.hosts.survey import Runner
from orchestrator.images.argument_checker import argument_checker
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.plan.networks import NO_RDMA, ranks_use_rdma, transfer_uses_rdma
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import base_reference

_MISSING: Final = 127  # a shell's exit code if it finds no such program
_NO_MANIFEST: Final = ("no such manifest", "manifest unknown", "not found: manifest")
_VERSION: Final = ("timeout", "10", "docker", "version", "--format", "{{.Server.Version}}")


def daemon(context: CheckContext) -> Iterator[Finding]:
    """Check that a Docker daemon answers."""
    result = context.access.runner(_VERSION)
    text = (result.stdout + result.stderr).strip()
    if result.code == _MISSING:
        yield fail("docker", "not installed", "a daemon", "`sudo apt-get install docker.io`, or docs.docker.com/engine")
    elif not result.ok:
        yield fail("docker", text.rpartition(": ")[2] or "no answer", "a daemon", "`sudo systemctl start docker`")
    else:
        yield info("docker", text, "a daemon")


def image(context: CheckContext) -> Iterator[Finding]:
    """Check that the image, the prebuilt one or the base, is on the host or in its registry."""
    plan, engine, runner = context.plan, context.plan.engine, context.access.runner
    if plan.prebuilt_image is None and engine.image is None:
        return
    name = plan.prebuilt_image or base_reference(engine)
    result = runner(("docker", "image", "inspect", name))
    if not result.ok:
        result = runner(("docker", "manifest", "inspect", name))
    if result.ok:
        yield info("image", "found", name)
    elif result.code != _MISSING and not any(text in result.stderr for text in _NO_MANIFEST):
        # The daemon's pull may still work, for example with a mirror. It precedes the download of weights.
        hint = f"see what `docker manifest inspect {name}` prints; `docker login`, if the image is private"
        reason = _last_line(result).rpartition(": ")[2]  # Go puts the cause last
        yield warn("image", f"cannot query the registry: {reason}", name, hint)
    elif result.code != _MISSING:
        hint = "dated tags get deleted: pin another tag in the engine's file"
        if plan.prebuilt_image:
            hint = f"`deploy build PROFILE --tag {name.partition('@')[0]} --push` builds it"
        yield fail("image", "no such image", name, hint)


def rdma(context: CheckContext) -> Iterator[Finding]:
    """Check that the image detects the host's NICs: with another driver ABI it finds none (sglang #33374).

    Jobs and pods check it on their node, before sglang starts.
    """
    plan, nics = context.plan, [nic.name for nic in context.host_state.rdma]
    expected, ranks = "the same NICs in the image and on the host", plan.layout.nodes > 1 and ranks_use_rdma(plan)
    if not ranks and not transfer_uses_rdma(plan):
        return
    if not nics:
        tcp = f"env.{NO_RDMA}=1" if ranks else "layout.transfer.network=tcp"
        needed = f"RDMA between {plan.layout.nodes} nodes" if ranks else plan.transfer
        yield fail("rdma", "no NIC in /sys/class/infiniband", needed, f"`--set {tcp}`")
        return
    name = plan.prebuilt_image or base_reference(plan.engine)
    options = ("--pull=never", "--network=none", "--volume=/dev/infiniband:/dev/infiniband", "--entrypoint=python3")
    result = context.access.runner(("docker", "run", "--rm", *options, name, "-c", argument_checker(), "nics"))
    if not result.ok:
        yield info("rdma", f"{', '.join(nics)}; not compared: {_last_line(result)}", expected)
    elif missing := [nic for nic in nics if nic not in result.stdout.split()]:
        hint = "use an image with the RDMA provider libraries (rdma-core) of this host's driver"
        yield fail("rdma", f"`{name}` does not see {', '.join(missing)}", expected, hint)
    else:
        yield info("rdma", ", ".join(nics), expected)


def engine_python(plan: Plan, _home: Home) -> Sequence[str]:
    """Return the command that starts the Python of the plan's image, with the GPUs and NICs of the host."""
    name = plan.prebuilt_image or base_reference(plan.engine)
    gpus = ("--gpus=all",) if plan.hardware.container.all_gpus else ()
    options = ("--rm", "--init", "--pull=never", "--network=host", "--ipc=host", "--privileged", "--ulimit=memlock=-1")
    variables = [f"{item.name}={item.value}" for item in plan.env]
    return ("docker", "run", *options, *gpus, "--entrypoint=env", name, *variables, "python3")


def image_space(plan: Plan, runner: Runner) -> Iterator[DiskNeed]:
    """Yield the disk space for an image that has to be pulled."""
    image = plan.prebuilt_image or plan.engine.image
    if not image or plan.hardware.vendor == "cpu":
        return
    root = runner(("docker", "info", "--format", "{{.DockerRootDir}}"))
    if root.ok and not runner(("docker", "image", "inspect", image)).ok:
        yield DiskNeed(purpose="image", directory=root.stdout.strip(), size=IMAGE_BYTES)


def _last_line(result: CompletedProgram) -> str:
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {result.code}"


CHECKS: Final = (daemon, image, rdma)
