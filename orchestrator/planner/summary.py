"""`deploy show`: the summary of a plan, at most 80 columns wide."""

import textwrap
from collections.abc import Iterator
from typing import Final

from orchestrator.core.command_hints import expand_commands
from orchestrator.core.console import format_duration
from orchestrator.core.paths import Home
from orchestrator.core.text import gb
from orchestrator.images.config import ImageConfig
from orchestrator.kernels.plan_coverage import coverage_texts, untuned_problem
from orchestrator.plan.plan import Plan
from orchestrator.planner.plan_warnings import image_variables, plan_warnings
from orchestrator.planner.prebuilt import image_of

WIDTH: Final = 80  # columns
_LABEL: Final = 12  # columns of a row's name
_DIGEST: Final = 12  # characters shown of a digest or a commit
_HEX: Final = 40  # length of a full commit


def plan_summary(
    plan: Plan, home: Home, *, workload: str = "", image: ImageConfig | None = None, width: int | None = None
) -> str:
    """Return the summary of a plan, wrapped at `width` columns (at most 80).

    `workload` describes the workload of `bench`; `image` is the image's configuration, if known. Sizes are in MB and GB
    (1e6 and 1e9 bytes) and GiB (2^30 bytes), times in seconds and minutes.
    """
    columns = max(min(width or WIDTH, WIDTH), 2 * _LABEL)
    rows = (
        *_checkpoint(plan),
        *_engine(plan, image),
        *_hardware(plan),
        *_server(plan),
        *([("workload", workload)] if workload else []),
        *_timeouts(plan),
        *_patches(plan),
        *_kernels(plan, home),
        *_settings(plan),
        *_issues(plan, image),
        ("digest", plan.digest[:_DIGEST]),
    )
    return "\n".join(line for label, text in rows for line in _fold(label, text, columns))


