"""`deploy render --runtime skypilot|dstack`: files that rent a machine and start a profile's server on it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import Problem, ProfileError, UsageError, require_all
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import HUB_TOKEN
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.plan.plan import Plan
from orchestrator.planner.estimate import DOWNLOAD_MB_S, PULL, STEP_SECONDS, startup_seconds
from orchestrator.planner.planning import LoadedProfile, is_path, load
from orchestrator.render.artifacts import RenderedFile
from orchestrator.render.cloud import LAUNCHERS, CloudTask
from orchestrator.render.dockerfile import base_reference

KEY: Final = "DEPLOY_API_KEY"  # variable of the server's key if the profile names none
_UPLOAD_DIR: Final = "/tmp/deploy-tool"  # noqa: S108 - on a machine without other users
_REMOTE_HOME: Final = "~/.local/share/deploy"
_ENTRY_KEYS: Final = ("hardware", "model", "engine", "workload")  # keys with a catalog entry


def cloud_files(
    launcher: str, profile: str, overrides: Sequence[str], home: Home, *, tool: str | None
) -> tuple[Plan, tuple[RenderedFile, ...]]:
    """Return the plan of a server on a rented machine, and the launcher's files. Raises ProfileError or UsageError.

    `tool` is the `deploy` package to install there; None raises UsageError. The server listens on all addresses, with
    an API key. It runs in the engine's image, or in a virtual environment if the engine has a requirements file.
    """
    entries = (value for key, _, value in (override.partition("=") for override in overrides) if key in _ENTRY_KEYS)
    load_profile = cache(partial(load, profile, overrides=overrides, catalog=Catalog.of(home)))
    require_all(
        f"cannot rent a machine for profile `{profile}`",
        (
            partial(_local_tool, tool),
            partial(_require_names, (profile, *entries), home),
            lambda: _require_rentable(load_profile()),
        ),
    )
    requested = load_profile()
    remote_overrides = (*overrides, *_remote_settings(requested.plan))
    plan = load(profile, overrides=remote_overrides, catalog=Catalog.of(home)).plan
    local_tool = _local_tool(tool)
    secrets = [plan.server.api_key_env or KEY, *([HUB_TOKEN] if plan.model.gated else [])]
    image = None if plan.engine.requirements else base_reference(plan.engine)
    load_seconds = plan.model.weight_bytes / (DOWNLOAD_MB_S * 1e6) + startup_seconds(plan)
    task = CloudTask(
        plan=plan,
        up_argv=["deploy", "up", profile, *(word for override in remote_overrides for word in ("--set", override))],
        tool=next(iter(local_tool), str(tool)),
        files={**_user_files(home), **local_tool},
        image=image,
        secrets=secrets,
        offers=requested.profile.hardware.offers,
        disk_bytes=plan.model.weight_bytes + IMAGE_BYTES,
        ready_seconds=load_seconds + STEP_SECONDS["kernels"] + (PULL if image else 0.0),
    )
    return plan, LAUNCHERS[launcher](task)


def _require_names(names: Sequence[str], home: Home) -> None:
    """Raise UsageError if a profile or a catalog entry is a path."""
    if path := next(filter(is_path, names), None):
        hint = (
            f"move the file into `{home.root / 'profiles'}`, which is copied to the rented machine, and pass its name"
        )
        raise UsageError(f"`{path}` is a local file, which the rented machine does not have", hint=hint)


def _remote_settings(plan: Plan) -> Iterator[str]:
    """Yield the rented machine's settings, as `--set` values."""
    yield "runtime=process"
    if plan.engine.requirements is None and plan.engine.python is None:
        yield "engine.python=python3"
    yield "server.host=0.0.0.0"
    if plan.server.api_key_env is None:
        yield f"server.api_key_env={KEY}"


def _require_rentable(resolved: LoadedProfile) -> None:
    """Raise ProfileError for a GPU without a product name, a local checkpoint, or several replicas.

    `deploy watch` watches one server on the rented machine.
    """
    plan, location, problems = resolved.plan, resolved.composed.location, []
    if plan.hardware.vendor != "cpu" and plan.hardware.gpu_product is None:
        hint = "`--set hardware.gpu_product=MI355X`, as the launcher's catalog has it"
        problems.append(Problem("the hardware has no `gpu_product`", location(("hardware",)), hint))
    if plan.model.checkpoint.source == "local":
        hint = "a rented machine downloads it: set `model.checkpoint.source=hub` and a repository as its `path`"
        problems.append(
            Problem(f"`{plan.model.checkpoint.path}` is a local path", location(("model", "checkpoint", "path")), hint)
        )
    if plan.gateway is not None:
        hint = "`--set replicas=1`; for more machines, set `replicas` or scaling in the launcher's service file"
        problems.append(Problem(f"a rented machine runs 1 replica, not {plan.replicas}", location(("replicas",)), hint))
    if problems:
        raise ProfileError(f"cannot rent a machine for profile `{plan.profile}`", problems=problems)


def _user_files(home: Home) -> Mapping[str, str]:
    """Return the folders of the user's profiles, patches and templates, by their path on the rented machine."""
    user_catalog = Catalog((home.root,))
    folders = sorted({kind.value.partition("/")[0] for kind in EntryKind if user_catalog.names(kind)})
    return {f"{_REMOTE_HOME}/{name}": str((home.root / FileName(name)).resolve()) for name in folders}


def _local_tool(tool: str | None) -> Mapping[str, str]:
    """Return the local checkout or wheel of `deploy`, by its path on the rented machine; empty for a URL.

    Raises UsageError for anything else: a package index may have another project's package of that name.
    """
    if tool is None:
        raise UsageError(
            "no `--package` given: `deploy` is on no package index, so a rented machine cannot install it",
            hint="`--package .` in a clone, a wheel, or a URL such as `git+https://…@COMMIT`",
        )
    path = Path(tool)
    if path.exists():
        return {f"{_UPLOAD_DIR}/{path.resolve().name}": str(path.resolve())}
    if "://" not in tool:
        raise UsageError(f"`--package {tool}` is not a file, directory or URL", hint="`--package .` in a clone")
    return {}
