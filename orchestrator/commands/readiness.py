"""Is the machine ready for a plan, and free again after it? Connects what host, checkpoint and Docker each know."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from orchestrator.core.console import Progress
from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.shell import Result
from orchestrator.host.drain import read_gpus, wait_for_vram
from orchestrator.host.ports import plan_ports, port_holder
from orchestrator.host.preflight import preflight
from orchestrator.host.report import PreflightReport
from orchestrator.host.subject import Probe, Space
from orchestrator.host.survey import Runner, local, over_ssh
from orchestrator.plan import Plan
from orchestrator.weights.receipt import stamps
from orchestrator.weights.verify import checkpoint_directory, needs_mtp, verify

_IMAGE_BYTES: Final = 64 << 30  # our estimate for an unpacked ROCm or CUDA image with the layers of a build
_PORT_LIMIT: Final = 30.0  # seconds a stopped server's port may stay taken


def far_host(plan: Plan, host: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The far machine a plan runs on, `ssh://user@node`: the one that is named, else Docker's; None for this one."""
    named = (host or environ.get("DOCKER_HOST")) if plan.runtime == "docker" else None
    if not named or named.startswith("unix://"):
        return None
    if not named.startswith("ssh://"):
        raise UsageError(f"`{named}` cannot be looked at from here", hint="use `ssh://user@node`")
    return named


def runner_for(host: str | None) -> Runner:
    """How to run a program on a far machine, or on this one."""
    return over_ssh(host) if host else local


def inspect_host(
    plan: Plan, home: Home, *, host: str | None = None, environ: Mapping[str, str] = os.environ
) -> PreflightReport:
    """Run every preflight check of a plan, here or on a far host (whose checkpoint is not looked at)."""
    host = far_host(plan, host, environ)
    runner = runner_for(host)
    probe = Probe(
        runner=runner,
        environ=environ,
        spaces=tuple(_spaces(plan, home, runner)) if host is None else (),
        image_digests=lambda reference: image_digests(runner, reference),
        checkpoint=_checkpoint(plan, home) if host is None else None,
    )
    return preflight(plan, probe)


def wait_until_drained(plan: Plan, *, host: str | None = None) -> None:
    """Wait until the plan's GPUs have given back the VRAM of a server that is gone, showing which still hold some."""
    if plan.hardware.vendor == "cpu":
        return
    runner, progress = runner_for(far_host(plan, host)), Progress()
    try:
        wait_for_vram(
            lambda: read_gpus(plan.hardware.vendor, runner),
            gpus=plan.layout.gpus,
            progress=lambda text, seconds: progress.update(text, transient=f"{seconds:.0f} s"),
        )
    finally:
        progress.done()


def wait_until_free(
    plan: Plan,
    *,
    host: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the ports and the VRAM of a stopped server are free. Raises HostError with who holds them."""
    runner, end = runner_for(far_host(plan, host)), clock() + _PORT_LIMIT
    for _, port in plan_ports(plan):
        while (holder := port_holder(port, runner)) is not None:
            if clock() > end:
                raise HostError(
                    f"port {port} is still held by {holder}", hint="another program took it, or stop that one"
                )
            sleep(0.2)
    wait_until_drained(plan, host=host)


def image_digests(runner: Runner, reference: str) -> frozenset[str]:
    """The digests a reference stands for: those of the image on this host, else those its registry lists.

    Empty for a reference that does not exist. Raises OSError where neither can be asked.
    """
    here = runner(("docker", "image", "inspect", "--format", "{{json .RepoDigests}}", reference))
    if here.ok:
        named = json.loads(here.stdout) or []
        return frozenset(digest.rpartition("@")[2] for digest in named) or frozenset({"built on this host"})
    there = runner(("docker", "manifest", "inspect", "--verbose", reference))
    if there.ok:
        try:
            found = json.loads(there.stdout)
            return frozenset(entry["Descriptor"]["digest"] for entry in (found if isinstance(found, list) else [found]))
        except (ValueError, KeyError, TypeError) as error:
            raise OSError("`docker manifest inspect` answers in another form") from error
    if any(word in there.stderr for word in ("no such manifest", "manifest unknown", "not found: manifest")):
        return frozenset()
    raise OSError(_last_line(there))


def _checkpoint(plan: Plan, home: Home) -> Callable[[], str] | None:
    directory = checkpoint_directory(plan.model, home)
    if plan.model.source.kind == "generated" and not directory.exists():
        return None  # made on the way up
    return lambda: str(verify(directory, plan.model, speculative=needs_mtp(plan)))


def _spaces(plan: Plan, home: Home, runner: Runner) -> Iterator[Space]:
    directory = checkpoint_directory(plan.model, home)
    if plan.model.source.kind == "hub":
        here = sum(size for size, _ in stamps(directory).values()) if directory.is_dir() else 0
        yield Space(purpose="weights", directory=str(directory), size=max(plan.model.weight_bytes - here, 0))
    if plan.runtime == "docker" and plan.engine.image and plan.hardware.vendor != "cpu":
        root = runner(("docker", "info", "--format", "{{.DockerRootDir}}"))
        if root.ok and not runner(("docker", "image", "inspect", plan.engine.image)).ok:
            yield Space(purpose="image", directory=root.stdout.strip(), size=_IMAGE_BYTES)


def _last_line(result: Result) -> str:
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {result.code}"
