"""`deploy bench`: from a server's name or a URL to a measurement in a directory."""

import datetime as dt
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from orchestrator.bench.connection import Address
from orchestrator.bench.measurement import Order, measure
from orchestrator.bench.power import Reader, read_energy
from orchestrator.bench.workload import Workload, load_workload, workload_name
from orchestrator.commands.runs import RunDir, load_result, read_plan
from orchestrator.commands.servers import Fleet, api_key
from orchestrator.core.errors import UsageError
from orchestrator.core.secret import Secret
from orchestrator.core.validation import faults_in
from orchestrator.kernels import applies_to, gate_report
from orchestrator.results.result import RESULT_FILE, Price, Provenance, Result


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the command line changes in a workload; None leaves it as the file says."""

    rates_rps: tuple[float, ...] | None
    requests: int | None
    duration_s: float | None
    arrivals: str | None
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Target:
    """An endpoint: its URL, its key, and what is known of what stands behind it."""

    url: str
    key: Secret | None
    provenance: Provenance
    kernel_gate: Callable[[], dict[str, object] | None]  # what the server's log says by now of its tuned kernels


@dataclass(frozen=True, kw_only=True)
class Sitting:
    """One call of `deploy bench`."""

    target: Target
    workload: str
    changes: Changes
    api: str
    usd_per_gpu_hour: float | None
    directory: Path | None
    resume: bool
    command: str


def is_url(target: str) -> bool:
    """Whether the user named an endpoint by its URL rather than a server by its name."""
    return "://" in target


def url_target(url: str, *, gpus: int | None, api_key_env: str | None) -> Target:
    """Any endpoint that speaks the API. Raises UsageError for what is not its URL, or holds a password."""
    provenance = Provenance(gpus=gpus)
    return Target(
        url=Address.from_url(url).url, key=api_key(api_key_env), provenance=provenance, kernel_gate=lambda: None
    )


def server_target(servers: Fleet, name: str) -> Target:
    """A server that `deploy up` started, with its plan, gate and host from its run directory."""
    handle = servers.one(name)
    run = RunDir(Path(handle.run_dir))
    plan = run.read("plan.json")
    server, hardware, layout = (_part(plan, key) for key in ("server", "hardware", "layout"))
    key_env = server.get("api_key_env")
    provenance = Provenance(
        name=handle.name,
        profile=handle.profile,
        plan=plan or None,
        plan_digest=handle.plan_digest,
        image_digest=_text(run.read("image.json").get("id")),
        patch_receipt=run.read("patches.json") or None,
        host=run.read("host.json") or None,
        gpu=_text(hardware.get("name")),
        gpus=_gpus(hardware, layout),
    )
    known = read_plan(run)

    def look() -> dict[str, object] | None:
        if known is None or not applies_to(known):
            return None
        return gate_report(servers.runtime(handle).logs(handle, follow=False)).to_dict()

    return Target(url=handle.url, key=api_key(_text(key_env)), provenance=provenance, kernel_gate=look)


def bench(sitting: Sitting, say: Callable[[str, str], None]) -> tuple[Result, Path]:
    """Measure, and return the result with the directory it was written to. See `measurement.measure` for errors."""
    workload, overridden = change(load_workload(sitting.workload), sitting.changes)
    directory = sitting.directory or _default_directory(sitting.workload)
    order = Order(
        url=sitting.target.url,
        api=sitting.api,
        key=sitting.target.key,
        workload_name=workload_name(sitting.workload),
        workload=workload,
        overridden=overridden,
        command=sitting.command,
        provenance=sitting.target.provenance,
        kernel_gate=sitting.target.kernel_gate,
        price=_price(sitting.usd_per_gpu_hour),
        read_energy=_energy_reader(sitting.target),
        directory=directory,
        earlier=_earlier(directory, resume=sitting.resume),
    )
    return measure(order, say), directory


def change(workload: Workload, changes: Changes) -> tuple[Workload, tuple[str, ...]]:
    """The workload as it will be run, and the options that make it another one than the file's.

    Which rates are measured, the arrivals and the seed do not: none of them is published. Raises UsageError for what
    does not fit.
    """
    update: dict[str, object] = {}
    if changes.rates_rps is not None:
        update |= {"rates_rps": tuple(sorted(set(changes.rates_rps))), "climb": None}
    if changes.requests is not None and changes.duration_s is not None:
        raise UsageError("`--requests` and `--duration` both say how many requests to send: give one")
    if workload.load == "closed" and (changes.rates_rps or changes.duration_s or changes.arrivals):
        raise UsageError("a closed load has no rates, duration or arrivals", hint="only --requests applies to it")
    plain = {
        "requests": changes.requests,
        "arrivals": changes.arrivals,
        "duration_s": changes.duration_s,
        "seed": changes.seed,
    }
    update |= {key: value for key, value in plain.items() if value is not None}
    changed = {key: value for key, value in update.items() if getattr(workload, key) != value}
    try:
        changed_workload = Workload.model_validate({**workload.model_dump(), **changed})
    except ValidationError as error:
        raise UsageError("the workload cannot be changed like that", problems=faults_in(error)) from error
    return changed_workload, tuple(sorted(changed.keys() & {"requests", "duration_s"}))


def _earlier(directory: Path, *, resume: bool) -> Result | None:
    there = load_result(directory) if (directory / RESULT_FILE).exists() else None
    if there is not None and there.points and not resume:
        raise UsageError("there is a result already", where=str(directory), hint="continue it with --resume")
    if there is None and resume:
        raise UsageError("there is nothing to resume", where=str(directory), hint="leave out --resume")
    return there if resume else None


def _default_directory(workload: str) -> Path:
    started = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("results") / f"{workload_name(workload)}-{started}"


def _price(usd_per_gpu_hour: float | None) -> Price | None:
    return Price(usd_per_gpu_hour=usd_per_gpu_hour, source="given") if usd_per_gpu_hour is not None else None


def _energy_reader(target: Target) -> Reader | None:
    """The counters of this machine, where the endpoint is on it and is not known to do without GPUs."""
    host = Address.from_url(target.url).host
    try:
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    return read_energy if here and target.provenance.gpus != 0 else None


def _part(plan: dict[str, object], key: str) -> dict[str, object]:
    part = plan.get(key)
    return part if isinstance(part, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _gpus(hardware: dict[str, object], layout: dict[str, object]) -> int | None:
    """GPUs the layout occupies (see `plan.Layout.gpus`); 0 on a CPU, None where there is no plan."""
    tp, dp = layout.get("tp"), layout.get("dp")
    if not isinstance(tp, int) or not isinstance(dp, int):
        return None
    if hardware.get("vendor") == "cpu":
        return 0
    return tp if layout.get("dp_attention") else tp * dp
