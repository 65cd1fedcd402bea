#!/usr/bin/env python3
"""An interpreter in place of sglang's: what it is told to launch serves within 0.3 s, like the real one as seen from
outside. `tests/integration/test_scripted_engine.py` asks both the same and compares.

    scripted_engine.py -m sglang.launch_server --port 30010 …    serves, with a scheduler and a detokenizer below it
    scripted_engine.py -c …                                      says which versions it has, whatever it is asked
    scripted_engine.py tiny_model.py DIRECTORY                   makes a checkpoint that is as whole as it is empty

Told by variables of its environment:

    SCRIPTED_PAUSE=0.5       seconds after each stage of the start; `0,300`: after the first one, and after the others
    SCRIPTED_BROKEN=1        it ends while it loads, with a traceback
    SCRIPTED_DETACHED=1      the scheduler starts a program that leaves its session, with an empty environment
    SCRIPTED_DEAF=1          SIGTERM does not end it
    SCRIPTED_ECHO=base64     it repeats its API key so encoded: in its log, in errors and in streams
    SCRIPTED_REFUSE=1        it generates nothing for others, and says so with 400
    SCRIPTED_UNHEALTHY=FILE  while that file names its port, a health check gets 503
    SCRIPTED_MUTE=FILE       while there is such a file, it is healthy and generates nothing: where the file says
                             `hangs` it does not answer, else with what the file says; a start removes the file
    SCRIPTED_STEP=0.01       seconds for each token of a stream; what is no number ends it while it loads
"""

import base64
import contextlib
import ctypes
import json
import os
import signal
import socketserver
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NoReturn
from urllib.parse import quote

Json = dict[str, Any]

CONTEXT = 32768
VERSIONS = {
    "python": "3.11.2",
    "torch": "2.9.1+cpu",
    "cuda": None,
    "hip": None,
    "sglang": "0.5.14",
    "sglang-kernel": None,
    "flashinfer-python": None,
    "triton": None,
    "transformers": "5.3.0",
}
WORDS = ("the", "server", "answers", "with", "tokens", "while", "its", "cache", "keeps", "every", "prefix", "seen")
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "urlsafe": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "basic": lambda key: "Basic " + base64.b64encode(f"user:{key}".encode()).decode(),
    "hex": lambda key: key.encode().hex(),
    "percent": quote,
    "all percent": lambda key: "".join(f"%{byte:02X}" for byte in key.encode()),
    "json": lambda key: "".join(f"\\u{ord(letter):04x}" for letter in key),
    "newline": lambda key: f"{key[: len(key) // 2]}\n{key[len(key) // 2 :]}",
    "colour": lambda key: f"{key[:6]}\x1b[31m{key[6:]}\x1b[0m",
    "is": lambda key: f"the token is {key}, they say",
    "bearer": lambda key: f"Authorization: Bearer {key}",
}


class Scheduler:
    """What is behind the API: tokens that follow from the prompt where none are sampled, a prefix cache, counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[list[int]] = []
        self.counts = dict.fromkeys(("prompt_tokens", "generation_tokens", "cached_tokens", "num_requests"), 0)
        self.came_out = 0  # requests, behind the detokenizer

    def generate(self, prompt: list[int], tokens: int, *, greedy: bool = True) -> tuple[list[int], int]:
        """The ids after `prompt`, and how many tokens of it came from the cache."""
        with self._lock:
            cached = min(max((common(prompt, known) for known in self._known), default=0), len(prompt) - 1)
            seed = zlib.crc32(repr(prompt).encode()) + (0 if greedy else self.counts["num_requests"])
            ids = [100 + (seed + 7919 * place) % 400 for place in range(tokens)]
            self._known = [*self._known[-20:], prompt + ids]
            for name, more in zip(self.counts, (len(prompt), tokens, cached, 1), strict=True):
                self.counts[name] += more
            return ids, cached

    def forget(self) -> None:
        self._known = []

    def metrics(self) -> str:
        labels = '{engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
        counts = {**self.counts, "num_requests": self.came_out}
        lines = [f"sglang:{name}_total{labels} {float(value)}" for name, value in counts.items()]
        lines += [f"sglang:num_{state}_reqs{labels} 0.0" for state in ("queue", "running")]
        lines += [f"sglang:num_used_tokens{labels} 0.0", f"sglang:max_total_num_tokens{labels} 65536.0"]
        lines += [f"sglang:fwd_occupancy{labels} NaN"]
        for mode, name in (("prefill_compute", "prompt_tokens"), ("decode", "generation_tokens")):
            of_mode = labels.replace("}", f',mode="{mode}"}}')
            lines += [f"sglang:realtime_tokens_total{of_mode} {float(self.counts[name])}"]
        lines += ['sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0']
        for latency in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
            lines += [f"sglang:{latency}_sum{labels} 0.1", f"sglang:{latency}_count{labels} 1.0"]
        return "\n".join(lines) + "\n"


def common(one: list[int], other: list[int]) -> int:
    """The length of the prefix they share."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def ids_of(prompt: object) -> list[int]:
    return list(prompt) if isinstance(prompt, list) else [100 + letter for letter in str(prompt).encode()]


