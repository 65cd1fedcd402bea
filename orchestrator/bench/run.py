"""`deploy bench`: measure a server or URL and write the result to a directory."""

import datetime as dt
import ipaddress
import itertools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from orchestrator.bench.aiperf.runner import aiperf_program
from orchestrator.bench.benchmark import BenchRequest, BenchTarget, measure
from orchestrator.bench.energy import EnergyReader, read_energy
from orchestrator.bench.published import published_workloads
from orchestrator.bench.result import RESULT_FILE, BenchResult, EndReason, Price
from orchestrator.bench.result_files import load_result
from orchestrator.bench.sessions import open_sessions
from orchestrator.bench.steady_state import unjudgeable_rates
from orchestrator.bench.workload import Workload, load_workload, read_text, validate_workload, workload_name
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import note, warn
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.url import Address
from orchestrator.engine.gateway import SESSION_HEADER
from orchestrator.engine.other_engines import require_engine
from orchestrator.engine.requests import Api

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_LAYOUT: Final = re.compile(r"tp(?P<tp>[1-9]\d?)[x×]?(?:dp(?P<dp>[1-9]\d?))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class WorkloadChanges:
    """Overrides of the keys of a workload from the command line; None keeps the value of the file."""

    request_rates: tuple[float, ...] | None = None
    requests: int | None = None
    duration_s: float | None = None
    concurrency: int | None = None  # for a trace: closed loop instead of recorded arrivals
    speeds: tuple[float, ...] | None = None
    max_think_time_s: float | None = None
    max_context: int | None = None
    warmup_requests: int | None = None
    ttft_p95_s: float | None = None  # SLO of a sustained rate


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of `deploy bench`, except its target."""

    workload: str | None  # None: use `tokens`
    tokens: tuple[int | None, int | None] = (None, None)  # input, output
    changes: WorkloadChanges
    api: str = "completions"
    tool: str = "deploy"  # load client: deploy | aiperf
    text_prompts: bool = False  # send text even if the endpoint accepts token ids
    session_header: str | None = None  # None: the target's
    usd_per_gpu_hour: float | None
    label: str | None = None  # name in reports
    directory: Path | None
    resume: bool = False
    command: str
    stop_when: Callable[[BenchResult], EndReason | None] = lambda _: None  # called after each point; not None: stop


def is_url(target: str) -> bool:
    """Return whether `target` is a URL rather than the name of a server."""
    return "://" in target


@dataclass(frozen=True, kw_only=True)
class ClaimedHardware:
    """The hardware and the engine of an endpoint URL, as claimed by the user."""

    gpu: str | None = None  # name of a hardware file, such as `b200`
    gpus: int | None = None
    layout: str | None = None  # such as `TP4×DP2`
    engine: str | None = None

    @classmethod
    def parse(
        cls, *, gpu: str | None, gpus: int | None, layout: str | None, engine: str | None = None
    ) -> "ClaimedHardware":
        """Parse the options. Raises UsageError for unknown hardware, an invalid layout or an unknown engine."""
        catalog = Catalog.from_environment()
        engine = require_engine(engine)
        if gpu is not None and catalog.find(EntryKind.HARDWARE, gpu.lower()) is None:
            raise UsageError(f"no hardware `{gpu}` found", hint=did_you_mean(gpu, catalog.names(EntryKind.HARDWARE)))
        if layout is None:
            return cls(gpu=gpu and gpu.lower(), gpus=gpus, engine=engine)
        match = _LAYOUT.fullmatch(layout)
        if match is None:
            raise UsageError(f"`--layout {layout}` is not a layout", hint="use a layout such as `tp8` or `tp4dp2`")
        tp, dp = int(match["tp"]), int(match["dp"] or 1)
        label = f"TP{tp}×DP{dp}" if dp > 1 else f"TP{tp}"
        return cls(gpu=gpu and gpu.lower(), gpus=gpus or tp * dp, layout=label, engine=engine)


def bench(target: BenchTarget, options: BenchOptions, progress: Callable[[str, str], None]) -> tuple[BenchResult, Path]:
    """Run a benchmark; return the result and its directory. Raises UsageError and the errors of `measure`."""
    if options.session_header is not None and not _HEADER.fullmatch(options.session_header):
        raise UsageError(f"`{options.session_header}` is not the name of a header", hint=f"such as `{SESSION_HEADER}`")
    name, workload = _workload(options, target.workload)
    workload, overridden = apply_changes(workload, options.changes)
    if options.tool == "aiperf" and workload.has_sessions:
        _check_aiperf(options, workload)
    if (reasons := unjudgeable_rates(workload)) and options.tool == "deploy":  # aiperf judges no rate
        warn("; ".join(reasons), hint="more `--requests`, or a longer `--duration`")
    directory = options.directory or _new_directory(name)
    # aiperf lacks the `generate` API, the only one in which a gateway accepts token ids
    needs_text = options.tool == "aiperf" and bool(target.replica_urls)
    request = BenchRequest(
        target=target,
        api=_api(target, options),
        text_prompts=options.text_prompts or needs_text,
        workload_name=name,
        workload=workload,
        overridden=overridden if name in published_workloads() else (),
        command=options.command,
        price=parse_price(options.usd_per_gpu_hour),
        label=options.label,
        read_energy=_energy_reader(target),
        directory=directory,
        text=read_text(workload),
        aiperf=aiperf_program(Home.from_environment()) if options.tool == "aiperf" else None,
        previous=_previous_result(directory, resume=options.resume),
        source=open_sessions(workload),
        session_header=options.session_header or target.session_header,
        stop_when=options.stop_when,
    )
    result = measure(request, progress)
    target.on_result(directory.absolute())
    return result, directory


def _check_aiperf(options: BenchOptions, workload: Workload) -> None:
    """Raise UsageError for options and keys that aiperf would ignore."""
    if workload.warmup_requests:
        message = "cannot use `--warmup-requests` with aiperf: it measures all requests of a session"
        raise UsageError(message, hint="omit it, or omit `--tool aiperf`")
    if options.session_header is not None and workload.load == "open":
        message = "aiperf sends each recorded arrival as a session of its own, with a header of its own"
        raise UsageError(message, hint="run a number of sessions at a time: `--concurrency 8`")


def _api(target: BenchTarget, options: BenchOptions) -> str:
    """Return the API to use: sglang's gateway accepts token ids only in the `generate` API."""
    if target.replica_urls and options.api == Api.COMPLETIONS and not options.text_prompts and options.tool == "deploy":
        note("the gateway accepts token ids only in sglang's own API; using `--api generate`")
        return Api.GENERATE
    return options.api


def _workload(options: BenchOptions, default: str) -> tuple[str, Workload]:
    """Return the name and workload from the options, else the default. Raises UsageError for ambiguous options."""
    input_tokens, output_tokens = options.tokens
    if options.workload is not None:
        if input_tokens is not None or output_tokens is not None:
            raise UsageError(
                "`--input-tokens` and `--output-tokens` are for a load without a workload",
                hint="omit them, or omit `-w`",
            )
        return workload_name(options.workload), load_workload(options.workload)
    if input_tokens is None and output_tokens is None:
        workload = load_workload(default)
        note(f"workload `{workload_name(default)}`: {workload.description} (`-w` names another)")
        return workload_name(default), workload
    rates = options.changes.request_rates
    needed = {"--input-tokens 800": input_tokens, "--output-tokens 64": output_tokens, "--request-rate 1,2,4": rates}
    if missing := [f"`{option}`" for option, value in needed.items() if value is None]:
        raise UsageError(
            "a load without a workload needs `--input-tokens`, `--output-tokens` and `--request-rate`",
            hint=f"add {' and '.join(missing)}",
        )
    data = {"input_tokens": input_tokens, "output_tokens": output_tokens, "request_rates": rates}
    return f"{input_tokens}-in-{output_tokens}-out", validate_workload(data)


def apply_changes(workload: Workload, changes: WorkloadChanges) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload with its overrides, and the names of overrides that make results incomparable.

    Other rates keep results comparable: each rate is compared separately. Raises UsageError for invalid overrides.
    """
    _check_changes(workload, changes)
    update: dict[str, object] = {key: value for key, value in vars(changes).items() if value is not None}
    if changes.speeds is not None:
        update["speeds"] = tuple(sorted(set(changes.speeds)))
    if changes.request_rates is not None:
        update |= {"request_rates": tuple(sorted(set(changes.request_rates))), "ramp": None}
    settings = workload.model_dump(exclude_unset=True)
    if changes.concurrency is not None and workload.trace is not None:
        update |= {"load": "closed"}
        settings.pop("speeds", None)
    if changes.requests is not None:
        update |= {"duration_s": None}  # `duration_s` takes precedence over `requests`
    if (ttft_p95_s := update.pop("ttft_p95_s", None)) is not None:
        update["slo"] = workload.slo.model_copy(update={"ttft_p95_s": ttft_p95_s})
    limits = {"requests"} - workload.model_fields_set if workload.has_sessions else set()  # without it, all are sent
    changed = {key: value for key, value in update.items() if getattr(workload, key) != value or key in limits}
    return validate_workload({**settings, **changed}), tuple(
        sorted(changed.keys() & {"requests", "duration_s", "slo", "max_context", "max_think_time_s", "concurrency"})
    )


def _check_changes(workload: Workload, changes: WorkloadChanges) -> None:
    if changes.requests is not None and changes.duration_s is not None:
        raise UsageError("`--requests` and `--duration` are mutually exclusive", hint="omit one")
    if workload.has_sessions:
        if changes.request_rates:
            raise UsageError("sessions have no rates", hint="`--speed` or `--concurrency`")
        if changes.speeds and (changes.concurrency or workload.load == "closed"):
            message = "`--speed` is for recorded arrivals; sessions at a fixed concurrency have none"
            raise UsageError(message, hint="omit `--speed`")
    elif workload.load == "closed" and (changes.request_rates or changes.duration_s):
        raise UsageError("cannot use `--request-rate` or `--duration` with a closed load", hint="use `--requests`")


def resume_command(command: str, directory: Path) -> str:
    """Return the command that resumes the measurement in `directory` that `command` started."""
    argv = shlex.split(command)
    if not any(word == "--output" or word.startswith("--output=") for word in argv):
        argv += ["--output", str(directory)]
    return shlex.join(argv if "--resume" in argv else [*argv, "--resume"])


def _new_directory(workload: str) -> Path:
    """Return a new directory path, named after the workload and the time."""
    started = f"{workload}-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
    names = (FileName(started if number == 1 else f"{started}-{number}") for number in itertools.count(1))
    return next(directory for name in names if not (directory := Path("results") / name).exists())


def _previous_result(directory: Path, *, resume: bool) -> BenchResult | None:
    previous = load_result(directory) if (directory / RESULT_FILE).exists() else None
    if previous is not None and previous.points and not resume:
        raise UsageError("the directory already has a result", location=str(directory), hint="continue with `--resume`")
    if previous is None and resume:
        raise UsageError("no result to resume found", location=str(directory), hint="omit `--resume`")
    return previous if resume else None


def parse_price(usd_per_gpu_hour: float | None) -> Price | None:
    """Validate the value of `--price`. Raises UsageError unless it is positive and below 1e6."""
    if usd_per_gpu_hour is None:
        return None
    if not 0 < usd_per_gpu_hour < 1e6:
        hint = "give the USD of one GPU per hour, such as `--price 2.5`"
        raise UsageError(f"`--price {usd_per_gpu_hour:g}` is not a price per GPU-hour", hint=hint)
    return Price(usd_per_gpu_hour=usd_per_gpu_hour, source="given")


def _energy_reader(target: BenchTarget) -> EnergyReader | None:
    """Return a reader of the local energy counters; None for a remote server or without GPUs."""
    host = Address.from_url(target.url).host
    try:
        local = target.may_be_local and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        local = False
    return partial(read_energy, target.gpus) if local and target.provenance.gpus != 0 else None
