"""Recorded hosts as surveys, and runners that print them like the real script."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.survey import Runner, Section, Survey

RECORDED = Path(__file__).parents[1] / "unit" / "hosts" / "recorded"

# The sections of a node that passes preflight, except the GPUs.
READY: Mapping[str, str] = {
    "user": "0\nroot\n",
    "devices": "/dev/kfd 109 render open\n" + "".join(f"/dev/dri/renderD{128 + n} 109 render open\n" for n in range(8)),
    "memlock": "unlimited\n",
    "shm": "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 1585446400 0 1585446400 0% /dev/shm\n",
    "numa balancing": "0\n",
    "kernel options": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt pci=realloc=off\n",
    "cpus allowed": "Cpus_allowed_list:\t0-255\n",
    "cpus online": "0-255\n",
    "sockets": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
}


def sections(node: str, **changed: str) -> dict[str, str]:
    """The recorded sections of a node, otherwise ready; `numa_balancing="1"` changes one."""
    files = {path.stem.replace("_", " "): path.read_text() for path in sorted((RECORDED / node).iterdir())}
    return {**READY, **files, **{name.replace("_", " "): text for name, text in changed.items()}}


def survey_of(node: str) -> Survey:
    """Return the survey of a recorded node."""
    return Survey({name: Section(0, text) for name, text in sections(node).items()})


def docker_answering(
    code: int = 0, text: str = "27.5.1\n", *, exist: bool = False, missing: str = "no such manifest"
) -> Runner:
    """Return a docker command with this answer about its daemon; all images exist in the registry if `exist`."""

    def run(argv: Sequence[str]) -> CompletedProgram:
        if "version" in argv or "--version" in argv:
            return CompletedProgram(
                argv=tuple(argv), code=code, stdout=text if code == 0 else "", stderr=text if code else ""
            )
        if exist and "manifest" in argv:
            return CompletedProgram(argv=tuple(argv), code=0, stdout="{}", stderr="")
        return CompletedProgram(argv=tuple(argv), code=1, stdout="", stderr=missing)

    return run


READY_DOCKER = docker_answering(exist=True)


def runner_of(node: Mapping[str, str], *, docker: Runner = READY_DOCKER) -> Runner:
    """Return a runner on that node, which has only the survey and a docker command."""

    def run(argv: Sequence[str]) -> CompletedProgram:
        if "docker" in argv[:3]:
            return docker(argv)
        if argv[0] != "sh":
            return CompletedProgram(argv=tuple(argv), code=127, stdout="", stderr="")
        printed = "".join(f"\x1e{name}\n{text}\x1f0" for name, text in node.items())
        return CompletedProgram(argv=tuple(argv), code=0, stdout=printed, stderr="")

    return run
