"""The sources of a plan: a profile with overrides, an earlier run, or a lockfile (`planner.lock`)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import DeployError, Problem, ProfileError, StartError, UsageError, require_all
from orchestrator.core.files import read_file
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.images.sources import input_digests, ledger_patches, read_inputs
from orchestrator.kernels.disk.store import Store
from orchestrator.patches.schema import MOE_TABLE, AddedFile
from orchestrator.plan.build import planned_model
from orchestrator.plan.facts import Facts
from orchestrator.plan.fusion import compute_fusion, might_fuse
from orchestrator.plan.plan import Model, Plan
from orchestrator.planner.planning import LoadedProfile, read_profile
from orchestrator.planner.prebuilt import require_image
from orchestrator.render.scripts import IMAGE_FOLDER
from orchestrator.runs.run_dir import RunDir, read_plan, require_version
from orchestrator.runtimes import REGISTRY, runtime_class

_MAX_BYTES: Final = 64 << 20  # maximum size of a patch's input file; tables have a few MB


@dataclass(frozen=True, kw_only=True)
class ProfileSource:
    """A profile with overrides, the `--input` files of its patches, and its prebuilt image, if any."""

    valid: LoadedProfile
    home: Home
    inputs: Mapping[str, Path] = field(default_factory=dict)
    image: str | None = None
    has_fixed_plan: ClassVar[bool] = False  # True: the plan is fixed, and `deploy` creates no input for it

    @property
    def runtime(self) -> str:
        """The runtime of the profile."""
        return _known_runtime(self.valid)

    @property
    def api_key_env(self) -> str | None:
        """The environment variable of the server's API key."""
        return self.valid.profile.server.api_key_env

    @property
    def model(self) -> Model:
        """The profile's model."""
        return planned_model(self.valid.profile, self.valid.composed)

    @property
    def image_is_on_nodes(self) -> bool:
        """Whether the nodes of a cluster already have the image."""
        cluster = runtime_class(self.runtime).settings(self.valid.profile).kubernetes
        return cluster is not None and cluster.image_pull_policy == "Never"

    def files(self) -> dict[str, bytes]:
        """Read the `--input` files, and the table built for this model and layout, if any."""
        layout, hardware, engine = self.valid.profile.layout, self.valid.profile.hardware, self.valid.profile.engine
        store = Store.at(self.home, engine.aiter_commit, engine.image)
        model = self.valid.composed.names["model"]
        table = store.table_of(model, hardware.arch, tp=layout.tp.value, ep=layout.ep.value)
        built = {MOE_TABLE: table} if table.is_file() else {}
        return read_inputs({**built, **self.inputs})

    def require_image(self) -> None:
        """Raise ProfileError if the runtime needs a prebuilt image and none is given."""
        problems = runtime_class(self.runtime).built_image_problems(self.valid.profile) if self.image is None else ()
        if unmet := tuple(problems):
            raise ProfileError(f"profile `{self.valid.name}` needs a prebuilt image", problems=unmet)

    def require_startable(self) -> None:
        """Raise ProfileError if the runtime can render the profile but not start it."""
        kind = runtime_class(self.runtime) if self.runtime in REGISTRY else None
        if kind is not None and (problems := tuple(kind.start_problems(self.valid.profile))):
            raise ProfileError(f"cannot start profile `{self.valid.name}`", problems=problems)

    def build(self, facts: Facts) -> Plan:
        """Build the plan."""
        return self.valid.build(facts)

    def planned(self) -> tuple[Plan, dict[str, bytes]]:
        """Build the plan from the current files, and return both."""
        files = self.files()
        return self.build(Facts(inputs=input_digests(files))), files

    def location(self, path: tuple[str, ...]) -> str:
        """Return `file:line` of a key path."""
        return self.valid.composed.location(path)


def profile_source(
    profile: str,
    overrides: Sequence[str],
    home: Home,
    *,
    inputs: Mapping[str, Path] | None = None,
    image: str | None = None,
) -> ProfileSource:
    """Read a profile. Raises ProfileError with every problem, UsageError if its runtime cannot start `image`."""
    valid = read_profile(profile, overrides=overrides, catalog=Catalog.of(home))
    if image is not None:
        try:
            require_image(_known_runtime(valid))
        except UsageError as error:
            require_all(f"cannot start profile `{valid.name}`", (valid.build,), error)
    return ProfileSource(valid=valid, home=home, inputs=inputs or {}, image=image)


