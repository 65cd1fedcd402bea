"""Preflight checks for a host that is to run a container."""

from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.core.text import parse_json
from orchestrator.hosts.context import CheckContext, DiskNeed
from orchestrator.hosts.report import Finding, fail, info, info_if, warn
from orchestrator.hosts.survey import Runner
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.plan.networks import NO_RDMA, ranks_use_rdma, transfer_uses_rdma
from orchestrator.plan.plan import Engine, Plan
from orchestrator.render.dockerfile import base_reference

_MISSING: Final = 127  # a shell's exit code if it finds no such program
_VERSION: Final = ("timeout", "10", "docker", "version", "--format", "{{.Server.Version}}")


def daemon(subject: CheckContext) -> Iterator[Finding]:
    """Check that a Docker daemon answers."""
    result = subject.access.runner(_VERSION)
    text = (result.stdout + result.stderr).strip()
    if result.code == _MISSING:
        yield fail("docker", "not installed", "a daemon", "`sudo apt-get install docker.io`, or docs.docker.com/engine")
    elif not result.ok:
        yield fail("docker", text.rpartition(": ")[2] or "no answer", "a daemon", "`sudo systemctl start docker`")
    else:
        yield info("docker", text, "a daemon")


def image(subject: CheckContext) -> Iterator[Finding]:
    """Check that the image is available: the prebuilt one, else the base with its pinned digest."""
    plan, engine = subject.plan, subject.plan.engine
    name = plan.prebuilt_image or engine.image
    if name is None or subject.access.runner(("docker", "--version")).code == _MISSING:
        return
    try:
        digests = image_digests(subject.access.runner, name)
    except OSError as error:
        yield _not_queried(subject, name, str(error))
        return
    if plan.prebuilt_image:
        pushed = f"`deploy build PROFILE --tag {name.partition('@')[0]} --push` builds it"
        yield info_if(bool(digests), fail, "image", "there" if digests else "no such image", name, pushed)
    else:
        yield _base_found(engine, name, digests)


def _not_queried(subject: CheckContext, name: str, error: str) -> Finding:
    """Return a warning: the daemon's pull may still work, as by a mirror. The pull precedes the download of weights."""
    plan, runner = subject.plan, subject.access.runner
    if not plan.prebuilt_image and runner(("docker", "image", "inspect", base_reference(plan.engine))).ok:
        return info("image", "there", name)  # by its digest; its tag was never pulled
    reason = error.rpartition(": ")[2]  # Go puts the cause last
    hint = f"see what `docker manifest inspect {name}` prints; `docker login`, if the image is private"
    return warn("image", f"cannot query the registry: {reason}", name, hint)


def _base_found(engine: Engine, name: str, digests: frozenset[str]) -> Finding:
    if not digests and not engine.image_digest and engine.image_fallbacks:
        return warn("image", "no such tag", name, f"`{'`, then `'.join(engine.image_fallbacks)}` is tried instead")
    if not digests:
        return fail("image", "no such tag", name, "dated tags get deleted: pin another tag in the engine's file")
    if engine.image_digest and engine.image_digest not in digests:
        hint = "the tag has moved: pin the tested digest, or test the new image and pin its digest in the engine's file"
        level = fail if len(digests) == 1 else warn  # the digest of a multi-platform index is not reported
        return level("image", f"{min(digests)[:19]}…", f"{engine.image_digest[:19]}…", hint)
    return info("image", "there", name)


def rdma(subject: CheckContext) -> Iterator[Finding]:
    """Check that the image sees the NICs of the host: with another ABI of the driver it has none (sglang #33374)."""
    plan, nics = subject.plan, [nic.name for nic in subject.machine.rdma]
    expected, ranks = "the same NICs in the image and on the host", plan.layout.nodes > 1 and ranks_use_rdma(plan)
    if not ranks and not transfer_uses_rdma(plan):
        return
    if not nics:
        tcp = f"env.{NO_RDMA}=1" if ranks else "layout.transfer.network=tcp"
        needed = f"RDMA between {plan.layout.nodes} nodes" if ranks else plan.transfer
        yield fail("rdma", "no NIC in /sys/class/infiniband", needed, f"`--set {tcp}`")
        return
    name = plan.prebuilt_image or base_reference(plan.engine)
    options = ("--pull=never", "--network=none", "--volume=/dev/infiniband:/dev/infiniband", "--entrypoint=ibv_devices")
    result = subject.access.runner(("docker", "run", "--rm", *options, name))
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


def image_digests(runner: Runner, reference: str) -> frozenset[str]:
    """Return the digests of a reference: those of the image on this host, else those in its registry.

    Empty for a reference that does not exist. Raises OSError if neither the host nor the registry can be queried.
    """
    local = runner(("docker", "image", "inspect", "--format", "{{json .RepoDigests}}", reference))
    if local.ok:
        named = parse_json(local.stdout) or []
        return frozenset(digest.rpartition("@")[2] for digest in named) or frozenset({"built on this host"})
    remote = runner(("docker", "manifest", "inspect", "--verbose", reference))
    if remote.ok:
        try:
            found = parse_json(remote.stdout)
            return frozenset(entry["Descriptor"]["digest"] for entry in (found if isinstance(found, list) else [found]))
        except (ValueError, KeyError, TypeError) as error:
            raise OSError("cannot parse the output of `docker manifest inspect`") from error
    if any(word in remote.stderr for word in ("no such manifest", "manifest unknown", "not found: manifest")):
        return frozenset()
    raise OSError(_last_line(remote))


def _last_line(result: CompletedProgram) -> str:
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {result.code}"


CHECKS: Final = (daemon, image, rdma)