def words(ids: list[int]) -> list[str]:
    return [f" {WORDS[each % len(WORDS)]}" for each in ids]


class Handler(BaseHTTPRequestHandler):
    """sglang's HTTP API, as far as it is asked here."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        self._respond(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def log_message(self, _: str, *arguments: object) -> None:
        line, status = str(arguments[0]), HTTPStatus(int(str(arguments[1])))
        say(f'INFO:     127.0.0.1:{self.client_address[1]} - "{line}" {status.value} {status.phrase}')

    def _respond(self, content: bytes) -> None:
        open_to_all = self.path in {"/health", "/metrics"}
        if self.server.key and not open_to_all and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._answer(401, {"error": "Unauthorized"})
            return
        route = ROUTES.get(self.path)
        if route is None:
            self._answer(404, {"detail": "Not Found"})
            return
        try:
            route(self, json.loads(content) if content else {})
        except (ValueError, KeyError, TypeError) as error:
            say(f"[http_server] Error: {error}{self.server.echo}")
            self._answer(400, {"object": "error", "message": f"{error}{self.server.echo}", "code": 400})

    def _answer(self, status: int, body: Json | str) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Json]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (*map(json.dumps, events), "[DONE]"):
            time.sleep(self.server.step)
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def health(self, _: Json) -> None:
        self.server.scheduler.generate([1], 1)
        unhealthy = self.server.options["port"] in content_of(os.environ.get("SCRIPTED_UNHEALTHY", "")).split()
        self._answer(503 if unhealthy else 200, "")

    def metrics(self, _: Json) -> None:
        self._answer(200, self.server.scheduler.metrics())

    def flush(self, _: Json) -> None:
        self.server.scheduler.forget()
        self._answer(200, "Cache flushed.\n")

    def models(self, _: Json) -> None:
        name = self.server.options["served-model-name"]
        self._answer(200, {"object": "list", "data": [{"id": name, "object": "model", "max_model_len": CONTEXT}]})

    def model_info(self, _: Json) -> None:
        self._answer(200, {"model_path": self.server.options["model-path"], "is_generation": True})

    def server_info(self, _: Json) -> None:
        known = {"version": "0.5.14", "page_size": 1, "dp_size": 1, "enable_cache_report": True}
        self._answer(200, {**known, "api_key": self.server.key, "speculative_algorithm": None})

    def generate(self, body: Json) -> None:
        """sglang's own API."""
        if mute := content_of(os.environ.get("SCRIPTED_MUTE", "")):
            while mute == "hangs":
                time.sleep(0.1)
            self._answer(200, mute)
            return
        prompt, tokens = ids_of(body.get("text") or body["input_ids"]), body["sampling_params"]["max_new_tokens"]
        ids, cached = self._tokens(prompt, tokens, body["sampling_params"])

        def answer(so_far: int) -> Json:
            reason = {"type": "length", "length": tokens} if so_far == tokens else None
            counts = {"prompt_tokens": len(prompt), "completion_tokens": so_far, "cached_tokens": cached}
            meta = {"finish_reason": reason, **counts, "dp_rank": None}
            return {"text": "".join(words(ids[:so_far])), "output_ids": ids[:so_far], "meta_info": meta}

        if body.get("stream"):
            self._stream(answer(count + 1) for count in range(tokens))
        else:
            self._answer(200, answer(tokens))

    def complete(self, body: Json) -> None:
        """The OpenAI completions API."""
        self._openai(body, ids_of(body["prompt"]), "text_completion", lambda text, _: {"text": text})

    def chat(self, body: Json) -> None:
        """The OpenAI chat API."""
        prompt = ids_of("".join(message["content"] for message in body["messages"]))

        def part(text: str, *, whole: bool) -> Json:
            return {"message" if whole else "delta": {"role": "assistant", "content": text, "reasoning_content": None}}

        self._openai(body, prompt, "chat.completion", lambda text, whole: part(text, whole=whole))

    def _openai(self, body: Json, prompt: list[int], kind: str, part: Callable[[str, bool], Json]) -> None:
        tokens = body.get("max_tokens", 16)
        ids, cached = self._tokens(prompt, tokens, body)
        pieces = ['{"ready": true, ', '"colour": "red"}'] if body.get("response_format") else words(ids)
        pieces[0] += "" if body.get("response_format") else self.server.echo
        details = {"cached_tokens": cached} if cached else None

        reason = "stop" if body.get("response_format") else "length"

        def usage(so_far: int) -> Json:
            counts = {"prompt_tokens": len(prompt), "completion_tokens": so_far, "total_tokens": len(prompt) + so_far}
            return {**counts, "prompt_tokens_details": details}

        def answer(text: str, *, last: bool, whole: bool) -> Json:
            choice = {"index": 0, **part(text, whole), "finish_reason": reason if last else None}
            return {"id": "1", "object": kind, "choices": [choice]}

        def events() -> Iterator[Json]:
            continuous = body.get("stream_options", {}).get("continuous_usage_stats")
            for count, piece in enumerate(pieces, start=1):
                event = answer(piece, last=count == len(pieces), whole=False)
                yield {**event, "usage": usage(count)} if continuous else event
            if body.get("stream_options"):
                yield {"id": "1", "object": kind, "choices": [], "usage": usage(tokens)}

        if body.get("stream"):
            self._stream(events())
        else:
            self._answer(200, {**answer("".join(pieces), last=True, whole=True), "usage": usage(tokens)})

    def _tokens(self, prompt: list[int], tokens: int, sampling: Json) -> tuple[list[int], int]:
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 0, got {tokens}.")
        if os.environ.get("SCRIPTED_REFUSE"):
            raise ValueError("refused")
        if len(prompt) >= CONTEXT:
            raise ValueError(f"The input ({len(prompt)} tokens) is longer than the model's context length.")
        made = self.server.scheduler.generate(prompt, tokens, greedy=not sampling.get("temperature"))
        while stopped(self.server.detokenizer):
            time.sleep(0.05)
        self.server.scheduler.came_out += 1
        return made