def _fold(label: str, text: str, columns: int) -> list[str]:
    """Wrap one row between words; a flag stays on one line with its values."""
    lead = f"{label:<{_LABEL}}"
    lines = textwrap.wrap(text, columns, initial_indent=lead, subsequent_indent=" " * _LABEL, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


_Rows = Iterator[tuple[str, str]]


def _checkpoint(plan: Plan) -> _Rows:
    model, checkpoint = plan.model, plan.model.checkpoint
    yield "profile", f"{plan.profile}: {plan.description}" if plan.description else plan.profile
    facts = f"{model.quantization}, {gb(model.weight_bytes)}, {model.context_length:,} tokens of context"
    yield "model", f"{model.name}, served as `{model.served_name}`: {facts}"
    revision = f", revision {_short(checkpoint.revision)}" if checkpoint.revision else ""
    yield "checkpoint", f"{checkpoint.source} {checkpoint.path}{revision}{', gated' if model.gated else ''}"


def _engine(plan: Plan, image: ImageConfig | None) -> _Rows:
    engine = plan.engine
    commit = f", aiter {_short(engine.aiter_commit)}" if engine.aiter_commit else ""
    yield "engine", f"{engine.name}: sglang {engine.version} for {engine.platform}{commit}"
    reference = image_of(plan)
    if reference is None:
        yield "environment", engine.python or engine.requirements or "the interpreter of this host"
        return
    kind = "prebuilt" if plan.prebuilt_image else "patched" if plan.patches else "base"
    name, _, digest = reference.partition("@")
    yield "image", f"{name}{f' ({_short(digest)})' if digest else ''}, {kind}"
    if image is None:
        yield "", "its environment variables are unknown: `deploy inspect IMAGE` reads them"
    elif variables := [*image_variables(plan, image)]:
        yield "", f"it sets {', '.join(variables)}"


def _hardware(plan: Plan) -> _Rows:
    hardware, gpus = plan.hardware, plan.gpus
    if not gpus:
        yield "hardware", f"{hardware.name}: {hardware.arch}, no GPU"
    else:
        size = f"{hardware.gpus} x {hardware.arch}, {hardware.vram_bytes / 2**30:.0f} GiB each"
        gpu_text = f"{gpus[0]}-{gpus[-1]}" if len(gpus) > 2 and gpus.step == 1 else ", ".join(map(str, gpus))
        gpu_text = f"GPU {gpu_text}{' of each node' * (plan.layout.nodes > 1)}"
        separate_gateway = plan.gateway is not None and not plan.gateway.one_node
        yield "hardware", f"{hardware.name}: {size}; uses {f'{plan.gpu_count} GPUs' if separate_gateway else gpu_text}"
    layout, serving = plan.layout, plan.serving
    words = [f"tp {layout.tp}", f"dp {layout.dp}", f"ep {layout.ep}"]
    words += [f"pp {serving.stages}"] if serving.stages > 1 else []
    words += ["dp attention"] if layout.dp_attention else []
    words += [f"{layout.nodes} nodes"] if layout.nodes > 1 else []
    replicas = f"{plan.replicas} replicas behind a gateway" if plan.gateway else "1 replica"
    if not plan.roles:
        yield "parallelism", f"{', '.join(words)}; {replicas}"
    shared = {flag.argv for flag in plan.flags}
    for role in plan.roles:
        role_flags = " ".join(word for flag in role.flags if flag.argv not in shared for word in flag.argv)
        omitted = {flag.name for flag in plan.flags} - {flag.name for flag in role.flags}
        without = f", without --{' --'.join(sorted(omitted))}" if omitted else ""
        yield role.role, f"{role.count} x {role.layout.label}; {role_flags}{without}"
    if plan.roles:
        yield "transfer", f"{plan.transfer}; a gateway sends each request to both roles"


def _server(plan: Plan) -> _Rows:
    server = plan.server
    key = f"the API key of ${server.api_key_env}" if server.api_key_env else "no API key"
    yield "server", f"{plan.runtime} runtime, listens on {server.host}, port {server.port}, {key}"
    if plan.kubernetes is not None:
        yield "", f"namespace {plan.kubernetes.namespace}"
    if plan.slurm is not None and plan.slurm.partition:
        yield "", f"partition {plan.slurm.partition}"


def _timeouts(plan: Plan) -> _Rows:
    timeouts, restart_policy = plan.timeouts, plan.restart_policy
    times = f"start without progress {format_duration(timeouts.progress_deadline)}"
    times += f", stop {format_duration(timeouts.termination_grace)}"
    restarts = f"at most {restart_policy.max_attempts} restarts in {format_duration(restart_policy.window)}"
    yield "timeouts", f"{times}, unhealthy {format_duration(restart_policy.unhealthy_after)}; {restarts}"


def _patches(plan: Plan) -> _Rows:
    needed = [f"{patch.id} ({patch.kind})" for patch in plan.patches if patch.expected]
    not_needed = [patch.id for patch in plan.patches if not patch.expected]
    states = [f"needed: {', '.join(needed)}"] if needed else []
    states += [f"not needed by this version: {', '.join(not_needed)}"] if not_needed else []
    yield "patches", "; ".join(states) or "none"


def _kernels(plan: Plan, home: Home) -> _Rows:
    text, derived = coverage_texts(plan, home)
    if text:
        yield "kernels", text
    if derived:
        yield "derived", expand_commands(derived)
    if problem := untuned_problem(plan, home):
        first_way, _, _ = problem.hint.partition("; or ")
        yield "missing", problem.message
        yield "  hint", expand_commands(first_way)


def _settings(plan: Plan) -> _Rows:
    yield "flags", " ".join(" ".join(flag.argv).replace(" ", "\N{NO-BREAK SPACE}") for flag in plan.flags) or "none"
    if plan.env:
        yield "variables", " ".join(f"{variable.name}={variable.value}" for variable in plan.env)


def _issues(plan: Plan, image: ImageConfig | None) -> _Rows:
    if not plan.model.questions:
        yield "smoke test", f"model `{plan.model.name}` has no questions: answers are not checked"
    for warning in plan_warnings(plan, image=image):
        yield "warning", warning.summary
        if warning.hint:
            yield "  hint", warning.hint
        if warning.basis:
            yield "  basis", warning.basis
    for label, issues in (("correctness", plan.wrong_answers), ("determinism", plan.nondeterministic)):
        for issue in issues:
            yield label, f"{issue.id}: {issue.summary} ({issue.basis})"


def _short(digest: str) -> str:
    """Abbreviate a digest or a commit; return other names unchanged."""
    kind, colon, text = digest.rpartition(":")
    return f"{kind}{colon}{text[:_DIGEST]}" if len(text) >= _HEX else digest
