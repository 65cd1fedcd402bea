"""What a container on this hardware is given, as options of `docker run`: one place for servers and for the tuner."""

from collections.abc import Callable, Iterator

from orchestrator.plan import ContainerNeeds


def needs_options(needs: ContainerNeeds, group: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """Every option with its value, not quoted.

    `group` gives the id of a group by its name: docker looks a name up inside the image, which need not know it. A
    group without one owns no device there, and is left out.
    """
    for device in needs.devices:
        yield "--device", device
    if needs.all_gpus:
        yield "--gpus", "all"
    for name in needs.groups:
        if (number := name if name.isdigit() else group(name)) is not None:
            yield "--group-add", number
    if needs.ipc is not None:
        yield "--ipc", needs.ipc
    if needs.shm_bytes is not None:
        yield "--shm-size", str(needs.shm_bytes)
    for limit in needs.ulimits:
        yield "--ulimit", f"{limit.name}={limit.soft}:{limit.hard}"
    for option in needs.security_opt:
        yield "--security-opt", option
    for capability in needs.cap_add:
        yield "--cap-add", capability
