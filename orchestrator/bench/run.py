"""`deploy bench`: from a server's name or a URL to a measurement in a directory."""

import datetime as dt
import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from orchestrator.bench.benchmark import BenchRequest, measure
from orchestrator.bench.energy import EnergyReader, read_energy
from orchestrator.bench.published import published_workloads
from orchestrator.bench.result import RESULT_FILE, BenchEnding, BenchResult, Price, ServerProvenance
from orchestrator.bench.result_files import load_result
from orchestrator.bench.steady_state import unjudgeable_rates
from orchestrator.bench.workload import Workload, load_workload, read_text, workload_name
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import note, warn
from orchestrator.core.errors import UsageError
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.url import Address
from orchestrator.core.validation import validation_problems
from orchestrator.engine.requests import Api
from orchestrator.plan.plan import PlanWarning

_LAYOUT: Final = re.compile(r"tp(?P<tp>[1-9]\d?)[x×]?(?:dp(?P<dp>[1-9]\d?))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class WorkloadChanges:
    """What the command line changes in a workload; None leaves it as the file says."""

    request_rates: tuple[float, ...] | None
    requests: int | None
    duration_s: float | None
    arrivals: str | None
    seed: int | None
    ttft_p95_s: float | None = None  # the limit of a sustained rate


@dataclass(frozen=True, kw_only=True)
class BenchTarget:
    """An endpoint: its URL, its key, and what is known of what stands behind it."""

    url: str
    key: Secret | None
    provenance: ServerProvenance
    warnings: tuple[PlanWarning, ...]  # of its plan
    kernel_gate: Callable[[], dict[str, object] | None]  # what the server's log says by now of its tuned kernels
    gpus: range | None = None  # by index on its machine; None where that is not known
    behind: tuple[str, ...] = ()  # base URLs of the servers behind a gateway
    here: bool = True  # it may be on this machine: a port of this one may lead to a cluster


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What the command line says of a measurement, but for what is measured."""

    workload: str | None  # None: one of so many tokens in and out
    tokens: tuple[int | None, int | None]
    changes: WorkloadChanges
    api: str
    usd_per_gpu_hour: float | None
    label: str | None = None  # what a report calls it
    directory: Path | None
    resume: bool
    command: str
    enough: Callable[[BenchResult], BenchEnding | None] = lambda _: None  # asked after each point: how to end here


def is_url(target: str) -> bool:
    """Whether the user named an endpoint by its URL rather than a server by its name."""
    return "://" in target


@dataclass(frozen=True, kw_only=True)
class ClaimedHardware:
    """What the user says stands behind a URL, so that it is judged as a server of this tool is."""

    gpu: str | None = None  # a hardware file's name, `b200`
    gpus: int | None = None
    layout: str | None = None  # as the field writes it, `TP4×DP2`

    @classmethod
    def parse(cls, *, gpu: str | None, gpus: int | None, layout: str | None) -> "ClaimedHardware":
        """From the options. Raises UsageError for hardware that nobody described, and for what is no layout."""
        catalog = Catalog.from_environment()
        if gpu is not None and catalog.find(EntryKind.HARDWARE, gpu.lower()) is None:
            raise UsageError(f"there is no hardware `{gpu}`", hint=did_you_mean(gpu, catalog.names(EntryKind.HARDWARE)))
        if layout is None:
            return cls(gpu=gpu and gpu.lower(), gpus=gpus)
        found = _LAYOUT.fullmatch(layout)
        if found is None:
            raise UsageError(f"`--layout {layout}` is no layout", hint="such as tp8, or tp4dp2")
        tp, dp = int(found["tp"]), int(found["dp"] or 1)
        named = f"TP{tp}×DP{dp}" if dp > 1 else f"TP{tp}"
        return cls(gpu=gpu and gpu.lower(), gpus=gpus or tp * dp, layout=named)


def bench(target: BenchTarget, options: BenchOptions, say: Callable[[str, str], None]) -> tuple[BenchResult, Path]:
    """Measure, and return the result with the directory it was written to. See `bench.benchmark.measure` for errors."""
    name, workload = _workload(options)
    workload, overridden = apply_changes(workload, options.changes)
    reasons, remedy = unjudgeable_rates(workload)
    if reasons:
        warn("; ".join(reasons), hint=remedy)
    directory = options.directory or _default_directory(name)
    request = BenchRequest(
        url=target.url,
        api=_api(target, options),
        key=target.key,
        workload_name=name,
        workload=workload,
        overridden=overridden if name in published_workloads() else (),
        command=options.command,
        provenance=target.provenance,
        kernel_gate=target.kernel_gate,
        price=parse_price(options.usd_per_gpu_hour),
        label=options.label,
        read_energy=_energy_reader(target),
        directory=directory,
        text=read_text(workload),
        earlier=_earlier(directory, resume=options.resume),
        behind=target.behind,
        enough=options.enough,
    )
    return measure(request, say), directory


def _api(target: BenchTarget, options: BenchOptions) -> str:
    """The API that is asked for; prompts are token ids, which SGLang's gateway takes in sglang's own API alone."""
    if target.behind and options.api == Api.COMPLETIONS:
        note("the gateway takes token ids in sglang's own API alone: `--api generate` is measured")
        return Api.GENERATE
    return options.api


def _workload(options: BenchOptions) -> tuple[str, Workload]:
    """The workload of a name or a file, or one of so many tokens in and out. Raises UsageError for both and neither."""
    sent, answered = options.tokens
    if options.workload is not None:
        if sent is not None or answered is not None:
            raise UsageError(
                "`--input-tokens` and `--output-tokens` are for a load without a workload",
                hint="leave them out, or `-w`",
            )
        return workload_name(options.workload), load_workload(options.workload)
    if sent is None and answered is None:
        raise UsageError(
            "what is to be sent?",
            hint="name a workload with `-w`, or say `--input-tokens TOKENS --output-tokens TOKENS --request-rate RPS`",
        )
    rates = options.changes.request_rates
    needed = {"--input-tokens 800": sent, "--output-tokens 64": answered, "--request-rate 1,2,4": rates}
    if missing := [f"`{option}`" for option, value in needed.items() if value is None]:
        raise UsageError(
            "a load without a workload needs `--input-tokens`, `--output-tokens` and `--request-rate`",
            hint=f"add {' and '.join(missing)}",
        )
    data = {"input_tokens": sent, "output_tokens": answered, "request_rates": rates}
    return f"{sent}-in-{answered}-out", _valid(data)


def _valid(data: Mapping[str, object]) -> Workload:
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        raise UsageError("the workload cannot be like that", problems=validation_problems(error)) from error


def apply_changes(workload: Workload, changes: WorkloadChanges) -> tuple[Workload, tuple[str, ...]]:
    """The workload as it will be run, and the options that make it another one than the file's.

    Which rates are measured, the arrivals and the seed do not: none of them is published. Raises UsageError for what
    does not fit.
    """
    _check_changes(workload, changes)
    plain = {
        "requests": changes.requests,
        "arrivals": changes.arrivals,
        "duration_s": changes.duration_s,
        "seed": changes.seed,
    }
    update: dict[str, object] = {key: value for key, value in plain.items() if value is not None}
    if changes.request_rates is not None:
        update |= {"request_rates": tuple(sorted(set(changes.request_rates))), "ramp": None}
    if changes.requests is not None:
        update |= {"duration_s": None}  # which would decide instead
    if changes.ttft_p95_s is not None:
        update["slo"] = workload.slo.model_copy(update={"ttft_p95_s": changes.ttft_p95_s})
    changed = {key: value for key, value in update.items() if getattr(workload, key) != value}
    return _valid({**workload.model_dump(exclude_unset=True), **changed}), tuple(
        sorted(changed.keys() & {"requests", "duration_s", "slo"})
    )


def _check_changes(workload: Workload, changes: WorkloadChanges) -> None:
    if changes.requests is not None and changes.duration_s is not None:
        raise UsageError("`--requests` and `--duration` both say how many requests to send: give one")
    if workload.load == "closed" and (changes.request_rates or changes.duration_s or changes.arrivals):
        raise UsageError("a closed load has no rates, duration or arrivals", hint="only --requests applies to it")


def resume_command(command: str, directory: Path) -> str:
    """The command that goes on with the measurement in `directory` which `command` has begun."""
    argv = shlex.split(command)
    if not any(word == "--output" or word.startswith("--output=") for word in argv):
        argv += ["--output", str(directory)]
    return shlex.join(argv if "--resume" in argv else [*argv, "--resume"])


def _earlier(directory: Path, *, resume: bool) -> BenchResult | None:
    there = load_result(directory) if (directory / RESULT_FILE).exists() else None
    if there is not None and there.points and not resume:
        raise UsageError("there is a result already", where=str(directory), hint="continue it with --resume")
    if there is None and resume:
        raise UsageError("there is nothing to resume", where=str(directory), hint="leave out --resume")
    return there if resume else None


def _default_directory(workload: str) -> Path:
    started = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("results") / FileName(f"{workload}-{started}")


def parse_price(usd_per_gpu_hour: float | None) -> Price | None:
    """What `--price` says. Raises UsageError for what is no price."""
    if usd_per_gpu_hour is None:
        return None
    if not 0 < usd_per_gpu_hour < 1e6:
        raise UsageError(f"`--price {usd_per_gpu_hour:g}` is no price of a GPU")
    return Price(usd_per_gpu_hour=usd_per_gpu_hour, source="given")


def _energy_reader(target: BenchTarget) -> EnergyReader | None:
    """The counters of the server's GPUs, else of all, where it is on this machine and not known to do without any."""
    host = Address.from_url(target.url).host
    try:
        here = target.here and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        here = False
    return partial(read_energy, target.gpus) if here and target.provenance.gpus != 0 else None