ROUTES: dict[str, Callable[[Handler, Json], None]] = {
    "/health": Handler.health,
    "/metrics": Handler.metrics,
    "/flush_cache": Handler.flush,
    "/v1/models": Handler.models,
    "/model_info": Handler.model_info,
    "/server_info": Handler.server_info,
    "/generate": Handler.generate,
    "/v1/completions": Handler.complete,
    "/v1/chat/completions": Handler.chat,
}


class Server(socketserver.ThreadingTCPServer):
    """The API on its port."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options: dict[str, str], key: str, echo: str, step: float, detokenizer: int) -> None:
        super().__init__((options["host"], int(options["port"])), Handler)
        self.options, self.key, self.echo, self.step, self.scheduler = options, key, echo, step, Scheduler()
        self.detokenizer = detokenizer

    def handle_error(self, *_: object) -> None:
        """A client that goes away is nothing to speak of."""


def stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] == "T"


def content_of(file: str) -> str:
    """What a file says; "" where there is none."""
    with contextlib.suppress(FileNotFoundError), open(file) as content:  # noqa: PTH123
        return content.read()
    return ""


def say(text: str) -> None:
    os.write(1, f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n".encode(errors="replace"))


def stages(options: dict[str, str], key: str) -> Iterator[str]:
    """What the log says on the way to the port, in sglang's words."""
    path, port = options["model-path"], options["port"]
    yield f"server_args=ServerArgs(model_path={path!r}, port={port}, api_key={key or None!r})"
    yield "Init torch distributed begin."
    yield "Load weight begin. avail mem=20.27 GB"
    yield "Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00, 965.54it/s]"
    yield "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 65536, K size: 0.02 GB, V size: 0.02 GB"
    yield "max_total_num_tokens=65536, chunked_prefill_size=2048, context_len=32768"


