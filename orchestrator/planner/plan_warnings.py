"""The known issues and warnings of a plan, as `up`, its dry run, `render` and `show` report them."""

import re
from typing import Final

from orchestrator.core.console import note, warn
from orchestrator.images.config import ImageConfig
from orchestrator.plan.fusion import inferred_fusion_flag
from orchestrator.plan.plan import Plan, PlanWarning
from orchestrator.planner.image_env import image_warnings
from orchestrator.runtimes import runtime_class

_COMMIT: Final = re.compile("[0-9a-f]{7,40}")  # or its first digits


def plan_warnings(plan: Plan, *, name: str | None = None, image: ImageConfig | None = None) -> tuple[PlanWarning, ...]:
    """Return the warnings before a start of a server of that name, by default the profile's name.

    A server without an API key comes first. Known issues that match the plan follow, then those that match only with
    the variables of its `image`.
    """
    warnings = image_warnings(plan, image) if image is not None else ()
    return (*_open_server(plan, name or plan.profile), *plan.warnings, *warnings)


def report_warnings(
    plan: Plan, *, name: str | None = None, image: ImageConfig | None = None, before: Plan | None = None
) -> None:
    """Print the warnings of a plan and its inferred flag, without those already printed for the plan `before`."""
    flag = inferred_fusion_flag(plan)
    if flag is not None and (before is None or flag not in before.flags):
        note(f"`{flag.name}` is set: {flag.source}")
    printed = () if before is None else plan_warnings(before, name=name)
    for warning in plan_warnings(plan, name=name, image=image):
        if warning not in printed:
            source = f" ({warning.source})" if warning.source else ""
            warn(f"{warning.summary}{source}", hint=warning.hint)


def warn_unpinned(plan: Plan) -> None:
    """Warn of an image without a digest and a hub checkpoint without a commit, which may change between two starts."""
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