@dataclass(frozen=True, kw_only=True)
class RunSource:
    """An earlier run; its plan starts again, even if the profile has changed."""

    run: RunDir
    plan: Plan
    home: Home
    inputs: Mapping[str, bytes]
    image: ClassVar[None] = None  # the plan contains it
    has_fixed_plan: ClassVar[bool] = True

    @property
    def runtime(self) -> str:
        """The runtime of the run."""
        return self.plan.runtime

    @property
    def api_key_env(self) -> str | None:
        """The environment variable of the server's API key."""
        return self.plan.server.api_key_env

    @property
    def model(self) -> Model:
        """The model of the run."""
        return self.plan.model

    def files(self) -> dict[str, bytes]:
        """Return the input files of the run's patches."""
        return {**self.inputs}

    def build(self, facts: Facts) -> Plan:
        """Return the run's plan. Raises ProfileError if the checkpoint contradicts the plan."""
        fusion = compute_fusion(self.plan, facts.experts) if facts.experts and might_fuse(self.plan) else None
        if fusion is not None and fusion.required_flag:
            raise ProfileError(
                f"`{self.plan.profile}` would fuse shared experts that its checkpoint keeps separate: {fusion.reason}",
                location=str(self.run.path / "plan.json"),
                hint=f"`deploy up PROFILE` sets `--{fusion.required_flag}`: {fusion.hint}",
            )
        return self.plan

    def require_startable(self) -> None:
        """Accept the plan, because it was started before."""

    def location(self, path: tuple[str, ...]) -> str:
        """Return the location of a key in the run."""
        return f"`{'.'.join(path)}` in {self.run.path}"


@contextmanager
def collect_rejections(source: "PlanSource", *checks: Callable[[], object]) -> Iterator[None]:
    """If the block rejects a profile, also run the checks of rules and runtime, and raise all rejections at once."""
    try:
        yield
    except DeployError as error:  # errors of a daemon or registry, too
        if isinstance(source, ProfileSource) and not source.has_fixed_plan and source.valid.profile.runtime in REGISTRY:
            require_all(
                f"cannot start profile `{source.valid.name}`",
                (source.valid.build, source.require_image, *checks),
                error if isinstance(error, ProfileError | UsageError) else None,
            )
        raise


PlanSource: TypeAlias = ProfileSource | RunSource


def run_source(run: RunDir, home: Home) -> RunSource:
    """Read the plan of a run and find the input files of its patches.

    Raises StartError if the plan is unreadable or edited, or with every input that no longer exists.
    """
    require_version(run)
    plan, location = read_plan(run), str(run.path / "plan.json")
    if plan is None:
        raise StartError(
            "cannot read the plan of this run: damaged file",
            location=location,
            hint="`deploy up PROFILE` starts the current profile",
        )
    if not run.digest or not plan.digest.startswith(run.digest):
        raise StartError(
            f"the plan has changed since the start: its digest begins with `{plan.digest[:8]}`",
            location=location,
            hint="the name of a run directory has the time and the plan's digest; `deploy up PROFILE` starts a profile",
        )
    inputs: dict[str, bytes] = {}
    if gone := tuple(_missing_inputs(plan, run, home, inputs)):
        raise StartError(f"cannot repeat run `{run.path.name}` exactly", location=location, problems=gone)
    return RunSource(run=run, plan=plan, home=home, inputs=inputs)


def _missing_inputs(plan: Plan, run: RunDir, home: Home, inputs: dict[str, bytes]) -> Iterator[Problem]:
    """Yield the inputs of a plan that no longer exist; add the existing inputs to `inputs`."""
    if plan.prebuilt_image is not None:
        return  # the image already contains all inputs
    carried = {patch.id: patch for patch in ledger_patches(plan)}
    for use in plan.patches:
        patch = carried.get(use.id)
        if patch is None:
            yield Problem(f"patch `{use.id}` no longer exists", hint="`deploy patches ls` lists the patches")
        elif use.input_sha256 is not None and isinstance(patch.apply, AddedFile):
            name = patch.apply.input
            content = _with_digest(use.input_sha256, _input_paths(name, plan, run, home))
            if content is None:
                yield Problem(
                    f"no `{name}` for patch `{use.id}` found: sha256 {use.input_sha256}",
                    hint="`deploy up PROFILE` starts with the current one",
                )
            else:
                inputs[name] = content


def _input_paths(name: str, plan: Plan, run: RunDir, home: Home) -> Iterator[Path]:
    yield run.path / IMAGE_FOLDER / "tables" / FileName(name)
    if name == MOE_TABLE:
        yield Store.of(home, plan).table(plan)


def _with_digest(digest: str, locations: Iterator[Path]) -> bytes | None:
    for path in locations:
        try:
            content = read_file(path, max_bytes=_MAX_BYTES)
        except OSError:
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    return None


def _known_runtime(valid: LoadedProfile) -> str:
    """Return the runtime of a profile. Raises ProfileError with every problem if the runtime does not exist."""
    if valid.profile.runtime not in REGISTRY:
        valid.build()
    return valid.profile.runtime
