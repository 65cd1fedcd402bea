"""Reports of a plan's known issues and warnings, and of its image's variables."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.core.catalog import Catalog
from orchestrator.core.console import note, warn
from orchestrator.core.errors import ProfileError, truncate_problems
from orchestrator.core.yaml_document import KeyPath
from orchestrator.images.config import ImageConfig, local_config
from orchestrator.plan.fusion import inferred_fusion_flag
from orchestrator.plan.known_issues import blocking_issues, matching_issues
from orchestrator.plan.plan import Plan, PlanWarning
from orchestrator.planner.planning import read_known_issues
from orchestrator.planner.prebuilt import image_of
from orchestrator.planner.source import PlanSource, ProfileSource
from orchestrator.runtimes import runtime_class

_COMMIT: Final = re.compile("[0-9a-f]{7,40}")  # full or abbreviated


def plan_warnings(plan: Plan, *, name: str | None = None, image: ImageConfig | None = None) -> tuple[PlanWarning, ...]:
    """Return the warnings before the start of the server `name`, by default the profile's name.

    First a missing API key, then known issues that match the plan, then those that match only with the variables of its
    `image`.
    """
    warnings = image_warnings(plan, image) if image is not None else ()
    return (*_open_server(plan, name or plan.profile), *plan.warnings, *warnings)


def report_warnings(
    plan: Plan, *, name: str | None = None, image: ImageConfig | None = None, before: Plan | None = None
) -> None:
    """Print a plan's warnings and inferred flag, except those already printed for the plan `before`."""
    flag = inferred_fusion_flag(plan)
    if flag is not None and (before is None or flag not in before.flags):
        note(f"`{flag.name}` is set: {flag.source}")
    printed = () if before is None else plan_warnings(before, name=name)
    for warning in plan_warnings(plan, name=name, image=image):
        if warning not in printed:
            source = f" ({warning.source})" if warning.source else ""
            warn(f"{warning.summary}{source}", hint=warning.hint)


def warn_unpinned(plan: Plan) -> None:
    """Warn of an image without digest or a hub checkpoint without commit, which may change between starts."""
    engine, checkpoint = plan.engine, plan.model.checkpoint
    unpinned = []
    if runtime_class(plan.runtime).in_container and not plan.prebuilt_image and engine.image_digest is None:
        unpinned.append(f"image `{engine.image}`")
    if checkpoint.source == "hub" and not _COMMIT.fullmatch(checkpoint.revision or ""):
        unpinned.append(f"checkpoint `{checkpoint.path}`")
    if unpinned:
        hint = "`deploy lock PROFILE` pins them from registry and hub; `up --locked` starts the pinned versions"
        warn(f"not pinned, so a later start may get another version: {', '.join(unpinned)}", hint=hint)


def _open_server(plan: Plan, name: str) -> tuple[PlanWarning, ...]:
    if not plan.server.is_unauthenticated_public:
        return ()
    summary = f"`{name}` listens on {plan.server.host} without an API key; anyone who can reach it can use it"
    hint = "`--set server.api_key_env=NAME` names the variable that holds a key"
    return (PlanWarning(id="open-server", summary=summary, source="", hint=hint),)


def image_config(plan: Plan) -> ImageConfig | None:
    """Return the configuration of a plan's image on this host; None if the image is missing."""
    image = image_of(plan)
    return local_config(image) if image is not None else None


def image_variables(plan: Plan, config: ImageConfig) -> Iterator[str]:
    """Yield the image's variables that affect the engine, each with the plan's value if that replaces it."""
    planned = {variable.name: variable for variable in plan.env}
    for name, value in config.engine_env.items():
        variable = planned.get(name)
        if variable is None or variable.value == value:
            yield f"{name}={value}"
        else:
            yield f"{name}={variable.value} (the image sets {value}; {variable.source})"


def image_warnings(plan: Plan, config: ImageConfig) -> tuple[PlanWarning, ...]:
    """Return the known issues that match only with the image's variables."""
    of_plan = {warning.id for warning in plan.warnings}
    entries = [entry for entry in read_known_issues(Catalog.from_environment()).warnings if entry.id not in of_plan]
    found = (issue for server in _of_roles(plan) for issue in matching_issues(entries, server, image_env=config.env))
    return tuple(dict.fromkeys(found))


def require_unblocked(source: PlanSource, plan: Plan, config: ImageConfig | None) -> None:
    """Raise ProfileError if a known issue blocks the plan with the image's variables; a run has started before."""
    if config is None or not isinstance(source, ProfileSource):
        return
    entries, allowed = source.valid.knowledge.known_issues.blocked, source.valid.profile.allow_known_issues

    def location(path: KeyPath) -> str:
        return source.location(tuple(str(key) for key in path))

    problems = [
        problem
        for server in _of_roles(plan)
        for problem in blocking_issues(entries, server, allowed=allowed, location=location, image_env=config.env)
    ]
    if shown := truncate_problems(dict.fromkeys(problems)):
        raise ProfileError(
            f"cannot start profile `{plan.profile}` with the variables of `{config.reference}`",
            problems=shown,
            hint="`--set env.NAME=VALUE` replaces a variable of the image",
        )


def _of_roles(plan: Plan) -> Iterable[Plan]:
    """Return the plan of one server of each role."""
    return {server.role: server for server in plan.servers.values()}.values()


def note_environment(plan: Plan, config: ImageConfig | None) -> None:
    """Print the variables set by a plan's image, if it has one."""
    image = image_of(plan)
    if image is not None and config is None:
        note(f"the environment variables of `{image}` are unknown; `deploy inspect {image}` reads them")
    elif config is not None:
        note(f"`{image}` sets {', '.join(image_variables(plan, config)) or 'no variable of its engine'}")
