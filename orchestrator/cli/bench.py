"""The command `deploy bench`."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import typer

from orchestrator.bench.metrics import result_text
from orchestrator.bench.result import BenchResult, EndReason
from orchestrator.bench.run import BenchOptions, ClaimedHardware, WorkloadChanges, bench, is_url, resume_command
from orchestrator.cli.options import (
    ApiKeyEnvOption,
    EngineOption,
    HostOption,
    Json,
    RequestRateOption,
    TargetArgument,
    WorkloadOption,
    entry_option,
    read_rates,
    require_kind,
)
from orchestrator.core.command_hints import left_running
from orchestrator.core.console import Progress, note
from orchestrator.core.errors import BenchError, Interrupted, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.servers.servers import open_servers, resolve_server_name
from orchestrator.servers.targets import server_target, url_target

ApiOption: TypeAlias = Annotated[
    Literal["completions", "generate"], typer.Option(metavar="completions|generate", help="API to send requests to")
]
DurationOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="duration of each rate (seconds)")
]
RequestsOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="number of requests per rate; default: the workload's")
]
GpuOption: TypeAlias = Annotated[
    str | None, entry_option("HARDWARE", "--gpu", help="GPU type behind a URL, such as b200", metavar="NAME")
]
GpusOption: TypeAlias = Annotated[
    int | None, typer.Option("--gpus", min=1, metavar="N", help="number of GPUs behind a URL")
]
InputTokensOption: TypeAlias = Annotated[
    int | None, typer.Option("--input-tokens", min=2, metavar="TOKENS", help="tokens per prompt, instead of a workload")
]
OutputTokensOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--output-tokens", min=2, metavar="TOKENS", help="tokens per completion, instead of a workload"),
]
LayoutOption: TypeAlias = Annotated[
    str | None, typer.Option("--layout", metavar="LAYOUT", help="layout behind a URL, such as tp8 or tp4dp2")
]

ConcurrencyOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="trace sessions to run concurrently")
]
SpeedOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FACTOR,FACTOR…", help="speed-up factors for recorded arrivals of a trace")
]
MaxThinkTimeOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="maximum think time within a session (seconds)")
]
MaxContextOption: TypeAlias = Annotated[
    int | None, typer.Option(min=2, metavar="TOKENS", help="longest request of a session; longer ones end it (tokens)")
]
WarmupRequestsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="exclude the first N finished requests as warm-up")
]
SessionHeaderOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="request header with the session's name, for a gateway")
]
OutputOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="directory of the result; default: results/WORKLOAD-TIME")
]
PriceOption: TypeAlias = Annotated[float | None, typer.Option(metavar="USD", help="price per GPU hour (USD)")]
LabelOption: TypeAlias = Annotated[str | None, typer.Option(metavar="TEXT", help="name of the result in a report")]
ToolOption: TypeAlias = Annotated[
    Literal["deploy", "aiperf"], typer.Option("--tool", metavar="deploy|aiperf", help="load generator")
]

OUTPUT: Final = JsonOutput(BenchResult, omits_null=True)


def command(
    target: TargetArgument,
    *,
    workload: WorkloadOption = None,
    input_tokens: InputTokensOption = None,
    output_tokens: OutputTokensOption = None,
    request_rate: RequestRateOption = None,
    duration: DurationOption = None,
    requests: RequestsOption = None,
    concurrency: ConcurrencyOption = None,
    speed: SpeedOption = None,
    max_think_time: MaxThinkTimeOption = None,
    max_context: MaxContextOption = None,
    warmup_requests: WarmupRequestsOption = None,
    session_header: SessionHeaderOption = None,
    api: ApiOption = "completions",
    api_key_env: ApiKeyEnvOption = None,
    gpus: GpusOption = None,
    gpu: GpuOption = None,
    layout: LayoutOption = None,
    engine: EngineOption = None,
    price: PriceOption = None,
    label: LabelOption = None,
    tool: ToolOption = "deploy",
    text_prompts: Annotated[bool, typer.Option("--text-prompts", help="send text instead of token ids")] = False,
    output: OutputOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="measure only the points missing in DIR")] = False,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Measure throughput and latency. The knee is the highest rate that the server sustains."""
    options = BenchOptions(
        workload=workload,
        tokens=(input_tokens, output_tokens),
        changes=WorkloadChanges(
            request_rates=read_rates(request_rate),
            requests=requests,
            duration_s=duration,
            concurrency=concurrency,
            speeds=read_rates(speed, "--speed"),
            max_think_time_s=max_think_time,
            max_context=max_context,
            warmup_requests=warmup_requests,
        ),
        api=api,
        tool=tool,
        text_prompts=text_prompts,
        session_header=session_header,
        usd_per_gpu_hour=price,
        label=label,
        directory=output,
        resume=resume,
        command=shlex.join(["deploy", *sys.argv[1:]]),
    )
    _run(target, options, _UrlOptions(api_key_env, gpus, gpu, layout, engine), host, json=json)


class _UrlOptions(NamedTuple):
    """The options that describe the server behind a URL."""

    api_key_env: str | None
    gpus: int | None
    gpu: str | None
    layout: str | None
    engine: str | None


def _run(target: str, options: BenchOptions, url_options: _UrlOptions, host: str | None, *, json: bool) -> None:
    """Find the target, measure it, and show the result."""
    if options.tool == "aiperf" and options.api != "completions":
        raise UsageError("cannot use this `--api` with aiperf: it uses only the completions API", hint="omit `--api`")
    target = resolve_server_name(target, Home.from_environment(), *url_options, host)
    of_url = {f"--{option.replace('_', '-')}": value for option, value in url_options._asdict().items()}
    require_kind(target, url=is_url(target), of_url=of_url, of_server={"--host": host})
    with ExitStack() as stack:
        if is_url(target):
            hardware = ClaimedHardware.parse(
                gpu=url_options.gpu, gpus=url_options.gpus, layout=url_options.layout, engine=url_options.engine
            )
            endpoint = url_target(target, api_key_env=url_options.api_key_env, hardware=hardware)
        else:
            endpoint = server_target(
                stack.enter_context(open_servers(Home.from_environment(), host, name=target)), target
            )
        with Progress() as progress:
            result, directory = bench(
                endpoint, options, lambda text, transient: progress.update(text, transient=transient)
            )
    if result.points or result.end_reason is not EndReason.INTERRUPTED:
        OUTPUT.show_or_print(result, lambda: result_text(result), json=json)
        note(f"wrote the result to `{directory}`")
    _require_complete(result, target, url=endpoint.url, recovery_command=resume_command(options.command, directory))


def _require_complete(result: BenchResult, target: str, *, url: str, recovery_command: str) -> None:
    """Raise Interrupted or BenchError if a point was not measured; `recovery_command` is the command that resumes."""
    if result.end_reason is EndReason.INTERRUPTED:
        saved = "; finished points are saved" if result.points else " before the first request was answered"
        raise Interrupted(f"interrupted{saved}", hint=f"{left_running(target)}; continue with `{recovery_command}`")
    if result.end_reason is EndReason.ENDPOINT_DIED:
        example = next((failure.example for failure in result.points[-1].failures), "during the warm-up")
        raise BenchError(
            f"the endpoint stopped answering: {example}",
            location=url,
            hint=f"when the endpoint answers again: `{recovery_command}`",
        )