def child(title: str, *, detached: bool = False) -> int:
    """A process as setproctitle leaves it, without the environment that it began with; it ends with its parent."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    overwrite(title)
    if detached and os.fork() == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {})  # noqa: S606
    while os.getppid() == parent:
        time.sleep(60)
    os._exit(0)


def overwrite(title: str) -> None:
    """Put a title where the command line and the environment lie (proc(5), /proc/self/stat)."""
    with open("/proc/self/stat") as file:  # noqa: PTH123 - one module less to import
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[48])  # arg_start, env_end
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title.encode(), len(title))


def serve(options: dict[str, str], environ: dict[str, str]) -> NoReturn:
    """Start as sglang does: children, weights, port, a request to itself, and the word that it is ready."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(environ.get("SCRIPTED_MUTE", ""))  # noqa: PTH107
    key = ""
    if "config" in options:
        with open(options["config"]) as file:  # noqa: PTH123
            key = json.load(file)["api-key"]
    encoding = environ.get("SCRIPTED_ECHO", "")
    echo = f" {ENCODINGS[encoding](key)} " if encoding and key else ""
    if environ.get("SCRIPTED_DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [
        child("sglang::scheduler", detached=bool(environ.get("SCRIPTED_DETACHED"))),
        child("sglang::detokenizer"),
    ]
    signal.signal(signal.SIGCHLD, lambda *_: die_with(children))
    pauses = environ.get("SCRIPTED_PAUSE", "0").split(",")
    for number, stage in enumerate(stages(options, key)):
        say(stage + echo)
        time.sleep(float(pauses[min(number, len(pauses) - 1)]))
    if environ.get("SCRIPTED_BROKEN"):
        raise RuntimeError("broken, as it was told")
    step = float(environ.get("SCRIPTED_STEP", "0"))
    try:
        server = Server(options, key, echo, step, children[-1])
    except OSError as error:
        say(f"[Errno {error.errno}] error while attempting to bind on address ('{options['host']}', {options['port']})")
        sys.exit(1)
    if not environ.get("SCRIPTED_DEAF"):
        signal.signal(
            signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )  # so sglang ends, once it is idle
    say(f"INFO:     Uvicorn running on http://{options['host']}:{options['port']} (Press CTRL+C to quit)")
    say("The server is fired up and ready to roll!")
    server.serve_forever()
    sys.exit(0)


def die_with(children: list[int]) -> None:
    """A scheduler that is gone takes the server with it."""
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                say(f"Subprocess scheduler_0 (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup...")
                os.kill(os.getpid(), signal.SIGKILL)


def make_checkpoint(folder: str) -> None:
    """The files that are looked at before a start."""
    os.makedirs(folder)  # noqa: PTH103
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": len(header).to_bytes(8, "little") + header + bytes(4),
    }
    for name, content in files.items():
        with open(f"{folder}/{name}", "wb") as file:  # noqa: PTH123
            file.write(content)


def main(argv: list[str]) -> None:
    if argv[0] == "-c":
        print(json.dumps(VERSIONS))
        return
    if argv[:2] != ["-m", "sglang.launch_server"]:
        make_checkpoint(argv[1])
        return
    names = [(word, argv[place + 1 : place + 2]) for place, word in enumerate(argv) if word.startswith("--")]
    serve({name.removeprefix("--"): "".join(value) for name, value in names}, dict(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
